"""Paths of modules in the user's model, as the scopes of operations.

torch numbers the calls of a module that is called several times (`conv@1` is the second call of `conv`), and a key of
an nn.ModuleDict may look just so; only what is no module's own name is taken for a number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from torch.fx import Graph

from placewright.capture.step import PREFIX

_CALL = re.compile(r"@\d+$")


def clean_scope(path: str, known: Collection[str]) -> str:
    """Return the path of a module in the user's model: without the step around it, or the number of the call.

    `known` are the paths of the model's modules.
    """
    parts: list[str] = []
    for part in path.removeprefix(PREFIX).split(".") if path != PREFIX[:-1] else ():
        while ".".join([*parts, part]) not in known and _CALL.search(part):
            part = _CALL.sub("", part)  # noqa: PLW2901
        parts.append(part)
    return ".".join(parts)


def paths_of_program(graph: Graph, names: Iterable[str]) -> frozenset[str]:
    """Return the paths of the modules that a saved program was made of, by its nodes and the names of its parameters.

    torch numbers calls from the second on, so a path with a number is a module's own where there is none without.
    """
    seen = {path for node in graph.nodes for path, *_ in (node.meta.get("nn_module_stack") or {}).values()}
    seen = {path.removeprefix(PREFIX) for path in seen}
    own = {path for path in seen if not _CALL.search(path) or _CALL.sub("", path) not in seen}
    for name in names:
        parts = name.split(".")[:-1]
        own |= {".".join(parts[:k]) for k in range(1, len(parts) + 1)}
    return frozenset(own)

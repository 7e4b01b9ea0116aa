"""Checkpointing: what a checkpointed call computes is computed again before its backward pass.

Capture marks the nodes of every checkpointed call with the calls that it is within, outermost first; here the marked
forward nodes are repeated in front of the call's backward, which then reads the repeated values. As in eager
execution all of the call runs again, calls within it included, up to the last value that its backward needs, or to
its end where it was asked to. A call within another is then repeated once more from what the outer repetition made,
in front of its own backward. What the policy of selective checkpointing saves is not repeated.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Graph, Node
from torch.fx.node import map_arg

from placewright.capture import torch_private
from placewright.capture.faults import one_line
from placewright.capture.work import kind_of
from placewright.errors import CaptureError

ORIGINAL = "recompute_of"
"""In the metadata of a repeated node: the node that it repeats."""
REPETITION = "repetition"
"""In the metadata of a repeated node: the path of the call for which it was repeated."""

Policy = Callable[..., Any]
_Nodes = dict[Node, None]


@dataclass(frozen=True)
class Region:
    """A checkpointed call."""

    number: int
    whole: bool = field(default=False, compare=False)
    """Whether it runs to its end when it is repeated, and whether or not anything is needed."""
    policy: Policy | None = field(default=None, compare=False)
    """Says which operators' results are saved instead of computed again."""


Path = tuple[Region, ...]
"""A call and those around it, outermost first."""


class Marks:
    """Marks what is traced in checkpointed calls."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._path: Path = ()

    @contextlib.contextmanager
    def mark(self, whole: bool, policy: Policy | None) -> Iterator[None]:
        """Let what is traced meanwhile belong to a call of its own, within those that are going on."""
        around = self._path
        self._path = (*around, Region(next(self._numbers), whole, policy))
        try:
            with torch_private.annotated({"recompute": self._path}):
                yield
        finally:
            self._path = around


def path_of(node: Node) -> Path:
    """Return the checkpointed calls that a node belongs to."""
    noted = (node.meta.get("custom") or {}).get("recompute")
    ours = isinstance(noted, tuple) and all(isinstance(region, Region) for region in noted)
    return noted if ours else ()  # type: ignore[return-value]


def is_backward(node: Node) -> bool:
    """Whether a node belongs to the backward pass."""
    return bool(node.meta.get("partitioner_tag") == "is_backward")


def repeat_checkpointed(graph: Graph) -> int:
    """Repeat what checkpointed calls compute in front of their backward; return how many nodes were added."""
    forward: dict[Path, _Nodes] = {}
    backward: dict[Path, _Nodes] = {}
    for node in graph.nodes:
        path = path_of(node) if node.op == "call_function" else ()
        for depth in range(1, len(path) + 1):
            (backward if is_backward(node) else forward).setdefault(path[:depth], {})[node] = None
    copies: dict[Path, dict[Node, Node]] = {}
    for path, nodes in sorted(_repeated(forward, backward).items(), key=lambda entry: len(entry[0])):
        copies[path] = _repeat(graph, path, nodes, copies, _first_reader(path, forward[path], backward[path]))
    for path in (path for path in backward if len(path) == 1):
        for reader in backward[path]:
            for source in reader.all_input_nodes:
                reader.replace_input_with(source, _stand_in(source, path_of(reader), copies))
    return sum(copy is not node for made in copies.values() for node, copy in made.items())


def _repeated(forward: dict[Path, _Nodes], backward: dict[Path, _Nodes]) -> dict[Path, list[Node]]:
    """Return what is repeated for every call: its nodes, up to the last that the call itself has to have.

    That is what its own backward reads, and what calls within it take from it. What one of them reads of its own is
    in the outer repetition too, but made once more.
    """
    asked: dict[Path, _Nodes] = {path: {} for path in backward}
    for path, readers in backward.items():
        for reader in readers:
            if path_of(reader) == path:
                asked[path].update(dict.fromkeys(reader.all_input_nodes))
    found: dict[Path, list[Node]] = {}
    for path in sorted(backward, key=len, reverse=True):
        own = forward.get(path, {})
        computed = list(own)
        ends = [k + 1 for k, node in enumerate(computed) if path[-1].whole or node in asked[path]]
        if ends:
            found[path] = computed[: ends[-1]]
        for source in (*asked[path], *(source for node in found.get(path, ()) for source in node.all_input_nodes)):
            if len(path) > 1 and source not in own:
                asked[path[:-1]][source] = None
    return found


def _first_reader(path: Path, computed: _Nodes, readers: _Nodes) -> Node:
    """Return the backward node in front of which a call is repeated: the first that reads of it, or the first."""
    first = next(iter(readers))
    return first if path[-1].whole else next(r for r in readers if any(s in computed for s in r.all_input_nodes))


def _repeat(
    graph: Graph, path: Path, nodes: list[Node], copies: dict[Path, dict[Node, Node]], reader: Node
) -> dict[Node, Node]:
    """Repeat nodes in front of a reader; return the repetition of each, which is itself where it is saved."""
    made: dict[Node, Node] = {}
    known = {**copies, path: made}
    with graph.inserting_before(reader):
        for node in nodes:
            if _is_saved(node, path[-1].policy, made):
                made[node] = node
                continue
            made[node] = graph.node_copy(node, lambda source: _stand_in(source, path, known))
            made[node].meta = {**node.meta, "partitioner_tag": "is_backward", ORIGINAL: node, REPETITION: path}
    return made


def _stand_in(source: Node, path: Path, copies: dict[Path, dict[Node, Node]]) -> Node:
    """Return the repetition of a node that a reader within these calls sees: that of the innermost of them."""
    around = (copies.get(path[:depth], {}) for depth in range(len(path), 0, -1))
    return next((made[source] for made in around if source in made), source)


_NAMES_ON_A_GPU = {
    "scaled_dot_product_attention": ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
                                     "_scaled_dot_product_cudnn_attention"),
    "rms_norm": ("_fused_rms_norm",),
}  # fmt: skip
"""What policies may call the operators that a GPU has and a CPU has not."""


def _is_saved(node: Node, policy: Policy | None, made: dict[Node, Node]) -> bool:
    """Whether a policy saves what a node returns; a part of what is saved is saved with it."""
    if policy is None:
        return False
    if node.target is operator.getitem:
        return made.get(node.all_input_nodes[0]) is node.all_input_nodes[0]
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
    names = _NAMES_ON_A_GPU.get(kind_of(node.target), ())
    targets = (node.target, *torch_private.operators_named(names))
    try:
        return any(torch_private.is_saved(policy, target, args, kwargs, node.meta.get("val")) for target in targets)
    except Exception as error:
        raise CaptureError(
            f"the policy of a selective checkpoint raises {one_line(error)}, asked for {node.target} with tensors "
            "without values; it must answer with a CheckpointPolicy or a bool"
        ) from error

"""Other people's graph formats, one file each; `read_workload` tells them apart by content."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from placewright.errors import FileError
from placewright.files import first_character, parse_json, read_text
from placewright.graph_format import graph_of
from placewright.importers import pipedream, tarnawski
from placewright.workload import Workload

__all__ = ["Workload", "expert_path", "read_workload"]


def read_workload(path: str | os.PathLike[str]) -> Workload:
    """Read a graph of any known format: our own, Tarnawski et al.'s JSON, or a PipeDream profile."""
    text = read_text(path)
    first = first_character(text)
    if first in ("{", "["):
        document = parse_json(text, path)
        if not isinstance(document, dict):
            raise FileError(path, "", f"holds a list; {_FORMATS}")
        if "schema" in document:
            workload = Workload(graph_of(document, path))
        elif "nodes" in document:
            workload = tarnawski.workload_of(document, path)
        else:
            raise FileError(path, "", f"has neither the field 'schema' nor 'nodes'; {_FORMATS}")
    elif re.match(r"\s*node[0-9]+ -- ", text):
        workload = pipedream.workload_of(text, path)
    else:
        raise FileError(path, "", f"is of no known format; {_FORMATS}")
    return replace(workload, expert=expert_path(path))


_FORMATS = (
    'a workload is a graph of ours (JSON with "schema": "placewright.graph/1"), a JSON file of Tarnawski et al. '
    "(with nodes, edges, maxFPGAs) or a PipeDream profile (lines such as 'node1 -- Linear(...) -- "
    "forward_compute_time=...')"
)


def expert_path(path: str | os.PathLike[str]) -> Path | None:
    """Return the expert's split of a workload, `../experts/<same name>` beside its folder, if there is one."""
    own = Path(os.path.abspath(path))
    candidate = own.parent.parent / "experts" / own.name
    return candidate if candidate != own and candidate.is_file() else None

"""Other people's graph formats, `read_workload` tells them apart by content, and ONNX by name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from placewright.errors import FileError, InputError
from placewright.files import first_character, parse_json, read_text
from placewright.graph_format import graph_of
from placewright.importers import onnx, pipedream, tarnawski
from placewright.workload import Workload

__all__ = ["Workload", "expert_path", "read_workload"]


def read_workload(path: str | os.PathLike[str], dims: Mapping[str, int] | None = None) -> Workload:
    """Read a graph of any known format: our own, Tarnawski et al.'s JSON, a PipeDream profile, or an ONNX model.

    `dims` gives sizes to axes that an ONNX model (a file whose name ends in `.onnx`) leaves open, by name.
    """
    if onnx.is_onnx(path):
        return onnx.workload_of(path, dims)
    if dims:
        raise InputError(
            f"dims: sizes of axes are for ONNX models (.onnx), which {str(path)[:200]!r} is not; leave them out"
        )
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
    "(with nodes, edges, maxFPGAs), a PipeDream profile (lines such as 'node1 -- Linear(...) -- "
    "forward_compute_time=...') or an ONNX model (its name ends in .onnx)"
)


def expert_path(path: str | os.PathLike[str]) -> Path | None:
    """Return the expert's split of a workload, `../experts/<same name>` beside its folder, if there is one."""
    own = Path(os.path.abspath(path))
    candidate = own.parent.parent / "experts" / own.name
    return candidate if candidate != own and candidate.is_file() else None

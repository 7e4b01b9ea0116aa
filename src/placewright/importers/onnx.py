"""ONNX models (opset 13 and later): structure, shapes, work; weights are not read. docs/onnx.md has every choice."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from placewright.errors import FileError
from placewright.graph_format import MAX_OPERATIONS
from placewright.importers.onnx_build import operations_of
from placewright.importers.onnx_bytes import read_proto
from placewright.importers.onnx_dims import Dims
from placewright.importers.onnx_model import network_of
from placewright.importers.onnx_nodes import nodes_of
from placewright.importers.onnx_shapes import Shapes
from placewright.operations import build_graph
from placewright.workload import Workload, made


def is_onnx(path: str | os.PathLike[str]) -> bool:
    """Whether the name of a file says that it is an ONNX model."""
    return os.fsdecode(path).lower().endswith(".onnx")


def workload_of(path: str | os.PathLike[str], dims: Mapping[str, int] | None = None) -> Workload:
    """Return the inference pass of the network in a file.

    `dims` gives sizes to the axes that the file leaves open, by name; one without a name is `INPUT[AXIS]`.
    """
    model = read_proto(path)
    network = network_of(model.graph, nodes_of(model, path), path)
    shapes = Shapes(network, Dims(network, dims, path), path)
    shapes.run()
    operations = list(operations_of(shapes))
    if len(operations) > MAX_OPERATIONS:
        raise FileError(path, "graph", f"{len(operations)} operations; at most {MAX_OPERATIONS} are allowed")
    return Workload(made(lambda: build_graph(_name(path), operations), path, "graph"))


def _name(path: str | os.PathLike[str]) -> str:
    """Return a name for the graph in a file: the file's own, without its ending."""
    name = re.sub(r"\.onnx$", "", os.path.basename(os.fsdecode(path)), flags=re.IGNORECASE)
    return name if name.isprintable() and 0 < len(name) <= 200 else "workload"

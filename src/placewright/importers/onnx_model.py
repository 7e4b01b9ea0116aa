"""The network in an ONNX model as checked records: typed values, weights, and nodes in an order that can run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from placewright.checks import MAX_BYTES
from placewright.errors import FileError
from placewright.workload import topological

MIN_OPSET = 13
MAX_NODES = 500_000
MAX_VALUES = 2_000_000
"""Inputs, weights and outputs of nodes."""
MAX_AXES = 64
MAX_NAME = 1000
MAX_DIM = 1 << 40

Dim = int | str | None
"""The size of an axis: a number, a name, or not known."""

TYPES = {  # elem_type of ONNX: the nearest type of ours, and bits of an element
    1: ("float32", 32), 2: ("uint8", 8), 3: ("int8", 8), 4: ("int16", 16), 5: ("int16", 16), 6: ("int32", 32),
    7: ("int64", 64), 8: ("uint8", 128), 9: ("bool", 8), 10: ("float16", 16), 11: ("float64", 64),
    12: ("int32", 32), 13: ("int64", 64), 14: ("complex64", 64), 15: ("complex128", 128), 16: ("bfloat16", 16),
    17: ("float8_e4m3fn", 8), 18: ("float8_e4m3fn", 8), 19: ("float8_e5m2", 8), 20: ("float8_e5m2", 8),
    21: ("uint8", 4), 22: ("int8", 4), 23: ("float8_e4m3fn", 4), 24: ("float8_e5m2", 8), 25: ("uint8", 2),
    26: ("int8", 2), 27: ("float8_e4m3fn", 6), 28: ("float8_e5m2", 6),
}  # fmt: skip
"""Text (8) counts 16 bytes an element, about what a short string takes."""


@dataclass(frozen=True, slots=True)
class Value:
    """The type of a tensor: ONNX's code of its elements, and its shape."""

    code: int
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """What it takes; elements of less than a byte are packed."""
        return -(-self.count * TYPES[self.code][1] // 8)

    @property
    def dtype(self) -> str:
        """The nearest of our types."""
        return TYPES[self.code][0]


@dataclass(slots=True)
class Node:
    """A node: `version` is that of its operator set, `place` where the file has it."""

    proto: Any
    name: str
    scope: str
    domain: str
    version: int
    place: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def op(self) -> str:
        """The operator."""
        return str(self.proto.op_type)

    @property
    def label(self) -> str:
        """The node as an error names it."""
        return f"{self.place} ({self.op} {self.name[:200]!r})" if self.name else f"{self.place} ({self.op})"


@dataclass(frozen=True, slots=True)
class Network:
    """A graph of ONNX. `annotated` has the types that the file states for values between nodes."""

    inputs: Mapping[str, tuple[int, tuple[Dim, ...]]]
    weights: Mapping[str, Any]
    nodes: Sequence[Node]
    outputs: Sequence[str]
    annotated: Mapping[str, tuple[int, tuple[Dim, ...]]]


def network_of(graph: Any, nodes: Sequence[Node], path: object) -> Network:
    """Return the network of a graph, whose nodes were read already."""
    weights = _weights(graph, path)
    inputs = {}
    for k, info in enumerate(graph.input):
        place = f"graph.input[{k}]"
        name = text(info.name, path, place)
        if not name or name in inputs:
            raise FileError(path, place, f"has no name, or one that another input has: {name[:80]!r}")
        if name not in weights:  # older files list weights among the inputs
            inputs[name] = _typed(info, path, place)
    outputs = [text(info.name, path, f"graph.output[{k}]") for k, info in enumerate(graph.output)]
    if not outputs:
        raise FileError(path, "graph.output", "is empty: the graph computes nothing")
    annotated = {}
    for info in (*graph.value_info, *graph.output):
        if info.type.HasField("tensor_type") and info.type.tensor_type.HasField("shape"):
            place = f"value_info {info.name[:80]!r}"
            annotated[str(info.name)] = _typed(info, path, place)
    ordered = _ordered(inputs, weights, nodes, path)
    made = {name for node in nodes for name in node.outputs if name}
    for k, name in enumerate(outputs):
        if name not in made and name not in inputs and name not in weights:
            raise FileError(path, f"graph.output[{k}]", f"nothing makes {name[:80]!r}")
    return Network(inputs, weights, ordered, outputs, annotated)


def _weights(graph: Any, path: object) -> dict[str, Any]:
    """Return the weights by name."""
    if len(graph.sparse_initializer):
        raise FileError(path, "graph.sparse_initializer[0]", "sparse weights are not read; store them dense")
    weights: dict[str, Any] = {}
    for k, tensor in enumerate(graph.initializer):
        place = f"graph.initializer[{k}]"
        name = text(tensor.name, path, place)
        if not name or name in weights:
            raise FileError(path, place, f"has no name, or one that another weight has: {name[:80]!r}")
        weights[name] = tensor
    return weights


def _ordered(inputs: Iterable[str], weights: Iterable[str], nodes: Sequence[Node], path: object) -> list[Node]:
    """Return nodes in an order in which they can run: the file's, where it is one."""
    maker = dict.fromkeys((*inputs, *weights), -1)
    for i, node in enumerate(nodes):
        for name in filter(None, node.outputs):
            if name in maker:
                raise FileError(path, node.label, f"makes {name[:80]!r}, which something else makes too")
            maker[name] = i
    if len(maker) > MAX_VALUES:
        raise FileError(path, "graph", f"{len(maker)} tensors; at most {MAX_VALUES} are allowed")
    before = []
    for node in nodes:
        for name in filter(None, node.inputs):
            if name not in maker:
                raise FileError(path, node.label, f"reads {name[:80]!r}, which nothing makes")
        before.append(list(dict.fromkeys(maker[n] for n in node.inputs if n and maker[n] >= 0)))
    order = topological(before, [node.name or node.place for node in nodes], path, "graph.node")
    return [nodes[i] for i in order]


def _typed(info: Any, path: object, place: str) -> tuple[int, tuple[Dim, ...]]:
    """Return element type and axes of a declared value."""
    if not info.type.HasField("tensor_type"):
        kind = info.type.WhichOneof("value") or "a value without a type"
        raise FileError(path, place, f"is {kind.removesuffix('_type')}, not a tensor; only tensors are read")
    tensor = info.type.tensor_type
    check_code(tensor.elem_type, path, place)
    if not tensor.HasField("shape"):
        raise FileError(path, place, f"{info.name[:80]!r} has no shape, not even a number of axes; declare one")
    if len(tensor.shape.dim) > MAX_AXES:
        raise FileError(path, place, f"{len(tensor.shape.dim)} axes; at most {MAX_AXES} are allowed")
    dims: list[Dim] = []
    for d in tensor.shape.dim:
        if d.HasField("dim_value") and d.dim_value >= 0:
            dims.append(int(d.dim_value))
        else:
            dims.append(text(d.dim_param, path, place) or None)
    return int(tensor.elem_type), tuple(dims)


def check_code(code: int, path: object, place: str) -> None:
    """Refuse an element type that nobody knows."""
    if code not in TYPES:
        raise FileError(path, place, f"element type {code} is not known; types 1 to {max(TYPES)} are")


def check_value(value: Value, path: object, place: str) -> Value:
    """Return a value whose size is within the limits."""
    if len(value.shape) > MAX_AXES:
        raise FileError(path, place, f"{len(value.shape)} axes; at most {MAX_AXES} are allowed")
    if any(not 0 <= size <= MAX_DIM for size in value.shape) or value.bytes > MAX_BYTES:
        shown = "x".join(map(str, value.shape))[:200]
        raise FileError(path, place, f"a tensor of {shown}; sizes from 0 to {MAX_DIM}, {MAX_BYTES} bytes are allowed")
    return value


def weight_value(tensor: Any, path: object, place: str) -> Value:
    """Return the type of a weight. The length of its data, where the file tells it, must fit."""
    check_code(tensor.data_type, path, place)
    if tensor.HasField("segment"):
        raise FileError(path, place, "is a segment of a tensor, which is not read; store the tensor whole")
    value = check_value(Value(int(tensor.data_type), tuple(int(d) for d in tensor.dims)), path, place)
    stated = len(tensor.raw_data) if tensor.HasField("raw_data") else None
    if tensor.data_location == 1:
        entries = {str(entry.key): str(entry.value) for entry in tensor.external_data}
        length = entries.get("length", "")
        stated = int(length) if re.fullmatch("[0-9]{1,18}", length) else None
    if stated is not None and stated != value.bytes and value.code != 8:
        raise FileError(path, place, f"holds {stated} bytes of data for a tensor of {value.bytes} bytes")
    return value


def text(value: object, path: object, place: str) -> str:
    """Return a name that can be printed and is not too long."""
    if not isinstance(value, str):  # protobuf hands over what is not UTF-8 as bytes
        raise FileError(path, place, f"a name that is not UTF-8: {value!r:.80}; the file is damaged")
    if len(value) > MAX_NAME:
        raise FileError(path, place, f"a name of {len(value)} characters; at most {MAX_NAME} are allowed")
    if not value.isprintable():
        raise FileError(path, place, f"a name with unprintable characters: {value[:80]!a}")
    return value

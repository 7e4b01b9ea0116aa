"""The type and shape of every value of a network, and those values that are constants.

Axes with names get their sizes first. Then one node after another is asked what it makes: `onnx` itself knows its
own operators, given the constants that decide shapes (which onnx_fold works out on the way).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from placewright.errors import FileError
from placewright.importers.onnx_call import Array, Call
from placewright.importers.onnx_contrib import CONTRIB
from placewright.importers.onnx_dims import Dims
from placewright.importers.onnx_fold import array_of, folded, is_small
from placewright.importers.onnx_model import TYPES, Dim, Network, Node, Value, check_value, weight_value
from placewright.importers.onnx_own import OWN, Partial, check

_POSITIVE = ("strides", "dilations", "kernel_shape", "group", "blocksize", "num_groups")
_CONSTANTS = {  # attributes of Constant: element type, and whether it is a list
    "value_float": (1, False), "value_floats": (1, True), "value_int": (7, False), "value_ints": (7, True),
    "value_string": (8, False), "value_strings": (8, True),
}  # fmt: skip


class Shapes:
    """What is known of every value: `values` its type, `known` its content, `constants` those made by Constant."""

    def __init__(self, network: Network, dims: Dims, path: object) -> None:
        self.network, self.dims, self.path = network, dims, path
        self.values: dict[str, Value] = {}
        self.known: dict[str, Array] = {}
        self.constants: dict[str, Value] = {}
        self._protos: dict[str, Any] = {}

    def run(self) -> None:
        """Go through the network once."""
        for name, (code, shape) in self.network.inputs.items():
            self.values[name] = check_value(Value(code, self.dims.bound(name, shape)), self.path, f"input {name!r}")
        for k, (name, tensor) in enumerate(self.network.weights.items()):
            self.values[name] = weight_value(tensor, self.path, f"graph.initializer[{k}] ({name[:200]!r})")
            self._keep(name, array_of(tensor) if is_small(self.values[name], given=True) else None)
        for node in self.network.nodes:
            if node.domain == "" and node.op == "Constant":
                self._constant(node)
            else:
                self._node(node)

    def call(self, node: Node) -> Call:
        """Return a node with the types of what it reads, and makes if that is known already."""
        return Call(
            node,
            self.path,
            tuple(self.values[name] if name else None for name in node.inputs),
            tuple(self.known.get(name) if name else None for name in node.inputs),
            tuple(self.values.get(name) if name else None for name in node.outputs),
        )

    def _keep(self, name: str, array: Array | None) -> None:
        """Remember a constant."""
        if array is not None and array.shape == self.values[name].shape:
            self.known[name] = array

    def _constant(self, node: Node) -> None:
        """Note what a Constant holds."""
        if len(node.outputs) != 1 or not node.outputs[0] or len(node.attributes) != 1:
            raise FileError(self.path, node.label, "has one attribute and one output; the file is damaged")
        ((key, given),) = node.attributes.items()
        array = None
        if key == "value" and hasattr(given, "data_type"):
            value = weight_value(given, self.path, node.label)
            array = array_of(given) if is_small(value, given=True) else None
        elif key in _CONSTANTS and isinstance(given, Sequence if _CONSTANTS[key][1] else str | int | float):
            code, listed = _CONSTANTS[key]
            value = Value(code, (len(given),) if listed else ())
            if is_small(value, given=True):
                array = self._array(node, list(given) if listed else given, np.float32 if code == 1 else np.int64)
        else:
            raise FileError(self.path, node.label, f"holds {key[:80]!r}, which is not read; store a dense tensor")
        self.values[node.outputs[0]] = self.constants[node.outputs[0]] = check_value(value, self.path, node.label)
        self._keep(node.outputs[0], array)

    def _array(self, node: Node, given: Any, dtype: Any) -> Array:
        """Return the numbers in an attribute."""
        try:
            return np.array(given, dtype)
        except (ValueError, TypeError, OverflowError):
            raise FileError(self.path, node.label, f"holds {given!r:.80}, not numbers; the file is damaged") from None

    def _node(self, node: Node) -> None:
        """Note the types of what a node makes, and the content where it is constant."""
        call = self.call(node)
        found = self._made(call)
        for k, name in enumerate(node.outputs):
            if name:
                self.values[name] = self._complete(node, k, found[k] if k < len(found) else (0, None))
        arrays = folded(self.call(node)) if all(node.outputs) else None
        for name, array in zip(node.outputs, arrays or (), strict=False):
            self.known[name] = array

    def _made(self, call: Call) -> Sequence[Partial]:
        """Return what is known of a node's outputs from its operator."""
        node = call.node
        rule = CONTRIB.get((node.domain, node.op))
        if rule is not None and rule.shapes is not None:
            made = rule.shapes(call)
            if len(node.outputs) > len(made):
                raise call.fault(f"makes {len(node.outputs)} outputs; {node.op} is known to make {len(made)}")
            return [(0, None) if value is None else (value.code, value.shape) for value in made]
        if rule is not None and rule.like is not None:
            return self._ask(call, rule.like[0], rule.like[1])
        if node.domain != "":
            raise call.fault(_unknown(node))
        if node.op in OWN and (own := OWN[node.op](call)):
            return own
        return self._ask(call, node.op, len(node.inputs))

    def _ask(self, call: Call, op: str, most: int) -> Sequence[Partial]:
        """Return what the package onnx says of a node's outputs; of its inputs at most so many count."""
        import onnx

        node = call.node
        schema = _schema(call, op)
        for name in _POSITIVE:
            given = node.attributes.get(name, 1)
            if any(size < 1 for size in ((given,) if isinstance(given, int) else call.integers(name) or ())):
                raise call.fault(f"the attribute {name!r} has a value below 1")
        check(call)
        proto = node.proto
        if op != proto.op_type or proto.domain:
            proto = onnx.helper.make_node(op, node.inputs[:most], node.outputs)
            known = schema.attributes
            proto.attribute.extend(a for a in node.proto.attribute if a.name in known)
        types = {name: self._type(name) for name in proto.input if name}
        data = {name: self._data(name) for name in types if name in self.known}
        version = node.version if node.domain == "" else onnx.defs.onnx_opset_version()
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, proto, types, data, opset_imports=[onnx.helper.make_opsetid("", version)]
            )
        except MemoryError:
            raise
        except Exception as error:  # the package raises types of its own, some without a public name
            said = " ".join(str(error).split())[:300] or type(error).__name__
            raise call.fault(f"its inputs and attributes do not fit the operator: {said}") from None
        return [_partial(found[name], call) if name in found else (0, None) for name in node.outputs]

    def _type(self, name: str) -> Any:
        """Return a value's type as the package onnx writes it."""
        import onnx

        if name not in self._protos:
            value = self.values[name]
            self._protos[name] = onnx.helper.make_tensor_type_proto(value.code, value.shape)
        return self._protos[name]

    def _data(self, name: str) -> Any:
        """Return a constant as the package onnx writes it."""
        import onnx

        array = self.known[name]
        return onnx.helper.make_tensor(name, self.values[name].code, array.shape, array.tobytes(), raw=True)

    def _complete(self, node: Node, place: int, found: Partial) -> Value:
        """Return the type of an output, with what the file says where its operator leaves something open."""
        name = node.outputs[place]
        code, shape = found
        stated = self.network.annotated.get(name)
        if stated is not None:
            axes = self.dims.replaced(stated[1])
            code = code or stated[0]
            if shape is None:
                shape = axes
            elif len(axes) == len(shape):
                shape = tuple(b if a is None else a for a, b in zip(shape, axes, strict=True))
        if code not in TYPES:
            problem = f"the type of output {name[:200]!r} cannot be worked out; declare it in the file's value_info"
            raise FileError(self.path, node.label, problem)
        if shape is None or not all(isinstance(size, int) for size in shape):
            raise FileError(self.path, node.label, self._open(node, name, shape))
        return check_value(Value(code, tuple(int(size) for size in shape if size is not None)), self.path, node.label)

    def _open(self, node: Node, name: str, shape: tuple[Dim, ...] | None) -> str:
        """Return what to say of an output whose size is not known."""
        shown = "unknown, as is its number of axes" if shape is None else f"({', '.join(map(_shown, shape))})"
        problem = f"the shape of output {name[:200]!r} cannot be worked out; it is {shown}"
        named = [size for size in shape or () if isinstance(size, str)]
        if named:
            return f"{problem}. Give the size: {self.dims.example(named)}"
        unread = [n for n in node.inputs if n in self.network.weights and self.network.weights[n].data_location]
        if unread:
            more = f"It depends on the content of {unread[0][:200]!r}, which is large or in another file"
            return f"{problem}. {more}; save small tensors inside the model (size_threshold of onnx.save_model)"
        return (
            f"{problem}. It depends on data, or on a size that the file leaves open; state it in the "
            "file's value_info, where an axis may have a name to be given a size"
        )


def _shown(size: Dim) -> str:
    return "?" if size is None else str(size)[:80]


def _unknown(node: Node) -> str:
    """Return what to say of an operator that nobody knows."""
    where = f"domain {node.domain[:200]!r}" if node.domain else "ONNX's own domain"
    more = "Define it in the file as a function (model.functions) of known operators, or export the model without it"
    return f"the operator {node.op!r} of {where} is not known. {more}"


def _schema(call: Call, op: str) -> Any:
    """Return what the package onnx knows of an operator, in the version that the file asks for."""
    import onnx

    node = call.node
    if not onnx.defs.has(op, ""):
        raise call.fault(_unknown(node))
    if node.domain == "" and not node.version:
        raise call.fault("the file names no version of ONNX's own operators (opset_import); export the model again")
    version = node.version if node.domain == "" else onnx.defs.onnx_opset_version()
    try:
        schema = onnx.defs.get_schema(op, version, "")
    except onnx.defs.SchemaError:
        since = min((s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op), default=0)
        more = f"it came with {since}" if since > version else "it was taken out"
        raise call.fault(f"there is no operator {op!r} in opset {version}: {more}. Export the model again") from None
    if schema.deprecated:
        raise call.fault(f"the operator {op!r} was taken out before opset {version}; export the model again")
    return schema


def _partial(proto: Any, call: Call) -> Partial:
    """Return what a type of the package onnx says."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return 0, None
    if kind != "tensor_type":
        more = f"makes a {kind.removesuffix('_type')}, not a tensor; only tensors are read"
        raise call.fault(f"{more}. Export the model without it")
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return int(tensor.elem_type), None
    sizes = tuple(int(d.dim_value) if d.HasField("dim_value") else None for d in tensor.shape.dim)
    return int(tensor.elem_type), sizes

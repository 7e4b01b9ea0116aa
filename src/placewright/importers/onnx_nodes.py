"""The nodes of an ONNX model: operator sets checked, control flow refused, model-local functions inlined.

A call of a function becomes the nodes of its body; each keeps the version of the operator set that the
function names. Names inside a body get the name of the call before them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from placewright.errors import FileError
from placewright.importers.onnx_contrib import CONTRIB
from placewright.importers.onnx_model import MAX_NODES, MIN_OPSET, Node, text

_MAX_DEPTH = 32
"""Functions that call functions."""
_CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")
_GRAPH_TYPES = (5, 10)  # AttributeProto.GRAPH and GRAPHS
_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints", 8: "strings", 9: "tensors", 11: "sparse_tensor"}
_SCOPES = "pkg.torch.onnx.name_scopes"
"""Where PyTorch's exporter keeps module paths: the text of a list, the node's own name last."""


def nodes_of(model: Any, path: object) -> list[Node]:
    """Return the nodes of a model, calls of its functions replaced by their bodies."""
    import onnx

    if not 3 <= model.ir_version <= onnx.IR_VERSION:
        newer = "update the package onnx" if model.ir_version > 3 else "the file is damaged, or no ONNX model"
        known = f"onnx {onnx.__version__} knows 3 to {onnx.IR_VERSION}"
        raise FileError(path, "ir_version", f"{model.ir_version} is not known ({known}): {newer}")
    if len(model.graph.node) > MAX_NODES:
        raise FileError(path, "graph.node", f"{len(model.graph.node)} nodes; at most {MAX_NODES} are allowed")
    reader = _Reader(path)
    for k, function in enumerate(model.functions):
        key = _key(function.domain, function.name, function.overload)
        if key in reader.functions:
            raise FileError(path, f"functions[{k}]", f"{function.name!r:.80} is defined twice")
        reader.functions[key] = function
    versions = _versions(model.opset_import, path, "opset_import")
    for i, proto in enumerate(model.graph.node):
        reader.add(reader.node(proto, versions, f"graph.node[{i}]"), 0)
    return reader.nodes


def _key(domain: object, name: object, overload: object) -> tuple[object, object, object]:
    """Return what a function is called by."""
    return "" if domain == "ai.onnx" else domain, name, overload


def _versions(imports: Iterable[Any], path: object, place: str) -> dict[str, int]:
    """Return the version of every operator set that is imported."""
    import onnx

    versions: dict[str, int] = {}
    for k, entry in enumerate(imports):
        domain = text(entry.domain, path, f"{place}[{k}]")
        versions["" if domain == "ai.onnx" else domain] = int(entry.version)
    newest = onnx.defs.onnx_opset_version()
    version = versions.get("", MIN_OPSET)
    if not versions:
        raise FileError(path, place, "no operator set is named; a model names at least one")
    if version < MIN_OPSET:
        more = f"opset {version} is too old; {MIN_OPSET} to {newest} are read"
        raise FileError(path, place, f"{more}. Convert the model with onnx.version_converter, or export it again")
    if version > newest:
        more = f"opset {version} is newer than {newest}, the newest that onnx {onnx.__version__} knows"
        raise FileError(path, place, f"{more}. Update the package onnx")
    return versions


class _Reader:
    """Nodes as they are read, functions inlined on the way."""

    def __init__(self, path: object) -> None:
        self.path = path
        self.functions: dict[tuple[object, object, object], Any] = {}
        self.nodes: list[Node] = []
        self.calls = 0

    def node(self, proto: Any, versions: Mapping[str, int], place: str) -> Node:
        """Return a node, its names checked."""
        op, domain = text(proto.op_type, self.path, place), text(proto.domain, self.path, place)
        domain = "" if domain == "ai.onnx" else domain
        if not op:
            raise FileError(self.path, place, "names no operator")
        name = text(proto.name, self.path, place)
        found = Node(
            proto,
            name,
            _scope(proto, name),
            domain,
            versions.get(domain, 0),
            place,
            tuple(text(value, self.path, place) for value in proto.input),
            tuple(text(value, self.path, place) for value in proto.output),
        )
        for attribute in proto.attribute:
            key = text(attribute.name, self.path, place)
            if attribute.type in _GRAPH_TYPES:
                self._refuse_control_flow(found)
            if attribute.type in _FIELDS and not attribute.ref_attr_name:
                value = getattr(attribute, _FIELDS[attribute.type])
                found.attributes[key] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        if op in _CONTROL_FLOW and domain == "":
            self._refuse_control_flow(found)
        return found

    def _refuse_control_flow(self, node: Node) -> None:
        more = "control flow (If, Loop, Scan, any node with a graph inside) is not read, as what runs depends on data"
        raise FileError(self.path, node.label, f"{more}. Export the model without it: unroll loops, fix conditions")

    def add(self, node: Node, depth: int) -> None:
        """Append a node, or the body of the function that it calls."""
        function = self.functions.get((node.domain, node.op, node.proto.overload))
        known = (node.domain == "" and _has_schema(node)) or (node.domain, node.op) in CONTRIB
        if function is None or known:
            if node.domain not in ("", "com.microsoft") and not node.version:
                raise FileError(self.path, node.label, f"the operator set {node.domain!r:.80} is not imported")
            self.nodes.append(node)
            if len(self.nodes) > MAX_NODES:
                more = f"more than {MAX_NODES} nodes once functions are inlined"
                raise FileError(self.path, node.label, more)
            return
        if depth >= _MAX_DEPTH:
            more = f"functions call each other in a cycle, or more than {_MAX_DEPTH} deep"
            raise FileError(self.path, node.label, more)
        self._inline(node, function, depth)

    def _inline(self, call: Node, function: Any, depth: int) -> None:
        """Append the body of a function for one call of it."""
        self.calls += 1
        if self.calls > MAX_NODES:
            raise FileError(self.path, call.label, f"more than {MAX_NODES} calls of functions")
        if len(call.inputs) > len(function.input) or len(call.outputs) > len(function.output):
            raise FileError(self.path, call.label, "has more inputs or outputs than the function that it calls")
        place = f"function {call.op!r}"
        versions = _versions(function.opset_import, self.path, f"{place}.opset_import")
        names = dict.fromkeys(map(str, function.input), "") | dict(zip(function.input, call.inputs, strict=False))
        names |= {inner: outer for inner, outer in zip(function.output, call.outputs, strict=False) if outer}
        given = {attribute.name: attribute for attribute in (*function.attribute_proto, *call.proto.attribute)}
        before = f"{call.name or call.op}#{self.calls}"
        for i, body in enumerate(function.node):
            proto = type(body)()
            proto.CopyFrom(body)
            for values in (proto.input, proto.output):
                for k, value in enumerate(values):
                    inner = text(value, self.path, f"{place}.node[{i}]")
                    values[k] = names.setdefault(inner, f"{before}/{inner}") if inner else ""
            _fill_in(proto, given)
            proto.name = f"{call.name or call.op}/{str(proto.name).lstrip('/') or proto.op_type}"
            self.add(self.node(proto, versions, f"{place}.node[{i}]"), depth + 1)


def _has_schema(node: Node) -> bool:
    """Whether `onnx` itself knows the operator."""
    import onnx

    return bool(onnx.defs.has(node.op, node.domain))


def _fill_in(proto: Any, given: Mapping[str, Any]) -> None:
    """Give the attributes of a node in a body the values that the call, or the function's default, has."""
    filled = []
    for attribute in proto.attribute:
        if not attribute.ref_attr_name:
            filled.append(attribute)
        elif attribute.ref_attr_name in given:
            other = type(attribute)()
            other.CopyFrom(given[attribute.ref_attr_name])
            other.name = attribute.name
            filled.append(other)
    copies = [type(attribute).FromString(attribute.SerializeToString()) for attribute in filled]
    del proto.attribute[:]
    proto.attribute.extend(copies)


def _scope(proto: Any, name: str) -> str:
    """Return the module path of a node, from what the exporter wrote beside it or from its name."""
    for entry in proto.metadata_props:
        if entry.key == _SCOPES:
            listed = re.findall(r"'([^']*)'", str(entry.value)[:4000])
            if len(listed) > 1 and listed[-2].isprintable():
                return str(listed[-2])
    parts = [part for part in name.split("/")[:-1] if part]
    kept = [a for a, b in zip(parts, [*parts[1:], ""], strict=False) if not b.startswith(f"{a}.")]
    return ".".join(kept)

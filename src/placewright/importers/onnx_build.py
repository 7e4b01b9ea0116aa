"""From nodes with known shapes to an operation graph: what is an operation, what is a view, what is nothing at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from placewright.importers.onnx_call import Call
from placewright.importers.onnx_kinds import VIEWS, kind_of
from placewright.importers.onnx_model import MAX_NAME, Node, Value
from placewright.importers.onnx_shapes import Shapes
from placewright.importers.onnx_work import work_of
from placewright.operations import Operation, Tensor

Reference = tuple[str, int]

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_SETTINGS: dict[str, tuple[int, ...]] = {
    **{f"Reduce{name}": (1,) for name in _REDUCTIONS},
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "Slice": (1, 2, 3, 4), "Pad": (1, 2, 3), "Squeeze": (1,),
    "Unsqueeze": (1,), "Split": (1,), "Resize": (1, 2, 3), "ConstantOfShape": (0,), "Range": (0, 1, 2),
    "TopK": (1,),
    "OneHot": (1,), "CumSum": (1,), "CumProd": (1,), "Trilu": (1,), "Clip": (1, 2), "Dropout": (1, 2),
    "MaxUnpool": (2,), "CenterCropPad": (1,), "Col2Im": (1, 2), "DFT": (1, 2), "STFT": (1, 3), "AffineGrid": (1,),
    "BlackmanWindow": (0,), "HannWindow": (0,), "HammingWindow": (0,), "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4), "GroupQueryAttention": (6,),
}  # fmt: skip
"""Inputs that say how an operator works rather than what on; where they are known they are part of the operation."""
_SCALES: dict[str, tuple[int, ...]] = {
    "QuantizeLinear": (1, 2), "DequantizeLinear": (1, 2), "QLinearConv": (1, 2, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7), "ConvInteger": (2, 3), "MatMulInteger": (2, 3),
    "QLinearAdd": (1, 2, 4, 5, 6, 7), "QLinearMul": (1, 2, 4, 5, 6, 7), "QLinearSigmoid": (1, 2, 3, 4),
    "QLinearLeakyRelu": (1, 2, 3, 4), "QLinearSoftmax": (1, 2, 3, 4),
}  # fmt: skip
"""Scales and zero points of quantised tensors; those of one number are part of the operation too."""
_ONLY_TYPES: dict[str, tuple[int, ...]] = {
    "Shape": (0,), "Size": (0,), "EyeLike": (0,), "RandomNormalLike": (0,), "RandomUniformLike": (0,),
    "CastLike": (1,),
}  # fmt: skip
"""Inputs of which only type and shape count."""


class Builder:
    """Walks the nodes of a network and drafts operations."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.network = shapes.network
        self.reads: dict[int, list[int]] = {}
        """For every node that stays, the places of the inputs that it reads as tensors, each tensor once."""
        self.references: dict[str, Reference] = {}
        self.inputs: list[Operation] = []
        self.parameters: list[Operation] = []
        self.operations: list[Operation] = []
        self._taken: dict[str, int] = {}
        self._persistent: set[Reference] = set()
        self._outputs: set[Reference] = set()
        self._base: dict[Reference, Reference] = {}
        self._weights = set(self.network.weights)
        """Weights, and what only looks at one."""

    def run(self) -> list[Operation]:
        """Return the operations of the network in program order."""
        for node in self.network.nodes:
            if node.op in VIEWS and node.inputs and node.inputs[0] in self._weights:
                self._weights.update(node.outputs if self._is_view(self.shapes.call(node)) else ())
        self._find_needed()
        for name in self.network.inputs:
            value = self.shapes.values[name]
            self._source(name, value, "input", "")
        for i, node in enumerate(self.network.nodes):
            if i in self.reads:
                self._add(node, self.reads[i])
        for name in self.network.outputs:
            self._outputs.add(self._reference(name, ""))
        every = [*self.inputs, *self.parameters, *self.operations]
        return [self._marked(op) for op in every]

    # ---- what stays --------------------------------------------------------------------------------

    def _find_needed(self) -> None:
        """Note the nodes whose results somebody reads, from the end to the start."""
        needed = set(self.network.outputs)
        nodes = self.network.nodes
        for i in range(len(nodes) - 1, -1, -1):
            node = nodes[i]
            made = [name for name in node.outputs if name]
            if not needed.intersection(made) or all(self._is_constant(name) for name in made):
                continue
            once: dict[str, int] = {}
            for place, name in enumerate(node.inputs):
                if name and self._is_read(node, place):
                    once.setdefault(name, place)
            self.reads[i] = list(once.values())
            needed.update(once)

    def _is_constant(self, name: str) -> bool:
        """Whether a value is known, or stored in the file, and hence made by no operation."""
        return (name in self.shapes.known or name in self.shapes.constants) and name not in self._weights

    def _is_read(self, node: Node, place: int) -> bool:
        """Whether a node reads an input as a tensor, rather than as a setting."""
        name = node.inputs[place]
        known = self.shapes.known.get(name)
        if place in _ONLY_TYPES.get(node.op, ()):
            return False
        if known is None:
            return True
        if place in _SETTINGS.get(node.op, ()):
            return False
        if known.size == 1 and place in _SCALES.get(node.op, ()):
            return False
        return name in self._weights or known.size != 1

    # ---- operations --------------------------------------------------------------------------------

    def _source(self, name: str, value: Value, phase: str, scope: str) -> Reference:
        """Draft an input or a parameter."""
        own = self._fresh(name)
        op = Operation(own, phase, phase, scope, dtype=value.dtype, outputs=(Tensor(value.bytes, shape=value.shape),))
        (self.inputs if phase == "input" else self.parameters).append(op)
        reference = (own, 0)
        self.references[name] = reference
        if phase == "parameter":
            self._persistent.add(reference)
        return reference

    def _reference(self, name: str, scope: str) -> Reference:
        """Return the tensor that a value is; a weight becomes a parameter when it is first read."""
        if name not in self.references:
            own = name.rpartition(".")[0] if name in self.network.weights else ""
            return self._source(name, self.shapes.values[name], "parameter", own or scope)
        return self.references[name]

    def _add(self, node: Node, reads: list[int]) -> None:
        """Draft the operation of a node, unless it only looks at a parameter that nobody is shown in this shape."""
        call = self.shapes.call(node)
        sources = [self._reference(node.inputs[place], node.scope) for place in reads]
        is_view = reads[:1] == [0] and self._is_view(call)
        if is_view and sources[0] in self._persistent:
            reshaped = call.made(0).shape != call.value(0).shape
            if not (reshaped and node.outputs[0] in self.network.outputs):
                self.references[node.outputs[0]] = sources[0]
                return
        name = self._fresh(node.name or next(filter(None, node.outputs)))
        outputs: list[Tensor] = []
        for out, value in zip(node.outputs, call.outputs, strict=True):
            if value is not None:
                self.references[out] = reference = (name, len(outputs))
                base = self._base.get(sources[0], sources[0]) if is_view else None
                if base is not None:
                    self._base[reference] = base
                outputs.append(Tensor(value.bytes, base, shape=value.shape))
        inputs = tuple(dict.fromkeys(sources))
        if is_view:
            kind, dtype = VIEWS[node.op], call.value(0).dtype
            op = Operation(name, kind, scope=node.scope, dtype=dtype, inputs=inputs, outputs=tuple(outputs))
        else:
            kind = kind_of(call)
            work = work_of(call, kind, reads)
            op = Operation(
                name, kind, "forward", node.scope, work.flops, work.bytes_read, work.bytes_written,
                work.workspace_bytes, work.dtype, inputs, outputs=tuple(outputs),
            )  # fmt: skip
        self.operations.append(op)

    def _is_view(self, call: Call) -> bool:
        """Whether a node hands on the bytes of its first input."""
        node = call.node
        if node.domain != "" or node.op not in VIEWS or [k for k, name in enumerate(node.outputs) if name] != [0]:
            return False
        if node.op == "Dropout" and call.optional(2) is not None:
            training = call.data(2)
            return training is not None and not training.any()
        return call.value(0).bytes == call.made(0).bytes

    def _fresh(self, name: str) -> str:
        """Return a name that no operation has."""
        name = name[: MAX_NAME - 12]
        found, count = name, self._taken.get(name, 0)
        while found in self._taken:
            count += 1
            found = f"{name}_{count}"
        self._taken[name] = count
        self._taken.setdefault(found, 0)
        return found

    def _marked(self, op: Operation) -> Operation:
        """Return an operation with the outputs of the network marked."""
        if not any((op.name, k) in self._outputs for k in range(len(op.outputs))):
            return op
        outputs = (replace(t, output=(op.name, k) in self._outputs) for k, t in enumerate(op.outputs))
        return replace(op, outputs=tuple(outputs))


def operations_of(shapes: Shapes) -> Iterable[Operation]:
    """Return the operations of a network whose shapes are known, in program order."""
    return Builder(shapes).run()

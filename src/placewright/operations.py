"""Operation, Tensor and Work: records to build an OpGraph from, by name and in program order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placewright.checks import MAX_BYTES
from placewright.errors import GraphError, UnknownNameError
from placewright.graph import MAX_MODELS, PHASES, Longs, Measured, OpGraph


@dataclass(frozen=True, slots=True)
class Tensor:
    """One output of an operation. `storage` names the tensor whose bytes it shares, if not its own."""

    bytes: int
    storage: tuple[str, int] | None = None
    in_place: bool = False
    output: bool = False
    transfer_s: float | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """What one operation does."""

    flops: float
    bytes_read: int
    bytes_written: int
    workspace_bytes: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, for building a graph; `inputs` are (operation, output) or an operation's name."""

    name: str
    kind: str = "other"
    phase: str = "forward"
    scope: str = ""
    flops: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    workspace_bytes: int = 0
    dtype: str = "float32"
    inputs: Sequence[str | tuple[str, int]] = ()
    after: Sequence[str] = ()
    outputs: Sequence[Tensor] = ()
    colocation: str | None = None
    measured_s: Mapping[str, float] = field(default_factory=dict)
    recompute: bool = False


def build_graph(
    name: str, operations: Iterable[Operation], references: Mapping[str, Mapping[str, Any]] | None = None
) -> OpGraph:
    """A graph of operations given in program order.

    `references` gives, for a device model named in `measured_s`, its `flops_per_s` and `bytes_per_s`.
    """
    ops = list(operations)
    at: dict[str, int] = {}
    for i, op in enumerate(ops):
        if op.name in at:
            raise GraphError(f"graph {name!r}: two operations are named {op.name!r}; names must differ")
        at[op.name] = i
    measured = _measured(name, ops, references or {})
    out_start = np.zeros(len(ops) + 1, np.int32)
    np.cumsum([len(op.outputs) for op in ops], out=out_start[1:])

    def tensor(op: Operation, ref: str | tuple[str, int]) -> int:
        owner, k = (ref, 0) if isinstance(ref, str) else ref
        if owner not in at:
            problem = UnknownNameError("operation", owner, at)
            raise GraphError(f"graph {name!r}: operation {op.name!r} reads from an {problem}")
        count = len(ops[at[owner]].outputs)
        if not 0 <= k < count:
            raise GraphError(f"graph {name!r}: operation {op.name!r} reads output {k} of {owner!r}, which has {count}")
        return int(out_start[at[owner]]) + k

    def waits(op: Operation) -> list[int]:
        for other in op.after:
            if other not in at:
                problem = UnknownNameError("operation", other, at)
                raise GraphError(f"graph {name!r}: operation {op.name!r} waits for an {problem}")
        return sorted({at[other] for other in op.after})

    reads = [sorted({tensor(op, ref) for ref in op.inputs}) for op in ops]
    after = [waits(op) for op in ops]
    tensors = [(op, t) for op in ops for t in op.outputs]
    storage = [k if t.storage is None else tensor(op, t.storage) for k, (op, t) in enumerate(tensors)]
    in_place = [t.in_place for _, t in tensors]
    persistent = [op.phase == "parameter" for op, _ in tensors]
    for k, base in enumerate(storage):  # a view of a view shares the storage at the bottom
        if base < k and storage[base] != base and not (in_place[base] and persistent[storage[base]]):
            storage[k] = storage[base]
        elif base < k and in_place[k] and persistent[storage[base]]:
            storage[k] = storage[base]  # a further new value of the same persistent tensor
    classes = {c: k for k, c in enumerate(dict.fromkeys(op.colocation for op in ops if op.colocation is not None))}
    shapes = tuple(t.shape for _, t in tensors)
    for op in ops:
        if op.phase not in PHASES:
            raise GraphError(f"operation {op.name!r}: phase {op.phase!r} is none of {', '.join(PHASES)}")
    return OpGraph(
        name=name,
        op_names=tuple(at),
        kinds=tuple(op.kind for op in ops),
        scopes=tuple(op.scope for op in ops),
        dtypes=tuple(op.dtype for op in ops),
        phase=np.array([PHASES.index(op.phase) for op in ops], np.int8),
        flops=np.array([op.flops for op in ops], np.float64),
        bytes_read=_sizes(name, "bytes_read", [(op, op.bytes_read) for op in ops]),
        bytes_written=_sizes(name, "bytes_written", [(op, op.bytes_written) for op in ops]),
        workspace_bytes=_sizes(name, "workspace_bytes", [(op, op.workspace_bytes) for op in ops]),
        colocation=np.array([-1 if op.colocation is None else classes[op.colocation] for op in ops], np.int32),
        out_start=out_start,
        tensor_bytes=_sizes(name, "bytes", [(op, t.bytes) for op, t in tensors]),
        tensor_storage=np.array(storage, np.int32),
        tensor_in_place=np.array(in_place, bool),
        tensor_output=np.array([t.output for _, t in tensors], bool),
        tensor_transfer_s=np.array([np.nan if t.transfer_s is None else t.transfer_s for _, t in tensors], np.float64),
        in_start=np.cumsum([0, *map(len, reads)]),
        in_tensor=np.array([t for row in reads for t in row], np.int32),
        after_start=np.cumsum([0, *map(len, after)]),
        after_op=np.array([o for row in after for o in row], np.int32),
        measured=measured,
        recompute=np.array([op.recompute for op in ops], bool),
        tensor_shapes=None if all(s is None for s in shapes) else shapes,
    )


def _measured(
    graph: str, ops: Sequence[Operation], references: Mapping[str, Mapping[str, Any]]
) -> tuple[Measured, ...]:
    """Seconds by device model, refused before anything is built where there are too many models."""
    models: dict[str, None] = {}
    for op in ops:
        models |= dict.fromkeys(op.measured_s)
        if len(models) > MAX_MODELS:
            more = f"seconds on more than {MAX_MODELS} device models; that many are allowed"
            raise GraphError(f"graph {graph!r}: operation {op.name!r}: {more}")
    seconds = {model: np.full(len(ops), np.nan) for model in models}
    for i, op in enumerate(ops):
        for model, value in op.measured_s.items():
            seconds[model][i] = value
    return tuple(Measured(model, column, **references.get(model, {})) for model, column in seconds.items())


def _sizes(graph: str, what: str, values: Sequence[tuple[Operation, int]]) -> Longs:
    """Sizes as an array; one that is no whole number in range is refused before it is rounded or wrapped."""
    for op, value in values:
        if not 0 <= value <= MAX_BYTES or value != int(value):
            raise GraphError(
                f"graph {graph!r}: operation {op.name!r}: {what} is {value}; "
                f"a whole number in 0 to {MAX_BYTES} is allowed"
            )
    return np.array([value for _, value in values], np.int64)

"""OpGraph: the operations of one training step or inference pass, and the tensors between them.

Arrays are frozen. The index of an operation is its place in program order, which is a topological
order. Tensors are numbered in order of (operation, output). Edges are held both ways in CSR form:
`x_start[i]:x_start[i + 1]` is the slice of `x` that belongs to operation (or tensor) i.

    n operations, T tensors, E reads (operation, tensor), A order-only edges
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.checks import DTYPES, MAX_BYTES, FrozenDict
from placewright.errors import GraphError, UnknownNameError

PHASES = ("input", "parameter", "forward", "backward", "update", "store")
INPUT, PARAMETER, FORWARD, BACKWARD, UPDATE, STORE = range(6)

MAX_TENSORS = 1 << 24
"""The simulator orders transfers by keys that have 24 bits for the tensor."""
MAX_MODELS = 64
"""Device models that a graph may have measured seconds on: each has a value for every operation."""

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Measured:
    """Seconds of every operation as measured on one device model (NaN: not measured, inf: cannot run).

    The rates of that device let the seconds be scaled to another one.
    """

    model: str
    seconds: Floats
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        _freeze(self, "seconds", np.float64)
        object.__setattr__(self, "flops_per_s", FrozenDict(self.flops_per_s))
        if np.any(self.seconds < 0):
            raise GraphError(f"measured seconds on {self.model!r} must not be negative")


@dataclass(frozen=True, eq=False)
class OpGraph:
    """A frozen operation graph; checked once, when it is made. See the module for the layout."""

    name: str
    op_names: tuple[str, ...]
    kinds: tuple[str, ...]
    scopes: tuple[str, ...]
    dtypes: tuple[str, ...]
    phase: NDArray[np.int8]
    flops: Floats
    bytes_read: Longs
    bytes_written: Longs
    workspace_bytes: Longs
    colocation: Ints
    """Operations with equal values other than -1 run on one device."""
    out_start: Ints
    tensor_bytes: Longs
    tensor_storage: Ints
    """The tensor whose bytes this one shares; itself where it has its own."""
    tensor_in_place: Bools
    tensor_output: Bools
    tensor_transfer_s: Floats
    """Seconds of any transfer of the tensor, or NaN: by the route."""
    in_start: Ints
    in_tensor: Ints
    after_start: Ints
    after_op: Ints
    measured: tuple[Measured, ...] = ()
    """In order of model, so that nothing depends on the order in which they were given."""
    tensor_shapes: tuple[tuple[int, ...] | None, ...] | None = None
    recompute: Bools = field(default_factory=lambda: np.zeros(0, bool))
    """Which operations of the backward phase repeat one of the forward phase (checkpointing); none, if empty."""

    def __post_init__(self) -> None:
        if len(self.recompute) == 0:
            object.__setattr__(self, "recompute", np.zeros(self.n_ops, bool))
        for name, kind in _ARRAYS.items():
            _freeze(self, name, kind)
        object.__setattr__(self, "measured", tuple(sorted(self.measured, key=lambda measured: measured.model)))
        _check(self)

    @property
    def n_ops(self) -> int:
        """Number of operations."""
        return len(self.op_names)

    @property
    def n_tensors(self) -> int:
        """Number of tensors."""
        return len(self.tensor_bytes)

    @cached_property
    def index(self) -> dict[str, int]:
        """Operation name to index."""
        return {name: i for i, name in enumerate(self.op_names)}

    def op(self, name: str) -> int:
        """Index of the operation of that name."""
        if name not in self.index:
            raise UnknownNameError("operation", name, self.op_names)
        return self.index[name]

    @cached_property
    def tensor_op(self) -> Ints:
        """The operation that makes each tensor."""
        return _frozen(np.repeat(np.arange(self.n_ops, dtype=np.int32), np.diff(self.out_start)))

    @cached_property
    def read_op(self) -> Ints:
        """The reading operation of each entry of `in_tensor`."""
        return _frozen(np.repeat(np.arange(self.n_ops, dtype=np.int32), np.diff(self.in_start)))

    @cached_property
    def consumers(self) -> tuple[Ints, Ints]:
        """CSR (start, operation): the consumers of each tensor, in program order."""
        return _reverse(self.in_tensor, self.read_op, self.n_tensors)

    @cached_property
    def before(self) -> tuple[Ints, Ints]:
        """CSR (start, operation): the operations that wait for each operation by an order-only edge."""
        waiting = np.repeat(np.arange(self.n_ops, dtype=np.int32), np.diff(self.after_start))
        return _reverse(self.after_op, waiting, self.n_ops)

    @cached_property
    def persistent(self) -> Bools:
        """Which tensors live for the whole step at their home: those of `parameter` operations."""
        return _frozen(self.phase[self.tensor_op] == PARAMETER)

    @cached_property
    def detachable(self) -> Bools:
        """Which tensors are new values of a persistent tensor, hence transient when made elsewhere."""
        return _frozen(self.tensor_in_place & self.persistent[self.tensor_storage] & ~self.persistent)

    @cached_property
    def off_queue(self) -> Bools:
        """Which operations are on no device's queue: inputs, parameters and stores."""
        return _frozen((self.phase == INPUT) | (self.phase == PARAMETER) | (self.phase == STORE))

    @cached_property
    def read_on_queue(self) -> Bools:
        """Which tensors some operation on a device's queue reads."""
        found = np.zeros(self.n_tensors, bool)
        found[self.in_tensor[~self.off_queue[self.read_op]]] = True
        return _frozen(found)

    @cached_property
    def colocated_pairs(self) -> Ints:
        """(k, 2) pairs of operations that a valid placement keeps on one device, by section 2's rules.

        A view (and a write in place on a transient tensor) is with its base, a store with its parameter.
        """
        stored = self.tensor_storage != np.arange(self.n_tensors)
        views = np.flatnonzero(stored & ~self.detachable)
        pairs = [np.stack([self.tensor_op[views], self.tensor_op[self.tensor_storage[views]]], 1)]
        reads = np.flatnonzero(self.phase[self.read_op] == STORE)
        target = self.persistent_root[self.in_tensor[reads]]
        pairs.append(np.stack([self.read_op[reads], self.tensor_op[target]], 1))
        return _frozen(np.unique(np.concatenate(pairs).astype(np.int32).reshape(-1, 2), axis=0))

    @cached_property
    def persistent_root(self) -> Ints:
        """The persistent tensor that each tensor is a value of, or -1."""
        root = self.tensor_storage[self.tensor_storage]
        return _frozen(np.where(self.persistent[root], root, -1).astype(np.int32))

    @property
    def persistent_bytes(self) -> int:
        """Bytes of parameters, buffers and optimiser state."""
        return int(self.tensor_bytes[self.persistent].sum())

    def with_measured(self, *measured: Measured) -> OpGraph:
        """The same graph with other measured seconds."""
        return replace(self, measured=measured)

    def __repr__(self) -> str:
        return f"OpGraph({self.name!r}, {self.n_ops} operations, {self.n_tensors} tensors)"


_ARRAYS: dict[str, type] = {
    "phase": np.int8,
    "flops": np.float64,
    "bytes_read": np.int64,
    "bytes_written": np.int64,
    "workspace_bytes": np.int64,
    "colocation": np.int32,
    "out_start": np.int32,
    "tensor_bytes": np.int64,
    "tensor_storage": np.int32,
    "tensor_in_place": np.bool_,
    "tensor_output": np.bool_,
    "tensor_transfer_s": np.float64,
    "in_start": np.int32,
    "in_tensor": np.int32,
    "after_start": np.int32,
    "after_op": np.int32,
    "recompute": np.bool_,
}


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array


def _freeze(owner: object, name: str, kind: type) -> None:
    given = getattr(owner, name)
    array: NDArray[Any] = np.array(given, dtype=kind, order="C")
    object.__setattr__(owner, name, _frozen(array))


def _reverse(target: Ints, source: Ints, size: int) -> tuple[Ints, Ints]:
    """CSR by target of edges that are listed by increasing source."""
    start = np.zeros(size + 1, np.int32)
    np.cumsum(np.bincount(target, minlength=size), out=start[1:])
    return _frozen(start), _frozen(source[np.argsort(target, kind="stable")].astype(np.int32))


def _check(g: OpGraph) -> None:
    n, tensors = g.n_ops, g.n_tensors
    if len(g.index) != n:
        seen: set[str] = set()
        twice = next(x for x in g.op_names if x in seen or seen.add(x))  # type: ignore[func-returns-value]
        raise GraphError(f"graph {g.name!r}: two operations are named {twice!r}; names must differ")
    per_op = ("kinds", "scopes", "dtypes", "phase", "flops", "bytes_read", "bytes_written")
    for name in (*per_op, "workspace_bytes", "colocation", "recompute"):
        if len(getattr(g, name)) != n:
            raise GraphError(f"{name} has {len(getattr(g, name))} entries for {n} operations")
    for name in ("tensor_storage", "tensor_in_place", "tensor_output", "tensor_transfer_s"):
        if len(getattr(g, name)) != tensors:
            raise GraphError(f"{name} has {len(getattr(g, name))} entries for {tensors} tensors")
    if g.tensor_shapes is not None and len(g.tensor_shapes) != tensors:
        raise GraphError(f"tensor_shapes has {len(g.tensor_shapes)} entries for {tensors} tensors")
    if tensors > MAX_TENSORS:
        raise GraphError(f"graph {g.name!r} has {tensors} tensors; at most {MAX_TENSORS} are allowed")
    for name, size, total in (
        ("out_start", n, tensors),
        ("in_start", n, len(g.in_tensor)),
        ("after_start", n, len(g.after_op)),
    ):
        start = getattr(g, name)
        if len(start) != size + 1 or start[0] != 0 or start[-1] != total or np.any(np.diff(start) < 0):
            raise GraphError(f"{name} is no valid CSR start for {size} rows and {total} entries")
    _check_values(g)
    _check_edges(g)
    _check_storage(g)
    _check_phases(g)


def _fail(g: OpGraph, bad: NDArray[Any], problem: str) -> None:
    """Raise for the first operation marked in `bad`."""
    where = np.flatnonzero(bad)
    if len(where):
        raise GraphError(f"graph {g.name!r}: operation {g.op_names[int(where[0])]!r}: {problem}")


def _fail_tensor(g: OpGraph, bad: NDArray[Any], problem: str) -> None:
    """Raise for the first tensor marked in `bad`."""
    where = np.flatnonzero(bad)
    if len(where):
        t = int(where[0])
        owner = int(g.tensor_op[t])
        place = f"operation {g.op_names[owner]!r}, output {t - int(g.out_start[owner])}"
        raise GraphError(f"graph {g.name!r}: {place}: {problem}")


def _check_values(g: OpGraph) -> None:
    _fail(g, (g.phase < 0) | (g.phase >= len(PHASES)), f"phase must be one of {', '.join(PHASES)}")
    _fail(g, ~np.isfinite(g.flops) | (g.flops < 0), "flops must be a finite number, not negative")
    unknown = np.array([dtype not in DTYPES for dtype in g.dtypes], bool)
    _fail(g, unknown, f"dtype must be one of {', '.join(DTYPES)}")
    for name in ("bytes_read", "bytes_written", "workspace_bytes"):
        value = getattr(g, name)
        _fail(g, (value < 0) | (value > MAX_BYTES), f"{name} must be in 0 to {MAX_BYTES}")
    _fail_tensor(g, (g.tensor_bytes < 0) | (g.tensor_bytes > MAX_BYTES), f"bytes must be in 0 to {MAX_BYTES}")
    seconds = g.tensor_transfer_s
    _fail_tensor(g, np.isinf(seconds) | (seconds < 0), "transfer_s must be finite, not negative")
    if len(g.measured) > MAX_MODELS:
        raise GraphError(f"graph {g.name!r}: seconds on {len(g.measured)} device models; at most {MAX_MODELS}")
    for measured in g.measured:
        if len(measured.seconds) != g.n_ops:
            raise GraphError(f"measured seconds on {measured.model!r} are not one per operation")
    for total in (float(g.tensor_bytes.sum(dtype=np.float64)), float(g.workspace_bytes.sum(dtype=np.float64))):
        if total > MAX_BYTES:
            raise GraphError(f"graph {g.name!r}: {total:g} bytes in all; at most {MAX_BYTES} are allowed")


def _check_edges(g: OpGraph) -> None:
    if np.any((g.in_tensor < 0) | (g.in_tensor >= g.n_tensors)):
        raise GraphError(f"graph {g.name!r}: an operation reads a tensor that does not exist")
    if np.any((g.after_op < 0) | (g.after_op >= g.n_ops)):
        raise GraphError(f"graph {g.name!r}: an operation waits for an operation that does not exist")
    late = np.zeros(g.n_ops, bool)
    late[g.read_op[g.tensor_op[g.in_tensor] >= g.read_op]] = True
    waiting = np.repeat(np.arange(g.n_ops), np.diff(g.after_start))
    late[waiting[g.after_op >= waiting]] = True
    _fail(g, late, "comes before an operation that it depends on; operations go in topological order")
    repeated = np.zeros(g.n_ops, bool)
    for owner, value in ((g.read_op, g.in_tensor), (waiting, g.after_op)):
        same = (np.diff(owner) == 0) & (np.diff(value) <= 0)
        repeated[owner[1:][same]] = True
    _fail(g, repeated, "its reads and order-only edges must each be listed once, in increasing order")


def _check_storage(g: OpGraph) -> None:
    own = np.arange(g.n_tensors)
    base = g.tensor_storage
    if np.any((base < 0) | (base > own)):
        _fail_tensor(g, (base < 0) | (base > own), "storage must be itself or an earlier tensor")
    rooted = (base == own) | (base[base] == base) | g.detachable[base]
    _fail_tensor(g, ~rooted, "storage must name a tensor that has bytes of its own, not a view of one")
    _fail_tensor(g, g.tensor_in_place & (base == own), "a tensor written in place must name its storage")
    _fail_tensor(g, (base != own) & (g.tensor_op[base] == g.tensor_op), "storage is of the same operation")
    # A view that does not depend on its base could start before the base exists.
    needs = np.flatnonzero((base != own) & ~g.detachable)
    maker = g.tensor_op[needs]
    wide = np.int64(g.n_tensors)
    reads = np.concatenate([g.read_op * wide + base[g.in_tensor], g.read_op * wide + g.in_tensor])
    missing = np.zeros(g.n_tensors, bool)
    missing[needs] = ~np.isin(maker * wide + base[needs], reads)
    _fail_tensor(g, missing, "its operation must read the tensor whose storage it shares, or a view of it")


def _check_phases(g: OpGraph) -> None:
    read = np.diff(g.in_start)
    made = np.diff(g.out_start)
    _fail(g, (g.phase == PARAMETER) & (read > 0), "a parameter reads nothing")
    _fail_tensor(g, g.persistent & (g.tensor_storage != np.arange(g.n_tensors)), "a parameter has bytes of its own")
    _fail(g, (g.phase == STORE) & ((made > 0) | (read == 0)), "a store reads new values and makes nothing")
    stray = g.recompute & (g.phase != BACKWARD)
    _fail(g, stray, "only an operation of the backward phase can repeat one of the forward phase")
    idle = g.off_queue & ((g.flops > 0) | (g.workspace_bytes > 0))
    _fail(g, idle, "inputs, parameters and stores have no flops and no workspace")
    stores = g.phase[g.read_op] == STORE
    stray = np.zeros(g.n_ops, bool)
    stray[g.read_op[stores & ~g.detachable[g.in_tensor]]] = True
    _fail(g, stray, "a store may only read new values, which are written in place on a persistent tensor")
    stored = np.zeros(g.n_tensors, bool)
    stored[g.tensor_storage[g.in_tensor[stores]]] = True
    lost = g.detachable & ~stored[g.tensor_storage]
    _fail_tensor(g, lost, "it overwrites a persistent tensor that no store operation stores")

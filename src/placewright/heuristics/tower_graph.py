"""Graphs of synchronous data parallelism: k copies of a step, a k-th of the batch each, their gradients summed.

`towers` keeps one copy of parameters, optimiser state, updates and stores: each tower reads the parameters where they
are, and sends its gradients there. `replicas` gives every tower all of that, and each reads the summed gradients.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from placewright.errors import InputError
from placewright.graph import BACKWARD, FORWARD, PARAMETER, PHASES, STORE, UPDATE, Ints, OpGraph
from placewright.operations import Operation, Tensor, build_graph

MOST_TOWERS = 256
SHARED = -1
"""The tower of what there is one of: what is shared, and sums."""

Sums = Literal["end", "early"]


def towers(graph: OpGraph, count: int, *, sums: Sums = "end") -> OpGraph:
    """The step of `count` towers that share one copy of the parameters; `graph` is one tower's part of the batch.

    Names and scopes of what each tower has begin with `tower.0.`, `tower.1.` and so on. Buffers that the model writes,
    such as the statistics of batch normalisation, are each tower's own. `sums="end"` puts sums and updates after
    everything else, as frameworks do; `early` puts them where the graph has its updates.
    """
    return build_towers(graph, count, shared=True, sums=sums).graph


def replicas(graph: OpGraph, count: int, *, sums: Sums = "end") -> OpGraph:
    """The same with a copy of parameters, optimiser state, updates and stores in every tower."""
    return build_towers(graph, count, shared=False, sums=sums).graph


@dataclass(frozen=True, eq=False)
class Towers:
    """A graph of towers, and which tower each operation is of."""

    graph: OpGraph
    count: int
    tower: Ints
    """(operations,): the tower, or `SHARED`."""


def build_towers(graph: OpGraph, count: int, *, shared: bool, sums: Sums) -> Towers:
    """The graph of towers, with one copy of the parameters (`shared`) or one in each."""
    if not isinstance(count, int) or not 1 <= count <= MOST_TOWERS:
        raise InputError(f"the number of towers is {count!r}; a whole number in 1 to {MOST_TOWERS} is allowed")
    if sums not in ("end", "early"):
        raise InputError(f"sums is {sums!r}; 'end' or 'early' is allowed")
    if count == 1:
        return Towers(graph, 1, np.zeros(graph.n_ops, np.int32))
    single = _shared(graph) if shared else np.zeros(graph.n_ops, bool)
    builder = _Builder(graph, count, single)
    for i in _order(graph, sums):
        builder.add(i)
    references = {
        measured.model: {"flops_per_s": measured.flops_per_s, "bytes_per_s": measured.bytes_per_s}
        for measured in graph.measured
    }
    kind = "towers" if shared else "replicas"
    made = build_graph(f"{graph.name}, {count} {kind}", builder.operations, references)
    return Towers(made, count, np.array(builder.tower, np.int32))


def _shared(graph: OpGraph) -> NDArray[np.bool_]:
    """Which operations there is one of: parameters, what only looks at them, their updates and stores."""
    root = graph.persistent_root
    owner = np.where(root >= 0, graph.tensor_op[root], -1)
    phase = graph.phase[graph.tensor_op]
    written = np.zeros(graph.n_ops, bool)
    written[owner[graph.detachable & ((phase == FORWARD) | (phase == BACKWARD))]] = True
    updated = np.zeros(graph.n_ops, bool)
    updated[owner[graph.detachable & (phase == UPDATE)]] = True
    single: NDArray[np.bool_] = ((graph.phase == PARAMETER) & ~written) | (graph.phase == UPDATE)
    stores = graph.phase[graph.read_op] == STORE
    keeper, kept = graph.read_op[stores], single[owner[graph.in_tensor[stores]]]
    mixed = np.intersect1d(keeper[kept], keeper[~kept])
    for i in [*np.flatnonzero(written & updated)[:1].tolist(), *mixed[:1].tolist()]:
        raise InputError(
            f"{graph.op_names[i]!r} is of what the model writes, which is each tower's own, and of what the optimiser "
            "writes, which would be shared; give every tower its own copy (replicas)"
        )
    single[keeper[kept]] = True
    own = np.arange(graph.n_tensors)
    looks = (graph.tensor_storage != own) & ~graph.tensor_in_place & (owner >= 0)
    made = np.diff(graph.out_start)
    lookers = (made > 0) & (np.bincount(graph.tensor_op[looks], minlength=graph.n_ops) == made)
    for i in np.flatnonzero(lookers & ((graph.phase == FORWARD) | (graph.phase == BACKWARD))).tolist():
        reads = graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]]
        single[i] = bool(single[graph.tensor_op[reads]].all())
    return single


def _order(graph: OpGraph, sums: Sums) -> Iterator[int]:
    """The operations in program order, or with updates, and what comes of them, at the end."""
    late = np.zeros(graph.n_ops, bool)
    if sums == "end":
        for i in range(graph.n_ops):
            makers = graph.tensor_op[graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]]]
            before = graph.after_op[graph.after_start[i] : graph.after_start[i + 1]]
            late[i] = graph.phase[i] == UPDATE or late[makers].any() or late[before].any()
    yield from np.flatnonzero(~late).tolist()
    yield from np.flatnonzero(late).tolist()


@dataclass
class _Builder:
    """The operations of a graph of towers, as they are added in program order."""

    graph: OpGraph
    count: int
    single: NDArray[np.bool_]
    operations: list[Operation] = field(default_factory=list)
    tower: list[int] = field(default_factory=list)
    sums: dict[int, str] = field(default_factory=dict)
    """The last sum of every gradient that is summed, by its tensor."""

    def add(self, i: int) -> None:
        """Add operation i: once, or for every tower; and before it the sums that it reads."""
        graph = self.graph
        reads = graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]].tolist()
        summed = {t for t in reads if self._is_summed(i, t)}
        for t in sorted(summed - self.sums.keys()):
            self._sum(t, graph.scopes[i])
        for tower in [SHARED] if self.single[i] else range(self.count):
            self.operations.append(self._copy(i, tower, reads, summed))
            self.tower.append(tower)

    def _is_summed(self, i: int, t: int) -> bool:
        """Whether operation i reads the sum of a tensor over the towers, rather than one tower's."""
        graph, maker = self.graph, int(self.graph.tensor_op[t])
        computed = graph.phase[maker] in (FORWARD, BACKWARD) and graph.persistent_root[t] < 0
        return bool(computed and graph.phase[i] == UPDATE)

    def _sum(self, t: int, scope: str) -> None:
        """Add up a tensor of all towers in a chain, in place from the second sum on."""
        graph = self.graph
        maker, output = self._output(t)
        size = int(graph.tensor_bytes[t])
        shape = None if graph.tensor_shapes is None else graph.tensor_shapes[t]
        stem = f"sum.{graph.op_names[maker]}" + (f".{output}" if output else "")
        dtype = graph.dtypes[maker]
        last: str | tuple[str, int] = (self._name(maker, 0), output)
        for tower in range(1, self.count):
            storage = None if tower == 1 else (f"{stem}.1", 0)
            self.operations.append(
                Operation(
                    name=f"{stem}.{tower}",
                    kind="add",
                    phase="backward",
                    scope=scope,
                    flops=float(np.prod(shape, dtype=np.float64)) if shape is not None else size / _width(dtype),
                    bytes_read=2 * size,
                    bytes_written=size,
                    dtype=dtype,
                    inputs=[last, (self._name(maker, tower), output)],
                    outputs=[Tensor(size, storage, in_place=tower > 1, transfer_s=self._transfer_s(t), shape=shape)],
                )
            )
            self.tower.append(SHARED)
            last = f"{stem}.{tower}"
        self.sums[t] = f"{stem}.{self.count - 1}"

    def _copy(self, i: int, tower: int, reads: list[int], summed: set[int]) -> Operation:
        """Return operation i of one tower, or the one that all share."""
        graph = self.graph
        before = graph.after_op[graph.after_start[i] : graph.after_start[i + 1]].tolist()
        everyone = range(self.count)
        after = [
            self._name(j, each)
            for j in before
            for each in (everyone if tower == SHARED and not self.single[j] else [max(tower, 0)])
        ]
        label = int(graph.colocation[i])
        seconds = {m.model: float(m.seconds[i]) for m in graph.measured if not np.isnan(m.seconds[i])}
        return Operation(
            name=self._name(i, tower),
            kind=graph.kinds[i],
            phase=PHASES[graph.phase[i]],
            scope=self._scoped(graph.scopes[i], tower),
            flops=float(graph.flops[i]),
            bytes_read=int(graph.bytes_read[i]),
            bytes_written=int(graph.bytes_written[i]),
            workspace_bytes=int(graph.workspace_bytes[i]),
            dtype=graph.dtypes[i],
            inputs=[self.sums[t] if t in summed else self._reference(t, tower) for t in reads],
            after=after,
            outputs=[self._tensor(t, tower) for t in range(graph.out_start[i], graph.out_start[i + 1])],
            colocation=None if label < 0 else f"{label}.{max(tower, 0)}",
            measured_s=seconds,
            recompute=bool(graph.recompute[i]),
        )

    def _tensor(self, t: int, tower: int) -> Tensor:
        """Return an output of one tower."""
        graph = self.graph
        base = int(graph.tensor_storage[t])
        return Tensor(
            int(graph.tensor_bytes[t]),
            None if base == t else self._reference(base, tower),
            in_place=bool(graph.tensor_in_place[t]),
            output=bool(graph.tensor_output[t]),
            transfer_s=self._transfer_s(t),
            shape=None if graph.tensor_shapes is None else graph.tensor_shapes[t],
        )

    def _transfer_s(self, t: int) -> float | None:
        """Return the seconds that a tensor's transfer is given, if any."""
        seconds = float(self.graph.tensor_transfer_s[t])
        return None if np.isnan(seconds) else seconds

    def _output(self, t: int) -> tuple[int, int]:
        """Return the operation that makes a tensor, and which of its outputs it is."""
        maker = int(self.graph.tensor_op[t])
        return maker, t - int(self.graph.out_start[maker])

    def _reference(self, t: int, tower: int) -> tuple[str, int]:
        """Return a tensor as an operation of that tower sees it; what is shared sees the first tower's."""
        maker, output = self._output(t)
        return self._name(maker, tower), output

    def _name(self, i: int, tower: int) -> str:
        """Return the name of an operation in that tower."""
        name = self.graph.op_names[i]
        return name if self.single[i] else f"tower.{max(tower, 0)}.{name}"

    def _scoped(self, scope: str, tower: int) -> str:
        """Return a scope in that tower."""
        return scope if tower == SHARED else f"tower.{tower}" + (f".{scope}" if scope else "")


def _width(dtype: str) -> float:
    """Return the bytes of one element."""
    digits = re.search(r"[0-9]+", dtype)
    return int(digits[0]) / 8 if digits else 1.0

"""What partitioners see of a problem: groups with work, what passes between them, and devices with speed and distance.

Time and direction are lost in it: a partitioner balances work and keeps what passes between parts small. Groups of
operations that must share a device are vertices. Between them are, for libraries of graphs, an edge for every pair
of which one reads from the other, and for those of hypergraphs a net for every tensor, from its maker to all readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placewright.decisions import Decisions
from placewright.graph import BACKWARD, FORWARD, INPUT, Floats, Longs
from placewright.machine import Machine
from placewright.problem import Problem

NEAR = 10
"""Distance of the nearest two devices that need a channel; those of one pool are at 1."""
FAR = 2_000
"""Distances end here, and devices that no route joins are as far apart."""


@dataclass(frozen=True, eq=False)
class Sketch:
    """A problem as partitioners see it. Blocks are devices, in their order; vertices are groups, in theirs."""

    problem: Problem
    blocks: Longs
    """The devices that may get something."""
    vertices: Longs
    """The groups that can be on one of them."""

    @cached_property
    def work_s(self) -> Floats:
        """(vertices,): seconds of a group's operations, each on the accelerator that is fastest for it."""
        made = np.zeros(self.problem.n_groups)
        np.add.at(made, self.problem.groups, self._op_s)
        return made[self.vertices]

    @cached_property
    def speed(self) -> Floats:
        """(blocks,): work done in a second, over the operations that the device can run."""
        table = self.problem.costs.seconds[:, self.blocks]
        runs = np.isfinite(table)
        work = np.where(runs, self._op_s[:, None], 0.0).sum(axis=0)
        takes = np.where(runs, table, 0.0).sum(axis=0)
        speed: Floats = np.divide(work, takes, out=np.ones(len(self.blocks)), where=(takes > 0) & (work > 0))
        return speed

    @cached_property
    def _op_s(self) -> Floats:
        """(operations,): seconds on the fastest accelerator that can run it, else on the fastest device."""
        costs = self.problem.costs.seconds
        fast = costs[:, accelerators(self.problem.machine)].min(axis=1, initial=np.inf)
        least = np.where(np.isfinite(fast), fast, costs.min(axis=1, initial=np.inf))
        return np.where(np.isfinite(least), least, 0.0)

    @cached_property
    def fixed(self) -> Longs:
        """(vertices,): the block of a group that can be on one alone, else -1."""
        choices = self.problem.choices[np.ix_(self.vertices, self.blocks)]
        return np.where(choices.sum(axis=1) == 1, choices.argmax(axis=1), -1)

    @cached_property
    def held_bytes(self) -> Longs:
        """(vertices,): what the group keeps in memory: persistent tensors, and what backward reads of forward."""
        graph = self.problem.graph
        late = graph.tensor_storage[graph.in_tensor[graph.phase[graph.read_op] == BACKWARD]]
        kept = np.zeros(graph.n_tensors, bool)
        kept[late] = True
        early = np.isin(graph.phase[graph.tensor_op], (INPUT, FORWARD))
        held = graph.persistent | (kept & early & (graph.tensor_storage == np.arange(graph.n_tensors)))
        sizes = np.where(held, graph.tensor_bytes, 0)
        total = np.zeros(self.problem.n_groups, np.int64)
        np.add.at(total, self.problem.groups[graph.tensor_op], sizes)
        result: Longs = total[self.vertices]
        return result

    @cached_property
    def passes(self) -> tuple[Longs, Longs, Longs]:
        """(tensor, maker, reader) for every tensor and each other vertex that reads it, by tensor."""
        graph, groups = self.problem.graph, self.problem.groups
        number = np.full(self.problem.n_groups, -1, np.int64)
        number[self.vertices] = np.arange(len(self.vertices))
        tensor = graph.in_tensor.astype(np.int64)
        maker, reader = number[groups[graph.tensor_op[tensor]]], number[groups[graph.read_op]]
        keep = (maker != reader) & (maker >= 0) & (reader >= 0)
        wide = max(1, len(self.vertices))
        pairs = np.unique(tensor[keep] * wide + reader[keep])
        tensor, reader = pairs // wide, pairs % wide
        return tensor, number[groups[graph.tensor_op[tensor]]], reader

    @cached_property
    def transfer_s(self) -> Floats:
        """(tensors,): seconds of a transfer between the nearest two devices that need a channel, or as given."""
        graph = self.problem.graph
        latency, rate = self._nearest
        seconds = latency + graph.tensor_bytes / rate
        return np.where(np.isnan(graph.tensor_transfer_s), seconds, graph.tensor_transfer_s)

    @cached_property
    def edges(self) -> tuple[Longs, Longs, Floats]:
        """(vertex, vertex, seconds): what passes between two vertices, either way, the lower one first."""
        tensor, maker, reader = self.passes
        wide = max(1, len(self.vertices))
        pairs, inverse = np.unique(np.minimum(maker, reader) * wide + np.maximum(maker, reader), return_inverse=True)
        seconds = np.zeros(len(pairs))
        np.add.at(seconds, inverse, self.transfer_s[tensor])
        return pairs // wide, pairs % wide, seconds

    @cached_property
    def nets(self) -> tuple[Longs, Longs, Floats]:
        """(start, vertices, seconds): CSR of the vertices that make or read each tensor that passes."""
        tensor, maker, reader = self.passes
        wide = max(1, len(self.vertices))
        pins = np.unique(np.concatenate([tensor * wide + maker, tensor * wide + reader]))
        names, count = np.unique(pins // wide, return_counts=True)
        return np.concatenate([[0], np.cumsum(count)]).astype(np.int64), pins % wide, self.transfer_s[names]

    @cached_property
    def distance(self) -> Longs:
        """(blocks, blocks): how slow a transfer of mean size is between two devices; see `NEAR` and `FAR`."""
        seconds = self._between(self._mean_bytes)
        positive = seconds[np.isfinite(seconds) & (seconds > 0)]
        unit = float(positive.min()) / NEAR if len(positive) else 1.0
        scaled = np.where(np.isfinite(seconds), np.minimum(seconds / unit, FAR), FAR)
        table = np.maximum(np.rint(scaled), 1).astype(np.int64)
        np.fill_diagonal(table, 0)
        return table

    @cached_property
    def _mean_bytes(self) -> float:
        tensor = self.passes[0]
        return float(self.problem.graph.tensor_bytes[tensor].mean()) if len(tensor) else 0.0

    @cached_property
    def _rates(self) -> tuple[Floats, Floats]:
        """(blocks, blocks): latency (infinite where no route leads) and bytes per second of every way."""
        k = len(self.blocks)
        latency, rate = np.full((k, k), np.inf), np.ones((k, k))
        for a, source in enumerate(self.blocks.tolist()):
            for b, target in enumerate(self.blocks.tolist()):
                rates = self.problem.machine.rates(source, target)
                if rates is not None:
                    latency[a, b], rate[a, b] = rates
        return latency, rate

    def _between(self, size: float) -> Floats:
        """(blocks, blocks): seconds of a transfer, the mean of both ways; infinite where a way is missing."""
        latency, rate = self._rates
        seconds: Floats = latency + size / rate
        return (seconds + seconds.T) / 2

    @cached_property
    def _nearest(self) -> tuple[float, float]:
        """Latency and bytes per second between the nearest two devices, for a tensor of mean size."""
        seconds = self._between(self._mean_bytes)
        useful = np.where(seconds > 0, seconds, np.inf)
        if not np.isfinite(useful).any():
            return 0.0, 1e9  # nothing need be sent: only the proportions count
        at = int(useful.argmin())
        return float(self._rates[0].flat[at]), float(self._rates[1].flat[at])

    def devices(self, parts: NDArray[np.int64], decisions: Decisions) -> NDArray[np.int64]:
        """The device of every group: its part's, and for a group that is no vertex the fastest that it may use."""
        chosen: Longs = decisions.seconds.argmin(axis=1)
        chosen[self.vertices] = self.blocks[parts]
        return chosen


def accelerators(machine: Machine) -> Longs:
    """The devices that are no hosts; all of them where there are none but hosts."""
    away = np.array([not device.is_host for device in machine.devices])
    found: Longs = np.flatnonzero(away if away.any() else ~away)
    return found


def sketch(problem: Problem, *, hosts: bool = True) -> Sketch:
    """What partitioners see of a problem; without `hosts`, accelerators alone and what can be on one of them."""
    blocks = np.flatnonzero(problem.choices.any(axis=0))
    if not hosts:
        blocks = np.intersect1d(blocks, accelerators(problem.machine))
    vertices = np.flatnonzero(problem.choices[:, blocks].any(axis=1))
    return Sketch(problem, blocks, vertices)


def whole(values: Floats, total: int) -> Longs:
    """Whole numbers, 1 or more, in proportion to values and with a sum of about `total`."""
    most = float(values.sum())
    if most <= 0:
        return np.ones(len(values), np.int64)
    scaled: Longs = np.maximum(1, np.rint(values * (total / most))).astype(np.int64)
    return scaled


def adjacency(n: int, edges: tuple[Longs, Longs, Longs]) -> tuple[Longs, Longs, Longs]:
    """CSR (start, neighbour, weight) with every edge at both of its ends, neighbours by number."""
    one, two, weight = edges
    source, target = np.concatenate([one, two]), np.concatenate([two, one])
    order = np.lexsort((target, source))
    start = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(source, minlength=n), out=start[1:])
    return start, target[order], np.concatenate([weight, weight])[order]


def spread(work: Floats, speed: Floats, fixed: Longs) -> Longs:
    """Vertices that nothing passes between: by falling work, each to the block that would finish it first."""
    parts = fixed.copy()
    load = np.zeros(len(speed))
    np.add.at(load, fixed[fixed >= 0], work[fixed >= 0])
    for v in np.argsort(-work, kind="stable").tolist():
        if parts[v] < 0:
            parts[v] = int(((load + work[v]) / speed).argmin())
            load[parts[v]] += work[v]
    return parts

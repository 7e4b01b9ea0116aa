"""A problem as the bounds see it: groups of operations on classes of devices, and what every placement must obey.

A *row* is a linear claim about a placement. A load row says that its offset and its sum are no more than the
objective; a memory row that its sum fits. Sums have a part for each group, by its class, and a part for each read
whose maker and reader are in different groups, by both their classes.

    n operations, G groups, K classes, T tensors, E reads, L links: pairs of groups with a read between them
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placewright.bounds.classes import Classes, classes_of
from placewright.graph import Bools, Floats, Ints, Longs
from placewright.problem import Problem
from placewright.sim.lower import NEVER, PICO, Lowered, lower

MOST_CLASSES = 24
MOST_PAIR_COSTS = 16_000_000
"""Links times pairs of classes; where there were more, unlike devices are joined."""


class Flow(NamedTuple):
    """What the kernel of earliest ends reads; see `Relaxed.flow`."""

    cost_ps: Longs
    group: Ints
    edge_start: Ints
    edge_op: Ints
    edge_tensor: Longs
    raw_bytes: Floats
    transfer_ps: Longs
    apart: Bools
    twins_apart: Bools
    reached: Bools
    latency_s: Floats
    bytes_per_s: Floats
    size: Ints


class Members(NamedTuple):
    """What the kernels of windows read."""

    cost_ps: Longs
    allowed: Bools
    group_start: Ints
    group_op: Ints


def summed(labels: NDArray[np.integer], values: NDArray[np.generic], count: int) -> Floats:
    """The sum of the values of every label."""
    found: Floats = np.bincount(labels, values, count).astype(np.float64)
    return found


@dataclass(frozen=True, eq=False)
class Pairs:
    """Some reads; each counts its transfer's picoseconds, or bytes, times a factor for its two classes."""

    reads: Ints
    factor: Floats
    """(K, K) by the classes of maker and reader."""
    bytes: NDArray[Any] | None = None
    """Of each of the reads; None: its picoseconds."""


@dataclass(frozen=True, eq=False)
class Row:
    """One claim. `limit` is the offset of a load row, and the capacity of a memory row."""

    name: str
    limit: int
    columns: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    """By class: the part of every group."""
    pairs: tuple[Pairs, ...] = ()
    pools: int = -1
    """The set of pools that a memory row is about; -1 for load rows."""
    held: Pairs | None = None
    """Of a memory row: reads whose bytes count, each unless its transfer counts in all rows that have `again`."""
    again: Floats | None = None
    """Of a load row: (K, K) factor of the picoseconds of transfers that are made again rather than held."""

    @property
    def is_load(self) -> bool:
        """Whether it is about the objective."""
        return self.pools < 0


@dataclass(frozen=True, eq=False)
class Relaxed:
    """A problem with classes for devices."""

    problem: Problem
    lowered: Lowered
    classes: Classes

    @staticmethod
    def of(problem: Problem) -> Relaxed:
        """The relaxation of a problem."""
        lowered = lower(problem)
        room = int((MOST_PAIR_COSTS / max(1, len(problem.graph.in_tensor))) ** 0.5)
        return Relaxed(problem, lowered, classes_of(problem, lowered, max(2, min(MOST_CLASSES, room))))

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.classes.size)

    @cached_property
    def cost_ps(self) -> Longs:
        """(n, K): the least time of each operation on a device of the class, NEVER where its group may not be."""
        table = np.full((self.problem.n_ops, self.n_classes), NEVER)
        for d, k in enumerate(self.classes.of.tolist()):
            here = np.where(self.problem.choices[self.problem.groups, d], self.lowered.cost_ps[:, d], NEVER)
            np.minimum(table[:, k], here, out=table[:, k])
        return table

    @cached_property
    def allowed(self) -> Bools:
        """(G, K): on which classes a group may be."""
        table = np.zeros((self.problem.n_groups, self.n_classes), bool)
        for d, k in enumerate(self.classes.of.tolist()):
            table[:, k] |= self.problem.choices[:, d]
        return table

    @cached_property
    def group_ps(self) -> Longs:
        """(G, K): the time of each group, 0 where it may not be."""
        table = np.zeros(self.allowed.shape, np.int64)
        np.add.at(table, self.problem.groups, np.where(self.cost_ps == NEVER, 0, self.cost_ps))
        return np.where(self.allowed, table, 0)

    @cached_property
    def held(self) -> Longs:
        """(G, P): persistent bytes of each group, rounded to the granule of a set of pools."""
        graph, granule = self.problem.graph, self.classes.granule
        kept = np.flatnonzero(graph.persistent)
        table = np.zeros((self.problem.n_groups, len(granule)), np.int64)
        owner = self.problem.groups[graph.tensor_op[kept]]
        for s, size in enumerate(granule.tolist()):
            np.add.at(table[:, s], owner, self.rounded(graph.tensor_bytes[kept], size))
        return table

    @staticmethod
    def rounded(sizes: Longs, granule: int) -> Longs:
        """Sizes rounded up to a granule."""
        return -(-sizes // granule) * granule

    @cached_property
    def members(self) -> Members:
        """The operations of every group."""
        groups, count = self.problem.groups, self.problem.n_groups
        start = np.zeros(count + 1, np.int32)
        np.cumsum(np.bincount(groups, minlength=count), out=start[1:])
        return Members(self.cost_ps, self.allowed, start, np.argsort(groups, kind="stable").astype(np.int32))

    def flow(self, *, forward: bool) -> Flow:
        """Operations in an order in which each comes after what it waits for; backward, with time turned round."""
        graph, classes, n = self.problem.graph, self.classes, self.problem.n_ops
        later = np.concatenate([graph.read_op, np.repeat(np.arange(n, dtype=np.int32), np.diff(graph.after_start))])
        earlier = np.concatenate([graph.tensor_op[graph.in_tensor], graph.after_op])
        tensor = np.concatenate([graph.in_tensor.astype(np.int64), np.full(len(graph.after_op), -1)])
        if not forward:
            later, earlier = n - 1 - earlier, n - 1 - later
        order = np.argsort(later, kind="stable")
        start = np.zeros(n + 1, np.int32)
        np.cumsum(np.bincount(later, minlength=n), out=start[1:])
        by_op = slice(None) if forward else slice(None, None, -1)

        def turned(table: NDArray[Any]) -> NDArray[Any]:
            return np.ascontiguousarray(table if forward else table.T)

        return Flow(
            cost_ps=np.ascontiguousarray(self.cost_ps[by_op]),
            group=np.array(self.problem.groups[by_op]),
            edge_start=start,
            edge_op=earlier[order].astype(np.int32),
            edge_tensor=tensor[order],
            raw_bytes=self.lowered.raw_bytes,
            transfer_ps=self.lowered.transfer_ps,
            apart=turned(classes.apart),
            twins_apart=classes.twins_apart,
            reached=turned(classes.reached),
            latency_s=turned(classes.latency_s),
            bytes_per_s=turned(classes.bytes_per_s),
            size=classes.size,
        )

    # Reads and links

    @cached_property
    def ends(self) -> tuple[Ints, Ints]:
        """(E,) the groups of maker and reader of every read."""
        graph, groups = self.problem.graph, self.problem.groups
        return groups[graph.tensor_op[graph.in_tensor]], groups[graph.read_op]

    @cached_property
    def crossing(self) -> Bools:
        """(E,) whether maker and reader of a read are in different groups."""
        apart: Bools = self.ends[0] != self.ends[1]
        return apart

    @cached_property
    def main(self) -> Ints:
        """One read of every tensor that other groups read: by the group with most work, ties to the first.

        A tensor goes once to each device that reads it, so of several reads only one may count on its own.
        """
        graph = self.problem.graph
        reads = np.flatnonzero(self.crossing)
        least = np.where(self.allowed, self.group_ps, NEVER).min(axis=1, initial=NEVER)
        order = np.lexsort((reads, -least[self.ends[1][reads]], graph.in_tensor[reads]))
        tensors = graph.in_tensor[reads][order]
        first = np.ones(len(order), bool)
        first[1:] = tensors[1:] != tensors[:-1]
        return np.sort(reads[order[first]]).astype(np.int32)

    @cached_property
    def links(self) -> tuple[Ints, Ints, Ints]:
        """(L,) lower and higher group of every link, and (E,) the link of every read, -1 within a group."""
        low, high = np.minimum(*self.ends), np.maximum(*self.ends)
        key = low.astype(np.int64) * max(1, self.problem.n_groups) + high
        found, inverse = np.unique(key[self.crossing], return_inverse=True)
        of = np.full(len(key), -1, np.int32)
        of[self.crossing] = inverse
        wide = max(1, self.problem.n_groups)
        return (found // wide).astype(np.int32), (found % wide).astype(np.int32), of

    def lasts(self, tensors: Ints, here: int, there: int) -> NDArray[np.float64]:
        """Picoseconds of transfers between two classes at least; 0 where none is needed or no route is known."""
        classes, given = self.classes, self.lowered.transfer_ps[tensors]
        if not (classes.apart[here, there] and classes.reached[here, there]):
            return np.zeros(len(tensors))
        by_route = classes.latency_s[here, there] + self.lowered.raw_bytes[tensors] / classes.bytes_per_s[here, there]
        return np.where(given >= 0, given, np.rint(by_route * PICO))

    def counted(self, pairs: Pairs, ends: tuple[Ints, Ints], link_of: Ints, links: int) -> NDArray[np.float64]:
        """(links, K, K) what the reads count, by the classes of the lower and the higher end of each link.

        `ends` are the ends of all reads, by any labels, and `link_of` numbers the pairs of labels.
        """
        table = np.zeros((links, self.n_classes, self.n_classes))
        for part, factor in zip(self.parts(pairs, ends, link_of, links), (pairs.factor, pairs.factor.T), strict=True):
            table += part * factor
        return table

    def parts(
        self, pairs: Pairs, ends: tuple[Ints, Ints], link_of: Ints, links: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """As `counted`, before factors: of reads whose maker is at the lower end, and of the others."""
        found = np.zeros((2, links, self.n_classes, self.n_classes))
        tensors = self.problem.graph.in_tensor[pairs.reads]
        turned = ends[0][pairs.reads] > ends[1][pairs.reads]
        where = link_of[pairs.reads]
        for a in range(self.n_classes):
            for b in range(self.n_classes):
                if pairs.bytes is None and a == b:
                    continue
                value = self.lasts(tensors, a, b) if pairs.bytes is None else pairs.bytes.astype(np.float64)
                found[0, :, a, b] = summed(where[~turned], value[~turned], links)
                found[1, :, b, a] = summed(where[turned], value[turned], links)
        return found[0], found[1]

"""Bundles: the groups of a problem, each with what follows it, for methods that place operations by their time.

The lists of the papers place operations that take time, and a framework's variables are with what uses them. Here
parameters and inputs are decisions of their own that take no time. So a bundle joins to a group the parameters and
inputs that it is the first to read, the updates of those parameters, and their states.

    g groups, b bundles, d devices, p pools
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.decisions import Assignment, Decisions
from placewright.graph import INPUT, PARAMETER, STORE, UPDATE, Bools, Floats, Ints, Longs
from placewright.problem import Problem


@dataclass(frozen=True, eq=False)
class Bundles:
    """What is placed together, with its seconds and bytes."""

    problem: Problem

    @cached_property
    def decisions(self) -> Decisions:
        """Seconds, bytes and rules of the groups."""
        return Decisions(self.problem)

    @cached_property
    def of_group(self) -> Ints:
        """(g,): the bundle of every group; bundles are numbered by their first operation."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        count = self.problem.n_groups
        pairs = _followers(self.problem, self.decisions)
        start = self.decisions.apart[0]
        apart = start[1:] > start[:-1]
        pairs = pairs[~(apart[pairs[:, 0]] | apart[pairs[:, 1]])]  # who is kept apart from others stays free
        links = coo_array((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
        label = connected_components(links, directed=False)[1] if count else np.zeros(0, np.int32)
        label = np.where(self._fits(label)[label], label, count + np.arange(count))
        first, inverse = np.unique(label, return_index=True, return_inverse=True)[1:]
        number = np.empty(len(first), np.int32)
        number[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
        return number[inverse].astype(np.int32)

    def _fits(self, label: Ints) -> Bools:
        """Whether what has one label has a device in common that could hold it."""
        made = self.decisions
        choices = _merged(label, self.problem.choices, np.logical_and)
        held = _merged(label, made.bytes, np.add)
        fits: Bools = np.any(choices & (held <= made.capacity)[:, made.pool_of], axis=1)
        return fits

    @cached_property
    def count(self) -> int:
        """Number of bundles."""
        return int(self.of_group.max(initial=-1)) + 1

    @cached_property
    def of_op(self) -> Ints:
        """The bundle of every operation."""
        return self.of_group[self.problem.groups]

    @cached_property
    def sizes(self) -> Longs:
        """(b,): operations of every bundle."""
        return np.bincount(self.of_op, minlength=self.count)

    @cached_property
    def members(self) -> list[list[int]]:
        """The groups of every bundle."""
        order = np.argsort(self.of_group, kind="stable").tolist()
        ends = np.cumsum(np.bincount(self.of_group, minlength=self.count)).tolist()
        return [order[a:b] for a, b in zip([0, *ends], ends, strict=False)]

    @cached_property
    def seconds(self) -> Floats:
        """(b, d): the sum of the bundle's operations; infinite where it may not be."""
        return _merged(self.of_group, self.decisions.seconds, np.add)

    @cached_property
    def bytes(self) -> Longs:
        """(b, p): persistent bytes, rounded to the granule of the pool."""
        return _merged(self.of_group, self.decisions.bytes, np.add)

    @cached_property
    def totals(self) -> Floats:
        """(d,): seconds of all that can run on every device; a faster device has less."""
        everywhere = np.isfinite(self.seconds).all(axis=1)
        if everywhere.any():
            total: Floats = self.seconds[everywhere].sum(axis=0)
            return total
        runs = np.isfinite(self.seconds)
        mean: Floats = np.where(runs, self.seconds, 0.0).sum(axis=0) / np.maximum(1, runs.sum(axis=0))
        return mean

    @cached_property
    def fast_first(self) -> Ints:
        """Devices from the fastest to the slowest, ties by index; it decides all ties between devices."""
        return np.argsort(self.totals, kind="stable").astype(np.int32)


def _merged(label: Ints, table: NDArray[Any], how: np.ufunc) -> NDArray[Any]:
    """Rows of one label made one by an operation; labels are 0 to the largest, each of them there."""
    order = np.argsort(label, kind="stable")
    starts = np.flatnonzero(np.diff(label[order], prepend=-1))
    merged: NDArray[Any] = how.reduceat(table[order], starts, axis=0) if len(starts) else table
    return merged


def _followers(problem: Problem, decisions: Decisions) -> Ints:
    """(k, 2) pairs of groups: one that takes no time, and the one that it follows."""
    graph, groups = problem.graph, problem.groups
    seconds = decisions.seconds
    timed = np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1, initial=0.0) > 0
    quiet = ~timed & np.isin(graph.phase[problem.leaders], (INPUT, PARAMETER))
    maker, reader = groups[graph.tensor_op[graph.in_tensor]], groups[graph.read_op]
    late = np.isin(graph.phase[graph.read_op], (UPDATE, STORE))
    edges = np.flatnonzero((maker != reader) & quiet[maker])
    edges = edges[np.argsort(late[edges], kind="stable")]  # reads are by reader: the first that is no update
    followed, first = np.unique(maker[edges], return_index=True)
    pairs = [np.stack([followed, reader[edges[first]]], 1)]
    computed = ~quiet  # groups that hold weights which something computes with
    computed[followed[~late[edges[first]]]] = True
    made = np.flatnonzero((graph.phase[graph.tensor_op] == UPDATE) & (graph.persistent_root >= 0))
    home = groups[graph.tensor_op[graph.persistent_root[made]]]
    update = np.unique(np.stack([groups[graph.tensor_op[made]], home], 1)[computed[home]], axis=0)
    owner, count = np.unique(update[:, 0], return_counts=True)
    pairs.append(update[np.isin(update[:, 0], owner[count == 1])])  # one that updates many weights follows none
    return np.concatenate(pairs).astype(np.int32)


class Filling:
    """One attempt at placing bundles: where they are, and what every device has to do so far.

    Devices are spoken of in lists, the fastest first: the first of equally good ones is the one to take.
    """

    def __init__(self, bundles: Bundles) -> None:
        made = bundles.decisions
        self.bundles = bundles
        self.device = [-1] * bundles.count
        self.load = [0.0] * bundles.problem.n_devices
        """Seconds of what is on each device."""
        self.room: list[int] = made.capacity.tolist()
        """Persistent bytes that every pool can still take."""
        self.seconds: list[list[float]] = bundles.seconds.tolist()
        self.pool_of: list[int] = made.pool_of.tolist()
        self._bytes: list[list[int]] = bundles.bytes.tolist()
        order = bundles.fast_first
        can = np.isfinite(bundles.seconds)[:, order]
        kinds: dict[bytes, int] = {}  # few rows differ
        self._row = [kinds.setdefault(row.tobytes(), len(kinds)) for row in np.packbits(can, axis=1)]
        first = {kind: b for b, kind in reversed(list(enumerate(self._row)))}
        self._can: list[list[int]] = [order[can[first[kind]]].tolist() for kind in range(len(kinds))]
        self._made: Assignment = made.assignment()
        start = made.apart[0]
        self._tied = (start[1:] > start[:-1]).tolist()
        self._separated = bool(bundles.problem.separated)

    @property
    def groups(self) -> NDArray[np.int64]:
        """The device of every group."""
        return self._made.devices

    def is_tied(self, bundle: int) -> bool:
        """Whether a separation is about the bundle."""
        return self._separated and any(self._tied[g] for g in self.bundles.members[bundle])

    def allowed(self, bundle: int) -> list[int]:
        """Where the bundle may be, whether it fits or not. Raises where that is nowhere."""
        devices = self._can[self._row[bundle]]
        if self.is_tied(bundle):
            for g in self.bundles.members[bundle]:
                allowed = self._made.allowed(g)
                devices = [d for d in devices if allowed[d]]
            if not devices:
                raise self._made.stuck(self.bundles.members[bundle][0])
        return devices

    def common(self, some: list[int]) -> list[int]:
        """Where all of the bundles may be and would fit together; no more than one of them is tied."""
        devices = self.allowed(some[0])
        for bundle in some[1:]:
            if self._row[bundle] != self._row[some[0]] or self.is_tied(bundle):
                also = self.allowed(bundle)
                devices = [d for d in devices if d in also]
        need = [sum(column) for column in zip(*(self._bytes[bundle] for bundle in some), strict=True)]
        return [d for d in devices if need[self.pool_of[d]] <= self.room[self.pool_of[d]]]

    def open_to(self, bundle: int) -> list[int]:
        """Where the bundle may be and fits; where it fits nowhere, where it may be."""
        need = self._bytes[bundle]
        allowed = self.allowed(bundle)
        if not any(need):
            return allowed
        return [d for d in allowed if need[self.pool_of[d]] <= self.room[self.pool_of[d]]] or allowed

    def put(self, bundle: int, device: int) -> None:
        """Place a bundle."""
        self.device[bundle] = device
        self.load[device] += self.seconds[bundle][device]
        self.room[self.pool_of[device]] -= self._bytes[bundle][self.pool_of[device]]
        if self._separated:
            for g in self.bundles.members[bundle]:
                self._made.put(g, device)
        else:
            self._made.devices[self.bundles.members[bundle]] = device

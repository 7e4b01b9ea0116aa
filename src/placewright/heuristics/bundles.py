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

from placewright.decisions import Decisions
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

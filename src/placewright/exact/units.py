"""Units: what a contiguous split cuts between.

A contiguous split gives every device one stretch of the forward pass, such that no path leaves a stretch and comes
back, and with each forward operation whatever belongs to it: the parameters that it is first to read, its backward
operations, their updates. A unit is a set of groups (`Problem.groups`) that such a split keeps together. Units are
numbered along one topological order of the forward pass, nearest to program order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from placewright.errors import ProblemError
from placewright.exact.joins import Joins
from placewright.exact.mirror import mirror_places
from placewright.graph import FORWARD, Ints
from placewright.problem import Problem

ALONE = -1
"""The unit of a group that no stretch can hold: nothing on a queue, and what it belongs to may not be with it."""


@dataclass(frozen=True, eq=False)
class Units:
    """Groups to units, and which units come before which."""

    problem: Problem
    of_group: Ints
    """(groups,): the unit of every group, or ALONE."""
    edges: Ints
    """(k, 2): pairs of units, the first before the second, each pair once, in order."""

    @property
    def n(self) -> int:
        """Number of units."""
        return int(self.of_group.max(initial=-1)) + 1

    def joined(self, labels: NDArray[np.int64]) -> Units:
        """Fewer units: those of one label become one, and so do those that then lie on a cycle."""
        of_group = np.where(self.of_group < 0, ALONE, labels[self.of_group]).astype(np.int64)
        place = np.full(int(labels.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(place, labels, np.arange(self.n))
        return _numbered(self.problem, of_group, labels[self.edges], place)


def units_of(problem: Problem) -> Units:
    """The units of a problem."""
    joins = Joins(problem)
    place, is_unit = _places(problem)
    for g, target in _companions(problem, place, is_unit):
        joins.join(target, g)
    label = np.array([joins.root(g) for g in range(problem.n_groups)], np.int64)
    dense = np.full(problem.n_groups, ALONE, np.int64)
    roots = np.unique(label[is_unit])
    dense[roots] = np.arange(len(roots))
    of_group = dense[label]
    first = np.full(len(roots), np.iinfo(np.int64).max)
    held = of_group >= 0
    np.minimum.at(first, of_group[held], place[held])
    return _numbered(problem, of_group, _edges(problem, of_group), first)


def _places(problem: Problem) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(groups,) where in the forward pass every group belongs, and whether it can be a unit of its own."""
    graph, groups = problem.graph, problem.groups
    place = np.full(problem.n_groups, np.iinfo(np.int64).max)
    forward = np.flatnonzero(graph.phase == FORWARD)
    np.minimum.at(place, groups[forward], forward)
    mirrored = mirror_places(graph)
    behind = np.flatnonzero(~graph.off_queue & (graph.phase != FORWARD))
    has_forward = place < np.iinfo(np.int64).max
    later = behind[~has_forward[groups[behind]]]
    np.minimum.at(place, groups[later], mirrored[later])
    is_unit = np.zeros(problem.n_groups, bool)
    is_unit[groups[~graph.off_queue]] = True
    return place, is_unit


def _companions(problem: Problem, place: NDArray[np.int64], is_unit: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(group, group that it belongs to).

    What is on no queue belongs to its first reader; a counter of batches to the operation before it; and what comes
    after the forward pass to its forward operation, but only where the graph does not itself say what is with what.
    """
    graph, groups = problem.graph, problem.groups
    pairs = []
    start, reader = graph.consumers
    off = np.flatnonzero(~is_unit[groups]).tolist()
    first: dict[int, int] = {}
    for i in off:  # in program order, so that the first operation of a group decides
        for t in range(int(graph.out_start[i]), int(graph.out_start[i + 1])):
            readers = [int(r) for r in reader[start[t] : start[t + 1]] if is_unit[groups[r]]]
            if readers:
                first.setdefault(int(groups[i]), int(groups[readers[0]]))
    pairs += sorted(first.items()) + _counters(problem)

    has_forward = np.zeros(problem.n_groups, bool)
    has_forward[groups[graph.phase == FORWARD]] = True
    behind = np.flatnonzero(~graph.off_queue & (graph.phase != FORWARD))
    if 2 * int(has_forward[groups[behind]].sum()) > len(behind):
        return pairs
    root = graph.persistent_root
    for i in behind.tolist():
        g = int(groups[i])
        if has_forward[g]:
            continue
        written = [int(root[t]) for t in range(graph.out_start[i], graph.out_start[i + 1]) if root[t] >= 0]
        if written:
            pairs.append((g, int(groups[graph.tensor_op[written[0]]])))
        elif 0 <= place[g] < graph.n_ops and graph.phase[place[g]] == FORWARD:
            pairs.append((g, int(groups[place[g]])))
    return [pair for pair in pairs if pair[0] != pair[1]]


def _counters(problem: Problem) -> list[tuple[int, int]]:
    """Groups that only bring a persistent tensor up to date, beside the forward pass: each with what comes before it.

    Nothing says where on the way they are, and a normalisation has one each, so that there would be as many
    downward-closed sets as there are subsets of them.
    """
    graph, groups = problem.graph, problem.groups
    waiting = np.repeat(np.arange(graph.n_ops), np.diff(graph.after_start))
    makers, readers = graph.tensor_op[graph.in_tensor], graph.read_op
    before, after = np.concatenate([makers, graph.after_op]), np.concatenate([readers, waiting])
    both = ~graph.off_queue[before] & ~graph.off_queue[after] & (groups[before] != groups[after])
    tied = np.zeros(problem.n_groups, bool)
    tied[groups[np.concatenate([before[both], after[both]])]] = True
    tied[groups[graph.tensor_op[~graph.detachable & ~graph.persistent & ~graph.off_queue[graph.tensor_op]]]] = True
    pairs, last = [], -1
    for i in np.flatnonzero(graph.phase == FORWARD).tolist():
        g = int(groups[i])
        if tied[g]:
            last = g
        elif last >= 0 and graph.detachable[graph.out_start[i] : graph.out_start[i + 1]].any():
            pairs.append((g, last))
    return pairs


def _edges(problem: Problem, of_group: NDArray[np.int64]) -> NDArray[np.int64]:
    """(k, 2) pairs of units: along the forward pass, and against the backward pass where a unit has nothing else."""
    graph = problem.graph
    unit = of_group[problem.groups]
    forward = graph.phase == FORWARD
    waiting = np.repeat(np.arange(graph.n_ops), np.diff(graph.after_start))
    before = np.concatenate([graph.tensor_op[graph.in_tensor], graph.after_op]).astype(np.int64)
    after = np.concatenate([graph.read_op, waiting]).astype(np.int64)
    ahead = forward[before] & forward[after]

    has_forward = np.zeros(int(of_group.max(initial=-1)) + 2, bool)
    has_forward[unit[forward]] = True
    behind = ~graph.off_queue & ~forward
    back = behind[before] & behind[after] & ~(has_forward[unit[before]] & has_forward[unit[after]])
    pairs = np.concatenate(
        [
            np.stack([unit[before[ahead]], unit[after[ahead]]], 1),
            np.stack([unit[after[back]], unit[before[back]]], 1),
        ]
    )
    return pairs[(pairs >= 0).all(axis=1)]


def _numbered(
    problem: Problem, of_group: NDArray[np.int64], edges: NDArray[np.int64], place: NDArray[np.int64]
) -> Units:
    """Units in topological order, nearest to their places; those on one cycle become one unit."""
    n = len(place)
    links = coo_array((np.ones(len(edges), bool), (edges[:, 0], edges[:, 1])), shape=(n, n))
    label = connected_components(links, directed=True, connection="strong")[1].astype(np.int64) if n else place
    count = int(label.max(initial=-1)) + 1
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, label, place)
    pairs = label[edges]
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    number = np.empty(count, np.int64)
    number[topological_order(count, pairs, first.tolist())] = np.arange(count)
    of_group = np.where(of_group < 0, ALONE, number[label[of_group]] if n else ALONE)
    choices = np.ones((count, problem.n_devices), bool)
    held = np.flatnonzero(of_group >= 0)
    np.logical_and.at(choices, of_group[held], problem.choices[held])
    for unit in np.flatnonzero(~choices.any(axis=1))[:1].tolist():
        names = [problem.graph.op_names[int(problem.leaders[g])] for g in np.flatnonzero(of_group == unit)[:6]]
        raise ProblemError(
            f"a contiguous split must keep {', '.join(map(repr, names))} together, as paths lead from one to another "
            "and back, and the constraints leave no device for all of them; use a method that is not contiguous"
        )
    pairs = np.unique(number[pairs].reshape(-1, 2), axis=0)
    return Units(problem, of_group.astype(np.int32), pairs.astype(np.int32))


def topological_order(n: int, edges: NDArray[Any], key: Sequence[int] | None = None) -> NDArray[np.int64]:
    """Nodes in an order that keeps every edge; among those that may come next, the one of least key, or number."""
    order_by = np.argsort(edges[:, 0], kind="stable")
    target = edges[order_by, 1].tolist()
    start = np.searchsorted(edges[order_by, 0], np.arange(n + 1)).tolist()
    waiting = np.bincount(edges[:, 1], minlength=n).tolist()
    keys = range(n) if key is None else key
    ready = [(keys[v], v) for v in range(n) if not waiting[v]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, v = heapq.heappop(ready)
        order.append(v)
        for w in target[start[v] : start[v + 1]]:
            waiting[w] -= 1
            if not waiting[w]:
                heapq.heappush(ready, (keys[w], w))
    return np.array(order, np.int64)

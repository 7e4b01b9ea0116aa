"""Favourite children for m-SCT: the linear programme of Hanen and Munier (1995), solved by HiGHS.

The programme asks which of its children each operation should be followed by on its own device, so that the schedule
on as many devices as one likes is shortest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.errors import InputError, ProblemError
from placewright.graph import FORWARD, Floats, Longs
from placewright.sim.list_tasks import PASSIVE, Tasks


@dataclass(frozen=True)
class FavouriteParams:
    """How favourites are found."""

    threshold: float = 0.1
    """An edge of at most this value in the solved programme leads to a favourite; 0.1 is Baechi's."""
    most_edges: int = 10_000
    """Edges of the programme at most. A larger one is co-placed again while a round saves 5 % of them, or refused."""

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < 0.5:
            raise InputError(f"threshold is {self.threshold}; 0 or more and less than 0.5 is allowed")
        if self.most_edges < 1:
            raise InputError(f"most_edges is {self.most_edges}; 1 or more is allowed")


@dataclass(frozen=True, eq=False)
class Parts:
    """Forward operations, each joined to its only child, if it has one; `of` is -1 for other operations."""

    of: Longs
    time: Floats
    parent: Longs
    child: Longs
    move: Floats
    """Of every pair of parts with an edge, the longest transfer."""


def favourites(t: Tasks, phase: NDArray[np.int8], params: FavouriteParams, limit_s: float = math.inf) -> Longs:
    """The favourite child of every operation, or -1; the linear programme has at most so many seconds."""
    forward = (phase == FORWARD) & (t.kind != PASSIVE)
    parent = t.in_op.astype(np.int64)
    child = np.repeat(np.arange(len(t.kind)), np.diff(t.in_start))
    inside = forward[parent] & forward[child]
    parent, child, move = parent[inside], child[inside], t.in_mean[inside]
    parts = co_placed(t, forward, (parent, child, move), params.most_edges)
    kept = relaxed(parts, limit_s) <= params.threshold
    chosen = np.full(len(parts.time), -1, np.int64)
    chosen[parts.parent[kept]] = parts.child[kept]
    # Only the last operation of a part has children outside it. Of several children in one part the first counts, and
    # of several parents of a child the one before its part; within the part, that of longest time and transfer.
    of = parts.of
    inner = of[parent] == of[child]
    followed = np.flatnonzero(inner | (chosen[of[parent]] == of[child]))
    first = followed[np.lexsort((child[followed], parent[followed]))]
    alone = first[np.unique(parent[first], return_index=True)[1]]
    best = alone[np.lexsort((-parent[alone], -(t.mean[parent] + move)[alone], inner[alone], child[alone]))]
    one_each = best[np.unique(child[best], return_index=True)[1]]
    found = np.full(len(t.kind), -1, np.int64)
    found[parent[one_each]] = child[one_each]
    return found


def co_placed(t: Tasks, forward: NDArray[np.bool_], edges: tuple[Longs, Longs, Floats], most: int) -> Parts:
    """The parts after as many rounds of joining as it takes to have at most so many edges; at least one round."""
    parent, child, move = edges
    of = np.full(len(forward), -1, np.int64)
    of[forward] = np.arange(int(forward.sum()))
    count, rounds, before = int(forward.sum()), 0, len(parent)
    while True:
        ends = np.stack([of[parent], of[child]], 1)
        crossing = ends[:, 0] != ends[:, 1]
        pairs, which = np.unique(ends[crossing], axis=0, return_inverse=True)
        if rounds and len(pairs) <= most:
            longest = np.zeros(len(pairs))
            np.maximum.at(longest, which.ravel(), move[crossing])
            time = np.zeros(count)
            np.add.at(time, of[forward], t.mean[forward])
            return Parts(of, time, pairs[:, 0], pairs[:, 1], longest)
        if rounds > 1 and len(pairs) > 0.95 * before:
            raise InputError(
                f"m-sct: after {rounds} rounds of co-placement its linear programme has {len(pairs)} edges; at most "
                f"{most} are allowed, and another round would save few. Use m-etf, or give FavouriteParams a larger "
                "most_edges."
            )
        before = len(pairs)
        children = np.bincount(pairs[:, 0], minlength=count)
        goes_to = np.arange(count)
        only = children[pairs[:, 0]] == 1
        goes_to[pairs[only, 0]] = pairs[only, 1]
        while not np.array_equal(goes_to, goes_to[goes_to]):  # to the last of every chain
            goes_to = goes_to[goes_to]
        labels, goes_to = np.unique(goes_to, return_inverse=True)
        of[forward] = goes_to[of[forward]]
        count, rounds = len(labels), rounds + 1


def relaxed(parts: Parts, limit_s: float = math.inf) -> Floats:
    """The value of every edge between parts: 0 where the child follows its parent at once, 1 where it need not.

    minimise w  where  s_i + p_i + c_ij x_ij <= s_j,  s_i + p_i <= w,  0 <= x_ij <= 1,
    and of the edges out of a part, and of those into one, all but one count in full: their sum is at least k - 1.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    parent, child, n, edges = parts.parent, parts.child, len(parts.time), len(parts.parent)
    if not edges:
        return np.zeros(0)
    longest = float(max(parts.time.max(), parts.move.max())) or 1.0
    time, move = parts.time / longest, parts.move / longest
    row, x, ends = np.arange(edges), n + np.arange(edges), np.setdiff1d(np.arange(n), parent)
    rows = [row, row, row, edges + np.arange(len(ends)), edges + np.arange(len(ends))]
    columns = [parent, x, child, ends, np.full(len(ends), n + edges)]
    values = [np.ones(edges), move, -np.ones(edges), np.ones(len(ends)), -np.ones(len(ends))]
    limits: list[Floats] = [-time[parent], -time[ends]]
    total = edges + len(ends)
    for side in (parent, child):
        count = np.bincount(side, minlength=n)
        many = np.flatnonzero(count > 1)
        number = np.full(n, -1)
        number[many] = total + np.arange(len(many))
        chosen = np.flatnonzero(number[side] >= 0)
        rows.append(number[side[chosen]])
        columns.append(x[chosen])
        values.append(-np.ones(len(chosen)))
        limits.append(1.0 - count[many].astype(np.float64))
        total += len(many)
    shape = (total, n + edges + 1)
    matrix = coo_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=shape)
    goal = np.zeros(shape[1])
    goal[-1] = 1.0
    high = np.concatenate([np.full(n, np.inf), np.ones(edges), [np.inf]])
    bounds = np.stack([np.zeros(shape[1]), high], 1)
    options = {"time_limit": max(0.1, limit_s)} if math.isfinite(limit_s) else {}
    rules = (goal, matrix.tocsr(), np.concatenate(limits))
    found = linprog(*rules, bounds=bounds, method="highs-ipm", options=options)
    if found.status != 0:
        raise ProblemError(f"m-sct: HiGHS did not solve the programme of {edges} edges: {found.message}")
    answer: Floats = found.x[n:-1]
    return answer

"""Neighbours of placements, for the methods that walk from one to the next.

A row is the device of every group (`Problem.groups`), as int16. A neighbour differs from its parent by one move:

- one group goes to another device: half the time to that of an adjacent group, else to any that it may use;
- two groups trade their devices;
- a cluster goes to one device: all groups of a scope, or a connected set grown from one group.

    B rows, G groups, D devices
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.decisions import Decisions
from placewright.errors import InfeasibleError, InputError
from placewright.problem import Problem

Rows = NDArray[np.int16]
Indices = NDArray[np.int64]
Rank = tuple[int, int, float]
"""Of an outcome; smaller is better."""

STARTS = ("best-single", "random")
MOST_READ = 16
"""Neighbours of a group that a growing cluster looks at; a hub would fill it by itself."""


def check_ranges(params: Any, ranges: dict[str, tuple[float, float]]) -> None:
    """Raise unless every field named is a number within its range, whole where the field is, and `start` is known."""
    for field in fields(params):
        value = getattr(params, field.name)
        if field.name == "start" and value not in STARTS:
            raise InputError(f"start is {value!r}; {' or '.join(STARTS)} is allowed")
        if field.name not in ranges:
            continue
        low, high = ranges[field.name]
        whole = isinstance(field.default, int)
        kind = "a whole number from" if whole else "a number from"
        good = isinstance(value, int | np.integer) if whole else isinstance(value, int | float | np.number)
        if isinstance(value, bool) or not good or not low <= value <= high:
            raise InputError(f"{field.name} is {value!r}; {kind} {low:g} to {high:g} is allowed")


@dataclass(frozen=True)
class MoveParams:
    """How neighbours are drawn."""

    swap: float = 0.1
    """Share of neighbours in which two groups trade their devices."""
    cluster: float = 0.5
    """Share in which a cluster moves; in the rest one group does."""
    largest: int = 64
    """Groups of a connected cluster at most; its size is drawn uniformly in its logarithm, from 2."""
    tries: int = 100
    """How often a neighbour that breaks a separation is drawn anew before it is given up."""

    def __post_init__(self) -> None:
        check_ranges(self, {"swap": (0, 1), "cluster": (0, 1), "largest": (2, 1e9), "tries": (1, 1e9)})
        if self.swap + self.cluster > 1:
            raise InputError(f"swap and cluster add up to {self.swap + self.cluster}; 1 at most is allowed")


class Neighbourhood:
    """Draws starts and neighbours that keep every constraint."""

    def __init__(self, problem: Problem, rng: np.random.Generator, params: MoveParams) -> None:
        self.problem, self.rng, self.params = problem, rng, params
        self.decisions = Decisions(problem)
        choices = problem.choices
        self.count = choices.sum(axis=1)
        """(G,): devices that each group may use."""
        self.free = np.flatnonzero(self.count > 1)
        """Groups that can move at all."""
        # allowed[g, k] is the k-th device that group g may use, and rank its inverse
        self._allowed = np.argsort(~choices, axis=1, kind="stable")
        self._rank = np.cumsum(choices, axis=1) - 1

    # ---- where to start

    def starts(self, kind: str) -> Rows:
        """Rows to begin with: one drawn at random, or one for every device with all that may be there on it.

        With `best-single` one more row takes what does not fit from the fastest device, where parameters do not.
        """
        first = self.random() if kind == "random" or self.problem.separated else None
        if kind == "random":
            if first is None:
                raise InfeasibleError(
                    f"{self.params.tries} random placements all broke a constraint that keeps operations apart; relax "
                    "it, or try a solver"
                )
            return first[None]
        seconds = self.decisions.seconds
        best = seconds.argmin(axis=1) if len(seconds) else np.zeros(0, np.int64)
        devices = range(self.problem.n_devices)
        wanted = [np.where(self.problem.choices[:, d], d, best) for d in devices]
        total = [float(seconds[np.arange(len(row)), row].sum()) for row in wanted]
        wanted = [wanted[d] for d in sorted(devices, key=lambda d: (total[d], d))]
        rows = [row for row in (self._settled(row, fit=False) for row in wanted) if row is not None]
        if rows and not self._fits(wanted[0]):
            fitting = self._settled(wanted[0], fit=True)
            rows += [] if fitting is None else [fitting]
        if not rows and first is not None:
            rows = [first]
        if not rows:
            raise InfeasibleError("every start broke a constraint that keeps operations apart; relax it")
        return np.array(rows, np.int16).reshape(len(rows), -1)

    def random(self) -> Rows | None:
        """A row drawn uniformly, then settled: separations kept, persistent bytes within pools; None if no draw can."""
        groups = np.arange(self.problem.n_groups)
        for _ in range(self.params.tries):
            pick = self.rng.integers(0, self.count) if len(groups) else groups
            row = self._settled(self._allowed[groups, pick], fit=True)
            if row is not None:
                return row
        return None

    def _settled(self, wanted: NDArray[Any], *, fit: bool) -> Rows | None:
        if not self.problem.separated and (not fit or self._fits(wanted)):
            return wanted.astype(np.int16)
        try:
            return self.decisions.settle(wanted, fit=fit).astype(np.int16)
        except InfeasibleError:
            return None

    def _fits(self, wanted: NDArray[Any]) -> bool:
        """Whether persistent bytes are within every pool."""
        pool = self.decisions.pool_of[wanted]
        used = np.zeros(len(self.decisions.capacity), np.int64)
        np.add.at(used, pool, self.decisions.bytes[np.arange(len(wanted)), pool])
        return bool((used <= self.decisions.capacity).all())

    # ---- neighbours

    def draw(self, base: Rows, parents: NDArray[Any]) -> tuple[Rows, Indices]:
        """A neighbour of `base[p]` for every p of parents: (rows, their parents). Those that break rules are left out.

        What a move pushes together that must be apart is mended first: those in the way go where the mover was.
        """
        parents = np.asarray(parents, np.int64)
        rows = self._drawn(base[parents])
        if not self.problem.separated:
            return rows, parents
        for _ in range(self.params.tries):
            self._mend(rows, base[parents])
            bad = np.flatnonzero(self._broken(rows))
            if not len(bad):
                return rows, parents
            rows[bad] = self._drawn(base[parents[bad]])
        good = self.keeps(rows)
        return rows[good], parents[good]

    def keeps(self, rows: Rows) -> NDArray[np.bool_]:
        """(B,): which rows keep what must be apart on different devices."""
        if not self.problem.separated:
            return np.ones(len(rows), bool)
        return np.logical_not(self._broken(rows))

    def _drawn(self, rows: Rows) -> Rows:
        """The rows, each changed by one move."""
        kind = self.rng.random(len(rows))
        swap = kind < self.params.swap
        cluster = ~swap & (kind < self.params.swap + self.params.cluster)
        self._move(rows, np.flatnonzero(~swap & ~cluster))
        self._swap(rows, np.flatnonzero(swap))
        for b in np.flatnonzero(cluster).tolist():
            self._move_cluster(rows[b])
        return rows

    def _move(self, rows: Rows, which: Indices) -> None:
        """In each of those rows one group goes elsewhere."""
        groups = self._pick(len(which))
        rows[which, groups] = self._elsewhere(rows, which, groups)

    def _pick(self, count: int) -> Indices:
        picked: Indices = self.free[self.rng.integers(0, len(self.free), count)]
        return picked

    def _elsewhere(self, rows: Rows, which: Indices, groups: Indices) -> Indices:
        """Another device for each group: that of an adjacent group half the time, where it may go there."""
        here = rows[which, groups]
        other = self.rng.integers(0, self.count[groups] - 1)
        other += other >= self._rank[groups, here]
        target: Indices = self._allowed[groups, other]
        start, neighbour = self._adjacent
        degree = start[groups + 1] - start[groups]
        near = self.rng.random(len(groups)) < 0.5
        draw = self.rng.integers(0, np.maximum(degree, 1))
        near &= degree > 0
        if near.any():
            there = rows[which[near], neighbour[start[groups[near]] + draw[near]]]
            useful = self.problem.choices[groups[near], there] & (there != here[near])
            target[near] = np.where(useful, there, target[near])
        return target

    def _swap(self, rows: Rows, which: Indices) -> None:
        """In each of those rows two groups trade places; where eight draws find no two that can, one moves."""
        one = self._pick(len(which))
        choices = self.problem.choices
        todo = np.arange(len(which))
        for _ in range(8):
            two = self._pick(len(todo))
            at, first = which[todo], one[todo]
            here, there = rows[at, first], rows[at, two]
            good = (here != there) & choices[first, there] & choices[two, here]
            rows[at[good], first[good]] = there[good]
            rows[at[good], two[good]] = here[good]
            todo = todo[~good]
        rows[which[todo], one[todo]] = self._elsewhere(rows, which[todo], one[todo])

    def _move_cluster(self, row: Rows) -> None:
        """The groups of a scope, or a connected set, go to one device, but for those that may not be there."""
        seed = self._pick(1)
        target = int(self._elsewhere(row[None], np.zeros(1, np.int64), seed)[0])
        start, scope = self._scopes_of
        around = scope[start[seed[0]] : start[seed[0] + 1]]
        draw = self.rng.random()
        if len(around) and draw < 0.5:
            cluster = self._scopes[around[int(draw * 2 * len(around))]]
        else:
            cluster = self._grown(int(seed[0]))
        row[cluster[self.problem.choices[cluster, target]]] = target

    def _grown(self, seed: int) -> Indices:
        """A connected set of groups around one, grown at random."""
        size = int(2 * (self.params.largest / 2) ** self.rng.random())
        chosen = {seed: None}  # ordered, as a set is not
        frontier = self._around(seed)
        for draw in self.rng.random(2 * size).tolist():
            if not frontier or len(chosen) >= size:
                break
            k = int(draw * len(frontier))
            frontier[k], frontier[-1] = frontier[-1], frontier[k]
            group = frontier.pop()
            if group not in chosen:
                chosen[group] = None
                frontier += self._around(group)
        return np.fromiter(chosen, np.int64, len(chosen))

    def _around(self, group: int) -> list[int]:
        """The groups adjacent to one; of many, a stretch of them."""
        start, neighbour = self._adjacent
        first, last = int(start[group]), int(start[group + 1])
        if last - first > MOST_READ:
            first += int(self.rng.integers(0, last - first - MOST_READ + 1))
            last = first + MOST_READ
        around: list[int] = neighbour[first:last].tolist()
        return around

    # ---- tables, each made when it is first needed

    @cached_property
    def _adjacent(self) -> tuple[Indices, Indices]:
        """CSR by group (start, group): those that it reads from or that read from it, in order."""
        graph, groups, count = self.problem.graph, self.problem.groups.astype(np.int64), self.problem.n_groups
        one, two = groups[graph.tensor_op[graph.in_tensor]], groups[graph.read_op]
        apart = one != two
        key = np.unique(np.concatenate([one[apart] * count + two[apart], two[apart] * count + one[apart]]))
        start = np.searchsorted(key, np.arange(count + 1) * count)
        return start, key % max(1, count)

    @cached_property
    def _by_scope(self) -> tuple[list[Indices], tuple[Indices, Indices]]:
        """The movable groups of every scope, all below it included; and CSR by group (start, scope)."""
        leaders = self.problem.leaders
        members: dict[str, list[int]] = {}
        for g in self.free.tolist():
            scope = self.problem.graph.scopes[int(leaders[g])]
            while scope:
                members.setdefault(scope, []).append(g)
                scope = scope.rpartition(".")[0]
        scopes = [np.array(groups, np.int64) for groups in members.values() if len(groups) > 1]
        group = np.concatenate([np.zeros(0, np.int64), *scopes])
        scope_of = np.repeat(np.arange(len(scopes)), [len(groups) for groups in scopes])
        order = np.argsort(group, kind="stable")
        start = np.searchsorted(group[order], np.arange(self.problem.n_groups + 1))
        return scopes, (start, scope_of[order])

    @property
    def _scopes(self) -> list[Indices]:
        return self._by_scope[0]

    @property
    def _scopes_of(self) -> tuple[Indices, Indices]:
        return self._by_scope[1]

    # ---- what must be apart

    @cached_property
    def _sides(self) -> tuple[Indices, Indices]:
        """(group, side) of every group that is kept apart from others; side k may not meet side k ^ 1."""
        start, side = self.decisions.apart
        return np.repeat(np.arange(self.problem.n_groups), np.diff(start)), side.astype(np.int64)

    def _broken(self, rows: Rows) -> NDArray[np.bool_]:
        group, side = self._sides
        there = np.zeros((len(rows), 2 * len(self.problem.separated), self.problem.n_devices), bool)
        there[np.arange(len(rows))[:, None], side[None], rows[:, group]] = True
        met: NDArray[np.bool_] = there[:, 0::2] & there[:, 1::2]
        return np.asarray(met.any(axis=(1, 2)))

    def _mend(self, rows: Rows, base: Rows) -> None:
        """Where a group came upon one that it must be apart from, that one goes where the mover was."""
        group, side = self._sides
        for b in np.flatnonzero(self._broken(rows)).tolist():
            row, was = rows[b], base[b]
            for g, k in zip(group.tolist(), side.tolist(), strict=True):
                if row[g] != was[g]:
                    others = group[side == k ^ 1]
                    blocked = others[(row[others] == row[g]) & (was[others] == row[g])]
                    row[blocked[self.problem.choices[blocked, was[g]]]] = was[g]

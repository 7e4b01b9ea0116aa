"""Relief: what to move where a placement needs too much memory, decided from what its simulation said.

A placement that does not fit is mended, never punished: bytes move to where there is room, by repeated blocks and
evenly spread, until the simulator finds that it fits or nothing more can be moved.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.decisions import Decisions
from placewright.graph import PARAMETER, UPDATE, Longs
from placewright.levels import Level
from placewright.problem import Problem
from placewright.sim import Outcome

Row = NDArray[np.int64]
"""The device of every group."""
Attempts = Generator[Row, Outcome, None]
"""Yields rows and is sent their outcomes."""

MODES = ("stream", "state", "block", "compute")
"""What moves: parameters alone (their readers borrow them), optimiser state with its updates, whole blocks with
their parameters to the host, whole blocks to the device with the most room."""


@dataclass(frozen=True, eq=False)
class Roles:
    """Which groups hold bytes for the whole step, and which only do work."""

    problem: Problem

    @cached_property
    def held(self) -> Longs:
        """(groups,): persistent bytes."""
        graph = self.problem.graph
        kept = np.flatnonzero(graph.persistent)
        owner = self.problem.groups[graph.tensor_op[kept]]
        sizes = np.bincount(owner, graph.tensor_bytes[kept].astype(np.float64), minlength=self.problem.n_groups)
        return sizes.astype(np.int64)

    @cached_property
    def keeps(self) -> NDArray[np.bool_]:
        """Which groups hold a persistent tensor."""
        graph = self.problem.graph
        found = np.zeros(self.problem.n_groups, bool)
        found[self.problem.groups[graph.phase == PARAMETER]] = True
        return found

    @cached_property
    def only_updated(self) -> NDArray[np.bool_]:
        """Which groups hold only what nothing but updates reads: the optimiser's state."""
        graph, groups = self.problem.graph, self.problem.groups
        reads = graph.persistent[graph.in_tensor] & (graph.phase[graph.read_op] != UPDATE)
        other = np.zeros(self.problem.n_groups, bool)
        other[groups[graph.tensor_op[graph.in_tensor[reads]]]] = True
        found: NDArray[np.bool_] = self.keeps & ~other
        return found

    @cached_property
    def updates(self) -> NDArray[np.bool_]:
        """Which groups have an operation of phase update."""
        found = np.zeros(self.problem.n_groups, bool)
        found[self.problem.groups[self.problem.graph.phase == UPDATE]] = True
        return found


@dataclass(frozen=True, eq=False)
class Relief:
    """Moves bytes of one problem, by the clusters of one level."""

    decisions: Decisions
    roles: Roles
    level: Level

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.decisions.problem

    def attempts(self, row: Row, mode: str, most: int = 8) -> Attempts:
        """The row, then rows with bytes moved out of pools that were too full, until one fits."""
        asked = np.zeros(len(self.decisions.capacity), np.float64)
        base = row
        outcome = yield row
        for _ in range(most):
            if outcome.feasible or outcome.reason != "memory":
                return
            asked += 1.02 * np.array(outcome.over_bytes) + (1 << 16)
            moved = self.shed(base, asked, mode)
            if moved is None or np.array_equal(moved, row):
                return
            row = moved
            outcome = yield row

    def shed(self, row: Row, bytes_over: NDArray[np.float64], mode: str) -> Row | None:
        """Return the row with at least so many bytes moved out of each pool, or None where nothing can move."""
        row = row.copy()
        some = False
        for pool in np.flatnonzero(bytes_over > 0).tolist():
            some |= self._shed_pool(row, pool, float(bytes_over[pool]), mode)
        return row if some else None

    def _shed_pool(self, row: Row, pool: int, need: float, mode: str) -> bool:
        decisions, roles = self.decisions, self.roles
        here = decisions.pool_of[row] == pool
        held = np.where(here & roles.keeps, roles.held, 0)
        if mode == "state":
            held = np.where(roles.only_updated, held, 0)
        sizes = np.bincount(self.level.label, held, minlength=self.level.n_clusters)
        full = np.flatnonzero(sizes > 0)
        if mode == "block":  # activations leave too, which sizes do not show
            full = np.flatnonzero(np.bincount(self.level.label, here, minlength=self.level.n_clusters) > 0)
            need = need * 0.7
        if not len(full):
            return False
        chosen = full[_spread(sizes[full], need)]
        target = self._target(row, pool, mode)
        if target < 0:
            return False
        moves = here & np.isin(self.level.label, chosen)
        if mode == "stream":
            moves &= roles.keeps
        elif mode == "state":
            moves &= roles.only_updated | roles.updates
        moves &= self.problem.choices[:, target]
        if not moves.any():
            return False
        row[moves] = target
        return True

    def _target(self, row: Row, pool: int, mode: str) -> int:
        """The device that takes what leaves a pool: its host, or for `compute` the one with the most room."""
        decisions, machine = self.decisions, self.problem.machine
        used = np.bincount(decisions.pool_of[row], self.roles.held, minlength=len(decisions.capacity))
        room = (decisions.capacity - used)[decisions.pool_of]
        room = np.where(decisions.pool_of == pool, -1.0, room)
        if mode == "compute":
            speed = 1.0 / self._seconds
            best = int((np.clip(room, 0, None) ** 0.5 * speed).argmax())
            return best if room[best] > 0 else -1
        first = machine.pool_of.index(pool)
        host = machine.devices[first].host
        if host is not None and room[machine.device(host)] > 0:
            return machine.device(host)
        return int(room.argmax()) if room.max() > 0 else -1

    @cached_property
    def _seconds(self) -> NDArray[np.float64]:
        table = self.decisions.seconds
        finite = np.isfinite(table)
        total: NDArray[np.float64] = np.where(finite, table, 0.0).sum(axis=0) + 1e-12
        return total


def _spread(sizes: NDArray[Any], need: float) -> NDArray[np.int64]:
    """Indices, evenly spread, of the fewest entries that hold at least `need` in all; all where they hold less."""
    count = len(sizes)
    low, high = 1, count
    while low < high:
        middle = (low + high) // 2
        if sizes[_even(count, middle)].sum() >= need:
            high = middle
        else:
            low = middle + 1
    return _even(count, low)


def _even(count: int, some: int) -> NDArray[np.int64]:
    """`some` of `count` indices, evenly spread."""
    return ((np.arange(some) + 0.5) * count / some).astype(np.int64)

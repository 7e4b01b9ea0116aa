"""Neighbourhood: changes of a placement by groups, clusters of groups, stretches of program order, and windows.

Which kind of change is drawn follows what has helped so far. A change that persistent bytes alone show to overflow a
pool is mended by an exchange or not proposed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placewright.decisions import Decisions
from placewright.graph import Longs
from placewright.levels import Level, Ties
from placewright.problem import Problem
from placewright.relief import Roles, Row

ALL, HELD, WORK = range(3)
"""What of a cluster moves: everything, only what holds bytes for the whole step, or only the rest."""


@dataclass(frozen=True, eq=False)
class State:
    """What is searched over: the device of every group, streaming windows by device, and a rule for priorities."""

    row: Row
    windows: tuple[int, ...] | None = None
    priorities: int = 0
    arm: int = -1
    """The kind of change that made it."""


@dataclass(frozen=True)
class Arm:
    """One kind of change."""

    kind: str
    level: int = 0
    part: int = ALL


class Neighbourhood:
    """Draws changes of states of one problem."""

    def __init__(self, decisions: Decisions, roles: Roles, levels: list[Level], ties: Ties) -> None:
        self.decisions, self.roles, self.levels = decisions, roles, levels
        self.problem: Problem = decisions.problem
        self.arms = self._arms()
        self.tries = np.zeros(len(self.arms))
        self.gains = np.zeros(len(self.arms))
        self._tie_start, self._tied = _neighbours(ties, self.problem.n_groups)

    def _arms(self) -> list[Arm]:
        problem = self.problem
        parts = [ALL]
        if self._borrows:
            parts += [HELD, WORK]
        arms = [
            Arm(kind, k, part)
            for k, level in enumerate(self.levels)
            for part in parts
            for kind in ("move", "swap")
            if kind == "move" or level.n_clusters > 2
        ]
        arms += [Arm("stretch", part=part) for part in parts]
        if self._borrows and problem.discipline == "stream":
            arms.append(Arm("window"))
        if problem.discipline == "priority":
            arms.append(Arm("priorities"))
        return arms

    @cached_property
    def _borrows(self) -> bool:
        """Whether a parameter can be elsewhere than its reader."""
        pools = set(self.problem.machine.pool_of)
        return len(pools) > 1 and bool(self.roles.keeps.any())

    def draw(self, state: State, peak: NDArray[np.int64], rng: np.random.Generator) -> State | None:
        """Return a changed state, or None where the draw led to nothing; `peak` are the state's bytes by pool."""
        a = self._pick(rng)
        arm = self.arms[a]
        self.tries[a] += 1
        if arm.kind == "window":
            return self._window(replace(state, arm=a), rng)
        if arm.kind == "priorities":
            return replace(state, arm=a, priorities=state.priorities + 1)
        row = state.row.copy()
        if arm.kind == "stretch":
            changed = self._stretch(row, arm, rng)
        else:
            changed = self._cluster(row, arm, rng)
        if not changed or not self._mended(state.row, row, arm, peak, rng):
            return None
        return replace(state, row=row, arm=a)

    def reward(self, arm: int, gain: float) -> None:
        """Note that a change of this kind helped, by a share of the value."""
        if arm >= 0:
            self.gains[arm] += 1.0 + min(50.0, 1000.0 * gain)

    def _pick(self, rng: np.random.Generator) -> int:
        weight = (self.gains + 1.0) / (self.tries + 20.0)
        weight = weight / weight.sum() + 0.25 / len(weight)
        total = np.cumsum(weight)
        return int(np.searchsorted(total, rng.random() * total[-1], side="right").clip(0, len(weight) - 1))

    def fade(self) -> None:
        """Let what helped long ago count less."""
        self.tries *= 0.5
        self.gains *= 0.5

    # ---- kinds of change ---------------------------------------------------------------------------

    def _part(self, members: Longs, part: int) -> Longs:
        if part == ALL:
            return members
        keeps = self.roles.keeps[members]
        return members[keeps if part == HELD else ~keeps]

    def _put(self, row: Row, members: Longs, device: int) -> bool:
        members = members[self.problem.choices[members, device]]
        if not len(members) or bool((row[members] == device).all()):
            return False
        row[members] = device
        return True

    def _target(self, row: Row, members: Longs, rng: np.random.Generator) -> int:
        """A device for members: that of a tied group, or any."""
        if rng.random() < 0.6:
            for _ in range(4):
                g = int(members[rng.integers(len(members))])
                low, high = self._tie_start[g], self._tie_start[g + 1]
                if high > low:
                    other = int(self._tied[rng.integers(low, high)])
                    if row[other] != row[g]:
                        return int(row[other])
        return int(rng.integers(self.problem.n_devices))

    def _cluster(self, row: Row, arm: Arm, rng: np.random.Generator) -> bool:
        level = self.levels[arm.level]
        members = self._part(level.of(int(rng.integers(level.n_clusters))), arm.part)
        if not len(members):
            return False
        device = self._target(row, members, rng)
        if arm.kind == "move":
            return self._put(row, members, device)
        for _ in range(4):
            others = self._part(level.of(int(rng.integers(level.n_clusters))), arm.part)
            if len(others) and row[others[0]] != row[members[0]]:
                one, two = int(row[members[0]]), int(row[others[0]])
                moved = self._put(row, members, two)
                return self._put(row, others, one) or moved
        return False

    def _stretch(self, row: Row, arm: Arm, rng: np.random.Generator) -> bool:
        """Consecutive groups of one device join another: parts of an unrolled network, or of a chain."""
        n = len(row)
        length = int(np.exp(rng.uniform(0.5, np.log(max(3, n // 2)))))
        first = int(rng.integers(max(1, n - length + 1)))
        members = np.arange(first, min(n, first + length))
        if rng.random() < 0.7:
            members = members[row[members] == row[members[rng.integers(len(members))]]]
        members = self._part(members, arm.part)
        return bool(len(members)) and self._put(row, members, self._target(row, members, rng))

    def _window(self, state: State, rng: np.random.Generator) -> State:
        """Another window on one device: the least, the default, or a share of the room."""
        devices = self.problem.n_devices
        windows = list(state.windows or (-1,) * devices)
        d = int(rng.integers(devices))
        room = int(self.decisions.capacity[self.decisions.pool_of[d]])
        options = (0, -1, *(int(room * share) for share in (0.02, 0.05, 0.1, 0.2, 0.4)))
        windows[d] = int(options[int(rng.integers(len(options)))])
        return replace(state, windows=tuple(windows))

    # ---- memory ------------------------------------------------------------------------------------

    def _mended(self, old: Row, row: Row, arm: Arm, peak: NDArray[np.int64], rng: np.random.Generator) -> bool:
        """Exchange until persistent bytes fit beside what else was there at the peak; False if none is found."""
        if not self.roles.keeps.any():
            return True
        pool_of, bytes_ = self.decisions.pool_of, self.decisions.bytes
        capacity = self.decisions.capacity
        changed = np.flatnonzero(old != row)
        now = peak.astype(np.int64).copy()
        np.subtract.at(now, pool_of[old[changed]], bytes_[changed, pool_of[old[changed]]])
        np.add.at(now, pool_of[row[changed]], bytes_[changed, pool_of[row[changed]]])
        worse = np.flatnonzero((now > capacity) & (now > peak))
        if not len(worse):
            return True
        if rng.random() < 0.1:  # the peak may be elsewhere in time
            return True
        level = self.levels[arm.level]
        pool = int(worse[0])
        give = np.setdiff1d(np.unique(old[changed]), np.flatnonzero(pool_of == pool))
        if not len(give):
            return False
        for _ in range(6):
            others = level.of(int(rng.integers(level.n_clusters)))
            others = others[(pool_of[row[others]] == pool) & self.roles.keeps[others]]
            others = np.setdiff1d(others, changed)
            if not len(others):
                continue
            target = int(give[rng.integers(len(give))])
            others = others[self.problem.choices[others, target]]
            now[pool] -= int(bytes_[others, pool].sum())
            row[others] = target
            if now[pool] <= capacity[pool]:
                return True
        return False


def _neighbours(ties: Ties, groups: int) -> tuple[Longs, Longs]:
    """CSR by group of the groups it is tied to."""
    one = np.concatenate([ties.one, ties.other])
    other = np.concatenate([ties.other, ties.one])
    start = np.zeros(groups + 1, np.int64)
    np.cumsum(np.bincount(one, minlength=groups), out=start[1:])
    return start, other[np.argsort(one, kind="stable")]

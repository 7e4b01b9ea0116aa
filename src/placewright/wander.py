"""Wander: two walks over the levels of a problem, one that refines the best and one that explores.

Each stretch of a walk cools from a temperature to almost none. The first walk starts every cycle at the best that is
known; the second goes on from where it is, or from the next beginning, hotter. What either finds, both know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.checks import MAX_BYTES
from placewright.decisions import Decisions
from placewright.graph import Longs
from placewright.levels import Level, Ties, columns
from placewright.relief import Row
from placewright.sim.changes import ALL, BALL, HELD, MOVE, SHIFT, STRETCH, SWAP, WORK
from placewright.sim.lower import Lowered
from placewright.sim.walks import WINDOW, Ground, Kind, Place, Walk, run_walks

FEW_GROUPS = 3000
"""Groups up to which every part of a cluster is moved by itself, whether memory is tight or not."""
ROOMY = 0.75
"""Of the bytes of all accelerators, what parameters and state may take where no host is needed."""
FEW_SCOPES = 4
"""Fewer clusters than this say nothing of a graph's structure."""
COLD = 1e-6
"""The last temperature of a cycle, as a share of the value."""
RUNGS = (1e-6, 2e-5, 2e-4, 1e-3, 5e-3, 2e-2)
"""First temperatures that a cycle may have; the least of them only descends."""
STALLED = 4
"""Cycles that bring nothing, for each rung that is left out at the cold end."""


@dataclass
class _Cycle:
    """How far a walk is in its present cycle."""

    rung: int
    parts: int = 4
    done: int = 0
    before: int = 0
    """The best known value when it began; 0 where none was known: such a cycle counts as one that brought nothing."""

    def stretch(self) -> tuple[float, float]:
        """The first and last temperature of the next part."""
        hot = RUNGS[self.rung]
        ratio = COLD / hot
        return hot * ratio ** (self.done / self.parts), hot * ratio ** ((self.done + 1) / self.parts)


class Wander:
    """Two walks side by side; `go` advances both and gives their best places."""

    walks = 2

    def __init__(
        self,
        decisions: Decisions,
        lowered: Lowered,
        levels: Sequence[Level],
        ties: Ties,
        rng: np.random.Generator,
        priorities: NDArray[np.float64] | None = None,
        *,
        tight: bool = True,
    ) -> None:
        """Walk over levels, of which the first is that of single groups; `tight` says whether memory binds."""
        problem, repeated = decisions.problem, columns(decisions.problem)
        self.rng, self._devices = rng, problem.n_devices
        ground = Ground.of(
            problem,
            lowered,
            [*(level.members for level in levels), *repeated],
            neighbours(ties, problem.n_groups),
            decisions.apart,
        )
        ground = ground.with_kinds(kinds_of(decisions, levels, len(repeated), tight))
        self._walks = [Walk(ground, int(rng.integers(1 << 62)), priorities) for _ in range(self.walks)]
        self._cycles = [_Cycle(rung) for rung in (0, 3)]
        self._stalled = 0
        self._brought = np.zeros(len(RUNGS))
        """By first temperature, how much better the best known value became in its last cycle, by length."""
        self._beginnings: list[tuple[Row, Longs | None]] = []
        self._best: Place | None = None
        self.steps = max(8, min(20_000, 1_500_000 // (problem.n_ops + 20)))
        """Placements in one stretch of one walk: a fraction of a second."""

    @property
    def simulated(self) -> int:
        """Placements simulated so far."""
        return sum(walk.simulated for walk in self._walks)

    def begin(self, rows: Sequence[Row]) -> None:
        """Where to begin, best first."""
        self._beginnings = [(row, None) for row in rows]
        for k, walk in enumerate(self._walks):
            walk.set_out(rows[min(k, len(rows) - 1)])

    def offer(self, row: Row, over: int, value: int) -> None:
        """Tell of a placement that was found elsewhere."""
        self._note(Place(row.copy(), np.full(self._devices, -1, np.int64), over, value))

    def go(self, left: float = math.inf) -> list[Place]:
        """One stretch of every walk; with the places that it gives, no more than `left` placements in all.

        Where too few are left for all, one walk goes alone; for none, the best known place is given again.
        """
        walks = self._walks if left >= 3 * self.walks else self._walks[:1]
        steps = int(min(self.steps, (left - len(walks)) / len(walks)))
        if steps < 1:
            return [self._best or self._walks[0].place]
        jobs = [(walk, steps, *cycle.stretch()) for walk, cycle in zip(walks, self._cycles, strict=False)]
        places = run_walks(jobs)
        for place in places:
            self._note(place)
        for k, place in enumerate(places):
            self._cycles[k].done += 1
            if self._cycles[k].done >= self._cycles[k].parts:
                self._again(k, place)
        return places

    def _rung(self, k: int) -> int:
        """The first temperature of walk k's next cycle: half the time what last brought most, if anything; else any.

        The second walk is a rung hotter than the first, and never only descends. Both grow hotter where nothing was
        brought for some cycles.
        """
        if self.rng.random() < 0.5 and self._brought[k:].any():
            return k + int(self._brought[k:].argmax())
        hotter = min(2, self._stalled // STALLED)
        return int(self.rng.integers(k + hotter, k + 4 + min(1, hotter)))

    def _note(self, place: Place) -> None:
        if self._best is None or place.rank < self._best.rank:
            self._best = place

    def _again(self, k: int, place: Place) -> None:
        """Begin another cycle of walk k."""
        best, ended = self._best, self._cycles[k]
        if best is None:
            return
        gain = max(0, ended.before - best.value) / (max(1, best.value) * ended.parts)
        self._brought[ended.rung] = gain
        self._stalled = 0 if gain else self._stalled + 1
        self._cycles[k] = _Cycle(self._rung(k), min(64, int(ended.parts * 1.3) + 1), 0, best.value)
        if k == 0 or self.rng.random() < 0.4:
            self._walks[k].set_out(best.row, best.windows)
        elif self._beginnings and self.rng.random() < 0.5:
            row, windows = self._beginnings[int(self.rng.integers(min(6, len(self._beginnings))))]
            self._walks[k].set_out(row, windows)
        else:
            self._walks[k].set_out(place.row, place.windows)


def kinds_of(decisions: Decisions, levels: Sequence[Level], repeated: int, tight: bool) -> list[Kind]:
    """The kinds of change that mean something; a walk draws the first four at a fixed share besides.

    Where nothing needs to be at a host and the graph has scopes, these alone say what moves together: other clusters,
    stretches of program order and other windows took steps from them and found less.
    """
    problem = decisions.problem
    scopes = [k for k, level in enumerate(levels) if level.by_scope and level.n_clusters >= FEW_SCOPES]
    shifts = [Kind(SHIFT, ALL, len(levels) + k) for k in range(repeated)]
    of_scopes = [Kind(kind, ALL, k) for kind in (MOVE, SWAP) for k in scopes]
    if scopes and not (tight and needs_hosts(decisions)):
        return [Kind(MOVE, ALL, 0), Kind(SWAP, ALL, 0), Kind(BALL), *of_scopes, *shifts]
    borrows = bool(problem.graph.persistent.any()) and len(set(problem.machine.pool_of)) > 1
    parts = (ALL, HELD, WORK) if borrows and (tight or problem.n_groups <= FEW_GROUPS) else (ALL,)
    every = [Kind(MOVE, ALL, 0), Kind(SWAP, ALL, 0), Kind(BALL), Kind(STRETCH)]
    for k, level in enumerate(levels[1:], 1):
        for part in parts:
            every.append(Kind(MOVE, part, k))
            if level.n_clusters > 2:
                every.append(Kind(SWAP, part, k))
    every += [Kind(kind, part) for kind in (STRETCH, BALL) for part in parts[1:]]
    if borrows and problem.discipline == "stream":
        every.append(Kind(WINDOW))
    return every + shifts


def needs_hosts(decisions: Decisions) -> bool:
    """Whether what is kept for the whole step leaves too little room on a machine's accelerators, or it has but one."""
    devices = decisions.problem.machine.devices
    pools = {int(decisions.pool_of[d]) for d, device in enumerate(devices) if not device.is_host}
    kept = int(decisions.bytes.min(axis=1, initial=MAX_BYTES).sum())
    return len(pools) < 2 or kept > ROOMY * int(decisions.capacity[sorted(pools)].sum())


def neighbours(ties: Ties, groups: int) -> tuple[Longs, Longs]:
    """CSR by group of the groups it is tied to."""
    one = np.concatenate([ties.one, ties.other])
    other = np.concatenate([ties.other, ties.one])
    start = np.zeros(groups + 1, np.int64)
    np.cumsum(np.bincount(one, minlength=groups), out=start[1:])
    return start, other[np.argsort(one, kind="stable")]

"""Balance: multilevel annealing of `max_load`, valued by increments.

Each round joins groups along heavy edges, anneals the few large clusters hot, and then every finer level cooler, down
to single groups. Three rounds of four join only groups that are together already, which refines what was found; the
fourth joins freely, which changes it as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.levels import Level, Ties, coarser, singles
from placewright.problem import Problem
from placewright.relief import Row
from placewright.sim.load_moves import FORBIDDEN
from placewright.sim.load_search import LoadAnnealer, Schedule, contract, run_side_by_side
from placewright.sim.lower import Lowered


@dataclass
class _Chain:
    rng: np.random.Generator
    row: Row


class Balance:
    """Chains of annealing; `round` advances each and gives their rows."""

    chains = 2
    steps_per_level = 20_000
    steps_per_cluster = 200

    def __init__(self, problem: Problem, lowered: Lowered, ties: Ties, rng: np.random.Generator) -> None:
        self.problem, self.lowered, self.ties = problem, lowered, ties
        self.valued = 0
        """Placements valued by increments so far."""
        self._chains = [_Chain(r, np.zeros(0, np.int64)) for r in rng.spawn(self.chains)]
        self._rounds = 0

    def begin(self, rows: list[Row]) -> None:
        """Where the chains begin: the best rows, best first."""
        for k, chain in enumerate(self._chains):
            chain.row = rows[min(k, len(rows) - 1)].copy()

    def round(self, most_steps: float = np.inf) -> list[Row]:
        """One round of every chain, from coarse to fine; no more placements are valued than allowed."""
        free = self._rounds % 4 == 3
        self._rounds += 1
        plans = [self._levels(chain, free) for chain in self._chains]
        deepest = max(len(plan) for plan in plans)
        left = most_steps
        for depth in range(deepest):
            jobs, who = [], []
            for chain, plan in zip(self._chains, plans, strict=True):
                k = depth - (deepest - len(plan))
                if k < 0:
                    continue
                level = plan[k]
                steps = int(min(self.steps_per_level + self.steps_per_cluster * level.n_clusters, left))
                left -= steps
                if steps < 1:
                    continue
                last, first = k == len(plan) - 1, k == 0
                schedule = Schedule(steps, 0.1 if first else 0.03, 1e-5 if last else 1e-4, 4 if not last else 5)
                units = contract(self.problem, self.lowered, level.label)
                places = _of_clusters(level, chain.row, units.cost_ps)
                annealer = LoadAnnealer(units, int(chain.rng.integers(1 << 62)))
                jobs.append((annealer, places, schedule))
                who.append((chain, level))
            found = run_side_by_side(jobs) if jobs else []
            self.valued += sum(annealer.valued for annealer, _, _ in jobs)
            for (value, places), (chain, level) in zip(found, who, strict=True):
                if value != FORBIDDEN:
                    chain.row = places[level.label]
        return [chain.row.copy() for chain in self._chains]

    def restart(self, row: Row) -> None:
        """Let every chain go on from one row."""
        for chain in self._chains:
            chain.row = row.copy()

    def _levels(self, chain: _Chain, free: bool) -> list[Level]:
        devices = self.problem.n_devices
        fewest = int(chain.rng.integers(devices, 4 * devices + 1))
        levels = coarser(self.problem, self.ties, chain.rng, fewest, None if free else chain.row)
        if len(levels) > 6:  # every other one of many
            levels = levels[-1::-2][::-1]
        return [*levels[::-1], singles(self.problem)]


def _of_clusters(level: Level, row: Row, cost_ps: np.ndarray) -> Row:
    """The device of every cluster: that of its last group, or the first that it may use."""
    places = np.zeros(level.n_clusters, np.int64)
    places[level.label] = row
    barred = cost_ps[np.arange(level.n_clusters), places] == FORBIDDEN
    places[barred] = (cost_ps[barred] == FORBIDDEN).argmin(axis=1)
    return places

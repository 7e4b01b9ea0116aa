"""Brute force: every placement of a tiny problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.errors import InputError, ProblemError
from placewright.evaluate import Evaluation
from placewright.placement import Placement
from placewright.problem import Problem
from placewright.search import Placer


@dataclass(frozen=True)
class BruteForceParams:
    """What brute force may take on."""

    most: int = 1_000_000
    """Placements to try at most; a larger problem is refused."""
    batch: int = 4096
    """Placements per batch."""

    def __post_init__(self) -> None:
        for name in ("most", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; 1 or more is allowed")


def _count(options: list[NDArray[np.int64]]) -> str:
    """The number of placements in words, however large."""
    exponent = sum(math.log10(len(row)) for row in options)
    return f"{10**exponent:,.0f}" if exponent < 9 else f"about 10^{exponent:.0f}"


class BruteForce(Placer):
    """Every assignment of groups to the devices that they may use, in counting order, with default windows.

    The optimum is proved where a placement is no more than devices: not under `priority`, and under
    `stream` only where no persistent tensor can be borrowed, so that windows mean nothing.
    """

    name = "brute-force"

    def __init__(self, params: BruteForceParams | None = None) -> None:
        self.params = params or BruteForceParams()

    def start(self, problem: Problem, rng: np.random.Generator) -> None:
        """Count the placements; refuse too many."""
        options = [np.flatnonzero(row) for row in problem.choices]
        self._total = math.prod(len(row) for row in options)
        if self._total > self.params.most:
            raise ProblemError(
                f"brute force would try {_count(options)} placements ({problem.n_groups} groups on up to "
                f"{problem.n_devices} devices); at most {self.params.most} are allowed. Use another method."
            )
        self._problem, self._options, self._next = problem, options, 0
        self._best_s = math.inf
        self._offered = self._told = 0

    def ask(self) -> list[Placement]:
        """The next placements that keep the constraints."""
        problem = self._problem
        while self._next < self._total:
            numbers = np.arange(self._next, min(self._total, self._next + self.params.batch))
            self._next = int(numbers[-1]) + 1
            table = np.empty((len(numbers), problem.n_groups), np.int16)
            for g, row in reversed(list(enumerate(self._options))):
                numbers, digit = np.divmod(numbers, len(row))
                table[:, g] = row[digit]
            keep = np.ones(len(table), bool)
            for a, b in problem.separated:
                one, two = table[:, problem.groups[a]], table[:, problem.groups[b]]
                for d in range(problem.n_devices):
                    keep &= ~((one == d).any(axis=1) & (two == d).any(axis=1))
            batch = [Placement(problem.lift(row)) for row in table[keep]]
            self._offered += len(batch)
            if batch:
                return batch
        return []

    def tell(self, evaluations: Sequence[Evaluation]) -> None:
        """Remember the best feasible value."""
        self._told += len(evaluations)
        values = (e.outcome.value_s for e in evaluations if e.outcome.feasible)
        self._best_s = min(self._best_s, min(values, default=math.inf))

    def bound_s(self) -> float | None:
        """The optimum, once all placements were tried and nothing but devices decides."""
        told_all = self._next >= self._total and self._told == self._offered
        done = told_all and math.isfinite(self._best_s)
        return self._best_s if done and self._decides_all() else None

    def _decides_all(self) -> bool:
        problem = self._problem
        if problem.discipline == "ready":
            return True
        pools = {problem.machine.pool_of[d] for d in np.flatnonzero(problem.choices.any(axis=0))}
        borrowed = bool(problem.graph.persistent[problem.graph.in_tensor].any()) and len(pools) > 1
        return problem.discipline == "stream" and not borrowed

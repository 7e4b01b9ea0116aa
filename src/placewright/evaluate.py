"""Evaluators turn placements into outcomes. They count and cache, and never learn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from placewright.placement import Placement
from placewright.problem import Problem
from placewright.sim import Outcome, Simulator


@dataclass(frozen=True)
class Evaluation:
    """A placement that was asked, and its outcome."""

    placement: Placement
    outcome: Outcome


class Evaluator(ABC):
    """Turns placements of one problem into outcomes; every placement asked counts one evaluation."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.evaluations = 0

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        """The outcomes of placements that keep the problem's constraints, in their order."""
        self.problem.check_all(placements)
        self.evaluations += len(placements)
        outcomes = self.outcomes(placements)
        return [Evaluation(placement, outcome) for placement, outcome in zip(placements, outcomes, strict=True)]

    @abstractmethod
    def outcomes(self, placements: Sequence[Placement]) -> list[Outcome]:
        """The outcomes of placements that were checked and counted."""


class SimulatorEvaluator(Evaluator):
    """Simulates on all cores, and remembers the latest outcomes in about `remember_bytes`."""

    def __init__(self, problem: Problem, threads: int | None = None, remember_bytes: int = 256 << 20) -> None:
        super().__init__(problem)
        self.simulator = Simulator(problem, threads)
        # An outcome holds a few numbers per pool, device and channel, each some 40 bytes, and a fixed part.
        machine = problem.machine
        each = 600 + 40 * (2 * len(machine.pools) + 2 * len(machine.devices) + len(machine.channels))
        self.remember = max(1, remember_bytes // each)
        self.simulated = 0
        self._cache: OrderedDict[bytes, Outcome] = OrderedDict()

    def outcomes(self, placements: Sequence[Placement]) -> list[Outcome]:
        """From the cache, or simulated; equal placements of one batch are simulated once."""
        keys = [placement.key for placement in placements]
        new = {key: p for key, p in zip(keys, placements, strict=True) if key not in self._cache}
        fresh = dict(zip(new, self.simulator.simulate(list(new.values()), checked=True), strict=True))
        self.simulated += len(fresh)
        found = [fresh[key] if key in fresh else self._cache[key] for key in keys]
        self._cache.update(fresh)
        while len(self._cache) > self.remember:
            self._cache.popitem(last=False)
        return found

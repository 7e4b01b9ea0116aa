"""Placers that need no thought: one device, round robin, and random. They are what others must beat."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from placewright.errors import InfeasibleError, InputError, PlacementError
from placewright.evaluate import Evaluation
from placewright.placement import Placement
from placewright.problem import Problem
from placewright.search import Placer


class OneShot(Placer):
    """A placer that asks once and learns nothing."""

    def start(self, problem: Problem, rng: np.random.Generator) -> None:
        """Make the one placement."""
        self._batch = [problem.placement(problem.lift(self.groups(problem)))]

    @abstractmethod
    def groups(self, problem: Problem) -> NDArray[np.int64]:
        """The device of every group."""

    def ask(self) -> list[Placement]:
        """The one placement, once."""
        batch, self._batch = self._batch, []
        return batch

    def tell(self, evaluations: Sequence[Evaluation]) -> None:
        """Nothing to learn."""


class Single(OneShot):
    """Everything on one device; a group that cannot be there goes where it is fastest."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.name = f"single:{device}"  # type: ignore[misc]  # one name per device

    def groups(self, problem: Problem) -> NDArray[np.int64]:
        """The device where it is allowed, else the fastest."""
        here = problem.machine.device(self.device)
        return np.where(problem.choices[:, here], here, fastest(problem))


class RoundRobin(OneShot):
    """Groups to devices in turn, in program order; a device that a group may not use is passed over."""

    name = "round-robin"

    def groups(self, problem: Problem) -> NDArray[np.int64]:
        """Each group's next allowed device, going round."""
        chosen = np.empty(problem.n_groups, np.int64)
        turn = 0
        for g, allowed in enumerate(problem.choices):
            while not allowed[turn % problem.n_devices]:
                turn += 1
            chosen[g] = turn % problem.n_devices
            turn += 1
        return chosen


@dataclass(frozen=True)
class RandomParams:
    """How random search draws."""

    batch: int = 64
    """Placements per batch."""
    tries: int = 1000
    """Draws per placement before giving up on constraints that keep operations apart."""

    def __post_init__(self) -> None:
        for name in ("batch", "tries"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; 1 or more is allowed")


class Random(Placer):
    """Every group on a device drawn uniformly from those that it may use; never ends by itself."""

    name = "random"
    endless = True

    def __init__(self, params: RandomParams | None = None) -> None:
        self.params = params or RandomParams()

    def start(self, problem: Problem, rng: np.random.Generator) -> None:
        """Remember the problem and the generator."""
        self._problem, self._rng = problem, rng
        self._count = problem.choices.sum(axis=1)
        # allowed[g, k] is the k-th device that group g may use
        self._allowed = np.argsort(~problem.choices, axis=1, kind="stable")
        self._drawn = 0

    def ask(self) -> list[Placement]:
        """A batch of independent draws; none when constraints that keep operations apart reject too many."""
        draws = (self._draw() for _ in range(self.params.batch))
        batch = list(takewhile(lambda draw: draw is not None, draws))
        if not batch and not self._drawn:
            raise InfeasibleError(
                f"{self.params.tries} random draws all broke a constraint that keeps operations apart; "
                "use a method that respects it, or relax it"
            )
        self._drawn += len(batch)
        return [draw for draw in batch if draw is not None]

    def tell(self, evaluations: Sequence[Evaluation]) -> None:
        """Nothing to learn."""

    def _draw(self) -> Placement | None:
        problem = self._problem
        for _ in range(self.params.tries):
            pick = self._rng.integers(0, self._count) if problem.n_groups else np.zeros(0, np.int64)
            placement = Placement(problem.lift(self._allowed[np.arange(problem.n_groups), pick]))
            if not problem.separated or _keeps(problem, placement):
                return placement
        return None


def fastest(problem: Problem) -> NDArray[np.int64]:
    """For every group, the allowed device on which its operations take least time in all."""
    seconds = np.zeros(problem.choices.shape)
    np.add.at(seconds, problem.groups, np.where(np.isfinite(problem.costs.seconds), problem.costs.seconds, 0.0))
    best: NDArray[np.int64] = np.where(problem.choices, seconds, np.inf).argmin(axis=1)
    return best


def _keeps(problem: Problem, placement: Placement) -> bool:
    try:
        problem.check(placement)
    except PlacementError:
        return False
    return True

"""What the walking methods share, and two of them: hill climbing and tabu search over sampled neighbourhoods."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from placewright.evaluate import Evaluation
from placewright.heuristics.neighbours import MoveParams, Neighbourhood, Rows, check_ranges
from placewright.placement import Placement
from placewright.problem import Problem
from placewright.search import Placer
from placewright.sim import Outcome


class LocalSearch(Placer):
    """A method that walks: it begins at a start, then asks for neighbours and learns from their outcomes.

    It never ends by itself, but where nothing can move or every neighbour drawn breaks a separation.
    """

    endless: ClassVar[bool] = True
    start_at: str
    moves: MoveParams

    def start(self, problem: Problem, rng: np.random.Generator) -> None:
        """Draw the starts."""
        self._problem, self.rng = problem, rng
        self.near = Neighbourhood(problem, rng, self.moves)
        self._rows = self.near.starts(self.start_at)
        self._begun = False

    def ask(self) -> list[Placement]:
        """The starts, then batch after batch of neighbours."""
        if self._begun:
            if not len(self.near.free):
                return []
            self._rows = self.propose()
        return [Placement(row) for row in self._rows[:, self._problem.groups]]

    def tell(self, evaluations: Sequence[Evaluation]) -> None:
        """Choose where to begin, or where to go."""
        if not evaluations:
            return
        outcomes = [evaluation.outcome for evaluation in evaluations]
        if self._begun:
            self.learn(self._rows[: len(outcomes)], outcomes)
        else:
            self._begun = True
            self.begin(self._rows[: len(outcomes)], outcomes)

    @abstractmethod
    def begin(self, rows: Rows, outcomes: Sequence[Outcome]) -> None:
        """Take up the starts."""

    @abstractmethod
    def propose(self) -> Rows:
        """The next batch."""

    @abstractmethod
    def learn(self, rows: Rows, outcomes: Sequence[Outcome]) -> None:
        """Move on, given the outcomes of the last batch or of its first part."""


def best_of(outcomes: Sequence[Outcome]) -> int:
    """Which outcome is the best; the first of equals."""
    return min(range(len(outcomes)), key=lambda k: outcomes[k].rank)


@dataclass(frozen=True)
class HillClimbingParams:
    """How hill climbing goes."""

    start: str = "best-single"
    """Where the first climb begins: `best-single` device, or `random`. Later ones begin at random."""
    batch: int = 32
    """Neighbours drawn for one step."""
    patience: float = 8.0
    """A climb is stuck after this many neighbours for every move of one group, and 500, without improvement."""
    moves: MoveParams = field(default_factory=MoveParams)

    def __post_init__(self) -> None:
        check_ranges(self, {"batch": (1, 1e6), "patience": (0, 1e9)})


class HillClimbing(LocalSearch):
    """Go to the best of a batch of neighbours if it is no worse; when stuck, begin again from a random placement."""

    name = "hill-climbing"

    def __init__(self, params: HillClimbingParams | None = None) -> None:
        self.params = params or HillClimbingParams()
        self.start_at, self.moves = self.params.start, self.params.moves

    def begin(self, rows: Rows, outcomes: Sequence[Outcome]) -> None:
        """Stand at the best start."""
        best = best_of(outcomes)
        self._here, self._rank = rows[best], outcomes[best].rank
        self._idle, self._fresh = 0, False
        self._patience = max(500.0, self.params.patience * float((self.near.count - 1).sum()))

    def propose(self) -> Rows:
        """Neighbours of here, or a random placement when stuck."""
        self._fresh = False
        if self._idle >= self._patience:
            row = self.near.random()
            if row is not None:
                self._fresh = True
                return row[None]
            self._idle = 0
        return self.near.draw(self._here[None], np.zeros(self.params.batch, np.int64))[0]

    def learn(self, rows: Rows, outcomes: Sequence[Outcome]) -> None:
        """Step to what is no worse: ties are steps too, since much of a placement does not show in the value."""
        best = best_of(outcomes)
        rank = outcomes[best].rank
        self._idle += len(outcomes)
        if self._fresh or rank < self._rank:
            self._idle = 0
        if self._fresh or rank <= self._rank:
            self._here, self._rank = rows[best], rank


@dataclass(frozen=True)
class TabuParams:
    """How tabu search goes."""

    start: str = "best-single"
    """Where it begins: `best-single` device, or `random`."""
    batch: int = 32
    """Neighbours drawn for one step."""
    tenure: int = 10
    """Steps for which a group may not go back to a device that it left; each time up to as many more, drawn."""
    moves: MoveParams = field(default_factory=MoveParams)

    def __post_init__(self) -> None:
        check_ranges(self, {"batch": (1, 1e6), "tenure": (0, 1e6)})


class Tabu(LocalSearch):
    """Go to the best of a batch of neighbours, worse or not, but not back for a while (Glover 1989).

    A neighbour is tabu if half or more of the groups that it moves go to a device that they left lately. One that is
    better than all so far is never tabu. Where all are tabu, the search stays.
    """

    name = "tabu"

    def __init__(self, params: TabuParams | None = None) -> None:
        self.params = params or TabuParams()
        self.start_at, self.moves = self.params.start, self.params.moves

    def begin(self, rows: Rows, outcomes: Sequence[Outcome]) -> None:
        """Stand at the best start."""
        best = best_of(outcomes)
        self._here, self._best = rows[best], outcomes[best].rank
        self._step = 0
        self._until = np.zeros(self._problem.choices.shape, np.int64)
        """(groups, devices): the step from which the group may be there again."""

    def propose(self) -> Rows:
        """Neighbours of here."""
        return self.near.draw(self._here[None], np.zeros(self.params.batch, np.int64))[0]

    def learn(self, rows: Rows, outcomes: Sequence[Outcome]) -> None:
        """Step to the best neighbour that is allowed, and remember what it left."""
        self._step += 1
        for k in sorted(range(len(outcomes)), key=lambda k: (outcomes[k].rank, k)):
            moved = np.flatnonzero(rows[k] != self._here)
            barred = self._until[moved, rows[k, moved]] > self._step
            if outcomes[k].rank < self._best or 2 * int(barred.sum()) < len(moved):
                self._best = min(self._best, outcomes[k].rank)
                until = self._step + self.params.tenure + int(self.rng.integers(0, self.params.tenure + 1))
                self._until[moved, self._here[moved]] = until
                self._here = rows[k]
                return

"""A genetic algorithm over the devices of the groups, in program order (Holland 1975)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from placewright.errors import InputError
from placewright.heuristics.local_search import LocalSearch
from placewright.heuristics.neighbours import MoveParams, Rank, Rows, check_ranges
from placewright.sim import Outcome


@dataclass(frozen=True)
class GeneticParams:
    """How the population breeds."""

    start: str = "best-single"
    """The first generation: the single devices and moves away from the best of them, or all `random`."""
    population: int = 48
    """Placements of a generation."""
    elite: int = 8
    """The best of a generation, all different, that live on as they are."""
    tournament: int = 3
    """Placements drawn for each parent; the best of them is it."""
    crossover: float = 0.8
    """Share of children that have two parents; the others have one."""
    one_point: float = 0.5
    """Share of crossovers that cut program order once; the others draw every group from either parent."""
    mutation: float = 0.7
    """The chance of a child to be moved, and of being moved once more after every move."""
    moves: MoveParams = field(default_factory=MoveParams)

    def __post_init__(self) -> None:
        whole = {"population": (2, 1e6), "elite": (1, 1e6), "tournament": (1, 1e6)}
        check_ranges(self, {**whole, "crossover": (0, 1), "one_point": (0, 1), "mutation": (0, 0.99)})
        if self.elite >= self.population:
            raise InputError(f"elite is {self.elite}; less than the population, {self.population}, is allowed")


class Genetic(LocalSearch):
    """Generation after generation: parents by tournament, crossover, mutation by moves; the elite lives on.

    A child that breaks a separation is its first parent, moved.
    """

    name = "genetic"

    def __init__(self, params: GeneticParams | None = None) -> None:
        self.params = params or GeneticParams()
        self.start_at, self.moves = self.params.start, self.params.moves

    def begin(self, rows: Rows, outcomes: Sequence[Outcome]) -> None:
        """The starts are the first that can be parents."""
        self._generation, self._ranks = rows, [outcome.rank for outcome in outcomes]
        self._alive, self._alive_ranks = self._survivors(rows, self._ranks)
        self._first = True

    def propose(self) -> Rows:
        """The next children."""
        count = self.params.population - len(self._alive)
        if self._first and self.start_at == "random":
            drawn = [self.near.random() for _ in range(count)]
            return np.array([self._alive[0] if row is None else row for row in drawn], np.int16)
        if self._first:
            return self._mutated(np.repeat(self._alive[:1], count, axis=0), at_least=True)
        return self._mutated(self._bred(count), at_least=False)

    def learn(self, rows: Rows, outcomes: Sequence[Outcome]) -> None:
        """The elite and its children are the next generation."""
        self._first = False
        self._generation = np.concatenate([self._alive, rows])
        self._ranks = [*self._alive_ranks, *(outcome.rank for outcome in outcomes)]
        self._alive, self._alive_ranks = self._survivors(self._generation, self._ranks)

    def _survivors(self, rows: Rows, ranks: Sequence[Rank]) -> tuple[Rows, list[Rank]]:
        """The elite: the best rows, each once; the older of equals first."""
        seen: dict[bytes, int] = {}
        for k in sorted(range(len(ranks)), key=lambda k: (ranks[k], k)):
            seen.setdefault(rows[k].tobytes(), k)
            if len(seen) == self.params.elite:
                break
        alive = list(seen.values())
        return rows[alive], [ranks[k] for k in alive]

    def _parents(self, count: int) -> NDArray[np.int64]:
        """Winners of tournaments; the first drawn of equals."""
        entered = self.rng.integers(0, len(self._ranks), (count, self.params.tournament))
        order = sorted(range(len(self._ranks)), key=lambda k: self._ranks[k])
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        winners: NDArray[np.int64] = entered[np.arange(count), place[entered].argmin(axis=1)]
        return winners

    def _bred(self, count: int) -> Rows:
        """Children before mutation."""
        one, two = self._generation[self._parents(count)], self._generation[self._parents(count)]
        length = one.shape[1]
        take = self.rng.random((count, 1)) < self.params.crossover
        cut = np.arange(length)[None] >= self.rng.integers(0, length + 1, (count, 1))
        mixed = self.rng.random((count, length), np.float32) < 0.5
        from_two = take & np.where(self.rng.random((count, 1)) < self.params.one_point, cut, mixed)
        children = np.where(from_two, two, one)
        return np.where(self.near.keeps(children)[:, None], children, one)

    def _mutated(self, rows: Rows, *, at_least: bool) -> Rows:
        """The rows after their moves: none, one or more; with `at_least`, one or more."""
        more = np.arange(len(rows)) if at_least else self._chosen(np.arange(len(rows)))
        while len(more):
            moved, parents = self.near.draw(rows, more)
            rows[parents] = moved
            more = self._chosen(more)
        return rows

    def _chosen(self, which: NDArray[np.int64]) -> NDArray[np.int64]:
        return which[self.rng.random(len(which)) < self.params.mutation]

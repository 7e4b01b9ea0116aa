"""Auto: the planner that people get by default.

1. Beginnings: one device of every kind, contiguous parts, what constructive rivals give, offloading; each is mended
   by moving bytes until it fits.
2. Where everything can be tried, everything is.
3. `max_load` is annealed over clusters of heavy edges, valued by increments.
4. Climbing by clusters of every level, stretches, exchanges and windows, until it is stopped.

docs/algorithms/auto.md says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from placewright.balance import Balance
from placewright.beginnings import Beginnings, Found, side_by_side
from placewright.climb import Climb, Pace
from placewright.decisions import Decisions
from placewright.errors import InfeasibleError, InputError
from placewright.evaluate import Evaluation
from placewright.exact.brute_force import BruteForce, BruteForceParams
from placewright.levels import Level, Ties, by_structure, coarser, mean_rates, singles, stretches
from placewright.neighbourhood import Neighbourhood, State
from placewright.placement import Placement
from placewright.problem import Problem
from placewright.relief import MODES, Roles, Row
from placewright.search import Placer
from placewright.sim import Outcome
from placewright.sim.lower import lower

Batches = Generator[list[State], Sequence[Outcome], None]


@dataclass(frozen=True)
class AutoParams:
    """What the default planner may do."""

    enumerate_most: int = 20_000
    """Where no more placements than these exist, all are tried."""
    balance_rounds: int = 6
    """Rounds of annealing of `max_load` between two batches of climbing."""

    def __post_init__(self) -> None:
        if self.enumerate_most < 0:
            raise InputError(f"enumerate_most is {self.enumerate_most}; 0 or more is allowed")
        if self.balance_rounds < 1:
            raise InputError(f"balance_rounds is {self.balance_rounds}; 1 or more is allowed")


class Auto(Placer):
    """Multilevel search from the best constructive placements; never ends by itself unless it tried everything."""

    name = "auto"
    endless: ClassVar[bool] = True

    def __init__(self, params: AutoParams | None = None) -> None:
        self.params = params or AutoParams()

    def start(self, problem: Problem, rng: np.random.Generator) -> None:
        """Nothing but the cheapest beginnings, so that the first answer is early."""
        self._problem, self._rng = problem, rng
        self._decisions = Decisions(problem)
        self._roles = Roles(problem)
        self._told: list[Evaluation] | None = None
        self._best: tuple[Row, Outcome] | None = None
        self._proved: float | None = None
        self._search = self._batches()
        self._begun = False
        self.own_evaluations = 0

    def ask(self) -> list[Placement]:
        """The next batch."""
        try:
            if not self._begun:
                self._begun = True
                states = next(self._search)
            else:
                states = self._search.send([e.outcome for e in self._told or []])
        except StopIteration:
            return []
        return [self._placement(state) for state in states]

    def tell(self, evaluations: Sequence[Evaluation]) -> None:
        """Keep the outcomes for the next batch."""
        self._told = list(evaluations)

    def bound_s(self) -> float | None:
        """The optimum, where everything was tried."""
        return self._proved

    # ---- the search ----------------------------------------------------------------------------------

    def _batches(self) -> Batches:
        problem = self._problem
        if not problem.n_groups:
            yield [State(np.zeros(0, np.int64))]
            return
        levels = self._levels()
        beginnings = Beginnings(self._decisions, self._roles, levels)
        found = yield from self._begin(beginnings)
        if self._few():
            yield from self._everything()
            if self._proved is not None:
                return
        ties = Ties.of(problem)
        levels += coarser(problem, ties, self._rng, 2 * problem.n_devices)[:12]
        climb = Climb(
            Neighbourhood(self._decisions, self._roles, levels, ties), Pace.of(problem.n_ops), self._rng
        )
        climb.seed([(State(row), outcome) for row, outcome in found])
        if problem.objective == "max_load" and not problem.separated:
            yield from self._balance(climb, ties, found)
        while True:
            yield from self._climb(climb)

    def _climb(self, climb: Climb) -> Batches:
        climb.learn((yield from self._asked(climb.propose())))

    def _asked(self, states: Sequence[State]) -> Generator[list[State], Sequence[Outcome], list[Outcome]]:
        """Ask what keeps operations apart that must be, and answer for the rest."""
        legal = [self._keeps(state) for state in states]
        told = iter((yield [s for s, ok in zip(states, legal, strict=True) if ok]) if any(legal) else [])
        return [next(told, NOTHING) if ok else NOTHING for ok in legal]

    def _begin(self, beginnings: Beginnings) -> Generator[list[State], Sequence[Outcome], Found]:
        """Beginnings, from the cheapest to the dearest."""
        found: Found = []
        yield from self._attempts(beginnings.first(), found)
        singles_ = list(found)
        if problem_of_memory(singles_):
            for row, outcome in singles_:
                if outcome.reason == "memory":
                    yield from self._attempts(beginnings.mended(row, MODES), found)
        if self._problem.n_devices > 1:
            yield from self._attempts(list(beginnings.fills()), found)
            if problem_of_memory(singles_):
                for device in beginnings.distinct():
                    yield from self._attempts(list(beginnings.offloads(device)), found)
            for attempt in beginnings.of_methods(self._methods()):
                yield from self._attempts([attempt], found)
        return found

    def _attempts(self, attempts: list, found: Found) -> Batches:
        running = side_by_side(attempts)
        outcomes: Sequence[Outcome] | None = None
        while True:
            try:
                rows = next(running) if outcomes is None else running.send(outcomes)
            except StopIteration as end:
                found += end.value
                return
            outcomes = yield from self._asked([State(row) for row in rows])

    def _methods(self) -> list[Callable[[], Row]]:
        return []

    def _balance(self, climb: Climb, ties: Ties, found: Found) -> Batches:
        ranked = sorted(found, key=lambda pair: pair[1].rank)
        balance = Balance(self._problem, lower(self._problem), ties, self._rng)
        balance.begin([row for row, _ in ranked])
        turn = 0
        while True:
            before = balance.valued
            rows = balance.round(max(0.0, self.left - Balance.chains))
            self.own_evaluations += balance.valued - before
            outcomes = yield [State(row) for row in rows]
            for row, outcome in zip(rows, outcomes, strict=False):
                climb.offer(State(row), outcome)
            turn += 1
            if turn % 4 == 0 and climb.best is not None:
                balance.restart(climb.best.state.row)
            if turn % self.params.balance_rounds == 0:
                yield from self._climb(climb)

    # ---- helpers -------------------------------------------------------------------------------------

    def _levels(self) -> list[Level]:
        return [singles(self._problem), *by_structure(self._problem), *stretches(self._problem, (4, 16, 64, 256))]

    def _few(self) -> bool:
        count = self._problem.choices.sum(axis=1).astype(np.float64)
        return float(np.log(count).sum()) <= math.log(max(1, self.params.enumerate_most))

    def _everything(self) -> Batches:
        """All placements, by brute force; proves the optimum where devices alone decide."""
        force = BruteForce(BruteForceParams(most=max(1, self.params.enumerate_most), batch=1024))
        force.start(self._problem, self._rng)
        while placements := force.ask():
            rows = [p.devices[self._problem.leaders].astype(np.int64) for p in placements]
            outcomes = yield [State(row) for row in rows]
            force.tell([Evaluation(p, o) for p, o in zip(placements, outcomes, strict=False)])
        self._proved = force.bound_s()

    def _placement(self, state: State) -> Placement:
        problem = self._problem
        priorities = self._priorities(state.priorities) if problem.discipline == "priority" else None
        windows = None if state.windows is None else np.array(state.windows, np.int64)
        return Placement(problem.lift(state.row), priorities, windows)

    def _priorities(self, rule: int) -> np.ndarray:
        """Longest time to the end of the step; rules above 0 disturb it."""
        rank = self._upward
        if rule:
            rank = rank * np.random.default_rng(rule).uniform(0.8, 1.2, len(rank))
        return rank

    @cached_property
    def _upward(self) -> np.ndarray:
        return upward_rank(self._problem)

    def _keeps(self, state: State) -> bool:
        """Whether operations that must be apart are."""
        problem = self._problem
        devices = state.row[problem.groups] if problem.separated else None
        return devices is None or not any(
            np.intersect1d(devices[a], devices[b]).size for a, b in problem.separated
        )


NOTHING = Outcome(None, "cost", (), (), (), (), ())
"""The outcome of what was not asked."""


def problem_of_memory(found: Found) -> bool:
    """Whether one device of some kind is too small."""
    return any(outcome.reason == "memory" for _, outcome in found)


def upward_rank(problem: Problem) -> np.ndarray:
    """The longest time from each operation to the end, at mean costs and rates."""
    graph = problem.graph
    finite = np.isfinite(problem.costs.seconds)
    seconds = np.where(finite, problem.costs.seconds, 0.0).sum(axis=1) / np.maximum(1, finite.sum(axis=1))
    latency, per_byte = mean_rates(problem)
    moves = np.where(
        np.isnan(graph.tensor_transfer_s), latency + graph.tensor_bytes * per_byte, graph.tensor_transfer_s
    )
    rank = seconds.tolist()
    makers, move = graph.tensor_op[graph.in_tensor].tolist(), moves[graph.in_tensor].tolist()
    starts, after_start, after = graph.in_start.tolist(), graph.after_start.tolist(), graph.after_op.tolist()
    tail = [0.0] * len(rank)
    for i in range(len(rank) - 1, -1, -1):
        rank[i] += tail[i]
        for e in range(starts[i], starts[i + 1]):
            tail[makers[e]] = max(tail[makers[e]], move[e] + rank[i])
        for e in range(after_start[i], after_start[i + 1]):
            tail[after[e]] = max(tail[after[e]], rank[i])
    return np.array(rank)


__all__ = ["Auto", "AutoParams", "InfeasibleError"]

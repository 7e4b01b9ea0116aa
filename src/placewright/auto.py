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
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import count
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from placewright.balance import Balance
from placewright.beginnings import Beginnings, Found, once, side_by_side
from placewright.costs import Costs
from placewright.decisions import Decisions
from placewright.errors import InfeasibleError, InputError, SearchError
from placewright.evaluate import Evaluation, SimulatorEvaluator
from placewright.exact.brute_force import BruteForce, BruteForceParams
from placewright.exact.contiguous import ContiguousLinear
from placewright.exact.pipedream import PipeDream
from placewright.heuristics.baechi import MEtf, MTopo
from placewright.heuristics.critical_path import SINGLE_METHODS, Mayer
from placewright.heuristics.expert import RULES, Expert, ExpertParams
from placewright.heuristics.layers import DEVICE_MAPS, Accelerate, AccelerateParams, EqualLayers
from placewright.heuristics.list_scheduling import Cpop, Etf, Heft
from placewright.heuristics.neighbours import MoveParams, Neighbourhood
from placewright.levels import Level, Ties, by_structure, coarser, mean_rates, singles, stretches
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.placement import Placement
from placewright.problem import Problem
from placewright.relief import MODES, Attempts, Roles, Row
from placewright.search import Placer
from placewright.sim import Outcome
from placewright.sim.lower import lower
from placewright.wander import Wander


@dataclass(frozen=True, eq=False)
class State:
    """What is asked: the device of every group, and streaming windows by device."""

    row: Row
    windows: tuple[int, ...] | None = None


Batches = Generator[list[State], Sequence[Outcome], None]


EXPERTS = tuple(partial(Expert, ExpertParams(paper)) for paper in RULES)
QUICK: tuple[Callable[[], Placer], ...] = (*EXPERTS, EqualLayers, Heft, MTopo)
"""Rivals to begin from on any graph."""
SLOW: tuple[Callable[[], Placer], ...] = (
    ContiguousLinear,
    *(partial(Accelerate, AccelerateParams(rule)) for rule in DEVICE_MAPS),
    MEtf,
    Etf,
    Cpop,
    PipeDream,
    *(partial(Mayer, params) for params in SINGLE_METHODS.values()),
)
"""And those to begin from where the graph is not large."""


@dataclass(frozen=True)
class AutoParams:
    """What the default planner may do."""

    enumerate_most: int = 20_000
    """Where no more placements than these exist, all are tried."""
    large: int = 20_000
    """Operations beyond which only the quickest rivals are begun from."""

    def __post_init__(self) -> None:
        for name in ("enumerate_most", "large"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; 0 or more is allowed")


class Auto(Placer):
    """Multilevel search from the best constructive placements; never ends by itself unless it tried everything."""

    name = "auto"
    endless: ClassVar[bool] = True

    def __init__(self, params: AutoParams | None = None) -> None:
        self.params = params or AutoParams()

    def prepare(self, problem: Problem) -> None:
        """Compile what annealing, walks and rivals need."""
        _compile(problem.objective, problem.discipline)

    def start(self, problem: Problem, rng: np.random.Generator) -> None:
        """Nothing but the cheapest beginnings, so that the first answer is early."""
        self._problem, self._rng = problem, rng
        self._decisions = Decisions(problem)
        self._roles = Roles(problem)
        self._told: list[Evaluation] | None = None
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
        found = yield from self._begin(Beginnings(self._decisions, self._roles, levels))
        if self._few():
            yield from self._everything(found)
            if self._proved is not None:
                return
        if not found:
            yield from self._attempts(list(self._drawn()), found)
        ranked = sorted(found, key=lambda pair: pair[1].rank)
        rows = [row for row, _ in ranked]
        ties, lowered = Ties.of(problem), lower(problem)
        levels += coarser(problem, ties, self._rng, 2 * problem.n_devices)[:12]
        tight = problem_of_memory(found)
        wander = Wander(self._decisions, lowered, levels, ties, self._rng, self._priorities, tight=tight)
        wander.begin(rows)
        balance = None
        if problem.objective == "max_load" and not problem.separated:
            balance = Balance(problem, lowered, ties, self._rng)
            balance.begin(rows)
        yield from self._refine(wander, balance)

    def _refine(self, wander: Wander, balance: Balance | None) -> Batches:
        """Walks, and for `max_load` mostly rounds of annealing by increments, without end."""
        best: tuple[Row, Outcome] | None = None
        for turn in count(1):
            states = self._balanced(balance) if balance and turn % 5 else self._wandered(wander)
            outcomes = yield states
            for state, outcome in zip(states, outcomes, strict=False):
                if best is None or outcome.rank < best[1].rank:
                    best = state.row, outcome
                    if outcome.value_ps is not None:
                        wander.offer(state.row, sum(outcome.over_bytes), outcome.value_ps)
            if balance and best and turn % 5 == 4:
                balance.restart(best[0])

    def _balanced(self, balance: Balance) -> list[State]:
        before = balance.valued
        rows = balance.round(max(0.0, self.left - Balance.chains))
        self.own_evaluations += balance.valued - before
        return [State(row) for row in rows]

    def _wandered(self, wander: Wander) -> list[State]:
        before = wander.simulated
        places = wander.go(self.left)
        self.own_evaluations += wander.simulated - before
        return [State(place.row, tuple(place.windows.tolist())) for place in places]

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

    def _attempts(self, attempts: Sequence[Attempts], found: Found) -> Batches:
        """Run attempts in step; what they gave is added to `found`."""
        running = side_by_side(attempts, self._apart)
        outcomes: Sequence[Outcome] | None = None
        while True:
            try:
                rows = next(running) if outcomes is None else running.send(outcomes)
            except StopIteration as end:
                found += end.value
                return
            outcomes = yield [State(row) for row in rows]

    def _apart(self, row: Row) -> Row | None:
        """The row, or one near it that keeps apart what must be, if settling finds any."""
        if not self._problem.separated or keeps_apart(self._problem, row):
            return row
        try:
            return self._decisions.settle(row, fit=False)
        except InfeasibleError:
            return None

    def _drawn(self) -> Iterator[Attempts]:
        """Random rows that keep apart what must be; raises where no draw does."""
        near = Neighbourhood(self._problem, self._rng, MoveParams())
        for row in near.starts("random"):
            yield once(row.astype(np.int64))

    def _methods(self) -> list[Callable[[], Row]]:
        """Constructive rivals, the most promising first; on a large graph only those that are quick there."""
        makers = [*QUICK, *(SLOW if self._problem.n_ops <= self.params.large else ())]
        return [partial(self._row_of, maker) for maker in makers]

    def _row_of(self, maker: Callable[[], Placer]) -> Row:
        placer = maker()
        placer.start(self._problem, self._rng)
        batch = placer.ask()
        if not batch:
            raise SearchError(f"{placer.name} found no placement")
        return batch[0].devices[self._problem.leaders].astype(np.int64)

    # ---- helpers -------------------------------------------------------------------------------------

    def _levels(self) -> list[Level]:
        return [singles(self._problem), *by_structure(self._problem), *stretches(self._problem, (4, 16, 64, 256))]

    def _few(self) -> bool:
        count = self._problem.choices.sum(axis=1).astype(np.float64)
        return float(np.log(count).sum()) <= math.log(max(1, self.params.enumerate_most))

    def _everything(self, found: Found) -> Batches:
        """All placements, by brute force; proves the optimum where devices alone decide."""
        force = BruteForce(BruteForceParams(most=max(1, self.params.enumerate_most), batch=1024))
        force.start(self._problem, self._rng)
        best: tuple[Row, Outcome] | None = None
        while placements := force.ask():
            rows = [p.devices[self._problem.leaders].astype(np.int64) for p in placements]
            outcomes = yield [State(row) for row in rows]
            force.tell([Evaluation(p, o) for p, o in zip(placements, outcomes, strict=False)])
            for row, outcome in zip(rows, outcomes, strict=False):
                if best is None or outcome.rank < best[1].rank:
                    best = row, outcome
        self._proved = force.bound_s()
        if best is not None:
            found.append(best)

    def _placement(self, state: State) -> Placement:
        problem = self._problem
        windows = None if state.windows is None else np.array(state.windows, np.int64)
        return Placement(problem.lift(state.row), self._priorities, windows)

    @cached_property
    def _priorities(self) -> NDArray[np.float64] | None:
        """Under `priority`, the longest time to the end of the step."""
        return upward_rank(self._problem) if self._problem.discipline == "priority" else None


def keeps_apart(problem: Problem, row: Row) -> bool:
    """Whether operations that must be apart are."""
    devices = row[problem.groups]
    return not any(np.intersect1d(devices[a], devices[b]).size for a, b in problem.separated)


def problem_of_memory(found: Found) -> bool:
    """Whether one device of some kind is too small."""
    return any(outcome.reason == "memory" for _, outcome in found)


def upward_rank(problem: Problem) -> NDArray[np.float64]:
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


@cache
def _compile(objective: str, discipline: str) -> None:
    """Search a problem of a few operations, once per process; what that compiles is kept on disk."""
    operations = [
        Operation("w", phase="parameter", outputs=[Tensor(4)]),
        Operation("x", phase="input", outputs=[Tensor(4)]),
        Operation("a", "matmul", inputs=["x", "w"], outputs=[Tensor(4)]),
        Operation("b", "matmul", inputs=["a"], outputs=[Tensor(4, output=True)]),
    ]
    machine = Machine(
        "two",
        tuple(Device(name, name, name, "cpu:0") for name in ("cpu:0", "gpu:0")),
        tuple(Pool(name, 1 << 20) for name in ("cpu:0", "gpu:0")),
        (Channel("there", 1e9), Channel("back", 1e9)),
        (Route("cpu:0", "gpu:0", ("there",)), Route("gpu:0", "cpu:0", ("back",))),
    )
    seconds = np.array([[0.0, 0.0], [0.0, 0.0], [1e-3, 1e-3], [1e-3, 1e-3]])
    graph = build_graph("tiny", operations)
    tiny = Problem(graph, machine, Costs.given(seconds), objective=objective, discipline=discipline)
    placer, evaluator = Auto(AutoParams(enumerate_most=0)), SimulatorEvaluator(tiny, threads=1)
    placer.start(tiny, np.random.default_rng(0))
    placer.left = 100.0
    for _ in range(200):
        placements = placer.ask()
        placer.tell(evaluator.evaluate(placements))
        if placer.own_evaluations > 400 or not placements:
            return

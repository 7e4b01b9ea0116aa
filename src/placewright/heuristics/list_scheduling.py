"""List scheduling: HEFT and CPOP (Topcuoglu, Hariri and Wu 2002) and ETF (Hwang, Chow, Anger and Lee 1989).

On a problem, where groups of operations are decided by their first; and on plain tables of costs, as in textbooks.
The rules, and where they go beyond the sources, are on docs/algorithms/list-scheduling.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placewright.decisions import Decisions
from placewright.errors import InfeasibleError, InputError, UnknownNameError
from placewright.evaluate import Evaluation
from placewright.graph import Floats, Longs
from placewright.heuristics.list_lowering import Units, lower_tasks
from placewright.placement import Placement
from placewright.problem import Problem
from placewright.search import Placer
from placewright.sim.list_tasks import BY_ROUTE, DONE, PASSIVE, State, Tasks, make_state
from placewright.sim.lower import PICO


@dataclass(frozen=True, eq=False)
class Schedule:
    """Where every operation runs and when, without contention on channels. Times are as given, or picoseconds."""

    devices: Longs
    start: Floats
    finish: Floats
    priorities: Floats
    """The rank by which operations were taken: larger first."""
    group_devices: Longs

    @property
    def makespan(self) -> float:
        """The end of the last operation."""
        return float(self.finish.max(initial=0.0))


# The methods on lowered tasks -------------------------------------------------------------------------------------


def _ranks(t: Tasks, moves: bool) -> tuple[Floats, Floats]:
    """The longest path from each operation to the end, itself included, and from the beginning to it."""
    from placewright.sim import list_entries

    up, down = np.zeros(len(t.kind)), np.zeros(len(t.kind))
    list_entries.ranks(t, int(moves), up, down)
    return up, down


def _heft(t: Tasks, w: State) -> tuple[int, Floats]:
    """Operations by falling upward rank, ties by index, each on the device where it ends first."""
    from placewright.sim import list_entries

    up = _ranks(t, moves=True)[0]
    order = np.lexsort((np.arange(len(up)), -up)).astype(np.int64)
    return list_entries.heft(t, w, order), up


def _cpop(t: Tasks, w: State) -> tuple[int, Floats]:
    """The critical path on the one device that runs it fastest; others where they end first."""
    from placewright.sim import list_entries

    up, down = _ranks(t, moves=True)
    path = critical_path(t, up + down)
    on_path = np.zeros(len(up), np.uint8)
    on_path[path] = 1
    allowed = t.choices[t.group[path]] != 0
    sums = np.where(allowed, t.cost[path], 0.0).sum(axis=0)
    device = int(np.lexsort((sums, -allowed.sum(axis=0)))[0])
    return list_entries.cpop(t, w, up + down, on_path, device), up + down


def critical_path(t: Tasks, length: Floats) -> NDArray[np.int64]:
    """The path through the largest `length`, an operation's longest path from beginning to end; ties by index."""
    path: list[int] = []
    entries = np.flatnonzero((np.diff(t.in_start) == 0) | (t.kind == PASSIVE))
    following: NDArray[Any] = entries
    while len(following):
        path.append(int(following[length[following].argmax()]))
        following = np.unique(t.out_op[t.out_start[path[-1]] : t.out_start[path[-1] + 1]])
    return np.array(path, np.int64)


def _etf(t: Tasks, w: State) -> tuple[int, Floats]:
    """Always the ready operation that can start first, ties by the longest computation that follows."""
    from placewright.sim import list_entries

    level = _ranks(t, moves=False)[0]
    return list_entries.greedy(t, w, level, np.zeros(len(level), np.int64)), level


METHODS: dict[str, Callable[[Tasks, State], tuple[int, Floats]]] = {"heft": _heft, "cpop": _cpop, "etf": _etf}


def run_method(t: Tasks, method: str) -> tuple[int, Schedule]:
    """The group that no device was left for, or DONE, and the schedule."""
    if method not in METHODS:
        raise UnknownNameError("list-scheduling method", method, METHODS)
    w = make_state(t, greedy=method == "etf")
    stuck, priorities = METHODS[method](t, w)
    devices = w.decided.astype(np.int64)
    return int(stuck), Schedule(devices[t.group], w.start, w.finish, priorities, devices)


# On problems ------------------------------------------------------------------------------------------------------


def schedule(problem: Problem, method: str) -> Schedule:
    """A schedule of a problem by `heft`, `cpop` or `etf`, in picoseconds."""
    units = Units.groups(problem)
    return schedule_units(problem, method, units, lower_tasks(problem, units))


def schedule_units(problem: Problem, method: str, units: Units, tasks: Tasks) -> Schedule:
    """A schedule of lowered tasks; where persistent bytes overflow, its devices are settled anew and its times are not.

    `group_devices` are of the problem's groups.
    """
    stuck, made = run_method(tasks, method)
    decisions = Decisions(problem)
    if stuck != DONE:
        raise decisions.assignment().stuck(int(np.flatnonzero(units.of == stuck)[0]))
    devices = fitted(decisions, made.group_devices[units.of])
    return replace(made, devices=devices[problem.groups], group_devices=devices)


def fitted(decisions: Decisions, wanted: Longs) -> Longs:
    """The wanted devices of groups; where a pool overflows, those of `Decisions.settle` if they overflow less."""
    before = overflow(decisions, wanted)
    if before:
        try:
            settled = decisions.settle(wanted)
        except InfeasibleError:  # what is to be kept apart is in its way
            return wanted
        return settled if overflow(decisions, settled) < before else wanted
    return wanted


def overflow(decisions: Decisions, devices: Longs) -> int:
    """Persistent bytes beyond the pools."""
    pools = decisions.pool_of[devices]
    used = np.zeros(len(decisions.capacity), np.int64)
    np.add.at(used, pools, decisions.bytes[np.arange(len(devices)), pools])
    return int(np.maximum(used - decisions.capacity, 0).sum())


@dataclass(frozen=True)
class ListParams:
    """How often list scheduling tries to fit."""

    tries: int = 16
    """Placements at most: while one needs more memory than there is, the next plans with so much less."""

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise InputError(f"tries is {self.tries}; 1 or more is allowed")


class ListPlacer(Placer):
    """A placement, and others that plan with less memory while what was asked needs too much of it.

    List scheduling counts no received copies, so a placement that it thinks to fit may not.
    """

    params: ListParams

    def start(self, problem: Problem, rng: np.random.Generator) -> None:
        """Make the first placement."""
        self._problem, self._tries = problem, self.params.tries
        self._capacity = Decisions(problem).capacity
        self.lower(problem)
        self._batch = [self._placement()]

    def ask(self) -> list[Placement]:
        """The next placement; none when one fitted, or nothing else came out."""
        batch, self._batch = self._batch, []
        return batch

    def tell(self, evaluations: Sequence[Evaluation]) -> None:
        """Plan with less where too much memory was needed: by what was over, or twice that, and so on."""
        self._tries -= 1
        for evaluation in evaluations:
            if evaluation.outcome.reason == "memory" and self._tries:
                self._batch = self._others(evaluation.placement, np.array(evaluation.outcome.over_bytes, np.int64))

    def _others(self, placement: Placement, over: Longs) -> list[Placement]:
        """The first other placement that comes of planning with less; none if none does."""
        while ((over > 0) & (self._capacity >= 0)).any():
            self._capacity = self._capacity - over
            over = 2 * over
            try:
                other = self._placement()
            except InfeasibleError:  # with less memory, what is kept apart took every device of another
                return []
            if other != placement:
                return [other]
        return []

    def _placement(self) -> Placement:
        made = self.schedule(self._capacity)
        ranked = made.priorities / PICO if self._problem.discipline == "priority" else None
        return self._problem.placement(made.devices, ranked)

    @abstractmethod
    def lower(self, problem: Problem) -> None:
        """What does not depend on memory."""

    @abstractmethod
    def schedule(self, capacity: Longs) -> Schedule:
        """The schedule with so many bytes in every pool."""


class ListScheduler(ListPlacer):
    """One of the methods above, over the problem's own groups."""

    def __init__(self, params: ListParams | None = None) -> None:
        self.params = params or ListParams()

    def lower(self, problem: Problem) -> None:
        """Lower the problem."""
        self._units = Units.groups(problem)
        self._tasks = lower_tasks(problem, self._units)

    def schedule(self, capacity: Longs) -> Schedule:
        """By the method of its name."""
        return schedule_units(self._problem, self.name, self._units, self._tasks._replace(capacity=capacity))


class Heft(ListScheduler):
    """Heterogeneous earliest finish time: by falling upward rank, each operation where it ends first."""

    name = "heft"


class Cpop(ListScheduler):
    """Critical path on a processor: the critical path on the device that runs it fastest."""

    name = "cpop"


class Etf(ListScheduler):
    """Earliest task first: always the operation that can start first."""

    name = "etf"


def heft_devices(problem: Problem) -> NDArray[np.int64]:
    """The device of every group, by HEFT."""
    return schedule(problem, "heft").group_devices


def cpop_devices(problem: Problem) -> NDArray[np.int64]:
    """The device of every group, by CPOP."""
    return schedule(problem, "cpop").group_devices


def etf_devices(problem: Problem) -> NDArray[np.int64]:
    """The device of every group, by ETF."""
    return schedule(problem, "etf").group_devices


# On plain tables --------------------------------------------------------------------------------------------------


def schedule_tasks(method: str, costs: ArrayLike, edges: ArrayLike, moves: ArrayLike) -> Schedule:
    """A schedule of plain tasks by `heft`, `cpop` or `etf`.

    `costs` has a row per task and a column per processor (infinite: cannot run there); `edges` are pairs of tasks,
    the earlier first; `moves` is each edge's transfer time between different processors.
    """
    tasks = plain_tasks(np.asarray(costs, np.float64), np.asarray(edges), np.asarray(moves, np.float64))
    return run_method(tasks, method)[1]


def plain_tasks(cost: Floats, edges: NDArray[Any], moves: Floats) -> Tasks:
    """Tasks that are groups of one, on processors with memories of their own and without limit."""
    if cost.ndim != 2 or not cost.shape[1] or np.isnan(cost).any() or (cost < 0).any():
        raise InputError("costs has a row of one or more non-negative numbers for each task, infinite where it cannot")
    n, devices = cost.shape
    allowed = np.isfinite(cost)
    if not allowed.any(axis=1).all():
        raise InputError(f"costs: task {int(np.flatnonzero(~allowed.any(axis=1))[0])} can run on no processor")
    edges = edges.reshape(-1, 2) if edges.size else np.zeros((0, 2), np.int64)
    if edges.dtype.kind not in "iu" or (edges < 0).any() or (edges >= n).any() or (edges[:, 0] >= edges[:, 1]).any():
        raise InputError(f"edges are pairs of tasks from 0 to {n - 1}, the earlier first; number tasks topologically")
    if moves.shape != (len(edges),) or not np.isfinite(moves).all() or (moves < 0).any():
        raise InputError(f"moves is one finite number, not negative, for each of the {len(edges)} edges")
    rows = np.arange(n + 1)
    by_reader, by_maker = np.lexsort((edges[:, 0], edges[:, 1])), np.lexsort((edges[:, 1], edges[:, 0]))
    nothing, pools = np.zeros((n, devices), np.int64), np.zeros((devices, devices))
    return Tasks(
        group=np.arange(n, dtype=np.int64),
        kind=np.zeros(n, np.int8),
        cost=np.where(allowed, cost, 0.0),
        mean=np.where(allowed, cost, 0.0).sum(axis=1) / allowed.sum(axis=1),
        in_start=np.searchsorted(edges[by_reader, 1], rows).astype(np.int64),
        in_op=edges[by_reader, 0].astype(np.int64),
        in_bytes=np.zeros(len(edges)),
        in_fixed=np.maximum(moves[by_reader], BY_ROUTE),
        in_mean=moves[by_reader],
        out_start=np.searchsorted(edges[by_maker, 0], rows).astype(np.int64),
        out_op=edges[by_maker, 1].astype(np.int64),
        pool_of=np.arange(devices, dtype=np.int64),
        route_ok=np.ones((devices, devices), np.uint8),
        latency_s=pools,
        bytes_per_s=pools + np.inf,
        choices=allowed.astype(np.uint8),
        first=allowed.astype(np.uint8),
        bytes=nothing,
        need=nothing,
        work=nothing,
        capacity=np.zeros(devices, np.int64),
        apart_start=np.zeros(n + 1, np.int64),
        apart_side=np.zeros(0, np.int64),
        member_start=np.arange(n + 1, dtype=np.int64),
        member=np.arange(n, dtype=np.int64),
        favourite=np.full(n, -1, np.int64),
    )

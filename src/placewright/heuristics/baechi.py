"""Baechi (Jeon et al., SoCC 2020): m-TOPO, m-ETF and m-SCT, list scheduling under the memory of every device.

All three place forward operations, co-placed, with their gradients, parameters and updates beside them. What is ours
is on docs/algorithms/baechi.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from placewright.decisions import Decisions
from placewright.errors import InputError
from placewright.graph import PARAMETER, Longs
from placewright.heuristics.co_placement import co_placed_units
from placewright.heuristics.favourites import FavouriteParams, favourites
from placewright.heuristics.list_lowering import Units, lower_tasks
from placewright.heuristics.list_scheduling import ListParams, ListPlacer, Schedule, fitted, schedule_units
from placewright.problem import Problem
from placewright.sim.list_tasks import Tasks
from placewright.sim.lower import PICO


@dataclass(frozen=True)
class BaechiParams(ListParams):
    """What goes together before anything is placed, and how often to try to fit."""

    share: float = 0.125
    """A chain is joined while it needs at most this share of the mean pool."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise InputError(f"share is {self.share}; 0 to 1 is allowed")


@dataclass(frozen=True)
class SctParams(BaechiParams):
    """The same, and how favourites are found."""

    favourites: FavouriteParams = field(default_factory=FavouriteParams)


class _Baechi(ListPlacer):
    """Co-placed units, and something that places them."""

    params: BaechiParams

    def lower(self, problem: Problem) -> None:
        """Join what goes together."""
        self._units = co_placed_units(problem, self.params.share)
        self._tasks = lower_tasks(problem, self._units)

    def schedule(self, capacity: Longs) -> Schedule:
        """Always the operation that can start first and fits."""
        return schedule_units(self._problem, "etf", self._units, self._tasks._replace(capacity=capacity))


class MTopo(_Baechi):
    """Devices filled one after the other, in topological order, each up to an equal share of all that is needed."""

    name = "m-topo"

    def __init__(self, params: BaechiParams | None = None) -> None:
        self.params = params or BaechiParams()

    def schedule(self, capacity: Longs) -> Schedule:
        """On the device in turn while its load stays within the cap; there are no times, and ranks are in order.

        The cap is what all units need, divided by the devices, and the most that one needs.
        """
        units, need = self._units, self._tasks.need.max(axis=1, initial=0)
        devices = np.flatnonzero(units.first.any(axis=0)).tolist()
        cap = need.sum() // max(1, len(devices)) + need.max(initial=0)
        filling = _Filling(self._problem, units, self._tasks._replace(capacity=capacity))
        load = np.zeros(self._problem.n_devices, np.int64)
        turn, of_unit = 0, np.zeros(len(need), np.int64)
        for u in topological(self._problem, units).tolist():
            while turn < len(devices) - 1 and load[devices[turn]] + need[u] > cap:
                turn += 1
            of_unit[u] = filling.put(u, devices[turn:] + devices[:turn])
            load[of_unit[u]] += need[u]
        chosen = fitted(Decisions(self._problem), of_unit[units.of])
        nothing = np.zeros(self._problem.n_ops)
        ranks = -PICO * np.arange(self._problem.n_ops, dtype=np.float64)
        return Schedule(chosen[self._problem.groups], nothing, nothing, ranks, chosen)


class MEtf(_Baechi):
    """ETF over co-placed units, within memory."""

    name = "m-etf"

    def __init__(self, params: BaechiParams | None = None) -> None:
        self.params = params or BaechiParams()


class MSct(_Baechi):
    """m-ETF with devices kept free for the favourite child of their last operation."""

    name = "m-sct"
    params: SctParams

    def __init__(self, params: SctParams | None = None) -> None:
        self.params = params or SctParams()

    def lower(self, problem: Problem) -> None:
        """Join what goes together, and solve for favourites."""
        super().lower(problem)
        found = favourites(self._tasks, problem.graph.phase, self.params.favourites, self.seconds_left)
        self._tasks = self._tasks._replace(favourite=found)


def _devices(placer: ListPlacer, problem: Problem) -> NDArray[np.int64]:
    """The device of every group in the placer's first placement."""
    placer.start(problem, np.random.default_rng(0))
    return placer.ask()[0].devices[problem.leaders].astype(np.int64)


def m_topo_devices(problem: Problem) -> NDArray[np.int64]:
    """The device of every group, by m-TOPO."""
    return _devices(MTopo(), problem)


def m_etf_devices(problem: Problem) -> NDArray[np.int64]:
    """The device of every group, by m-ETF."""
    return _devices(MEtf(), problem)


def m_sct_devices(problem: Problem) -> NDArray[np.int64]:
    """The device of every group, by m-SCT."""
    return _devices(MSct(), problem)


class _Filling:
    """What is on every device so far, and where a unit may still go."""

    def __init__(self, problem: Problem, units: Units, tasks: Tasks) -> None:
        self._units, self._tasks = units, tasks
        self._assignment = Decisions(problem).assignment()
        order = np.argsort(units.of, kind="stable")
        bounds = np.searchsorted(units.of[order], np.arange(len(units.choices) + 1)).tolist()
        self._members = [order[a:b].tolist() for a, b in pairwise(bounds)]
        self._used = np.zeros_like(tasks.capacity)
        self._working = np.zeros_like(tasks.capacity)

    def put(self, unit: int, turns: list[int]) -> int:
        """Put a unit on the first of the devices that may hold it and has room; then any; then any that may."""
        members, pool_of = self._members[unit], self._tasks.pool_of
        allowed = self._units.choices[unit]
        for g in members:
            allowed = allowed & self._assignment.allowed(g)
        work = np.maximum(self._working, self._tasks.work[unit])
        room = (self._used + self._tasks.need[unit] + work <= self._tasks.capacity)[pool_of]
        others = [d for d in range(len(pool_of)) if d not in turns]
        options = [d for d in [*turns, *others] if allowed[d]]
        if not options:
            raise self._assignment.stuck(members[0])
        device = next((d for d in options if room[d]), options[0])
        for g in members:
            self._assignment.put(g, device)
        pool = pool_of[device]
        self._used[pool] += self._tasks.need[unit, pool]
        self._working[pool] = work[pool]
        return device


def topological(problem: Problem, units: Units) -> Longs:
    """Units in order of their first operation that takes time or waits; without one, of the first that reads them."""
    graph = problem.graph
    unit = units.of[problem.groups]
    first = np.full(len(units.choices), 2 * graph.n_ops, np.int64)
    readers = graph.read_op[graph.phase[graph.tensor_op[graph.in_tensor]] == PARAMETER]
    read = graph.in_tensor[graph.phase[graph.tensor_op[graph.in_tensor]] == PARAMETER]
    np.minimum.at(first, unit[graph.tensor_op[read]], graph.n_ops + readers)
    queued = np.flatnonzero(~graph.off_queue)
    np.minimum.at(first, unit[queued], queued)
    first = np.where((first >= graph.n_ops) & (first < 2 * graph.n_ops), first - graph.n_ops, first)
    return np.lexsort((np.arange(len(first)), first))

"""Contracting a `max_load` problem to units, and annealing their places on several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.problem import Problem
from placewright.sim import load_moves
from placewright.sim.jit import entry
from placewright.sim.load_moves import FORBIDDEN, LoadState, Units
from placewright.sim.lower import Lowered

Places = NDArray[np.int64]


@entry
def _anneal(u, s, steps, hot, cold, squarings):  # type: ignore[no-untyped-def]
    """Loads from the start, then annealing; returns the best largest load."""
    s.value[0] = FORBIDDEN
    s.value[1] = 0
    s.value[2] = 0
    if load_moves.start(u, s):
        top = np.int64(0)
        for d in range(len(s.load)):
            top = max(top, s.load[d])
        s.value[0] = top
    for k in range(len(s.place)):
        s.best[k] = s.place[k]
    if steps > 0 and s.value[0] != FORBIDDEN:
        load_moves.anneal(u, s, steps, hot, cold, squarings)
    return s.value[0]


@dataclass(frozen=True)
class Schedule:
    """How one stretch of annealing cools."""

    steps: int
    hot: float
    """First temperature, as a share of the value."""
    cold: float
    squarings: int
    """The norm of the loads has the exponent 2 ** squarings."""


def contract(problem: Problem, lowered: Lowered, unit_of: NDArray[np.int64]) -> Units:
    """Return the units of a grouping of the problem's groups, as the kernel takes them.

    A unit may be where all its groups may be; a tensor that only its own unit reads is left out.
    """
    graph, machine = problem.graph, problem.machine
    op_unit = np.asarray(unit_of, np.int64)[problem.groups]
    units, devices = int(op_unit.max(initial=-1)) + 1, problem.n_devices
    cost = np.zeros((units, devices), np.int64)
    finite = np.where(lowered.cost_ps == FORBIDDEN, 0, lowered.cost_ps)
    np.add.at(cost, op_unit, finite)
    barred = np.zeros((units, devices), bool)
    np.logical_or.at(barred, np.asarray(unit_of, np.int64), ~problem.choices)
    cost[barred] = FORBIDDEN
    held = np.zeros((units, len(machine.pools)), np.int64)
    persistent = np.flatnonzero(graph.persistent)
    for p in range(len(machine.pools)):
        granule = int(lowered.granule_of[machine.pool_of.index(p)]) if p in machine.pool_of else 0
        np.add.at(held[:, p], op_unit[graph.tensor_op[persistent]], lowered.size[persistent, granule])
    pairs = np.unique(np.stack([graph.in_tensor.astype(np.int64), op_unit[graph.read_op]], 1), axis=0)
    pairs = pairs[op_unit[graph.tensor_op[pairs[:, 0]]] != pairs[:, 1]]
    kept, number = np.unique(pairs[:, 0], return_inverse=True)
    maker = op_unit[graph.tensor_op[kept]]
    reads = np.argsort(pairs[:, 1], kind="stable")
    return Units(
        cost_ps=cost,
        held=held,
        maker=maker,
        made_start=_starts(maker, units),
        made=np.argsort(maker, kind="stable").astype(np.int64),
        read_start=_starts(pairs[:, 1], units),
        read=number[reads].astype(np.int64),
        transfer_ps=lowered.transfer_ps[kept],
        raw_bytes=lowered.raw_bytes[kept],
        pool_of=np.array(machine.pool_of, np.int64),
        is_host=lowered.is_host.astype(np.int64),
        route_ok=lowered.route_ok.astype(np.int64),
        route_latency_s=lowered.route_latency_s,
        route_bytes_per_s=lowered.route_bytes_per_s,
        capacity=np.array([pool.capacity_bytes for pool in machine.pools], np.int64),
    )


def _starts(owner: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """CSR starts of items by owner."""
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=count), out=starts[1:])
    return starts


class LoadAnnealer:
    """One chain of annealing over the units of one contraction; keeps its places and its random numbers."""

    def __init__(self, units: Units, seed: int) -> None:
        self.units = units
        count, devices = units.cost_ps.shape
        pools = units.held.shape[1]
        self._state = LoadState(
            place=np.zeros(count, np.int64),
            best=np.zeros(count, np.int64),
            readers=np.zeros((len(units.maker), devices), np.int32),
            load=np.zeros(devices, np.int64),
            used=np.zeros(pools, np.int64),
            old=np.zeros(devices, np.int64),
            random=np.array([seed | 1], np.uint64),
            value=np.zeros(3, np.int64),
        )

    @property
    def valued(self) -> int:
        """Moves that the last run valued; the rest led nowhere new, or where the unit may not be."""
        return int(self._state.value[2])

    def run(self, places: Places, schedule: Schedule) -> tuple[int, Places]:
        """Anneal from places; the best largest load in ps and the places that have it. Takes no Python lock."""
        self._state.place[:] = places
        value = _anneal(self.units, self._state, schedule.steps, schedule.hot, schedule.cold, schedule.squarings)
        return int(value), self._state.best.copy()


def run_side_by_side(jobs: list[tuple[LoadAnnealer, Places, Schedule]]) -> list[tuple[int, Places]]:
    """Run chains on a thread each; their results do not depend on each other."""
    if len(jobs) == 1:
        return [jobs[0][0].run(*jobs[0][1:])]
    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(lambda job: job[0].run(*job[1:]), jobs))

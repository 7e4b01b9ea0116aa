"""A problem as list scheduling sees it: operations to order, groups to decide, and what fits where."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.decisions import Decisions
from placewright.graph import Bools, Floats, Longs, OpGraph
from placewright.problem import Problem
from placewright.sim.list_tasks import BY_ROUTE, FAR, NOTHING, OFF, ON, Tasks
from placewright.sim.lower import PICO


@dataclass(frozen=True, eq=False)
class Units:
    """Groups of a problem, joined further: `of` gives the unit of every group, `first` where units go if they can."""

    of: Longs
    choices: Bools
    first: Bools

    @staticmethod
    def groups(problem: Problem) -> Units:
        """Every group by itself, anywhere that it may be."""
        return Units(np.arange(problem.n_groups, dtype=np.int64), problem.choices, problem.choices)


def lower_tasks(problem: Problem, units: Units, favourite: Longs | None = None) -> Tasks:
    """What the kernels read of a problem, in whole picoseconds."""
    from placewright.sim import list_entries

    graph, machine = problem.graph, problem.machine
    decisions = Decisions(problem)
    group = units.of[problem.groups]
    cost = np.where(np.isfinite(problem.costs.seconds), np.rint(problem.costs.seconds * PICO), FAR)
    used = units.first.any(axis=0)
    rates = _rates(problem)
    edges = _edges(graph, rates, np.flatnonzero(used))
    held, need, work = group_bytes(problem, units.of, len(units.choices))
    apart_start, apart_side = _apart(decisions, units)
    member = np.argsort(group, kind="stable").astype(np.int64)
    counted = units.first[group]
    tasks = Tasks(
        group=np.ascontiguousarray(group, np.int64),
        kind=np.where(graph.off_queue, OFF, ON).astype(np.int8),
        cost=np.ascontiguousarray(cost),
        mean=np.where(counted, cost, 0.0).sum(axis=1) / np.maximum(counted.sum(axis=1), 1),
        **edges,
        pool_of=np.array(machine.pool_of, np.int64),
        route_ok=rates[0],
        latency_s=rates[1],
        bytes_per_s=rates[2],
        choices=np.ascontiguousarray(units.choices, np.uint8),
        first=np.ascontiguousarray(units.first, np.uint8),
        bytes=held,
        need=need,
        work=work,
        capacity=decisions.capacity,
        apart_start=apart_start,
        apart_side=apart_side,
        member_start=np.searchsorted(group[member], np.arange(len(units.choices) + 1)).astype(np.int64),
        member=member,
        favourite=np.full(graph.n_ops, -1, np.int64) if favourite is None else favourite,
    )
    timeless = ~((cost != 0) & (units.choices[group])).any(axis=1)
    list_entries.prepare(tasks, timeless.astype(np.uint8))
    return tasks


def alive_at_peak(graph: OpGraph) -> Bools:
    """Which transient tensors are alive when most bytes are, in program order and without regard to devices."""
    own = (graph.tensor_storage == np.arange(graph.n_tensors)) & ~graph.persistent
    last = graph.tensor_op.astype(np.int64)
    np.maximum.at(last, graph.in_tensor, graph.read_op)
    last[graph.tensor_output] = graph.n_ops
    for _ in range(2):  # a view of a new value, then what that is a value of
        np.maximum.at(last, graph.tensor_storage, last.copy())
    ends = np.zeros(graph.n_ops + 2, np.int64)
    np.add.at(ends, graph.tensor_op[own], graph.tensor_bytes[own])
    np.subtract.at(ends, last[own] + 1, graph.tensor_bytes[own])
    at = int(np.cumsum(ends).argmax())
    alive: Bools = own & (graph.tensor_op <= at) & (last >= at)
    return alive


def group_bytes(problem: Problem, unit_of: Longs, count: int) -> tuple[Longs, Longs, Longs]:
    """(units, pools) three times: persistent bytes; those and what is alive at the peak; the neediest operation's."""
    graph, pools = problem.graph, problem.machine.pools
    unit = unit_of[problem.groups]
    alive = alive_at_peak(graph)
    brief = (graph.tensor_storage == np.arange(graph.n_tensors)) & ~graph.persistent & ~alive
    tables = [np.zeros((count, len(pools)), np.int64) for _ in range(3)]
    for p, pool in enumerate(pools):
        size = -(-graph.tensor_bytes // pool.granule_bytes) * pool.granule_bytes
        for table, chosen in ((tables[0], graph.persistent), (tables[1], graph.persistent | alive)):
            np.add.at(table[:, p], unit[graph.tensor_op[chosen]], size[chosen])
        own = -(-graph.workspace_bytes // pool.granule_bytes) * pool.granule_bytes
        np.add.at(own, graph.tensor_op[brief], size[brief])
        np.maximum.at(tables[2][:, p], unit, own)
    return tables[0], tables[1], tables[2]


def mean_transfer(
    rates: tuple[NDArray[np.uint8], Floats, Floats], devices: Longs, sizes: Floats, fixed: Floats
) -> Floats:
    """The mean time of each transfer over ordered pairs of different devices that a route joins; 0 without any."""
    ok, latency, rate = (table[np.ix_(devices, devices)] for table in rates)
    pairs = (ok != 0) & ~np.eye(len(devices), dtype=bool)
    kinds, count = np.unique(np.stack([latency[pairs], rate[pairs]], 1), axis=0, return_counts=True)
    total = np.zeros(len(sizes))
    for (seconds, bytes_per_s), times in zip(kinds.tolist(), count.tolist(), strict=True):
        each = np.rint((seconds + sizes / bytes_per_s) * PICO)
        inside = seconds == 0 and np.isinf(bytes_per_s)  # within a pool
        total += times * (np.zeros(len(sizes)) if inside else np.where(fixed == BY_ROUTE, each, fixed))
    mean: Floats = np.where(fixed == NOTHING, 0.0, total / max(1, int(count.sum())))
    return mean


def _rates(problem: Problem) -> tuple[NDArray[np.uint8], Floats, Floats]:
    """(devices, devices) three times: whether there is a route, its latency, its bytes per second."""
    machine, count = problem.machine, problem.n_devices
    ok, latency, rate = np.zeros((count, count), np.uint8), np.zeros((count, count)), np.full((count, count), np.inf)
    for a in range(count):
        for b in range(count):
            found = machine.rates(a, b)
            if found is not None:
                ok[a, b], (latency[a, b], rate[a, b]) = 1, found
    return ok, latency, rate


def _edges(
    graph: OpGraph, rates: tuple[NDArray[np.uint8], Floats, Floats], devices: Longs
) -> dict[str, NDArray[np.generic]]:
    """Reads, then order-only edges, by consumer; and who waits for whom, by producer."""
    waiting = np.repeat(np.arange(graph.n_ops), np.diff(graph.after_start))
    reads = len(graph.in_tensor)
    reader = np.concatenate([graph.read_op, waiting]).astype(np.int64)
    maker = np.concatenate([graph.tensor_op[graph.in_tensor], graph.after_op]).astype(np.int64)
    size = np.zeros(len(reader))
    size[:reads] = graph.tensor_bytes[graph.in_tensor]
    fixed = np.full(len(reader), NOTHING)
    seconds = graph.tensor_transfer_s[graph.in_tensor]
    fixed[:reads] = np.where(np.isnan(seconds), BY_ROUTE, np.rint(seconds * PICO))
    by_reader, by_maker = np.argsort(reader, kind="stable"), np.lexsort((reader, maker))
    rows = np.arange(graph.n_ops + 1)
    return {
        "in_start": np.searchsorted(reader[by_reader], rows).astype(np.int64),
        "in_op": maker[by_reader],
        "in_bytes": size[by_reader],
        "in_fixed": fixed[by_reader],
        "in_mean": mean_transfer(rates, devices, size, fixed)[by_reader],
        "out_start": np.searchsorted(maker[by_maker], rows).astype(np.int64),
        "out_op": reader[by_maker],
    }


def _apart(decisions: Decisions, units: Units) -> tuple[Longs, Longs]:
    """CSR by unit: the sides of separations that it is on."""
    start, side = decisions.apart
    unit = units.of[np.repeat(np.arange(len(start) - 1), np.diff(start))]
    pairs = np.unique(np.stack([unit, side], 1), axis=0).astype(np.int64).reshape(-1, 2)
    rows = np.searchsorted(pairs[:, 0], np.arange(len(units.choices) + 1))
    return rows.astype(np.int64), np.ascontiguousarray(pairs[:, 1])

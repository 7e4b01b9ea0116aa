"""What a part of a contiguous split costs: units in flat arrays, devices in classes, tensors as nets.

A net is a tensor with the units that make or read it. A part pays for a net that it cuts: some of its units in the
part, some not; so the load of a part is known without knowing where the rest is, wherever a tensor takes equally
long on every route. Where it does not, `Routes` says which is charged, and the load is an estimate.

    U units, C classes of devices that are alike, N nets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placewright.exact.units import ALONE, Units
from placewright.problem import Problem
from placewright.sim.lower import Lowered, lower

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
Bools = NDArray[np.bool_]


class Routes(Enum):
    """The route by which a tensor is charged where routes differ."""

    DEAREST = "dearest"
    CHEAPEST = "cheapest"


class Memory(Enum):
    """The bytes that a unit is counted with."""

    LOADS = "loads"
    """Persistent bytes, the largest visits and the largest operation: what `max_load` counts."""
    STEP = "step"
    """All bytes that its operations hold or make: an upper estimate for `step`."""


class Nets(NamedTuple):
    """Tensors that more than one unit makes or reads; those of the same units are one net."""

    start: I32  # (N + 1,)
    unit: I32  # by net, increasing
    weight: I64  # (N,) ps
    open: Bools  # (N,) whether something outside of all units makes or reads it

    @staticmethod
    def of(weight: Mapping[tuple[bool, tuple[int, ...]], int]) -> Nets:
        """From the weight by (whether it is open, units)."""
        sizes = np.array([0, *(len(row) for _, row in weight)], np.int64)
        return Nets(
            start=np.cumsum(sizes).astype(np.int32),
            unit=np.array([u for _, row in weight for u in row], np.int32),
            weight=np.array(list(weight.values()), np.int64),
            open=np.array([opened for opened, _ in weight], bool),
        )


class Parts(NamedTuple):
    """What the kernels read. Every unit of a part must be allowed on the part's class."""

    time: I64  # (U, C) ps, 0 where not allowed
    allowed: Bools  # (U, C)
    held: I64  # (U, C) bytes that add up
    most: I64  # (U, C) bytes of which the largest counts
    lent: I64  # (U, C) bytes of which the largest counts as well: visits
    capacity: I64  # (C,)
    pays: Bools  # (C,) whether transfers are charged
    supply: I64  # (C,) devices of each class
    nets: Nets
    side: Bools  # (2 K, U) units of sides 2 k and 2 k + 1 may not share a device


@dataclass(frozen=True, eq=False)
class Classes:
    """Devices that no split can tell apart, in order of their first; `devices[c]` are those of class c."""

    devices: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Costing:
    """Costs of a problem that do not depend on how its units are joined or ordered."""

    problem: Problem
    lowered: Lowered
    classes: Classes
    weight: I64
    """(T,) ps of each tensor on the route that is charged."""
    uniform: bool
    """Whether every tensor takes equally long on every route, so that loads are exact."""

    @staticmethod
    def of(
        problem: Problem, routes: Routes = Routes.DEAREST, *, hosts: bool = True, lowered: Lowered | None = None
    ) -> Costing:
        """Costs by the dearest or the cheapest route, with hosts among the devices or without."""
        lowered = lowered or lower(problem)
        usable: Bools = np.asarray(problem.choices.any(axis=0))
        if not hosts:
            usable = usable & ~np.array([device.is_host for device in problem.machine.devices])
        least, largest = _weights(problem, lowered, usable)
        weight = least if routes is Routes.CHEAPEST else largest
        return Costing(problem, lowered, _classes(problem, lowered, usable), weight, bool((least == largest).all()))


def _weights(problem: Problem, p: Lowered, usable: Bools) -> tuple[I64, I64]:
    """(T,) ps of each tensor on the cheapest and on the dearest route that a load is charged for."""
    devices = problem.n_devices
    pool, host = np.array(problem.machine.pool_of), np.array([d.is_host for d in problem.machine.devices])
    pair = (pool[:, None] != pool[None, :]) & p.route_ok.astype(bool).reshape(devices, devices)
    pair &= usable[:, None] & usable[None, :] & ~(host[:, None] & host[None, :])
    routes = np.flatnonzero(pair.ravel())
    rates = np.unique(np.stack([p.route_latency_s[routes], p.route_bytes_per_s[routes]], 1), axis=0)
    if not len(rates):
        none = np.zeros(len(p.raw_bytes), np.int64)
        return none, none
    least = np.full(len(p.raw_bytes), np.iinfo(np.int64).max)
    largest = np.zeros(len(p.raw_bytes), np.int64)
    for latency_s, bytes_per_s in rates:
        ps = np.rint((latency_s + p.raw_bytes / bytes_per_s) * 1e12).astype(np.int64)
        ps = np.where(p.transfer_ps >= 0, p.transfer_ps, ps)
        least, largest = np.minimum(least, ps), np.maximum(largest, ps)
    return least, largest


def _classes(problem: Problem, p: Lowered, usable: Bools) -> Classes:
    found: dict[tuple[object, ...], list[int]] = {}
    pools = problem.machine.pools
    shared = np.bincount(problem.machine.pool_of, minlength=len(pools))
    for d, device in enumerate(problem.machine.devices):
        if not usable[d]:
            continue
        where = problem.machine.pool_of[d]
        pool = pools[where]
        columns = p.cost_ps[:, d].tobytes() + problem.choices[:, d].tobytes()
        key = (columns, device.is_host, pool.capacity_bytes, pool.granule_bytes, int(shared[where]))
        found.setdefault(key, []).append(d)
    return Classes(tuple(tuple(devices) for devices in found.values()))


def parts_of(costing: Costing, units: Units, memory: Memory = Memory.LOADS) -> Parts:
    """The flat arrays of units."""
    problem, classes = costing.problem, costing.classes.devices
    n, count = units.n, len(classes)
    held_groups = np.flatnonzero(units.of_group >= 0)
    unit = units.of_group[held_groups]
    choices = np.ones((n, problem.n_devices), bool)
    np.logical_and.at(choices, unit, problem.choices[held_groups])
    first = np.array([devices[0] for devices in classes], np.int64)
    unit_of_op = units.of_group[problem.groups]
    side = _sides(problem, unit_of_op, n)
    both = np.asarray((side[0::2] & side[1::2]).any(axis=0))  # what cannot be with itself can be nowhere
    allowed = np.ascontiguousarray(choices[:, first] & ~both[:, None])
    inside = np.flatnonzero(unit_of_op >= 0)
    time = np.zeros((n, count), np.int64)
    cost = costing.lowered.cost_ps[inside][:, first]
    np.add.at(time, unit_of_op[inside], np.where(allowed[unit_of_op[inside]], cost, 0))
    bytes_of = [_bytes(costing, unit_of_op, n, devices[0], memory) for devices in classes]
    held, most, lent = (
        np.ascontiguousarray(np.stack([row[k] for row in bytes_of], 1)) if count else np.zeros((n, 0), np.int64)
        for k in range(3)
    )
    return Parts(
        time=np.ascontiguousarray(time),
        allowed=allowed,
        held=held,
        most=most,
        lent=lent,
        capacity=_capacities(problem, classes, held, most, lent),
        pays=np.array([not problem.machine.devices[d].is_host for d in first.tolist()], bool),
        supply=np.array([len(devices) for devices in classes], np.int64),
        nets=_nets(costing, unit_of_op),
        side=side,
    )


def _capacities(problem: Problem, classes: Sequence[Sequence[int]], held: I64, most: I64, lent: I64) -> I64:
    """(C,) bytes for a part on one device; devices of one pool get equal shares where all cannot have all."""
    machine = problem.machine
    rows = []
    for c, devices in enumerate(classes):
        pool = machine.pool_of[devices[0]]
        sharing = machine.pool_of.count(pool)
        size = machine.pools[pool].capacity_bytes
        everything = int(held[:, c].sum()) + sharing * int(most[:, c].max(initial=0) + lent[:, c].max(initial=0))
        rows.append(size if everything <= size else size // sharing)
    return np.array(rows, np.int64)


def _bytes(costing: Costing, unit_of_op: I32, n: int, device: int, memory: Memory) -> tuple[I64, I64, I64]:
    """(U,) bytes on a device: those that add up, the largest operation, and the largest visits."""
    graph, p = costing.problem.graph, costing.lowered
    granule = int(p.granule_of[device])
    size, persistent = p.size[:, granule], graph.persistent
    made_in, read_in = unit_of_op[graph.tensor_op], unit_of_op[graph.read_op]
    held, most, lent = (np.zeros(n, np.int64) for _ in range(3))
    home = np.flatnonzero(persistent & (made_in >= 0))
    np.add.at(held, made_in[home], size[home])

    own = p.own_bytes[:, granule] + p.work_bytes[:, granule]
    reads = ~persistent[graph.in_tensor]
    own = own + np.bincount(graph.read_op[reads], size[graph.in_tensor[reads]], graph.n_ops).astype(np.int64)
    inside = np.flatnonzero(unit_of_op >= 0)
    np.maximum.at(most, unit_of_op[inside], own[inside])
    if memory is Memory.STEP:
        np.add.at(held, unit_of_op[inside], p.own_bytes[inside, granule])

    foreign = persistent[graph.in_tensor] & (read_in >= 0) & (made_in[graph.in_tensor] != read_in)
    at = np.flatnonzero(foreign)
    borrowed = np.bincount(graph.read_op[at], size[graph.in_tensor[at]], graph.n_ops).astype(np.int64)
    largest = np.zeros(graph.n_ops, np.int64)
    np.maximum.at(largest, graph.read_op[at], size[graph.in_tensor[at]])
    np.maximum.at(lent, unit_of_op[inside], (borrowed + largest)[inside])
    return held, most, lent


def _nets(costing: Costing, unit_of_op: I32) -> Nets:
    graph = costing.problem.graph
    tensor = np.concatenate([np.arange(graph.n_tensors), graph.in_tensor]).astype(np.int64)
    unit = np.concatenate([unit_of_op[graph.tensor_op], unit_of_op[graph.read_op]]).astype(np.int64)
    costly = costing.weight[tensor] > 0
    pins = np.unique(np.stack([tensor[costly], unit[costly]], 1), axis=0)
    weight: dict[tuple[bool, tuple[int, ...]], int] = {}
    names, start = np.unique(pins[:, 0], return_index=True)
    ends = np.append(start, len(pins))[1:].tolist()
    row = pins[:, 1].tolist()
    for ps, low, high in zip(costing.weight[names].tolist(), start.tolist(), ends, strict=True):
        if high - low > 1:
            opened = row[low] == ALONE
            key = opened, tuple(row[low + opened : high])
            weight[key] = weight.get(key, 0) + ps
    return Nets.of(weight)


def _sides(problem: Problem, unit_of_op: I32, n: int) -> Bools:
    """(2 K, U): the units on each side of every separation."""
    side = np.zeros((2 * len(problem.separated), n), bool)
    for k, ops in enumerate(ops for pair in problem.separated for ops in pair):
        units = unit_of_op[ops]
        side[k, units[units >= 0]] = True
    return side

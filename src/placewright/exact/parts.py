"""What a part of a contiguous split costs: units in flat arrays, tensors as nets.

A net is a tensor with the units that make or read it. A part pays for a net that it cuts: some of its units in the
part, some not; so the load of a part is known without knowing where the rest is, wherever a tensor takes equally
long on every route. Where it does not, `Routes` says which is charged, and the load is an estimate.

    U units, C classes of devices that are alike, N nets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from placewright.exact.costing import I32, I64, Bools, Costing
from placewright.exact.units import ALONE, Units
from placewright.problem import Problem


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

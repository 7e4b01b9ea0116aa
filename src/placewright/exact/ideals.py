"""The optimal contiguous split of a graph: a dynamic programme over pairs of downward-closed sets of units.

After Tarnawski et al. 2020, section 4: the parts of a contiguous split, in order, make a chain of downward-closed
sets, so the least largest load of every set and number of devices follows from the smaller sets. What is added here
is a bound: from a set, only parts below the best known value are tried, and only where the devices that remain could
do the rest below it. That loses no better split.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.errors import NotFinishedError
from placewright.exact.condense import Edges
from placewright.exact.family import bits_of, first_family, grown, order_of, width_of
from placewright.exact.line import NEVER, Split
from placewright.exact.parts import Parts
from placewright.exact.states import States
from placewright.sim.ideals import Costs, Family, Table, extend, grow, measure

_STEPS = 5_000_000
"""Pairs between two looks at the clock."""


@dataclass(frozen=True)
class Limits:
    """When to give up."""

    seconds: float
    bytes: int


def best_ideal_split(parts: Parts, edges: Edges, bound: int, limits: Limits) -> Split | None:
    """The split whose largest load is least, if that is below the bound; `None` where no split is below it."""
    end = time.perf_counter() + limits.seconds
    n, classes = parts.time.shape
    states = States.of(parts)
    row_bytes = 14 * len(states.digits) + 40 * classes + 24  # of the programme's own table

    def in_time(sets: int) -> None:
        if time.perf_counter() > end:
            raise NotFinishedError(f"{limits.seconds:g} s", f"{sets:,} or more")

    most_sets = limits.bytes // (16 * max(1, -(-n // 64)) + row_bytes)
    width = width_of(n, edges)
    if most_sets.bit_length() <= width:  # units that are side by side make 2 ** width sets
        raise NotFinishedError(f"{limits.bytes / 2**30:g} GiB", f"at least 2**{width}")
    order = order_of(n, edges)
    family = first_family(order)
    while grow(order, family):
        sets = int(family.count[0])
        in_time(sets)
        kept = sum(array.nbytes for array in family)
        if 3 * kept + 2 * sets * row_bytes > limits.bytes:  # for a moment, the arrays and others twice as long
            raise NotFinishedError(f"{limits.bytes / 2**30:g} GiB", f"{sets:,} or more")
        family = grown(family, n)
    if sum(array.nbytes for array in family) + int(family.count[0]) * row_bytes > limits.bytes:
        raise NotFinishedError(f"{limits.bytes / 2**30:g} GiB", f"{int(family.count[0]):,}")
    return _filled(parts, family, states, bound, in_time)


def _filled(parts: Parts, family: Family, states: States, bound: int, in_time: Callable[[int], None]) -> Split | None:
    """The programme over all sets."""
    n, classes = parts.time.shape
    sets, size = int(family.count[0]), len(states.digits)
    costs = _costs(parts, states, bound, family.member.shape[1])
    table = Table(
        best=np.full((sets, size), NEVER, np.int64),
        back=np.zeros((sets, size), np.int32),
        kind=np.zeros((sets, size), np.int16),
        done=np.zeros(sets, np.int64),
        seen=np.full(sets, -1, np.int32),
        sums=np.zeros((sets, 5, classes), np.int64),
        moved=np.zeros(sets, np.int64),
        queue=np.zeros(sets, np.int32),
    )
    table.best[0, 0] = 0
    measure(family, costs, table)
    at = 0
    while at < sets:
        at, _ = extend(family, costs, table, bound, at, _STEPS)
        in_time(sets)
    state = int(table.best[-1].argmin())
    value = int(table.best[-1, state])
    if value >= NEVER:
        return None
    at, part, kinds = sets - 1, np.zeros(n, np.int64), list[int]()
    while at > 0:
        kind, below = int(table.kind[at, state]), int(table.back[at, state])
        part[_members(family, at, n) & ~_members(family, below, n)] = len(kinds)
        kinds.append(kind)
        at, state = below, state - int(states.stride[kind])
    return Split(value, tuple(reversed(kinds)), len(kinds) - 1 - part)


def _members(family: Family, at: int, n: int) -> NDArray[np.bool_]:
    """Which units a set holds."""
    bits = np.unpackbits(family.member[at : at + 1].view(np.uint8), bitorder="little")
    return bits[:n].astype(bool)


def _costs(parts: Parts, states: States, bound: int, words: int) -> Costs:
    """What the programme reads of the parts."""
    n = len(parts.time)
    reference, room = states.room(parts, bound)
    nets = parts.nets
    net = np.repeat(np.arange(len(nets.weight)), np.diff(nets.start))
    by = np.argsort(nets.unit, kind="stable")
    enemies = [[] for _ in range(n)] if not len(parts.side) else [_enemies(parts, u) for u in range(n)]
    same = ("time", "allowed", "held", "most", "lent", "capacity", "pays")
    return Costs(
        **{name: getattr(parts, name) for name in same},
        net_start=nets.start,
        net_unit=nets.unit,
        net_weight=nets.weight,
        net_open=nets.open,
        unit_start=np.searchsorted(nets.unit[by], np.arange(n + 1)).astype(np.int32),
        unit_net=net[by].astype(np.int32),
        enemy=bits_of(enemies, words),
        digits=states.digits,
        count=states.count,
        stride=states.stride,
        room=room,
        reference=reference,
        total=int(reference.sum()),
    )


def _enemies(parts: Parts, unit: int) -> list[int]:
    """The units that may not share a device with one."""
    mine = np.flatnonzero(parts.side[:, unit])
    enemies: list[int] = np.flatnonzero(parts.side[mine ^ 1].any(axis=0)).tolist()
    return enemies

"""Optimal splits of a line of units into intervals, one device each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.exact.condense import Edges, merged, stretches
from placewright.exact.costing import I64
from placewright.exact.parts import Parts
from placewright.exact.states import States
from placewright.sim.intervals import Line, Table, fill

NEVER = 1 << 62


@dataclass(frozen=True)
class Split:
    """Parts in order: the class of each, and the part of every unit. `value_ps` is the largest load."""

    value_ps: int
    classes: tuple[int, ...]
    part: I64

    def of(self, label: I64) -> Split:
        """The same split of what the units were made of."""
        return Split(self.value_ps, self.classes, self.part[label])


def in_order(parts: Parts, order: I64) -> Parts:
    """The same units, numbered along another order."""
    return merged(parts, places(order))


def places(order: I64) -> I64:
    """Where each one stands in an order."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place


def best_split(parts: Parts, *, most: int, bound: int = NEVER) -> Split | None:
    """The split of the line whose largest load is least, and below the bound; `None` where there is none.

    A line of more than `most` units is first joined to that many stretches, and then split again between single
    units near the cuts that were found; that may cost optimality.
    """
    label = stretches(parts, most)
    if int(label.max(initial=-1)) + 1 < len(label):
        coarse = best_split(merged(parts, label), most=most, bound=bound)
        if coarse is None:
            return None
        coarse = coarse.of(label)
        label = _finer(label, coarse, most)
        fine = _split(merged(parts, label), coarse.value_ps)
        return fine.of(label) if fine else coarse
    if len(label) > 192:  # a coarse split is a good bound, and a bound saves most of the work
        coarse = best_split(parts, most=64, bound=bound)
        fine = _split(parts, coarse.value_ps if coarse else bound)
        return fine or coarse
    return _split(parts, bound)


def _finer(label: I64, split: Split, most: int) -> I64:
    """The same stretches, but single units near the cuts; about twice as many at most."""
    cuts = np.flatnonzero(np.diff(split.part))
    begins = np.diff(label, prepend=label[:1]) > 0
    around = np.arange(-most // (2 * max(1, len(cuts))), most // (2 * max(1, len(cuts))) + 1)
    near = (cuts[:, None] + around[None, :]).ravel()
    begins[near[(near > 0) & (near < len(label))]] = True
    return np.cumsum(begins)


def _split(parts: Parts, bound: int) -> Split | None:
    states, table = filled(parts, bound)
    return read_split(states, table, int(table.best[-1].argmin()))


def filled(parts: Parts, bound: int = NEVER) -> tuple[States, Table]:
    """The table of the programme, filled."""
    n, classes = parts.time.shape
    states = States.of(parts)
    reference, room = states.room(parts, bound)
    size = len(states.digits)
    table = Table(
        best=np.full((n + 1, size), NEVER, np.int64),
        back=np.zeros((n + 1, size), np.int32),
        kind=np.zeros((n + 1, size), np.int16),
        sums=np.zeros((5, classes), np.int64),
    )
    table.best[0, 0] = 0
    line = Line(
        **{name: getattr(parts, name) for name in ("time", "allowed", "held", "most", "lent", "capacity", "pays")},
        **_incidences(parts),
        enemy=_enemies(parts),
        digits=states.digits,
        count=states.count,
        stride=states.stride,
        need=np.ascontiguousarray(np.cumsum(reference[::-1])[::-1]),
        room=room,
    )
    fill(line, table, bound)
    return states, table


def read_split(states: States, table: Table, state: int) -> Split | None:
    """The split that ends in a state."""
    at, value = len(table.best) - 1, int(table.best[-1, state])
    if value >= NEVER:
        return None
    cuts, classes = [], []
    while at > 0:
        kind = int(table.kind[at, state])
        classes.append(kind)
        at = int(table.back[at, state])
        state -= int(states.stride[kind])
        cuts.append(at)
    part = np.zeros(len(table.best) - 1, np.int64)
    part[cuts[:-1]] = 1
    return Split(value, tuple(reversed(classes)), np.cumsum(part))


def _incidences(parts: Parts) -> dict[str, Any]:
    """Nets by unit, with the unit of the net before this one, its first and its last."""
    n, nets = len(parts.time), parts.nets
    size = np.diff(nets.start)
    net = np.repeat(np.arange(len(size)), size)
    first, last = np.zeros(len(size), np.int32), np.zeros(len(size), np.int32)
    some = size > 0
    first[some] = nets.unit[nets.start[:-1][some]]
    last[some] = nets.unit[nets.start[1:][some] - 1]
    last[nets.open] = n
    previous = np.full(len(nets.unit), -1, np.int32)
    previous[1:] = np.where(net[1:] == net[:-1], nets.unit[:-1], -1)
    order = np.argsort(nets.unit, kind="stable")
    return {
        "start": np.searchsorted(nets.unit[order], np.arange(n + 1)).astype(np.int32),
        "previous": np.ascontiguousarray(previous[order]),
        "first": np.ascontiguousarray(first[net[order]]),
        "last": np.ascontiguousarray(last[net[order]]),
        "weight": np.ascontiguousarray(nets.weight[net[order]]),
    }


def _enemies(parts: Parts) -> NDArray[np.int32]:
    """(n,) the last unit before each one that may not share its device, or -1."""
    n = len(parts.time)
    nearest = np.full(n, -1, np.int32)
    for k, side in enumerate(parts.side):
        other = np.where(parts.side[k ^ 1], np.arange(n), -1)
        before = np.maximum.accumulate(np.concatenate([[-1], other[:-1]])) if n else other
        nearest = np.where(side, np.maximum(nearest, before), nearest)
    return nearest.astype(np.int32)


def lines(n: int, edges: Edges) -> list[I64]:
    """Topological orders worth trying: as numbered, and depth first from the first and from the last."""
    return [np.arange(n), _depth_first(n, edges, 1), _depth_first(n, edges, -1)]


def _depth_first(n: int, edges: Edges, turn: int) -> I64:
    """Nodes in topological order, always going on with what became free last."""
    by = np.argsort(edges[:, 0], kind="stable")
    target = edges[by, 1].tolist()
    start = np.searchsorted(edges[by, 0], np.arange(n + 1)).tolist()
    waiting = np.bincount(edges[:, 1], minlength=n).tolist()
    stack = [v for v in range(n) if not waiting[v]][::-1]
    order = []
    while stack:
        v = stack.pop()
        order.append(v)
        free = []
        for w in target[start[v] : start[v + 1]]:
            waiting[w] -= 1
            if not waiting[w]:
                free.append(w)
        stack += free[::-turn]
    return np.array(order, np.int64)

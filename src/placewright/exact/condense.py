"""Fewer and larger units: joined for good, where no split is lost, or by stretches of a line, where some are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placewright.exact.costing import I64
from placewright.exact.parts import Nets, Parts

Edges = NDArray[np.int32]


def merged(parts: Parts, label: I64) -> Parts:
    """The parts whose units are those of one label together."""
    n = int(label.max(initial=-1)) + 1
    classes = len(parts.supply)

    def added(table: I64) -> I64:
        out = np.zeros((n, classes), np.int64)
        np.add.at(out, label, table)
        return out

    def largest(table: I64) -> I64:
        out = np.zeros((n, classes), np.int64)
        np.maximum.at(out, label, table)
        return out

    allowed = np.ones((n, classes), bool)
    np.logical_and.at(allowed, label, parts.allowed)
    side = np.zeros((len(parts.side), n), bool)
    for k, row in enumerate(parts.side):
        side[k, label[row]] = True
    allowed &= ~np.asarray((side[0::2] & side[1::2]).any(axis=0))[:, None]
    return parts._replace(
        time=added(parts.time),
        allowed=allowed,
        held=added(parts.held),
        most=largest(parts.most),
        lent=largest(parts.lent),
        side=side,
        nets=_merged_nets(parts.nets, label),
    )


def _merged_nets(nets: Nets, label: I64) -> Nets:
    net = np.repeat(np.arange(len(nets.weight)), np.diff(nets.start))
    pins = np.unique(np.stack([net, label[nets.unit]], 1), axis=0)
    weight: dict[tuple[bool, tuple[int, ...]], int] = {}
    start = np.searchsorted(pins[:, 0], np.arange(len(nets.weight) + 1)).tolist()
    unit = pins[:, 1].tolist()
    for e, (opened, ps) in enumerate(zip(nets.open.tolist(), nets.weight.tolist(), strict=True)):
        row = tuple(unit[start[e] : start[e + 1]])
        if len(row) > 1 or opened:
            weight[opened, row] = weight.get((opened, row), 0) + ps
    return Nets.of(weight)


def dense(label: I64) -> I64:
    """The same labels, numbered from 0 by their first unit."""
    first, inverse = np.unique(label, return_index=True, return_inverse=True)[1:]
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    out: I64 = rank[inverse]
    return out


def joined_edges(edges: Edges, label: I64) -> Edges:
    """The edges between labels."""
    pairs = label[edges].reshape(-1, 2)
    return np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0).astype(np.int32)


def lossless(parts: Parts, edges: Edges | None) -> I64:
    """Labels that join units without time to a neighbour where that can make no split worse.

    Let u take no time, and move it to the part of m. What its own part and that of m may then cut newly are nets of u
    without m; what they no longer cut are nets of u and m alone. So the move is free where the latter weigh as much,
    memory cannot count, and u may be wherever m may. With edges, splits are contiguous, and stay so: then m is all
    that comes right after u, or all that comes right before it.
    """
    free = (parts.time == 0).all(axis=1) & ~parts.side.any(axis=0)
    if not roomy(parts):
        free &= ((parts.held == 0) & (parts.most == 0) & (parts.lent == 0)).all(axis=1)
    web = _Web(parts, edges)
    parent = np.arange(len(free))
    todo = np.flatnonzero(free)[::-1].tolist()
    while todo:
        u = todo.pop()
        if parent[u] != u:
            continue
        for m in web.only_neighbours(u) if edges is not None else web.net_neighbours(u):
            if web.may_join(u, m) and (parts.allowed[u] | ~parts.allowed[m]).all():
                parent[u] = m
                web.join(u, m)
                todo += [v for v in web.around(m) if free[v]]
                break
    while (parent[parent] != parent).any():
        parent = parent[parent]
    return parent


def roomy(parts: Parts) -> bool:
    """Whether every device has memory enough for everything, so that memory excludes no split."""
    everything = parts.held.sum(axis=0) + parts.most.max(axis=0, initial=0) + parts.lent.max(axis=0, initial=0)
    return bool((everything <= parts.capacity).all())


class _Web:
    """Edges and nets between units that become fewer."""

    def __init__(self, parts: Parts, edges: Edges | None) -> None:
        n = len(parts.time)
        start, unit = parts.nets.start.tolist(), parts.nets.unit.tolist()
        self._pins = [set(unit[start[e] : start[e + 1]]) for e in range(len(start) - 1)]
        self._open, self._weight = parts.nets.open.tolist(), parts.nets.weight.tolist()
        self._nets: list[set[int]] = [set() for _ in range(n)]
        for e, row in enumerate(self._pins):
            for u in row:
                self._nets[u].add(e)
        self._before: list[set[int]] = [set() for _ in range(n)]
        self._after: list[set[int]] = [set() for _ in range(n)]
        for u, v in [] if edges is None else edges.tolist():
            self._after[u].add(v)
            self._before[v].add(u)

    def only_neighbours(self, u: int) -> list[int]:
        """What alone comes right after u, and what alone comes right before it."""
        return [m for row in (self._after[u], self._before[u]) if len(row) == 1 for m in row]

    def net_neighbours(self, u: int) -> list[int]:
        """What shares a net with u, in order."""
        return sorted({m for e in self._nets[u] for m in self._pins[e]} - {u})

    def may_join(self, u: int, m: int) -> bool:
        """Whether the nets allow it."""
        added: int = sum(self._weight[e] for e in self._nets[u] if m not in self._pins[e])
        spared: int = sum(self._weight[e] for e in self._nets[u] & self._nets[m]
                     if len(self._pins[e]) == 2 and not self._open[e])  # fmt: skip
        return added <= spared

    def join(self, u: int, m: int) -> None:
        """Make u part of m."""
        for e in self._nets[u]:
            self._pins[e].discard(u)
            self._pins[e].add(m)
            self._nets[m].add(e)
        for e in [e for e in self._nets[m] if len(self._pins[e]) == 1 and not self._open[e]]:
            self._nets[m].discard(e)
        for row, back in ((self._before, self._after), (self._after, self._before)):
            for v in row[u]:
                back[v].discard(u)
                if v != m:
                    back[v].add(m)
                    row[m].add(v)
            row[m].discard(u)
            row[u].clear()
        self._nets[u].clear()

    def around(self, m: int) -> list[int]:
        """The unit, and what comes right before or after it or shares a net with it, in order."""
        return sorted({m, *self._before[m], *self._after[m], *self.net_neighbours(m)})


def stretches(parts: Parts, most: int) -> I64:
    """Labels of at most `most` stretches of the line, alike in time, cut where little crosses.

    Between two cuts lies between half and one and a half times an equal share, where units are small enough.
    """
    n = len(parts.time)
    if n <= most:
        return np.arange(n)
    time = np.where(parts.allowed, parts.time, 0).max(axis=1, initial=0).astype(np.float64)
    share = time / max(float(time.sum()), 1.0) + 1.0 / n  # units without time count a little as well
    at = np.cumsum(share) / float(share.sum())
    crossing = np.zeros(n + 1, np.int64)
    nets = parts.nets
    some = np.flatnonzero(np.diff(nets.start) > 1)
    first, last = nets.unit[nets.start[some]], nets.unit[nets.start[some + 1] - 1]
    np.add.at(crossing, first + 1, nets.weight[some])
    np.add.at(crossing, last + 1, -nets.weight[some])
    crossing = np.cumsum(crossing)  # crossing[i]: what is cut between units i - 1 and i
    cuts = [0]
    for k in range(1, most):
        low = int(np.searchsorted(at, (k - 0.5) / most)) + 1
        high = int(np.searchsorted(at, (k + 0.5) / most)) + 1
        low, high = max(low, cuts[-1] + 1), min(high, n - 1)
        if low <= high:
            cuts.append(low + int(crossing[low : high + 1].argmin()))
    label = np.zeros(n, np.int64)
    label[cuts[1:]] = 1
    return np.cumsum(label)

"""Rows for stages: between two operations of a path, each device runs one operation at a time.

A *gate* is an operation of a path such that what is looked at beside the path comes before it or after it. All that
lies between two gates runs after the end of one and before the start of the other, so that this takes no less than
what any device does of it. A row adds up gates, and for every stage either its part of the path or one device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.bounds.relaxed import Pairs, Relaxed, Row, summed
from placewright.graph import Bools, Ints
from placewright.sim.lower import NEVER

REACHES = (4, 16, 64)
"""Operations beside the path that span more of its operations than this are left out, so that gates remain."""


@dataclass(frozen=True, eq=False)
class Path:
    """Operations one after the other, the read by which each follows the one before (-1: by order alone)."""

    length: float
    ops: Ints
    reads: Ints


def heaviest_path(relaxed: Relaxed, weights: NDArray[np.float64]) -> Path:
    """The path of the largest sum of weights."""
    makers, in_start, after, after_start = _before(relaxed)
    end: list[float] = []
    come: list[tuple[int, int]] = []
    for i, weight in enumerate(weights.tolist()):
        latest, source, by = 0.0, -1, -1
        for e in range(in_start[i], in_start[i + 1]):
            if end[makers[e]] > latest:
                latest, source, by = end[makers[e]], makers[e], e
        for j in after[after_start[i] : after_start[i + 1]]:
            if end[j] > latest:
                latest, source, by = end[j], j, -1
        end.append(latest + weight)
        come.append((source, by))
    i = max(range(len(end)), key=end.__getitem__, default=-1)
    length, ops, reads = (end[i] if end else 0.0), [], []
    while i >= 0:
        ops.append(i)
        i, by = come[i]
        reads.append(by)
    return Path(length, np.array(ops[::-1], np.int32), np.array(reads[::-1], np.int32))


def _before(relaxed: Relaxed) -> tuple[list[int], list[int], list[int], list[int]]:
    """What each operation waits for, as plain lists: their elements are read much faster."""
    graph = relaxed.problem.graph
    makers, after = graph.tensor_op[graph.in_tensor].tolist(), graph.after_op.tolist()
    return makers, graph.in_start.tolist(), after, graph.after_start.tolist()


def path_row(relaxed: Relaxed, path: Path, name: str) -> Row:
    """The time along a path: its operations and its transfers, one after the other."""
    return _row(relaxed, path, name, np.ones(len(path.ops), bool), {})


def stage_row(relaxed: Relaxed, path: Path, shares: NDArray[np.float64], name: str) -> tuple[float, Row]:
    """The time along a path with stages, each by what takes longest where the shares put things; and how long then."""
    low, high = _spread(relaxed, path)
    cost = np.where(relaxed.cost_ps == NEVER, 0, relaxed.cost_ps)
    part = cost * shares[relaxed.problem.groups]
    best: tuple[float, Bools, dict[int, list[Ints]]] = (0.0, np.ones(len(path.ops), bool), {})
    for reach in REACHES:
        along, gain = np.ones(len(path.ops), bool), 0.0
        loads: dict[int, list[Ints]] = {}
        for first, last, members in _stages(relaxed, path, low, high, reach):
            sums = part[members].sum(axis=0) / relaxed.classes.size
            k = int(sums.argmax())
            more = float(sums[k] - part[path.ops[first + 1 : last]].sum())
            if more > 0:
                gain += more
                along[first + 1 : last] = False
                loads.setdefault(k, []).append(members)
        if gain > best[0]:
            best = gain, along, loads
    row = _row(relaxed, path, name, best[1], {k: np.concatenate(parts) for k, parts in best[2].items()})
    return path.length + best[0], row


def _row(relaxed: Relaxed, path: Path, name: str, along: Bools, loads: dict[int, Ints]) -> Row:
    """What counts along the path, and of other operations on one class each."""
    groups, count = relaxed.problem.groups, relaxed.problem.n_groups
    cost = np.where(relaxed.cost_ps == NEVER, 0, relaxed.cost_ps)
    ops = path.ops[along]
    columns = {k: summed(groups[ops], cost[ops, k], count) for k in range(relaxed.n_classes)}
    for k, members in loads.items():
        columns[k] += summed(groups[members], cost[members, k], count) / int(relaxed.classes.size[k])
    # A read counts where both its ends do: within a stage that a device takes, transfers are no part of its work.
    follows = along.copy()
    follows[1:] &= along[:-1]
    reads = path.reads[follows]
    reads = reads[reads >= 0]
    factor = (relaxed.classes.apart & relaxed.classes.reached).astype(np.float64)
    return Row(name, 0, columns, (Pairs(reads[relaxed.crossing[reads]], factor),))


def _spread(relaxed: Relaxed, path: Path) -> tuple[Ints, Ints]:
    """Of every operation: the last of the path that it follows (-1: none), and the first that it precedes."""
    makers, in_start, after, after_start = _before(relaxed)
    n, length = relaxed.problem.n_ops, len(path.ops)
    place = [-1] * n
    for j, i in enumerate(path.ops.tolist()):
        place[i] = j
    low, high = [-1] * n, [length] * n
    for i in range(n):
        for j in (*makers[in_start[i] : in_start[i + 1]], *after[after_start[i] : after_start[i + 1]]):
            low[i] = max(low[i], place[j], low[j])
    for i in range(n - 1, -1, -1):
        mine = min(high[i], place[i]) if place[i] >= 0 else high[i]
        for j in (*makers[in_start[i] : in_start[i + 1]], *after[after_start[i] : after_start[i + 1]]):
            high[j] = min(high[j], mine)
    return np.array(low, np.int32), np.array(high, np.int32)


def _stages(relaxed: Relaxed, path: Path, low: Ints, high: Ints, reach: int) -> list[tuple[int, int, Ints]]:
    """The places of two gates one after the other on the path, and all operations between them."""
    graph, length = relaxed.problem.graph, len(path.ops)
    on_path = np.full(graph.n_ops, -1, np.int64)
    on_path[path.ops] = np.arange(length)
    beside = np.flatnonzero((on_path < 0) & ~graph.off_queue & (low >= 0) & (high < length) & (high - low <= reach))
    covered = np.zeros(length + 1, np.int64)
    np.add.at(covered, low[beside] + 1, 1)
    np.add.at(covered, high[beside], -1)
    gates = np.flatnonzero(np.cumsum(covered)[:-1] == 0)
    inner = np.concatenate([beside, path.ops[np.setdiff1d(np.arange(length), gates)]])
    stage = np.searchsorted(gates, np.where(on_path[inner] >= 0, on_path[inner], low[inner]), side="right") - 1
    order = np.argsort(stage, kind="stable")
    cuts = np.searchsorted(stage[order], np.arange(len(gates)))
    found = []
    for g in range(len(gates) - 1):
        members = inner[order[cuts[g] : cuts[g + 1]]]
        if len(members):
            found.append((int(gates[g]), int(gates[g + 1]), members))
    return found

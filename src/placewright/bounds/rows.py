"""The rows that every placement obeys: loads of devices and channels, time along a path, memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placewright.bounds.moments import moments
from placewright.bounds.relaxed import Pairs, Relaxed, Row, summed
from placewright.graph import Ints


def load_rows(relaxed: Relaxed) -> list[Row]:
    """Loads of devices and, but for `max_load`, of channels: what is busy is busy within the objective."""
    classes, main = relaxed.classes, relaxed.main
    rows = []
    for k in range(relaxed.n_classes):
        size = int(classes.size[k])
        columns = {k: relaxed.group_ps[:, k] / size}
        pairs: tuple[Pairs, ...] = ()
        if relaxed.problem.objective == "max_load" and not classes.is_host[k]:
            factor = np.zeros(classes.apart.shape)
            factor[k, :] += 1.0 / size  # what it sends
            factor[:, k] += 1.0 / size  # and what it receives
            pairs = (Pairs(main, factor * classes.apart),)
        rows.append(Row(f"devices {k}", 0, columns, pairs))
    if relaxed.problem.objective != "max_load":
        rows += [
            Row(f"channels {q}", 0, {}, (Pairs(main, classes.busy[:, :, q] * classes.apart),))
            for q in range(classes.busy.shape[2])
        ]
    return rows


def memory_rows(relaxed: Relaxed) -> list[Row]:
    """What a set of pools holds: persistent bytes, and beside them what certain operations need."""
    rows = []
    for s, capacity in enumerate(relaxed.classes.capacity.tolist()):
        here = np.flatnonzero(relaxed.classes.pools_of == s)
        held = relaxed.held[:, s].astype(np.float64)
        tight = moments(relaxed, s)
        if not tight and int(held.sum()) <= capacity:
            continue
        for moment in (None, *tight):
            columns = {int(k): held for k in here}
            pairs: tuple[Pairs, ...] = ()
            name = f"memory {s}"
            if moment is not None:
                name += f" at operation {moment.op}"
                here_only = np.isin(np.arange(relaxed.n_classes), here)
                columns = {k: column + moment.columns for k, column in columns.items()}
                pairs = (
                    Pairs(moment.borrowed, np.outer(~here_only, here_only).astype(np.float64), moment.borrowed_bytes),
                    Pairs(moment.spanning, np.outer(here_only, here_only).astype(np.float64), moment.spanning_bytes),
                )
            rows.append(Row(name, capacity, columns, pairs, s))
    return rows


def path_row(relaxed: Relaxed, ops: list[int], reads: list[int], number: int) -> Row:
    """The time along one path of the graph: its operations, and its transfers, one after the other."""
    groups = relaxed.problem.groups[ops]
    columns = {}
    for k in range(relaxed.n_classes):
        cost = np.where(relaxed.allowed[groups, k], relaxed.cost_ps[ops, k], 0)
        columns[k] = summed(groups, cost, relaxed.problem.n_groups)
    crossing: Ints = np.array([e for e in reads if relaxed.crossing[e]], np.int32)
    factor = (relaxed.classes.apart & relaxed.classes.reached).astype(np.float64)
    return Row(f"path {number}", 0, columns, (Pairs(crossing, factor),))


def heaviest_path(relaxed: Relaxed, weights: NDArray[np.float64]) -> tuple[float, list[int], list[int]]:
    """The largest sum of weights along a path, its operations, and its reads (the largest between two)."""
    graph = relaxed.problem.graph
    makers, in_start = graph.tensor_op[graph.in_tensor].tolist(), graph.in_start.tolist()
    after, after_start = graph.after_op.tolist(), graph.after_start.tolist()
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
        if by >= 0:
            reads.append(by)
    return length, ops[::-1], reads[::-1]

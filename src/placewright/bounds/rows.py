"""The rows that every placement obeys: loads of devices and channels, time along a path, memory."""

from __future__ import annotations

import numpy as np

from placewright.bounds.moments import moments, needs
from placewright.bounds.relaxed import Pairs, Relaxed, Row, summed
from placewright.graph import STORE
from placewright.sim.lower import NEVER

MOST_KINDS = 32
"""Kinds of channels that have a row, those on which a byte takes longest."""
MOST_SETS = 3
"""Sets of pools for which single operations are looked at, the smallest."""


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
        slowness = (classes.busy / classes.bytes_per_s[:, :, None]).max(axis=(0, 1))
        for q in np.sort(np.argsort(-slowness, kind="stable")[:MOST_KINDS]).tolist():
            factor = classes.busy[:, :, q] * classes.apart
            rows.append(Row(f"channels {q}", 0, {}, (Pairs(main, factor),), again=factor))
    return rows


def memory_rows(relaxed: Relaxed) -> list[Row]:
    """What a set of pools holds: persistent bytes, and beside them what certain operations need."""
    rows = []
    small = np.argsort(relaxed.classes.capacity, kind="stable")[:MOST_SETS]
    for s, capacity in enumerate(relaxed.classes.capacity.tolist()):
        here = np.flatnonzero(relaxed.classes.pools_of == s)
        held = relaxed.held[:, s].astype(np.float64)
        tight = moments(relaxed, s) if s in small else []
        if not tight and int(held.sum()) <= capacity:
            continue
        for moment in (None, *tight):
            columns = {int(k): held for k in here}
            pairs: tuple[Pairs, ...] = ()
            name, held_on = f"memory {s}", None
            if moment is not None:
                name += f" at operation {moment.op}"
                here_only = np.isin(np.arange(relaxed.n_classes), here)
                columns = {k: column + moment.columns for k, column in columns.items()}
                into = np.outer(~here_only, here_only).astype(np.float64)
                pairs = (
                    Pairs(moment.borrowed, into, moment.borrowed_bytes),
                    Pairs(moment.spanning, np.outer(here_only, here_only).astype(np.float64), moment.spanning_bytes),
                )
                if moment is tight[0] and relaxed.problem.objective != "max_load":
                    held_on = Pairs(moment.twice, into, moment.twice_bytes)
            rows.append(Row(name, capacity, columns, pairs, s, held_on))
    return rows


def occupancy_rows(relaxed: Relaxed, horizon_ps: int) -> list[Row]:
    """What memory holds on average over a step, if the step takes no longer than `horizon_ps`.

    Persistent bytes are there all the time. What an operation makes and reads is there while it runs, and a tensor
    that is received while it is on its way; one that is borrowed also while its reader runs.
    """
    graph, classes, pool_of = relaxed.problem.graph, relaxed.classes, np.array(relaxed.problem.machine.pool_of)
    stored = np.zeros(graph.n_tensors, bool)  # what a store receives occupies nothing
    stored[graph.in_tensor[graph.phase[graph.read_op] == STORE]] = True
    reads = relaxed.main[~stored[graph.in_tensor[relaxed.main]]]
    tensors = graph.in_tensor[reads]
    cost = np.where(relaxed.cost_ps == NEVER, 0, relaxed.cost_ps)
    rows = []
    for s, capacity in enumerate(classes.capacity.tolist()):
        here = classes.pools_of == s
        pools = pool_of[here[classes.of]]
        if len(np.unique(pools)) < len(pools):
            continue  # devices of one pool may read the same bytes at the same time
        need, size = needs(relaxed, int(classes.granule[s]))
        columns = {
            k: relaxed.held[:, s] + summed(relaxed.problem.groups, need * (cost[:, k] / horizon_ps), len(relaxed.held))
            for k in np.flatnonzero(here).tolist()
        }
        there, in_set = np.flatnonzero(~here).tolist(), np.flatnonzero(here).tolist()
        ways = [relaxed.lasts(tensors, a, b) for a in there for b in in_set]
        lasts = np.min(ways, axis=0, initial=np.inf) if ways else np.zeros(len(reads))
        runs = np.where(relaxed.cost_ps == NEVER, np.inf, relaxed.cost_ps)[:, here].min(axis=1)[graph.read_op[reads]]
        runs = np.where(graph.persistent[tensors] & np.isfinite(runs), runs, 0.0)
        factor = np.outer(~here, here) / horizon_ps
        rows.append(
            Row(f"memory {s} on average", capacity, columns, (Pairs(reads, factor, size[tensors] * (lasts + runs)),), s)
        )
    return rows

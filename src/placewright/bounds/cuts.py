"""A bound for `max_load`: the least load of any device that has a certain group.

Whatever else is on the device, it computes that, and is charged for every tensor that it exchanges with the rest. So
its load is at least that of the best choice of companions, which is a minimum cut: a group costs its time if it is on
the side of the first, and a tensor costs its transfer if it leaves that side, and again if it comes to it.

    G groups, K classes, T tensors that another group reads
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.bounds.relaxed import Relaxed
from placewright.graph import Longs
from placewright.sim.lower import NEVER, PICO

MOST_FLOWS = 256
"""Groups from which a cut is looked for, on each class: those with most work."""
MOST_STEPS = 4_000_000
"""Groups, tensors and reads of all flows together; in larger graphs fewer groups are tried."""
ROOM = 31
"""Bits of a capacity."""


def least_loads(relaxed: Relaxed) -> Longs:
    """(G,) the load of a device with the group on it, wherever that is, is no less."""
    least = np.where(relaxed.allowed, relaxed.group_ps, NEVER)
    for k in range(relaxed.n_classes):
        if not relaxed.classes.is_host[k]:
            _cut(relaxed, k, least[:, k])
    found: Longs = least.min(axis=1)
    return found


def _cut(relaxed: Relaxed, k: int, least: Longs) -> None:
    """Raise the least loads of groups on a class."""
    from scipy.sparse.csgraph import maximum_flow

    network, shift = _network(relaxed, k)
    sink = network.shape[0] - 1
    most = min(MOST_FLOWS, MOST_STEPS // max(1, network.nnz))
    order = np.argsort(-relaxed.group_ps[:, k], kind="stable")[:most]
    for g in order[relaxed.allowed[order, k]].tolist():
        least[g] = max(least[g], int(maximum_flow(network, g, sink).flow_value) << shift)


def _network(relaxed: Relaxed, k: int) -> tuple[Any, int]:
    """Capacities (groups, tensors that leave, tensors that come, the end), in picoseconds shifted to the right."""
    from scipy.sparse import csr_matrix

    graph, groups = relaxed.problem.graph, relaxed.problem.n_groups
    reads = np.flatnonzero(relaxed.crossing)
    maker, reader = relaxed.ends[0][reads].astype(np.int64), relaxed.ends[1][reads].astype(np.int64)
    tensors, number = np.unique(graph.in_tensor[reads], return_inverse=True)
    made_by = np.zeros(len(tensors), np.int64)
    made_by[number] = maker
    leaves, comes = groups + np.arange(len(tensors)), groups + len(tensors) + np.arange(len(tensors))
    sent, received = _charges(relaxed, k, tensors)
    end = groups + 2 * len(tensors)
    finite = int(relaxed.group_ps[:, k].sum()) + int(sent.sum()) + int(received.sum())
    shift = max(0, finite.bit_length() - ROOM + 1)
    endless = np.int64((1 << ROOM) - 1)
    stays = np.where(relaxed.allowed[:, k], relaxed.group_ps[:, k] >> shift, endless)
    edges = (
        (np.arange(groups), np.full(groups, end), stays),
        (made_by, leaves, sent >> shift),  # made here, and read elsewhere
        (leaves[number], reader, np.full(len(reads), endless)),
        (reader, comes[number], np.full(len(reads), endless)),
        (comes, made_by, received >> shift),  # read here, and made elsewhere
    )
    source, target, room = (np.concatenate(column) for column in zip(*edges, strict=True))
    pairs = np.unique(np.stack([source, target]), axis=1, return_index=True)[1]  # several reads of one tensor
    shape = (end + 1, end + 1)
    return csr_matrix((room[pairs].astype(np.int32), (source[pairs], target[pairs])), shape=shape), shift


def _charges(relaxed: Relaxed, k: int, tensors: NDArray[np.int32]) -> tuple[Longs, Longs]:
    """What it costs a device of the class to send a tensor to any other, and to receive it, at least; 0 if unknown."""
    classes, sides = relaxed.classes, []
    given = relaxed.lowered.transfer_ps[tensors]
    for out in (True, False):
        least = np.full(len(tensors), np.inf)
        for other in range(relaxed.n_classes):
            a, b = (k, other) if out else (other, k)
            if other == k and classes.size[k] < 2:
                continue
            apart = classes.twins_apart[k] if other == k else classes.apart[a, b]
            if not apart:
                least[:] = 0
            elif classes.reached[a, b]:
                by_route = classes.latency_s[a, b] + relaxed.lowered.raw_bytes[tensors] / classes.bytes_per_s[a, b]
                least = np.minimum(least, np.where(given >= 0, given, np.rint(by_route * PICO)))
        sides.append(np.where(np.isfinite(least), least, 0.0).astype(np.int64))
    return sides[0], sides[1]

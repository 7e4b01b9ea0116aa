"""The objectives that are sums, `max_load` and `throughput`: the same transfers and visits, no clock."""

from __future__ import annotations

from placewright.sim.build import move_ps, prepare
from placewright.sim.jit import inline, plain
from placewright.sim.lower import IN0, IN1, IS_STORE, NEVER, NONE, OFF_QUEUE, OUT0, OUT1
from placewright.sim.work import (
    DONE,
    FIRST_MOVE,
    HOLDS,
    IS_HERE,
    IS_REPEAT,
    IS_VISIT,
    NEXT_OF_TENSOR,
    ROOT,
    ROUTE,
    STATE,
    TARGET,
    USES,
)  # fmt: skip


@inline
def add_loads(p, w, place, max_load):
    """Busy time of devices and channels; for `max_load` the devices' loads, transfers included."""
    for i in range(len(p.ops)):
        w.device_busy[place[i]] += p.cost_ps[i, place[i]]
    for t in range(len(p.tensors)):
        k = w.live[t, FIRST_MOVE]
        most, source = 0, 0
        while k != NONE:
            r, d = w.moves[k, ROUTE], w.moves[k, TARGET]
            lasts = move_ps(p, t, r)
            for c in range(p.route_start[r], p.route_start[r + 1]):
                w.channel_busy[p.route_channel[c]] += lasts
            source = r // len(p.pool_of)
            most = max(most, lasts)
            if max_load and not p.is_host[d] and not w.moves[k, STATE] & IS_REPEAT:
                w.device_busy[d] += lasts
            k = w.moves[k, NEXT_OF_TENSOR]
        if max_load and most and not p.is_host[source]:
            w.device_busy[source] += most


@inline
def add_storage(p, w, size, mark, t, d):
    """Count the bytes that tensor t occupies on device d once for the operation `mark`."""
    root = w.live[t, ROOT]
    if root == NONE or w.live[root, HOLDS] == mark:
        return size
    w.live[root, HOLDS] = mark
    return size + p.size[root, p.granule_of[d]]


@inline
def operation_bytes(p, w, place, i):
    """Bytes of operation i alone: workspace and the transient tensors that it reads and makes."""
    d = place[i]
    size = p.work_bytes[i, p.granule_of[d]]
    for t in range(p.ops[i, OUT0], p.ops[i, OUT1]):
        size = add_storage(p, w, size, i, t, d)
    if p.ops[i, OFF_QUEUE] == IS_STORE:
        return size
    for e in range(p.ops[i, IN0], p.ops[i, IN1]):
        k = w.read_move[e]
        if k == NONE:
            size = add_storage(p, w, size, i, p.in_tensor[e], d)
        elif not w.moves[k, STATE] & IS_VISIT:
            size += w.move_bytes[k]
    return size


@inline
def add_peaks(p, w, place):
    """Persistent bytes at home + the largest set of visits held at any operation + the largest operation."""
    for t in range(len(p.tensors)):
        w.live[t, HOLDS] = NONE
    w.held[:] = 0
    w.largest[:] = 0  # from here on: the largest set of visits
    w.listed[:] = 0  # and the largest operation
    for i in range(len(p.ops)):
        d = place[i]
        w.listed[d] = max(w.listed[d], operation_bytes(p, w, place, i))
        for e in range(p.ops[i, IN0], p.ops[i, IN1]):
            k = w.read_move[e]
            if k != NONE and w.moves[k, STATE] & IS_VISIT and not w.moves[k, STATE] & IS_HERE:
                w.moves[k, STATE] |= IS_HERE
                w.held[d] += w.move_bytes[k]
        w.largest[d] = max(w.largest[d], w.held[d])
        for e in range(p.ops[i, IN0], p.ops[i, IN1]):
            k = w.read_move[e]
            if k != NONE and w.moves[k, STATE] & IS_VISIT:
                left = w.moves[k, USES] - 1
                w.moves[k, USES] = left
                if left == 0:
                    w.held[d] -= w.move_bytes[k]
    for pool in range(p.n_pools):
        w.peak[pool] = w.now[pool]
    for d in range(len(p.pool_of)):
        w.peak[p.pool_of[d]] += w.largest[d] + w.listed[d]


@plain
def run(p, w, place, windows, max_load):
    """Loads of one placement; returns (status, the largest load in ps)."""
    status = prepare(p, w, place, windows)
    if status != DONE:
        return status, NEVER
    add_loads(p, w, place, max_load)
    add_peaks(p, w, place)
    value = 0
    for d in range(len(p.pool_of)):
        value = max(value, w.device_busy[d])
    if not max_load:
        for c in range(p.n_channels):
            value = max(value, w.channel_busy[c])
    return status, value

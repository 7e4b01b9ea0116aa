"""Building what depends on the placement: homes of bytes, transfers, and the visits of borrowed tensors.

Transfers and visits are numbered in order of (first consumer, tensor), so under `stream` their number
is their rank.
"""

from __future__ import annotations

import numpy as np

from placewright.sim.jit import inline
from placewright.sim.lower import (
    DETACHABLE,
    IN0,
    IN1,
    IS_STORE,
    MAKER,
    MARKS,
    NEEDS,
    NEVER,
    NONE,
    OFF_QUEUE,
    OUTPUT,
    PERSISTENT,
    PICO,
    STORAGE,
)  # fmt: skip
from placewright.sim.work import (
    BAD,
    BORROW,
    BORROWER,
    DONE,
    FIRST_MOVE,
    FIRST_USE,
    HOLDS,
    IS_REPEAT,
    IS_VISIT,
    LEFT,
    N_MOVES,
    NEWER,
    NEXT_BORROW,
    NEXT_IN_QUEUE,
    NEXT_OF_TENSOR,
    NO_COST,
    NO_ROUTE,
    OF_TENSOR,
    OLDER,
    ROOT,
    ROUTE,
    STATE,
    STREAM,
    TAIL,
    TARGET,
    TENSOR,
    USES,
    VISIT,
)  # fmt: skip

UNLISTED = np.uint32(0xFFFFFFFE)
"""In place of an older neighbour: the borrow is not on its device's list."""


@inline
def move_ps(p, tensor, route):
    """Picoseconds of a transfer."""
    if p.transfer_ps[tensor] >= 0:
        return p.transfer_ps[tensor]
    return np.int64(np.rint((p.route_latency_s[route] + p.raw_bytes[tensor] / p.route_bytes_per_s[route]) * PICO))


@inline
def root_of(p, place, t):
    """The transient tensor whose bytes t occupies, or -1 if they belong to a persistent one."""
    marks = p.tensors[t, MARKS]
    base = p.tensors[t, STORAGE]
    if marks & PERSISTENT:
        return NONE
    if not marks & DETACHABLE:
        if base == t:
            return base
        t, marks, base = base, p.tensors[base, MARKS], p.tensors[base, STORAGE]
        if marks & PERSISTENT:
            return NONE
        if not marks & DETACHABLE:
            return np.uint32(t)
    home = p.pool_of[place[p.tensors[base, MAKER]]]
    return NONE if home == p.pool_of[place[p.tensors[t, MAKER]]] else np.uint32(t)


@inline
def new_move(p, w, t, source, target, read, state):
    """A transfer or visit of tensor t, at the end of the tensor's list; returns its number."""
    k = w.count[N_MOVES]
    w.count[N_MOVES] = k + 1
    move = w.moves[k]
    move[TENSOR] = t
    move[TARGET] = target
    move[USES] = 0
    move[NEXT_IN_QUEUE] = NONE
    move[NEXT_OF_TENSOR] = w.live[t, FIRST_MOVE]
    move[ROUTE] = source * len(p.pool_of) + target
    move[STATE] = state
    move[FIRST_USE] = p.in_use[read]
    w.move_key[k] = k
    w.move_bytes[k] = p.size[t, p.granule_of[target]]
    w.live[t, FIRST_MOVE] = k
    root = w.live[t, ROOT]
    if root != NONE:
        w.live[root, HOLDS] += 1
    return np.uint32(k)


@inline
def reset(p, w, place):
    """Clear the work arrays; returns NO_COST if an operation is where it cannot run."""
    w.count[:] = 0
    w.now[:] = 0
    w.device_busy[:] = 0
    w.channel_busy[:] = 0
    w.ends[:] = NEVER
    w.heads[:] = 0
    w.route_queue[:] = NONE
    w.taken[:] = 0
    w.wait[:] = NONE
    w.waits[:] = 0
    w.in_look[:] = 0
    w.held[:] = 0
    w.raised[:] = 0
    w.visits[:] = NONE
    for i in range(len(p.ops)):
        d = place[i]
        if p.cost_ps[i, d] == NEVER:
            w.count[BAD] = i
            return NO_COST
        w.needs[i] = p.ops[i, NEEDS]
        if p.ops[i, OFF_QUEUE] == 0:
            w.heads[d, TAIL] += 1
    total = 0
    for d in range(len(p.pool_of)):
        size = w.heads[d, TAIL]
        for column in range(4):
            w.heads[d, column] = total
        w.heads[d, 4] = -1
        total += size
    for t in range(len(p.tensors)):
        root = root_of(p, place, t)
        w.live[t, ROOT] = root
        w.live[t, HOLDS] = 0
        w.live[t, FIRST_MOVE] = NONE
        w.live[t, BORROW] = NONE
        if root != NONE:  # at most t, hence cleared
            w.live[root, HOLDS] += 1 + (p.tensors[t, MARKS] & OUTPUT != 0)
    for t in p.persistent:
        d = place[p.tensors[t, MAKER]]
        w.now[p.pool_of[d]] += p.size[t, p.granule_of[d]]
    return DONE


@inline
def count_borrows(p, w, place, windows):
    """One row per (persistent tensor, borrowing device), and every device's window."""
    w.largest[:] = 0
    w.listed[:] = 0
    w.lru[:] = NONE
    least = w.window
    least[:] = 0
    rows = 0
    sum_of, sum_here = -1, 0
    for i, e in p.persistent_reads:
        t, d = p.in_tensor[e], place[i]
        if p.pool_of[place[p.tensors[t, MAKER]]] == p.pool_of[d]:
            continue
        b = w.live[t, BORROW]
        while b != NONE and w.borrows[b, BORROWER] != d:
            b = w.borrows[b, NEXT_BORROW]
        if b == NONE:
            b = np.uint32(rows)
            rows += 1
            w.borrows[b, LEFT] = 0
            w.borrows[b, VISIT] = NONE
            w.borrows[b, BORROWER] = d
            w.borrows[b, OF_TENSOR] = t
            w.borrows[b, NEXT_BORROW] = w.live[t, BORROW]
            w.live[t, BORROW] = b
        w.borrows[b, LEFT] += 1
        size = p.size[t, p.granule_of[d]]
        sum_here = sum_here + size if sum_of == i else size
        sum_of = i
        least[d] = max(least[d], sum_here)
        w.largest[d] = max(w.largest[d], size)
    for d in range(len(p.pool_of)):
        if windows[d] < 0:
            w.window[d] = least[d] + w.largest[d]
        elif windows[d] < least[d]:
            w.raised[d] = 1
        else:
            w.window[d] = windows[d]


@inline
def unlink(w, d, b):
    """Take borrow b from device d's list."""
    older, newer = w.borrows[b, OLDER], w.borrows[b, NEWER]
    if older != NONE:
        w.borrows[older, NEWER] = newer
    else:
        w.lru[d, 0] = newer
    if newer != NONE:
        w.borrows[newer, OLDER] = older
    else:
        w.lru[d, 1] = older


@inline
def find_borrow(w, t, d):
    """The row of a persistent tensor that device d borrows."""
    b = w.live[t, BORROW]
    while w.borrows[b, BORROWER] != d:
        b = w.borrows[b, NEXT_BORROW]
    return b


@inline
def borrow(p, w, t, source, d, e):
    """Serve read e on device d by the visit that lists t, or by a new one; t becomes the newest listed."""
    b = find_borrow(w, t, d)
    k = w.borrows[b, VISIT]
    if k == NONE or w.borrows[b, OLDER] == UNLISTED:
        k = new_move(p, w, t, source, d, e, IS_VISIT | (IS_REPEAT if k != NONE else 0))
        w.borrows[b, VISIT] = k
        w.next_visit[k] = NONE
        if w.visits[d, 0] == NONE:
            w.visits[d, 0] = k
        else:
            w.next_visit[w.visits[d, 1]] = k
        w.visits[d, 1] = k
        w.listed[d] += w.move_bytes[k]
    else:
        unlink(w, d, b)
    w.borrows[b, OLDER] = w.lru[d, 1]
    w.borrows[b, NEWER] = NONE
    if w.lru[d, 1] != NONE:
        w.borrows[w.lru[d, 1], NEWER] = b
    else:
        w.lru[d, 0] = b
    w.lru[d, 1] = b
    w.borrows[b, LEFT] -= 1
    return k


@inline
def drop_borrows(p, w, i, d):
    """After operation i: drop the least recently used beyond the window, then what has no later consumer."""
    while w.listed[d] > w.window[d]:
        b = w.lru[d, 0]
        unlink(w, d, b)
        w.borrows[b, OLDER] = UNLISTED  # no longer listed
        w.listed[d] -= w.move_bytes[w.borrows[b, VISIT]]
    for e in range(p.ops[i, IN0], p.ops[i, IN1]):
        k = w.read_move[e]
        if k != NONE and w.moves[k, STATE] & IS_VISIT:
            b = find_borrow(w, p.in_tensor[e], d)
            if w.borrows[b, LEFT] == 0:
                unlink(w, d, b)
                w.borrows[b, OLDER] = UNLISTED
                w.listed[d] -= w.move_bytes[k]


@inline
def build(p, w, place):
    """Transfers and visits of a placement, in order of (first consumer, tensor)."""
    devices = len(p.pool_of)
    stream = p.discipline == STREAM
    for i in range(len(p.ops)):
        d = place[i]
        if stream and p.ops[i, OFF_QUEUE] == 0:
            w.queue[w.heads[d, TAIL]] = i
            w.heads[d, TAIL] += 1
        visited = False
        for e in range(p.ops[i, IN0], p.ops[i, IN1]):
            t = p.in_tensor[e]
            source = place[p.tensors[t, MAKER]]
            root = w.live[t, ROOT]
            if p.pool_of[source] == p.pool_of[d]:
                w.read_move[e] = NONE
                if root != NONE:
                    w.live[root, HOLDS] += 1
                continue
            lent = p.tensors[t, MARKS] & PERSISTENT != 0
            if stream and lent:
                k = borrow(p, w, t, source, d, e)
                visited = True
            else:
                k = w.live[t, FIRST_MOVE]
                while k != NONE and w.moves[k, TARGET] != d:
                    k = w.moves[k, NEXT_OF_TENSOR]
                if k == NONE:
                    k = new_move(p, w, t, source, d, e, IS_VISIT if lent else 0)
                    if stream:
                        append_to_route(w, w.moves[k, ROUTE], k)
            if not p.route_ok[source * devices + d]:
                w.count[BAD] = t
                return NO_ROUTE
            w.read_move[e] = k
            w.moves[k, USES] += 1
            if p.ops[i, OFF_QUEUE] == IS_STORE:
                w.move_bytes[k] = 0  # what a store receives is written over the parameter
        if visited:
            drop_borrows(p, w, i, d)
    return DONE


@inline
def append_to_route(w, r, k):
    """Put transfer k at the end of its route's queue."""
    if w.route_queue[r, 0] == NONE:
        w.route_queue[r, 0] = k
    else:
        w.moves[w.route_queue[r, 1], NEXT_IN_QUEUE] = k
    w.route_queue[r, 1] = k


@inline
def prepare(p, w, place, windows):
    """Everything that comes before the first round; returns DONE, NO_COST or NO_ROUTE."""
    status = reset(p, w, place)
    if status == DONE:
        if p.discipline == STREAM:
            count_borrows(p, w, place, windows)
        status = build(p, w, place)
    return status

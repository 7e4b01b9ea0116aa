"""The kernel: the step of one placement, simulated in rounds.

Compiled by Numba, without Python objects and without the interpreter's lock. Under `stream` the rank of a
transfer is its number; under `ready` and `priority` it is (round ready, tensor, destination).
"""

from __future__ import annotations

import numpy as np

from placewright.sim.build import prepare
from placewright.sim.jit import inline, plain
from placewright.sim.lower import (
    DETACHABLE,
    IN0,
    IN1,
    MAKER,
    MARKS,
    NEVER,
    NEXT0,
    NEXT1,
    NONE,
    OFF_QUEUE,
    OUT0,
    OUT1,
    USE0,
    USE1,
)
from placewright.sim.moves import free_channel, look_at, make_ready, start_moves
from placewright.sim.queues import pop_heap, push_heap, sort_stretch
from placewright.sim.work import (
    BAD,
    BASE,
    DIRTY,
    DONE,
    FIRST_MOVE,
    FIRST_USE,
    FRESH,
    FRESH_ROUND,
    HEAD,
    HOLDS,
    IS_VISIT,
    N_FLYING,
    N_IDLE,
    N_LOOK,
    N_STACK,
    NEXT_OF_TENSOR,
    PRIORITY,
    READY,
    ROOT,
    ROUND,
    ROUTE,
    STATE,
    STREAM,
    STUCK,
    TAIL,
    TENSOR,
    USES,
)  # fmt: skip


@inline
def satisfy(p, w, place, priorities, i, what):
    """Operation i waits for `what` (0 or 1) things less."""
    w.needs[i] -= what
    if what & (w.needs[i] == 0):
        arrive(p, w, place, priorities, i)


@inline
def arrive(p, w, place, priorities, i):
    """Operation i has all that it waited for."""
    if p.ops[i, OFF_QUEUE]:
        w.stack[w.count[N_STACK]] = i
        w.count[N_STACK] += 1
        return
    d = place[i]
    tail = w.heads[d, TAIL]
    if p.discipline == READY:
        if w.heads[d, FRESH_ROUND] != w.count[ROUND]:
            w.heads[d, FRESH_ROUND], w.heads[d, FRESH] = w.count[ROUND], tail
        elif w.queue[tail - 1] > i:
            w.count[DIRTY] = 1
        w.queue[tail] = i
        w.heads[d, TAIL] = tail + 1
    elif p.discipline == PRIORITY:
        push_heap(w.queue, w.heads[d, BASE], tail - w.heads[d, BASE], priorities, i)
        w.heads[d, TAIL] = tail + 1
    if w.ends[d] == NEVER:
        w.idle[w.count[N_IDLE]] = d
        w.count[N_IDLE] += 1


@inline
def release(p, w, pool, granule, root):
    """One thing that held the bytes of a transient tensor in a pool has ended."""
    left = w.live[root, HOLDS] - 1
    w.live[root, HOLDS] = left
    w.now[pool] -= p.size[root, granule] if left == 0 else 0


@inline
def end_op(p, w, place, priorities, i):
    """Operation i ends: its outputs are there, what it read is released."""
    d = place[i]
    pool, granule = p.pool_of[d], p.granule_of[d]
    w.now[pool] -= p.work_bytes[i, granule]
    for t in range(p.ops[i, OUT0], p.ops[i, OUT1]):
        for u in range(p.tensors[t, USE0], p.tensors[t, USE1]):
            satisfy(p, w, place, priorities, p.use[u, 0], w.read_move[p.use[u, 1]] == NONE)
        k = w.live[t, FIRST_MOVE]
        while k != NONE:
            make_ready(p, w, k)
            k = w.moves[k, NEXT_OF_TENSOR]
        if w.live[t, ROOT] != NONE:
            release(p, w, pool, granule, w.live[t, ROOT])
    for s in range(p.ops[i, NEXT0], p.ops[i, NEXT1]):
        satisfy(p, w, place, priorities, p.after[s], True)
    for e in range(p.ops[i, IN0], p.ops[i, IN1]):
        k = w.read_move[e]
        if k == NONE:
            root = w.live[p.in_tensor[e], ROOT]
            if root != NONE:
                release(p, w, pool, granule, root)
            continue
        left = w.moves[k, USES] - 1
        w.moves[k, USES] = left
        if left == 0:
            w.now[pool] -= w.move_bytes[k]
            if p.discipline == STREAM and w.moves[k, STATE] & IS_VISIT:
                w.held[d] -= w.move_bytes[k]
                if w.visits[d, 0] != NONE:
                    look_at(w, w.moves[w.visits[d, 0], ROUTE])


@inline
def end_move(p, w, place, priorities, k):
    """Transfer k ends: its consumers have their input, its channels are free."""
    r, t = w.moves[k, ROUTE], w.moves[k, TENSOR]
    left, u = w.moves[k, USES], w.moves[k, FIRST_USE]
    while left > 0:
        mine = w.read_move[p.use[u, 1]] == k
        satisfy(p, w, place, priorities, p.use[u, 0], mine)
        left -= mine
        u = np.uint32(u + 1)
    if w.live[t, ROOT] != NONE:
        home = place[p.tensors[t, MAKER]]
        release(p, w, p.pool_of[home], p.granule_of[home], w.live[t, ROOT])
    for c in range(p.route_start[r], p.route_start[r + 1]):
        free_channel(w, p.route_channel[c])


@inline
def end_all(p, w, place, priorities, time, record):
    """Step 1: end what is on the stack; inputs, parameters and stores whose inputs are there follow at once."""
    at, sample = 0, False
    while at < w.count[N_STACK]:
        i = w.stack[at]
        if p.ops[i, OFF_QUEUE]:
            allocate(p, w, place, i)
            sample = True
            if record:
                w.op_times[i, 0], w.op_times[i, 1] = time, w.count[ROUND]
        if record:
            w.op_times[i, 2], w.op_times[i, 3] = time, w.count[ROUND]
        end_op(p, w, place, priorities, i)
        at += 1
    w.count[N_STACK] = 0
    if w.count[DIRTY]:
        w.count[DIRTY] = 0
        for d in range(len(p.pool_of)):
            if w.heads[d, FRESH_ROUND] == w.count[ROUND]:
                sort_stretch(w.queue, w.heads[d, FRESH], w.heads[d, TAIL])
    if sample:
        for pool in range(p.n_pools):
            w.peak[pool] = max(w.peak[pool], w.now[pool])


@inline
def allocate(p, w, place, i):
    """Take the bytes of operation i's outputs and workspace."""
    d = place[i]
    pool, granule = p.pool_of[d], p.granule_of[d]
    w.now[pool] += p.own_bytes[i, granule] + p.work_bytes[i, granule]
    for t in range(p.ops[i, OUT0], p.ops[i, OUT1]):
        if p.tensors[t, MARKS] & DETACHABLE and w.live[t, ROOT] == t:
            w.now[pool] += p.size[t, granule]


@inline
def start_ops(p, w, place, priorities, time, record):
    """Step 2: each idle device starts at most one operation. Their order changes nothing."""
    while w.count[N_IDLE]:
        w.count[N_IDLE] -= 1
        d = w.idle[w.count[N_IDLE]]
        base, head, tail = w.heads[d, BASE], w.heads[d, HEAD], w.heads[d, TAIL]
        if w.ends[d] != NEVER or (head == tail if p.discipline != PRIORITY else base == tail):
            continue
        if p.discipline == PRIORITY:
            i = pop_heap(w.queue, base, tail - base, priorities)
            w.heads[d, TAIL] = tail - 1
        else:
            i = w.queue[head]
            if p.discipline == STREAM and w.needs[i] > 0:
                continue
            w.heads[d, HEAD] = head + 1
        cost = p.cost_ps[i, d]
        w.running[d] = i
        w.ends[d] = time + cost
        w.device_busy[d] += cost
        allocate(p, w, place, i)
        pool = p.pool_of[d]
        w.peak[pool] = max(w.peak[pool], w.now[pool])
        if record:
            w.op_times[i, 0], w.op_times[i, 1] = time, w.count[ROUND]


@inline
def next_ends(p, w, place, priorities, record):
    """Go to the earliest pending end and collect what ends then; returns that time, or NEVER."""
    first_end, first_landing = NEVER, NEVER
    for d in range(len(p.pool_of)):
        first_end = min(first_end, w.ends[d])
    for at in range(w.count[N_FLYING]):
        first_landing = min(first_landing, w.lands[at])
    soonest = min(first_end, first_landing)
    if soonest == NEVER:
        return soonest
    w.count[ROUND] += 1
    if first_end == soonest:
        for d in range(len(p.pool_of)):
            if w.ends[d] == soonest:
                w.ends[d] = NEVER
                w.idle[w.count[N_IDLE]] = d
                w.count[N_IDLE] += 1
                w.stack[w.count[N_STACK]] = w.running[d]
                w.count[N_STACK] += 1
    if first_landing > soonest:
        return soonest
    at = 0
    while at < w.count[N_FLYING]:
        k = w.flying[at]
        if w.lands[at] == soonest:
            last = w.count[N_FLYING] - 1
            w.flying[at], w.lands[at] = w.flying[last], w.lands[last]
            w.count[N_FLYING] = last
            if record:
                w.move_times[k, 3] = w.count[ROUND]
            end_move(p, w, place, priorities, k)
        else:
            at += 1
    return soonest


@plain
def run(p, w, place, priorities, windows, record):
    """Simulate one placement; returns (status, end of the step in ps)."""
    status = prepare(p, w, place, windows)
    if status != DONE:
        return status, NEVER
    for pool in range(p.n_pools):
        w.peak[pool] = w.now[pool]
    for i in range(len(p.ops)):
        if w.needs[i] == 0:
            arrive(p, w, place, priorities, i)
    time, now = np.int64(0), np.int64(0)
    while now != NEVER:
        time = now
        end_all(p, w, place, priorities, time, record)
        start_ops(p, w, place, priorities, time, record)
        if w.count[N_LOOK]:
            start_moves(p, w, time, record)
        now = next_ends(p, w, place, priorities, record)
    for i in range(len(p.ops)):
        if w.needs[i] > 0:
            w.count[BAD] = i
            return STUCK, NEVER
    return DONE, time

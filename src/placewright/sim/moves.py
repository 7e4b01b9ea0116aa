"""Transfers and visits on their way: when they may start, and step 3, which starts them."""

from __future__ import annotations

import numpy as np

from placewright.sim.build import append_to_route, move_ps
from placewright.sim.jit import inline
from placewright.sim.lower import NEVER, NONE
from placewright.sim.work import (
    IS_READY,
    IS_VISIT,
    N_FLYING,
    N_LOOK,
    NEXT_IN_QUEUE,
    ROUND,
    ROUTE,
    STATE,
    STREAM,
    TARGET,
    TENSOR,
)  # fmt: skip


@inline
def look_at(w, r):
    """Let step 3 of this round look at route r."""
    if not w.in_look[r]:
        w.in_look[r] = 1
        w.look[w.count[N_LOOK]] = r
        w.count[N_LOOK] += 1


@inline
def forget(w, at):
    """Take a route from those to look at."""
    w.in_look[w.look[at]] = 0
    w.count[N_LOOK] -= 1
    w.look[at] = w.look[w.count[N_LOOK]]


@inline
def make_ready(p, w, k):
    """Transfer k may start from this round on."""
    w.moves[k, STATE] |= IS_READY
    r = w.moves[k, ROUTE]
    if p.discipline != STREAM:
        t = w.moves[k, TENSOR]
        key = (w.count[ROUND] << 32) | (np.int64(t) << 8) | w.moves[k, TARGET]
        w.move_key[k] = key
        tail = w.route_queue[r, 1]
        if w.route_queue[r, 0] == NONE or w.move_key[tail] < key:
            append_to_route(w, r, k)
        else:  # several tensors of one round came in another order than theirs
            h, ahead = w.route_queue[r, 0], NONE
            while w.move_key[h] < key:
                h, ahead = w.moves[h, NEXT_IN_QUEUE], h
            w.moves[k, NEXT_IN_QUEUE] = h
            if ahead == NONE:
                w.route_queue[r, 0] = k
            else:
                w.moves[ahead, NEXT_IN_QUEUE] = k
    if w.route_queue[r, 0] == k or w.moves[k, STATE] & IS_VISIT:
        look_at(w, r)


@inline
def busy_channel(p, w, r):
    """A channel of route r that a transfer occupies, or NONE."""
    busy = NONE
    for c in range(p.route_start[r], p.route_start[r + 1]):
        channel = p.route_channel[c]
        if w.taken[channel]:
            busy = channel
    return busy


@inline
def wait_for(w, r, channel):
    """Look at route r again when the channel is free."""
    if not w.waits[r]:
        w.waits[r] = 1
        w.wait_next[r] = w.wait[channel]
        w.wait[channel] = r


@inline
def free_channel(w, channel):
    """The channel is free: look at the routes that wait for it."""
    w.taken[channel] = 0
    r = w.wait[channel]
    w.wait[channel] = NONE
    while r != NONE:
        w.waits[r] = 0
        look_at(w, r)
        r = w.wait_next[r]


@inline
def head_of(p, w, r):
    """The transfer or visit that route r would start now, or -1."""
    best = w.route_queue[r, 0]
    if best != NONE and not w.moves[best, STATE] & IS_READY:
        best = NONE
    if p.discipline == STREAM:
        d = r % len(p.pool_of)
        v = w.visits[d, 0]
        if (
            v != NONE
            and w.moves[v, ROUTE] == r
            and w.moves[v, STATE] & IS_READY
            and w.held[d] + w.move_bytes[v] <= w.window[d]
            and (best == NONE or v < best)
        ):
            best = v
    return best


@inline
def start_moves(p, w, time, record):
    """Step 3: repeatedly start the best transfer that can start."""
    while w.count[N_LOOK]:
        best, best_key, at = NONE, NEVER, 0
        while at < w.count[N_LOOK]:
            r = w.look[at]
            k = head_of(p, w, r)
            if k != NONE:
                channel = busy_channel(p, w, r)
                if channel != NONE:
                    wait_for(w, r, channel)
                    k = NONE
            if k == NONE:
                forget(w, at)
            else:
                if w.move_key[k] < best_key:
                    best, best_key = k, w.move_key[k]
                at += 1
        if best != NONE:
            start_move(p, w, best, time, record)


@inline
def start_move(p, w, k, time, record):
    """Start transfer k: it leaves its queue, takes its channels and its bytes."""
    r, d = w.moves[k, ROUTE], w.moves[k, TARGET]
    if p.discipline == STREAM and w.moves[k, STATE] & IS_VISIT:
        w.held[d] += w.move_bytes[k]
        w.visits[d, 0] = w.next_visit[k]
        if w.visits[d, 0] != NONE:
            look_at(w, w.moves[w.visits[d, 0], ROUTE])
    else:
        w.route_queue[r, 0] = w.moves[k, NEXT_IN_QUEUE]
    lasts = move_ps(p, w.moves[k, TENSOR], r)
    for c in range(p.route_start[r], p.route_start[r + 1]):
        channel = p.route_channel[c]
        w.channel_busy[channel] += lasts
        w.taken[channel] = 1
    pool = p.pool_of[d]
    w.now[pool] += w.move_bytes[k]
    w.peak[pool] = max(w.peak[pool], w.now[pool])
    at = w.count[N_FLYING]
    w.flying[at], w.lands[at] = k, time + lasts
    w.count[N_FLYING] = at + 1
    if record:
        w.move_times[k, 0], w.move_times[k, 1] = time, time + lasts
        w.move_times[k, 2] = w.count[ROUND]

"""Walks: annealing in which every step changes a few groups and simulates the whole placement.

A change moves a cluster of groups (or what of it holds bytes for the whole step, or the rest) to another device,
exchanges two clusters, moves a stretch of consecutive groups or a ball of tied ones, or gives a device another
streaming window. Kinds that helped are drawn more often. A change that persistent bytes alone show to overflow a pool
is mended by moving other bytes away, or not simulated.

    G groups, D devices, P pools, A kinds of change, L clusters of all levels together
"""

from __future__ import annotations

import numpy as np

from placewright.sim import kernel, loads
from placewright.sim.changes import (
    KIND,
    MAX_LOAD,
    OVER,
    STEP,
    VALUE,
    WINDOW,
    change,
    copy,
    mended,
    undo,
)
from placewright.sim.draws import below, share
from placewright.sim.jit import inline, plain
from placewright.sim.lower import NEVER
from placewright.sim.work import DONE

ROUND_SHARE = 0.25
"""The share of balls and stretches of everything, which need no structure to be known."""
AGAIN = 0.2
"""The chance that a change is followed by another before both are simulated: two for one where memory is tight."""


@plain
def value_of(p, w, g, s, priorities):
    """Simulate: (bytes over, value), both NEVER where it cannot run."""
    if g.objective == STEP:
        status, value = kernel.run(p, w, s.place, priorities, s.windows, False)
    else:
        status, value = loads.run(p, w, s.place, s.windows, g.objective == MAX_LOAD)
    s.count[1] += 1
    if status != DONE:
        return NEVER, NEVER
    over = np.int64(0)
    for pool in range(len(g.capacity)):
        over += max(np.int64(0), w.peak[pool] - g.capacity[pool])
    return over, value


@inline
def pick(g, s):
    """A kind of change, by how often it helped."""
    first = share(s)
    if first < s.pace[3] + ROUND_SHARE and len(s.tries) > 3:  # the first kinds: single groups, then balls and stretches
        return below(s, 2) + (0 if first < s.pace[3] else 2)
    total = 0.0
    for a in range(len(s.tries)):
        total += (s.gains[a] + 1.0) / (s.tries[a] + 20.0)
    spare = 0.25 * total / len(s.tries)
    at = share(s) * 1.25 * total
    for a in range(len(s.tries)):
        at -= (s.gains[a] + 1.0) / (s.tries[a] + 20.0) + spare
        if at < 0:
            return a
    return len(s.tries) - 1


@plain
def begin(p, w, g, s, priorities):
    """Value the present row and make it the best."""
    s.used[:] = 0
    s.sides[:] = 0
    for group in range(len(s.row)):
        d = s.row[group]
        s.used[g.pool_of[d]] += g.held[group, g.pool_of[d]]
        for k in range(g.apart_start[group], g.apart_start[group + 1]):
            s.sides[g.apart_side[k], d] += 1
        for k in range(g.group_start[group], g.group_start[group + 1]):
            s.place[g.group_ops[k]] = d
    over, value = value_of(p, w, g, s, priorities)
    s.now[OVER], s.now[VALUE] = over, value
    copy(s.peak, w.peak)
    keep_best(s)


@inline
def keep_best(s):
    """The present placement is the best so far."""
    s.best[OVER], s.best[VALUE] = s.now[OVER], s.now[VALUE]
    copy(s.best_row, s.row)
    copy(s.best_windows, s.windows)


@plain
def walk(p, w, g, s, priorities):
    """Simulate changes with a falling temperature, as `pace` says."""
    steps, hot, cold = np.int64(s.pace[0]), s.pace[1], s.pace[2]
    begin(p, w, g, s, priorities)
    ratio = (cold / hot) ** (1.0 / max(1, steps - 1))
    heat = hot
    last = s.count[1] + steps - 1
    tries = 0
    while s.count[1] < last and tries < 20 * steps:
        tries += 1
        s.count[0] = 0
        s.count[2] += 1
        a = pick(g, s)
        s.tries[a] += 1
        d, old_window = np.int64(0), np.int64(0)
        if g.kinds[a, KIND] == WINDOW:
            d = below(s, len(s.windows))
            old_window = s.windows[d]
            s.windows[d] = g.window_options[d, below(s, g.window_options.shape[1])]
            if s.windows[d] == old_window:
                continue
        else:
            copy(s.before, s.used)
            made = change(g, s, a)
            while made and share(s) < AGAIN:
                b = pick(g, s)
                made = g.kinds[b, KIND] == WINDOW or change(g, s, b)
            if not made or not mended(g, s, a, s.before):
                undo(g, s)
                continue
        over, value = value_of(p, w, g, s, priorities)
        heat *= ratio
        worse = over > s.now[OVER] or (over == s.now[OVER] and value > s.now[VALUE])
        if worse:
            fair = over == 0 and s.now[OVER] == 0 and value != NEVER
            if not fair or share(s) >= np.exp(-(value - s.now[VALUE]) / (heat * s.now[VALUE] + 1.0)):
                if g.kinds[a, KIND] == WINDOW:
                    s.windows[d] = old_window
                undo(g, s)
                continue
        s.now[OVER], s.now[VALUE] = over, value
        copy(s.peak, w.peak)
        if over < s.best[OVER] or (over == s.best[OVER] and value < s.best[VALUE]):
            keep_best(s)
            s.gains[a] += 1.0

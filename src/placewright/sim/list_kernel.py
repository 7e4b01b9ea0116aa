"""List scheduling: ranks, groups decided one by one, and slots with insertion (HEFT and CPOP).

The rules are on docs/algorithms/list-scheduling.md; `list_greedy.py` has those of ETF.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs
# Numba types the kernels; their arguments are the tuples of arrays in list_tasks.py.

from __future__ import annotations

import numpy as np

from placewright.sim.jit import inline, plain
from placewright.sim.list_tasks import DONE, FAR, N_LEFT, N_TOUCHED, NONE, NOTHING, ON, PASSIVE, STAMP
from placewright.sim.lower import PICO
from placewright.sim.queues import pop_heap, push_heap

# What is passive, and ranks ---------------------------------------------------------------------------------------


@plain
def find_passive(t, timeless):
    """Mark as passive what takes no time anywhere and waits for nothing but the passive of its own group."""
    for j in range(len(t.kind)):
        passive = timeless[j] != 0
        for e in range(t.in_start[j], t.in_start[j + 1]):
            i = t.in_op[e]
            passive = passive and t.kind[i] == PASSIVE and t.group[i] == t.group[j]
        if passive:
            t.kind[j] = PASSIVE
        for e in range(t.in_start[j], t.in_start[j + 1]):
            if t.kind[t.in_op[e]] == PASSIVE:
                t.in_mean[e] = 0.0


@plain
def find_ranks(t, moves, up, down):
    """Longest paths: `up` from the start of each operation to the end, `down` from the beginning to its start.

    `moves` is 1 where mean transfer times count, 0 where they do not.
    """
    n = len(t.kind)
    up[:] = 0.0
    down[:] = 0.0
    for j in range(n):
        for e in range(t.in_start[j], t.in_start[j + 1]):
            i = t.in_op[e]
            down[j] = max(down[j], down[i] + t.mean[i] + (t.in_mean[e] if moves else 0.0))
    for j in range(n - 1, -1, -1):
        up[j] += t.mean[j]
        for e in range(t.in_start[j], t.in_start[j + 1]):
            i = t.in_op[e]
            up[i] = max(up[i], up[j] + (t.in_mean[e] if moves else 0.0))


# Where a group may be, and what fits ------------------------------------------------------------------------------


@inline
def may(t, w, g, d):
    """Whether group g, not decided yet, may be on device d beside those that were."""
    free = t.choices[g, d] != 0
    for k in range(t.apart_start[g], t.apart_start[g + 1]):
        free = free and w.taken[t.apart_side[k] ^ 1, d] == 0
    return free


@inline
def is_open(t, w, g, d):
    """Whether operations of group g may be scheduled on device d."""
    return w.decided[g] == d or (w.decided[g] < 0 and may(t, w, g, d))


@inline
def move(t, e, source, d):
    """The time of what edge e carries, from one device to another."""
    if t.in_fixed[e] == NOTHING or t.pool_of[source] == t.pool_of[d]:
        return 0.0
    if t.route_ok[source, d] == 0:
        return FAR
    if t.in_fixed[e] >= 0:
        return t.in_fixed[e]
    return np.rint((t.latency_s[source, d] + t.in_bytes[e] / t.bytes_per_s[source, d]) * PICO)


@plain
def reaches(t, w, j, d):
    """When everything that operation j waits for could be on device d.

    What is not decided yet is passive: it is there at once where it may be, else it comes from the nearest device.
    """
    latest = 0.0
    for e in range(t.in_start[j], t.in_start[j + 1]):
        i = t.in_op[e]
        g = t.group[i]
        at = 0.0
        if w.decided[g] >= 0:
            at = w.finish[i] + move(t, e, w.decided[g], d)
        elif not may(t, w, g, d):
            at = FAR
            for source in range(len(t.pool_of)):
                if may(t, w, g, source):
                    at = min(at, move(t, e, source, d))
        latest = max(latest, at)
    return latest


@inline
def level_of(w, t, pool, need, held, work):
    """0 where so much more fits with all that is alive; 1 where only persistent bytes fit; else 2."""
    if w.used[pool] + need + max(w.working[pool], work) <= t.capacity[pool]:
        return 0
    return 1 if w.held[pool] + held <= t.capacity[pool] else 2


@inline
def group_tier(t, w, g, d):
    """How well group g fits on device d."""
    pool = t.pool_of[d]
    return level_of(w, t, pool, t.need[g, pool], t.bytes[g, pool], t.work[g, pool])


@plain
def tier(t, w, j, d):
    """How well operation j fits on device d with the undecided groups that it would bring along."""
    pool = t.pool_of[d]
    need, held, work, brings = 0, 0, 0, False
    w.count[STAMP] += 1
    for e in range(t.in_start[j] - 1, t.in_start[j + 1]):  # one before the first stands for the operation itself
        g = t.group[j] if e < t.in_start[j] else t.group[t.in_op[e]]
        if w.decided[g] < 0 and w.mark[g] != w.count[STAMP] and may(t, w, g, d):
            w.mark[g] = w.count[STAMP]
            need += t.need[g, pool]
            held += t.bytes[g, pool]
            work = max(work, t.work[g, pool])
            brings = True
    return level_of(w, t, pool, need, held, work) if brings else 0


# Deciding ---------------------------------------------------------------------------------------------------------


@inline
def put(t, w, g, d):
    """Decide that group g is on device d."""
    pool = t.pool_of[d]
    w.decided[g] = d
    w.used[pool] += t.need[g, pool]
    w.held[pool] += t.bytes[g, pool]
    w.working[pool] = max(w.working[pool], t.work[g, pool])
    for k in range(t.apart_start[g], t.apart_start[g + 1]):
        w.taken[t.apart_side[k], d] = 1
    w.touched[w.count[N_TOUCHED]] = g
    w.count[N_TOUCHED] += 1


@inline
def home(t, w, g, e, d):
    """Where undecided group g goes, read by edge e on device d: by (tier, transfer time, d itself, index)."""
    best, best_tier, best_move = NONE, 3, 0.0
    for h in range(len(t.pool_of)):
        if may(t, w, g, h):
            fit, time = group_tier(t, w, g, h), move(t, e, h, d)
            better = fit < best_tier or (fit == best_tier and (time < best_move or (time == best_move and h == d)))
            if better:
                best, best_tier, best_move = h, fit, time
    return best


@plain
def put_forced(t, w):
    """Decide every group of a separation that one device is left for, until none is; the group without any, or DONE."""
    changed = True
    while changed:
        changed = False
        for g in range(len(w.decided)):
            if w.decided[g] < 0 and t.apart_start[g] < t.apart_start[g + 1]:
                count, only = 0, NONE
                for d in range(len(t.pool_of)):
                    if may(t, w, g, d):
                        count += 1
                        only = d
                if count == 0:
                    return g
                if count == 1:
                    put(t, w, g, only)
                    changed = True
    return DONE


@inline
def decide_group(t, w, g, d):
    """Put a group on a device, and others where that leaves them; the group that cannot go anywhere, or DONE."""
    if d < 0:
        return g
    put(t, w, g, d)
    return put_forced(t, w) if t.apart_start[g] < t.apart_start[g + 1] else DONE


@inline
def decide(t, w, j, d):
    """Put operation j's group on device d and what it reads where that goes; the group that cannot go, or DONE."""
    stuck = DONE if d >= 0 else t.group[j]
    for e in range(t.in_start[j] - 1, t.in_start[j + 1]):  # one before the first stands for the operation itself
        own = e < t.in_start[j]
        g = t.group[j] if own else t.group[t.in_op[e]]
        if stuck == DONE and w.decided[g] < 0:
            stuck = decide_group(t, w, g, d if own else home(t, w, g, e, d))
    return stuck


@plain
def decide_rest(t, w):
    """Put every group that nothing scheduled reads on its first device that fits best."""
    for g in range(len(w.decided)):
        if w.decided[g] < 0:
            best, best_tier = NONE, 3
            for d in range(len(t.pool_of)):
                if may(t, w, g, d) and group_tier(t, w, g, d) < best_tier:
                    best, best_tier = d, group_tier(t, w, g, d)
            stuck = decide_group(t, w, g, best)
            if stuck != DONE:
                return stuck
    return DONE


# Slots ------------------------------------------------------------------------------------------------------------


@inline
def find_gap(w, d, ready, cost):
    """The first idle period of device d in which an operation that is ready then can run to its end."""
    low, high = 0, w.gaps[d] - 1  # the last has no end
    while low < high:
        middle = (low + high) >> 1
        if w.gap_end[d, middle] < ready + cost:
            low = middle + 1
        else:
            high = middle
    while max(w.gap_start[d, low], ready) + cost > w.gap_end[d, low]:
        low += 1
    return low


@inline
def fill_gap(w, d, k, start, finish):
    """Take a time from idle period k of device d; what is left of it before and after stays idle."""
    before = w.gap_start[d, k] < start
    after = finish < w.gap_end[d, k]
    if before and after:
        for m in range(w.gaps[d], k + 1, -1):
            w.gap_start[d, m] = w.gap_start[d, m - 1]
            w.gap_end[d, m] = w.gap_end[d, m - 1]
        w.gaps[d] += 1
        w.gap_start[d, k + 1] = finish
        w.gap_end[d, k + 1] = w.gap_end[d, k]
        w.gap_end[d, k] = start
    elif before:
        w.gap_end[d, k] = start
    elif after:
        w.gap_start[d, k] = finish
    else:
        w.gaps[d] -= 1
        for m in range(k, w.gaps[d]):
            w.gap_start[d, m] = w.gap_start[d, m + 1]
            w.gap_end[d, m] = w.gap_end[d, m + 1]


@inline
def earliest(t, w, j):
    """Where operation j ends first, among the devices where it fits best; or NONE."""
    best, best_tier, best_finish = NONE, 3, 0.0
    for d in range(len(t.pool_of)):
        if is_open(t, w, t.group[j], d):
            finish = reaches(t, w, j, d)
            if t.kind[j] == ON:
                k = find_gap(w, d, finish, t.cost[j, d])
                finish = max(finish, w.gap_start[d, k])
            finish += t.cost[j, d]
            fit = tier(t, w, j, d)
            if fit < best_tier or (fit == best_tier and finish < best_finish):
                best, best_tier, best_finish = d, fit, finish
    return best


@inline
def run_at(t, w, j, d):
    """Schedule operation j on device d in the first slot; the group that cannot be decided, or DONE."""
    stuck = decide(t, w, j, d)
    if stuck == DONE:
        start = reaches(t, w, j, d)
        if t.kind[j] == ON:
            k = find_gap(w, d, start, t.cost[j, d])
            start = max(start, w.gap_start[d, k])
            if start + t.cost[j, d] > start:
                fill_gap(w, d, k, start, start + t.cost[j, d])
        w.start[j] = start
        w.finish[j] = start + t.cost[j, d]
    return stuck


# The two methods --------------------------------------------------------------------------------------------------


@plain
def heft(t, w, order):
    """Operations in the given order, each where it ends first."""
    stuck = put_forced(t, w)
    for k in range(len(order)):
        if stuck != DONE:
            return stuck
        if t.kind[order[k]] != PASSIVE:
            stuck = run_at(t, w, order[k], earliest(t, w, order[k]))
    return decide_rest(t, w) if stuck == DONE else stuck


@plain
def count_waits(t, w):
    """For every operation, the edges from others that are to be scheduled before it."""
    for j in range(len(t.kind)):
        w.waits[j] = 0
        for e in range(t.in_start[j], t.in_start[j + 1]):
            w.waits[j] += t.kind[t.in_op[e]] != PASSIVE
        w.count[N_LEFT] += t.kind[j] != PASSIVE


@plain
def cpop(t, w, priorities, on_path, device):
    """The ready operation of largest priority next: that of the path on `device`, others where they end first."""
    count_waits(t, w)
    stuck, size = put_forced(t, w), 0
    for j in range(len(t.kind)):
        if w.waits[j] == 0 and t.kind[j] != PASSIVE:
            push_heap(w.ready, 0, size, priorities, j)
            size += 1
    while size and stuck == DONE:
        j = pop_heap(w.ready, 0, size, priorities)
        size -= 1
        d = device
        if not (on_path[j] != 0 and is_open(t, w, t.group[j], d) and tier(t, w, j, d) == 0):
            d = earliest(t, w, j)
        stuck = run_at(t, w, j, d)
        for k in range(t.out_start[j], t.out_start[j + 1]):
            i = t.out_op[k]
            w.waits[i] -= 1
            if w.waits[i] == 0:
                push_heap(w.ready, 0, size, priorities, i)
                size += 1
    return decide_rest(t, w) if stuck == DONE else stuck

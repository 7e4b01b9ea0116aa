"""List scheduling by earliest start: ETF, and with favourites the rule of SCT.

Every device has two heaps of (time, level, operation): *waiting*, by when the operation's inputs could be there, and
*startable*, of those that only wait for the device. An entry is checked when it comes to the top: times only grow, so
one that is out of date goes back with its new time. What does not fit is dropped, and put in again when a decision
could have made it fit. With favourites, a second pair of heaps goes by when the inputs could be on every device.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs
# Numba types the kernels; their arguments are the tuples of arrays in list_tasks.py.

from __future__ import annotations

import numpy as np

from placewright.sim.jit import inline, plain
from placewright.sim.list_kernel import count_waits, decide, decide_rest, is_open, put_forced, reaches, tier
from placewright.sim.list_tasks import APART, DONE, N_LEFT, N_OFFERED, N_READY, N_TOUCHED, NONE, ON, PASSIVE

# Heaps by (key, larger level, index) ------------------------------------------------------------------------------


@inline
def goes_first(level, key, a, other, b):
    """Whether operation a with this key goes before b with the other."""
    return key < other or (key == other and (level[a] > level[b] or (level[a] == level[b] and a < b)))


@plain
def push(heaps, level, row, key, j):
    """Add an operation to a heap."""
    at = heaps.size[row]
    heaps.size[row] += 1
    while at > 0:
        up = (at - 1) >> 1
        if not goes_first(level, key, j, heaps.key[row, up], heaps.op[row, up]):
            break
        heaps.key[row, at], heaps.op[row, at] = heaps.key[row, up], heaps.op[row, up]
        at = up
    heaps.key[row, at], heaps.op[row, at] = key, j


@plain
def pop(heaps, level, row):
    """Take the first operation from a heap."""
    size = heaps.size[row] - 1
    heaps.size[row] = size
    key, j = heaps.key[row, size], heaps.op[row, size]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        if down + 1 < size and goes_first(
            level, heaps.key[row, down + 1], heaps.op[row, down + 1], heaps.key[row, down], heaps.op[row, down]
        ):
            down += 1
        if not goes_first(level, heaps.key[row, down], heaps.op[row, down], key, j):
            break
        heaps.key[row, at], heaps.op[row, at] = heaps.key[row, down], heaps.op[row, down]
        at = down
    heaps.key[row, at], heaps.op[row, at] = key, j


# Candidates -------------------------------------------------------------------------------------------------------


@inline
def arrival(t, w, j, d, everywhere):
    """When the inputs of operation j could be on device d, or on every device that its group could ever be on."""
    return reaches_all(t, w, j) if everywhere else reaches(t, w, j, d)


@plain
def reaches_all(t, w, j):
    """When the inputs of operation j could be on every device that its group could ever be on."""
    latest = 0.0
    for d in range(len(t.pool_of)):
        if t.choices[t.group[j], d]:
            latest = max(latest, reaches(t, w, j, d))
    return latest


@inline
def is_candidate(t, w, j, d):
    """Whether operation j may be scheduled on device d now and fits."""
    first = t.first[t.group[j], d] != 0 or w.decided[t.group[j]] == d
    return w.done[j] == 0 and first and is_open(t, w, t.group[j], d) and tier(t, w, j, d) == 0


@inline
def best_on(t, w, level, d, everywhere):
    """The operation that starts first on device d, or -1, and when it does."""
    devices = len(t.pool_of)
    waiting = 2 * devices * everywhere + d
    startable = waiting + devices
    while w.heaps.size[waiting] and w.heaps.key[waiting, 0] <= w.free[d]:
        j = w.heaps.op[waiting, 0]
        pop(w.heaps, level, waiting)
        if w.done[j] == 0 and is_open(t, w, t.group[j], d):
            at = arrival(t, w, j, d, everywhere)
            if at <= w.free[d]:
                push(w.heaps, level, startable, 0.0, j)
            else:
                push(w.heaps, level, waiting, at, j)
    while w.heaps.size[startable]:
        j = w.heaps.op[startable, 0]
        if is_candidate(t, w, j, d):
            at = arrival(t, w, j, d, everywhere)
            if at <= w.free[d]:
                return j, w.free[d]
            push(w.heaps, level, waiting, at, j)
        pop(w.heaps, level, startable)
    while w.heaps.size[waiting]:
        j = w.heaps.op[waiting, 0]
        at = arrival(t, w, j, d, everywhere)
        fits = is_candidate(t, w, j, d)
        if fits and at == w.heaps.key[waiting, 0]:
            return j, at
        pop(w.heaps, level, waiting)
        if fits:
            push(w.heaps, level, waiting, at, j)
    return NONE, 0.0


@inline
def candidate(t, w, level, d):
    """The operation to schedule next on device d, or -1, and when it would start.

    A device whose last operation has a favourite is kept free for that; another may start before it only when it is
    urgent, which means that its inputs could be on every device by then.
    """
    last = w.last[d]
    favourite = t.favourite[last] if last >= 0 else NONE
    awake = favourite >= 0 and w.done[favourite] == 0 and is_open(t, w, t.group[favourite], d)
    j, start = best_on(t, w, level, d, awake)
    if awake and w.ready_at[favourite] >= 0 and is_candidate(t, w, favourite, d):
        own = max(w.free[d], reaches(t, w, favourite, d))
        if j < 0 or own <= start:
            return favourite, own
    return j, start


@plain
def any_pair(t, w, level):
    """For when no ready operation fits where it goes first: that of largest level, by (tier, start, end, index)."""
    chosen = w.ready[0]
    for k in range(w.count[N_READY]):
        if goes_first(level, 0.0, w.ready[k], 0.0, chosen):
            chosen = w.ready[k]
    j = chosen
    best, best_tier, best_start, best_end = NONE, 3, 0.0, 0.0
    for d in range(len(t.pool_of)):
        if is_open(t, w, t.group[j], d):
            fit = tier(t, w, j, d)
            start = max(w.free[d], reaches(t, w, j, d))
            end = start + t.cost[j, d]
            if fit < best_tier or (
                fit == best_tier and (start < best_start or (start == best_start and end < best_end))
            ):
                best, best_tier, best_start, best_end = d, fit, start, end
    return j, best


# The loop ---------------------------------------------------------------------------------------------------------


@inline
def offer(t, w, level, j):
    """Put a ready operation into the heaps of every device where it may be; none where they have no room left."""
    devices = len(t.pool_of)
    if w.count[N_OFFERED] == w.heaps.op.shape[1]:
        return
    w.count[N_OFFERED] += 1
    both = w.heaps.size.shape[0] > 2 * devices
    for d in range(devices):
        if is_open(t, w, t.group[j], d):
            push(w.heaps, level, d, reaches(t, w, j, d), j)
            if both:
                push(w.heaps, level, 2 * devices + d, reaches_all(t, w, j), j)


@plain
def settle(t, w, j):
    """Schedule an operation that is on no queue where its inputs are first; the stuck group, or DONE."""
    best, best_tier, best_at = NONE, 3, 0.0
    for d in range(len(t.pool_of)):
        if is_open(t, w, t.group[j], d):
            fit, at = tier(t, w, j, d), reaches(t, w, j, d)
            if fit < best_tier or (fit == best_tier and at < best_at):
                best, best_tier, best_at = d, fit, at
    if best < 0:
        return t.group[j]
    stuck = decide(t, w, j, best)
    if stuck == DONE:
        w.start[j] = w.finish[j] = reaches(t, w, j, best)
        w.done[j] = 1
    return stuck


@plain
def release(t, w, level, queue, size):
    """Go through operations that wait for nothing: settle those off the queues, make the others ready."""
    at = 0
    while at < size:
        j = queue[at]
        at += 1
        if t.kind[j] == ON:
            w.ready_at[j] = w.count[N_READY]
            w.ready[w.count[N_READY]] = j
            w.count[N_READY] += 1
            offer(t, w, level, j)
            continue
        stuck = settle(t, w, j)
        if stuck != DONE:
            return stuck
        w.count[N_LEFT] -= 1
        size = follow(t, w, queue, size, j)
    return DONE


@inline
def follow(t, w, queue, size, j):
    """Append to the queue what waited for operation j alone."""
    for k in range(t.out_start[j], t.out_start[j + 1]):
        i = t.out_op[k]
        w.waits[i] -= 1
        if w.waits[i] == 0:
            queue[size] = i
            size += 1
    return size


@plain
def offer_rarely(t, w, level, j):
    """The same, compiled apart."""
    offer(t, w, level, j)


@inline
def offer_again(t, w, level):
    """Offer what a decision since the last time could have made to fit."""
    for k in range(w.count[N_TOUCHED]):
        g = w.touched[k]
        w.count[APART] += t.apart_start[g] < t.apart_start[g + 1]
        for m in range(t.member_start[g], t.member_start[g + 1]):
            i = t.member[m]
            if w.ready_at[i] >= 0:
                offer_rarely(t, w, level, i)
            if t.kind[i] == PASSIVE:
                for e in range(t.out_start[i], t.out_start[i + 1]):
                    if w.ready_at[t.out_op[e]] >= 0:
                        offer_rarely(t, w, level, t.out_op[e])
    w.count[N_TOUCHED] = 0
    full = w.count[N_OFFERED] == w.heaps.op.shape[1]
    if full or w.count[APART]:  # what is kept apart may leave room for others anywhere
        w.heaps.size[:] = 0
        w.count[N_OFFERED] = 0
        w.count[APART] = 0
        for k in range(w.count[N_READY]):
            offer_rarely(t, w, level, w.ready[k])


@plain
def begin(t, w, queue):
    """Fill the queue with what waits for nothing; returns how many there are."""
    count_waits(t, w)
    size = 0
    for j in range(len(t.kind)):
        if w.waits[j] == 0 and t.kind[j] != PASSIVE:
            queue[size] = j
            size += 1
    return size


@plain
def greedy(t, w, level, queue):
    """Again and again the ready operation that can start first, on the device where it does."""
    size = begin(t, w, queue)
    stuck = put_forced(t, w)
    if stuck == DONE:
        stuck = release(t, w, level, queue, size)
    while stuck == DONE and w.count[N_LEFT]:
        offer_again(t, w, level)
        best, device, best_start, best_end = NONE, NONE, 0.0, 0.0
        for d in range(len(t.pool_of)):
            j, start = candidate(t, w, level, d)
            if j < 0:
                continue
            end = start + t.cost[j, d]
            if (
                best < 0
                or goes_first(level, start, j, best_start, best)
                or (start == best_start and j == best and end < best_end)
            ):
                best, device, best_start, best_end = j, d, start, end
        if best < 0:
            best, device = any_pair(t, w, level)
            if device < 0:
                return t.group[best]
        stuck = decide(t, w, best, device)
        if stuck != DONE:
            return stuck
        schedule(t, w, best, device)
        stuck = release(t, w, level, queue, follow(t, w, queue, np.int64(0), best))
    return decide_rest(t, w) if stuck == DONE else stuck


@inline
def schedule(t, w, j, d):
    """Run ready operation j on device d."""
    w.start[j] = max(w.free[d], reaches(t, w, j, d))
    w.finish[j] = w.start[j] + t.cost[j, d]
    if t.cost[j, d] > 0:
        w.free[d] = w.finish[j]
    if t.cost[j, d] > 0 or (w.last[d] >= 0 and t.favourite[w.last[d]] == j):
        w.last[d] = j
    w.done[j] = 1
    w.count[N_LEFT] -= 1
    w.count[N_READY] -= 1
    other = w.ready[w.count[N_READY]]  # the last takes its place
    w.ready[w.ready_at[j]] = other
    w.ready_at[other] = w.ready_at[j]
    w.ready_at[j] = -1

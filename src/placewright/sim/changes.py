"""Changes of a placement that walks make: by clusters, stretches of program order, and balls of tied groups.

A change is made in place and can be undone. One that persistent bytes alone show to overflow a pool is mended by
moving other bytes away.

    G groups, D devices, P pools, A kinds of change, L clusters of all levels together
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placewright.sim.draws import below, share
from placewright.sim.jit import inline, plain

MOVE, SWAP, STRETCH, BALL, WINDOW, SHIFT = range(6)
ALL, HELD, WORK = range(3)
# Columns of `kinds`
KIND, PART, FIRST, LAST = range(4)
# Entries of `now` and `best`
OVER, VALUE = range(2)
STEP, MAX_LOAD, THROUGHPUT = range(3)
MOST_TIES = 16
"""Neighbours of one group that a ball looks at; a hub would fill it by itself."""
MOST_BALL = 512.0
MOST_COLUMNS = 32.0
"""Consecutive columns of repeated blocks that shift together."""


class Terrain(NamedTuple):
    """What a walk reads of a problem beside the simulator's own arrays."""

    group_start: Any  # (G + 1,) operations by group
    group_ops: Any
    choices: Any  # (G, D)
    held: Any  # (G, P) persistent bytes
    apart_start: Any  # (G + 1,) sides of separations by group; side k may not meet side k ^ 1
    apart_side: Any
    keeps: Any  # (G,) whether the group holds a persistent tensor
    tie_start: Any  # (G + 1,) groups tied to each group
    tied: Any
    cluster_start: Any  # (L + 1,) groups by cluster
    cluster_groups: Any
    kinds: Any  # (A, 4) kind, part, first and last cluster
    capacity: Any  # (P,)
    pool_of: Any  # (D,)
    window_options: Any  # (D, W)
    objective: int


class Walker(NamedTuple):
    """What a walk changes."""

    row: Any  # (G,)
    place: Any  # (n,) devices of operations
    windows: Any  # (D,)
    best_row: Any  # (G,)
    best_windows: Any  # (D,)
    changed: Any  # (G,) groups of the present change
    was: Any  # (G,) their devices before
    mark: Any  # (G,) the step in which a group was last changed
    used: Any  # (P,) persistent bytes
    peak: Any  # (P,) of the present placement
    sides: Any  # (S, D) groups of each side of a separation on each device
    tries: Any  # (A,)
    gains: Any  # (A,)
    before: Any  # (P,) persistent bytes before the present change
    pace: Any  # (4,) steps, first and last temperature, share of changes of single groups
    now: Any  # (2,) bytes over and value
    best: Any  # (2,)
    random: Any  # (1,)
    count: Any  # (3,) changed groups, simulated placements, steps


@inline
def copy(target, source):
    """Copy an array; a slice would allocate."""
    for k in range(len(source)):
        target[k] = source[k]


@inline
def shift(g, s, group, device):
    """Have a group on a device."""
    here = s.row[group]
    s.used[g.pool_of[here]] -= g.held[group, g.pool_of[here]]
    s.used[g.pool_of[device]] += g.held[group, g.pool_of[device]]
    for k in range(g.apart_start[group], g.apart_start[group + 1]):
        s.sides[g.apart_side[k], here] -= 1
        s.sides[g.apart_side[k], device] += 1
    s.row[group] = device
    for k in range(g.group_start[group], g.group_start[group + 1]):
        s.place[g.group_ops[k]] = device


@plain
def put(g, s, group, device):
    """Move one group as part of the present change, where it may be there beside what must be apart from it."""
    here = s.row[group]
    if here == device or not g.choices[group, device]:
        return
    for k in range(g.apart_start[group], g.apart_start[group + 1]):
        if s.sides[g.apart_side[k] ^ 1, device] > 0:
            return
    if s.mark[group] != s.count[2]:
        s.mark[group] = s.count[2]
        s.changed[s.count[0]] = group
        s.was[s.count[0]] = here
        s.count[0] += 1
    shift(g, s, group, device)


@inline
def moves_with(g, group, part):
    """Whether a group belongs to the part of a cluster that moves."""
    return part == ALL or (part == HELD) == g.keeps[group]


@plain
def undo(g, s):
    """Take the present change back."""
    for k in range(s.count[0]):
        shift(g, s, s.changed[k], s.was[k])


@inline
def target_of(g, s, group):
    """A device for a group: mostly that of a tied group, else any."""
    devices = len(g.pool_of)
    count = g.tie_start[group + 1] - g.tie_start[group]
    if count > 0 and share(s) < 0.6:
        for _ in range(4):
            d = s.row[g.tied[g.tie_start[group] + below(s, count)]]
            if d != s.row[group]:
                return d
    return below(s, devices)


@plain
def put_cluster(g, s, cluster, part, device):
    """Move the groups of a cluster that are of a part."""
    for k in range(g.cluster_start[cluster], g.cluster_start[cluster + 1]):
        group = g.cluster_groups[k]
        if moves_with(g, group, part):
            put(g, s, group, device)


@inline
def any_of(g, s, cluster, part):
    """A random group of a cluster that is of a part, or -1."""
    first, last = g.cluster_start[cluster], g.cluster_start[cluster + 1]
    at = first + below(s, last - first)
    for _ in range(last - first):
        if moves_with(g, g.cluster_groups[at], part):
            return g.cluster_groups[at]
        at = at + 1 if at + 1 < last else first
    return np.int64(-1)


@plain
def put_ball(g, s, group, part, device, size):
    """Move a group and, by its ties, others of its device around it."""
    here = s.row[group]
    put(g, s, group, device)
    at = 0
    while at < s.count[0] and s.count[0] < size:
        one = s.changed[at]
        count = g.tie_start[one + 1] - g.tie_start[one]
        skip = below(s, count) if count > 0 else 0
        for k in range(min(count, MOST_TIES)):
            other = g.tied[g.tie_start[one] + (skip + k) % count]
            if s.row[other] == here and moves_with(g, other, part) and s.count[0] < size:
                put(g, s, other, device)
        at += 1


@inline
def put_stretch(g, s, part):
    """Move consecutive groups, mostly those of one device, to that of a group tied to the first."""
    groups = len(s.row)
    length = np.int64(np.exp(share(s) * np.log(max(2.0, groups / 2.0)))) + 1
    begin = below(s, groups)
    device = target_of(g, s, begin)
    here, same = s.row[begin], share(s) < 0.7
    for group in range(begin, min(groups, begin + length)):
        if moves_with(g, group, part) and (not same or s.row[group] == here):
            put(g, s, group, device)


@inline
def exchange(g, s, one, part, first, last):
    """Exchange a cluster with another of its level that is elsewhere."""
    group = any_of(g, s, one, part)
    tries = 0 if group < 0 else 4
    while tries > 0:
        tries -= 1
        two = first + below(s, last - first)
        other = any_of(g, s, two, part)
        if other >= 0 and s.row[other] != s.row[group]:
            here, there = s.row[group], s.row[other]
            put_cluster(g, s, one, part, there)
            put_cluster(g, s, two, part, here)
            tries = 0


@inline
def put_columns(g, s, part, first, last):
    """Move what corresponds in repeated blocks, in all or some in a row, so many devices on from where each is."""
    devices = len(g.pool_of)
    on = 1 + below(s, max(1, devices - 1))
    one = first + below(s, last - first)
    many = np.int64(np.exp(share(s) * np.log(MOST_COLUMNS)))
    blocks = g.cluster_start[one + 1] - g.cluster_start[one]
    begin, count = np.int64(0), blocks
    if share(s) < 0.5:
        count = np.int64(np.exp(share(s) * np.log(blocks + 0.5))) + 1
        begin = below(s, blocks)
    for cluster in range(one, min(last, one + many)):
        low = g.cluster_start[cluster] + begin
        for k in range(low, min(low + count, g.cluster_start[cluster + 1])):
            group = g.cluster_groups[k]
            if moves_with(g, group, part):
                put(g, s, group, (s.row[group] + on) % devices)


@plain
def change(g, s, a):
    """Make a change of kind a; False where it came to nothing."""
    kind, part, first, last = g.kinds[a, KIND], g.kinds[a, PART], g.kinds[a, FIRST], g.kinds[a, LAST]
    if kind == STRETCH:
        put_stretch(g, s, part)
    elif kind == BALL:
        group = below(s, len(s.row))
        device = target_of(g, s, group)
        if device != s.row[group] and moves_with(g, group, part):
            largest = max(3.0, min(MOST_BALL, len(s.row) / 2.0))
            put_ball(g, s, group, part, device, np.int64(np.exp(share(s) * np.log(largest))) + 1)
    elif kind == SHIFT:
        put_columns(g, s, part, first, last)
    elif kind == SWAP:
        exchange(g, s, first + below(s, last - first), part, first, last)
    else:
        one = first + below(s, last - first)
        group = any_of(g, s, one, part)
        if group >= 0:
            put_cluster(g, s, one, part, target_of(g, s, group))
    return s.count[0] > 0


@plain
def push_on(g, s, pool):
    """Move a group that holds bytes in a pool to the device of a tied one, where it fits."""
    groups = len(s.row)
    for _ in range(16):
        group = below(s, groups)
        if g.held[group, pool] == 0 or g.pool_of[s.row[group]] != pool or s.mark[group] == s.count[2]:
            continue
        device = target_of(g, s, group)
        there = g.pool_of[device]
        if there != pool and s.used[there] + g.held[group, there] <= g.capacity[there]:
            put(g, s, group, device)
            return


@plain
def mended(g, s, a, before):
    """Move bytes away where the change overflows a pool; False if that does not help. `before` is `used` then."""
    for pool in range(len(g.capacity)):
        grown = s.used[pool] - before[pool]
        if grown <= 0 or s.peak[pool] + grown <= g.capacity[pool]:
            continue
        if s.used[pool] <= g.capacity[pool] and share(s) < 0.2:
            continue  # the peak may be at another time
        first, last = g.kinds[a, FIRST], g.kinds[a, LAST]
        if last <= first:
            return False
        back = s.was[0]
        if g.pool_of[back] == pool:
            return False
        onward = share(s) < 0.5
        for _ in range(24):
            if onward:  # what is there goes on to a neighbour of its own
                push_on(g, s, pool)
            else:  # or back where the change came from
                cluster = first + below(s, last - first)
                for k in range(g.cluster_start[cluster], g.cluster_start[cluster + 1]):
                    group = g.cluster_groups[k]
                    if g.keeps[group] and g.pool_of[s.row[group]] == pool and s.mark[group] != s.count[2]:
                        put(g, s, group, back)
            grown = s.used[pool] - before[pool]
            if grown <= 0 or s.peak[pool] + grown <= g.capacity[pool]:
                break
        if grown > 0 and s.peak[pool] + grown > g.capacity[pool]:
            return False
    return True

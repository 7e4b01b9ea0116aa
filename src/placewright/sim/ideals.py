"""Downward-closed sets of units ("ideals"), and the dynamic programme over pairs of them.

A set is `words` numbers of 64 bits. Sets are numbered by size, so whatever is below a set has a smaller number.

    U units, W words, N sets, M links from a set to one with one unit more, C classes, S states
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placewright.sim.jit import entry, inline, plain


class Order(NamedTuple):
    """Which units come before which."""

    before: Any  # (U, W) all that must come before each unit
    after_start: Any  # (U + 1,)
    after: Any  # units right after each one


class Family(NamedTuple):
    """The sets found so far."""

    member: Any  # (N, W)
    ready: Any  # (N, W) units that may come next
    link_start: Any  # (N + 1,)
    link_unit: Any  # (M,)
    link_to: Any  # (M,)
    table: Any  # hash table of numbers of sets, -1 where empty; its length is a power of two
    count: Any  # (3,) sets, links, sets whose links are known


class Costs(NamedTuple):
    """What a part costs; see intervals.Line for the columns of the same names."""

    time: Any
    allowed: Any
    held: Any
    most: Any
    lent: Any
    capacity: Any
    pays: Any
    unit_start: Any  # (U + 1,) nets by unit
    unit_net: Any
    net_start: Any  # (N + 1,)
    net_unit: Any
    net_weight: Any
    net_open: Any
    enemy: Any  # (U, W)
    digits: Any
    count: Any
    stride: Any
    room: Any
    reference: Any  # (U,) reference seconds of each unit
    total: Any  # their sum


class Table(NamedTuple):
    """What the programme writes, and works in."""

    best: Any  # (N, S)
    back: Any  # (N, S)
    kind: Any  # (N, S)
    done: Any  # (N,) reference seconds of each set
    seen: Any  # (N,) the set from which the part at hand was reached
    sums: Any  # (N, 5, C) of that part: time, held, most, lent, whether it is possible
    moved: Any  # (N,) ps of nets that it cuts
    queue: Any  # (N,)


@plain
def slot_of(table, member, row, at):
    """Where row `at` of `row` is in the hash table, or the empty slot where it belongs."""
    mix = np.uint64(0)
    for k in range(row.shape[1]):
        mix = (mix ^ row[at, k]) * np.uint64(0x9E3779B97F4A7C15)
        mix ^= mix >> np.uint64(29)
    mask = np.uint64(len(table) - 1)
    slot = mix & mask
    while table[slot] >= 0:
        same = True
        for k in range(row.shape[1]):
            same = same and member[table[slot], k] == row[at, k]
        if same:
            break
        slot = (slot + np.uint64(1)) & mask
    return slot


@plain
def has(row, at, unit):
    """Whether a set holds a unit."""
    return (row[at, unit >> 6] >> np.uint64(unit & 63)) & np.uint64(1) != 0


@plain
def set_bit(row, at, unit):
    """Add a unit to a set, or take it out."""
    row[at, unit >> 6] ^= np.uint64(1) << np.uint64(unit & 63)


@inline
def add_set(order, f, i, unit):
    """The number of set i with one unit more, which is made if it is new."""
    words = order.before.shape[1]
    new = f.count[0]
    for k in range(words):
        f.member[new, k] = f.member[i, k]
    set_bit(f.member, new, unit)
    slot = slot_of(f.table, f.member, f.member, new)
    if f.table[slot] < 0:
        f.table[slot] = new
        f.count[0] += 1
        for k in range(words):
            f.ready[new, k] = f.ready[i, k]
        set_bit(f.ready, new, unit)
        for e in range(order.after_start[unit], order.after_start[unit + 1]):
            other = order.after[e]
            free = True
            for k in range(words):
                free = free and order.before[other, k] & ~f.member[new, k] == 0
            if free:
                set_bit(f.ready, new, other)
    return f.table[slot]


@inline
def add_unit(f, p, w, low, i, unit, to, bound):
    """Sums of the part from `low` to `to`, which is set i and one unit more; returns whether it is possible."""
    apart = False
    for k in range(f.member.shape[1]):
        apart = apart or f.member[i, k] & ~f.member[low, k] & p.enemy[unit, k] != 0
    some = False
    for c in range(len(p.count)):
        time = w.sums[i, 0, c] + p.time[unit, c]
        held = w.sums[i, 1, c] + p.held[unit, c]
        most = max(w.sums[i, 2, c], p.most[unit, c])
        lent = max(w.sums[i, 3, c], p.lent[unit, c])
        good = w.sums[i, 4, c] == 1 and p.allowed[unit, c] and not apart
        good = good and held + most + lent <= p.capacity[c] and time < bound
        w.sums[to, 0, c], w.sums[to, 1, c] = time, held
        w.sums[to, 2, c], w.sums[to, 3, c] = most, lent
        w.sums[to, 4, c] = good
        some = some or good
    return some


@inline
def cut_with(f, p, w, low, i, unit):
    """Picoseconds of nets that the part from `low` to set i and one unit more cuts."""
    moved = w.moved[i]
    for x in range(p.unit_start[unit], p.unit_start[unit + 1]):
        net = p.unit_net[x]
        inside, outside = False, p.net_open[net]
        for y in range(p.net_start[net], p.net_start[net + 1]):
            other = p.net_unit[y]
            if other == unit:
                continue
            if has(f.member, i, other) and not has(f.member, low, other):
                inside = True
            else:
                outside = True
        if outside and not inside:
            moved += p.net_weight[net]
        elif inside and not outside:
            moved -= p.net_weight[net]
    return moved


@inline
def hopeful(p, w, low, s, bound):
    """Whether the devices that state s leaves could do below the bound what set `low` leaves."""
    return w.best[low, s] < bound and p.total - w.done[low] <= p.room[s]


@inline
def enter(p, w, low, to, bound):
    """Values of `to` whose last part is the one from `low`."""
    for c in range(len(p.count)):
        load = w.sums[to, 0, c] + (w.moved[to] if p.pays[c] else 0)
        if w.sums[to, 4, c] == 0 or load >= bound:
            continue
        for s in range(len(p.room)):
            if p.digits[s, c] == p.count[c] or not hopeful(p, w, low, s, bound):
                continue
            value = max(load, w.best[low, s])
            if value < w.best[to, s + p.stride[c]]:
                w.best[to, s + p.stride[c]] = value
                w.back[to, s + p.stride[c]] = low
                w.kind[to, s + p.stride[c]] = c


@entry
def refill(f):
    """Enter all sets into an empty hash table."""
    for i in range(f.count[0]):
        f.table[slot_of(f.table, f.member, f.member, i)] = i


@entry
def grow(order, f):
    """Find sets; returns (whether arrays are full before all are known)."""
    units = len(order.before)
    while f.count[2] < f.count[0]:
        i = f.count[2]
        room = min(len(f.member) - f.count[0], len(f.link_unit) - f.count[1])
        if room <= units or 2 * (f.count[0] + units) > len(f.table):
            return True
        for unit in range(units):
            if has(f.ready, i, unit):
                f.link_to[f.count[1]] = add_set(order, f, i, unit)
                f.link_unit[f.count[1]] = unit
                f.count[1] += 1
        f.count[2] = i + 1
        f.link_start[i + 1] = f.count[1]
    return False


@entry
def measure(f, p, w):
    """Reference seconds of every set."""
    for i in range(f.count[0]):
        for e in range(f.link_start[i], f.link_start[i + 1]):
            w.done[f.link_to[e]] = w.done[i] + p.reference[f.link_unit[e]]


@entry
def extend(f, p, w, bound, begin, steps):
    """Go on from set `begin`, for about so many pairs; returns (the set to go on from, pairs looked at)."""
    looked = 0
    for low in range(begin, f.count[0]):
        if looked >= steps:
            return low, looked
        alive = False
        for s in range(len(p.room)):
            alive = alive or hopeful(p, w, low, s, bound)
        if not alive:
            continue
        w.sums[low] = 0
        w.sums[low, 4] = 1
        w.moved[low] = 0
        w.queue[0] = low
        head, tail = 0, 1
        while head < tail:
            i = w.queue[head]
            head += 1
            for e in range(f.link_start[i], f.link_start[i + 1]):
                unit, to = f.link_unit[e], f.link_to[e]
                if w.seen[to] == low:
                    continue
                w.seen[to] = low
                looked += 1
                if add_unit(f, p, w, low, i, unit, to, bound):
                    w.queue[tail] = to
                    tail += 1
                    w.moved[to] = cut_with(f, p, w, low, i, unit)
                    enter(p, w, low, to, bound)
    return f.count[0], looked

"""The dynamic programme over intervals of a line of units: the least largest load, exactly.

A state says how many devices of every class are taken, as one number: the sum of taken devices times `stride`.

    n units in line, C classes, S states, I incidences of units and nets
"""

from __future__ import annotations

from typing import Any, NamedTuple

from placewright.sim.jit import entry


class Line(NamedTuple):
    """What the programme reads."""

    time: Any  # (n, C) ps
    allowed: Any  # (n, C)
    held: Any  # (n, C) bytes that add up
    most: Any  # (n, C) bytes of which the largest counts
    lent: Any  # (n, C) likewise
    capacity: Any  # (C,)
    pays: Any  # (C,) whether the class pays for nets that are cut
    start: Any  # (n + 1,) incidences by unit
    previous: Any  # (I,) the unit of the net before this one, or -1
    first: Any  # (I,) the first unit of the net
    last: Any  # (I,) the last one, n where something outside belongs to the net
    weight: Any  # (I,) ps
    enemy: Any  # (n,) the last unit before each one that may not share its device, or -1
    digits: Any  # (S, C) devices taken
    count: Any  # (C,)
    stride: Any  # (C,)
    need: Any  # (n,) reference seconds from here to the end
    room: Any  # (S,) reference seconds that the devices not taken can do below the bound


class Table(NamedTuple):
    """What the programme writes, and works in."""

    best: Any  # (n + 1, S) the least largest load of what is before, ps
    back: Any  # (n + 1, S) where the last part begins
    kind: Any  # (n + 1, S) its class
    sums: Any  # (5, C) of the part at hand: time, held, most, lent, whether it is possible


@entry
def fill(p, w, bound):
    """Fill the table with values below `bound`; what is not below it stays as it was."""
    n, classes = p.time.shape
    states = len(p.room)
    for i in range(n):
        alive = False
        for s in range(states):
            alive = alive or (w.best[i, s] < bound and p.need[i] <= p.room[s])
        if not alive:
            continue
        w.sums[:] = 0
        w.sums[4] = 1
        moved = 0
        for j in range(i, n):
            if p.enemy[j] >= i:
                break
            some = False
            for c in range(classes):
                w.sums[0, c] += p.time[j, c]
                w.sums[1, c] += p.held[j, c]
                w.sums[2, c] = max(w.sums[2, c], p.most[j, c])
                w.sums[3, c] = max(w.sums[3, c], p.lent[j, c])
                fits = w.sums[1, c] + w.sums[2, c] + w.sums[3, c] <= p.capacity[c]
                if not p.allowed[j, c] or not fits or w.sums[0, c] >= bound:
                    w.sums[4, c] = 0
                some = some or w.sums[4, c] == 1
            if not some:
                break
            for k in range(p.start[j], p.start[j + 1]):
                was_cut = p.previous[k] >= i
                is_cut = p.first[k] < i or p.last[k] > j
                if is_cut and not was_cut:
                    moved += p.weight[k]
                elif was_cut and not is_cut:
                    moved -= p.weight[k]
            for c in range(classes):
                if w.sums[4, c] == 0:
                    continue
                load = w.sums[0, c] + (moved if p.pays[c] else 0)
                if load >= bound:
                    continue
                for s in range(states):
                    if p.digits[s, c] == p.count[c] or w.best[i, s] >= bound or p.need[i] > p.room[s]:
                        continue
                    to = s + p.stride[c]
                    value = max(load, w.best[i, s])
                    if value < w.best[j + 1, to]:
                        w.best[j + 1, to] = value
                        w.back[j + 1, to] = i
                        w.kind[j + 1, to] = c

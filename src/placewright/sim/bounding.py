"""Kernels of the lower bounds: earliest ends, work in a window, and a bound on a sum of costs of pairs.

They know nothing of the simulation. All numbers are whole, so that what is proved is exact. Each function calls
nothing of another file, so Numba's own check of this file's date keeps the cache right.

    n operations, G groups, K classes of devices, T tensors, L links between groups
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from typing import Any

import numpy as np

from placewright.sim.jit import entry, inline
from placewright.sim.lower import NEVER, PICO


@inline
def _lasts(t: Any, a: Any, b: Any, raw_bytes: Any, transfer_ps: Any, latency_s: Any, rate: Any) -> Any:
    """Picoseconds of the transfer of a tensor between two classes at least."""
    if transfer_ps[t] >= 0:
        return transfer_ps[t]
    return np.int64(np.rint((latency_s[a, b] + raw_bytes[t] / rate[a, b]) * PICO))


@entry
def earliest_ends(p: Any, end: Any, arrival: Any) -> None:
    """Fill `end` (n, K) and `arrival` (T, K): no operation of a class ends, no tensor is at a class, before that.

    NEVER says that it cannot be there at all.
    """
    n, classes = p.cost_ps.shape
    for i in range(n):
        group = p.group[i]
        for k in range(classes):
            begin = np.int64(0) if p.cost_ps[i, k] < NEVER else NEVER
            for e in range(p.in_start[i], p.in_start[i + 1]):
                t = p.in_tensor[e]
                maker = p.maker[t]
                begin = max(begin, end[maker, k] if p.group[maker] == group else arrival[t, k])
            for e in range(p.after_start[i], p.after_start[i + 1]):
                j = p.after_op[e]
                soonest = end[j, k]
                if p.group[j] != group:
                    for other in range(classes):
                        soonest = min(soonest, end[j, other])
                begin = max(begin, soonest)
            end[i, k] = begin + p.cost_ps[i, k] if begin < NEVER else NEVER
        for t in range(p.out_start[i], p.out_start[i + 1]):
            for k in range(classes):
                best = end[i, k]
                for other in range(classes):
                    if other != k and end[i, other] < best:
                        lasts = np.int64(0)
                        if p.apart[other, k]:
                            if not p.reached[other, k]:
                                continue
                            lasts = _lasts(t, other, k, p.raw_bytes, p.transfer_ps, p.latency_s, p.bytes_per_s)
                        best = min(best, end[i, other] + lasts)
                arrival[t, k] = best


@entry
def shortest_rests(p: Any, rest: Any) -> None:
    """Fill `rest` (n, K): from the end of an operation on a class, the step goes on for that long at least."""
    n, classes = p.cost_ps.shape
    for at in range(n):
        i = n - 1 - at
        group = p.group[i]
        for e in range(p.in_start[i], p.in_start[i + 1]):
            t = p.in_tensor[e]
            maker = p.maker[t]
            for k in range(classes):
                least = NEVER
                for other in range(classes):
                    if p.cost_ps[i, other] == NEVER or rest[i, other] == NEVER:
                        continue
                    lasts = np.int64(0)
                    if other != k:
                        if p.group[maker] == group:
                            continue
                        if p.apart[k, other]:
                            if not p.reached[k, other]:
                                continue
                            lasts = _lasts(t, k, other, p.raw_bytes, p.transfer_ps, p.latency_s, p.bytes_per_s)
                    least = min(least, lasts + p.cost_ps[i, other] + rest[i, other])
                rest[maker, k] = max(rest[maker, k], least)
        for e in range(p.after_start[i], p.after_start[i + 1]):
            j = p.after_op[e]
            for k in range(classes):
                least = NEVER
                for other in range(classes):
                    if p.cost_ps[i, other] == NEVER or rest[i, other] == NEVER:
                        continue
                    if other == k or p.group[j] != group:
                        least = min(least, p.cost_ps[i, other] + rest[i, other])
                rest[j, k] = max(rest[j, k], least)


@inline
def _inside(cost: Any, head: Any, rest: Any, after: Any, before: Any, length: Any) -> Any:
    """How long an operation runs between `after` and `before` (counted from the end) at least."""
    return max(np.int64(0), min(cost, length, head + cost - after, rest + cost - before))


@entry
def window_work(p: Any, head: Any, rest: Any, weight: Any, after: Any, before: Any, length: Any, sums: Any) -> Any:
    """The weighted work of all groups in a window at least; `sums` (K,) is scratch."""
    groups, classes = p.allowed.shape
    total = np.int64(0)
    for g in range(groups):
        sums[:] = 0
        for at in range(p.group_start[g], p.group_start[g + 1]):
            i = p.group_op[at]
            for k in range(classes):
                if p.allowed[g, k]:
                    sums[k] += _inside(p.cost_ps[i, k], head[i, k], rest[i, k], after, before, length)
        least = NEVER
        for k in range(classes):
            if p.allowed[g, k]:
                least = min(least, sums[k] * weight[k])
        total += least
    return total


@entry
def window_table(p: Any, head: Any, rest: Any, after: Any, before: Any, length: Any, table: Any) -> None:
    """Fill `table` (G, K): the work of every group in a window at least."""
    groups, classes = p.allowed.shape
    for g in range(groups):
        for at in range(p.group_start[g], p.group_start[g + 1]):
            i = p.group_op[at]
            for k in range(classes):
                if p.allowed[g, k]:
                    table[g, k] += _inside(p.cost_ps[i, k], head[i, k], rest[i, k], after, before, length)


@entry
def pass_messages(unary: Any, allowed: Any, links: Any, pair: Any, order: Any, messages: Any, work: Any) -> Any:
    """One pass over all groups in `order`; returns a bound on the sum of unary and pair costs of any choice.

    `links` is (start, link, end): of every group, its links, and at which end of each it is. `pair` is (L, K, K),
    `messages` (L, 2, K): to each end of each link. `work` is (place in the order of every group; (K,) scratch).
    Sequential tree-reweighted message passing (Kolmogorov 2006) in whole numbers: whatever the messages are, the
    costs that they move are taken where they are given, so each pass proves a bound by itself.
    """
    start, link, side, other = links
    place, here = work
    groups, classes = unary.shape
    bound = np.int64(0)
    for at in range(groups):
        g = order[at]
        ahead, behind = 0, 0
        for k in range(classes):
            here[k] = unary[g, k]
        for e in range(start[g], start[g + 1]):
            if place[other[e]] > at:
                ahead += 1
            else:
                behind += 1
            for k in range(classes):
                here[k] += messages[link[e], side[e], k]
        share = max(1, ahead, behind)
        left = NEVER
        for k in range(classes):
            if allowed[g, k]:
                left = min(left, here[k] - ahead * (here[k] // share))
        bound += left
        for e in range(start[g], start[g + 1]):
            h = other[e]
            if place[h] <= at:
                continue
            m, s = link[e], side[e]
            least = NEVER
            for b in range(classes):
                if not allowed[h, b]:
                    continue
                best = NEVER
                for a in range(classes):
                    if allowed[g, a]:
                        cost = pair[m, a, b] if s == 0 else pair[m, b, a]
                        best = min(best, here[a] // share - messages[m, s, a] + cost)
                messages[m, 1 - s, b] = best
                least = min(least, best)
            for b in range(classes):
                messages[m, 1 - s, b] = messages[m, 1 - s, b] - least if allowed[h, b] else 0
            bound += least
    return bound

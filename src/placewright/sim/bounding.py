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

STEPS = 16
"""Times that a start is moved on; each proves a little more."""


@inline
def _lasts(p: Any, t: Any, here: Any, there: Any, main: Any) -> Any:
    """Picoseconds of a tensor between two places at least, NEVER where no route leads; t of -1 is order alone.

    Place 0 is one device, of class `main`; place 1 + k is any other device of class k.
    """
    if here == there or t < 0:
        return np.int64(0)
    a = main if here == 0 else here - 1
    b = main if there == 0 else there - 1
    if (a == b and not p.twins_apart[a]) or (a != b and not p.apart[a, b]):
        return np.int64(0)
    if not p.reached[a, b]:
        return NEVER
    if p.transfer_ps[t] >= 0:
        return p.transfer_ps[t]
    return np.int64(np.rint((p.latency_s[a, b] + p.raw_bytes[t] / p.bytes_per_s[a, b]) * PICO))


@inline
def _by_inputs(p: Any, v: Any, k: Any, end: Any) -> Any:
    """When operation v can start on class k, as far as each of its inputs is concerned by itself."""
    begin = np.int64(0)
    for e in range(p.edge_start[v], p.edge_start[v + 1]):
        u, t = p.edge_op[e], p.edge_tensor[e]
        soonest = end[u, k]
        if p.group[u] != p.group[v]:
            for c in range(end.shape[1]):
                if c != k and end[u, c] < soonest:
                    lasts = _lasts(p, t, 1 + c, 1 + k, k)
                    if lasts < NEVER:
                        soonest = min(soonest, end[u, c] + lasts)
        begin = max(begin, soonest)
    return begin


@inline
def _may(p: Any, u: Any, v: Any, place: Any, k: Any) -> Any:
    """Whether operation u may be at a place, where place 0 is the device of v, of class k."""
    if place == 0:
        return p.cost_ps[u, k] < NEVER
    return p.cost_ps[u, place - 1] < NEVER and p.group[u] != p.group[v] and (place - 1 != k or p.size[k] > 1)


@inline
def _look_back(p: Any, v: Any, k: Any, most: Any, scratch: Any) -> Any:
    """Collect up to `most` operations that v follows, latest first, in `near`; returns how many.

    `rest[u, place]` is the time from the end of u at a place to the start of v at place 0, at least. Places 0 and
    above are as for `_lasts`. Marks are v + 1, times the classes, plus k: no two calls share one.
    """
    rest, mark, near, _ = scratch
    places = rest.shape[1]
    sign = np.int64(v + 1) * (places - 1) + k
    count, at, floor = 0, v, max(0, v - 8 * most)
    while True:
        if at == v or mark[at] == sign:
            for e in range(p.edge_start[at], p.edge_start[at + 1]):
                u, t = p.edge_op[e], p.edge_tensor[e]
                if mark[u] != sign:
                    mark[u] = sign
                    for place in range(places):
                        rest[u, place] = 0
                for place in range(places):
                    least = NEVER
                    if at == v:
                        if place == 0 or p.group[u] != p.group[v]:
                            least = _lasts(p, t, place, 0, k)
                    else:
                        for other in range(places):
                            if rest[at, other] == NEVER or not _may(p, at, v, other, k):
                                continue
                            if other != place and p.group[u] == p.group[at]:
                                continue
                            lasts = _lasts(p, t, place, other, k)
                            if lasts < NEVER:
                                cost = p.cost_ps[at, k if other == 0 else other - 1]
                                least = min(least, lasts + cost + rest[at, other])
                    rest[u, place] = max(rest[u, place], least)
            if at != v:
                near[count] = at
                count += 1
        at -= 1
        if at < floor or count == most:
            return count


@inline
def _together(p: Any, v: Any, k: Any, begin: Any, count: Any, tables: Any) -> Any:
    """When v can start on class k: what cannot be elsewhere in time is on its device, one after the other."""
    end, (rest, _, near, away) = tables
    places = rest.shape[1]
    for a in range(count):  # by falling earliest start on class k, nearly in order already
        u, b = near[a], a
        head = end[u, k] - p.cost_ps[u, k] if end[u, k] < NEVER else NEVER
        while b > 0 and away[near[b - 1]] < head:
            near[b] = near[b - 1]
            b -= 1
        near[b] = u
        away[u] = head
    for a in range(count):
        u = near[a]
        away[u] = NEVER
        for place in range(1, places):
            if rest[u, place] < NEVER and end[u, place - 1] < NEVER and _may(p, u, v, place, k):
                away[u] = min(away[u], end[u, place - 1] + rest[u, place])
    for _ in range(STEPS):
        load, last, needed, soonest = np.int64(0), NEVER, begin, NEVER
        for a in range(count):
            u = near[a]
            if away[u] > begin:
                soonest = min(soonest, away[u])
                if end[u, k] == NEVER:
                    needed = NEVER
                    continue
                load += p.cost_ps[u, k]
                last = min(last, rest[u, 0])
                needed = max(needed, end[u, k] - p.cost_ps[u, k] + load + last) if last < NEVER else NEVER
        if needed <= begin:
            break
        begin = min(needed, soonest)
        if begin == NEVER:
            break
    return begin


@entry
def earliest_ends(p: Any, most: Any, end: Any, scratch: Any) -> None:
    """Fill `end` (n, K): an operation on a class ends no sooner, NEVER if it cannot be there.

    An operation on some device starts when it has what it needs. Of what it follows, whatever could not be
    elsewhere in time is on its device, where one runs after the other. `most` operations that it follows are looked
    at, the latest in program order. `scratch` is rest (n, K + 1), mark (n), near (most), away (n).
    """
    n, classes = end.shape
    for v in range(n):
        for k in range(classes):
            if p.cost_ps[v, k] == NEVER:
                end[v, k] = NEVER
                continue
            begin = _by_inputs(p, v, k, end)
            if most > 0 and begin < NEVER and p.edge_start[v] < p.edge_start[v + 1]:
                count = _look_back(p, v, k, most, scratch)
                begin = _together(p, v, k, begin, count, (end, scratch))
            end[v, k] = begin + p.cost_ps[v, k] if begin < NEVER else NEVER


@inline
def _inside(cost: Any, head: Any, rest: Any, after: Any, before: Any, length: Any) -> Any:
    """How long an operation runs between `after` and `before` (counted from the end) at least."""
    return max(np.int64(0), min(cost, length, head + cost - after, rest + cost - before))


@entry
def window_work(p: Any, times: Any, weight: Any, window: Any, sums: Any) -> Any:
    """The weighted work of all groups in a window (after, before, length) at least; `sums` (K,) is scratch."""
    (head, rest), (after, before, length) = times, window
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
def window_table(p: Any, times: Any, window: Any, table: Any) -> None:
    """Fill `table` (G, K): the work of every group in a window (after, before, length) at least."""
    (head, rest), (after, before, length) = times, window
    groups, classes = p.allowed.shape
    for g in range(groups):
        for at in range(p.group_start[g], p.group_start[g + 1]):
            i = p.group_op[at]
            for k in range(classes):
                if p.allowed[g, k]:
                    table[g, k] += _inside(p.cost_ps[i, k], head[i, k], rest[i, k], after, before, length)


@entry
def pass_messages(costs: Any, links: Any, order: Any, messages: Any, work: Any) -> Any:
    """One pass over all groups in `order`; returns a bound on the sum of unary and pair costs of any choice.

    `costs` is unary (G, K), allowed (G, K), pair (L, K, K). `links` is (start, link, side, other): of every group, its
    links, at which end of each it is, and who is at the other. `messages` (L, 2, K) are to each end of each link.
    `work` is (place in the order of every group; (K,) scratch).
    Sequential tree-reweighted message passing (Kolmogorov 2006) in whole numbers: whatever the messages are, the
    costs that they move are taken where they are given, so each pass proves a bound by itself.
    """
    unary, allowed, pair = costs
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

"""From multipliers to a bound that holds: the sum of all rows, each times its multiplier, at its least.

Any multipliers prove something. Floating point only chooses them: what they prove is worked out in whole numbers,
each of which is rounded towards the safe side first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from placewright.bounds.relaxed import Pairs, Relaxed, Row
from placewright.sim.bounding import pass_messages

LOSS = 2.0**-52
"""What one product and one sum can lose of a total in floating point, twice over."""
BITS = 57
"""What the sum of all whole numbers stays below, as a power of two."""
PASSES = 40
ENOUGH = 1e-5
"""Passes end when two of them, there and back, bring less than this share."""


def proved(relaxed: Relaxed, rows: Sequence[Row], multipliers: NDArray[np.float64]) -> Fraction:
    """What the rows prove of the objective, in picoseconds; of infeasibility where no load row counts.

    With load multipliers that sum to s, s times the objective is at least the sum; where s is 0, a sum above 0
    proves that no placement fits.
    """
    used = [(row, float(m)) for row, m in zip(rows, multipliers, strict=True) if m > 0]
    if not relaxed.problem.n_groups:
        return Fraction(0)
    unary, pair = _tables(relaxed, used)
    graph = relaxed.problem.graph
    total = _whole(unary, pair, relaxed, 64 + len(used) * (8 + graph.n_ops + graph.n_tensors + len(graph.in_tensor)))
    for row, m in used:
        total += Fraction(m) * row.limit * (1 if row.is_load else -1)
    loads = sum((Fraction(m) for row, m in used if row.is_load), Fraction(0))
    return total / loads if loads else total


def _tables(relaxed: Relaxed, used: list[tuple[Row, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Costs of groups (G, K) and of links (L, K, K)."""
    low, _, link_of = relaxed.links
    unary = np.zeros(relaxed.allowed.shape)
    pair = np.zeros((len(low), relaxed.n_classes, relaxed.n_classes))
    joined: dict[tuple[int, int], Pairs] = {}
    for row, m in used:
        for k, column in row.columns.items():
            unary[:, k] += m * column
        for pairs in row.pairs:
            key = (id(pairs.reads), id(pairs.bytes))
            before = joined[key].factor if key in joined else 0.0
            joined[key] = Pairs(pairs.reads, before + m * pairs.factor, pairs.bytes)
    for pairs in (*joined.values(), *_either(relaxed, used)):
        pair += relaxed.counted(pairs, relaxed.ends, link_of, len(low))
    return unary, pair


def _either(relaxed: Relaxed, used: list[tuple[Row, float]]) -> list[Pairs]:
    """What is held at some price, or transferred again at another, whichever is less."""
    again = sum((m * row.again for row, m in used if row.again is not None), np.zeros(relaxed.classes.apart.shape))
    found = []
    for row, m in used:
        if row.held is None or row.held.bytes is None:
            continue
        tensors = relaxed.problem.graph.in_tensor[row.held.reads]
        for a, b in np.argwhere((row.held.factor > 0) & (again > 0)).tolist():
            only = np.zeros(again.shape)
            only[a, b] = 1.0
            price = np.minimum(m * row.held.factor[a, b] * row.held.bytes, again[a, b] * relaxed.lasts(tensors, a, b))
            found.append(Pairs(row.held.reads, only, price))
    return found


def _whole(unary: NDArray[np.float64], pair: NDArray[np.float64], relaxed: Relaxed, terms: int) -> Fraction:
    """The least sum of costs of any choice of classes, from below; no cost is a sum of more than so many terms."""
    allowed = relaxed.allowed
    most = float(np.where(allowed, unary, 0).max(axis=1).sum() + pair.max(axis=(1, 2), initial=0).sum())
    scale = 2.0 ** (BITS - math.frexp(most)[1]) if most > 0 else 1.0
    safe = scale * (1.0 - LOSS * terms)
    whole_unary = np.floor(np.where(allowed, unary, 0) * safe).astype(np.int64)
    whole_pair = np.floor(pair * safe).astype(np.int64)
    live = np.flatnonzero(whole_pair.any(axis=(1, 2)))
    if not len(live):
        least = np.where(allowed, whole_unary, np.iinfo(np.int64).max).min(axis=1)
        return Fraction(sum(least.tolist())) / Fraction(scale)
    return Fraction(_passed(whole_unary, np.ascontiguousarray(whole_pair[live]), relaxed, live)) / Fraction(scale)


def _passed(unary: NDArray[np.int64], pair: NDArray[np.int64], relaxed: Relaxed, live: NDArray[np.int64]) -> int:
    """The best that passes of messages there and back prove."""
    groups, classes = unary.shape
    low, high, _ = relaxed.links
    ends = np.concatenate([low[live], high[live]])
    order = np.argsort(ends, kind="stable")
    start = np.zeros(groups + 1, np.int32)
    np.cumsum(np.bincount(ends, minlength=groups), out=start[1:])
    side = (order >= len(live)).astype(np.int32)
    link = (order % len(live)).astype(np.int32)
    other = np.where(side == 0, high[live][link], low[live][link]).astype(np.int32)
    links = (start, link, side, other)
    messages = np.zeros((len(live), 2, classes), np.int64)
    scratch = np.empty(classes, np.int64)
    forward = np.arange(groups, dtype=np.int32)
    bounds: list[int] = []
    for k in range(PASSES):
        way = forward if k % 2 == 0 else forward[::-1].copy()
        place = np.argsort(way).astype(np.int32)
        found = pass_messages((unary, relaxed.allowed, pair), links, way, messages, (place, scratch))
        bounds.append(int(found))
        if k >= 3 and max(bounds) - max(bounds[:-2]) <= ENOUGH * abs(max(bounds)):
            break
    return max(bounds)

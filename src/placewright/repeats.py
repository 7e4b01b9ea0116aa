"""Tandem repetitions in a row of tokens: where it goes on as it was some tokens earlier.

Exact and deterministic: names of longer and longer pieces are whole numbers given by order, not hashes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]

_PERIODS = 64
"""Periods that are looked at, those of which most of the row is made first."""


class Run(NamedTuple):
    """`tokens[i] == tokens[i + period]` wherever both are in start to end, which is as long as it can be."""

    start: int
    end: int
    period: int


def runs(tokens: Longs) -> list[Run]:
    """Return the runs of two periods or more, in order of period and start; only the least period of each counts.

    A run of three periods or more is always found, if no more than 64 periods cover more of the row. One of two is
    found if a piece of it, of a power of two tokens, comes again after one period and not before.
    """
    found: list[Run] = []
    at: dict[tuple[int, int], list[int]] = {}
    for period in sorted(_periods(tokens)):
        same = tokens[period:] == tokens[:-period]
        start, length, value = stretches(same)
        long = value & (length >= period)
        for a, b in zip(start[long].tolist(), (start + length)[long].tolist(), strict=True):
            known = at.setdefault((a, b + period), [])
            if not any(period % shorter == 0 for shorter in known):
                known.append(period)
                found.append(Run(a, b + period, period))
    return found


def stretches(values: NDArray[Any]) -> tuple[Longs, Longs, NDArray[Any]]:
    """Return start, length and value of each longest stretch of equal values."""
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), values
    start = np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])
    return start, np.diff(start, append=len(values)), values[start]


def _periods(tokens: Longs) -> list[int]:
    """Return the periods of runs, by pieces of 1, 2, 4, ... tokens and the distance to where each comes next.

    Where that distance stays the same for long enough, the pieces overlap or touch their repetition. A piece that
    is as long as the period or longer cannot come again sooner, or the period would not be the least.
    """
    cover: dict[int, int] = {}
    name = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    size = 1
    while len(name) > 1:
        order = np.argsort(name, kind="stable")
        again = name[order[1:]] == name[order[:-1]]
        if not again.any():
            break
        distance = np.zeros(len(name), np.int64)
        distance[order[:-1][again]] = np.diff(order)[again]
        _, length, value = stretches(distance)
        reach = length + size - 1
        repeats = (value > 0) & (reach >= value)
        for period, tokens_covered in zip(value[repeats].tolist(), reach[repeats].tolist(), strict=True):
            cover[period] = cover.get(period, 0) + tokens_covered
        if len(name) <= size:
            break
        pair = name[:-size] * (int(name.max()) + 1) + name[size:]
        name = np.unique(pair, return_inverse=True)[1].astype(np.int64)
        size *= 2
    return sorted(cover, key=lambda period: (-cover[period], period))[:_PERIODS]

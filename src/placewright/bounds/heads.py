"""Earliest starts and shortest rests of operations: the longest path, with what must take turns on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewright.bounds.relaxed import Relaxed
from placewright.graph import Longs
from placewright.sim.bounding import earliest_ends
from placewright.sim.lower import NEVER

NEAR = 64
"""Operations that are looked at before, and after, every operation."""
MOST_LOOKS = 60_000_000
"""Operations times classes, times pairs of places, times NEAR; with more operations fewer are looked at."""


@dataclass(frozen=True, eq=False)
class Heads:
    """(n, K): operation i on class k starts no sooner than `head`, and after its end a step goes on for `rest`.

    NEVER where it cannot be.
    """

    cost: Longs
    head: Longs
    rest: Longs

    @property
    def whole(self) -> Longs:
        """(n,) how long a step takes at least by each operation, wherever it is; NEVER: it can be nowhere."""
        never = (self.head == NEVER) | (self.rest == NEVER)
        parts = (np.where(never, 0, part) for part in (self.head, self.cost, self.rest))
        found: Longs = np.where(never, NEVER, sum(parts)).min(axis=1, initial=NEVER)
        return found

    @property
    def known(self) -> tuple[Longs, Longs]:
        """Heads and rests with 0 for NEVER."""
        return np.where(self.head == NEVER, 0, self.head), np.where(self.rest == NEVER, 0, self.rest)


def heads(relaxed: Relaxed) -> Heads:
    """Earliest starts and shortest rests of all operations."""
    n, classes = relaxed.cost_ps.shape
    most = min(NEAR, MOST_LOOKS // max(1, n * classes * (classes + 1) ** 2))
    sides = []
    for forward in (True, False):
        end = np.zeros((n, classes), np.int64)
        scratch = (np.zeros((n, classes + 1), np.int64), *(np.zeros(size, np.int64) for size in (n, max(1, most), n)))
        earliest_ends(relaxed.flow(forward=forward), most, end, scratch)
        end = end if forward else end[::-1]
        sides.append(np.where(end == NEVER, NEVER, end - np.where(end == NEVER, 0, relaxed.cost_ps)))
    return Heads(relaxed.cost_ps, sides[0], sides[1])

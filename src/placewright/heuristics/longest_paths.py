"""Cutting a graph into longest paths, one after another: what iterated critical path partitioning walks along."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from placewright.heuristics.bundles import Bundles
from placewright.heuristics.paths import Paths


def cut_longest_paths(paths: Paths, bundles: Bundles) -> Iterator[list[int]]:
    """Bundles along the longest path of the operations that are left, until none is; whoever is given is gone.

    A path is as long as the work on it; transfers count for nothing. Of equally long ones that goes first which
    begins first in program order, and it goes on along the first reader.
    """
    return iter(_Remains(paths, bundles))


class _Remains:
    """Operations that are left, and the longest path from each of them through the others.

    Lengths only fall. So a heap of them may hold entries that are too large, which are passed over; and when
    operations go, only those are looked at again whose longest path led to one that went or has fallen.
    """

    def __init__(self, paths: Paths, bundles: Bundles) -> None:
        self._after, self._before, self._work = paths.after, paths.before, paths.work
        self._of_op = bundles.of_op.tolist()
        n = len(self._of_op)
        self._members: list[list[int]] = [[] for _ in range(bundles.count)]
        for v, b in enumerate(self._of_op):
            self._members[b].append(v)
        self._left = [True] * n
        self._length, self._next = [0.0] * n, [-1] * n
        for v in range(n - 1, -1, -1):
            self._measure(v)
        self._heap = [(-length, v) for v, length in enumerate(self._length)]
        heapq.heapify(self._heap)

    def _measure(self, v: int) -> None:
        """Length from an operation, and the next one on that path."""
        best, chosen = 0.0, -1
        for s in self._after[v]:
            if self._left[s] and (chosen < 0 or self._length[s] > best):
                best, chosen = self._length[s], s
        self._length[v], self._next[v] = best + self._work[v], chosen

    def __iter__(self) -> Iterator[list[int]]:
        while self._heap:
            length, v = heapq.heappop(self._heap)
            if not self._left[v] or -length != self._length[v]:
                continue
            found: dict[int, None] = {}
            while v >= 0:
                found[self._of_op[v]] = None
                v = self._next[v]
            yield list(found)
            self._remove([v for b in found for v in self._members[b]])

    def _remove(self, gone: list[int]) -> None:
        for v in gone:
            self._left[v] = False
        # From the last in program order, so that an operation is measured after all that it leads to.
        todo = {u: None for v in gone for u in self._before[v] if self._left[u] and self._next[u] == v}
        heap = [-u for u in todo]
        heapq.heapify(heap)
        while heap:
            u = -heapq.heappop(heap)
            del todo[u]
            old = self._length[u]
            self._measure(u)
            if self._length[u] == old:
                continue
            heapq.heappush(self._heap, (-self._length[u], u))
            for p in self._before[u]:
                if self._left[p] and self._next[p] == u and p not in todo:
                    todo[p] = None
                    heapq.heappush(heap, -p)

"""The schedulers of Mayer, Mayer and Laich 2017 as priorities: which of the operations that are ready goes first.

    fifo   the one that became ready first
    pct    the one with the longest way to an end of the graph
    msr    the one of highest score: 1 for every reader; 1 more for one on another device; of those, 1 more where this
           is the last that it waits for, and then 5 more if that device has nothing to do; ties by pct

The way to an end follows from the placement alone. The others depend on the state of a run, and a placement has one
number per operation: so the run is simulated once, as plainly as in the paper's own simulator, and an operation's
priority is its place in the order in which it became ready (fifo) or was started (msr).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.graph import Floats
from placewright.heuristics.list_run import Queues, Run, Simulation
from placewright.heuristics.paths import Paths


class _Fifo(Queues):
    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._queue: list[list[tuple[int, int]]] = [[] for _ in range(run.n_devices)]

    def add(self, v: int, order: int) -> None:
        heapq.heappush(self._queue[self.run.device[v]], (order, v))

    def take(self, device: int) -> int:
        return heapq.heappop(self._queue[device])[1]


class _MostScore(Queues):
    """Scores are the same for long, but for readers that wait for one operation alone: those few are looked over."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        device, after = run.device, run.paths.after
        self._base = [len(after[v]) + sum(device[s] != device[v] for s in after[v]) for v in range(len(device))]
        self._to_end = run.to_end()
        self._last: dict[int, list[int]] = {}
        """Devices, other than its own, of readers that wait for an operation alone."""
        self._ready = [False] * len(device)
        self._heap: list[list[tuple[int, float, int]]] = [[] for _ in range(run.n_devices)]
        self._hot: list[dict[int, None]] = [{} for _ in range(run.n_devices)]

    def last_of(self, v: int, reader: int) -> None:
        there, here = self.run.device[reader], self.run.device[v]
        if there != here:
            self._last.setdefault(v, []).append(there)
            if self._ready[v]:
                self._hot[here][v] = None

    def add(self, v: int, order: int) -> None:
        device = self.run.device[v]
        self._ready[v] = True
        heapq.heappush(self._heap[device], (-self._base[v], -self._to_end[v], v))
        if v in self._last:
            self._hot[device][v] = None

    def take(self, device: int) -> int:
        heap, hot = self._heap[device], self._hot[device]
        while not self._ready[heap[0][2]]:
            heapq.heappop(heap)
        best = min([heap[0], *((-self._score(v), -self._to_end[v], v) for v in hot)])
        v = best[2]
        self._ready[v] = False
        hot.pop(v, None)
        return v

    def _score(self, v: int) -> int:
        idle = sum(not self.busy[d] and not self.waiting[d] for d in self._last[v])
        return self._base[v] + len(self._last[v]) + 5 * idle


def _places(order: list[int], count: int) -> Floats:
    """Priorities that fall along an order; 0 for what is not in it."""
    priorities = np.zeros(count)
    priorities[order] = count - np.arange(len(order))
    return priorities


def fifo(paths: Paths, devices: NDArray[Any]) -> Floats:
    """Priorities by which what became ready first goes first."""
    run = Run(paths, devices)
    return _places(Simulation(run, _Fifo(run)).play().ready, len(devices))


def pct(paths: Paths, devices: NDArray[Any]) -> Floats:
    """Priorities by which the longest way to an end goes first."""
    return np.array(Run(paths, devices).to_end())


def msr(paths: Paths, devices: NDArray[Any]) -> Floats:
    """Priorities by which the highest score goes first."""
    run = Run(paths, devices)
    return _places(Simulation(run, _MostScore(run)).play().started, len(devices))


ORDERS: Mapping[str, Callable[[Paths, NDArray[Any]], Floats]] = MappingProxyType({"fifo": fifo, "pct": pct, "msr": msr})

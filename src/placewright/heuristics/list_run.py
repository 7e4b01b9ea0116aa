"""A run of a placement, simulated as plainly as in Mayer, Mayer and Laich 2017: what their schedulers look at.

Every device runs one operation at a time. An operation that has ended sends one message to every other device that
has readers; it takes latency and bytes over the bandwidth of the route and waits for nothing.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.heuristics.paths import Paths


class Run:
    """A placement as a list simulation sees it: seconds where operations are, and messages between devices."""

    def __init__(self, paths: Paths, devices: NDArray[Any]) -> None:
        problem = paths.problem
        graph = problem.graph
        self.paths = paths
        self.device: list[int] = devices.tolist()
        self.seconds: list[float] = problem.costs.seconds[np.arange(problem.n_ops), devices].tolist()
        self.queued: list[bool] = (~graph.off_queue).tolist()
        self.n_devices = problem.n_devices
        self.pool: list[int] = list(problem.machine.pool_of)
        self.message_s = self._messages(devices)
        """(operation, device): seconds of what goes there."""

    def _messages(self, devices: NDArray[Any]) -> dict[tuple[int, int], float]:
        graph, links = self.paths.problem.graph, self.paths.links
        maker, target = graph.tensor_op[graph.in_tensor], devices[graph.read_op]
        home = devices[maker]
        pools = np.array(self.pool)
        away = pools[home] != pools[target]
        rows = np.stack([maker[away], target[away], graph.in_tensor[away]], 1).astype(np.int64)
        rows = np.unique(rows, axis=0)
        source, size, given = devices[rows[:, 0]], graph.tensor_bytes[rows[:, 2]], graph.tensor_transfer_s[rows[:, 2]]
        moving = np.where(np.isnan(given), size * links.per_byte_s[source, rows[:, 1]], given)
        latency = np.where(np.isnan(given), links.latency_s[source, rows[:, 1]], 0.0)
        seconds: dict[tuple[int, int], float] = {}
        waited: dict[tuple[int, int], float] = {}
        for v, d, one, other in zip(*rows[:, :2].T.tolist(), moving.tolist(), latency.tolist(), strict=True):
            seconds[v, d] = seconds.get((v, d), 0.0) + one
            waited[v, d] = max(waited.get((v, d), 0.0), other)  # the latency once
        return {key: one + waited[key] for key, one in seconds.items()}

    def to_end(self) -> list[float]:
        """For every operation, its own seconds and those of the longest way to an end, messages included."""
        after, device = self.paths.after, self.device
        left = [0.0] * len(device)
        for v in range(len(device) - 1, -1, -1):
            way = max((left[s] + self.message_s.get((v, device[s]), 0.0) for s in after[v]), default=0.0)
            left[v] = way + self.seconds[v]
        return left


class Queues(ABC):
    """Ready operations by device; the one to start next is up to the scheduler."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.waiting = [0] * run.n_devices
        """Ready operations of every device."""
        self.busy = [False] * run.n_devices

    @abstractmethod
    def add(self, v: int, order: int) -> None:
        """An operation is ready, as the `order`-th of all."""

    @abstractmethod
    def take(self, device: int) -> int:
        """The operation that the device starts next."""

    def last_of(self, v: int, reader: int) -> None:  # noqa: B027  # most schedulers need not know
        """`reader` now waits for `v` alone."""


class Simulation:
    """The run itself. At every instant all ends and messages come first, then each idle device starts one operation."""

    def __init__(self, run: Run, queues: Queues) -> None:
        self.run, self.queues = run, queues
        self.ready: list[int] = []
        """Operations in the order in which they became ready."""
        self.started: list[int] = []
        """Operations in the order in which devices started them."""
        before = run.paths.before
        self._missing = [len(row) for row in before]
        self._unknown = [sum(row) for row in before]  # of the operations that are missing; of one alone, that one
        self._events: list[tuple[float, int, int, list[int]]] = []
        """Time, number, operation, and the readers that its message reaches; none at its end."""
        self._count = 0
        self._free: list[int] = []
        """Operations that are ready now, and not queued yet."""

    def play(self) -> Simulation:
        """Itself, after the last operation."""
        for v, missing in enumerate(self._missing):
            if missing == 0:
                self._free.append(v)
            elif missing == 1:
                self.queues.last_of(self._unknown[v], v)
        now = 0.0
        while True:
            while self._free or (self._events and self._events[0][0] == now):
                self._arrive(now)
                self._queue(now)
            self._start(now)
            if not self._events:
                return self
            now = self._events[0][0]

    def _arrive(self, now: float) -> None:
        """Ends and messages of this instant."""
        while self._events and self._events[0][0] == now:
            _, _, u, readers = heapq.heappop(self._events)
            if readers:
                self._reach(u, readers)
            else:
                self.queues.busy[self.run.device[u]] = False
                self._end(u, now)

    def _queue(self, now: float) -> None:
        """Ready operations go to the queues, in program order; those that are on none end at once."""
        while self._free:
            free, self._free = sorted(self._free), []
            for v in free:
                self.ready.append(v)
                if self.run.queued[v]:
                    self.queues.waiting[self.run.device[v]] += 1
                    self.queues.add(v, len(self.ready))
                else:
                    self._end(v, now)

    def _start(self, now: float) -> None:
        queues = self.queues
        for d in range(self.run.n_devices):
            if queues.waiting[d] and not queues.busy[d]:
                v = queues.take(d)
                queues.waiting[d] -= 1
                queues.busy[d] = True
                self.started.append(v)
                self._push(now + self.run.seconds[v], v, [])

    def _end(self, u: int, now: float) -> None:
        """An operation has ended: its readers here know, the others get messages."""
        by_device: dict[int, list[int]] = {}
        for s in self.run.paths.after[u]:
            by_device.setdefault(self.run.device[s], []).append(s)
        for d, readers in by_device.items():
            if (u, d) in self.run.message_s:
                self._push(now + self.run.message_s[u, d], u, readers)
            else:
                self._reach(u, readers)

    def _reach(self, u: int, readers: list[int]) -> None:
        """Readers wait for one operation less."""
        for s in readers:
            self._missing[s] -= 1
            self._unknown[s] -= u
            if self._missing[s] == 1:
                self.queues.last_of(self._unknown[s], s)
            elif self._missing[s] == 0:
                self._free.append(s)

    def _push(self, time: float, u: int, readers: list[int]) -> None:
        heapq.heappush(self._events, (time, self._count, u, readers))
        self._count += 1

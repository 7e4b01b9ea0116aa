"""An event-driven simulation of the `ready` discipline in plain Python, as one would first write it.

It is what the kernel's speed is compared with: heaps, dictionaries and lists, no memory accounting, no
views, no windows. Its step time must equal the kernel's.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict

from placewright.problem import Problem


class PlainLoop:
    """The problem as Python lists, built once; `run` simulates one placement and returns picoseconds."""

    def __init__(self, problem: Problem) -> None:
        graph, machine = problem.graph, problem.machine
        self.cost = [[round(s * 1e12) for s in row] for row in problem.costs.seconds.tolist()]
        self.reads = [graph.in_tensor[a:b].tolist() for a, b in itertools.pairwise(graph.in_start)]
        start, readers = graph.consumers
        self.readers = [readers[a:b].tolist() for a, b in itertools.pairwise(start)]
        self.outputs = [list(range(a, b)) for a, b in itertools.pairwise(graph.out_start)]
        self.size = graph.tensor_bytes.tolist()
        self.pool = machine.pool_of
        count = len(machine.devices)
        self.route = {(a, b): (machine.route(a, b), machine.rates(a, b)) for a in range(count) for b in range(count)}

    def run(self, place: list[int]) -> tuple[int, int]:
        """(end of the step in ps, operations plus transfers) of one placement."""
        waiting = [len(reads) for reads in self.reads]
        ready = defaultdict(list)  # device: heap of (round, operation)
        queued = defaultdict(list)  # route: heap of (round, tensor)
        running, busy, ends = {}, set(), []
        time = number = events = 0
        for i, left in enumerate(waiting):
            if left == 0:
                heapq.heappush(ready[place[i]], (0, i))
        while True:
            for device in sorted(ready):
                if ready[device] and device not in running:
                    i = heapq.heappop(ready[device])[1]
                    running[device] = i
                    events += 1
                    heapq.heappush(ends, (time + self.cost[i][device], 0, device, 0))
            while True:
                best = None
                for (a, b), heap in queued.items():
                    if heap and busy.isdisjoint(self.route[a, b][0]):
                        key = (*heap[0], b)
                        if best is None or key < best[0]:
                            best = (key, a, b)
                if best is None:
                    break
                (_, t, b), a = best[0], best[1]
                heapq.heappop(queued[a, b])
                channels, (latency, rate) = self.route[a, b]
                busy.update(channels)
                events += 1
                heapq.heappush(ends, (time + round((latency + self.size[t] / rate) * 1e12), 1, t, b))
            if not ends:
                return time, events
            time = ends[0][0]
            number += 1
            while ends and ends[0][0] == time:
                _, kind, what, target = heapq.heappop(ends)
                arrived = []
                if kind == 0:
                    i = running.pop(what)
                    for t in self.outputs[i]:
                        there = {place[c] for c in self.readers[t] if self.pool[place[c]] != self.pool[what]}
                        for b in there:
                            heapq.heappush(queued[what, b], (number, t))
                        arrived += [c for c in self.readers[t] if self.pool[place[c]] == self.pool[what]]
                else:
                    t = what
                    a = place[self.maker(t)]
                    busy.difference_update(self.route[a, target][0])
                    arrived = [c for c in self.readers[t] if place[c] == target]
                for c in arrived:
                    waiting[c] -= 1
                    if waiting[c] == 0:
                        heapq.heappush(ready[place[c]], (number, c))

    def maker(self, tensor: int) -> int:
        """The operation that makes a tensor: here every operation makes one."""
        return tensor

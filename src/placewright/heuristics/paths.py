"""Edges between operations, and the longest paths along them: what methods that follow a critical path need.

Plain lists, as their elements are read much faster than those of arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.graph import Floats, OpGraph
from placewright.problem import Problem


@dataclass(frozen=True, eq=False)
class Links:
    """Latency and seconds per byte between devices; 0 within a pool, and both large where no route leads."""

    latency_s: Floats
    """(from, to)."""
    per_byte_s: Floats
    routed: Floats
    """1 where a transfer takes a route, 0 within a pool and where there is none."""

    NOWHERE_S = 1e9
    """Stands for infinity, and can be added and divided."""

    @staticmethod
    def of(problem: Problem) -> Links:
        """The links of a problem's machine."""
        machine, n = problem.machine, problem.n_devices
        latency, per_byte, routed = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
        for a in range(n):
            for b in range(n):
                if machine.pool_of[a] == machine.pool_of[b]:
                    continue
                rates = machine.rates(a, b)
                if rates is None:
                    latency[a, b] = Links.NOWHERE_S
                else:
                    latency[a, b], per_byte[a, b], routed[a, b] = rates[0], 1 / rates[1], 1.0
        return Links(latency, per_byte, routed)

    def mean_s(self, graph: OpGraph) -> Floats:
        """Seconds of every tensor over the mean of all routes; 0 for a persistent one, which is beside its readers."""
        count = float(self.routed.sum())
        rates = (self.latency_s, self.per_byte_s)
        latency, per_byte = (float((rate * self.routed).sum()) / count if count else 0.0 for rate in rates)
        seconds: Floats = latency + graph.tensor_bytes.astype(np.float64) * per_byte
        given = graph.tensor_transfer_s
        seconds = np.where(np.isnan(given) | (count == 0), seconds, given).astype(np.float64)
        seconds[graph.persistent_root >= 0] = 0.0
        return seconds


@dataclass(frozen=True, eq=False)
class Paths:
    """Longest paths of a problem, at the mean seconds of every operation over the devices that can run it."""

    problem: Problem

    @cached_property
    def links(self) -> Links:
        """Between devices."""
        return Links.of(self.problem)

    @cached_property
    def work(self) -> list[float]:
        """Mean seconds of every operation."""
        seconds = self.problem.costs.seconds
        runs = np.isfinite(seconds)
        mean: list[float] = (np.where(runs, seconds, 0.0).sum(axis=1) / np.maximum(1, runs.sum(axis=1))).tolist()
        return mean

    @cached_property
    def _edges(self) -> tuple[list[list[int]], list[list[int]], list[list[float]]]:
        """Readers, sources, and for each reader the mean seconds of the largest tensor that goes to it."""
        graph = self.problem.graph
        n = np.int64(graph.n_ops)
        waiting = np.repeat(np.arange(graph.n_ops), np.diff(graph.after_start))
        source = np.concatenate([graph.tensor_op[graph.in_tensor], graph.after_op]).astype(np.int64)
        target = np.concatenate([graph.read_op, waiting]).astype(np.int64)
        seconds = np.concatenate([self.links.mean_s(graph)[graph.in_tensor], np.zeros(len(waiting))])
        key, inverse = np.unique(source * n + target, return_inverse=True)
        largest = np.zeros(len(key))
        np.maximum.at(largest, inverse, seconds)
        source, target = key // max(n, 1), key % max(n, 1)
        after = _rows(source, target, graph.n_ops)
        order = np.argsort(target, kind="stable")
        return after, _rows(target[order], source[order], graph.n_ops), _rows(source, largest, graph.n_ops)

    @property
    def after(self) -> list[list[int]]:
        """For every operation, those that read from it or wait for it, in program order."""
        return self._edges[0]

    @property
    def before(self) -> list[list[int]]:
        """For every operation, those that it reads from or waits for, in program order."""
        return self._edges[1]

    @cached_property
    def sources(self) -> list[int]:
        """Operations that wait for nothing."""
        return [v for v, row in enumerate(self.before) if not row]

    @property
    def transfer_s(self) -> list[list[float]]:
        """Beside `after`: mean seconds of what goes there."""
        return self._edges[2]

    @cached_property
    def upward(self) -> tuple[list[float], list[int]]:
        """Upward rank: own work, and the longest way from there to an end with its transfers; the next one on it.

        A tie goes to the first in program order; -1 at an end.
        """
        n = self.problem.n_ops
        rank, following = [0.0] * n, [-1] * n
        for v in range(n - 1, -1, -1):
            best, chosen = 0.0, -1
            for s, seconds in zip(self.after[v], self.transfer_s[v], strict=True):
                value = rank[s] + seconds
                if chosen < 0 or value > best:
                    best, chosen = value, s
            rank[v], following[v] = best + self.work[v], chosen
        return rank, following

    @cached_property
    def importance(self) -> Floats:
        """Work on the longest path through every operation, as a share of the longest of all; 1 if there is none."""
        n, work = self.problem.n_ops, self.work
        down, up = [0.0] * n, [0.0] * n
        for v in range(n):
            down[v] = max((down[u] + work[u] for u in self.before[v]), default=0.0)
        for v in range(n - 1, -1, -1):
            up[v] = max((up[s] for s in self.after[v]), default=0.0) + work[v]
        through = np.array(down) + np.array(up)
        longest = through.max(initial=0.0)
        # Rounded: paths of equal work are added up in different orders.
        return np.round(through / longest, 9) if longest > 0 else np.ones(n)


def _rows(owner: NDArray[Any], values: NDArray[Any], count: int) -> list[list[Any]]:
    """Values by owner, which is sorted."""
    ends = np.searchsorted(owner, np.arange(count + 1)).tolist()
    flat = values.tolist()
    return [flat[a:b] for a, b in pairwise(ends)]

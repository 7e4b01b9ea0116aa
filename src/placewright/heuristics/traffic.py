"""What placing a bundle adds to the traffic between devices."""

from __future__ import annotations

import math

import numpy as np

from placewright.graph import Longs
from placewright.heuristics.bundles import Bundles
from placewright.heuristics.filling import Filling
from placewright.heuristics.paths import Paths

Row = list[tuple[int, list[int]]]
"""Tensors, each with bundles at the other end."""


class Traffic:
    """Seconds of transfers, as bundles are placed: a tensor goes once to every device that needs it."""

    def __init__(self, bundles: Bundles, paths: Paths) -> None:
        graph = bundles.problem.graph
        links = paths.links
        self._latency: list[list[float]] = links.latency_s.tolist()
        self._per_byte: list[list[float]] = links.per_byte_s.tolist()
        self._routed: list[list[bool]] = links.routed.tolist()
        self._bytes: list[int] = graph.tensor_bytes.tolist()
        self._given: list[float] = graph.tensor_transfer_s.tolist()
        maker, reader = bundles.of_op[graph.tensor_op[graph.in_tensor]], bundles.of_op[graph.read_op]
        across = maker != reader
        edges = np.stack([graph.in_tensor[across], maker[across], reader[across]], 1).astype(np.int64)
        edges = np.unique(edges, axis=0)
        self._reads = _grouped(edges[:, [2, 0, 1]], bundles.count)
        self._makes = _grouped(edges[:, [1, 0, 2]], bundles.count)
        self._sent: list[dict[int, None]] = [{} for _ in range(graph.n_tensors)]
        """Where a tensor already goes."""

    def _seconds(self, tensor: int, source: int, target: int) -> float:
        given = self._given[tensor]
        if math.isnan(given) or not self._routed[source][target]:
            return self._latency[source][target] + self._bytes[tensor] * self._per_byte[source][target]
        return given

    def added(self, bundle: int, among: list[int], filling: Filling) -> list[float]:
        """Seconds of transfers from and to bundles placed before that the bundle would add on each of some devices."""
        seconds = [0.0] * len(among)
        where = filling.device
        for tensor, makers in self._reads[bundle]:
            home = where[makers[0]]
            if home >= 0:
                sent = self._sent[tensor]
                for k, d in enumerate(among):
                    if d != home and d not in sent:
                        seconds[k] += self._seconds(tensor, home, d)
        for tensor, readers in self._makes[bundle]:
            for target in sorted({where[r] for r in readers}):
                if target >= 0:
                    for k, d in enumerate(among):
                        if d != target:
                            seconds[k] += self._seconds(tensor, d, target)
        return seconds

    def put(self, bundle: int, device: int, filling: Filling) -> None:
        """Place the bundle; its tensors go where they are read, and those it reads come to it."""
        filling.put(bundle, device)
        where = filling.device
        for tensor, makers in self._reads[bundle]:
            if where[makers[0]] >= 0:
                self._sent[tensor][device] = None
        for tensor, readers in self._makes[bundle]:
            self._sent[tensor] |= dict.fromkeys(where[r] for r in readers)


def _grouped(rows: Longs, count: int) -> list[Row]:
    """Rows of (owner, tensor, other end) by owner, then by tensor."""
    rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
    found: list[Row] = [[] for _ in range(count)]
    for owner, tensor, other in rows.tolist():
        row = found[owner]
        if row and row[-1][0] == tensor:
            row[-1][1].append(other)
        else:
            row.append((tensor, [other]))
    return found

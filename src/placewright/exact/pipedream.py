"""PipeDream's contiguous split, as Tarnawski et al. 2020 compare with it: branches are never split.

PipeDream (Narayanan et al., SOSP 2019) splits a chain of layers. A graph becomes a chain by joining what lies on
parallel branches: all operations that are the tail of an edge of one biconnected component, forward and backward
passes taken together. Then the chain is split as `contiguous-linear` does. Replication of stages is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from placewright.exact.biconnected import biconnected
from placewright.exact.condense import dense
from placewright.exact.contiguous import LinearParams, Splits, linear_splits
from placewright.exact.units import Units, units_of
from placewright.graph import FORWARD
from placewright.problem import Problem

_NEXT_TO_NOTHING = 1e-3
"""Of the mean seconds of an operation: an output that moves faster joins no branches."""


class PipeDream(Splits):
    """Optimal intervals of the chain that is left when parallel branches are joined."""

    name = "pipedream"

    def __init__(self, params: LinearParams | None = None) -> None:
        self.params = params or LinearParams()

    def splits(self, problem: Problem) -> Iterator[NDArray[np.int64]]:
        """As `contiguous-linear`, of fewer units."""
        yield from linear_splits(problem, without_branches(units_of(problem)), self.params.most_units)


def without_branches(units: Units) -> Units:
    """Units of which those on parallel branches are one.

    PipeDream ignores layers such as inputs, which its profiles hold without time or size. Here those are operations
    of the forward pass that take no time and whose outputs take next to none.
    """
    graph = units.problem.graph
    on = ~graph.off_queue
    unit = units.of_group[units.problem.groups].astype(np.int64)
    vertex = 2 * unit + (graph.phase != FORWARD)  # a unit's forward operations and its others
    maker = graph.tensor_op[graph.in_tensor]
    reads = on[maker] & on[graph.read_op]
    pairs = np.stack([vertex[maker[reads]], vertex[graph.read_op[reads]]], 1)
    edges = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    edges = edges[~_empty(units, vertex)[edges[:, 0]]]
    component = biconnected(2 * units.n, [(int(u), int(v)) for u, v in edges])

    parent = list(range(units.n))

    def root(u: int) -> int:
        while parent[u] != u:
            parent[u] = parent[parent[u]]
            u = parent[u]
        return u

    first: dict[int, int] = {}
    for tail, found in zip((edges[:, 0] // 2).tolist(), component, strict=True):
        parent[root(tail)] = root(first.setdefault(found, tail))
    return units.joined(dense(np.array([root(u) for u in range(units.n)], np.int64)))


def _empty(units: Units, vertex: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(2 U,) which vertices PipeDream would ignore."""
    problem, graph = units.problem, units.problem.graph
    on = np.flatnonzero(~graph.off_queue)
    finite = np.isfinite(problem.costs.seconds)
    seconds = np.zeros(2 * units.n)
    np.add.at(seconds, vertex[on], np.where(finite, problem.costs.seconds, 0.0).max(axis=1)[on])
    moving = np.zeros(2 * units.n)
    made = ~graph.off_queue[graph.tensor_op]
    np.maximum.at(moving, vertex[graph.tensor_op[made]], _move_s(problem)[made])
    busy = seconds[seconds > 0]
    little = _NEXT_TO_NOTHING * float(busy.mean()) if len(busy) else 0.0
    empty: NDArray[np.bool_] = (seconds == 0) & (moving <= little) & (np.arange(2 * units.n) % 2 == 0)
    return empty


def _move_s(problem: Problem) -> NDArray[np.float64]:
    """(T,) seconds of each tensor over the fastest channel."""
    graph = problem.graph
    rate = max((channel.bytes_per_s for channel in problem.machine.channels), default=np.inf)
    seconds: NDArray[np.float64] = np.where(
        np.isnan(graph.tensor_transfer_s), graph.tensor_bytes / rate, graph.tensor_transfer_s
    )
    return seconds

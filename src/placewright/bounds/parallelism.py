"""What limits every placement of a problem: the longest path, and how much could run side by side."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from placewright.graph import BACKWARD, FORWARD, OpGraph
from placewright.problem import Problem


def parallelism(problem: Problem) -> float:
    """Return how many devices a step could keep busy if transfers were free: total time over longest path, 1 or more.

    Both are of the forward and backward operations, at their seconds on the one device that is fastest for
    all of them together; where no device can run all, each operation counts at its own fastest.
    """
    graph = problem.graph
    timed = (graph.phase == FORWARD) | (graph.phase == BACKWARD)
    table = np.where(timed[:, None], problem.costs.seconds, 0.0)
    totals = table.sum(axis=0)
    fastest = int(totals.argmin())
    seconds = table[:, fastest] if np.isfinite(totals[fastest]) else table.min(axis=1)
    path = longest_path(graph, seconds)
    ratio = float(seconds.sum()) / path if path > 0 else 1.0
    return max(1.0, round(ratio, 9))  # the two sums are rounded in different orders


def longest_path(graph: OpGraph, weights: ArrayLike) -> float:
    """Return the largest sum of weights along any path of the graph, order-only edges included."""
    ends: list[float] = []
    makers = graph.tensor_op[graph.in_tensor].tolist()  # plain lists: their elements are read much faster
    in_start, after_start, after = graph.in_start.tolist(), graph.after_start.tolist(), graph.after_op.tolist()
    for i, weight in enumerate(np.asarray(weights, np.float64).tolist()):
        latest = 0.0
        for maker in makers[in_start[i] : in_start[i + 1]]:
            latest = max(latest, ends[maker])
        for other in after[after_start[i] : after_start[i + 1]]:
            latest = max(latest, ends[other])
        ends.append(latest + weight)
    return max(ends, default=0.0)

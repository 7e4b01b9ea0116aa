"""Where in the forward pass the operations that come after it belong.

A backward operation reads what forward operations made, or the weights that they read, and the gradients of what
comes later in the forward pass. Hence it belongs to the latest forward operation that makes or reads one of its
forward inputs, no later than those to which the makers of its gradients belong.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from placewright.graph import FORWARD, OpGraph


def mirror_places(graph: OpGraph) -> NDArray[np.int64]:
    """(operations,) the forward operation to which each operation belongs.

    Of a forward operation that is itself. What belongs to none in particular is with the last one; of what is on no
    queue it is its own index.
    """
    place = np.arange(graph.n_ops, dtype=np.int64)
    forward = graph.phase == FORWARD
    behind = np.flatnonzero(~graph.off_queue & ~forward)
    if not len(behind) or not forward.any():
        return place
    last = int(np.flatnonzero(forward)[-1])
    start, reader = graph.consumers
    users: dict[int, list[int]] = {}

    def forward_users(t: int) -> list[int]:
        """The forward operations that make or read a tensor, in program order."""
        if t not in users:
            made = int(graph.tensor_op[t])
            users[t] = [made] * bool(forward[made]) + [int(r) for r in reader[start[t] : start[t + 1]] if forward[r]]
        return users[t]

    behind_op = ~graph.off_queue & ~forward
    for i in behind.tolist():
        reads = graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]].tolist()
        makers = graph.tensor_op[reads]
        limit = int(min(place[makers[behind_op[makers]]], default=last))
        found = -1
        for t, made in zip(reads, makers.tolist(), strict=True):
            if behind_op[made]:
                continue
            known = forward_users(t)
            at = bisect_right(known, limit)
            found = max(found, known[at - 1] if at else -1)
        place[i] = found if found >= 0 else limit
    return place

"""What the list-scheduling kernels read and work in.

    n operations, E edges (reads and order-only), G groups that are decided as one, D devices, P pools

Times are float64. Those of a problem are whole picoseconds, so sums are exact up to 2.5 hours.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

ON, OFF, PASSIVE = 0, 1, 2
"""On a device's queue; on none; or passive: it takes no time, and has what it waits for in its own group."""
FAR = 1e30
"""The time of a transfer where no route leads."""
BY_ROUTE, NOTHING = -1.0, -2.0
"""In place of an edge's own transfer time: the route gives it; or nothing travels."""
DONE = -1
"""What a kernel returns where every group was decided; else the group that no device is left for."""
NONE = np.int64(-1)
"""No device or operation. Not a literal, for which Numba would compile every function that takes it once more."""
# Entries of `count`
N_TOUCHED, STAMP, N_READY, N_LEFT, N_OFFERED, APART = range(6)


class Tasks(NamedTuple):
    """Operations to schedule, their groups, and where those may be."""

    group: Any  # (n,)
    kind: Any  # (n,) ON, OFF or PASSIVE
    cost: Any  # (n, D)
    mean: Any  # (n,) mean cost over the devices of `first`
    in_start: Any  # (n + 1,)
    in_op: Any  # (E,)
    in_bytes: Any  # (E,)
    in_fixed: Any  # (E,) transfer time, BY_ROUTE or NOTHING
    in_mean: Any  # (E,) mean transfer time; 0 out of a passive operation
    out_start: Any  # (n + 1,)
    out_op: Any  # (E,) by increasing consumer
    pool_of: Any  # (D,)
    route_ok: Any  # (D, D)
    latency_s: Any  # (D, D)
    bytes_per_s: Any  # (D, D)
    choices: Any  # (G, D) where a group may be
    first: Any  # (G, D) those that are tried first
    bytes: Any  # (G, P) persistent
    need: Any  # (G, P) persistent, and what is alive when most is
    work: Any  # (G, P) what its neediest operation has besides
    capacity: Any  # (P,)
    apart_start: Any  # (G + 1,)
    apart_side: Any  # the sides of separations that a group is on
    member_start: Any  # (G + 1,)
    member: Any  # (n,) operations by group
    favourite: Any  # (n,) the operation that its device is kept free for, or -1


class Heaps(NamedTuple):
    """Heaps of operations, one in each row."""

    key: Any  # (rows, 2 n + 64)
    op: Any  # (rows, 2 n + 64)
    size: Any  # (rows,)


class State(NamedTuple):
    """One schedule in the making."""

    decided: Any  # (G,) device or -1
    used: Any  # (P,) of `need`
    held: Any  # (P,) of `bytes`
    working: Any  # (P,) the largest `work`
    taken: Any  # (sides, D)
    mark: Any  # (G,)
    touched: Any  # (G,) groups decided since it was last cleared
    start: Any  # (n,)
    finish: Any  # (n,)
    waits: Any  # (n,) what an operation still waits for
    count: Any  # (6,)
    gap_start: Any  # (D, n + 1) when idle periods begin, in order; none for `greedy`
    gap_end: Any  # (D, n + 1)
    gaps: Any  # (D,) how many
    free: Any  # (D,) when the device is through with what it was given
    last: Any  # (D,) its last operation, or -1
    done: Any  # (n,) whether it was scheduled
    ready: Any  # (n,) operations that may be scheduled
    ready_at: Any  # (n,) where an operation is in `ready`, or -1
    heaps: Heaps


def make_state(t: Tasks, greedy: bool) -> State:
    """Nothing decided and every device idle. Large arrays are left to be filled, so unused parts cost no memory."""
    n, devices = t.cost.shape
    groups, pools = t.bytes.shape
    sides = 2 * (int(t.apart_side.max(initial=-1)) // 2 + 1)
    gaps = 0 if greedy else n + 1
    rows = 0 if not greedy else 4 * devices if (t.favourite >= 0).any() else 2 * devices
    state = State(
        decided=np.full(groups, -1, np.int64),
        used=np.zeros(pools, np.int64),
        held=np.zeros(pools, np.int64),
        working=np.zeros(pools, np.int64),
        taken=np.zeros((sides, devices), np.uint8),
        mark=np.zeros(groups, np.int64),
        touched=np.zeros(groups + 1, np.int64),
        start=np.zeros(n),
        finish=np.zeros(n),
        waits=np.zeros(n, np.int64),
        count=np.zeros(6, np.int64),
        gap_start=np.empty((devices, gaps)),
        gap_end=np.empty((devices, gaps)),
        gaps=np.ones(devices, np.int64),
        free=np.zeros(devices),
        last=np.full(devices, -1, np.int64),
        done=np.zeros(n, np.uint8),
        ready=np.zeros(n, np.int64),
        ready_at=np.full(n, -1, np.int64),
        heaps=Heaps(np.empty((rows, 2 * n + 64)), np.empty((rows, 2 * n + 64), np.int64), np.zeros(rows, np.int64)),
    )
    if gaps:
        state.gap_start[:, 0], state.gap_end[:, 0] = 0.0, np.inf
    return state

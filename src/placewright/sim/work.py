"""The arrays that one simulating thread works in, and the names of their columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placewright.sim.lower import Lowered

STREAM, READY, PRIORITY = 0, 1, 2
DONE, NO_COST, NO_ROUTE, STUCK = 0, 1, 2, 3

# Columns of `moves`, one row per transfer or visit
TENSOR, TARGET, USES, NEXT_IN_QUEUE, NEXT_OF_TENSOR, ROUTE, STATE, FIRST_USE = range(8)
# Bits of STATE
IS_READY, IS_VISIT, IS_REPEAT, IS_HERE = 1, 2, 4, 8
# Columns of `live`, one row per tensor
ROOT, HOLDS, FIRST_MOVE, BORROW = range(4)
# Columns of `borrows`, one row per (persistent tensor, borrowing device)
LEFT, OLDER, NEWER, VISIT, BORROWER, NEXT_BORROW, OF_TENSOR = range(7)


class Work(NamedTuple):
    """Arrays that a thread keeps from one placement to the next."""

    needs: Any  # (n,) what an operation still waits for
    live: Any  # (T, 4)
    read_move: Any  # (E,) the transfer that serves a read, or NONE: it is local
    moves: Any  # (E + 1, 8)
    move_key: Any  # (E + 1,)
    move_bytes: Any  # (E + 1,) bytes of the received copy
    borrows: Any  # (k + 1, 7)
    lru: Any  # (D, 2) oldest and newest listed borrow
    listed: Any  # (D,) bytes
    window: Any  # (D,) bytes
    raised: Any  # (D,) whether the window asked for was below the least that works
    largest: Any  # (D,) the largest tensor borrowed
    held: Any  # (D,) bytes of visits in flight or held
    visits: Any  # (D, 2) next visit to start, last one
    next_visit: Any  # (E + 1,)
    queue: Any  # (n,) operations by device
    heads: Any  # (D, 5) columns below
    idle: Any  # (n + D,) devices that may start an operation in this round
    running: Any  # (D,) operation
    ends: Any  # (D,) when it ends
    route_queue: Any  # (R, 2) head and tail
    taken: Any  # (C,) whether a transfer occupies the channel
    wait: Any  # (C,) the first route that waits for the channel
    wait_next: Any  # (R,) the next one
    waits: Any  # (R,) whether the route waits for a channel
    look: Any  # (R,) routes to look at in step 3
    in_look: Any  # (R,)
    flying: Any  # (C + 1,) transfers in flight
    lands: Any  # (C + 1,) when they end
    stack: Any  # (n,) operations off the queues whose inputs are there
    now: Any  # (P,) bytes
    peak: Any  # (P,)
    device_busy: Any  # (D,)
    channel_busy: Any  # (C,)
    count: Any  # (8,) N_MOVES and other scalars
    op_times: Any  # (n or 0, 4) start, its round, end, its round: only when recording
    move_times: Any  # (E + 1 or 0, 4) start, end, their rounds


# Entries of `count`
N_MOVES, N_LOOK, N_FLYING, ROUND, N_STACK, DIRTY, BAD, N_IDLE = range(8)
# Columns of `heads`
BASE, HEAD, TAIL, FRESH, FRESH_ROUND = range(5)
# FRESH is where the operations that became ready in round FRESH_ROUND begin


def make_work(p: Lowered, record: bool) -> Work:
    """Work arrays for one thread."""
    n, devices = p.cost_ps.shape
    tensors, reads, routes = len(p.tensors), len(p.in_tensor), devices * devices

    def ints(*shape: int) -> Any:
        return np.zeros(shape, np.uint32)

    def longs(*shape: int) -> Any:
        return np.zeros(shape, np.int64)

    most_moves, channels, pools = reads + 1, p.n_channels, p.n_pools
    return Work(
        needs=ints(n),
        live=ints(tensors, 4),
        read_move=ints(reads),
        moves=ints(most_moves, 8),
        move_key=longs(most_moves),
        move_bytes=longs(most_moves),
        borrows=ints(len(p.persistent_reads) + 1, 7),
        lru=ints(devices, 2),
        listed=longs(devices),
        window=longs(devices),
        raised=ints(devices),
        largest=longs(devices),
        held=longs(devices),
        visits=ints(devices, 2),
        next_visit=ints(most_moves),
        queue=ints(n),
        heads=longs(devices, 5),
        idle=ints(n + devices),
        running=ints(devices),
        ends=longs(devices),
        route_queue=ints(routes, 2),
        taken=ints(channels),
        wait=ints(channels),
        wait_next=ints(routes),
        waits=ints(routes),
        look=ints(routes),
        in_look=ints(routes),
        flying=ints(channels + 1),
        lands=longs(channels + 1),
        stack=ints(n + devices),
        now=longs(pools),
        peak=longs(pools),
        device_busy=longs(devices),
        channel_busy=longs(channels),
        count=longs(8),
        op_times=longs(n if record else 0, 4),
        move_times=longs(most_moves if record else 0, 4),
    )

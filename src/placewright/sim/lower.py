"""Lowering: a problem becomes flat arrays, once; the kernel reads nothing else.

    n operations, T tensors, E reads, D devices, P pools, G distinct granules, R = D * D routes, C channels

Rows hold what one event touches together, so that an event costs few cache lines.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placewright.errors import ProblemError
from placewright.graph import STORE, OpGraph
from placewright.machine import Machine
from placewright.problem import DISCIPLINES, Problem

PICO = 1e12
NEVER = np.iinfo(np.int64).max
"""The cost, in picoseconds, of an operation where it cannot run; also the end of what is idle."""
MOST_PS = 1 << 62

# Columns of `ops`
OUT0, OUT1, IN0, IN1, NEXT0, NEXT1, NEEDS, OFF_QUEUE = range(8)
# Columns of `tensors`
MAKER, USE0, USE1, STORAGE, MARKS = range(5)
# Bits of MARKS
PERSISTENT, DETACHABLE, OUTPUT = 1, 2, 4
# Values of OFF_QUEUE
ON_QUEUE, OFF, IS_STORE = 0, 1, 2

U32: TypeAlias = NDArray[np.uint32]
I64: TypeAlias = NDArray[np.int64]
F64: TypeAlias = NDArray[np.float64]
NONE = np.uint32(0xFFFFFFFF)
"""No tensor, transfer or operation. What indexes is unsigned: Numba then spares a test for wrap-around."""


class Lowered(NamedTuple):
    """What the kernel reads of a problem."""

    discipline: int
    cost_ps: I64  # (n, D)
    ops: U32  # (n, 8)
    own_bytes: I64  # (n, G) outputs that always have bytes of their own, rounded
    work_bytes: I64  # (n, G)
    tensors: U32  # (T, 5)
    size: I64  # (T, G) rounded
    raw_bytes: F64  # (T,)
    transfer_ps: I64  # (T,) or -1: by the route
    in_tensor: U32  # (E,)
    in_use: U32  # (E,) where the read stands among its tensor's uses
    use: U32  # (E, 2) by tensor: reading operation, read
    after: U32  # order-only successors
    persistent: U32  # the persistent tensors
    persistent_reads: U32  # (k, 2) reads of persistent tensors by increasing operation: operation, read
    pool_of: U32  # (D,)
    granule_of: U32  # (D,)
    is_host: U32  # (D,)
    route_ok: U32  # (R,)
    route_start: U32  # (R + 1,)
    route_channel: U32
    route_latency_s: F64  # (R,)
    route_bytes_per_s: F64  # (R,)
    n_pools: int
    n_channels: int


def to_ps(seconds: NDArray[np.float64]) -> I64:
    """Picoseconds, rounded half to even; NEVER where infinite."""
    finite = np.isfinite(seconds)
    if np.any(seconds[finite] * PICO >= MOST_PS):
        raise ProblemError(
            f"a cost of {float(seconds[finite].max()):g} s; costs must sum to less than 2**62 ps, 53 days"
        )
    return np.where(finite, np.rint(np.where(finite, seconds, 0.0) * PICO).astype(np.int64), NEVER)


def lower(problem: Problem) -> Lowered:
    """The flat arrays of a problem; refuses one whose costs could sum beyond 2**62 ps."""
    graph, machine = problem.graph, problem.machine
    granules = sorted({pool.granule_bytes for pool in machine.pools})
    pool_granule = [granules.index(pool.granule_bytes) for pool in machine.pools]
    cost_ps = to_ps(problem.costs.seconds)
    size = _rounded(graph.tensor_bytes, granules)
    use_start, use, in_use = _uses(graph)
    routes = _routes(machine)
    transfer_s = graph.tensor_transfer_s
    transfer_ps = np.where(np.isnan(transfer_s), -1, to_ps(np.nan_to_num(transfer_s)))
    _check_total(cost_ps, graph, transfer_ps, routes)

    persistent_reads = np.flatnonzero(graph.persistent[graph.in_tensor])
    return Lowered(
        discipline=DISCIPLINES.index(problem.discipline),
        cost_ps=np.ascontiguousarray(cost_ps),
        ops=_op_rows(graph),
        own_bytes=_own_bytes(graph, size),
        work_bytes=_rounded(graph.workspace_bytes, granules),
        tensors=_tensor_rows(graph, use_start),
        size=size,
        raw_bytes=graph.tensor_bytes.astype(np.float64),
        transfer_ps=transfer_ps,
        in_tensor=graph.in_tensor.astype(np.uint32),
        in_use=in_use,
        use=use,
        after=graph.before[1].astype(np.uint32),
        persistent=np.flatnonzero(graph.persistent).astype(np.uint32),
        persistent_reads=np.stack([graph.read_op[persistent_reads], persistent_reads], 1).astype(np.uint32),
        pool_of=np.array(machine.pool_of, np.uint32),
        granule_of=np.array([pool_granule[p] for p in machine.pool_of], np.uint32),
        is_host=np.array([device.is_host for device in machine.devices], np.uint32),
        **routes,
        n_pools=len(machine.pools),
        n_channels=len(machine.channels),
    )


def _rounded(sizes: NDArray[np.int64], granules: list[int]) -> I64:
    """(len(sizes), G): sizes rounded up to each granule."""
    return np.ascontiguousarray(np.stack([-(-sizes // g) * g for g in granules], axis=1))


def _op_rows(graph: OpGraph) -> U32:
    rows = np.zeros((graph.n_ops, 8), np.uint32)
    before_start = graph.before[0]
    for column, start in ((OUT0, graph.out_start), (IN0, graph.in_start), (NEXT0, before_start)):
        rows[:, column], rows[:, column + 1] = start[:-1], start[1:]
    rows[:, NEEDS] = np.diff(graph.in_start) + np.diff(graph.after_start)
    rows[:, OFF_QUEUE] = np.where(graph.phase == STORE, IS_STORE, graph.off_queue)
    return rows


def _tensor_rows(graph: OpGraph, use_start: U32) -> U32:
    rows = np.zeros((graph.n_tensors, 5), np.uint32)
    rows[:, MAKER] = graph.tensor_op
    rows[:, USE0], rows[:, USE1] = use_start[:-1], use_start[1:]
    rows[:, STORAGE] = graph.tensor_storage
    rows[:, MARKS] = PERSISTENT * graph.persistent + DETACHABLE * graph.detachable + OUTPUT * graph.tensor_output
    return rows


def _own_bytes(graph: OpGraph, size: I64) -> I64:
    own = (graph.tensor_storage == np.arange(graph.n_tensors)) & ~graph.persistent
    table = np.zeros((graph.n_ops, size.shape[1]), np.int64)
    np.add.at(table, graph.tensor_op[own], size[own])
    return table


def _uses(graph: OpGraph) -> tuple[U32, U32, U32]:
    """By tensor: start, (operation, read) of every use; and where each read stands among them."""
    order = np.argsort(graph.in_tensor, kind="stable").astype(np.uint32)
    in_use = np.empty(len(order), np.uint32)
    in_use[order] = np.arange(len(order), dtype=np.uint32)
    return graph.consumers[0].astype(np.uint32), np.stack([graph.read_op[order], order], 1).astype(np.uint32), in_use


def _routes(machine: Machine) -> dict[str, Any]:
    """The routes between all ordered pairs of devices, and their channels, each once."""
    count = len(machine.devices)
    ok = np.zeros(count * count, np.uint32)
    start = np.zeros(count * count + 1, np.uint32)
    latency, rate = np.zeros(count * count), np.full(count * count, np.inf)
    channels: list[int] = []
    for a in range(count):
        for b in range(count):
            r = a * count + b
            path = machine.route(a, b)
            if path is not None:
                ok[r] = 1
                latency[r], rate[r] = machine.path_rates(path)
                channels += sorted(set(path))
            start[r + 1] = len(channels)
    return {
        "route_ok": ok,
        "route_start": start,
        "route_channel": np.array(channels, np.uint32),
        "route_latency_s": latency,
        "route_bytes_per_s": rate,
    }


def _check_total(cost_ps: I64, graph: OpGraph, transfer_ps: I64, routes: dict[str, Any]) -> None:
    """Refuse costs whose largest possible sum does not fit: every operation at its slowest, every read a transfer."""
    finite = np.where(cost_ps == NEVER, 0, cost_ps).astype(np.float64)
    machine_devices = cost_ps.shape[1]
    total = float(finite.max(axis=1, initial=0.0).sum())
    crossing = np.flatnonzero((routes["route_ok"] == 1) & np.isfinite(routes["route_bytes_per_s"]))
    if len(crossing):
        worst = (
            routes["route_latency_s"][crossing].max() + graph.tensor_bytes / routes["route_bytes_per_s"][crossing].min()
        )
        each = np.where(transfer_ps >= 0, transfer_ps, worst * PICO)
        total += float((each * np.diff(graph.consumers[0])).sum())
    copies = float(graph.tensor_bytes.sum() + graph.workspace_bytes.sum()) * (machine_devices + 1)
    if copies >= MOST_PS:
        raise ProblemError(
            f"tensors of {float(graph.tensor_bytes.sum()):g} bytes on {machine_devices} devices could need "
            f"{copies:g} bytes; less than 2**62 is needed"
        )
    if total >= MOST_PS:
        raise ProblemError(f"costs could sum to {total / PICO:g} s; less than 2**62 ps, 53 days, is needed")

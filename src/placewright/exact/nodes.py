"""What an integer model decides about: nodes on devices, and the flows of tensors between nodes.

K nodes, D devices, P pools
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from placewright.decisions import Decisions
from placewright.exact.condense import dense, lossless, roomy
from placewright.exact.costing import I64, Bools, Costing
from placewright.exact.parts import parts_of
from placewright.exact.units import Units
from placewright.graph import OpGraph
from placewright.problem import Problem
from placewright.sim.lower import DETACHABLE, IS_STORE, MARKS, OFF_QUEUE, PERSISTENT, PICO, STORAGE, Lowered


@dataclass(frozen=True)
class Flow:
    """Tensors of one maker that the same other nodes read."""

    maker: int
    readers: tuple[int, ...]
    tensors: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Nodes:
    """Groups, some of them joined where that excludes no optimum."""

    problem: Problem
    lowered: Lowered
    label: I64
    """(groups,) the node of every group."""
    allowed: Bools
    """(K, D)"""
    cost_ps: I64
    """(K, D) the sum of the node's operations, 0 where it may not be."""
    held: I64
    """(K, P) persistent bytes."""
    need: I64
    """(K, D) bytes that the largest operation takes at the least."""
    roomy: bool
    """Whether memory cannot exclude a placement."""
    uniform: bool
    """Whether every tensor takes equally long on every route that a load is charged for."""
    weight: I64
    """(T,) ps of every tensor on the dearest of those routes."""
    flows: tuple[Flow, ...]
    apart: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """Pairs of sides that may not share a device."""
    alike: tuple[tuple[int, ...], ...]
    """Devices that no placement can tell apart."""

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.allowed)

    def of_groups(self, node_devices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Devices of all groups."""
        return node_devices[self.label]

    def move_ps(self, tensor: int, source: int, target: int) -> int:
        """Picoseconds of a transfer, as the simulator counts it."""
        p, route = self.lowered, source * self.problem.n_devices + target
        if p.transfer_ps[tensor] >= 0:
            return int(p.transfer_ps[tensor])
        return int(np.rint((p.route_latency_s[route] + p.raw_bytes[tensor] / p.route_bytes_per_s[route]) * PICO))

    def has_route(self, source: int, target: int) -> bool:
        """Whether a transfer can go there."""
        return bool(self.lowered.route_ok[source * self.problem.n_devices + target])

    def in_pool(self, device: int) -> list[int]:
        """The devices of one pool."""
        pool_of = self.problem.machine.pool_of
        return [d for d in range(self.problem.n_devices) if pool_of[d] == pool_of[device]]


def nodes_of(problem: Problem) -> Nodes:
    """Nodes for the problem's objective: joined where loads are exact without knowing who is where."""
    costing = Costing.of(problem)
    groups = Units(problem, np.arange(problem.n_groups, dtype=np.int32), np.zeros((0, 2), np.int32))
    parts = parts_of(costing, groups)
    label = np.arange(problem.n_groups)
    if problem.objective == "max_load" and costing.uniform and _pools_are_single(problem):
        label = dense(lossless(parts, None))
    p, decisions = costing.lowered, Decisions(problem)
    n = int(label.max(initial=-1)) + 1
    allowed = np.ones((n, problem.n_devices), bool)
    np.logical_and.at(allowed, label, problem.choices)
    cost = np.zeros((n, problem.n_devices), np.int64)
    node_of_op = label[problem.groups] if n else np.zeros(0, np.int64)
    np.add.at(cost, node_of_op, np.where(allowed[node_of_op], p.cost_ps, 0))
    held = np.zeros((n, len(problem.machine.pools)), np.int64)
    np.add.at(held, label, decisions.bytes)
    return Nodes(
        problem, p, label, allowed, cost, held,
        need=_needs(problem, p, node_of_op, n),
        roomy=roomy(parts),
        uniform=costing.uniform,
        weight=costing.weight,
        flows=_flows(problem, node_of_op, together=problem.objective != "max_load" or costing.uniform),
        apart=tuple(
            (tuple(np.unique(node_of_op[a]).tolist()), tuple(np.unique(node_of_op[b]).tolist()))
            for a, b in problem.separated
        ),
        alike=costing.classes.devices,
    )  # fmt: skip


def _pools_are_single(problem: Problem) -> bool:
    """Whether no two devices that pay for transfers share a pool with another device."""
    pool_of, devices = problem.machine.pool_of, problem.machine.devices
    return all(device.is_host or pool_of.count(pool_of[d]) == 1 for d, device in enumerate(devices))


def _flows(problem: Problem, node_of_op: I64, *, together: bool) -> tuple[Flow, ...]:
    graph = problem.graph
    maker = node_of_op[graph.tensor_op]
    readers: dict[int, dict[int, None]] = {}
    for t, op in zip(graph.in_tensor.tolist(), graph.read_op.tolist(), strict=True):
        if node_of_op[op] != maker[t]:
            readers.setdefault(t, {})[int(node_of_op[op])] = None
    rows: dict[tuple[int, tuple[int, ...], int], list[int]] = {}
    for t in sorted(readers):
        key = int(maker[t]), tuple(sorted(readers[t])), -1 if together else t
        rows.setdefault(key, []).append(t)
    return tuple(Flow(made, read, tuple(tensors)) for (made, read, _), tensors in rows.items())


def _needs(problem: Problem, p: Lowered, node_of_op: I64, n: int) -> I64:
    """(K, D) the least bytes of the largest operation of every node."""
    by_granule = np.zeros((n, p.work_bytes.shape[1]), np.int64)
    # For `step`, what is on no queue may be gone before anyone looks.
    counts = np.ones(problem.n_ops, bool) if problem.objective != "step" else ~problem.graph.off_queue
    for granule in range(by_granule.shape[1]):
        least = np.where(counts, least_operation_bytes(problem.graph, p, granule), 0)
        np.maximum.at(by_granule[:, granule], node_of_op, least)
    table: I64 = by_granule[:, p.granule_of.astype(np.int64)]
    return table


def least_operation_bytes(graph: OpGraph, p: Lowered, granule: int) -> I64:
    """(operations,) what each takes for itself on any device, wherever its inputs are made.

    Workspace, the storage of its outputs, and every other transient storage that it reads: at the least either that
    storage or, if that is smaller, one of the tensors in it, which is what it would receive. New values of a
    persistent tensor may be in place and count nothing, and a store takes nothing.
    """
    marks, base = p.tensors[:, MARKS].astype(np.int64), p.tensors[:, STORAGE].astype(np.int64)
    counted = ((marks | marks[base]) & (PERSISTENT | DETACHABLE)) == 0
    size = p.size[:, granule].tolist()
    least = p.work_bytes[:, granule].copy()
    roots, reads = np.where(counted, base, -1).tolist(), graph.in_tensor.tolist()
    for i in np.flatnonzero(p.ops[:, OFF_QUEUE] != IS_STORE).tolist():
        made = {roots[t]: size[roots[t]] for t in range(graph.out_start[i], graph.out_start[i + 1]) if roots[t] >= 0}
        found: dict[int, int] = {}
        for t in reads[graph.in_start[i] : graph.in_start[i + 1]]:
            if roots[t] >= 0 and roots[t] not in made:
                found[roots[t]] = min(found.get(roots[t], size[roots[t]]), size[t])
        least[i] += sum(made.values()) + sum(found.values())
    return least


def common_divisor(nodes: Nodes) -> int:
    """The largest number of picoseconds that divides every cost."""
    p = nodes.lowered
    found = int(np.gcd.reduce(nodes.cost_ps, axis=None)) if nodes.n else 0
    moved = np.array(sorted({t for flow in nodes.flows for t in flow.tensors}), np.int64)
    rates = np.unique(np.stack([p.route_latency_s, p.route_bytes_per_s], 1)[p.route_ok.astype(bool)], axis=0)
    for latency_s, bytes_per_s in rates:
        ps = np.rint((latency_s + p.raw_bytes[moved] / bytes_per_s) * PICO).astype(np.int64)
        ps = np.where(p.transfer_ps[moved] >= 0, p.transfer_ps[moved], ps)
        found = gcd(found, int(np.gcd.reduce(ps)) if len(ps) else 0)
    return max(1, found)

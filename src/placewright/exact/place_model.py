"""What every integer model has: one device for every node, within memory and the constraints, and linear sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.exact.costing import I64
from placewright.exact.nodes import Nodes

_FINE = 1 << 36
"""Units of memory that a pool is divided into at most."""


@dataclass(eq=False)
class Sums:
    """Linear sums under construction: by key, variables and coefficients."""

    rows: dict[tuple[str, int], list[tuple[Any, int]]] = field(default_factory=dict)

    def add(self, kind: str, index: int, variable: Any, coefficient: int) -> None:
        """Add a term to the load of a device or channel."""
        if coefficient:
            self.rows.setdefault((kind, index), []).append((variable, coefficient))


@dataclass(eq=False)
class PlaceModel:
    """The decisions that every model has: one device for every node, within memory and the constraints."""

    nodes: Nodes
    unit: int
    """Picoseconds that count as one."""
    model: Any = None
    x: dict[tuple[int, int], Any] = field(default_factory=dict)
    value: Any = None

    def __post_init__(self) -> None:
        from ortools.sat.python import cp_model

        self.model = cp_model.CpModel()
        nodes = self.nodes
        for k, row in enumerate(nodes.allowed.tolist()):
            here = [d for d, ok in enumerate(row) if ok]
            for d in here:
                self.x[k, d] = self.model.new_bool_var("")
            self.model.add_exactly_one([self.x[k, d] for d in here])
        self._keep_apart()
        if not nodes.roomy:
            self._fit()

    def hint(self, node_devices: I64) -> None:
        """A placement to begin from."""
        for (k, d), variable in self.x.items():
            self.model.add_hint(variable, int(node_devices[k]) == d)

    def forbid(self, content: Mapping[int, int]) -> None:
        """Exclude that the devices named hold just these nodes: `content` is node to device, with every node there.

        So do the devices that are alike, where each has its pool to itself.
        """
        devices = sorted(set(content.values()))
        swaps: list[dict[int, int]] = [{}]
        if len(devices) == 1:
            (here,) = devices
            alike = next((row for row in self.nodes.alike if here in row), (here,))
            swaps = [{here: d} for d in alike if len(self.nodes.in_pool(d)) == 1] or [{}]
        for swap in swaps:
            there = {k: swap.get(d, d) for k, d in content.items()}
            pools = {d for device in there.values() for d in self.nodes.in_pool(device)}
            clause = [self.x[k, d].negated() for k, d in there.items() if (k, d) in self.x]
            clause += [self.x[k, d] for (k, d) in self.x if d in pools and k not in there]
            if len([k for k, d in there.items() if (k, d) in self.x]) == len(there):
                self.model.add_bool_or(clause)

    def devices(self, solver: Any) -> I64:
        """(K,) the device of every node in the solution."""
        found: NDArray[np.int64] = np.zeros(self.nodes.n, np.int64)
        for (k, d), variable in self.x.items():
            if solver.boolean_value(variable):
                found[k] = d
        return found

    def within(self, node: int, device: int) -> list[Any]:
        """The literals of which one holds where a node is in the pool of a device."""
        return [self.x[node, d] for d in self.nodes.in_pool(device) if (node, d) in self.x]

    def need_moves(self) -> dict[tuple[int, int, int], Any]:
        """By (flow, source, target): whether its tensors go from one device to another; excludes what has no route."""
        moves = {}
        devices = range(self.nodes.problem.n_devices)
        for f, flow in enumerate(self.nodes.flows):
            for a in devices:
                if (flow.maker, a) not in self.x:
                    continue
                pool = self.nodes.in_pool(a)
                for b in devices:
                    readers = [r for r in flow.readers if b not in pool and (r, b) in self.x]
                    if not readers:
                        continue
                    routed = self.nodes.has_route(a, b)
                    if routed:
                        moves[f, a, b] = self.model.new_bool_var("")
                    for r in readers:
                        clause = [self.x[flow.maker, a].negated(), self.x[r, b].negated()]
                        self.model.add_bool_or([*clause, moves[f, a, b]] if routed else clause)
        return moves

    def _keep_apart(self) -> None:
        for sides in self.nodes.apart:
            for d in range(self.nodes.problem.n_devices):
                used = [self.model.new_bool_var("") for _ in sides]
                for side, one in zip(sides, used, strict=True):
                    for k in side:
                        if (k, d) in self.x:
                            self.model.add_implication(self.x[k, d], one)
                self.model.add_at_most_one(used)

    def _fit(self) -> None:
        """Persistent bytes, and the largest operation of every device, within every pool."""
        nodes = self.nodes
        for p, pool in enumerate(nodes.problem.machine.pools):
            unit = max(1, pool.capacity_bytes // _FINE)
            sizes: list[tuple[Any, int]] = []
            largest: list[Any] = []
            for d in [d for d, q in enumerate(nodes.problem.machine.pool_of) if q == p]:
                here = [k for k in range(nodes.n) if (k, d) in self.x]
                sizes += [(self.x[k, d], int(nodes.held[k, p]) // unit) for k in here]
                most = max((int(nodes.need[k, d]) // unit for k in here), default=0)
                if most:
                    largest.append(self.model.new_int_var(0, most, ""))
                    for k in here:
                        self.model.add(largest[-1] >= int(nodes.need[k, d]) // unit * self.x[k, d])
            room = pool.capacity_bytes // unit
            if nodes.problem.objective == "step":  # nothing says that two devices are at their largest at once
                for one in largest:
                    self.model.add(weighted(sizes) + one <= room)
                largest = []
            self.model.add(weighted(sizes) + sum(largest) <= room)


def weighted(terms: Sequence[tuple[Any, int]]) -> Any:
    from ortools.sat.python import cp_model

    return cp_model.LinearExpr.weighted_sum([v for v, _ in terms], [c for _, c in terms])


def add_compute(made: PlaceModel, sums: Sums) -> None:
    """The operations of every device."""
    for (k, d), variable in made.x.items():
        sums.add("device", d, variable, int(made.nodes.cost_ps[k, d]) // made.unit)


def add_channels(made: PlaceModel, sums: Sums, moves: Mapping[tuple[int, int, int], Any]) -> None:
    """The transfers of every channel."""
    p, count = made.nodes.lowered, made.nodes.problem.n_devices
    for (f, a, b), variable in moves.items():
        ps = sum(made.nodes.move_ps(t, a, b) for t in made.nodes.flows[f].tensors)
        for c in p.route_channel[p.route_start[a * count + b] : p.route_start[a * count + b + 1]].tolist():
            sums.add("channel", c, variable, ps // made.unit)


def bound_by(made: PlaceModel, sums: Sums) -> None:
    """No sum is above the value."""
    for terms in sums.rows.values():
        made.model.add(weighted(terms) <= made.value)

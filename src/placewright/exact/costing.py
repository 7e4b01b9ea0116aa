"""Costs that do not depend on which units there are: devices in classes, and seconds of tensors on routes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from placewright.problem import Problem
from placewright.sim.lower import Lowered, lower

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
Bools = NDArray[np.bool_]


class Routes(Enum):
    """The route by which a tensor is charged where routes differ."""

    DEAREST = "dearest"
    CHEAPEST = "cheapest"


@dataclass(frozen=True, eq=False)
class Classes:
    """Devices that no split can tell apart, in order of their first; `devices[c]` are those of class c."""

    devices: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Costing:
    """Costs of a problem that do not depend on how its units are joined or ordered."""

    problem: Problem
    lowered: Lowered
    classes: Classes
    weight: I64
    """(T,) ps of each tensor on the route that is charged."""
    uniform: bool
    """Whether every tensor takes equally long on every route, so that loads are exact."""

    @staticmethod
    def of(
        problem: Problem, routes: Routes = Routes.DEAREST, *, hosts: bool = True, lowered: Lowered | None = None
    ) -> Costing:
        """Costs by the dearest or the cheapest route, with hosts among the devices or without."""
        lowered = lowered or lower(problem)
        usable: Bools = np.asarray(problem.choices.any(axis=0))
        if not hosts:
            usable = usable & ~np.array([device.is_host for device in problem.machine.devices])
        least, largest = _weights(problem, lowered, usable)
        weight = least if routes is Routes.CHEAPEST else largest
        return Costing(problem, lowered, _classes(problem, lowered, usable), weight, bool((least == largest).all()))


def _weights(problem: Problem, p: Lowered, usable: Bools) -> tuple[I64, I64]:
    """(T,) ps of each tensor on the cheapest and on the dearest route that a load is charged for."""
    devices = problem.n_devices
    pool, host = np.array(problem.machine.pool_of), np.array([d.is_host for d in problem.machine.devices])
    pair = (pool[:, None] != pool[None, :]) & p.route_ok.astype(bool).reshape(devices, devices)
    pair &= usable[:, None] & usable[None, :] & ~(host[:, None] & host[None, :])
    routes = np.flatnonzero(pair.ravel())
    rates = np.unique(np.stack([p.route_latency_s[routes], p.route_bytes_per_s[routes]], 1), axis=0)
    if not len(rates):
        none = np.zeros(len(p.raw_bytes), np.int64)
        return none, none
    least = np.full(len(p.raw_bytes), np.iinfo(np.int64).max)
    largest = np.zeros(len(p.raw_bytes), np.int64)
    for latency_s, bytes_per_s in rates:
        ps = np.rint((latency_s + p.raw_bytes / bytes_per_s) * 1e12).astype(np.int64)
        ps = np.where(p.transfer_ps >= 0, p.transfer_ps, ps)
        least, largest = np.minimum(least, ps), np.maximum(largest, ps)
    return least, largest


def _classes(problem: Problem, p: Lowered, usable: Bools) -> Classes:
    found: dict[tuple[object, ...], list[int]] = {}
    pools = problem.machine.pools
    shared = np.bincount(problem.machine.pool_of, minlength=len(pools))
    for d, device in enumerate(problem.machine.devices):
        if not usable[d]:
            continue
        where = problem.machine.pool_of[d]
        pool = pools[where]
        columns = p.cost_ps[:, d].tobytes() + problem.choices[:, d].tobytes()
        key = (columns, device.is_host, pool.capacity_bytes, pool.granule_bytes, int(shared[where]))
        found.setdefault(key, []).append(d)
    return Classes(tuple(tuple(devices) for devices in found.values()))

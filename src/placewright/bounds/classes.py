"""Devices that nothing tells apart, as classes: the bounds see a machine of classes.

Two devices are of one class where costs, choices, memory and rates to all others agree. What is cheapest among the
members stands for the class, so whatever is proved of classes holds for devices.

    D devices, K classes, C channels, Q kinds of channels, P sets of pools
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.graph import Bools, Floats, Ints, Longs
from placewright.problem import Problem
from placewright.sim.lower import Lowered


@dataclass(frozen=True, eq=False)
class Classes:
    """The machine of classes."""

    of: Ints
    """(D,) the class of each device."""
    size: Ints
    """(K,) devices of each class."""
    is_host: Bools
    """(K,) whether a host is among them."""
    pools_of: Ints
    """(K,) the set of pools that they allocate from."""
    capacity: Longs
    """(P,) bytes of all pools of a set."""
    granule: Longs
    """(P,) the greatest common divisor of the granules of a set: rounding up to it exceeds rounding to none of them."""
    apart: Bools
    """(K, K) whether no two devices of the classes share a pool; a device shares its own."""
    twins_apart: Bools
    """(K,) whether no two different devices of the class share a pool; no where there is but one."""
    reached: Bools
    """(K, K) whether any route leads from one to the other."""
    latency_s: Floats
    bytes_per_s: Floats
    """(K, K) the best of any route."""
    busy: Floats
    """(K, K, Q) the share of a kind's channels that a transfer keeps busy."""


def classes_of(problem: Problem, lowered: Lowered, most: int) -> Classes:
    """The classes of a problem's devices; where they are more than `most`, unlike devices are joined."""
    machine, count = problem.machine, problem.n_devices
    pool_of = np.array(machine.pool_of)
    of = _numbered(_keys(problem, lowered, pool_of))
    if int(of.max()) >= most:
        of = _coarser(problem, of, most)
    sets = _sets(of, pool_of)
    capacity, granule = np.zeros(int(sets.max()) + 1, np.int64), np.zeros(int(sets.max()) + 1, np.int64)
    for p in np.unique(pool_of).tolist():
        s = sets[of[np.flatnonzero(pool_of == p)[0]]]
        capacity[s] += machine.pools[p].capacity_bytes
        granule[s] = math.gcd(int(granule[s]), machine.pools[p].granule_bytes)  # what any pool of the set rounds up to
    is_host = np.zeros(int(of.max()) + 1, bool)
    is_host[of[[d for d in range(count) if machine.devices[d].is_host]]] = True
    ways = _Ways.of(of, pool_of, lowered)
    reached = ways.reached
    return Classes(
        of=of,
        size=np.bincount(of).astype(np.int32),
        is_host=is_host,
        pools_of=sets,
        capacity=capacity,
        granule=granule,
        apart=ways.apart,
        twins_apart=_twins_apart(of, pool_of),
        reached=reached,
        latency_s=np.where(reached, ways.latency_s, 0.0),
        bytes_per_s=np.where(reached, ways.bytes_per_s, np.inf),
        busy=np.where(reached[:, :, None], ways.busy, 0.0),
    )


def _keys(problem: Problem, lowered: Lowered, pool_of: NDArray[np.int64]) -> list[Hashable]:
    """What tells devices apart, of each device."""
    machine, count = problem.machine, problem.n_devices
    sharing = np.bincount(pool_of, minlength=len(machine.pools))
    tables = (lowered.route_ok, lowered.route_latency_s, lowered.route_bytes_per_s)
    ways = [table.reshape(count, count) for table in tables]
    keys: list[Hashable] = []
    for d, device in enumerate(machine.devices):
        pool = machine.pools[pool_of[d]]
        out = tuple(sorted(zip(*(way[d].tolist() for way in ways), strict=True)))
        into = tuple(sorted(zip(*(way[:, d].tolist() for way in ways), strict=True)))
        column = (problem.costs.seconds[:, d].tobytes(), problem.choices[:, d].tobytes())
        memory = (pool.capacity_bytes, pool.granule_bytes, int(sharing[pool_of[d]]))
        keys.append((device.is_host, memory, out, into, column))
    return keys


def _numbered(keys: Iterable[Hashable]) -> Ints:
    """Equal keys get equal numbers, in order of first appearance."""
    number: dict[Hashable, int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], np.int32)


def _coarser(problem: Problem, of: Ints, most: int) -> Ints:
    """Join classes next to each other by the time that all operations take there."""
    seconds = problem.costs.seconds
    total = np.where(np.isfinite(seconds), seconds, 0).sum(axis=0)
    first = np.array([np.flatnonzero(of == k)[0] for k in range(int(of.max()) + 1)])
    order = np.argsort(total[first], kind="stable")
    joined = np.empty(len(first), np.int32)
    for k, part in enumerate(np.array_split(order, most)):
        joined[part] = k
    return _numbered(joined[of].tolist())


def _twins_apart(of: Ints, pool_of: NDArray[np.int64]) -> Bools:
    """Whether the devices of each class are two or more, each with a pool of its own."""
    apart = np.zeros(int(of.max()) + 1, bool)
    for k in range(len(apart)):
        pools = pool_of[of == k]
        apart[k] = len(pools) > 1 and len(np.unique(pools)) == len(pools)
    return apart


def _sets(of: Ints, pool_of: NDArray[np.int64]) -> Ints:
    """The set of pools of each class: pools of one class are together, and so are classes of one pool."""
    label = np.arange(int(of.max()) + 1)
    for p in np.unique(pool_of).tolist():
        joined = np.unique(label[of[pool_of == p]])
        label[np.isin(label, joined)] = joined[0]
    return _numbered(label.tolist())


@dataclass(frozen=True, eq=False)
class _Ways:
    """What a transfer takes between two classes at least; see `Classes`."""

    apart: Bools
    reached: Bools
    latency_s: Floats
    bytes_per_s: Floats
    busy: Floats

    @staticmethod
    def of(of: Ints, pool_of: NDArray[np.int64], lowered: Lowered) -> _Ways:
        """By all pairs of devices."""
        count, shape = len(of), (int(of.max()) + 1, int(of.max()) + 1)
        kinds, kind_of = _kinds(of, lowered)
        ways = _Ways(np.ones(shape, bool), np.zeros(shape, bool), np.full(shape, np.inf), np.zeros(shape),
                     np.full((*shape, len(kinds)), np.inf))  # fmt: skip
        for r in range(count * count):
            here = of[r // count], of[r % count]
            if pool_of[r // count] == pool_of[r % count]:
                ways.apart[here] = False
            elif lowered.route_ok[r]:
                path = lowered.route_channel[lowered.route_start[r] : lowered.route_start[r + 1]]
                ways.reached[here] = True
                ways.latency_s[here] = min(ways.latency_s[here], lowered.route_latency_s[r])
                ways.bytes_per_s[here] = max(ways.bytes_per_s[here], lowered.route_bytes_per_s[r])
                met = np.bincount(kind_of[path], minlength=len(kinds)) / kinds
                ways.busy[here] = np.minimum(ways.busy[here], met)
        return ways


def _kinds(of: Ints, lowered: Lowered) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many channels there are of each kind, and the kind of every channel: those that serve classes alike."""
    count = len(of)
    serves: list[Counter[tuple[int, int]]] = [Counter() for _ in range(lowered.n_channels)]
    for r in range(count * count):
        for c in lowered.route_channel[lowered.route_start[r] : lowered.route_start[r + 1]].tolist():
            serves[c][int(of[r // count]), int(of[r % count])] += 1
    used = [tuple(sorted(counter.items())) for counter in serves]
    kind_of = _numbered(used).astype(np.int64) if used else np.zeros(0, np.int64)
    return np.bincount(kind_of), kind_of

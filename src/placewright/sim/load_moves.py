"""Annealing of `max_load` by moves of single units, each valued by what it changes.

A *unit* is a set of operations that moves as one. The kernel keeps the load of every device and, for every tensor,
how many units on each device read it; a move touches the tensors that its unit makes or reads and nothing else. Loads
are those of `loads.py`, to the picosecond; of memory only persistent bytes at home count here, so what comes out is
evaluated whole afterwards.

    U units, T tensors, D devices, P pools
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placewright.sim.draws import below, share
from placewright.sim.jit import inline, plain
from placewright.sim.lower import NEVER, PICO

FORBIDDEN = NEVER
"""Cost of a unit where it may not be."""


class Units(NamedTuple):
    """What the kernel reads; made by `load_search.contract`."""

    cost_ps: Any  # (U, D) or FORBIDDEN
    held: Any  # (U, P) persistent bytes
    maker: Any  # (T,) unit
    made_start: Any  # (U + 1,) tensors by maker
    made: Any
    read_start: Any  # (U + 1,) tensors that the unit reads and does not make
    read: Any
    transfer_ps: Any  # (T,) or -1: by the route
    raw_bytes: Any  # (T,)
    pool_of: Any  # (D,)
    is_host: Any  # (D,)
    route_ok: Any  # (D * D,)
    route_latency_s: Any  # (D * D,)
    route_bytes_per_s: Any  # (D * D,)
    capacity: Any  # (P,)


class LoadState(NamedTuple):
    """What the kernel changes."""

    place: Any  # (U,)
    best: Any  # (U,) the best place so far
    readers: Any  # (T, D) units that read the tensor on the device
    load: Any  # (D,)
    used: Any  # (P,)
    old: Any  # (D,) loads before a move
    random: Any  # (1,) uint64
    value: Any  # (3,) best largest load, accepted moves, and moves that were valued


@inline
def move_ps(u, t, route):
    """Picoseconds of a transfer of tensor t."""
    if u.transfer_ps[t] >= 0:
        return u.transfer_ps[t]
    return np.int64(np.rint((u.route_latency_s[route] + u.raw_bytes[t] / u.route_bytes_per_s[route]) * PICO))


@plain
def add_tensor(u, s, t, sign):
    """Add (or with sign -1 take away) what tensor t loads devices with; False where a route is missing."""
    devices = len(u.pool_of)
    source = s.place[u.maker[t]]
    most = np.int64(0)
    fine = True
    for d in range(devices):
        if s.readers[t, d] == 0 or u.pool_of[d] == u.pool_of[source]:
            continue
        route = source * devices + d
        if u.route_ok[route] == 0:
            fine = False
            continue
        lasts = move_ps(u, t, route)
        most = max(most, lasts)
        if u.is_host[d] == 0:
            s.load[d] += sign * lasts
    if u.is_host[source] == 0:
        s.load[source] += sign * most
    return fine


@plain
def start(u, s):
    """Loads, readers and bytes of the present places; False where a route is missing."""
    s.readers[:] = 0
    s.load[:] = 0
    s.used[:] = 0
    for i in range(len(s.place)):
        d = s.place[i]
        s.load[d] += u.cost_ps[i, d]
        s.used[u.pool_of[d]] += u.held[i, u.pool_of[d]]
        for k in range(u.read_start[i], u.read_start[i + 1]):
            s.readers[u.read[k], d] += 1
    fine = True
    for t in range(len(u.maker)):
        fine &= add_tensor(u, s, t, 1)
    return fine


@plain
def move(u, s, i, target):
    """Move unit i; False where a route is missing."""
    here = s.place[i]
    fine = True
    for k in range(u.made_start[i], u.made_start[i + 1]):
        add_tensor(u, s, u.made[k], -1)
    for k in range(u.read_start[i], u.read_start[i + 1]):
        t = u.read[k]
        add_tensor(u, s, t, -1)
        s.readers[t, here] -= 1
        s.readers[t, target] += 1
        fine &= add_tensor(u, s, t, 1)
    s.load[here] -= u.cost_ps[i, here]
    s.load[target] += u.cost_ps[i, target]
    s.used[u.pool_of[here]] -= u.held[i, u.pool_of[here]]
    s.used[u.pool_of[target]] += u.held[i, u.pool_of[target]]
    s.place[i] = target
    for k in range(u.made_start[i], u.made_start[i + 1]):
        fine &= add_tensor(u, s, u.made[k], 1)
    return fine


@inline
def energy(s, scale, squarings):
    """A norm of the loads with the exponent 2 ** squarings: smooth where the largest load alone is flat."""
    total = 0.0
    for d in range(len(s.load)):
        x = s.load[d] * scale
        for _ in range(squarings):
            x = x * x
        total += x
    return total ** (0.5**squarings)


@inline
def aim(u, s, i):
    """A device to move unit i to: that of a neighbour by a tensor, or any."""
    devices = len(u.pool_of)
    reads = u.read_start[i + 1] - u.read_start[i]
    makes = u.made_start[i + 1] - u.made_start[i]
    pick = below(s, 4)
    if pick < 2 and reads > 0:
        return np.int64(s.place[u.maker[u.read[u.read_start[i] + below(s, reads)]]])
    if pick == 2 and makes > 0:
        t = u.made[u.made_start[i] + below(s, makes)]
        d = below(s, devices)
        for _ in range(devices):
            if s.readers[t, d] > 0:
                return d
            d = d + 1 if d + 1 < devices else 0
    return below(s, devices)


@plain
def anneal(u, s, steps, hot, cold, squarings):
    """Metropolis moves with a temperature that falls from `hot` to `cold`, both as shares of the first value."""
    units = len(s.place)
    top = np.int64(0)
    for d in range(len(s.load)):
        top = max(top, s.load[d])
    scale = 1.0 / max(top, 1)
    now = energy(s, scale, squarings)
    ratio = (cold / hot) ** (1.0 / max(1, steps - 1))
    heat = hot
    for _ in range(steps):
        heat *= ratio
        i = below(s, units)
        target = aim(u, s, i)
        here = s.place[i]
        if target == here or u.cost_ps[i, target] == FORBIDDEN:
            continue
        pool = u.pool_of[target]
        if u.pool_of[here] != pool and s.used[pool] + u.held[i, pool] > u.capacity[pool] and u.held[i, pool] > 0:
            continue
        s.value[2] += 1
        for d in range(len(s.load)):
            s.old[d] = s.load[d]
        fine = move(u, s, i, target)
        new = energy(s, scale, squarings) if fine else np.inf
        if new > now and share(s) >= np.exp((now - new) / heat):
            move(u, s, i, here)
            for d in range(len(s.load)):
                s.load[d] = s.old[d]
            continue
        now = new
        s.value[1] += 1
        top = np.int64(0)
        for d in range(len(s.load)):
            top = max(top, s.load[d])
        if top < s.value[0]:
            s.value[0] = top
            for k in range(units):
                s.best[k] = s.place[k]
    return s.value[0]

"""From the device that a rule wants for every group to one that every rule of the problem and its pools allow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placewright.decisions import Decisions
from placewright.problem import Problem


def accelerators(problem: Problem) -> list[int]:
    """Devices that stage no others' copies; all devices where each is a host."""
    devices = problem.machine.devices
    return [d for d, device in enumerate(devices) if not device.is_host] or list(range(len(devices)))


def host_of(problem: Problem, device: int) -> int | None:
    """The device that stages the copies of another, if there is one."""
    host = problem.machine.devices[device].host
    return None if host is None or host == problem.machine.devices[device].name else problem.machine.device(host)


def settled(problem: Problem, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """The device of every group: where it is wanted, unless a rule or a full pool keeps it off.

    Groups are settled by falling size, so that small ones give way. What has no room is with the host, from where
    weights are streamed; what may not be there is on the accelerator that is fastest for it. Else any device will do.
    """
    made = Decisions(problem)
    groups = np.arange(problem.n_groups)
    used = np.zeros(len(made.capacity), np.int64)
    np.add.at(used, made.pool_of[wanted], made.bytes[groups, made.pool_of[wanted]])
    if not problem.separated and problem.choices[groups, wanted].all() and (used <= made.capacity).all():
        return wanted
    cards = accelerators(problem)
    attempt = made.assignment()
    tied = np.diff(made.apart[0]) > 0
    for g in np.lexsort((groups, -made.bytes.max(axis=1, initial=0), ~tied)).tolist():
        allowed = attempt.allowed(g)
        if not allowed.any():
            raise attempt.stuck(g)
        fits = allowed & attempt.fits(g)
        open_to = np.flatnonzero(fits if fits.any() else allowed).tolist()
        d = int(wanted[g])
        if d not in open_to:
            better = [host_of(problem, d)] if allowed[d] else cards
            seconds = made.seconds[g].tolist()
            d = min(open_to, key=lambda other: (other not in better, seconds[other], other))
        attempt.put(g, d)
    return attempt.devices

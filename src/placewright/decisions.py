"""What a constructive method decides: one device per group, step by step, within the constraints.

`Decisions` is made once per problem; an `Assignment` is one attempt. Both speak of groups of operations that must
share a device (`Problem.groups`), numbered by their first operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placewright.errors import InfeasibleError
from placewright.graph import Ints, Longs
from placewright.problem import Problem


@dataclass(frozen=True, eq=False)
class Decisions:
    """Seconds, bytes and rules of every group of a problem."""

    problem: Problem

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """(groups, devices): the sum of the group's operations; infinite where the group may not be."""
        table = np.zeros(self.problem.choices.shape)
        costs = self.problem.costs.seconds
        np.add.at(table, self.problem.groups, np.where(np.isfinite(costs), costs, 0.0))
        table[~self.problem.choices] = np.inf
        table.flags.writeable = False
        return table

    @cached_property
    def bytes(self) -> Longs:
        """(groups, pools): persistent bytes, rounded to the granule of the pool."""
        graph, pools = self.problem.graph, self.problem.machine.pools
        held = np.flatnonzero(graph.persistent)
        table = np.zeros((self.problem.n_groups, len(pools)), np.int64)
        owner, size = self.problem.groups[graph.tensor_op[held]], graph.tensor_bytes[held]
        for p, pool in enumerate(pools):
            np.add.at(table[:, p], owner, -(-size // pool.granule_bytes) * pool.granule_bytes)
        table.flags.writeable = False
        return table

    @cached_property
    def capacity(self) -> Longs:
        """(pools,): bytes that can be allocated."""
        return np.array([pool.capacity_bytes for pool in self.problem.machine.pools], np.int64)

    @cached_property
    def pool_of(self) -> Ints:
        """(devices,): the pool of each device."""
        return np.array(self.problem.machine.pool_of, np.int32)

    @cached_property
    def apart(self) -> tuple[Ints, Ints]:
        """CSR by group (start, side): the sides of separations that a group is on; side k may not meet side k ^ 1."""
        pairs: list[tuple[int, int]] = []
        for k, (a, b) in enumerate(self.problem.separated):
            pairs += [(int(g), 2 * k) for g in np.unique(self.problem.groups[a])]
            pairs += [(int(g), 2 * k + 1) for g in np.unique(self.problem.groups[b])]
        pairs.sort()
        table = np.array(pairs, np.int32).reshape(-1, 2)
        start = np.searchsorted(table[:, 0], np.arange(self.problem.n_groups + 1)).astype(np.int32)
        return start, np.ascontiguousarray(table[:, 1])

    def assignment(self) -> Assignment:
        """Nothing decided yet."""
        return Assignment(self)

    def settle(self, wanted: ArrayLike, *, fit: bool = True) -> NDArray[np.int64]:
        """Devices near the wanted ones that keep every rule and, with `fit`, persistent bytes within every pool.

        Groups are settled by falling size, so that small ones give way. One that cannot be where it is wanted goes
        to the allowed device that is fastest for it. Raises where the rules leave no device.
        """
        devices = np.asarray(wanted, np.int64)
        made = self.assignment()
        start = self.apart[0]
        order = np.lexsort((np.arange(len(devices)), -self.bytes.max(axis=1, initial=0), start[:-1] == start[1:]))
        for g in order.tolist():
            allowed = made.allowed(g)
            if fit and (allowed & made.fits(g)).any():
                allowed = allowed & made.fits(g)
            if not allowed.any():
                raise made.stuck(g)
            d = int(devices[g])
            made.put(g, d if allowed[d] else int(np.where(allowed, self.seconds[g], np.inf).argmin()))
        return made.devices


class Assignment:
    """One attempt: devices of the groups that were decided, -1 for the others."""

    def __init__(self, decisions: Decisions) -> None:
        problem = decisions.problem
        self._decisions = decisions
        self.devices = np.full(problem.n_groups, -1, np.int64)
        self.used = np.zeros(len(decisions.capacity), np.int64)
        """Persistent bytes in every pool so far."""
        self._taken = np.zeros((2 * len(problem.separated), problem.n_devices), bool)

    def allowed(self, group: int) -> NDArray[np.bool_]:
        """On which devices the group may be, given what was decided."""
        start, side = self._decisions.apart
        allowed: NDArray[np.bool_] = self._decisions.problem.choices[group]
        for k in side[start[group] : start[group + 1]].tolist():
            allowed = allowed & ~self._taken[k ^ 1]
        return allowed

    def fits(self, group: int) -> NDArray[np.bool_]:
        """On which devices the group's persistent bytes would fit beside those decided."""
        room = self._decisions.capacity - self.used - self._decisions.bytes[group]
        fitting: NDArray[np.bool_] = room[self._decisions.pool_of] >= 0
        return fitting

    def put(self, group: int, device: int) -> None:
        """Decide a group."""
        start, side = self._decisions.apart
        self.devices[group] = device
        pool = self._decisions.pool_of[device]
        self.used[pool] += self._decisions.bytes[group, pool]
        self._taken[side[start[group] : start[group + 1]], device] = True

    def stuck(self, group: int) -> InfeasibleError:
        """Return the error to raise where nothing is allowed any more."""
        problem = self._decisions.problem
        name = problem.graph.op_names[int(problem.leaders[group])]
        return InfeasibleError(
            f"operation {name!r} is to be kept apart from others, and those took every device that it may use; "
            "use a method that searches, or relax the constraint"
        )

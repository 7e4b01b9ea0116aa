"""Placing bundles one by one, within rules and pools."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placewright.decisions import Assignment
from placewright.heuristics.bundles import Bundles


class Filling:
    """One attempt at placing bundles: where they are, and what every device has to do so far.

    Devices are spoken of in lists, the fastest first: the first of equally good ones is the one to take.
    """

    def __init__(self, bundles: Bundles) -> None:
        made = bundles.decisions
        self.bundles = bundles
        self.device = [-1] * bundles.count
        self.load = [0.0] * bundles.problem.n_devices
        """Seconds of what is on each device."""
        self.room: list[int] = made.capacity.tolist()
        """Persistent bytes that every pool can still take."""
        self.seconds: list[list[float]] = bundles.seconds.tolist()
        self.pool_of: list[int] = made.pool_of.tolist()
        self._bytes: list[list[int]] = bundles.bytes.tolist()
        order = bundles.fast_first
        can = np.isfinite(bundles.seconds)[:, order]
        kinds: dict[bytes, int] = {}  # few rows differ
        self._row = [kinds.setdefault(row.tobytes(), len(kinds)) for row in np.packbits(can, axis=1)]
        first = {kind: b for b, kind in reversed(list(enumerate(self._row)))}
        self._can: list[list[int]] = [order[can[first[kind]]].tolist() for kind in range(len(kinds))]
        self._made: Assignment = made.assignment()
        start = made.apart[0]
        self._tied = (start[1:] > start[:-1]).tolist()
        self._separated = bool(bundles.problem.separated)

    @property
    def groups(self) -> NDArray[np.int64]:
        """The device of every group."""
        return self._made.devices

    def is_tied(self, bundle: int) -> bool:
        """Whether a separation is about the bundle."""
        return self._separated and any(self._tied[g] for g in self.bundles.members[bundle])

    def allowed(self, bundle: int) -> list[int]:
        """Where the bundle may be, whether it fits or not. Raises where that is nowhere."""
        devices = self._can[self._row[bundle]]
        if self.is_tied(bundle):
            for g in self.bundles.members[bundle]:
                allowed = self._made.allowed(g)
                devices = [d for d in devices if allowed[d]]
            if not devices:
                raise self._made.stuck(self.bundles.members[bundle][0])
        return devices

    def common(self, some: list[int]) -> list[int]:
        """Where all of the bundles may be and would fit together; no more than one of them is tied."""
        devices = self.allowed(some[0])
        for bundle in some[1:]:
            if self._row[bundle] != self._row[some[0]] or self.is_tied(bundle):
                also = self.allowed(bundle)
                devices = [d for d in devices if d in also]
        need = [sum(column) for column in zip(*(self._bytes[bundle] for bundle in some), strict=True)]
        return [d for d in devices if need[self.pool_of[d]] <= self.room[self.pool_of[d]]]

    def open_to(self, bundle: int) -> list[int]:
        """Where the bundle may be and fits; where it fits nowhere, where it may be."""
        need = self._bytes[bundle]
        allowed = self.allowed(bundle)
        if not any(need):
            return allowed
        return [d for d in allowed if need[self.pool_of[d]] <= self.room[self.pool_of[d]]] or allowed

    def put(self, bundle: int, device: int) -> None:
        """Place a bundle."""
        self.device[bundle] = device
        self.load[device] += self.seconds[bundle][device]
        self.room[self.pool_of[device]] -= self._bytes[bundle][self.pool_of[device]]
        if self._separated:
            for g in self.bundles.members[bundle]:
                self._made.put(g, device)
        else:
            self._made.devices[self.bundles.members[bundle]] = device

"""How many devices of every class are taken, as one number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.exact.costing import I64
from placewright.exact.parts import Parts

MOST_STATES = 4096
"""Combinations of devices taken, by class."""


@dataclass(frozen=True, eq=False)
class States:
    """How many devices of every class are taken; see `sim.intervals`."""

    digits: I64  # (S, C)
    count: I64  # (C,)
    stride: I64  # (C,)

    @staticmethod
    def of(parts: Parts) -> States:
        """All combinations; of too many classes, those that are needed and then the largest, as far as they go."""
        allowed = parts.allowed
        needed = np.zeros(len(parts.supply), bool)
        for c in range(len(parts.supply)):
            needed[c] = bool((allowed[:, c] & (allowed.sum(axis=1) == 1)).any())
        count = np.zeros(len(parts.supply), np.int64)
        size = 1
        for c in np.lexsort((np.arange(len(count)), -parts.supply, ~needed)).tolist():
            count[c] = min(int(parts.supply[c]), MOST_STATES // size - 1)
            size *= int(count[c]) + 1
        stride = np.cumprod([1, *(count[:-1] + 1).tolist()]).astype(np.int64)[: len(count)]
        digits = np.arange(size)[:, None] // stride[None, :] % (count + 1)[None, :]
        return States(np.ascontiguousarray(digits), count, stride)

    def room(self, parts: Parts, bound: int) -> tuple[I64, NDArray[np.float64]]:
        """(U,) reference time of every unit, and (S,) how much of it the devices not taken can do below the bound."""
        main = int(np.lexsort((np.arange(len(self.count)), -self.count * parts.pays, -self.count))[0])
        reference = np.where(parts.allowed[:, main], parts.time[:, main], 0)
        ratio = np.zeros(len(self.count))
        for c in range(len(self.count)):
            here = parts.allowed[:, c] & (reference > 0)
            time = parts.time[here, c].astype(np.float64)
            rates = np.divide(reference[here], time, out=np.full(len(time), np.inf), where=time > 0)
            ratio[c] = rates.max(initial=0.0)
        free = (self.count - self.digits).astype(np.float64)
        room = np.multiply(free, ratio * float(max(bound, 1)), out=np.zeros_like(free), where=free > 0).sum(axis=1)
        return reference.astype(np.int64), room * (1 + 1e-9)

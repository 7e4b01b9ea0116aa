"""Costs: what every operation takes on every device. roofline.py and measured.py make them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.errors import ProblemError


@dataclass(frozen=True, eq=False)
class Costs:
    """Seconds of every operation on every device; infinite where it cannot run there.

    `measured` marks those that rest on a measurement on that device model; the others are estimates.
    Seconds of a transfer follow from its bytes and the machine's route, or from the tensor's `transfer_s`.
    """

    seconds: NDArray[np.float64]
    measured: NDArray[np.bool_]

    def __post_init__(self) -> None:
        for name, kind in (("seconds", np.float64), ("measured", np.bool_)):
            array = np.array(getattr(self, name), dtype=kind, order="C")
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if self.seconds.ndim != 2 or self.measured.shape != self.seconds.shape:
            raise ProblemError("costs must be tables of (operations, devices) of one shape")
        if np.isnan(self.seconds).any() or (self.seconds < 0).any():
            raise ProblemError("costs must be seconds: not negative, not NaN; infinite means that it cannot run")

    @staticmethod
    def given(seconds: NDArray[np.float64] | list[list[float]]) -> Costs:
        """Costs taken as they are, all counted as measured."""
        table = np.array(seconds, np.float64)
        return Costs(table, np.ones(table.shape, bool))

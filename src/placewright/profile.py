"""Profile: the measured seconds of a graph's operations on one device model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from placewright.errors import InputError, UnknownNameError
from placewright.graph import Measured, OpGraph


@dataclass(frozen=True)
class Profile:
    """Seconds by operation name, measured on one device model. Infinite: the operation cannot run there.

    The model's rates let the seconds be scaled to another one; `software` says by name which versions
    (of PyTorch, of the driver) they were measured with.
    """

    model: str
    seconds: Mapping[str, float]
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float = 0.0
    software: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("seconds", "flops_per_s", "software"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        if not self.model:
            raise InputError("a profile must name the device model that it was measured on")
        for op, value in self.seconds.items():
            if not value >= 0:
                raise InputError(f"the seconds of operation {op!r} are {value}; 0 or more is allowed, or infinity")
        for name, rate in (("bytes_per_s", self.bytes_per_s), *self.flops_per_s.items()):
            if not (rate >= 0 and math.isfinite(rate)):
                raise InputError(f"{name} of {self.model!r} is {rate}; a finite number of 0 or more is allowed")


def apply_profile(graph: OpGraph, profile: Profile) -> OpGraph:
    """Return the graph with these measured seconds, in place of any that it had for the same device model.

    Operations that the profile does not name count as not measured on that model.
    """
    values = np.full(graph.n_ops, np.nan)
    for name, value in profile.seconds.items():
        if name not in graph.index:
            hint = f"The profile of {profile.model!r} was measured on another graph than {graph.name!r}."
            raise UnknownNameError("operation", name, graph.op_names, hint)
        i = graph.index[name]
        if graph.off_queue[i] and 0 < value < math.inf:
            raise InputError(
                f"operation {name!r} is an input, a parameter or a store; it takes no time, but the profile of "
                f"{profile.model!r} gives {value} s. Leave it out, or say null where it may not live."
            )
        values[i] = value
    new = Measured(profile.model, values, profile.flops_per_s, profile.bytes_per_s)
    models = {measured.model: measured for measured in graph.measured} | {profile.model: new}
    return graph.with_measured(*models.values())

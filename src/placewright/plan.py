"""Plan: what a user keeps of a search: the placement, what is predicted of it, and where it came from.

Everything is by name, so that a plan can be read, compared and used without the graph that it was made
for. It carries no clock: the same search gives the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from placewright.checks import MAX_BYTES
from placewright.errors import InputError, UnknownNameError
from placewright.placement import DEFAULT_WINDOW, MAX_PRIORITY, Placement
from placewright.problem import DISCIPLINES, OBJECTIVES, Problem

MAX_PEAK_BYTES = (1 << 63) - 1
"""What the simulator can count: copies of tensors may need more than the largest size of one."""


@dataclass(frozen=True)
class Prediction:
    """What the simulator says of a placement, and how far from the best possible it can be."""

    objective: str
    value_s: float
    """Infinite when the placement cannot run at all."""
    feasible: bool
    bound_s: float | None = None
    """No placement of the problem is faster than this."""
    gap: float | None = None
    """(value - bound) / value; `None` where no bound is known."""
    reason: str = ""
    """Why it is not feasible."""
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    over_bytes: Mapping[str, int] = field(default_factory=dict)
    """By pool: bytes above what can be allocated; a pool that is not over may be left out."""
    measured_share: float = 0.0
    """The share of the predicted time that rests on measured costs."""

    def __post_init__(self) -> None:
        _one_of("objective", self.objective, OBJECTIVES)
        if not self.value_s >= 0:
            raise InputError(f"value_s is {self.value_s}; 0 or more is allowed, infinity included")
        for name in ("bound_s", "gap"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} is {value}; a finite number of 0 or more is allowed, or None")
        if not 0 <= self.measured_share <= 1:
            raise InputError(f"measured_share is {self.measured_share}; 0 to 1 is allowed")
        for name in ("peak_bytes", "over_bytes"):
            sizes = {str(pool): int(size) for pool, size in getattr(self, name).items()}
            if any(not 0 <= size <= MAX_PEAK_BYTES for size in sizes.values()):
                raise InputError(f"{name} holds a size outside 0 to {MAX_PEAK_BYTES} bytes")
            object.__setattr__(self, name, sizes)


@dataclass(frozen=True)
class Plan:
    """A placement with its prediction and its provenance."""

    graph: str
    machine: str
    graph_fingerprint: str
    workload_fingerprint: str
    machine_fingerprint: str
    objective: str
    discipline: str
    devices: Mapping[str, str]
    """Operation name to device name."""
    prediction: Prediction
    method: str
    seed: int | None
    evaluations: int
    version: str
    """The version of placewright that made it."""
    priorities: Mapping[str, float | None] = field(default_factory=dict)
    """Operation name to priority; empty when the placement has none, and an operation without one has 0."""
    windows_bytes: Mapping[str, int | None] = field(default_factory=dict)
    """Device name to streaming window; empty when the placement has none, and `None` is the default window."""
    constraints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("devices", "priorities", "windows_bytes"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        object.__setattr__(self, "constraints", tuple(self.constraints))
        _one_of("objective", self.objective, OBJECTIVES)
        _one_of("discipline", self.discipline, DISCIPLINES)
        if self.evaluations < 0:
            raise InputError(f"evaluations is {self.evaluations}; 0 or more is allowed")
        for op, priority in self.priorities.items():
            _known("operation", op, self.devices)
            if priority is not None and not abs(priority) <= MAX_PRIORITY:
                limits = f"a number from {-MAX_PRIORITY:g} to {MAX_PRIORITY:g} is allowed"
                raise InputError(f"the priority of operation {op!r} is {priority}; {limits}")
        for device, window in self.windows_bytes.items():
            if window is not None and not 0 <= window <= MAX_BYTES:
                raise InputError(f"the window of device {device!r} is {window}; 0 to {MAX_BYTES} bytes, or None")

    @staticmethod
    def of(
        problem: Problem,
        placement: Placement,
        prediction: Prediction,
        *,
        fingerprints: tuple[str, str, str],
        method: str,
        seed: int | None,
        evaluations: int,
        version: str,
    ) -> Plan:
        """Return the plan of a placement; `fingerprints` are those of graph, workload and machine."""
        problem.check(placement)
        names, devices = problem.graph.op_names, [device.name for device in problem.machine.devices]
        priorities, windows = placement.priorities, placement.windows_bytes
        return Plan(
            graph=problem.graph.name,
            machine=problem.machine.name,
            graph_fingerprint=fingerprints[0],
            workload_fingerprint=fingerprints[1],
            machine_fingerprint=fingerprints[2],
            objective=problem.objective,
            discipline=problem.discipline,
            devices={name: devices[d] for name, d in zip(names, placement.devices.tolist(), strict=True)},
            priorities={} if priorities is None else dict(zip(names, priorities.tolist(), strict=True)),
            windows_bytes={}
            if windows is None
            else {d: None if w == DEFAULT_WINDOW else w for d, w in zip(devices, windows.tolist(), strict=True)},
            constraints=tuple(str(constraint) for constraint in problem.constraints),
            prediction=prediction,
            method=method,
            seed=seed,
            evaluations=evaluations,
            version=version,
        )

    def placement(self, problem: Problem) -> Placement:
        """Return the placement of this plan for a problem: every name must exist, every constraint hold.

        The problem's constraints count, not those of the search that made the plan.
        """
        names = problem.graph.op_names
        for name in (*self.devices, *self.priorities):
            _known("operation", name, problem.graph.index)
        for name in (*self.devices.values(), *self.windows_bytes):
            _known("device", name, problem.machine.device_index)
        priorities = windows = None
        if self.priorities:
            given = [self.priorities.get(name) for name in names]
            priorities = np.array([0.0 if value is None else value for value in given], np.float64)
        if self.windows_bytes:
            sizes = [self.windows_bytes.get(device.name) for device in problem.machine.devices]
            windows = np.array([DEFAULT_WINDOW if size is None else size for size in sizes], np.int64)
        return problem.placement(self.devices, priorities, windows)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise unless a word is one of those allowed."""
    if value not in allowed:
        raise UnknownNameError(name, value, allowed)


def _known(what: str, name: str, known: Mapping[str, object]) -> None:
    """Raise unless a name of the plan exists."""
    if name not in known:
        raise UnknownNameError(f"{what} in the plan", name, known)

"""Simulating placements of a problem: one at a time with a timeline, or many on all cores."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from placewright.checks import describe, format_bytes
from placewright.errors import PlacementError, SearchError
from placewright.placement import Placement
from placewright.problem import Problem
from placewright.sim import entries
from placewright.sim.lower import PICO, Lowered, lower
from placewright.sim.work import BAD, NO_COST, NO_ROUTE, STUCK, Work, make_work

if TYPE_CHECKING:
    from placewright.sim.timeline import Timeline


@dataclass(frozen=True)
class Outcome:
    """What a placement gives. `value_ps` is None, and `value_s` infinite, where it could not be simulated."""

    value_ps: int | None
    reason: str
    """Empty where feasible; else `memory`, `cost` (an operation cannot run where it is) or `route`."""
    peak_bytes: tuple[int, ...]
    over_bytes: tuple[int, ...]
    device_busy_ps: tuple[int, ...]
    channel_busy_ps: tuple[int, ...]
    raised: tuple[bool, ...]
    """On which devices the streaming window asked for was below the least that works, hence raised to it."""
    detail: str = ""
    """The reason in words, from `trace`."""
    timeline: Timeline | None = None

    @property
    def feasible(self) -> bool:
        """Whether the placement can run as it is."""
        return not self.reason

    @property
    def value_s(self) -> float:
        """The objective in seconds."""
        return math.inf if self.value_ps is None else self.value_ps / PICO

    @property
    def rank(self) -> tuple[int, int, float]:
        """Smaller is better: feasible by value; then what needs too much memory, by bytes over; then the rest."""
        return 0 if self.feasible else 1 if self.reason == "memory" else 2, sum(self.over_bytes), self.value_s


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Simulator:
    """A lowered problem with work arrays for every core. Threads that share one take turns."""

    def __init__(self, problem: Problem, threads: int | None = None) -> None:
        self.problem = problem
        self.threads = threads or usable_cores()
        self.lowered: Lowered = lower(problem)
        self._work: list[Work] = []
        self._turn = Lock()
        self._capacity = np.array([pool.capacity_bytes for pool in problem.machine.pools], np.int64)

    def _work_of(self, count: int) -> list[Work]:
        """Work arrays of `count` threads."""
        while len(self._work) < count:
            self._work.append(make_work(self.lowered, record=False))
        return self._work[:count]

    def arrays(self, placements: Sequence[Placement]) -> tuple[Any, Any, Any]:
        """Devices, priorities and windows of placements, as the kernel takes them."""
        problem = self.problem
        devices = np.empty((len(placements), problem.n_ops), np.uint16)
        for row, placement in zip(devices, placements, strict=True):
            row[:] = placement.devices
        priorities: NDArray[np.float64] = np.zeros((1, problem.n_ops))
        windows = np.full((1, problem.n_devices), -1, np.int64)
        if problem.discipline == "priority" and any(p.priorities is not None for p in placements):
            priorities = np.stack([priorities[0] if p.priorities is None else p.priorities for p in placements])
        if any(p.windows_bytes is not None for p in placements):
            windows = np.stack([windows[0] if p.windows_bytes is None else p.windows_bytes for p in placements])
        return devices, priorities, windows

    def run_arrays(self, devices: NDArray[np.uint16], priorities: Any, windows: Any) -> tuple[Any, Any, Any, Any]:
        """(status, value in ps, peak bytes, use: see entries.note_use) of rows of devices, on all threads."""
        self._check_arrays(devices, priorities, windows)
        count = len(devices)
        status, value = np.empty(count, np.int64), np.empty(count, np.int64)
        peak = np.empty((count, self.lowered.n_pools), np.int64)
        use = np.empty((count, 2 * self.problem.n_devices + self.lowered.n_channels), np.int64)
        threads = min(self.threads, max(1, count), max(1, count * self.problem.n_ops // 2000))
        parts = min(count, 1 if threads == 1 else 8 * threads)  # small parts, so that no core waits for another
        bounds = [count * k // parts for k in range(parts + 1)]
        out = (status, value, peak, use)
        todo = iter(range(parts))

        def run(work: Work) -> None:
            while (k := next(todo, None)) is not None:
                part = (bounds[k], bounds[k + 1], *out)
                if self.problem.objective == "step":
                    entries.simulate_many(self.lowered, work, devices, priorities, windows, *part)
                else:
                    entries.load_many(self.lowered, work, devices, self._is_max_load, windows, *part)

        with self._turn:
            if threads == 1:
                run(*self._work_of(1))
            else:
                with ThreadPoolExecutor(threads) as pool:
                    list(pool.map(run, self._work_of(threads)))
        if np.any(status == STUCK):
            raise SearchError("the simulation stopped before every operation ran; this is a defect, please report it")
        return out

    def _check_arrays(self, devices: Any, priorities: Any, windows: Any) -> None:
        """The kernel checks no bounds: what is of another shape or range must not reach it."""
        rows, n, count = len(devices), self.problem.n_ops, self.problem.n_devices
        good = devices.dtype == np.uint16 and devices.shape == (rows, n) and devices.flags.c_contiguous
        for array, kind, width in ((priorities, np.float64, n), (windows, np.int64, count)):
            good = good and array.dtype == kind and array.shape in ((rows, width), (1, width))
            good = good and array.flags.c_contiguous
        if not good or devices.max(initial=0) >= max(1, count):
            raise PlacementError(
                f"rows of devices must be uint16 of {n} operations and below {count}, with priorities (float64) and "
                "windows (int64) in one row for each or one for all"
            )

    def simulate(self, placements: Sequence[Placement], *, checked: bool = False) -> list[Outcome]:
        """Outcomes of placements, in their order; `checked` says that `Problem.check_all` has passed them."""
        if not placements:
            return []
        if not checked:
            self.problem.check_all(placements)
        status, value, peak, use = self.run_arrays(*self.arrays(placements))
        over = np.maximum(peak - self._capacity, 0)
        return [
            self._outcome(*row)
            for row in zip(
                status.tolist(), value.tolist(), peak.tolist(), over.tolist(), use.tolist(), strict=True
            )
        ]  # fmt: skip

    def trace(self, placement: Placement) -> Outcome:
        """The outcome of one placement with its reason in words and, for `step`, its timeline."""
        from placewright.sim.timeline import Timeline

        self.problem.check(placement)
        devices, priorities, windows = self.arrays([placement])
        record = self.problem.objective == "step"
        work = make_work(self.lowered, record)
        if record:
            status, value = entries.simulate_one(self.lowered, work, devices[0], priorities[0], windows[0], True)
        else:
            status, value = entries.load_one(self.lowered, work, devices[0], windows[0], self._is_max_load)
        over = np.maximum(work.peak - self._capacity, 0)
        use = [*work.device_busy.tolist(), *work.channel_busy.tolist(), *work.raised.tolist()]
        plain = self._outcome(int(status), int(value), work.peak.tolist(), over.tolist(), use)
        simulated = plain.value_ps is not None
        return replace(
            plain,
            detail=self._explain(int(status), int(work.count[BAD]), placement) or self._explain_memory(plain),
            timeline=Timeline.read(self.problem, placement, self.lowered, work) if record and simulated else None,
        )

    @cached_property
    def _is_max_load(self) -> bool:
        return self.problem.objective == "max_load"

    def _outcome(self, status: int, value: int, peak: list[int], over: list[int], use: list[int]) -> Outcome:
        devices, channels = self.problem.n_devices, self.lowered.n_channels
        if status in (NO_COST, NO_ROUTE):
            none = (0,) * len(peak)
            reason = "cost" if status == NO_COST else "route"
            return Outcome(None, reason, none, none, (0,) * devices, (0,) * channels, (False,) * devices)
        raised = tuple(map(bool, use[devices + channels :]))
        busy, carried = tuple(use[:devices]), tuple(use[devices : devices + channels])
        return Outcome(value, "memory" if any(over) else "", tuple(peak), tuple(over), busy, carried, raised)

    def _explain(self, status: int, bad: int, placement: Placement) -> str:
        graph, devices = self.problem.graph, self.problem.machine.devices
        if status == NO_COST:
            able = [d.name for d, s in zip(devices, self.problem.costs.seconds[bad], strict=True) if math.isfinite(s)]
            here = devices[placement.devices[bad]].name
            return f"operation {graph.op_names[bad]!r} cannot run on {here}; it can on {', '.join(able) or 'none'}"
        if status == NO_ROUTE:
            maker = int(graph.tensor_op[bad])
            here = devices[placement.devices[maker]].name
            return (
                f"an output of {graph.op_names[maker]!r} on {here} is needed where no route leads; "
                "give the machine that route, or give both devices hosts"
            )
        return ""

    def _explain_memory(self, outcome: Outcome) -> str:
        parts = [
            f"{pool.name} needs {format_bytes(peak)} of {format_bytes(pool.capacity_bytes)}, "
            f"{format_bytes(over)} too much"
            for pool, peak, over in zip(self.problem.machine.pools, outcome.peak_bytes, outcome.over_bytes, strict=True)
            if over
        ]
        return "; ".join(parts)


def simulate(problem: Problem, placement: Placement, *, timeline: bool = False) -> Outcome:
    """The outcome of one placement; with `timeline`, who ran when, what moved when, and memory over time."""
    if not isinstance(placement, Placement):
        raise PlacementError(
            f"a Placement is needed, not {describe(placement)}; problem.placement(devices) makes one from indices, "
            "or from a mapping of operations to devices"
        )
    simulator = Simulator(problem, threads=1)
    return simulator.trace(placement) if timeline else simulator.simulate([placement])[0]

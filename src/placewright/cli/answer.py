"""What a command found about one placement, as one JSON object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewright.placement import Placement
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.search import Result
    from placewright.sim import Outcome
    from placewright.sim.timeline import Timeline

PICO = 1e12


@dataclass(frozen=True)
class Answer:
    """A placement, its outcome, and how it came about."""

    problem: Problem
    method: str
    placement: Placement
    outcome: Outcome
    seconds: float
    evaluations: int = 1
    seed: int | None = None
    bound_s: float | None = None
    bound_by: str = ""
    gap: float | None = None
    ended: str = "finished"
    origin: tuple[str, int | None, int] | None = None
    """Method, seed and evaluations that found the placement, where it was not found here."""

    @staticmethod
    def of(result: Result, placement: Placement, outcome: Outcome) -> Answer:
        """Return what a search found; the placement and its outcome are given apart, as it may lack them."""
        return Answer(
            problem=result.problem,
            method=result.method,
            placement=placement,
            outcome=outcome,
            seconds=result.seconds,
            evaluations=result.evaluations,
            seed=result.seed,
            bound_s=result.bound_s,
            bound_by=result.bound_by,
            gap=result.gap,
            ended=result.ended,
        )

    @property
    def timeline(self) -> Timeline | None:
        """Who ran when, where that was recorded."""
        return self.outcome.timeline

    @property
    def evaluations_per_s(self) -> float:
        """How many placements were tried in a second."""
        return self.evaluations / max(self.seconds, 1e-6)

    def to(self, best_s: float | None) -> float | None:
        """By what share it takes longer than another; None where either does not fit."""
        if best_s is None or not self.outcome.feasible:
            return None
        return self.outcome.value_s / best_s - 1.0 if best_s else 0.0

    @cached_property
    def parallelism(self) -> float | None:
        """Sum of times over critical path; it says nothing about objectives other than `step`."""
        from placewright.bounds import parallelism

        return parallelism(self.problem) if self.problem.objective == "step" else None

    @cached_property
    def measured_share(self) -> float:
        """The share of the predicted time that rests on measured costs."""
        from placewright.predict import measured_share

        return measured_share(self.problem, self.placement)

    @cached_property
    def transfers(self) -> tuple[int, int] | None:
        """How many transfers there are, and how many bytes they carry."""
        if self.timeline is None:
            return None
        sizes = self.problem.graph.tensor_bytes
        return len(self.timeline.moves), sum(int(sizes[move.tensor]) for move in self.timeline.moves)

    @cached_property
    def unused(self) -> list[str]:
        """Devices on which nothing takes any time."""
        devices = zip(self.problem.machine.devices, self.outcome.device_busy_ps, strict=True)
        return [device.name for device, busy in devices if not busy]

    def plan(self) -> Plan:
        """Return the plan to keep."""
        from importlib.metadata import version

        from placewright.fingerprints import graph_fingerprint, machine_fingerprint, workload_fingerprint
        from placewright.plan import Plan
        from placewright.predict import predict

        graph, machine = self.problem.graph, self.problem.machine
        method, seed, evaluations = self.origin or (self.method, self.seed, self.evaluations)
        return Plan.of(
            self.problem,
            self.placement,
            predict(self.problem, self.placement, self.outcome, self.bound_s, self.gap),
            fingerprints=(graph_fingerprint(graph), workload_fingerprint(graph), machine_fingerprint(machine)),
            method=method,
            seed=seed,
            evaluations=evaluations,
            version=version("placewright"),
        )

    def record(self) -> dict[str, Any]:
        """Everything about it for JSON; null stands for infinite and for not known."""
        problem, outcome = self.problem, self.outcome
        machine = problem.machine
        return {
            "method": self.method,
            "graph": problem.graph.name,
            "machine": machine.name,
            "objective": problem.objective,
            "discipline": problem.discipline,
            "value_s": finite(outcome.value_s),
            "bound_s": finite(self.bound_s),
            "bound_by": self.bound_by,
            "gap": finite(self.gap),
            "feasible": outcome.feasible,
            "reason": outcome.reason,
            "detail": outcome.detail,
            "peak_bytes": by_name(machine.pools, outcome.peak_bytes),
            "over_bytes": by_name(machine.pools, outcome.over_bytes),
            "device_busy_s": by_name(machine.devices, [busy / PICO for busy in outcome.device_busy_ps]),
            "channel_busy_s": by_name(machine.channels, [busy / PICO for busy in outcome.channel_busy_ps]),
            "transfers": None if self.transfers is None else dict(zip(("count", "bytes"), self.transfers, strict=True)),
            "parallelism": self.parallelism,
            "measured_share": self.measured_share,
            "seconds": round(self.seconds, 6),
            "evaluations": self.evaluations,
            "evaluations_per_s": round(self.evaluations_per_s, 1),
            "seed": self.seed,
            "ended": self.ended,
        }


def finite(value: float | None) -> float | None:
    """Return the value, or None where JSON has no number for it."""
    return value if value is not None and math.isfinite(value) else None


def by_name(things: Sequence[Any], values: Sequence[Any]) -> Mapping[str, Any]:
    """Return values by the names of devices, pools or channels."""
    return {thing.name: value for thing, value in zip(things, values, strict=True)}

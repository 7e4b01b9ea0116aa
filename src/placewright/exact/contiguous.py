"""Contiguous splits: every device gets one stretch of the forward pass and what belongs to it.

`Contiguous` is optimal for `max_load` among them, `ContiguousLinear` among the intervals of a few topological orders
(Tarnawski et al. 2020, sections 4 and 5). For `step` and `throughput` both are heuristics: they place by `max_load`,
with every number of devices, and the objective decides between those. docs/algorithms/exact.md has the details.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.errors import InputError, ProblemError
from placewright.evaluate import Evaluation
from placewright.exact.costing import Costing, Routes
from placewright.exact.ideals import Limits, best_ideal_split
from placewright.exact.line import NEVER, Split
from placewright.exact.parts import Memory
from placewright.exact.splits import Splitter
from placewright.exact.units import Units, units_of
from placewright.placement import Placement
from placewright.problem import Problem
from placewright.search import Placer
from placewright.sim.lower import lower


@dataclass(frozen=True)
class LinearParams:
    """How fine a line is."""

    most_units: int = 2048
    """A longer line is first cut into so many stretches, where little crosses."""

    def __post_init__(self) -> None:
        if self.most_units < 1:
            raise InputError(f"most_units is {self.most_units}; 1 or more is allowed")


@dataclass(frozen=True)
class ContiguousParams:
    """When the search over downward-closed sets gives up."""

    seconds: float = 60.0
    """Wall-clock seconds."""
    max_bytes: int = 4 << 30
    """Bytes of its tables."""
    most_units: int = 2048
    """As in LinearParams, for the bound that it starts from."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 1e9:
            raise InputError(f"seconds is {self.seconds}; above 0, at most 1e9, is allowed")
        for name in ("max_bytes", "most_units"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; 1 or more is allowed")


class Splits(Placer):
    """A placer that asks once, for one placement or a few, and learns nothing."""

    def start(self, problem: Problem, rng: np.random.Generator) -> None:
        """Find the splits."""
        found: dict[bytes, Placement] = {}
        if problem.n_groups == 0:
            found[b""] = Placement(np.zeros(0, np.int16))
        else:
            for devices in self.splits(problem):
                placement = problem.placement(problem.lift(devices))
                found.setdefault(placement.key, placement)
        if not found:
            raise ProblemError(
                f"{self.name}: no contiguous split keeps the constraints and the memory of every device; "
                "use a method that is not contiguous, relax a constraint, or allow more memory"
            )
        self._batch = list(found.values())

    @abstractmethod
    def splits(self, problem: Problem) -> Iterator[NDArray[np.int64]]:
        """Devices of all groups, once for every split worth asking."""

    def ask(self) -> list[Placement]:
        """All of them, once."""
        batch, self._batch = self._batch, []
        return batch

    def tell(self, evaluations: Sequence[Evaluation]) -> None:
        """Nothing to learn."""


class ContiguousLinear(Splits):
    """Optimal splits of a few topological orders into intervals."""

    name = "contiguous-linear"

    def __init__(self, params: LinearParams | None = None) -> None:
        self.params = params or LinearParams()

    def splits(self, problem: Problem) -> Iterator[NDArray[np.int64]]:
        """The best, and where loads are only estimates of the objective, alternatives."""
        yield from linear_splits(problem, units_of(problem), self.params.most_units)


class Contiguous(Splits):
    """The optimal contiguous split, by pairs of downward-closed sets of units."""

    name = "contiguous"

    def __init__(self, params: ContiguousParams | None = None) -> None:
        self.params = params or ContiguousParams()

    def splits(self, problem: Problem) -> Iterator[NDArray[np.int64]]:
        """The optimum, and for objectives other than `max_load` what the linearised programme offers as well."""
        params, units = self.params, units_of(problem)
        splitter = Splitter.of(Costing.of(problem), units)
        start = splitter.linearised(params.most_units)
        limits = Limits(min(params.seconds, max(0.1, self.seconds_left)), params.max_bytes)
        bound = start.value_ps if start else NEVER
        best = best_ideal_split(splitter.parts, splitter.edges, bound, limits) or start
        if best is not None:
            yield splitter.devices(best)
        if problem.objective != "max_load" or not splitter.costing.uniform:
            yield from linear_splits(problem, units, params.most_units)


def linear_splits(problem: Problem, units: Units, most_units: int) -> Iterator[NDArray[np.int64]]:
    """Splits of units in line, the likeliest to be best first; the same one may come again."""
    lowered = lower(problem)
    loads = problem.objective == "max_load"
    for hosts in (True, False):
        for routes in Routes:
            costing = Costing.of(problem, routes, hosts=hosts, lowered=lowered)
            if costing.uniform and (routes is not Routes.DEAREST or (loads and not hosts)):
                continue
            if hosts and not loads and routes is not Routes.DEAREST:
                continue  # the cheapest route between hosts and others says little of the objective
            if not costing.classes.devices:
                continue
            for memory in (Memory.LOADS,) if loads else Memory:
                splitter = Splitter.of(costing, units, memory)
                best = splitter.linearised(most_units)
                counts: list[Split] = [] if loads or routes is not Routes.DEAREST else splitter.every_count()
                for split in ([best] if best else []) + counts:
                    yield splitter.devices(split)


def linearised_devices(problem: Problem, most_units: int = 2048) -> NDArray[np.int64] | None:
    """Devices of all groups in the best linearised split for `max_load`; `None` where none keeps the rules.

    Loads are charged by the dearest route. A line of more than `most_units` units is cut into that many stretches
    first, so that the time stays within seconds on large graphs.
    """
    if problem.n_groups == 0:
        return np.zeros(0, np.int64)
    splitter = Splitter.of(Costing.of(problem), units_of(problem))
    best = splitter.linearised(most_units)
    return None if best is None else splitter.devices(best)

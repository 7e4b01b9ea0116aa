"""OR-tools CP-SAT: exact for `max_load` and `throughput`, a lower bound and a heuristic for `step`.

The problem is solved several times, first with costs in coarse units, where bounds come quickly, then in finer ones.
Every solution is a placement that the simulator judges; every bound that the solver proves, in units rounded down,
holds for the problem. Limits are in the solver's deterministic seconds, so results do not depend on the machine's
load, unless the search itself stops by the clock. docs/algorithms/exact.md says what is exact and what is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.checks import MAX_BYTES
from placewright.decisions import Decisions
from placewright.errors import InfeasibleError, InputError, ProblemError
from placewright.evaluate import Evaluation
from placewright.exact.contiguous import linearised_devices
from placewright.exact.costing import I64
from placewright.exact.load_model import load_model
from placewright.exact.nodes import Nodes, common_divisor, nodes_of
from placewright.exact.place_model import PlaceModel
from placewright.exact.solving import ceiling_ps, run, solver_module, terms_of
from placewright.exact.step_model import StepModel, step_model
from placewright.placement import Placement
from placewright.problem import Problem
from placewright.search import Placer
from placewright.sim.lower import PICO

_COARSE = (1 << 11, 1 << 14, 1 << 17)
"""Units in the best known value, in the first solves; the last is exact."""
_SHARES = (1 / 8, 2 / 7, 1.0, 1.0)
"""Of the seconds that are left, for each solve."""

_STEP_SHARE = 1 / 8
"""Of the seconds, for `step`: on that model a deterministic second lasts about eight of the clock."""


@dataclass(frozen=True)
class CpSatParams:
    """How long, and how large."""

    seconds: float = 60.0
    """About so many seconds of a core in all, counted by the solver's own deterministic clock."""
    workers: int = 1
    """Threads among which the solver's strategies take turns. With more than one, the last bound may differ."""
    most_terms: int = 400_000
    """Clauses of the model at most; a larger problem is refused."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 1e6:
            raise InputError(f"seconds is {self.seconds}; above 0, at most 1e6, is allowed")
        for name in ("workers", "most_terms"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; 1 or more is allowed")


class CpSat(Placer):
    """Solve, coarse to fine; every solution is asked, every bound kept."""

    name = "cpsat"

    def __init__(self, params: CpSatParams | None = None) -> None:
        self.params = params or CpSatParams()

    def start(self, problem: Problem, rng: np.random.Generator) -> None:
        """Count the clauses and find a placement to begin from; refuses what is too large."""
        solver_module()
        self._problem, self._seed = problem, int(rng.integers(1 << 31))
        self._nodes = nodes_of(problem)
        terms = terms_of(self._nodes)
        if terms > self.params.most_terms:
            raise ProblemError(
                f"cpsat would build a model of {terms:,} clauses ({problem.n_groups:,} groups, "
                f"{problem.n_devices} devices); at most {self.params.most_terms:,} are allowed. Use another method, "
                "or allow more in CpSatParams"
            )
        self._unit = common_divisor(self._nodes)
        self._left = self.params.seconds * (_STEP_SHARE if problem.objective == "step" else 1.0)
        self._level = 0
        self._low_ps = 0
        self._best_ps: int | None = None
        self._best: Placement | None = None
        self._over: list[dict[int, int]] = []
        self._settled = -1
        self._done = problem.n_groups == 0
        self._offer = [Placement(np.zeros(0, np.int16))] if self._done else self._first()

    def ask(self) -> list[Placement]:
        """The placements to begin from; then, for every solve, its solution with the windows worth trying."""
        if self._offer:
            batch, self._offer = self._offer, []
            return batch
        while not self._done:
            batch = self._solve()
            if batch:
                return batch
        return []

    def tell(self, evaluations: Sequence[Evaluation]) -> None:
        """Keep the best; remember what a pool cannot hold."""
        by_devices: dict[bytes, list[Evaluation]] = {}
        for evaluation in evaluations:
            by_devices.setdefault(evaluation.placement.devices.tobytes(), []).append(evaluation)
        for same in by_devices.values():
            feasible = [e for e in same if e.outcome.feasible and e.outcome.value_ps is not None]
            for evaluation in feasible:
                self._keep(evaluation)
            if not feasible and self._problem.objective != "step":
                self._exclude(same)

    def _keep(self, evaluation: Evaluation) -> None:
        value = evaluation.outcome.value_ps
        if value is not None and (self._best_ps is None or value < self._best_ps):
            self._best_ps, self._best = value, evaluation.placement

    def _exclude(self, same: Sequence[Evaluation]) -> None:
        """What is in a pool that is too small for it, whatever the windows, is never asked again."""
        over = min((e.outcome.over_bytes for e in same), key=sum)
        devices = _node_devices(self._nodes, same[0].placement)
        if (self._problem.lift(self._nodes.of_groups(devices)) != same[0].placement.devices).any():
            return  # not one that the model could give
        pool_of = np.array(self._problem.machine.pool_of)[devices]
        for pool in np.flatnonzero(np.array(over)).tolist():
            self._over.append({k: int(devices[k]) for k in np.flatnonzero(pool_of == pool).tolist()})

    def bound_s(self) -> float | None:
        """What was proved so far."""
        return self._low_ps / PICO if self._low_ps else None

    def _first(self) -> list[Placement]:
        """Placements to begin from: the best linearised split, and every group where it is fastest."""
        problem = self._problem
        found = []
        decisions = Decisions(problem)
        for devices in (_or_none(linearised_devices, problem), _or_none(decisions.settle, decisions.seconds.argmin(1))):
            if devices is not None:
                found += self._variants(devices)
        return found

    def _variants(self, devices: NDArray[np.int64], priorities: NDArray[np.float64] | None = None) -> list[Placement]:
        """A placement of groups; where parameters are borrowed, also with the least and with the largest windows."""
        problem, graph = self._problem, self._problem.graph
        plain = Placement(problem.lift(devices), priorities)
        pool = np.array(problem.machine.pool_of)[plain.devices]
        lent = graph.persistent[graph.in_tensor] & (pool[graph.tensor_op[graph.in_tensor]] != pool[graph.read_op])
        if problem.discipline != "stream" or not lent.any():
            return [plain]
        sizes = (0,) if problem.objective == "max_load" else (0, MAX_BYTES)
        windows = [np.full(problem.n_devices, size, np.int64) for size in sizes]
        return [plain, *(Placement(plain.devices, None, window) for window in windows)]

    def _solve(self) -> list[Placement]:
        """One solve: a better bound, and its solution; nothing where it found none."""
        if self._settled == len(self._over):  # solved to the end, and the simulator excluded nothing since
            self._done = True
            return []
        known = self._best_ps if self._best_ps is not None else ceiling_ps(self._nodes)
        while self._level < len(_COARSE) and known // _COARSE[self._level] <= self._unit:
            self._level += 1  # the exact unit is as coarse
        last = self._level == len(_COARSE)
        unit = self._unit if last else known // _COARSE[self._level]
        model = self._model(unit, self._low_ps // unit, known // unit)
        cp_model = solver_module()
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = self.params.workers
        solver.parameters.interleave_search = True
        solver.parameters.random_seed = self._seed
        solver.parameters.max_deterministic_time = self._left * _SHARES[self._level]
        solver.parameters.catch_sigint_signal = False
        if math.isfinite(self.seconds_left):
            solver.parameters.max_time_in_seconds = max(0.1, self.seconds_left * _SHARES[self._level])
        status = run(solver, model.model)
        self._left -= solver.response_proto.deterministic_time
        self._level += not last
        if status == cp_model.INFEASIBLE:
            return self._none_left()
        if np.isfinite(solver.best_objective_bound):
            self._low_ps = max(self._low_ps, int(solver.best_objective_bound + 1e-6) * unit)
        if last and status == cp_model.OPTIMAL:
            self._settled = len(self._over)
        self._done = self._left <= 0 or self._low_ps == self._best_ps or (last and status != cp_model.OPTIMAL)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return []
        devices = self._nodes.of_groups(model.devices(solver))
        priorities = None
        if isinstance(model, StepModel) and self._problem.discipline == "priority":
            priorities = -model.start_times(solver).astype(np.float64)
        return self._variants(devices, priorities)

    def _model(self, unit: int, low: int, high: int) -> PlaceModel:
        """The model in a unit, with what is known."""
        build = step_model if self._problem.objective == "step" else load_model
        model = build(self._nodes, unit, low, high)
        for content in self._over:
            model.forbid(content)
        if self._best is not None:
            model.hint(_node_devices(self._nodes, self._best))
        return model

    def _none_left(self) -> list[Placement]:
        """Nothing is better than the best; without one, nothing is feasible."""
        self._done = True
        if self._best_ps is None:
            raise InfeasibleError(
                "cpsat proved that no placement keeps the constraints and the memory of every pool; relax a "
                "constraint, or allow more memory"
            )
        self._low_ps = self._best_ps
        return []


def _or_none(find: Any, *given: Any) -> NDArray[np.int64] | None:
    """What a heuristic finds, if anything."""
    try:
        devices: NDArray[np.int64] | None = find(*given)
    except (ProblemError, InfeasibleError):
        return None
    return devices


def _node_devices(nodes: Nodes, placement: Placement) -> I64:
    """(K,) the device of every node; of nodes whose groups are apart, that of the last."""
    devices = np.zeros(nodes.n, np.int64)
    devices[nodes.label] = placement.devices[nodes.problem.leaders]
    return devices

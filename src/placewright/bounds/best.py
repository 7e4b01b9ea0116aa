"""The best lower bound of a problem: each kind in turn, from the cheap to the dear."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from placewright.bounds.fit import check_fit
from placewright.bounds.lagrangian import proved
from placewright.bounds.multipliers import solve
from placewright.bounds.paths import Heads, best_window, heads, window_rows
from placewright.bounds.relaxed import Relaxed, Row
from placewright.bounds.rows import heaviest_path, load_rows, memory_rows, path_row
from placewright.errors import InfeasibleError
from placewright.problem import Problem
from placewright.sim.lower import NEVER, PICO

ROUNDS = 4
"""How many paths are tried one after the other, each the longest where the programme puts things."""
LONGER = 1.001
"""By how much a path must be longer than what is proved to be tried."""


@dataclass(frozen=True)
class Bound:
    """No placement of the problem that fits is better than this."""

    value_ps: int
    by: str
    """Which kind of bound it is."""
    parts: tuple[tuple[str, int], ...] = ()
    """What each kind proves, in picoseconds."""

    @property
    def value_s(self) -> float:
        """The bound in seconds."""
        return self.value_ps / PICO


_KNOWN: WeakKeyDictionary[Problem, Bound] = WeakKeyDictionary()


def lower_bound(problem: Problem) -> Bound:
    """The best bound on the objective, for every discipline, priority and window; worked out once per problem.

    Raises where it proves that no placement fits, or that none can run.
    """
    if problem not in _KNOWN:
        _KNOWN[problem] = _lower_bound(problem)
    return _KNOWN[problem]


def _lower_bound(problem: Problem) -> Bound:
    if not problem.n_ops:
        return Bound(0, "nothing to do")
    relaxed = Relaxed.of(problem)
    memory = memory_rows(relaxed)
    parts = {"largest group": _largest_group(relaxed)}
    times = None
    if problem.objective == "step":
        times = heads(relaxed)
        whole = times.whole
        if int(whole.max()) == NEVER:
            raise _nowhere(problem, int(whole.argmax()))
        parts["critical path"] = int(whole.max())
    rows = [*load_rows(relaxed), *memory]
    scale = float(max(1, *parts.values()))
    dual = solve(relaxed, rows, scale)
    if dual is not None and dual.short:
        check_fit(relaxed, memory)
    if dual is not None:
        parts["work and memory"] = _rounded(proved(relaxed, rows, dual.multipliers))
        if times is not None:
            weights = dual.multipliers[: relaxed.n_classes] / relaxed.classes.size
            _combined(relaxed, times, rows, weights, parts)
    best = max(parts, key=parts.__getitem__)
    return Bound(parts[best], best, tuple(parts.items()))


def _combined(
    relaxed: Relaxed, times: Heads, rows: list[Row], weights: NDArray[np.float64], parts: dict[str, int]
) -> None:
    """Add what windows, and windows, work, memory and paths together, prove of a step."""
    window = best_window(relaxed, times, weights, max(parts.values()))
    parts["work between ends"] = window.bound_ps
    rows = [*rows, *window_rows(relaxed, times, window)]
    cost = np.where(relaxed.cost_ps == NEVER, 0, relaxed.cost_ps).astype(np.float64)
    least = np.where(relaxed.cost_ps == NEVER, np.inf, cost).min(axis=1)
    _, ops, reads = heaviest_path(relaxed, least)
    for k in range(ROUNDS):
        rows.append(path_row(relaxed, ops, reads, k))
        dual = solve(relaxed, rows, float(max(1, *parts.values())))
        if dual is None:
            return
        parts["combined"] = max(parts.get("combined", 0), _rounded(proved(relaxed, rows, dual.multipliers)))
        shares = dual.shares[relaxed.problem.groups]
        length, ops, reads = heaviest_path(relaxed, (cost * shares).sum(axis=1))
        if length <= LONGER * dual.value_ps:
            return


def _largest_group(relaxed: Relaxed) -> int:
    """The longest time of any group on its best class: its operations run one after the other."""
    return int(np.where(relaxed.allowed, relaxed.group_ps, NEVER).min(axis=1).max())


def _rounded(value: Fraction) -> int:
    """The least whole number of picoseconds that is no less: every objective is whole."""
    return max(0, math.ceil(value))


def _nowhere(problem: Problem, op: int) -> InfeasibleError:
    name = problem.graph.op_names[op]
    return InfeasibleError(
        f"operation {name!r} cannot get its inputs, or those that need it theirs, on any device that it may use: no "
        "route leads there. Give the machine that route, or relax the constraints."
    )

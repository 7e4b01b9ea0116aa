"""The best lower bound of a problem: each kind in turn, from the cheap to the dear."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from placewright.bounds.cuts import least_loads
from placewright.bounds.fit import check_fit
from placewright.bounds.heads import Heads, heads
from placewright.bounds.lagrangian import proved
from placewright.bounds.multipliers import solve
from placewright.bounds.relaxed import Relaxed, Row
from placewright.bounds.rows import load_rows, memory_rows, occupancy_rows
from placewright.bounds.stages import heaviest_path, path_row, stage_row
from placewright.bounds.windows import best_window, window_rows
from placewright.errors import InfeasibleError
from placewright.problem import Problem
from placewright.sim.lower import NEVER, PICO

ROUNDS = 12
"""How many paths are tried one after the other, each the longest where the programme puts things."""
MOST_ROUNDS = 60_000
"""Operations times rounds."""
RESCALED = 4
"""Times that a programme is solved again in a larger unit of time."""
LONGER = 1.001
"""By how much a path must be longer than what the programme found to be tried."""
PATIENCE = 3
"""Rounds without gain after which no more are tried."""
HORIZONS = 4
"""How many lengths of a step are tried for what memory holds on average."""


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
    parts: dict[str, int] = {}
    times = None
    if problem.objective == "step":
        times = heads(relaxed)
        whole = times.whole
        if int(whole.max()) == NEVER:
            raise _nowhere(problem, int(whole.argmax()))
        parts["critical path"] = int(whole.max())
    parts["largest group"] = _largest_group(relaxed, times)
    if problem.objective == "max_load":
        parts["group and its exchange"] = int(least_loads(relaxed).max())
    rows = [*load_rows(relaxed), *memory]
    scale = float(max(1, *parts.values()))
    dual = solve(relaxed, rows, scale)
    if dual is not None and dual.short:
        check_fit(relaxed, memory)
        for _ in range(RESCALED):  # missing memory was cheap beside what the step takes
            if dual is not None and dual.short:
                scale *= 1e3
                dual = solve(relaxed, rows, scale)
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
    """Add what windows prove of a step, and windows, work, memory, paths and stages together."""
    window = best_window(relaxed, times, weights, max(parts.values()))
    parts["work between ends"] = window.bound_ps
    rows = [*rows, *window_rows(relaxed, times, window)]
    least = np.where(relaxed.cost_ps == NEVER, np.inf, relaxed.cost_ps).min(axis=1)
    rows.append(path_row(relaxed, heaviest_path(relaxed, least), "path"))
    parts["combined"], rows = _along(relaxed, rows, parts, ROUNDS)
    if any(not row.is_load for row in rows) and max(parts.values()) > 0:
        parts["memory in time"] = _in_time(relaxed, rows, parts)


def _along(relaxed: Relaxed, rows: list[Row], parts: dict[str, int], rounds: int) -> tuple[int, list[Row]]:
    """What the rows prove, with more rows of paths and stages, found in turn; and the rows that proved most."""
    cost = np.where(relaxed.cost_ps == NEVER, 0, relaxed.cost_ps)
    found, used, first = [0], rows, len(rows)
    for k in range(max(2, min(rounds, MOST_ROUNDS // relaxed.problem.n_ops))):
        dual = solve(relaxed, rows, float(max(1, *parts.values())))
        if dual is None:
            break
        found.append(_rounded(proved(relaxed, rows, dual.multipliers)))
        counts = [j < first or m > 0 for j, m in enumerate(dual.multipliers.tolist())]
        if found[-1] == max(found):
            used = [row for row, count in zip(rows, counts, strict=True) if count]
        if k >= PATIENCE and max(found) <= LONGER * max(found[:-PATIENCE]):
            break
        path = heaviest_path(relaxed, (cost * dual.shares[relaxed.problem.groups]).sum(axis=1))
        length, row = stage_row(relaxed, path, dual.shares, f"stages {k}")
        if max(path.length, length) <= LONGER * dual.value_ps:
            break
        rows = [*rows, row]
        if path.length > LONGER * dual.value_ps:
            rows.append(path_row(relaxed, path, f"path {k}"))
    return max(found), used


def _in_time(relaxed: Relaxed, rows: list[Row], parts: dict[str, int]) -> int:
    """What holds if memory on average over the step counts too.

    Either a step takes longer than a horizon, or the rows for that horizon hold; so the lesser of both is proved.
    """
    best, horizon = 0, max(parts.values())
    for k in range(HORIZONS):
        more = occupancy_rows(relaxed, horizon)
        if not more:
            break
        found, _ = _along(relaxed, [*rows, *more], parts, 2)
        best = max(best, min(found, horizon))
        horizon = found if k == 0 else (found + horizon) // 2
        if horizon <= max(parts.values()):
            break
    return best


def _largest_group(relaxed: Relaxed, times: Heads | None) -> int:
    """The longest time of any group on its best class: its operations run one after the other.

    Of a step, what must come before the first of them and after the last counts too.
    """
    least = relaxed.group_ps.copy()
    for table in () if times is None else times.known:
        nearest = np.full(least.shape, NEVER)
        np.minimum.at(nearest, relaxed.problem.groups, table)
        least += nearest
    return int(np.where(relaxed.allowed, least, NEVER).min(axis=1).max())


def _rounded(value: Fraction) -> int:
    """The least whole number of picoseconds that is no less: every objective is whole."""
    return max(0, math.ceil(value))


def _nowhere(problem: Problem, op: int) -> InfeasibleError:
    name = problem.graph.op_names[op]
    return InfeasibleError(
        f"operation {name!r} cannot get its inputs, or those that need it theirs, on any device that it may use: no "
        "route leads there. Give the machine that route, or relax the constraints."
    )

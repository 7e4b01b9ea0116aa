"""Chains: operations of which each waits for the one before, and whatever else must be with one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from placewright.errors import ProblemError
from placewright.graph import INPUT
from placewright.problem import Problem
from placewright.sim.lower import Lowered

I64 = NDArray[np.int64]
NEVER = 1 << 61
"""Beyond every sum of costs that a problem may have here; two of it still fit."""


@dataclass(frozen=True, eq=False)
class Chain:
    """Runs of operations that share a device, in order; what crosses to each run comes from the one before."""

    run_of_group: I64
    """(groups,): the run that a group belongs to, or -1: it touches none."""
    n_runs: int
    seconds_ps: I64
    """(runs, D), NEVER where not allowed."""
    crossing: tuple[tuple[int, ...], ...]
    """The tensors that each run receives."""


def chain_of(problem: Problem, p: Lowered) -> Chain:
    """The runs of a problem, or an error that names what makes it no chain."""
    if problem.objective != "step":
        _refuse(f"it minimises `step`, and the objective is {problem.objective!r}; use contiguous or cpsat")
    if problem.separated:
        _refuse("it cannot keep operations apart; use a method that can")
    queue = np.flatnonzero(~problem.graph.off_queue)
    run = _runs(problem, queue)
    run_of_group, head = _leaves(problem, run, queue)
    crossing = _crossings(problem, run, run_of_group, queue, head)
    count = len(crossing)
    seconds = np.zeros((count, problem.n_devices), np.int64)
    allowed = np.ones((count, problem.n_devices), bool)
    inside = np.flatnonzero(run >= 0)
    np.add.at(
        seconds, run[inside] + (head >= 0), np.where(p.cost_ps[inside] < np.iinfo(np.int64).max, p.cost_ps[inside], 0)
    )
    run_of_group = np.where(run_of_group >= 0, run_of_group + (head >= 0), -1)
    if head >= 0:
        run_of_group[head] = 0
    held = np.flatnonzero(run_of_group >= 0)
    np.logical_and.at(allowed, run_of_group[held], problem.choices[held])
    seconds[~allowed] = NEVER
    return Chain(run_of_group, count, seconds, crossing)


def _refuse(why: str) -> NoReturn:
    raise ProblemError(f"chain-step: {why}")


def _name(problem: Problem, op: int) -> str:
    return repr(problem.graph.op_names[op])


def _runs(problem: Problem, queue: NDArray[np.intp]) -> I64:
    """(operations,) the run of every operation on a queue, -1 for the others."""
    graph, groups = problem.graph, problem.groups
    run = np.full(graph.n_ops, -1, np.int64)
    last: dict[int, int] = {}
    count = -1
    for k, i in enumerate(queue.tolist()):
        g = int(groups[i])
        if k:
            before = int(queue[k - 1])
            reads = graph.tensor_op[graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]]]
            waits = graph.after_op[graph.after_start[i] : graph.after_start[i + 1]]
            if before not in reads and before not in waits:
                _refuse(f"{_name(problem, i)} does not wait for {_name(problem, before)}, so the graph is no chain; "
                        "use another method")  # fmt: skip
        if g in last and last[g] != k - 1:
            # Everything since the last operation of the group would have to be with it, which is not demanded.
            _refuse(f"{_name(problem, i)} must be with an operation that is not right before it; use another method")
        if g not in last:
            count += 1
        last[g] = k
        run[i] = count
    return run


def _leaves(problem: Problem, run: I64, queue: NDArray[np.intp]) -> tuple[I64, int]:
    """(groups,) the run of every group, and the one group of inputs that comes before all runs, or -1."""
    groups = problem.groups
    run_of_group = np.full(problem.n_groups, -1, np.int64)
    run_of_group[groups[queue]] = run[queue]
    touched: dict[int, set[int]] = {}
    for maker, reader in _reads(problem):
        for here, there in ((maker, reader), (reader, maker)):
            if run_of_group[groups[here]] < 0 and groups[here] != groups[there]:
                if run_of_group[groups[there]] < 0:
                    _refuse(f"{_name(problem, maker)} feeds {_name(problem, reader)}, and neither runs on a device; "
                            "use another method")  # fmt: skip
                touched.setdefault(int(groups[here]), set()).add(int(run_of_group[groups[there]]))
    allowed = np.ones((int(run.max(initial=-1)) + 1, problem.n_devices), bool)
    np.logical_and.at(allowed, run[queue], problem.choices[groups[queue]])
    head = -1
    for g, runs in sorted(touched.items()):
        name = _name(problem, int(problem.leaders[g]))
        if len(runs) > 1:
            _refuse(f"{name} is read on both sides of a possible cut, so the graph is no chain; use another method")
        (r,) = runs
        if (problem.choices[g] | ~allowed[r]).all():
            run_of_group[g] = r
        elif r == 0 and head < 0 and _is_input(problem, g):
            head = g
        else:
            _refuse(f"{name} may not be wherever its readers may, so the graph is no chain; use another method")
    return run_of_group, head


def _is_input(problem: Problem, group: int) -> bool:
    """Whether a group is inputs alone, of which the first operation on a queue reads whatever anyone reads."""
    graph = problem.graph
    members = np.flatnonzero(problem.groups == group)
    if not (graph.phase[members] == INPUT).all() or np.diff(graph.after_start)[members].any():
        return False
    first = int(np.flatnonzero(~graph.off_queue)[0])
    mine = np.isin(graph.tensor_op[graph.in_tensor], members)
    return set(graph.in_tensor[mine]) == set(graph.in_tensor[mine & (graph.read_op == first)])


def _reads(problem: Problem) -> Iterator[tuple[int, int]]:
    """(maker, reader) of every read, in program order."""
    graph = problem.graph
    yield from zip(graph.tensor_op[graph.in_tensor].tolist(), graph.read_op.tolist(), strict=True)


def _crossings(
    problem: Problem, run: I64, run_of_group: I64, queue: NDArray[np.intp], head: int
) -> tuple[tuple[int, ...], ...]:
    """The tensors that each run receives from the one before; the head, if there is one, is a run by itself."""
    graph, groups = problem.graph, problem.groups
    begins = {int(run[i]): int(i) for i in queue[::-1]}
    rows: list[dict[int, None]] = [{} for _ in range(len(begins) + (head >= 0))]
    for e, (maker, reader) in enumerate(_reads(problem)):
        t = int(graph.in_tensor[e])
        if groups[maker] == head:
            rows[1][t] = None
        elif run_of_group[groups[maker]] != run_of_group[groups[reader]]:
            first = begins.get(int(run[reader]), -1)
            received = graph.in_tensor[graph.in_start[first] : graph.in_start[first + 1]]
            if first < 0 or run[maker] < 0 or maker != _last(queue, first) or t not in received:
                _refuse(f"{_name(problem, reader)} reads from {_name(problem, maker)}, which is not right before it, "
                        "so the graph is no chain; use another method")  # fmt: skip
            rows[int(run[reader]) + (head >= 0)][t] = None
    return tuple(tuple(row) for row in rows)


def _last(queue: NDArray[np.intp], first: int) -> int:
    """The operation on a queue right before another one, or -1."""
    at = int(np.searchsorted(queue, first))
    return int(queue[at - 1]) if at else -1

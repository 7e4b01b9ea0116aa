"""Synchronous data parallelism: the placement of towers, and the method `data-parallel`.

The towers of a step are another graph than the step: k copies, each of a k-th of the batch. So this is no placer of
the given problem: it makes a problem of its own, of the same total batch, and no bound or gap of the given problem
says anything of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from placewright.errors import InfeasibleError, InputError, PlacewrightError, UnknownNameError
from placewright.evaluate import Evaluation, SimulatorEvaluator
from placewright.graph import Ints, Longs, OpGraph
from placewright.heuristics.sketch import accelerators
from placewright.heuristics.tower_graph import SHARED, Sums, Towers, build_towers
from placewright.machine import Machine
from placewright.placement import DEFAULT_WINDOW, Placement
from placewright.problem import Problem
from placewright.search import Placer, Result, run_search
from placewright.stop import After, Criterion

NAME = "data-parallel"
Parameters = Literal["shared", "replicated"]
Homes = Literal["first", "spread"]
_ALLOWED = {"parameters": ("shared", "replicated"), "homes": ("first", "spread"), "sums": ("end", "early")}


@dataclass(frozen=True)
class DataParallelParams:
    """Which kinds of data parallelism are tried; the best is kept."""

    parameters: tuple[Parameters, ...] = ("shared", "replicated")
    """One copy that all towers read, or one in every tower."""
    homes: tuple[Homes, ...] = ("first", "spread")
    """Where gradients are summed and shared parameters live: with the first tower, or dealt out over all by bytes."""
    sums: tuple[Sums, ...] = ("end", "early")
    """When: after all else, as frameworks do; or as soon as a gradient is final, tried only if nothing else fits."""

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            given = getattr(self, name)
            if not isinstance(given, tuple) or not given:
                raise InputError(f"{name} is {given!r}; a tuple of one or more of {', '.join(allowed)} is allowed")
            for word in given:
                if word not in allowed:
                    raise UnknownNameError(name, str(word), allowed)


@dataclass(frozen=True)
class Question:
    """What is asked of data parallelism: where, on how many devices, and by what measure."""

    machine: Machine
    count: int | None = None
    """Towers; as many as there are accelerators unless given."""
    objective: str = "step"
    discipline: str = "stream"
    params: DataParallelParams = DataParallelParams()

    def devices(self) -> Longs:
        """The device of every tower."""
        found = accelerators(self.machine)
        count = len(found) if self.count is None else self.count
        if not isinstance(count, int) or not 1 <= count <= len(found):
            raise InputError(
                f"the number of towers is {count!r}; machine {self.machine.name!r} has {len(found)} accelerators, so 1 "
                f"to {len(found)} is allowed"
            )
        return found[:count]


def data_parallel(
    graph: OpGraph,
    machine: Machine,
    k: int | None = None,
    *,
    objective: str = "step",
    discipline: str = "stream",
    params: DataParallelParams | None = None,
) -> tuple[Problem, Placement]:
    """The best synchronous data-parallel step of k towers, as the problem of its own graph and the placement.

    `graph` is captured at a k-th of the batch. There are as many towers as accelerators unless k is given. What is
    tried is in `params`; `towers` and `replicas` give the graphs themselves.
    """
    asked = Question(machine, k, objective, discipline, params or DataParallelParams())
    result = search_towers(graph, asked)
    if result.placement is None:  # every graph has a placement, and nothing stopped the search
        raise InfeasibleError(f"no placement of {graph.name!r} in towers was evaluated")
    return result.problem, result.placement


def search_towers(
    graph: OpGraph, asked: Question, stop: Criterion | None = None, *, threads: int | None = None
) -> Result:
    """The best of all kinds that are asked for, with the evaluations and seconds of all of them."""
    best: Result | None = None
    errors: list[PlacewrightError] = []
    evaluations, began = 0, time.perf_counter()
    devices = asked.devices()
    for sums in asked.params.sums:
        for parameters in asked.params.parameters:
            try:
                made = build_towers(graph, len(devices), shared=parameters == "shared", sums=sums)
                problem = Problem(made.graph, asked.machine, objective=asked.objective, discipline=asked.discipline)
                placer = Placed(list(placements(problem, made, devices, asked.params.homes)))
                evaluator = SimulatorEvaluator(problem, threads)
                rest = stop and After(stop, evaluations, time.perf_counter() - began)
                result = run_search(problem, placer, rest, evaluator=evaluator, bound=False)
            except (InputError, InfeasibleError) as error:  # another kind may still do
                errors.append(error)
                continue
            evaluations += result.evaluations
            if result.outcome is not None and (best is None or _better(result, best)):
                best = result
            if result.ended == "interrupted":
                break
        if best is not None and (best.feasible or best.ended == "interrupted"):
            break
    if best is None:
        raise errors[0] if errors else InfeasibleError("no data-parallel placement was evaluated; give it more seconds")
    return replace(best, evaluations=evaluations, seconds=time.perf_counter() - began)


def _better(one: Result, two: Result) -> bool:
    """Whether one result is better than another that was found before."""
    return one.outcome is not None and (two.outcome is None or one.outcome.rank < two.outcome.rank)


class Placed(Placer):
    """Asks the placements that it was given, once."""

    name = NAME

    def __init__(self, batch: list[Placement]) -> None:
        self._batch = batch

    def start(self, problem: Problem, rng: np.random.Generator) -> None:
        """Nothing to do."""

    def ask(self) -> list[Placement]:
        """The placements, once."""
        batch, self._batch = self._batch, []
        return batch

    def tell(self, evaluations: Sequence[Evaluation]) -> None:
        """Nothing to learn."""


def placements(
    problem: Problem, made: Towers, devices: Sequence[int] | Longs, homes: Sequence[Homes] = ("first", "spread")
) -> Iterator[Placement]:
    """Tower i on device i; what there is one of at its home; windows for all that is borrowed, and the least ones.

    What cannot run where it should goes where it is fastest.
    """
    places = np.asarray(devices, np.int64)
    family, weight = _families(made, problem)
    seen: dict[Placement, None] = {}
    for home, whole in product(homes, (True, False)):
        dealt = np.zeros(len(weight), np.int64) if home == "first" else _dealt(weight, made.count)
        tower = np.where(made.tower == SHARED, dealt[family], made.tower)
        wanted = _one_each(problem, places[tower], made.tower == SHARED)
        chosen = problem.lift(wanted)
        windows = _windows(problem, chosen) if whole and problem.discipline == "stream" else None
        placement = problem.placement(chosen, windows_bytes=windows)
        if placement not in seen:
            seen[placement] = None
            yield placement


def _families(made: Towers, problem: Problem) -> tuple[Ints, Longs]:
    """(operations,): what must have one home, and (families,) its bytes: a parameter, its state, update and sums."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph, n = made.graph, made.graph.n_ops
    source, target = graph.tensor_op[graph.in_tensor], graph.read_op
    together = (made.tower[source] == SHARED) & (made.tower[target] == SHARED)
    one = np.concatenate([source[together], np.arange(n)])
    two = np.concatenate([target[together], problem.leaders[problem.groups]])
    links = coo_array((np.ones(len(one), bool), (one, two)), shape=(n, n))
    count, label = connected_components(links, directed=False) if n else (0, np.zeros(0, np.int32))
    single = made.tower[graph.tensor_op] == SHARED
    own = single & (graph.tensor_storage == np.arange(graph.n_tensors))
    weight = np.zeros(count, np.int64)
    np.add.at(weight, label[graph.tensor_op[own]], graph.tensor_bytes[own])
    return label, weight


def _dealt(weight: Longs, count: int) -> Longs:
    """The tower of each family: by falling bytes, each to the one that has least so far."""
    held = np.zeros(count, np.int64)
    tower = np.zeros(len(weight), np.int64)
    for f in np.argsort(-weight, kind="stable").tolist():
        tower[f] = int(held.argmin())
        held[tower[f]] += weight[f]
    return tower


def _one_each(problem: Problem, wanted: Longs, single: NDArray[np.bool_]) -> Longs:
    """The device of every group: that of its first operation that there is one of, else of its first."""
    first = np.lexsort((np.arange(problem.n_ops), ~single, problem.groups))
    leader = first[np.searchsorted(problem.groups[first], np.arange(problem.n_groups))]
    chosen = wanted[leader]
    allowed = problem.choices[np.arange(problem.n_groups), chosen]
    if allowed.all():
        return chosen
    from placewright.decisions import Decisions

    fastest: Longs = Decisions(problem).seconds.argmin(axis=1)
    return np.where(allowed, chosen, fastest)


def _windows(problem: Problem, devices: NDArray[np.int16]) -> Longs | None:
    """Windows that hold all that each device borrows, so that it is sent once; None where nothing is borrowed."""
    graph, machine = problem.graph, problem.machine
    pool = np.array(machine.pool_of)
    home, reader = pool[devices[graph.tensor_op[graph.in_tensor]]], devices[graph.read_op].astype(np.int64)
    borrowed = graph.persistent[graph.in_tensor] & (home != pool[reader])
    pairs = np.unique(reader[borrowed] * graph.n_tensors + graph.in_tensor[borrowed])
    granule = np.array([machine.pools[p].granule_bytes for p in machine.pool_of], np.int64)
    reader, tensor = pairs // max(1, graph.n_tensors), pairs % max(1, graph.n_tensors)
    sizes = -(-graph.tensor_bytes[tensor] // granule[reader]) * granule[reader]
    windows = np.zeros(len(machine.devices), np.int64)
    np.add.at(windows, reader, sizes)
    return np.where(windows > 0, windows, DEFAULT_WINDOW) if len(pairs) else None

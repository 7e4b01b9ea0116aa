"""CP-SAT: optima against every placement of small problems, bounds that hold, and published figures."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.checks import MAX_BYTES
from placewright.costs import Costs
from placewright.errors import InfeasibleError, InputError, PlacementError, ProblemError
from placewright.evaluate import SimulatorEvaluator
from placewright.exact.brute_force import BruteForce
from placewright.exact.contiguous import Contiguous
from placewright.exact.cpsat import CpSat, CpSatParams
from placewright.exact.nodes import common_divisor, least_operation_bytes, nodes_of
from placewright.importers import read_workload
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.placement import Placement
from placewright.problem import Pin, Problem, Separate
from placewright.search import run_search
from placewright.sim.lower import lower
from placewright.stop import Evaluations
from placewright.testing import PlacerContract, small_machine, small_problem
from tests.strategies import random_problem

SHARED = Path(__file__).parents[2] / "shared" / "workloads" / "tarnawski2020" / "throughput"

pytest.importorskip("ortools")


class TestCpSat(PlacerContract):
    def placer(self, problem):
        return CpSat(CpSatParams(seconds=1.0))


def every(problem):
    """Every placement that keeps the constraints, with windows that matter."""
    windows = [None]
    if problem.discipline == "stream" and problem.graph.persistent[problem.graph.in_tensor].any():
        windows += [np.full(problem.n_devices, size) for size in (0, MAX_BYTES)]
    for devices in itertools.product(*(np.flatnonzero(row).tolist() for row in problem.choices)):
        lifted = problem.lift(devices)
        try:
            problem.check(Placement(lifted))
        except PlacementError:
            continue
        yield from (Placement(lifted, None, window) for window in windows)


def fits(problem):
    """Whether a search on the problem would not be refused from the start."""
    try:
        problem.check_memory()
    except InfeasibleError:
        return False
    return True


def drawn(seed, objective, most_ops=7, most=256):
    """A small problem of every kind that the simulator knows, and its optimum in picoseconds, or None."""
    rng = random.Random(seed)
    while True:
        problem, given_placement = random_problem(rng, rng.randrange(1, most_ops + 1))
        problem = problem.replace(objective=objective)
        if np.prod(problem.choices.sum(axis=1)) <= most and fits(problem):
            break
    placements = [given_placement, *every(problem)]
    outcomes = [e.outcome for e in SimulatorEvaluator(problem, threads=1).evaluate(placements)]
    return problem, min((o.value_ps for o in outcomes if o.feasible), default=None)


def solved(problem, seconds=10.0):
    """The result, or None where the method proves that nothing is feasible."""
    try:
        return run_search(problem, CpSat(CpSatParams(seconds=seconds)), bound=False)
    except InfeasibleError:
        return None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_largest_loads_are_optimal(seed):
    """Of all placements of problems with every rule of the model, the least largest load, and it is proved."""
    problem, best = drawn(seed, "max_load")
    result = solved(problem)
    if best is None:
        assert result is None or not result.feasible
    else:
        assert result.outcome.value_ps == best
        assert result.gap == 0 or best == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_busy_times_are_optimal(seed):
    """The same for throughput; where parameters are borrowed in visits, the bound holds at least."""
    problem, best = drawn(seed, "throughput")
    result = solved(problem)
    if best is None:
        assert result is None or not result.feasible
        return
    assert result.feasible
    assert result.outcome.value_ps >= best
    assert result.bound_s is None or result.bound_s <= best / 1e12
    if problem.discipline != "stream" or not problem.graph.persistent[problem.graph.in_tensor].any():
        assert result.outcome.value_ps == best
        assert result.gap == 0 or best == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_bounds_of_steps_hold(seed):
    """No placement of a problem with every rule of the model ends its step before the bound."""
    problem, best = drawn(seed, "step")
    result = solved(problem, seconds=2.0)
    if best is None:
        assert result is None or not result.feasible
    else:
        assert result.bound_s is None or result.bound_s <= best / 1e12


def test_a_chain_of_step_is_proved():
    """Where order means nothing, the relaxation is the optimum: a fork whose arms go side by side, by hand."""
    graph = build_graph(
        "fork",
        [
            Operation("source", outputs=[Tensor(1000)]),
            Operation("left", inputs=["source"], outputs=[Tensor(1000)]),
            Operation("right", inputs=["source"], outputs=[Tensor(1000)]),
            Operation("join", inputs=["left", "right"]),
        ],
    )
    machine = Machine(
        "pair",
        (Device("a", "m", "a"), Device("b", "m", "b")),
        (Pool("a", 1 << 20, 1), Pool("b", 1 << 20, 1)),
        (Channel("ab", 1e9), Channel("ba", 1e9)),
        (Route("a", "b", ("ab",)), Route("b", "a", ("ba",))),
    )
    problem = Problem(graph, machine, Costs.given(np.array([[1e-6] * 2, [9e-6] * 2, [9e-6] * 2, [1e-6] * 2])))
    for discipline in ("stream", "ready", "priority"):
        result = run_search(problem.replace(discipline=discipline), CpSat(CpSatParams(seconds=5.0)), bound=False)
        assert result.outcome.value_ps == 12_000_000  # source, transfer, the other arm, join
        assert result.gap == 0.0


def test_separated_operations_stay_apart():
    """A separate is kept, and the optimum is that of brute force."""
    problem = small_problem("ready", Separate(("a", "b"))).replace(objective="max_load")
    result = solved(problem)
    a, b = problem.matches[0]
    assert not set(result.placement.devices[a].tolist()) & set(result.placement.devices[b].tolist())
    assert result.outcome.value_ps == run_search(problem, BruteForce(), bound=False).outcome.value_ps


def test_non_contiguous_splits_are_found():
    """Two long operations around a short one: the optimum comes back to a device, which no contiguous split does."""
    tensor = Tensor(0, transfer_s=1e-6)
    graph = build_graph(
        "sandwich",
        [
            Operation("a", outputs=[tensor]),
            Operation("b", inputs=["a"], outputs=[tensor]),
            Operation("c", inputs=["b"]),
        ],
    )
    seconds = np.array([[4e-6, 1e-3, 4e-6], [1e-3, 12e-6, 12e-6], [4e-6, 1e-3, 4e-6]])[:, :2]
    machine = small_machine(2)
    problem = Problem(graph, machine, Costs.given(seconds), objective="max_load")
    assert solved(problem).outcome.value_ps == 14_000_000
    assert run_search(problem, Contiguous(), bound=False).outcome.value_ps > 14_000_000


def test_least_bytes_of_operations_by_hand():
    """Workspace, outputs and inputs; a view counts the storage that it is in, a received view only itself."""
    graph = build_graph(
        "bytes",
        [
            Operation("w", phase="parameter", outputs=[Tensor(4000)]),
            Operation("a", inputs=["w"], outputs=[Tensor(100)], workspace_bytes=30),
            Operation("view", inputs=["a"], outputs=[Tensor(60, ("a", 0))]),
            Operation("b", inputs=["a", "view"], outputs=[Tensor(7)]),
        ],
    )
    problem = Problem(graph, small_machine(2), objective="max_load")
    assert least_operation_bytes(graph, lower(problem), 0).tolist() == [0, 130, 100, 67]


def test_memory_that_only_the_simulator_sees():
    """Parameters borrowed beside others: the first optimum does not fit, and is excluded."""
    graph = build_graph(
        "borrow",
        [
            Operation("w", phase="parameter", outputs=[Tensor(600)]),
            Operation("v", phase="parameter", outputs=[Tensor(600)]),
            Operation("f", inputs=["w", "v"], outputs=[Tensor(1)]),
        ],
    )
    seconds = np.array([[0.0] * 3, [0.0] * 3, [30e-6, 10e-6, 10e-6]])
    problem = Problem(graph, small_machine(3, bytes_each=1000), Costs.given(seconds), objective="max_load")
    for rules in ((), (Pin(("f",), ("gpu:0",)),)):
        ruled = problem.replace(constraints=rules)
        outcomes = [e.outcome for e in SimulatorEvaluator(ruled).evaluate(list(every(ruled)))]
        best = min((o.value_ps for o in outcomes if o.feasible), default=None)
        result = solved(ruled)
        assert best is None
        assert result is None or not result.feasible


def test_too_large_is_refused_and_parameters_checked():
    with pytest.raises(ProblemError, match=r"cpsat would build a model of [\d,]+ clauses .* at most 10 are allowed"):
        run_search(small_problem(), CpSat(CpSatParams(most_terms=10)), bound=False)
    for wrong in ({"seconds": 0}, {"workers": 0}, {"most_terms": 0}):
        with pytest.raises(InputError, match="allowed"):
            CpSatParams(**wrong)


def test_the_unit_divides_every_cost():
    problem = small_problem().replace(objective="max_load")
    nodes = nodes_of(problem)
    assert common_divisor(nodes) == 1_000_000
    assert all(nodes.move_ps(t, 0, 1) % 1_000_000 == 0 for flow in nodes.flows for t in flow.tensors)


def test_the_first_answer_is_quick():
    """The first batch is heuristic, so that a small budget gets something."""
    problem = small_problem().replace(objective="max_load")
    result = run_search(problem, CpSat(), Evaluations(1), bound=False)
    assert result.feasible
    assert result.ended in ("stopped", "finished")


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the profiled workloads are not in {SHARED}")
@pytest.mark.parametrize(
    ("name", "optimum_ms"),
    [("op_bert_l-3_inference", 21.908), ("op_bert_l-3_training", 54.207), ("layer_bert24_training", 39.790)],
)
def test_published_optima_are_proved(name, optimum_ms):
    """The optima that an integer programme found elsewhere, and their proofs."""
    workload = read_workload(SHARED / f"{name}.json")
    problem = Problem(workload.graph, workload.machine, objective=workload.objective)
    result = run_search(problem, CpSat(), bound=False)
    assert round(result.value_s * 1e3, 3) == optimum_ms
    assert result.gap == 0.0

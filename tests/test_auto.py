"""The default planner, and what it is made of."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import placewright as pw
from placewright.auto import Auto, AutoParams
from placewright.balance import Balance
from placewright.costs import Costs
from placewright.decisions import Decisions
from placewright.errors import InfeasibleError, InputError
from placewright.exact.brute_force import BruteForce
from placewright.heuristics.neighbours import MoveParams, Neighbourhood
from placewright.levels import Ties, by_structure, coarser, dense, heavy_edges, singles, stretches
from placewright.methods import make_placer
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import Pin, Problem, Separate
from placewright.relief import Relief, Roles
from placewright.search import run_search
from placewright.sim import Simulator
from placewright.sim.load_search import LoadAnnealer, Schedule, contract
from placewright.sim.lower import lower
from placewright.stop import Evaluations
from placewright.testing import PlacerContract, small_machine, small_problem
from placewright.wander import Wander
from tests.strategies import random_problem


class TestAuto(PlacerContract):
    def placer(self, problem):
        return Auto()


class TestAutoThatWalks(PlacerContract):
    """With nothing enumerated, so that walks and annealing do the work."""

    budget = Evaluations(3000)

    def placer(self, problem):
        return Auto(AutoParams(enumerate_most=0))


def generated(seed: int, ops: int, **changes) -> Problem:
    """A random problem whose persistent bytes are not plainly too many."""
    for k in range(100):
        try:
            problem = random_problem(random.Random(100 * seed + k), ops)[0].replace(**changes)
            problem.check_memory()
        except InfeasibleError:
            continue
        return problem
    raise AssertionError("a hundred problems in a row do not fit")


def optimum(problem: Problem):
    return run_search(problem, BruteForce(), None)


@pytest.mark.parametrize("objective", ["step", "max_load", "throughput"])
@pytest.mark.parametrize("seed", range(12))
def test_walks_find_the_optimum_of_small_problems(seed, objective):
    """As good as brute force, without trying everything: on seven operations, within 4,000 evaluations."""
    problem = generated(seed, 7, objective=objective)
    best = optimum(problem)
    found = run_search(problem, Auto(AutoParams(enumerate_most=0)), Evaluations(4000), seed=1)
    assert found.outcome.rank <= best.outcome.rank


def test_everything_is_tried_where_that_is_little():
    """A tiny problem is enumerated, its optimum proved, and the search ends."""
    problem = small_problem("ready", devices=2)
    result = run_search(problem, Auto(), Evaluations(100_000))
    assert result.ended == "finished"
    assert result.value_s == optimum(problem).value_s
    assert result.gap == 0


def test_the_same_evaluations_give_the_same_placement_of_a_larger_problem():
    """Two walks on two threads do not make a result depend on timing."""
    problem = Problem(pw.zoo.load("layered/1"), pw.machine("k40x2"))
    one, two = (run_search(problem, Auto(), Evaluations(20_000), seed=5) for _ in range(2))
    assert one.placement == two.placement
    assert one.evaluations == two.evaluations == 20_000


def test_memory_is_met_by_moving_bytes():
    """Where no device holds everything, the answer fits, and parameters are where there is room."""
    problem = small_problem()
    problem = problem.replace(machine=small_machine(3, bytes_each=11_000), costs=problem.costs)
    result = run_search(problem, Auto(AutoParams(enumerate_most=0)), Evaluations(2000), seed=0)
    assert result.feasible
    assert all(s.outcome.reason == "memory" for s in _singles(problem))


def _singles(problem):
    return [run_search(problem, make_placer(f"single:{d.name}", problem)) for d in problem.machine.devices]


def test_separations_hold_in_walks():
    """Every placement asked keeps apart what must be, though walks change clusters at a time."""
    problem = small_problem().replace(constraints=(Separate(("a", "b")), Pin(("loss",), ("cpu:0",))))
    result = run_search(problem, Auto(AutoParams(enumerate_most=0)), Evaluations(3000), seed=2)
    problem.check(result.placement)
    assert result.value_s == optimum(problem).value_s


@pytest.mark.parametrize("most", [0, 20_000])
def test_chains_of_separations_that_settling_cannot_keep(most):
    """Large groups first is the wrong order here: all that begins with settling fails, and one split is feasible."""
    weights = [Operation(n, phase="parameter", outputs=[Tensor(s)]) for n, s in zip("abcd", (4, 1, 1, 4), strict=True)]
    graph = build_graph("chain", [*weights, Operation("o", inputs=["a"], outputs=[Tensor(1, output=True)])])
    apart = tuple(Separate(pair) for pair in (("a", "b"), ("b", "c"), ("c", "d")))
    problem = Problem(graph, small_machine(devices=2), Costs.given([[0.0] * 2] * 4 + [[1.0, 1.0]]), apart)
    result = run_search(problem, Auto(AutoParams(enumerate_most=most)), Evaluations(400), seed=0)
    assert result.feasible
    problem.check(result.placement)


def test_params_name_the_field_and_the_range():
    """A value out of range is refused."""
    with pytest.raises(InputError, match="enumerate_most"):
        AutoParams(enumerate_most=-1)


# ---- max_load by increments ------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(0, 300))
def test_loads_by_increments_are_those_of_the_simulator(seed, steps):
    """After any number of moves, the load that increments give is that of the whole, to the picosecond."""
    problem = generated(seed, 12, objective="max_load", constraints=())
    units = contract(problem, lower(problem), np.arange(problem.n_groups))
    start = np.array([row.argmax() for row in problem.choices], np.int64)
    value, places = LoadAnnealer(units, seed).run(start, Schedule(steps, 0.5, 1e-3, 3))
    outcome = Simulator(problem, 1).simulate([problem.placement(problem.lift(places))])[0]
    if outcome.value_ps is None:
        assert value == np.iinfo(np.int64).max  # no route
    else:
        assert value == outcome.value_ps


def test_balance_keeps_to_its_budget():
    """No more placements are valued than allowed, and they are counted."""
    problem = generated(3, 30, objective="max_load", constraints=())
    balance = Balance(problem, lower(problem), Ties.of(problem), np.random.default_rng(0))
    balance.begin([np.array([row.argmax() for row in problem.choices], np.int64)])
    balance.round(1000)
    assert 100 < balance.valued < 1000  # some moves led to where a group was, or may not be
    alone = generated(3, 30, objective="max_load", constraints=(Pin(("*",), ("d0",)),))
    balance = Balance(alone, lower(alone), Ties.of(alone), np.random.default_rng(0))
    balance.begin([np.array([row.argmax() for row in alone.choices], np.int64)])
    balance.round(1000)
    assert balance.valued == 0


# ---- levels ----------------------------------------------------------------------------------------


def test_levels_nest_and_cover():
    """Each level by heavy edges joins clusters of the one before; every group is in one cluster."""
    problem = Problem(pw.zoo.load("layered/2"), pw.machine("k40x2"))
    levels = coarser(problem, Ties.of(problem), np.random.default_rng(0), 4)
    assert levels
    before = np.arange(problem.n_groups)
    for level in levels:
        pairs = np.unique(np.stack([before, level.label], 1), axis=0)
        assert len(pairs) == before.max() + 1
        start, group = level.members
        assert sorted(group.tolist()) == list(range(problem.n_groups))
        assert start[-1] == problem.n_groups
        before = level.label


def test_coarsening_within_parts_never_joins_two():
    """With `within`, no cluster has groups of two parts."""
    problem = Problem(pw.zoo.load("layered/2"), pw.machine("k40x2"))
    part = np.random.default_rng(1).integers(0, 3, problem.n_groups)
    for level in coarser(problem, Ties.of(problem), np.random.default_rng(0), 6, part):
        pairs = np.unique(np.stack([level.label, part], 1), axis=0)
        assert len(pairs) == level.n_clusters


def test_a_heavy_edge_is_joined_before_light_ones():
    """Two groups that share much more than others end up together first."""
    ties = Ties(np.array([0, 1, 2]), np.array([1, 2, 3]), np.array([1e-6, 1.0, 1e-6]))
    label = heavy_edges(ties, np.ones(4), 10.0, np.random.default_rng(0))
    assert label[1] == label[2]


def test_structure_gives_scopes_and_stretches_cut_evenly():
    """The two branches of the small problem are a level, and stretches are consecutive."""
    problem = small_problem()
    names = {level.name for level in by_structure(problem)}
    assert "scopes/1" in names
    (level,) = stretches(problem, (2,))
    assert (np.diff(level.label) >= 0).all()
    assert singles(problem).n_clusters == problem.n_groups
    assert dense(np.array([7, 3, 7])).tolist() == [0, 1, 0]


# ---- relief ----------------------------------------------------------------------------------------


def test_relief_streams_until_it_fits():
    """Parameters leave a pool that is too full, evenly spread, and the attempts end once the simulator is content."""
    operations = [Operation("x", phase="input", outputs=[Tensor(100)])]
    for k in range(8):
        before = "x" if k == 0 else f"mm{k - 1}"
        operations += [
            Operation(f"w{k}", phase="parameter", outputs=[Tensor(4000)]),
            Operation(f"mm{k}", "matmul", inputs=[before, f"w{k}"], outputs=[Tensor(100)]),
        ]
    graph, machine = build_graph("chain", operations), small_machine(2, bytes_each=24_000)
    problem = Problem(graph, machine.with_memory({"cpu:0": 1 << 20}), Costs.given(np.zeros((graph.n_ops, 2))))
    roles = Roles(problem)
    attempts = Relief(Decisions(problem), roles, singles(problem)).attempts(
        np.ones(problem.n_groups, np.int64), "stream"
    )
    now, outcomes, simulator = next(attempts), [], Simulator(problem, 1)
    while True:
        outcomes.append(simulator.simulate([problem.placement(problem.lift(now))])[0])
        try:
            now = attempts.send(outcomes[-1])
        except StopIteration:
            break
    assert [outcome.feasible for outcome in outcomes] == [False] * (len(outcomes) - 1) + [True]
    streamed = np.flatnonzero((now == 0) & roles.keeps)
    assert len(streamed) >= 4  # two at a time are on the device again, while they are read
    assert (now[~roles.keeps] == 1).all()


# ---- walks -----------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_walk_says_of_its_best_place_what_the_simulator_says(seed):
    """The best place of a walk has the value and the bytes over that a simulation from scratch gives."""
    problem = generated(seed, 10)
    decisions = Decisions(problem)
    wander = Wander(decisions, lower(problem), [singles(problem)], Ties.of(problem), np.random.default_rng(seed))
    start = Neighbourhood(problem, np.random.default_rng(seed), MoveParams()).starts("random")[0]
    wander.begin([start.astype(np.int64)])
    places = wander.go(400)
    assert wander.simulated + len(places) <= 400
    for place in places:
        placement = problem.placement(problem.lift(place.row), windows_bytes=place.windows)
        outcome = Simulator(problem, 1).simulate([placement])[0]
        if outcome.value_ps is not None:
            assert (place.value, place.over) == (outcome.value_ps, sum(outcome.over_bytes))

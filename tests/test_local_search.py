"""The methods that walk: their moves, their rules of acceptance, and that they find known optima."""

import dataclasses
import itertools
import math
import os
import random
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.costs import Costs
from placewright.errors import InfeasibleError, InputError
from placewright.heuristics.annealing import Annealing, AnnealingParams, difference
from placewright.heuristics.genetic import Genetic, GeneticParams
from placewright.heuristics.local_search import HillClimbing, HillClimbingParams, Tabu, TabuParams
from placewright.heuristics.neighbours import MoveParams, Neighbourhood
from placewright.methods import make_placer, search
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import OBJECTIVES, Pin, Problem, Separate
from placewright.search import run_search
from placewright.sim import Simulator
from placewright.stop import Criterion, Evaluations
from placewright.testing import PlacerContract, small_machine, small_problem
from tests.strategies import random_problem

NAMES = ("hill-climbing", "annealing", "tabu", "genetic")
MOVES_ONLY = MoveParams(swap=0, cluster=0)


class TestHillClimbing(PlacerContract):
    def placer(self, problem):
        return HillClimbing()


class TestAnnealing(PlacerContract):
    def placer(self, problem):
        return Annealing()


class TestTabu(PlacerContract):
    def placer(self, problem):
        return Tabu()


class TestGenetic(PlacerContract):
    def placer(self, problem):
        return Genetic()


class TestFromRandomStarts(PlacerContract):
    def placer(self, problem):
        return Annealing(AnnealingParams(start="random"))


def random_start(name):
    """A placer of that name that begins at random."""
    placer = make_placer(name, small_problem())
    return type(placer)(dataclasses.replace(placer.params, start="random"))


class Until(Criterion):
    """Ends a search at a value, or after so many evaluations."""

    def __init__(self, value_s, most):
        self.value_s, self.most = value_s, most

    def __call__(self, progress):
        return progress.best_s <= self.value_s or progress.evaluations >= self.most


# Optima -----------------------------------------------------------------------------------------------------------


@cache
def optimum_of(objective):
    """A problem of ten groups on three devices, and its optimum by brute force."""
    problem = small_problem("ready").replace(objective=objective)
    return problem, search(problem, "brute-force").value_s


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("start", ["best-single", "random"])
def test_small_optima_are_found(objective, start):
    """Within 8,000 of 59,049 evaluations every method finds the optimum of ten groups on three devices."""
    problem, optimum = optimum_of(objective)
    for name, seed in itertools.product(NAMES, range(3)):
        placer = random_start(name) if start == "random" else make_placer(name, problem)
        assert run_search(problem, placer, Until(optimum, 8000), seed=seed).value_s == optimum, (name, seed)


def test_optima_of_random_problems_are_found():
    """Of 24 random problems with every kind of rule, each method solves all within 4,000 evaluations."""
    tried = 0
    for seed in itertools.count():
        problem, _ = random_problem(random.Random(seed), 9)
        if not 1 <= problem.choices.sum(axis=1, dtype=float).prod() <= 3000:
            continue
        try:
            best = search(problem, "brute-force")
        except InfeasibleError:  # the parameters do not fit, and the search says so before it begins
            continue
        if best.outcome is None:
            continue
        for name in NAMES:
            found = search(problem, name, Until(best.value_s if best.feasible else 0, 4000), seed=seed)
            assert found.outcome.rank == best.outcome.rank, (name, seed)
        tried += 1
        if tried == 24:
            return


def two_clusters(size=12):
    """Two clusters of operations that exchange much among themselves, in turn in program order, and one join.

    Every operation takes 100 us on both cards; a tensor within a cluster takes 1 ms to another device. So the best
    is a cluster on each card: `size` operations, the transfer of the last one's small tensor, and the join.
    """
    operations = []
    for k, side in itertools.product(range(size), "ab"):
        inputs = [f"{side}{j}" for j in range(max(0, k - 3), k)]
        last = k == size - 1
        operations.append(Operation(f"{side}{k}", inputs=inputs, outputs=[Tensor(1000 if last else 1_000_000)]))
    operations.append(
        Operation("join", inputs=[f"{side}{size - 1}" for side in "ab"], outputs=[Tensor(4, output=True)])
    )
    graph = build_graph("two-clusters", operations)
    seconds = np.full((graph.n_ops, 3), 100e-6)
    seconds[:, 0] = 1e-3  # the host
    return Problem(graph, small_machine(3, 1 << 30), Costs.given(seconds))


@pytest.mark.parametrize("name", NAMES)
def test_planted_clusters_are_found(name):
    """The planted split of two clusters over two cards is found within 15,000 evaluations, from three seeds.

    It is far from every single device: half of 25 groups have to move, and on the way there values get worse.
    """
    problem = two_clusters()
    devices = {op: 1 if op.startswith("a") or op == "join" else 2 for op in problem.graph.op_names}
    planted = Simulator(problem).simulate([problem.placement([devices[op] for op in problem.graph.op_names])])[0]
    # two hops of 1 us + 1000 bytes at 1 GB/s, through the host
    assert planted.value_s == pytest.approx(13 * 100e-6 + 2 * 1e-6 + 1e-6)
    for seed in range(3):
        found = search(problem, name, Until(planted.value_s, 15_000), seed=seed)
        assert found.value_s == planted.value_s, seed
        labels = [problem.graph.op_names[i][0] for i in range(24)]
        sides = {(label, int(d)) for label, d in zip(labels, found.placement.devices[:24], strict=True)}
        assert len(sides) == 2
        assert found.improvements[0][1] == pytest.approx(25 * 100e-6)  # they began with all on one card


# Where nothing fits or little can move ----------------------------------------------------------------------------


def cramped(pool_bytes=300):
    """Twelve operations of 100 bytes that all live to the end, on three devices of 300: no placement fits."""
    operations = [Operation(f"op{i}", outputs=[Tensor(100 + i, output=True)]) for i in range(12)]
    graph = build_graph("cramped", operations)
    return Problem(graph, small_machine(3, pool_bytes), Costs.given(np.full((12, 3), 1e-6)))


@pytest.mark.parametrize("name", NAMES)
def test_infeasible_problems_are_searched_for_the_least_too_much(name):
    """Where no placement fits, the one that needs the fewest bytes too much is found: here 1,266 - 900 of them."""
    result = search(cramped(), name, Evaluations(6000), seed=0)
    assert not result.feasible
    assert result.outcome.reason == "memory"
    assert sum(result.outcome.over_bytes) == 366


@pytest.mark.parametrize("name", NAMES)
def test_a_tight_fit_is_found(name):
    """Twelve sizes that fit three pools only if they are spread well, from a start that does not fit."""
    result = search(cramped(425), name, Until(1, 12_000), seed=0)
    assert result.feasible
    assert max(result.outcome.peak_bytes) <= 425


@pytest.mark.parametrize("name", NAMES)
def test_a_problem_without_routes_is_walked(name):
    """Where most placements cannot run at all, those on one device are found from a random start."""
    problem = small_problem("ready", Pin(("a.mm",), ("gpu:0",)))
    cut = problem.replace(machine=dataclasses.replace(problem.machine, routes=()), costs=problem.costs)
    result = run_search(cut, random_start(name), Evaluations(6000), seed=0)
    assert result.feasible
    assert set(result.placement.devices.tolist()) == {1}


@pytest.mark.parametrize("name", NAMES)
def test_operations_apart_are_permuted(name):
    """Six operations that must all be apart on six devices can only trade places; the best order is found."""
    names = tuple(f"op{i}" for i in range(6))
    graph = build_graph("apart", [Operation(name) for name in names])
    seconds = 1e-6 * (1 + np.random.default_rng(4).permutation(36).reshape(6, 6))
    problem = Problem(graph, small_machine(6), Costs.given(seconds), (Separate(names),))
    best = min(max(seconds[range(6), order]) for order in itertools.permutations(range(6)))
    result = search(problem, name, Evaluations(3000), seed=1)
    assert result.value_s == pytest.approx(best)
    assert sorted(result.placement.devices.tolist()) == list(range(6))


@pytest.mark.parametrize("name", NAMES)
def test_hopeless_separations_end_with_advice(name):
    """Three operations apart on two devices: no start exists, and the error says so."""
    problem = small_problem("ready", Separate(("a.mm", "b.mm", "loss")), devices=2)
    with pytest.raises(InfeasibleError, match="keeps operations apart"):
        search(problem, name, Evaluations(10))


@pytest.mark.parametrize("name", NAMES)
def test_a_search_ends_where_nothing_can_move(name):
    """With every group pinned there are only starts to ask."""
    result = search(small_problem("stream", Pin(("*",), ("gpu:0",))), name)
    assert result.ended == "finished"
    assert set(result.placement.devices.tolist()) == {1}


# Moves ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 14))
def test_starts_and_neighbours_keep_every_rule(seed, size):
    """Starts, neighbours and neighbours of neighbours pass the problem's own check, and differ from their parents."""
    problem, placement = random_problem(random.Random(seed), size)
    near = Neighbourhood(problem, np.random.default_rng(seed), MoveParams(swap=0.3, cluster=0.4, tries=20))
    try:
        rows = np.concatenate([near.starts("best-single"), near.starts("random")])
    except InfeasibleError:
        return
    rows = np.concatenate([rows, placement.devices[problem.leaders][None]])
    for _ in range(3):
        problem.check_all([problem.placement(problem.lift(row)) for row in rows])
        if not len(near.free):
            return
        drawn, parents = near.draw(rows, np.repeat(np.arange(len(rows)), 4))
        assert len(drawn) == len(parents)
        assert (drawn != rows[parents]).any(axis=1).all()
        rows = drawn[:8] if len(drawn) else rows


def chain_of_scopes():
    """Twelve operations in a row, in three scopes of four."""
    operations = [
        Operation(f"op{i}", scope=f"net.part{i // 4}", inputs=[f"op{i - 1}"] if i else [], outputs=[Tensor(8)])
        for i in range(12)
    ]
    graph = build_graph("scopes", operations)
    return Problem(graph, small_machine(4), Costs.given(np.full((12, 4), 1e-6)))


def test_a_move_changes_one_group_and_reaches_every_device():
    """Moves alone change one group each; all 36 of them are drawn, those to a neighbour's device more often."""
    problem = chain_of_scopes()
    near = Neighbourhood(problem, np.random.default_rng(0), MOVES_ONLY)
    base = np.repeat(np.arange(3), 4).astype(np.int16)[None]
    rows, _ = near.draw(base, np.zeros(4000, np.int64))
    moved = rows != base
    assert (moved.sum(axis=1) == 1).all()
    where, to = np.nonzero(moved)[1], rows[moved]
    count = np.zeros((12, 4), int)
    np.add.at(count, (where, to), 1)
    assert (count[np.arange(12), base[0]] == 0).all()
    assert ((count > 0).sum(axis=1) == 3).all()
    # op4 (on 1) reads from op3 (on 0): with 1/2 x 1/2 it goes to 0 for that, else with 1/3 (3/4 of the time)
    assert count[4, 0] / count[4].sum() == pytest.approx(0.25 + 0.75 / 3, abs=0.08)


def test_a_swap_trades_two_devices():
    """Swaps keep how many groups each device has."""
    near = Neighbourhood(chain_of_scopes(), np.random.default_rng(0), MoveParams(swap=1, cluster=0))
    base = np.repeat(np.arange(3), 4).astype(np.int16)[None]
    rows, _ = near.draw(base, np.zeros(500, np.int64))
    assert (np.sort(rows, axis=1) == base).all(axis=1).mean() > 0.99  # eight draws may all meet its own device
    assert ((rows != base).sum(axis=1)[(np.sort(rows, axis=1) == base).all(axis=1)] == 2).all()


def test_a_cluster_is_a_scope_or_connected():
    """Clusters go to one device; each is all of a scope, or a stretch of the chain."""
    near = Neighbourhood(chain_of_scopes(), np.random.default_rng(0), MoveParams(swap=0, cluster=1, largest=6))
    base = np.zeros((1, 12), np.int16)
    rows, _ = near.draw(base, np.zeros(600, np.int64))
    scopes, stretches = set(), set()
    for row in rows:
        moved = np.flatnonzero(row)
        assert len(set(row[moved].tolist())) == 1
        assert (np.diff(moved) == 1).all()
        whole = (tuple(range(12)), (0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
        (scopes if tuple(moved.tolist()) in whole else stretches).add(tuple(moved.tolist()))
    assert len(scopes) == 4
    assert {len(stretch) for stretch in stretches} >= {2, 3, 5}
    assert max(map(len, stretches)) <= 6


def test_best_single_starts_with_the_fastest_and_with_what_fits():
    """The fastest device first; where its pool is too small for the parameters, a row that fits comes last."""
    problem = small_problem()
    near = Neighbourhood(problem, np.random.default_rng(0), MoveParams())
    assert near.starts("best-single")[:, 0].tolist() == [1, 2, 0]
    tight = problem.replace(machine=small_machine(3, 6000), costs=problem.costs)
    rows = Neighbourhood(tight, np.random.default_rng(0), MoveParams()).starts("best-single")
    parameters = problem.groups[problem.graph.tensor_op[problem.graph.persistent]]
    assert len(rows) == 4
    assert len(set(rows[3][parameters].tolist())) == 2
    assert len(set(rows[0].tolist())) == 1


# Rules of acceptance ----------------------------------------------------------------------------------------------


class Flat:
    """An outcome of a given rank."""

    def __init__(self, *rank):
        self.rank = rank


def started(placer, problem, seed=0):
    """A placer that has taken up its starts."""
    placer.start(problem, np.random.default_rng(seed))
    placer.begin(placer.ask() and placer.near.starts(placer.start_at)[:1], [Flat(0, 0, 1.0)])
    placer._begun = True
    return placer


def test_tabu_does_not_go_back():
    """Two groups, two devices, all of one value: two steps away, then every neighbour is a way back and it stays."""
    graph = build_graph("two", [Operation("a"), Operation("b")])
    problem = Problem(graph, small_machine(2), Costs.given(np.full((2, 2), 1e-6)))
    tabu = started(Tabu(TabuParams(tenure=1000, moves=MOVES_ONLY)), problem)
    first = tabu._here.tolist()
    for _ in range(6):
        rows = tabu.propose()
        tabu.learn(rows, [Flat(0, 0, 2.0)] * len(rows))
    assert tabu._here.tolist() == [1 - d for d in first]
    back = np.array([first], np.int16)
    tabu.learn(back, [Flat(0, 0, 0.5)])  # better than all so far
    assert tabu._here.tolist() == first


def test_tabu_forgets_after_its_tenure():
    """With tenure 0 a way back is allowed at the next step."""
    graph = build_graph("one", [Operation("a")])
    problem = Problem(graph, small_machine(2), Costs.given(np.full((1, 2), 1e-6)))
    tabu = started(Tabu(TabuParams(tenure=0, moves=MOVES_ONLY)), problem)
    seen = []
    for _ in range(4):
        rows = tabu.propose()
        tabu.learn(rows, [Flat(0, 0, 2.0)] * len(rows))
        seen.append(int(tabu._here[0]))
    assert seen in ([0, 1, 0, 1], [1, 0, 1, 0])


def test_hill_climbing_never_steps_down_and_begins_again_when_stuck():
    """Ties are steps, worse neighbours are not; after its patience the next batch is one random placement."""
    climb = started(HillClimbing(HillClimbingParams(batch=250, patience=0)), small_problem())
    here = climb._here
    rows = climb.propose()
    climb.learn(rows, [Flat(0, 0, 2.0)] * len(rows))
    assert climb._here is here
    rows = climb.propose()
    climb.learn(rows, [Flat(0, 0, 2.0)] * (len(rows) - 1) + [Flat(0, 0, 1.0)])
    assert climb._here.tolist() == rows[-1].tolist()
    fresh = climb.propose()
    assert len(fresh) == 1
    climb.learn(fresh, [Flat(0, 0, 9.0)])
    assert climb._rank == (0, 0, 9.0)
    assert len(climb.propose()) == 250


def test_differences_are_relative_within_a_kind():
    """Seconds and bytes differ by their logarithm; a worse kind is infinitely worse."""
    assert difference((0, 0, 1.0), (0, 0, math.e)) == pytest.approx(1)
    assert difference((1, 200, 5.0), (1, 100, 9.0)) == pytest.approx(math.log(0.5))
    assert difference((2, 0, math.inf), (2, 0, math.inf)) == 0
    assert difference((0, 0, 1.0), (1, 1, 0.1)) == math.inf
    assert difference((2, 0, math.inf), (1, 10**9, 1.0)) == -math.inf
    assert difference((0, 0, 0.0), (0, 0, 0.0)) == 0


def test_annealing_steps_with_the_odds_of_its_temperature():
    """Of a step 2 worse and one 1 worse at temperature 1, each is taken with its share of 1 + 1/e + 1/e^2."""
    problem = small_problem()
    annealing = started(Annealing(AnnealingParams(chains=3000, tries=2)), problem)
    rows, ranks = np.zeros((6000, problem.n_groups), np.int16), [(0, 0, 2.0), (0, 0, 3.0)] * 3000
    annealing._parents = np.repeat(np.arange(3000), 2)
    annealing._step(rows, ranks, np.array([1.0, 2.0] * 3000 + [0.0] * 3000), 1.0)
    taken = [rank[2] for rank in annealing._rank]
    total = 1 + math.exp(-1) + math.exp(-2)
    for value, odds in ((1.0, 1), (2.0, math.exp(-1)), (3.0, math.exp(-2))):
        assert taken.count(value) / 3000 == pytest.approx(odds / total, abs=0.03)


def test_annealing_cools_and_heats_again():
    """The first temperature is sampled; cycles double in length; the first chain resumes at the best."""
    annealing = started(Annealing(AnnealingParams(cycle=64, accept=0.5)), small_problem())
    lengths = []
    for k in range(14):
        rows = annealing.propose()
        annealing.learn(rows, [Flat(0, 0, 2.0)] * len(rows))
        if k == 0:
            assert annealing._hottest == pytest.approx(math.log(2) / math.log(2))
        lengths.append(annealing._length)
    assert lengths == [64, *[128] * 4, *[256] * 8, 512]
    assert annealing._rank[0] == (0, 0, 1.0)


def test_children_have_the_genes_of_their_parents():
    """Without mutation every group of a child is where it is in a parent; one-point children change over once."""
    problem = chain_of_scopes()
    breed = started(Genetic(GeneticParams(crossover=1, one_point=1, mutation=0, population=200)), problem)
    breed._generation = np.array([[0] * 12, [1] * 12], np.int16)
    breed._ranks = [(0, 0, 1.0), (0, 0, 1.0)]
    children = breed._bred(200)
    assert (np.diff(children, axis=1) != 0).sum(axis=1).max() == 1
    assert {tuple(child) for child in children.tolist()} >= {(0,) * 5 + (1,) * 7, (1,) * 5 + (0,) * 7}
    breed.params = dataclasses.replace(breed.params, one_point=0)
    assert (np.diff(breed._bred(200), axis=1) != 0).sum(axis=1).max() > 4


def test_the_elite_is_the_best_each_once():
    """The best rows live on, without repeats, the older of equals first."""
    breed = started(Genetic(GeneticParams(population=8, elite=2)), chain_of_scopes())
    rows = np.repeat(np.arange(4, dtype=np.int16), 2)[:, None] * np.ones(12, np.int16)
    ranks = [(0, 0, v) for v in (3.0, 3.0, 1.0, 1.0, 2.0, 2.0, 1.0, 9.0)]
    alive, alive_ranks = breed._survivors(rows, ranks)
    assert alive[:, 0].tolist() == [1, 3]
    assert alive_ranks == [(0, 0, 1.0), (0, 0, 1.0)]


# Determinism and parameters ---------------------------------------------------------------------------------------

SCRIPT = """
from placewright.methods import search
from placewright.problem import Separate
from placewright.stop import Criterion, Evaluations
from placewright.testing import small_problem
for rules in ((), (Separate(("a.mm", "b.mm")),)):
    for name in ("hill-climbing", "annealing", "tabu", "genetic"):
        result = search(small_problem("stream", *rules), name, Evaluations(700), seed=5)
        print(name, result.placement.key.hex(), result.improvements)
"""


def test_the_hash_seed_changes_nothing():
    """Another process under another hash seed finds the same, byte for byte."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") == 8


def test_seeds_differ():
    """Another seed asks other placements."""
    problem = two_clusters()
    for name in NAMES:
        runs = [search(problem, name, Evaluations(300), seed=seed).improvements for seed in range(3)]
        assert len(set(runs)) > 1, name


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: HillClimbingParams(start="middle"), "start"),
        (lambda: HillClimbingParams(batch=0), "batch"),
        (lambda: HillClimbingParams(batch=1.5), "batch"),
        (lambda: HillClimbingParams(patience=-1), "patience"),
        (lambda: TabuParams(tenure=-1), "tenure"),
        (lambda: TabuParams(batch=True), "batch"),
        (lambda: AnnealingParams(chains=0), "chains"),
        (lambda: AnnealingParams(accept=1), "accept"),
        (lambda: AnnealingParams(coldest=math.nan), "coldest"),
        (lambda: AnnealingParams(cycle="long"), "cycle"),
        (lambda: GeneticParams(elite=48), "elite"),
        (lambda: GeneticParams(mutation=1), "mutation"),
        (lambda: GeneticParams(population=1), "population"),
        (lambda: MoveParams(swap=0.7, cluster=0.7), "swap and cluster"),
        (lambda: MoveParams(largest=1), "largest"),
    ],
)
def test_parameters_out_of_range_are_refused(make, field):
    """Every parameter names itself and its range."""
    with pytest.raises(InputError, match=f"^{field}.*allowed"):
        make()

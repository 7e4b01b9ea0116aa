"""Baechi's three: the linear programme, co-placement, the slow twin with favourites, memory, and the contract."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.costs import Costs
from placewright.errors import InfeasibleError, InputError
from placewright.heuristics.baechi import (
    BaechiParams,
    MEtf,
    MSct,
    MTopo,
    SctParams,
    m_etf_devices,
    m_sct_devices,
    m_topo_devices,
    topological,
)
from placewright.heuristics.co_placement import co_placed_units, gradients, only_children, updates
from placewright.heuristics.favourites import FavouriteParams, Parts, favourites, relaxed
from placewright.heuristics.list_lowering import Units, lower_tasks
from placewright.heuristics.list_scheduling import METHODS, plain_tasks, run_method
from placewright.methods import search
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import Colocate, Forbid, Pin, Problem, Separate
from placewright.sim.list_tasks import DONE, PASSIVE
from placewright.testing import PlacerContract, small_machine, small_problem
from tests import naive_list
from tests.strategies import problems, random_problem

PLACERS = {"m-topo": MTopo, "m-etf": MEtf, "m-sct": MSct}


class TestMTopo(PlacerContract):
    def placer(self, problem):
        return MTopo()


class TestMEtf(PlacerContract):
    def placer(self, problem):
        return MEtf()


class TestMSct(PlacerContract):
    def placer(self, problem):
        return MSct()


# The linear programme -----------------------------------------------------------------------------------------------


def parts_of(times, edges, moves):
    parent, child = np.array(edges, np.int64).reshape(-1, 2).T
    return Parts(np.arange(len(times)), np.array(times, float), parent, child, np.array(moves, float))


def length(parts, x):
    """The longest path where an edge of value x waits for that share of its transfer."""
    end = np.zeros(len(parts.time))
    for j in range(len(parts.time)):
        into = np.flatnonzero(parts.child == j)
        starts = [end[parts.parent[e]] + parts.move[e] * x[e] for e in into]
        end[j] = max(starts, default=0.0) + parts.time[j]
    return float(end.max())


def test_the_worse_child_is_the_favourite():
    """a feeds b (10 s, transfer 4) and c (1 s, transfer 4): only b can follow at once without loss."""
    parts = parts_of([2, 10, 1], [(0, 1), (0, 2)], [4, 4])
    x = relaxed(parts)
    assert length(parts, x) == pytest.approx(12)
    assert x[0] == pytest.approx(0, abs=1e-6)
    assert x.sum() >= 1 - 1e-6


def random_parts(rng):
    n = rng.randrange(2, 8)
    edges = [(a, b) for b in range(n) for a in range(b) if rng.random() < 0.4]
    times, moves = [rng.randrange(1, 10) for _ in range(n)], [rng.randrange(0, 10) for _ in edges]
    return parts_of(times, edges, moves)


def is_favouring(parts, chosen):
    """Whether no part has two favourites or is one of two."""
    chosen = np.flatnonzero(chosen)
    return all(len(set(side[chosen].tolist())) == len(chosen) for side in (parts.parent, parts.child))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**9))
def test_the_programme_is_a_bound_on_every_choice(seed):
    """Its value is the length that it promises, and no choice of whole favourites is shorter."""
    parts = random_parts(random.Random(seed))
    x = relaxed(parts)
    assert len(x) == len(parts.parent)
    if not len(x):
        return
    assert ((x >= -1e-6) & (x <= 1 + 1e-6)).all()
    for side in (parts.parent, parts.child):
        for part, count in zip(*np.unique(side, return_counts=True), strict=True):
            assert x[side == part].sum() >= count - 1 - 1e-6
    assert is_favouring(parts, x <= 0.1)
    few = range(len(x)) if len(x) <= 9 else []
    choices = itertools.chain.from_iterable(itertools.combinations(few, k) for k in range(len(parts.time)))
    for chosen in choices:
        mark = np.isin(np.arange(len(x)), chosen)
        if is_favouring(parts, mark):
            assert length(parts, x) <= length(parts, 1.0 - mark) + 1e-5


def test_favourites_of_operations():
    """Chains are one part; the root of a part has the first reader in the favourite part; others their only child."""
    #   0 -> 1 -> 2 -> {3, 4}, 3 -> 5, 4 -> 5;  3 is long.
    edges = np.array([(0, 1), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5)])
    tasks = plain_tasks(np.array([[1.0, 1], [1, 1], [1, 1], [9, 9], [2, 2], [1, 1]]), edges, np.array([3.0] * 6))
    phase = np.full(6, 2, np.int8)
    found = favourites(tasks, phase, FavouriteParams())
    assert found.tolist() == [1, 2, 3, 5, -1, -1]
    assert favourites(tasks, np.full(6, 3, np.int8), FavouriteParams()).tolist() == [-1] * 6  # no forward operations


def layers(count, width):
    """Layers of operations, each read by two of the next layer: no one has an only child. Straight edges cost more."""
    edges = [(i, (i // width + 1) * width + (i + k) % width) for i in range((count - 1) * width) for k in (0, 1)]
    return plain_tasks(np.ones((count * width, 2)), np.array(edges), np.array([20.0, 1.0] * (len(edges) // 2)))


def test_a_programme_that_is_too_large_is_refused():
    """More edges than allowed after all co-placement are an error that says so; fewer are solved."""
    tasks = layers(10, 5)
    phase = np.full(50, 2, np.int8)
    assert favourites(tasks, phase, FavouriteParams()).tolist() == [*range(5, 50), *[-1] * 5]
    with pytest.raises(InputError, match=r"m-sct: after 2 rounds .* has 90 edges; at most 10 are allowed"):
        favourites(tasks, phase, FavouriteParams(most_edges=10))


def test_a_programme_that_is_too_large_is_co_placed_first():
    """A tree of diamonds has one part after enough rounds, and few edges before."""
    edges = []
    for k in range(0, 60, 3):  # k -> k+1 -> k+3, k -> k+2 -> k+3: a chain of diamonds
        edges += [(k, k + 1), (k, k + 2), (k + 1, k + 3), (k + 2, k + 3)]
    tasks = plain_tasks(np.ones((61, 2)), np.array(edges), np.ones(len(edges)))
    found = favourites(tasks, np.full(61, 2, np.int8), FavouriteParams(most_edges=5))
    assert (found >= 0).any()


# Co-placement -------------------------------------------------------------------------------------------------------


def test_units_of_a_small_training_step():
    """Weight, product, view, gradient, update and store of a branch; the loss alone reads both; x has two readers."""
    problem = small_problem()
    units = co_placed_units(problem, share=0.125)
    unit = dict(zip(problem.graph.op_names, units.of[problem.groups].tolist(), strict=True))
    names = ("w", "mm", "view", "grad", "update", "store")
    for side in "ab":
        assert len({unit[f"{side}.{name}"] for name in names}) == 1
    assert unit["a.mm"] == unit["b.mm"] == unit["loss"] != unit["x"]
    assert updates(problem.graph) == [(problem.graph.op(f"{s}.update"), problem.graph.op(f"{s}.w")) for s in "ab"]
    assert (problem.graph.op("a.grad"), problem.graph.op("a.view")) in gradients(problem)


def test_only_children():
    """What one forward operation alone reads is with that one; what a gradient reads besides does not count."""
    problem = small_problem()
    names = problem.graph.op_names
    pairs = {(names[a], names[b]) for a, b in only_children(problem.graph)}
    assert pairs == {(f"{s}.{a}", f"{s}.{b}" if b != "loss" else b)
                     for s in "ab" for a, b in (("w", "mm"), ("mm", "view"), ("view", "loss"))}  # fmt: skip


def test_chains_join_while_they_need_little():
    """A chain of four with weights of 100 bytes: all in one, or in units of the share of a pool."""
    operations = []
    for k in range(4):
        operations += [
            Operation(f"w{k}", phase="parameter", outputs=[Tensor(100)]),
            Operation(f"op{k}", inputs=[f"w{k}", *([f"op{k - 1}"] if k else [])], outputs=[Tensor(1)]),
        ]
    graph = build_graph("chain", operations)
    costs = Costs.given(np.array([[0.0] * 3, [1e-6] * 3] * 4))
    problem = Problem(graph, small_machine(3, 1600), costs)
    assert len(set(co_placed_units(problem, 1.0).of.tolist())) == 1
    halves = co_placed_units(problem, 0.15).of[problem.groups].tolist()
    assert halves == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len(set(co_placed_units(problem, 0.0).of.tolist())) == 4  # weights are with their readers whatever they need


def test_units_keep_rules():
    """What is pinned apart or kept apart is not joined, and hosts come last."""
    problem = small_problem("stream", Pin(("a.w",), ("gpu:0",)), Pin(("a.mm",), ("gpu:1",)), Separate(("b.w", "b.mm")))
    units = co_placed_units(problem, 1.0)
    unit = dict(zip(problem.graph.op_names, units.of[problem.groups].tolist(), strict=True))
    assert unit["a.w"] != unit["a.mm"]
    assert unit["b.w"] != unit["b.mm"]
    assert not units.first[:, 0].any()
    only_host = co_placed_units(small_problem("stream", Pin(("loss",), ("cpu:0",))), 0.0)
    assert only_host.first[:, 0].sum() == 1


@settings(max_examples=150, deadline=None)
@given(problems(20), st.sampled_from([0.0, 0.1, 1.0]))
def test_units_are_possible(drawn, share):
    """Some device may hold each unit, what a problem groups stays together, and nothing in a unit is kept apart."""
    problem, _ = drawn
    units = co_placed_units(problem, share)
    assert len(units.of) == problem.n_groups
    assert units.choices.any(axis=1).all()
    assert units.first.any(axis=1).all()
    assert not (units.first & ~units.choices).any()
    unit = units.of[problem.groups]
    for one, two in problem.separated:
        assert not set(unit[one].tolist()) & set(unit[two].tolist())


# The twin -----------------------------------------------------------------------------------------------------------


def draw_favourites(rng, tasks):
    """For most operations a child of theirs that is nobody else's favourite."""
    found, taken = np.full(len(tasks.kind), -1, np.int64), set()
    for i in range(len(found)):
        children = tasks.out_op[tasks.out_start[i] : tasks.out_start[i + 1]].tolist()
        free = [j for j in children if j not in taken]
        if free and tasks.kind[i] != PASSIVE and rng.random() < 0.8:
            found[i] = rng.choice(free)
            taken.add(int(found[i]))
    return found


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_kernel_is_the_twin_with_favourites(seed):
    """m-ETF's units and m-SCT's rule: kernel and twin agree to the picosecond."""
    rng = random.Random(seed)
    problem, _ = random_problem(rng, rng.randrange(1, 25))
    units = co_placed_units(problem, rng.choice((0.0, 0.1, 1.0)))
    tasks = lower_tasks(problem, units)
    tasks = tasks._replace(favourite=draw_favourites(rng, tasks))
    stuck, made = run_method(tasks, "etf")
    facts = {"unit_of": units.of, "choices": units.choices, "first": units.first, "favourite": tasks.favourite.tolist()}
    twin, ranks, without = naive_list.run(problem, "etf", **facts)
    assert stuck == without
    if stuck == DONE:
        assert made.priorities.tolist() == ranks
        assert made.group_devices.tolist() == twin.decided
        assert made.start.tolist() == twin.start
        assert made.finish.tolist() == twin.finish


def test_a_device_stays_awake_for_its_favourite():
    """Two processors. a (2) and k (3) feed f, a by 4 and k by 1; a feeds b (5) by 4. f is the favourite of a.

    ETF: a first (the larger level) from 0 to 2, k on the other from 0 to 3. Then b can start at 2 behind a, and f at
    4 when k's output is there: b goes first, and f comes at 7. With f the favourite of a, b may start behind a only
    when its input could be on either device, at 6: f is at 4, and b after it at 5.
    """
    edges, moves = np.array([(0, 2), (1, 2), (0, 3)]), np.array([4.0, 1, 4])
    tasks = plain_tasks(np.array([[2.0, 2], [3, 3], [1, 1], [5, 5]]), edges, moves)
    plain = run_method(tasks, "etf")[1]
    assert plain.start.tolist() == [0, 0, 6, 2]
    assert plain.devices.tolist() == [0, 1, 1, 0]
    awake = run_method(tasks._replace(favourite=np.array([2, -1, -1, -1])), "etf")[1]
    assert awake.start.tolist() == [0, 0, 4, 5]
    assert awake.devices.tolist() == [0, 1, 0, 0]


def test_an_urgent_operation_may_disturb():
    """The favourite is not ready for long; an operation whose input is everywhere by then runs on the device."""
    #  a (1) feeds f by 1, k (9) feeds f by 1, u (1) waits for nothing but is of lower level than k and a.
    edges, moves = np.array([(0, 2), (1, 2)]), np.array([1.0, 1])
    tasks = plain_tasks(np.array([[1.0, 1], [9, 9], [1, 1], [1, 1]]), edges, moves)
    made = run_method(tasks._replace(favourite=np.array([2, -1, -1, -1])), "etf")[1]
    # k is first, on the first device; a at 0 on the second, which waits for f until 10; u's inputs are everywhere.
    assert made.devices.tolist() == [1, 0, 0, 1]
    assert made.start.tolist() == [0, 0, 9, 1]


# Topological filling ------------------------------------------------------------------------------------------------


def chain(count, room, *constraints, weight=100, devices=3):
    """A chain of operations with a weight each."""
    operations = []
    for k in range(count):
        operations += [
            Operation(f"w{k}", phase="parameter", outputs=[Tensor(weight)]),
            Operation(f"op{k}", inputs=[f"w{k}", *([f"op{k - 1}"] if k else [])], outputs=[Tensor(1)]),
        ]
    costs = Costs.given(np.array([[0.0] * devices, [3e-6] + [1e-6] * (devices - 1)] * count))
    return Problem(build_graph("chain", operations), small_machine(devices, room), costs, constraints)


def test_m_topo_fills_in_order():
    """Eight of 100 bytes on two cards: the cap is 400 and the largest, so five and three; the host has none."""
    problem = chain(8, 1 << 20)
    placer = MTopo(BaechiParams(share=1e-4))
    placer.start(problem, None)
    devices = placer.ask()[0].devices[1::2]
    assert devices.tolist() == [1, 1, 1, 1, 1, 2, 2, 2]


def test_m_topo_keeps_to_memory():
    """With room for three on a card the rest goes to the next, and then to the host."""
    problem = chain(8, 330)
    for method in PLACERS:
        result = search(problem, method)
        assert result.feasible, method
        counts = np.bincount(result.placement.devices[1::2], minlength=3)
        assert counts.max() <= 3
        assert counts.sum() == 8


def test_units_in_topological_order():
    """By the first operation that takes time; parameters of several readers by their first reader."""
    problem = small_problem()
    order = topological(problem, Units.groups(problem))
    names = [problem.graph.op_names[problem.leaders[u]] for u in order.tolist()]
    assert names.index("a.mm") < names.index("a.grad") < names.index("b.mm") < names.index("loss")


# Whatever comes -----------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(problems(20), st.sampled_from(list(PLACERS)))
def test_every_rule_is_kept(drawn, method):
    """Placements of generated problems keep every constraint, or the method says why not."""
    problem, _ = drawn
    placer = PLACERS[method]()
    try:
        placer.start(problem, np.random.default_rng(0))
    except InfeasibleError:
        assert problem.separated
        return
    problem.check_all(placer.ask())


@pytest.mark.parametrize("method", PLACERS)
def test_constraints_by_name(method):
    """Each kind of constraint does what it says."""
    rules = (
        Pin(("a",), ("gpu:0",)),
        Forbid(("loss",), ("cpu:0",)),
        Separate(("a.mm", "b.mm")),
        Colocate(("loss", "x")),
    )
    problem = small_problem("stream", *rules)
    placement = search(problem, method).placement
    devices = dict(zip(problem.graph.op_names, placement.devices.tolist(), strict=True))
    assert {d for name, d in devices.items() if name.startswith("a.")} == {1}
    assert devices["loss"] == devices["x"] != 0
    assert devices["b.mm"] != 1


@pytest.mark.parametrize("method", PLACERS)
def test_hopeless_separation_is_told(method):
    """Three that must be apart on two devices: an error that names one of them."""
    problem = small_problem("stream", Separate(("a.mm", "b.mm", "loss")), devices=2)
    with pytest.raises(InfeasibleError, match="kept apart from others"):
        PLACERS[method]().start(problem, np.random.default_rng(0))


def test_devices_of_groups():
    """The helpers give one device per group: what the first placement has."""
    problem = small_problem()
    for method, helper in (("m-topo", m_topo_devices), ("m-etf", m_etf_devices), ("m-sct", m_sct_devices)):
        assert problem.lift(helper(problem)).tolist() == search(problem, method).placement.devices.tolist()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: BaechiParams(share=-0.1), "share is -0.1; 0 to 1"),
        (lambda: BaechiParams(tries=0), "tries is 0; 1 or more"),
        (lambda: SctParams(share=2), "share is 2; 0 to 1"),
        (lambda: FavouriteParams(threshold=0.5), "threshold is 0.5; 0 or more and less than 0.5"),
        (lambda: FavouriteParams(most_edges=0), "most_edges is 0; 1 or more"),
    ],
)
def test_parameters_out_of_range_are_refused(make, match):
    """The field and its range are named."""
    with pytest.raises(InputError, match=match):
        make()


def test_methods_are_known_to_the_schedulers():
    """The names of plain list scheduling are apart from Baechi's."""
    assert not set(PLACERS) & set(METHODS)

"""List scheduling: textbook and hand-worked examples, the slow twin, memory, constraints, and the contract."""

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from placewright.costs import Costs
from placewright.decisions import Decisions
from placewright.errors import InfeasibleError, InputError, UnknownNameError
from placewright.evaluate import SimulatorEvaluator
from placewright.heuristics import list_scheduling
from placewright.heuristics.list_lowering import Units, alive_at_peak, lower_tasks
from placewright.heuristics.list_scheduling import (
    METHODS,
    Cpop,
    Etf,
    Heft,
    ListParams,
    cpop_devices,
    etf_devices,
    heft_devices,
    run_method,
    schedule,
    schedule_tasks,
)
from placewright.methods import search
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import Colocate, Forbid, Pin, Problem, Separate
from placewright.sim import list_entries
from placewright.sim.list_tasks import DONE, N_OFFERED, PASSIVE, make_state
from placewright.testing import PlacerContract, small_machine, small_problem
from tests import naive_list
from tests.strategies import problems, random_problem

COSTS = [(14, 16, 9), (13, 19, 18), (11, 13, 19), (13, 8, 17), (12, 13, 10),
         (13, 16, 9), (7, 15, 11), (5, 11, 14), (18, 12, 20), (21, 7, 16)]  # fmt: skip
EDGES = {(1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23, (4, 8): 27,
         (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13}  # fmt: skip
"""The ten tasks and three processors of Topcuoglu, Hariri and Wu 2002, figure 2."""


class TestHeft(PlacerContract):
    def placer(self, problem):
        return Heft()


class TestCpop(PlacerContract):
    def placer(self, problem):
        return Cpop()


class TestEtf(PlacerContract):
    def placer(self, problem):
        return Etf()


# Textbooks ----------------------------------------------------------------------------------------------------------


def ten_tasks(method):
    edges = [(a - 1, b - 1) for a, b in EDGES]
    return schedule_tasks(method, COSTS, edges, list(EDGES.values()))


def test_heft_of_the_ten_tasks():
    """Ranks, devices and times of the paper: table 3, figure 3a, and a makespan of 80."""
    made = ten_tasks("heft")
    ranks = [108.0, 77.0, 80.0, 80.0, 69.0, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert made.priorities == pytest.approx(ranks, abs=1e-3)
    assert made.makespan == 80
    assert (made.devices + 1).tolist() == [3, 1, 3, 2, 3, 2, 3, 1, 2, 2]
    assert made.start.tolist() == [0, 27, 9, 18, 28, 26, 38, 57, 56, 73]


def test_cpop_of_the_ten_tasks():
    """The critical path 1, 2, 9, 10 on the second processor, and a makespan of 86."""
    made = ten_tasks("cpop")
    assert made.makespan == 86
    assert (made.devices[[0, 1, 8, 9]] + 1).tolist() == [2, 2, 2, 2]
    assert np.flatnonzero(np.isclose(made.priorities, 108)).tolist() == [0, 1, 8, 9]


def test_insertion_by_hand():
    """Two processors, p and q. a (2 on p) feeds b by 3; c (1) is free. Ranks: a 2 + 3 + 4 = 9, b 4, c 1.

    a is on p from 0 to 2; b can be on p from 2 to 6, or on q from 5 to 13; c takes 1 on p and 9 on q, and p is busy
    until 6: it ends at 7 there, and at 9 on q. With an edge c to b of 0 the rank of c is 4 + 5 = 9 too, and the tie
    goes by index.
    """
    made = schedule_tasks("heft", [(2, 2), (4, 4), (1, 9)], [(0, 1)], [3])
    assert made.priorities.tolist() == [9, 4, 5]
    made = schedule_tasks("heft", [(2, 9), (9, 4), (1, 1)], [(0, 1)], [3])
    # Ranks: a 5.5 + 3 + 6.5 = 15, b 6.5, c 1. a: p 0 to 2. b: p 2 to 11, q 5 to 9. c: q has 0 to 5 idle, p from 2.
    assert made.priorities.tolist() == [15, 6.5, 1]
    assert made.devices.tolist() == [0, 1, 1]
    assert made.start.tolist() == [0, 5, 0]
    assert made.finish.tolist() == [2, 9, 1]


def test_etf_by_hand():
    """Equal processors; a 2, b 3, c 4, d 1; a feeds b by 1 and c by 5; b and c feed d by 2 each.

    Levels without transfers: d 1, c 5, b 4, a 7. At 0: a on the first processor, to 2. Then c and b can start at 2
    there, or at 7 and 3 on the second: both start at 2, c has the larger level, so c is on the first from 2 to 6.
    b starts at 3 on the second, to 6. d needs c from the first (6, or 8 on the second) and b (6, or 8): on the first
    at max(6, 8) = 8, on the second at max(8, 6) = 8. Equal starts and ends: the first.
    """
    made = schedule_tasks("etf", [(2, 2), (3, 3), (4, 4), (1, 1)], [(0, 1), (0, 2), (1, 3), (2, 3)], [1, 5, 2, 2])
    assert made.priorities.tolist() == [7, 4, 5, 1]
    assert made.devices.tolist() == [0, 1, 0, 0]
    assert made.start.tolist() == [0, 3, 2, 8]
    assert made.makespan == 9


def test_etf_starts_early_on_a_slow_device():
    """Two free tasks, 1 on the fast processor and 10 on the slow: the second starts at 0 on the slow one."""
    made = schedule_tasks("etf", [(10, 1), (10, 1)], [], [])
    assert made.devices.tolist() == [1, 0]
    assert made.makespan == 10
    assert schedule_tasks("heft", [(10, 1), (10, 1)], [], []).devices.tolist() == [1, 1]


def test_tasks_that_cannot_run_everywhere():
    """Infinite costs are no choice, and count in no mean."""
    made = schedule_tasks("heft", [(3, np.inf), (np.inf, 2)], [(0, 1)], [4])
    assert made.priorities.tolist() == [9, 2]
    assert made.devices.tolist() == [0, 1]
    assert made.start.tolist() == [0, 7]


tables = st.integers(0, 10**9).map(lambda seed: random_tables(random.Random(seed)))


def random_tables(rng):
    n, processors = rng.randrange(1, 30), rng.randrange(2, 5)
    costs = [[rng.randrange(1, 20) for _ in range(processors)] for _ in range(n)]
    pairs = [(a, b) for b in range(n) for a in range(b) if rng.random() < 3 / n]
    return costs, pairs, [rng.randrange(0, 30) for _ in pairs]


@settings(max_examples=200, deadline=None)
@given(tables)
def test_heft_of_plain_tables_is_the_papers(table):
    """The same devices and times as a few lines of Python that know nothing of groups or memory."""
    costs, edges, moves = table
    made = schedule_tasks("heft", costs, edges, moves)
    rows = list(zip(made.devices.tolist(), made.start.tolist(), made.finish.tolist(), strict=True))
    assert rows == naive_list.heft_of_tables(costs, edges, moves)


@settings(max_examples=100, deadline=None)
@given(tables, st.sampled_from(list(METHODS)))
def test_schedules_of_plain_tables_are_possible(table, method):
    """No two tasks overlap on a processor, and inputs are there when a task starts."""
    costs, edges, moves = table
    made = schedule_tasks(method, costs, edges, moves)
    for (a, b), move in zip(edges, moves, strict=True):
        assert made.start[b] >= made.finish[a] + (move if made.devices[a] != made.devices[b] else 0)
    for p in range(len(costs[0])):
        on = np.flatnonzero(made.devices == p)
        on = on[np.argsort(made.start[on])]
        assert (made.finish[on][:-1] <= made.start[on][1:]).all()
        assert (made.finish - made.start)[on].tolist() == [costs[i][p] for i in on.tolist()]


@pytest.mark.parametrize(
    ("costs", "edges", "moves", "match"),
    [
        ([1, 2], [], [], "costs has a row"),
        ([[1], [-1]], [], [], "costs has a row"),
        ([[np.inf, np.inf]], [], [], "task 0 can run on no processor"),
        ([[1], [1]], [(1, 0)], [1], "the earlier first"),
        ([[1], [1]], [(0, 2)], [1], "from 0 to 1"),
        ([[1], [1]], [(0, 1)], [], "each of the 1 edges"),
        ([[1], [1]], [(0, 1)], [-1], "not negative"),
    ],
)
def test_tables_that_make_no_sense_are_refused(costs, edges, moves, match):
    """Shapes, ranges and order are checked, each with its name."""
    with pytest.raises(InputError, match=match):
        schedule_tasks("heft", costs, edges, moves)
    with pytest.raises(UnknownNameError, match="heft"):
        schedule_tasks("heff", [[1]], [], [])


# The twin -----------------------------------------------------------------------------------------------------------


def compare_with_twin(problem, method):
    """Exactly equal: devices of groups, times, ranks, or the group that is stuck."""
    stuck, made = run_method(lower_tasks(problem, Units.groups(problem)), method)
    twin, ranks, without = naive_list.run(problem, method)
    assert stuck == without
    if stuck != DONE:
        return None
    assert made.priorities.tolist() == ranks
    assert made.group_devices.tolist() == twin.decided
    assert made.start.tolist() == twin.start
    assert made.finish.tolist() == twin.finish
    return twin


@settings(max_examples=250, deadline=None)
@given(problems(20), st.sampled_from(list(METHODS)))
def test_kernel_is_the_twin(drawn, method):
    """On problems that reach every rule, kernel and twin agree to the picosecond."""
    compare_with_twin(drawn[0], method)


def kept_apart(seed):
    """A problem with little memory and many operations to be kept apart."""
    rng = random.Random(seed)
    while True:
        problem, _ = random_problem(rng, rng.randrange(5, 25))
        if problem.n_devices < 3:
            continue
        rooms = {pool.name: rng.choice((1024, 4096, 8192, 1 << 30)) for pool in problem.machine.pools}
        names = problem.graph.op_names
        rules = [Separate(tuple(rng.sample(names, 2))) for _ in range(rng.randrange(1, 13))]
        try:
            return Problem(problem.graph, problem.machine.with_memory(rooms), problem.costs, tuple(rules))
        except InfeasibleError:  # two of one group
            continue


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(list(METHODS)))
@example(718, "etf")  # a separation that is settled makes room for another operation
@example(864, "etf")
def test_kernel_is_the_twin_where_much_is_kept_apart(seed, method):
    """Where one decision leaves others a single device, or none, or room that they had not."""
    compare_with_twin(kept_apart(seed), method)


@pytest.mark.parametrize("method", METHODS)
def test_kernel_is_the_twin_on_larger_problems(method):
    """The same with 50 operations; among those drawn are full memories, separations and passive views."""
    seen = {"full": 0, "apart": 0, "passive": 0, "missing route": 0}
    for seed in range(60):
        problem, _ = random_problem(random.Random(seed), 50)
        twin = compare_with_twin(problem, method)
        if twin:
            rooms = [pool.capacity_bytes for pool in problem.machine.pools]
            seen["full"] += any(used > room for used, room in zip(twin.used_full, rooms, strict=True))
            seen["apart"] += bool(twin.apart)
            seen["passive"] += any(p and not o for p, o in zip(twin.passive, twin.off, strict=True))
            seen["missing route"] += any(rate is None for row in twin.rates for rate in row)
    assert min(seen.values()) > 0, seen


def test_heaps_that_are_full_are_made_again():
    """With as little room in the heaps as they can do with, ETF comes out the same."""
    rebuilt = 0
    for seed in range(40):
        problem, _ = random_problem(random.Random(seed), 60)
        tasks = lower_tasks(problem, Units.groups(problem))
        level = list_scheduling._ranks(tasks, moves=False)[0]
        n = problem.n_ops
        wide, narrow = make_state(tasks, greedy=True), make_state(tasks, greedy=True)
        shape = len(narrow.heaps.size), n
        narrow = narrow._replace(heaps=narrow.heaps._replace(key=np.empty(shape), op=np.empty(shape, np.int64)))
        ends = [list_entries.greedy(tasks, w, level, np.zeros(n, np.int64)) for w in (wide, narrow)]
        assert ends[0] == ends[1]
        assert wide.start.tolist() == narrow.start.tolist()
        assert wide.decided.tolist() == narrow.decided.tolist()
        rebuilt += int(wide.count[N_OFFERED]) > n
    assert rebuilt


# Rules of our own, by hand ------------------------------------------------------------------------------------------


def two_cards(*constraints, room=1 << 20, discipline="stream"):
    """x and w into mm, a view of w, and an update: 1 us a KB, 30 us on the host, 10 on the cards."""
    graph = build_graph(
        "g",
        [
            Operation("x", phase="input", outputs=[Tensor(1000)]),
            Operation("w", phase="parameter", outputs=[Tensor(4000)]),
            Operation("w.view", "view", inputs=["w"], outputs=[Tensor(4000, ("w", 0))]),
            Operation("spare", phase="parameter", outputs=[Tensor(100)]),
            Operation("mm", "matmul", inputs=["x", "w.view"], outputs=[Tensor(2000)]),
            Operation("other", "matmul", inputs=["x", "w"], outputs=[Tensor(2000, output=True)]),
            Operation("sum", "sum", inputs=["mm", "other"], outputs=[Tensor(4, output=True)]),
        ],
    )
    seconds = np.array([[0, 0, 0]] * 4 + [[30e-6, 10e-6, 10e-6]] * 3)
    return Problem(graph, small_machine(3, room), Costs.given(seconds), constraints, discipline=discipline)


def test_parameters_go_with_their_first_reader():
    """w and its view are passive: they wait for mm, which goes to the first card, and so does x."""
    problem = two_cards()
    tasks = lower_tasks(problem, Units.groups(problem))
    passive = [problem.graph.op_names[i] for i in np.flatnonzero(tasks.kind == PASSIVE)]
    assert passive == ["x", "w", "w.view", "spare"]
    made = schedule(problem, "heft")
    devices = dict(zip(problem.graph.op_names, made.devices.tolist(), strict=True))
    assert devices["w"] == devices["w.view"] == devices["mm"] == devices["x"] == 1
    assert devices["spare"] == 0
    # other: on the first card from 10 to 20 us; on the second from 6, when w is there (two links, 2 + 4 us), to 16.
    # sum: on the first card when other's output is there, at 16 + 2 + 2 us; on the second from 16.
    assert devices["other"] == devices["sum"] == 2
    assert made.start[[4, 5, 6]].tolist() == [0, 6e6, 16e6]


def test_a_parameter_that_may_not_be_there_comes_from_the_nearest():
    """w pinned to the host: mm waits for 5 us on either card, and 30 us on the host are too long."""
    made = schedule(two_cards(Pin(("w",), ("cpu:0",))), "heft")
    assert made.devices[[1, 4]].tolist() == [0, 1]
    assert made.start[4] == 5e6


@pytest.mark.parametrize(("method", "second"), [("heft", 2), ("cpop", 2), ("etf", 0)])
def test_memory_moves_an_operation(method, second):
    """A weight that does not fit beside the first takes its reader away: to the other card, 3 us, for ETF to the host.

    The host is nearer: b could start there after one link instead of two, and would end after 9 us instead of 1.
    """
    for room, expected in ((1 << 20, 1), (1200, second)):
        operations = []
        for name in "ab":
            operations += [
                Operation(f"{name}.w", phase="parameter", outputs=[Tensor(1000)]),
                Operation(f"{name}", inputs=[f"{name}.w", *(["a"] if name == "b" else [])], outputs=[Tensor(4)]),
            ]
        seconds = np.array([[0, 0, 0], [9e-6, 1e-6, 1e-6]] * 2)
        problem = Problem(build_graph("g", operations), small_machine(3, room), Costs.given(seconds))
        assert schedule(problem, method).devices.tolist() == [1, 1, expected, expected]


def test_alive_at_the_peak():
    """Of 10, 20 and 5 bytes the first two are alive together, and no view counts; an output lives to the end."""
    graph = build_graph(
        "g",
        [
            Operation("a", outputs=[Tensor(10)]),
            Operation("b", inputs=["a"], outputs=[Tensor(20)]),
            Operation("v", inputs=["a"], outputs=[Tensor(10, ("a", 0))]),
            Operation("c", inputs=["v", "b"], outputs=[Tensor(5)]),
            Operation("d", inputs=["c"], outputs=[Tensor(7, output=True)]),
        ],
    )
    assert alive_at_peak(graph).tolist() == [True, True, False, True, False]


def test_ranks_are_priorities_only_where_they_count():
    """Under `priority` the placement carries the ranks, in seconds; elsewhere none."""
    for discipline in ("stream", "ready", "priority"):
        problem = small_problem(discipline)
        for name in METHODS:
            placement = search(problem, name).placement
            if discipline == "priority":
                assert placement.priorities.tolist() == (schedule(problem, name).priorities / 1e12).tolist()
            else:
                assert placement.priorities is None


def test_devices_of_groups():
    """The helpers give one device per group, those of the schedule."""
    problem = small_problem()
    for name, helper in (("heft", heft_devices), ("cpop", cpop_devices), ("etf", etf_devices)):
        devices = helper(problem)
        assert devices.shape == (problem.n_groups,)
        assert problem.lift(devices).tolist() == schedule(problem, name).devices.tolist()


# Constraints and memory, whatever comes -----------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(problems(25), st.sampled_from(list(METHODS)))
def test_every_rule_is_kept(drawn, method):
    """Placements of generated problems keep pins, forbids, colocations and separations, or the method says why not."""
    problem, _ = drawn
    try:
        made = schedule(problem, method)
    except InfeasibleError:
        assert problem.separated
        return
    problem.check(problem.placement(made.devices))
    assert problem.lift(made.group_devices).tolist() == made.devices.tolist()


@pytest.mark.parametrize("method", METHODS)
def test_constraints_by_name(method):
    """Each kind of constraint does what it says."""
    rules = (
        Pin(("a",), ("gpu:0",)),
        Forbid(("loss",), ("cpu:0",)),
        Separate(("a.mm", "b.mm")),
        Colocate(("loss", "b.mm")),
    )
    problem = small_problem("stream", *rules)
    devices = dict(zip(problem.graph.op_names, schedule(problem, method).devices.tolist(), strict=True))
    assert {d for name, d in devices.items() if name.startswith("a.")} == {1}
    assert devices["loss"] == devices["b.mm"] == 2


@pytest.mark.parametrize("method", METHODS)
def test_hopeless_separation_is_told(method):
    """Three that must be apart on two devices: an error that names one of them."""
    problem = small_problem("stream", Separate(("a.mm", "b.mm", "loss")), devices=2)
    with pytest.raises(InfeasibleError, match="kept apart from others"):
        schedule(problem, method)


@pytest.mark.parametrize("method", METHODS)
def test_persistent_bytes_fit_where_they_can(method):
    """Twelve weights of 1 to 12 KB, 78 KB in all, into three pools of 27 KB."""
    operations = []
    for k in range(12):
        operations += [
            Operation(f"w{k}", phase="parameter", outputs=[Tensor(1000 * (k + 1))]),
            Operation(f"op{k}", inputs=[f"w{k}", *([f"op{k - 1}"] if k else [])], outputs=[Tensor(10)]),
        ]
    seconds = np.array([[0, 0, 0], [3e-6, 1e-6, 1e-6]] * 12)
    problem = Problem(build_graph("g", operations), small_machine(3, 27_000), Costs.given(seconds))
    decisions = Decisions(problem)
    assert list_scheduling.overflow(decisions, schedule(problem, method).group_devices) == 0


@pytest.mark.parametrize("method", METHODS)
def test_copies_that_do_not_fit_make_it_plan_with_less(method):
    """The first placement needs too much because of received copies; a later one fits, and the tries are counted."""
    found = 0
    for seed in range(40):
        problem = tight_chain(seed)
        evaluator = SimulatorEvaluator(problem)
        placer = {"heft": Heft, "cpop": Cpop, "etf": Etf}[method]()
        placer.start(problem, np.random.default_rng(0))
        outcomes = []
        while batch := placer.ask():
            told = evaluator.evaluate(batch)
            outcomes.append(told[0].outcome)
            placer.tell(told)
        assert len(outcomes) <= ListParams().tries
        assert all(not outcome.feasible for outcome in outcomes[:-1])
        found += len(outcomes) > 1 and outcomes[-1].feasible
        one = search(problem, type(placer)(ListParams(tries=1)))
        assert one.evaluations == 1
    assert found >= 3


def tight_chain(seed):
    """A random layered network whose memory is a little more than it needs."""
    rng = random.Random(seed)
    operations = []
    for k in range(10):
        reads = [f"op{j}" for j in sorted({rng.randrange(k) for _ in range(2)})] if k else []
        operations += [
            Operation(f"w{k}", phase="parameter", outputs=[Tensor(rng.randrange(1000, 5000))]),
            Operation(f"op{k}", inputs=[f"w{k}", *reads], outputs=[Tensor(rng.randrange(500, 3000))]),
        ]
    graph = build_graph("g", operations)
    room = int((graph.persistent_bytes + int(graph.tensor_bytes[~graph.persistent].sum())) * 0.45)
    seconds = np.array([[0.0] * 3, [9e-6, 3e-6, 3e-6]] * 10)
    return Problem(graph, small_machine(3, room), Costs.given(seconds))


def test_parameters_out_of_range_are_refused():
    """The field and its range are named."""
    with pytest.raises(InputError, match="tries is 0; 1 or more"):
        ListParams(tries=0)


def test_one_machine_code_serves_all():
    """Plain tables and problems are of the same types, so that nothing is compiled twice."""
    for method in METHODS:
        ten_tasks(method)
        schedule(small_problem(), method)
    for name in ("ranks", "heft", "cpop", "greedy"):
        assert len(getattr(list_entries, name).signatures) == 1

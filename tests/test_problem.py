"""Problem: checked once; constraints by pattern; groups as the closure of what must be together; memory that fits."""

import random
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewright.costs import Costs
from placewright.costs.roofline import costs as roofline_costs
from placewright.errors import InfeasibleError, InputError, PlacementError, ProblemError, UnknownNameError
from placewright.graph import STORE
from placewright.machine import Device, Machine, Pool
from placewright.operations import Operation, Tensor, build_graph
from placewright.placement import Placement
from placewright.problem import Colocate, Forbid, Pin, Problem, Separate, parse_constraint
from placewright.sim import simulate
from tests.strategies import problems, random_problem

MIB = 1 << 20


def graph_of(*ops):
    """A graph of operations given as a name, or a name and a scope."""
    return build_graph("g", [Operation(op) if isinstance(op, str) else Operation(op[0], scope=op[1]) for op in ops])


def costless(graph, machine, *constraints, **fields):
    """A problem in which everything runs everywhere and takes no time."""
    return Problem(graph, machine, Costs.given(np.zeros((graph.n_ops, len(machine.devices)))), constraints, **fields)


def pooled(*sizes, pool_of=None, reserve=0):
    """A machine of pools of those bytes with a device each, or with the devices of `pool_of`."""
    names = [f"p{k}" for k in range(len(sizes))]
    devices = [Device(f"d{i}", "m", names[k]) for i, k in enumerate(pool_of or range(len(sizes)))]
    return Machine(
        "pools", tuple(devices), tuple(Pool(n, s, reserve_bytes=reserve) for n, s in zip(names, sizes, strict=True))
    )


def parameters(**sizes):
    """A graph of parameters of those bytes."""
    return build_graph("g", [Operation(n, phase="parameter", outputs=[Tensor(s)]) for n, s in sizes.items()])


# What a problem is --------------------------------------------------------------------------------------------------


def test_costs_are_estimated_unless_given(machine, chain3):
    """Without costs they are those of graph and machine; given ones are kept."""
    np.testing.assert_array_equal(Problem(chain3, machine).costs.seconds, roofline_costs(chain3, machine).seconds)
    given = Costs.given(np.ones((3, 3)))
    assert Problem(chain3, machine, given).costs is given


def test_replace_renews_costs_with_graph_or_machine(machine, chain3, diamond4):
    """Another graph or machine gets its own costs, unless they are given too; another objective keeps them."""
    problem = Problem(chain3, machine, Costs.given(np.full((3, 3), 7.0)))
    assert problem.replace(objective="throughput").costs is problem.costs
    assert problem.replace(graph=diamond4).costs.seconds.tolist() == roofline_costs(diamond4, machine).seconds.tolist()
    assert problem.replace(machine=machine).costs.seconds.tolist() == roofline_costs(chain3, machine).seconds.tolist()
    other = Costs.given(np.zeros((4, 3)))
    assert problem.replace(graph=diamond4, costs=other).costs is other


def test_a_problem_is_frozen(machine, chain3):
    """No field can be set, and no derived table can be written."""
    problem = costless(chain3, machine, Pin(("a",), ("cpu:0",)))
    with pytest.raises(FrozenInstanceError):
        problem.objective = "max_load"
    for table in (problem.groups, problem.permitted, problem.choices):
        assert not table.flags.writeable


def test_choices_of_words(machine, chain3):
    """An objective or discipline that there is none of lists those that exist."""
    with pytest.raises(UnknownNameError, match=r"unknown objective 'steps'\. Did you mean step"):
        Problem(chain3, machine, objective="steps")
    with pytest.raises(UnknownNameError, match=r"unknown discipline 'fifo'\. Known: stream, ready, priority"):
        Problem(chain3, machine, discipline="fifo")


def test_costs_of_another_shape(machine, chain3):
    """Costs of another graph or machine are refused with both shapes."""
    with pytest.raises(ProblemError, match=r"costs are of shape \(3, 2\); graph and machine need \(3, 3\)"):
        Problem(chain3, machine, Costs.given(np.zeros((3, 2))))


def test_costs_of_what_takes_no_time(machine, train6):
    """Inputs, parameters and stores take no time, or for ever where they may not live, and nothing between."""
    for op in ("x", "w", "keep"):
        table = np.zeros((6, 3))
        table[train6.op(op), 1] = np.inf
        Problem(train6, machine, Costs.given(table))
        table[train6.op(op), 1] = 1e-9
        with pytest.raises(ProblemError, match="inputs, parameters and stores must be 0, or infinite"):
            Problem(train6, machine, Costs.given(table))


# Patterns -----------------------------------------------------------------------------------------------------------

NAMED = [
    ("a", "net"),
    ("net", ""),
    ("b", "net.left"),
    ("c", "net.leftover"),
    ("d", "network"),
    ("e[0]", ""),
    ("e0", ""),
]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a", ["a"]),
        ("net", ["net"]),  # a name goes before a scope
        ("net.left", ["b"]),  # a scope, and not another that begins alike
        ("network", ["d"]),
        ("net*", ["a", "net", "b", "c", "d"]),
        ("net.*", ["b", "c"]),
        ("?", ["a", "b", "c", "d"]),
        ("*", ["a", "net", "b", "c", "d", "e[0]", "e0"]),
        ("e[0]", ["e[0]"]),  # a name goes before a glob
        ("e[0-9]", ["e0"]),
        ("[ab]", ["a", "b"]),
    ],
)
def test_patterns(machine, pattern, found):
    """A pattern is a name, else a scope with all below it, else a glob over names and scopes."""
    graph = graph_of(*NAMED)
    problem = costless(graph, machine, Pin((pattern,), ("gpu:0",)))
    assert [graph.op_names[i] for i in problem.matches[0][0]] == found
    pinned = ~problem.permitted[:, 0]
    assert [graph.op_names[i] for i in np.flatnonzero(pinned)] == found


def test_a_scope_means_all_below_it(machine, fork8):
    """A scope without operations of its own still matches those below it."""
    problem = costless(fork8, machine, Forbid(("arms", "arms.arm3"), ("gpu:*",)))
    assert [rows.tolist() for rows in problem.matches[0]] == [[1, 2, 3, 4, 5, 6], [4]]
    assert problem.permitted.all(axis=1).tolist() == [True, *[False] * 6, True]


@pytest.mark.parametrize("pattern", ["nett", "z*", "net.", "A", "e[1-9]"])
def test_unknown_patterns(machine, pattern):
    """A pattern that matches nothing is an error that lists scopes and names."""
    with pytest.raises(UnknownNameError) as caught:
        costless(graph_of(*NAMED), machine, Pin((pattern,), ("gpu:0",)))
    assert f"unknown operation, scope or glob in a constraint {pattern!r}" in str(caught.value)
    assert "Known: net, net.left, net.leftover, network, a, net, b" in str(caught.value)


def test_devices_by_glob(machine, chain3):
    """Devices may be globs; the constraint is about all that match."""
    problem = costless(chain3, machine, Pin(("a",), ("gpu:*",)), Forbid(("b",), ("*:0",)))
    assert problem.permitted.tolist() == [[False, True, True], [False, False, True], [True, True, True]]


def test_a_device_by_its_exact_name(chain3):
    """A device whose name has brackets is matched by that name, though as a glob it would not be."""
    machine = Machine("m", (Device("gpu[0]", "m", "p"), Device("cpu", "m", "p")), (Pool("p", 1),))
    assert costless(chain3, machine, Pin(("a",), ("gpu[0]",))).permitted[0].tolist() == [True, False]


def test_unknown_devices(machine, chain3):
    """A device, or glob of devices, that there is none of is an error that lists the machine's and the constraint."""
    for name in ("gpu:7", "tpu*"):
        with pytest.raises(UnknownNameError) as caught:
            costless(chain3, machine, Pin(("a",), ("gpu:0", name)))
        text = str(caught.value)
        assert f"unknown device {name!r}" in text
        assert f"Known: cpu:0, gpu:0, gpu:1. In constraint pin:a=gpu:0,{name}." in text


# Constraints from text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "constraint"),
    [
        ("pin:a=gpu:0", Pin(("a",), ("gpu:0",))),
        ("pin:decoder.*,head=gpu:0,gpu:1", Pin(("decoder.*", "head"), ("gpu:0", "gpu:1"))),
        ("pin:lr=3=cpu:0", Pin(("lr=3",), ("cpu:0",))),
        ("forbid:*=cpu:*", Forbid(("*",), ("cpu:*",))),
        ("colocate:embed,head", Colocate(("embed", "head"))),
        ("colocate:net", Colocate(("net",))),
        ("separate:a.*,b.*", Separate(("a.*", "b.*"))),
    ],
)
def test_constraints_from_text(text, constraint):
    """A constraint reads from its text, prints as that text, and is equal to one made in Python."""
    read = parse_constraint(text)
    assert read == constraint
    assert type(read) is type(constraint)
    assert str(read) == text
    assert hash(read) == hash(constraint)


def test_kinds_differ():
    """A pin and a forbid of the same names are two constraints."""
    assert Pin(("a",), ("d",)) != Forbid(("a",), ("d",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write pin:PATTERN=DEVICE, forbid:"),
        ("pin", "write pin:PATTERN=DEVICE, forbid:"),
        ("pin:", "write pin:PATTERN=DEVICE, forbid:"),
        ("nail:a=gpu:0", "write pin:PATTERN=DEVICE, forbid:"),
        ("Pin:a=gpu:0", "write pin:PATTERN=DEVICE, forbid:"),
        ("pin:a", "write pin:PATTERN=DEVICE[,DEVICE]"),
        ("pin:a=", "write pin:PATTERN=DEVICE[,DEVICE]"),
        ("forbid:=gpu:0", "write forbid:PATTERN=DEVICE[,DEVICE]"),
        ("pin:a=,", "names nothing but commas"),
        ("pin:,=gpu:0", "names nothing but commas"),
        ("colocate:,", "names nothing but commas"),
        ("separate:a", "separate needs two patterns or more"),
        ("separate:a,", "separate needs two patterns or more"),
    ],
)
def test_texts_that_are_no_constraint(text, message):
    """What does not read as a constraint is quoted, with how to write it."""
    with pytest.raises(InputError) as caught:
        parse_constraint(text)
    assert str(caught.value).startswith(f"constraint {text!r}: {message}")


@pytest.mark.parametrize("wrong", [{"patterns": ()}, {"patterns": "abc"}, {"patterns": ("a",), "devices": "gpu:0"}])
def test_constraints_are_of_tuples(wrong):
    """A string where a tuple belongs, or no pattern at all, is refused before its letters are taken for names."""
    with pytest.raises(InputError, match="are tuples of names, with one pattern or more"):
        Pin(**wrong)


@pytest.mark.parametrize(
    "text", ["pin:" + "a" * 100_000 + "=gpu:0", "colocate:" + "a," * 50_000, "pin:a\nb=gpu:0", "x" * 100_001]
)
def test_constraints_that_no_plan_could_hold(text):
    """The text of a constraint is printable and of at most 100,000 characters, or it is refused before a search."""
    with pytest.raises(InputError, match="only printable text of at most 100000 characters") as caught:
        parse_constraint(text)
    assert len(str(caught.value)) < 200


def test_constraints_made_of_names_have_the_same_limit():
    """Patterns and devices count together, with the word before them and what is between."""
    fits = Pin(("a" * 40_000, "b" * 40_000), ("d" * 19_994,))
    assert len(str(fits)) == 100_000
    for patterns, devices in (((*fits.patterns, ""), fits.devices), (fits.patterns, ("d" * 19_995,))):
        with pytest.raises(InputError, match="at most 100000 characters"):
            Pin(patterns, devices)


# Groups -------------------------------------------------------------------------------------------------------------


def union_find(problem):
    """The groups by the rules, one pair at a time: colocation classes, views, writes in place, stores, Colocate."""
    graph, parent = problem.graph, list(range(problem.n_ops))

    def find(i):
        while parent[i] != i:
            i = parent[i]
        return i

    def join(i, j):
        parent[find(i)] = find(j)

    for i in range(graph.n_ops):
        for j in range(i):
            if graph.colocation[i] == graph.colocation[j] != -1:
                join(i, j)
    for t in range(graph.n_tensors):
        base = int(graph.tensor_storage[t])
        if base != t and not (graph.tensor_in_place[t] and graph.persistent[base]):
            join(int(graph.tensor_op[t]), int(graph.tensor_op[base]))
    for i in np.flatnonzero(graph.phase == STORE).tolist():
        for read in graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]].tolist():
            t = read
            while graph.tensor_storage[t] != t:
                t = int(graph.tensor_storage[t])
            join(i, int(graph.tensor_op[t]))
    for constraint in problem.constraints:
        if isinstance(constraint, Colocate):
            named = [graph.index[name] for name in constraint.patterns]
            for i in named:
                join(i, named[0])
    roots = [find(i) for i in range(graph.n_ops)]
    return [sorted(set(roots), key=roots.index).index(root) for root in roots]


def test_groups_of_a_training_step(machine, train6):
    """A view is with its base, a store with its parameter; the update is free."""
    problem = costless(train6, machine)
    assert problem.groups.tolist() == [0, 1, 2, 2, 3, 1]
    assert problem.leaders.tolist() == [0, 1, 2, 4]
    assert problem.n_groups == 4


def test_groups_join_transitively(machine):
    """Colocation classes and constraints that share an operation are one group; a scope colocates all below it."""
    ops = [Operation(f"op{k}", scope="s" if k >= 4 else "", colocation=c) for k, c in enumerate("xy-xy-")]
    graph = build_graph("g", [*ops, Operation("z")])
    problem = costless(graph, machine, Colocate(("op0", "op4")))
    assert problem.groups.tolist() == [0, 0, 1, 0, 0, 1, 2]
    assert costless(graph, machine, Colocate(("s", "z"))).groups.tolist() == [0, 1, 1, 0, 1, 1, 1]
    assert costless(graph, machine).groups.tolist() == [0, 1, 2, 0, 1, 2, 3]


def test_no_groups(machine):
    """A graph without operations has no groups, and a placement of none."""
    problem = Problem(build_graph("empty", []), machine)
    assert (problem.n_groups, problem.groups.tolist(), problem.leaders.tolist()) == (0, [], [])
    assert problem.choices.shape == (0, 3)
    problem.check_memory()
    assert len(problem.placement([]).devices) == 0


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(problems(14), st.integers(0, 10**6))
def test_groups_against_union_find(case, seed):
    """Groups are the transitive closure of what must be together, numbered by first operation."""
    problem, rng = case[0], random.Random(seed)
    names = problem.graph.op_names
    if names and rng.random() < 0.7:
        rules = [Colocate(tuple(rng.choices(names, k=rng.choice((1, 2, 3))))) for _ in range(rng.choice((1, 2)))]
        problem = costless(problem.graph, problem.machine, *rules)
    groups = problem.groups.tolist()
    assert groups == union_find(problem)
    assert problem.leaders.tolist() == [groups.index(g) for g in range(problem.n_groups)]
    devices = list(range(problem.n_groups))
    assert problem.lift(devices).tolist() == groups


# What can run where -------------------------------------------------------------------------------------------------


def test_permitted_and_choices(machine, train6):
    """Pins and forbids meet for each operation; a group may be where all of its operations may and can."""
    table = np.zeros((6, 3))
    table[train6.op("view"), 2] = np.inf
    problem = Problem(
        train6,
        machine,
        Costs.given(table),
        (
            Pin(("mm",), ("gpu:*",)),
            Forbid(("keep",), ("gpu:1",)),
            Pin(("sgd",), ("cpu:0", "gpu:0")),
            Pin(("sgd",), ("gpu:*",)),
        ),
    )
    assert problem.permitted[2:].astype(int).tolist() == [[0, 1, 1], [1, 1, 1], [0, 1, 0], [1, 1, 0]]
    assert problem.choices.astype(int).tolist() == [[1, 1, 1], [1, 1, 0], [0, 1, 0], [0, 1, 0]]


def infeasible(*args, **kwargs):
    """The message of a problem that no placement can solve; its exit code is 3."""
    with pytest.raises(InfeasibleError) as caught:
        costless(*args, **kwargs)
    assert caught.value.exit_code == 3
    return str(caught.value)


def test_conflicting_pins_on_one_operation(machine, chain3):
    """Two pins that leave nothing are infeasible; the message names the operation and both pins."""
    text = infeasible(chain3, machine, Pin(("a",), ("gpu:0",)), Pin(("*",), ("gpu:1",)))
    assert "'a' only on none" in text
    assert text.endswith("Relax a pin, a forbid or a colocation: pin:a=gpu:0; pin:*=gpu:1.")


def test_conflicting_pins_within_a_group(machine, train6):
    """Pins apart of operations that must be together are infeasible; the message says who may be where."""
    text = infeasible(
        train6, machine, Pin(("mm",), ("gpu:0",)), Pin(("view",), ("gpu:1", "cpu:0")), Pin(("x",), ("gpu:0",))
    )
    assert "must run on one device have none in common: 'mm' only on gpu:0; 'view' only on cpu:0, gpu:1." in text
    assert text.endswith("colocation: pin:mm=gpu:0; pin:view=gpu:1,cpu:0.")


def test_a_conflict_deep_in_a_large_group(machine):
    """In a large group the message shows those that have the fewest devices left, not the first ones."""
    graph = graph_of(*(f"op{k}" for k in range(20)))
    text = infeasible(graph, machine, Colocate(("op*",)), Pin(("op13",), ("gpu:0",)), Forbid(("op17",), ("gpu:0",)))
    assert "none in common: 'op13' only on gpu:0; 'op17' only on cpu:0, gpu:1; 'op0' only on" in text
    assert "op5'" not in text


def test_an_operation_that_no_device_can_run(machine, train6):
    """An operation that is infinite everywhere is infeasible; the message names it, its kind and the devices."""
    table = np.zeros((6, 3))
    table[train6.op("view")] = np.inf
    with pytest.raises(InfeasibleError) as caught:
        Problem(train6, machine, Costs.given(table))
    assert caught.value.exit_code == 3
    assert str(caught.value).startswith(
        "operation 'view' (kind 'view') can run on no device of machine 'small' (cpu:0, gpu:0, gpu:1)."
    )


def test_a_group_that_no_device_can_run(machine, train6):
    """Operations that can each run somewhere, but not in the same place, are infeasible by their costs alone."""
    table = np.zeros((6, 3))
    table[train6.op("mm"), 0] = table[train6.op("view"), 1:] = np.inf
    with pytest.raises(InfeasibleError, match=r"'view' only on cpu:0; 'mm' only on gpu:0, gpu:1\..* a colocation\.$"):
        Problem(train6, machine, Costs.given(table))


def test_separating_what_must_be_together(machine, train6):
    """Operations of one group in two patterns of a separate can never be placed; the problem says so at once."""
    text = infeasible(train6, machine, Separate(("x", "mm", "view")))
    assert text.startswith("operations 'mm' and 'view' must run on one device, and a separate keeps them apart.")
    assert "'mm' and 'mm'" in infeasible(train6, machine, Separate(("mm", "m*")))
    assert costless(train6, machine, Separate(("mm", "sgd"))).n_groups == 4


# Placements ---------------------------------------------------------------------------------------------------------


def test_placement_by_name(machine, chain3):
    """Devices by name for every operation, in any order."""
    problem = costless(chain3, machine)
    assert problem.placement({"c": "gpu:1", "a": "cpu:0", "b": "gpu:0"}).devices.tolist() == [0, 1, 2]
    with pytest.raises(PlacementError, match="names no device for 2 operations, first 'b'"):
        problem.placement({"a": "cpu:0"})
    with pytest.raises(UnknownNameError, match="unknown operation 'd'"):
        problem.placement({"a": "cpu:0", "d": "cpu:0"})
    with pytest.raises(UnknownNameError, match="unknown device 'gpu:2'"):
        problem.placement(dict.fromkeys("abc", "gpu:2"))


def test_placements_of_the_wrong_shape(machine, chain3):
    """Another number of operations, devices or windows is refused with both numbers."""
    problem = costless(chain3, machine)
    with pytest.raises(PlacementError, match="a placement of 2 operations for a graph of 3"):
        problem.placement([0, 0])
    with pytest.raises(PlacementError, match="device index 3; the machine has 3 devices"):
        problem.placement([0, 3, 0])
    with pytest.raises(PlacementError, match="2 windows for 3 devices"):
        problem.placement([0, 0, 0], windows_bytes=[1, 2])
    assert problem.placement([0, 2, 0], [1, 2, 3], [-1, 0, 5]).windows_bytes.tolist() == [-1, 0, 5]


def test_placements_that_break_a_pin_or_forbid(machine, chain3):
    """The operation, the device and the very constraint that forbids it are named."""
    problem = costless(
        chain3, machine, Pin(("a",), ("gpu:*",)), Forbid(("a",), ("gpu:1",)), Forbid(("b", "c"), ("cpu:0",))
    )
    problem.placement([1, 2, 2])
    for devices, message in (
        ([0, 1, 1], "operation 'a' may not run on 'cpu:0': constraint pin:a=gpu:*"),
        ([2, 1, 1], "operation 'a' may not run on 'gpu:1': constraint forbid:a=gpu:1"),
        ([1, 1, 0], "operation 'c' may not run on 'cpu:0': constraint forbid:b,c=cpu:0"),
    ):
        with pytest.raises(PlacementError) as caught:
            problem.placement(devices)
        assert str(caught.value) == message


def test_placements_that_part_a_group(machine, train6):
    """A view away from its base, and a store away from its parameter, are refused with both names."""
    problem = costless(train6, machine)
    problem.placement([0, 1, 2, 2, 0, 1])
    with pytest.raises(PlacementError, match="operations 'mm' and 'view' must run on one device"):
        problem.placement([0, 1, 2, 1, 0, 1])
    with pytest.raises(PlacementError, match="operations 'w' and 'keep' must run on one device"):
        problem.placement([0, 1, 2, 2, 0, 0])


def test_placements_that_break_a_separate(machine, fork8):
    """Two operations that must be apart are named with their device; every pair of patterns counts."""
    problem = costless(fork8, machine, Separate(("source", "arm1", "join")))
    problem.placement([0, 0, 1, 1, 0, 2, 0, 2])
    with pytest.raises(PlacementError, match="operations 'source' and 'join' may not share device 'gpu:0'"):
        problem.placement([1, 0, 2, 0, 0, 0, 0, 1])
    with pytest.raises(PlacementError, match="operations 'arm1' and 'join' may not share device 'cpu:0'"):
        problem.placement([1, 0, 0, 0, 0, 0, 0, 0])


def verdict(check, *args):
    """The message of a refusal, or None."""
    try:
        check(*args)
    except PlacementError as error:
        return str(error)
    return None


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(problems(10), st.integers(0, 10**6))
def test_check_all_is_check_one_by_one(case, seed):
    """A batch is refused exactly if one of it is, with the message of the first; good ones may be amid bad."""
    (problem, good), rng = case, np.random.default_rng(seed)
    n, d = problem.n_ops, problem.n_devices
    kinds = (
        lambda: good,
        lambda: Placement(good.devices),
        lambda: Placement(good.devices),
        lambda: Placement(np.where(rng.random(n) < 0.2, rng.integers(0, d, n), good.devices)),
        lambda: Placement(rng.integers(0, d + (rng.random() < 0.3), n)),
        lambda: Placement(rng.integers(0, d, n + 1)),
        lambda: Placement(good.devices, None, np.zeros(d + (rng.random() < 0.5), np.int64)),
    )
    rare = rng.random() < 0.5  # otherwise hardly any batch is of one shape
    batch = [kinds[rng.integers(0, 5 if rare else len(kinds))]() for _ in range(rng.integers(0, 5))]
    first = next((text for text in (verdict(problem.check, p) for p in batch) if text is not None), None)
    assert verdict(problem.check_all, batch) == first


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([0, 3, 0, 0], "device index 3"),
        ([0, 0, 0, 1], "operations 'c' and 'd' must run on one device"),
        ([1, 0, 0, 0], "operation 'a' may not run on 'gpu:0'"),
        ([0, 0, 0], "a placement of 3 operations for a graph of 4"),
    ],
)
def test_check_all_finds_each_kind_of_fault(machine, diamond4, devices, message):
    """One bad placement among good ones is found, whatever is wrong with it."""
    problem = costless(diamond4, machine, Pin(("a",), ("cpu:0",)), Colocate(("c", "d")))
    good = [Placement([0, k, 2, 2]) for k in range(3)]
    problem.check_all(good)
    with pytest.raises(PlacementError, match=message):
        problem.check_all([*good, Placement(devices), good[0]])


# Memory -------------------------------------------------------------------------------------------------------------


def test_memory_that_fits():
    """What fits to the byte fits, spread over pools if need be; a reserve is not there."""
    graph = parameters(a=600, b=400)
    costless(graph, pooled(600, 400)).check_memory()
    costless(graph, pooled(1000)).check_memory()
    costless(graph, pooled(1100, reserve=100)).check_memory()
    with pytest.raises(InfeasibleError):
        costless(graph, pooled(1100, reserve=101)).check_memory()


def test_memory_that_is_too_little_in_all():
    """Parameters beyond all pools together: what is needed, what there is, and the difference."""
    with pytest.raises(InfeasibleError) as caught:
        costless(parameters(a=MIB, b=2 * MIB), pooled(2 * MIB, MIB // 2)).check_memory()
    assert str(caught.value).startswith(
        "parameters, buffers and optimiser state need 3.00 MiB; "
        "all pools together have 2.50 MiB, 512.00 KiB too little."
    )
    assert caught.value.exit_code == 3


def test_a_shared_pool_counts_once():
    """Two devices of one pool have its bytes once."""
    graph = parameters(a=600, b=600)
    costless(graph, pooled(1200, pool_of=[0, 0])).check_memory()
    with pytest.raises(InfeasibleError, match=r"need 1\.17 KiB; all pools together have 1000 B, 200 B too little"):
        costless(graph, pooled(1000, pool_of=[0, 0])).check_memory()


def test_a_group_too_large_for_every_pool():
    """Parameters that must be together need a pool that holds them all, though all pools together would."""
    machine = pooled(MIB, MIB)
    graph = parameters(a=100, b=768 << 10, c=512 << 10)
    costless(graph, machine).check_memory()
    with pytest.raises(InfeasibleError) as caught:
        costless(graph, machine, Colocate(("b", "c"))).check_memory()
    assert str(caught.value).startswith(
        "operation 'b' and those that must be with it hold 1.25 MiB for the whole step; "
        "the largest pool that they may use has 1.00 MiB."
    )


def test_only_pools_that_may_be_used_count():
    """A pin limits which pool a parameter can use; a pool that nothing may use does not count at all."""
    machine = pooled(1000, 10_000)
    graph = parameters(a=600, b=600)
    costless(graph, machine).check_memory()
    costless(graph, machine, Pin(("a",), ("d0",))).check_memory()
    with pytest.raises(InfeasibleError, match="all pools together have 1000 B, 200 B too little"):
        costless(graph, machine, Forbid(("*",), ("d1",))).check_memory()
    with pytest.raises(InfeasibleError, match=r"operation 'b' .* hold 1\.95 KiB .* they may use has 1000 B"):
        costless(parameters(a=1, b=2000), machine, Pin(("b",), ("d0",))).check_memory()


def test_an_operation_too_large_for_every_pool():
    """An operation whose own outputs and workspace no pool that it may use can hold is named, with both sizes."""
    graph = build_graph("g", [Operation("x", outputs=[Tensor(600)]), Operation("big", workspace_bytes=400, outputs=[
        Tensor(300), Tensor(324)], inputs=["x"])])  # fmt: skip
    costless(graph, pooled(1024, 10)).check_memory()
    with pytest.raises(InfeasibleError) as caught:
        costless(graph, pooled(1023, 10)).check_memory()
    assert str(caught.value).startswith(
        "operation 'big' needs 1.00 KiB for its outputs and workspace; the largest pool that it may use has 1023 B."
    )
    with pytest.raises(InfeasibleError, match=r"operation 'x' needs 600 B .* it may use has 10 B"):
        costless(graph, pooled(1024, 10), Pin(("x",), ("d1",))).check_memory()


def test_only_what_is_persistent_counts(machine, train6):
    """Transients and new values come and go; the parameter alone must fit."""
    problem = costless(train6, machine.with_memory({"dram": 4000, "hbm0": 0, "hbm1": 0}))
    problem.check_memory()
    with pytest.raises(InfeasibleError, match="operation 'w' and those"):
        problem.replace(machine=machine.with_memory(dict.fromkeys(("dram", "hbm0", "hbm1"), 3999))).check_memory()


def test_what_an_input_brings_and_nobody_reads():
    """It is gone at once in `step`; the loads count it as an operation's own bytes."""
    graph = build_graph("g", [Operation("x", phase="input", outputs=[Tensor(900), Tensor(200)]), Operation(
        "y", inputs=[("x", 1)])])  # fmt: skip
    costless(graph, pooled(1000)).check_memory()
    with pytest.raises(InfeasibleError, match="'x' needs"):
        costless(graph, pooled(1000), objective="max_load").check_memory()
    read = build_graph("g", [Operation("x", phase="input", outputs=[Tensor(2000)]), Operation(
        "y", phase="input", inputs=["x"], outputs=[Tensor(10)]), Operation("o", inputs=["y"])])  # fmt: skip
    problem = costless(read, pooled(1000))
    assert simulate(problem, problem.placement(np.zeros(3, int))).feasible
    problem.check_memory()


@pytest.mark.parametrize("objective", ["step", "max_load", "throughput"])
def test_no_feasible_problem_is_refused(objective):
    """Wherever the simulator finds a placement feasible, so does the check beforehand."""
    rng = random.Random(7)
    feasible = refused = 0
    for _ in range(400):
        problem, placement = random_problem(rng, rng.randrange(1, 8))
        problem = problem.replace(objective=objective)
        if simulate(problem, placement).feasible:
            problem.check_memory()
            feasible += 1
        else:
            try:
                problem.check_memory()
            except InfeasibleError:
                refused += 1
    assert feasible > 50
    assert refused > 5

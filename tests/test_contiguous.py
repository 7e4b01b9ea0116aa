"""Contiguous splits: against every split of small problems, by hand, and against published figures."""

import itertools
import random
from pathlib import Path

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.costs import Costs
from placewright.errors import InfeasibleError, InputError, NotFinishedError, PlacementError, ProblemError
from placewright.evaluate import SimulatorEvaluator
from placewright.exact.biconnected import biconnected
from placewright.exact.condense import dense, lossless, merged, stretches
from placewright.exact.contiguous import (
    Contiguous,
    ContiguousLinear,
    ContiguousParams,
    LinearParams,
    linearised_devices,
)
from placewright.exact.costing import Costing
from placewright.exact.line import best_split
from placewright.exact.mirror import mirror_places
from placewright.exact.parts import parts_of
from placewright.exact.pipedream import PipeDream, without_branches
from placewright.exact.units import topological_order, units_of
from placewright.graph import BACKWARD, FORWARD
from placewright.importers import read_workload
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.placement import Placement
from placewright.problem import Colocate, Forbid, Pin, Problem, Separate
from placewright.search import run_search
from placewright.testing import PlacerContract, small_machine, small_problem

SHARED = Path(__file__).parents[2] / "shared" / "workloads" / "tarnawski2020" / "throughput"


class TestContiguous(PlacerContract):
    def placer(self, problem):
        return Contiguous()


class TestContiguousLinear(PlacerContract):
    def placer(self, problem):
        return ContiguousLinear()


class TestPipeDream(PlacerContract):
    def placer(self, problem):
        return PipeDream()


# ---- every contiguous split of small problems ---------------------------------------------------------


def accelerators(k, hosts=1, size=1 << 30):
    """Alike accelerators, each with a link to host memory, and CPUs that share that memory."""
    gpus, cpus = [f"gpu:{i}" for i in range(k)], [f"cpu:{i}" for i in range(hosts)]
    host = cpus[0] if cpus else None
    devices = [Device(g, "gpu", g, host) for g in gpus] + [Device(c, "cpu", "dram", c) for c in cpus]
    pools = [Pool(g, size, 1) for g in gpus] + ([Pool("dram", 1 << 40, 1)] if cpus else [])
    channels = [Channel(f"{g} {way}", 1e9) for g in gpus for way in ("up", "down")]
    if cpus:
        routes = [Route(*ends, (f"{g} {way}",)) for g in gpus for c in cpus
                  for way, ends in (("up", (g, c)), ("down", (c, g)))]  # fmt: skip
    else:
        routes = [Route(a, b, (f"{a} up", f"{b} down")) for a in gpus for b in gpus if a != b]
    return Machine("box", tuple(devices), tuple(pools), tuple(channels), tuple(routes))


def drawn(seed, chain=False):
    """A small problem of `max_load` with exact loads: transfers take equally long on every route."""
    rng = random.Random(seed)
    n = rng.randrange(1, 7)
    training = rng.random() < 0.4
    tight = rng.random() < 0.3
    operations, colours = [], []
    outputs = [Tensor(0, transfer_s=rng.choice((0.0, 1e-6, 2e-6, 5e-6))) for _ in range(n)]
    for i in range(n):
        before = [i - 1] * bool(i) if chain else [j for j in range(i) if rng.random() < (0.6 if j == i - 1 else 0.25)]
        colours.append(f"c{rng.randrange(i + 1) if rng.random() < 0.15 else i}")
        reads = [f"f{j}" for j in before]
        if rng.random() < 0.5:
            operations.append(Operation(f"w{i}", phase="parameter", outputs=[Tensor(rng.choice((1, 2, 5)))],
                                        colocation=colours[i]))  # fmt: skip
            reads.append(f"w{i}")
        operations.append(Operation(f"f{i}", inputs=reads, outputs=[outputs[i]], colocation=colours[i]))
    for i in reversed(range(n if training else 0)):
        after = [op for op in operations if op.phase == "backward" and rng.random() < 0.4]
        reads = [f"f{i}"] * (rng.random() < 0.7) + [op.name for op in after]
        colour = colours[i] if chain or rng.random() < 0.85 else None
        operations.append(Operation(f"b{i}", phase="backward", inputs=reads, colocation=colour,
                                    outputs=[Tensor(0, transfer_s=rng.choice((0.0, 1e-6, 3e-6)))]))  # fmt: skip
    graph = build_graph("drawn", operations)
    k, hosts = rng.choice(((1, 1), (2, 0), (2, 1), (3, 0), (1, 2)))
    machine = accelerators(k, hosts, rng.choice((6, 8, 12)) if tight else 1 << 30)
    seconds = np.zeros((graph.n_ops, k + hosts))
    for i in np.flatnonzero(~graph.off_queue).tolist():
        on_gpu, on_cpu = rng.choice((0.0, 1e-6, 2e-6, 4e-6)), rng.choice((0.0, 3e-6, 9e-6))
        seconds[i] = [on_gpu] * k + [on_cpu] * hosts
        if k > 1 and rng.random() < 0.05:
            seconds[i, 0] = np.inf
    names = [d.name for d in machine.devices]
    rules = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        one, two = (rng.choice([op.name for op in operations if op.phase == "forward"]) for _ in range(2))
        rules.append(rng.choice((Pin((one,), (rng.choice(names),)), Forbid((one,), (rng.choice(names),)),
                                 Separate((one, two)), Colocate((one, two)))))  # fmt: skip
    return Problem(graph, machine, Costs.given(seconds), tuple(rules), objective="max_load")


def paired(problem):
    """Whether most operations after the forward pass share a group with one of it, as the published files have it."""
    phase, groups = problem.graph.phase, problem.groups
    forward = set(groups[phase == FORWARD].tolist())
    behind = [g in forward for g in groups[phase == BACKWARD].tolist()]
    return not behind or 2 * sum(behind) > len(behind)


def contiguous_splits(problem):
    """Every placement whose devices lie on no cycle: along the forward pass, and against the backward pass where a
    group has no forward operation."""
    graph, groups = problem.graph, problem.groups
    forward = set(groups[graph.phase == FORWARD].tolist())
    edges = set()
    for t, reader in zip(graph.in_tensor.tolist(), graph.read_op.tolist(), strict=True):
        maker = int(graph.tensor_op[t])
        a, b = int(groups[maker]), int(groups[reader])
        if graph.phase[maker] == graph.phase[reader] == FORWARD:
            edges.add((a, b))
        elif graph.phase[maker] == graph.phase[reader] == BACKWARD and not {a, b} <= forward:
            edges.add((b, a))
    for devices in itertools.product(*(np.flatnonzero(row).tolist() for row in problem.choices)):
        between = networkx.DiGraph((devices[a], devices[b]) for a, b in edges if devices[a] != devices[b])
        if networkx.is_directed_acyclic_graph(between):
            placement = Placement(problem.lift(devices))
            try:
                problem.check(placement)
            except PlacementError:
                continue
            yield placement


def optimum(problem):
    """The least load of any contiguous split in picoseconds, or None."""
    splits = list(contiguous_splits(problem))
    outcomes = [e.outcome for e in SimulatorEvaluator(problem).evaluate(splits)]
    return min((o.value_ps for o in outcomes if o.feasible), default=None)


def found_by(problem, placer):
    """What a method finds, in picoseconds, or None."""
    try:
        result = run_search(problem, placer, bound=False)
    except ProblemError:
        return None
    assert result.feasible
    return result.outcome.value_ps


def make(seed, chain=False):
    """The next problem from a seed on that is well formed and small enough."""
    while True:
        try:
            problem = drawn(seed, chain)
            problem.check_memory()
        except (InfeasibleError, ProblemError):
            pass
        else:
            if paired(problem) and np.prod(problem.choices.sum(axis=1)) <= 800:
                return problem
        seed += 1_000_003


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_equal_to_the_best_of_all_contiguous_splits(seed):
    """On graphs with colours, backward passes, tight memory and every constraint: the optimum, to the picosecond."""
    problem = make(seed)
    assert found_by(problem, Contiguous()) == optimum(problem)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_one_line_is_enough_for_chains(seed):
    """On chains the linearised programme finds the optimum too."""
    problem = make(seed, chain=True)
    assert found_by(problem, ContiguousLinear()) == optimum(problem)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_lines_give_contiguous_splits(seed):
    """What the linearised programmes give is a contiguous split, hence no better than the best."""
    problem = make(seed)
    best = optimum(problem)
    for placer in (ContiguousLinear(), PipeDream()):
        value = found_by(problem, placer)
        assert value is None or value >= best


def test_the_brute_force_sees_what_it_should():
    """Of three operations in a chain on two devices, the two placements that come back to a device are left out."""
    graph = build_graph("chain", [Operation("a"), Operation("b", after=["a"]), Operation("c", after=["b"])])
    assert len(list(contiguous_splits(Problem(graph, small_machine(2), objective="max_load")))) == 8
    graph = build_graph(
        "chain",
        [
            Operation("a", outputs=[Tensor(1)]),
            Operation("b", inputs=["a"], outputs=[Tensor(1)]),
            Operation("c", inputs=["b"]),
        ],
    )
    assert len(list(contiguous_splits(Problem(graph, small_machine(2), objective="max_load")))) == 6


# ---- the pieces ---------------------------------------------------------------------------------------


def diamond_problem(objective="max_load", **seconds):
    """a feeds b and c, which feed d, on two accelerators; every tensor takes a microsecond to move."""
    tensor = Tensor(0, transfer_s=1e-6)
    graph = build_graph(
        "diamond",
        [
            Operation("a", outputs=[tensor]),
            Operation("b", inputs=["a"], outputs=[tensor]),
            Operation("c", inputs=["a"], outputs=[tensor]),
            Operation("d", inputs=["b", "c"]),
        ],
    )
    table = np.array([[seconds.get(name, 4) * 1e-6] * 2 for name in graph.op_names])
    return Problem(graph, accelerators(2, 0), Costs.given(table), objective=objective)


def test_a_diamond_by_hand():
    """4 us each: a and b against c and d, two tensors crossing, 8 + 2 us; branches are not split by PipeDream."""
    problem = diamond_problem()
    assert run_search(problem, Contiguous(), bound=False).outcome.value_ps == 10_000_000
    assert run_search(problem, ContiguousLinear(), bound=False).outcome.value_ps == 10_000_000
    assert without_branches(units_of(problem)).n == 2
    assert run_search(problem, PipeDream(), bound=False).outcome.value_ps == 14_000_000


def test_pipedream_ignores_what_its_profiles_hold_without_time():
    """An operation without time whose output takes none joins no branches."""
    tensor = Tensor(0, transfer_s=1e-6)
    operations = [Operation("mask", outputs=[Tensor(0, transfer_s=0.0)])]
    for i in range(4):
        reads = ["mask", *([f"layer{i - 1}"] if i else [])]
        operations.append(Operation(f"layer{i}", inputs=reads, outputs=[tensor]))
    graph = build_graph("masked", operations)
    seconds = np.array([[0.0] * 2] + [[1e-5] * 2] * 4)
    problem = Problem(graph, accelerators(2, 0), Costs.given(seconds), objective="max_load")
    assert without_branches(units_of(problem)).n == 5
    slow = problem.replace(costs=Costs.given(np.full((5, 2), 1e-5)))
    assert without_branches(units_of(slow)).n == 2


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30))
def test_biconnected_components(n, pairs):
    """The same sets of edges as networkx finds; two edges that join the same vertices are on one cycle."""
    edges = sorted({(min(u, v) % n, max(u, v) % n) for u, v in pairs})
    edges = sorted({(min(u, v), max(u, v)) for u, v in edges if u != v})
    found = {}
    for edge, component in zip(edges, biconnected(n, edges), strict=True):
        found.setdefault(component, set()).add(edge)
    expected = networkx.biconnected_component_edges(networkx.Graph(edges))
    assert sorted(map(sorted, found.values())) == sorted(sorted((min(e), max(e)) for e in row) for row in expected)


def test_backward_operations_belong_to_their_forward_operation():
    """Gradients of weights and of activations lie where the layer is, without scopes or colours."""
    before = {0: "x", 1: "f0", 2: "f1"}
    operations = [Operation("x", phase="input", outputs=[Tensor(2)])]
    operations += [Operation(f"w{i}", phase="parameter", outputs=[Tensor(4)]) for i in range(3)]
    operations += [Operation(f"f{i}", inputs=[f"w{i}", before[i]], outputs=[Tensor(2)]) for i in range(3)]
    operations.append(Operation("loss", inputs=["f2"], outputs=[Tensor(1)]))
    operations.append(Operation("start", phase="backward", inputs=["loss"], outputs=[Tensor(2)]))
    gradient = "start"
    for i in reversed(range(3)):
        reads = [gradient, before[i]]
        operations.append(Operation(f"gw{i}", phase="backward", inputs=reads, outputs=[Tensor(4)]))
        operations.append(Operation(f"up{i}", phase="update", inputs=[f"gw{i}", f"w{i}"],
                                    outputs=[Tensor(4, (f"w{i}", 0), in_place=True)]))  # fmt: skip
        operations.append(Operation(f"st{i}", phase="store", inputs=[f"up{i}"]))
        if i:
            operations.append(Operation(f"gx{i}", phase="backward", inputs=[gradient, f"w{i}"], outputs=[Tensor(2)]))
            gradient = f"gx{i}"
    graph = build_graph("layers", operations)
    place = {name: graph.op_names[mirror_places(graph)[i]] for i, name in enumerate(graph.op_names)}
    assert {name: place[name] for name in ("start", "gw2", "gx2", "gw1", "gx1", "gw0")} == {
        "start": "loss", "gw2": "f2", "gx2": "f2", "gw1": "f1", "gx1": "f1", "gw0": "f0",
    }  # fmt: skip
    problem = Problem(graph, small_machine(), objective="max_load")
    unit = dict(zip(graph.op_names, units_of(problem).of_group[problem.groups].tolist(), strict=True))
    for i in range(3):
        assert len({unit[f"{kind}{i}"] for kind in ("w", "f", "gw", "up", "st")}) == 1
    assert unit["gx2"] == unit["f2"]


def test_a_counter_of_batches_belongs_to_what_comes_before_it():
    """What only brings a buffer up to date is no unit by itself, for it lies on no path."""
    operations = [Operation("mm", outputs=[Tensor(100)])]
    for i in range(3):
        operations += [
            Operation(f"count{i}", phase="parameter", outputs=[Tensor(8)]),
            Operation(f"add{i}", inputs=[f"count{i}"], outputs=[Tensor(8, (f"count{i}", 0), in_place=True)]),
            Operation(f"keep{i}", phase="store", inputs=[f"add{i}"]),
            Operation(f"norm{i}", inputs=[f"norm{i - 1}" if i else "mm"], outputs=[Tensor(100)]),
        ]
    problem = Problem(build_graph("counted", operations), small_machine(), objective="max_load")
    units = units_of(problem)
    unit = dict(zip(problem.graph.op_names, units.of_group[problem.groups].tolist(), strict=True))
    assert units.n == 4
    assert [unit[f"add{i}"] == unit[before] for i, before in enumerate(("mm", "norm0", "norm1"))] == [True] * 3
    assert all(unit[f"count{i}"] == unit[f"add{i}"] == unit[f"keep{i}"] for i in range(3))


def test_units_on_a_cycle_are_one():
    """Colours that go round in a circle leave one unit; if no device may hold it, the error says so."""

    def problem(*rules):
        graph = build_graph(
            "round",
            [
                Operation("a", outputs=[Tensor(1)], colocation="x"),
                Operation("b", inputs=["a"], outputs=[Tensor(1)]),
                Operation("c", inputs=["b"], colocation="x"),
            ],
        )
        return Problem(graph, small_machine(), constraints=rules, objective="max_load")

    assert units_of(problem()).n == 1
    with pytest.raises(ProblemError, match="a contiguous split must keep 'a', 'b' together"):
        units_of(problem(Pin(("a",), ("cpu:0",)), Pin(("b",), ("gpu:0",))))


def test_parameters_that_may_not_be_with_their_reader_are_placed_all_the_same():
    """A parameter pinned to the host stays there; its reader goes where it is best, and pays for it."""
    problem = small_problem("stream", Pin(("a.w",), ("cpu:0",)), Pin(("a.mm",), ("gpu:0", "gpu:1")))
    problem = problem.replace(objective="max_load")
    result = run_search(problem, Contiguous(), bound=False)
    names = problem.graph.op_names
    assert result.placement.devices[names.index("a.w")] == 0
    assert result.placement.devices[names.index("a.mm")] in (1, 2)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_a_coarse_line_is_a_split_of_the_fine_one(seed, most):
    """Stretches keep the order, are no more than asked, and a split of them has the value it says."""
    problem = make(seed)
    try:
        units = units_of(problem)
    except ProblemError:  # nothing contiguous keeps its constraints
        return
    parts = parts_of(Costing.of(problem), units)
    label = stretches(parts, most)
    assert label.max() + 1 <= max(most, 1)
    assert (np.diff(label) >= 0).all()
    coarse, fine = best_split(parts, most=most), best_split(parts, most=100)
    if coarse is not None:
        assert fine is not None
        assert coarse.value_ps >= fine.value_ps
        again = merged(parts, coarse.part)
        loads = again.time + np.where(again.pays[None, :], _cut(again)[:, None], 0)
        assert max(loads[k, c] for k, c in enumerate(coarse.classes)) == coarse.value_ps


def _cut(parts):
    """Picoseconds of nets that leave each unit."""
    cut = np.zeros(len(parts.time), np.int64)
    for e, weight in enumerate(parts.nets.weight.tolist()):
        for u in parts.nets.unit[parts.nets.start[e] : parts.nets.start[e + 1]]:
            cut[u] += weight
    return cut


def test_joining_for_nothing_by_hand():
    """A relu without time joins the layer whose output it alone reads, where its own output is no smaller than that
    is dear; a join of two branches joins neither."""

    def count(made, kept):
        out = Tensor(0, transfer_s=made)
        graph = build_graph(
            "relu",
            [
                Operation("mm", outputs=[out]),
                Operation("relu", inputs=["mm"], outputs=[Tensor(0, transfer_s=kept)]),
                Operation("left", inputs=["relu"], outputs=[Tensor(0, transfer_s=5e-6)]),
                Operation("right", inputs=["relu"], outputs=[Tensor(0, transfer_s=5e-6)]),
                Operation("sum", inputs=["left", "right"]),
            ],
        )
        seconds = np.array([[1e-6] * 2, [0.0] * 2, [1e-6] * 2, [1e-6] * 2, [0.0] * 2])
        problem = Problem(graph, accelerators(2, 0), Costs.given(seconds), objective="max_load")
        units = units_of(problem)
        return int(dense(lossless(parts_of(Costing.of(problem), units), units.edges)).max()) + 1

    assert count(2e-6, 1e-6) == 4
    assert count(1e-6, 2e-6) == 5


def test_topological_order_prefers_small_keys():
    edges = np.array([[0, 3], [1, 2]])
    assert topological_order(4, edges).tolist() == [0, 1, 2, 3]
    assert topological_order(4, edges, [9, 0, 5, 1]).tolist() == [1, 2, 0, 3]


# ---- limits -------------------------------------------------------------------------------------------


def wide(n):
    """Operations side by side."""
    return Problem(build_graph("wide", [Operation(f"op{i}", outputs=[Tensor(8)]) for i in range(n)]), small_machine(),
                   Costs.given(np.full((n, 3), 1e-6)), objective="max_load")  # fmt: skip


@pytest.mark.parametrize(
    ("params", "n", "why"),
    [
        (ContiguousParams(), 400, r"4 GiB is not enough for at least 2\*\*400 downward-closed sets"),
        (ContiguousParams(max_bytes=1 << 20), 12, r"0.00\d* GiB is not enough for [0-9,]+ or more "),
        (ContiguousParams(seconds=1e-9), 5, r"1e-09 s is not enough for 32 or more"),
    ],
)
def test_what_is_too_much_is_said(params, n, why):
    """Too many sets, or too few seconds, end with advice; the linearised programme still works."""
    with pytest.raises(NotFinishedError, match=why + ".*[Uu]se contiguous-linear"):
        run_search(wide(n), Contiguous(params), bound=False)
    assert run_search(wide(n), ContiguousLinear(), bound=False).feasible


def test_no_split_at_all_is_said():
    """Two operations that must be together, on a device that has room for neither's weights."""
    graph = build_graph(
        "big",
        [
            Operation("w", phase="parameter", outputs=[Tensor(600)]),
            Operation("v", phase="parameter", outputs=[Tensor(600)]),
            Operation("f", inputs=["w"], outputs=[Tensor(1)], colocation="x"),
            Operation("g", inputs=["v", "f"], colocation="x"),
        ],
    )
    problem = Problem(graph, small_machine(2, bytes_each=1000), objective="max_load")
    for placer in (Contiguous(), ContiguousLinear(), PipeDream()):
        with pytest.raises(ProblemError, match="no contiguous split keeps the constraints and the memory"):
            run_search(problem, placer, bound=False)
    assert linearised_devices(problem) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: ContiguousParams(seconds=0),
        lambda: ContiguousParams(max_bytes=0),
        lambda: ContiguousParams(most_units=0),
        lambda: LinearParams(most_units=0),
    ],
)
def test_parameters_out_of_range_are_refused(make):
    with pytest.raises(InputError, match="allowed"):
        make()


def test_every_number_of_devices_is_offered_for_step():
    """For `step` the one-device split is among those asked, and wins where nothing overlaps."""
    problem = diamond_problem("step", a=1, b=1, c=1, d=1)
    placer = ContiguousLinear()
    placer.start(problem, np.random.default_rng(0))
    batch = placer.ask()
    assert {len(set(placement.devices.tolist())) for placement in batch} == {1, 2}
    assert run_search(problem, ContiguousLinear(), bound=False).outcome.value_ps == 4_000_000


def test_large_lines_are_cut():
    """Twenty thousand layers on four devices: a chunked line comes within a thousandth of equal shares."""
    n = 20_000
    operations = [Operation(f"op{i}", inputs=[f"op{i - 1}"] if i else [], outputs=[Tensor(8)]) for i in range(n)]
    graph = build_graph("long", operations)
    problem = Problem(graph, accelerators(4, 0), Costs.given(np.full((n, 4), 1e-6)), objective="max_load")
    devices = linearised_devices(problem, 500)
    assert np.bincount(devices).max() <= n / 4 * 1.001 + 1
    assert (np.diff(devices) >= 0).all()


# ---- published figures --------------------------------------------------------------------------------

PUBLISHED = [  # workload, linearised, contiguous, PipeDream's split; milliseconds
    ("layer_bert24_inference", 17.790, 17.790, 17.790),
    ("layer_bert24_training", 41.746, 41.746, 187.914),
    ("layer_gnmt_inference", 33.033, 32.911, None),  # its PipeDream split leaves out branches chosen by hand
    ("layer_inceptionv3_inference", 51.552, 51.552, 60.417),
    ("layer_resnet50_inference", 33.775, 33.775, 39.398),
    ("op_bert_l-3_inference", 27.919, 27.919, 37.456),
    ("op_bert_l-3_training", 65.303, 65.303, 122.987),
    ("op_bert_l-6_inference", 29.580, 29.580, 65.565),
    ("op_resnet50_inference", 124.349, 124.349, 129.155),
]


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the profiled workloads are not in {SHARED}")
@pytest.mark.parametrize(("name", "linear_ms", "contiguous_ms", "pipedream_ms"), PUBLISHED)
def test_published_optima(name, linear_ms, contiguous_ms, pipedream_ms):
    """The optima of Tarnawski et al. 2020 and its linearised variant, and PipeDream's splits as they made them."""
    workload = read_workload(SHARED / f"{name}.json")
    problem = Problem(workload.graph, workload.machine, objective=workload.objective)
    for placer, expected in (
        (ContiguousLinear(), linear_ms),
        (Contiguous(), contiguous_ms),
        (PipeDream(), pipedream_ms),
    ):
        result = run_search(problem, placer, bound=False)
        assert result.feasible
        if expected is not None:
            assert round(result.value_s * 1e3, 3) == expected, placer.name

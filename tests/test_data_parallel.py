"""Towers and replicas: what they are made of, where they go, a timeline by hand, and the command line."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest

import placewright as pw
from placewright.capture.function import batch_of_function, from_function
from placewright.cli import towers as command
from placewright.costs import Costs
from placewright.errors import CaptureError, InputError, UnknownNameError
from placewright.graph import BACKWARD, FORWARD, PARAMETER, STORE, UPDATE
from placewright.heuristics import data_parallel
from placewright.heuristics.data_parallel import DataParallelParams, Question, placements, search_towers
from placewright.heuristics.tower_graph import SHARED, build_towers, replicas, towers
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.methods import make_placer
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import Problem
from placewright.sim import Simulator, simulate
from placewright.stop import After, Evaluations, Progress, Seconds
from placewright.testing import small_machine, small_problem
from tests.strategies import random_problem
from tests.test_cli import place

US = 1e-6


def cards(count, host=False, memory=1 << 20):
    """Cards at 1e12 flop/s and 1e9 bytes/s, each joined to each by 1e9 bytes/s after 1 us; perhaps with a host."""
    rates = {"flops_per_s": {"float32": 1e12}, "bytes_per_s": 1e9, "efficiency": {"matmul": 1.0, "memory": 1.0}}
    names = [*(["cpu:0"] if host else []), *(f"gpu:{d}" for d in range(count))]
    pairs = [(a, b) for a in names for b in names if a != b]
    return Machine(
        "cards",
        tuple(Device(name, name[:3], name, "cpu:0" if host else None, **rates) for name in names),
        tuple(Pool(name, memory, 1) for name in names),
        tuple(Channel(f"{a}>{b}", 1e9, US) for a, b in pairs),
        tuple(Route(a, b, (f"{a}>{b}",)) for a, b in pairs),
    )


@pytest.fixture(scope="module")
def step():
    """One parameter: forward 10 us, backward 20 us, an update of 3 us, each of which moves 1000 bytes or so."""
    return build_graph(
        "step",
        [
            Operation("x", phase="input", outputs=[Tensor(100)]),
            Operation("w", phase="parameter", scope="net", outputs=[Tensor(1000, shape=(250,))]),
            Operation("f", "matmul", scope="net", flops=10e6, inputs=["x", "w"], outputs=[Tensor(500)]),
            Operation("b", "matmul", "backward", "net", 20e6, inputs=["f", "w"], outputs=[Tensor(1000, shape=(250,))]),
            Operation("u", "sgd", "update", "net", bytes_read=2000, bytes_written=1000, inputs=["w", "b"], after=["f"],
                      outputs=[Tensor(1000, ("w", 0), in_place=True)]),
            Operation("s", "store", "store", "net", inputs=["u"]),
        ],
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained():
    """Two layers with what real ones have: state, a buffer that forward writes, a view of a weight, a frozen table."""
    return build_graph(
        "trained",
        [
            Operation("x", phase="input", outputs=[Tensor(64)]),
            Operation("table", phase="parameter", outputs=[Tensor(4096)]),
            Operation("a.w", phase="parameter", scope="a", outputs=[Tensor(400)]),
            Operation("a.w.state", phase="parameter", scope="a", outputs=[Tensor(400), Tensor(4)]),
            Operation("a.mean", phase="parameter", scope="a", outputs=[Tensor(16)]),
            Operation("c.w", phase="parameter", scope="c", outputs=[Tensor(800)]),
            Operation("look", "embedding", inputs=["x", "table"], outputs=[Tensor(64)], flops=1),
            Operation("a.mm", "mm", scope="a", inputs=["look", "a.w"], outputs=[Tensor(128)], flops=10),
            Operation("a.norm", "batch_norm", scope="a", inputs=["a.mm", "a.mean"], flops=100, workspace_bytes=7,
                      outputs=[Tensor(128), Tensor(16, ("a.mean", 0), in_place=True)]),
            Operation("a.mean.store", "store", "store", "a", inputs=[("a.norm", 1)]),
            Operation("c.t", "t", scope="c", inputs=["c.w"], outputs=[Tensor(800, ("c.w", 0))]),
            Operation("c.mm", "mm", scope="c", inputs=["a.norm", "c.t"], outputs=[Tensor(32, output=True)], flops=1e3),
            Operation("c.grad", "mm", "backward", "c", 1e4, inputs=["c.mm", "a.norm"],
                      outputs=[Tensor(128), Tensor(800)], colocation="k"),
            Operation("c.grad.t", "t", "backward", "c", inputs=[("c.grad", 1)], outputs=[Tensor(800, ("c.grad", 1))]),
            Operation("c.w.update", "sgd", "update", "c", 1e6, inputs=["c.w", "c.grad.t"], after=["c.t", "c.mm"],
                      outputs=[Tensor(800, ("c.w", 0), in_place=True)]),
            Operation("c.w.store", "store", "store", "c", inputs=["c.w.update"]),
            Operation("a.grad", "mm", "backward", "a", 1e5, inputs=["c.grad", "a.mm"], outputs=[Tensor(400)],
                      recompute=True, colocation="k"),
            Operation("a.w.update", "adam", "update", "a", 1e7, inputs=["a.w", "a.grad", ("a.w.state", 0),
                      ("a.w.state", 1)], after=["a.mm"],
                      outputs=[Tensor(400, ("a.w", 0), in_place=True), Tensor(400, ("a.w.state", 0), in_place=True),
                               Tensor(4, ("a.w.state", 1), in_place=True)]),
            Operation("a.w.store", "store", "store", "a", inputs=["a.w.update"]),
            Operation("a.w.state.store", "store", "store", "a", inputs=[("a.w.update", 1), ("a.w.update", 2)]),
        ],
        {"other": {"flops_per_s": {"float32": 1e9}, "bytes_per_s": 1e9}},
    )  # fmt: skip


ONE_EACH = {"table", "a.w", "a.w.state", "c.w", "c.t", "c.w.update", "c.w.store", "a.w.update", "a.w.store",
            "a.w.state.store"}  # fmt: skip
"""What there is one of in `trained`."""


def reads_of(graph, name):
    """The inputs of an operation, as (operation, output)."""
    i = graph.op(name)
    tensors = graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]]
    makers = graph.tensor_op[tensors]
    return {(graph.op_names[m], int(t - graph.out_start[m])) for t, m in zip(tensors, makers, strict=True)}


def waits_of(graph, name):
    """The operations that one waits for."""
    i = graph.op(name)
    return {graph.op_names[j] for j in graph.after_op[graph.after_start[i] : graph.after_start[i + 1]]}


# ---- what towers are made of ---------------------------------------------------------------------


def test_one_tower_is_the_graph_itself(trained):
    """Nothing is copied and nothing summed."""
    assert towers(trained, 1) is trained
    assert replicas(trained, 1) is trained


@pytest.mark.parametrize("count", [2, 3, 5])
def test_towers_share_parameters_and_what_updates_them(trained, count):
    """One of each parameter, state, update, store and view of a parameter; everything else in every tower; sums."""
    graph = towers(trained, count)
    each = [name for name in trained.op_names if name not in ONE_EACH]
    sums = [f"sum.{grad}.{j}" for grad in ("c.grad.t", "a.grad") for j in range(1, count)]
    assert set(graph.op_names) == ONE_EACH | {f"tower.{t}.{name}" for t in range(count) for name in each} | set(sums)
    assert graph.persistent_bytes == trained.persistent_bytes + (count - 1) * 16
    updates = trained.phase == UPDATE
    summed = (count - 1) * (800 + 400) / 4
    assert graph.flops.sum() == count * trained.flops[~updates].sum() + trained.flops[updates].sum() + summed
    assert graph.workspace_bytes.sum() == count * 7
    assert graph.tensor_output.sum() == count
    assert graph.recompute.sum() == count
    assert graph.name == f"trained, {count} towers"


@pytest.mark.parametrize("count", [2, 4])
def test_replicas_have_everything(trained, count):
    """All operations in every tower; the sums alone are single, and every update reads the last of them."""
    graph = replicas(trained, count)
    assert graph.n_ops == count * trained.n_ops + 2 * (count - 1)
    assert graph.persistent_bytes == count * trained.persistent_bytes
    assert graph.flops.sum() == count * trained.flops.sum() + (count - 1) * 300
    for t in range(count):
        assert reads_of(graph, f"tower.{t}.c.w.update") == {(f"tower.{t}.c.w", 0), (f"sum.c.grad.t.{count - 1}", 0)}
    assert sum(name.startswith("sum.") for name in graph.op_names) == 2 * (count - 1)


def test_sums_are_a_chain_with_the_bytes_of_the_gradient(trained):
    """The first sum has bytes of its own, the others are written in place on it; each reads two and writes one."""
    graph = towers(trained, 4)
    first, second, third = (graph.op(f"sum.c.grad.t.{j}") for j in (1, 2, 3))
    assert reads_of(graph, "sum.c.grad.t.1") == {("tower.0.c.grad.t", 0), ("tower.1.c.grad.t", 0)}
    assert reads_of(graph, "sum.c.grad.t.2") == {("sum.c.grad.t.1", 0), ("tower.2.c.grad.t", 0)}
    assert reads_of(graph, "sum.c.grad.t.3") == {("sum.c.grad.t.2", 0), ("tower.3.c.grad.t", 0)}
    assert reads_of(graph, "c.w.update") == {("c.w", 0), ("sum.c.grad.t.3", 0)}
    for i in (first, second, third):
        assert (graph.kinds[i], graph.phase[i], graph.scopes[i]) == ("add", BACKWARD, "c")
        assert (graph.bytes_read[i], graph.bytes_written[i], graph.flops[i]) == (1600, 800, 200)
    tensor = [int(graph.out_start[i]) for i in (first, second, third)]
    assert graph.tensor_bytes[tensor].tolist() == [800, 800, 800]
    assert graph.tensor_storage[tensor].tolist() == [tensor[0]] * 3
    assert graph.tensor_in_place[tensor].tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("dtype", "shape", "flops"),
    [("float32", None, 256), ("bfloat16", None, 512), ("bool", None, 1024), ("float16", (10, 5), 50)],
)
def test_a_sum_takes_one_flop_for_each_element(dtype, shape, flops):
    """Elements are those of the shape, or the bytes over those of one."""
    graph = build_graph(
        "g",
        [
            Operation("w", phase="parameter", outputs=[Tensor(1024)]),
            Operation("b", phase="backward", dtype=dtype, inputs=["w"], outputs=[Tensor(1024, shape=shape)]),
            Operation("u", phase="update", inputs=["w", "b"], outputs=[Tensor(1024, ("w", 0), in_place=True)]),
            Operation("s", phase="store", inputs=["u"]),
        ],
    )
    assert towers(graph, 2).flops[towers(graph, 2).op("sum.b.1")] == flops


def test_edges_stay_within_a_tower_or_lead_to_what_is_shared(trained):
    """A tower reads its own and what is shared; an update waits for the readers in all towers."""
    graph = towers(trained, 3)
    for t in range(3):
        assert reads_of(graph, f"tower.{t}.c.mm") == {(f"tower.{t}.a.norm", 0), ("c.t", 0)}
        assert reads_of(graph, f"tower.{t}.a.norm") == {(f"tower.{t}.a.mm", 0), (f"tower.{t}.a.mean", 0)}
        assert reads_of(graph, f"tower.{t}.a.mean.store") == {(f"tower.{t}.a.norm", 1)}
        assert graph.scopes[graph.op(f"tower.{t}.a.mm")] == f"tower.{t}.a"
        assert graph.scopes[graph.op(f"tower.{t}.x")] == f"tower.{t}"
    assert waits_of(graph, "c.w.update") == {"c.t", *(f"tower.{t}.c.mm" for t in range(3))}
    assert waits_of(graph, "a.w.update") == {f"tower.{t}.a.mm" for t in range(3)}
    apart = replicas(trained, 3)
    assert waits_of(apart, "tower.1.c.w.update") == {"tower.1.c.t", "tower.1.c.mm"}


def test_colocation_is_within_a_tower(trained):
    """What a framework keeps together is together in each tower, and the towers apart."""
    graph = towers(trained, 3)
    labels = [{int(graph.colocation[graph.op(f"tower.{t}.{name}")]) for name in ("c.grad", "a.grad")} for t in range(3)]
    assert [len(row) for row in labels] == [1, 1, 1]
    assert len(set.union(*labels)) == 3
    assert -1 not in set.union(*labels)


def test_updates_are_last_unless_early(trained):
    """With `end` sums, updates and their stores follow all else; with `early` they are where the graph has them."""
    late = towers(trained, 2)
    tail = [
        "sum.c.grad.t.1", "c.w.update", "c.w.store", "sum.a.grad.1", "a.w.update", "a.w.store", "a.w.state.store"
    ]  # fmt: skip
    assert list(late.op_names[-7:]) == tail
    assert late.op("tower.1.a.mean.store") < late.op("tower.0.c.mm")
    early = towers(trained, 2, sums="early")
    assert early.op("c.w.store") < early.op("tower.0.a.grad")
    assert set(early.op_names) == set(late.op_names)


def test_measured_seconds_go_with_the_operation():
    """A measured step stays measured in every tower; sums are estimated."""
    operations = [
        Operation("w", phase="parameter", outputs=[Tensor(8)], measured_s={"card": 0.0}),
        Operation("b", phase="backward", inputs=["w"], outputs=[Tensor(8)], measured_s={"card": 3e-3}),
        Operation("u", phase="update", inputs=["w", "b"], outputs=[Tensor(8, ("w", 0), in_place=True)],
                  measured_s={"card": 1e-3}),
        Operation("s", phase="store", inputs=["u"]),
    ]  # fmt: skip
    graph = towers(build_graph("g", operations, {"card": {"flops_per_s": {"float32": 1e12}, "bytes_per_s": 1e9}}), 2)
    measured = graph.measured[0]
    seconds = dict(zip(graph.op_names, measured.seconds.tolist(), strict=True))
    assert [seconds[name] for name in ("tower.0.b", "tower.1.b", "u")] == [3e-3, 3e-3, 1e-3]
    assert np.isnan(seconds["sum.b.1"])
    assert measured.bytes_per_s == 1e9


def test_what_model_and_optimiser_both_write_cannot_be_shared():
    """A parameter that forward overwrites and an update too: refused by name, unless every tower has its own."""
    graph = build_graph(
        "g",
        [
            Operation("w", phase="parameter", outputs=[Tensor(8)]),
            Operation("f", inputs=["w"], outputs=[Tensor(8, ("w", 0), in_place=True), Tensor(8)]),
            Operation("b", phase="backward", inputs=[("f", 1)], outputs=[Tensor(8)]),
            Operation("u", phase="update", inputs=["f", "b"], outputs=[Tensor(8, ("w", 0), in_place=True)]),
            Operation("s", phase="store", inputs=["u"]),
        ],
    )
    with pytest.raises(InputError, match=r"'w' is of what the model writes.*give every tower its own copy"):
        towers(graph, 2)
    assert replicas(graph, 2).n_ops == 11
    problem, _ = data_parallel.data_parallel(graph, cards(2))
    assert problem.graph.name == "g, 2 replicas"


@pytest.mark.parametrize("count", [0, -1, 257, 2.0, "2"])
def test_counts_out_of_range_are_refused(step, count):
    """The number of towers is named, with what is allowed."""
    with pytest.raises(InputError, match="1 to 256 is allowed"):
        towers(step, count)


def test_an_unknown_place_for_sums_is_refused(step):
    """`sums` is one of two words."""
    with pytest.raises(InputError, match="'end' or 'early' is allowed"):
        towers(step, 2, sums="middle")


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_become_valid_towers(seed):
    """Whatever a graph holds, its towers are a valid graph with as many operations as there should be."""
    graph = random_problem(random.Random(seed), 30)[0].graph
    said = []
    for shared in (True, False):
        for sums in ("end", "early"):
            try:
                made = build_towers(graph, 3, shared=shared, sums=sums)
            except InputError as refused:
                if not shared:
                    raise
                said.append(str(refused))
                continue
            one = made.tower == SHARED
            added = np.array([name.startswith("sum.") for name in made.graph.op_names], bool)
            assert ((made.graph.n_ops - one.sum()) % 3) == 0
            assert (made.graph.n_ops - one.sum()) // 3 + (one & ~added).sum() == graph.n_ops
            assert not shared or not (made.graph.phase[~one] == UPDATE).any()
            assert shared or not (one & ~added).any()
            problem = Problem(made.graph, small_machine(4, 1 << 40), Costs.given(np.zeros((made.graph.n_ops, 4))))
            for placement in placements(problem, made, [1, 2, 3]):
                problem.check(placement)
    assert all("give every tower its own copy" in text for text in said)


def test_replicas_of_a_pass_run_side_by_side():
    """Without updates replicas have nothing to tell each other: three on three devices take as long as one on one."""
    tried = 0
    for seed in range(40):
        problem, _ = random_problem(random.Random(seed), 20)
        graph = problem.graph
        if (graph.phase == UPDATE).any():
            continue
        tried += 1
        seconds = np.where(graph.off_queue, 0.0, np.random.default_rng(seed).integers(0, 4, graph.n_ops) * US)
        made = build_towers(graph, 3, shared=False, sums="end")
        index = [graph.op(name.split(".", 2)[2]) for name in made.graph.op_names]
        machine = small_machine(4, 1 << 40)
        one_s, three_s = (Costs.given(np.repeat(table[:, None], 4, 1)) for table in (seconds, seconds[index]))
        alone = Problem(graph, machine, one_s, discipline=problem.discipline)
        many = Problem(made.graph, machine, three_s, discipline=problem.discipline)
        placement = next(iter(placements(many, made, [1, 2, 3])))
        assert placement.devices.tolist() == (made.tower + 1).tolist()
        one = simulate(alone, alone.placement(np.ones(graph.n_ops, int)))
        three = simulate(many, placement)
        assert three.value_s == one.value_s
        assert three.peak_bytes[1:] == (one.peak_bytes[1],) * 3
    assert tried >= 12


# ---- where they go -------------------------------------------------------------------------------


def test_a_tower_to_each_accelerator(trained):
    """Towers on the cards in turn, what is shared with the first, nothing on the host."""
    machine = cards(3, host=True)
    made = build_towers(trained, 3, shared=True, sums="end")
    problem = Problem(made.graph, machine)
    placement = next(iter(placements(problem, made, [1, 2, 3], ["first"])))
    for i, name in enumerate(made.graph.op_names):
        expected = int(name.split(".")[1]) + 1 if name.startswith("tower.") else 1
        assert placement.devices[i] == expected, name
    assert Question(machine).devices().tolist() == [1, 2, 3]
    assert Question(machine, 2).devices().tolist() == [1, 2]


def test_spread_homes_are_dealt_by_bytes(trained):
    """Families by falling bytes (4096; 800 and 800; 400, 404 and 400): to the first, second and third tower."""
    made = build_towers(trained, 3, shared=True, sums="end")
    problem = Problem(made.graph, cards(3))
    placement = next(iter(placements(problem, made, [0, 1, 2], ["spread"])))
    at = dict(zip(made.graph.op_names, placement.devices.tolist(), strict=True))
    assert at["table"] == 0
    assert {at[name] for name in ("c.w", "c.t", "c.w.update", "c.w.store", "sum.c.grad.t.1", "sum.c.grad.t.2")} == {1}
    assert {at[name] for name in ("a.w", "a.w.state", "a.w.update", "a.w.store", "sum.a.grad.2")} == {2}
    assert at["tower.1.a.mean"] == 1


def test_replicas_are_where_their_tower_is(trained):
    """Only sums have a home that can be chosen: with the first tower, or dealt."""
    made = build_towers(trained, 2, shared=False, sums="end")
    problem = Problem(made.graph, cards(2))
    first, dealt = placements(problem, made, [0, 1])
    for placement, homes in ((first, (0, 0)), (dealt, (0, 1))):
        at = dict(zip(made.graph.op_names, placement.devices.tolist(), strict=True))
        assert (at["sum.c.grad.t.1"], at["sum.a.grad.1"]) == homes
        assert all(at[name] == int(name.split(".")[1]) for name in at if name.startswith("tower."))
        assert placement.windows_bytes is None


def test_what_cannot_run_there_goes_where_it_can(trained):
    """An operation without a cost on the cards is on the host, in every tower, with what must be with it."""
    made = build_towers(trained, 2, shared=True, sums="end")
    machine = cards(2, host=True)
    seconds = np.where(made.graph.off_queue[:, None], 0.0, np.full((made.graph.n_ops, 3), US))
    stuck = [made.graph.op(f"tower.{t}.look") for t in range(2)]
    seconds[stuck, 1:] = np.inf
    problem = Problem(made.graph, machine, Costs.given(seconds))
    for placement in placements(problem, made, [1, 2]):
        assert np.flatnonzero(placement.devices == 0).tolist() == stuck


def test_full_windows_send_each_parameter_once(trained):
    """With windows for all that is borrowed a tower gets every parameter once, with the least ones perhaps again."""
    made = build_towers(trained, 2, shared=True, sums="end")
    problem = Problem(made.graph, cards(2))
    whole, least = placements(problem, made, [0, 1], ["first"])
    assert whole.windows_bytes.tolist() == [-1, 4096 + 400]  # the view of c.w is a transient
    assert least.windows_bytes is None
    trace = Simulator(problem).trace(whole)
    sent = [move.tensor for move in trace.timeline.moves if made.graph.persistent[move.tensor]]
    names = sorted(made.graph.op_names[made.graph.tensor_op[t]] for t in sent)
    assert names == ["a.w", "table"]


def test_other_disciplines_have_no_windows(trained):
    """Windows mean nothing under `ready`."""
    made = build_towers(trained, 2, shared=True, sums="end")
    problem = Problem(made.graph, cards(2), discipline="ready")
    assert [placement.windows_bytes for placement in placements(problem, made, [0, 1], ["first"])] == [None]


# ---- by hand -------------------------------------------------------------------------------------


def timed(graph, machine, parameters):
    """The step in microseconds, of the first way that is tried."""
    params = DataParallelParams((parameters,), ("first",), ("end",))
    problem, placement = data_parallel.data_parallel(graph, machine, params=params)
    trace = Simulator(problem).trace(placement)
    spans = zip(trace.timeline.op_start_ps.tolist(), trace.timeline.op_end_ps.tolist(), strict=True)
    return trace.value_s / US, {
        name: (start / 1e6, end / 1e6) for name, (start, end) in zip(problem.graph.op_names, spans, strict=True)
    }


def test_two_towers_by_hand(step):
    """w takes 2 us to the second card; its gradient 2 us back; then a sum of 3 us and an update of 3 us.

    tower 0: f 0-10, b 10-30. tower 1: w 0-2, f 2-12, b 12-32, gradient 32-34. sum 34-37, update 37-40.
    """
    value, at = timed(step, cards(2), "shared")
    assert value == pytest.approx(40)
    assert at["tower.0.f"] == (0, 10)
    assert at["tower.0.b"] == (10, 30)
    assert at["tower.1.f"] == (2, 12)
    assert at["tower.1.b"] == (12, 32)
    assert at["sum.b.1"] == (34, 37)
    assert at["u"] == (37, 40)


def test_two_replicas_by_hand(step):
    """Nothing is sent before the gradient: sum 32-35, sent 35-37; updates 35-38 and 37-40."""
    value, at = timed(step, cards(2), "replicated")
    assert value == pytest.approx(40)
    assert at["tower.1.b"] == (10, 30)
    assert at["sum.b.1"] == (32, 35)
    assert at["tower.0.u"] == (35, 38)
    assert at["tower.1.u"] == (37, 40)


def test_three_towers_by_hand(step):
    """Gradients come at 34 on two channels, and are added one after the other: 34-37, 37-40; update 40-43."""
    value, at = timed(step, cards(3), "shared")
    assert value == pytest.approx(43)
    assert (at["sum.b.1"], at["sum.b.2"], at["u"]) == ((34, 37), (37, 40), (40, 43))


def test_one_tower_by_hand(step):
    """One card: 10 + 20 + 3 us, the graph as it is."""
    problem, placement = pw.data_parallel(step, cards(1))
    assert problem.graph is step
    assert simulate(problem, placement).value_s == pytest.approx(33 * US)


# ---- the choice ----------------------------------------------------------------------------------


def test_the_best_kind_is_kept(trained):
    """The result is the least of what the kinds give by themselves, and counts all their evaluations."""
    machine = cards(3)
    every = [
        search_towers(trained, Question(machine, params=DataParallelParams((parameters,), (home,), ("end",))))
        for parameters in ("shared", "replicated")
        for home in ("first", "spread")
    ]
    result = search_towers(trained, Question(machine))
    assert result.value_s == min(each.value_s for each in every)
    assert result.evaluations == sum(each.evaluations for each in every)
    assert (result.bound_s, result.gap, result.method) == (None, None, "data-parallel")


def test_all_kinds_share_one_budget(trained):
    """Evaluations count over all kinds, and so do seconds."""
    machine = cards(3)
    assert search_towers(trained, Question(machine), Evaluations(1)).evaluations == 1
    assert search_towers(trained, Question(machine), Evaluations(3)).evaluations == 3
    spent = After(Evaluations(10) | Seconds(5.0), 4, 3.0)
    progress = Progress(evaluations=5, seconds=1.0)
    assert (spent.evaluations_left(progress), spent.seconds_left(progress), spent(progress)) == (1, 1.0, False)
    assert spent(Progress(evaluations=6))
    assert spent(Progress(seconds=2.0))


def test_early_sums_are_tried_where_nothing_else_fits():
    """Four layers: at the end the first card holds all gradients of three towers, early one after the other."""
    operations = [Operation("x", phase="input", outputs=[Tensor(8)])]
    for k in range(4):
        operations += [
            Operation(f"w{k}", phase="parameter", outputs=[Tensor(1000)]),
            Operation(f"b{k}", "matmul", "backward", flops=1e8, inputs=[f"w{k}", "x"], outputs=[Tensor(1000)]),
            Operation(f"u{k}", "sgd", "update", bytes_read=1, inputs=[f"w{k}", f"b{k}"],
                      outputs=[Tensor(1000, (f"w{k}", 0), in_place=True)]),
            Operation(f"s{k}", phase="store", inputs=[f"u{k}"]),
        ]  # fmt: skip
    graph = build_graph("layers", operations)
    only = DataParallelParams(("shared",), ("first",))
    assert not search_towers(graph, Question(cards(3, memory=9000), params=DataParallelParams(
        ("shared",), ("first",), ("end",)))).feasible  # fmt: skip
    result = search_towers(graph, Question(cards(3, memory=9000), params=only))
    assert result.feasible
    assert result.problem.graph.op("s0") < result.problem.graph.op("tower.0.b1")


@pytest.mark.parametrize("objective", ["max_load", "throughput"])
def test_other_objectives(step, objective):
    """The problem asks what was asked."""
    problem, placement = pw.data_parallel(step, cards(2), objective=objective, discipline="ready")
    assert (problem.objective, problem.discipline) == (objective, "ready")
    assert 33 <= simulate(problem, placement).value_ps / 1e6 <= 40


def test_more_towers_than_accelerators_are_refused(step):
    """The number of accelerators is told."""
    with pytest.raises(InputError, match=r"the number of towers is 3; machine 'cards' has 2 accelerators"):
        pw.data_parallel(step, cards(2, host=True), 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataParallelParams(parameters=()),
        lambda: DataParallelParams(homes=("third",)),
        lambda: DataParallelParams(sums="end"),
    ],
)
def test_parameters_out_of_range_are_refused(make):
    """Every parameter names itself and its range."""
    with pytest.raises((InputError, UnknownNameError), match=r"allowed|Known"):
        make()


def test_a_captured_network():
    """Of a real step: as many operations, flops and bytes as there should be, and a step nearly as short as can be."""
    whole, part = (pw.zoo.load("spotlight-cifar10", batch=batch) for batch in (64, 16))
    graph = towers(part, 4)
    shared = np.isin(part.phase, (PARAMETER, UPDATE, STORE))
    gradients = int((part.phase == UPDATE).sum())
    looks = graph.n_ops - 4 * int((~shared).sum()) - int(shared.sum()) - 3 * gradients
    assert looks == 0  # no operation only looks at a parameter here
    assert graph.persistent_bytes == whole.persistent_bytes
    work = np.isin(part.phase, (FORWARD, BACKWARD))
    parameters = part.persistent_bytes / 4
    assert graph.flops.sum() == pytest.approx(
        4 * part.flops[work].sum() + part.flops[part.phase == UPDATE].sum() + 3 * parameters, rel=1e-6
    )
    products = [sum(f for f, kind in zip(g.flops, g.kinds, strict=True) if "conv" in kind) for g in (whole, graph)]
    assert products[0] == products[1]
    problem, placement = pw.data_parallel(part, pw.machine("k40x4"))
    assert simulate(problem, placement).feasible


# ---- command line --------------------------------------------------------------------------------

NET = """
import torch


def make(batch=8):
    return torch.nn.Linear(64, 64), torch.zeros(batch, 64)


def fixed():
    return make()


def odd(batch=torch):
    return make()


def needs(batch):
    return make(batch)
"""


@pytest.fixture
def net(tmp_path):
    """A Python file with functions that make modules."""
    file = tmp_path / "net.py"
    file.write_text(NET)
    return file


def test_the_method_has_one_name():
    """The command line, which must not import the other, agrees with it."""
    assert command.METHOD == data_parallel.NAME


@pytest.mark.parametrize(
    ("model", "may"), [("resnet-50", True), ("net.py:make", True), ("hf:folder", True), ("net.pt2", False),
                       ("layered/3", False), ("graph.json", False), ("net.onnx", False)],
)  # fmt: skip
def test_what_compare_tries_towers_of(model, may):
    """Models of kinds that are captured with any batch; whether it can be split is seen when it is tried."""
    assert command.may_be_split(SimpleNamespace(path=model)) == may


def test_no_placer_has_the_name():
    """In Python the method is a function, since it needs another graph."""
    with pytest.raises(InputError, match=r"use placewright\.data_parallel"):
        make_placer("data-parallel", small_problem())


def test_functions_are_given_a_batch(net):
    """`batch` is passed on to a function that takes it, and its default is known."""
    assert from_function(net, "make", batch=3)[1][0].shape == (3, 64)
    assert from_function(net, "make")[1][0].shape == (8, 64)
    assert from_function(net, "needs", batch=5)[1][0].shape == (5, 64)
    assert [batch_of_function(net, name) for name in ("make", "fixed", "odd")] == [8, None, None]
    with pytest.raises(CaptureError, match=r"fixed takes no batch; write a function with a parameter `batch`"):
        from_function(net, "fixed", batch=3)
    with pytest.raises(CaptureError, match="has to be given some"):
        batch_of_function(net, "needs")


def test_plan_by_towers(net):
    """A function's batch is split over the accelerators; the graph is of towers, and no bound is claimed."""
    result = place("plan", f"{net}:make", "--machine", "k40x4", "--method", "data-parallel", "--json", "--quiet")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["method"], found["bound_s"], found["gap"]) == ("data-parallel", None, None)
    assert found["graph"] in ("Linear, 4 towers", "Linear, 4 replicas")


def test_compare_lists_towers_beside_others(net):
    """The same batch in parts stands in the table, with a note that it is another graph."""
    result = place(
        "compare", f"{net}:make", "--batch", "4096", "--machine", "k40x2", "--methods", "single:gpu:0,data-parallel"
    )
    assert result.exit_code == 0, result.stderr
    assert "data-parallel" in result.stdout
    assert command.NOTE in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["make", "--batch", "7"], "a batch of 7 cannot be split into 2 equal parts"),
        (["fixed"], "has no parameter `batch`"),
        (["make", "--constraint", "pin:*=gpu:0"], "leave constraints out"),
        (["make", "-o", "plan.json"], "leave -o out"),
        (["make", "--machine", "k40x1"], "has one accelerator"),
    ],
)
def test_what_cannot_be_split_says_why(net, options, words):
    """Every reason is an error that names what to change."""
    name, *rest = options
    machine = [] if "--machine" in rest else ["--machine", "k40x2"]
    result = place("plan", f"{net}:{name}", *machine, "--method", "data-parallel", *rest)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_graphs_of_one_batch_are_left_out(tmp_path, step):
    """A graph file has one batch: `compare` does not try towers of it, and says why if asked."""
    file = tmp_path / "step.json"
    pw.write_graph(step, file)
    options = ["compare", str(file), "--machine", "k40x2", "--methods"]
    result = place(*options, "single:gpu:0,data-parallel")
    assert result.exit_code == 0
    assert "data-parallel left out" in result.stderr
    assert "cannot be captured anew" in " ".join(result.stderr.split())

"""Partitioners: the obvious cut, the obvious mapping, balance, rules, and what happens when a library fails."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from placewright.costs import Costs
from placewright.decisions import Decisions
from placewright.errors import InputError, MissingExtraError, ProblemError, UnknownNameError
from placewright.heuristics import partition
from placewright.heuristics.partition import (
    COUNTED,
    Metis,
    MetisParams,
    MinCut,
    MtKahypar,
    MtKahyparParams,
    Scotch,
    ScotchParams,
    by_memory,
    by_work,
)
from placewright.heuristics.partition_calls import run
from placewright.heuristics.sketch import FAR, accelerators, adjacency, sketch, spread, whole
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.methods import search
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import Colocate, Forbid, Pin, Problem, Separate
from placewright.testing import PlacerContract, small_machine, small_problem

METHODS = [Scotch, MinCut, Metis, MtKahypar]
MIB = 1 << 20
HEAVY, LIGHT = 100 * MIB, 1000


class TestScotch(PlacerContract):
    def placer(self, problem):
        return Scotch()


class TestMinCut(PlacerContract):
    def placer(self, problem):
        return MinCut()


class TestMetis(PlacerContract):
    def placer(self, problem):
        return Metis()


class TestMtKahypar(PlacerContract):
    def placer(self, problem):
        return MtKahypar(MtKahyparParams(bounded=("work",)))


# ---- problems with an obvious answer -------------------------------------------------------------


def islands(*island, slow=100, capacity=1 << 40):
    """A machine without hosts whose devices are joined by links that are fast within an island and slow across."""
    names = [f"gpu:{d}" for d in range(len(island))]
    pairs = [(a, b) for a in range(len(island)) for b in range(len(island)) if a != b]
    return Machine(
        "islands",
        tuple(Device(name, "card", name) for name in names),
        tuple(Pool(name, capacity, 1) for name in names),
        tuple(Channel(f"{a}>{b}", 1e10 if island[a] == island[b] else 1e10 / slow) for a, b in pairs),
        tuple(Route(names[a], names[b], (f"{a}>{b}",)) for a, b in pairs),
    )


def clusters(links, size=12, seed=0):
    """A graph of clusters, each operation with heavy tensors to some within; `links` gives (from, to, bytes, tensors).

    Also returns the cluster of every operation. Clusters are woven in program order.
    """
    rng = np.random.default_rng(seed)
    count = 1 + max(max(a, b) for a, b, _, _ in links)
    inputs = {}
    for step in range(size):
        for c in range(count):
            mine = [f"{c}.{s}" for s in range(step)]
            take = min(len(mine), 3)
            inputs[f"{c}.{step}"] = [mine[i] for i in sorted(rng.permutation(len(mine))[:take])] if mine else []
    outputs = {name: [Tensor(HEAVY)] for name in inputs}
    for a, b, size_bytes, tensors in links:
        for s in range(tensors):
            outputs[f"{a}.{s}"].append(Tensor(size_bytes))
            inputs[f"{b}.{size - 1 - s}"].append((f"{a}.{s}", len(outputs[f"{a}.{s}"]) - 1))
    operations = [Operation(name, inputs=inputs[name], outputs=outputs[name]) for name in inputs]
    return build_graph("clusters", operations), np.array([int(name.split(".")[0]) for name in inputs])


def alike(graph, machine, *constraints, seconds=1e-3):
    """A problem whose operations take the same time everywhere."""
    table = np.where(graph.off_queue[:, None], 0.0, np.full((graph.n_ops, len(machine.devices)), seconds))
    return Problem(graph, machine, Costs.given(table), constraints)


def parts_of(placer, problem, seed=1):
    """What the library says, before rules are applied."""
    return placer.partitions(sketch(problem, hosts=placer.hosts), seed)


@pytest.mark.parametrize("method", METHODS)
def test_two_cliques_are_cut_where_they_meet(method):
    """Two dense clusters with one light tensor between them go to a device each."""
    graph, cluster = clusters([(0, 1, LIGHT, 1)])
    result = search(alike(graph, islands(0, 0)), method())
    sides = result.placement.devices
    assert {tuple(np.unique(sides[cluster == c])) for c in (0, 1)} == {(0,), (1,)}


@pytest.mark.parametrize("method", METHODS)
def test_a_planted_partition_is_found(method):
    """Four clusters in a ring of light links: each is a part, whatever the order of its operations."""
    graph, cluster = clusters([(0, 1, LIGHT, 3), (1, 2, LIGHT, 3), (2, 3, LIGHT, 3), (0, 3, LIGHT, 3)])
    parts = parts_of(method(), alike(graph, islands(0, 0, 0, 0)))[0]
    whose = [np.unique(parts[cluster == c]) for c in range(4)]
    assert sorted(int(part) for row in whose for part in row) == [0, 1, 2, 3]


@pytest.mark.parametrize("method", [Scotch, MinCut, MtKahypar])
@pytest.mark.parametrize("island", [(0, 1, 0, 1), (0, 0, 1, 1), (0, 1, 1, 0)])
def test_what_talks_much_stays_on_an_island(method, island):
    """Of four clusters, 0 talks to 2 and 1 to 3: each pair shares an island of the machine, and no device."""
    middle = HEAVY // 10
    graph, cluster = clusters([(0, 2, middle, 6), (1, 3, middle, 6), (0, 1, LIGHT, 1), (2, 3, LIGHT, 1)])
    parts = parts_of(method(), alike(graph, islands(*island)))[0]
    where = [np.unique(parts[cluster == c]) for c in range(4)]
    assert sorted(int(part) for row in where for part in row) == [0, 1, 2, 3]
    on = [island[int(row[0])] for row in where]
    assert (on[0], on[1]) == (on[2], on[3])
    assert on[0] != on[1]


# ---- balance -------------------------------------------------------------------------------------


def mixed(seed, n=600):
    """A generated graph with short-range edges and work from 1 to 9 ms, on devices of speed 4, 2, 1 and 1."""
    rng = np.random.default_rng(seed)
    operations = []
    for i in range(n):
        reads = sorted({max(0, i - int(step)) for step in rng.integers(1, 25, 3)} - {i})
        size = int(rng.integers(1, 9)) * MIB
        operations.append(Operation(f"o{i}", inputs=[f"o{j}" for j in reads], outputs=[Tensor(size)]))
    work = rng.integers(1, 10, n) * 1e-3
    speed = np.array([4.0, 2.0, 1.0, 1.0])
    graph = build_graph("mixed", operations)
    return Problem(graph, islands(0, 0, 1, 1, slow=10), Costs.given(work[:, None] / speed * 4)), work, speed


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("method", "imbalance"), [(Scotch, 0.01), (Metis, 0.03), (MtKahypar, 0.03)])
def test_work_is_balanced_by_speed(method, imbalance, seed):
    """No device has more than its share of the work, the stated imbalance, and one operation."""
    problem, work, speed = mixed(seed)
    seen = sketch(problem)
    assert seen.speed == pytest.approx(speed / 4)
    parts = parts_of(method(), problem, seed + 1)[0]
    load = np.bincount(parts, weights=work, minlength=4)
    assert (load <= work.sum() * speed / speed.sum() * (1 + imbalance) + work.max()).all()
    assert (load > 0).all()


def test_metis_makes_equal_parts_if_asked():
    """Targets by number, not by speed."""
    problem, work, _ = mixed(0)
    parts = parts_of(Metis(MetisParams(targets="equal")), problem)[0]
    load = np.bincount(parts, weights=work, minlength=4)
    assert (load <= work.sum() / 4 * 1.03 + work.max()).all()


def test_a_tighter_imbalance_is_kept():
    """The imbalance is a parameter."""
    problem, work, speed = mixed(1)
    share = work.sum() * speed / speed.sum()
    for imbalance in (0.002, 0.3):
        placer = MtKahypar(MtKahyparParams(imbalance=imbalance, bounded=("work",)))
        load = np.bincount(parts_of(placer, problem)[0], weights=work, minlength=4)
        assert (load <= share * (1 + imbalance) + 1e-6).all()


# ---- memory --------------------------------------------------------------------------------------


def weights_of(*mib):
    """Parameters of so many MiB, each read by an operation that feeds the next."""
    operations = []
    for k, size in enumerate(mib):
        operations.append(Operation(f"w{k}", phase="parameter", outputs=[Tensor(size * MIB)], colocation=f"c{k}"))
        before = [f"o{k - 1}"] if k else []
        operations.append(
            Operation(f"o{k}", inputs=[f"w{k}", *before], outputs=[Tensor(1 + k % 3 * MIB)], colocation=f"c{k}")
        )
    return build_graph("weights", operations)


def test_mt_kahypar_keeps_within_memory():
    """Blocks are bounded by what the pools hold, before anything is repaired, unequal pools too."""
    machine = islands(0, 0, 0, 0, capacity=100 * MIB).with_memory({"gpu:1": 40 * MIB})
    problem = alike(weights_of(*[5] * 60), machine)
    parts = parts_of(MtKahypar(MtKahyparParams(bounded=("memory",))), problem)[0]
    seen = sketch(problem)
    held = np.bincount(parts, weights=seen.held_bytes, minlength=4)
    assert seen.held_bytes.sum() == 300 * MIB
    assert (held <= np.array([100, 40, 100, 100]) * MIB).all()


def test_hosts_hold_only_what_accelerators_cannot():
    """A host has no room where the accelerators hold all, and the rest where they do not."""
    graph = weights_of(*[10] * 20)
    for card_mib, host_mib in ((300, 0), (50, 110)):
        machine = small_machine(3, 1 << 30).with_memory({"gpu:0": card_mib * MIB, "gpu:1": card_mib * MIB})
        weight, room = by_memory(sketch(alike(graph, machine)))
        unit = 10 * MIB / weight[0]
        assert room[0] * unit == pytest.approx(host_mib * MIB, abs=0.01 * MIB)
        assert (room[1:] * unit <= 1.001 * card_mib * MIB).all()


def test_kept_activations_are_held():
    """What backward reads of forward counts as held by its maker; what forward alone reads does not."""
    graph = build_graph(
        "step",
        [
            Operation("x", phase="input", outputs=[Tensor(10)]),
            Operation("w", phase="parameter", outputs=[Tensor(100)]),
            Operation("f", inputs=["x", "w"], outputs=[Tensor(1000)]),
            Operation("v", kind="view", inputs=["f"], outputs=[Tensor(1000, ("f", 0))]),
            Operation("g", inputs=["v"], outputs=[Tensor(10_000)]),
            Operation("b", phase="backward", inputs=["x", "v"], outputs=[Tensor(100_000)]),
        ],
    )
    problem = alike(graph, islands(0, 0))
    held = dict(zip((graph.op_names[i] for i in problem.leaders), sketch(problem).held_bytes, strict=True))
    assert held == {"x": 10, "w": 100, "f": 1000, "g": 0, "b": 0}


def test_capacities_that_do_not_suffice_grow_alike():
    """A problem larger than all pools still has a partition; the simulator says that it does not fit."""
    problem = alike(weights_of(*[10] * 20), islands(0, 0, capacity=50 * MIB))
    weight, room = by_memory(sketch(problem))
    assert room.sum() >= weight.sum()
    assert room[0] == room[1]


# ---- rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Scotch, MinCut, MtKahypar])
def test_libraries_are_told_of_pins(method):
    """A group with one device is there in what the library says, and its cluster follows."""
    graph, cluster = clusters([(0, 1, LIGHT, 1)])
    for device in (0, 1):
        problem = alike(graph, islands(0, 0), Pin(("0.3",), (f"gpu:{device}",)))
        parts = parts_of(method(), problem)[0]
        assert parts[graph.op("0.3")] == device
        assert (parts[cluster == 0] == device).mean() > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_every_rule_is_kept(method):
    """Pins, forbids, colocations and separations hold in the placement."""
    graph, _ = clusters([(0, 1, LIGHT, 1), (1, 2, LIGHT, 1)])
    rules = (
        Pin(("0.3",), ("gpu:2",)),
        Forbid(("1.*",), ("gpu:0",)),
        Colocate(("0.5", "2.5")),
        Separate(("2.1", "0.1")),
    )
    problem = alike(graph, islands(0, 0, 0), *rules)
    problem.check(search(problem, method()).placement)


def test_mincut_leaves_to_the_host_what_only_it_can_run():
    """The host has what runs nowhere else, and nothing besides."""
    graph, _ = clusters([(0, 1, LIGHT, 2)])
    machine = small_machine(3, 1 << 40)
    seconds = np.full((graph.n_ops, 3), 1e-3)
    stuck = [graph.op("0.2"), graph.op("1.7")]
    seconds[stuck, 1:] = np.inf
    problem = Problem(graph, machine, Costs.given(seconds))
    seen = sketch(problem, hosts=False)
    assert seen.blocks.tolist() == [1, 2]
    assert len(seen.vertices) == graph.n_ops - 2
    devices = search(problem, MinCut()).placement.devices
    assert np.flatnonzero(devices == 0).tolist() == sorted(stuck)
    assert set(devices.tolist()) == {0, 1, 2}
    assert (search(problem, Scotch()).placement.devices == 0).sum() > 2


def test_a_machine_of_hosts_alone_has_accelerators():
    """Where there is nothing but hosts, they are what MinCut maps onto."""
    graph, _ = clusters([(0, 1, LIGHT, 1)])
    machine = islands(0, 0)
    hosts = Machine(
        "hosts",
        tuple(Device(d.name, d.model, d.pool, d.name) for d in machine.devices),
        machine.pools,
        machine.channels,
        machine.routes,
    )
    problem = alike(graph, hosts)
    assert accelerators(problem.machine).tolist() == [0, 1]
    assert set(search(problem, MinCut()).placement.devices.tolist()) == {0, 1}


# ---- what partitioners see -----------------------------------------------------------------------


def test_edges_and_nets_count_a_tensor_once_for_each_reader(fork8):
    """One tensor with six readers is six edges and one net; six tensors to one reader are six of both."""
    seen = sketch(alike(fork8, islands(0, 0)))
    one, two, seconds = seen.edges
    assert list(zip(one.tolist(), two.tolist(), strict=True)) == [
        *((0, k) for k in range(1, 7)),
        *((k, 7) for k in range(1, 7)),
    ]
    assert seconds == pytest.approx([600 / 1e10] * 6 + [100 / 1e10] * 6)
    start, pins, weight = seen.nets
    assert [pins[a:b].tolist() for a, b in itertools.pairwise(start)] == [
        [0, 1, 2, 3, 4, 5, 6],
        *([k, 7] for k in range(1, 7)),
    ]
    assert weight == pytest.approx([600 / 1e10] + [100 / 1e10] * 6)


def test_groups_are_vertices(fork8):
    """Colocated operations are one vertex: reads among them vanish, and a reader twice is a reader once."""
    seen = sketch(alike(fork8, islands(0, 0), Colocate(("source", "arm0")), Colocate(("arm1", "arm2"))))
    assert len(seen.vertices) == 6
    one, two, seconds = seen.edges
    found = {(a, b): round(s * 1e10) for a, b, s in zip(one.tolist(), two.tolist(), seconds.tolist(), strict=True)}
    assert found == {(0, 1): 600, (0, 2): 600, (0, 3): 600, (0, 4): 600, (0, 5): 100,
                     (1, 5): 200, (2, 5): 100, (3, 5): 100, (4, 5): 100}  # fmt: skip
    assert seen.work_s == pytest.approx([2e-3, 2e-3, 1e-3, 1e-3, 1e-3, 1e-3])


def test_distances_are_of_a_mean_transfer():
    """The nearest devices are at 10, others in proportion, those without a route as far as can be."""
    graph, _ = clusters([(0, 1, LIGHT, 1)])
    machine = islands(0, 0, 1, slow=7)
    distance = sketch(alike(graph, machine)).distance
    assert distance.tolist() == [[0, 10, 70], [10, 0, 70], [70, 70, 0]]
    alone = Machine("cut", machine.devices, machine.pools, machine.channels, (machine.routes[0], machine.routes[2]))
    assert sketch(alike(graph, alone)).distance[0].tolist() == [0, 10, FAR]


def test_work_is_by_the_fastest_accelerator():
    """An operation's work is its time on the fastest accelerator, or on the host if it can run there alone."""
    graph = build_graph("three", [Operation(name) for name in "abc"])
    machine = small_machine(3)
    seconds = np.array([[1.0, 4.0, 2.0], [3.0, np.inf, np.inf], [1.0, 2.0, np.inf]])
    seen = sketch(Problem(graph, machine, Costs.given(seconds)))
    assert seen.work_s.tolist() == [2.0, 3.0, 2.0]
    assert seen.speed == pytest.approx([7 / 5, 4 / 6, 1.0])


def test_spread_gives_each_to_the_first_to_finish():
    """By falling work: 6 to the fast block, 5 to the same (11 / 3 < 5), 4 to the slow one; what is fixed stays."""
    parts = spread(np.array([5.0, 4.0, 6.0, 1.0]), np.array([3.0, 1.0]), np.array([-1, -1, -1, 1]))
    assert parts.tolist() == [0, 0, 0, 1]
    parts = spread(np.array([5.0, 4.0, 6.0]), np.array([2.0, 1.0]), np.array([-1, -1, -1]))
    assert parts.tolist() == [1, 0, 0]


def test_without_edges_work_is_spread():
    """No library is asked where nothing passes between groups."""
    graph = build_graph("apart", [Operation(f"op{i}") for i in range(9)])
    for method in METHODS:
        devices = search(alike(graph, islands(0, 0, 0)), method()).placement.devices
        assert np.bincount(devices).tolist() == [3, 3, 3]


def test_whole_numbers_keep_proportions():
    """Weights sum to about what is asked and are never 0."""
    assert whole(np.array([1.0, 3.0, 0.0]), 4000).tolist() == [1000, 3000, 1]
    assert whole(np.zeros(3), 4000).tolist() == [1, 1, 1]


def test_adjacency_has_every_edge_twice():
    """Both ends list the other, by number."""
    start, neighbour, weight = adjacency(4, (np.array([0, 0, 1]), np.array([3, 1, 3]), np.array([7, 5, 6])))
    assert start.tolist() == [0, 2, 4, 4, 6]
    assert neighbour.tolist() == [1, 3, 0, 3, 0, 1]
    assert weight.tolist() == [5, 7, 5, 6, 7, 6]


@pytest.mark.parametrize("nets", [1, 1000, 200_000])
def test_trees_stay_within_32_bits(nets):
    """Sum of weights times the longest tree is within what the library can count, for any number of nets."""
    distance = np.full((9, 9), FAR)
    np.fill_diagonal(distance, 0)
    small, total = partition._within(distance, nets)
    assert (small[distance > 0] >= 1).all()
    assert max(total, nets) * int(small[0].sum()) <= COUNTED * 1.01


def test_work_and_room_are_in_one_unit():
    """The room of all blocks is the work and the imbalance."""
    seen = sketch(mixed(0)[0])
    work, room = by_work(seen, 0.03)
    assert room.sum() == pytest.approx(1.03 * work.sum(), rel=1e-6)
    assert room[0] == pytest.approx(4 * room[2], rel=1e-6)


# ---- the libraries -------------------------------------------------------------------------------

AGAIN = """
import sys
sys.path.insert(0, {root!r})
from tests.test_partition import METHODS, asked
print([asked(method) for method in METHODS])
"""


def asked(method):
    """The placements of one search."""
    placer = method()
    placer.start(mixed(2)[0], np.random.default_rng(5))
    return [placement.key.hex() for placement in placer.ask()]


def test_same_seed_same_bytes_in_another_process(pytestconfig):
    """Nothing but the seed decides, whatever the hashes of strings."""
    script = AGAIN.format(root=str(pytestconfig.rootpath))
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, env={"PYTHONHASHSEED": "77"}, capture_output=True, text=True, check=True).stdout
    assert told.strip() == str([asked(method) for method in METHODS])


@pytest.mark.parametrize(
    ("method", "package"), [(Scotch, "pyscotch"), (MinCut, "pyscotch"), (Metis, "pymetis"), (MtKahypar, "mtkahypar")]
)
def test_a_missing_extra_names_the_command(method, package, monkeypatch):
    """Without its library a method says how to install it."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'placewright\[partition\]'") as caught:
        method().start(small_problem(), np.random.default_rng(0))
    assert package in str(caught.value)


def some_call():
    """Arguments of a small call of Mt-KaHyPar."""
    return {
        "start": [0, 2, 4, 6], "pins": [0, 1, 1, 2, 2, 3], "weight": [1, 5, 1], "work": [1] * 4, "room": [2, 2],
        "fixed": [-1] * 4, "preset": "quality", "seed": 1,
    }  # fmt: skip


def test_a_library_that_fails_is_an_error_of_ours():
    """Its own words, or its signal, are told; a call that works still does."""
    assert sorted(np.bincount(run("mt-kahypar", some_call(), 60.0)).tolist()) == [2, 2]
    with pytest.raises(ProblemError, match=r"mt-kahypar failed on this problem .*NOTHING.*another method"):
        run("mt-kahypar", some_call() | {"preset": "nothing"}, 60.0)


def test_a_library_that_takes_too_long_is_stopped():
    """The limit of time ends it, with what would help."""
    with pytest.raises(ProblemError, match=r"mt-kahypar was stopped after 0.01 s; allow it more by `limit_s`"):
        run("mt-kahypar", some_call(), 0.01)


def test_a_mapping_that_fails_becomes_a_partition(monkeypatch):
    """Where mapping fails under every preset, the hypergraph is partitioned without distances."""
    asked = []

    def failing(name, arguments, limit_s):
        asked.append(("distance" in arguments, arguments["preset"]))
        if "distance" in arguments:
            raise ProblemError("mt-kahypar failed on this problem (signal 11); use another method")
        return run(name, arguments, limit_s)

    monkeypatch.setattr(partition, "run", failing)
    graph, _ = clusters([(0, 1, LIGHT, 1)])
    parts = parts_of(MtKahypar(MtKahyparParams(bounded=("work",))), alike(graph, islands(0, 0, 0)))[0]
    assert asked == [(True, "quality"), (True, "deterministic"), (False, "quality")]
    assert set(parts.tolist()) == {0, 1, 2}


def test_mt_kahypar_asks_for_both_bounds():
    """One placement bounded by work and one by memory, fewer where they are equal."""
    problem = mixed(0)[0]
    both = search(problem, MtKahypar())
    single = [search(problem, MtKahypar(MtKahyparParams(bounded=(each,)))) for each in ("work", "memory")]
    assert both.evaluations == len({result.placement for result in single})
    assert both.value_s == min(result.value_s for result in single)


def test_unknown_devices_of_groups_are_the_fastest():
    """A group that is no vertex gets the fastest device that it may use."""
    graph = build_graph("two", [Operation("a", outputs=[Tensor(1)]), Operation("b", inputs=["a"])])
    seconds = np.array([[2.0, np.inf, np.inf], [2.0, 1.0, 1.0]])
    problem = Problem(graph, small_machine(3), Costs.given(seconds))
    seen = sketch(problem, hosts=False)
    assert seen.devices(np.array([1]), Decisions(problem)).tolist() == [0, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ScotchParams(imbalance=0.0),
        lambda: ScotchParams(limit_s=-1.0),
        lambda: MetisParams(imbalance=1.5),
        lambda: MetisParams(targets="size"),
        lambda: MtKahyparParams(bounded=()),
        lambda: MtKahyparParams(bounded=("time",)),
        lambda: MtKahyparParams(preset="best"),
    ],
)
def test_parameters_out_of_range_are_refused(make):
    """Every parameter names itself and its range."""
    with pytest.raises((InputError, UnknownNameError), match=r"allowed|Known"):
        make()

"""Mayer, Mayer and Laich's partitioners and schedulers: examples worked by hand, and plain twins."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.costs import Costs
from placewright.errors import InfeasibleError, InputError, UnknownNameError
from placewright.heuristics.bundles import Bundles
from placewright.heuristics.critical_path import (
    ORDERED_METHODS,
    PARTITIONERS,
    SINGLE_METHODS,
    Mayer,
    MayerParams,
    partitions,
)
from placewright.heuristics.filling import Filling
from placewright.heuristics.longest_paths import cut_longest_paths
from placewright.heuristics.paths import Paths
from placewright.heuristics.ready_order import ORDERS
from placewright.heuristics.traffic import Traffic
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.methods import make_placer, method_names, search
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import Colocate, Forbid, Pin, Problem, Separate
from placewright.sim import simulate
from placewright.testing import PlacerContract, small_machine, small_problem
from tests.strategies import random_problem


def contract(params):
    """The contract of one method."""
    return type("Contract", (PlacerContract,), {"placer": lambda self, problem: Mayer(params)})


for _params in {**SINGLE_METHODS, **ORDERED_METHODS}.values():
    _name = "Test" + _params.method.replace("-", " ").replace("+", " ").title().replace(" ", "")
    globals()[_name] = type(_name, (contract(_params),), {})


# ---- Examples worked by hand --------------------------------------------------------------------------------


def pair(bytes_each=1000, latency_s=0.0):
    """Two devices that send a byte per second."""
    return Machine(
        "pair",
        (Device("a", "fast", "a"), Device("b", "slow", "b")),
        (Pool("a", bytes_each, 1), Pool("b", bytes_each, 1)),
        (Channel("ab", 1.0, latency_s), Channel("ba", 1.0, latency_s)),
        (Route("a", "b", ("ab",)), Route("b", "a", ("ba",))),
    )


def problem_of(operations, seconds, machine=None, **options):
    """A problem from operations and their seconds on both devices."""
    graph = build_graph("by hand", operations)
    machine = machine or pair()
    table = np.array([seconds.get(name, (0.0,) * len(machine.devices)) for name in graph.op_names])
    return Problem(graph, machine, Costs.given(table), **options)


def seven(**options):
    """s feeds x and y, which feed t; u feeds v; t and v feed w. Device b takes twice as long as a.

    seconds on a    s 2, x 4, y 1, t 2, u 4, v 1, w 1: the mean of a and b is 1.5 times that
    bytes           s 2, t 4, the others 1
    """
    operations = [
        Operation("s", outputs=[Tensor(2)]),
        Operation("x", inputs=["s"], outputs=[Tensor(1)]),
        Operation("y", inputs=["s"], outputs=[Tensor(1)]),
        Operation("t", inputs=["x", "y"], outputs=[Tensor(4)]),
        Operation("u", outputs=[Tensor(1)]),
        Operation("v", inputs=["u"], outputs=[Tensor(1)]),
        Operation("w", inputs=["t", "v"], outputs=[Tensor(1, output=True)]),
    ]
    seconds = {"s": 2, "x": 4, "y": 1, "t": 2, "u": 4, "v": 1, "w": 1}
    return problem_of(operations, {name: (a, 2 * a) for name, a in seconds.items()}, **options)


def where(problem, partitioner):
    """Operations by device, as text: `a: s x, b: y`."""
    devices = problem.lift(partitions(problem, [partitioner])[partitioner])
    names = problem.graph.op_names
    rows = [[n for n, d in zip(names, devices, strict=True) if d == k] for k in range(problem.n_devices)]
    return ", ".join(f"{d.name}: {' '.join(row)}" for d, row in zip(problem.machine.devices, rows, strict=True) if row)


def test_ranks_by_hand():
    """Upward ranks, the way along them, and importance as a share of the longest path."""
    paths = Paths(seven())
    rank, following = paths.upward
    # w 1.5; t 3 + 4 + 1.5; x 6 + 1 + 8.5; y 1.5 + 1 + 8.5; s 3 + 2 + 15.5; v 1.5 + 1 + 1.5; u 6 + 1 + 4
    assert rank == [20.5, 15.5, 11.0, 8.5, 11.0, 4.0, 1.5]
    assert following == [1, 3, 3, 6, 5, 6, -1]
    # s x t w: 13.5; through y: 3 + 1.5 + 3 + 1.5 = 9; u v w: 6 + 1.5 + 1.5 = 9
    assert paths.importance.tolist() == [1, 1, 0.666666667, 1, 0.666666667, 0.666666667, 1]


def test_hash_by_hand():
    """In turn, in program order."""
    assert where(seven(), "hash") == "a: s y u w, b: x t v"


def test_cp_by_hand():
    """s, x, t and w, the critical path, go to a: 9 s. Then y to b (0 s there), u to b (2 s), v to a (9 s, b has 10)."""
    assert where(seven(), "cp") == "a: s x t v w, b: y u"


def test_icp_by_hand():
    """s, x, t, w go to a (9 s); the longest path left, u and v, to b (10 s); y to a."""
    assert where(seven(), "icp") == "a: s x y t w, b: u v"


def test_batchsplit_by_hand():
    """By importance s x t w, y u v; the first four of seven are in the first half and go to the faster device."""
    assert where(seven(), "batchsplit") == "a: s x t w, b: y u v"


def test_dfs_by_hand():
    """Depth first s x t w y u v.

    s is faster on a; x, t, w and y would have to be sent something anywhere else. At u nothing is sent either way:
    10 + 4 s on a, 8 s on b. At v a byte is sent either way: u's to a, or v's to w; 10 + 1 s on a, 8 + 2 s on b.
    """
    assert where(seven(), "dfs") == "a: s x y t w, b: u v"


def test_mite_by_hand():
    """Importance draws to the fast device what is not on the critical path too.

    Nothing is held, so memory is alike. At u: on a 1 - 2/3 of importance x (9 + 4) / 13 of execution = 0.333, on b
    1 - 2/3 x 1/2 = 0.667 x 8 / 13 = 0.410.
    """
    assert where(seven(), "mite") == "a: s x y t u v w"


def weighted(weights, reads=(), **options):
    """Operations f0, f1, ... of 2 s on either device, each with a weight; `reads` are pairs (reader, source)."""
    operations, seconds = [], {}
    for k, size in enumerate(weights):
        operations.append(Operation(f"w{k}", phase="parameter", outputs=[Tensor(size)]))
        inputs = [f"w{k}", *(f"f{source}" for reader, source in reads if reader == k)]
        operations.append(Operation(f"f{k}", inputs=inputs, outputs=[Tensor(10)]))
        seconds[f"f{k}"] = (2.0, 2.0)
    return problem_of(operations, seconds, **options)


def test_mite_spreads_memory_by_hand():
    """Two operations that have nothing to do with each other.

    Both devices are alike to f0, so it goes to a, which is 0.3 full then. For f1, memory counts 0.3 on a and a tenth
    of that on b, where nothing is; execution 4 / 4 on a, 2 / 4 on b.
    """
    assert where(weighted([300, 300]), "mite") == "a: w0 f0, b: w1 f1"


def test_mite_keeps_together_what_talks_by_hand():
    """Where f1 reads f0, staying sends nothing: a factor of a millionth beats the tenth that memory gives."""
    assert where(weighted([300, 300], [(1, 0)]), "mite") == "a: w0 f0 w1 f1"


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_what_does_not_fit_goes_elsewhere(partitioner):
    """With room for one weight on each device, a chain is cut."""
    problem = weighted([300, 300], [(1, 0)], machine=pair(500))
    assert where(problem, partitioner) == "a: w0 f0, b: w1 f1"


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_where_nothing_fits_a_placement_still_comes(partitioner):
    """Three weights of 300 bytes and two pools of 450: one is too full, and the outcome says so."""
    problem = weighted([300] * 3, [(1, 0), (2, 1)], machine=pair(450))
    placer = Mayer(MayerParams(partitioner))
    placer.start(problem, np.random.default_rng(0))
    assert simulate(problem, placer.ask()[0]).reason == "memory"


def test_icp_halves_a_path_that_fits_nowhere():
    """Four weights in a chain, two to a device: halves go whole, the first to a, the second to b."""
    problem = weighted([300] * 4, [(1, 0), (2, 1), (3, 2)], machine=pair(700))
    assert where(problem, "icp") == "a: w0 f0 w1 f1, b: w2 f2 w3 f3"


def test_hash_takes_bundles_of_several_first():
    """f1 with its weight is first in turn, though s comes before it in program order."""
    operations = [
        Operation("s", outputs=[Tensor(1)]),
        Operation("w", phase="parameter", outputs=[Tensor(1)]),
        Operation("f", inputs=["s", "w"], outputs=[Tensor(1)]),
    ]
    assert where(problem_of(operations, {"s": (1, 1), "f": (1, 1)}), "hash") == "a: w f, b: s"


# ---- Bundles ------------------------------------------------------------------------------------------------


def bundles_of(problem):
    """Names by bundle."""
    found = {}
    for name, b in zip(problem.graph.op_names, Bundles(problem).of_op.tolist(), strict=True):
        found.setdefault(b, []).append(name)
    return [" ".join(row) for row in found.values()]


def test_a_bundle_is_a_reader_with_its_weight_and_update():
    """The update and its state are with the weight, the weight with its first reader, an input with its own."""
    operations = [
        Operation("x", phase="input", outputs=[Tensor(8)]),
        Operation("w", phase="parameter", outputs=[Tensor(8)]),
        Operation("m", phase="parameter", outputs=[Tensor(8)]),
        Operation("f", inputs=["x", "w"], outputs=[Tensor(8)]),
        Operation("g", phase="backward", inputs=["f", "w"], outputs=[Tensor(8)]),
        Operation("up", phase="update", inputs=["g", "w", "m"],
                  outputs=[Tensor(8, ("w", 0), in_place=True), Tensor(8, ("m", 0), in_place=True)]),
        Operation("sw", phase="store", inputs=["up"]),
        Operation("sm", phase="store", inputs=[("up", 1)]),
    ]  # fmt: skip
    seconds = {"f": (1, 1), "g": (1, 1), "up": (1, 1)}
    assert bundles_of(problem_of(operations, seconds)) == ["x w m f up sw sm", "g"]


def test_an_update_of_many_weights_joins_none():
    """One operation that updates all weights does not make one bundle of the network."""
    operations = [
        *(Operation(f"w{k}", phase="parameter", outputs=[Tensor(8)]) for k in range(2)),
        *(Operation(f"f{k}", inputs=[f"w{k}"], outputs=[Tensor(8)]) for k in range(2)),
        Operation("up", phase="update", inputs=["f0", "f1", "w0", "w1"],
                  outputs=[Tensor(8, (f"w{k}", 0), in_place=True) for k in range(2)]),
        *(Operation(f"s{k}", phase="store", inputs=[("up", k)]) for k in range(2)),
    ]  # fmt: skip
    seconds = {"f0": (1, 1), "f1": (1, 1), "up": (1, 1)}
    assert bundles_of(problem_of(operations, seconds)) == ["w0 f0 s0", "w1 f1 s1", "up"]


@pytest.mark.parametrize(
    "rules",
    [
        (Pin(("w0",), ("a",)), Pin(("f0",), ("b",))),
        (Separate(("w0", "f0")),),
    ],
)
def test_rules_keep_a_weight_from_its_reader(rules):
    """Where the two may not be together, each is placed by itself, and the rules hold."""
    problem = weighted([8], constraints=rules)
    assert bundles_of(problem) == ["w0", "f0"]
    for name in PARTITIONERS:
        problem.placement(problem.lift(partitions(problem, [name])[name]))


def test_a_weight_too_large_for_its_readers_devices_stays_free():
    """f0 may be on b alone, where its weight does not fit: the weight is on a."""
    machine = Machine("m", pair().devices, (Pool("a", 1000, 1), Pool("b", 100, 1)), pair().channels, pair().routes)
    problem = weighted([300], machine=machine, constraints=(Pin(("f0",), ("b",)),))
    assert bundles_of(problem) == ["w0", "f0"]
    assert where(problem, "cp") == "a: w0, b: f0"


# ---- Rules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_every_constraint_holds(partitioner):
    """Pins, forbids, colocations and separations hold together."""
    rules = (Pin(("s",), ("b",)), Forbid(("x",), ("a",)), Colocate(("y", "u")), Separate(("t", "v")))
    problem = seven(constraints=rules)
    devices = problem.lift(partitions(problem, [partitioner])[partitioner])
    problem.placement(devices)
    assert devices[3] != devices[5]


def test_a_separation_that_leaves_nothing_is_told():
    """Three operations apart on two devices: the error names one of them."""
    problem = seven(constraints=(Separate(("s", "x", "u")),))
    with pytest.raises(InfeasibleError, match="kept apart"):
        partitions(problem, ["hash"])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 24))
def test_random_problems_are_placed_within_their_rules(seed, n_ops):
    """Any graph, machine and set of rules: every partitioner gives a valid placement, twice the same."""
    problem, _ = random_problem(random.Random(seed), n_ops)
    try:
        made, again = partitions(problem), partitions(problem)
    except InfeasibleError:
        assert problem.separated  # only separations can leave nothing, when decided one by one
        return
    for name, groups in made.items():
        problem.placement(problem.lift(groups))
        assert groups.tolist() == again[name].tolist()


# ---- Plain twins --------------------------------------------------------------------------------------------


def twin_paths(problem):
    """Longest paths by measuring all that is left again and again."""
    paths, of_op = Paths(problem), Bundles(problem).of_op
    left = set(range(problem.n_ops))
    while left:
        length, following = {}, {}
        for v in sorted(left, reverse=True):
            known = [s for s in paths.after[v] if s in left]
            following[v] = max(known, key=lambda s: (length[s], -s), default=-1)
            length[v] = paths.work[v] + (length[following[v]] if known else 0.0)
        v = min(left, key=lambda v: (-length[v], v))
        found = []
        while v >= 0:
            if of_op[v] not in found:
                found.append(int(of_op[v]))
            v = following[v]
        yield found
        left -= {v for v in left if of_op[v] in found}


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 40))
def test_longest_paths_are_those_of_a_plain_twin(seed, n_ops):
    """Looking again at a few operations finds the same paths as looking at all."""
    problem, _ = random_problem(random.Random(seed), n_ops)
    assert list(cut_longest_paths(Paths(problem), Bundles(problem))) == list(twin_paths(problem))


def traffic_of(problem, bundles, links, device):
    """Seconds of all transfers between bundles that are placed, each tensor once per destination."""
    graph, total = problem.graph, 0.0
    for t in range(graph.n_tensors):
        home = device[bundles.of_op[graph.tensor_op[t]]]
        readers = graph.read_op[graph.in_tensor == t]
        there = {device[bundles.of_op[r]] for r in readers} - {home, -1}
        for d in sorted(there) if home >= 0 else ():
            given_s = graph.tensor_transfer_s[t]
            moved = links.latency_s[home, d] + graph.tensor_bytes[t] * links.per_byte_s[home, d]
            total += given_s if links.routed[home, d] and not np.isnan(given_s) else moved
    return total


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 14))
def test_added_traffic_is_the_difference_of_all_traffic(seed, n_ops):
    """Whatever is placed where: what a bundle adds is all traffic with it less all traffic without it."""
    rng = random.Random(seed)
    problem, _ = random_problem(rng, n_ops)
    bundles, paths = Bundles(problem), Paths(problem)
    filling, traffic = Filling(bundles), Traffic(bundles, paths)
    order = list(range(bundles.count))
    rng.shuffle(order)
    for b in order:
        among = [d for d in range(problem.n_devices) if np.isfinite(bundles.seconds[b, d])]
        before = traffic_of(problem, bundles, paths.links, filling.device)
        added = traffic.added(b, among, filling)
        for d, seconds in zip(among, added, strict=True):
            after = list(filling.device)
            after[b] = d
            assert traffic_of(problem, bundles, paths.links, after) - before == pytest.approx(seconds, abs=1e-5)
        traffic.put(b, rng.choice(among), filling)


# ---- Schedulers ---------------------------------------------------------------------------------------------


def fan(**options):
    """p, q and r on a; p1 reads p there; q1 and q2 read q on b; r1 reads p and r on b. A message takes 1 s.

    All take 1 s but p1, which takes 5.
    """
    operations = [
        *(Operation(name, outputs=[Tensor(0)]) for name in "pqr"),
        Operation("p1", inputs=["p"]),
        Operation("q1", inputs=["q"]),
        Operation("q2", inputs=["q"]),
        Operation("r1", inputs=["p", "r"]),
    ]
    seconds = dict.fromkeys(("p", "q", "r", "q1", "q2", "r1"), (1, 1)) | {"p1": (5, 5)}
    return problem_of(operations, seconds, pair(latency_s=1.0), **options), np.array([0, 0, 0, 0, 1, 1, 1])


def order_of(problem, devices, scheduler):
    """Names by falling priority."""
    priorities = ORDERS[scheduler](Paths(problem), devices)
    return " ".join(problem.graph.op_names[v] for v in np.argsort(-priorities, kind="stable"))


def test_fifo_by_hand():
    """p q r are ready at 0; p1 at 1, when p ends; q1 and q2 at 3, as q ends at 2; r1 at 4, as r ends at 3."""
    assert order_of(*fan(), "fifo") == "p q r p1 q1 q2 r1"


def test_pct_by_hand():
    """The way to an end: p 1 + 5, q and r 1 + 1 (message) + 1, p1 5, the others 1."""
    problem, devices = fan()
    assert ORDERS["pct"](Paths(problem), devices).tolist() == [6, 3, 3, 5, 1, 1, 1]


def test_msr_by_hand():
    """At 0: p has a reader here and one there that waits for two (1 + 2); r 2; q has two there that wait for it alone
    on an idle device (2 x 8). So q first. At 1, p. At 2, p's message is on its way, r (2) is before p1 (0), and b
    starts q1. At 3 come p1 and q2, at 4 r1.
    """
    assert order_of(*fan(), "msr") == "q p r q1 p1 q2 r1"


def test_a_device_with_work_is_not_idle():
    """p has 4 readers here: 4. q has one there that waits for it alone: 3 while b has work, 8 while it has none."""
    operations = [
        *(Operation(f"k{n}") for n in range(9)),
        Operation("p", outputs=[Tensor(0)]),
        Operation("q", outputs=[Tensor(0)]),
        *(Operation(f"here{n}", inputs=["p"]) for n in range(4)),
        Operation("there", inputs=["q"]),
    ]
    seconds = {operation.name: (1, 1) for operation in operations}
    problem = problem_of(operations, seconds, pair(latency_s=1.0))
    devices = np.array([1] * 9 + [0] * 6 + [1])
    assert [name for name in order_of(problem, devices, "msr").split() if name in "pq"] == ["p", "q"]
    alone = problem_of(operations[9:], seconds, pair(latency_s=1.0))
    assert order_of(alone, devices[9:], "msr").split()[0] == "q"


def twin_msr(problem, devices):
    """The order of starts, with every score computed anew at every start."""
    paths = Paths(problem)
    graph, links, n = problem.graph, paths.links, problem.n_ops
    pool = problem.machine.pool_of
    cost = [problem.costs.seconds[v, devices[v]] for v in range(n)]

    def message(v, d):
        tensors = {int(t) for r, t in zip(graph.read_op, graph.in_tensor, strict=True)
                   if graph.tensor_op[t] == v and devices[r] == d}  # fmt: skip
        if pool[devices[v]] == pool[d] or not tensors:
            return None
        seconds = latency = 0.0
        for t in sorted(tensors):
            if np.isnan(graph.tensor_transfer_s[t]):
                seconds += graph.tensor_bytes[t] * links.per_byte_s[devices[v], d]
                latency = links.latency_s[devices[v], d]
            else:
                seconds += graph.tensor_transfer_s[t]
        return seconds + latency

    to_end = [0.0] * n
    for v in reversed(range(n)):
        to_end[v] = cost[v] + max((to_end[s] + (message(v, devices[s]) or 0.0) for s in paths.after[v]), default=0.0)
    lacks = [set(row) for row in paths.before]
    ready = [set() for _ in range(problem.n_devices)]
    busy = [False] * problem.n_devices
    events, started, number = [], [], itertools.count()

    def reach(u, readers, now):
        for s in readers:
            lacks[s].discard(u)
        for s in sorted(s for s in readers if not lacks[s]):
            become_ready(s, now)

    def become_ready(v, now):
        if graph.off_queue[v]:
            end(v, now)
        else:
            ready[devices[v]].add(v)

    def end(u, now):
        for d in dict.fromkeys(devices[s] for s in paths.after[u]):
            readers = [s for s in paths.after[u] if devices[s] == d]
            seconds = message(u, d)
            if seconds is None:
                reach(u, readers, now)
            else:
                events.append((now + seconds, next(number), u, readers))

    def score(v):
        total = 0
        for s in paths.after[v]:
            total += 1
            if devices[s] != devices[v]:
                total += 1
                if lacks[s] == {v}:
                    total += 1 if busy[devices[s]] or ready[devices[s]] else 6
        return total

    for v in range(n):
        if not paths.before[v]:
            become_ready(v, 0.0)
    now = 0.0
    while True:
        while events and min(events)[0] == now:
            _, _, u, readers = events.pop(events.index(min(events)))
            if readers is None:
                busy[devices[u]] = False
                end(u, now)
            else:
                reach(u, readers, now)
        for d in range(problem.n_devices):
            if ready[d] and not busy[d]:
                v = min(ready[d], key=lambda v: (-score(v), -to_end[v], v))
                ready[d].remove(v)
                busy[d] = True
                started.append(v)
                events.append((now + cost[v], next(number), v, None))
        if not events:
            return started
        now = min(events)[0]


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 24))
def test_msr_is_that_of_a_plain_twin(seed, n_ops):
    """Looking over the few operations whose score moves gives the order of scoring all."""
    problem, placement = random_problem(random.Random(seed), n_ops)
    devices = placement.devices.astype(np.int64)
    if not np.isfinite(problem.costs.seconds[np.arange(problem.n_ops), devices]).all():
        return
    priorities = ORDERS["msr"](Paths(problem), devices)
    started = [v for v in np.argsort(-priorities, kind="stable").tolist() if not problem.graph.off_queue[v]]
    assert started == twin_msr(problem, devices.tolist())


def test_orders_in_the_simulator_by_hand():
    """The priorities are what the discipline goes by.

    pct: p 0-1, p1 1-6, q 6-7, r 7-8; on b q1 8-9, q2 9-10, r1 10-11, each a message later or in turn.
    fifo: p, q, r and p1 from 3 to 8. msr: q, p, r and p1 from 3 to 8. On b all is over by then.
    """
    problem, devices = fan(discipline="priority")
    placements = {name: problem.placement(devices, order(Paths(problem), devices)) for name, order in ORDERS.items()}
    values = {name: simulate(problem, placement).value_s for name, placement in placements.items()}
    assert values == {"fifo": 8.0, "pct": 11.0, "msr": 8.0}


# ---- Methods ------------------------------------------------------------------------------------------------


def test_orders_are_offered_under_priority_alone():
    """`mayer-cp+pct` is a method where priorities count; elsewhere it is refused with the one to use."""
    assert set(SINGLE_METHODS) <= set(method_names(small_problem("stream")))
    assert not set(ORDERED_METHODS) & set(method_names(small_problem("stream")))
    assert len(ORDERED_METHODS) == 18
    assert set(ORDERED_METHODS) <= set(method_names(small_problem("priority")))
    with pytest.raises(InputError, match=r"nothing under the discipline stream; use 'mayer-cp', or"):
        make_placer("mayer-cp+pct", small_problem("stream"))
    placement = search(small_problem("priority"), "mayer-cp+pct").placement
    assert placement.priorities is not None
    assert search(small_problem("priority"), "mayer-cp").placement.priorities is None


def test_unknown_parts_are_refused():
    """A partitioner or scheduler that does not exist is refused with those that do."""
    with pytest.raises(UnknownNameError, match="batchsplit"):
        MayerParams("scotch")
    with pytest.raises(UnknownNameError, match="msr"):
        MayerParams("cp", "lifo")


def test_host_index_does_not_matter():
    """Ties go to the fastest device, not to the first, which is often the host."""
    problem = small_problem()
    assert problem.machine.devices[0].name == "cpu:0"
    chosen = partitions(problem, ["icp"])["icp"]
    assert np.bincount(chosen, minlength=3)[1] > 0
    alone = problem.replace(machine=small_machine(2), costs=Costs.given(problem.costs.seconds[:, :2]))
    assert where(alone, "dfs").startswith("gpu:0")

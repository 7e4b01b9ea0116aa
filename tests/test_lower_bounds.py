"""Lower bounds: none exceeds an optimum, closed forms are met, and proofs of infeasibility are true."""

import itertools
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import placewright.bounds.best as best_of
from placewright.bounds import Bound, lower_bound, multipliers, relaxed
from placewright.bounds.heads import heads
from placewright.bounds.lagrangian import proved
from placewright.bounds.relaxed import Relaxed
from placewright.bounds.rows import load_rows
from placewright.costs import Costs
from placewright.errors import InfeasibleError
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.methods import search
from placewright.operations import Operation, Tensor, build_graph
from placewright.placement import Placement
from placewright.problem import Colocate, Pin, Problem
from placewright.sim import simulate
from placewright.stop import Evaluations, Gap
from placewright.testing import small_problem
from tests.exhaustive import busy_problem, count, optimum_ps
from tests.strategies import random_problem

US = 1_000_000  # picoseconds
FEW = 700  # placements, before windows


def holds(problem, seed=0):
    """Whether the bound is no more than the optimum, and a proof that nothing fits is true."""
    least = optimum_ps(problem, seed)
    try:
        problem.check_memory()
        bound = best_of._lower_bound(problem)
    except InfeasibleError:
        return least is None
    assert bound.value_ps == max(value for _, value in bound.parts)
    return least is None or bound.value_ps <= least


def few(make, seed):
    """A problem of that seed with few placements; smaller seeds after it are tried until there is one."""
    while True:
        try:
            problem = make(random.Random(seed))
        except InfeasibleError:
            problem = None
        if problem is not None and count(problem) <= FEW:
            return problem
        seed += 1


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_no_bound_exceeds_the_optimum(n_ops, seed):
    """Every rule of the model, every objective and discipline, constraints, little memory, several windows."""
    assert holds(few(lambda rng: random_problem(rng, n_ops)[0], seed), seed)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_no_bound_exceeds_the_optimum_where_transfers_matter(seed):
    """Transfers as long as operations, devices that are alike, operations that must take turns."""
    assert holds(few(busy_problem, seed), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_no_bound_exceeds_the_optimum_of_many(seed):
    """Some thousands of problems of both kinds."""
    for k in range(400):
        at = 100_000 * seed + 37 * k
        assert holds(few(busy_problem, at), at), at
        assert holds(few(lambda rng, k=k: random_problem(rng, 1 + k % 9)[0], at), at), at


@pytest.mark.parametrize("seed", range(25))
def test_coarse_classes_and_clusters_only_lose(monkeypatch, seed):
    """Where unlike devices are joined, and all groups are one cluster, less is proved, and nothing wrong."""
    monkeypatch.setattr(relaxed, "MOST_CLASSES", 2)
    monkeypatch.setattr(multipliers, "MOST_SHARES", 2)
    monkeypatch.setattr(multipliers, "MOST_FLOWS", 2)
    assert holds(few(busy_problem, 1000 * seed))


def test_granules_of_joined_pools(monkeypatch):
    """Rounding up to the lesser of two granules can exceed rounding to the other: 4 bytes are 6 or 4."""
    monkeypatch.setattr(relaxed, "MOST_CLASSES", 2)
    names = ["d0", "d1", "d2", "d3"]
    pools = (Pool("d0", 1, 3), Pool("d1", 4, 4), Pool("d2", 2, 3), Pool("d3", 3, 4))
    machine = Machine("odd", tuple(Device(name, "m", name) for name in names), pools)
    ops = [Operation("w", phase="parameter", outputs=[Tensor(4)]), Operation("o", inputs=["w"])]
    problem = Problem(
        build_graph("g", ops), machine, Costs.given(np.array([[0.0] * 4, [1.0] * 4])), (Pin(("*",), ("d1",)),)
    )
    assert simulate(problem, problem.placement(np.ones(2, int))).feasible
    problem.check_memory()
    assert best_of._lower_bound(problem).value_s <= 1.0


# ---- closed forms -----------------------------------------------------------------------------------


def devices(count, sizes=1 << 40, rate=1e9, latency=0.0):
    """Devices with a pool each, and channels between all of them."""
    names = [f"d{i}" for i in range(count)]
    sizes = [sizes] * count if isinstance(sizes, int) else sizes
    pairs = list(itertools.permutations(names, 2))
    return Machine(
        "all",
        tuple(Device(name, "m", name) for name in names),
        tuple(Pool(name, size, 1) for name, size in zip(names, sizes, strict=True)),
        tuple(Channel(a + b, rate, latency) for a, b in pairs),
        tuple(Route(a, b, (a + b,)) for a, b in pairs),
    )


def at_once(ops, machine, us, **more):
    """A problem whose operations take as many microseconds on every device, or as the rows say."""
    table = np.array([row if isinstance(row, list) else [row] * len(machine.devices) for row in us], float) * 1e-6
    return Problem(build_graph("g", ops), machine, Costs.given(table), **more)


def test_a_chain_on_one_device():
    """The sum of its operations, exactly."""
    ops = [Operation(f"o{i}", inputs=[f"o{i - 1}"] if i else [], outputs=[Tensor(8)]) for i in range(50)]
    bound = lower_bound(at_once(ops, devices(1), [3] * 50))
    assert bound.value_ps == 150 * US
    assert bound.value_s == pytest.approx(150e-6)


def test_two_equal_operations_on_two_devices():
    """One each; a third has to wait for one of them, and the work says half of it."""
    ops = [Operation(f"o{i}") for i in range(3)]
    assert lower_bound(at_once(ops[:2], devices(2), [5, 5])).value_ps == 5 * US
    assert lower_bound(at_once(ops, devices(2), [5, 5, 5])).value_ps == 7.5 * US


def test_work_between_a_beginning_and_an_end():
    """Six operations of 4 us on three devices, between one of 10 us and one of 20 us: no less than 38 us."""
    middle = [Operation(f"m{i}", inputs=["first"], outputs=[Tensor(0)]) for i in range(6)]
    ops = [Operation("first", outputs=[Tensor(0)]), *middle, Operation("last", inputs=[m.name for m in middle])]
    bound = lower_bound(at_once(ops, devices(3), [10, *[4] * 6, 20]))
    assert bound.value_ps == 38 * US
    assert dict(bound.parts)["work and memory"] == 18 * US


def test_what_cannot_be_elsewhere_in_time_takes_its_turn():
    """Four arms of 2 us between a fork and a join, whose tensors take 100 us: all on one device, 10 us."""
    arms = [Operation(f"arm{i}", inputs=["fork"], outputs=[Tensor(100_000)]) for i in range(4)]
    ops = [Operation("fork", outputs=[Tensor(100_000)]), *arms, Operation("join", inputs=[a.name for a in arms])]
    problem = at_once(ops, devices(4), [1, 2, 2, 2, 2, 1])
    assert lower_bound(problem).value_ps == 10 * US == optimum_ps(problem)
    near = at_once(ops, devices(4, rate=1e11), [1, 2, 2, 2, 2, 1])  # 1 us for a tensor
    assert lower_bound(near).value_ps <= optimum_ps(near) < 10 * US


def test_colocated_operations_take_their_turn():
    """Three that must be together on one of many devices."""
    ops = [Operation(f"o{i}") for i in range(3)]
    problem = at_once(ops, devices(4), [[5, 6, 7, 9]] * 3, constraints=(Colocate(("o0", "o1", "o2")),))
    assert lower_bound(problem) == Bound(15 * US, "largest group", lower_bound(problem).parts)
    more = [Operation("first", outputs=[Tensor(0)]), *(Operation(f"o{i}", inputs=["first"]) for i in range(3))]
    problem = at_once(more, devices(4), [2, 5, 5, 5], constraints=(Colocate(("o0", "o1", "o2")),))
    assert lower_bound(problem).value_ps == 17 * US


def streaming(layers, size, capacity, host_us, card_us=0, **more):
    """A chain of layers with a parameter each, a host with plenty of memory and a card that has too little."""
    ops, us = [], []
    for i in range(layers):
        ops.append(Operation(f"w{i}", phase="parameter", outputs=[Tensor(size)]))
        ops.append(Operation(f"o{i}", inputs=[f"w{i}", *([f"o{i - 1}"] if i else [])], outputs=[Tensor(0)]))
        us += [0, [host_us, card_us]]
    return at_once(ops, devices(2, [1 << 40, capacity]), us, **more)


def test_parameters_that_do_not_fit_cross_the_channel():
    """Ten of 1 MB, room for four: one streams through what is left, so six to seven of them cross at 1 GB/s."""
    problem = streaming(10, 1_000_000, 4_000_000, host_us=1e6)
    bound = lower_bound(problem)
    stays = problem.placement([1, 1] * 3 + [0, 1] * 7, windows_bytes=[-1, 1_000_000])
    assert simulate(problem, stays).feasible
    assert simulate(problem, stays).value_ps == 7000 * US
    assert dict(bound.parts)["work and memory"] == pytest.approx(6000 * US, rel=0.01)  # the host could do a little
    # The channel is never idle, so that one of them is always on its way and needs room
    assert 6950 * US < bound.value_ps <= 7000 * US


def test_the_host_computes_where_that_is_faster_than_the_channel():
    """At 100 us a layer on the host, six layers there take 600 us, where their parameters take 6 ms to cross."""
    bound = lower_bound(streaming(10, 1_000_000, 4_000_000, host_us=100))
    rest = 6 * 100 / (1 + 100 / 1000)  # some cross while the host computes others
    assert rest * US <= bound.value_ps <= 600 * US


def test_parameters_read_before_and_after_cross_twice_or_stay():
    """Forward and backward over parameters that the card cannot hold: those that are not at home cross twice."""
    ops, us, count = [], [], 6
    for i in range(count):
        ops.append(Operation(f"w{i}", phase="parameter", outputs=[Tensor(1_000_000)]))
        us.append([0, np.inf])  # at home on the host
    for i in range(count):
        ops.append(Operation(f"f{i}", inputs=[f"w{i}", *([f"f{i - 1}"] if i else [])], outputs=[Tensor(0)]))
        us.append([1e6, 0])
    ops.append(Operation("loss", inputs=[f"f{count - 1}"], outputs=[Tensor(0)], workspace_bytes=1_000_000))
    us.append([np.inf, 0])
    for i in reversed(range(count)):
        last = f"b{i + 1}" if i < count - 1 else "loss"
        ops.append(Operation(f"b{i}", inputs=[f"w{i}", last], outputs=[Tensor(0)]))
        us.append([1e6, 0])
    bound = lower_bound(at_once(ops, devices(2, [1 << 40, 3_000_000]), us))
    # While the loss is computed, 2 MB of parameters can be there; four of six cross again. The host could do a little.
    assert bound.value_ps == pytest.approx(10_000 * US, rel=0.01)
    plenty = lower_bound(at_once(ops, devices(2, [1 << 40, 1 << 40]), us))
    assert plenty.value_ps == pytest.approx(6000 * US, rel=0.01)


def test_what_operations_hold_counts():
    """An activation that is made before all and read after all, and workspace, leave less room for parameters."""
    ops = [Operation("x", outputs=[Tensor(1_000_000)]), Operation("z", inputs=["x"], outputs=[Tensor(0)])]
    ops[1:1] = [Operation(f"w{i}", phase="parameter", outputs=[Tensor(1_000_000)]) for i in range(8)]
    for i in range(8):
        reads = [f"w{i}", "z" if i == 0 else f"o{i - 1}"]
        ops.append(Operation(f"o{i}", inputs=reads, outputs=[Tensor(0)], workspace_bytes=500_000))
    ops.append(Operation("y", inputs=["x", "o7"]))
    us = [[np.inf, 0], *[[0, 0]] * 8, [np.inf, 0], *[[1e6, 0]] * 8, [np.inf, 0]]
    found = dict(lower_bound(at_once(ops, devices(2, [1 << 40, 5_000_000]), us)).parts)
    # 5 MB hold 1 of x, 0.5 of workspace, and one parameter that is read; so 2.5 others, and 4.5 of the 8 cross
    assert found["combined"] == pytest.approx(4500 * US, rel=0.01)


def test_the_least_load_of_a_device_with_a_group():
    """Of `max_load`: the big one either takes its small neighbours along or pays for the tensors between."""
    ops = [
        Operation("a", outputs=[Tensor(3000)]),
        Operation("big", inputs=["a"], outputs=[Tensor(9000)]),
        Operation("b", inputs=["big"]),
    ]
    problem = at_once(ops, devices(3), [5, 10, 4], objective="max_load")
    # a is away for 3 us rather than 5, b comes along for 4 us rather than 9
    assert dict(lower_bound(problem).parts)["group and its exchange"] == 17 * US
    assert lower_bound(problem).value_ps == 17 * US == optimum_ps(problem)


def test_throughput_counts_channels():
    """A parameter of 1 MB pinned to one device and read on another keeps the channel busy for 1 ms."""
    ops = [Operation("w", phase="parameter", outputs=[Tensor(1_000_000)]), Operation("o", inputs=["w"])]
    rules = (Pin(("w",), ("d0",)), Pin(("o",), ("d1",)))
    problem = at_once(ops, devices(2), [0, 3], objective="throughput", constraints=rules)
    assert lower_bound(problem).value_ps == 1000 * US == optimum_ps(problem)


# ---- infeasible -------------------------------------------------------------------------------------


def test_too_little_memory_is_proved_with_what_is_missing():
    """Six parameters of 1 MB in pools of 2 and 3 MB: 1 MB more in either would do, and no less."""
    ops = [Operation(f"w{i}", phase="parameter", outputs=[Tensor(1_000_000)]) for i in range(6)]
    ops.append(Operation("o", workspace_bytes=500_000))
    tight = at_once(ops, devices(2, [3_000_000, 3_200_000]), [*[0] * 6, 1], constraints=(Pin(("o",), ("d1",)),))
    with pytest.raises(
        InfeasibleError, match=r"no placement fits.*292\.97 KiB more in d[01], or 292\.97 KiB more in d[01]"
    ):
        lower_bound(tight)
    with pytest.raises(InfeasibleError, match="no placement fits"):
        search(tight, "random", Evaluations(5))
    assert optimum_ps(tight) is None
    for more in ([3_300_000, 3_200_000], [3_000_000, 3_500_000]):
        roomy = tight.replace(machine=devices(2, more), costs=tight.costs)
        assert lower_bound(roomy).value_ps == US


def test_two_pools_that_both_lack_memory():
    """What is pinned to each is too much for it; no single pool can make up for that."""
    ops = [
        Operation("a", phase="parameter", outputs=[Tensor(900)]),
        Operation("b", phase="parameter", outputs=[Tensor(900)]),
    ]
    ops += [Operation("x", workspace_bytes=400, inputs=["a"]), Operation("y", workspace_bytes=400, inputs=["b"])]
    rules = (Pin(("a", "x"), ("d0",)), Pin(("b", "y"), ("d1",)))
    problem = at_once(ops, devices(2, 1000), [0, 0, 1, 1], constraints=rules)
    with pytest.raises(InfeasibleError, match=r"About 300 B more in d0 and 300 B more in d1"):
        lower_bound(problem)


def test_where_no_route_leads():
    """An operation that cannot get its input is named."""
    machine = devices(2)
    ops = [Operation("a", outputs=[Tensor(8)]), Operation("b", inputs=["a"])]
    cut = Machine("cut", machine.devices, machine.pools)
    with pytest.raises(InfeasibleError, match=r"operation '[ab]' .* no route leads there"):
        lower_bound(at_once(ops, cut, [[1, np.inf], [np.inf, 1]]))


# ---- parts ------------------------------------------------------------------------------------------


def longest(problem):
    """The least time of a step by paths alone, over operations and devices, in plain words."""
    graph, machine = problem.graph, problem.machine
    least = {}
    for i in range(graph.n_ops):
        for d in range(problem.n_devices):
            if not problem.choices[problem.groups[i], d]:
                continue
            start = 0
            for t in graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]].tolist():
                maker = int(graph.tensor_op[t])
                ways = []
                for other in range(problem.n_devices):
                    if (maker, other) not in least or (problem.groups[maker] == problem.groups[i] and other != d):
                        continue
                    lasts = 0
                    if machine.pool_of[other] != machine.pool_of[d]:
                        rates = machine.rates(other, d)
                        if rates is None:
                            continue
                        lasts = round((rates[0] + int(graph.tensor_bytes[t]) / rates[1]) * 1e12)
                    ways.append(least[maker, other] + lasts)
                start = max(start, min(ways))
            for j in graph.after_op[graph.after_start[i] : graph.after_start[i + 1]].tolist():
                together = problem.groups[j] == problem.groups[i]
                start = max(start, min(v for (k, e), v in least.items() if k == j and (e == d or not together)))
            least[i, d] = start + round(float(problem.costs.seconds[i, d]) * 1e12)
    return max(min(v for (j, _), v in least.items() if j == i) for i in range(graph.n_ops))


@pytest.mark.parametrize("seed", range(40))
def test_paths_by_classes_are_paths_by_devices(monkeypatch, seed):
    """Without what must take turns, the kernel finds what a plain loop over devices finds."""
    import placewright.bounds.heads as module

    problem = busy_problem(random.Random(seed)).replace(objective="step")
    monkeypatch.setattr(module, "NEAR", 0)
    found = heads(Relaxed.of(problem))
    assert int((found.head + found.cost)[found.head < 1 << 62].min(initial=0)) >= 0
    ends = np.where(found.head == np.iinfo(np.int64).max, np.iinfo(np.int64).max, found.head + np.where(
        found.cost == np.iinfo(np.int64).max, 0, found.cost))  # fmt: skip
    assert int(ends.min(axis=1).max()) == longest(problem)
    monkeypatch.setattr(module, "NEAR", 64)
    assert int(heads(Relaxed.of(problem)).whole.max()) >= int(found.whole.max())


def test_messages_prove_the_least_on_trees_and_no_more_elsewhere():
    """Against every choice of classes, at prices of devices and channels that are drawn."""
    numbers = np.random.default_rng(0)
    tight = 0
    for seed in range(40):
        problem = busy_problem(random.Random(seed)).replace(objective="throughput")
        view = Relaxed.of(problem)
        rows = load_rows(view)
        prices = numbers.random(len(rows))
        found = proved(view, rows, prices) * sum(map(float, prices))
        least = np.inf
        for pick in itertools.product(*(np.flatnonzero(row) for row in view.allowed)):
            total = 0.0
            for row, price in zip(rows, prices, strict=True):
                total += price * sum(
                    float(column[g]) for k, column in row.columns.items() for g in np.flatnonzero(np.array(pick) == k)
                )
                for pairs in row.pairs:
                    for e in pairs.reads.tolist():
                        a, b = pick[view.ends[0][e]], pick[view.ends[1][e]]
                        lasts = view.lasts(problem.graph.in_tensor[e : e + 1], a, b)[0]
                        total += price * pairs.factor[a, b] * lasts
            least = min(least, total)
        assert float(found) <= least + 1
        tight += float(found) >= least * (1 - 1e-9) - 1
    assert tight >= 35


def test_a_bound_is_worked_out_once():
    """Several methods on one problem share it."""
    problem = small_problem()
    assert lower_bound(problem) is lower_bound(problem)


def test_the_same_in_another_process():
    """Under other hash seeds, to the picosecond."""
    script = (
        "import placewright as pw\nfrom placewright.bounds import lower_bound\n"
        "graph = pw.read_graph('examples/two_towers.json.gz')\n"
        "for name in ('k40x2', 'mixed-4090-3060'):\n"
        "    print(lower_bound(pw.Problem(graph, pw.machine(name).with_memory({'gpu:0': 1 << 30}))))"
    )
    seen = set()
    for seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)
        seen.add(done.stdout)
    assert len(seen) == 1
    assert "value_ps" in seen.pop()


def test_nothing_to_do():
    """A graph without operations."""
    assert lower_bound(Problem(build_graph("empty", []), devices(2))).value_ps == 0


# ---- in a search ------------------------------------------------------------------------------------


def test_a_search_knows_the_bound_from_the_start():
    """Its first progress has it, and so has its result; it can be handed in, or left out."""
    problem, told = small_problem(), []
    result = search(problem, "random", Evaluations(64), watch=told.append)
    bound = lower_bound(problem)
    assert {progress.bound_s for progress in told} == {bound.value_s}
    assert (result.bound_s, result.bound_by) == (bound.value_s, bound.by)
    assert 0 <= result.gap < 1
    assert f"by {bound.by}" in result.summary()
    without = search(problem, "random", Evaluations(64), bound=False)
    assert (without.bound_s, without.gap, without.bound_by) == (None, None, "")
    assert (without.placement, without.improvements) == (result.placement, result.improvements)
    handed = search(problem, "random", Evaluations(64), bound=Bound(7, "elsewhere"))
    assert (handed.bound_s, handed.bound_by) == (7e-12, "elsewhere")


def test_a_gap_is_reached_where_the_bound_is_tight():
    """Two operations on two devices: the first placement that uses both is proved optimal."""
    problem = at_once([Operation("a"), Operation("b")], devices(2), [5, 5])
    result = search(problem, "random", Gap(0.0) | Evaluations(5000))
    assert (result.ended, result.gap) == ("stopped", 0.0)
    assert result.evaluations < 5000


def test_what_a_placer_proves_counts_where_it_is_more():
    """Brute force knows the optimum itself."""
    problem = small_problem("ready")
    result = search(problem, "brute-force")
    assert (result.bound_s, result.bound_by, result.gap) == (result.value_s, "brute-force", 0.0)
    assert lower_bound(problem).value_s < result.value_s


def test_placements_of_every_kind_are_above_the_bound():
    """Random placements of a problem too large to try all of."""
    problem = small_problem("priority")
    numbers = np.random.default_rng(0)
    for _ in range(50):
        devices_of = problem.lift(numbers.integers(0, 3, problem.n_groups))
        value = simulate(problem, Placement(devices_of, numbers.random(problem.n_ops))).value_ps
        assert lower_bound(problem).value_ps <= value

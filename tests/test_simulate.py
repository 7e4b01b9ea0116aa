"""The kernel against its slow twin, exactly; and what the simulator promises besides."""

import itertools
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from placewright.costs import Costs
from placewright.errors import PlacementError, ProblemError
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.placement import Placement
from placewright.problem import Problem
from placewright.sim import Outcome, Simulator, simulate
from tests import naive
from tests.strategies import problems, random_problem


def differences(problem, placement):
    """What kernel and twin say differently of one placement; empty when they agree."""
    slow, fast = naive.simulate(problem, placement), Simulator(problem, threads=1).trace(placement)
    pairs = {"value": (slow.value_ps, fast.value_ps), "reason": (slow.reason, fast.reason)}
    if slow.value_ps is not None:
        pairs["peak"] = (slow.peak_bytes, list(fast.peak_bytes))
        pairs["over"] = (slow.over_bytes, list(fast.over_bytes))
        if problem.discipline == "stream":
            pairs["raised"] = (slow.raised, list(fast.raised))
        if problem.objective != "max_load":
            pairs["device busy"] = (slow.device_busy_ps, list(fast.device_busy_ps))
            pairs["channel busy"] = (slow.channel_busy_ps, list(fast.channel_busy_ps))
        if problem.objective == "step":
            line = fast.timeline
            moves = [
                (m.tensor, m.source, m.target, m.first_consumer, m.visit, m.start_ps, m.end_ps) for m in line.moves
            ]
            pairs["starts"] = (slow.op_start_ps, line.op_start_ps.tolist())
            pairs["ends"] = (slow.op_end_ps, line.op_end_ps.tolist())
            pairs["transfers"] = (sorted(map(tuple, slow.transfers)), sorted(moves))
            pairs["memory over time"] = (slow.peak_bytes, line.memory.max(axis=1).tolist())
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(problems())
def test_kernel_equals_twin(case):
    """Every figure of the kernel is that of the twin, on problems that cover every rule."""
    assert differences(*case) == {}


def test_kernel_equals_twin_on_seeded_problems():
    """The same, on 200 seeded problems, some of them larger."""
    for seed in range(200):
        case = random_problem(random.Random(seed), 60 if seed % 20 == 0 else seed % 13)
        assert differences(*case) == {}, f"seed {seed}"


@pytest.mark.slow
def test_kernel_equals_twin_on_many_problems():
    """The same, on 5,000 seeded problems and 200 larger ones."""
    for seed in range(5200):
        case = random_problem(random.Random(10_000 + seed), 40 + seed % 100 if seed >= 5000 else seed % 14)
        assert differences(*case) == {}, f"seed {10_000 + seed}"


def test_batch_equals_one_by_one():
    """A batch on two threads gives what single simulations give, in order, windows and priorities included."""
    for seed in range(12):
        rng = random.Random(seed)
        problem, first = random_problem(rng, 40)
        placements = [first]
        numbers = np.random.default_rng(seed)
        for _ in range(120):
            pick = numbers.integers(0, problem.n_devices, problem.n_groups)
            windows = numbers.integers(-1, 2000, problem.n_devices) if numbers.random() < 0.5 else None
            priorities = numbers.integers(0, 4, problem.n_ops) if numbers.random() < 0.5 else None
            try:
                placements.append(problem.placement(problem.lift(pick), priorities, windows))
            except PlacementError:
                continue
        together = Simulator(problem, threads=2).simulate(placements)
        assert together == [simulate(problem, placement) for placement in placements]
        assert all(isinstance(outcome, Outcome) for outcome in together)


def test_timeline_agrees_with_the_plain_run():
    """Recording changes no figure, and the critical path leads from the start to the end without a gap in causes."""
    for seed in range(150):
        problem, placement = random_problem(random.Random(seed), 12)
        plain, traced = simulate(problem, placement), simulate(problem, placement, timeline=True)
        assert (plain.value_ps, plain.peak_bytes, plain.device_busy_ps, plain.raised) == (
            traced.value_ps, traced.peak_bytes, traced.device_busy_ps, traced.raised,
        )  # fmt: skip
        if traced.timeline is None or not problem.n_ops:
            continue
        path = traced.timeline.critical_path
        assert path[-1].end_ps == traced.value_ps == traced.timeline.end_ps
        assert path[0].start_ps == 0
        for one, two in itertools.pairwise(path):
            assert one.end_ps == two.start_ps, "each link starts when the one before it ends"


def test_what_does_not_fit_the_problem_never_reaches_the_kernel():
    """Placements of another size or with devices that do not exist are refused, singly and in batches."""
    problem, good = random_problem(random.Random(4), 8)
    simulator = Simulator(problem)
    wrong = [
        Placement(np.full(problem.n_ops, 200)),
        Placement(np.zeros(1, int)),
        Placement(good.devices, windows_bytes=np.zeros(problem.n_devices + 1, int)),
    ]
    for placement in wrong:
        for call in (lambda p: simulate(problem, p), simulator.trace, lambda p: simulator.simulate([good, p])):
            with pytest.raises(PlacementError):
                call(placement)
    rows, none, window = np.zeros((2, problem.n_ops), np.uint16), np.zeros((1, problem.n_ops)), -np.ones((1, 99), int)
    for arrays in ((rows + 200, none, window), (rows, none, window), (rows.astype(int), none, window[:, :1])):
        with pytest.raises(PlacementError, match="uint16"):
            simulator.run_arrays(*arrays)


def test_threads_may_share_a_simulator():
    """Many threads that use one simulator get what one gets."""
    problem, first = random_problem(random.Random(7), 40)
    simulator = Simulator(problem, threads=2)
    batch = [first] * 60
    expected = simulator.simulate(batch)
    with ThreadPoolExecutor(6) as pool:
        assert all(found == expected for found in pool.map(lambda _: simulator.simulate(batch), range(24)))


def test_many_devices_on_one_channel():
    """A machine of 256 devices that share one channel is simulated in time, under every discipline."""
    names = [f"d{k}" for k in range(256)]
    machine = Machine(
        "wide", tuple(Device(n, "d", n) for n in names), tuple(Pool(n, 1 << 30) for n in names),
        (Channel("bus", 1e9, 1e-6),), tuple(Route(a, b, ("bus",)) for a in names for b in names if a != b),
    )  # fmt: skip
    operations = [Operation("op0", outputs=[Tensor(8)])]
    operations += [Operation(f"op{i}", inputs=[f"op{i // 2}"], outputs=[Tensor(8)]) for i in range(1, 3000)]
    graph = build_graph("tree", operations)
    costs = Costs.given(np.full((graph.n_ops, 256), 1e-6))
    place = np.random.default_rng(0).integers(0, 256, graph.n_ops)
    for discipline in ("stream", "ready", "priority"):
        problem = Problem(graph, machine, costs, discipline=discipline)
        outcome = simulate(problem, problem.placement(place))
        assert outcome.channel_busy_ps[0] < outcome.value_ps
        assert sum(outcome.device_busy_ps) == graph.n_ops * 1_000_000


def test_costs_beyond_the_clock_are_refused():
    """Costs that could sum to 2**62 ps are refused when the problem is lowered."""
    problem, placement = random_problem(random.Random(1), 6)
    seconds = np.where(problem.graph.off_queue[:, None], 0.0, 4e6)
    long = Problem(problem.graph, problem.machine, Costs.given(np.broadcast_to(seconds, problem.costs.seconds.shape)))
    with pytest.raises(ProblemError, match="2\\*\\*62"):
        simulate(long, placement)


_SCRIPT = """
import random
from placewright.sim import simulate
from tests.strategies import random_problem
for seed in range(40):
    print(simulate(*random_problem(random.Random(seed), 10)))
"""


def test_same_bytes_under_any_hash_seed():
    """Outcomes are the same, to the byte, in other processes under PYTHONHASHSEED 0 to 3."""
    printed = {
        subprocess.run(
            [sys.executable, "-c", _SCRIPT], env={"PYTHONHASHSEED": str(k), "PYTHONPATH": "."}, capture_output=True,
            check=True,
        ).stdout
        for k in range(4)
    }  # fmt: skip
    assert len(printed) == 1
    assert next(iter(printed)).count(b"Outcome") == 40

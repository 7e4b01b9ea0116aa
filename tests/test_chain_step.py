"""The optimum of `step` on chains: against brute force, by hand, and what is refused."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.costs import Costs
from placewright.errors import InfeasibleError, ProblemError
from placewright.evaluate import SimulatorEvaluator
from placewright.exact.brute_force import BruteForce
from placewright.exact.chain_step import ChainStep
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import DISCIPLINES, Colocate, Forbid, Pin, Problem, Separate
from placewright.search import run_search
from placewright.testing import PlacerContract, small_machine, small_problem


def chain_problem(discipline="stream", *constraints, devices=3):
    """An input, five layers of which two have weights, and a view."""
    operations = [
        Operation("x", phase="input", outputs=[Tensor(1000)]),
        Operation("a.w", phase="parameter", scope="a", outputs=[Tensor(4000)]),
        Operation("a.mm", "matmul", scope="a", inputs=["x", "a.w"], outputs=[Tensor(2000)]),
        Operation("a.view", "view", scope="a", inputs=["a.mm"], outputs=[Tensor(2000, ("a.mm", 0))]),
        Operation("b.w", phase="parameter", scope="b", outputs=[Tensor(4000)]),
        Operation("b.mm", "matmul", scope="b", inputs=["a.view", "b.w"], outputs=[Tensor(3000), Tensor(500)]),
        Operation("loss", "sum", inputs=[("b.mm", 0), ("b.mm", 1)], outputs=[Tensor(4, output=True)]),
    ]
    graph = build_graph("chain", operations)
    seconds = np.zeros((graph.n_ops, devices))
    for i in np.flatnonzero(~graph.off_queue).tolist():
        seconds[i] = [0.0 if graph.kinds[i] == "view" else 30e-6 if d == 0 else 10e-6 for d in range(devices)]
    return Problem(graph, small_machine(devices), Costs.given(seconds), constraints, discipline=discipline)


class TestChainStep(PlacerContract):
    def placer(self, problem):
        return ChainStep()

    def problem(self, discipline="stream", *constraints, devices=3):
        return chain_problem(discipline, *constraints, devices=devices)


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_chain_under_every_discipline(discipline):
    """The value is what the simulator says, and the bound is met: everything on one card."""
    problem = chain_problem(discipline)
    result = run_search(problem, ChainStep(), bound=False)
    assert result.outcome == SimulatorEvaluator(problem).evaluate([result.placement])[0].outcome
    assert result.outcome.value_ps == 30_000_000
    assert result.gap == 0.0
    assert result.evaluations == 1


def test_constraints_are_kept():
    """The loss pinned to the host: two tensors of 3,500 bytes travel one after the other, by hand."""
    problem = chain_problem("stream", Pin(("loss",), ("cpu:0",)), Forbid(("a",), ("gpu:0",)))
    result = run_search(problem, ChainStep(), bound=False)
    names = problem.graph.op_names
    assert result.placement.devices[names.index("loss")] == 0
    assert result.placement.devices[names.index("a.mm")] == 2
    assert result.outcome.value_ps == 20_000_000 + 2_000_000 + 3_500_000 + 30_000_000


def test_an_input_may_be_elsewhere():
    """An input pinned to the host comes first, and its transfer counts."""
    result = run_search(chain_problem("ready", Pin(("x",), ("cpu:0",))), ChainStep(), bound=False)
    assert result.outcome.value_ps == 30_000_000 + 1_000_000 + 1_000_000
    assert result.gap == 0.0


def test_empty_graph_and_one_device():
    assert run_search(chain_problem(devices=1), ChainStep(), bound=False).value_s == pytest.approx(90e-6)
    empty = Problem(build_graph("empty", []), small_machine())
    assert run_search(empty, ChainStep(), bound=False).value_s == 0


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (small_problem(), "does not wait for"),
        (chain_problem().replace(objective="max_load"), "the objective is 'max_load'"),
        (chain_problem("stream", Separate(("a", "loss"))), "cannot keep operations apart"),
        (chain_problem("stream", Colocate(("a.mm", "loss"))), "'loss' must be with an operation that is not right"),
        (chain_problem("stream", Pin(("b.w",), ("cpu:0",)), Pin(("b.mm",), ("gpu:0",))), "'b.w' may not be wherever"),
    ],
)
def test_what_is_no_chain_is_refused(problem, why):
    """The error names the operation that is in the way."""
    with pytest.raises(ProblemError, match=why):
        run_search(problem, ChainStep(), bound=False)


@pytest.mark.parametrize(
    ("extra", "reads", "why"),
    [
        (Operation("late"), ["late"], "'late' does not wait for 'b'"),
        (None, ["a"], "'c' reads from 'a', which is not right before it"),
        (Operation("tied", phase="parameter", outputs=[Tensor(8)]), ["tied"], "'w' is read on both sides|'tied'"),
    ],
)
def test_reads_across_are_refused(extra, reads, why):
    operations = [
        Operation("w", phase="parameter", outputs=[Tensor(8)]),
        Operation("a", inputs=["w"], outputs=[Tensor(8)]),
        Operation("b", inputs=["a", "w"] if extra and extra.name == "tied" else ["a"], outputs=[Tensor(8)]),
        *([Operation("late", outputs=[Tensor(8)])] if extra and extra.name == "late" else []),
        *([extra] if extra and extra.name == "tied" else []),
        Operation("c", inputs=["b", *reads]),
    ]
    problem = Problem(build_graph("g", operations), small_machine(), Costs.given(np.zeros((len(operations), 3))))
    with pytest.raises(ProblemError, match=why):
        run_search(problem, ChainStep(), bound=False)


# ---- against brute force ------------------------------------------------------------------------------


def drawn(seed):
    """A chain of up to five operations on two or three devices of unequal links, some of one pool."""
    rng = random.Random(seed)
    n, count = rng.randrange(1, 6), rng.choice((2, 3))
    operations, previous = [], None
    for i in range(n):
        name, reads, after = f"op{i}", [], []
        if previous is not None:
            outputs = len(operations[-1].outputs)
            reads = [(previous, k) for k in range(outputs) if rng.random() < 0.8]
            after = [] if reads else [previous]
        if rng.random() < 0.3:
            weight = Operation(f"w{i}", phase="parameter", outputs=[Tensor(rng.choice((100, 3000)))])
            operations.insert(len(operations) - (previous is not None), weight)
            reads.append((weight.name, 0))
        if rng.random() < 0.25:
            side = Operation(f"x{i}", phase="input", outputs=[Tensor(700)])
            operations.insert(len(operations) - (previous is not None), side)
            reads.append((side.name, 0))
        outputs = [Tensor(rng.choice((0, 500, 1000, 4000)), transfer_s=rng.choice((None, None, 2e-6)))
                   for _ in range(rng.choice((1, 1, 2)))]  # fmt: skip
        label = f"c{i}" if rng.random() < 0.7 or not i else f"c{i - 1}"
        operations.append(Operation(name, inputs=reads, after=after, outputs=outputs, colocation=label))
        previous = name
    graph = build_graph("chain", operations)
    names = [f"d{d}" for d in range(count)]
    pools = [0] * count if rng.random() < 0.1 else [0, 0, 1][:count] if rng.random() < 0.2 else list(range(count))
    devices = [
        Device(name, "model", f"p{pool}", rng.choice((None, "d0"))) for name, pool in zip(names, pools, strict=True)
    ]
    channels, routes = [], []
    for a in names:
        for b in names:
            if a != b and rng.random() < 0.85:
                channels.append(Channel(f"{a}{b}", rng.choice((1e9, 5e8, 3e8)), rng.choice((0.0, 1e-6))))
                routes.append(Route(a, b, (channels[-1].name,)))
    memory = [Pool(f"p{k}", 1 << 30, 1) for k in sorted(set(pools))]
    machine = Machine("m", tuple(devices), tuple(memory), tuple(channels), tuple(routes))
    seconds = np.zeros((graph.n_ops, count))
    for i in np.flatnonzero(~graph.off_queue).tolist():
        seconds[i] = [rng.choice((0.0, 1e-6, 2e-6, 5e-6, 9e-6, np.inf if d else 4e-6)) for d in range(count)]
    rules = []
    if rng.random() < 0.4:
        one = rng.choice([op.name for op in operations if op.phase == "forward"])
        rules.append(rng.choice((Pin, Forbid))((one,), (rng.choice(names),)))
    if rng.random() < 0.3 and "x0" in graph.op_names:
        rules.append(Pin(("x0",), ("d0",)))
    return Problem(graph, machine, Costs.given(seconds), tuple(rules), discipline=rng.choice(DISCIPLINES))


def make(seed):
    """A drawn problem, unless its constraints leave an operation no device."""
    try:
        return drawn(seed)
    except InfeasibleError:
        return None


def solved(problem):
    """What chain-step finds; None where it refuses, and "nowhere" where it says that no placement can run."""
    try:
        return run_search(problem, ChainStep(), bound=False)
    except ProblemError:
        return None
    except InfeasibleError:
        return "nowhere"


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_equal_to_brute_force(seed):
    """Whatever is not refused has the optimum of all placements, under every discipline, to the picosecond."""
    problem = make(seed)
    found = problem and solved(problem)
    if found is None:
        return
    best = run_search(problem, BruteForce(), bound=False).outcome
    if found == "nowhere":
        assert best.value_ps is None
    else:
        assert found.outcome.value_ps == best.value_ps
        assert found.bound_s == best.value_s


def test_most_drawn_chains_are_solved():
    """The comparison above is not empty."""
    problems = [problem for problem in map(make, range(200)) if problem is not None]
    assert len([problem for problem in problems if solved(problem) not in (None, "nowhere")]) >= 100

"""Groups decided one by one under pins, forbids, colocations and separations."""

import numpy as np
import pytest

from placewright.costs import Costs
from placewright.decisions import Decisions
from placewright.errors import InfeasibleError
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import Colocate, Forbid, Pin, Problem, Separate
from placewright.testing import small_machine, small_problem


def test_seconds_and_bytes_of_groups():
    """Sums over the members; infinite where a member may not be; sizes rounded by pool."""
    problem = small_problem("stream", Forbid(("a.mm",), ("cpu:0",)), Colocate(("a.mm", "a.grad")))
    decisions = Decisions(problem)
    group = int(problem.groups[problem.graph.op("a.mm")])
    assert decisions.seconds[group].tolist() == [np.inf, pytest.approx(20e-6), pytest.approx(20e-6)]
    weight = int(problem.groups[problem.graph.op("a.w")])
    assert decisions.bytes[weight].tolist() == [4000] * 3
    assert decisions.bytes.sum(axis=0).tolist() == [8000] * 3


def three(*constraints, sizes=(0, 0, 0), room=1 << 20):
    """Three operations without edges, each with a parameter, on three devices."""
    operations = []
    for name, size in zip("abc", sizes, strict=True):
        operations += [
            Operation(f"{name}.w", phase="parameter", scope=name, outputs=[Tensor(size)]),
            Operation(f"{name}.op", scope=name, inputs=[f"{name}.w"], outputs=[Tensor(4)]),
        ]
    graph = build_graph("three", operations)
    seconds = np.array([[0.0] * 3, [3.0, 2.0, 1.0]] * 3)
    return Problem(graph, small_machine(3, room), Costs.given(seconds), tuple(constraints))


def test_separation_is_kept_while_deciding():
    """What one side took, the other may not have; more of the same side may."""
    problem = three(Separate(("a", "b")))
    made = Decisions(problem).assignment()
    group = {name: int(problem.groups[problem.graph.op(name)]) for name in problem.graph.op_names}
    made.put(group["a.op"], 1)
    assert made.allowed(group["b.op"]).tolist() == [True, False, True]
    assert made.allowed(group["a.w"]).all()
    assert made.allowed(group["c.op"]).all()
    made.put(group["a.w"], 2)
    assert made.allowed(group["b.w"]).tolist() == [True, False, False]


def test_settle_moves_what_may_not_stay():
    """The fastest device that is left is taken; everything else stays where it was wanted."""
    problem = three(Separate(("a", "b")), Pin(("c",), ("cpu:0",)))
    settled = Decisions(problem).settle(np.full(problem.n_groups, 2))
    devices = dict(zip(problem.graph.op_names, problem.lift(settled), strict=True))
    assert {devices["a.op"], devices["a.w"]} == {2}
    assert devices["b.op"] == 1
    assert devices["c.op"] == 0
    problem.check(problem.placement(problem.lift(settled)))


def test_settle_keeps_to_memory():
    """The largest stay; what does not fit beside them goes elsewhere, unless fitting was not asked for."""
    problem = three(sizes=(600, 500, 300), room=1000)
    decisions = Decisions(problem)
    weights = [int(problem.groups[problem.graph.op(f"{name}.w")]) for name in "abc"]
    wanted = np.full(problem.n_groups, 2)
    assert decisions.settle(wanted)[weights].tolist() == [2, 0, 2]
    assert decisions.settle(wanted, fit=False)[weights].tolist() == [2, 2, 2]


def test_settle_says_where_it_is_stuck():
    """Two sides pinned to one device cannot be kept apart."""
    problem = three(Separate(("a", "b")), Pin(("a", "b"), ("gpu:0",)))
    with pytest.raises(InfeasibleError, match=r"b\.w.*kept apart"):
        Decisions(problem).settle(np.zeros(problem.n_groups))

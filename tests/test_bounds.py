"""Parallelism and the longest path, on graphs small enough to see them."""

import numpy as np
import pytest

from placewright.bounds import longest_path, parallelism
from placewright.costs import Costs
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.placement import Placement
from placewright.predict import measured_share, predict
from placewright.problem import Problem
from placewright.sim import simulate

MACHINE = Machine(
    "two",
    (Device("a", "m", "a"), Device("b", "m", "b")),
    (Pool("a", 1 << 20), Pool("b", 1 << 10)),
    (Channel("ab", 1e9), Channel("ba", 1e9)),
    (Route("a", "b", ("ab",)), Route("b", "a", ("ba",))),
)
INF = float("inf")


def diamond(phase="forward"):
    """A source, two arms and a sink; the second arm also waits for the first where `phase` says `ordered`."""
    out = (Tensor(600),)
    ops = [
        Operation("source", outputs=out),
        Operation("left", inputs=["source"], outputs=out),
        Operation("right", inputs=["source"], outputs=out, after=["left"] if phase == "ordered" else []),
        Operation("sink", inputs=["left", "right"], phase="update" if phase == "update" else "backward"),
    ]
    return build_graph("diamond", ops)


def problem(seconds, phase="forward"):
    return Problem(diamond(phase), MACHINE, Costs.given(seconds))


def test_longest_path():
    """The heavier arm counts, order-only edges join the arms, and an empty graph has none."""
    assert longest_path(diamond(), [1, 2, 4, 8]) == 13
    assert longest_path(diamond("ordered"), [1, 2, 4, 8]) == 15
    assert longest_path(build_graph("empty", []), []) == 0


def test_parallelism():
    """Total over longest path, on the device that is fastest for all together."""
    assert parallelism(problem([[1, 9], [1, 9], [1, 9], [1, 9]])) == pytest.approx(4 / 3)
    assert parallelism(problem([[1, 9]] * 4, "ordered")) == 1
    assert parallelism(problem([[0, 0]] * 4)) == 1


def test_parallelism_counts_no_updates():
    """Only forward and backward operations count."""
    assert parallelism(problem([[1, 9], [1, 9], [1, 9], [100, 900]], "update")) == pytest.approx(3 / 2)


def test_parallelism_where_no_device_runs_all():
    """Each operation counts at its own fastest."""
    assert parallelism(problem([[1, INF], [INF, 2], [INF, 2], [1, INF]])) == pytest.approx(6 / 4)


def test_parallelism_of_a_long_chain_is_one():
    """Rounding does not show."""
    ops = [Operation(f"o{i}", inputs=[f"o{i - 1}"] if i else [], outputs=(Tensor(4),)) for i in range(1000)]
    costs = Costs.given(np.random.default_rng(0).random((1000, 2)))
    assert parallelism(Problem(build_graph("chain", ops), MACHINE, costs)) == 1


def test_measured_share():
    """By seconds, each operation on its device; what cannot run counts for nothing."""
    costs = Costs(np.array([[1, 1], [2, 2], [3, 3], [INF, 4]]), np.array([[True, False]] * 2 + [[False, False]] * 2))
    found = Problem(diamond(), MACHINE, costs)
    assert measured_share(found, Placement([0, 0, 0, 1])) == pytest.approx(3 / 10)
    assert measured_share(found, Placement([0, 1, 1, 0])) == pytest.approx(1 / 6)
    assert measured_share(problem([[0, 0]] * 4), Placement([0, 0, 0, 0])) == 0


def test_predict_says_what_the_outcome_says():
    """Value, memory of every pool, and the reason in words where there is one."""
    found = problem([[1, 1]] * 4)
    fits = predict(found, Placement([0] * 4), simulate(found, Placement([0] * 4)), bound_s=3.0, gap=0.25)
    assert (fits.value_s, fits.feasible, fits.reason, fits.bound_s, fits.gap) == (4.0, True, "", 3.0, 0.25)
    assert fits.peak_bytes == {"a": 3 * 1024, "b": 0}
    assert fits.measured_share == 1
    there = Placement([1] * 4)
    over = predict(found, there, simulate(found, there, timeline=True))
    assert not over.feasible
    assert over.over_bytes["b"] == 2048
    assert over.reason == "b needs 3.00 KiB of 1.00 KiB, 2.00 KiB too much"

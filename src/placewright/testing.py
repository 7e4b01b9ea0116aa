"""Contracts that ship: subclass one in a test, say what to test, and pytest runs every rule of the plug point.

class TestMine(PlacerContract):
    def placer(self, problem):
        return MyPlacer()
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from placewright.costs import Costs
from placewright.errors import InputError
from placewright.evaluate import SimulatorEvaluator
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import DISCIPLINES, Colocate, Forbid, Pin, Problem
from placewright.search import Placer, Result, run_search
from placewright.stop import Criterion, Evaluations


def small_machine(devices: int = 3, bytes_each: int = 1 << 20) -> Machine:
    """A host and `devices - 1` accelerators of one pool each, joined by full-duplex links to the host."""
    names = ["cpu:0", *(f"gpu:{d}" for d in range(devices - 1))]
    return Machine(
        "small",
        tuple(Device(name, name.split(":")[0], name, "cpu:0") for name in names),
        tuple(Pool(name, bytes_each, 1) for name in names),
        tuple(Channel(f"{name} {way}", 1e9, 1e-6) for name in names[1:] for way in ("in", "out")),
        tuple(
            Route(*ends, (f"{name} {way}",))
            for name in names[1:]
            for way, ends in (("in", ("cpu:0", name)), ("out", (name, "cpu:0")))
        ),
    )


def small_problem(discipline: str = "stream", *constraints: Pin | Forbid | Colocate, devices: int = 3) -> Problem:
    """A training step of two branches with a parameter each, a view, updates and stores."""
    operations = [Operation("x", phase="input", outputs=[Tensor(1000)])]
    for side in ("a", "b"):
        weight, made, grad = (f"{side}.w", 0), (f"{side}.mm", 0), (f"{side}.grad", 0)
        operations += [
            Operation(f"{side}.w", phase="parameter", scope=side, outputs=[Tensor(4000)]),
            Operation(f"{side}.mm", "matmul", scope=side, inputs=["x", weight], outputs=[Tensor(2000)]),
            Operation(f"{side}.view", "view", scope=side, inputs=[made[0]], outputs=[Tensor(2000, made)]),
            Operation(f"{side}.grad", "matmul", "backward", side, inputs=[f"{side}.view", weight],
                      outputs=[Tensor(4000)]),
            Operation(f"{side}.update", "sgd", "update", side, inputs=[grad, weight],
                      outputs=[Tensor(4000, weight, in_place=True)]),
            Operation(f"{side}.store", "store", "store", side, inputs=[f"{side}.update"]),
        ]  # fmt: skip
    operations.append(Operation("loss", "sum", inputs=["a.view", "b.view"], outputs=[Tensor(4, output=True)]))
    graph = build_graph("small", operations)
    machine = small_machine(devices)
    seconds = np.zeros((graph.n_ops, devices))
    for i in np.flatnonzero(~graph.off_queue).tolist():
        seconds[i] = [0.0 if graph.kinds[i] == "view" else 30e-6 if d == 0 else 10e-6 for d in range(devices)]
    return Problem(graph, machine, Costs.given(seconds), constraints, discipline=discipline)


class PlacerContract(ABC):
    """What every placer must do."""

    budget: Criterion = Evaluations(200)

    @abstractmethod
    def placer(self, problem: Problem) -> Placer:
        """A fresh placer of the kind under test."""

    def problem(self, discipline: str = "stream", *constraints: Pin | Forbid | Colocate, devices: int = 3) -> Problem:
        """The problem to place; override it for a method that is for problems of another kind."""
        return small_problem(discipline, *constraints, devices=devices)

    def search(self, problem: Problem, seed: int = 0) -> Result:
        """One search with the budget of the contract."""
        return run_search(problem, self.placer(problem), self.budget, seed=seed)

    def test_finds_a_placement_under_every_discipline(self) -> None:
        """A placement comes out, and its value is what the simulator says of it."""
        for discipline in DISCIPLINES:
            problem = self.problem(discipline)
            result = self.search(problem)
            assert result.placement is not None
            assert result.evaluations >= 1
            assert [e.outcome for e in SimulatorEvaluator(problem).evaluate([result.placement])] == [result.outcome]

    def test_keeps_constraints(self) -> None:
        """Pins, forbids and colocations hold in every placement that is asked, or the method refuses to start."""
        problem = self.problem(
            "stream", Pin(("a",), ("gpu:0",)), Forbid(("loss",), ("cpu:0",)), Colocate(("loss", "b"))
        )
        placer = self.placer(problem)
        try:
            placer.start(problem, np.random.default_rng(0))
        except InputError:
            return
        batch = placer.ask()
        assert batch
        problem.check_all(batch)

    def test_same_seed_same_placement(self) -> None:
        """The same seed and evaluations give the same result, to the byte."""
        problem = self.problem()
        one, two = self.search(problem, seed=3), self.search(problem, seed=3)
        assert one.placement == two.placement
        assert (one.evaluations, one.improvements, one.outcome) == (two.evaluations, two.improvements, two.outcome)

    def test_budget_is_kept(self) -> None:
        """No more placements are evaluated than the budget allows."""
        problem = self.problem()
        assert run_search(problem, self.placer(problem), Evaluations(1)).evaluations == 1

    def test_one_device(self) -> None:
        """With one device there is one placement, and it is found."""
        result = self.search(self.problem(devices=1))
        assert result.placement is not None
        assert not result.placement.devices.any()

    def test_empty_graph(self) -> None:
        """A graph without operations takes no time."""
        problem = Problem(build_graph("empty", []), small_machine())
        assert self.search(problem).value_s == 0

    def test_bound_is_no_more_than_the_best(self) -> None:
        """What is said to be a bound is not above a placement that was found."""
        result = self.search(self.problem("ready"))
        assert result.bound_s is None or result.bound_s <= result.value_s

"""Every method by name, and `search`, which takes a name or a placer."""

from __future__ import annotations

from collections.abc import Callable

from placewright.auto import Auto
from placewright.errors import UnknownNameError
from placewright.evaluate import Evaluator
from placewright.exact.brute_force import BruteForce
from placewright.heuristics.annealing import Annealing
from placewright.heuristics.genetic import Genetic
from placewright.heuristics.local_search import HillClimbing, Tabu
from placewright.heuristics.trivial import Random, RoundRobin, Single
from placewright.problem import Problem
from placewright.search import Placer, Result, run_search
from placewright.stop import Criterion, Progress

NAMED: dict[str, Callable[[], Placer]] = {
    "auto": Auto,
    "round-robin": RoundRobin,
    "random": Random,
    "brute-force": BruteForce,
    "hill-climbing": HillClimbing,
    "annealing": Annealing,
    "tabu": Tabu,
    "genetic": Genetic,
}
"""Methods that need no argument; `single:DEVICE` is the other kind."""


def method_names(problem: Problem) -> list[str]:
    """Every method that the problem's machine knows."""
    return [*(f"single:{device.name}" for device in problem.machine.devices), *NAMED]


def make_placer(name: str, problem: Problem) -> Placer:
    """A fresh placer of that name."""
    if name in NAMED:
        return NAMED[name]()
    if name not in method_names(problem):
        raise UnknownNameError("method", name, method_names(problem))
    return Single(name.removeprefix("single:"))


def search(
    problem: Problem,
    method: str | Placer = "random",
    stop: Criterion | None = None,
    *,
    seed: int = 0,
    evaluator: Evaluator | None = None,
    watch: Callable[[Progress], None] | None = None,
) -> Result:
    """Search for a good placement.

    `method` is a name or a placer. `stop` says when to end; without it a method runs until it has no more to
    ask, and one that is `endless` for 10 s. `seed` fixes all randomness; `watch` is told of the progress
    after every batch.
    """
    from placewright.stop import Seconds

    placer = make_placer(method, problem) if isinstance(method, str) else method
    if stop is None and placer.endless:
        stop = Seconds(10.0)
    return run_search(problem, placer, stop, seed=seed, evaluator=evaluator, watch=watch)

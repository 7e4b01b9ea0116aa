"""Every method by name, and `search`, which takes a name or a placer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from placewright.auto import Auto
from placewright.bounds import Bound
from placewright.errors import InputError, UnknownNameError
from placewright.evaluate import Evaluator
from placewright.exact.brute_force import BruteForce
from placewright.exact.chain_step import ChainStep
from placewright.exact.contiguous import Contiguous, ContiguousLinear
from placewright.exact.cpsat import CpSat
from placewright.exact.pipedream import PipeDream
from placewright.heuristics.annealing import Annealing
from placewright.heuristics.baechi import MEtf, MSct, MTopo
from placewright.heuristics.critical_path import ORDERED_METHODS, SINGLE_METHODS, Mayer
from placewright.heuristics.data_parallel import NAME as DATA_PARALLEL
from placewright.heuristics.expert import RULES, Expert, ExpertParams, Published
from placewright.heuristics.genetic import Genetic
from placewright.heuristics.layers import DEVICE_MAPS, Accelerate, AccelerateParams, EqualLayers
from placewright.heuristics.list_scheduling import Cpop, Etf, Heft
from placewright.heuristics.local_search import HillClimbing, Tabu
from placewright.heuristics.partition import Metis, MinCut, MtKahypar, Scotch
from placewright.heuristics.trivial import Random, RoundRobin, Single
from placewright.problem import Problem
from placewright.search import Placer, Result, run_search
from placewright.stop import Criterion, Progress

NAMED: dict[str, Callable[[], Placer]] = {
    "auto": Auto,
    "round-robin": RoundRobin,
    "random": Random,
    "brute-force": BruteForce,
    "contiguous": Contiguous,
    "contiguous-linear": ContiguousLinear,
    "pipedream": PipeDream,
    "chain-step": ChainStep,
    "cpsat": CpSat,
    "hill-climbing": HillClimbing,
    "annealing": Annealing,
    "tabu": Tabu,
    "genetic": Genetic,
    "expert": Published,
    **{f"expert:{paper}": partial(Expert, ExpertParams(paper)) for paper in RULES},
    "equal-layers": EqualLayers,
    **{f"accelerate:{rule}": partial(Accelerate, AccelerateParams(rule)) for rule in DEVICE_MAPS},
    **{name: partial(Mayer, params) for name, params in SINGLE_METHODS.items()},
    **{placer.name: placer for placer in (Heft, Cpop, Etf, MTopo, MEtf, MSct)},
    **{placer.name: placer for placer in (Scotch, MinCut, Metis, MtKahypar)},
}
"""Methods that need no argument; `single:DEVICE` is the other kind."""
PRIORITISED: dict[str, Callable[[], Placer]] = {
    name: partial(Mayer, params) for name, params in ORDERED_METHODS.items()
}
"""Methods that differ from others by their priorities alone, and so mean nothing but under that discipline."""


def method_names(problem: Problem) -> list[str]:
    """Every method that the problem's machine knows."""
    more = PRIORITISED if problem.discipline == "priority" else {}
    return [*(f"single:{device.name}" for device in problem.machine.devices), *NAMED, *more]


def check_name(name: str) -> None:
    """Raise unless there is such a method on some problem; which devices there are to choose from shows later."""
    if not name.startswith("single:") and name not in (*NAMED, *PRIORITISED, DATA_PARALLEL):
        raise UnknownNameError("method", name, ["single:DEVICE", *NAMED, *PRIORITISED, DATA_PARALLEL])


def make_placer(name: str, problem: Problem) -> Placer:
    """A fresh placer of that name."""
    if name in NAMED:
        return NAMED[name]()
    if name in PRIORITISED:
        if problem.discipline == "priority":
            return PRIORITISED[name]()
        raise InputError(
            f"method {name!r} orders what is ready, which means nothing under the discipline {problem.discipline}; use "
            f"{name.partition('+')[0]!r}, or the discipline priority"
        )
    if name == DATA_PARALLEL:
        raise InputError(
            f"{name} is no placement of this graph but one of copies of it, captured at a part of the batch; use "
            "placewright.data_parallel(graph_of_a_part, machine)"
        )
    if name not in method_names(problem):
        raise UnknownNameError("method", name, method_names(problem))
    return Single(name.removeprefix("single:"))


def search(
    problem: Problem,
    method: str | Placer = "auto",
    stop: Criterion | None = None,
    *,
    seed: int = 0,
    evaluator: Evaluator | None = None,
    watch: Callable[[Progress], None] | None = None,
    bound: Bound | bool = True,
) -> Result:
    """Search for a good placement.

    `method` is a name or a placer. `stop` says when to end; without it a method runs until it has no more to
    ask, and one that is `endless` for 10 s. `seed` fixes all randomness; `watch` is told of the progress
    after every batch. `bound`: see `run_search`.
    """
    from placewright.stop import Seconds

    placer = make_placer(method, problem) if isinstance(method, str) else method
    if stop is None and placer.endless:
        stop = Seconds(10.0)
    return run_search(problem, placer, stop, seed=seed, evaluator=evaluator, watch=watch, bound=bound)

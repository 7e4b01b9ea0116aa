"""Placer, the one loop that drives every placer, and Result.

The loop keeps the budget, evaluates, remembers the best and reports; a placer proposes and learns.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from placewright.bounds import Bound, lower_bound
from placewright.checks import describe, format_bytes, format_count, format_seconds
from placewright.errors import InfeasibleError, InputError, SearchError
from placewright.evaluate import Evaluation, Evaluator, SimulatorEvaluator
from placewright.placement import Placement
from placewright.predict import measured_share
from placewright.problem import Problem
from placewright.sim import Outcome, Simulator
from placewright.stop import Criterion, Never, Progress


class Placer(ABC):
    """An algorithm that proposes placements and learns from their outcomes. One object, one search at a time.

    `ask` gives a batch and changes nothing that `tell` would need; an empty batch ends the search. The last
    batch may be told in part only, when the budget of evaluations ends within it. A placer that learns also
    has `state()` and `restore(state)`.
    """

    name: ClassVar[str] = "placer"
    endless: ClassVar[bool] = False
    """Whether it goes on asking until it is stopped; such a method gets 10 s unless told otherwise."""

    own_evaluations: int = 0
    """Placements that the placer has valued by itself, by increments, since the search began: they count too."""
    left: float = math.inf
    """How many evaluations the budget leaves, told before every `ask`; one's own must keep to it."""
    seconds_left: float = math.inf
    """How many seconds the budget leaves, told before `start` and every `ask`; infinite where time is no limit.

    One whose `ask` may take long can give up in time; what it finds may then depend on the clock, as the budget does.
    """

    def prepare(self, problem: Problem) -> None:  # noqa: B027  # most placers have nothing to compile
        """Compile what the search will need, before its clock starts; what is compiled stays so on disk."""

    @abstractmethod
    def start(self, problem: Problem, rng: np.random.Generator) -> None:
        """Do the work that is done once per problem. All randomness comes from `rng`."""

    @abstractmethod
    def ask(self) -> list[Placement]:
        """A batch of placements; empty when finished."""

    @abstractmethod
    def tell(self, evaluations: Sequence[Evaluation]) -> None:
        """Learn from the outcomes of what was asked."""

    def bound_s(self) -> float | None:
        """A value that no placement of the problem can be below, where the placer has proved one."""
        return None


@dataclass(frozen=True, repr=False)
class Result:
    """What a search found: the best placement, how good it is proved to be, and how it went."""

    problem: Problem
    method: str
    seed: int
    placement: Placement | None
    """The best that was seen: feasible if any was; None when nothing was evaluated."""
    outcome: Outcome | None
    evaluations: int
    seconds: float
    bound_s: float | None
    ended: str
    """`finished` (the placer had no more to ask), `stopped` (by a criterion) or `interrupted`."""
    improvements: tuple[tuple[int, float], ...] = ()
    """(evaluations, value in seconds) at each improvement of the best feasible value."""
    bound_by: str = ""
    """Which kind of bound `bound_s` is, or the method that proved it."""

    def __repr__(self) -> str:
        return (
            f"Result({self.method!r} on {self.problem!r}: {format_seconds(self.value_s)}, "
            f"{'feasible' if self.feasible else 'infeasible'}, {format_count(self.evaluations, 'evaluation')}, "
            f"{self.ended})"
        )

    @property
    def feasible(self) -> bool:
        """Whether a feasible placement was found."""
        return self.outcome is not None and self.outcome.feasible

    @property
    def value_s(self) -> float:
        """The objective of the best placement, in seconds; infinite where there is none."""
        return float("inf") if self.outcome is None else self.outcome.value_s

    @property
    def gap(self) -> float | None:
        """(value - bound) / value, where a bound is proved and a feasible placement found."""
        best = self.value_s if self.feasible else float("inf")
        return Progress(best_s=best, bound_s=self.bound_s).gap

    def summary(self) -> str:
        """Seconds, bound, gap and memory, in a few lines."""
        problem, outcome = self.problem, self.outcome
        head = f"{self.method}: {problem.graph.name} on {problem.machine.name}"
        cost = f"{format_count(self.evaluations, 'evaluation')} in {self.seconds:.2f} s, {self.ended}"
        if outcome is None:
            return f"{head}\nnothing was evaluated; {cost}"
        lines = [
            head,
            f"{problem.objective} {format_seconds(outcome.value_s)}" + ("" if self.feasible else ", infeasible"),
        ]
        if self.bound_s is not None and self.gap is not None:
            lines[-1] += f", the optimum is at most {self.gap:.1%} less"
            lines.append(f"bound {format_seconds(self.bound_s)}, by {self.bound_by}")
        for pool, peak, over in zip(problem.machine.pools, outcome.peak_bytes, outcome.over_bytes, strict=True):
            room = format_bytes(pool.capacity_bytes)
            over_text = f", {format_bytes(over)} too much" if over else ""
            lines.append(f"memory {pool.name}: {format_bytes(peak)} of {room}{over_text}")
        if self.placement is not None:
            share = measured_share(problem, self.placement)
            lines.append(f"{share:.0%} of the predicted time rests on measured costs")
        return "\n".join([*lines, cost])


def run_search(
    problem: Problem,
    placer: Placer,
    stop: Criterion | None = None,
    *,
    seed: int = 0,
    evaluator: Evaluator | None = None,
    watch: Callable[[Progress], None] | None = None,
    bound: Bound | bool = True,
) -> Result:
    """Let `placer` search until `stop`, or until it has no more to ask; Ctrl-C ends it with the best so far.

    `bound` is a lower bound that is known, True to work one out (once per problem, before the clock of the search
    starts, as every method on the problem shares it), or False for none but what the placer proves.
    """
    stop = stop or Never()
    if not isinstance(stop, Criterion):
        raise InputError(f"stop is {describe(stop)}; a criterion such as stop.Seconds(10) or stop.Evaluations(1000)")
    evaluator = evaluator or SimulatorEvaluator(problem)
    if evaluator.problem is not problem:
        raise SearchError("the evaluator was made for another problem")
    problem.check_memory()
    known = lower_bound(problem) if bound is True else bound or None
    placer.prepare(problem)
    course = _Course(known)
    ended = "finished"
    try:
        placer.seconds_left = stop.seconds_left(course.progress)
        placer.start(problem, np.random.default_rng(seed))
        while True:
            progress = course.now(placer)
            if watch:
                watch(progress)
            if stop(progress):
                ended = "stopped"
                break
            left = placer.left = stop.evaluations_left(progress)
            placer.seconds_left = stop.seconds_left(progress)
            before = placer.own_evaluations
            batch = placer.ask()
            if not batch:
                break
            left -= course.count(placer.own_evaluations - before)
            told = evaluator.evaluate(batch if len(batch) <= left else batch[: int(left)])
            for evaluation in told:
                course.note(evaluation)
            placer.tell(told)
    except KeyboardInterrupt:
        ended = "interrupted"
    if ended != "interrupted":  # an interrupted placer may be in the middle of something
        course.now(placer)
    return course.result(problem, placer.name, seed, ended)


class _Course:
    """How a search goes: its progress, the best so far, and what is proved."""

    def __init__(self, known: Bound | None) -> None:
        self.began = time.perf_counter()
        self.progress = Progress(bound_s=None if known is None else known.value_s)
        self.bound_by = "" if known is None else known.by
        self.best: Evaluation | None = None
        self.improvements: list[tuple[int, float]] = []

    def now(self, placer: Placer) -> Progress:
        """The progress with the time, and with the better of the bound that is known and what the placer has proved."""
        own, bound_s = placer.bound_s(), self.progress.bound_s
        if own is not None and (bound_s is None or own > bound_s):
            self.bound_by, bound_s = placer.name, own
        self.progress = replace(self.progress, seconds=time.perf_counter() - self.began, bound_s=bound_s)
        return self.progress

    def count(self, evaluations: int) -> int:
        """Count evaluations that have brought nothing better."""
        done = self.progress
        self.progress = replace(
            done,
            evaluations=done.evaluations + evaluations,
            since_improvement=done.since_improvement + evaluations,
        )
        return evaluations

    def note(self, evaluation: Evaluation) -> None:
        """Count an evaluation, and remember it if it is the best."""
        self.count(1)
        outcome = evaluation.outcome
        if self.best is None or outcome.rank < self.best.outcome.rank:
            self.best = evaluation
            if outcome.feasible:
                self.improvements.append((self.progress.evaluations, outcome.value_s))
                self.progress = replace(self.progress, best_s=outcome.value_s, since_improvement=0)

    def result(self, problem: Problem, method: str, seed: int, ended: str) -> Result:
        """What was found when the search ended."""
        return Result(
            problem=problem,
            method=method,
            seed=seed,
            placement=self.best.placement if self.best else None,
            outcome=self.best.outcome if self.best else None,
            evaluations=self.progress.evaluations,
            seconds=time.perf_counter() - self.began,
            bound_s=self.progress.bound_s,
            ended=ended,
            improvements=tuple(self.improvements),
            bound_by=self.bound_by,
        )


def require_feasible(result: Result) -> None:
    """Raise unless a feasible placement was found; says what is missing and what would help."""
    if result.feasible:
        return
    if result.outcome is None or result.placement is None:
        if result.ended == "finished":
            raise InfeasibleError(f"{result.method} found that no placement keeps all constraints; relax one")
        raise InfeasibleError(f"{result.method} evaluated nothing; give it more seconds or evaluations")
    outcome, pools = result.outcome, result.problem.machine.pools
    short = [
        f"{pool.name} needs {format_bytes(peak)} of {format_bytes(pool.capacity_bytes)} ({format_bytes(over)} too much)"
        for pool, peak, over in zip(pools, outcome.peak_bytes, outcome.over_bytes, strict=True)
        if over
    ]
    if short:
        raise InfeasibleError(
            f"{result.method} found no placement that fits. In the nearest one {'; '.join(short)}. "
            "Search longer, try another method, use a smaller batch, or allow more memory."
        )
    detail = Simulator(result.problem, threads=1).trace(result.placement).detail
    raise InfeasibleError(f"{result.method} found no placement that can run. In the best one {detail}.")

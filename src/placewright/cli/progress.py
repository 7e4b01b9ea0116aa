"""Progress of a search on stderr: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from placewright.checks import format_count, format_seconds
from placewright.cli.output import Output, is_terminal

if TYPE_CHECKING:
    from placewright.cli.options import Effort
    from placewright.problem import Problem
    from placewright.stop import Progress

EVERY_S = 5.0
"""Seconds between plain lines."""
PATIENCE_S = 2.0
"""Seconds of silence before a note says what takes so long."""
PREPARING = "preparing the simulator; the first run after an installation takes one to two minutes"

Watch = Callable[["Progress"], None]


@contextmanager
def watching(output: Output, method: str, effort: Effort) -> Iterator[Watch | None]:
    """Give what a search should tell of its progress; None where nobody wants to know."""
    if not wanted(output):
        yield None
    elif is_terminal(sys.stderr):
        with _bar(method, effort) as watch:
            yield watch
    else:
        yield _lines(method)


def announce(output: Output, what: str, effort: Effort) -> None:
    """Say what begins and how long it may take; on a terminal the bar does."""
    if wanted(output) and not is_terminal(sys.stderr):
        output.note(f"{what}: {_limits(effort)}")


def wanted(output: Output) -> bool:
    """Whether anybody wants to know of progress."""
    style = output.style
    return not style.quiet and (not style.json or is_terminal(sys.stderr))


def _lines(method: str) -> Watch:
    """Return a watch that prints a line every few seconds."""
    due = EVERY_S

    def watch(progress: Progress) -> None:
        nonlocal due
        if progress.seconds < due:
            return
        due = progress.seconds + EVERY_S
        click.echo(f"{method}: {progress.seconds:.0f} s, {_state(progress)}", err=True)

    return watch


@contextmanager
def _bar(method: str, effort: Effort) -> Iterator[Watch]:
    """Give a watch that moves a bar."""
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn(method, markup=False),
        rich_progress.BarColumn(),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TextColumn("{task.description}", markup=False),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bars:
        task = bars.add_task(_limits(effort), total=None if effort.limit_s == math.inf else 1.0)

        def watch(progress: Progress) -> None:
            done = 0.0 if not effort.limit_s else progress.seconds / effort.limit_s
            if effort.evaluations:
                done = max(done, progress.evaluations / effort.evaluations)
            bars.update(task, completed=min(done, 1.0), description=_state(progress))

        yield watch


def _state(progress: Progress) -> str:
    """Return where a search stands, in words."""
    best = f"best {format_seconds(progress.best_s)}" if math.isfinite(progress.best_s) else "none feasible yet"
    gap = "" if progress.gap is None else f", the optimum is at most {progress.gap:.1%} less"
    return f"{format_count(progress.evaluations, 'evaluation')}, {best}{gap}"


def _limits(effort: Effort) -> str:
    """Return how long a search may take, in words."""
    limits = [] if effort.limit_s is None else [f"{effort.limit_s:g} s"]
    limits += [] if effort.evaluations is None else [format_count(effort.evaluations, "evaluation")]
    return f"at most {' and '.join(limits)}; Ctrl-C ends it with the best so far"


def warm_up(output: Output, problem: Problem) -> None:
    """Simulate something, so that compiling the simulator, once per installation, takes no time of a search."""
    from placewright.placement import Placement
    from placewright.sim import Simulator

    problem = problem.replace(constraints=())  # what is simulated here must keep none
    placement = Placement(problem.lift(problem.choices.argmax(axis=1)))
    with patiently(output):
        simulator = Simulator(problem)
        simulator.simulate([placement])
        simulator.trace(placement)


@contextmanager
def patiently(output: Output, text: str = PREPARING) -> Iterator[None]:
    """Say what is going on if it takes long: by default, simulating for the first time."""
    timer = threading.Timer(PATIENCE_S, _say, [output, text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(output: Output, text: str) -> None:
    """Note something from the timer's thread; a closed stderr is nobody's concern there."""
    with contextlib.suppress(OSError, ValueError):
        output.note(text)

"""`simulate`: what a given placement would take."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from placewright.checks import format_seconds
from placewright.cli.answer import Answer
from placewright.cli.options import (
    Question,
    Recipe,
    Style,
    capture_options,
    output_option,
    question_options,
    style_options,
)
from placewright.cli.output import Output
from placewright.cli.planning import require_folder, save
from placewright.errors import InfeasibleError, PlacewrightError

if TYPE_CHECKING:
    from placewright.machine import Machine
    from placewright.placement import Placement
    from placewright.problem import Problem
    from placewright.sim import Outcome


@click.command()
@question_options
@click.option(
    "--placement", required=True, metavar="expert|single:DEVICE|FILE",
    help="The human expert's beside the workload, everything on one device, or a file: a plan, a split, or devices.",
)  # fmt: skip
@click.option(
    "--window", multiple=True, metavar="DEVICE=SIZE", help="What a device may hold of streamed parameters, gpu:0=1GiB."
)
@click.option("--critical-path", is_flag=True, help="List every operation and transfer that the step waited for.")
@capture_options
@output_option
@style_options
def simulate(
    *,
    question: Question,
    placement: str,
    window: tuple[str, ...],
    critical_path: bool,
    recipe: Recipe,
    output: str | None,
    style: Style,
) -> None:
    """Simulate a given placement of MODEL: time, memory, and what it waited for."""
    from placewright.cli.progress import patiently
    from placewright.cli.setup import set_up, windows
    from placewright.cli.show import facts, path_records, remedy
    from placewright.importers.placements import read_placement
    from placewright.sim import Simulator

    out = Output(style)
    require_folder(output)
    setup = set_up(question, recipe, out)
    problem = setup.problem
    given = read_placement(placement, problem, setup.path)
    origin = _origin(out, placement, problem)
    given = _with_windows(given, windows(window, problem.machine), problem.machine)
    began = time.perf_counter()
    with patiently(out):
        outcome = Simulator(problem, threads=1).trace(given)
    seconds = time.perf_counter() - began
    answer = Answer(problem, placement, given, outcome, seconds, origin=origin, **_proved(out, problem, outcome))
    for device, raised in zip(problem.machine.devices, outcome.raised, strict=True):
        if raised:
            out.note(f"the window of {device.name} was below what one operation needs, and was raised to that")
    if critical_path and outcome.timeline is None:
        out.note("there is no critical path: only the objective step has one, and only of what can run")
    try:
        if output is not None:
            save(out, answer, output)
    finally:
        path = list(path_records(outcome.timeline)) if critical_path and outcome.timeline is not None else None
        if style.json:
            out.json(answer.record() | ({"critical_path": path} if critical_path else {}))
        else:
            out.facts(f"{placement}: {problem.graph.name} on {problem.machine.name}", facts(answer, searched=False))
            if path:
                rows = [[format_seconds(p["start_s"]), format_seconds(p["seconds"]), p["name"], p["where"], p["wait"]]
                        for p in path]  # fmt: skip
                out.table([">start", ">takes", "what", "where", "waited for"], rows)
    if not outcome.feasible:
        raise InfeasibleError(remedy(answer))


def _proved(out: Output, problem: Problem, outcome: Outcome) -> dict[str, Any]:
    """How good the best placement can be, and how far from it this one is at most; nothing where none fits."""
    from placewright.bounds import lower_bound
    from placewright.cli.progress import patiently
    from placewright.stop import Progress

    try:
        with patiently(out, "working out a lower bound"):
            bound = lower_bound(problem)
    except InfeasibleError as error:
        out.note(str(error))
        return {}
    gap = Progress(best_s=outcome.value_s, bound_s=bound.value_s).gap if outcome.feasible else None
    return {"bound_s": bound.value_s, "bound_by": bound.by, "gap": gap}


def _with_windows(placement: Placement, sizes: dict[str, int], machine: Machine) -> Placement:
    """Return the placement with some devices' streaming windows set."""
    import numpy as np

    from placewright.placement import DEFAULT_WINDOW

    if not sizes:
        return placement
    given = placement.windows_bytes
    values = np.full(len(machine.devices), DEFAULT_WINDOW, np.int64) if given is None else given.copy()
    for name, size in sizes.items():
        values[machine.device(name)] = size
    return replace(placement, windows_bytes=values)


def _origin(out: Output, source: str, problem: Problem) -> tuple[str, int | None, int]:
    """Method, seed and evaluations that a plan of this placement is to name; says if it was made for something else."""
    from placewright.fingerprints import graph_fingerprint, machine_fingerprint, workload_fingerprint
    from placewright.formats import read_plan

    if source == "expert" or source.startswith("single:"):
        return source, None, 1
    try:
        plan = read_plan(source)
    except PlacewrightError:
        return "given", None, 1  # another form of placement, which says nothing of where it came from
    graph, machine = problem.graph, problem.machine
    if plan.graph_fingerprint != graph_fingerprint(graph):
        out.note(f"the plan was made for another graph, {plan.graph}")
    elif plan.workload_fingerprint != workload_fingerprint(graph):
        out.note(f"the plan was made for the same graph with other sizes, {plan.graph}")
    if plan.machine_fingerprint != machine_fingerprint(machine):
        out.note(f"the plan was made for another machine, or other memory: {plan.machine}")
    for name in ("objective", "discipline"):
        made, used = getattr(plan, name), getattr(problem, name)
        if made != used:
            out.note(f"the plan was made for {name} {made}; this is {used}")
    return plan.method, plan.seed, plan.evaluations

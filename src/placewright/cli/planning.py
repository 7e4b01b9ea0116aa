"""`plan` and `compare`: searches for a good placement."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from placewright.checks import format_bytes, format_seconds
from placewright.cli.answer import Answer
from placewright.cli.options import (
    DEFAULT_METHOD,
    Effort,
    Question,
    Recipe,
    Style,
    capture_options,
    effort_options,
    output_option,
    question_options,
    style_options,
)
from placewright.cli.output import Output
from placewright.cli.towers import METHOD, NOTE, may_be_split, search_towers
from placewright.errors import FileError, InfeasibleError, InputError, PlacewrightError, UnknownNameError

if TYPE_CHECKING:
    from placewright.bounds import Bound
    from placewright.cli.setup import Setup
    from placewright.evaluate import SimulatorEvaluator
    from placewright.problem import Problem
    from placewright.search import Placer, Result
    from placewright.stop import Criterion

MOST_POOLS = 4
"""Pools that have a column each in the table of `compare`."""
GAPS = "the optimum is at most what `to bound` says less"


@click.command()
@question_options
@click.option(
    "--method",
    default=DEFAULT_METHOD,
    show_default=True,
    help="auto, expert, single:DEVICE, heft, annealing, cpsat, ...; any other word lists all.",
)
@effort_options
@capture_options
@output_option
@style_options
def plan(*, question: Question, method: str, effort: Effort, recipe: Recipe, output: str | None, style: Style) -> None:
    """Search for the fastest placement of MODEL that fits.

    MODEL is a network of the zoo (nmt-4, layered/3), a function in a Python file that returns a module and its
    inputs (file.py:FUNCTION), a transformers folder (hf:FOLDER), an exported program (.pt2), an ONNX model (.onnx), a
    graph of ours (.json, .json.gz), a workload of Tarnawski et al. (.json) or a PipeDream profile (.txt). Ctrl-C ends
    the search with the best so far.
    """
    from placewright.cli.progress import announce, warm_up
    from placewright.cli.setup import set_up
    from placewright.cli.show import facts, remedy
    from placewright.methods import check_name

    out = Output(style)
    require_folder(output)
    check_name(method)
    if method == METHOD and output is not None:
        raise InputError(f"{METHOD} places towers, another graph than MODEL, to which no plan can apply; leave -o out")
    setup = set_up(question, recipe, out)
    problem = setup.problem
    _check_names(problem, [method])
    problem.check_memory()
    warm_up(out, problem)
    _bounded(out, problem)
    announce(out, f"searching by {method}", effort)
    result, evaluator = _searched(out, setup, method, effort)
    if result.placement is None:
        if result.ended == "interrupted":
            raise click.Abort
        raise InfeasibleError(f"{result.method} evaluated nothing; give it more seconds or evaluations")
    if result.ended == "interrupted":
        out.note("interrupted; this is the best so far")
    answer = Answer.of(result, result.placement, evaluator.simulator.trace(result.placement))
    try:
        if output is not None:
            save(out, answer, output)
    finally:
        if style.json:
            out.json(answer.record())
        else:
            out.facts(_title(answer), facts(answer, searched=True))
            if method == METHOD:
                out.text(NOTE)
    if not result.feasible:
        raise InfeasibleError(f"{remedy(answer)} Searching longer or by another method may find a placement that fits.")


@click.command()
@question_options
@click.option(
    "--methods", "--method", "given", multiple=True, metavar="A,B",
    help="Which to compare; may be given several times. Default: all that apply.",
)  # fmt: skip
@effort_options
@capture_options
@style_options
def compare(*, question: Question, given: tuple[str, ...], effort: Effort, recipe: Recipe, style: Style) -> None:
    """Search for a placement of MODEL by several methods, and list what each found, best first.

    Seconds and evaluations count for each method. Ctrl-C ends the method that is running, and the comparison.
    """
    from placewright.cli.progress import announce, warm_up
    from placewright.cli.setup import set_up
    from placewright.methods import check_name, method_names

    out = Output(style)
    names = list(dict.fromkeys(name for text in given for name in map(str.strip, text.split(",")) if name))
    if given and not names:
        raise InputError("--methods names none; write names with commas between them")
    for name in names:
        check_name(name)
    setup = set_up(question, recipe, out)
    problem = setup.problem
    names = names or [*method_names(problem), *([METHOD] if may_be_split(setup) else [])]
    _check_names(problem, names, applicable=False)
    problem.check_memory()
    warm_up(out, problem)
    bound = _bounded(out, problem)
    announce(out, f"searching by {len(names)} method{'s, each' if len(names) > 1 else ''}", effort)
    answers = _compared(out, setup, names, effort)
    answers.sort(key=lambda answer: answer.outcome.rank)
    best_s = answers[0].outcome.value_s if answers[0].outcome.feasible else None
    if style.json:
        out.json([answer.record() | {"to_best": answer.to(best_s)} for answer in answers])
    else:
        tables = [_comparison(problem, answers, best_s, detail) for detail in (3, 2, 1, 0)]
        if len(problem.machine.pools) > MOST_POOLS:
            tables = tables[1:]
        out.table(*next((table for table in tables if out.fits(*table)), tables[-1]))
        out.space()
        out.text(f"bound {format_seconds(bound.value_s)} by {bound.by}; {GAPS}")
        ratio = next((answer.parallelism for answer in answers if answer.problem is problem), None)
        if ratio is not None:
            out.text(f"parallelism {ratio:.2f} (sum of times over critical path)")
        if any(answer.method == METHOD for answer in answers):
            out.text(NOTE)
        out.text(f"{_shares(answers)} of the predicted time rests on measured costs")
    if not answers[0].outcome.feasible:
        from placewright.cli.show import remedy

        raise InfeasibleError(f"no method found a placement that fits. The nearest is {remedy(answers[0])}")


def require_folder(output: str | None) -> None:
    """Refuse, before a long search, a file that could not be written after it."""
    if output is None:
        return
    folder = os.path.dirname(os.path.abspath(output))
    if not os.path.isdir(folder):
        raise FileError(output, "", f"cannot be written: there is no folder {folder}")
    if os.path.isdir(output):
        raise FileError(output, "", "cannot be written: it is a folder")


def save(out: Output, answer: Answer, path: str) -> None:
    """Write the plan of an answer."""
    from placewright.formats import write_plan

    write_plan(answer.plan(), path)
    out.note(f"plan written to {path}" + ("" if answer.outcome.feasible else "; it is infeasible"))


def _searched(out: Output, setup: Setup, method: str, effort: Effort) -> tuple[Result, SimulatorEvaluator]:
    """Search by one method."""
    from placewright.cli.progress import watching
    from placewright.evaluate import SimulatorEvaluator
    from placewright.methods import search

    if method == METHOD:
        return search_towers(out, setup, effort, _stop(effort))
    placer = _placer(setup, method)
    evaluator = SimulatorEvaluator(setup.problem, effort.threads)
    with watching(out, method, effort) as watch:
        result = search(setup.problem, placer, _stop(effort), seed=effort.seed, evaluator=evaluator, watch=watch)
    return result, evaluator


def _placer(setup: Setup, method: str) -> Placer:
    """A fresh placer of that name; an expert's has the split that was published beside the workload."""
    from placewright.heuristics.expert import Published
    from placewright.importers.placements import read_placement
    from placewright.methods import make_placer

    if method == Published.name and setup.workload.expert is not None:
        return Published(read_placement("expert", setup.problem, setup.path).devices)
    return make_placer(method, setup.problem)


def _stop(effort: Effort) -> Criterion:
    """Return when a search ends."""
    from placewright.stop import AnyOf, Evaluations, Gap, Seconds

    limits: list[Criterion] = [] if effort.limit_s is None else [Seconds(effort.limit_s)]
    limits += [] if effort.evaluations is None else [Evaluations(effort.evaluations)]
    limits += [] if effort.gap is None else [Gap(effort.gap)]
    return AnyOf(tuple(limits))


def _check_names(problem: Problem, names: Sequence[str], *, applicable: bool = True) -> None:
    """Refuse a method that does not exist before any has run; and one that does not apply, if that matters."""
    from placewright.methods import make_placer

    for name in names:
        if name == METHOD:
            continue
        try:
            make_placer(name, problem)
        except InputError as error:
            if applicable or isinstance(error, UnknownNameError):
                raise


def _bounded(out: Output, problem: Problem) -> Bound:
    """The lower bound, which all methods share; says so where it takes long. Raises where nothing can fit."""
    from placewright.bounds import lower_bound
    from placewright.cli.progress import patiently

    with patiently(out, "working out a lower bound"):
        return lower_bound(problem)


def _compared(out: Output, setup: Setup, names: Sequence[str], effort: Effort) -> list[Answer]:
    """Search by every method in turn; one that does not apply is left out, with a note. At least one must."""
    answers: list[Answer] = []
    errors: list[PlacewrightError] = []
    for k, name in enumerate(names):
        try:
            result, evaluator = _searched(out, setup, name, effort)
        except (InputError, InfeasibleError) as error:
            out.note(f"{name} left out: {error}")
            errors.append(error)
            continue
        if result.placement is not None and result.outcome is not None:
            outcome = result.outcome if result.feasible else evaluator.simulator.trace(result.placement)
            answers.append(Answer.of(result, result.placement, outcome))
        else:
            out.note(f"{name} left out: it evaluated nothing")
        if result.ended == "interrupted":
            left = names[k + 1 :]
            out.note("interrupted" + (f"; not tried: {', '.join(left)}" if left else ""))
            if not answers:
                raise click.Abort
            return answers
    if not answers:
        kind = InputError if errors and all(isinstance(error, InputError) for error in errors) else InfeasibleError
        raise kind("no method could be compared" + "".join(f"; {error}" for error in errors))
    return answers


def _title(answer: Answer) -> str:
    """Say what was done."""
    return f"{answer.method}: {answer.problem.graph.name} on {answer.problem.machine.name}"


def _shares(answers: Sequence[Answer]) -> str:
    """How much of the predictions is measured, from the least to the most."""
    shares = sorted({f"{answer.measured_share:.0%}" for answer in answers}, key=lambda text: int(text[:-1]))
    return shares[0] if len(shares) == 1 else f"{shares[0]} to {shares[-1]}"


def _comparison(
    problem: Problem, answers: Sequence[Answer], best_s: float | None, detail: int
) -> tuple[list[str], list[list[str]]]:
    """Return titles and rows of the table, wide where `detail` is 3 and narrow where it is 0."""
    pools = problem.machine.pools
    by_pool, fits = detail == 3, all(answer.outcome.feasible for answer in answers)
    titles = ["method", f">{problem.objective}", ">to bound", ">to best", *([] if fits else ["feasible"])]
    titles += [f">{pool.name}" for pool in pools] if by_pool else ["fullest pool"]
    titles += [">seconds", *([">evaluations"] if detail else []), *([">per second"] if detail > 1 else [])]
    rows = []
    for answer in answers:
        outcome, above = answer.outcome, answer.to(best_s)
        row = [answer.method, format_seconds(outcome.value_s)]
        row += ["-" if share is None else f"{share:.1%}" for share in (answer.gap, above)]
        row += [] if fits else ["yes" if outcome.feasible else f"no: {outcome.reason}"]
        row += [format_bytes(peak) for peak in outcome.peak_bytes] if by_pool else [_fullest(answer, detail > 0)]
        row += [f"{answer.seconds:.2f}", str(answer.evaluations), f"{answer.evaluations_per_s:,.0f}"]
        rows.append(row[: len(titles)])
    return titles, rows


def _fullest(answer: Answer, wide: bool) -> str:
    """Return the pool of which most is used, how much of it, and in bytes."""
    pools, peaks = answer.problem.machine.pools, answer.outcome.peak_bytes
    shares = [peak / max(1, pool.capacity_bytes) for pool, peak in zip(pools, peaks, strict=True)]
    k = shares.index(max(shares))
    return f"{pools[k].name} {format_bytes(peaks[k]) + ' ' if wide else ''}({shares[k]:.0%})"

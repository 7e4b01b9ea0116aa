"""The method `data-parallel`: MODEL captured anew at a k-th of its batch, and searched as a problem of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.cli.models import has_batch, read_model, split_batch
from placewright.errors import InputError

if TYPE_CHECKING:
    from placewright.cli.options import Effort
    from placewright.cli.output import Output
    from placewright.cli.setup import Setup
    from placewright.evaluate import SimulatorEvaluator
    from placewright.search import Result
    from placewright.stop import Criterion

METHOD = "data-parallel"
"""As in placewright.heuristics.data_parallel, which is too heavy to import here; a test compares them."""
NOTE = f"{METHOD} is another graph of the same batch, copies of MODEL with a part of it each; no bound of MODEL holds"


def may_be_split(setup: Setup) -> bool:
    """Whether MODEL is of a kind that has a batch; if it cannot be split after all, the method says why."""
    return has_batch(setup.path)


def search_towers(out: Output, setup: Setup, effort: Effort, stop: Criterion) -> tuple[Result, SimulatorEvaluator]:
    """Search by data parallelism on all accelerators; an error says why it does not apply."""
    from placewright.evaluate import SimulatorEvaluator
    from placewright.heuristics import data_parallel

    problem = setup.problem
    if problem.constraints:
        raise InputError("towers are another graph, whose operations have other names; leave constraints out")
    asked = data_parallel.Question(problem.machine, None, problem.objective, problem.discipline)
    count = len(asked.devices())
    if count < 2:
        raise InputError(f"machine {problem.machine.name!r} has one accelerator; two or more are needed")
    part = read_model(setup.path, split_batch(setup.path, setup.recipe, count), out)
    result = data_parallel.search_towers(part.workload.graph, asked, stop, threads=effort.threads)
    return result, SimulatorEvaluator(result.problem, effort.threads)

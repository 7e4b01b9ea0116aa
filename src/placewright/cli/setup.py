"""From arguments to a problem."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from placewright.checks import parse_bytes
from placewright.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from placewright.cli.options import Question, Recipe
    from placewright.cli.output import Output
    from placewright.machine import Machine
    from placewright.problem import Problem
    from placewright.workload import Workload


@dataclass(frozen=True)
class Setup:
    """A problem, the workload that it came from, and how that was read."""

    problem: Problem
    workload: Workload
    path: str
    recipe: Recipe


def set_up(question: Question, recipe: Recipe, out: Output) -> Setup:
    """Read or capture the model, read the machine, and make the problem."""
    from placewright.cli.models import may_bring_machine, read_model
    from placewright.machine_files import load_machine
    from placewright.problem import Problem, parse_constraint

    given = None if question.machine is None else load_machine(question.machine)
    if given is None and not may_bring_machine(question.model):
        raise _no_machine(question.model)
    constraints = tuple(parse_constraint(text) for text in question.constraints)
    machine = None if given is None else _with_memory(given, question)  # all this before a capture, which may take long
    workload = read_model(question.model, recipe, out).workload
    if machine is None:
        if workload.machine is None:
            raise _no_machine(question.model)
        machine = _with_memory(workload.machine, question)
    problem = Problem(
        workload.graph,
        machine,
        constraints=constraints,
        objective=question.objective or workload.objective or "step",
        discipline=question.discipline or workload.discipline or "stream",
    )
    return Setup(problem, workload, question.model, recipe)


def windows(texts: tuple[str, ...], machine: Machine) -> dict[str, int]:
    """Return streaming windows in bytes by device, from `--window` texts."""
    return _sizes("--window", texts, [device.name for device in machine.devices])


def _with_memory(machine: Machine, question: Question) -> Machine:
    """Return the machine with the pools that --memory caps."""
    return machine.with_memory(_sizes("--memory", question.memory, _pools(machine)))


def _no_machine(model: str) -> InputError:
    """Say that nothing names a machine, and what does."""
    from placewright.machine_files import presets

    return InputError(
        f"{model} says nothing of a machine; name one with --machine. The presets are {', '.join(presets())}; the path "
        "of a TOML file works too."
    )


def _pools(machine: Machine) -> list[str]:
    """Return the names that --memory accepts: devices and pools."""
    return list(dict.fromkeys([*machine.device_index, *machine.pool_index]))


def _sizes(option: str, texts: tuple[str, ...], known: list[str]) -> dict[str, int]:
    """Return bytes by name from texts such as `gpu:0=4GiB` or `gpu:*=4GiB`; a later text wins."""
    sizes: dict[str, int] = {}
    for text in texts:
        pattern, equals, size = text.rpartition("=")
        if not equals or not pattern:
            raise InputError(f"{option} {text!r}: write NAME=SIZE, such as {known[-1]}=4GiB")
        names = [name for name in known if name == pattern] or [name for name in known if fnmatchcase(name, pattern)]
        if not names:
            raise UnknownNameError(f"name in {option}", pattern, known)
        try:
            sizes |= dict.fromkeys(names, parse_bytes(size))
        except InputError as error:
            raise InputError(f"{option} {text!r}: {error}") from None
    return sizes

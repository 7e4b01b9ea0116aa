"""From arguments to a problem."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from placewright.checks import parse_bytes
from placewright.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from placewright.cli.options import Question
    from placewright.machine import Machine
    from placewright.problem import Problem
    from placewright.workload import Workload

READABLE = (
    "It reads a graph of ours (.json, .json.gz), a workload of Tarnawski et al. (.json) or a PipeDream profile (.txt)."
)
_NOT_YET = (
    (re.compile(r"hf:.*"), "a transformers folder"),
    (re.compile(r".*\.py:[^/\\:]*"), "a function in a Python file"),
    (re.compile(r".*\.onnx"), "an ONNX file"),
    (re.compile(r".*\.pt2"), "an exported PyTorch program"),
)
_ZOO_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Setup:
    """A problem, and the workload that it came from."""

    problem: Problem
    workload: Workload
    path: str


def set_up(question: Question) -> Setup:
    """Read model and machine, and make the problem."""
    from placewright.problem import Problem, parse_constraint

    workload = read_model(question.model)
    machine = _machine(question, workload)
    problem = Problem(
        workload.graph,
        machine.with_memory(_sizes("--memory", question.memory, _pools(machine))),
        constraints=tuple(parse_constraint(text) for text in question.constraints),
        objective=question.objective or workload.objective or "step",
        discipline=question.discipline or workload.discipline or "stream",
    )
    return Setup(problem, workload, question.model)


def read_model(model: str) -> Workload:
    """Read what MODEL names, or say why this version cannot."""
    for pattern, what in _NOT_YET:
        if pattern.fullmatch(model):
            raise InputError(f"MODEL {model!r} is {what}, which this version cannot read yet. {READABLE}")
    if _ZOO_NAME.fullmatch(model) and not os.path.exists(model):
        raise InputError(f"MODEL {model!r} is no file, and this version cannot build networks by name yet. {READABLE}")
    from placewright.importers import read_workload

    return read_workload(model)


def windows(texts: tuple[str, ...], machine: Machine) -> dict[str, int]:
    """Return streaming windows in bytes by device, from `--window` texts."""
    return _sizes("--window", texts, [device.name for device in machine.devices])


def _machine(question: Question, workload: Workload) -> Machine:
    """Return the machine that was named, or the workload's own."""
    from placewright.machine_files import load_machine, presets

    if question.machine is not None:
        return load_machine(question.machine)
    if workload.machine is not None:
        return workload.machine
    raise InputError(
        f"{question.model} says nothing of a machine; name one with --machine. The presets are "
        f"{', '.join(presets())}; the path of a TOML file works too."
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

"""Options that commands share, each group gathered into one record."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import click

from placewright.cli.program import traceback_option

DEFAULT_METHOD = "auto"
"""What `plan` searches with unless told otherwise."""
DEFAULT_SECONDS = 10.0
"""How long a search takes when neither seconds nor evaluations are given."""
OBJECTIVES = ("step", "max_load", "throughput")
DISCIPLINES = ("stream", "ready", "priority")
"""Both as in placewright.problem, which is too heavy to import here; a test compares them."""

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "adafactor")
UPDATE_ORDERS = ("early", "end")
"""Both as in placewright.capture, which is too heavy to import here; a test compares them."""

Command = Callable[..., None]


@dataclass(frozen=True)
class Recipe:
    """How a model that is captured is to be captured; None means that nothing was said."""

    optimizer: str | None = None
    update_order: str | None = None
    batch: int | None = None
    length: int | None = None
    task: str | None = None
    dims: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """What is to be placed, where, and by what measure."""

    model: str
    machine: str | None
    objective: str | None
    discipline: str | None
    constraints: tuple[str, ...]
    memory: tuple[str, ...]


@dataclass(frozen=True)
class Effort:
    """How long to search, and with what."""

    seconds: float | None
    evaluations: int | None
    seed: int
    threads: int | None
    gap: float | None = None

    @property
    def limit_s(self) -> float | None:
        """The time limit in seconds; none where only evaluations are limited."""
        return DEFAULT_SECONDS if self.seconds is None and self.evaluations is None else self.seconds


@dataclass(frozen=True)
class Style:
    """How to say it."""

    json: bool
    quiet: bool


def _gathered(record: type, argument: str, *options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds options and hands their values over as one record."""
    names = [field.name for field in fields(record)]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def call(*args: Any, **values: Any) -> None:
            values[argument] = record(**{name: values.pop(name) for name in names})
            command(*args, **values)

        for option in reversed(options):
            call = option(call)
        return call

    return decorate


question_options = _gathered(
    Question,
    "question",
    click.argument("model"),
    click.option("--machine", metavar="NAME|FILE", help="A preset or a TOML file. Default: the workload's own."),
    click.option("--objective", type=click.Choice(OBJECTIVES), help="Default: the workload's own, else step."),
    click.option("--discipline", type=click.Choice(DISCIPLINES), help="Default: the workload's own, else stream."),
    click.option(
        "--constraint", "constraints", multiple=True, metavar="TEXT",
        help="pin:PATTERN=DEVICE, forbid:PATTERN=DEVICE, colocate:PATTERN,PATTERN or separate:PATTERN,PATTERN.",
    ),
    click.option("--memory", multiple=True, metavar="POOL=SIZE", help="Cap a pool, such as gpu:0=4GiB or gpu:*=4GiB."),
)  # fmt: skip

capture_options = _gathered(
    Recipe,
    "recipe",
    click.option(
        "--optimizer", type=click.Choice((*OPTIMIZERS, "none")),
        help="Whose training step to capture; none: an inference pass. Default: a network's own, else none.",
    ),
    click.option("--update-order", type=click.Choice(UPDATE_ORDERS),
                 help="Each update after its gradient, or all at the end of the step. Default: early."),
    click.option("--batch", metavar="N", type=click.IntRange(min=1), help="Samples of a step (zoo, hf, functions)."),
    click.option("--length", metavar="N", type=click.IntRange(min=1), help="Tokens, samples or pixels (hf)."),
    click.option("--task", metavar="T", help="What to build a model for, such as text-generation (hf)."),
    click.option("--dim", "dims", multiple=True, metavar="NAME=N", help="Size of an axis that is left open (.onnx)."),
)  # fmt: skip

effort_options = _gathered(
    Effort,
    "effort",
    click.option(
        "--seconds", metavar="S", type=click.FloatRange(min=0, min_open=True),
        help=f"How long to search. Default: {DEFAULT_SECONDS:g}, or no limit where --evaluations is given.",
    ),
    click.option(
        "--evaluations", metavar="N", type=click.IntRange(min=1),
        help="How many placements to try; with the same seed, the same result every time.",
    ),
    click.option(
        "--gap", metavar="G", type=click.FloatRange(min=0),
        help="End a search once its best is proved to be within this share of the optimum, such as 0.05.",
    ),
    click.option(
        "--seed", metavar="N", type=click.IntRange(0, (1 << 63) - 1), default=0, help="Of all randomness. Default: 0."
    ),
    click.option(
        "--threads", metavar="N", type=click.IntRange(1, 4096), help="Threads that simulate. Default: every core."
    ),
)  # fmt: skip

style_options = _gathered(
    Style,
    "style",
    click.option("--json", is_flag=True, help="Print JSON."),
    click.option("--quiet", is_flag=True, help="No progress and no notes on stderr."),
    traceback_option(hidden=True),
)

output_option = click.option(
    "-o", "--output", type=click.Path(), metavar="FILE", help="Write the plan to this file (.json or .json.gz)."
)

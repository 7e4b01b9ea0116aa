"""The command line, one file per group of commands; the only place that prints.

Only click is imported at the top of these modules, so that `--help` answers at once; whatever is
heavier is imported inside the functions that need it.
"""

from __future__ import annotations

import click

from placewright.cli.capturing import capture
from placewright.cli.machines import machine
from placewright.cli.planning import compare, plan
from placewright.cli.program import Program, traceback_option
from placewright.cli.simulating import simulate

__all__ = ["cli", "main"]


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="placewright", prog_name="placewright")
@traceback_option()
def cli() -> None:
    """Decide where every operation and every parameter of a neural network runs.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 infeasible.
    """


for _command in (plan, compare, simulate, capture, machine):
    cli.add_command(_command)


def main() -> None:
    """Run the command line."""
    cli(prog_name="placewright")

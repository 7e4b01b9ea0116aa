"""How every command ends: its exit code, and errors in words instead of tracebacks."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import click

from placewright.errors import PlacewrightError

FAILED, INTERRUPTED = 1, 130
_SHOW_TRACEBACK = "placewright.show_traceback"


def traceback_option(hidden: bool = False) -> Callable[[Any], Any]:
    """Add the option that shows where an error came from."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        settings = ctx.find_root().obj
        if value and isinstance(settings, dict):
            settings[_SHOW_TRACEBACK] = True

    return click.option(
        "--traceback",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=remember,
        hidden=hidden,
        help="Show where an error came from (or set PLACEWRIGHT_TRACEBACK=1).",
    )


class Program(click.Group):
    """The group of all commands, which turns every error into a line on stderr and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and exit with 0 done, 1 failed, 2 wrong usage, 3 infeasible, 130 aborted."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show must not end the program
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        settings = {_SHOW_TRACEBACK: os.environ.get("PLACEWRIGHT_TRACEBACK", "") not in ("", "0")}
        try:
            code = super().main(args, prog_name, complete_var, False, **{"obj": settings, **extra})
        except Exception as error:
            code = _report(error, settings[_SHOW_TRACEBACK])
        sys.exit(code if isinstance(code, int) else 0)


def _known(error: Exception) -> str:
    """What is wrong outside the program, in words; empty when it is not that."""
    if isinstance(error, MemoryError):
        return "there is not enough memory for this"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
        return f"the output cannot be written: {error.strerror}"
    return ""


def _report(error: Exception, show: bool) -> int:
    """Say on stderr what went wrong; return the exit code."""
    if isinstance(error, click.Abort):  # Ctrl-C outside a search
        click.echo("aborted", err=True)
        return INTERRUPTED
    if show:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    if isinstance(error, click.ClickException):
        ctx = error.ctx if isinstance(error, click.UsageError) else None
        if ctx is not None:
            click.echo(f"{ctx.get_usage()}\nTry '{ctx.command_path} --help' for help.\n", err=True)
        click.echo(f"error: {error.format_message()}", err=True)
        return error.exit_code
    if isinstance(error, PlacewrightError):
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    known = _known(error)
    if known:
        click.echo(f"error: {known}", err=True)
        return FAILED
    hint = "" if show else " What --traceback shows helps to find it."
    click.echo(
        f"error: unexpected {type(error).__name__}: {error}\n"
        f"This is a defect in placewright; please report it, with the command that you ran.{hint}",
        err=True,
    )
    return FAILED

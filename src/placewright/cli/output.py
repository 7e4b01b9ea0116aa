"""Where commands write: results on stdout, notes on stderr; in colour on a terminal, aligned text elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import click

from placewright.cli.options import Style

RIGHT = ">"
"""Marks a column as right-aligned, at the beginning of its title."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at the stream, on a terminal that can do more than lines."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


class Output:
    """Prints what a command found, in the style that was asked for."""

    def __init__(self, style: Style) -> None:
        self.style = style

    def json(self, value: Any) -> None:
        """Print a JSON document on stdout."""
        click.echo(json.dumps(value, indent=2, allow_nan=False))

    def text(self, text: str) -> None:
        """Print text on stdout as it is."""
        click.echo(text)

    def facts(self, title: str, facts: Sequence[tuple[str, str]]) -> None:
        """Print labelled lines under a title; an empty label continues the one before."""
        width = max(len(label) for label, _ in facts)
        if not is_terminal(sys.stdout):
            click.echo("\n".join([title, *(f"  {label:<{width}}  {text}" for label, text in facts)]))
            return
        from rich.text import Text

        console = _console()
        console.print(Text(title, "bold"))
        for label, text in facts:
            line = Text.assemble("  ", (f"{label:<{width}}", "cyan"), "  ", text)
            console.print(line, soft_wrap=True)

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table; a title that begins with `>` aligns its column to the right."""
        names = [title.removeprefix(RIGHT) for title in titles]
        right = [title.startswith(RIGHT) for title in titles]
        if not is_terminal(sys.stdout) or not self.fits(titles, rows):  # a cell is never broken over lines
            click.echo(_aligned([names, *rows], right))
            return
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, header_style="bold cyan", pad_edge=False)
        for k, (name, is_right) in enumerate(zip(names, right, strict=True)):
            prose = k == len(names) - 1 and not is_right  # a description at the end may take several lines
            table.add_column(Text(name), justify="right" if is_right else "left", no_wrap=not prose)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        _console().print(table)

    def fits(self, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
        """Whether a table is no wider than the terminal; elsewhere everything fits."""
        if not is_terminal(sys.stdout):
            return True
        widths = [max(len(row[k].removeprefix(RIGHT)) for row in (titles, *rows)) for k in range(len(titles))]
        if not titles[-1].startswith(RIGHT):
            widths[-1] = min(widths[-1], 24)
        return sum(widths) + 3 * len(widths) <= shutil.get_terminal_size().columns

    def space(self) -> None:
        """Set two tables apart; on a terminal they come with space of their own."""
        if not is_terminal(sys.stdout):
            click.echo()

    def note(self, text: str) -> None:
        """Say something on stderr, unless --quiet."""
        if not self.style.quiet:
            click.echo(text, err=True)

    def warn(self, text: str) -> None:
        """Say on stderr what --quiet must not hide."""
        click.echo(f"warning: {text}", err=True)


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """Return rows as text in columns."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(right))]
    lines = (
        "  ".join(f"{cell:>{width}}" if is_right else f"{cell:<{width}}" for cell, width, is_right in columns).rstrip()
        for columns in (zip(row, widths, right, strict=True) for row in rows)
    )
    return "\n".join(lines)


def _console() -> Any:
    """Return a rich console on stdout; it obeys NO_COLOR by itself."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)

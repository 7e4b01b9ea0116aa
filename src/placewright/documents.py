"""Values that all of the project's JSON files share, read and written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from placewright.checks import Fields
from placewright.errors import InputError

MAX_TEXT = 1000
MAX_CONSTRAINT = 100_000
"""Characters of a name, or of any other text in a file."""
MAX_NUMBER = 1e30
"""The largest number in a file."""


def seconds(table: Fields, value: object, name: str) -> float:
    """Seconds; null is infinite."""
    return math.inf if value is None else table.check_number(value, name, high=MAX_NUMBER)


def mapping(owner: Fields, name: str) -> Fields:
    """Return the table in an optional field; its keys are free, but printable."""
    place = f"{owner.place}.{name}" if owner.place else name
    table = Fields(owner.take(name, {}), owner.path, place)
    for key in table.table:
        if len(key) > MAX_TEXT or not key.isprintable():
            raise table.fault(f"a name must be printable, of at most {MAX_TEXT} characters; found {key[:80]!r}")
    return table


def rates(owner: Fields, name: str) -> dict[str, float]:
    """Return a table of rates by name."""
    table = mapping(owner, name)
    return {key: table.number(key, high=MAX_NUMBER) for key in table.table}


def by_field(table: Fields, readers: Mapping[str, Callable[[Fields, str], Any]]) -> dict[str, Any]:
    """Return the fields that a table has, each by its reader; others are refused."""
    table.taken.update(readers)
    if not table.table.keys() <= readers.keys():
        table.done()
    return {name: readers[name](table, name) for name in table.table}


def checked(text: str, what: str, most: int = MAX_TEXT) -> str:
    """Return a text that can be read back."""
    if len(text) > most or not text.isprintable():
        raise InputError(f"{what} {text[:80]!r} cannot be written: only printable text of at most {most} characters")
    return text


def printable(text: str) -> str:
    """Return a message as it can be read back: cut to length, with blanks for what is unprintable."""
    return "".join(character if character.isprintable() else " " for character in text)[:MAX_TEXT]


def number(value: float) -> float | int | None:
    """Return a number as JSON has it: infinity is null, a whole number has no fraction."""
    if not math.isfinite(value):
        return None
    if abs(value) > MAX_NUMBER:
        raise InputError(f"{value} cannot be written: numbers of at most {MAX_NUMBER:g} only")
    return int(value) if value == int(value) and abs(value) < 1e15 else value


encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(", ", ": ")).encode
"""JSON on one line."""


def document(head: Mapping[str, Any], name: str, entries: Sequence[str], brackets: str) -> str:
    """Return a JSON object: one line per field of `head`, and last a field with one line per encoded entry."""
    lines = [f"  {encode(field)}: {encode(value)}" for field, value in head.items()]
    body = "\n    " + ",\n    ".join(entries) + "\n  " if entries else ""
    return "{\n" + ",\n".join([*lines, f"  {encode(name)}: {brackets[0]}{body}{brackets[1]}"]) + "\n}\n"


def pairs(table: Mapping[str, Any], what: str) -> list[str]:
    """Return the encoded entries of a table."""
    return [f"{encode(checked(key, what))}: {encode(value)}" for key, value in table.items()]

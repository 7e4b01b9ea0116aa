"""Checked reading of values that come from people and files, and their units.

A `Fields` walks one table of a parsed JSON or TOML document: each `take` names the field, its type
and its range, and `done` refuses what was not taken. Every fault names file and place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from placewright.errors import FileError, InputError

MAX_BYTES = 1 << 60
"""No size may exceed this: an exbibyte, far above any memory and far below int64."""

DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex32", "complex64"),
    *("complex128", "int64", "int32", "int16", "int8", "uint8", "bool"),
)
"""Types of numbers, by PyTorch's names."""

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


class FrozenDict(dict[Any, Any]):
    """A dictionary that nobody changes; unlike a proxy it can be pickled and copied."""

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("this mapping is part of a checked object and cannot be changed; use replace")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


def parse_bytes(text: str) -> int:
    """Bytes from text such as `4GiB`, `500MB` or `1024`."""
    match = _SIZE.fullmatch(text) if len(text) < 64 else None
    if match is None or match[2].lower() not in _UNITS:
        raise InputError(f"{text[:80]!r} is no size: write a number and B, KiB, MiB, GiB, TiB, KB, MB, GB or TB")
    unit = _UNITS[match[2].lower()]
    size = int(match[1]) * unit if match[1].isdigit() else round(float(match[1]) * unit)
    if size > MAX_BYTES:
        raise InputError(f"{text!r} is above the largest size allowed, {MAX_BYTES} bytes")
    return size


def format_bytes(count: int) -> str:
    """Bytes for people: `4.00 GiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(round(size, 2)) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"


def format_count(count: int, what: str) -> str:
    """A count for people: `1 evaluation`, `2 evaluations`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def format_seconds(seconds: float) -> str:
    """Seconds for people: `1.234 s`, `5.678 ms`, `9.012 us`."""
    if not math.isfinite(seconds):
        return "never"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        text = f"{seconds / scale:.6g}"
        if abs(float(text)) >= 1:
            return f"{text} {unit}"
    return "0 s" if seconds == 0 else f"{seconds / 1e-9:.6g} ns"


def find_cycle(before: Sequence[Sequence[int]]) -> list[int]:
    """One cycle of the graph in which i comes after each of `before[i]`; empty when there is none."""
    state = bytearray(len(before))  # 0 unseen, 1 on the path, 2 done
    for root in range(len(before)):
        if state[root]:
            continue
        path, stack = [root], [iter(before[root])]
        state[root] = 1
        while stack:
            nxt = next(stack[-1], None)
            if nxt is None:
                stack.pop()
                state[path.pop()] = 2
            elif state[nxt] == 1:
                return path[path.index(nxt) :]
            elif state[nxt] == 0:
                state[nxt] = 1
                path.append(nxt)
                stack.append(iter(before[nxt]))
    return []


class Fields:
    """One table of a document, read field by field; `place` says where it is."""

    def __init__(self, table: object, path: object, place: str) -> None:
        self.path, self.place = path, place
        if not isinstance(table, Mapping):
            raise self.fault(f"expected a table of fields, found {describe(table)}")
        self.table: Mapping[str, Any] = table
        self.taken: set[str] = set()

    def fault(self, problem: str, field: str = "") -> FileError:
        """The error to raise for this table, or for one field of it."""
        place = f"{self.place}.{field}" if field and self.place else field or self.place
        return FileError(self.path, place, problem)

    def has(self, field: str) -> bool:
        """Whether the table has the field; it counts as taken."""
        self.taken.add(field)
        return field in self.table

    def take(self, field: str, default: Any = ...) -> Any:
        """The raw value of a field."""
        if self.has(field):
            return self.table[field]
        if default is ...:
            near = get_close_matches(field, [key for key in self.table if key not in self.taken], 1)
            raise self.fault(f"the field {field!r} is missing" + (f"; there is {near[0]!r}" if near else ""))
        return default

    def text(self, field: str, default: Any = ..., *, max_length: int = 1000) -> str:
        """A string field of limited length."""
        value = self.take(field, default)
        if value is default and default is not ...:
            return value  # type: ignore[no-any-return]
        return self.check_text(value, field, max_length=max_length)

    def check_text(self, value: object, field: str, *, max_length: int = 1000) -> str:
        """`value` as printable text of limited length, or the fault of `field`."""
        if not isinstance(value, str):
            raise self.fault(f"expected text, found {describe(value)}", field)
        if len(value) > max_length:
            raise self.fault(f"text of {len(value)} characters; at most {max_length} are allowed", field)
        if not value.isprintable():
            raise self.fault("text with unprintable characters or lone surrogates", field)
        return value

    def choice(self, field: str, allowed: Sequence[str], default: Any = ...) -> str:
        """A string field that must be one of `allowed`."""
        value = self.text(field, default)
        if value not in allowed:
            raise self.fault(f"{value!r} is not allowed; one of {', '.join(allowed)}", field)
        return value

    def number(
        self, field: str, default: Any = ..., *, low: float = 0.0, high: float = 1e30, infinite: bool = False
    ) -> float:
        """A finite number in [low, high]; `infinite` also lets positive infinity (or null) pass."""
        value = self.take(field, default)
        if value is default and default is not ...:
            return value  # type: ignore[no-any-return]
        return self.check_number(value, field, low=low, high=high, infinite=infinite)

    def check_number(
        self, value: object, field: str, *, low: float = 0.0, high: float = 1e30, infinite: bool = False
    ) -> float:
        """`value` as a float in [low, high], or the fault of `field`."""
        if value is None and infinite:
            return math.inf
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fault(f"expected a number, found {describe(value)}", field)
        if isinstance(value, int) and abs(value) > 10**300:
            raise self.fault(f"a number of {value.bit_length()} bits; {low:g} to {high:g} is allowed", field)
        if infinite and value == math.inf:
            return math.inf
        if not low <= value <= high:
            raise self.fault(f"{value!r} is out of range; {low:g} to {high:g} is allowed", field)
        return float(value)

    def integer(self, field: str, default: Any = ..., *, low: int = 0, high: int = MAX_BYTES) -> int:
        """A whole number in [low, high]; a float with no fraction counts as whole."""
        value = self.take(field, default)
        if value is default and default is not ...:
            return value  # type: ignore[no-any-return]
        return self.check_integer(value, field, low=low, high=high)

    def check_integer(self, value: Any, field: str, *, low: int = 0, high: int = MAX_BYTES) -> int:
        """`value` as a whole number in [low, high], or the fault of `field`."""
        if type(value) is int and low <= value <= high:  # the usual case, fast
            return value
        number = self.check_number(value, field, low=low, high=high)
        if number != int(number):
            raise self.fault(f"expected a whole number, found {value!r}", field)
        return int(value)

    def size(self, field: str, default: Any = ...) -> int:
        """Bytes, as a whole number or as text with a unit."""
        value = self.take(field, default)
        if isinstance(value, str):
            try:
                return parse_bytes(value)
            except InputError as error:
                raise self.fault(str(error), field) from None
        return self.integer(field, default)

    def flag(self, field: str, default: bool) -> bool:
        """A boolean field; 0 and 1 count too."""
        value = self.take(field, default)
        if not (isinstance(value, bool) or (isinstance(value, int) and value in (0, 1))):
            raise self.fault(f"expected true or false, found {describe(value)}", field)
        return bool(value)

    def items(self, field: str, default: Any = ..., *, most: int = 10_000_000) -> Sequence[Any]:
        """A list field of limited length."""
        value = self.take(field, default)
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise self.fault(f"expected a list, found {describe(value)}", field)
        if len(value) > most:
            raise self.fault(f"{len(value)} entries; at most {most} are allowed", field)
        return value

    def texts(self, field: str, default: Any = ..., *, max_length: int = 1000) -> tuple[str, ...]:
        """A list of strings of limited length."""
        values = self.items(field, default)
        return tuple(self.check_text(value, f"{field}[{k}]", max_length=max_length) for k, value in enumerate(values))

    def done(self, known: Iterable[str] = ()) -> None:
        """Refuse any field that was neither taken nor `known` to be ignorable."""
        allowed_too = self.taken.union(known)
        extra = [name for name in self.table if name not in allowed_too]
        if extra:
            allowed = ", ".join(sorted(self.taken))
            raise self.fault(f"unknown field {str(extra[0])[:80]!r}; the fields are {allowed}")


def describe(value: object) -> str:
    """What a value is, in the words of JSON and TOML, cut short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

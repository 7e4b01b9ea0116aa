"""Files of text: read within limits, parsed as JSON, written atomically. Every fault is a FileError.

Nothing here knows what a file means; formats.py and importers/ do.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import secrets
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from placewright.errors import FileError

MAX_TEXT_BYTES = 256 << 20
"""The longest text read or written, after decompression."""
MAX_MARKS = 12_000_000
"""Brackets, braces and commas in a JSON text: what is parsed takes 35 to 190 bytes of memory for each."""

_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file: UTF-8 without a byte order mark, plain or compressed with gzip.

    Whether it is compressed is told by its first two bytes. Decompression stops at the limit. A pipe or
    a device is refused, as reading one may never end.
    """
    with opened(path) as file:
        data = file.read(MAX_TEXT_BYTES + 1)
    return decode(data, path)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A regular file, open for reading; whatever goes wrong inside is a FileError too."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileError(path, "", "is not a regular file; save what it gives to one")
            yield file
    except FileNotFoundError:
        raise FileError(path, "", "no such file") from None
    except IsADirectoryError:
        raise FileError(path, "", "is a folder; a file was expected") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise FileError(path, "", f"cannot be read: {error}") from None


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for somebody to open the other end of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def decode(data: bytes, path: object) -> str:
    """Return the text in the bytes of a file."""
    if data[:2] == _GZIP:
        data = _decompress(data, path)
    if len(data) > MAX_TEXT_BYTES:
        raise FileError(path, "", f"holds more than {MAX_TEXT_BYTES} bytes of text, the most that is read")
    if not data.strip():
        raise FileError(path, "", "is empty")
    if data.startswith(b"\xef\xbb\xbf"):
        raise FileError(path, "", "begins with a byte order mark; save it as plain UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(path, f"byte {error.start}", "is not UTF-8 text; save the file as UTF-8") from None


def _decompress(data: bytes, path: object) -> bytes:
    """Return what a gzip file holds, at most one byte more than the limit."""
    if len(data) > MAX_TEXT_BYTES:
        raise FileError(path, "", f"is longer than {MAX_TEXT_BYTES} bytes while still compressed")
    parts, size = [], 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while size <= MAX_TEXT_BYTES and (part := file.read(min(_CHUNK, MAX_TEXT_BYTES + 1 - size))):
                parts.append(part)
                size += len(part)
    except EOFError:
        raise FileError(path, "", "the compressed data end too early; the file was cut off") from None
    except (OSError, zlib.error) as error:
        raise FileError(path, "", f"the compressed data are damaged: {error}") from None
    return b"".join(parts)


def check_marks(text: str, path: object) -> None:
    """Refuse a JSON text that would take too much memory once parsed, told by its brackets, braces and commas."""
    marks = text.count("[") + text.count("{") + text.count(",")
    if marks > MAX_MARKS:
        raise FileError(path, "", f"has {marks} brackets, braces and commas; at most {MAX_MARKS} are allowed")


class _Doubled(dict[str, Any]):
    """An object in which a key was given twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        seen: set[str] = set()
        self.key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]


def parse_json(text: str, path: object) -> Any:
    """Return the document in a JSON text. A key given twice in one object is a fault, at its place.

    NaN and Infinity, which Python's reader accepts, come out as floats: whoever reads the field refuses them.
    """
    doubled = False

    def pairs(given: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return the object of these pairs, and note when a key was given twice."""
        nonlocal doubled
        table = dict(given)
        if len(table) == len(given):
            return table
        doubled = True
        return _Doubled(given)

    if text.startswith("\ufeff"):
        raise FileError(path, "", "begins with a byte order mark; save it as plain UTF-8")
    check_marks(text, path)
    try:
        document = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise FileError(path, place, f"is not valid JSON: {error.msg}") from None
    except RecursionError:
        raise FileError(path, "", "lists or objects are nested too deeply; no format here needs more than 8") from None
    except MemoryError:
        raise FileError(path, "", "needs more memory than there is") from None
    except ValueError:  # int() refuses to read more than 4300 digits
        raise FileError(path, "", "has a whole number of more than 4300 digits") from None
    if doubled:
        _refuse_doubled(document, path)
    return document


def _refuse_doubled(document: Any, path: object) -> NoReturn:
    """Raise for an object in which a key is given twice, naming where it is."""
    todo: list[tuple[str, Any]] = [("", document)]
    while todo:
        place, value = todo.pop()
        if isinstance(value, _Doubled):
            raise FileError(path, place[:200], f"the field {value.key[:80]!r} is given twice")
        if isinstance(value, dict):
            todo += [(f"{place}.{key[:80]}" if place else key[:80], inner) for key, inner in reversed(value.items())]
        elif isinstance(value, list):
            todo += [(f"{place}[{i}]", value[i]) for i in range(len(value) - 1, -1, -1)]
    raise FileError(path, "", "a field is given twice, inside one that is given twice")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file whole or not at all; compressed when the name ends in `.gz`.

    It is written beside its place and moved there. The same text gives the same bytes: a compressed
    file carries neither time nor name.
    """
    data = text.encode("utf-8")
    if len(data) > MAX_TEXT_BYTES:
        raise FileError(path, "", f"would hold {len(data)} bytes; files of at most {MAX_TEXT_BYTES} can be read again")
    if os.fspath(path).endswith(".gz"):
        buffer = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=buffer, mtime=0) as file:
            file.write(data)
        data = buffer.getvalue()
    try:
        if not _is_replaceable(path):  # a pipe or a terminal, behind a link or not
            Path(path).write_bytes(data)
            return
        _write_atomically(Path(os.path.realpath(path)), data)
    except (OSError, ValueError) as error:
        raise FileError(path, "", f"cannot be written: {error}") from None


def _is_replaceable(path: str | os.PathLike[str]) -> bool:
    """Whether a file can be put in the place of what is there: nothing, or a regular file."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return True
    if stat.S_ISDIR(mode):
        raise IsADirectoryError("it is a folder")
    return stat.S_ISREG(mode)


def _write_atomically(target: Path, data: bytes) -> None:
    """Write to a temporary file in the same folder, force it to disk, and rename it."""
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    with contextlib.suppress(OSError):  # not every file system lets a folder be forced to disk
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


_VERSIONED = re.compile(r"(placewright\.[a-z]{1,20})/([0-9]{1,9})")


def check_schema(document: object, wanted: str, path: object) -> None:
    """Refuse a document whose `schema` is not `wanted`, such as `placewright.graph/1`."""
    found = document.get("schema") if isinstance(document, dict) else None
    if found == wanted:
        return
    kind, _, version = wanted.partition("/")
    if not isinstance(document, dict):
        raise FileError(path, "", f'expected a JSON object with "schema": "{wanted}"')
    if found is None:
        raise FileError(path, "schema", f'is missing; a file of this kind says "schema": "{wanted}"')
    match = _VERSIONED.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        raise FileError(path, "schema", f"{str(found)[:80]!r} is not known; {wanted!r} was expected")
    if match[1] != kind:
        raise FileError(path, "schema", f"this is a {match[1]} file; a {kind} file was expected")
    if int(match[2]) > int(version):
        newer = f"version {match[2]} is newer than version {version}, which this placewright reads"
        raise FileError(path, "schema", f"{newer}. Install a newer placewright.")
    raise FileError(path, "schema", f"version {match[2]} does not exist; {wanted!r} was expected")


def first_character(text: str) -> str:
    """Return the first character that is not blank; empty when there is none."""
    match = re.search(r"\S", text)
    return match[0] if match else ""

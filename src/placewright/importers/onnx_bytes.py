"""The structure of an .onnx file without its weights: the data of large tensors are passed over, not read.

A model is a protobuf message. Weights make nearly all of it, and a plan needs only their types and shapes. So
the message is walked field by field: long data of a tensor are left in the file and marked as if they were
external, with their length; everything else is copied, and parsed by the package `onnx`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from placewright.errors import FileError, MissingExtraError
from placewright.files import opened

if TYPE_CHECKING:
    import onnx

MAX_FILE_BYTES = (1 << 31) - 1
"""A protobuf message is never longer; larger models keep their weights in external files."""
MAX_STRUCTURE_BYTES = 256 << 20
"""Everything but the data of large tensors."""
MAX_FIELDS = 4_000_000
"""Fields that are looked at one by one: nodes, tensors and their types, and what is inside large ones."""
KEPT_BYTES = 16 << 10
"""Data of a tensor that are read; shapes, axes and scalars are far shorter."""
_MAX_DEPTH = 16


@dataclass(frozen=True)
class _Form:
    """What to do with the long fields of a kind of message: look inside, leave out, or (the others) copy."""

    inside: dict[int, _Form] = field(default_factory=dict)
    out: frozenset[int] = frozenset()
    is_tensor: bool = False


# Numbers of fields are those of onnx.proto. Subgraphs are emptied: control flow is refused by the node that has it.
_RAW_DATA = 9
_TENSOR = _Form(out=frozenset({4, 5, 6, 7, _RAW_DATA, 10, 11, 12, 16}), is_tensor=True)
_SPARSE = _Form({1: _TENSOR, 2: _TENSOR})
_ATTRIBUTE = _Form({5: _TENSOR, 10: _TENSOR, 6: _Form(), 11: _Form(), 22: _SPARSE, 23: _SPARSE})
_NODE = _Form({5: _ATTRIBUTE}, frozenset({6}))
_GRAPH = _Form({1: _NODE, 5: _TENSOR, 15: _SPARSE}, frozenset({10, 14, 16}))
_MODEL = _Form({7: _GRAPH, 25: _Form({7: _NODE}, frozenset({8, 14}))}, frozenset({6, 14, 20}))
_EMPTIED = (6, 11)
_IS_EXTERNAL = b"\x70\x01"  # TensorProto.data_location = EXTERNAL


def read_proto(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Return the model in a file, without the data of its large tensors. External files are not opened."""
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("reading .onnx files", "onnx") from None
    data = structure(path)
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except (DecodeError, ValueError) as error:
        raise FileError(path, "", f"is no ONNX model, or a damaged one: {str(error)[:200]}") from None
    if not model.HasField("graph"):
        raise FileError(path, "", "holds no graph, so it is no ONNX model; export the model again")
    return model


def structure(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of the model in a file, without those of its large tensors."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            more = "save the model with its weights as external data"
            raise FileError(path, "", f"has {size} bytes; at most {MAX_FILE_BYTES} are read: {more}")
        if size == 0:
            raise FileError(path, "", "is empty")
        return _Walk(file, path).message(size, _MODEL, 0)


class _Walk:
    """One pass over a file."""

    def __init__(self, file: BinaryIO, path: object) -> None:
        self.file, self.path = file, path
        self.at = 0
        self.kept = 0
        self.fields = 0

    def message(self, end: int, form: _Form, depth: int) -> bytes:
        """Return the message from here to `end`, shortened."""
        if depth > _MAX_DEPTH:
            raise self.fault("messages are nested too deep")
        parts: list[bytes] = []
        while self.at < end:
            tag = self.tag(end)
            number, wire = tag >> 3, tag & 7
            if wire == 0:
                parts += (_varint(tag), _varint(self.varint(end)))
            elif wire in (1, 5):
                parts += (_varint(tag), self.take(8 if wire == 1 else 4, end))
            elif wire == 2:
                length = self.varint(end)
                self.check(length, end)
                large = length > KEPT_BYTES
                if large and number in form.out:
                    self.skip(length)
                    parts.append(_left(number, length) if form.is_tensor else b"")
                elif large and number in form.inside:
                    if form is _ATTRIBUTE and number in _EMPTIED:
                        self.skip(length)
                        text = b""
                    else:
                        text = self.message(self.at + length, form.inside[number], depth + 1)
                    parts += (_varint(tag), _varint(len(text)), text)
                else:
                    parts += (_varint(tag), _varint(length), self.take(length, end))
            else:
                raise self.fault(f"wire type {wire} is not used by ONNX")
        return b"".join(parts)

    def tag(self, end: int) -> int:
        """Read what begins a field: its number and its wire type."""
        self.fields += 1
        if self.fields > MAX_FIELDS:
            raise self.fault(f"more than {MAX_FIELDS} fields", damaged=False)
        tag = self.varint(end)
        if tag < 8:
            raise self.fault("a field has the number 0, which no message has; the file was damaged")
        return tag

    def varint(self, end: int) -> int:
        """Read a number."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1, end)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value & ((1 << 64) - 1)
        raise self.fault("a number is longer than ten bytes")

    def take(self, length: int, end: int) -> bytes:
        """Read bytes that are kept."""
        self.check(length, end)
        data = self.file.read(length)
        if len(data) < length:
            raise self.fault("the file became shorter while it was read")
        self.at += length
        self.kept += length
        if self.kept > MAX_STRUCTURE_BYTES:
            raise self.fault(f"more than {MAX_STRUCTURE_BYTES} bytes beside the data of large tensors", damaged=False)
        return data

    def skip(self, length: int) -> None:
        """Pass over bytes, which are not read."""
        self.at += length
        self.file.seek(self.at)

    def check(self, length: int, end: int) -> None:
        """Refuse a field that would go beyond the message that it is in."""
        if self.at + length > end:
            raise self.fault(f"a field of {length} bytes goes beyond the end; the file was cut off or damaged")

    def fault(self, problem: str, *, damaged: bool = True) -> FileError:
        """Return the error for this place of the file."""
        return FileError(self.path, f"byte {self.at}", f"is no ONNX model: {problem}" if damaged else problem)


def _left(number: int, length: int) -> bytes:
    """Return the mark of data that were left in the file; doc strings and metadata have none."""
    if number in (12, 16):
        return b""
    if number != _RAW_DATA:
        return _IS_EXTERNAL
    digits = str(length).encode()
    entry = b"\x0a\x06length" + b"\x12" + _varint(len(digits)) + digits
    return _IS_EXTERNAL + b"\x6a" + _varint(len(entry)) + entry


def _varint(value: int) -> bytes:
    """Return a number as protobuf writes it."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)

"""A node together with the types of what it reads and makes: what the rules of an operator look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.errors import FileError
from placewright.importers.onnx_model import MAX_DIM, Node, Value

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A node, the types of its inputs (none where one is left out), and those input values that are known."""

    node: Node
    path: object
    inputs: tuple[Value | None, ...]
    known: tuple[Array | None, ...]
    outputs: tuple[Value | None, ...] = ()

    def fault(self, problem: str) -> FileError:
        """Return the error for this node."""
        return FileError(self.path, self.node.label, problem)

    def optional(self, place: int) -> Value | None:
        """Return the type of an input that may be left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def value(self, place: int, *ranks: int) -> Value:
        """Return the type of an input that must be there, with one of these numbers of axes."""
        found = self.optional(place)
        if found is None:
            raise self.fault(f"input {place} is missing")
        if ranks and len(found.shape) not in ranks:
            allowed = " or ".join(map(str, ranks))
            raise self.fault(f"input {place} has {len(found.shape)} axes; {self.node.op} reads one of {allowed}")
        return found

    def made(self, place: int) -> Value:
        """Return the type of an output that must be there."""
        found = self.outputs[place] if place < len(self.outputs) else None
        if found is None:
            raise self.fault(f"output {place} is missing")
        return found

    def data(self, place: int) -> Array | None:
        """Return the value of an input where it is known."""
        return self.known[place] if place < len(self.known) else None

    def whole(self, place: int) -> list[int] | None:
        """Return the value of an input where it is known and made of whole numbers."""
        known = self.data(place)
        return None if known is None or known.dtype.kind not in "iu" else [int(size) for size in known.reshape(-1)]

    def integer(self, name: str, default: int | None = None, low: int = 0) -> int:
        """Return a whole number among the attributes."""
        value = self.node.attributes.get(name, default)
        if value is None:
            raise self.fault(f"the attribute {name!r} is missing")
        if not isinstance(value, int) or not low <= value <= MAX_DIM:
            raise self.fault(f"the attribute {name!r} is {value!r:.40}; a whole number of at least {low} is allowed")
        return value

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers among the attributes, or none where it is not there."""
        value = self.node.attributes.get(name)
        if isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(v, int) for v in value):
            return None
        return tuple(value)

    def word(self, name: str, default: str = "") -> str:
        """Return a text among the attributes."""
        value = self.node.attributes.get(name, default)
        if not isinstance(value, str):
            raise self.fault(f"the attribute {name!r} is {value!r:.40}; a text was expected")
        return value


def axis_of(axis: int, rank: int, call: Call) -> int:
    """Return an axis counted from the front."""
    if not -rank <= axis < max(rank, 1):
        raise call.fault(f"axis {axis} of a tensor of {rank} axes")
    return axis + rank if axis < 0 else axis


def broadcast(call: Call, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that all of these are stretched to."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        shown = ", ".join("x".join(map(str, shape)) or "a scalar" for shape in shapes)[:200]
        raise call.fault(f"shapes {shown} do not go together") from None

"""Sizes for the axes that an ONNX file leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from placewright.checks import describe
from placewright.errors import FileError, InputError
from placewright.importers.onnx_model import MAX_DIM, Dim, Network

_SHOWN = 20


class Dims:
    """Sizes by the names of axes. An axis of an input that has no name is called `INPUT[AXIS]`."""

    def __init__(self, network: Network, dims: Mapping[str, int] | None, path: object) -> None:
        self.path = path
        self.sizes = dict(dims or {})
        for name, given in self.sizes.items():
            if type(given) is not int or not 1 <= given <= MAX_DIM:
                shown = describe(given)
                raise InputError(f"dims: {name!r:.80} is {shown}; a whole number from 1 to {MAX_DIM} is allowed")
        asked: dict[str, str] = {}
        for value, (_, shape) in network.inputs.items():
            for axis, size in enumerate(shape):
                if not isinstance(size, int):
                    asked.setdefault(size or f"{value}[{axis}]", f"axis {axis} of input {value[:80]!r}")
        named = {size: None for _, shape in network.annotated.values() for size in shape if isinstance(size, str)}
        known = list(dict.fromkeys((*asked, *named)))
        for name in self.sizes:
            if name not in known:
                listed = ", ".join(map(repr, known[:_SHOWN])) or "none"
                raise FileError(path, "", f"no axis is called {name!r:.80}; axes without a size: {listed:.2000}")
        missing = [name for name in asked if name not in self.sizes]
        if missing:
            where = ", ".join(f"{name!r:.100} ({asked[name]})" for name in missing[:_SHOWN])
            more = f" and {len(missing) - _SHOWN} others" if len(missing) > _SHOWN else ""
            problem = f"axes without a size: {where}{more}. Give each: {self.example(missing)}"
            raise FileError(path, "graph.input", problem)

    def example(self, names: Iterable[str]) -> str:
        """Return how to give sizes to these axes."""
        shown = list(dict.fromkeys(names))[:3]
        options = " ".join(f"--dim {name[:100]}=1" for name in shown)
        return f"{options}, or dims={dict.fromkeys((name[:100] for name in shown), 1)} in Python"

    def bound(self, value: str, shape: tuple[Dim, ...]) -> tuple[int, ...]:
        """Return the shape of an input, all of whose axes have sizes."""
        return tuple(s if isinstance(s, int) else self.sizes[s or f"{value}[{axis}]"] for axis, s in enumerate(shape))

    def replaced(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return a shape with sizes for the names that have one."""
        return tuple(self.sizes.get(s, s) if isinstance(s, str) else s for s in shape)

"""Shapes of those operators of ONNX whose outputs the package onnx leaves open, though they can be known."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from placewright.importers.onnx_call import Call, axis_of
from placewright.importers.onnx_model import Dim

Partial = tuple[int, tuple[Dim, ...] | None]
"""An element type (0: not known), and axes (none: not even their number)."""


def _recurrent(call: Call) -> Sequence[Partial]:
    """Return what a recurrent layer makes; the width of its state is that of its weights."""
    x, weights = call.value(0, 3), call.value(2, 3)
    ways, wide = weights.shape[0], weights.shape[2]
    last = call.node.attributes.get("layout", 0)
    steps, batch = (x.shape[1], x.shape[0]) if last else (x.shape[0], x.shape[1])
    every = (batch, steps, ways, wide) if last else (steps, ways, batch, wide)
    state = (batch, ways, wide) if last else (ways, batch, wide)
    return [(x.code, every), (x.code, state), (x.code, state)]


def _non_zero(call: Call) -> Sequence[Partial]:
    """Return how many there are where the input is known."""
    known = call.data(0)
    return [(7, (known.ndim, int(np.count_nonzero(known))))] if known is not None and known.ndim else []


def _same(call: Call) -> Sequence[Partial]:
    return [(call.value(0).code, call.value(0).shape)]


def _one_hot(call: Call) -> Sequence[Partial]:
    """Return a new axis of the length that is given, where that is known."""
    depth, axis = call.data(1), call.node.attributes.get("axis", -1)
    if depth is None or depth.size != 1 or not 0 <= float(depth.reshape(-1)[0]) < 1 << 40 or not isinstance(axis, int):
        return []
    shape = list(call.value(0).shape)
    shape.insert(axis_of(axis, len(shape) + 1, call), int(depth.reshape(-1)[0]))
    return [(call.value(2).code, tuple(shape))]


def _range(call: Call) -> Sequence[Partial]:
    """Return the number of steps, where the three numbers are known."""
    given = [call.data(place) for place in range(3)]
    start, end, step = (float(a.reshape(-1)[0]) if a is not None and a.size == 1 else math.nan for a in given)
    if not math.isfinite(start + end + step) or not step or abs((end - start) / step) > 1 << 40:
        return []
    return [(call.value(0).code, (max(math.ceil((end - start) / step), 0),))]


def _compress(call: Call) -> Sequence[Partial]:
    """Return what is left where the choice is known."""
    chosen, axis, x = call.data(1), call.node.attributes.get("axis"), call.value(0)
    if chosen is None:
        return []
    left = int(np.count_nonzero(chosen))
    if not isinstance(axis, int):
        return [(x.code, (left,))]
    shape = list(x.shape)
    shape[axis_of(axis, len(shape), call)] = left
    return [(x.code, tuple(shape))]


def _unpooled(call: Call) -> Sequence[Partial]:
    """Return the shape that is given, where it is."""
    shape = call.whole(2)
    return [(call.value(0).code, tuple(shape))] if shape is not None else []


def _short_fourier(call: Call) -> Sequence[Partial]:
    """Return frames and frequencies, half of them unless all are asked for."""
    x, step, length, window = call.value(0), call.whole(1), call.whole(3), call.optional(2)
    size = length[0] if length else 0
    if not size and window is not None and window.shape:
        size = window.shape[0]
    by = step[0] if step else 0
    if size < 1 or by < 1 or len(x.shape) not in (2, 3) or x.shape[1] < size:
        return []
    frequencies = size // 2 + 1 if call.node.attributes.get("onesided", 1) else size
    return [(x.code, (x.shape[0], (x.shape[1] - size) // by + 1, frequencies, 2))]


_TERM = r"[A-Za-z]*(\.\.\.[A-Za-z]*)?"
_EQUATION = re.compile(rf"{_TERM}(,{_TERM})*(->{_TERM})?")


def check(call: Call) -> None:
    """Refuse what would end the process inside the package onnx, or never end there, rather than raise."""
    if call.node.op == "Einsum" and not _EQUATION.fullmatch((equation := call.word("equation")).replace(" ", "")):
        problem = f"the attribute 'equation' is {equation!r:.40}; letters, commas, '...' and '->' were expected"
        raise call.fault(problem)
    given = call.node.attributes.get("num_outputs")
    if call.node.op == "Split" and given is not None and given != len(call.node.outputs):
        raise call.fault(f"the attribute 'num_outputs' is {given!r:.40}, but it has {len(call.node.outputs)} outputs")


OWN: dict[str, Callable[[Call], Sequence[Partial]]] = {
    "Compress": _compress,
    "GRU": _recurrent,
    "GroupNormalization": _same,
    "LSTM": _recurrent,
    "MaxUnpool": _unpooled,
    "MeanVarianceNormalization": _same,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "RNN": _recurrent,
    "Range": _range,
    "STFT": _short_fourier,
}
"""What each makes; an empty list where that cannot be known, and the package onnx is asked instead."""

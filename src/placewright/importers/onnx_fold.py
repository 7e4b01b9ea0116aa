"""Values that are known before anything runs: shapes, and arithmetic on small constants, with NumPy.

Exported networks work out their shapes with chains such as Shape, Gather, Concat, Reshape. Once the inputs have
sizes, such a chain is a constant; none of it is an operation of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from placewright.importers.onnx_call import Array, Call
from placewright.importers.onnx_model import Value

MAX_KNOWN = 2048
"""Elements of a value that is worked out; shapes are far shorter."""
MAX_KNOWN_FLOATS = 8
"""The same for fractions, which are scales of a resize or a factor. Weights are not computed with."""

NUMPY: dict[int, Any] = {
    1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 9: np.bool_,
    10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64,
}  # fmt: skip
"""Element types that are computed with, by ONNX's code."""
_FRACTIONS = (1, 10, 11)


def is_small(value: Value, *, given: bool = False) -> bool:
    """Whether a value is worth knowing; a `given` one, from the file, may be a longer list of fractions."""
    most = MAX_KNOWN_FLOATS if value.code in _FRACTIONS and not given else MAX_KNOWN
    return value.code in NUMPY and value.count <= most


def array_of(tensor: Any) -> Array | None:
    """Return the data of a small tensor in the file; none where they are elsewhere, or do not fit its shape."""
    import onnx

    count = math.prod(int(size) for size in tensor.dims)
    if tensor.data_location != 0 or tensor.data_type not in NUMPY or not 0 <= count <= MAX_KNOWN:
        return None
    try:
        found = onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    return np.asarray(found) if found.size == count and min(tensor.dims, default=0) >= 0 else None


def folded(call: Call) -> tuple[Array, ...] | None:
    """Return the outputs of a node where they can be known already, else none."""
    outputs = call.outputs
    if not outputs or any(value is None or not is_small(value) for value in outputs):
        return None
    if call.node.op in ("Shape", "Size"):
        found: Sequence[Array] = [_shape(call)]
    else:
        rule = _RULES.get(call.node.op) if call.node.domain == "" else None
        if rule is None or any(a is None and value is not None for a, value in _pairs(call)):
            return None
        try:
            with np.errstate(all="ignore"):
                result = rule(call, [a for a in call.known if a is not None])
        except (ArithmeticError, ValueError, IndexError, TypeError, KeyError, AttributeError):
            return None  # it is left to run; whatever is wrong with it comes up there
        found = result if isinstance(result, list) else [result]
    if len(found) != len(outputs):
        return None
    typed = []
    for array, value in zip(found, outputs, strict=True):
        if value is None or array.shape != value.shape:
            return None
        typed.append(np.asarray(array).astype(NUMPY[value.code]))
    return tuple(typed)


def _pairs(call: Call) -> Sequence[tuple[Array | None, Value | None]]:
    return list(zip(call.known, call.inputs, strict=True))


def _shape(call: Call) -> Array:
    """Return the result of Shape or Size."""
    value = call.value(0)
    if call.node.op == "Size":
        return np.array(value.count, np.int64)
    start, end = (call.node.attributes.get(name) for name in ("start", "end"))
    start, end = (given if isinstance(given, int) else None for given in (start, end))
    return np.array(value.shape[start:end], np.int64)


_Rule = Callable[[Call, list[Array]], "Array | list[Array]"]


def _plain(function: Callable[..., Any]) -> _Rule:
    """Return the rule of an operator that is a function of NumPy."""
    return lambda call, a: np.asarray(function(*a))


def _chain(function: Callable[..., Any]) -> _Rule:
    """Return the rule of an operator that joins any number of inputs, two at a time."""

    def rule(call: Call, a: list[Array]) -> Array:
        result = a[0]
        for other in a[1:]:
            result = function(result, other)
        return np.asarray(result)

    return rule


def _divide(call: Call, a: list[Array]) -> Array:
    """Return a quotient; that of whole numbers is cut towards zero."""
    if a[0].dtype.kind == "f":
        return np.asarray(a[0] / a[1])
    if not a[1].all():
        raise ZeroDivisionError
    quotient = a[0] // a[1]
    return np.asarray(quotient + ((quotient < 0) & (quotient * a[1] != a[0])))


def _modulo(call: Call, a: list[Array]) -> Array:
    if a[1].dtype.kind != "f" and not a[1].all():
        raise ZeroDivisionError
    return np.asarray((np.fmod if call.node.attributes.get("fmod") else np.mod)(a[0], a[1]))


def _cast(call: Call, a: list[Array]) -> Array:
    return np.asarray(a[0].astype(NUMPY[call.made(0).code]))


def _constant_of_shape(call: Call, a: list[Array]) -> Array:
    given = call.node.attributes.get("value")
    if given is None:
        return np.zeros(call.made(0).shape)
    value = array_of(given)
    if value is None:
        raise ValueError
    return np.full(call.made(0).shape, value.reshape(-1)[0])


def _cum_sum(call: Call, a: list[Array]) -> Array:
    if call.node.attributes.get("exclusive") or call.node.attributes.get("reverse"):
        raise ValueError
    return np.asarray(np.cumsum(a[0], int(a[1].reshape(-1)[0])))


def _gather_nd(call: Call, a: list[Array]) -> Array:
    if call.node.attributes.get("batch_dims", 0):
        raise ValueError
    return np.asarray(a[0][tuple(np.moveaxis(a[1], -1, 0))])


def _scatter_nd(call: Call, a: list[Array]) -> Array:
    if call.node.attributes.get("reduction", "none") != "none":
        raise ValueError
    result = a[0].copy()
    result[tuple(np.moveaxis(a[1], -1, 0))] = a[2]
    return result


def _slice(call: Call, a: list[Array]) -> Array:
    starts, ends = a[1].tolist(), a[2].tolist()
    axes = a[3].tolist() if call.optional(3) is not None else list(range(len(starts)))
    steps = a[-1].tolist() if call.optional(4) is not None else [1] * len(starts)
    cut: list[slice] = [slice(None)] * a[0].ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = a[0].shape[axis]
        if step < 0:  # "before the first" is written as a very low end, which Python would count from the back
            cut[axis] = slice(min(start, size - 1), None if end < -size else end, step)
        else:
            cut[axis] = slice(start, end, step)
    return np.asarray(a[0][tuple(cut)])


def _split(call: Call, a: list[Array]) -> list[Array]:
    axis = int(call.node.attributes.get("axis", 0))
    lengths = [call.made(k).shape[axis] for k in range(len(call.outputs))]
    return list(np.split(a[0], np.cumsum(lengths)[:-1].tolist(), axis))


def _range(call: Call, a: list[Array]) -> Array:
    return np.asarray(a[0] + np.arange(call.made(0).count) * a[2])


def _reduce(function: Callable[..., Any]) -> _Rule:
    """Return the rule of a reduction."""

    def rule(call: Call, a: list[Array]) -> Array:
        axes = a[1].tolist() if len(a) > 1 else call.integers("axes")
        keep = bool(call.node.attributes.get("keepdims", 1))
        if not axes:
            if call.node.attributes.get("noop_with_empty_axes", 0):
                return a[0]
            axes = range(a[0].ndim)
        return np.asarray(function(a[0], axis=tuple(axes), keepdims=keep))

    return rule


def _reshaped(call: Call, a: list[Array]) -> Array:
    return np.asarray(a[0].reshape(call.made(0).shape))


def _transpose(call: Call, a: list[Array]) -> Array:
    return np.asarray(np.transpose(a[0], call.integers("perm")))


def _clip(call: Call, a: list[Array]) -> Array:
    result, rest = a[0], a[1:]
    if call.optional(1) is not None:
        result = np.maximum(result, rest.pop(0))
    return np.asarray(np.minimum(result, rest.pop(0)) if call.optional(2) is not None else result)


_RULES: dict[str, _Rule] = {
    **{name: _plain(getattr(np, name.lower())) for name in ("Floor", "Ceil", "Sqrt", "Exp", "Log", "Sign", "Equal")},
    **{name: _plain(getattr(np, name.lower())) for name in ("Greater", "Less", "Where", "Tile")},
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"), _reshaped),
    "Abs": _plain(np.abs),
    "Add": _plain(np.add),
    "And": _plain(np.logical_and),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda call, a: np.concatenate(a, int(call.node.attributes["axis"])),
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cum_sum,
    "Div": _divide,
    "Expand": lambda call, a: np.broadcast_to(a[0], call.made(0).shape),
    "Gather": lambda call, a: np.take(a[0], a[1], int(call.node.attributes.get("axis", 0))),
    "GatherElements": lambda call, a: np.take_along_axis(a[0], a[1], int(call.node.attributes.get("axis", 0))),
    "GatherND": _gather_nd,
    "GreaterOrEqual": _plain(np.greater_equal),
    "LessOrEqual": _plain(np.less_equal),
    "Max": _chain(np.maximum),
    "Min": _chain(np.minimum),
    "Mod": _modulo,
    "Mul": _plain(np.multiply),
    "Neg": _plain(np.negative),
    "NonZero": lambda call, a: np.array(np.nonzero(np.atleast_1d(a[0])), np.int64),
    "Not": _plain(np.logical_not),
    "Or": _plain(np.logical_or),
    "Pow": _plain(np.power),
    "Range": _range,
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "Round": _plain(np.round),
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "Split": _split,
    "Sub": _plain(np.subtract),
    "Transpose": _transpose,
    "Trilu": lambda call, a: (np.triu if call.node.attributes.get("upper", 1) else np.tril)(
        a[0], int(a[1]) if len(a) > 1 else 0
    ),
    "Xor": _plain(np.logical_xor),
}

"""What a node does: flops, bytes that it reads and writes, workspace, and the type that it computes in.

A product counts two flops for every multiplication and addition. What goes element by element counts the same
flops for each as a capture does (docs/onnx.md has the table).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from placewright.importers.onnx_call import Call
from placewright.importers.onnx_contrib import CONTRIB
from placewright.importers.onnx_model import Value
from placewright.operations import Work

MAX_POINTS = 1 << 96
"""Products in one step of an einsum."""
_FLOATING = ("float", "bfloat", "complex")

MOVES = frozenset(
    {"clone", "to_copy", "cat", "slice", "split", "repeat", "index", "index_put", "index_select", "index_copy"}
    | {"gather", "scatter", "embedding", "constant_pad_nd", "reflection_pad", "replication_pad", "where", "triu"}
    | {"tril", "pixel_shuffle", "pixel_unshuffle", "one_hot", "reverse_sequence", "compress", "center_crop_pad"}
    | {"upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_nearest4d", "bit_cast", "col2im"}
)
"""Kinds that move bytes and compute nothing to speak of."""
FILLS = frozenset({"full", "arange", "eye", "normal", "uniform", "bernoulli_like"})
"""Kinds that write and read nothing."""
PER_ELEMENT = {
    "softmax": 5.0, "log_softmax": 5.0, "hardmax": 2.0, "layer_norm": 8.0, "group_norm": 8.0, "batch_norm": 8.0,
    "instance_norm": 8.0, "rms_norm": 5.0, "gelu": 10.0, "silu": 5.0, "sigmoid": 4.0, "tanh": 5.0, "exp": 4.0,
    "log": 4.0, "sin": 4.0, "cos": 4.0, "pow": 4.0, "erf": 8.0, "softplus": 8.0, "mish": 13.0, "elu": 5.0,
    "swiglu": 6.0, "rotary_embedding": 3.0, "quantize": 2.0, "dequantize": 2.0, "logsumexp": 5.0,
    "upsample_linear1d": 3.0, "upsample_bilinear2d": 7.0, "upsample_trilinear3d": 15.0, "upsample_bicubic2d": 35.0,
    "grid_sampler": 12.0, "roi_align": 12.0, "local_response_norm": 10.0, "dropout": 3.0,
    "mean_variance_normalization": 8.0, "sinh": 8.0, "cosh": 8.0, "tan": 4.0, "selu": 5.0, "celu": 5.0,
}  # fmt: skip
"""Flops for each element, where it is not one; an exponential is four."""


def work_of(call: Call, kind: str, reads: list[int]) -> Work:
    """Return what a node does; `reads` are the places of those inputs that it reads as tensors."""
    inputs = [call.value(place) for place in reads]
    made = [value for value in call.outputs if value is not None]
    written = sum(value.bytes for value in made)
    rule = CONTRIB.get((call.node.domain, call.node.op))
    flops_of = rule.flops if rule is not None and rule.flops else _FLOPS.get(_same_work(call))
    dtype = _dtype(inputs if flops_of else [*made, *inputs], quantised=bool(flops_of) and _is_whole(call))
    if kind in FILLS:
        return Work(0.0, 0, written, 0, dtype)
    if flops_of is not None:
        flops = float(flops_of(call))
    else:
        elements = max((value.count for value in (*inputs[:1], *made)), default=0)
        flops = PER_ELEMENT.get(kind, 0.0 if kind in MOVES else 1.0) * elements
    return Work(flops, _bytes_read(call, reads), written, _workspace(call), dtype)


def _same_work(call: Call) -> str:
    """Return the operator of ONNX that does the same work."""
    rule = CONTRIB.get((call.node.domain, call.node.op))
    if rule is None:
        return call.node.op
    return rule.like[0] if rule.like is not None else ""


def _is_whole(call: Call) -> bool:
    """Whether a product is one of whole numbers, with fractions only as scales."""
    return call.node.op.startswith(("QLinear", "MatMulInteger", "ConvInteger"))


def _dtype(values: list[Value], quantised: bool) -> str:
    """Return the type that is computed in: that of the first fraction, else of the first value."""
    if quantised and values:
        return values[0].dtype
    return next((v.dtype for v in values if v.dtype.startswith(_FLOATING)), values[0].dtype if values else "float32")


# ---- flops, where they are not by the element ------------------------------------------------------


def _matmul(call: Call) -> float:
    return 2.0 * call.made(0).count * (call.value(0).shape or (1,))[-1]


def _gemm(call: Call) -> float:
    rows, columns = call.value(0, 2).shape
    return 2.0 * call.made(0).count * (rows if call.node.attributes.get("transA") else columns)


def _convolution(weight: int) -> Callable[[Call], float]:
    """Return the rule of a convolution whose weights are this input: each result meets one filter."""
    return lambda call: 2.0 * call.made(0).count * math.prod(call.value(weight).shape[1:])


def _transposed(call: Call) -> float:
    return 2.0 * call.value(0).count * math.prod(call.value(1).shape[1:])


def _recurrent(call: Call) -> float:
    x = call.value(0, 3)
    return 2.0 * x.shape[0] * x.shape[1] * (call.value(1).count + call.value(2).count)


def _attention(call: Call) -> float:
    q, k, v = (call.value(place, 3, 4).shape for place in range(3))
    past = call.value(4, 4).shape[2] if call.optional(4) is not None else 0
    if len(q) == 4:
        pairs, wide, values = q[0] * q[1] * q[2], q[3], v[-1]
    else:
        heads, shared = call.integer("q_num_heads", low=1), call.integer("kv_num_heads", low=1)
        pairs, wide, values = q[0] * heads * q[1], q[2] // heads, v[-1] // shared
    return 2.0 * pairs * (k[-2] + past) * (wide + values)


def _linear_attention(call: Call) -> float:
    heads, shared = call.integer("q_num_heads", low=1), call.integer("kv_num_heads", low=1)
    q, v = call.value(0, 3).shape, call.value(2, 3).shape
    updates = 2 if "delta" in call.word("update_rule", "linear") else 1
    return 2.0 * q[0] * q[1] * (q[2] // heads) * (v[2] // shared) * (heads + updates * shared)


def _fourier(call: Call) -> float:
    """Return five flops for each element and each halving of the transformed axis."""
    elements = max(call.value(0).count, call.made(0).count)
    longest = max((*call.value(0).shape, 2))
    return 5.0 * elements * math.log2(longest)


def _einsum(call: Call) -> float:
    return sum(flops for flops, _ in _contractions(call))


_FLOPS: dict[str, Callable[[Call], float]] = {
    "Attention": _attention,
    "CausalConvWithState": _convolution(1),
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "ConvTranspose": _transposed,
    "DFT": _fourier,
    "DeformConv": _convolution(1),
    "Einsum": _einsum,
    "GRU": _recurrent,
    "Gemm": _gemm,
    "LSTM": _recurrent,
    "LinearAttention": _linear_attention,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearConv": _convolution(3),
    "QLinearMatMul": _matmul,
    "RNN": _recurrent,
    "STFT": _fourier,
}


def _contractions(call: Call) -> list[tuple[float, float]]:
    """Return flops and elements of the result for each step of an einsum, taken from left to right."""
    left, _, right = call.word("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(call.inputs):
        raise call.fault(f"the equation has {len(terms)} terms for {len(call.inputs)} inputs")
    sizes: dict[str, int] = {}
    labels = [_labels(term, call.value(place).shape, sizes) for place, term in enumerate(terms)]
    if "->" in call.word("equation"):
        wide = max((sum(label.isdigit() for label in term) for term in labels), default=0)
        wanted = _labels(right, (1,) * (len(right.replace("...", "")) + wide), {})
    else:
        every = [label for term in labels for label in term]
        wanted = [label for label in every if label.isdigit() or every.count(label) == 1]
    if len(labels) == 1:
        return [(float(call.value(0).count), 0.0)]
    steps, held = [], set(labels[0])
    for k, term in enumerate(labels[1:], 1):
        joined = held | set(term)
        later = set(wanted).union(*labels[k + 1 :])
        held = joined & later
        points = math.prod(sizes[label] for label in sorted(joined))
        if points > MAX_POINTS:
            raise call.fault(f"more than {MAX_POINTS} products")
        kept = 0 if k == len(labels) - 1 else math.prod(sizes[label] for label in sorted(held))
        steps.append((points * (2.0 if joined - held else 1.0), float(kept)))
    return steps


def _labels(term: str, shape: tuple[int, ...], sizes: dict[str, int]) -> list[str]:
    """Return a label for each axis of a term; those of an ellipsis are numbers counted from the back."""
    letters = re.findall(r"\.\.\.|[A-Za-z]", term)
    rest = len(shape) - (len(letters) - letters.count("..."))
    labels: list[str] = []
    for letter in letters:
        labels += [str(n) for n in range(rest - 1, -1, -1)] if letter == "..." else [letter]
    for label, size in zip(labels, shape, strict=False):
        sizes[label] = max(size, sizes.get(label, 0))
    return labels


# ---- bytes, where they are not all of what is read -------------------------------------------------


def _bytes_read(call: Call, reads: list[int]) -> int:
    """Return the bytes that a node reads; of a table only the rows that it looks up."""
    total = sum(call.value(place).bytes for place in reads)
    op, first = call.node.op, call.optional(0)
    if first is None or 0 not in reads:
        return total
    if op in ("Gather", "GatherElements", "GatherND", "Slice"):
        return total - first.bytes + call.made(0).bytes
    if op == "GatherBlockQuantized":
        found = min(call.made(0).count, first.count) / max(first.count, 1)
        return total - first.bytes + round(first.bytes * found)
    if op == "EmbedLayerNormalization":
        tables = [place for place in (2, 3, 4) if place in reads]
        return total + sum(call.made(0).bytes - call.value(place).bytes for place in tables)
    return total


def _workspace(call: Call) -> int:
    """Return the bytes that a node takes while it runs, beside what it makes."""
    op, domain = call.node.op, call.node.domain
    if op == "Einsum":
        wide = call.value(0)
        return max((Value(wide.code, (int(kept),)).bytes for _, kept in _contractions(call)), default=0)
    if op in ("LSTM", "GRU", "RNN") and domain == "":  # the products of all steps with the input, made at once
        x, weights = call.value(0, 3), call.value(1, 3)
        return Value(x.code, (*x.shape[:2], *weights.shape[:2])).bytes
    if op == "Attention" and domain == "com.microsoft":  # queries, keys and values before they meet
        x, weights = call.value(0, 3), call.value(1, 2)
        return Value(x.code, (*x.shape[:2], weights.shape[1])).bytes
    return 0

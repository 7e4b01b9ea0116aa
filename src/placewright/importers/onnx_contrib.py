"""Operators of ONNX Runtime (domain com.microsoft) that its optimiser puts into exported transformers.

Each has a kind, the shapes that it makes, and its flops where they are not by the element.
B samples, S tokens of queries, T of keys, D width, N heads, E width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from placewright.importers.onnx_call import Call, axis_of, broadcast
from placewright.importers.onnx_model import Value

_Made = Sequence[Value | None]
_INT32, _FLOAT, _UINT8 = 6, 1, 2


@dataclass(frozen=True, slots=True)
class Contrib:
    """What is known of an operator. `like` is ONNX's operator of the same shapes and work, how many inputs count."""

    kind: str
    shapes: Callable[[Call], _Made] | None = None
    flops: Callable[[Call], float] | None = None
    like: tuple[str, int] | None = None


def _same(call: Call) -> _Made:
    return [call.value(0)]


def _broadcast(*places: int) -> Callable[[Call], _Made]:
    """Return the rule of an operator that works element by element on these inputs."""

    def rule(call: Call) -> _Made:
        values = [value for place in places if (value := call.optional(place)) is not None]
        return [Value(call.value(places[0]).code, broadcast(call, *(value.shape for value in values)))]

    return rule


# ---- products --------------------------------------------------------------------------------------


def _fused_matmul(call: Call) -> _Made:
    a, b = call.value(0, *range(1, 65)), call.value(1, *range(1, 65))
    left, right = a.shape, b.shape
    if call.node.attributes.get("transBatchA") or call.node.attributes.get("transBatchB"):
        raise call.fault("transposed batch axes are not read; export the model with fewer fusions")
    if call.node.attributes.get("transA") and len(left) > 1:
        left = (*left[:-2], left[-1], left[-2])
    if call.node.attributes.get("transB") and len(right) > 1:
        right = (*right[:-2], right[-1], right[-2])
    return [Value(a.code, _product(call, left, right))]


def _product(call: Call, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a matrix product, batch axes stretched."""
    if left[-1] != right[-2 if len(right) > 1 else 0]:
        raise call.fault(f"a product over axes of {left[-1]} and {right[-2 if len(right) > 1 else 0]}")
    batch = broadcast(call, left[:-2], right[:-2])
    return (*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))


def _fused_flops(call: Call) -> float:
    a = call.value(0, *range(1, 65)).shape
    inner = a[-2] if call.node.attributes.get("transA") and len(a) > 1 else a[-1]
    return 2.0 * call.made(0).count * inner


def _matmul_float(call: Call) -> _Made:
    """Return what a product of whole numbers makes that is scaled to fractions."""
    return [Value(_FLOAT, _product(call, call.value(0, *range(1, 65)).shape, call.value(1, *range(1, 65)).shape))]


def _plain_flops(call: Call) -> float:
    return 2.0 * call.made(0).count * call.value(0, *range(1, 65)).shape[-1]


def _matmul_packed(call: Call) -> _Made:
    a, inner = call.value(0, *range(1, 65)), call.integer("K", low=1)
    if a.shape[-1] != inner:
        raise call.fault(f"the attribute 'K' is {inner}, but input 0 has {a.shape[-1]} columns")
    return [Value(a.code, (*a.shape[:-1], call.integer("N", low=1)))]


def _experts(call: Call) -> float:
    """Return the flops of a mixture of experts: each token meets k of them."""
    experts = max(call.value(1, 2).shape[-1], 1)
    weights = sum(value.count for place in (2, 4, 6) if (value := call.optional(place)) and len(value.shape) == 3)
    tokens = math.prod(call.value(0, 2, 3).shape[:-1])
    return 2.0 * tokens * min(call.integer("k", 1, low=1), experts) * weights / experts


# ---- attention -------------------------------------------------------------------------------------


def _past(call: Call, place: int) -> int:
    """Return the tokens that are kept from earlier steps."""
    past = call.optional(place)
    return 0 if past is None else call.value(place, 4, 5).shape[-2]


def _projected_attention(call: Call) -> _Made:
    """Return what an attention makes that has the projection inside: (B, S, D) of values."""
    x, weight = call.value(0, 3), call.value(1, 2)
    sizes = call.integers("qkv_hidden_sizes") or (weight.shape[1] // 3,) * 3
    heads = call.integer("num_heads", low=1)
    if len(sizes) != 3 or sizes[0] != sizes[1] or sum(sizes) != weight.shape[1] or any(size % heads for size in sizes):
        raise call.fault(f"{weight.shape[1]} columns of weights for queries, keys and values in {heads} heads")
    batch, queries, _ = x.shape
    past = call.optional(4)
    keys = queries + _past(call, 4)
    if past is not None and call.node.attributes.get("past_present_share_buffer"):
        keys = past.shape[-2]
    present = Value(x.code, (2, batch, heads, keys, sizes[0] // heads))
    return [Value(x.code, (batch, queries, sizes[2])), present]


def _projected_flops(call: Call) -> float:
    batch, queries, width = call.value(0, 3).shape
    columns, values = call.value(1, 2).shape[1], call.made(0).shape[-1]
    keys = queries + _past(call, 4)
    pairs = batch * queries * keys * ((columns - values) // 2 + values)
    return 2.0 * (batch * queries * width * columns + pairs)


def _heads(call: Call) -> tuple[int, int, int, int, int, int]:
    """Return B, S, T, N, the width of a head, and that of its values."""
    heads, q = call.integer("num_heads", low=1), call.value(0, 3, 5)
    key, value = call.optional(1), call.optional(2)
    if len(q.shape) == 5:  # (B, S, N, 3, E)
        return q.shape[0], q.shape[1], q.shape[1], heads, q.shape[4], q.shape[4]
    batch, queries, width = q.shape
    if width % heads:
        raise call.fault(f"a width of {width} for {heads} heads")
    if key is None:
        raise call.fault("input 1 (keys) is missing beside unpacked queries")
    if len(key.shape) == 5:  # (B, T, N, 2, E)
        return batch, queries, key.shape[1], heads, width // heads, width // heads
    key = call.value(1, 3, 4)
    keys = key.shape[1] if len(key.shape) == 3 else key.shape[2]
    wide = width // heads
    if value is not None:
        value = call.value(2, 3, 4)
        wide = value.shape[-1] if len(value.shape) == 4 else value.shape[-1] // heads
    return batch, queries, keys, heads, width // heads, wide


def _attention(call: Call) -> _Made:
    batch, queries, keys, heads, wide, values = _heads(call)
    code, total = call.value(0).code, keys + _past(call, 6)
    out = Value(code, (batch, queries, heads * values))
    scores = Value(code, (batch, heads, queries, total))
    return [out, Value(code, (batch, heads, total, wide)), Value(code, (batch, heads, total, values)), scores]


def _attention_flops(call: Call) -> float:
    batch, queries, keys, heads, wide, values = _heads(call)
    return 2.0 * batch * heads * queries * (keys + _past(call, 6)) * (wide + values)


def _groups(call: Call) -> tuple[int, int, int, int, int, int]:
    """Return B, S, T, N, heads of keys and the width of a head, for an attention with shared keys."""
    heads, shared = call.integer("num_heads", low=1), call.integer("kv_num_heads", low=1)
    batch, queries, width = call.value(0, 3).shape
    rows = heads if call.optional(1) is not None else heads + 2 * shared  # else keys and values are packed behind
    if width % rows:
        raise call.fault(f"a width of {width} for {rows} heads")
    total, past = call.whole(6), _past(call, 3)
    keys = max(past, total[0]) if total else past + queries
    return batch, queries, keys, heads, shared, width // rows


def _grouped_attention(call: Call) -> _Made:
    batch, queries, keys, heads, shared, wide = _groups(call)
    code = call.value(0).code
    present = Value(code, (batch, shared, keys, wide))
    return [Value(code, (batch, queries, heads * wide)), present, present]


def _grouped_flops(call: Call) -> float:
    batch, queries, keys, heads, _, wide = _groups(call)
    return 4.0 * batch * heads * queries * keys * wide


# ---- norms and lookups -----------------------------------------------------------------------------


def _norm(call: Call) -> _Made:
    """Return a norm's result, the mean and deviation of each row, and the sum that it was taken of."""
    x = call.value(0, *range(1, 65))
    axis = axis_of(call.integer("axis", -1, low=-64), len(x.shape), call)
    row = Value(_FLOAT, (*x.shape[:axis], *(1 for _ in x.shape[axis:])))
    if call.node.op == "SimplifiedLayerNormalization":
        return [x, row]
    return [x, row, row, x]


def _group_norm(call: Call) -> _Made:
    return [call.value(0), call.value(0)]


def _embed(call: Call) -> _Made:
    ids, words = call.value(0, 2), call.value(2, 2)
    out = Value(words.code, (*ids.shape, words.shape[1]))
    return [out, Value(_INT32, ids.shape[:1]), out]


def _lookup(call: Call) -> _Made:
    """Return what a lookup in a packed table makes: fractions in the type of its scales."""
    table, ids, scales = call.value(0, *range(1, 65)), call.value(1), call.value(2)
    axis = axis_of(call.integer("gather_axis", 0, low=-64), len(table.shape), call)
    packed = 8 // max(call.integer("bits", 4, low=1), 1) if table.code == _UINT8 else 1
    shape = [*table.shape[:-1], table.shape[-1] * max(packed, 1)]
    return [Value(scales.code, (*shape[:axis], *ids.shape, *shape[axis + 1 :]))]


def _half(call: Call) -> _Made:
    x = call.value(0, *range(1, 65))
    return [Value(x.code, (*x.shape[:-1], x.shape[-1] // 2))]


def _join(call: Call) -> _Made:
    """Return what joins (values, scale, zero point) triples along an axis."""
    parts = [call.value(place, *range(1, 65)) for place in range(2, len(call.inputs), 3)]
    if not parts:
        raise call.fault("nothing to join")
    axis = axis_of(call.integer("axis", low=-64), len(parts[0].shape), call)
    if len({(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}) > 1:
        raise call.fault("the shapes of what it joins differ beyond the axis")
    whole = list(parts[0].shape)
    whole[axis] = sum(part.shape[axis] for part in parts)
    return [Value(parts[0].code, tuple(whole))]


_MICROSOFT = {
    "Attention": Contrib("scaled_dot_product_attention", _projected_attention, _projected_flops),
    "BiasAdd": Contrib("add", _broadcast(0, 1, 2)),
    "BiasGelu": Contrib("gelu", _broadcast(0, 1)),
    "BiasSoftmax": Contrib("softmax", _same),
    "BiasSplitGelu": Contrib("gelu", _half),
    "DequantizeLinear": Contrib("dequantize", like=("DequantizeLinear", 3)),
    "DynamicQuantizeMatMul": Contrib("mm", _matmul_float, _plain_flops),
    "EmbedLayerNormalization": Contrib("embedding", _embed, lambda call: 10.0 * call.made(0).count),
    "FastGelu": Contrib("gelu", _broadcast(0, 1)),
    "FusedConv": Contrib("convolution", like=("Conv", 3)),
    "FusedGemm": Contrib("addmm", like=("Gemm", 3)),
    "FusedMatMul": Contrib("bmm", _fused_matmul, _fused_flops),
    "GatherBlockQuantized": Contrib("embedding", _lookup),
    "Gelu": Contrib("gelu", _same),
    "GroupNorm": Contrib("group_norm", _same),
    "GroupQueryAttention": Contrib("scaled_dot_product_attention", _grouped_attention, _grouped_flops),
    "LayerNormalization": Contrib("layer_norm", _norm),
    "MatMulBnb4": Contrib("matmul_bnb4", _matmul_packed, _plain_flops),
    "MatMulIntegerToFloat": Contrib("mm", _matmul_float, _plain_flops),
    "MatMulNBits": Contrib("matmul_nbits", _matmul_packed, _plain_flops),
    "MoE": Contrib("moe_matmul", _same, _experts),
    "MultiHeadAttention": Contrib("scaled_dot_product_attention", _attention, _attention_flops),
    "QLinearAdd": Contrib("add", _broadcast(0, 3)),
    "QLinearConcat": Contrib("cat", _join),
    "QLinearLeakyRelu": Contrib("leaky_relu", _same),
    "QLinearMul": Contrib("mul", _broadcast(0, 3)),
    "QLinearSigmoid": Contrib("sigmoid", _same),
    "QLinearSoftmax": Contrib("softmax", _same),
    "QuantizeLinear": Contrib("quantize", like=("QuantizeLinear", 3)),
    "QuickGelu": Contrib("gelu", _same),
    "RotaryEmbedding": Contrib("rotary_embedding", _same, lambda call: 3.0 * call.made(0).count),
    "SimplifiedLayerNormalization": Contrib("rms_norm", _norm),
    "SkipGroupNorm": Contrib("group_norm", _group_norm),
    "SkipLayerNormalization": Contrib("layer_norm", _norm),
    "SkipSimplifiedLayerNormalization": Contrib("rms_norm", _norm),
}
CONTRIB = {("com.microsoft", op): rule for op, rule in _MICROSOFT.items()}
"""By domain and operator. One is written by ONNX Runtime without its domain."""
CONTRIB["", "SimplifiedLayerNormalization"] = CONTRIB["com.microsoft", "SimplifiedLayerNormalization"]

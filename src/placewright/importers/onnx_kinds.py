"""Kinds of ONNX's operators: the words that a capture of the same network in PyTorch would use, where there is one."""

from __future__ import annotations

import re

from placewright.importers.onnx_call import Call
from placewright.importers.onnx_contrib import CONTRIB

VIEWS = {
    "Reshape": "view", "Flatten": "view", "Squeeze": "squeeze", "Unsqueeze": "unsqueeze", "Identity": "alias",
    "Dropout": "alias",
}  # fmt: skip
"""Operators whose result has the bytes of their first input."""

_KINDS = {
    "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor", "Not": "logical_not", "Equal": "eq",
    "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge", "Max": "maximum", "Min": "minimum",
    "Mod": "remainder", "Clip": "clamp", "Sum": "add", "Swish": "silu", "IsNaN": "isnan", "IsInf": "isinf",
    "HardSigmoid": "hardsigmoid", "HardSwish": "hardswish", "ThresholdedRelu": "threshold", "Cast": "to_copy",
    "CastLike": "to_copy", "Concat": "cat", "Transpose": "clone", "Expand": "repeat", "Tile": "repeat",
    "Slice": "slice", "GatherElements": "gather", "GatherND": "index", "ScatterElements": "scatter",
    "ScatterND": "index_put", "DepthToSpace": "pixel_shuffle", "SpaceToDepth": "pixel_unshuffle",
    "CumSum": "cumsum", "CumProd": "cumprod", "TopK": "topk", "ArgMax": "argmax", "ArgMin": "argmin",
    "NonZero": "nonzero", "Range": "arange", "ConstantOfShape": "full", "EyeLike": "eye", "RandomNormal": "normal",
    "RandomNormalLike": "normal", "RandomUniform": "uniform", "RandomUniformLike": "uniform", "Col2Im": "col2im",
    "ReduceMax": "amax", "ReduceMin": "amin", "ReduceMean": "mean", "ReduceSum": "sum", "ReduceProd": "prod",
    "ReduceLogSumExp": "logsumexp", "ReduceL1": "linalg_vector_norm", "ReduceL2": "linalg_vector_norm",
    "GlobalAveragePool": "mean", "GlobalMaxPool": "amax", "BatchNormalization": "batch_norm",
    "LayerNormalization": "layer_norm", "GroupNormalization": "group_norm", "RMSNormalization": "rms_norm",
    "InstanceNormalization": "instance_norm", "LRN": "local_response_norm", "GridSample": "grid_sampler",
    "QuantizeLinear": "quantize", "DequantizeLinear": "dequantize", "DynamicQuantizeLinear": "quantize",
    "Attention": "scaled_dot_product_attention", "Conv": "convolution", "ConvTranspose": "convolution",
    "ConvInteger": "convolution", "QLinearConv": "convolution", "DeformConv": "deform_convolution",
    "CausalConvWithState": "convolution", "LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh", "PRelu": "prelu",
    "SwiGLU": "swiglu", "TensorScatter": "index_copy", "DFT": "fft", "STFT": "stft", "LpPool": "lp_pool",
}  # fmt: skip
_PRODUCTS = {"MatMul": (0, 1), "MatMulInteger": (0, 1), "QLinearMatMul": (0, 3)}


def kind_of(call: Call) -> str:  # noqa: PLR0911
    """Return the kind of a node."""
    node = call.node
    rule = CONTRIB.get((node.domain, node.op))
    if rule is not None:
        return rule.kind
    if node.op in VIEWS and node.op != "Dropout":
        return VIEWS[node.op]
    if node.op in _PRODUCTS:
        flat = all(len(call.value(place).shape) == 2 for place in _PRODUCTS[node.op])
        return "mm" if flat else "bmm"
    if node.op == "Gemm":
        return "mm" if call.optional(2) is None else "addmm"
    if node.op == "Gather":
        table = call.value(0)
        return "embedding" if len(table.shape) == 2 and call.integer("axis", 0, low=-64) == 0 else "index_select"
    if node.op in ("MaxPool", "AveragePool"):
        axes = len(call.value(0).shape) - 2
        return f"max_pool{axes}d_with_indices" if node.op == "MaxPool" else f"avg_pool{axes}d"
    if node.op == "Resize":
        return _resize(call)
    if node.op == "Pad":
        mode = call.word("mode", "constant")
        return {"reflect": "reflection_pad", "edge": "replication_pad"}.get(mode, "constant_pad_nd")
    if node.op == "Trilu":
        return "triu" if call.node.attributes.get("upper", 1) else "tril"
    return _KINDS.get(node.op) or snake(node.op)


def _resize(call: Call) -> str:
    """Return the kind of a change of size, by the axes that really change."""
    mode = call.word("mode", "nearest")
    axes = max(sum(a != b for a, b in zip(call.value(0).shape, call.made(0).shape, strict=False)), 1)
    if mode == "linear":
        return {1: "upsample_linear1d", 2: "upsample_bilinear2d"}.get(axes, "upsample_trilinear3d")
    return "upsample_bicubic2d" if mode == "cubic" else f"upsample_nearest{axes}d"


def snake(name: str) -> str:
    """Return a name such as `LeakyRelu` in lower case: `leaky_relu`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()

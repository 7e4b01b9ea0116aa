"""What an operation of a traced graph does: its kind, its flops, the bytes that it reads and writes, its workspace.

Shapes: B batch, H heads, S and T sequence lengths of queries and keys, E width of a head, N elements.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from placewright.checks import DTYPES
from placewright.operations import Work

Shape = Sequence[int]

_KINDS = {
    # Kernels that one device has, under the name of what they compute.
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_cudnn_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_fused_attention_overrideable": "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math_for_mps": "scaled_dot_product_attention",
    "attention": "scaled_dot_product_attention",  # our own, with dropout
    "attention_backward": "scaled_dot_product_attention_backward",
    "_native_batch_norm_legit": "batch_norm",
    "_native_batch_norm_legit_functional": "batch_norm",
    "_native_batch_norm_legit_no_training": "batch_norm",
    "_batch_norm_with_update": "batch_norm",
    "_batch_norm_with_update_functional": "batch_norm",
    "cudnn_batch_norm": "batch_norm",
    "cudnn_batch_norm_backward": "batch_norm_backward",
    "mkldnn_rnn_layer": "lstm",
    "mkldnn_rnn_layer_backward": "lstm_backward",
    "embedding_dense_backward": "embedding_backward",
    "_unsafe_view": "view",
}
_ENDINGS = ("_for_cpu", "_data", "_forward", "_default")


def kind_of(target: Any) -> str:
    """Return the canonical kind of an operator: its name without dialect, device or the mark of writing in place."""
    name = getattr(target, "_schema", None)
    plain = name.name.partition("::")[2] if name is not None else getattr(target, "__name__", str(target))
    backward = plain.endswith(("_backward", "_backward_data"))
    stem = re.sub(r"_backward(_data)?$", "", plain) if backward else plain
    if plain in _KINDS:
        return _KINDS[plain]
    stem = _KINDS.get(stem, stem)
    stem = re.sub(r"^(_|native_|_native_)+", "", stem)
    for ending in _ENDINGS:
        stem = stem.removesuffix(ending)
    if stem.endswith("_") and not stem.endswith("__"):
        stem = stem[:-1]
    return f"{stem}_backward" if backward else stem


def touched_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes that a tensor's elements lie in, an expanded axis counting once."""
    if tensor.layout is not torch.strided:
        return tensor.element_size() * int(tensor.numel())
    axes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0 or size == 0]
    return tensor.element_size() * math.prod(axes)


def dtype_of(tensors: Sequence[torch.Tensor]) -> str:
    """Return the type that an operation computes in: that of its first floating-point tensor, else of its first."""
    chosen = next((t for t in tensors if t.is_floating_point() or t.is_complex()), tensors[0] if tensors else None)
    name = str(chosen.dtype).removeprefix("torch.") if chosen is not None else "float32"
    return name if name in DTYPES else "uint8" if "uint" in name or "int4" in name else "float32"


def work_of(kind: str, args: Sequence[Any], inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Work:
    """Return what an operation does; `args` are its arguments with tensors in the place of nodes."""
    dtype = dtype_of(inputs if kind in _FLOPS else [*outputs, *inputs])
    written = sum(map(touched_bytes, outputs))
    if kind in _NOTHING:
        return Work(0.0, 0, 0, 0, dtype)
    if kind in _FILLS:
        return Work(0.0, 0, written, 0, dtype)
    read = _READS[kind](args, inputs, outputs) if kind in _READS else sum(map(touched_bytes, inputs))
    if kind in _FLOPS:
        flops = float(_FLOPS[kind](args, outputs))
    else:
        flops = _PER_ELEMENT.get(kind, 0.0 if kind in _MOVES else 1.0) * _elements(inputs, outputs)
    return Work(flops, read, written, _workspace(kind, args, outputs), dtype)


def _elements(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> float:
    """Return the elements that a pointwise operation or a reduction goes through."""
    return float(max((int(t.numel()) for t in (*inputs[:1], *outputs)), default=0))


_NOTHING = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"})
"""They take memory and leave it as it is."""
_FILLS = frozenset(
    {"zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "fill",
     "zero", "arange", "eye", "scalar_tensor", "bernoulli", "rand", "randn", "randint", "rand_like", "randn_like",
     "uniform", "normal", "randperm", "linspace", "tril_indices", "triu_indices"}
)  # fmt: skip
"""They write and read nothing."""
_MOVES = frozenset(
    {"clone", "copy", "to_copy", "cat", "stack", "index", "index_put", "index_select", "gather", "scatter",
     "slice_backward", "select_backward", "slice_scatter", "select_scatter", "embedding", "constant_pad_nd",
     "repeat", "roll", "flip", "index_copy", "masked_fill", "where", "lift_fresh_copy", "pixel_shuffle",
     "unfold_backward", "diagonal_copy", "as_strided_scatter", "pixel_unshuffle", "reflection_pad1d",
     "reflection_pad2d", "replication_pad2d", "tril", "triu", "im2col", "col2im", "split_with_sizes_copy",
     "masked_scatter", "max_pool2d_with_indices_backward", "avg_pool2d_backward", "upsample_nearest2d"}
)  # fmt: skip
"""They move bytes and compute nothing to speak of."""
_PER_ELEMENT = {
    "softmax": 5.0, "log_softmax": 5.0, "softmax_backward": 4.0, "log_softmax_backward": 4.0,
    "layer_norm": 8.0, "layer_norm_backward": 14.0, "group_norm": 8.0, "group_norm_backward": 14.0,
    "batch_norm": 8.0, "batch_norm_backward": 11.0, "gelu": 10.0, "gelu_backward": 14.0, "silu": 5.0,
    "silu_backward": 7.0, "sigmoid": 4.0, "tanh": 5.0, "sigmoid_backward": 3.0, "tanh_backward": 3.0, "exp": 4.0,
    "log": 4.0, "sin": 4.0, "cos": 4.0, "pow": 4.0, "rsqrt": 2.0, "var_mean": 4.0, "dropout": 3.0,
    "addcmul": 3.0, "addcdiv": 3.0, "lerp": 3.0,
}  # fmt: skip
"""Flops for each element, where it is not one; of an exponential four, by the usual count."""


# ---- flops, where they are not by the element ------------------------------------------------------


def _product(args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> int:
    """Return the flops of a matrix product, whose left factor's last axis is summed over."""
    return 2 * int(outputs[0].numel()) * int(args[0].shape[-1])


def _added_product(args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> int:
    """Return the flops of a matrix product that is added to something."""
    return 2 * int(outputs[0].numel()) * int(args[1].shape[-1])


def _convolution(x: Shape, weight: Shape, y: Shape, transposed: bool) -> int:
    """Return the flops of a convolution: for each element on the small side, the weights that meet there."""
    pixels = math.prod((x if transposed else y)[2:])
    return 2 * int(x[0]) * pixels * math.prod(weight)


def _convolution_forward(args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> int:
    return _convolution(args[0].shape, args[1].shape, outputs[0].shape, bool(args[6]))


def _convolution_backward(args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> int:
    """Return the flops of a convolution's backward: one convolution for each gradient that it makes."""
    grad, x, weight, transposed, wanted = args[0], args[1], args[2], bool(args[7]), args[10]
    once = _convolution(x.shape, weight.shape, grad.shape, transposed)
    return once * (int(bool(wanted[0])) + int(bool(wanted[1])))


def _attention(q: Shape, k: Shape, v: Shape, products: int, value_products: int) -> int:
    """Return the flops of products over the width of keys, and of those over the width of values."""
    pairs = math.prod(q[:-2]) * q[-2] * k[-2]
    return 2 * pairs * (products * q[-1] + value_products * v[-1])


def _attention_forward(args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> int:
    return _attention(args[0].shape, args[1].shape, args[2].shape, 1, 1)


def _attention_backward(args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> int:
    """Return the flops of an attention's backward, which makes the scores anew: five products for the two."""
    return _attention(args[1].shape, args[2].shape, args[3].shape, 3, 2)


def _recurrent(args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> int:
    """Return the flops of a fused recurrent layer: every weight meets every step of every sample."""
    x = args[0]
    weights = sum(int(t.numel()) for t in args[1:3] if isinstance(t, torch.Tensor))
    return 2 * weights * int(x.shape[0]) * int(x.shape[1])


_FLOPS: dict[str, Callable[[Sequence[Any], Sequence[torch.Tensor]], int]] = {
    "mm": _product,
    "bmm": _product,
    "mv": _product,
    "dot": _product,
    "addmm": _added_product,
    "baddbmm": _added_product,
    "addmv": _added_product,
    "convolution": _convolution_forward,
    "convolution_backward": _convolution_backward,
    "scaled_dot_product_attention": _attention_forward,
    "scaled_dot_product_attention_backward": _attention_backward,
    "lstm": _recurrent,
    "lstm_backward": lambda args, outputs: 2 * _recurrent(args, outputs),
    "grouped_mm": lambda args, outputs: 2 * int(outputs[0].numel()) * int(args[0].shape[-1]),
}


# ---- bytes, where they are not all of what is read ---------------------------------------------


def _rows(args: Sequence[Any], inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """Return the bytes read by a lookup: the rows that it finds, and everything but the table."""
    return sum(map(touched_bytes, inputs[1:])) + sum(map(touched_bytes, outputs))


_READS: dict[str, Callable[[Sequence[Any], Sequence[torch.Tensor], Sequence[torch.Tensor]], int]] = {
    "embedding": _rows,
    "index": _rows,
    "index_select": _rows,
    "gather": _rows,
    "copy": lambda args, inputs, outputs: sum(map(touched_bytes, inputs[1:])),
    "masked_fill": lambda args, inputs, outputs: sum(map(touched_bytes, inputs)),
}


def _workspace(kind: str, args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> int:
    """Return the bytes that an operation takes while it runs, beside what it returns.

    Convolutions on tensor cores, as on a CPU's vector units, work on channels laid out innermost: what comes in
    another layout is laid out anew, and the result too. Seen on an H200 with torch 2.11: exactly the bytes of
    input and output at the peaks of vgg-16 and resnet-50. Grouped convolutions have kernels that need none.
    """
    if kind == "scaled_dot_product_attention_backward" and args[1].element_size() < 4:
        return 4 * int(args[1].numel())  # the gradient of the queries is summed up in float32
    if kind == "convolution" and args[8] == 1:
        return sum(map(_relaid_bytes, (args[0], outputs[0])))
    if kind == "convolution_backward" and args[9] == 1:
        return sum(map(_relaid_bytes, args[:2]))  # gradient and input; or the gradient of the input, as large
    return 0


def _relaid_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of an image's copy with channels innermost; none where it is so already."""
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous():
        return 0
    return touched_bytes(tensor)

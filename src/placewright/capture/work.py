"""What an operation of a traced graph does: its kind, its flops, the bytes that it reads and writes, its workspace."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch

from placewright.capture.lookups import adds, summed_elements, table_read, written_elements
from placewright.capture.products import FLOPS
from placewright.checks import DTYPES
from placewright.operations import Work

_KINDS = {
    # Kernels that one device has, under the name of what they compute.
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_cudnn_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_fused_attention_overrideable": "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math_for_mps": "scaled_dot_product_attention",
    "_triton_scaled_dot_attention": "scaled_dot_product_attention",
    "_flash_attention_forward": "scaled_dot_product_attention",
    "_flash_attention_backward": "scaled_dot_product_attention_backward",
    "_efficient_attention_forward": "scaled_dot_product_attention",
    "_efficient_attention_backward": "scaled_dot_product_attention_backward",
    "flex_attention": "scaled_dot_product_attention",
    "flex_attention_backward": "scaled_dot_product_attention_backward",
    "attention": "scaled_dot_product_attention",  # our own, with dropout
    "attention_backward": "scaled_dot_product_attention_backward",
    "_native_batch_norm_legit": "batch_norm",
    "_native_batch_norm_legit_functional": "batch_norm",
    "_native_batch_norm_legit_no_training": "batch_norm",
    "_batch_norm_with_update": "batch_norm",
    "_batch_norm_with_update_functional": "batch_norm",
    "cudnn_batch_norm": "batch_norm",
    "cudnn_batch_norm_backward": "batch_norm_backward",
    **dict.fromkeys(("cudnn_convolution", "cudnn_convolution_transpose", "convolution_overrideable",
                     "_slow_conv2d_forward", "slow_conv3d_forward", "slow_conv_dilated2d", "slow_conv_dilated3d",
                     "slow_conv_transpose2d", "slow_conv_transpose3d", "_conv_depthwise2d", "conv_depthwise3d",
                     "miopen_convolution", "miopen_convolution_transpose", "miopen_depthwise_convolution",
                     "mkldnn_convolution"), "convolution"),
    "convolution_backward_overrideable": "convolution_backward",
    "mkldnn_rnn_layer": "lstm",
    "mkldnn_rnn_layer_backward": "lstm_backward",
    "embedding_dense_backward": "embedding_backward",
    "_embedding_bag_forward_only": "embedding_bag",
    "_embedding_bag_dense_backward": "embedding_bag_backward",
    "_index_put_impl_": "index_put",
    "_unsafe_index_put": "index_put",
    "_unsafe_index": "index",
    "_unsafe_view": "view",
}  # fmt: skip
_ENDINGS = ("_for_cpu", "_data", "_forward", "_default")


def name_of(target: Any) -> str:
    """Return the name of an operator without its namespace and overload."""
    schema = getattr(target, "_schema", None)
    return schema.name.partition("::")[2] if schema is not None else getattr(target, "__name__", str(target))


def kind_of(target: Any) -> str:
    """Return the canonical kind of an operator: its name without dialect, device or the mark of writing in place."""
    plain = name_of(target)
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


def work_of(target: Any, args: Sequence[Any], inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Work:
    """Return what an operator does; `args` are its arguments with tensors in the place of nodes."""
    name, kind = (name_of(target), kind_of(target)) if _is_torchs(target) else ("", "")
    rule = FLOPS.get(name) or FLOPS.get(kind)
    dtype = dtype_of(inputs if rule else [*outputs, *inputs])
    if kind in _NOTHING:
        return Work(0.0, 0, 0, 0, dtype)
    if kind in _FILLS:
        return Work(0.0, 0, sum(map(touched_bytes, outputs)), 0, dtype)
    read, written = _bytes(name, kind, args, inputs, outputs)
    flops = float(rule(args, outputs)) if rule else _flops_by_element(kind, args, inputs, outputs)
    return Work(flops, read, written, _workspace(name, kind, args, outputs), dtype)


def _is_torchs(target: Any) -> bool:
    """Whether an operator is torch's, or stands for one of them; of others a name says nothing of the arguments."""
    schema = getattr(target, "_schema", None)
    return schema is None or schema.name.partition("::")[0] in ("aten", "prims", "placewright")


def _bytes(
    name: str, kind: str, args: Sequence[Any], inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> tuple[int, int]:
    """Return the bytes that an operator reads and writes: those of its tensors, but of a table what it touches."""
    written = sum(map(touched_bytes, outputs))
    looked_up = table_read(kind, args, outputs)
    if looked_up is not None:
        table, found = looked_up
        return found * table.element_size() + _all_but(table, inputs), written
    reached = written_elements(kind, args) if name.endswith("_") else None
    if reached is not None:
        size = reached * int(args[0].element_size())
        return _all_but(args[0], inputs) + (size if adds(kind, args) else 0), size
    if kind == "copy":
        return sum(map(touched_bytes, inputs[1:])), written
    return sum(map(touched_bytes, inputs)), written


def _all_but(table: torch.Tensor, inputs: Sequence[torch.Tensor]) -> int:
    """Return the bytes of all inputs but a table."""
    return sum(touched_bytes(tensor) for tensor in inputs if tensor is not table)


def _flops_by_element(
    kind: str, args: Sequence[Any], inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> float:
    """Return the flops of what computes alike for every element that it goes through."""
    summed = summed_elements(kind, args)
    if summed is not None:
        return float(summed)
    reached = written_elements(kind, args)
    if reached is not None:
        return float(reached if adds(kind, args) else 0)
    return _PER_ELEMENT.get(kind, 0.0 if kind in _MOVES else 1.0) * _elements(inputs, outputs)


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
    {"clone", "copy", "to_copy", "cat", "stack", "index", "index_select", "gather", "take",
     "slice_backward", "select_backward", "slice_scatter", "select_scatter", "embedding", "constant_pad_nd",
     "repeat", "roll", "flip", "masked_fill", "where", "lift_fresh_copy", "pixel_shuffle",
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


def _workspace(name: str, kind: str, args: Sequence[Any], outputs: Sequence[torch.Tensor]) -> int:
    """Return the bytes that an operation takes while it runs, beside what it returns.

    Convolutions on tensor cores, as on a CPU's vector units, work on channels laid out innermost: what comes in
    another layout is laid out anew, and the result too. Seen on an H200 with torch 2.11: exactly the bytes of
    input and output at the peaks of vgg-16 and resnet-50. Grouped convolutions have kernels that need none.
    """
    if kind == "scaled_dot_product_attention_backward" and args[1].element_size() < 4:
        return 4 * int(args[1].numel())  # the gradient of the queries is summed up in float32
    if name in ("convolution", "_convolution") and args[8] == 1:
        return sum(map(_relaid_bytes, (args[0], outputs[0])))
    if name == "convolution_backward" and args[9] == 1:
        return sum(map(_relaid_bytes, args[:2]))  # gradient and input; or the gradient of the input, as large
    return 0


def _relaid_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of an image's copy with channels innermost; none where it is so already."""
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous():
        return 0
    return touched_bytes(tensor)

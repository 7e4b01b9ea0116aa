"""The flops of operators that take more than a few for each element: products, convolutions, attention, transforms.

Each is 2 for a multiplication and an addition, counted as torch.utils.flop_counter counts where that has a rule.

Shapes: B batch, H heads, S and T sequence lengths of queries and keys, E width of a head, M width of a point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Shape = Sequence[int]
Tensors = Sequence[torch.Tensor]
Rule = Callable[[Sequence[Any], Tensors], float]
"""Flops, of an operator's arguments in order, with tensors in the place of nodes, and of its outputs."""


# ---- matrix products -----------------------------------------------------------------------------


def _product(args: Sequence[Any], outputs: Tensors) -> float:
    """Return the flops of a matrix product, whose left factor's last axis is summed over."""
    return 2 * int(outputs[0].numel()) * int(args[0].shape[-1])


def _added_product(args: Sequence[Any], outputs: Tensors) -> float:
    """Return the flops of a matrix product that is added to something."""
    return 2 * int(outputs[0].numel()) * int(args[1].shape[-1])


def _summed_products(args: Sequence[Any], outputs: Tensors) -> float:
    """Return the flops of the sum of a batch of products, which is added to something."""
    return 2 * int(args[1].numel()) * int(args[2].shape[-1])


def _grouped_product(args: Sequence[Any], outputs: Tensors) -> float:
    """Return the flops of products of groups of rows; of two matrices, the groups share the summed axis."""
    whole = 2 * int(outputs[0].numel()) * int(args[0].shape[-1])
    between_matrices = args[0].dim() == args[1].dim() == 2
    return whole // max(1, int(outputs[0].shape[0])) if between_matrices else whole


def _trilinear(args: Sequence[Any], outputs: Tensors) -> float:
    """Return the flops of a sum of products of three tensors: one product for each place of their common shape."""
    shapes = []
    for tensor, expanded in zip(args[:3], args[3:6], strict=True):
        sizes = list(tensor.shape)
        for axis in sorted(expanded):
            sizes.insert(axis, 1)
        shapes.append(sizes)
    return 2 * math.prod(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


# ---- convolutions --------------------------------------------------------------------------------


def _convolution(x: Shape, weight: Shape, y: Shape, transposed: bool) -> float:
    """Return the flops of a convolution: for each element on the small side, the weights that meet there."""
    pixels = math.prod((x if transposed else y)[2:])
    return 2 * int(x[0]) * pixels * math.prod(weight)


def _convolution_forward(args: Sequence[Any], outputs: Tensors) -> float:
    return _convolution(args[0].shape, args[1].shape, outputs[0].shape, bool(args[6]))


def _plain(args: Sequence[Any], outputs: Tensors) -> float:
    """Return the flops of an operator that only convolves; its arguments begin with input and weight."""
    return _convolution(args[0].shape, args[1].shape, outputs[0].shape, False)


def _transposed(args: Sequence[Any], outputs: Tensors) -> float:
    """Return the flops of an operator for transposed convolutions."""
    return _convolution(args[0].shape, args[1].shape, outputs[0].shape, True)


def _backward_of(transposed: int, wanted: int) -> Rule:
    """Return the rule of a convolution's backward, by the places of two arguments: once for each gradient made."""

    def rule(args: Sequence[Any], outputs: Tensors) -> float:
        grad, x, weight = args[:3]
        once = _convolution(x.shape, weight.shape, grad.shape, bool(args[transposed]))
        return once * (int(bool(args[wanted][0])) + int(bool(args[wanted][1])))

    return rule


# ---- attention -----------------------------------------------------------------------------------


def _pairs(args: Sequence[Any], at: int, products: tuple[int, int]) -> float:
    """Return the flops of products over the width of keys, and of those over the width of values.

    Query, key and value [B, H, S or T, E] are at `at` among the arguments.
    """
    q, k, v = (args[at + n].shape for n in range(3))
    return 2 * int(math.prod(q[:-1]) * k[-2] * (products[0] * q[-1] + products[1] * v[-1]))


def _pairs_of_kernel(args: Sequence[Any], at: int, lengths: int, products: tuple[int, int]) -> float:
    """Return the same of kernels that take heads last but one [B, S or T, H, E].

    Sequences of different lengths lie behind one another in one axis: where each begins is at `lengths` among the
    arguments, and two places on the greatest length, which every sequence counts as having.
    """
    q, k, v = (args[at + n].shape for n in range(3))
    begins, heads = args[lengths], q[-2]
    each = q[0] * q[1] * k[1] if begins is None else (begins.shape[0] - 1) * args[lengths + 2] * args[lengths + 3]
    return 2 * int(heads * each * (products[0] * q[-1] + products[1] * v[-1]))


_FORWARD, _BACKWARD = (1, 1), (3, 2)
"""Products with keys, and with values. The backward pass makes the scores anew: five products for the two."""


# ---- recurrent layers, distances, transforms, factorisations --------------------------------------


def _recurrent(args: Sequence[Any], outputs: Tensors) -> float:
    """Return the flops of a fused recurrent layer: every weight meets every step of every sample."""
    x = args[0]
    weights = sum(int(t.numel()) for t in args[1:3] if isinstance(t, torch.Tensor))
    return 2 * weights * int(x.shape[0]) * int(x.shape[1])


def _transform(points: int, real: bool, args: Sequence[Any], signal: torch.Tensor) -> float:
    """Return the flops of a fast Fourier transform by the usual count, 5 N log2 N, and half that of real numbers."""
    length = math.prod(int(signal.shape[axis]) for axis in args[1])
    return (2.5 if real else 5.0) * points * math.log2(max(length, 1))


def _squares(tensor: torch.Tensor) -> float:
    """Return rows x columns x the smaller of them, over a batch of matrices."""
    return float(int(tensor.numel()) * min(int(size) for size in tensor.shape[-2:]))


FLOPS: dict[str, Rule] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "matmul", "linear", "int_mm", "scaled_mm", "scaled_mm_v2",
                     "weight_int8pack_mm", "weight_int4pack_mm"), _product),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addmm_activation"), _added_product),
    "addbmm": _summed_products,
    **dict.fromkeys(("grouped_mm", "scaled_grouped_mm"), _grouped_product),
    "trilinear": _trilinear,
    "convolution": _convolution_forward,
    **dict.fromkeys(("cudnn_convolution", "miopen_convolution", "miopen_depthwise_convolution", "mkldnn_convolution",
                     "_slow_conv2d_forward", "slow_conv3d_forward", "slow_conv_dilated2d", "slow_conv_dilated3d",
                     "_conv_depthwise2d", "conv_depthwise3d"), _plain),
    **dict.fromkeys(("cudnn_convolution_transpose", "miopen_convolution_transpose", "slow_conv_transpose2d",
                     "slow_conv_transpose3d"), _transposed),
    "convolution_backward": _backward_of(7, 10),
    "convolution_backward_overrideable": _backward_of(6, 9),
    "scaled_dot_product_attention": lambda args, outputs: _pairs(args, 0, _FORWARD),
    "scaled_dot_product_attention_backward": lambda args, outputs: _pairs(args, 1, _BACKWARD),
    "_flash_attention_forward": lambda args, outputs: _pairs_of_kernel(args, 0, 3, _FORWARD),
    "_flash_attention_backward": lambda args, outputs: _pairs_of_kernel(args, 1, 6, _BACKWARD),
    "_efficient_attention_forward": lambda args, outputs: _pairs_of_kernel(args, 0, 4, _FORWARD),
    "_efficient_attention_backward": lambda args, outputs: _pairs_of_kernel(args, 1, 6, _BACKWARD),
    "flex_attention_backward": lambda args, outputs: _pairs(args, 0, _BACKWARD),  # its arguments begin with the query
    "lstm": _recurrent,
    "lstm_backward": lambda args, outputs: 2 * _recurrent(args, outputs),
    "cdist": lambda args, outputs: 3 * int(outputs[0].numel()) * int(args[0].shape[-1]),
    "cdist_backward": lambda args, outputs: 4 * int(args[0].numel()) * int(args[1].shape[-1]),
    "euclidean_dist": lambda args, outputs: 2 * int(outputs[0].numel()) * (int(args[0].shape[-1]) + 2),
    "pdist": lambda args, outputs: 3 * int(outputs[0].numel()) * int(args[0].shape[-1]),
    "pdist_backward": lambda args, outputs: 4 * int(args[0].numel()) * int(args[1].shape[-1]),
    "fft_c2c": lambda args, outputs: _transform(int(args[0].numel()), False, args, args[0]),
    "fft_r2c": lambda args, outputs: _transform(int(args[0].numel()), True, args, args[0]),
    "fft_c2r": lambda args, outputs: _transform(int(outputs[0].numel()), True, args, outputs[0]),
    "linalg_cholesky_ex": lambda args, outputs: _squares(args[0]) / 3,
    **dict.fromkeys(("linalg_lu_factor_ex", "linalg_lu", "linalg_det"),
                    lambda args, outputs: _squares(args[0]) * 2 / 3),
    "linalg_inv_ex": lambda args, outputs: _squares(args[0]) * 2,
    "linalg_qr": lambda args, outputs: _squares(args[0]) * 2,
    "linalg_eigh": lambda args, outputs: _squares(args[0]) * 9,
    "linalg_svd": lambda args, outputs: _squares(args[0]) * 21,
    "linalg_solve_ex": lambda args, outputs: _squares(args[0]) * 2 / 3 + _product(args, outputs),
    "linalg_solve_triangular": lambda args, outputs: int(outputs[0].numel()) * int(args[0].shape[-1]),
}  # fmt: skip
"""By the operator's own name, where its arguments are in an order of their own, or by its kind."""

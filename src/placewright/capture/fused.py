"""Operators that a GPU runs as one kernel and a CPU takes apart: one operation each in the graph, on every device.

Capture runs on CPU tensors, where torch decomposes attention with dropout, or with values of another width than the
keys, into products as large as T x S, and root-mean-square normalisation into six operations. A GPU does neither, so a
graph of the parts would be wrong in time and bytes. Before the backward pass is traced, these calls are replaced by the
operators below, which save for it what the GPU's kernels save. They compute what torch computes: the CPU draws dropout
as torch's own attention does.

    B batch, H heads, T and S steps of queries and keys, E width of a head, N normalised elements
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.fx import Node

_STATE_BYTES = 5056
"""The state of torch's generator on a CPU; a GPU's seed and offset take the first 16."""


# ---- attention with dropout --------------------------------------------------------------------


@torch.library.custom_op("placewright::attention", mutates_args=())
def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what was attended to [B, H, T, E], logarithms of sums [B, H, T or more], and the state of the draws."""
    out, sums, state = _attention_outputs(query, value)
    if query.is_cuda:
        found, logsumexp, seed, offset = _on_gpu((query, key, value), mask, dropout, causal, scale)
        state[:16] = torch.stack([seed.cpu(), offset.cpu()]).view(torch.uint8).flatten()
        out.copy_(found)
        sums.copy_(logsumexp)
        return out, sums, state
    state.copy_(torch.get_rng_state())
    sums.zero_()  # made anew in the backward pass
    out.copy_(F.scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale=scale))
    return out, sums, state


@attention.register_fake
def _(query: Any, key: Any, value: Any, *rest: Any) -> Any:
    return _attention_outputs(query, value)


@torch.library.custom_op("placewright::attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, out: Tensor, sums: Tensor,
    state: Tensor, dropout: float, causal: bool, scale: float | None, mask_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key, value and mask; that of the mask is empty where it is not wanted."""
    if query.is_cuda:
        seed, offset = state[:16].cpu().view(torch.int64).unbind()  # where the kernel's host side reads them
        found = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            grad, query, key, value, _laid_out_bias(query, key, mask), out, sums, seed, offset, dropout,
            [True, True, True, mask_grad], causal, scale=scale,
        )  # fmt: skip
        of_mask = found[3].sum_to_size(mask.shape) if mask_grad and mask is not None else query.new_empty(0)
        return found[0], found[1], found[2], of_mask
    root = math.sqrt(scale if scale is not None else query.shape[-1] ** -0.5)
    small, wide = query * root, key * root
    scores = small @ wide.mT
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu_(1), -math.inf)
    bias = _bias(query, mask)
    weights = (scores if bias is None else scores + bias).softmax(-1).nan_to_num(0.0)
    before = torch.get_rng_state()
    torch.set_rng_state(state)
    kept = F.dropout(torch.ones_like(weights), dropout)
    torch.set_rng_state(before)
    of_weights = grad @ value.mT * kept
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    of_mask = of_scores.sum_to_size(mask.shape) if mask_grad and mask is not None else query.new_empty(0)
    made = of_scores @ wide * root, of_scores.mT @ small * root, (weights * kept).mT @ grad
    return *(_like(m, t) for m, t in zip(made, (query, key, value), strict=True)), of_mask.clone()  # type: ignore[return-value]


@attention_backward.register_fake
def _(grad: Any, query: Any, key: Any, value: Any, mask: Any, *rest: Any) -> Any:
    wanted = torch.empty_like(mask) if rest[-1] else query.new_empty(0)
    return *(torch.empty_like(t) for t in (query, key, value)), wanted


_ROWS = 32
"""The GPU's kernel keeps logarithms of sums for a multiple of so many steps, and reads them so."""


def _attention_outputs(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return room for the results, the heads laid out beside each other as kernels do."""
    batch, heads, steps, _ = query.shape
    out = query.new_empty(batch, steps, heads, value.shape[-1]).transpose(1, 2)
    sums = query.new_empty(batch, heads, steps + -steps % _ROWS, dtype=torch.float32)
    return out, sums, query.new_empty(_STATE_BYTES, dtype=torch.uint8)


def _on_gpu(
    heads: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, dropout: float, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return output, logarithms of sums, seed and offset from the kernel that takes any type and bias."""
    run = torch.ops.aten._scaled_dot_product_efficient_attention
    return run(*heads, _laid_out_bias(*heads[:2], mask), True, dropout, causal, scale=scale)  # type: ignore[no-any-return]


def _laid_out_bias(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return a mask as the GPU's kernel takes it: for every head, its rows beginning at multiples of 8 numbers."""
    bias = _bias(query, mask)
    if bias is None:
        return None
    steps = key.shape[2]
    return F.pad(bias, (0, -steps % 8))[..., :steps].expand(*query.shape[:3], steps)


def _bias(query: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return a mask as numbers to add; true means that a key is seen."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -math.inf)


def _like(made: Tensor, given: Tensor) -> Tensor:
    """Return a gradient laid out as what it is the gradient of."""
    return torch.empty_like(given).copy_(made)


def _save_attention(ctx: Any, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
    query, key, value, mask, *ctx.how = inputs
    ctx.mask_grad = mask is not None and ctx.needs_input_grad[3]
    ctx.save_for_backward(query, key, value, mask, *output)


def _attention_gradients(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    run = torch.ops.placewright.attention_backward
    made = run(grad, *ctx.saved_tensors, *ctx.how, ctx.mask_grad)
    return *made[:3], made[3] if ctx.mask_grad else None, None, None, None


attention.register_autograd(_attention_gradients, setup_context=_save_attention)


# ---- root-mean-square normalisation ------------------------------------------------------------


@torch.library.custom_op("placewright::rms_norm", mutates_args=())
def rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    """Return x over the root of the mean of its squares, times the weight, and the inverse of that root."""
    if x.is_cuda:
        return torch.ops.aten._fused_rms_norm(x, shape, weight, eps)  # type: ignore[no-any-return]
    least = torch.finfo(x.dtype).eps if eps is None else eps
    mean = x.float().square().mean(tuple(range(-len(shape), 0)), keepdim=True)
    return F.rms_norm(x, list(shape), weight, eps), torch.rsqrt(mean + least)


@rms_norm.register_fake
def _(x: Any, shape: Any, weight: Any, eps: Any) -> Any:
    rows = (*x.shape[: x.dim() - len(shape)], *([1] * len(shape)))
    return torch.empty_like(x), x.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("placewright::rms_norm_backward", mutates_args=())
def rms_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], root: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the weight; that of the weight is empty where there is none."""
    if x.is_cuda:
        made = torch.ops.aten._fused_rms_norm_backward(grad, x, shape, root, weight, [True, weight is not None])
        return made[0], made[1] if weight is not None else x.new_empty(0)
    unit = x.float() * root
    scaled = grad.float() if weight is None else grad.float() * weight.float()
    mean = (scaled * unit).mean(tuple(range(-len(shape), 0)), keepdim=True)
    of_x = (root * (scaled - unit * mean)).to(x.dtype)
    if weight is None:
        return _like(of_x, x), x.new_empty(0)
    rows = tuple(range(x.dim() - len(shape)))
    of_weight = grad.float() * unit
    return _like(of_x, x), (of_weight.sum(rows) if rows else of_weight).to(weight.dtype)


@rms_norm_backward.register_fake
def _(grad: Any, x: Any, shape: Any, root: Any, weight: Any) -> Any:
    return torch.empty_like(x), x.new_empty(0) if weight is None else torch.empty_like(weight)


def _save_rms_norm(ctx: Any, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
    x, ctx.shape, weight, _ = inputs
    ctx.save_for_backward(x, output[1], weight)


def _rms_norm_gradients(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    x, root, weight = ctx.saved_tensors
    made = torch.ops.placewright.rms_norm_backward(grad, x, ctx.shape, root, weight)
    return made[0], None, None if weight is None else made[1], None


rms_norm.register_autograd(_rms_norm_gradients, setup_context=_save_rms_norm)


# ---- putting them into an exported graph -------------------------------------------------------


def use_fused(graph: torch.fx.Graph) -> int:
    """Replace, in an exported graph, the calls that a GPU has one kernel for; return how many there were."""
    count = 0
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is torch.ops.aten.scaled_dot_product_attention.default:
            count += _use_attention(graph, node)
        elif node.target is torch.ops.aten.rms_norm.default:
            given = _arguments(node, ("input", "normalized_shape", "weight", "eps"))
            args = (given["input"], list(given["normalized_shape"]), given.get("weight"), given.get("eps"))
            count += _replace(graph, node, torch.ops.placewright.rms_norm.default, args)
    return count


def _use_attention(graph: torch.fx.Graph, node: Node) -> int:
    """Replace one attention that a CPU takes apart: with dropout, or with values of another width than the keys."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = _arguments(node, names)
    heads = [given[name].meta["val"] for name in names[:3]]
    dropout, wide = given.get("dropout_p") or 0.0, heads[1].shape[-1] != heads[2].shape[-1]
    if not (dropout or wide) or given.get("enable_gqa") or any(tensor.dim() != 4 for tensor in heads):
        return 0
    how = (given.get("attn_mask"), dropout, given.get("is_causal", False), given.get("scale"))
    args = (*(given[name] for name in names[:3]), *how)
    return _replace(graph, node, torch.ops.placewright.attention.default, args)


def _arguments(node: Node, names: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a call by name; those in order have the names given."""
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _replace(graph: torch.fx.Graph, node: Node, target: Any, args: tuple[Any, ...]) -> int:
    """Let another operator, which returns several tensors, take the place of a node."""
    with graph.inserting_before(node):
        several = graph.call_function(target, args)
    several.meta = {key: value for key, value in node.meta.items() if key != "val"}
    with graph.inserting_before(node):
        first = graph.call_function(operator.getitem, (several, 0))
    first.meta = dict(node.meta)
    node.replace_all_uses_with(first)
    graph.erase_node(node)
    return 1

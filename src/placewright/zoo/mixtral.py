"""Mixtral (Jiang et al. 2024): a Llama whose feed-forward networks are eight experts, two of which serve a token.

mixtral-8x7b   32 layers, width 4,096, 32 heads on 8, experts of hidden 14,336, vocabulary 32,000; 46,702,792,704
               parameters. Sequences of 4,096 tokens.

What an expert computes must not depend on the data, or no graph could say what a step does. So each expert takes a
fixed number of tokens, its capacity: those that want it most. Tokens beyond it go without that expert (their sum is
short of its part, as in the Switch Transformer, Fedus et al. 2022); places left over take tokens that do not want
it, with weight zero. A capacity of all tokens would compute what Mixtral computes, at four times the work.

Parameters, activations and the optimiser's state are bfloat16; routing weights and loss float32. Optimiser AdamW.
Chosen here: capacity 1.25 times an even share (that of the Switch Transformer), batch 1, no load-balancing loss.

    N tokens of the batch, E width, X experts, C capacity
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from placewright.zoo.layers import Built
from placewright.zoo.llama import Sizes, SwiGLU, decoder


class Experts(nn.Module):
    """A router and its experts; `chosen` serve each token, as far as their capacity allows."""

    def __init__(self, sizes: Sizes, experts: int, chosen: int, capacity_factor: float) -> None:
        super().__init__()
        self.chosen = chosen
        self.share = capacity_factor * chosen / experts  # of all tokens, that an expert has room for
        self.router = nn.Linear(sizes.width, experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(sizes.width, sizes.hidden) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        """The weighted sums of what the experts made of each token, shaped like x."""
        rows = x.flatten(0, -2)
        weights, places = self._route(rows)
        made = [
            expert(rows.index_select(0, place)) for expert, place in zip(self.experts, places.unbind(), strict=True)
        ]
        parts = torch.cat(made) * weights.flatten().unsqueeze(1).to(x.dtype)
        return torch.zeros_like(rows).index_add(0, places.flatten(), parts).view_as(x)

    def _route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Weight and row of every token that each expert takes, both [X, C]."""
        wishes = torch.softmax(self.router(rows).float(), 1)
        best, which = wishes.topk(self.chosen, 1)
        best = best / best.sum(1, keepdim=True)
        weights = torch.zeros_like(wishes).scatter(1, which, best)
        capacity = min(rows.shape[0], math.ceil(rows.shape[0] * self.share))
        taken, places = weights.t().topk(capacity, 1)
        return taken, places


def mixtral(
    batch: int,
    training: bool,
    *,
    sizes: Sizes | None = None,
    experts: int = 8,
    chosen: int = 2,
    capacity_factor: float = 1.25,
    steps: int = 4096,
) -> Built:
    """A decoder with experts; `sizes` are those of Mixtral 8x7B unless given."""
    sizes = sizes or Sizes(4096, 32, 32, 8, 14_336, base=1e6)

    def mixture(sizes: Sizes) -> nn.Module:
        return Experts(sizes, experts, chosen, capacity_factor)

    return decoder(batch, training, steps=steps, sizes=sizes, feed_forward=mixture)

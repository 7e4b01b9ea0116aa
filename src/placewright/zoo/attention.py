"""What the zoo's transformers share: attention in heads, and the block that normalises before each half.

B batch, T tokens, S tokens attended to, E width, H heads, D size of a head (H x D = E)
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def split_heads(x: Tensor, size: int) -> Tensor:
    """Heads of so many values each: [B, T, H x D] as [B, H, T, D]."""
    return x.view(*x.shape[:-1], -1, size).transpose(1, 2)


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """What query [B, H, T, D] finds in key and value [B, H or fewer, S, D], with the heads merged: [B, T, E].

    With fewer heads in key and value, each of theirs serves as many neighbouring heads of the query.
    """
    grouped = key.shape[1] != query.shape[1]
    found = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)
    return found.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Every token attends to all of its sequence; query, key and value are projections of their own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """What the tokens found, [B, T, E]."""
        heads = [split_heads(project(x), self.size) for project in (self.query, self.key, self.value)]
        found: Tensor = self.out(attend(*heads))
        return found


class FeedForward(nn.Sequential):
    """To four times the width, GELU, and back; `approximate` is that of nn.GELU."""

    def __init__(self, width: int, approximate: str = "none") -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU(approximate)
        self.down = nn.Linear(4 * width, width)


class Block(nn.Module):
    """Attention, then a feed-forward network; each reads the normalised sum so far and is added to it."""

    def __init__(self, width: int, attention: nn.Module, feed_forward: nn.Module, eps: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, eps)
        self.attention = attention
        self.feed_norm = nn.LayerNorm(width, eps)
        self.feed_forward = feed_forward

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, [B, T, E]."""
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.feed_forward(self.feed_norm(x))
        return out

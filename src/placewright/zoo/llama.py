"""Llama-like decoders: RMSNorm, rotary places, SwiGLU and, for some, fewer key heads than query heads.

llama-1b    22 layers, width 2,048, 32 heads on 4, hidden 5,632: TinyLlama (Zhang et al. 2024), 1,100,048,384
            parameters; sequences of 2,048 tokens.
llama-7b    32 layers, width 4,096, 32 heads, hidden 11,008: LLaMA (Touvron et al. 2023) and Llama 2 alike,
            6,738,415,616; sequences of 2,048.
llama-70b   80 layers, width 8,192, 64 heads on 8, hidden 28,672: Llama 2 (Touvron et al. 2023), 68,976,648,192;
            sequences of 4,096.

Vocabulary 32,000; the output layer has a weight of its own. Parameters, activations and the optimiser's state are
bfloat16, the loss float32. Optimiser AdamW, as in the papers. Chosen here: batch 1, one sequence, the smallest step
that training has; no copy of the parameters in float32.

    B batch, T tokens, E width, H heads, D size of a head, V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from placewright.zoo.attention import attend, split_heads
from placewright.zoo.layers import Built, CrossEntropy, tokens

Table = tuple[Tensor, Tensor]
"""Cosine and sine of every place's angles, each [T, D]."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder."""

    width: int
    layers: int
    heads: int
    key_heads: int
    hidden: int
    """Of the feed-forward network."""
    vocabulary: int = 32_000
    base: float = 10_000.0
    """Of the rotary angles."""
    eps: float = 1e-5


def rotary_table(steps: int, size: int, base: float, like: Tensor) -> Table:
    """The angles that places 0 to `steps` turn heads of `size` by, as `like` is in type and device."""
    pairs = torch.arange(0, size, 2, dtype=torch.float32, device=like.device)
    places = torch.arange(steps, dtype=torch.float32, device=like.device)
    angles = torch.outer(places, base ** (-pairs / size)).repeat(1, 2)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, table: Table) -> Tensor:
    """Heads [B, H, T, D] turned by their places; value k and value k + D / 2 are a pair."""
    cosine, sine = table
    left, right = x.chunk(2, -1)
    return x * cosine + torch.cat([-right, left], -1) * sine


class Attention(nn.Module):
    """Every token attends to itself and those before it, by rotated queries and keys."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.size = sizes.width // sizes.heads
        keys = sizes.key_heads * self.size
        self.query = nn.Linear(sizes.width, sizes.width, bias=False)
        self.key = nn.Linear(sizes.width, keys, bias=False)
        self.value = nn.Linear(sizes.width, keys, bias=False)
        self.out = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, x: Tensor, table: Table) -> Tensor:
        """What the tokens found, [B, T, E]."""
        query, key, value = (split_heads(each(x), self.size) for each in (self.query, self.key, self.value))
        found: Tensor = self.out(attend(rotate(query, table), rotate(key, table), value, causal=True))
        return found


class SwiGLU(nn.Module):
    """A feed-forward network whose hidden values are gated by SiLU (Shazeer 2020)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The network's output, as wide as its input."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Layer(nn.Module):
    """Attention, then a feed-forward network; each reads the normalised sum so far and is added to it."""

    def __init__(self, sizes: Sizes, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(sizes.width, sizes.eps)
        self.attention = Attention(sizes)
        self.feed_norm = nn.RMSNorm(sizes.width, sizes.eps)
        self.feed_forward = feed_forward

    def forward(self, x: Tensor, table: Table) -> Tensor:
        """The layer's output, [B, T, E]."""
        x = x + self.attention(self.attention_norm(x), table)
        out: Tensor = x + self.feed_forward(self.feed_norm(x))
        return out


class Decoder(nn.Module):
    """Embedding, layers, a last normalisation and an output layer; the rotary angles are computed once per pass."""

    def __init__(self, sizes: Sizes, feed_forward: Callable[[Sizes], nn.Module]) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes, feed_forward(sizes)) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, sizes.eps)
        self.output = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.loss = CrossEntropy()

    def forward(self, words: Tensor, targets: Tensor | None = None) -> Tensor:
        """The loss over words [B, T] and those that follow, or the logits [B, T, V] where there are none."""
        sizes = self.sizes
        x = self.embedding(words)
        table = rotary_table(words.shape[1], sizes.width // sizes.heads, sizes.base, x)
        for layer in self.layers:
            x = layer(x, table)
        result: Tensor = self.loss(self.output(self.norm(x)), targets)
        return result


def decoder(
    batch: int, training: bool, *, steps: int, sizes: Sizes, feed_forward: Callable[[Sizes], nn.Module]
) -> Built:
    """A decoder and its words, with the next words as targets for training."""
    words = tuple(tokens(sizes.vocabulary, batch, steps) for _ in range(1 + training))
    return Decoder(sizes, feed_forward), words


def llama(
    batch: int, training: bool, *, width: int, layers: int, heads: int, key_heads: int, hidden: int, steps: int = 2048
) -> Built:
    """A Llama of these sizes."""
    sizes = Sizes(width, layers, heads, key_heads, hidden)
    return decoder(batch, training, steps=steps, sizes=sizes, feed_forward=lambda s: SwiGLU(s.width, s.hidden))

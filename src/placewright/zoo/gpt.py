"""GPT-2 (Radford et al. 2019): a decoder of 117M to 1.5B parameters, as the paper counts them.

gpt2          12 layers, width 768, 12 heads        124,439,808 parameters
gpt2-medium   24 layers, width 1,024, 16 heads      354,823,168
gpt2-large    36 layers, width 1,280, 20 heads      774,030,080
gpt2-xl       48 layers, width 1,600, 25 heads      1,557,611,200

Sequences of 1,024 tokens, vocabulary 50,257; the embedding's weight is that of the output layer too. Precision
float32. Optimiser AdamW: the first GPT's Adam with decoupled weight decay. Chosen here: batch 4, of the paper's
512, which it does not divide among devices; no dropout.

    B batch, T tokens, E width, V vocabulary
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from placewright.zoo.attention import Block, FeedForward, attend, split_heads
from placewright.zoo.layers import Built, CrossEntropy, tokens

EPS = 1e-5


class CausalAttention(nn.Module):
    """Every token attends to itself and those before it; query, key and value are one projection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """What the tokens found, [B, T, E]."""
        query, key, value = (split_heads(part, self.size) for part in self.project(x).chunk(3, -1))
        found: Tensor = self.out(attend(query, key, value, causal=True))
        return found


class GPT2(nn.Module):
    """Words and places embedded, the layers, a last normalisation, and the embedding once more as output layer."""

    def __init__(self, width: int, layers: int, heads: int, *, steps: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(nn.init.normal_(torch.empty(steps, width), std=0.02))
        self.layers = nn.ModuleList(
            Block(width, CausalAttention(width, heads), FeedForward(width, "tanh"), EPS) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width, EPS)
        self.loss = CrossEntropy()

    def forward(self, words: Tensor, targets: Tensor | None = None) -> Tensor:
        """The loss over words [B, T] and those that follow, or the logits [B, T, V] where there are none."""
        x = self.embedding(words) + self.places[: words.shape[1]]
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.loss(F.linear(self.norm(x), self.embedding.weight), targets)
        return result


def gpt2(
    batch: int,
    training: bool,
    *,
    width: int,
    layers: int,
    heads: int,
    steps: int = 1024,
    vocabulary: int = 50_257,
) -> Built:
    """GPT-2 and its words, with the next words as targets for training."""
    words = tuple(tokens(vocabulary, batch, steps) for _ in range(1 + training))
    return GPT2(width, layers, heads, steps=steps, vocabulary=vocabulary), words

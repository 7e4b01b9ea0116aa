"""BERT-large (Devlin et al. 2019) with both heads of its pre-training: masked words, and the next sentence.

bert-large   24 layers, width 1,024, 16 heads, vocabulary 30,522; 336,226,108 parameters, about the
             340M of the paper.

Sequences of 512 tokens, 77 of which (15 %, as the authors' code rounds it) are masked and to be guessed; only these
go through the output layer, whose weight is that of the embedding. Batch 4: the paper's 256 sequences, divided among
the 64 chips that it trained on. Precision float32. Optimiser AdamW: Adam with decoupled weight decay.

Chosen here: sequences are full, so there is no mask over padding; no dropout.

    B batch, T tokens, M masked tokens, E width, V vocabulary
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from placewright.zoo.attention import FeedForward, SelfAttention
from placewright.zoo.layers import Built, CrossEntropy, tokens

EPS = 1e-12


class Layer(nn.Module):
    """Attention and a feed-forward network; the sum with the input is normalised after each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.attention_norm = nn.LayerNorm(width, EPS)
        self.feed_forward = FeedForward(width)
        self.feed_norm = nn.LayerNorm(width, EPS)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output, [B, T, E]."""
        x = self.attention_norm(x + self.attention(x))
        out: Tensor = self.feed_norm(x + self.feed_forward(x))
        return out


class Embedding(nn.Module):
    """The sum of the embeddings of word, place and segment, normalised."""

    def __init__(self, width: int, steps: int, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.segments = nn.Embedding(2, width)
        self.places = nn.Parameter(nn.init.normal_(torch.empty(steps, width), std=0.02))
        self.norm = nn.LayerNorm(width, EPS)

    def forward(self, words: Tensor, segments: Tensor) -> Tensor:
        """The embedded words, [B, T, E]."""
        out: Tensor = self.norm(self.words(words) + self.segments(segments) + self.places[: words.shape[1]])
        return out


class BERT(nn.Module):
    """Embedding, layers, and the two heads."""

    def __init__(self, width: int, layers: int, heads: int, *, steps: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = Embedding(width, steps, vocabulary)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, EPS))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.following = nn.Linear(width, 2)
        self.loss = CrossEntropy()

    def forward(
        self,
        words: Tensor,
        segments: Tensor,
        masked: Tensor,
        targets: Tensor | None = None,
        follows: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The sum of the heads' losses, or their logits [B, M, V] and [B, 2] where there are no targets.

        `words` and `segments` are [B, T]. `masked` [B, M] are the places to guess, and `targets` [B, M] the words
        there; `follows` [B] says whether the second segment followed the first.
        """
        x = self.layers(self.embedding(words, segments))
        guessed = x.gather(1, masked.unsqueeze(2).expand(-1, -1, x.shape[2]))
        guesses = F.linear(self.transform(guessed), self.embedding.words.weight, self.bias)
        following = self.following(self.pooler(x[:, 0]))
        if targets is None or follows is None:
            return guesses, following
        loss: Tensor = self.loss(guesses, targets) + self.loss(following, follows)
        return loss


def bert(
    batch: int,
    training: bool,
    *,
    width: int = 1024,
    layers: int = 24,
    heads: int = 16,
    steps: int = 512,
    masked: int = 77,
    vocabulary: int = 30_522,
) -> Built:
    """BERT and two segments of words, with what its heads are to find for training."""
    words, segments = tokens(vocabulary, batch, steps), tokens(2, batch, steps)
    places = torch.rand(batch, steps).argsort(1)[:, :masked].sort(1)[0]
    targets = (tokens(vocabulary, batch, masked), tokens(2, batch)) if training else ()
    model = BERT(width, layers, heads, steps=steps, vocabulary=vocabulary)
    return model, (words, segments, places, *targets)

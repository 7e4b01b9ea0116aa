"""ViT-L/16 (Dosovitskiy et al. 2021): a transformer over patches of an image.

vit-large   24 layers, width 1,024, 16 heads; patches of 16x16 from images of 224x224, 1,000 classes;
            304,326,632 parameters, with a single linear layer as head (the paper's, when it fine-tunes).

Precision float32. Optimiser AdamW: the paper pre-trains with Adam and a weight decay of 0.1. Chosen here: batch 32,
of the paper's 4,096, which it does not divide among devices; no dropout.

    B batch, T patches and the class token, E width
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from placewright.zoo.attention import Block, FeedForward, SelfAttention
from placewright.zoo.layers import Built, CrossEntropy, image_batch

EPS = 1e-6


class Embedding(nn.Module):
    """Patches projected, the class token before them, and places added."""

    def __init__(self, width: int, patch: int, patches: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(nn.init.normal_(torch.empty(1, patches + 1, width), std=0.02))

    def forward(self, images: Tensor) -> Tensor:
        """The embedded patches after the class token, [B, T, E]."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(patches.shape[0], -1, -1), patches], 1) + self.places


class ViT(nn.Module):
    """Embedding, layers, a last normalisation, and a classifier of the class token."""

    def __init__(self, width: int, layers: int, heads: int, *, patch: int, patches: int, classes: int) -> None:
        super().__init__()
        self.embedding = Embedding(width, patch, patches)
        self.layers = nn.Sequential(
            *(Block(width, SelfAttention(width, heads), FeedForward(width), EPS) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width, EPS)
        self.classifier = nn.Linear(width, classes)
        self.loss = CrossEntropy()

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """The loss, or the logits where there are no labels."""
        token = self.norm(self.layers(self.embedding(images)))[:, 0]
        result: Tensor = self.loss(self.classifier(token), labels)
        return result


def vit(
    batch: int,
    training: bool,
    *,
    width: int = 1024,
    layers: int = 24,
    heads: int = 16,
    patch: int = 16,
    size: int = 224,
    classes: int = 1000,
) -> Built:
    """A vision transformer and its images, with their classes for training."""
    model = ViT(width, layers, heads, patch=patch, patches=(size // patch) ** 2, classes=classes)
    return model, image_batch(batch, size, classes, training)

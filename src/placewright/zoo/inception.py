"""Inception-v3 (Szegedy et al. 2016): stages of parallel branches over images of 299x299.

inception-v3      batch 32, as ColocRL and Post state.
inception-v3-b1   batch 1: HDP's times for the network are too short for 32, and its batch is not stated.

Precision float32. The paper trains with RMSProp and momentum, which keeps two values per parameter; Adam, which
does so too, stands in for it here. The auxiliary classifier of the paper is left out (`auxiliary=True` adds it,
with 3,326,696 parameters more): batch normalisation cannot train on the single pixel that it leaves at batch 1,
and the two batches should be of one network. Its loss counts 0.4, as PyTorch's own implementation has it.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from placewright.zoo.layers import Built, ConvNorm, CrossEntropy, image_batch

Conv = partial(ConvNorm, eps=1e-3)
Branch = nn.Sequential


class Mixed(nn.Module):
    """Branches over one input, their outputs side by side in the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """The branches' outputs, concatenated."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def grid35(inputs: int, pool: int) -> Mixed:
    """A module at 35x35: 1x1, 5x5, double 3x3 and pooling."""
    return Mixed(
        Conv(inputs, 64),
        Branch(Conv(inputs, 48), Conv(48, 64, 5)),
        Branch(Conv(inputs, 64), Conv(64, 96, 3), Conv(96, 96, 3)),
        Branch(nn.AvgPool2d(3, 1, 1), Conv(inputs, pool)),
    )


def reduce35(inputs: int) -> Mixed:
    """From 35x35 to 17x17."""
    return Mixed(
        Conv(inputs, 384, 3, stride=2, padding=0),
        Branch(Conv(inputs, 64), Conv(64, 96, 3), Conv(96, 96, 3, stride=2, padding=0)),
        nn.MaxPool2d(3, 2),
    )


def grid17(inputs: int, width: int) -> Mixed:
    """A module at 17x17, with 7x7 convolutions taken apart into 1x7 and 7x1."""
    row, column = (1, 7), (7, 1)
    return Mixed(
        Conv(inputs, 192),
        Branch(Conv(inputs, width), Conv(width, width, row), Conv(width, 192, column)),
        Branch(
            Conv(inputs, width),
            Conv(width, width, column),
            Conv(width, width, row),
            Conv(width, width, column),
            Conv(width, 192, row),
        ),
        Branch(nn.AvgPool2d(3, 1, 1), Conv(inputs, 192)),
    )


def reduce17(inputs: int) -> Mixed:
    """From 17x17 to 8x8."""
    seven = Conv(192, 192, (1, 7)), Conv(192, 192, (7, 1))
    return Mixed(
        Branch(Conv(inputs, 192), Conv(192, 320, 3, stride=2, padding=0)),
        Branch(Conv(inputs, 192), *seven, Conv(192, 192, 3, stride=2, padding=0)),
        nn.MaxPool2d(3, 2),
    )


def grid8(inputs: int) -> Mixed:
    """A module at 8x8, two of whose branches fork into 1x3 and 3x1."""

    def fork(channels: int) -> Mixed:
        return Mixed(Conv(channels, 384, (1, 3)), Conv(channels, 384, (3, 1)))

    return Mixed(
        Conv(inputs, 320),
        Branch(Conv(inputs, 384), fork(384)),
        Branch(Conv(inputs, 448), Conv(448, 384, 3), fork(384)),
        Branch(nn.AvgPool2d(3, 1, 1), Conv(inputs, 192)),
    )


class Inception(nn.Module):
    """Inception-v3: the stem, eleven mixed modules and the classifier."""

    def __init__(self, auxiliary: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            Conv(3, 32, 3, stride=2, padding=0),
            Conv(32, 32, 3, padding=0),
            Conv(32, 64, 3),
            nn.MaxPool2d(3, 2),
            Conv(64, 80),
            Conv(80, 192, 3, padding=0),
            nn.MaxPool2d(3, 2),
        )
        self.mixed35 = nn.Sequential(grid35(192, 32), grid35(256, 64), grid35(288, 64), reduce35(288))
        self.mixed17 = nn.Sequential(*(grid17(768, width) for width in (128, 160, 160, 192)))
        self.mixed8 = nn.Sequential(reduce17(768), grid8(1280), grid8(2048))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(2048, 1000)
        self.auxiliary = self._auxiliary() if auxiliary else None
        self.loss = CrossEntropy()

    @staticmethod
    def _auxiliary() -> nn.Sequential:
        pixel = Conv(128, 768, 5, padding=0)
        return nn.Sequential(nn.AvgPool2d(5, 3), Conv(768, 128), pixel, nn.Flatten(), nn.Linear(768, 1000))

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """The loss, or the logits where there are no labels."""
        middle = self.mixed17(self.mixed35(self.stem(images)))
        values = self.pool(self.mixed8(middle)).flatten(1)
        result: Tensor = self.loss(self.classifier(values), labels)
        if self.auxiliary is not None and labels is not None:
            result = result + 0.4 * self.loss(self.auxiliary(middle), labels)
        return result


def inception(batch: int, training: bool, *, auxiliary: bool = False, size: int = 299) -> Built:
    """Inception-v3, with the auxiliary classifier on request."""
    return Inception(auxiliary), image_batch(batch, size, 1000, training)

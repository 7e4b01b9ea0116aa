"""NASNet-A (Zoph et al. 2018): the cells that architecture search found on CIFAR-10, stacked for ImageNet.

nasnet-a-mobile   NASNet-A (4 @ 1056): 3 x 4 normal cells, 44 filters at first, images of 224x224.
nasnet-a-large    NASNet-A (6 @ 4032): 3 x 6 normal cells, 168 filters at first, images of 331x331.

Placeto places "NASNet" without saying which. Batch 32, as for Inception; precision float32.
The paper trains with RMSProp and momentum, which keeps two values per parameter; Adam, which does so too, stands
in for it here. Chosen here: no auxiliary classifier, no path dropping, and padding that is even on both sides.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from placewright.zoo.layers import Built, CrossEntropy, image_batch

EPS = 1e-3


class Separable(nn.Sequential):
    """Twice ReLU, separable convolution and batch normalisation; only the first may have a stride."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        for channels, step in ((inputs, stride), (outputs, 1)):
            self.append(nn.ReLU())
            self.append(nn.Conv2d(channels, channels, kernel, step, kernel // 2, groups=channels, bias=False))
            self.append(nn.Conv2d(channels, outputs, 1, bias=False))
            self.append(nn.BatchNorm2d(outputs, EPS))


class Squeeze(nn.Sequential):
    """ReLU, a 1x1 convolution to the cell's width, and batch normalisation."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.ReLU(), nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs, EPS))


class Halve(nn.Module):
    """Half the resolution: every second pixel, and every second after a shift by one, each to half the channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.odd = nn.Conv2d(inputs, outputs - outputs // 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs, EPS)

    def forward(self, x: Tensor) -> Tensor:
        """The smaller image."""
        x = F.relu(x)
        shifted = F.pad(x[:, :, 1:, 1:], (0, 1, 0, 1))
        halves = self.even(x[:, :, ::2, ::2]), self.odd(shifted[:, :, ::2, ::2])
        out: Tensor = self.norm(torch.cat(halves, 1))
        return out


def fit(before: tuple[int, int], here: tuple[int, int], filters: int) -> nn.Module:
    """What brings the output before the last, of (channels, scale), to the cell's width and resolution."""
    if before[1] != here[1]:
        return Halve(before[0], filters)
    return Squeeze(before[0], filters) if before[0] != filters else nn.Identity()


class Normal(nn.Module):
    """The normal cell: five blocks over the outputs of the last two cells; the resolution stays."""

    def __init__(self, before: tuple[int, int], here: tuple[int, int], filters: int) -> None:
        super().__init__()
        self.fit_before = fit(before, here, filters)
        self.fit_here = Squeeze(here[0], filters)
        self.here5, self.before3 = Separable(filters, filters, 5), Separable(filters, filters, 3)
        self.twice5, self.twice3 = Separable(filters, filters, 5), Separable(filters, filters, 3)
        self.here3 = Separable(filters, filters, 3)
        self.mean = nn.AvgPool2d(3, 1, 1, count_include_pad=False)

    def forward(self, before: Tensor, here: Tensor) -> Tensor:
        """The blocks side by side, with the earlier cell's output before them."""
        p, h = self.fit_before(before), self.fit_here(here)
        blocks = [
            self.here5(h) + self.before3(p),
            self.twice5(p) + self.twice3(p),
            self.mean(h) + p,
            self.mean(p) + self.mean(p),  # two poolings in the searched cell too
            self.here3(h) + h,
        ]
        return torch.cat([p, *blocks], 1)


class Reduction(nn.Module):
    """The reduction cell: five blocks over the outputs of the last two cells; the resolution is halved."""

    def __init__(self, before: tuple[int, int], here: tuple[int, int], filters: int, first: bool) -> None:
        super().__init__()
        self.fit_before = nn.Identity() if first else fit(before, here, filters)
        wide = before[0] if first else filters
        self.fit_here = Squeeze(here[0], filters)
        self.here5, self.before7 = Separable(filters, filters, 5, 2), Separable(wide, filters, 7, 2)
        self.again7, self.before5 = Separable(wide, filters, 7, 2), Separable(wide, filters, 5, 2)
        self.last3 = Separable(filters, filters, 3)
        self.largest = nn.MaxPool2d(3, 2, 1)
        self.halved_mean = nn.AvgPool2d(3, 2, 1, count_include_pad=False)
        self.mean = nn.AvgPool2d(3, 1, 1, count_include_pad=False)

    def forward(self, before: Tensor, here: Tensor) -> Tensor:
        """Four of the blocks side by side; the first is used by others only."""
        p, h = self.fit_before(before), self.fit_here(here)
        first = self.here5(h) + self.before7(p)
        second = self.largest(h) + self.again7(p)
        third = self.halved_mean(h) + self.before5(p)
        fourth = self.mean(first) + second
        fifth = self.last3(first) + self.largest(h)
        return torch.cat([second, third, fourth, fifth], 1)


class NASNet(nn.Module):
    """Stem, two reduction cells, then three stages of normal cells with a reduction cell between two of them.

    `skip` gives the first cell after a reduction the output before the last normal cell, not that cell's.
    """

    def __init__(self, filters: int, repeats: int, stem: int, skip: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, stem, 3, 2, bias=False), nn.BatchNorm2d(stem, EPS))
        self.cells = nn.ModuleList()
        self.keeps: list[bool] = []  # whether the cell's input becomes the earlier output of the next
        before = here = (stem, 0)  # channels, and how often the stem's resolution was halved
        plan = [(filters // 4, True), (filters // 2, True)]
        for stage in range(3):
            plan += [(filters << stage, True)] * (stage > 0) + [(filters << stage, False)] * repeats
        for k, (width, reduces) in enumerate(plan):
            cell = Reduction(before, here, width, k == 0) if reduces else Normal(before, here, width)
            self.cells.append(cell)
            self.keeps.append(not (skip and reduces and k > 1))
            before = here if self.keeps[-1] else before
            here = (width * (4 if reduces else 6), here[1] + reduces)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(here[0], 1000)
        self.loss = CrossEntropy()

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """The loss, or the logits where there are no labels."""
        before = here = self.stem(images)
        for cell, keep in zip(self.cells, self.keeps, strict=True):
            out = cell(before, here)
            before, here = here if keep else before, out
        result: Tensor = self.loss(self.classifier(self.pool(F.relu(here)).flatten(1)), labels)
        return result


def nasnet(
    batch: int, training: bool, *, filters: int, repeats: int, stem: int, skip: bool = False, size: int = 224
) -> Built:
    """NASNet-A whose last cells are 24 times `filters` wide, with `repeats` normal cells per stage."""
    return NASNet(filters, repeats, stem, skip), image_batch(batch, size, 1000, training)

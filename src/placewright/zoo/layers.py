"""What the zoo's networks share: the loss, convolution with batch normalisation, and example inputs.

Every network returns its scalar loss when it is given targets and its output when it is not. Dropout and
stochastic depth are left out of all of them: a step is then a function of its inputs, so a placed network can
be compared with the one it came from, and what is left out takes little of a step's time. Weights start as
PyTorch starts them, which no size or time depends on.

    B batch, C channels, H height, W width, T tokens or steps, V vocabulary
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every reader of PyTorch knows
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Tensor, ...]]
"""A network and the arguments that its forward takes."""


@contextmanager
def default_dtype(dtype: str) -> Iterator[None]:
    """Floating-point parameters and inputs made inside are of this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class CrossEntropy(nn.Module):
    """Mean cross entropy of logits [..., V] against targets [...], in float32; the logits where there is no target."""

    def forward(self, logits: Tensor, targets: Tensor | None) -> Tensor:
        """The loss, or the logits as they came."""
        if targets is None:
            return logits
        if logits.dtype != torch.float32:
            logits = logits.float()
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


class ConvNorm(nn.Sequential):
    """Convolution without bias, batch normalisation and ReLU; `same` padding where none is given."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int] = 1,
        *,
        stride: int = 1,
        padding: int | None = None,
        eps: float = 1e-5,
        relu: bool = True,
    ) -> None:
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        pad = (height // 2, width // 2) if padding is None else (padding, padding)
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, (height, width), stride, pad, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps)
        if relu:
            self.relu = nn.ReLU()


def image_batch(batch: int, size: int, classes: int, training: bool) -> tuple[Tensor, ...]:
    """Images [B, 3, size, size], and for training the class [B] of each."""
    images = torch.randn(batch, 3, size, size)
    return (images, tokens(classes, batch)) if training else (images,)


def tokens(vocabulary: int, *shape: int) -> Tensor:
    """Random whole numbers below `vocabulary`: words or classes."""
    return torch.randint(vocabulary, shape)

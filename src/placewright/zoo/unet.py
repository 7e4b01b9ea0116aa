"""The U-Net of Stable Diffusion 1 (Rombach et al. 2022), which guesses the noise in a latent image.

unet-sd1   Levels of 320, 640, 1,280 and 1,280 channels over latents of 64x64x4 (images of 512x512), two residual
           blocks per level on the way down and three on the way up, self- and cross-attention in 8 heads at the
           three larger levels, text of 77 x 768; 859,520,964 parameters. The loss is the mean squared error of the
           noise.

Batch 4 and AdamW, as the authors' model card states per GPU. Parameters, activations and the optimiser's state are
bfloat16, as is usual today; the loss and the embedding of time float32. Encoder of text, autoencoder and the drawing
of noise are no part of the network. Chosen here: no checkpointing, which the authors use.

    B batch, C channels, H height, W width, T tokens (H x W, or of the text), E width of a transformer
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from placewright.zoo.attention import attend, split_heads
from placewright.zoo.layers import Built

GROUPS = 32


def norm_conv(inputs: int, outputs: int) -> nn.Sequential:
    """Group normalisation, SiLU and a 3x3 convolution."""
    return nn.Sequential(nn.GroupNorm(GROUPS, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))


class Residual(nn.Module):
    """Two convolutions added to the block's input, with the embedding of time between them."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.enter = norm_conv(inputs, outputs)
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, outputs))
        self.leave = norm_conv(outputs, outputs)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """The block's output, [B, C, H, W]."""
        middle = self.enter(x) + self.time(time).unsqueeze(2).unsqueeze(3)
        out: Tensor = self.shortcut(x) + self.leave(middle)
        return out


class CrossAttention(nn.Module):
    """Tokens attend to a source: themselves or the text."""

    def __init__(self, width: int, source: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(source, width, bias=False)
        self.value = nn.Linear(source, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        """What the tokens found, [B, T, E]."""
        projected = self.query(x), self.key(source), self.value(source)
        found: Tensor = self.out(attend(*(split_heads(each, self.size) for each in projected)))
        return found


class GEGLU(nn.Module):
    """A feed-forward network whose hidden values are gated by GELU (Shazeer 2020)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 8 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The network's output, as wide as its input."""
        hidden, gate = self.up(x).chunk(2, -1)
        out: Tensor = self.down(hidden * F.gelu(gate))
        return out


class Transformer(nn.Module):
    """Pixels as tokens: self-attention, attention to the text and a feed-forward network, added to the input."""

    def __init__(self, width: int, text: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width, 1e-6)
        self.enter = nn.Conv2d(width, width, 1)
        self.self_norm, self.self_attention = nn.LayerNorm(width), CrossAttention(width, width, heads)
        self.text_norm, self.text_attention = nn.LayerNorm(width), CrossAttention(width, text, heads)
        self.feed_norm, self.feed_forward = nn.LayerNorm(width), GEGLU(width)
        self.leave = nn.Conv2d(width, width, 1)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """The image with what was found, [B, C, H, W]."""
        x = self.enter(self.norm(image)).flatten(2).transpose(1, 2)
        normed = self.self_norm(x)
        x = x + self.self_attention(normed, normed)
        x = x + self.text_attention(self.text_norm(x), text)
        x = x + self.feed_forward(self.feed_norm(x))
        out: Tensor = image + self.leave(x.transpose(1, 2).view_as(image))
        return out


class Stage(nn.Module):
    """A residual block, a transformer and what changes the resolution: those of them that it is given."""

    def __init__(
        self, residual: nn.Module | None = None, transformer: nn.Module | None = None, resize: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.residual, self.transformer, self.resize = residual, transformer, resize

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """The stage's output, [B, C, H, W]."""
        if self.residual is not None:
            x = self.residual(x, time)
        if self.transformer is not None:
            x = self.transformer(x, text)
        return x if self.resize is None else self.resize(x)


def halve(channels: int) -> nn.Module:
    """Half the resolution, by a convolution."""
    return nn.Conv2d(channels, channels, 3, 2, 1)


def double(channels: int) -> nn.Module:
    """Twice the resolution: every pixel four times, then a convolution."""
    return nn.Sequential(nn.Upsample(scale_factor=2.0), nn.Conv2d(channels, channels, 3, padding=1))


class UNet(nn.Module):
    """The way down, the middle, and the way up, each stage of which also reads one of the way down.

    Level k has `channels` times `multiples[k]` channels; the last level has no transformers.
    """

    def __init__(self, channels: int, multiples: tuple[int, ...], *, latents: int, text: int, heads: int) -> None:
        super().__init__()
        self.channels, time = channels, 4 * channels
        self.time = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        widths = [channels * multiple for multiple in multiples]
        last = len(widths) - 1

        def transformer(level: int) -> nn.Module | None:
            return Transformer(widths[level], text, heads) if level < last else None

        self.enter = nn.Conv2d(latents, channels, 3, padding=1)
        self.down, skips, here = nn.ModuleList(), [channels], channels
        for level, width in enumerate(widths):
            for _ in range(2):
                self.down.append(Stage(Residual(here, width, time), transformer(level)))
                here = width
                skips.append(here)
            if level < last:
                self.down.append(Stage(resize=halve(here)))
                skips.append(here)
        self.middle = nn.ModuleList(
            [Stage(Residual(here, here, time), Transformer(here, text, heads)), Stage(Residual(here, here, time))]
        )
        self.up = nn.ModuleList()
        for level in range(last, -1, -1):
            for k in range(3):
                block, here = Residual(here + skips.pop(), widths[level], time), widths[level]
                self.up.append(Stage(block, transformer(level), double(here) if k == 2 and level else None))
        self.leave = norm_conv(channels, latents)

    def forward(self, noisy: Tensor, times: Tensor, text: Tensor, noise: Tensor | None = None) -> Tensor:
        """The mean squared error of the guessed noise, or the guess [B, C, H, W] where the noise is not given.

        `noisy` [B, C, H, W] are the latents after `times` [B] steps of noise, and `text` [B, T, E] is encoded.
        """
        time = self.time(_waves(times, self.channels).to(noisy.dtype))
        x = self.enter(noisy)
        skips = [x]
        for stage in self.down:
            x = stage(x, time, text)
            skips.append(x)
        for stage in self.middle:
            x = stage(x, time, text)
        for stage in self.up:
            x = stage(torch.cat([x, skips.pop()], 1), time, text)
        guess: Tensor = self.leave(x)
        if noise is None:
            return guess
        return F.mse_loss(guess, noise) if guess.dtype == torch.float32 else F.mse_loss(guess.float(), noise.float())


def _waves(times: Tensor, size: int) -> Tensor:
    """Cosines and sines of times [B], of `size` / 2 frequencies, as [B, size] in float32."""
    rates = torch.arange(size // 2, dtype=torch.float32, device=times.device) * (-math.log(10_000) / (size // 2))
    angles = torch.outer(times.float(), rates.exp())
    return torch.cat([angles.cos(), angles.sin()], 1)


def unet(
    batch: int,
    training: bool,
    *,
    channels: int = 320,
    multiples: tuple[int, ...] = (1, 2, 4, 4),
    size: int = 64,
    text: tuple[int, int] = (77, 768),
    heads: int = 8,
) -> Built:
    """The U-Net with noisy latents, times and `text` of (tokens, width), and the noise for training."""
    latents = 4
    model = UNet(channels, multiples, latents=latents, text=text[1], heads=heads)
    noisy = torch.randn(batch, latents, size, size)
    inputs = noisy, torch.randint(1000, (batch,)), torch.randn(batch, *text)
    return model, (*inputs, torch.randn_like(noisy)) if training else inputs

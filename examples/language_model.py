"""A small language model, as one would write it anyway, and the function that placewright calls.

    placewright capture examples/language_model.py:training --optimizer adamw

The function returns a module and its inputs. It runs on tensors without memory, so sizes may be what they are.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class LanguageModel(nn.Module):
    """Embedding, transformer layers, and a head whose weight is the embedding's."""

    def __init__(self, words: int = 32_000, width: int = 1024, heads: int = 16, layers: int = 12):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, text: torch.Tensor) -> dict[str, torch.Tensor]:
        """Guess every next word."""
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1] - 1)
        x = self.embedding(text[:, :-1])
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        scores = self.head(self.norm(x))
        return {"loss": F.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten()), "scores": scores}


def training():
    """Eight texts of 513 words."""
    return LanguageModel(), torch.zeros(8, 513, dtype=torch.long)

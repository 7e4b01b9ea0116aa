"""The papers' recurrent networks: language models and translation, unrolled step by step in Python.

rnnlm, rnnlm-4    A language model of 2 or 4 LSTM layers of 2,048 units over 40 words, batch 64: Jozefowicz et al.
                  2016 as ColocRL and HDP place it (2 layers), and as Spotlight and Post do (4 layers). The papers
                  state no vocabulary: 10,000 words, that of the Penn Treebank, and an embedding of 2,048.
                  Optimiser: plain SGD, as Zaremba et al. 2014 train such models.
nmt-2, -4, -8     Encoder and decoder with attention, LSTM layers of 1,024 units, at most 40 words on either side,
                  batch 64, vocabulary 32,000: Bahdanau et al. 2015, Wu et al. 2016 as ColocRL, HDP and Spotlight
                  place it. The count is that of LSTM layers in the encoder and again in the decoder. Optimiser:
                  Adam, which Wu et al. begin with.

Precision float32. Every step of every layer is operations of its own, as in the papers' graphs: in an LSTM cell a
matrix multiplication each of input and hidden state for all four gates (as PyTorch has it; TensorFlow multiplies
both at once), then sigmoid, tanh, multiplications and additions. A layer is one module, called once per step, so
that `layers.1` names all its steps. One embedding lookup serves all steps; attention, softmax and loss are per step.

Chosen here for nmt: the encoder reads in one direction; layers from the third on add their input to their output
(Wu et al.); attention is additive (Bahdanau et al.), asked by the top decoder layer; the attended context goes,
beside the word, into the first decoder layer of the next step, and beside the top layer's output through one tanh
layer into the softmax; the decoder starts from the encoder's last states; the decoder reads the target words,
not its own, in inference too. Sentences are of different lengths, padded to 40 words, as the papers' maximum of 40
implies: one that has ended keeps its states, as TensorFlow's unrolled networks do with the lengths of sequences;
padding gets no attention and counts in no loss.

    B batch, T steps, H hidden units, V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from placewright.zoo.layers import Built, tokens

State = tuple[Tensor, Tensor]
"""Hidden and cell state of one layer, each [B, H]."""
PADDING = 0
"""The word that fills sentences up to the longest."""


class LSTMCell(nn.Module):
    """One step of an LSTM layer; the forget gate's bias is raised by 1, as usual."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.input_gates = nn.Linear(inputs, 4 * hidden)
        self.hidden_gates = nn.Linear(hidden, 4 * hidden)

    def forward(self, x: Tensor, state: State | None, alive: Tensor | None = None) -> State:
        """The new state; zeros are the state before the first step. Where `alive` [B, 1] is false it stays."""
        if state is None:
            zeros = x.new_zeros(x.shape[0], self.hidden)
            state = (zeros, zeros)
        hidden, old = state
        enter, forget, new, leave = (self.input_gates(x) + self.hidden_gates(hidden)).chunk(4, 1)
        cell = torch.sigmoid(forget + 1.0) * old + torch.sigmoid(enter) * torch.tanh(new)
        out = torch.sigmoid(leave) * torch.tanh(cell)
        return (out, cell) if alive is None else (torch.where(alive, out, hidden), torch.where(alive, cell, old))


class Stack(nn.Module):
    """Words embedded, and LSTM layers on top of each other: what all these networks have in common."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, *, beside: int = 0, residual: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(LSTMCell(hidden + (beside if k == 0 else 0), hidden) for k in range(layers))
        self.residual = residual

    def forward(self, x: Tensor, states: list[State] | None, alive: Tensor | None = None) -> tuple[Tensor, list[State]]:
        """One step: the top layer's output and the new states."""
        after: list[State] = []
        for k, layer in enumerate(self.layers):
            state: State = layer(x, None if states is None else states[k], alive)
            x = state[0] + x if self.residual and k >= 2 else state[0]
            after.append(state)
        return x, after


class Softmax(nn.Module):
    """Projection to the vocabulary, and the loss of one step where there are targets."""

    def __init__(self, hidden: int, vocabulary: int, padding: int | None) -> None:
        super().__init__()
        self.projection = nn.Linear(hidden, vocabulary)
        self.ignored = -100 if padding is None else padding

    def forward(self, x: Tensor, targets: Tensor | None) -> Tensor:
        """The sum of the step's losses, or its logits."""
        logits: Tensor = self.projection(x)
        if targets is None:
            return logits
        return F.cross_entropy(logits, targets, ignore_index=self.ignored, reduction="sum")


class RNNLM(nn.Module):
    """A language model: embedding, LSTM layers, softmax."""

    def __init__(self, vocabulary: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.stack = Stack(vocabulary, hidden, layers)
        self.softmax = Softmax(hidden, vocabulary, None)

    def forward(self, words: Tensor, targets: Tensor | None = None) -> Tensor:
        """The mean loss over words [B, T] and those that follow, or the logits [B, T, V] where there are none."""
        states: list[State] | None = None
        outputs: list[Tensor] = []
        for step, word in enumerate(self.stack.embedding(words).unbind(1)):
            top, states = self.stack(word, states)
            outputs.append(self.softmax(top, None if targets is None else targets[:, step]))
        return torch.stack(outputs, 1) if targets is None else torch.stack(outputs).sum() / targets.numel()


class Attention(nn.Module):
    """Additive attention over the encoder's outputs."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.keys = nn.Linear(hidden, hidden, bias=False)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.combine = nn.Linear(2 * hidden, hidden, bias=False)

    def forward(self, top: Tensor, keys: Tensor, memory: Tensor, ended: Tensor | None) -> tuple[Tensor, Tensor]:
        """The context [B, H] attended to, and what goes to the softmax.

        `keys` and `memory` [B, T, H] are the encoder's outputs, projected once for all steps and as they are;
        `ended` [B, T, 1] says which of them are padding.
        """
        scores = self.score(torch.tanh(keys + self.query(top).unsqueeze(1)))
        if ended is not None:
            scores = scores.masked_fill(ended, -torch.inf)
        weights = torch.softmax(scores, 1).transpose(1, 2)
        context = torch.bmm(weights, memory).squeeze(1)
        return context, torch.tanh(self.combine(torch.cat([top, context], 1)))


class NMT(nn.Module):
    """Translation: an encoder, a decoder, attention between them, and a softmax over the target's words.

    With a word for `padding`, sentences end before it; without, all are as long as the tensors that hold them.
    """

    def __init__(self, vocabulary: int, hidden: int, layers: int, padding: int | None = None) -> None:
        super().__init__()
        self.padding = padding
        self.encoder = Stack(vocabulary, hidden, layers, residual=True)
        self.decoder = Stack(vocabulary, hidden, layers, beside=hidden, residual=True)
        self.attention = Attention(hidden)
        self.softmax = Softmax(hidden, vocabulary, padding)

    def forward(self, source: Tensor, shifted: Tensor, targets: Tensor | None = None) -> Tensor:
        """The mean loss over the target's words, or the logits [B, T, V] where there are no targets.

        `source` [B, T] is read by the encoder; `shifted` [B, T], the target one step late, by the decoder.
        """
        states: list[State] | None = None
        encoded: list[Tensor] = []
        for word, alive in zip(self.encoder.embedding(source).unbind(1), self._alive(source), strict=True):
            out, states = self.encoder(word, states, alive)
            encoded.append(out)
        memory = torch.stack(encoded, 1)
        keys = self.attention.keys(memory)
        ended = None if self.padding is None else (source == self.padding).unsqueeze(2)
        context = torch.zeros_like(encoded[0])
        outputs: list[Tensor] = []
        steps = zip(self.decoder.embedding(shifted).unbind(1), self._alive(shifted), strict=True)
        for step, (word, alive) in enumerate(steps):
            top, states = self.decoder(torch.cat([word, context], 1), states, alive)
            context, attended = self.attention(top, keys, memory, ended)
            outputs.append(self.softmax(attended, None if targets is None else targets[:, step]))
        if targets is None:
            return torch.stack(outputs, 1)
        words = targets.numel() if self.padding is None else (targets != self.padding).sum()
        return torch.stack(outputs).sum() / words

    def _alive(self, words: Tensor) -> Sequence[Tensor | None]:
        """Return for every step which sentences have not ended, [B, 1]."""
        if self.padding is None:
            return [None] * words.shape[1]
        return (words != self.padding).unsqueeze(2).unbind(1)


def rnnlm(
    batch: int, training: bool, *, layers: int, hidden: int = 2048, steps: int = 40, vocabulary: int = 10_000
) -> Built:
    """A language model and its words, with the next words as targets for training."""
    words = tuple(tokens(vocabulary, batch, steps) for _ in range(1 + training))
    return RNNLM(vocabulary, hidden, layers), words


def nmt(
    batch: int, training: bool, *, layers: int, hidden: int = 1024, steps: int = 40, vocabulary: int = 32_000
) -> Built:
    """A translation model with a source and a shifted target, and the target's words for training.

    Sentences have from half of `steps` to all of them; target and shifted target end together.
    """
    ends = [torch.randint(steps - steps // 2, steps + 1, (batch, 1)) for _ in range(2)]
    places = torch.arange(steps)
    words = tuple(
        torch.where(places < ends[min(k, 1)], torch.randint(1, vocabulary, (batch, steps)), PADDING)
        for k in range(2 + training)
    )
    return NMT(vocabulary, hidden, layers, PADDING), words

"""Networks of searched cells, as ENAS draws them: convolutional cells for CIFAR-10, a recurrent one for PTB.

A forward pass returns the loss; its inputs hold the targets.

    B batch, C channels, H and W height and width of an image, D hidden size, T steps, V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from placewright.zoo.nasnet import Halve, Separable, Squeeze

Choice = tuple[int, str, int, str]
"""A node of a convolutional cell: input, operation, input, operation. Inputs 0 and 1 are those of the cell."""


def _branch(operation: str, channels: int, stride: int) -> nn.Module:
    """Return one operation of a node."""
    if operation.startswith("separable"):
        return Separable(channels, channels, int(operation[-1]), stride)
    if operation == "average":
        return nn.AvgPool2d(3, stride, 1, count_include_pad=False)
    if operation == "max":
        return nn.MaxPool2d(3, stride, 1)
    return nn.Identity() if stride == 1 else Halve(channels, channels)


class ConvCell(nn.Module):
    """A cell of two inputs. Each node adds two branches; the nodes that no other reads are concatenated."""

    def __init__(self, nodes: Sequence[Choice], channels: int, reduction: bool) -> None:
        super().__init__()
        self.inputs = [(a, b) for a, _, b, _ in nodes]
        self.branches = nn.ModuleList(
            _branch(operation, channels, 2 if reduction and source < 2 else 1)
            for a, first, b, second in nodes
            for source, operation in ((a, first), (b, second))
        )
        read = {source for pair in self.inputs for source in pair}
        self.ends = [k + 2 for k in range(len(nodes)) if k + 2 not in read]

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        """Return the concatenation; both inputs have the channels of the cell."""
        made = [before, last]
        for k, (a, b) in enumerate(self.inputs):
            made.append(self.branches[2 * k](made[a]) + self.branches[2 * k + 1](made[b]))
        return torch.cat([made[k] for k in self.ends], 1)


class ConvNet(nn.Module):
    """Three stages of normal cells, with a reduction cell that doubles the channels between two of them."""

    def __init__(self, normal: Sequence[Choice], reduction: Sequence[Choice], per_stage: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.far, self.near, self.cells = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        widths, halvings = [channels, channels], [0, 0]  # of the outputs of the stem (twice) and of each cell
        for k in range(3 * per_stage + 2):
            reduces = k % (per_stage + 1) == per_stage
            channels *= 2 if reduces else 1
            far = Halve if halvings[-2] < halvings[-1] else Squeeze
            self.far.append(far(widths[-2], channels))
            self.near.append(Squeeze(widths[-1], channels))
            cell = ConvCell(reduction if reduces else normal, channels, reduces)
            self.cells.append(cell)
            widths.append(len(cell.ends) * channels)
            halvings.append(halvings[-1] + reduces)
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of (B, 3, H, W) images with (B,) labels."""
        before = last = self.stem(images)
        for far, near, cell in zip(self.far, self.near, self.cells, strict=True):
            before, last = last, cell(far(before), near(last))
        return functional.cross_entropy(self.head(functional.relu(last).mean((2, 3))), labels)


class RecurrentCell(nn.Module):
    """A tree of highway gates. Node 0 sees word and state; node k sees what its parent made.

    A node makes h + c * (f(z) - h) of its input h, where c and z come of one product with its weight. The
    mean of the nodes that no other reads is the new state.
    """

    def __init__(self, parents: Sequence[int], activations: Sequence[str], hidden: int) -> None:
        super().__init__()
        self.parents, self.activations = tuple(parents), tuple(activations)
        self.first = nn.Linear(2 * hidden, 2 * hidden, bias=False)
        self.nodes = nn.ModuleList(nn.Linear(hidden, 2 * hidden, bias=False) for _ in parents)
        self.ends = [k for k in range(len(parents) + 1) if k not in self.parents]

    def forward(self, word: Tensor, state: Tensor) -> Tensor:
        """Return the next (B, D) state of a (B, D) word and a (B, D) state."""
        made = [self._gate(self.first(torch.cat([word, state], 1)), state, self.activations[0])]
        for parent, activation, node in zip(self.parents, self.activations[1:], self.nodes, strict=True):
            made.append(self._gate(node(made[parent]), made[parent], activation))
        return torch.stack([made[k] for k in self.ends]).mean(0)

    def _gate(self, product: Tensor, old: Tensor, activation: str) -> Tensor:
        gate, new = product.chunk(2, 1)
        if activation != "identity":
            new = getattr(torch, activation)(new)
        return old + torch.sigmoid(gate) * (new - old)


class LanguageModel(nn.Module):
    """A recurrent cell unrolled over the words; the embedding's weight is that of the softmax too."""

    def __init__(self, parents: Sequence[int], activations: Sequence[str], hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.cell = RecurrentCell(parents, activations, hidden)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, words: Tensor, targets: Tensor, state: Tensor) -> Tensor:
        """Return the loss of (B, T) words and targets, from a (B, D) state."""
        embedded = self.embedding(words)
        states = []
        for t in range(words.shape[1]):
            state = self.cell(embedded[:, t], state)
            states.append(state)
        outputs = torch.stack(states, 1).flatten(0, 1)
        logits = functional.linear(outputs, self.embedding.weight, self.bias)
        return functional.cross_entropy(logits, targets.flatten())

"""The three families of the Placeto paper (Addanki et al. 2019): random architectures, captured as training steps.

placeto-cifar10   convolutional networks of cells that the micro search of ENAS (Pham et al. 2018) draws from
placeto-ptb       language models whose recurrent cell the macro search of ENAS draws from
placeto-nmt       translation models that differ in unrolled lengths and batch

The paper gives the families, 32 graphs in each, and a random split; docs/families.md says what is ours: the
sizes below, SGD, and that cells are drawn uniformly (of those that read both of their inputs) rather than by a
trained controller. Precision float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.graph import OpGraph
from placewright.zoo.draws import pick, whole

if TYPE_CHECKING:
    from torch import Tensor, nn

    from placewright.zoo.cells import Choice

CELL_OPERATIONS = ("identity", "separable3", "separable5", "average", "max")
ACTIVATIONS = ("tanh", "relu", "identity", "sigmoid")


@dataclass(frozen=True)
class Cifar10:
    """A network for CIFAR-10; nodes of its cells are (input, operation, input, operation)."""

    normal: tuple[Choice, ...]
    reduction: tuple[Choice, ...]
    per_stage: int = 2
    channels: int = 36
    batch: int = 128

    def build(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the network and its images and labels."""
        import torch

        from placewright.zoo.cells import ConvNet

        images, labels = torch.randn(self.batch, 3, 32, 32), torch.randint(10, (self.batch,))
        return ConvNet(self.normal, self.reduction, self.per_stage, self.channels), (images, labels)


@dataclass(frozen=True)
class Ptb:
    """A language model for the Penn Treebank; `parents[k]` is the node that node k + 1 reads."""

    parents: tuple[int, ...]
    activations: tuple[str, ...]
    hidden: int = 1000
    vocabulary: int = 10_000
    steps: int = 10
    batch: int = 64

    def build(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the model, its words, their successors and the state that it starts from."""
        import torch

        from placewright.zoo.cells import LanguageModel

        model = LanguageModel(self.parents, self.activations, self.hidden, self.vocabulary)
        words, targets = (torch.randint(self.vocabulary, (self.batch, self.steps)) for _ in range(2))
        return model, (words, targets, torch.zeros(self.batch, self.hidden))


@dataclass(frozen=True)
class Nmt:
    """A translation model, with the words of a source and of a target sentence."""

    source_steps: int
    target_steps: int
    batch: int
    layers: int = 2
    hidden: int = 512
    vocabulary: int = 8000

    def build(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the model, the source, the target one step late, and the target."""
        import torch

        from placewright.zoo.recurrent import NMT

        lengths = (self.source_steps, self.target_steps, self.target_steps)
        words = tuple(torch.randint(self.vocabulary, (self.batch, steps)) for steps in lengths)
        return NMT(self.vocabulary, self.hidden, self.layers), words


Network = Cifar10 | Ptb | Nmt


def draw(family: str, rng: np.random.Generator) -> Network:
    """Return a random network of the family."""
    if family == "placeto-cifar10":
        return Cifar10(_cell(rng), _cell(rng))
    if family == "placeto-ptb":
        activations = tuple(pick(rng, ACTIVATIONS) for _ in range(12))
        return Ptb(tuple(whole(rng, 0, k) for k in range(11)), activations)
    return Nmt(whole(rng, 4, 16), whole(rng, 4, 16), 8 * whole(rng, 2, 16))


def step(network: Network, name: str) -> OpGraph:
    """Return the training step of a network, without making its parameters."""
    from placewright.capture import capture, fake_tensors

    with fake_tensors():
        model, inputs = network.build()
    return capture(model, inputs, optimizer="sgd", name=name)


def _cell(rng: np.random.Generator) -> tuple[Choice, ...]:
    """Return five nodes; node k reads from the cell's two inputs and the k nodes before it.

    Cells that never read one of their inputs are drawn again: whole cells before them would have no gradient.
    """
    while True:
        nodes = []
        for k in range(5):
            first = (whole(rng, 0, k + 1), pick(rng, CELL_OPERATIONS))
            nodes.append((*first, whole(rng, 0, k + 1), pick(rng, CELL_OPERATIONS)))
        if {0, 1} <= {source for a, _, b, _ in nodes for source in (a, b)}:
            return tuple(nodes)

"""The zoo: the networks of the papers and of today, and families of graphs.

    from placewright import zoo

    graph = zoo.load("nmt-4")                               # the whole training step, as an operation graph
    graph = zoo.load("llama-7b", training=False)            # an inference pass
    graph = zoo.load("layered/3")                           # member 3 of a family
    model, inputs = zoo.build("resnet-50", batch=8)         # the module and inputs for it, in PyTorch

`names` lists the networks and `network` says what one is; `placewright.zoo.families` has the families. docs/zoo.md
describes them all. Importing this imports no numerical library; building a network does.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from placewright.errors import InputError, UnknownNameError
from placewright.zoo.networks import Network, names, network

if TYPE_CHECKING:
    from placewright.graph import OpGraph
    from placewright.zoo.layers import Built

__all__ = ["Network", "build", "load", "names", "network"]

_DIGITS = 10
"""Of the number of a member."""


def build(name: str, *, batch: int | None = None, training: bool = True) -> Built:
    """The module of a network and its inputs, with targets for training; random, in the network's precision.

    Its forward returns the loss where the inputs hold targets, and else its output. `batch` is the network's own
    unless given. The tensors are real; within `placewright.capture.fake.fake_tensors()` they take no memory.
    """
    found = network(name)
    samples = found.batch if batch is None else _positive(batch)
    from placewright.zoo.layers import default_dtype

    with default_dtype(found.dtype):
        return found.build(samples, training)


def load(
    name: str,
    *,
    training: bool = True,
    batch: int | None = None,
    optimizer: str | None = None,
    update_order: str = "early",
) -> OpGraph:
    """The operation graph of a network's training step, or of an inference pass; nothing is allocated for it.

    `batch` and `optimizer` are the network's own unless given. `update_order` says whether an update follows its
    gradient (`early`) or all updates come last (`end`). A member of a family, `layered/3`, is one graph: it takes
    none of these.
    """
    if "/" in name:
        if not training or batch is not None or optimizer is not None or update_order != "early":
            raise InputError(f"{name!r} is a member of a family, one graph that takes no options; give its name alone")
        return _member(name)
    found = network(name)
    if not training and optimizer is not None:
        raise InputError(f"optimizer is {optimizer!r}, but an inference pass updates nothing; leave it out")
    from placewright.capture import capture
    from placewright.capture.fake import fake_tensors

    with fake_tensors():
        model, inputs = build(name, batch=batch, training=training)
    return capture(
        model,
        inputs,
        optimizer=(optimizer or found.optimizer) if training else None,
        update_order=update_order,
        name=name,
    )


def _member(name: str) -> OpGraph:
    """Return the graph of `FAMILY/NUMBER`."""
    from placewright.zoo import families

    family, _, number = name.rpartition("/")
    if family not in families.names():
        raise UnknownNameError("family", family, families.names())
    if not (number.isascii() and number.isdigit() and len(number) <= _DIGITS):
        raise InputError(
            f"the member of family {family!r} is {number[:40]!r}; a whole number is expected, as in {family}/3"
        )
    return families.graph(family, int(number))


def _positive(batch: int) -> int:
    """Return a batch that a network can have."""
    try:
        samples = operator.index(batch)
    except TypeError:
        raise InputError(f"batch is {batch!r}; a whole number is expected") from None
    if samples < 1:
        raise InputError(f"batch is {samples}; 1 or more is allowed")
    return samples

"""What a model returns: every tensor of it is an output, in whatever it lies; or it is refused."""

import functools
from collections import UserDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from placewright.capture import capture
from placewright.errors import CaptureError

Pair = namedtuple("Pair", "left right")


@dataclass
class Out:
    logits: object
    hidden: object = None


@dataclass(slots=True)
class Slots:
    logits: object
    hidden: object = None


class Plain:
    """An object of no special kind, which knows itself."""

    def __init__(self, logits, hidden):
        self.logits, self.hidden, self.me, self.kind = logits, hidden, self, Out


class Net(nn.Module):
    """Two layers, and what a case makes of what they return."""

    def __init__(self, do):
        super().__init__()
        self.a, self.b, self.do = nn.Linear(4, 4), nn.Linear(4, 4), do

    def forward(self, x):
        return self.do(self.a(x), torch.tanh(self.b(x)))


def outputs(graph):
    """The operations whose tensors live to the end of the step."""
    return [graph.op_names[graph.tensor_op[t]] for t in range(graph.n_tensors) if graph.tensor_output[t]]


@pytest.mark.parametrize(
    "do",
    [
        lambda a, b: (a, b),
        lambda a, b: Out(a, [b]),
        lambda a, b: (a, Out(b, [])),
        lambda a, b: Slots(a, {"all": Out(None, (b,))}),
        lambda a, b: Plain(a, [None, {"b": b}]),
        lambda a, b: (a, [SimpleNamespace(b=b, more="text")]),
        lambda a, b: UserDict(a=a, b=Pair(b, 3)),
        lambda a, b: (a, b, int, len, torch.float32, lambda x: x),
    ],
)  # fmt: skip
@pytest.mark.parametrize("optimizer", [None, "sgd"])
def test_tensors_are_found_in_objects(do, optimizer):
    graph = capture(Net(do), torch.zeros(2, 4), optimizer=optimizer)
    assert outputs(graph) == ["a.addmm", "tanh"]
    assert graph.kinds.count("addmm") == 2


def test_the_other_outputs_of_a_loss_are_found_in_objects():
    net = Net(lambda a, b: SimpleNamespace(loss=(a * b).sum(), more=[Out(b)]))
    assert outputs(capture(net, torch.zeros(2, 4), optimizer="sgd")) == ["tanh", "sum"]


@pytest.mark.parametrize(
    ("do", "kind"),
    [
        (lambda a, b: (a, {b}), "set"),
        (lambda a, b: (a, (x for x in (b,))), "generator"),
        (lambda a, b: Out(a, zip([b], [b], strict=True)), "zip"),
        (lambda a, b: (a, lambda x: x + b), "function"),
        (lambda a, b: (a, functools.partial(torch.add, b)), "partial"),
        (lambda a, b: (a, nn.ParameterList([nn.Parameter(b)])), "ParameterList"),
    ],
)  # fmt: skip
def test_what_holds_tensors_and_cannot_be_taken_apart_is_refused(do, kind):
    """The type is named, and what to return instead."""
    words = rf"returns a {kind}, of which capture cannot take the tensors apart; return them in a tuple"
    with pytest.raises(CaptureError, match=words):
        capture(Net(do), torch.zeros(2, 4))

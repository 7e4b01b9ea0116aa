"""Capture: playing a graph gives the numbers of eager execution, in every order that its edges allow."""

import copy

import pytest
import torch

from placewright.capture import capture_step
from tests.models import cases
from tests.replay import OPTIMIZERS, Replay, eager_step

CASES = cases()
CAPTURED = {}


def captured(name, optimizer="adamw", update_order="early"):
    """The captured step of a case, captured once."""
    key = name, optimizer, update_order
    if key not in CAPTURED:
        case = CASES[name]
        CAPTURED[key] = capture_step(
            case.model, case.args, case.kwargs, optimizer=optimizer, loss=case.loss, update_order=update_order
        )
    return CAPTURED[key]


def leaves(found, case):
    """The real tensors of a case by the names that capture gave to its inputs."""
    given = [t for t in torch.utils._pytree.tree_leaves((case.args, case.kwargs)) if isinstance(t, torch.Tensor)]
    names = [name for _, role, name in found.traced.inputs if role == "input"]
    return dict(zip(names, given, strict=True))


def same(found, expected, exact):
    """Whether two tensors are equal, to the last bit or nearly."""
    if exact:
        return torch.equal(found, expected)
    return torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


def optimizer_for(name):
    """AdamW, whose first step is nearly the sign of a gradient; so SGD where gradients have rounding errors."""
    return "adamw" if CASES[name].exact else "sgd"


def compare(name, optimizer, update_order, seed):
    """Play a case in one order and compare loss, gradients, parameters and buffers with eager execution."""
    case = CASES[name]
    found = captured(name, optimizer, update_order)
    eager, played = copy.deepcopy(case.model), copy.deepcopy(case.model)
    torch.manual_seed(3)
    loss, grads = eager_step(eager, copy.deepcopy(case.args), case.kwargs, optimizer, case.loss or (lambda out: out))
    torch.manual_seed(3)
    outputs, gradients = Replay(found, played, leaves(found, case)).run(seed)
    assert same(outputs[0], loss, case.exact)
    assert gradients.keys() == {found.held[parameter] for parameter in grads}
    for parameter, gradient in grads.items():
        assert same(gradients[found.held[parameter]], gradient, case.exact), parameter
    for key, value in eager.state_dict().items():
        assert same(played.state_dict()[key], value, case.exact), key


@pytest.mark.parametrize("name", CASES)
def test_program_order_is_eager_execution(name):
    """Loss, gradients, updated parameters and buffers are those of torch, exactly where the same kernels run."""
    compare(name, optimizer_for(name), "early", None)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.random])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_order_that_the_edges_allow_is_eager_execution(name, seed):
    """Reads, order-only edges, versions and lifetimes are complete: any order gives the same numbers."""
    compare(name, optimizer_for(name), "early", seed)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("update_order", ["early", "end"])
def test_every_optimizer_is_that_of_torch(optimizer, update_order):
    """Updates have what torch's own need, in either place of program order."""
    for seed in (None, 0):
        compare("unrolled", optimizer, update_order, seed)

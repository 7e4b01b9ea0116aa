"""What capture cannot take, and what it says then: the place in the model, and what to do."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from placewright.capture import capture
from placewright.capture.exported import read_exported
from placewright.errors import CaptureError, InputError, UnknownNameError

X = torch.zeros(2, 4)


class Net(nn.Module):
    """A linear layer, and whatever a case does with its input and output."""

    def __init__(self, do=lambda net, x: net.a(x)):
        super().__init__()
        self.a, self.do = nn.Linear(4, 4), do

    def forward(self, x):
        return self.do(self, x)


def branch(net, x):
    return net.a(x) if x.sum() > 0 else x  # the branch


def loop(net, x):
    while x.norm() > 1:  # the loop
        x = net.a(x)
    return x


def choose(net, x):
    return net.a(x[x[:, 0] > 0])  # the choice


def count(net, x):
    return net.a(x) * x.max().item()  # the number


def numpy(net, x):
    return net.a(x) + torch.from_numpy(x.numpy())  # the array


def wrong(net, x):
    raise ValueError("left is right")


def elsewhere(net, x):
    return net.a(x) + torch.zeros(4, device="cuda")  # the device


DATA = "depends on the values of tensors"


@pytest.mark.parametrize(
    ("do", "code", "words"),
    [
        (branch, "# the branch", DATA),
        (loop, "# the loop", DATA),
        (choose, "# the choice", DATA),
        (count, "# the number", DATA),
        (numpy, "# the array", "the model raises RuntimeError"),
        (wrong, "raise ValueError", "the model raises ValueError: left is right, run on tensors of the sizes given"),
        (elsewhere, "# the device", "device"),
    ],
)
@pytest.mark.parametrize("optimizer", [None, "sgd"])
def test_the_line_at_fault_is_named(do, code, words, optimizer, capfd):
    """File, line and code of the model; nothing else is printed."""
    with pytest.raises(CaptureError) as caught:
        capture(Net(do), X, optimizer=optimizer)
    assert re.match(rf"{re.escape(__file__)}:\d+, in {do.__name__}: `", str(caught.value))
    assert code in caught.value.line
    assert words in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_module_is_named_where_no_line_is_at_fault():
    """A model of torch's own modules has no lines; the path of the module is said, and the sizes given."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(7, 3)))
    with pytest.raises(CaptureError, match=r"^in module '1\.1' \(Linear\): the model raises .*\[2, 4\] float32"):
        capture(net, X)


def sparse(module):
    """The gradient of an embedding as a sparse tensor."""
    return nn.Embedding(9, 4, sparse=True) if module is None else module


@pytest.mark.parametrize(
    ("model", "args", "options", "words"),
    [
        (lambda x: x, X, {}, "model is a function; a torch.nn.Module is expected"),
        (nn.DataParallel(nn.Linear(4, 4)), X, {}, "wrapped for several devices by DataParallel; capture model.module"),
        (Net(), (), {}, "the inputs do not fit Net.forward"),
        (Net(), (X, X), {}, "the inputs do not fit Net.forward"),
        (Net(), {"x": X}, {}, "must be Tensor, not dict"),
        (Net(), np.zeros((2, 4)), {}, "must be Tensor, not numpy.ndarray"),
        (Net(), X.to_sparse(), {}, "input 'x' is not a plain dense tensor (torch.sparse_coo, torch.float32)"),
        (Net(), torch.zeros(2, 5), {}, "[2, 5] float32"),
        (Net(lambda net, x: None), X, {}, "the model returns nothing"),
        (Net(lambda net, x: "text"), X, {}, "the model returns a str in which there is no tensor"),
        (nn.LazyLinear(4), X, {}, "parameter 'weight' has no shape yet"),
        (nn.ReLU(), X, {"optimizer": "sgd"}, "no parameter asks for a gradient"),
        (Net(), X, {"optimizer": "sgd", "loss": lambda out: out}, "returns a tensor of shape (2, 4)"),
        (Net(), X, {"optimizer": "sgd", "loss": lambda out: 3.0}, "returns 3.0; it must return one floating-point"),
        (Net(), X, {"optimizer": "sgd", "loss": lambda out: out.detach().sum()}, "no gradient reaches a.weight"),
        (sparse(None), torch.tensor([3]), {"optimizer": "sgd", "loss": torch.sum}, "layout sparse_coo"),
    ],
)  # fmt: skip
def test_a_reason_is_given(model, args, options, words):
    with pytest.raises(CaptureError) as caught:
        capture(model, args, **options)
    assert words in str(caught.value)


def test_names_that_nothing_has():
    """Optimisers and update orders are listed."""
    with pytest.raises(UnknownNameError, match=r"Did you mean adam or adamw\? Known: sgd, momentum, adam"):
        capture(Net(), X, optimizer="adamW")
    with pytest.raises(UnknownNameError, match="early, end"):
        capture(Net(), X, optimizer="adam", update_order="late")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": ["adam"]}, "optimizer is ['adam'], a list; give a name, sgd, momentum"),
        ({"optimizer": torch.optim.Adam}, "optimizer is Adam, a type; give a name, sgd, momentum"),
        ({"optimizer": "sgd", "update_order": ["end"]}, "update_order is ['end'], a list; give a name, early or end"),
        ({"optimizer": "sgd", "loss": "mse"}, "loss is 'mse', a str; give a function that makes one number"),
        ({"loss": torch.sum}, "loss is sum, a builtin_function_or_method, but an inference pass has none; leave it"),
        ({"update_order": "end"}, "update_order is 'end', but an inference pass has no updates; leave it out"),
        ({"kwargs": [1]}, "kwargs is [1], a list; give a dict of inputs by name"),
        ({"kwargs": {1: X}}, "kwargs has the key 1, an int; give inputs by the names"),
    ],
)
def test_arguments_are_looked_at_before_the_model_runs(options, words):
    """The argument, what it is, what is allowed and what to do."""
    with pytest.raises(InputError) as caught:
        capture(Net(wrong), X, **options)
    assert words in str(caught.value)


def test_a_saved_program_is_asked_for_updates_by_the_same_rules(tmp_path):
    """Before the file is opened, which is not there."""
    for options, words in (({"update_order": "end"}, "no updates"), ({"optimizer": 3}, "give a name")):
        with pytest.raises(InputError, match=words):
            read_exported(tmp_path / "net.pt2", **options)


def test_a_loss_is_one_number():
    """Of shape (1, 1) it is the score of a batch of one; (1,) is taken, as torch does."""
    with pytest.raises(CaptureError, match=r"the loss function .* returns a tensor of shape \(1, 1\)"):
        capture(nn.Linear(4, 1), X[:1], optimizer="sgd", loss=lambda out: out)
    assert capture(nn.Linear(4, 1), X[:1], optimizer="sgd", loss=lambda out: out[0]).kinds.count("sgd") == 2
    with pytest.raises(CaptureError, match="type int64"):
        capture(nn.Linear(4, 1), X, optimizer="sgd", loss=lambda out: out.argmax())


def test_parameters_without_a_gradient_are_listed():
    """A branch that the loss does not use; frozen, it is taken."""
    net = nn.ModuleDict({"used": nn.Linear(4, 1), "unused": nn.Linear(4, 4)})
    net.forward = lambda x: net["used"](x).sum()
    with pytest.raises(CaptureError, match=r"no gradient reaches unused\.weight, unused\.bias") as caught:
        capture(net, X, optimizer="sgd")
    assert caught.value.parameters == ("unused.weight", "unused.bias")
    net["unused"].requires_grad_(False)
    assert capture(net, X, optimizer="sgd").kinds.count("sgd") == 2


def test_parameters_that_are_no_tensors():
    net = Net()
    net._parameters["scale"] = 3.0
    with pytest.raises(CaptureError, match="parameter 'scale' is a float, not a tensor") as caught:
        capture(net, X)
    assert caught.value.parameters == ("scale",)


def test_parameters_that_overlap_are_refused():
    """A whole tensor and half of it; those beside each other in one storage are two parameters, and those of one
    place are one, in another shape too."""
    net, whole = Net(lambda net, x: net.a(x @ net.left[:4] @ net.right.reshape(4, 4))), torch.zeros(8, 4)
    net.left, net.right = nn.Parameter(whole), nn.Parameter(whole[4:])
    with pytest.raises(CaptureError, match="'left' and 'right' are parts of one storage"):
        capture(net, X)
    net.left = nn.Parameter(whole[:4])
    graph = capture(net, X, optimizer="sgd", loss=torch.sum)
    assert graph.kinds.count("sgd") == 4
    assert graph.persistent_bytes == 4 * (16 + 4 + 16 + 16)
    net.right = nn.Parameter(whole[:4].view(2, 8))
    assert capture(net, X).persistent_bytes == 4 * (16 + 4 + 16)


def test_two_parameters_of_the_same_elements_are_not_trained():
    """Each would have an update of its own; one parameter under two names, or one that is frozen, has one."""
    net = Net(lambda net, x: torch.tanh(net.a(x) @ net.left)[:, :2] @ net.right)
    net.left = nn.Parameter(torch.ones(4, 4))
    net.right = nn.Parameter(net.left.detach().view(2, 8))
    with pytest.raises(CaptureError, match="'left' and 'right' are two parameters that look at the same") as caught:
        capture(net, X, optimizer="sgd", loss=torch.sum)
    assert caught.value.parameters == ("left", "right")
    net.right.requires_grad_(False)
    assert capture(net, X, optimizer="sgd", loss=torch.sum).kinds.count("sgd") == 3
    net.do, net.right = (lambda net, x: net.a(x) @ net.left @ net.right), net.left
    graph = capture(net, X, optimizer="sgd", loss=torch.sum)
    assert graph.kinds.count("sgd") == 3
    update = graph.op("left.update")
    read = graph.in_tensor[graph.in_start[update] : graph.in_start[update + 1]]
    assert [graph.kinds[graph.tensor_op[t]] for t in read] == ["parameter", "add"]  # the sum of both gradients


@pytest.mark.parametrize(
    ("do", "words"),
    [
        (lambda net, x: torch.cond(x.sum() > 0, net.a, torch.sin, (x,)), DATA),
        (lambda net, x: torch._higher_order_ops.map(torch.sin, net.a(x)), "Write it as a loop in Python"),
        (lambda net, x: torch._higher_order_ops.scan(lambda c, y: (c + y, c * y), x[0], net.a(x)), "a loop in Python"),
        (lambda net, x: flex_attention(*[net.a(x).view(1, 1, 2, 4)] * 3), "scaled_dot_product_attention"),
    ],
    ids=["cond", "map", "scan", "flex-attention"],
)
def test_operators_that_hold_operations(do, words):
    """Values decide in branches alone; for the others, what to use instead is said."""
    with pytest.raises(CaptureError, match="the operator ") as caught:
        capture(Net(do), X)
    assert words in str(caught.value)
    assert (DATA in str(caught.value)) == (words == DATA)
    assert ("is not read" in str(caught.value)) != (words == DATA)


def test_a_refused_model_is_as_it_was():
    """Its own parameters, in its own mode."""
    net = Net(branch)
    kept = [id(p) for p in net.parameters()]
    with pytest.raises(CaptureError):
        capture(net, X)
    assert [id(p) for p in net.parameters()] == kept
    assert net.training
    assert all(p.requires_grad for p in net.parameters())

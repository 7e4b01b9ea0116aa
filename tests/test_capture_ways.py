"""The ways of capture: what each gives is eager execution, and what a way stumbled over is told."""

import copy
import glob
import os
import sys
import tempfile
import warnings

import pytest
import torch
from torch import nn

from placewright.capture import CaptureWarning, capture, capture_step, draft
from tests.models import cases
from tests.test_capture import CAPTURED, compare, optimizer_for

CASES = cases()
TRACE = sys.modules["placewright.capture.trace"]  # the package has a function of that name


def refused(*_):
    """Stands for a way that cannot take a model."""
    raise RuntimeError("not this one")


@pytest.mark.parametrize("name", CASES)
def test_make_fx_is_eager_execution(name, monkeypatch):
    """Loss, gradients, updated parameters and buffers of the third way are those of torch."""
    monkeypatch.setattr(TRACE, "_exported", refused)
    case, optimizer = CASES[name], optimizer_for(name)
    found = capture_step(case.model, case.args, case.kwargs, optimizer=optimizer, loss=case.loss)
    assert found.method == "make_fx"
    monkeypatch.setitem(CAPTURED, (name, optimizer, "early"), found)
    compare(name, optimizer, "early", None)


def test_make_fx_has_no_gradient_of_the_loss_twice(monkeypatch):
    """The one that the backward pass begins with is traced there, and not drafted beside it."""
    case = CASES["mlp"]
    usual = capture(case.model, case.args, optimizer="sgd", loss=case.loss)
    monkeypatch.setattr(TRACE, "_exported", refused)
    found = capture_step(case.model, case.args, optimizer="sgd", loss=case.loss)
    assert "not this one" in found.notes[0]
    assert "draft-export was not tried: every operator of the model says what it returns" in found.notes[1]
    graph = found.graph
    assert graph.kinds.count("ones_like") == usual.kinds.count("ones_like") == 1


@pytest.mark.parametrize("way", ["export", "make_fx"])
def test_without_a_loss_gradients_of_outputs_are_inputs(way, monkeypatch):
    """One for each output that asks for a gradient, by either way."""
    case = CASES["two-towers"]
    if way == "make_fx":
        monkeypatch.setattr(TRACE, "_exported", refused)
    found = capture_step(case.model, case.args, case.kwargs, optimizer="sgd")
    names = [name for name in found.graph.op_names if name.startswith("gradient.")]
    assert (found.method, names) == (way, ["gradient.0", "gradient.1", "gradient.2"])
    assert not found.traced.has_loss


# ---- operators that do not say what they return ------------------------------------------------


@torch.library.custom_op("placewright_tests::halves", mutates_args=())
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each half of the columns, doubled; nothing says of what size."""
    return x[:, : x.shape[1] // 2] * 2, x[:, x.shape[1] // 2 :] * 2


halves.register_autograd(lambda ctx, *grads: torch.cat(grads, 1) * 2)


class Halving(nn.Module):
    """Uses an operator without a fake kernel between two layers, and words, which are indices."""

    def __init__(self, operator):
        super().__init__()
        self.operator = operator
        self.words, self.b = nn.Embedding(7, 6), nn.Linear(3, 1)

    def forward(self, words):
        left, right = self.operator(self.words(words))
        return self.b(left - right).square().mean()


WORDS = torch.tensor([1, 5, 2])


def test_an_operator_without_a_fake_kernel_is_tried_out():
    """The second way takes the model, says why, and leaves no fake kernel and no file behind."""
    logs = os.path.join(tempfile.gettempdir(), "export_*")
    torch.manual_seed(0)
    model, kernel = Halving(halves), halves._abstract_fn
    before = glob.glob(logs + "/*")
    found = capture_step(model, WORDS, optimizer="sgd")
    assert (found.method, len(found.notes)) == ("draft-export", 1)
    assert "fake impl" in found.notes[0]
    assert "halves" in found.graph.kinds
    assert halves._abstract_fn is kernel
    assert glob.glob(logs + "/*") == before
    node = next(op for op, kind in enumerate(found.graph.kinds) if kind == "halves")
    made = [found.graph.tensor_shapes[t] for t in range(found.graph.out_start[node], found.graph.out_start[node + 1])]
    assert made == [(3, 3), (3, 3)]


def test_an_operator_of_a_library_is_tried_out():
    """One that was defined without Python's decorator too; afterwards it is as it was."""
    library = torch.library.Library("placewright_tests", "FRAGMENT")
    try:
        library.define("mirrored(Tensor x) -> (Tensor, Tensor)")
        library.impl("mirrored", lambda x: (x.flip(0)[:, :3].clone(), x[:, 3:].clone()), "CPU")
        model = Halving(torch.ops.placewright_tests.mirrored)
        found = capture_step(model, WORDS)
        assert (found.method, found.graph.kinds.count("mirrored")) == ("draft-export", 1)
        with pytest.raises(RuntimeError, match="mirrored"):
            torch.ops.placewright_tests.mirrored(torch.zeros(2, 6, device="meta"))
    finally:
        library._destroy()


def test_a_large_model_is_not_run(monkeypatch):
    """Trials compute, so a model above the limit is left to the next way; none is left, and all is told."""
    monkeypatch.setattr(draft, "MAX_BYTES", 100)
    with pytest.raises(Exception, match=r"draft-export was not tried: it computes, and weights .* too large"):
        capture_step(Halving(halves), WORDS)


def test_weights_are_not_touched_by_trials():
    """The model has its own parameters afterwards, with their values."""
    model = Halving(halves)
    kept = {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}
    capture_step(model, WORDS, optimizer="sgd")
    for name, parameter in model.named_parameters():
        assert id(parameter) == kept[name][0]
        assert torch.equal(parameter, kept[name][1])


class Remembering(nn.Module):
    """Keeps what it computed last in an attribute that is no buffer."""

    def __init__(self):
        super().__init__()
        self.a, self.last = nn.Linear(4, 4), None

    def forward(self, x):
        y = self.a(x) if self.last is None else self.a(x) + self.last
        self.last = y.detach()
        return y.mean()


@pytest.mark.parametrize("way", ["export", "make_fx"])
def test_attributes_are_put_back(way, monkeypatch):
    """No way leaves a tensor without memory in the model."""
    if way == "make_fx":
        monkeypatch.setattr(TRACE, "_exported", refused)
    model = Remembering()
    assert capture_step(model, torch.zeros(2, 4), optimizer="sgd").method == way
    assert model.last is None
    assert model(torch.zeros(2, 4)).isfinite()


class Penalty(nn.Module):
    """Differentiates in its forward pass, which torch.export does not take."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 1)

    def forward(self, x):
        x = x.detach().requires_grad_(True)
        (grad,) = torch.autograd.grad(self.b(torch.tanh(self.a(x))).sum(), x, create_graph=True)
        return grad.square().sum(1).mean() + self.b(torch.tanh(self.a(x))).mean()


def test_gradients_of_gradients():
    """The third way takes it, and gives eager gradients."""
    torch.manual_seed(1)
    model, x = Penalty(), torch.randn(3, 4)
    found = capture_step(model, x, optimizer="sgd")
    assert found.method == "make_fx"
    assert found.notes[0].startswith("export cannot take this model")
    eager = copy.deepcopy(model)
    eager(x).backward()
    traced = found.traced
    values = [dict(model.named_parameters()).get(name, x) for _, _, name in traced.inputs]
    with torch.no_grad():
        made = torch.fx.Interpreter(traced.module).run(*values)
    roles = [(role, name) for _, role, name in traced.outputs]
    grads = {name: value for (role, name), value in zip(roles, made, strict=True) if role == "gradient"}
    for name, parameter in eager.named_parameters():
        assert torch.allclose(grads[name], parameter.grad, atol=1e-6), name


# ---- what is told ------------------------------------------------------------------------------


def test_a_capture_without_a_fallback_says_nothing(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture(CASES["mlp"].model, CASES["mlp"].args, optimizer="sgd", loss=CASES["mlp"].loss)
    assert capfd.readouterr() == ("", "")


def test_training_in_eval_mode_is_told():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    with pytest.warns(CaptureWarning, match=r"eval mode.*model\.train\(\)"):
        graph = capture(model, torch.zeros(2, 4), optimizer="sgd", loss=lambda out: out.sum())
    assert not any("dropout" in kind or "bernoulli" in kind for kind in graph.kinds)


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bfloat16"), (None, "float16")])
def test_autocast_for_another_device(dtype, name):
    """Products are in the type asked for, or the default of that device, as autocast on a CPU has them; it is told."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x):
            with torch.autocast("cuda", dtype=dtype):
                return self.a(x).float().sum()

    with pytest.warns(CaptureWarning, match="autocast for cuda"):
        graph = capture(Mixed(), torch.zeros(2, 4), optimizer="sgd")
    products = [op for op, kind in enumerate(graph.kinds) if kind in ("mm", "addmm")]
    assert {graph.dtypes[op] for op in products} == {name}
    assert torch.autocast("cpu", dtype=torch.bfloat16).device == "cpu"  # torch's own again

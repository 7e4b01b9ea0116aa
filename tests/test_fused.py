"""Operators of our own compute what torch computes, dropout and all, and their gradients are derivatives."""

import pytest
import torch
import torch.nn.functional as F

from placewright.capture import capture_step
from placewright.capture.fused import attention, rms_norm

LOWER = torch.ones(5, 7, dtype=torch.bool).tril(1)
MASKS = {"none": None, "bool": LOWER, "float": torch.randn(2, 1, 5, 7, generator=torch.Generator().manual_seed(4))}


def heads(seed, *, steps=(5, 7, 7), dtype=torch.float64, width=4):
    """Query, key and value of 2 samples and 3 heads."""
    rng = torch.Generator().manual_seed(seed)
    made = (torch.randn(2, 3, s, width, generator=rng, dtype=torch.float64) for s in steps)
    return [m.to(dtype).requires_grad_() for m in made]


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_is_that_of_torch(mask, dropout, scale):
    """Output and gradients, the mask's among them, equal those of torch's own attention from the same generator."""
    found, expected = [], []
    bias = MASKS[mask]
    for result, run in ((found, attention), (expected, F.scaled_dot_product_attention)):
        inputs = heads(1)
        given = bias.double().requires_grad_() if mask == "float" else bias
        torch.manual_seed(9)
        if run is attention:
            out = run(*inputs, given, dropout, False, scale)[0]
        else:
            out = run(*inputs, given, dropout, False, scale=scale)
        weighted = (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum()
        wanted = [*inputs, given] if mask == "float" else inputs
        result += [out, *torch.autograd.grad(weighted, wanted), torch.rand(3)]
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention_are_derivatives(causal):
    """Finite differences agree, with the draws of dropout held still."""

    def still(*inputs):
        torch.manual_seed(2)
        return attention(*inputs, None, 0.3, causal, None)[0]

    assert torch.autograd.gradcheck(still, heads(3, steps=(4, 4, 4), width=2))


@pytest.mark.parametrize("shape", [(6,), (3, 6)])
@pytest.mark.parametrize("eps", [None, 1e-2])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm_is_that_of_torch(shape, eps, weighted):
    """Output equals torch's to the last bit, and gradients its to rounding, over one axis or two."""
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(4, 3, 6, generator=rng, requires_grad=True)
    weight = torch.randn(shape, generator=rng, requires_grad=True) if weighted else None
    one, two = rms_norm(x, list(shape), weight, eps)[0], F.rms_norm(x, shape, weight, eps)
    assert torch.equal(one, two)
    wanted = [x, weight] if weighted else [x]
    for a, b in zip(*(torch.autograd.grad((y * y.cos()).sum(), wanted) for y in (one, two)), strict=True):
        torch.testing.assert_close(a, b)


def test_half_precision():
    """Both run in bfloat16, with gradients of the type of their inputs."""
    inputs = heads(6, dtype=torch.bfloat16)
    out = attention(*inputs, None, 0.2, False, None)[0]
    assert {g.dtype for g in torch.autograd.grad(out.float().sum(), inputs)} == {torch.bfloat16}
    weight = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    normed = rms_norm(inputs[0], [4], weight, None)[0]
    assert {g.dtype for g in torch.autograd.grad(normed.float().sum(), [inputs[0], weight])} == {torch.bfloat16}


class Attend(torch.nn.Module):
    """Attention with dropout over heads that a projection makes."""

    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(16, 16)

    def forward(self, x):
        q = self.project(x).unflatten(-1, (4, 4)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.1 if self.training else 0.0).sum()


def test_no_scores_are_kept():
    """With dropout as without, no tensor of a captured attention grows with the square of its length."""
    for optimizer in ("sgd", None):
        graph = capture_step(Attend(), torch.randn(2, 128, 16), optimizer=optimizer).graph
        assert max(graph.tensor_bytes) == 2 * 128 * 16 * 4
        assert graph.kinds.count("scaled_dot_product_attention") == 1
        assert graph.kinds.count("scaled_dot_product_attention_backward") == (optimizer is not None)


class Wide(torch.nn.Module):
    """Attention without dropout, its values wider than its keys."""

    def __init__(self):
        super().__init__()
        self.project, self.widen = torch.nn.Linear(16, 16), torch.nn.Linear(16, 48)

    def forward(self, x):
        q, v = (made.unflatten(-1, (4, -1)).transpose(1, 2) for made in (self.project(x), self.widen(x)))
        return F.scaled_dot_product_attention(q, q, v, is_causal=True).square().mean()


@pytest.mark.parametrize("optimizer", ["sgd", None])
def test_values_of_another_width(optimizer):
    """One operation too, which gives torch's own gradients."""
    torch.manual_seed(1)
    model, x = Wide(), torch.randn(2, 32, 16)
    found = capture_step(model, x, optimizer=optimizer)
    assert found.graph.kinds.count("scaled_dot_product_attention") == 1
    assert max(found.graph.tensor_bytes) == 2 * 32 * 48 * 4
    if optimizer is None:
        return
    values = [dict(model.named_parameters()).get(name, x) for _, _, name in found.traced.inputs[:-1]]
    with torch.no_grad():
        made = torch.fx.Interpreter(found.traced.module).run(*values, torch.ones(()), enable_io_processing=False)
    roles = [(role, name) for _, role, name in found.traced.outputs]
    model(x).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(made[roles.index(("gradient", name))], parameter.grad)


@pytest.mark.device
@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize("steps", [8, 13, 40])
def test_attention_on_a_gpu_is_that_of_torch(steps, width, mask):
    """Output and gradients in half precision, for lengths that the kernel pads and values of another width."""
    rng = torch.Generator("cuda").manual_seed(7)
    shapes = ((2, 3, steps, 16), (2, 3, 13, 16), (2, 3, 13, width))
    q, k, v = (torch.randn(s, generator=rng, device="cuda", dtype=torch.float16).requires_grad_() for s in shapes)
    given = {None: None, "bool": torch.ones(steps, 13, dtype=torch.bool, device="cuda").tril()}.get(mask)
    wanted = [q, k, v]
    if mask == "float":
        given = torch.randn(steps, 13, generator=rng, device="cuda", dtype=torch.float16).requires_grad_()
        wanted.append(given)
    one = attention(q, k, v, given, 0.0, False, None)[0]
    two = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), None if given is None else given.to(
        torch.bool if mask == "bool" else torch.float32))  # fmt: skip
    torch.testing.assert_close(one.float(), two, rtol=1e-2, atol=1e-2)
    for a, b in zip(*(torch.autograd.grad(y.float().square().sum(), wanted) for y in (one, two)), strict=True):
        torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)


@pytest.mark.device
def test_a_recurrent_model_on_a_gpu():
    """Its weights lie in one storage there; the graph is that of the same model on a CPU."""
    model, x = torch.nn.LSTM(8, 8, 2), torch.randn(3, 2, 8)
    usual = capture_step(model, x, optimizer="adam", loss=lambda out: out[0].sum()).graph
    model.cuda()
    assert len({p.untyped_storage().data_ptr() for p in model.parameters()}) == 1
    found = capture_step(model, x.cuda(), optimizer="adam", loss=lambda out: out[0].sum()).graph
    assert found.kinds == usual.kinds
    assert found.persistent_bytes == usual.persistent_bytes
    assert next(model.parameters()).is_cuda

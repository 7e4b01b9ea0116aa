"""The zoo's networks at tiny sizes, on real tensors: losses, outputs, gradients, and what each is known by."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from placewright.capture.fake import fake_tensors
from placewright.zoo import bert, convolutional, gpt, inception, layers, llama, mixtral, nasnet, recurrent, unet, vit

SIZES = llama.Sizes(width=32, layers=2, heads=4, key_heads=2, hidden=48, vocabulary=50)
TINY = {
    # a maker of (batch, training), and the shape of the output for batch 2
    "vgg": (lambda b, t: convolutional.vgg(b, t, convolutions=(1, 1, 1, 1, 1), size=32), (2, 1000)),
    "resnet": (lambda b, t: convolutional.resnet(b, t, blocks=(1, 2, 1, 1), size=64), (2, 1000)),
    "cifar10": (convolutional.cifar10, (2, 10)),
    "inception": (lambda b, t: inception.inception(b, t, size=107), (2, 1000)),
    "nasnet": (lambda b, t: nasnet.nasnet(b, t, filters=8, repeats=1, stem=8, size=64), (2, 1000)),
    "nasnet-skip": (lambda b, t: nasnet.nasnet(b, t, filters=8, repeats=2, stem=8, skip=True, size=64), (2, 1000)),
    "rnnlm": (lambda b, t: recurrent.rnnlm(b, t, layers=2, hidden=16, steps=5, vocabulary=30), (2, 5, 30)),
    "nmt": (lambda b, t: recurrent.nmt(b, t, layers=3, hidden=16, steps=6, vocabulary=30), (2, 6, 30)),
    "gpt2": (lambda b, t: gpt.gpt2(b, t, width=32, layers=2, heads=4, steps=8, vocabulary=50), (2, 8, 50)),
    "bert": (
        lambda b, t: bert.bert(b, t, width=32, layers=2, heads=4, steps=16, masked=3, vocabulary=50),
        [(2, 3, 50), (2, 2)],
    ),
    "vit": (lambda b, t: vit.vit(b, t, width=32, layers=2, heads=4, patch=8, size=32, classes=7), (2, 7)),
    "llama": (
        lambda b, t: llama.decoder(b, t, steps=8, sizes=SIZES, feed_forward=lambda s: llama.SwiGLU(s.width, s.hidden)),
        (2, 8, 50),
    ),
    "mixtral": (lambda b, t: mixtral.mixtral(b, t, sizes=SIZES, experts=4, chosen=2, steps=8), (2, 8, 50)),
    "unet": (
        lambda b, t: unet.unet(b, t, channels=32, multiples=(1, 2), size=8, text=(5, 24), heads=4),
        (2, 4, 8, 8),
    ),
}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", TINY)
def test_training_gives_a_loss_and_all_gradients(name):
    """With targets there is one finite number, and every parameter has a finite gradient; not all are zero."""
    module, inputs = TINY[name][0](2, True)
    loss = module(*inputs)
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    loss.backward()
    grads = {n: p.grad for n, p in module.named_parameters()}
    assert [n for n, grad in grads.items() if grad is None or not grad.isfinite().all()] == []
    assert any(grad.abs().sum() > 0 for grad in grads.values())


@pytest.mark.parametrize("name", TINY)
def test_inference_gives_the_output(name):
    """Without targets there are logits, or the guessed noise, of the right shape, and all are finite."""
    maker, shape = TINY[name]
    module, inputs = maker(2, False)
    with torch.no_grad():
        out = module.eval()(*inputs)
    out, shape = (out, shape) if isinstance(out, tuple) else ([out], [shape])
    assert [tuple(each.shape) for each in out] == shape
    assert all(each.isfinite().all() for each in out)


@pytest.mark.parametrize("name", ["llama", "mixtral", "unet"])
def test_bfloat16_networks_train(name):
    """Networks that are bfloat16 by default give a finite float32 loss and bfloat16 gradients."""
    with layers.default_dtype("bfloat16"):
        module, inputs = TINY[name][0](2, True)
    loss = module(*inputs)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert {p.grad.dtype for p in module.parameters()} == {torch.bfloat16}


def shapes_of(module, inputs, wanted):
    """Shapes of what the named submodules give, by name, on tensors without memory."""
    found = {}
    for name, part in module.named_modules():
        if name in wanted:
            part.register_forward_hook(lambda _m, _i, out, name=name: found.update({name: tuple(out.shape[1:])}))
    module(*inputs)
    return found


def test_inception_has_the_grids_of_its_paper():
    """Stem, 35x35, 17x17 and 8x8 grids are as in table 1 of the paper."""
    with fake_tensors():
        wanted = {
            "stem": (192, 35, 35),
            "mixed35.2": (288, 35, 35),
            "mixed17": (768, 17, 17),
            "mixed8.0": (1280, 8, 8),
            "mixed8": (2048, 8, 8),
        }
        assert shapes_of(*inception.inception(1, True), wanted) == wanted


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"filters": 44, "repeats": 4, "stem": 32}, {"cells.5": (264, 28, 28), "cells.15": (1056, 7, 7)}),
        (
            {"filters": 168, "repeats": 6, "stem": 96, "skip": True, "size": 331},
            {"cells.7": (1008, 42, 42), "cells.21": (4032, 11, 11)},
        ),
    ],
    ids=["mobile", "large"],
)
def test_nasnet_ends_as_wide_as_its_name_says(options, wanted):
    """The (4 @ 1056) network ends with 1,056 channels at 7x7, the (6 @ 4032) one with 4,032 at 11x11."""
    with fake_tensors():
        assert shapes_of(*nasnet.nasnet(1, True, **options), wanted) == wanted


def test_the_unet_has_the_widths_of_stable_diffusion():
    """The way up reads, and the levels are, as wide and as large as in the authors' checkpoint."""
    with fake_tensors():
        module, inputs = unet.unet(1, True)
        wanted = {"down.7": (1280, 16, 16), "down.10": (1280, 8, 8), "middle.1": (1280, 8, 8), "up.11": (320, 64, 64)}
        assert shapes_of(module, inputs, wanted) == wanted
    reads = [stage.residual.enter[0].num_channels for stage in module.up]
    assert reads == [2560, 2560, 2560, 2560, 2560, 1920, 1920, 1280, 960, 960, 640, 640]
    assert [stage.transformer is None for stage in module.up] == [True] * 3 + [False] * 9


def test_the_unets_waves_tell_times_apart():
    """Half of the embedding of time t is cos(t f), half sin(t f), with f from 1 down to 1/10,000."""
    waves = unet._waves(torch.tensor([0, 3]), 8)
    rates = [10_000 ** (-k / 4) for k in range(4)]
    expected = [math.cos(3 * f) for f in rates] + [math.sin(3 * f) for f in rates]
    torch.testing.assert_close(waves, torch.tensor([[1.0] * 4 + [0.0] * 4, expected]))


def normed(x, norm):
    return F.batch_norm(x, None, None, norm.weight, norm.bias, training=True, eps=norm.eps)


def test_resnet_equals_its_definition():
    """A network written out with functions, stride at the 3x3 convolution, gives the same logits."""
    module, (images,) = convolutional.resnet(2, False, blocks=(1, 2, 1, 1), size=64)
    x = images
    stem = module.features.stem[0]
    x = F.max_pool2d(F.relu(normed(F.conv2d(x, stem.conv.weight, stride=2, padding=3), stem.norm)), 3, 2, 1)
    for stage, (count, width) in enumerate(zip((1, 2, 1, 1), (64, 128, 256, 512), strict=True), 1):
        for k in range(count):
            block = getattr(module.features, f"stage{stage}")[k]
            stride = 2 if k == 0 and stage > 1 else 1
            y = F.relu(normed(F.conv2d(x, block.reduce.conv.weight), block.reduce.norm))
            y = F.relu(normed(F.conv2d(y, block.conv.conv.weight, stride=stride, padding=1), block.conv.norm))
            y = normed(F.conv2d(y, block.expand.conv.weight), block.expand.norm)
            assert y.shape[1] == 4 * width
            if k == 0:
                x = normed(F.conv2d(x, block.shortcut.conv.weight, stride=stride), block.shortcut.norm)
            x = F.relu(x + y)
    expected = F.linear(x.mean((2, 3)), module.classifier.weight, module.classifier.bias)
    torch.testing.assert_close(module(images), expected, rtol=1e-4, atol=1e-4)


def test_vgg_equals_its_definition():
    """3x3 convolutions with ReLU, halved after each stage, and three linear layers give the same logits."""
    module, (images,) = convolutional.vgg(2, False, convolutions=(2, 2, 3, 3, 3), size=32)
    x, convolutions = images, 0
    for stage in module.features:
        for part in stage:
            if isinstance(part, nn.Conv2d):
                x, convolutions = F.relu(F.conv2d(x, part.weight, part.bias, padding=1)), convolutions + 1
        x = F.max_pool2d(x, 2)
    x = x.flatten(1)
    linear = [part for part in module.classifier if isinstance(part, nn.Linear)]
    for k, part in enumerate(linear):
        x = part(x) if k == 2 else F.relu(part(x))
    assert (convolutions, len(linear)) == (13, 3)
    torch.testing.assert_close(module(images), x)


def test_a_module_of_inception_equals_its_definition():
    """The module at 17x17 puts its four branches side by side, with the 7x7 convolutions taken apart."""
    module, x = inception.grid17(12, 8), torch.randn(2, 12, 9, 9)

    def conv(x, part):
        padding = {(1, 1): (0, 0), (1, 7): (0, 3), (7, 1): (3, 0)}[part.conv.kernel_size]
        return F.relu(normed(F.conv2d(x, part.conv.weight, padding=padding), part.norm))

    one, seven, double, pool = module.branches
    kernels = [[part.conv.kernel_size for part in branch] for branch in (seven, double)]
    assert kernels == [[(1, 1), (1, 7), (7, 1)], [(1, 1), (7, 1), (1, 7), (7, 1), (1, 7)]]
    rows = [conv(x, one), x, x, F.avg_pool2d(x, 3, 1, 1)]
    for k, parts in ((1, seven), (2, double), (3, pool[1:])):
        for part in parts:
            rows[k] = conv(rows[k], part)
    torch.testing.assert_close(module(x), torch.cat(rows, 1), rtol=1e-4, atol=1e-4)


def test_cifar10_normalises_as_tensorflow_does():
    """x / (1 + 0.001 / 9 x the sum of squares of the nine channels around)^0.75, at the edges of fewer."""
    x = 30 * torch.randn(1, 12, 2, 2)
    expected = torch.empty_like(x)
    for c in range(12):
        around = x[:, max(0, c - 4) : c + 5]
        expected[:, c] = x[:, c] / (1 + 0.001 / 9 * around.square().sum(1)) ** 0.75
    torch.testing.assert_close(convolutional.LocalResponseNorm()(x), expected)


def experts_by_hand(module, x):
    """What experts with a capacity make, token by token: each takes those that give it the largest weight."""
    rows = x.flatten(0, 1)
    wishes = module.router(rows).softmax(1)
    weights = torch.zeros_like(wishes)
    for n, wish in enumerate(wishes):
        best = sorted(range(len(wish)), key=lambda k: -wish[k].item())[: module.chosen]
        for k in best:
            weights[n, k] = wish[k] / wish[best].sum()
    capacity = math.ceil(module.share * len(rows))
    out, dropped = torch.zeros_like(rows), 0
    for k, expert in enumerate(module.experts):
        wanting = sorted((n for n in range(len(rows)) if weights[n, k] > 0), key=lambda n: -weights[n, k].item())
        dropped += len(wanting[capacity:])
        for n in wanting[:capacity]:
            out[n] += weights[n, k] * expert(rows[n])
    return out.view_as(x), dropped


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_experts_take_the_tokens_that_want_them_most(factor):
    """Within its capacity an expert serves the tokens of the largest weight; the others go without it."""
    module, x = mixtral.Experts(SIZES, 4, 2, factor), torch.randn(2, 20, 32)
    expected, dropped = experts_by_hand(module, x)
    assert (dropped > 0) == (factor < 2.0)
    torch.testing.assert_close(module(x), expected)


def test_capacity_does_not_depend_on_the_data():
    """All tokens alike, every expert still computes as many rows: what a graph says of the step is true of any."""
    module, counts = mixtral.Experts(SIZES, 4, 2, 1.25), []
    for expert in module.experts:
        expert.register_forward_pre_hook(lambda _m, args: counts.append(args[0].shape[0]))
    for x in (torch.randn(1, 16, 32), torch.ones(1, 16, 32)):
        module(x)
    assert counts == [10] * 8

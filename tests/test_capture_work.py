"""What an operation does: flops beside torch's own counter, bytes and workspace by hand."""

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from placewright.capture import OPTIMIZERS, capture, capture_step
from placewright.capture.work import kind_of
from placewright.graph import BACKWARD, FORWARD, PARAMETER, UPDATE
from tests.models import cases

CASES = cases()


def counted(case):
    """The flops that torch counts in an eager step, by our kinds."""
    model, args = copy.deepcopy(case.model), copy.deepcopy(case.args)
    with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
        loss = model(*args, **case.kwargs)
        (case.loss(loss) if case.loss else loss).backward()
    found = Counter()
    for operator, flops in counter.get_flop_counts()["Global"].items():
        found[kind_of(operator.default if hasattr(operator, "default") else operator)] += flops
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_of_torchs_counter(name):
    """Of every kind that torch counts, the sum over the forward and backward pass, and what a checkpoint repeats.
    Attention with dropout is one operation here, and batched products on the CPU that torch counts on."""
    case = CASES[name]
    graph = capture(case.model, case.args, case.kwargs, optimizer="sgd", loss=case.loss)
    ours = Counter()
    for kind, flops in zip(graph.kinds, graph.flops.tolist(), strict=True):
        ours[kind] += flops
    expected = counted(case)
    if "scaled_dot_product_attention" in ours:
        expected.pop("bmm", None)
    assert expected
    for kind, flops in expected.items():
        assert ours[kind] == flops, kind


def operations(graph, kind, phase=None):
    """The operations of a kind."""
    return [op for op in range(graph.n_ops) if graph.kinds[op] == kind and phase in (None, graph.phase[op])]


class Products(nn.Module):
    """A convolution, a transposed one, a grouped one, and a linear layer with a table before it."""

    def __init__(self):
        super().__init__()
        self.table, self.linear = nn.Embedding(1000, 12), nn.Linear(12, 5)
        self.conv, self.up = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.grouped = nn.Conv2d(4, 4, 3, groups=4)

    def forward(self, words, image):
        return self.linear(self.table(words)), self.grouped(self.up(self.conv(image)))


def test_products_lookups_and_convolutions_by_hand():
    """Two flops for each multiplication and addition; a lookup reads the rows that it finds, not the table."""
    graph = capture(Products(), (torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 3, 10, 10)))
    (lookup,), (linear,) = operations(graph, "embedding"), operations(graph, "addmm")
    rows = 2 * 7 * 12 * 4
    assert (graph.flops[lookup], graph.bytes_read[lookup], graph.bytes_written[lookup]) == (0, 14 * 8 + rows, rows)
    assert graph.flops[linear] == 2 * 14 * 12 * 5
    assert graph.bytes_read[linear] == rows + 4 * (12 * 5 + 5)
    conv, up, grouped = operations(graph, "convolution")
    assert graph.flops[conv] == 2 * (2 * 8 * 5 * 5) * (3 * 3 * 3)
    assert graph.flops[up] == 2 * (2 * 8 * 5 * 5) * (4 * 2 * 2)
    assert graph.flops[grouped] == 2 * (2 * 4 * 8 * 8) * 9
    image, small, large = 4 * 2 * 3 * 100, 4 * 2 * 8 * 25, 4 * 2 * 4 * 100
    assert graph.workspace_bytes[conv] == image + small  # channels are laid out innermost
    assert graph.workspace_bytes[up] == small + large
    assert graph.workspace_bytes[grouped] == 0


def test_channels_that_lie_innermost_take_no_workspace():
    image = torch.zeros(2, 3, 10, 10).contiguous(memory_format=torch.channels_last)
    graph = capture(nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last), image)
    (conv,) = operations(graph, "convolution")
    assert graph.workspace_bytes[conv] == 0


@pytest.mark.parametrize(("dtype", "extra"), [(torch.float32, 0), (torch.bfloat16, 4)])
def test_attention_by_hand(dtype, extra):
    """Four flops for each pair of steps and each channel, masks saving none; backward two and a half times that. In
    half precision the gradient of the queries is summed up in float32."""
    q, k, v = (torch.zeros(2, 3, t, 8, dtype=dtype, requires_grad=True) for t in (5, 7, 7))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Parameter(q)

        def forward(self, k, v):
            return F.scaled_dot_product_attention(self.q, k, v).float().sum()

    graph = capture(Net(), (k, v), optimizer="sgd")
    (forward,) = operations(graph, "scaled_dot_product_attention")
    (backward,) = operations(graph, "scaled_dot_product_attention_backward")
    assert graph.flops[forward] == 4 * 2 * 3 * 5 * 7 * 8
    assert graph.flops[backward] == 2.5 * graph.flops[forward]
    assert graph.workspace_bytes[forward] == 0
    assert graph.workspace_bytes[backward] == extra * 2 * 3 * 5 * 8


def test_views_and_shapes_cost_nothing():
    """They share the bytes of what they look at, and are in no other's way."""

    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(12, 12)

        def forward(self, x):
            y = self.a(x)
            return y.view(2, 3, 4).transpose(1, 2)[:, 1:].unsqueeze(0) + 1

    graph = capture(Views(), torch.zeros(2, 12))
    looks = [op for op, kind in enumerate(graph.kinds) if kind in ("view", "transpose", "slice", "unsqueeze")]
    assert len(looks) >= 4
    for op in looks:
        assert (graph.flops[op], graph.bytes_read[op], graph.bytes_written[op], graph.workspace_bytes[op]) == (0,) * 4
        tensor = graph.out_start[op]
        assert graph.tensor_storage[tensor] != tensor


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_bytes_of_parameters_and_state(optimizer):
    """To the byte what torch.optim keeps, in the parameter's type; tied weights once."""
    net = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6), nn.LayerNorm(6)).to(torch.bfloat16)
    net[0].weight = net[1].weight
    graph = capture(net, torch.zeros(2, 6, dtype=torch.bfloat16), optimizer=optimizer, loss=lambda out: out.sum())
    count = sum(p.numel() for p in net.parameters())
    assert count == 36 + 6 + 6 + 6
    tensors = len(list(net.parameters()))
    state = {"sgd": 0, "momentum": 2 * count, "adam": 4 * count + 4 * tensors, "adamw": 4 * count + 4 * tensors,
             "adafactor": 2 * (6 + 6 + 6 + 6 + 6) + 4 * tensors}  # fmt: skip
    assert graph.persistent_bytes == 2 * count + state[optimizer]
    assert (graph.phase == UPDATE).sum() == tensors


def test_types_and_phases():
    """Products in half precision say so; every backward operation is of that phase; buffers are persistent."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)
    found = capture_step(net, torch.zeros(3, 4, dtype=torch.bfloat16), optimizer="sgd", loss=lambda out: out.sum())
    graph = found.graph
    for kind, phase in (("addmm", FORWARD), ("mm", BACKWARD), ("batch_norm", FORWARD)):
        (op, *_) = operations(graph, kind)
        assert (graph.dtypes[op], graph.phase[op]) == ("bfloat16", phase)
    held = {graph.op_names[op] for op in range(graph.n_ops) if graph.phase[op] == PARAMETER}
    assert {"1.running_mean", "1.num_batches_tracked"} <= held
    assert "1.running_mean.store" in graph.index

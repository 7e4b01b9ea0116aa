"""What an operation does: flops beside torch's own counter, bytes and workspace by hand."""

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from placewright.capture import OPTIMIZERS, capture, capture_step
from placewright.capture.products import FLOPS
from placewright.capture.work import kind_of, name_of, work_of
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


# ---- lookups and indexed writes ----------------------------------------------------------------


class Does(nn.Module):
    """Whatever a case does with parameters and inputs."""

    def __init__(self, do, *parameters):
        super().__init__()
        self.do, self.held = do, nn.ParameterList(parameters)

    def forward(self, *args):
        return self.do(*self.held, *args)


def only(graph, kind, phase=None):
    """Flops, bytes read and bytes written of the one operation of a kind."""
    (op,) = operations(graph, kind, phase)
    return graph.flops[op], graph.bytes_read[op], graph.bytes_written[op]


@pytest.mark.parametrize("optimizer", [None, "sgd"])
def test_a_bag_reads_the_rows_that_it_sums(optimizer):
    """Six rows of a large table, and what says which; with weights they are multiplied too, and read once more."""
    table, weights = nn.Parameter(torch.zeros(100_000, 8)), nn.Parameter(torch.zeros(6))
    ids, bags, rows = torch.zeros(6, dtype=torch.long), torch.zeros(2, dtype=torch.long), 6 * 8 * 4
    net = Does(lambda t, i, b: F.embedding_bag(i, t, b).sum(), table)
    graph = capture(net, (ids, bags), optimizer=optimizer)
    assert only(graph, "embedding_bag")[:2] == (6 * 8, rows + 6 * 8 + 2 * 8)
    if optimizer is None:
        return
    assert only(graph, "embedding_bag_backward")[0] == 6 * 8
    net = Does(lambda t, w, i, b: F.embedding_bag(i, t, b, mode="sum", per_sample_weights=w).sum(), table, weights)
    graph = capture(net, (ids, bags), optimizer="sgd")
    flops, read, written = only(graph, "embedding_bag_per_sample_weights_backward")
    assert (flops, written) == (2 * 6 * 8, 6 * 4)
    assert rows < read < 2 * rows


@pytest.mark.parametrize(
    "look",
    [
        lambda t, i: F.embedding(i, t),
        lambda t, i: t[i],
        lambda t, i: t.index_select(0, i),
        lambda t, i: t.gather(0, i[:, None].expand(-1, 8)),
        lambda t, i: t.take(i),
    ],
)
def test_what_a_lookup_computes_is_by_the_rows(look):
    """Nothing forward; backward, the rows that are added to a gradient of zeros, whatever the size of the table."""
    graph = capture(Does(lambda t, i: look(t, i).sum(), nn.Parameter(torch.zeros(1000, 8))), torch.tensor([3, 5]),
                    optimizer="sgd")  # fmt: skip
    table = [op for op in range(graph.n_ops) if graph.flops[op] > 64 and graph.kinds[op] != "sgd"]
    assert [graph.op_names[op] for op in table] == []


@pytest.mark.parametrize(
    ("look", "kind", "added", "beside"),
    [
        (lambda t, i: t[i], "index_put", 16, 2 * 8 + 4),
        (lambda t, i: t.index_select(0, i), "index_add", 16, 2 * 8 + 4),
        (lambda t, i: t.gather(0, i[:, None]), "scatter_add", 2, 2 * 8 + 4),
        (lambda t, i: t.take(i), "put", 2, 2 * 8 + 4),
    ],
)
def test_gradients_of_lookups_are_summed_in_place(look, kind, added, beside):
    """On zeros, as torch does outside a trace: no copy of the table is made, and only the rows are written."""
    table = nn.Parameter(torch.zeros(1000, 8))
    graph = capture(Does(lambda t, i: look(t, i).sum(), table), torch.tensor([3, 5]), optimizer="sgd")
    size = 4 * added
    assert only(graph, kind) == (added, beside + size, size)
    (op,) = operations(graph, kind)
    tensor = graph.out_start[op]
    assert graph.tensor_storage[tensor] != tensor


def test_a_models_own_sum_of_a_copy_stays_one():
    """What a checkpoint repeats in the backward pass is as the model wrote it."""

    def summed(t, i):
        return torch.zeros_like(t).index_add(0, i, t[:2]).sin()

    def forward(t, i):
        return checkpoint(summed, t, i, use_reentrant=False).sum()

    graph = capture(Does(forward, nn.Parameter(torch.zeros(9, 8))), torch.tensor([3, 5]), optimizer="sgd")
    repeated = [op for op in operations(graph, "index_add") if graph.tensor_storage[graph.out_start[op]] !=
                graph.out_start[op]]  # fmt: skip
    assert len(operations(graph, "index_add")) == 2
    assert repeated == []


PLACE = torch.tensor([7])
SCATTERED = torch.zeros(1, 8, 1, 8, dtype=torch.long)


@pytest.mark.parametrize(
    ("write", "kind", "elements", "added", "beside"),
    [
        (lambda c, k: c.index_copy_(2, PLACE, k), "index_copy", 64, False, 64 * 4 + 8),
        (lambda c, k: c.index_add_(2, PLACE, k), "index_add", 64, True, 64 * 4 + 8),
        (lambda c, k: c.index_fill_(2, PLACE, 0.0), "index_fill", 64, False, 8),
        (lambda c, k: c.index_reduce_(2, PLACE, k, "amax"), "index_reduce", 64, True, 64 * 4 + 8),
        (lambda c, k: c.scatter_(2, SCATTERED, k), "scatter", 64, False, 64 * 12),
        (lambda c, k: c.scatter_add_(2, SCATTERED, k), "scatter_add", 64, True, 64 * 12),
        (lambda c, k: c.scatter_reduce_(2, SCATTERED, k, "sum"), "scatter_reduce", 64, True, 64 * 12),
        (lambda c, k: c.__setitem__((slice(None), slice(None), PLACE), k), "index_put", 64, False, 64 * 4 + 8),
        (lambda c, k: c.index_put_((PLACE * 0,), k, accumulate=True), "index_put", 8000 * 8, True, 64 * 4 + 8),
        (lambda c, k: c.put_(PLACE, k.flatten()[:1]), "put", 1, False, 8 + 4),
    ],
)
def test_an_indexed_write_touches_what_it_names(write, kind, elements, added, beside):
    """One step of a cache: what is written, and that read too where something is added; the index and the values."""

    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(1, 8, 1000, 8))

        def forward(self, step):
            write(self.cache, step)
            return step + 1

    size = 4 * elements
    graph = capture(Cache(), torch.zeros(1, 8, 1, 8))
    assert only(graph, kind) == (elements * added, beside + size * added, size)


def test_a_functional_write_copies_the_table():
    graph = capture(Does(lambda c, k: c.index_copy(1, PLACE, k)), (torch.zeros(8, 1000), torch.zeros(8, 1)))
    assert only(graph, "index_copy") == (0, 4 * 8000 + 4 * 8 + 8, 4 * 8000)


# ---- products that torch names in other ways ---------------------------------------------------


def registered():
    """The operators that torch's counter has a rule for."""
    return [pytest.param(target, id=str(target)) for target in flop_registry]


@pytest.mark.parametrize("target", registered())
def test_every_operator_of_torchs_counter_has_a_rule(target):
    """By its own name or its kind; a new one in a later torch is told here."""
    overload = getattr(target, target.overloads()[0]) if hasattr(target, "overloads") else target
    assert name_of(overload) in FLOPS or kind_of(overload) in FLOPS


def meta(*shape, dtype=torch.float32):
    """A tensor without bytes."""
    return torch.empty(shape, dtype=dtype, device="meta")


ATEN = torch.ops.aten
HEADS = [meta(2, 5, 3, 8), meta(2, 7, 3, 8), meta(2, 7, 3, 4)]
"""Query, key and value, heads last but one."""
ROWS = [meta(50, 3, 8), meta(60, 3, 8), meta(60, 3, 4)]
BEGIN = meta(3, dtype=torch.int32)
PAIRS = 2 * 3 * 5 * 7
PAIRS_OF_ROWS = 2 * 3 * 30 * 40


@pytest.mark.parametrize(
    ("target", "args", "output", "flops"),
    [
        (ATEN._scaled_mm.default, (meta(16, 64), meta(64, 32)), meta(16, 32), 2 * 16 * 64 * 32),
        (ATEN._int_mm.default, (meta(16, 64), meta(64, 32)), meta(16, 32), 2 * 16 * 64 * 32),
        (ATEN.addbmm.default, (meta(3, 5), meta(4, 3, 6), meta(4, 6, 5)), meta(3, 5), 2 * 4 * 3 * 6 * 5),
        (ATEN._grouped_mm.default, (meta(20, 6), meta(4, 6, 5)), meta(20, 5), 2 * 20 * 6 * 5),
        (ATEN._grouped_mm.default, (meta(6, 20), meta(20, 5)), meta(4, 6, 5), 2 * 6 * 20 * 5),
        (ATEN.cudnn_convolution.default, (meta(2, 3, 9, 9), meta(4, 3, 3, 3), [0, 0], [1, 1], [1, 1], 1, True),
         meta(2, 4, 7, 7), 2 * 2 * 4 * 49 * 27),
        (ATEN._slow_conv2d_forward.default, (meta(2, 3, 9, 9), meta(4, 3, 3, 3), [3, 3]), meta(2, 4, 7, 7),
         2 * 2 * 4 * 49 * 27),
        (ATEN.convolution_overrideable.default,
         (meta(2, 4, 7, 7), meta(4, 3, 3, 3), None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1), meta(2, 3, 9, 9),
         2 * 2 * 4 * 49 * 27),
        (ATEN._flash_attention_forward.default, (*HEADS, None, None, 5, 7), HEADS[0], 2 * PAIRS * 12),
        (ATEN._efficient_attention_forward.default, (*HEADS, None, None, None, 5, 7), HEADS[0], 2 * PAIRS * 12),
        (ATEN._flash_attention_backward.default, (HEADS[0], *HEADS, None, None, None, None, 5, 7), HEADS[0],
         2 * PAIRS * 32),
        (ATEN._efficient_attention_backward.default, (HEADS[0], *HEADS, None, None, None, None, 5, 7), HEADS[0],
         2 * PAIRS * 32),
        (ATEN._flash_attention_forward.default, (*ROWS, BEGIN, BEGIN, 30, 40), ROWS[0], 2 * PAIRS_OF_ROWS * 12),
        (torch.ops.higher_order.flex_attention, (meta(2, 3, 5, 8), meta(2, 3, 7, 8), meta(2, 3, 7, 4)),
         meta(2, 3, 5, 4), 2 * PAIRS * 12),
        (torch.ops.higher_order.flex_attention_backward, (meta(2, 3, 5, 8), meta(2, 3, 7, 8), meta(2, 3, 7, 4)),
         meta(2, 3, 5, 8), 2 * PAIRS * 32),
    ],
)  # fmt: skip
def test_products_of_kernels_by_hand(target, args, output, flops):
    """Two for each multiplication and addition; kernels of attention and convolution go by the name of what they do."""
    assert work_of(target, args, [a for a in args if isinstance(a, torch.Tensor)], [output]).flops == flops
    kind = kind_of(target)
    assert not ("attention" in kind or "conv" in kind) or kind.removesuffix("_backward") in (
        "scaled_dot_product_attention", "convolution")  # fmt: skip


def test_products_of_modules_by_hand():
    """A bilinear layer forward and backward, distances, transforms and a factorisation are no work by the element."""
    x = torch.zeros(32, 64)
    graph = capture(Does(lambda w, x: F.bilinear(x, x, w).sum(), nn.Parameter(torch.zeros(64, 64, 64))), x,
                    optimizer="sgd")  # fmt: skip
    for op in operations(graph, "trilinear"):
        assert graph.flops[op] == 2 * 32 * 64**3
    graph = capture(Does(lambda x, y: (torch.cdist(x, y, p=1.0), torch.cdist(x, y))), (x, torch.zeros(40, 64)))
    assert only(graph, "cdist")[0] == 3 * 32 * 40 * 64
    assert only(graph, "euclidean_dist")[0] == 2 * 32 * 40 * 66
    graph = capture(Does(lambda x: (torch.fft.fft2(x + 0j), torch.fft.irfft(torch.fft.rfft(x)))), x)
    assert only(graph, "fft_c2c")[0] == 5 * 2048 * 11
    assert only(graph, "fft_r2c")[0] == only(graph, "fft_c2r")[0] == 2.5 * 2048 * 6
    graph = capture(Does(torch.linalg.cholesky), torch.zeros(2, 9, 9))
    assert only(graph, "linalg_cholesky_ex")[0] == 2 * 9**3 / 3


@torch.library.custom_op("placewright_work::index_add", mutates_args=())
def added(x: torch.Tensor) -> torch.Tensor:
    """An operator of someone else, whose name torch uses for another one."""
    return x + 1


added.register_fake(torch.empty_like)


def test_operators_of_others_are_counted_by_element():
    """Their names say nothing of their arguments."""
    assert only(capture(Does(added), torch.zeros(3, 4)), "index_add") == (12, 48, 48)

"""What checkpoints repeat: the operations of eager execution in their order, and what stays alive for them."""

import contextlib
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, set_checkpoint_early_stop

from placewright.capture import CaptureWarning, capture, capture_step
from placewright.capture.work import kind_of
from placewright.errors import CaptureError
from placewright.graph import BACKWARD, FORWARD
from tests.models import Checkpointed, Nested, Selective

ATEN = torch.ops.aten
VIEWS = {"t", "view", "detach", "expand", "empty", "add"}
"""What costs nothing (a checkpoint keeps its inputs by an empty tensor), and sums, which torch makes in place."""


class Log(TorchDispatchMode):
    """The kinds of the operators that run."""

    def __init__(self):
        super().__init__()
        self.kinds = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.kinds.append(kind_of(func))
        return func(*args, **(kwargs or {}))


class Calls(nn.Module):
    """Checkpointed calls of two layers; `do` makes them."""

    def __init__(self, do):
        super().__init__()
        self.first, self.a, self.b, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.do = do

    def forward(self, x):
        return self.last(self.do(self, self.first(x))).sum()


def layers(net, x):
    return net.b(torch.tanh(net.a(x)))


def without_early_stop(net, x):
    with set_checkpoint_early_stop(False):
        return checkpoint(lambda x: layers(net, x), x, use_reentrant=False)


def inner_at_the_end(net, x):
    """The outer call ends with the inner one, so that its repetition stops before that."""
    inner = functools.partial(checkpoint, lambda x: torch.tanh(net.b(x)), use_reentrant=False)
    return checkpoint(lambda x: inner(torch.tanh(net.a(x))), x, use_reentrant=False)


def both_read(net, x):
    """The outer call reads what the inner one returns and what it is given."""
    inner = functools.partial(checkpoint, lambda x: torch.tanh(net.b(x)), use_reentrant=False)

    def outer(x):
        x = torch.tanh(net.a(x))
        return torch.sin(inner(x)) * x

    return checkpoint(outer, x, use_reentrant=False)


def eager_kinds(model, x):
    """The kinds of a step of torch itself, forward and backward."""
    with Log() as log:
        model(x).backward()
    return [kind for kind in log.kinds if kind not in VIEWS]


def kinds_of(graph):
    """The kinds of forward and backward operations, in program order."""
    rows = zip(graph.kinds, graph.phase.tolist(), strict=True)
    return [kind for kind, phase in rows if phase in (FORWARD, BACKWARD) and kind not in VIEWS]


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize(
    ("model", "width"),
    [
        (Checkpointed(), 8),
        (Nested(), 6),
        (Nested(reentrant=True), 6),
        (Selective(), 6),
        (Selective([ATEN.addmm.default, ATEN.tanh.default]), 6),
        (Selective(lambda *_, **__: True), 6),
        (Calls(lambda net, x: checkpoint(lambda x: layers(net, x), x, use_reentrant=False)), 4),
        (Calls(lambda net, x: checkpoint(lambda x: layers(net, x), x, use_reentrant=True)), 4),
        (Calls(without_early_stop), 4),
        (Calls(inner_at_the_end), 4),
        (Calls(both_read), 4),
    ],
    ids=[
        "plain",
        "nested",
        "nested-reentrant",
        "selective",
        "listed",
        "all-saved",
        "to-the-last-value",
        "reentrant",
        "no-early-stop",
        "inner-at-the-end",
        "both-read",
    ],
)
def test_the_operations_and_their_order_are_those_of_eager_execution(model, width):
    x = torch.randn(3, width)
    assert kinds_of(capture(model, x, optimizer="sgd")) == eager_kinds(model, x)


def readers(graph, name):
    """The phases of what reads the first output of an operation."""
    start, consumer = graph.consumers
    tensor = int(graph.out_start[graph.op(name)])
    return {int(graph.phase[op]) for op in consumer[start[tensor] : start[tensor + 1]].tolist()}


def test_what_nested_checkpoints_make_is_freed_in_the_forward_pass():
    """No backward operation reads what a call made the first time, nor what the outer repetition made of the inner."""
    graph = capture(Calls(both_read), torch.zeros(3, 4), optimizer="sgd")
    assert readers(graph, "tanh") == readers(graph, "tanh_1") == readers(graph, "sin") == {FORWARD}
    order = [n for n in graph.op_names if n in ("a.backward.addmm", "b.backward.addmm", "b.backward.addmm_1")]
    assert order == ["a.backward.addmm", "b.backward.addmm", "b.backward.addmm_1"]
    last = graph.op("b.backward.addmm_1")
    assert graph.after_start[last] < graph.after_start[last + 1]  # not before the backward pass has come to it


def test_what_a_policy_saves_is_read_by_the_backward_pass():
    graph = capture(
        Calls(lambda net, x: checkpoint(
            lambda x: torch.sin(layers(net, x)), x, use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts([ATEN.addmm.default]),
        )), torch.zeros(3, 4), optimizer="sgd",
    )  # fmt: skip
    assert readers(graph, "a.addmm") == {FORWARD, BACKWARD}
    assert [n for n in graph.op_names if "backward.addmm" in n] == []
    assert sum(graph.recompute) == 1  # the activation between them


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kernel", ["flash", "efficient"])
def test_a_policy_may_name_the_kernels_of_a_gpu(dropout, kernel):
    """Attention is saved, though a CPU has another operator for it."""
    operator = getattr(ATEN, f"_scaled_dot_product_{kernel}_attention").default

    def attend(net, x):
        return F.scaled_dot_product_attention(net.a(x), net.b(x), x, dropout_p=dropout)

    def selected(net, x):
        contexts = functools.partial(create_selective_checkpoint_contexts, [operator])
        x = x.view(1, 1, *x.shape)
        return checkpoint(lambda x: torch.sin(attend(net, x)), x, use_reentrant=False, context_fn=contexts)

    graph = capture(Calls(selected), torch.zeros(3, 4), optimizer="sgd")
    assert graph.kinds.count("scaled_dot_product_attention") == 1
    assert graph.kinds.count("addmm") == 1 + 2 + 1 + 2  # what it reads is computed again


def test_other_contexts_of_a_checkpoint_are_told():
    """They are left out, and the call is repeated whole."""
    net = Calls(lambda net, x: checkpoint(
        lambda x: layers(net, x), x, use_reentrant=False,
        context_fn=lambda: (contextlib.nullcontext(), contextlib.nullcontext()),
    ))  # fmt: skip
    with pytest.warns(CaptureWarning, match="a checkpoint has contexts"):
        graph = capture(net, torch.zeros(3, 4), optimizer="sgd")
    assert any(graph.recompute)
    assert capture_step(Selective(), torch.zeros(3, 6), optimizer="sgd").notes == ()


def test_a_policy_that_fails_is_told():
    def policy(ctx, target, *args, **kwargs):
        raise ValueError("no idea")

    with pytest.raises(CaptureError, match=r"the policy of a selective checkpoint raises ValueError: no idea"):
        capture(Selective(policy), torch.zeros(3, 6), optimizer="sgd")

"""Capture of tensors that a model keeps as plain attributes: what they cost, who reads them, and how they are left."""

import copy
import sys
from collections import namedtuple

import pytest
import torch
from torch import nn

import placewright as pw
from placewright.capture import capture_step
from placewright.errors import CaptureError
from tests.replay import Replay, attribute, eager_step
from tests.test_capture_ways import halves

TRACE = sys.modules["placewright.capture.trace"]
WAYS = ["export", "make_fx"]
Pair = namedtuple("Pair", "first second")


def refused(*_):
    """Stands for a way that cannot take a model."""
    raise RuntimeError("not this one")


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Every way that takes plain models."""
    if request.param == "make_fx":
        monkeypatch.setattr(TRACE, "_exported", refused)
    return request.param


class Holder:
    """An object that is no module and keeps a tensor."""

    def __init__(self, size):
        self.t = torch.arange(float(size))


class Rope(nn.Module):
    """Layers that all read slices of one table."""

    def __init__(self, layers=8):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(layers))
        self.rope = torch.linspace(0.5, 1.5, 64 * 8).view(64, 8)
        self.unused = [torch.zeros(1000)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) * self.rope[: len(x)]
        return x.square().mean()


class Written(nn.Module):
    """Reads and writes tensors in lists, dictionaries, tuples, objects and in a module that is not registered."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.inner = nn.Module()
        self.inner.ts, self.cache = [torch.ones(4)], {"k": torch.zeros(6, 4), 3: (torch.ones(4), 2)}
        self.pair, self.holder = Pair(torch.ones(4), "word"), Holder(4)
        self.apart = [nn.Linear(4, 4).requires_grad_(False)]
        self.weight = self.a.weight.data

    def forward(self, x):
        y = self.a(x)
        with torch.no_grad():
            self.inner.ts[0].add_(1.0)
            self.cache["k"][:2].copy_(y)
            self.holder.t[1:].mul_(2.0)
        y = self.apart[0](y + self.inner.ts[0]) + self.cache["k"][:2] * self.cache[3][0] + self.pair.first
        with torch.no_grad():
            self.inner.ts[0].mul_(3.0)
        return (y * self.inner.ts[0] * self.holder.t).sum() + (y @ self.weight).sum()


def attributes_of(model):
    """The tensors that `Written` writes."""
    return [model.inner.ts[0], model.cache["k"], model.holder.t]


# ---- what is in the graph ----------------------------------------------------------------------


def test_a_table_that_all_layers_read_is_there_once(way):
    """It takes its bytes once; its slices are views, and what nobody reads is not there."""
    found = capture_step(Rope(), torch.zeros(4, 8), optimizer="sgd")
    graph = found.graph
    assert found.method == way
    assert graph.persistent_bytes == 8 * 8 * 8 * 4 + 64 * 8 * 4
    rope = graph.op("rope")
    assert graph.kinds[rope] == "parameter"
    slices = [op for op, kind in enumerate(graph.kinds) if kind == "slice"]
    assert len(slices) == 8
    assert {int(graph.tensor_storage[graph.out_start[op]]) for op in slices} == {int(graph.out_start[rope])}


def test_a_step_with_attributes_is_eager_execution(way):
    """Loss, gradients and what the model writes, in program order and in any other that the edges allow."""
    torch.manual_seed(5)
    model, x = Written(), torch.randn(2, 4)
    found = capture_step(model, x, optimizer="sgd")
    assert found.method == way
    eager = copy.deepcopy(model)
    loss, grads = eager_step(eager, (x,), {}, "sgd", lambda out: out)
    for seed in (None, 0, 1, 2):
        played = copy.deepcopy(model)
        (output,), gradients = Replay(found, played, {"x": x}).run(seed)
        assert torch.allclose(output, loss, rtol=1e-5)
        for name, grad in grads.items():
            assert torch.allclose(gradients[found.held[name]], grad, atol=1e-6), name
        for name, tensor in eager.state_dict().items():
            assert torch.allclose(played.state_dict()[name], tensor, atol=1e-6), name
        for mine, theirs in zip(attributes_of(played), attributes_of(eager), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-6)


def test_names_scopes_and_stores_of_attributes():
    """Paths and modules are those of the model, what is written has a store, an alias is the parameter itself."""
    found = capture_step(Written(), torch.zeros(2, 4), optimizer="sgd")
    scopes = dict(zip(found.graph.op_names, found.graph.scopes, strict=True))
    names = ["cache.k", "cache.3.0", "pair.0", "inner.ts.0", "holder.t", "apart.0.weight", "apart.0.bias"]
    assert {name: scopes[name] for name in names} == {
        **dict.fromkeys(names, ""), "inner.ts.0": "inner", "apart.0.weight": "apart.0", "apart.0.bias": "apart.0",
    }  # fmt: skip
    stores = {name for name in scopes if name.endswith(".store") and not name.startswith("a.")}
    assert stores == {"cache.k.store", "inner.ts.0.store", "holder.t.store"}
    assert "weight" not in scopes


def test_a_cache_that_is_written_first_is_one_tensor(way):
    """The write has a store, and the product reads what was written."""

    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.k = nn.Linear(4, 4), torch.zeros(8, 4)

        def forward(self, x):
            self.k[:2] = self.a(x)
            return self.k @ self.k.T

    found = capture_step(Cache(), torch.zeros(2, 4))
    graph = found.graph
    assert (found.method, graph.persistent_bytes) == (way, 4 * (16 + 4 + 32))
    assert "k.store" in graph.op_names
    product = graph.kinds.index("mm")
    read = graph.in_tensor[graph.in_start[product] : graph.in_start[product + 1]]
    assert {graph.kinds[graph.tensor_op[t]] for t in read} == {"copy"}


def test_attributes_after_a_way_that_failed():
    """What torch.export leaves behind where it fails does not hide a list from the next ways."""

    class Halving(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.ts = nn.Linear(4, 6), [[torch.ones(3)]]

        def forward(self, x):
            left, right = halves(self.a(x))
            with torch.no_grad():
                self.ts[0][0].add_(1)
            return (left - right + self.ts[0][0]).square().mean()

    model = Halving()
    found = capture_step(model, torch.zeros(2, 4), optimizer="sgd")
    assert found.method == "draft-export"
    assert "ts.0.0.store" in found.graph.op_names
    assert torch.equal(model.ts[0][0], torch.ones(3))


def test_backward_operations_do_not_belong_to_constants(monkeypatch):
    """By make_fx an operation of the backward pass is where its first input is, which a constant is not."""
    monkeypatch.setattr(TRACE, "_exported", refused)

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(self.a(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum()

    graph = capture_step(Scaled(), torch.zeros(2, 4), optimizer="sgd").graph
    assert any(name.startswith("constant.") for name in graph.op_names)
    assert not any(scope.startswith("constant") for scope in graph.scopes)
    assert "b.backward.mm" in graph.op_names


# ---- constants ---------------------------------------------------------------------------------

TABLE = torch.linspace(0.0, 1.0, 12).view(4, 3)


class Global(nn.Module):
    """Reads a tensor that no module keeps, and may write it."""

    def __init__(self, writes=False):
        super().__init__()
        self.a, self.writes = nn.Linear(3, 3), writes

    def forward(self, x):
        table = TABLE
        if self.writes:
            table.add_(0.0)
        return (self.a(x) * table[:2] + self.a(x) * table[2:]).sum()


def test_a_tensor_that_no_module_keeps_is_one_constant(way):
    """However often it is read, and its slices are views; any order gives the loss of eager execution."""
    model, x = Global(), torch.ones(2, 3)
    found = capture_step(model, x, optimizer="sgd")
    assert found.method == way
    assert found.graph.persistent_bytes == 4 * (9 + 3 + 12)
    for seed in (None, 0):
        (output,), _ = Replay(found, copy.deepcopy(model), {"x": x}).run(seed)
        assert torch.allclose(output, model(x))


def test_a_constant_that_is_written_is_refused(way):
    with pytest.raises(CaptureError, match=r"neither a parameter, nor a buffer.*register_buffer"):
        capture_step(Global(writes=True), torch.ones(2, 3))


def test_an_attribute_may_decide_what_is_computed_by_its_value():
    """Single numbers have values then, and other small tensors if that is not enough; written, they are refused."""

    class Powers(nn.Module):
        def __init__(self, writes):
            super().__init__()
            self.a, self.count, self.table, self.writes = nn.Linear(3, 3), torch.tensor(3), torch.ones(2000, 3), writes

        def forward(self, x):
            for _ in range(int(self.count)):
                x = self.a(x)
            if self.writes:
                self.count.add_(1)
            return (x * self.table[:2]).sum()

    model = Powers(writes=False)
    graph = capture_step(model, torch.ones(2, 3), optimizer="sgd").graph
    assert graph.kinds.count("addmm") == 3
    assert "table" in graph.op_names
    with pw.fake_tensors():
        model = Powers(writes=False)
    assert capture_step(model, torch.ones(2, 3), optimizer="sgd").graph.kinds.count("addmm") == 3
    model = Powers(writes=True)
    with pytest.raises(CaptureError, match="depends on the values of tensors"):
        capture_step(model, torch.ones(2, 3), optimizer="sgd")
    assert int(model.count) == 3
    model = Powers(writes=False)
    model.idle = nn.Linear(1, 1)
    with pytest.raises(CaptureError, match="no gradient reaches idle"):
        capture_step(model, torch.ones(2, 3), optimizer="sgd")


def test_attributes_that_overlap():
    """Each has bytes of its own as long as none is written, which would change the other."""

    class Halves(nn.Module):
        def __init__(self, writes):
            super().__init__()
            self.both = torch.ones(4, 6)
            self.left, self.right = self.both.chunk(2, 1)
            self.low, self.high = torch.ones(4, 6).chunk(2, 0)
            self.writes = writes

        def forward(self, x):
            if self.writes == "left":
                self.left.add_(1)
            if self.writes == "low":
                self.low.add_(1)
            return x * self.left + x * self.right + (x[:2] * self.low[:, :3]).sum() + self.high.sum()

    x = torch.ones(4, 3)
    assert capture_step(Halves(""), x).graph.persistent_bytes == 4 * (12 + 12 + 12 + 12)
    assert "low.store" in capture_step(Halves("low"), x).graph.op_names
    with pytest.raises(CaptureError, match="left is written here and shares bytes with right"):
        capture_step(Halves("left"), x)


# ---- the model is left as it was ---------------------------------------------------------------


class Messy(nn.Module):
    """Registers, appends and assigns while it runs."""

    def __init__(self):
        super().__init__()
        self.a, self.log, self.table, self.last = nn.Linear(4, 4), [], {}, None
        self.ts = [torch.zeros(4)]
        self.holder = Holder(4)

    def forward(self, x):
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.ones(4))
            self.late = nn.ReLU()
        y = self.late(self.a(x) * self.mask)
        self.log.append(y.detach())
        self.table["y"] = self.last = self.holder.seen = y.detach()
        with torch.no_grad():
            self.ts[0].add_(1)
            self.holder.t.add_(1)
        return (y + self.ts[0] + self.holder.t).sum()


@pytest.mark.parametrize("optimizer", [None, "sgd"])
@pytest.mark.parametrize("fake", [False, True])
def test_the_model_is_left_as_it_was(way, optimizer, fake):
    """Whatever it registers, appends, assigns and writes; a model without memory too."""
    if fake:
        with pw.fake_tensors():
            model, x = Messy(), torch.zeros(2, 4)
    else:
        model, x = Messy(), torch.zeros(2, 4)
    parts = [list(model.named_parameters()), list(model.modules()), model.ts[0], model.holder.t]
    before = {name: (id(p), p.requires_grad) for name, p in model.named_parameters()}
    found = capture_step(model, x, optimizer=optimizer)
    assert found.method == way
    assert {name: (id(p), p.requires_grad) for name, p in model.named_parameters()} == before
    assert (model.log, model.table, model.last) == ([], {}, None)
    assert (list(model._buffers), list(model._modules), list(vars(model.holder))) == ([], ["a"], ["t"])
    assert len(model.ts) == 1
    assert model.ts[0] is parts[2]
    assert model.holder.t is parts[3]
    if not fake:
        assert torch.equal(model.ts[0], torch.zeros(4))
        assert torch.equal(model.holder.t, torch.arange(4.0))
        assert model(x).isfinite()


def test_inference_first_then_training():
    """A model without memory can still be trained after its inference pass was captured."""
    with pw.fake_tensors():
        model, x = nn.Linear(4, 4), torch.zeros(2, 4)
    pw.capture(model, x)
    assert all(p.requires_grad for p in model.parameters())
    assert "weight.update" in pw.capture(model, x, optimizer="sgd", loss=lambda out: out.sum()).op_names


def test_a_loss_with_tensors_of_its_own(way):
    """Its buffers and attributes are in the graph as those of the model are."""

    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.c, self.scale = nn.CrossEntropyLoss(weight=torch.ones(5)), [torch.ones(())]

        def forward(self, out):
            return self.c(out, torch.zeros(len(out), dtype=torch.long)) * self.scale[0]

    graph = capture_step(nn.Linear(4, 5), torch.zeros(2, 4), optimizer="sgd", loss=Weighted()).graph
    assert {"loss.c.weight", "loss.scale.0"} <= set(graph.op_names)
    assert graph.persistent_bytes == 4 * (20 + 5 + 5 + 1)


# ---- without memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["fake", "two modes", "meta", "real inputs"])
def test_models_without_memory_are_as_real_ones(where, way):
    """Also with plain attributes, in fake tensors of two modes, and on the meta device."""
    usual = capture_step(Rope(3), torch.zeros(4, 8), optimizer="sgd")
    with torch.device("meta") if where == "meta" else pw.fake_tensors():
        model, x = Rope(3), torch.zeros(4, 8)
    if where == "two modes":
        with pw.fake_tensors():
            x = torch.zeros(4, 8)
    elif where == "real inputs":
        x = torch.zeros(4, 8)
    found = capture_step(model, x, optimizer="sgd")
    assert found.method == usual.method == way
    assert (found.graph.op_names, found.graph.scopes) == (usual.graph.op_names, usual.graph.scopes)
    assert found.graph.persistent_bytes == usual.graph.persistent_bytes


def test_a_program_has_the_same_attributes(tmp_path):
    """A `.pt2` file of the model gives the same names and bytes."""
    from placewright.capture.exported import read_exported

    model, x = Rope(2), torch.zeros(4, 8)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "net.pt2")
    found, usual = read_exported(tmp_path / "net.pt2", optimizer="sgd"), capture_step(model, x, optimizer="sgd")
    assert found.graph.persistent_bytes == usual.graph.persistent_bytes
    assert set(found.held) == set(usual.held) == {"layers.0.weight", "layers.1.weight", "rope"}
    assert attribute(model, "rope") is model.rope

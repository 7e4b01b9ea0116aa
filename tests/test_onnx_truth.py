"""The ONNX importer against those who know: ONNX's own examples of every operator, ONNX Runtime, PyTorch's exporter."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from placewright.errors import FileError
from tests import onnx_models as m
from tests.onnx_models import const, model, node, onnx, outputs, read, value, weight

NOT_READ = (
    "is too old", "control flow", "of domain 'ai.onnx", "only tensors are read", "cannot be worked out",
)  # fmt: skip
DATA_DECIDE = ("image_decoder", "unique", "string_split", "range_bfloat16", "nonzero_bfloat16")


def all_examples():
    """ONNX's examples of all operators, with inputs and outputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return collect_testcases(None)


def shape_of(array):
    return tuple(array.shape if hasattr(array, "shape") else getattr(array, "dims", ()))


def test_shapes_of_every_operator_are_those_of_its_examples(tmp_path):
    """No shape is declared for outputs; small inputs that may decide shapes are given as constants."""
    read_all, refused = 0, []
    for case in all_examples():
        made, (given, wanted) = case.model, case.data_sets[0]
        for info, array in zip(made.graph.input, given, strict=False):
            if hasattr(array, "dtype") and array.size <= 2048 and (array.dtype.kind in "iub" or array.size < 9):
                made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), info.name))
        for info in made.graph.output:
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")
        try:
            graph = read(tmp_path, made)
        except FileError as error:
            refused.append((case.name, str(error)))
            continue
        read_all += 1
        found = {s for s, out in zip(graph.tensor_shapes or (), graph.tensor_output, strict=True) if out}
        assert found == {shape_of(array) for array in wanted}, case.name
        assert np.isfinite(graph.flops).all()
    assert read_all > 1500
    for name, said in refused:
        assert any(text in said for text in NOT_READ), f"{name}: {said}"
        assert "worked out" not in said or any(text in name for text in DATA_DECIDE), f"{name}: {said}"


def run_all(made, feeds):
    """Every value of a model as ONNX Runtime computes it, its optimiser off."""
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    every = onnx.ModelProto()
    every.CopyFrom(made)
    del every.graph.output[:]
    names = [name for n in made.graph.node for name in n.output if name]
    every.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = runtime.InferenceSession(every.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(None, feeds), strict=True))


def ids(*shape):
    return np.random.default_rng(1).integers(0, 50, shape)


def floats(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


WHOLE = {
    "convolutions": (m.convolutions, {"x": floats(2, 3, 32, 32)}, {}),
    "perceptron": (m.perceptron, {"x": floats(5, 16)}, {"batch": 5}),
    "attention": (m.attention, {"x": floats(3, 7, 32)}, {"batch": 3, "seq": 7}),
    "recurrent": (m.recurrent, {"ids": ids(9, 4)}, {"seq": 9, "batch": 4}),
}


@pytest.mark.parametrize("opset", [13, 17, m.RUNTIME])
@pytest.mark.parametrize("name", WHOLE)
def test_shapes_are_those_that_the_runtime_computes(tmp_path, name, opset):
    make, feeds, dims = WHOLE[name]
    made = make(opset)
    graph = read(tmp_path, made, dims)
    truth = run_all(made, feeds)
    checked = 0
    for n in made.graph.node:
        if n.name in graph.index:
            assert outputs(graph, n.name) == [truth[out].shape for out in n.output if out], n.name
            i = graph.op(n.name)
            sizes = graph.tensor_bytes[graph.out_start[i] : graph.out_start[i + 1]].tolist()
            assert sizes == [truth[out].nbytes for out in n.output if out], n.name
            checked += 1
    assert checked == len([n for n in made.graph.node if n.name])


B, S, D, N, E = 2, 6, 32, 4, 8
FUSED = [
    ("FusedMatMul", "x u", "y", [weight("u", D, D)], {"transB": 1}),
    ("Gelu", "x", "y", [], {}),
    ("BiasGelu", "x v", "y", [weight("v", D)], {}),
    ("FastGelu", "x v", "y", [weight("v", D)], {}),
    ("QuickGelu", "x", "y", [], {}),
    ("SkipLayerNormalization", "x x v v", "y _ _ sum", [weight("v", D)], {}),
    ("SkipSimplifiedLayerNormalization", "x x v", "y _ _ sum", [weight("v", D)], {}),
    ("Attention", "x u b", "y", [weight("u", D, 3 * D), weight("b", 3 * D)], {"num_heads": N}),
    ("Attention", "x u b _ past", "y present",
     [weight("u", D, 3 * D), weight("b", 3 * D), weight("past", 2, B, N, 3, E)], {"num_heads": N}),
    ("MultiHeadAttention", "x k v", "y", [weight("k", B, 9, D), weight("v", B, 9, D)], {"num_heads": N}),
    ("MultiHeadAttention", "x x x _ _ _ pk pv", "y a b",
     [weight("pk", B, N, 3, E), weight("pv", B, N, 3, E)], {"num_heads": N}),
    ("GroupQueryAttention", "x k v pk pv last total", "y a b",
     [weight("k", B, S, D // 2), weight("v", B, S, D // 2), weight("pk", B, 2, 0, E), weight("pv", B, 2, 0, E),
      const("last", [S - 1] * B, np.int32), const("total", [S], np.int32)], {"num_heads": N, "kv_num_heads": 2}),
    ("RotaryEmbedding", "x pos cos sin", "y",
     [const("pos", [0]), weight("cos", 16, E // 2), weight("sin", 16, E // 2)], {"num_heads": N}),
    ("MatMulNBits", "x packed scales", "y",
     [const("packed", np.ones((5, 2, 8)), np.uint8), weight("scales", 10)],
     {"K": D, "N": 5, "bits": 4, "block_size": 16}),
    ("FusedGemm", "flat w v", "y", [weight("flat", 3, D), weight("w", D, 5), weight("v", 5)], {"activation": "Relu"}),
    ("FusedConv", "img k", "y", [weight("img", 1, 3, 8, 8), weight("k", 4, 3, 3, 3)],
     {"activation": "Relu", "pads": [1, 1, 1, 1]}),
]  # fmt: skip


@pytest.mark.parametrize("case", FUSED, ids=lambda case: case[0])
def test_fused_operators_have_the_shapes_that_the_runtime_computes(tmp_path, case):
    op, inputs, outs, weights, attributes = case
    nodes = [node("Identity", "x0", "x", "id"), node(op, inputs, outs, "fused", "com.microsoft", **attributes)]
    named = [name for name in outs.split() if name != "_"]
    made = model(nodes, [value("x0", B, S, D)], named, weights, domains=[("com.microsoft", 1)])
    truth = run_all(made, {"x0": floats(B, S, D)})
    assert outputs(read(tmp_path, made), "fused") == [truth[name].shape for name in named]


def test_an_embedding_that_sums_three_tables(tmp_path):
    weights = [weight("w", 30, D), weight("p", 16, D), weight("s", 2, D), weight("g", D)]
    nodes = [node("EmbedLayerNormalization", "ids seg w p s g g", "y idx", "fused", "com.microsoft")]
    inputs = [value(name, B, S, code=m.INT32) for name in ("ids", "seg")]
    made = model(nodes, inputs, ["y"], weights, domains=[("com.microsoft", 1)])
    truth = run_all(made, {"ids": np.ones((B, S), np.int32), "seg": np.zeros((B, S), np.int32)})
    graph = read(tmp_path, made)
    assert outputs(graph, "fused") == [truth["y"].shape, truth["idx"].shape]
    assert graph.bytes_read[graph.op("fused")] == 2 * B * S * 4 + 3 * B * S * D * 4 + D * 4


def test_what_pytorch_exports_is_read(tmp_path):
    """A transformer layer and an LSTM: the same parameters to the byte, and the products of the formula."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(100, 64)
            self.layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
            self.lstm = torch.nn.LSTM(64, 32, batch_first=True)

        def forward(self, x):
            return self.lstm(self.layer(self.table(x)))[0]

    net = Net().eval()
    for parameter in net.parameters():  # the exporter stores equal weights once
        torch.nn.init.normal_(parameter)
    path = tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (torch.zeros(2, 16, dtype=torch.long),), path, dynamo=False, opset_version=17, input_names=["ids"],
            output_names=["y"], dynamic_axes={"ids": {0: "batch", 1: "seq"}},
        )  # fmt: skip
    graph = m.workload_of(path, {"batch": 2, "seq": 16}).graph
    assert graph.persistent_bytes == sum(p.numel() * 4 for p in net.parameters())
    tokens = 2 * 16
    projections = 2 * tokens * (64 * 192 + 64 * 64 + 2 * 64 * 128)
    products = projections + 2 * 2 * 2 * 16 * 16 * 64 + 2 * tokens * 4 * 32 * (64 + 32)
    chosen = [k in ("mm", "bmm", "addmm", "lstm") for k in graph.kinds]
    assert graph.flops[chosen].sum() == products
    assert {"table", "layer.self_attn", "layer.norm1", "lstm"} <= set(graph.scopes)

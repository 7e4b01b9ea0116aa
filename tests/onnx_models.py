"""Small ONNX models that the tests of the importer share."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the extra 'onnx'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from placewright.importers.onnx import workload_of  # noqa: E402

FLOAT, INT64, INT32, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
NEWEST = onnx.defs.onnx_opset_version()
RUNTIME = min(NEWEST, 22)
"""An operator set that ONNX Runtime runs without a warning."""


def node(op, inputs, outputs="y", name="", domain="", **attributes):
    """A node; inputs and outputs are names with spaces between, `_` for one that is left out."""
    split = [["" if part == "_" else part for part in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *split, name=name, domain=domain, **attributes)


def value(name, *shape, code=FLOAT):
    """A declared tensor."""
    return helper.make_tensor_value_info(name, code, shape)


def weight(name, *shape, dtype=np.float32, seed=0):
    """A weight of small random numbers."""
    data = np.random.default_rng(seed).standard_normal(shape) * 0.1
    return numpy_helper.from_array(data.astype(dtype), name)


def const(name, values, dtype=np.int64):
    """A weight with these values."""
    return numpy_helper.from_array(np.array(values, dtype), name)


def model(nodes, inputs, outputs, weights=(), opset=RUNTIME, **more):
    """A model; outputs given as names have no declared shape."""
    outs = [helper.make_empty_tensor_value_info(o) if isinstance(o, str) else o for o in outputs]
    for out, given in zip(outs, outputs, strict=True):
        if isinstance(given, str):
            out.type.tensor_type.elem_type = FLOAT
    infos = more.pop("value_info", ())
    graph = helper.make_graph(list(nodes), "g", list(inputs), outs, list(weights), value_info=list(infos))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in more.pop("domains", ()))]
    return helper.make_model(graph, opset_imports=imports, ir_version=more.pop("ir_version", 9), **more)


def read(folder, made, dims=None, name="m.onnx"):
    """The graph of a model, by way of a file."""
    (folder / name).write_bytes(made.SerializeToString())
    return workload_of(folder / name, dims).graph


def outputs(graph, name):
    """Shapes of what an operation makes."""
    i = graph.op(name)
    return [graph.tensor_shapes[t] for t in range(graph.out_start[i], graph.out_start[i + 1])]


def ops(graph, phase="forward"):
    """Name to kind of the operations of a phase."""
    from placewright.graph import PHASES

    return {n: k for n, k, p in zip(graph.op_names, graph.kinds, graph.phase, strict=True) if PHASES[p] == phase}


def convolutions(opset=RUNTIME):
    """A small convolutional network."""
    nodes = [
        node("Conv", "x w1 b1", "c1", "conv1", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", "c1 s b1 b1 s", "n1", "bn"),
        node("Relu", "n1", "r1", "relu"),
        node("MaxPool", "r1", "p1", "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p1 w2", "c2", "conv2", group=4),
        node("ConvTranspose", "c2 w3", "c3", "up", strides=[2, 2]),
        node("GlobalAveragePool", "c3", "g1", "gap"),
        node("Flatten", "g1", "f1", "flat"),
        node("Gemm", "f1 w4 b4", "y", "fc", transB=1),
    ]
    weights = [weight("w1", 8, 3, 3, 3), weight("b1", 8), const("s", [1.0] * 8, np.float32), weight("w2", 16, 2, 3, 3),
               weight("w3", 16, 6, 2, 2), weight("w4", 10, 6), weight("b4", 10)]  # fmt: skip
    return model(nodes, [value("x", 2, 3, 32, 32)], ["y"], weights, opset)


def perceptron(opset=RUNTIME):
    """Two dense layers with an open batch."""
    nodes = [
        node("MatMul", "x w1", "a", "/fc1/MatMul"),
        node("Add", "a b1", "b", "/fc1/Add"),
        node("Relu", "b", "c", "/act/Relu"),
        node("Gemm", "c w2 b2", "y", "/fc2/Gemm"),
    ]
    weights = [weight("w1", 16, 32), weight("b1", 32), weight("w2", 32, 4), weight("b2", 4)]
    return model(nodes, [value("x", "batch", 16)], [value("y", "batch", 4)], weights, opset)


def attention(opset=RUNTIME):
    """Self-attention whose shapes are worked out in the graph, as exporters write it: Shape to Gather to Reshape."""
    nodes = [
        node("Shape", "x", "s"),
        *(node("Gather", f"s i{k}", f"d{k}") for k in (0, 1)),
        *(node("Unsqueeze", f"d{k} zero", f"u{k}") for k in (0, 1)),
        node("Constant", "", "heads", value_ints=[4]),
        node("Constant", "", "wide", value_ints=[-1]),
        node("Concat", "u0 u1 heads wide", "split", axis=0),
        node("Mul", "u0 u1", "rows"),
        node("Concat", "rows wide", "flatten", axis=0),
        node("Concat", "u0 u1 wide", "merged", axis=0),
        node("Reshape", "x flatten", "x2", "rows"),
        *(node("Gemm", f"x2 w{p} b{p}", f"{p}1", f"proj_{p}") for p in "qkv"),
        *(node("Reshape", f"{p}1 split", f"{p}2", f"split_{p}") for p in "qkv"),
        *(
            node("Transpose", f"{p}2", f"{p}3", f"t_{p}", perm=[0, 2, 3, 1] if p == "k" else [0, 2, 1, 3])
            for p in "qkv"
        ),
        node("MatMul", "q3 k3", "scores", "scores"),
        node("Shape", "q3", "qs"),
        node("Slice", "qs last end", "hd"),
        node("Cast", "hd", "hdf", to=FLOAT),
        node("Sqrt", "hdf", "root"),
        node("Div", "scores root", "scaled", "scale"),
        node("Softmax", "scaled", "probs", "probs", axis=-1),
        node("MatMul", "probs v3", "mixed", "mixed"),
        node("Transpose", "mixed", "back", "t_out", perm=[0, 2, 1, 3]),
        node("Reshape", "back merged", "y", "merge"),
    ]
    weights = [const("i0", 0), const("i1", 1), const("zero", [0]), const("last", [-1]), const("end", [1 << 62]),
               *(weight(f"w{p}", 32, 32) for p in "qkv"), *(weight(f"b{p}", 32) for p in "qkv")]  # fmt: skip
    return model(nodes, [value("x", "batch", "seq", 32)], ["y"], weights, opset)


def recurrent(opset=RUNTIME):
    """An embedding and a bidirectional LSTM, then a GRU."""
    nodes = [
        node("Gather", "table ids", "e", "lookup"),
        node("LSTM", "e wl rl bl", "h hn _", "lstm", hidden_size=12, direction="bidirectional"),
        node("Transpose", "h", "ht", "t", perm=[0, 2, 1, 3]),
        node("Reshape", "ht keep", "flat", "flat"),
        node("GRU", "flat wg rg", "y", "gru", hidden_size=6),
    ]
    weights = [weight("table", 50, 8), weight("wl", 2, 48, 8), weight("rl", 2, 48, 12), weight("bl", 2, 96),
               const("keep", [0, 0, -1]), weight("wg", 1, 18, 24), weight("rg", 1, 18, 6)]  # fmt: skip
    return model(nodes, [value("ids", "seq", "batch", code=INT64)], ["y"], weights, opset)

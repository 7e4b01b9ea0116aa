"""ONNX models: what becomes an operation, what it costs, what is a view, what is nothing at all."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.costs.roofline import class_of
from placewright.fingerprints import workload_fingerprint
from placewright.formats import dumps_graph, loads_graph
from placewright.importers import read_workload
from placewright.problem import Problem
from placewright.sim.simulate import simulate
from tests import onnx_models as m
from tests.onnx_models import const, helper, model, node, ops, outputs, read, value, weight


def one(folder, op, inputs, given, weights=(), outs="y", dims=None, **attributes):
    """The graph of a model of one node called `it`; `given` are shapes, or declared tensors."""
    domain = attributes.pop("domain", "")
    opset = attributes.pop("opset", m.RUNTIME)
    declared = [i if not isinstance(i, tuple) else value(i[0], *i[1:]) for i in given]
    made = model(
        [node(op, inputs, outs, "it", domain, **attributes)], declared, [o for o in outs.split() if o != "_"], weights,
        opset, domains=[("com.microsoft", 1)],
    )  # fmt: skip
    return read(folder, made, dims)


def work(graph, name="it"):
    """Kind, flops, bytes read, bytes written."""
    i = graph.op(name)
    return graph.kinds[i], graph.flops[i], int(graph.bytes_read[i]), int(graph.bytes_written[i])


PRODUCTS = [  # operator, inputs, shapes of inputs, attributes, kind, flops by hand
    ("MatMul", "a b", [("a", 5, 7), ("b", 7, 3)], {}, "mm", 2 * 5 * 7 * 3),
    ("MatMul", "a b", [("a", 4, 5, 7), ("b", 7, 3)], {}, "bmm", 2 * 4 * 5 * 7 * 3),
    ("MatMul", "a b", [("a", 7), ("b", 7)], {}, "bmm", 2 * 7),
    ("Gemm", "a b", [("a", 5, 7), ("b", 7, 3)], {}, "mm", 2 * 5 * 7 * 3),
    ("Gemm", "a b c", [("a", 7, 5), ("b", 3, 7), ("c", 3)], {"transA": 1, "transB": 1}, "addmm", 2 * 5 * 7 * 3),
    ("Conv", "x w", [("x", 2, 6, 9, 9), ("w", 8, 3, 3, 3)], {"group": 2}, "convolution", 2 * 2 * 8 * 49 * 27),
    ("ConvTranspose", "x w", [("x", 2, 6, 4, 4), ("w", 6, 5, 3, 3)], {}, "convolution", 2 * 2 * 16 * 6 * 5 * 9),
    ("LSTM", "x w r", [("x", 9, 2, 5), ("w", 1, 16, 5), ("r", 1, 16, 4)], {"hidden_size": 4}, "lstm",
     2 * 18 * 16 * 9),
    ("GRU", "x w r", [("x", 9, 2, 5), ("w", 2, 12, 5), ("r", 2, 12, 4)],
     {"hidden_size": 4, "direction": "bidirectional"}, "gru", 2 * 18 * 2 * 12 * 9),
    ("RNN", "x w r", [("x", 9, 2, 5), ("w", 1, 4, 5), ("r", 1, 4, 4)], {"hidden_size": 4}, "rnn_tanh", 2 * 18 * 4 * 9),
    ("Einsum", "a b", [("a", 2, 3, 4), ("b", 2, 4, 5)], {"equation": "bij,bjk->bik"}, "einsum", 2 * 2 * 3 * 4 * 5),
    ("Einsum", "a b", [("a", 3), ("b", 4)], {"equation": "i,j->ij"}, "einsum", 12),
    ("Einsum", "a b", [("a", 2, 3, 4), ("b", 4, 5)], {"equation": "...j,jk"}, "einsum", 2 * 2 * 3 * 4 * 5),
    ("Einsum", "a b c", [("a", 3, 4), ("b", 4, 5), ("c", 5, 6)], {"equation": "ij,jk,kl->il"}, "einsum",
     2 * 3 * 4 * 5 + 2 * 3 * 5 * 6),
]  # fmt: skip


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: f"{case[0]}-{case[5]}")
def test_a_product_counts_two_flops_for_each_multiplication(tmp_path, case):
    op, inputs, given, attributes, kind, flops = case
    graph = one(tmp_path, op, inputs, given, **attributes)
    read_bytes = sum(4 * int(np.prod(shape[1:])) for shape in given)
    written = sum(4 * int(np.prod(s)) for s in outputs(graph, "it"))
    assert work(graph) == (kind, flops, read_bytes, written)


@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (4, 2)])
def test_attention_counts_both_products(tmp_path, heads, shared):
    given = [("q", 2, 5, heads * 8), ("k", 2, 7, shared * 8), ("v", 2, 7, shared * 6)]
    graph = one(tmp_path, "Attention", "q k v", given, opset=23, q_num_heads=heads, kv_num_heads=shared)
    assert work(graph)[:2] == ("scaled_dot_product_attention", 2 * 2 * heads * 5 * 7 * (8 + 6))
    assert outputs(graph, "it") == [(2, 5, heads * 6)]


def test_attention_with_a_past_looks_at_it_too(tmp_path):
    given = [("q", 2, 4, 5, 8), ("k", 2, 4, 7, 8), ("v", 2, 4, 7, 8), ("pk", 2, 4, 3, 8), ("pv", 2, 4, 3, 8)]
    graph = one(tmp_path, "Attention", "q k v _ pk pv", given, outs="y a b", opset=23)
    assert work(graph)[1] == 2 * 2 * 4 * 5 * 10 * 16
    assert outputs(graph, "it")[1] == (2, 4, 10, 8)


FUSED = [
    ("FusedMatMul", "a b", [("a", 7, 5), ("b", 3, 7)], {"transA": 1, "transB": 1}, 2 * 5 * 7 * 3),
    ("Attention", "x w b", [("x", 2, 5, 8), ("w", 8, 24), ("b", 24)], {"num_heads": 2},
     2 * 10 * 8 * 24 + 2 * 2 * 5 * 5 * 16),
    ("MultiHeadAttention", "q k v", [("q", 2, 5, 8), ("k", 2, 9, 8), ("v", 2, 9, 8)], {"num_heads": 2},
     2 * 2 * 5 * 9 * 16),
    ("SkipLayerNormalization", "x x g", [("x", 2, 5, 8), ("g", 8)], {}, 8 * 80),
    ("FastGelu", "x", [("x", 2, 5)], {}, 100),
]  # fmt: skip


@pytest.mark.parametrize("case", FUSED, ids=lambda case: case[0])
def test_fused_operators_count_what_they_fuse(tmp_path, case):
    op, inputs, given, attributes, flops = case
    assert work(one(tmp_path, op, inputs, given, domain="com.microsoft", **attributes))[1] == flops


def test_weights_in_four_bits_count_half_a_byte(tmp_path):
    packed = const("b", np.zeros((6, 2, 8)), np.uint8)
    graph = one(tmp_path, "MatMulNBits", "a b s", [("a", 4, 32)], [packed, weight("s", 12)], domain="com.microsoft",
                K=32, N=6, bits=4, block_size=16)  # fmt: skip
    assert work(graph) == ("matmul_nbits", 2 * 4 * 32 * 6, 4 * 32 * 4 + 6 * 16 + 48, 4 * 6 * 4)
    assert graph.dtypes[graph.op("it")] == "float32"
    assert graph.tensor_bytes[graph.out_start[graph.op("b")]] == 96


ELEMENTWISE = [
    ("Add", "a a", [("a", 3, 4)], {}, "add", 12, 48),
    ("Relu", "a", [("a", 3, 4)], {}, "relu", 12, 48),
    ("Softmax", "a", [("a", 3, 4)], {}, "softmax", 60, 48),
    ("Transpose", "a", [("a", 3, 4)], {}, "clone", 0, 48),
    ("Cast", "a", [("a", 3, 4)], {"to": m.TensorProto.FLOAT16}, "to_copy", 0, 48),
    ("ReduceMean", "a", [("a", 3, 4)], {}, "mean", 12, 48),
    ("LayerNormalization", "a g", [("a", 3, 4), ("g", 4)], {}, "layer_norm", 96, 64),
    ("MaxPool", "a", [("a", 1, 2, 4, 4)], {"kernel_shape": [2, 2]}, "max_pool2d_with_indices", 32, 128),
    ("Concat", "a b", [("a", 3, 4), ("b", 1, 4)], {"axis": 0}, "cat", 0, 64),
]


@pytest.mark.parametrize("case", ELEMENTWISE, ids=lambda case: case[0])
def test_the_rest_counts_by_the_element(tmp_path, case):
    op, inputs, given, attributes, kind, flops, read_bytes = case
    graph = one(tmp_path, op, inputs, given, **attributes)
    assert work(graph)[:3] == (kind, flops, read_bytes)


def test_a_lookup_reads_the_rows_that_it_finds(tmp_path):
    ids = value("ids", 2, 3, code=m.INT64)
    graph = one(tmp_path, "Gather", "t ids", [ids], [weight("t", 1000, 8)])
    assert work(graph) == ("embedding", 0.0, 6 * 8 + 6 * 8 * 4, 6 * 8 * 4)
    assert work(one(tmp_path, "Gather", "t ids", [ids], [weight("t", 10, 8)], axis=1))[0] == "index_select"


def test_a_slice_reads_what_it_takes(tmp_path):
    graph = one(tmp_path, "Slice", "x a b", [("x", 100, 4)], [const("a", [0]), const("b", [2])])
    assert work(graph) == ("slice", 0.0, 32, 32)
    assert ops(graph, "parameter") == {}


def test_what_fills_reads_nothing(tmp_path):
    graph = one(tmp_path, "RandomNormalLike", "x", [("x", 50, 4)])
    assert work(graph) == ("normal", 0.0, 0, 800)


def test_a_recurrent_layer_holds_the_products_with_its_input(tmp_path):
    graph = one(tmp_path, "LSTM", "x w r", PRODUCTS[7][2], hidden_size=4)
    assert graph.workspace_bytes[graph.op("it")] == 9 * 2 * 16 * 4


def test_products_of_whole_numbers_run_at_their_rate(tmp_path):
    int8 = m.TensorProto.INT8
    given = [value("a", 5, 7, code=int8), value("b", 7, 3, code=int8)]
    made = model([node("MatMulInteger", "a b", "y", "it")], given, [value("y", 5, 3, code=m.INT32)])
    graph = read(tmp_path, made)
    assert (graph.dtypes[graph.op("it")], work(graph)) == ("int8", ("mm", 210.0, 56, 60))


def test_scales_of_one_number_are_no_parameters(tmp_path):
    scale, zero = const("s", 0.1, np.float32), const("z", 3, np.uint8)
    made = model([node("QuantizeLinear", "x s z", "y", "it")], [value("x", 4, 4)],
                 [value("y", 4, 4, code=m.TensorProto.UINT8)], [scale, zero])  # fmt: skip
    graph = read(tmp_path, made)
    assert ops(graph, "parameter") == {}
    assert work(graph) == ("quantize", 32.0, 64, 16)


# ---- parameters, views, constants ----------------------------------------------------------------


def test_parameters_are_those_of_the_file_to_the_byte(tmp_path):
    made = m.convolutions()
    graph = read(tmp_path, made)
    stored = {t.name: len(t.raw_data) for t in made.graph.initializer}
    found = {n: int(graph.tensor_bytes[graph.out_start[graph.op(n)]]) for n in ops(graph, "parameter")}
    assert found == stored
    assert graph.persistent_bytes == sum(stored.values())


def test_inputs_and_outputs_are_marked(tmp_path):
    graph = read(tmp_path, m.perceptron(), {"batch": 3})
    assert ops(graph, "input") == {"x": "input"}
    assert [graph.op_names[graph.tensor_op[t]] for t in np.flatnonzero(graph.tensor_output)] == ["/fc2/Gemm"]
    assert outputs(graph, "/fc2/Gemm") == [(3, 4)]
    assert graph.scopes[graph.op("/fc1/MatMul")] == "fc1"
    assert graph.scopes[graph.op("w1")] == "fc1"


def test_a_reshape_is_a_view_of_what_it_reads(tmp_path):
    nodes = [node("Relu", "x", "a", "relu"), node("Reshape", "a s", "b", "r1"), node("Unsqueeze", "b z", "c", "r2"),
             node("Identity", "c", "d", "r3"), node("Neg", "d", "y", "neg")]  # fmt: skip
    made = model(nodes, [value("x", 4, 6)], ["y"], [const("s", [2, -1]), const("z", [0])])
    graph = read(tmp_path, made)
    base = graph.out_start[graph.op("relu")]
    for name, kind in (("r1", "view"), ("r2", "unsqueeze"), ("r3", "alias")):
        i = graph.op(name)
        assert graph.tensor_storage[graph.out_start[i]] == base
        assert work(graph, name) == (kind, 0.0, 0, 0)
    assert outputs(graph, "r3") == [(1, 2, 12)]
    assert ops(graph, "parameter") == {}


def test_readers_of_a_reshaped_weight_read_the_weight(tmp_path):
    nodes = [node("Reshape", "w s", "v", "r1"), node("Flatten", "v", "u", "r2"), node("MatMul", "x u", "y", "mm")]
    made = model(nodes, [value("x", 2, 4)], ["y"], [weight("w", 8, 3), const("s", [4, 2, 3])])
    graph = read(tmp_path, made)
    assert ops(graph) == {"mm": "mm"}
    assert graph.op_names[graph.tensor_op[graph.in_tensor[1]]] in ("w", "x")
    assert ops(graph, "parameter") == {"w": "parameter"}


def test_a_reshaped_weight_that_is_an_output_keeps_its_shape(tmp_path):
    made = model([node("Reshape", "w s", "y", "r1")], [], ["y"], [weight("w", 8, 3), const("s", [4, 6])])
    graph = read(tmp_path, made)
    assert ops(graph, "parameter") == {"w": "parameter"}
    assert outputs(graph, "r1") == [(4, 6)]
    assert [graph.op_names[graph.tensor_op[t]] for t in np.flatnonzero(graph.tensor_output)] == ["r1"]


def test_a_weight_is_one_parameter_however_many_read_it(tmp_path):
    nodes = [node("MatMul", "x w", "a", "m1"), node("Transpose", "w", "t", "tr"), node("MatMul", "a t", "y", "m2")]
    graph = read(tmp_path, model(nodes, [value("x", 2, 4)], ["y"], [weight("w", 4, 4)]))
    assert graph.persistent_bytes == 64
    assert ops(graph) == {"m1": "mm", "tr": "clone", "m2": "mm"}


def test_a_dropout_in_inference_is_a_view_and_its_mask_is_not(tmp_path):
    nodes = [node("Relu", "x", "a", "relu"), node("Dropout", "a", "b", "drop"), node("Neg", "b", "y", "neg")]
    graph = read(tmp_path, model(nodes, [value("x", 4)], ["y"]))
    assert work(graph, "drop") == ("alias", 0.0, 0, 0)
    training = [const("r", 0.5, np.float32), const("t", True, np.bool_)]
    graph = one(tmp_path, "Dropout", "x r t", [("x", 4)], training)
    assert work(graph) == ("dropout", 12.0, 16, 16)


def test_arithmetic_on_shapes_is_no_operation(tmp_path):
    graph = read(tmp_path, m.attention(), {"batch": 2, "seq": 6})
    kinds = list(ops(graph).values())
    assert set(kinds) == {"view", "addmm", "clone", "bmm", "div", "softmax"}
    assert outputs(graph, "merge") == [(2, 6, 32)]
    # the division by a known number reads one tensor
    i = graph.op("scale")
    assert graph.in_start[i + 1] - graph.in_start[i] == 1


def test_what_only_gave_its_shape_is_left_out(tmp_path):
    nodes = [node("Transpose", "x", "t", "tr"), node("Shape", "t", "s"), node("Expand", "z s", "y", "grow")]
    graph = read(tmp_path, model(nodes, [value("x", 300, 400)], ["y"], [weight("z", 1)]))
    assert ops(graph) == {"grow": "repeat"}
    assert ops(graph, "input") == {"x": "input"}
    assert outputs(graph, "grow") == [(400, 300)]


def test_constants_that_are_read_are_parameters_and_single_numbers_are_not(tmp_path):
    table = helper.make_tensor("t", m.FLOAT, [3], [1.0, 2.0, 3.0])
    nodes = [
        node("Constant", "", "half", value_float=0.5), node("Constant", "", "three", value=table),
        node("Mul", "x half", "a", "mul"), node("Add", "a three", "b", "add"), node("Range", "o l d", "r"),
        node("Cast", "r", "rf", "cast", to=m.FLOAT), node("Add", "b rf", "y", "add2"),
    ]  # fmt: skip
    made = model(nodes, [value("x", 2, 3)], ["y"], [const(n, v) for n, v in (("o", 0), ("l", 3), ("d", 1))])
    graph = read(tmp_path, made)
    assert set(ops(graph, "parameter")) == {"three", "rf"}
    assert ops(graph) == {"mul": "mul", "add": "add", "add2": "add"}


def test_an_output_that_is_known_or_given_is_kept(tmp_path):
    nodes = [node("Shape", "x", "s"), node("Identity", "w", "v")]
    outs = [value("s", code=m.INT64), value("v"), value("x")]
    for out in outs:
        out.type.tensor_type.ClearField("shape")
    graph = read(tmp_path, model(nodes, [value("x", 2, 3)], outs, [weight("w", 4)]))
    assert [graph.op_names[graph.tensor_op[t]] for t in np.flatnonzero(graph.tensor_output)] == ["x", "w", "s"]


def test_values_in_less_than_a_byte_are_packed(tmp_path):
    packed = helper.make_tensor("w", m.TensorProto.INT4, [5], [1, 2, 3, 4, 5])
    made = model([node("DequantizeLinear", "w s", "y", "it")], [], ["y"], [packed, const("s", 0.5, np.float32)], 21,
                 ir_version=10)  # fmt: skip
    assert read(tmp_path, made).persistent_bytes == 3


# ---- functions, sizes, names -----------------------------------------------------------------------


def test_functions_of_the_file_are_inlined(tmp_path):
    body = [node("MatMul", "X W", "M", "mm"), helper.make_node("LeakyRelu", ["M"], ["Y"], name="act")]
    reference = onnx_attribute("alpha")
    body[1].attribute.append(reference)
    opsets = [helper.make_opsetid("", m.RUNTIME)]
    layer = helper.make_function("own", "Layer", ["X", "W"], ["Y"], body, opsets, ["alpha"])
    nodes = [node("Layer", "x w", "a", "one", "own", alpha=0.1), node("Layer", "a w", "y", "two", "own", alpha=0.2)]
    made = model(nodes, [value("x", 3, 4)], ["y"], [weight("w", 4, 4)], domains=[("own", 1)], functions=[layer])
    graph = read(tmp_path, made)
    assert list(ops(graph)) == ["one/mm", "one/act", "two/mm", "two/act"]
    assert outputs(graph, "two/act") == [(3, 4)]


def onnx_attribute(name):
    """An attribute that a function's body takes from its call."""
    attribute = m.onnx.AttributeProto(name=name, ref_attr_name=name)
    attribute.type = m.onnx.AttributeProto.FLOAT
    return attribute


@pytest.mark.parametrize("opset", [13, m.NEWEST])
def test_the_oldest_and_the_newest_operator_set_are_read(tmp_path, opset):
    graph = read(tmp_path, m.convolutions(opset))
    assert outputs(graph, "fc") == [(2, 10)]
    assert graph.flops.sum() > 0


def test_the_size_of_an_axis_scales_the_work(tmp_path):
    one, eight = (read(tmp_path, m.perceptron(), {"batch": n}) for n in (1, 8))
    i = one.op("/fc2/Gemm")
    assert eight.flops[i] == 8 * one.flops[i]
    assert eight.persistent_bytes == one.persistent_bytes


def test_an_axis_without_a_name_is_called_by_its_place(tmp_path):
    made = model([node("Relu", "x", "y", "it")], [value("x", None, 4)], ["y"])
    assert outputs(read(tmp_path, made, {"x[0]": 5}), "it") == [(5, 4)]


def test_a_size_that_depends_on_data_can_be_given_by_name(tmp_path):
    made = model([node("NonZero", "x", "i", "find"), node("Cast", "i", "y", "it", to=m.FLOAT)], [value("x", 9)], ["y"],
                 value_info=[value("i", 1, "found", code=m.INT64)])  # fmt: skip
    assert outputs(read(tmp_path, made, {"found": 4}), "it") == [(1, 4)]


def test_names_that_are_taken_get_a_number(tmp_path):
    nodes = [node("Relu", "x", "a", "w"), node("Relu", "a", "b", "w"), node("Relu", "b", "c"), node("Add", "c v", "y")]
    graph = read(tmp_path, model(nodes, [value("x", 4)], ["y"], [weight("v", 4)]))
    assert list(ops(graph)) == ["w", "w_1", "c", "y"]


def test_a_model_is_a_workload_that_can_be_kept_and_simulated(tmp_path, machine):
    (tmp_path / "Net.onnx").write_bytes(m.recurrent().SerializeToString())
    w = read_workload(tmp_path / "Net.onnx", {"seq": 9, "batch": 4})
    assert (w.graph.name, w.machine, w.objective) == ("Net", None, None)
    assert workload_fingerprint(loads_graph(dumps_graph(w.graph))) == workload_fingerprint(w.graph)
    problem = Problem(w.graph, machine)
    outcome = simulate(problem, problem.placement(np.full(w.graph.n_ops, 0)))
    assert outcome.feasible
    assert outcome.value_s > 0


def test_kinds_fall_into_the_classes_that_one_expects(tmp_path):
    expected = {"convolution": "convolution", "addmm": "matmul", "lstm": "recurrent", "quantize": "memory",
                "scaled_dot_product_attention": "attention", "view": "free", "clone": "memory",
                "matmul_nbits": "matmul", "dequantize": "memory", "repeat": "memory"}  # fmt: skip
    assert {kind: class_of(kind) for kind in expected} == expected


def test_reading_twice_gives_the_same(tmp_path):
    one, two = (read(tmp_path, m.attention(), {"batch": 2, "seq": 6}) for _ in range(2))
    assert dumps_graph(one) == dumps_graph(two)

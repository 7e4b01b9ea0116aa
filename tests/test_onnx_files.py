"""ONNX files: errors that say what is wrong, weights that are left where they are, sizes and speed."""

from __future__ import annotations

import builtins
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from placewright.errors import FileError, InputError, MissingExtraError
from placewright.importers import read_workload
from placewright.importers.onnx import workload_of
from tests import onnx_models as m
from tests.onnx_models import const, helper, model, node, numpy_helper, onnx, ops, outputs, read, value, weight


def fault(folder, made, dims=None):
    """The place and the problem of the error that a model gives."""
    with pytest.raises(FileError) as caught:
        read(folder, made, dims)
    assert caught.value.path == str(folder / "m.onnx")
    return f"{caught.value.place}: {caught.value.problem}"


def bytes_fault(folder, data):
    (folder / "m.onnx").write_bytes(data)
    with pytest.raises(FileError) as caught:
        workload_of(folder / "m.onnx")
    return f"{caught.value.place}: {caught.value.problem}"


X = value("x", 2, 3)


def branches():
    return helper.make_graph([node("Relu", "x", "b")], "branch", [], [value("b", 2, 3)])


def damaged_weight(size):
    made = model([node("MatMul", "x w", "y")], [X], ["y"], [weight("w", 3, 3)])
    made.graph.initializer[0].raw_data = b"\0" * size
    return made


def without_opset():
    made = model([node("Relu", "x")], [X], ["y"])
    del made.opset_import[:]
    return made


def looped():
    body = [helper.make_node("F", ["X"], ["Y"], domain="own")]
    opsets = [helper.make_opsetid("own", 1), helper.make_opsetid("", m.RUNTIME)]
    function = helper.make_function("own", "F", ["X"], ["Y"], body, opsets)
    return model([node("F", "x", domain="own")], [X], ["y"], domains=[("own", 1)], functions=[function])


FAULTS = {
    "cond": (
        lambda: model([node("If", "c", "y", "pick", then_branch=branches(), else_branch=branches())],
                      [X, value("c", code=m.BOOL)], ["y"]),
        r"graph.node\[0\] \(If 'pick'\): control flow \(If, Loop, Scan.*Export the model without it",
    ),
    "unknown": (
        lambda: model([node("Warp", "x", "y", "bend", "com.acme")], [X], ["y"], domains=[("com.acme", 1)]),
        r"\(Warp 'bend'\): the operator 'Warp' of domain 'com.acme' is not known. Define it in the file as a function",
    ),
    "unknown own": (lambda: model([node("Warp", "x")], [X], ["y"]), "'Warp' of ONNX's own domain is not known"),
    "not imported": (lambda: model([node("Warp", "x", domain="a.b")], [X], ["y"]), "set 'a.b' is not imported"),
    "too new for the operator": (
        lambda: model([node("Gelu", "x")], [X], ["y"], opset=19),
        "there is no operator 'Gelu' in opset 19: it came with 20. Export the model again",
    ),
    "taken out": (
        lambda: model([node("Upsample", "x s")], [X], ["y"], [const("s", [1.0, 2.0], np.float32)]),
        "the operator 'Upsample' was taken out before opset",
    ),
    "no opset": (without_opset, "opset_import: no operator set is named"),
    "old opset": (lambda: model([node("Relu", "x")], [X], ["y"], opset=12), "opset 12 is too old; 13 to .*version_c"),
    "new opset": (
        lambda: model([node("Relu", "x")], [X], ["y"], opset=m.NEWEST + 1),
        f"opset {m.NEWEST + 1} is newer than {m.NEWEST}.*Update the package onnx",
    ),
    "new ir": (lambda: model([node("Relu", "x")], [X], ["y"], ir_version=99), "ir_version: 99 is not known"),
    "shapes": (
        lambda: model([node("MatMul", "x w", "y", "mm")], [X], ["y"], [weight("w", 4, 4)]),
        r"\(MatMul 'mm'\): its inputs and attributes do not fit the operator: .*Incompatible dimensions",
    ),
    "shapes of ours": (
        lambda: model([node("FusedMatMul", "x w", "y", domain="com.microsoft")], [X], ["y"], [weight("w", 4, 4)]),
        "a product over axes of 3 and 4",
    ),
    "stride": (
        lambda: model([node("MaxPool", "x", kernel_shape=[1], strides=[0])], [value("x", 1, 2, 8)], ["y"]),
        "the attribute 'strides' has a value below 1",
    ),
    "data": (
        lambda: model([node("NonZero", "x", "y", "find")], [X], ["y"]),
        r"\(NonZero 'find'\): the shape of output 'y' cannot be worked out; it is \(2, \?\). It depends on data",
    ),
    "data with a name": (
        lambda: model([node("NonZero", "x", "i", "find"), node("Cast", "i", to=m.FLOAT)], [X], ["y"],
                      value_info=[value("i", 2, "found", code=m.INT64)]),
        r"cannot be worked out; it is \(2, found\). Give the size: --dim found=1",
    ),
    "open axes": (
        lambda: model([node("Relu", "x")], [value("x", "batch", None)], ["y"]),
        r"graph.input: axes without a size: 'batch' \(axis 0 of input 'x'\), 'x\[1\]' .*--dim batch=1 --dim x\[1\]=1",
    ),
    "no shape": (
        lambda: model([node("Relu", "x")], [helper.make_tensor_value_info("x", m.FLOAT, None)], ["y"]), "has no shape",
    ),
    "sequence": (
        lambda: model([node("SplitToSequence", "x", "s", "cut"), node("ConcatFromSequence", "s", axis=0)], [X], ["y"]),
        r"\(SplitToSequence 'cut'\): makes a sequence, not a tensor",
    ),
    "sequence input": (
        lambda: model([node("SequenceAt", "s i")],
                      [helper.make_tensor_sequence_value_info("s", m.FLOAT, [2]), value("i", code=m.INT64)], ["y"]),
        r"graph.input\[0\]: is sequence, not a tensor",
    ),
    "short weight": (lambda: damaged_weight(35), r"graph.initializer\[0\] \('w'\): holds 35 bytes of data for .* 36"),
    "unmade": (lambda: model([node("Add", "x z")], [X], ["y"]), "reads 'z', which nothing makes"),
    "unmade output": (lambda: model([node("Relu", "x", "z")], [X], ["y"]), r"graph.output\[0\]: nothing makes 'y'"),
    "made twice": (lambda: model([node("Relu", "x"), node("Neg", "x")], [X], ["y"]), "makes 'y', which some"),
    "cycle": (lambda: model([node("Add", "x y", "z", "a"), node("Relu", "z", "y", "b")], [X], ["y"]), "graph.node: "),
    "functions": (looped, "functions call each other in a cycle, or more than 32 deep"),
    "nothing": (lambda: model([], [X], []), "graph.output: is empty"),
    "huge": (
        lambda: model([node("Expand", "x s")], [value("x", 1)], ["y"], [const("s", [1 << 39, 1 << 39])]),
        "a tensor of 549755813888x549755813888; sizes from 0 to",
    ),
    "sparse": (
        lambda: model([helper.make_node("Constant", [], ["y"], sparse_value=helper.make_sparse_tensor(
            const("v", [1.0], np.float32), const("i", [1]), [3]))], [X], ["y"]),
        "holds 'sparse_value', which is not read; store a dense tensor",
    ),
    "attribute": (
        lambda: model([node("MatMulNBits", "x w s", domain="com.microsoft", K=3)], [X], ["y"],
                      [weight("w", 3), weight("s", 1)]),
        "the attribute 'N' is missing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_place_and_what_to_do(tmp_path, name):
    make, wanted = FAULTS[name]
    said = fault(tmp_path, make())
    assert re.search(wanted, said), said


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", "is empty"),
        (b"{}", "is no ONNX model"),
        (b"\xff" * 40, "is no ONNX model"),
        (bytes(40), "byte 1: is no ONNX model: a field has the number 0"),
        (b"\x08\x09", "holds no graph, so it is no ONNX model; export the model again"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, data, wanted):
    assert wanted in bytes_fault(tmp_path, data)


def test_zeros_are_refused_at_the_first_byte(tmp_path):
    """A file that was reserved and never written: two GiB of zeros are not walked through."""
    file = tmp_path / "net.onnx"
    with file.open("wb") as out:
        out.truncate((1 << 31) - 1)
    with pytest.raises(FileError, match="byte 1: is no ONNX model"):
        read_workload(file)


def test_a_file_of_countless_tiny_fields_is_refused(tmp_path, monkeypatch):
    """Each is legal; looking at all of them would take minutes."""
    monkeypatch.setattr("placewright.importers.onnx_bytes.MAX_FIELDS", 1000)
    assert "holds no graph" in bytes_fault(tmp_path, b"\x08\x09" * 1000)
    assert "more than 1000 fields" in bytes_fault(tmp_path, b"\x08\x09" * 1001)


def test_a_model_that_was_cut_off_is_refused(tmp_path):
    data = m.convolutions().SerializeToString()
    assert "cut off or damaged" in bytes_fault(tmp_path, data[: len(data) // 2])


def test_a_missing_file_a_folder_and_a_pipe_are_refused(tmp_path):
    (tmp_path / "d.onnx").mkdir()
    os.mkfifo(tmp_path / "p.onnx")
    for name, wanted in (("none.onnx", "no such file"), ("d.onnx", "folder"), ("p.onnx", "not a regular file")):
        with pytest.raises(FileError, match=wanted):
            read_workload(tmp_path / name)


def test_a_file_above_two_gib_is_refused(tmp_path):
    with open(tmp_path / "m.onnx", "wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(FileError, match="at most 2147483647 are read: save the model with its"):
        workload_of(tmp_path / "m.onnx")


def test_sizes_are_checked(tmp_path):
    with pytest.raises(FileError, match="no axis is called 'batsh'; axes without a size: 'batch'"):
        read(tmp_path, m.perceptron(), {"batch": 1, "batsh": 2})
    for size in (0, -1, 2.5, True, "8", 1 << 60):
        with pytest.raises(InputError, match=r"dims: 'batch' is .*a whole number from 1 to"):
            read(tmp_path, m.perceptron(), {"batch": size})
    (tmp_path / "g.json").write_text("{}")
    with pytest.raises(InputError, match=r"dims: sizes of axes are for ONNX models \(.onnx\), which .*g.json. is not"):
        read_workload(tmp_path / "g.json", {"batch": 1})


def test_a_missing_extra_says_how_to_install_it(tmp_path, monkeypatch):
    (tmp_path / "m.onnx").write_bytes(m.perceptron().SerializeToString())
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "onnx" or name.startswith("onnx."):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"reading .onnx files needs the extra 'onnx': pip install"):
        read_workload(tmp_path / "m.onnx")


def test_importing_the_importers_does_not_import_onnx():
    script = "import sys, placewright.importers; print('onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ---- weights that stay where they are --------------------------------------------------------------


def external(tensor, location, length):
    """Let a weight's data be in another file."""
    tensor.ClearField("raw_data")
    tensor.data_location = m.TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", "0"), ("length", str(length))):
        tensor.external_data.add(key=key, value=text)


def test_external_weights_are_not_opened_and_may_be_missing(tmp_path):
    made = m.convolutions()
    whole = read(tmp_path, made)
    for tensor in made.graph.initializer:
        if tensor.name != "s":
            external(tensor, "nowhere/../../etc/none.bin", len(tensor.raw_data))
    apart = read(tmp_path, made)
    assert apart.persistent_bytes == whole.persistent_bytes
    assert apart.flops.tolist() == whole.flops.tolist()


def test_an_external_weight_of_the_wrong_length_is_refused(tmp_path):
    made = m.perceptron()
    external(made.graph.initializer[0], "w.bin", 5)
    assert "holds 5 bytes of data for a tensor of 2048 bytes" in fault(tmp_path, made, {"batch": 1})


def test_a_shape_in_another_file_is_asked_for(tmp_path):
    made = model([node("Reshape", "x s", "y", "it")], [X], ["y"], [const("s", [3, 2])])
    external(made.graph.initializer[0], "s.bin", 16)
    said = fault(tmp_path, made)
    assert "depends on the content of 's', which is large or in another file" in said
    assert "save small tensors inside the model" in said
    made.graph.output[0].CopyFrom(value("y", 3, 2))
    assert outputs(read(tmp_path, made), "it") == [(3, 2)]


def varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number, content_length):
    return varint(number << 3 | 2) + varint(content_length)


MEASURE = """
import resource, sys, time
from placewright.importers import read_workload
read_workload(sys.argv[1])
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
graph = read_workload(sys.argv[2]).graph
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(graph.persistent_bytes, (after - before) // 1024, time.perf_counter() - start)
"""


def test_a_model_of_almost_two_gib_takes_little_memory(tmp_path):
    """Three weights of 640 MB inside the file, which has holes instead of data on disk."""
    rows, columns = 40_000, 4_000
    size = rows * columns * 4
    names = [f"w{k}" for k in range(3)]
    nodes = [node("MatMul", f"x {name}", f"a{k}", f"mm{k}") for k, name in enumerate(names)]
    nodes.append(node("Sum", "a0 a1 a2", "y", "sum"))
    made = model(nodes, [value("x", 2, rows)], ["y"])
    (tmp_path / "small.onnx").write_bytes(m.convolutions().SerializeToString())
    graph = made.graph.SerializeToString()
    made.ClearField("graph")
    heads = [onnx.TensorProto(name=n, dims=[rows, columns], data_type=1).SerializeToString() for n in names]
    parts = [len(head) + len(field(9, size)) + size for head in heads]
    total = len(graph) + sum(len(field(5, part)) + part for part in parts)
    with open(tmp_path / "big.onnx", "wb") as file:
        file.write(made.SerializeToString() + field(7, total) + graph)
        for head, part in zip(heads, parts, strict=True):
            file.write(field(5, part) + head + field(9, size))
            file.seek(size, os.SEEK_CUR)
        file.truncate(file.tell())
    assert (tmp_path / "big.onnx").stat().st_size > 1.9e9
    script = [sys.executable, "-c", MEASURE, str(tmp_path / "small.onnx"), str(tmp_path / "big.onnx")]
    held, mebibytes, seconds = subprocess.run(script, capture_output=True, text=True, check=True).stdout.split()
    assert int(held) == 3 * size
    assert int(mebibytes) < 30
    assert float(seconds) < 5


def test_five_thousand_nodes_take_seconds(tmp_path):
    """Dense layers with shapes that are worked out on the way."""
    nodes, weights, last = [], [weight("w", 16, 16), const("tail", [16])], "x"
    for k in range(715):
        nodes += [
            node("Shape", last, f"s{k}", f"l{k}/shape"), node("Slice", f"s{k} z o", f"n{k}", f"l{k}/slice"),
            node("Concat", f"n{k} tail", f"c{k}", f"l{k}/concat", axis=0),
            node("MatMul", f"{last} w", f"m{k}", f"l{k}/mm"),
            node("Add", f"m{k} b", f"a{k}", f"l{k}/add"), node("Relu", f"a{k}", f"r{k}", f"l{k}/relu"),
            node("Reshape", f"r{k} c{k}", f"v{k}", f"l{k}/view"),
        ]  # fmt: skip
        last = f"v{k}"
    weights += [const("z", [0]), const("o", [1]), weight("b", 16)]
    made = model(nodes, [value("x", "batch", 16)], [last], weights)
    assert len(made.graph.node) > 5_000
    start = time.perf_counter()
    graph = read(tmp_path, made, {"batch": 4})
    assert time.perf_counter() - start < 20
    assert len(ops(graph)) == 715 * 4
    assert outputs(graph, "l714/view") == [(4, 16)]


def test_large_typed_data_and_large_constants_are_left_in_the_file(tmp_path):
    table = helper.make_tensor("t", m.FLOAT, [10_000], np.zeros(10_000))
    table.ClearField("raw_data")
    table.float_data[:] = [0.5] * 10_000
    data = numpy_helper.from_array(np.zeros(20_000, np.float32), "c")
    nodes = [node("Add", "x t", "a"), node("Constant", "", "c", value=data), node("Concat", "a c", "y", "it", axis=0)]
    graph = read(tmp_path, model(nodes, [value("x", 10_000)], ["y"], [table]))
    assert graph.persistent_bytes == 120_000
    assert outputs(graph, "it") == [(30_000,)]

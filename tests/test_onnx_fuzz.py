"""The ONNX reader against damaged files: it reads them or says what is wrong, and never takes long."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewright.errors import PlacewrightError
from placewright.fingerprints import workload_fingerprint
from placewright.formats import dumps_graph, loads_graph
from placewright.importers.onnx import workload_of
from tests import onnx_models as m
from tests.onnx_models import const, helper, model, node, onnx, value, weight
from tests.test_fuzz_readers import LIMIT_S, damage_bytes

NUMBERS = (0, 1, -1, 2, 3, 7, 64, 100, 1 << 20, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63), -2, 13, 28, 2048)
FRACTIONS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e30, -1e30, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "y", "w", "a", "\0", "é", "x" * 2000, "->", "...,ij->...", "linear", "If", "Reshape", "Constant",
         "ai.onnx", "com.microsoft", "SAME_UPPER", "axis", "1" * 30)  # fmt: skip


def mixed():
    """Many kinds of operators, functions, constants, fused ones."""
    body = [node("Mul", "X X", "S", "sq"), helper.make_node("ReduceSum", ["S"], ["Y"], name="sum", keepdims=1)]
    own = helper.make_function("own", "Norm", ["X"], ["Y"], body, [helper.make_opsetid("", m.RUNTIME)])
    nodes = [
        node("Constant", "", "c", value_floats=[1.0, 2.0]), node("Constant", "", "k", value_int=2),
        node("Norm", "x", "n", "norm", "own"), node("Einsum", "x w", "e", "ein", equation="bij,jk->bik"),
        node("Split", "e", "p q", "cut", axis=2, num_outputs=2), node("TopK", "p one", "t ti", "top"),
        node("Resize", "img _ scales", "r", "grow", mode="linear"), node("Pad", "r pads", "rp", "pad"),
        node("Conv", "rp cw", "cv", "conv", auto_pad="SAME_UPPER", strides=[2, 2]),
        node("Tile", "q times", "tl", "tile"), node("Where", "mask q q", "wh", "where"),
        node("OneHot", "ti depth c", "oh", "hot"), node("Range", "zero k one0", "rg"), node("NonZero", "times", "nz"),
        node("SkipLayerNormalization", "x x g", "sk", "skip", "com.microsoft"),
        node("MultiHeadAttention", "x x x", "mh", "mha", "com.microsoft", num_heads=2),
        node("GroupQueryAttention", "x x x _ _ l l", "gq a b", "gqa", "com.microsoft", num_heads=2, kv_num_heads=2),
        node("MatMulNBits", "x packed sc", "mn", "bits", "com.microsoft", K=8, N=6, bits=4, block_size=16),
        node("STFT", "sig step win", "st", "stft"), node("GatherND", "x at", "gn", "gather"),
        node("ScatterND", "times at2 two", "sn"), node("ConstantOfShape", "times", "cs", "fill"),
    ]  # fmt: skip
    inputs = [
        value("x", "batch", 4, 8),
        value("img", 1, 2, 4, 4),
        value("sig", 1, 64, 1),
        value("mask", 1, code=m.BOOL),
    ]
    weights = [
        weight("w", 8, 6), const("one", [1]), const("one0", 1), const("zero", 0),
        const("scales", [1, 1, 2, 2], "float32"),
        const("pads", [0, 0, 1, 1] * 2), weight("cw", 3, 2, 3, 3), const("times", [1, 2, 1]), const("depth", [5]),
        weight("g", 8), const("l", [4], "int32"), const("packed", [[[0] * 8]] * 6, "uint8"), weight("sc", 6),
        const("step", 8), weight("win", 16), const("at", [[0, 1]]), const("at2", [[1]]), const("two", [2]),
    ]  # fmt: skip
    made = [name for n in nodes for name in n.output]
    outs = [onnx.helper.make_empty_tensor_value_info(name) for name in made]
    domains = [("own", 1), ("com.microsoft", 1)]
    graph = model(nodes, inputs, ["y"], weights, domains=domains, functions=[own], value_info=[value("tl", "batch", 8)])
    del graph.graph.output[:]
    graph.graph.output.extend(outs)
    return graph


MODELS = {
    "mixed": (mixed, {"batch": 2}),
    "convolutions": (m.convolutions, {}),
    "attention": (m.attention, {"batch": 2, "seq": 6}),
    "recurrent": (m.recurrent, {"batch": 2, "seq": 6}),
}
"""What makes each model, and the sizes of the axes that it leaves open."""


def fields(message):
    """Every (message, field) that is set, at any depth."""
    found, todo = [], [message]
    while todo:
        one = todo.pop()
        for about, content in one.ListFields():
            found.append((one, about))
            if about.type == about.TYPE_MESSAGE:
                todo += list(content) if hasattr(content, "add") else [content]
    return found


def junk(about, rng):
    """A value of a field's type."""
    if about.type in (about.TYPE_FLOAT, about.TYPE_DOUBLE):
        return rng.choice(FRACTIONS)
    if about.type == about.TYPE_STRING:
        return rng.choice(TEXTS)
    if about.type == about.TYPE_BYTES:
        return rng.choice((b"", b"\xff\xfe", b"linear", b"\0" * 8, rng.randbytes(16)))
    if about.type == about.TYPE_ENUM:
        return rng.choice([v.number for v in about.enum_type.values])
    return rng.choice(NUMBERS)


def damage_model(made, rng):
    """Change some fields: other values, missing ones, copies, exchanged ones."""
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        found = fields(made)
        if not found:
            return
        message, about = rng.choice(found)
        content = getattr(message, about.name)
        repeated = hasattr(content, "extend")
        try:
            if rng.randrange(5) == 0:
                message.ClearField(about.name)
            elif repeated and content:
                k = rng.randrange(len(content))
                how = rng.randrange(4)
                if how == 0:
                    del content[k]
                elif how == 1:
                    content.append(content[rng.randrange(len(content))])
                elif about.type != about.TYPE_MESSAGE:
                    content[k] = junk(about, rng)
                else:
                    content[k].CopyFrom(rng.choice(list(content)))
            elif about.type == about.TYPE_MESSAGE:
                twins = [getattr(a, b.name) for a, b in found if b is about]
                content.CopyFrom(rng.choice(twins))
            else:
                setattr(message, about.name, junk(about, rng))
        except (ValueError, TypeError):
            continue  # what cannot be written cannot be in a file


def look(path, dims):
    """Read a model; what is read can be written and read again. The message of the error, if there is one."""
    start = time.perf_counter()
    try:
        graph = workload_of(path, dims).graph
        assert workload_fingerprint(loads_graph(dumps_graph(graph))) == workload_fingerprint(graph)
        message = ""
    except PlacewrightError as error:
        message = str(error)
        assert message
        assert len(message) < 10_000
        assert message.isprintable()
    assert time.perf_counter() - start < LIMIT_S
    return message


def fuzz(name, folder, times, seed):
    """Read so many damaged models; a good part must be refused, and some must be read."""
    make, dims = MODELS[name]
    data = make().SerializeToString()
    path = folder / "m.onnx"
    rng = random.Random(f"{name} {seed}")
    refused = 0
    for n in range(times):
        if rng.randrange(3):
            made = onnx.ModelProto.FromString(data)
            damage_model(made, rng)
            changed = made.SerializeToString()
        else:
            changed = damage_bytes(data, rng)
        path.write_bytes(changed)
        try:
            refused += bool(look(path, dims))
        except BaseException:
            print(f"{name} {seed}: file {n} of {len(changed)} bytes")
            (folder / "bad.onnx").write_bytes(changed)
            raise
    assert refused > times // 4
    assert times - refused > times // 25


@pytest.mark.parametrize("name", MODELS)
def test_what_is_not_damaged_is_read(tmp_path, name):
    make, dims = MODELS[name]
    (tmp_path / "m.onnx").write_bytes(make().SerializeToString())
    assert look(tmp_path / "m.onnx", dims) == ""


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize(
    "equation",
    [b"b_ij,jk->bik", b"\xf5bij,jk->bik", b"b\0ij,jk->bik", b"bi..j,jk->bik", b"......ij,jk->ik", b"ij,jk->->"],
)
def test_equations_over_which_the_package_onnx_does_not_end(tmp_path, equation):
    """Of an einsum, with characters that are no letters: refused before the package is asked."""
    made = model([node("Einsum", "x w", "y", "ein", equation="?")], [value("x", 2, 4, 8)], ["y"], [weight("w", 8, 6)])
    made.graph.node[0].attribute[0].s = equation
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    assert "equation" in look(tmp_path / "m.onnx", {})


@pytest.mark.parametrize("name", MODELS)
def test_damaged_models_are_refused_with_a_reason(tmp_path, name):
    fuzz(name, tmp_path, 300, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_many_damaged_models_are_refused_with_a_reason(tmp_path, name):
    fuzz(name, tmp_path, 10_000, 2)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tmp_path, data):
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(PlacewrightError):
        workload_of(tmp_path / "m.onnx")

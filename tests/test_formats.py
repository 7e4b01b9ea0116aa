"""The project's own files: what is written is read back, and whatever is wrong is named with its place."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from placewright import files, formats, graph_format
from placewright.costs import roofline
from placewright.errors import FileError, InputError
from placewright.fingerprints import workload_fingerprint
from placewright.formats import (
    dumps_graph,
    dumps_plan,
    dumps_profile,
    loads_graph,
    read_graph,
    write_graph,
)
from placewright.graph import OpGraph
from placewright.machine import Device, Machine, Pool
from placewright.operations import Operation, Tensor, build_graph
from tests.strategies import random_problem
from tests.test_plan import plan
from tests.test_profile import profile

ROOT = Path(__file__).parents[1]


def rich_graph() -> OpGraph:
    """A graph with every field in use: views, new values, stores, order-only edges, measured seconds."""
    measured = {"fast": 1e-3, "slow": 0.1}
    return build_graph(
        "rich",
        [
            Operation("x", "data", "input", outputs=[Tensor(64, shape=(4, 4))]),
            Operation("w", "parameter", "parameter", "lin", outputs=[Tensor(256, shape=(8, 8))], colocation="b"),
            Operation("w2", "parameter", "parameter", "lin", dtype="bfloat16", outputs=[Tensor(2), Tensor(4)]),
            Operation(
                "lin", "linear", "forward", "lin", 1e9, 320, 64, 128, "float32", ["x", "w", ("w2", 1)], [],
                [Tensor(64, shape=()), Tensor(32, transfer_s=0.25)], "a", {"fast": 1 / 3},
            ),
            Operation("view", "view", inputs=["lin"], outputs=[Tensor(64, storage=("lin", 0), output=True)]),
            Operation("relu", "relu", inputs=["view", ("lin", 1)], measured_s={"slow": float("inf"), "fast": 0.0},
                      outputs=[Tensor(64, storage=("view", 0), in_place=True)]),
            Operation("back", "linear_backward", "backward", inputs=["relu"], outputs=[Tensor(256)],
                      measured_s=measured, recompute=True),
            Operation("sgd", "sgd", "update", inputs=["w", "back"], after=["lin", "relu"], colocation="b",
                      outputs=[Tensor(256, storage=("w", 0), in_place=True)], flops=12.5),
            Operation("keep", "store", "store", inputs=["sgd"]),
            Operation("naïve 模", "other", colocation="a"),
        ],
        {"slow": {"flops_per_s": {"float32": 1e12, "bfloat16": 2.5e13}, "bytes_per_s": 9e11}},
    )  # fmt: skip


def same_arrays(one: OpGraph, two: OpGraph) -> None:
    """Every array and text of two graphs is the same."""
    for name in graph_format.OpGraph.__dataclass_fields__:
        left, right = getattr(one, name), getattr(two, name)
        if isinstance(left, np.ndarray):
            if name == "colocation":
                assert graph_format._class_names(one) == graph_format._class_names(two)
            else:
                np.testing.assert_array_equal(left, right, err_msg=name)
        elif name == "measured":
            known = [m for m in left if not np.isnan(m.seconds).all()]
            assert [m.model for m in known] == [m.model for m in right]
            for m, n in zip(known, right, strict=True):
                np.testing.assert_array_equal(m.seconds, n.seconds)
                assert (dict(m.flops_per_s), m.bytes_per_s) == (dict(n.flops_per_s), n.bytes_per_s)
        else:
            assert left == right, name


def fault(text: str | bytes, read=loads_graph) -> FileError:
    """The error of a text."""
    with pytest.raises(FileError) as caught:
        read(text, "f.json")
    assert str(caught.value).startswith("f.json")
    return caught.value


def graph_text(*operations: object, **fields: object) -> str:
    """A graph file with these operations."""
    return json.dumps({"schema": "placewright.graph/1", "operations": list(operations)} | fields)


# ---- what is written is read back ---------------------------------------------------------------


def test_a_graph_is_read_back_as_it_was_written():
    graph = rich_graph()
    text = dumps_graph(graph)
    again = loads_graph(text)
    same_arrays(graph, again)
    assert dumps_graph(again) == text
    assert loads_graph(text.encode()).op_names == graph.op_names


def test_random_graphs_are_read_back_as_they_were_written():
    rng = random.Random(1)
    for n_ops in [*range(1, 13)] * 12:
        graph = random_problem(rng, n_ops)[0].graph
        text = dumps_graph(graph)
        again = loads_graph(text)
        same_arrays(graph, again)
        assert dumps_graph(again) == text
        assert workload_fingerprint(graph) == workload_fingerprint(again)


def test_measured_models_are_in_order_of_name_whatever_order_they_were_given_in():
    graph = rich_graph()
    turned = graph.with_measured(*graph.measured[::-1])
    assert [m.model for m in turned.measured] == ["fast", "slow"]
    assert dumps_graph(turned) == dumps_graph(graph)


def test_costs_do_not_depend_on_the_order_of_keys():
    card = Device("d", "card", "p", None, {"float32": 1e12}, 1e11)
    machine = Machine("one", (card,), (Pool("p", 1 << 30),), (), ())
    rates = {m: {"flops_per_s": {"float32": rate}, "bytes_per_s": 1e11} for m, rate in (("a", 1e11), ("b", 1e13))}
    seconds = {"a": 1.0, "b": 5.0}
    found = set()
    for one in (rates, dict(reversed(rates.items()))):
        for two in (seconds, dict(reversed(seconds.items()))):
            text = graph_text({"name": "x", "kind": "matmul", "measured_s": two}, references=one)
            found.add(float(roofline.costs(loads_graph(text), machine).seconds[0, 0]))
    assert len(found) == 1


def test_too_many_device_models_are_named_with_their_place():
    def ops(count: int) -> list[object]:
        return [{"name": f"op{i}", "measured_s": {f"m{i}": 1}} for i in range(count)]

    assert len(loads_graph(graph_text(*ops(64))).measured) == 64
    error = fault(graph_text(*ops(70)))
    assert (error.place, error.problem[:28]) == ("operations[64].measured_s", "more than 64 device models i")
    error = fault(graph_text(references={f"m{i}": {} for i in range(65)}))
    assert error.place == "references"


def test_a_document_with_too_many_marks_is_refused_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr(files, "MAX_MARKS", 9)
    monkeypatch.setattr(files.json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    assert "has 10 brackets, braces and commas; at most 9" in str(fault("[[],[],{},[],[]"))
    with pytest.raises(FileError, match="at most 9"):
        write_graph(rich_graph(), "never-written.json")
    assert not os.path.exists("never-written.json")


def test_a_large_graph_has_far_fewer_marks_than_are_allowed():
    names = [f"layers.{i}.op" for i in range(1000)]
    ops = [Operation(name, "linear", scope=name[:-3], flops=1e9, bytes_read=1, colocation=str(i // 7),
           inputs=names[max(0, i - 3) : i], outputs=[Tensor(1024, shape=(2, i, 4))], measured_s={"m": 1e-3})
           for i, name in enumerate(names)]  # fmt: skip
    text = dumps_graph(build_graph("big", ops))
    assert 100 * sum(map(text.count, "[{,")) < files.MAX_MARKS / 4  # of a hundred thousand operations


def test_defaults_are_left_out_and_infinite_seconds_are_null():
    entries = json.loads(dumps_graph(rich_graph()))["operations"]
    assert entries[-1] == {"name": "naïve 模", "colocation": "1"}
    assert entries[5]["measured_s"] == {"fast": 0, "slow": None}
    assert entries[3]["inputs"] == ["x", "w", ["w2", 1]]
    assert entries[7]["outputs"] == [{"bytes": 256, "storage": "w", "in_place": True}]


def test_the_example_in_the_documentation_is_a_graph():
    text = (ROOT / "docs" / "formats.md").read_text()
    assert loads_graph(text.split("```json\n")[1].split("```")[0]).op_names == ("x", "w", "lin")


def test_an_empty_graph_is_read_back():
    assert loads_graph(dumps_graph(build_graph("nothing", []))).n_ops == 0


@pytest.mark.parametrize("name", ["g.json", "g.json.gz"])
def test_a_file_is_written_whole_with_the_same_bytes_each_time(tmp_path, name):
    graph, path = rich_graph(), tmp_path / name
    write_graph(graph, path)
    first = path.read_bytes()
    assert first[:2] == (b"\x1f\x8b" if name.endswith("gz") else b"{\n")
    os.utime(path, (1, 1))
    write_graph(read_graph(path), path)
    assert path.read_bytes() == first
    same_arrays(graph, read_graph(path))
    assert os.listdir(tmp_path) == [name]


def test_compressed_bytes_carry_neither_name_nor_time(tmp_path):
    write_graph(rich_graph(), tmp_path / "a.json.gz")
    write_graph(rich_graph(), tmp_path / "b.json.gz")
    data = (tmp_path / "a.json.gz").read_bytes()
    assert data == (tmp_path / "b.json.gz").read_bytes()
    assert data[3:8] == bytes(5)


def test_names_that_could_not_be_read_back_are_not_written():
    for name in ("a\nb", "a\ud800", "x" * 1001):
        with pytest.raises(InputError, match="cannot be written"):
            dumps_graph(build_graph("g", [Operation(name)]))
    with pytest.raises(InputError, match="cannot be written"):
        dumps_graph(build_graph("g", [Operation("a", flops=1e31)]))


# ---- graphs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ('"placewright.graph/2"', "version 2 is newer than version 1"),
        ('"placewright.graph/0"', "does not exist"),
        ('"placewright.plan/1"', "this is a placewright.plan file"),
        ('"other"', "'other' is not known"),
        ("3", "is not known"),
    ],
)
def test_another_schema_is_refused(schema, message):
    error = fault(f'{{"schema": {schema}, "operations": []}}')
    assert error.place == "schema"
    assert message in error.problem


def test_no_schema_and_no_object_are_refused():
    assert fault('{"operations": []}').place == "schema"
    for text in ("[]", "3", "null", '"text"', "NaN"):
        assert "expected a JSON object" in str(fault(text))


A = {"name": "a", "outputs": [{"bytes": 4}]}


@pytest.mark.parametrize(
    ("operations", "place", "message"),
    [
        ([3], "operations[0]", "expected a table"),
        ([{}], "operations[0]", "'name' is missing"),
        ([{"name": 3}], "operations[0].name", "expected text, found 3"),
        ([{"name": ""}], "operations[0].name", "must not be empty"),
        ([{"name": "\ud800"}], "operations[0].name", "lone surrogates"),
        ([{"name": "x" * 1001}], "operations[0].name", "at most 1000"),
        ([{"name": "a", "colour": 1}], "operations[0]", "unknown field 'colour'; the fields are after,"),
        ([A, {"name": "a"}], "operations[1].name", "operations[0] has the name 'a' too"),
        ([{"name": "a", "phase": "sideways"}], "operations[0].phase", "one of input, parameter"),
        ([{"name": "a", "flops": -1}], "operations[0].flops", "out of range; 0 to 1e+30 is allowed"),
        ([{"name": "a", "flops": float("nan")}], "operations[0].flops", "nan is out of range"),
        ([{"name": "a", "flops": float("inf")}], "operations[0].flops", "inf is out of range"),
        ([{"name": "a", "flops": True}], "operations[0].flops", "expected a number"),
        ([{"name": "a", "bytes_read": 1.5}], "operations[0].bytes_read", "whole number"),
        ([{"name": "a", "bytes_read": 1 << 61}], "operations[0].bytes_read", "out of range"),
        ([{"name": "a", "workspace_bytes": 10**400}], "operations[0].workspace_bytes", "bits"),
        ([{"name": "a", "inputs": "a"}], "operations[0].inputs", "expected a list"),
        ([A, {"name": "b", "inputs": ["c"]}], "operations[1].inputs[0]", "unknown operation 'c'"),
        ([A, {"name": "b", "inputs": [["a", 1]]}], "operations[1].inputs[0]", "reads output 1 of 'a', which has 1"),
        ([A, {"name": "b", "inputs": [["a", -1]]}], "operations[1].inputs[0]", "expected an operation's name"),
        ([A, {"name": "b", "inputs": [["a", True]]}], "operations[1].inputs[0]", "expected an operation's name"),
        ([A, {"name": "b", "after": ["c"]}], "operations[1].after[0]", "unknown operation 'c'"),
        ([A, {"name": "b", "after": [["a", 0]]}], "operations[1].after[0]", "expected text"),
        ([{"name": "a", "outputs": [{}]}], "operations[0].outputs[0]", "'bytes' is missing"),
        ([{"name": "a", "outputs": [{"bytes": -4}]}], "operations[0].outputs[0].bytes", "out of range"),
        ([{"name": "a", "outputs": [{"bytes": 4, "shape": [2.5]}]}], "operations[0].outputs[0].shape[0]", "whole"),
        ([{"name": "a", "outputs": [{"bytes": 4, "shape": [1] * 65}]}], "operations[0].outputs[0].shape", "at most 64"),
        ([{"name": "a", "outputs": [{"bytes": 4, "transfer_s": None}]}], "operations[0].outputs[0].transfer_s", "null"),
        ([{"name": "a", "outputs": [{"bytes": 4, "in_place": 2}]}], "operations[0].outputs[0].in_place", "true or"),
        ([{"name": "a", "outputs": [{"bytes": 4, "storage": "a"}]}], "operations[0].outputs[0].storage", "this one"),
        ([{"name": "a", "outputs": [{"bytes": 4, "storage": "z"}]}], "operations[0].outputs[0].storage", "unknown"),
        ([{"name": "a", "measured_s": {"m": -1}}], "operations[0].measured_s.m", "out of range"),
        ([{"name": "a", "measured_s": {"m": float("inf")}}], "operations[0].measured_s.m", "inf is out of range"),
        ([{"name": "a", "measured_s": {"\ud800": 1}}], "operations[0].measured_s", "must be printable"),
        ([{"name": "a", "phase": "store"}], "operations", "a store reads new values"),
        ([A, {"name": "b", "outputs": [{"bytes": 4, "storage": "a"}]}], "operations", "must read the tensor"),
        ([{"name": "b", "inputs": ["a"]}, A], "operations[0].inputs[0]", "later"),
        ([{"name": "b", "after": ["a"]}, A], "operations[0].after[0]", "later"),
        ([{"name": "b", "after": ["b"]}], "operations[0].after[0]", "in a cycle: 'b' -> 'b'"),
    ],
)  # fmt: skip
def test_faults_of_operations_are_named_with_their_place(operations, place, message):
    error = fault(graph_text(*operations))
    assert error.place == place
    assert message in error.problem


def test_a_cycle_is_told_from_a_wrong_order():
    ring = [dict(A, name=f"n{i}", inputs=[f"n{(i - 1) % 3}"]) for i in range(3)]
    assert "in a cycle: 'n0' -> 'n1' -> 'n2' -> 'n0'" in fault(graph_text(*ring)).problem
    long = [dict(A, name=f"n{i}", inputs=[f"n{(i - 1) % 5000}"]) for i in range(5000)]
    assert "... (5000 operations) -> 'n" in fault(graph_text(*long)).problem


@pytest.mark.parametrize(
    ("fields", "place", "message"),
    [
        ({"operations": 3}, "operations", "expected a list"),
        ({"speed": 3}, "", "unknown field 'speed'"),
        ({"name": 3}, "name", "expected text"),
        ({"references": []}, "references", "expected a table"),
        ({"references": {"m": {"tflops": 1}}}, "references.m", "unknown field"),
        ({"references": {"m": {"bytes_per_s": -1}}}, "references.m.bytes_per_s", "out of range"),
        ({"references": {"m": {"flops_per_s": {"float32": None}}}}, "references.m.flops_per_s.float32", "null"),
        ({"references": {"m": {}}}, "references.m", "no operation has seconds measured"),
    ],
)
def test_faults_of_the_head_are_named_with_their_place(fields, place, message):
    error = fault(graph_text(**fields))
    assert error.place == place
    assert message in error.problem


def test_a_key_given_twice_is_named_with_its_place():
    error = fault('{"schema": "placewright.graph/1", "operations": [{"name": "a"}, {"name": "b", "name": "c"}]}')
    assert (error.place, error.problem) == ("operations[1]", "the field 'name' is given twice")
    assert fault('{"a": 1, "a": 1}').place == ""
    assert "twice" in str(fault('{"a": {"b": 1, "b": 2}, "a": 3}'))


def test_too_many_operations_are_refused(monkeypatch):
    monkeypatch.setattr(graph_format, "MAX_OPERATIONS", 2)
    assert "at most 2" in str(fault(graph_text(*({"name": str(i)} for i in range(3)))))


def test_sizes_that_add_up_to_too_much_are_refused():
    big = [{"name": str(i), "outputs": [{"bytes": 1 << 60}]} for i in range(2)]
    assert "bytes in all" in str(fault(graph_text(*big)))


@pytest.mark.slow
def test_a_hundred_thousand_operations_take_seconds_and_less_than_a_gigabyte(tmp_path):
    script = f"""
import time
from placewright.formats import read_graph, write_graph
from placewright.operations import Operation, Tensor, build_graph
ops = [Operation(f"layers.{{i}}.op", "linear", scope=f"layers.{{i}}", flops=1e9 + i, bytes_read=i,
       colocation=str(i // 7),
       inputs=[f"layers.{{j}}.op" for j in range(max(0, i - 3), i)], outputs=[Tensor(1024 * i, shape=(2, i, 4))],
       measured_s={{"tesla-v100": 1e-3 / (i + 1)}}) for i in range(100_000)]
graph = build_graph("big", ops)
start = time.perf_counter()
write_graph(graph, {str(tmp_path / "g.json.gz")!r})
middle = time.perf_counter()
again = read_graph({str(tmp_path / "g.json.gz")!r})
end = time.perf_counter()
assert again.op_names == graph.op_names
assert middle - start < 30 and end - middle < 30, (middle - start, end - middle)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1_000_000


# ---- JSON Schemas -------------------------------------------------------------------------------


def validator(kind: str) -> Draft202012Validator:
    """The published schema of a format."""
    schema = json.loads((ROOT / "docs" / "schemas" / f"{kind}-1.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_what_is_written_is_valid_by_the_published_schemas():
    graphs = validator("graph")
    graphs.validate(json.loads(dumps_graph(rich_graph())))
    rng = random.Random(2)
    for _ in range(30):
        graphs.validate(json.loads(dumps_graph(random_problem(rng, 12)[0].graph)))
    validator("profile").validate(json.loads(dumps_profile(profile())))
    validator("plan").validate(json.loads(dumps_plan(plan())))


def test_the_schema_has_the_fields_that_the_reader_knows():
    schema = validator("graph").schema
    assert schema["$defs"]["operation"]["properties"].keys() == graph_format._OPERATION.keys()
    assert schema["$defs"]["output"]["properties"].keys() == graph_format._TENSOR.keys()
    assert set(validator("plan").schema["required"]) >= set(formats._TEXTS)


@pytest.mark.parametrize(
    "operation",
    [
        {},
        {"name": 3},
        {"name": "a", "colour": 1},
        {"name": "a", "phase": "sideways"},
        {"name": "a", "flops": -1},
        {"name": "a", "bytes_read": 1.5},
        {"name": "a", "inputs": [["a", -1]]},
        {"name": "a", "inputs": [["a", 0, 0]]},
        {"name": "a", "outputs": [{}]},
        {"name": "a", "outputs": [{"bytes": 1 << 61}]},
        {"name": "a", "measured_s": {"m": -1}},
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(operation):
    assert not validator("graph").is_valid({"schema": "placewright.graph/1", "operations": [operation]})
    fault(graph_text(operation))

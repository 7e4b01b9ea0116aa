"""build_graph: names become indices, chains of views flatten, and mistakes are named."""

import math

import numpy as np
import pytest

from placewright.checks import MAX_BYTES
from placewright.errors import GraphError
from placewright.graph import BACKWARD, FORWARD, INPUT, MAX_MODELS, PARAMETER, STORE, UPDATE
from placewright.operations import Operation, Tensor, build_graph


def refused(message, *operations):
    """Operations that are refused with that message."""
    with pytest.raises(GraphError) as caught:
        build_graph("g", operations)
    assert str(caught.value).startswith(message)


def test_every_field_arrives():
    """What an operation and its tensors say is in the arrays, in program order."""
    graph = build_graph(
        "g",
        iter(
            [
                Operation("x", phase="input", outputs=[Tensor(10, transfer_s=0.5), Tensor(20, shape=(4, 5))]),
                Operation("y", "linear", "backward", "net.fc", 3.0, 4, 5, 6, "bfloat16", ["x", ("x", 1)],
                          after=["x"], outputs=[Tensor(30, output=True)], colocation="here"),
            ]
        ),
    )  # fmt: skip
    assert (graph.name, graph.op_names, graph.kinds, graph.scopes) == (
        "g",
        ("x", "y"),
        ("other", "linear"),
        ("", "net.fc"),
    )
    assert graph.dtypes == ("float32", "bfloat16")
    assert graph.phase.tolist() == [INPUT, BACKWARD]
    assert (graph.flops.tolist(), graph.workspace_bytes.tolist()) == ([0, 3], [0, 6])
    assert (graph.bytes_read.tolist(), graph.bytes_written.tolist()) == ([0, 4], [0, 5])
    assert graph.out_start.tolist() == [0, 2, 3]
    assert graph.tensor_bytes.tolist() == [10, 20, 30]
    assert graph.tensor_output.tolist() == [False, False, True]
    np.testing.assert_array_equal(graph.tensor_transfer_s, [0.5, np.nan, np.nan])
    assert (graph.in_start.tolist(), graph.in_tensor.tolist()) == ([0, 0, 2], [0, 1])
    assert (graph.after_start.tolist(), graph.after_op.tolist()) == ([0, 0, 1], [0])
    assert graph.tensor_shapes == (None, (4, 5), None)
    assert graph.colocation.tolist() == [-1, 0]


def test_phases_by_name(train6):
    """Each phase has its number."""
    assert train6.phase.tolist() == [INPUT, PARAMETER, FORWARD, FORWARD, UPDATE, STORE]


def test_no_shapes_are_none(chain3):
    """A graph whose tensors have no shapes keeps no list of them."""
    assert chain3.tensor_shapes is None


def test_empty_graph():
    """A graph without operations is a graph."""
    graph = build_graph("empty", [])
    assert (graph.n_ops, graph.n_tensors, graph.colocated_pairs.shape) == (0, 0, (0, 2))
    assert graph.consumers[0].tolist() == [0]


def test_a_tensor_read_twice_is_consumed_once():
    """Repeated inputs and repeated waits are one, in increasing order whatever the order given."""
    graph = build_graph(
        "g",
        [
            Operation("x", outputs=[Tensor(1), Tensor(2)]),
            Operation("y"),
            Operation("z", inputs=[("x", 1), "x", ("x", 0), ("x", 1)], after=["y", "x", "y"]),
        ],
    )
    assert graph.in_tensor.tolist() == [0, 1]
    assert graph.after_op.tolist() == [0, 1]


def test_colocation_labels_are_numbered_as_they_come():
    """Classes are numbered by their first operation, and an operation without one has -1."""
    labels = ["z", None, "a", "z", ""]
    graph = build_graph("g", [Operation(f"op{k}", colocation=label) for k, label in enumerate(labels)])
    assert graph.colocation.tolist() == [0, -1, 1, 0, 2]


def test_views_of_views_flatten():
    """However long the chain, a view shares the storage at its bottom."""
    ops = [Operation("v0", outputs=[Tensor(8)])]
    ops += [Operation(f"v{k}", inputs=[f"v{k - 1}"], outputs=[Tensor(8, (f"v{k - 1}", 0))]) for k in range(1, 6)]
    assert build_graph("g", ops).tensor_storage.tolist() == [0] * 6


def test_values_of_a_parameter():
    """A view of a new value is of that value; a further new value, and one written on a view, are of the parameter."""
    graph = build_graph(
        "g",
        [
            Operation("w", phase="parameter", outputs=[Tensor(8)]),
            Operation("t", inputs=["w"], outputs=[Tensor(8, ("w", 0))]),
            Operation("new", phase="update", outputs=[Tensor(8, ("t", 0), in_place=True)]),
            Operation("look", inputs=["new"], outputs=[Tensor(8, ("new", 0))]),
            Operation("newer", phase="update", outputs=[Tensor(8, ("new", 0), in_place=True)]),
            Operation("keep", phase="store", inputs=["newer"]),
        ],
    )
    assert graph.tensor_storage.tolist() == [0, 0, 0, 2, 0]
    assert graph.detachable.tolist() == [False, False, True, False, True]
    assert graph.persistent_root.tolist() == [0, 0, 0, 0, 0]
    assert graph.colocated_pairs.tolist() == [[1, 0], [3, 2], [5, 0]]


def test_measured_seconds_and_their_references():
    """Seconds are gathered by model, in order of model, NaN where there are none, with the rates of the reference."""
    graph = build_graph(
        "g",
        [Operation("x", measured_s={"slow": 2.0}), Operation("y", measured_s={"fast": 0.5, "slow": math.inf})],
        {"slow": {"flops_per_s": {"float32": 1e9}, "bytes_per_s": 1e8}},
    )
    fast, slow = graph.measured
    assert (slow.model, fast.model) == ("slow", "fast")
    np.testing.assert_array_equal(slow.seconds, [2.0, np.inf])
    np.testing.assert_array_equal(fast.seconds, [np.nan, 0.5])
    assert (slow.flops_per_s, slow.bytes_per_s) == ({"float32": 1e9}, 1e8)
    assert (fast.flops_per_s, fast.bytes_per_s) == ({}, 0.0)


@pytest.mark.parametrize("count", [MAX_MODELS, MAX_MODELS + 1])
def test_models_are_limited(count):
    """Seconds on so many device models are taken, on one more they are refused where it is one too many."""
    ops = [Operation(f"op{k}", measured_s={f"m{k}": 1.0}) for k in range(count)]
    if count == MAX_MODELS:
        assert len(build_graph("g", ops).measured) == MAX_MODELS
    else:
        refused(f"graph 'g': operation 'op{MAX_MODELS}': seconds on more than {MAX_MODELS} device models", *ops)


def test_names_differ():
    """A name given twice is refused."""
    refused(
        "graph 'g': two operations are named 'x'; names must differ", Operation("x"), Operation("y"), Operation("x")
    )


def test_unknown_input():
    """A read from no operation names reader, name and near misses."""
    x = Operation("embed", outputs=[Tensor(8)])
    refused(
        "graph 'g': operation 'y' reads from an unknown operation 'embde'. Did you mean embed",
        x,
        Operation("y", inputs=["embde"]),
    )


def test_unknown_storage():
    """A view of no operation names itself and the name."""
    refused(
        "graph 'g': operation 'y' reads from an unknown operation 'x'",
        Operation("y", outputs=[Tensor(8, ("x", 0))]),
    )


@pytest.mark.parametrize("k", [1, -1])
def test_unknown_output(k):
    """A read of an output that an operation does not have says how many it has."""
    refused(
        f"graph 'g': operation 'y' reads output {k} of 'x', which has 1",
        Operation("x", outputs=[Tensor(8)]),
        Operation("y", inputs=[("x", k)]),
    )


def test_a_name_alone_needs_an_output():
    """A read by name alone is of the first output, so an operation without one cannot be read."""
    refused("graph 'g': operation 'y' reads output 0 of 'x', which has 0", Operation("x"), Operation("y", inputs=["x"]))


def test_unknown_wait():
    """An order-only edge from no operation names the one that waits."""
    refused("graph 'g': operation 'y' waits for an unknown operation 'x'", Operation("y", after=["x"]))


def test_unknown_phase():
    """A phase that there is none of lists those that exist."""
    refused(
        "operation 'x': phase 'forwards' is none of input, parameter, forward, backward, update, store",
        Operation("x", phase="forwards"),
    )


@pytest.mark.parametrize("value", [-1, 1.5, MAX_BYTES + 1, 1 << 63, 1 << 100, math.inf, math.nan])
def test_sizes_are_whole_and_in_range(value):
    """A size that would be cut, wrapped or negative is refused with operation and field, never rounded."""
    for field in ("bytes_read", "bytes_written", "workspace_bytes"):
        refused(
            f"graph 'g': operation 'x': {field} is {value}; a whole number in 0 to", Operation("x", **{field: value})
        )
    refused(f"graph 'g': operation 'x': bytes is {value}; a whole", Operation("x", outputs=[Tensor(1), Tensor(value)]))


def test_whole_floats_and_numpy_sizes():
    """Sizes may come from arithmetic: 4e3 and numpy integers are whole numbers."""
    graph = build_graph("g", [Operation("x", bytes_read=4e3, outputs=[Tensor(np.int32(7)), Tensor(MAX_BYTES // 2)])])
    assert graph.bytes_read.tolist() == [4000]
    assert graph.tensor_bytes.tolist() == [7, MAX_BYTES // 2]

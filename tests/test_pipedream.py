"""PipeDream's profiles: what becomes of layers, edges, milliseconds and bytes."""

from __future__ import annotations

import gzip
import time

import numpy as np
import pytest

from placewright.fingerprints import graph_fingerprint, workload_fingerprint
from placewright.formats import dumps_graph, loads_graph
from placewright.graph import BACKWARD, FORWARD, INPUT, PARAMETER, STORE, UPDATE
from placewright.importers import pipedream, read_workload
from placewright.workload import Workload
from tests.test_importers import SHARED, fault, load, needs_shared


def layer(
    number: int, what: str, forward: float = 1.0, backward: float = 2.0, out: object = 64.0, held: float = 0.0
) -> str:
    """A line of a PipeDream file."""
    times = f"forward_compute_time={forward:.3f}, backward_compute_time={backward:.3f}"
    return f"node{number} -- {what} -- {times}, activation_size={out}, parameter_size={held:.3f}"


CHAIN = "\n".join(
    [
        layer(3, "Linear(in_features=4, out_features=4)", out=32.0, held=80.0),
        layer(1, "Input", 18.0, 0.0),
        layer(2, "Conv2d(3, 8, kernel_size=(3, 3))", 3.0, 4.0, held=100.0),
        "\tnode2 -- node3",
        "\tnode1 -- node2",
    ]
)


def reads(w: Workload, op: str) -> list[tuple[str, int]]:
    """What an operation reads, by name and output."""
    g = w.graph
    i = g.op(op)
    tensors = g.in_tensor[g.in_start[i] : g.in_start[i + 1]].tolist()
    return [(g.op_names[g.tensor_op[t]], t - int(g.out_start[g.tensor_op[t]])) for t in tensors]


def made(w: Workload, op: str) -> list[int]:
    """The bytes of what an operation makes."""
    i = w.graph.op(op)
    return w.graph.tensor_bytes[w.graph.out_start[i] : w.graph.out_start[i + 1]].tolist()


def test_a_layer_becomes_forward_backward_update_parameter_and_store(tmp_path):
    w = load(tmp_path, CHAIN, "net.txt")
    g = w.graph
    assert g.name == "net"
    assert g.op_names == (
        "node1.input", "node2.parameter", "node2.forward", "node3.parameter", "node3.forward",
        "node3.backward", "node3.update", "node3.store", "node2.backward", "node2.update", "node2.store",
    )  # fmt: skip
    assert g.phase.tolist() == [
        INPUT, PARAMETER, FORWARD, PARAMETER, FORWARD, BACKWARD, UPDATE, STORE, BACKWARD, UPDATE, STORE,
    ]  # fmt: skip
    assert g.kinds[2:9:3] == ("conv2d", "linear_backward", "conv2d_backward")
    assert g.scopes[5] == "node3"
    assert w.members[3] == ("node3.parameter", "node3.forward", "node3.backward", "node3.update", "node3.store")
    assert reads(w, "node3.forward") == [("node2.forward", 0), ("node3.parameter", 0)]
    # The last layer's backward starts from its output; each reads its inputs, its parameter and gradients.
    assert reads(w, "node3.backward") == [("node2.forward", 0), ("node3.parameter", 0), ("node3.forward", 0)]
    assert made(w, "node3.backward") == [64, 80]
    assert reads(w, "node3.update") == [("node3.parameter", 0), ("node3.backward", 1)]
    assert reads(w, "node2.backward") == [("node1.input", 0), ("node2.parameter", 0), ("node3.backward", 0)]
    assert made(w, "node2.backward") == [100], "an input gets no gradient"
    update = g.op("node3.update")
    new = int(g.out_start[update])
    assert g.detachable[new]
    assert g.tensor_op[g.tensor_storage[new]] == g.op("node3.parameter")
    assert (g.flops[update], g.bytes_read[update], g.bytes_written[update]) == (40, 160, 80)
    after = [g.op_names[o] for o in g.after_op[g.after_start[update] : g.after_start[update + 1]]]
    assert after == ["node3.forward", "node3.backward"]


def test_milliseconds_are_seconds_on_a_v100_and_loading_data_takes_none(tmp_path):
    g = load(tmp_path, CHAIN).graph
    (measured,) = g.measured
    assert measured.model == "tesla-v100"
    assert (measured.flops_per_s["float32"], measured.bytes_per_s) == (15.7e12, 900e9)
    seconds = dict(zip(g.op_names, np.nan_to_num(measured.seconds, nan=-1).tolist(), strict=True))
    assert seconds["node2.forward"] == 0.003
    assert seconds["node3.backward"] == 0.002
    assert seconds["node1.input"] == seconds["node3.update"] == seconds["node3.parameter"] == -1


def test_what_writes_in_place_shares_the_bytes_of_an_input_that_nothing_else_reads(tmp_path):
    lines = [
        layer(1, "Input", 0, 0), layer(2, "Conv2d(3)", held=4), layer(3, "ReLU(inplace)"), layer(4, "ReLU(inplace)"),
        layer(5, "Add(inplace)"), layer(6, "ReLU(inplace=False)"),
        "\tnode1 -- node2", "\tnode2 -- node3", "\tnode3 -- node4", "\tnode3 -- node5", "\tnode4 -- node5",
        "\tnode5 -- node6",
    ]  # fmt: skip
    w = load(tmp_path, "\n".join(lines))
    g = w.graph

    def base(n: int) -> str:
        return g.op_names[g.tensor_op[g.tensor_storage[g.out_start[g.op(f"node{n}.forward")]]]]

    assert base(3) == "node2.forward"
    assert base(4) == "node4.forward", "its input is read by node5 too"
    assert base(5) == "node5.forward", "ReLU's backward needs what Add would overwrite"
    assert base(6) == "node6.forward"
    assert reads(w, "node3.backward") == [("node3.forward", 0), ("node5.backward", 0), ("node4.backward", 0)]
    assert reads(w, "node5.backward") == [("node6.backward", 0)], "Add needs gradients only"


def test_a_layer_with_several_outputs_is_read_by_the_part(tmp_path):
    lines = [
        layer(1, "Input0", 0, 0), layer(2, "LSTM(4, 4)", out="[96.0; 8.0; 8.0]", held=16),
        layer(3, "__getitem__(0)", 0, 0, 96), layer(4, "__getitem__(1)", 0, 0, 8), layer(5, "Linear(4)", held=4),
        "\tnode1 -- node2", "\tnode2 -- node3", "\tnode2 -- node4", "\tnode3 -- node5", "\tnode2 -- node5",
    ]  # fmt: skip
    w = load(tmp_path, "\n".join(lines))
    assert made(w, "node2.forward") == [96, 8, 8]
    assert reads(w, "node3.forward") == [("node2.forward", 0)]
    assert reads(w, "node4.forward") == [("node2.forward", 1)]
    assert reads(w, "node5.forward")[:3] == [("node2.forward", k) for k in range(3)]
    g = w.graph
    assert g.tensor_storage[g.out_start[g.op("node3.forward")]] == g.out_start[g.op("node2.forward")]
    assert "node4.backward" not in g.index, "a part that nothing uses has no gradient"
    assert made(w, "node5.backward") == [96, 112, 4]
    assert reads(w, "node2.backward")[-2:] == [("node5.backward", 1), ("node3.backward", 0)]


def test_only_layers_that_learn_or_pass_gradients_down_have_a_backward(tmp_path):
    lines = [
        layer(1, "Input", 0, 0), layer(2, "ReLU()", 1, 0), layer(3, "Linear(4)", held=4), layer(4, "Size(0)", 0, 0, 4),
        layer(5, "View(-1)", 0, 0), layer(6, "Linear(4)", held=4),
        "\tnode1 -- node2", "\tnode2 -- node3", "\tnode3 -- node4", "\tnode4 -- node5", "\tnode3 -- node5",
        "\tnode5 -- node6",
    ]  # fmt: skip
    w = load(tmp_path, "\n".join(lines))
    backward = [name for name in w.graph.op_names if name.endswith("backward")]
    assert backward == ["node6.backward", "node5.backward", "node3.backward"]
    assert made(w, "node5.backward") == [64]
    assert made(w, "node3.backward") == [4]


def test_a_profile_without_backward_times_is_of_inference(tmp_path):
    lines = [layer(1, "Input", 0, 0), layer(2, "Linear(4)", 1, 0, held=4), "\tnode1 -- node2"]
    g = load(tmp_path, "\n".join(lines)).graph
    assert g.op_names == ("node1.input", "node2.parameter", "node2.forward")
    assert g.tensor_output.tolist() == [False, False, True]


def test_layers_run_in_the_order_of_their_numbers_where_edges_leave_it_open(tmp_path):
    lines = [layer(n, "Linear(4)") for n in (30, 7, 5)] + ["\tnode30 -- node5"]
    g = load(tmp_path, "\n".join(lines)).graph
    assert [n for n in g.op_names if n.endswith("forward")] == ["node7.forward", "node30.forward", "node5.forward"]


def test_the_stage_that_pipedream_adds_and_blank_lines_are_left_alone(tmp_path):
    text = CHAIN.replace("parameter_size=80.000", "parameter_size=80.000 -- stage_id=3").replace("\n", "\r\n\r\n")
    assert graph_fingerprint(load(tmp_path, text).graph) == graph_fingerprint(load(tmp_path, CHAIN).graph)


@pytest.mark.parametrize(
    ("line", "place", "message"),
    [
        ("node1 -- node2 -- node3", "line 2", "is neither a layer nor an edge"),
        ("\tnode1 -- node9", "line 2", "no layer is called node9"),
        (layer(1, "ReLU()"), "line 2", "node1 is given twice"),
        ("\tnode1 -- node1", "edges", "in a cycle: 'node1' -> 'node1'"),
        (layer(2, "ReLU()", out="nan"), "line 2", "activation_size is 'nan'; a number from 0 to"),
        (layer(2, "ReLU()", out="-1"), "line 2", "activation_size is '-1'"),
        (layer(2, "ReLU()", out="[1; x]"), "line 2", "activation_size is 'x'"),
        (layer(2, "ReLU()", out="[]"), "line 2", "activation_size is ''"),
        (layer(2, "ReLU()", out="1e19"), "line 2", "activation_size is '1e19'"),
        (layer(2, "ReLU()", out="1" * 50), "line 2", "activation_size is"),
        (layer(2, "ReLU()", forward=1e13), "line 2", "forward_compute_time"),
        (layer(2, "ReLU()").replace("1.000", "1.0.0"), "line 2", "forward_compute_time is '1.0.0'"),
        (layer(2, "ReLU()").replace("parameter_size", "weights"), "line 2", "'parameter_size' is missing"),
        (layer(2, "ReLU()") + ", parameter_size=1", "line 2", "'parameter_size' is given twice"),
        (layer(2, "ReLU()", out="[" + "1; " * 1000 + "1]"), "line 2", "at most 1000"),
    ],
)
def test_faults_of_pipedream_files_are_named_with_their_place(tmp_path, line, place, message):
    error = fault(tmp_path, layer(1, "ReLU()") + "\n" + line)
    assert error.place == place
    assert message in error.problem


def test_blanks_take_linear_time(tmp_path):
    blanks = " " * 500_000
    start = time.process_time()
    error = fault(tmp_path, layer(1, "ReLU()") + blanks + "a")
    assert error.place == "line 1"
    assert "node1 -- node1" + blanks + "a" not in str(fault(tmp_path, "node1 -- node1" + blanks + "a"))
    assert load(tmp_path, layer(1, "ReLU()") + blanks + "\n" + blanks + "\n").graph.n_ops == 2
    assert time.process_time() - start < 5


def test_many_consumers_take_linear_time():
    count = 40_000
    lines = [layer(n, "Linear(4)", held=4) for n in range(1, count + 1)] + [layer(count + 1, "Concat()")]
    lines += [f"node{n} -- node{count + 1}" for n in range(1, count + 1)]
    network = pipedream._Network(*pipedream._parse("\n".join(lines), "f.txt"))
    start = time.process_time()
    operations = network.backward_pass()
    assert time.process_time() - start < 4
    assert operations[1].inputs[0] == (f"node{count + 1}.backward", count - 1)


def test_all_that_is_made_and_read_is_counted_before_a_graph_is_built(tmp_path, monkeypatch):
    lines = [
        layer(1, "LSTM(4)", out="[8; 8; 8; 8]"), layer(2, "Linear(4)"), layer(3, "__getitem__(1)", out=8),
        layer(4, "Linear(4)"), "node1 -- node2", "node1 -- node3", "node3 -- node4",
    ]  # fmt: skip
    # Made are 4 + 1 + 1 + 1 tensors, and read are 4 + 1 + 1.
    monkeypatch.setattr(pipedream, "MAX_READS", 13)
    assert load(tmp_path, "\n".join(lines)).graph.n_ops
    monkeypatch.setattr(pipedream, "MAX_READS", 12)
    monkeypatch.setattr(pipedream, "build_graph", lambda *_: pytest.fail("it was built"))
    error = fault(tmp_path, "\n".join(lines))
    assert error.place == "edges"
    assert "make and read 13 tensors in all; at most 12" in error.problem


def test_a_small_file_takes_little_memory(tmp_path):
    wide = layer(1, "LSTM(4)", out="[" + "; ".join(["8"] * 1000) + "]")
    lines = [wide] + [f"{layer(n, 'Linear(4)')}\nnode1 -- node{n}" for n in range(2, 4002)]
    error = fault(tmp_path, "\n".join(lines))
    assert "the layers make and read 4005000 tensors in all; at most 500000 are allowed" in error.problem


@pytest.mark.parametrize(
    ("name", "place", "message"),
    [
        ("MAX_LAYERS", "line 3", "more than 2 layers"),
        ("MAX_READS", "line 3", "or than 2 outputs of layers"),
        ("MAX_LINE", "line 1", "characters; at most 2 are allowed in a line"),
    ],
)
def test_limits_of_pipedream_files(tmp_path, monkeypatch, name, place, message):
    monkeypatch.setattr(pipedream, name, 2)
    error = fault(tmp_path, CHAIN)
    assert (error.place, message in error.problem) == (place, True)


def test_too_many_edges_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pipedream, "MAX_READS", 2)
    error = fault(tmp_path, "\n".join([layer(1, "ReLU()"), layer(2, "ReLU()"), *["node1 -- node2"] * 3]))
    assert (error.place, error.problem) == ("line 5", "more than 2 edges")


@needs_shared
@pytest.mark.shared
def test_every_pipedream_profile_keeps_its_layers_seconds_and_bytes():
    paths = [path for path in sorted((SHARED / "pipedream").glob("*.txt")) if path.name != "LICENSE.txt"]
    assert len(paths) == 9
    for path in paths:
        g = read_workload(path).graph
        lines = [line.split(" -- ") for line in path.read_text().split("\n") if line and not line.startswith("\t")]
        fields = [dict(part.split("=") for part in line[2].split(", ")) for line in lines]
        inputs = sum(line[1].startswith("Input") for line in lines)
        assert np.count_nonzero(g.phase == FORWARD) + np.count_nonzero(g.phase == INPUT) == len(lines)
        assert np.count_nonzero(g.phase == INPUT) == inputs
        assert g.persistent_bytes == sum(float(f["parameter_size"]) for f in fields)
        assert np.count_nonzero(g.phase == UPDATE) == sum(float(f["parameter_size"]) > 0 for f in fields)
        seconds = np.nansum(g.measured[0].seconds) * 1e3
        loading = sum(float(f["forward_compute_time"]) for f, n in zip(fields, lines, strict=True) if n[1] == "Input")
        kinds = ("forward_compute_time", "backward_compute_time")
        assert seconds == pytest.approx(sum(float(f[kind]) for f in fields for kind in kinds) - loading)
        again = loads_graph(dumps_graph(g))
        assert workload_fingerprint(again) == workload_fingerprint(g)


@needs_shared
@pytest.mark.shared
def test_convolutions_and_relus_of_vgg16_run_at_the_rates_of_a_v100():
    g = read_workload(SHARED / "pipedream" / "vgg16.txt").graph
    seconds = g.measured[0].seconds
    relu = g.op("node10.forward")
    assert g.kinds[relu] == "relu"
    rate = (g.bytes_read[relu] + g.bytes_written[relu]) / seconds[relu]
    assert 600e9 < rate < 900e9
    conv = g.op("node12.forward")  # 128 to 256 channels, 3 by 3; 64 images of 56 by 56
    flops = 2 * 9 * 128 * 256 * 64 * 56 * 56
    assert 5e12 < flops / seconds[conv] < 15.7e12


def test_a_workload_may_be_compressed(tmp_path):
    (tmp_path / "w.txt.gz").write_bytes(gzip.compress(CHAIN.encode()))
    assert read_workload(tmp_path / "w.txt.gz").graph.name == "w"

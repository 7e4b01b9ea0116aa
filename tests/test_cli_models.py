"""What MODEL can be on the command line, the options of capture, and the command `capture`."""

import json

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import placewright as pw
from placewright.capture import OPTIMIZERS, UPDATE_ORDERS
from placewright.cli import options
from placewright.cli.models import _dims, _kind
from placewright.errors import InputError, UnknownNameError
from placewright.fingerprints import graph_fingerprint, workload_fingerprint
from placewright.formats import read_graph
from tests.test_cli import answer, place

SMALL = "spotlight-cifar10"
PARAMETERS = 1_068_298

NET = '''
import torch


def make():
    """A module and its inputs."""
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1)), torch.zeros(5, 4)


def trained():
    """The same with a loss."""
    net, x = make()

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x).square().mean()

    return WithLoss(), x


def loud():
    """Prints where it is called, and in its forward pass."""
    print("called")
    net, x = make()
    net.register_forward_hook(lambda *_: print("run"))
    return net, x


def broken():
    """Raises."""
    raise KeyError("left is right")
'''


@pytest.fixture
def net(tmp_path):
    """A Python file with functions that make modules."""
    file = tmp_path / "net.py"
    file.write_text(NET)
    return file


@pytest.fixture
def onnx_file(tmp_path):
    """A product with 24 weights; one axis is open."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weight = numpy_helper.from_array(np.ones((4, 6), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "net", [x], [y], [weight])
    file = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), file)
    return file


@pytest.fixture(scope="module")
def small():
    """The summary of a small network's training step, as JSON."""
    return answer("capture", SMALL)


def test_choices_are_those_of_capture():
    """The lists that the command line keeps, so as not to import torch, are complete."""
    assert set(options.OPTIMIZERS) == set(OPTIMIZERS)
    assert options.UPDATE_ORDERS == UPDATE_ORDERS


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ("nmt-4", "a network of the zoo"),
        ("layered/3", "a member of a family of graphs"),
        ("net.py:make", "a function in a Python file"),
        ("some/net.py:make", "a function in a Python file"),
        ("hf:folder", "a transformers folder"),
        ("hf:", "a transformers folder"),
        ("net.pt2", "an exported program"),
        ("dir/NET.ONNX", "an ONNX model"),
        ("graph.json.gz", "a graph file"),
        ("profile.txt", "a graph file"),
    ],
)
def test_a_model_is_known_by_its_form(model, what):
    assert _kind(model).what == what


def test_names_that_nothing_has():
    """An unknown network or family is named with those that there are; a bare Python file lacks its function."""
    with pytest.raises(UnknownNameError, match=r"nmt-4.*layered/0"):
        _kind("nmt-5")
    with pytest.raises(UnknownNameError, match="unknown network 'layred/3'"):
        _kind("layred/3")
    with pytest.raises(InputError, match=r"net.py:FUNCTION, where FUNCTION returns"):
        _kind("net.py")


def test_a_file_named_like_a_network_of_no_zoo_is_a_file(tmp_path, monkeypatch):
    """A path that exists is read, whatever it is called."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("{}")
    assert _kind("mine").what == "a graph file"
    assert place("capture", "mine").exit_code == 2


def test_every_kind_of_model_is_captured(net, onnx_file, tmp_path, monkeypatch):
    """A member, a function, a program, an ONNX model and a graph file: operations and parameter bytes."""
    program = tmp_path / "net.pt2"
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
    torch.export.save(torch.export.export(module, (torch.zeros(5, 4),)), program)
    for model, size in ((f"{net}:make", 148), (program, 148), (onnx_file, 96)):
        more = ("--dim", "batch=8") if model is onnx_file else ()
        record = answer("capture", model, *more)
        assert record["parameters"]["bytes"] == size
        assert record["optimizer_state"]["count"] == 0
    monkeypatch.chdir(tmp_path)
    graph = pw.zoo.load("layered/3")
    assert answer("capture", "layered/3", "-o", "three.json.gz")["operations"] == graph.n_ops
    assert graph_fingerprint(read_graph("three.json.gz")) == graph_fingerprint(graph)
    assert answer("capture", "three.json.gz")["operations"] == graph.n_ops


def test_a_folder_is_captured(tmp_path):
    """A transformers folder, with batch and length."""
    sizes = {"vocab_size": 64, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes})
    )
    record = answer("capture", f"hf:{tmp_path}", "--batch", 3, "--length", 10)
    assert record["inputs"] == {"count": 1, "elements": 30, "bytes": 240}
    longer = place("capture", f"hf:{tmp_path}", "--length", 40)
    assert longer.exit_code == 2
    assert "n_positions" in longer.stderr
    assert place("capture", "hf:").exit_code == 2


def test_the_summary_adds_up(small):
    """Amounts of the network by formula; kinds sum to the operations; phases of flops."""
    assert small["parameters"] == {"count": 10, "elements": PARAMETERS, "bytes": 4 * PARAMETERS}
    assert small["optimizer_state"]["count"] == small["buffers"]["count"] == small["recomputed"] == 0  # plain SGD
    assert sum(kind["operations"] for kind in small["kinds"]) == small["operations"]
    for kind in small["kinds"]:
        assert sum(count for key, count in kind.items() if key not in ("kind", "operations")) == kind["operations"]
    assert small["flops"]["update"] == 2 * PARAMETERS
    assert 2 < small["flops"]["backward"] / small["flops"]["forward"] * 1.5 < 3
    assert small["peak_bytes"] > 8 * PARAMETERS  # weights, gradients at their largest, activations
    assert (small["method"], small["notes"]) == ("export", [])
    graph = pw.zoo.load(SMALL)
    assert small["operations"] == graph.n_ops
    assert small["longest_chain"] == longest_chain(graph)


def longest_chain(graph):
    """By relaxing every edge until nothing changes."""
    edges = [(int(graph.tensor_op[t]), int(op)) for op, t in zip(graph.read_op, graph.in_tensor, strict=True)]
    for op in range(graph.n_ops):
        edges += [(int(other), op) for other in graph.after_op[graph.after_start[op] : graph.after_start[op + 1]]]
    own = [0 if off else 1 for off in graph.off_queue]
    length, changed = list(own), True
    while changed:
        changed = False
        for a, b in edges:
            if length[a] + own[b] > length[b]:
                length[b], changed = length[a] + own[b], True
    return max(length)


def test_the_peak_is_that_of_the_simulator(small):
    """The summary's peak equals the pool's peak with everything on one device of a machine."""
    graph = pw.zoo.load(SMALL)
    problem = pw.Problem(graph, pw.machine("k40x1"))
    gpu = problem.machine.device("gpu:0")
    outcome = pw.simulate(problem, problem.placement([gpu] * graph.n_ops))
    rounding = 512 * graph.n_tensors
    assert abs(outcome.peak_bytes[problem.machine.pool_index["gpu:0"]] - small["peak_bytes"]) <= rounding


def test_words_say_what_the_record_says(small):
    """The text has the amounts, the kinds and their sum; notes go to stderr."""
    result = place("capture", SMALL)
    assert result.exit_code == 0
    for word in (f"{PARAMETERS:,} elements", "by export", "constant_pad_nd", "with everything on one device"):
        assert word in result.stdout
    assert f"captured {small['operations']:,} operations" in result.stderr
    assert place("capture", SMALL, "--quiet").stderr == ""


def test_options_change_the_step():
    """No optimiser is an inference pass; Adam keeps two values per parameter and a count; batch scales the input."""
    inference = answer("capture", SMALL, "--optimizer", "none", "--batch", 2)
    assert set(inference["flops"]) == {"forward"}
    assert inference["inputs"]["elements"] == 2 * 24 * 24 * 3
    adam = answer("capture", SMALL, "--optimizer", "adam", "--update-order", "end")
    assert adam["optimizer_state"] == {"count": 30, "elements": 2 * PARAMETERS + 10, "bytes": 8 * PARAMETERS + 40}
    assert adam["peak_bytes"] > answer("capture", SMALL, "--optimizer", "adam")["peak_bytes"]


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("layered/3", "--optimizer", "adam"), "takes no option of capture"),
        ((SMALL, "--length", "4"), "--length does not apply"),
        ((SMALL, "--task", "fill-mask"), "--task does not apply"),
        (("graph.json", "--batch", "4"), "--batch does not apply"),
        ((SMALL, "--dim", "x=3"), "--dim does not apply"),
        ((SMALL, "--optimizer", "none", "--update-order", "end"), "an inference pass has none"),
        (("net.pt2", "--update-order", "end"), "an inference pass has none"),
    ],
)
def test_an_option_that_means_nothing_is_refused(args, word):
    result = place("capture", *args)
    assert result.exit_code == 2
    assert word in result.stderr


@pytest.mark.parametrize("text", ["batch", "batch=", "=4", "batch=-1", "batch=4.5", "batch=" + "9" * 30])
def test_sizes_that_are_none(text):
    with pytest.raises(InputError, match="write NAME=N"):
        _dims((text,))


def test_an_axis_that_is_open_asks_for_its_size(onnx_file):
    result = place("capture", onnx_file)
    assert result.exit_code == 2
    assert "batch" in result.stderr


def test_what_a_model_prints_is_no_result(net):
    """It goes to stderr; the document on stdout is whole."""
    result = place("capture", f"{net}:loud", "--json")
    assert json.loads(result.stdout)["parameters"]["elements"] == 37
    assert "called\nrun\n" in result.stderr


def test_training_without_a_loss_is_told(net):
    """And one with a loss is not."""
    words = "gradients of its outputs are inputs"
    assert words in place("capture", f"{net}:make", "--optimizer", "sgd").stderr
    assert words not in place("capture", f"{net}:trained", "--optimizer", "sgd").stderr
    assert words not in place("capture", f"{net}:make").stderr


@pytest.mark.parametrize("name", ["model.pt", "MODEL.PTH", "model.safetensors", "weights.bin"])
def test_files_of_weights_are_no_models(name, tmp_path):
    """They say nothing of operations, and pickles are never read, whatever is in them."""
    file = tmp_path / name
    torch.save(torch.nn.Linear(2, 2), file)
    result = place("capture", file)
    assert result.exit_code == 2
    assert "never read" in result.stderr
    assert "file.py:FUNCTION".lower() in result.stderr.lower()


def test_a_folder_that_holds_a_configuration(tmp_path):
    """Without hf: it is named with it; with hf: a folder that is none is told so, and nothing is fetched."""
    (tmp_path / "config.json").write_text("{}")
    assert f"write hf:{tmp_path}" in place("capture", tmp_path).stderr
    assert "nothing is downloaded" in place("capture", f"hf:{tmp_path}/gpt2").stderr


def test_an_exported_program_is_said_to_be_one(tmp_path):
    program = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(4, 6), (torch.zeros(5, 4),)), program)
    result = place("capture", program)
    assert "from the exported program" in result.stdout
    assert "from the exported program" in result.stderr


def test_a_function_that_raises_is_named(net):
    """File, function and line of the user's own code; exit code 2 and no traceback."""
    result = place("capture", f"{net}:broken")
    assert result.exit_code == 2
    for word in ("net.py:broken", "KeyError", "left is right", 'raise KeyError("left is right")'):
        assert word in result.stderr


def test_a_network_is_planned_and_simulated_by_name(tmp_path):
    """plan, simulate and a kept plan, from a name or a function alone; an update order reaches the graph."""
    plan = tmp_path / "plan.json"
    found = answer("plan", SMALL, "--machine", "k40x2", "--method", "single:gpu:0", "-o", plan)
    again = answer("simulate", SMALL, "--machine", "k40x2", "--placement", plan)
    whole = answer("simulate", SMALL, "--machine", "k40x2", "--placement", "single:gpu:0")
    assert found["value_s"] == again["value_s"] == whole["value_s"]
    late = answer("simulate", SMALL, "--machine", "k40x2", "--placement", "single:gpu:0", "--update-order", "end")
    assert late["peak_bytes"] != whole["peak_bytes"]
    assert late["graph"] == whole["graph"] == SMALL


def test_a_training_step_of_a_function(net):
    record = answer("capture", f"{net}:trained", "--optimizer", "momentum")
    assert record["optimizer_state"]["elements"] == record["parameters"]["elements"] == 37


def test_a_machine_is_asked_for_before_a_capture(net):
    """A model that brings no machine: said at once, and nothing is captured."""
    result = place("plan", f"{net}:make")
    assert result.exit_code == 2
    assert "--machine" in result.stderr
    assert "capturing" not in result.stderr


@pytest.mark.parametrize(
    "options",
    [("--memory", "gpu:9=4GiB"), ("--memory", "gpu:0"), ("--constraint", "pin"), ("--machine", "nothing")],
)
def test_options_are_checked_before_a_capture(net, options):
    """What is wrong with them does not depend on the model, and a capture may take long."""
    result = place("plan", f"{net}:make", "--machine", "k40x1", *options)
    assert result.exit_code == 2
    assert "capturing" not in result.stderr


def test_the_same_command_gives_the_same_graph(tmp_path):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in files:
        assert place("capture", SMALL, "-o", file).exit_code == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    assert workload_fingerprint(read_graph(files[0])) == workload_fingerprint(pw.zoo.load(SMALL))

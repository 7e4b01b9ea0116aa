"""Programs that torch.export has saved: the graph is that of a capture, and nothing in the file is run."""

import contextlib
import copy
import io
import json
import pickle
import zipfile
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from placewright.capture import capture_step
from placewright.capture.exported import read_exported
from placewright.capture.exported_names import check_expression
from placewright.errors import CaptureError, FileError
from tests.models import cases

CASES = cases()
NAMES = [
    "conv-norm",
    "residual",
    "gru",
    "attention",
    "dropout",
    "rms-norm",
    "experts",
    "frozen",
    "expanded",
]


def save(folder, model, args, kwargs=None, name="net.pt2"):
    """Export a copy of a model and save the program."""
    file = folder / name
    torch.export.save(torch.export.export(copy.deepcopy(model), args, kwargs), file)
    return file


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize("optimizer", [None, "adam"])
@pytest.mark.parametrize("name", NAMES)
def test_a_program_is_the_graph_of_its_model(tmp_path, name, optimizer):
    """Kinds, phases, scopes, flops, bytes and parameters are those of a capture of the module itself."""
    case = CASES[name]
    model = copy.deepcopy(case.model).train(optimizer is not None)
    found = read_exported(save(tmp_path, model, case.args, dict(case.kwargs)), optimizer=optimizer)
    usual = capture_step(model, case.args, case.kwargs, optimizer=optimizer, name="net")
    for key in ("kinds", "scopes", "dtypes"):
        assert Counter(getattr(found.graph, key)) == Counter(getattr(usual.graph, key)), key
    for key in ("flops", "bytes_read", "bytes_written", "workspace_bytes"):
        assert sorted(getattr(found.graph, key)) == sorted(getattr(usual.graph, key)), key
    assert Counter(found.graph.phase.tolist()) == Counter(usual.graph.phase.tolist())
    assert found.graph.persistent_bytes == usual.graph.persistent_bytes
    assert set(found.held) == set(usual.held)
    assert found.method == "exported program"


class Pair(NamedTuple):
    """Two outputs by name."""

    scores: Any
    loss: Any


@dataclass
class Result:
    """The same as a dataclass, of which one field may be missing."""

    scores: Any
    state: Any = None
    loss: Any = None


pytree._register_namedtuple(Pair, serialized_type_name="tests.Pair")
torch.export.register_dataclass(Result, serialized_type_name="tests.Result")

OUTPUTS = {
    "named": (lambda y: {"scores": y, "loss": y.mean()}, True),
    "named after nested ones": (lambda y: {"both": (y, [y + 1]), "loss": y.mean()}, True),
    "named, of shape (1,)": (lambda y: {"scores": y, "loss": y.mean().view(1)}, True),
    "field of a named tuple": (lambda y: Pair(y, y.mean()), True),
    "field of a dataclass": (lambda y: Result(y, loss=y.mean()), True),
    "named, and no number": (lambda y: {"error": y.mean(), "loss": y}, False),
    "named, and None": (lambda y: {"loss": None, "error": y.mean(), "scores": y}, True),
    "first of a dict": (lambda y: {"error": y.mean(), "scores": y}, True),
    "second of a dict": (lambda y: {"scores": y, "error": y.mean()}, False),
    "first of a tuple": (lambda y: (y.mean(), y), True),
    "first tensor": (lambda y: (None, (3, y.mean()), y), True),
    "first of shape (1,)": (lambda y: (y.mean().view(1), y), False),
    "whole numbers": (lambda y: (y.argmax(), y), False),
    "only one": (lambda y: y.mean(), True),
    "only one of shape (1, 1)": (lambda y: y[:1, :1], False),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_loss_is_found_by_one_rule(tmp_path, name):
    """What is called `loss`, else the first tensor, if it is one number: alike for a module and a saved program."""
    make, has_loss = OUTPUTS[name]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 2)

        def forward(self, x):
            return make(self.a(x))

    x = (torch.zeros(3, 4),)
    found = read_exported(save(tmp_path, Net(), x), optimizer="sgd")
    usual = capture_step(Net(), x, optimizer="sgd")
    assert found.traced.has_loss == usual.traced.has_loss == has_loss
    assert found.graph.n_ops == usual.graph.n_ops
    assert Counter(found.graph.kinds) == Counter(usual.graph.kinds)
    inputs = [op for op in found.graph.op_names if op.startswith("gradient.")]
    assert bool(inputs) != has_loss


def test_a_batch_of_one_is_the_step_of_a_larger_one():
    """One score of one sample is no loss, as two of two are none."""
    steps = [capture_step(nn.Linear(4, 1), torch.zeros(batch, 4), optimizer="sgd") for batch in (1, 2)]
    assert [step.traced.has_loss for step in steps] == [False, False]
    assert steps[0].graph.kinds == steps[1].graph.kinds


def test_tied_weights_and_weights_of_one_storage(tmp_path):
    """Tied ones are one parameter; those that lie beside each other in one storage are two."""
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 1))
    net[1].weight = net[0].weight
    x = (torch.zeros(3, 4),)
    assert read_exported(save(tmp_path, net, x)).graph.persistent_bytes == 4 * (16 + 4 + 1)
    flat = torch.zeros(40)
    net[0].weight, net[1].weight = (nn.Parameter(flat[k : k + 16].view(4, 4)) for k in (4, 20))
    assert read_exported(save(tmp_path, net, x)).graph.persistent_bytes == 4 * (16 + 16 + 4 + 1)


def test_sizes_that_are_left_open_are_those_of_the_export(tmp_path):
    net, batch = nn.Linear(4, 2), torch.export.Dim("batch")
    program = torch.export.export(net, (torch.zeros(6, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "net.pt2")
    found = read_exported(tmp_path / "net.pt2", optimizer="sgd")
    assert (6, 2) in found.graph.tensor_shapes


def test_no_weight_is_read(tmp_path):
    """A program without the bytes of its weights gives the same graph."""
    file = save(tmp_path, nn.Linear(64, 64), (torch.zeros(2, 64),))
    usual = read_exported(file)
    rewrite(file, lambda name, data: b"" if "/data/weights/weight_" in name else data)
    assert read_exported(file).graph.persistent_bytes == usual.graph.persistent_bytes == 4 * (64 * 64 + 64)


# ---- files that want something else ------------------------------------------------------------


def rewrite(file, change):
    """Pass every entry of an archive through a function; None leaves it out."""
    with zipfile.ZipFile(file) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in entries:
            made = change(name, data)
            if made is not None:
                archive.writestr(name, made)


def edit(file, edits):
    """Change the JSON documents of an archive: by the end of an entry's name, what to do to its document."""

    def change(name, data):
        for ending, do in edits.items():
            if name.endswith(ending):
                document = json.loads(data)
                do(document)
                return json.dumps(document).encode()
        return data

    rewrite(file, change)


class Touch:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


@pytest.fixture
def program(tmp_path):
    """A program of one linear layer."""
    return save(tmp_path, nn.Linear(4, 2), (torch.zeros(3, 4),))


def test_no_pickle_is_loaded(program, tmp_path):
    """Sample inputs are pickles that torch would load; here they are dropped, and weights marked so are refused."""
    touched = tmp_path / "touched"
    payload = pickle.dumps(Touch(touched))
    rewrite(program, lambda name, data: payload if name.endswith("sample_inputs/model.pt") else data)
    read_exported(program)
    assert not touched.exists()

    def mark(document):
        next(iter(document["config"].values()))["use_pickle"] = True

    edit(program, {"model_weights_config.json": mark})
    rewrite(program, lambda name, data: payload if "/data/weights/weight_" in name else data)
    with pytest.raises(FileError, match="is pickled, which is never read"):
        read_exported(program)
    assert not touched.exists()


@pytest.mark.parametrize("kind", ["weights", "constants"])
def test_tables_of_older_files_are_pickles(program, kind):
    """Weights and constants that are not described in JSON."""
    rewrite(program, lambda name, data: None if name.endswith(f"model_{kind}_config.json") else data)
    with zipfile.ZipFile(program, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/data/{kind}/model.pt", pickle.dumps({}))
    with pytest.raises(FileError, match="is pickled, which is never read"):
        read_exported(program)


def first_call(document):
    """The first node of a program that calls an operator."""
    return next(node for node in document["graph_module"]["graph"]["nodes"] if node["target"].startswith("torch.ops"))


@pytest.mark.parametrize(
    "target",
    [
        "torch.load", "torch.hub.load", "os.system", "builtins.exec", "torch.ops.aten.linear.nothing",
        "torch.ops.mine.secret.default", "torch.ops.aten.save.default", "torch.ops.aten.from_file.default",
        "torch.ops.load_library", "torch._C._jit_set_profiling_mode", "torch.ops.higher_order.triton_kernel_wrapper",
        "torch.ops.aten.linear.default; import os",
    ],
)  # fmt: skip
def test_only_operators_are_called(program, target):
    """Any other target is refused by its name."""
    edit(program, {"models/model.json": lambda document: first_call(document).update(target=target)})
    with pytest.raises(FileError, match="calls"):
        read_exported(program)


def test_guards_are_not_run(program, tmp_path):
    """They are Python that torch executes; here they are dropped."""
    touched = tmp_path / "touched"
    guard = f"open({str(touched)!r}, 'w')"
    edit(program, {"models/model.json": lambda document: document.update(guards_code=[guard])})
    read_exported(program)
    assert not touched.exists()


@pytest.mark.parametrize(
    "size",
    [
        *("__import__('os').system('true')", "s0.__class__", "10**10**10", "Pow(9, 999999)", "x" * 3000, "[1][0]"),
        *("1 << 9", "((((9**8)**8)**8)**8)**8", "Pow(Pow(Pow(Pow(9, 8), 8), 8), 8)", "*".join(["(9**8)**8"] * 90)),
        *("(s0 + s1 + s2 + s3 + s4 + s5 + s6)**8", "(s0*s1 + 1)**8*(s0 + s1)**8"),
    ],
)
def test_sizes_are_arithmetic(program, size):
    """Torch evaluates them; what is no arithmetic on symbols, or could fill the memory, is refused."""

    def put(document):
        tensors = document["graph_module"]["graph"]["tensor_values"]
        next(iter(tensors.values()))["sizes"][0] = {"as_expr": {"expr_str": size, "hint": None}}

    edit(program, {"models/model.json": put})
    with pytest.raises(FileError, match="is no size that torch writes"):
        read_exported(program)


@pytest.mark.parametrize(
    "size",
    [
        *(
            "s0",
            "Integer(2)*s0**2",
            "FloorDiv((s0 + 1)**2, Integer(4))",
            "Pow(Add(s0, 1), Integer(2))",
            "Max(1, s0//16)",
        ),
        *("+".join(f"s{k}*(s{k} - 1)" for k in range(60)), "+".join(["1"] * 900), "-" * 90 + "1"),
    ],
)
def test_sizes_that_torch_may_write(size):
    """Polynomials of sizes, long ones too; only what grows out of all proportion is refused."""
    check_expression(size, "net.pt2")


@pytest.mark.parametrize("name", ["x; import os", "a b", "a\nb", "../x", "é", "x" * 2000])
def test_names_are_names(program, name):
    """They become part of generated source."""

    def put(document):
        call = first_call(document)
        call["outputs"][0]["as_tensor"]["name"] = name

    edit(program, {"models/model.json": put})
    with pytest.raises(FileError, match="is not a name that torch writes there"):
        read_exported(program)


def test_specifications_import_nothing(program):
    """Nested inputs and outputs name classes, which torch imports; here both are flat."""
    spec = json.dumps([1, {"type": "os.path", "context": "null", "children_spec": []}])

    def put(document):
        signature = document["graph_module"]["module_call_graph"][0]["signature"]
        signature["in_spec"] = signature["out_spec"] = spec

    edit(program, {"models/model.json": put})
    assert "addmm" in read_exported(program).graph.kinds


def test_sizes_of_weights_are_checked(program):
    def put(document):
        next(iter(document["config"].values()))["tensor_meta"]["sizes"] = [{"as_int": 1 << 59}, {"as_int": 1 << 59}]

    edit(program, {"model_weights_config.json": put})
    with pytest.raises(FileError, match="elements; at most"):
        read_exported(program)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda file: file.write_bytes(b""), "is no .pt2 file; save a program with torch.export.save"),
        (lambda file: file.write_text("hello"), "is no .pt2 file"),
        (lambda file: file.write_bytes(file.read_bytes()[:3000]), "is cut off"),
        (lambda file: torch.save({"a": torch.zeros(2)}, file), "holds tensors saved by torch.save, and no program"),
        (lambda file: rewrite(file, lambda name, data: None if "models/" in name else data), "without an exported"),
        (lambda file: rewrite(file, lambda name, data: b"9" if "archive_version" in name else data), "archive_version"),
        (lambda file: rewrite(file, lambda name, data: b"{" if "model.json" in name else data), "is not valid JSON"),
        (lambda file: edit(file, {"model.json": lambda d: d["schema_version"].update(major=99)}), "is not 8"),
        (lambda file: edit(file, {"model.json": lambda d: d.pop("graph_module")}), "not of the form that torch writes"),
        (lambda file: file.unlink(), "no such file"),
    ],
)
def test_what_is_no_program_is_refused(program, make, words):
    make(program)
    with pytest.raises(FileError) as caught:
        read_exported(program)
    assert words in str(caught.value)


def test_a_damaged_entry_is_told(program):
    """The checksum of the program's document is wrong."""
    data = bytearray(program.read_bytes())
    at = data.find(b'"graph_module"')
    data[at + 1] ^= 1
    program.write_bytes(data)
    with pytest.raises(FileError, match="is damaged"):
        read_exported(program)


def test_random_damage_is_refused_or_read(program):
    """Any byte of the program's document may change: an error of ours, or a graph."""
    original = program.read_bytes()
    with zipfile.ZipFile(io.BytesIO(original)) as archive:
        name = next(n for n in archive.namelist() if n.endswith("models/model.json"))
        text = archive.read(name)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        at = int(torch.randint(len(text), (1,), generator=generator))
        new = text[:at] + bytes([int(torch.randint(32, 127, (1,), generator=generator))]) + text[at + 1 :]
        program.write_bytes(original)
        rewrite(program, lambda n, data, new=new: new if n == name else data)
        with contextlib.suppress(FileError, CaptureError):
            read_exported(program)

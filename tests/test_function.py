"""Models that functions in Python files return."""

import sys

import pytest
import torch

from placewright.capture import capture_step, torch_private
from placewright.capture.function import from_function
from placewright.errors import CaptureError, FileError, UnknownNameError

HEAD = """
import torch
from torch import nn
import neighbour

X = torch.zeros(2, 4)
size = 3

def net():
    return nn.Linear(4, neighbour.WIDTH)

"""


@pytest.fixture
def file(tmp_path):
    """Writes a Python file with these lines, beside a neighbour, and returns its path."""
    (tmp_path / "neighbour.py").write_text("WIDTH = 5\n")

    def write(lines):
        path = tmp_path / "net.py"
        path.write_text(HEAD + lines)
        return path

    yield write
    sys.modules.pop("neighbour", None)
    sys.modules.pop("placewright_model", None)


@pytest.mark.parametrize(
    ("returned", "args", "kwargs"),
    [
        ("net(), X", 1, []),
        ("net(), (X,)", 1, []),
        ("net(), [X, X]", 2, []),
        ("net(), {'input': X}", 0, ["input"]),
        ("net(), X, {'other': X}", 1, ["other"]),
        ("[net(), X]", 1, []),
    ],
)
def test_what_a_function_may_return(file, returned, args, kwargs):
    """A module with positional and named inputs, of which none takes memory; neighbours can be imported."""
    path = list(sys.path)
    model, given, named = from_function(file(f"def make():\n    return {returned}\n"), "make")
    assert isinstance(model, torch.nn.Linear)
    assert model.out_features == 5
    assert (len(given), list(named)) == (args, kwargs)
    assert all(torch_private.is_fake(parameter) for parameter in model.parameters())
    assert sys.path == path


def test_a_function_that_would_not_fit_into_memory(file):
    """Its weights have shapes and no bytes."""
    model, _, _ = from_function(file("def make():\n    return nn.Linear(1 << 20, 1 << 20), X\n"), "make")
    assert model.weight.numel() == 1 << 40


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("return", "make returns nothing; (module, inputs)"),
        ("return net()", "make returns a Linear; (module, inputs)"),
        ("return X, net()", "returns a FakeTensor first"),
        ("return net(), None", "returns nothing second"),
        ("return net(), 'text'", "returns a str second"),
        ("return net(), X, X", "third; a dict of inputs by name"),
        ("return net(), X, {1: X}", "third; a dict of inputs by name"),
        ("raise KeyError('left')", "`raise KeyError('left')`"),
        ("raise SystemExit(4)", "make ends the program (exit 4)"),
        ("return 1 / 0", "ZeroDivisionError: division by zero"),
        ("return net() if X[0, 0] > 0 else X", "tensors without values, so it cannot look at them"),
        ("return nn.LazyLinear(4), X", "lazy modules"),
        ("return net().cuda(), X", "make raises"),
    ],
)
def test_what_is_said_of_a_function(file, lines, words):
    if "cuda" in lines and torch.backends.cuda.is_built():
        pytest.skip("torch is built for GPUs")
    if "X[0, 0]" in lines:
        lines = "X = torch.zeros(2, 4)\n    " + lines
    elif "X, net()" in lines:
        lines = lines.replace("X, net()", "torch.zeros(2), net()")
    with pytest.raises(CaptureError) as caught:
        from_function(file(f"def make():\n    {lines}\n"), "make")
    assert words in str(caught.value)


def test_names_that_are_no_functions(file):
    """Unknown ones are told with those that there are, and what is no function or needs arguments."""
    path = file("def make(n):\n    return net(), X\n")
    with pytest.raises(UnknownNameError, match=r"unknown function of .*net\.py 'mak'\. Did you mean make\?"):
        from_function(path, "mak")
    with pytest.raises(CaptureError, match="is called without arguments, but has to be given some"):
        from_function(path, "make")
    with pytest.raises(CaptureError, match=r"net\.py:size is an int; a function"):
        from_function(path, "size")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("def make(:\n", "line 12: is not Python: SyntaxError"),
        ("raise ValueError('early')\n", "raises ValueError: early when it is imported"),
        ("raise SystemExit\n", "ends the program"),
        ("import no_such_module\n", "no_such_module"),
    ],
)
def test_files_that_cannot_be_imported(file, lines, words):
    with pytest.raises((FileError, CaptureError)) as caught:
        from_function(file(lines), "make")
    assert words in str(caught.value)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileError, match="no such file"):
        from_function(tmp_path / "net.py", "make")
    (tmp_path / "net.py").mkdir()
    with pytest.raises(FileError, match="is no regular file"):
        from_function(tmp_path / "net.py", "make")


@pytest.mark.parametrize("optimizer", [None, "sgd"])
def test_a_neighbour_may_be_imported_in_the_forward_pass(file, optimizer):
    """The folder is on sys.path again while the model is captured, and gone afterwards."""
    lines = """
class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        import later
        return (self.a(x) * later.FACTOR).sum()


def make():
    return Late(), X
"""
    path = file(lines)
    (path.parent / "later.py").write_text("FACTOR = 3\n")
    before = list(sys.path)
    try:
        model, args, kwargs = from_function(path, "make")
        assert capture_step(model, args, kwargs, optimizer=optimizer).method == "export"
    finally:
        sys.modules.pop("later", None)
    assert sys.path == before


def test_files_that_are_no_python_by_their_name(tmp_path):
    for name in ("n.txt", "net", "net.json", "net.pyc", "net.so"):
        (tmp_path / name).write_text("def f(): return None\n")
        with pytest.raises(FileError, match=r"the name of a Python file ends in \.py"):
            from_function(tmp_path / name, "f")

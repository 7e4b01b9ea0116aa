"""The error tree is what errors.py draws, exit codes are as promised, and messages help."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from placewright import errors
from placewright.errors import (
    FileError,
    InfeasibleError,
    InputError,
    MissingExtraError,
    PlacewrightError,
    SearchError,
    UnknownNameError,
)

PACKAGE = Path(errors.__file__).parent


def drawn():
    """Name to (parent, exit code or None), as the docstring of errors.py draws it."""
    tree, path = {}, []
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ([│├└─ ]*)([A-Z]\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4
            code = re.search(r"exit code (\d)", line)
            path[depth:] = [found[2]]
            tree[found[2]] = (path[depth - 1] if depth else None, int(code[1]) if code else None)
    return tree


def real():
    """The classes of errors.py by name."""
    return {
        name: thing
        for name, thing in vars(errors).items()
        if inspect.isclass(thing) and thing.__module__ == errors.__name__
    }


def test_tree_is_as_drawn():
    """Every class of errors.py is in the drawing under its only base, and nothing else is."""
    parents = {name: cls.__base__.__name__ for name, cls in real().items()}
    assert {name: parent or "Exception" for name, (parent, _) in drawn().items()} == parents
    assert all(len(cls.__bases__) == 1 for cls in real().values())


def test_exit_codes_are_as_drawn():
    """A class has the exit code drawn beside it or beside its nearest ancestor; the root has 1."""
    tree = drawn()
    assert [code for _, code in tree.values() if code is not None] == [2, 3, 1]
    for name, cls in real().items():
        at, code = name, tree[name][1]
        while code is None and tree[at][0] is not None:
            at = tree[at][0]
            code = tree[at][1]
        assert cls.exit_code == (code or 1), name


def test_exit_codes_of_the_command_line():
    """Wrong input is 2, infeasible is 3, and what went wrong inside is 1."""
    assert (InputError.exit_code, InfeasibleError.exit_code, SearchError.exit_code) == (2, 3, 1)
    assert MissingExtraError.exit_code == 2
    assert PlacewrightError.exit_code == 1


def test_no_error_class_outside_the_tree():
    """No other module defines a subclass of an error of the tree."""
    names = set(real())
    strays = [
        f"{path.name}:{node.name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "errors.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).split(".")[-1] in names for base in node.bases)
    ]
    assert strays == []


@pytest.mark.parametrize(
    ("place", "text"), [("pools[0].bytes", "box.toml: pools[0].bytes: too big"), ("", "box.toml: too big")]
)
def test_file_error_says_where(place, text):
    """A FileError prints path, place and problem, without a gap where there is no place, and keeps all three."""
    error = FileError(Path("box.toml"), place, "too big")
    assert str(error) == text
    assert (error.path, error.place, error.problem) == ("box.toml", place, "too big")


def test_unknown_name_suggests_and_lists():
    """An UnknownNameError names what was asked, the near misses, all that exist, and the hint."""
    error = UnknownNameError("device", "gpu:o", ["cpu:0", "gpu:0"], "Look again.")
    assert str(error).startswith("unknown device 'gpu:o'. Did you mean gpu:0")
    assert str(error).endswith("Known: cpu:0, gpu:0. Look again.")
    assert " Did you mean gpu:1 or gpu:0? Known: " in str(UnknownNameError("device", "gpu:", ["gpu:0", "gpu:1"]))


def test_unknown_name_without_near_misses():
    """Where nothing is near there is no guess, and where nothing exists it says so."""
    assert str(UnknownNameError("device", "xyzzy", ["cpu:0"])) == "unknown device 'xyzzy'. Known: cpu:0."
    assert str(UnknownNameError("device", "xyzzy", [])) == "unknown device 'xyzzy'. Known: none."


@pytest.mark.parametrize(("count", "told"), [(40, False), (41, True)])
def test_unknown_name_lists_forty(count, told):
    """At most 40 names are listed; beyond that the message says how many there are."""
    text = str(UnknownNameError("operation", "zzz", (f"op{k:02d}" for k in range(count))))
    assert "op39" in text
    assert "op40" not in text
    assert (f"({count} in all)" in text) == told


@pytest.mark.parametrize(
    ("asked", "names", "told"),
    [
        ("op7x", [f"op{k}" for k in range(2000)], True),
        ("op7x", [f"op{k}" for k in range(2001)], False),
        ("a" * 99, ["a" * 100], True),
        ("a" * 101, ["a" * 100], False),
        ("a" * 100, ["a" * 101], False),
    ],
)
def test_near_misses_are_looked_for_where_that_is_quick(asked, names, told):
    """Names are compared only if they are few, and only short ones."""
    assert ("Did you mean" in str(UnknownNameError("operation", asked, names))) == told


def test_names_are_cut_to_length():
    """A message never holds more of a name than a hundred characters, nor takes long for many and long names."""
    names = [f"{k}" + "x" * 1000 for k in range(100_000)]
    text = str(UnknownNameError("operation", "y" * 10**6, names))
    assert text.startswith("unknown operation '" + "y" * 97 + "...'. Known: 0" + "x" * 96 + "..., 1x")
    assert len(text) < 5000


def test_missing_extra_gives_the_command():
    """A MissingExtraError says what needs the extra and how to install it."""
    assert str(MissingExtraError("reading .onnx", "onnx")) == (
        "reading .onnx needs the extra 'onnx': pip install 'placewright[onnx]'"
    )

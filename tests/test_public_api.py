"""The public names: all resolve, lazily, and no import of a module takes a function's place."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import placewright as pw

PACKAGE = Path(pw.__file__).parent
MODULES = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
SHADOWS = sorted(name for name in pw.__all__ if name in MODULES and not inspect.ismodule(getattr(pw, name)))
"""Public names, other than modules, that are the name of a module too."""

ORDERS = """
import importlib, itertools, sys

def look(name):
    return getattr(importlib.import_module("placewright"), name)

shadows = {shadows!r}
steps = [(act, name) for name in shadows for act in ("import", "look")]
for order in itertools.permutations(steps, 4):
    for name in [name for name in sys.modules if name.split(".")[0] == "placewright"]:
        del sys.modules[name]
    for act, name in order:
        importlib.import_module("placewright." + name) if act == "import" else look(name)
    for name in shadows:
        assert type(look(name)).__name__ == "function", (order, name, look(name))
        assert type(sys.modules["placewright." + name]).__name__ == "module", (order, name)
    from placewright.machine import Machine
    from placewright.search import Placer
    assert look("Machine") is Machine and look("Placer") is Placer, order
print("all orders")
"""


def python(script):
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def test_all_is_sorted_and_without_repeats():
    """`__all__` is in order, names nothing twice, and is what `dir` shows."""
    assert pw.__all__ == sorted(set(pw.__all__))
    assert dir(pw) == pw.__all__


@pytest.mark.parametrize("name", pw.__all__)
def test_every_name_resolves(name):
    """A public name is a module, class, function or constant of its own name, and stays the same object."""
    thing = getattr(pw, name)
    own = {"machine": "load_machine"}.get(name, f"placewright.{name}" if inspect.ismodule(thing) else name)
    assert thing.__name__ == own
    assert getattr(pw, name) is thing


def test_type_checkers_see_the_same_names():
    """The imports under TYPE_CHECKING are the public names, from the places they are resolved from."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.asname or alias.name: (node.module, alias.name) for node in block.body for alias in node.names}
    assert sorted(seen) == pw.__all__
    for name, (module, attribute) in seen.items():
        home = sys.modules["placewright"] if module == "placewright" else __import__(module, fromlist=[attribute])
        assert getattr(home, attribute) is getattr(pw, name), name


def test_unknown_attribute():
    """A name that is not public is an AttributeError that names it, so that hasattr works."""
    with pytest.raises(AttributeError, match="'placewright' has no attribute 'serach'"):
        pw.serach  # noqa: B018
    assert not hasattr(pw, "serach")


def test_functions_survive_modules_of_their_name():
    """`search` and `machine` stay functions in whatever order they and their modules are first used."""
    assert {"machine", "search"} <= set(SHADOWS)
    assert python(ORDERS.replace("{shadows!r}", repr(SHADOWS))) == "all orders"


def test_star_import():
    """A star import gives every public name, and the functions rather than the modules."""
    script = (
        "import placewright.search, placewright.machine\nfrom placewright import *\n"
        "import placewright as pw\n"
        "print(search is pw.search, machine is pw.machine, callable(search), callable(machine))\n"
        "print([name for name in pw.__all__ if name not in globals()])"
    )
    assert python(script) == "True True True True\n[]"

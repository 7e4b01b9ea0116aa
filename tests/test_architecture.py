"""Imports point down, heavy packages stay in their rooms, only the command line prints, and sizes stay in budget."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests import size_report

PACKAGE = Path(__file__).parents[1] / "src" / "placewright"
LAYERS = [  # low to high; units of one layer never import each other
    ["errors"],
    ["checks", "files", "repeats"],
    ["documents", "graph", "machine"],
    ["operations", "machine_files", "profile", "fingerprints", "structure"],
    ["graph_format", "placement", "grouping", "block_candidates"],
    ["costs", "workload", "blocks"],
    ["problem"],
    ["plan"],
    ["sim", "formats"],
    ["predict", "bounds", "evaluate", "stop", "decisions", "levels"],
    ["search", "relief"],
    ["heuristics", "exact", "learn", "balance", "beginnings", "wander"],
    ["auto", "testing"],
    ["methods"],
    ["capture"],
    ["zoo", "importers", "exporters", "store"],
    ["execute"],
    ["report"],
    ["bench", "envs"],
    ["cli"],
    ["__main__"],
]
ROOMS = {  # heavy packages, and the only units that may import them
    "numba": {"sim"},
    "torch": {"learn", "zoo", "capture", "execute", "envs"},
    "ortools": {"exact"},
    "pymetis": {"heuristics"},
    "mtkahypar": {"heuristics"},
    "pyscotch": {"heuristics"},
    "matplotlib": {"report"},
    "click": {"cli"},
    "rich": {"cli"},
}
RANK = {unit: level for level, units in enumerate(LAYERS) for unit in units}


def unit_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Dotted names that a module imports at run time, in functions too, but not under TYPE_CHECKING."""
    tree = ast.parse(path.read_text())
    checking = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in checking:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def violations(paths):
    for path in paths:
        unit = unit_of(path)
        if unit == "__init__":
            continue
        if unit not in RANK:
            yield f"{unit} is in no layer"
            continue
        for name in imports(path):
            head, target = [*name.split("."), ""][:2]
            if head in ROOMS and unit not in ROOMS[head]:
                yield f"{path.name}: only {sorted(ROOMS[head])} may import {head}"
            if head == "placewright" and target != unit and RANK.get(target, -1) >= RANK[unit]:
                yield f"{path.name}: {unit} must not import {target}"


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def test_imports_point_down():
    """No module imports from its own layer or from one above it."""
    assert list(violations(modules())) == []


def test_the_check_can_fail(tmp_path, monkeypatch):
    """A module that imports upwards, or a heavy package out of its room, is found."""
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    bad = tmp_path / "graph.py"
    bad.write_text("def f():\n    import torch\n    from placewright.cli import main\n")
    assert len(list(violations([bad]))) == 2


def test_only_the_command_line_prints():
    """`print` is called in cli/ alone."""
    guilty = [
        str(path.relative_to(PACKAGE))
        for path in modules()
        if unit_of(path) != "cli"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert guilty == []


@pytest.mark.parametrize("module", ["placewright", "placewright.cli"])
def test_import_is_cheap(module):
    """Neither the package nor its command line imports a heavy package before it is used."""
    script = (
        f"import sys, {module}; print([m for m in ('numpy', 'scipy', 'numba', 'torch', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sizes_stay_in_budget():
    """The limits of the size report hold: no module over 400 lines, median at most 150, few long functions."""
    assert size_report.over_budget() == []

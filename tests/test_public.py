"""The public surface: explicit, cheap, and typed for users."""

import copy
import dataclasses
import pickle
import subprocess
import sys

import numpy as np
import pytest

import placewright as pw
from placewright.testing import small_problem


def test_all_is_the_table():
    """`__all__` lists what resolves, sorted, no more and no less."""
    assert pw.__all__ == sorted({*pw._WHERE, *pw._MODULES})
    assert dir(pw) == pw.__all__
    assert all(getattr(pw, name) is not None for name in pw.__all__)


def test_type_checkers_see_the_names(tmp_path):
    """mypy in strict mode accepts a user's script that uses the package by its public names."""
    script = tmp_path / "user.py"
    script.write_text(
        "import placewright as pw\n"
        "graph = pw.build_graph('g', [pw.Operation('a')])\n"
        "problem = pw.Problem(graph, pw.machine('cpu2'))\n"
        "result: pw.Result = pw.search(problem, 'random', stop=pw.stop.Evaluations(5), seed=0)\n"
        "print(result.summary())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(script)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Success" in done.stdout, done.stdout + done.stderr
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert "5 evaluations" in done.stdout


def test_what_is_frozen_can_be_pickled_and_copied_but_not_changed():
    """Machines, graphs, problems and placements survive pickle and deepcopy, and stay as they were checked."""
    problem = small_problem()
    placement = problem.placement(np.zeros(problem.n_ops, int), np.full(problem.n_ops, -0.0))
    assert placement == problem.placement(np.zeros(problem.n_ops, int), np.zeros(problem.n_ops))
    for again in (pickle.loads(pickle.dumps(placement)), copy.deepcopy(placement)):
        assert again == placement
        with pytest.raises(ValueError, match="read-only"):
            again.devices[0] = 1
    for again in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
        assert pw.simulate(again, placement) == pw.simulate(problem, placement)
        assert again.machine == problem.machine
    device = pw.machine("k40x1").devices[1]
    with pytest.raises(TypeError, match="cannot be changed"):
        device.flops_per_s["float32"] = -5.0
    assert dataclasses.asdict(device)["flops_per_s"] == dict(device.flops_per_s)

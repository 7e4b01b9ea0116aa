"""The public surface: explicit, cheap, and typed for users."""

import subprocess
import sys

import placewright as pw


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

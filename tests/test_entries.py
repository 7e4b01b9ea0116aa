"""The compiled entry points: their cache, and what threads may do with them."""

import importlib
import pkgutil
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numba.core.caching import NullCache

import placewright
from placewright.sim import Simulator, entries, jit
from placewright.testing import small_problem


def test_an_edit_anywhere_changes_the_stamp(tmp_path):
    """A change of any source of sim/ changes the names of the files of compiled code."""
    folder = tmp_path / "sim"
    shutil.copytree(Path(entries.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    before = jit.stamp.__wrapped__(folder)
    assert before == jit.stamp(Path(entries.__file__).parent)
    for name in ("kernel.py", "build.py", "lower.py", "work.py", "queues.py", "loads.py", "jit.py"):
        with (folder / name).open("a") as file:
            file.write("\n")
        after = jit.stamp.__wrapped__(folder)
        assert after != before, name
        before = after


def test_every_entry_point_carries_the_stamp():
    """Everything that is compiled into the cache has it in its name, which is that of the file."""
    stamp = jit.stamp(Path(entries.__file__).parent)
    found = 0
    for info in pkgutil.iter_modules([str(Path(entries.__file__).parent)]):
        module = importlib.import_module(f"placewright.sim.{info.name}")
        for thing in vars(module).values():
            if getattr(thing, "_cache", None) is not None and not isinstance(thing._cache, NullCache):
                assert thing.py_func.__qualname__.endswith(f"-{stamp}")
                assert f"-{stamp}-" in Path(thing._cache._cache_file._index_path).name
                found += 1
    assert found >= 15


def test_what_was_compiled_from_other_sources_is_removed(tmp_path):
    """An index that names a class which has moved could not even be read."""
    folder = tmp_path / "__pycache__"
    folder.mkdir()
    names = ["a.f-01-3.py311.nbi", "a.f-01-3.py311.1.nbc", "a.f-02-3.py311.nbi", "a.f-3.py311.1.nbc", "a.cpython.pyc"]
    for name in names:
        (folder / name).touch()
    jit._remove_stale(tmp_path, "02")
    assert sorted(p.name for p in folder.iterdir()) == ["a.cpython.pyc", "a.f-02-3.py311.nbi"]


def test_a_second_process_compiles_nothing():
    """What one process compiled, the next finds in the cache."""
    script = (
        "from placewright.sim import Simulator, entries\nfrom placewright.testing import small_problem\n"
        "import numpy as np\np = small_problem()\n"
        "Simulator(p).simulate([p.placement(np.zeros(p.n_ops, int))])\n"
        "stats = entries.simulate_many.stats\n"
        "print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0"]


def test_simulators_on_many_threads_do_not_disturb_each_other():
    """Eight threads, each with its own simulator that itself uses two, get what one gets."""
    problem = small_problem()
    numbers = np.random.default_rng(0)
    placements = [problem.placement(problem.lift(numbers.integers(0, 3, problem.n_groups))) for _ in range(500)]
    expected = Simulator(problem, threads=1).simulate(placements)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: Simulator(problem, threads=2).simulate(placements), range(16)))
    assert all(outcome == expected for outcome in found)
    assert placewright.simulate(problem, placements[0]) == expected[0]

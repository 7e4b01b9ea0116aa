"""The compiled entry points: their cache, and what threads may do with them."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import placewright
from placewright.sim import Simulator, entries
from placewright.testing import small_problem


def test_an_edit_anywhere_changes_the_stamp(tmp_path, monkeypatch):
    """A change of any source of sim/ changes the key of the compiled code."""
    folder = tmp_path / "sim"
    shutil.copytree(Path(entries.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(entries, "__file__", str(folder / "entries.py"))
    before = entries.stamp_of_sources()
    assert before == entries.stamp_of_sources()
    for name in ("kernel.py", "build.py", "lower.py", "work.py", "queues.py", "loads.py", "jit.py"):
        with (folder / name).open("a") as file:
            file.write("\n")
        after = entries.stamp_of_sources()
        assert after != before, name
        before = after


def test_the_stamp_is_part_of_the_cache_key():
    """Each entry point closes over the stamp, which Numba hashes into its key."""
    for function in (entries.simulate_one, entries.load_one, entries.simulate_many, entries.load_many):
        assert [cell.cell_contents for cell in function.py_func.__closure__] == [entries.stamp_of_sources()]


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

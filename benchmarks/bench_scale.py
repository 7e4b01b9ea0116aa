"""The default planner on the largest problems: its first answer, and its memory.

python benchmarks/bench_scale.py [--seconds 10] [--cache FOLDER]

Each problem has a process of its own. Seconds are of planning alone: from the start of the search, with the kernels
compiled and the graph there; the bound, which a search works out before its clock starts, is in a column of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import placewright as pw
import suite_problems
from graphs import nodes, problem_on
from placewright.bounds import lower_bound
from placewright.methods import make_placer
from placewright.problem import Problem
from placewright.search import run_search
from placewright.stop import Progress, Seconds

LARGE = "100,000 operations on 2 nodes x 32"
CASES = {"nmt-8 on k40x8": 5.0, "llama-70b on a100x8": 10.0, LARGE: 0.0}
"""Problems, and the seconds within which the first feasible answer is wanted, if any are."""
MOST_GIB = 24


def made(case: str, cache: Path) -> Problem:
    """The problem of a name."""
    if case == LARGE:
        return problem_on(nodes(2, 32), 100_000)
    network, _, machine = case.partition(" on ")
    return suite_problems.build(suite_problems.Entry(network, machine), cache)


def measure(case: str, seconds: float, cache: Path) -> dict[str, float]:
    """Plan one problem in this process."""
    problem = made(case, cache)
    placer = make_placer("auto", problem)
    placer.prepare(problem)
    began = time.perf_counter()
    bound = lower_bound(problem)
    bound_s = time.perf_counter() - began
    first: list[float] = []

    def watch(progress: Progress) -> None:
        if not first and progress.best_s < float("inf"):
            first.append(progress.seconds)

    single = pw.search(problem, f"single:{problem.machine.devices[-1].name}", bound=bound)
    result = run_search(problem, placer, Seconds(seconds), seed=0, bound=bound, watch=watch)
    return {
        "operations": problem.n_ops,
        "first_s": first[0] if first else float("inf"),
        "bound_s": bound_s,
        "single_ms": 1e3 * single.value_s,
        "value_ms": 1e3 * result.value_s,
        "gap": result.gap or 0.0,
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> None:
    """Print a row for every problem, and whether what is wanted was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--cache", type=Path, default=suite_problems.CACHE)
    parser.add_argument("--case", choices=list(CASES))
    given = parser.parse_args()
    if given.case:
        print(json.dumps(measure(given.case, given.seconds, given.cache)))
        return
    print("| problem | operations | first answer | best | one device | gap | evaluations | search | bound | memory |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    met = True
    for case, wanted in CASES.items():
        command = [sys.executable, __file__, "--case", case, "--seconds", str(given.seconds), "--cache"]
        done = subprocess.run([*command, str(given.cache)], check=True, capture_output=True, text=True)
        row = json.loads(done.stdout.splitlines()[-1])
        figures = (
            f"{row['first_s']:.2f} s | {row['value_ms']:,.1f} ms | {row['single_ms']:,.1f} ms | {row['gap']:.0%} | "
            f"{row['evaluations']:,} | {row['seconds']:.1f} s | {row['bound_s']:.1f} s | {row['gib']:.2f} GiB"
        )
        print(f"| {case} | {row['operations']:,} | {figures} |", flush=True)
        met &= row["gib"] < MOST_GIB and (not wanted or row["first_s"] <= wanted)
    print("\nwanted: a first answer within 5 s and 10 s, and 24 GiB: " + ("met" if met else "missed"))
    sys.exit(not met)


if __name__ == "__main__":
    main()

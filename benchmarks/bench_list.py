"""Speed of list scheduling. Pins the schedule, which must be the plain-Python twin's, before it times anything.

python benchmarks/bench_list.py [--quick]

The ratio is against tests/naive_list.py in the same process. The kernel's time is of ranks and schedule on lowered
arrays; the whole also lowers the problem, whose groups are known. The twin's is of all that it does.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from tests.naive_list import run as run_twin

from graphs import problem
from placewright.heuristics.baechi import m_etf_devices, m_sct_devices, m_topo_devices
from placewright.heuristics.list_lowering import Units, lower_tasks
from placewright.heuristics.list_scheduling import (
    METHODS,
    cpop_devices,
    etf_devices,
    heft_devices,
    run_method,
    schedule,
)
from placewright.problem import Problem

HELPERS = {
    "heft": heft_devices,
    "cpop": cpop_devices,
    "etf": etf_devices,
    "m-topo": m_topo_devices,
    "m-etf": m_etf_devices,
    "m-sct": m_sct_devices,
}
REQUIRED = 50
"""HEFT on 1,000 operations and 4 devices is to be so many times faster than the twin."""


def best_of(run: Callable[[], object], times: int) -> float:
    """Seconds of the fastest of several runs."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def ratio(method: str, times: int) -> float:
    """Print and return how many times faster a method is than its twin on 1,000 operations and 4 devices."""
    asked = problem(1000, 4, "priority")
    made, (twin, ranks, _) = schedule(asked, method), run_twin(asked, method)
    same = made.start.tolist() == twin.start and made.group_devices.tolist() == twin.decided
    assert same, f"{method}: kernel and twin disagree"
    assert made.priorities.tolist() == ranks, f"{method}: kernel and twin rank differently"
    tasks = lower_tasks(asked, Units.groups(asked))
    kernel = best_of(lambda: run_method(tasks, method), 50)
    whole = best_of(lambda: schedule(asked, method), 50)
    slow = best_of(lambda: run_twin(asked, method), times)
    figures = (1e3 * kernel, 1e3 * whole, 1e3 * slow, slow / kernel, slow / whole)
    print(f"| {method} | " + " | ".join(f"{x:,.2f}" if x < 10 else f"{x:,.0f}" for x in figures) + " |", flush=True)
    return slow / whole


def sizes(cases: list[tuple[int, int]]) -> None:
    """Print the seconds of every method on larger problems."""
    print("\n| operations | devices | " + " | ".join(HELPERS) + " |\n|--:|--:|" + "--:|" * len(HELPERS))
    for n_ops, devices in cases:
        asked = problem(n_ops, devices, "priority")
        row = []
        for method, helper in HELPERS.items():
            row.append("" if method == "m-sct" and n_ops > 5270 else f"{best_of(lambda: helper(asked), 2):.3f}")  # noqa: B023
        print(f"| {n_ops:,} | {devices} | " + " | ".join(row) + " |", flush=True)


def warm(asked: Problem) -> None:
    """Compile everything."""
    for helper in HELPERS.values():
        helper(asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    quick = parser.parse_args().quick
    warm(problem(100, 4, "priority"))
    print("1,000 operations, 4 devices: milliseconds, and how many times faster\n")
    print("| method | kernel | whole | plain Python | kernel's ratio | ratio |\n|---|--:|--:|--:|--:|--:|")
    ratios = {method: ratio(method, 1 if method == "etf" else 3) for method in METHODS}
    sizes([(1000, 4), (5270, 4)] if quick else [(1000, 4), (5270, 4), (40_000, 8), (100_000, 4), (100_000, 64)])
    ok = ratios["heft"] >= REQUIRED
    print(f"\nheft is {ratios['heft']:,.0f} times faster than the twin; {REQUIRED} are asked for")
    sys.exit(not ok)


if __name__ == "__main__":
    main()

"""What the problems of the `step` suite are like, by quick methods: which of them are worth having.

    PYTHONPATH=src python benchmarks/suite_check.py [NAME ...] [--methods heft,contiguous] [--seconds 5]

For every problem: operations, groups, parallelism, what is persistent against what the largest accelerator holds, the
best single device and whether it fits, then each method once (those that never end have `--seconds`). A problem is
`memory` if it does not fit on the single device that would be fastest, else `parallel` if a method uses two devices
or more and takes at least 20 % less than one device. Those two kinds should be 15 problems or more.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import suite_page
import suite_problems
from placewright.bounds import parallelism
from placewright.checks import format_bytes
from placewright.evaluate import SimulatorEvaluator
from placewright.methods import NAMED
from suite import BOUND, SINGLE, Effort, cell

QUICK = ("round-robin", "heft", "m-etf", "contiguous", "accelerate-balanced", "tabu")
"""Those of them that exist are run."""


def main() -> None:
    """Print a line for every problem, and the count of each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--methods", type=lambda text: text.split(","))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--cache", type=Path, default=suite_problems.CACHE)
    given = parser.parse_args()
    methods = given.methods or [name for name in QUICK if name in NAMED]
    kinds: Counter[str] = Counter()
    for entry in suite_problems.named(given.names, suite_problems.STEP):
        problem = suite_problems.build(entry, given.cache)
        effort = Effort(given.seconds, given.limit, 0)
        evaluator = SimulatorEvaluator(problem)
        cells = {method: cell(evaluator, method, effort) for method in (SINGLE, BOUND, *methods)}
        row = suite_page.Row(entry.name, cells)
        kinds[row.kind or "neither"] += 1
        machine = problem.machine
        cards = [device.pool for device in machine.devices if not device.is_host] or list(machine.pool_index)
        room = max(machine.pools[machine.pool_index[name]].capacity_bytes for name in cards)
        print(
            f"{entry.name}: {problem.n_ops:,} operations, {problem.n_groups:,} groups, parallelism "
            f"{parallelism(problem):.2f}, {format_bytes(problem.graph.persistent_bytes)} persistent, "
            f"{format_bytes(room)} each: {row.kind or 'neither'}"
        )
        for method in (SINGLE, *methods):
            found = cells[method]
            where = f" on {found['devices']} devices" if "devices" in found else f" {found.get('why', '')[:150]}"
            print(f"    {method}: {suite_page.milliseconds(row, method)} ms{where}")
        bound = cells[BOUND].get("bound_s")
        print("    bound: " + (f"{bound * 1e3:,.3f} ms" if bound else str(cells[BOUND].get("why", "none"))), flush=True)
    print(", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))


if __name__ == "__main__":
    sys.exit(main())

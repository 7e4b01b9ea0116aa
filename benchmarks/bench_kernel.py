"""Speed of the simulator's kernel. Pins the work (events, equal results) before it times anything.

python benchmarks/bench_kernel.py [--quick]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from graphs import placements, problem
from placewright.placement import Placement
from placewright.sim import Simulator
from placewright.sim.build import build, reset
from placewright.sim.entries import simulate_many
from placewright.sim.jit import plain
from placewright.sim.lower import lower
from placewright.sim.work import make_work
from plain_loop import PlainLoop

SECONDS = 1.5
DISCIPLINES = ("ready", "stream", "priority")


def events_of(simulator: Simulator, row: np.ndarray) -> int:
    """Operations plus transfers of one placement."""
    graph = simulator.problem.graph
    crossing = row[graph.tensor_op[graph.in_tensor]] != row[graph.read_op]
    pairs = graph.in_tensor[crossing].astype(np.int64) * 1000 + row[graph.read_op[crossing]]
    expected = graph.n_ops + len(np.unique(pairs))
    line = simulator.trace(Placement(row.astype(np.int16))).timeline
    assert line is not None
    assert len(line.moves) + graph.n_ops == expected, "the kernel made other transfers than the placement needs"
    return expected


def rate(simulator: Simulator, rows: np.ndarray, priorities: np.ndarray) -> float:
    """Placements per second in batches on all cores: the best of three."""
    windows = np.full((1, simulator.problem.n_devices), -1, np.int64)
    simulator.run_arrays(rows[:2], priorities, windows)
    best = 0.0
    for _ in range(3):
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < SECONDS / 3 or not count:
            simulator.run_arrays(rows, priorities, windows)
            count += len(rows)
        best = max(best, count / (time.perf_counter() - began))
    return best


def table(sizes: list[int]) -> dict[tuple[int, int, str, str], tuple[float, float]]:
    """Print and return placements per second and nanoseconds per event of every case."""
    cores = Simulator(problem(100, 4, "ready")).threads
    print(
        "| operations | devices | placement | discipline | placements/s | events/s (millions) | ns per event and core |"
    )
    print("|--:|--:|---|---|--:|--:|--:|")
    found = {}
    for n in sizes:
        for devices in (4, 8):
            for style in ("random", "contiguous"):
                rows = placements(n, devices, style, max(2 * cores, min(512, 1_000_000 // n)))
                for discipline in DISCIPLINES:
                    simulator = Simulator(problem(n, devices, discipline))
                    mean = float(np.mean([events_of(simulator, row) for row in rows[:4]]))
                    per_s = rate(simulator, rows, np.random.default_rng(3).random((1, n)))
                    each = cores * 1e9 / (per_s * mean)
                    found[n, devices, style, discipline] = per_s, each
                    print(
                        f"| {n:,} | {devices} | {style} | {discipline} | {per_s:,.1f} | {per_s * mean / 1e6:.2f} "
                        f"| {each:.0f} |",
                        flush=True,
                    )
    return found


def against_plain_loop(n: int, devices: int) -> float:
    """How many times the kernel is faster than a plain-Python loop; both give the same step times."""
    simulator = Simulator(problem(n, devices, "ready"))
    loop = PlainLoop(simulator.problem)
    rows = placements(n, devices, "random", 512)
    values = simulator.run_arrays(rows, np.zeros((1, n)), np.full((1, devices), -1, np.int64))[1]
    began = time.perf_counter()
    for row, value in zip(rows[:20], values[:20], strict=True):
        assert loop.run(row.tolist()) == (value, events_of(simulator, row)), "loop and kernel disagree"
    # the loop is timed alone: tracing above is not its work
    began = time.perf_counter()
    for row in rows[:20]:
        loop.run(row.tolist())
    plain = 20 / (time.perf_counter() - began)
    fast = rate(simulator, rows, np.zeros((1, n)))
    print(
        f"\nplain-Python loop, {n:,} operations, {devices} devices, random, ready: {plain:,.1f} placements/s "
        f"on one core; kernel {fast:,.0f} on {simulator.threads}: {fast / plain:,.0f} times"
    )
    return fast / plain


def breakdown(n: int, devices: int) -> None:
    """Print where one core's time goes for one placement: clearing, building transfers, running."""

    @plain
    def clear_only(p, w, rows):
        for row in rows:
            reset(p, w, row)
        return 0

    @plain
    def build_only(p, w, rows):
        for row in rows:
            reset(p, w, row)
            build(p, w, row)
        return 0

    lowered = lower(problem(n, devices, "ready"))
    work = make_work(lowered, record=False)
    count = max(4, 200_000 // n)
    none, window = np.zeros((1, n)), np.full((1, devices), -1, np.int64)
    out = np.empty(count, np.int64), np.empty(count, np.int64), np.empty((count, devices), np.int64)
    use = np.empty((count, 2 * devices + lowered.n_channels), np.int64)

    def microseconds(call: Callable[[], object]) -> float:
        call()
        times = []
        for _ in range(7):
            began = time.thread_time()
            call()
            times.append(time.thread_time() - began)
        return sorted(times)[3] / count * 1e6

    parts = {}
    for style in ("random", "contiguous"):
        rows = placements(n, devices, style, count)
        parts[style] = [
            microseconds(lambda rows=rows: clear_only(lowered, work, rows)),
            microseconds(lambda rows=rows: build_only(lowered, work, rows)),
            microseconds(lambda rows=rows: simulate_many(lowered, work, rows, none, window, 0, count, *out, use)),
        ]
    one_device = np.zeros((count, n), np.uint16)
    alone = microseconds(lambda: simulate_many(lowered, work, one_device, none, window, 0, count, *out, use))
    print(f"\nwhere the time goes, {n:,} operations, {devices} devices, ready, us per placement on one core:")
    for style, (clear, built, whole) in parts.items():
        print(f"  {style}: clear {clear:.1f}, build {built - clear:.1f}, run {whole - built:.1f}, together {whole:.1f}")
    print(f"  all on one device (no transfers): together {alone:.1f}")


_MEMORY = """
import sys
sys.path.insert(0, {folder!r})
from graphs import placements, problem
from placewright.sim import Simulator
from placewright.sim.build import build, reset
from placewright.sim.entries import simulate_many
from placewright.sim.jit import plain
from placewright.sim.lower import lower
from placewright.sim.work import make_work
import numpy as np
simulator = Simulator(problem(100_000, 8, "stream"))
simulator.run_arrays(placements(100_000, 8, "random", 4), np.zeros((1, 100_000)), np.full((1, 8), -1, np.int64))
# the high-water mark of this process alone: getrusage would count the parent's before exec
print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))
"""


def peak_memory() -> None:
    """Print the largest resident memory of a process that makes and simulates 100,000 operations."""
    script = _MEMORY.format(folder=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    print(f"peak resident memory, 100,000 operations on 8 devices: {int(done.stdout) / 1024:,.0f} MiB")


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the 100,000-operation graphs")
    quick = parser.parse_args().quick
    sizes = [100, 1_000, 10_000] if quick else [100, 1_000, 10_000, 100_000]
    found = table(sizes)
    print()
    for devices in (4, 8):
        for style in ("random", "contiguous"):
            ratios = [found[sizes[-1], devices, style, d][1] / found[1_000, devices, style, d][1] for d in DISCIPLINES]
            shown = ", ".join(f"{d} {r:.2f}" for d, r in zip(DISCIPLINES, ratios, strict=True))
            print(f"cost per event at {sizes[-1]:,} over that at 1,000 operations, {devices} devices, {style}: {shown}")
    for devices in (4, 8):
        against_plain_loop(1_000, devices)
    breakdown(1_000, 4)
    peak_memory()


if __name__ == "__main__":
    main()

"""Simulated peaks of the papers' networks on one K40, beside what the papers say fits or runs out of memory.

    python benchmarks/paper_memory.py docs/memory.md

Every network is a whole training step with everything on the GPU, by plain SGD and by Adam, under the disciplines
`stream` and `ready`. Rows land one by one between the marks in the file; those that are there are kept.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import placewright as pw
from placewright import zoo
from placewright.checks import format_bytes
from placewright.graph import BACKWARD, FORWARD, PARAMETER
from placewright.sim.timeline import Timeline

PUBLISHED = {
    "inception-v3": "fits (HDP on K40; ColocRL and Placeto on K80)",
    "resnet-152": "fits (HDP on K40)",
    "rnnlm": "fits (HDP on K40, ColocRL on K80)",
    "nmt-2": "out of memory (HDP on K40; ColocRL and Placeto on K80)",
    "nmt-4": "out of memory (HDP on K40)",
    "nmt-8": "out of memory (HDP on K40)",
}
START, END = "<!-- paper_memory -->", "<!-- /paper_memory -->"
TITLES = ("network", "optimiser", "discipline", "peak", "fits", "published", "weights and state",
          "saved by the forward pass", "made by the backward pass", "workspace",
          "largest groups at the peak")  # fmt: skip


def main() -> None:
    """Fill in the rows that are missing."""
    file = Path(sys.argv[1])
    rows = _kept(file)
    for name, published in PUBLISHED.items():
        for optimizer in ("sgd", "adam"):
            missing = [d for d in ("stream", "ready") if (name, optimizer, d) not in rows]
            if not missing:
                continue
            graph = zoo.load(name, optimizer=optimizer)
            for discipline in missing:
                rows[name, optimizer, discipline] = row(graph, name, optimizer, discipline, published)
                print(json.dumps(rows[name, optimizer, discipline]), flush=True)
                _write(file, rows)


def row(graph: pw.OpGraph, name: str, optimizer: str, discipline: str, published: str) -> list[str]:
    """Simulate one step and say what holds the bytes at its peak."""
    problem = pw.Problem(graph, pw.machine("k40x1"), discipline=discipline)
    gpu = problem.machine.device("gpu:0")
    outcome = pw.simulate(problem, problem.placement([gpu] * graph.n_ops), timeline=True)
    pool = problem.machine.pool_index["gpu:0"]
    held, groups = Counter[str](), Counter[str]()
    assert isinstance(outcome.timeline, Timeline)
    for holding in outcome.timeline.largest(pool, 1 << 30):
        owner = holding.index if holding.kind == "workspace" else int(graph.tensor_op[holding.index])
        phase = int(graph.phase[owner])
        part = "workspace" if holding.kind == "workspace" else _PARTS.get(phase, "other")
        held[part] += holding.bytes
        if phase in (FORWARD, BACKWARD):
            groups[f"{graph.scopes[owner] or 'top'}: {graph.kinds[owner]}"] += holding.bytes
    largest = "; ".join(f"{key} {format_bytes(size)}" for key, size in groups.most_common(3))
    cells = [format_bytes(held[part]) for part in ("weights", "forward", "backward", "workspace")]
    fits = "yes" if not outcome.over_bytes[pool] else f"no, {format_bytes(outcome.over_bytes[pool])} over"
    peak = format_bytes(outcome.peak_bytes[pool])
    return [name, optimizer, discipline, peak, fits, published, *cells, largest]


_PARTS = {PARAMETER: "weights", FORWARD: "forward", BACKWARD: "backward"}


def _kept(file: Path) -> dict[tuple[str, ...], list[str]]:
    """Return the rows that the file has."""
    inside = file.read_text().partition(START)[2].partition(END)[0]
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in inside.splitlines() if line.startswith("| ")]
    return {tuple(c[:3]): c for c in cells if c[0] in PUBLISHED}


def _write(file: Path, rows: dict[tuple[str, ...], list[str]]) -> None:
    """Put the rows between the marks."""
    head, _, rest = file.read_text().partition(START)
    tail = rest.partition(END)[2]
    lines = [TITLES, ("---",) * len(TITLES), *(rows[key] for key in rows)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    file.write_text(f"{head}{START}\n{table}\n{END}{tail}")


if __name__ == "__main__":
    main()

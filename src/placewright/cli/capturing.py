"""`capture`: a model to a graph file, and what is in it."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from placewright.checks import format_bytes
from placewright.cli.options import Recipe, Style, capture_options, style_options
from placewright.cli.output import Output
from placewright.cli.planning import require_folder

if TYPE_CHECKING:
    from placewright.cli.models import Model
    from placewright.graph import OpGraph

MOST_KINDS = 12
"""Kinds of operation that have a line each."""
_UNLIMITED = 1 << 58


@click.command()
@click.argument("model")
@capture_options
@click.option(
    "-o", "--output", type=click.Path(), metavar="FILE", help="Write the graph to this file (.json or .json.gz)."
)
@style_options
def capture(*, model: str, recipe: Recipe, output: str | None, style: Style) -> None:
    """Capture MODEL as a graph of operations, and say what is in it.

    MODEL is as for `plan`. Nothing is computed and no weights are needed. The graph that -o writes can be planned
    and simulated again and again without the model.
    """
    from placewright.cli.models import read_model
    from placewright.cli.progress import patiently
    from placewright.formats import write_graph

    out = Output(style)
    require_folder(output)
    found = read_model(model, recipe, out)
    if output is not None:
        write_graph(found.workload.graph, output)
        out.note(f"graph written to {output}")
    with patiently(out):
        record = summary(found)
    if style.json:
        out.json(record | {"output": output})
    else:
        out.facts(f"{record['graph']}: {record['operations']:,} operations", _lines(record))
        out.space()
        _print_kinds(out, record["kinds"])


def summary(model: Model) -> dict[str, Any]:
    """Return everything about a graph and how it came about, as a record for JSON."""
    graph, captured = model.workload.graph, model.captured
    held = _held(model)
    return {
        "graph": graph.name,
        "operations": graph.n_ops,
        "kinds": _kinds(graph),
        **{key: _amount(graph, ops) for key, ops in held.items()},
        "flops": _by_phase(graph, graph.flops),
        "bytes_read": int(graph.bytes_read.sum()),
        "bytes_written": int(graph.bytes_written.sum()),
        "recomputed": int(graph.recompute.sum()),
        "longest_chain": _longest_chain(graph),
        "peak_bytes": _peak_bytes(graph),
        "method": None if captured is None else captured.method,
        "notes": [] if captured is None else list(captured.notes),
        "seconds": round(model.seconds, 3),
    }


# ---- what there is in a graph ------------------------------------------------------------------


def _kinds(graph: OpGraph) -> list[dict[str, Any]]:
    """Return how many operations there are of every kind, in all and by phase; the commonest first."""
    from placewright.graph import PHASES

    phases = [PHASES[number] for number in graph.phase]
    total = Counter(graph.kinds)
    by_phase = Counter(zip(graph.kinds, phases, strict=True))
    return [
        {"kind": kind, "operations": total[kind]}
        | {phase: by_phase[kind, phase] for phase in PHASES if by_phase[kind, phase]}
        for kind in sorted(total, key=lambda kind: (-total[kind], kind))
    ]


def _held(model: Model) -> dict[str, list[int]]:
    """Return the operations that hold parameters, buffers (and constants), optimiser state, and inputs."""
    from placewright.graph import PHASES

    graph, captured = model.workload.graph, model.captured
    holders = [op for op in range(graph.n_ops) if PHASES[graph.phase[op]] == "parameter"]
    state = {op for op in holders if graph.kinds[op].endswith("_state")}
    parameters = {op for op in holders if op not in state}
    if captured is not None:  # a graph alone does not say which of them is a buffer
        names = {captured.held[name] for _, role, name in captured.traced.inputs if role == "parameter"}
        parameters &= {graph.index[name] for name in names}
    return {
        "parameters": sorted(parameters),
        "buffers": [op for op in holders if op not in state and op not in parameters],
        "optimizer_state": sorted(state),
        "inputs": [op for op in range(graph.n_ops) if PHASES[graph.phase[op]] == "input"],
    }


def _amount(graph: OpGraph, ops: list[int]) -> dict[str, int | None]:
    """Return how many tensors operations make, of how many elements (null: not known) and bytes; tied ones once."""
    tensors = [t for op in ops for t in range(graph.out_start[op], graph.out_start[op + 1])]
    shapes = [None if graph.tensor_shapes is None else graph.tensor_shapes[t] for t in tensors]
    elements = None if None in shapes else sum(math.prod(shape) for shape in shapes if shape is not None)
    return {"count": len(tensors), "elements": elements, "bytes": sum(int(graph.tensor_bytes[t]) for t in tensors)}


def _by_phase(graph: OpGraph, values: Any) -> dict[str, float]:
    """Return the sums of values by phase, of phases that have any."""
    from placewright.graph import PHASES

    sums = {phase: float(values[graph.phase == number].sum()) for number, phase in enumerate(PHASES)}
    return {phase: total for phase, total in sums.items() if total}


def _longest_chain(graph: OpGraph) -> int:
    """Return how many operations the longest chain has in which each waits for the one before."""
    queued = (~graph.off_queue).tolist()
    makers, waits = graph.tensor_op[graph.in_tensor].tolist(), graph.after_op.tolist()
    reads, after = graph.in_start.tolist(), graph.after_start.tolist()
    length: list[int] = []
    for op in range(graph.n_ops):
        before = (*makers[reads[op] : reads[op + 1]], *waits[after[op] : after[op + 1]])
        length.append(queued[op] + max((length[other] for other in before), default=0))
    return max(length, default=0)


def _peak_bytes(graph: OpGraph) -> int:
    """Return the memory that a step takes at most when everything is on one device and runs in program order."""
    import numpy as np

    from placewright.costs import Costs
    from placewright.machine import Device, Machine, Pool
    from placewright.problem import Problem
    from placewright.sim import Simulator

    machine = Machine("one device", (Device("device:0", "generic", "memory"),), (Pool("memory", _UNLIMITED),))
    seconds = np.where(graph.off_queue, 0.0, 1e-6)[:, None]  # the order alone decides
    problem = Problem(graph, machine, Costs.given(seconds))
    placement = problem.placement(np.zeros(graph.n_ops, np.int64))
    return Simulator(problem, threads=1).simulate([placement])[0].peak_bytes[0]


# ---- in words ----------------------------------------------------------------------------------


def _lines(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the record as labelled lines."""
    from placewright.cli.models import way

    flops = record["flops"]
    lines = [(name, _words(record[key])) for name, key in _AMOUNTS if record[key]["count"]]
    parts = ", ".join(f"{phase} {_count(total)}" for phase, total in flops.items())
    lines += [
        ("flops", f"{_count(sum(flops.values()))} ({parts})" if flops else "none known"),
        ("bytes", f"{format_bytes(record['bytes_read'])} read, {format_bytes(record['bytes_written'])} written"),
        ("longest chain", f"{record['longest_chain']:,} operations, each of which waits for the one before"),
        ("peak memory", f"{format_bytes(record['peak_bytes'])} with everything on one device, in program order"),
    ]
    if record["recomputed"]:
        lines.append(("recomputed", f"{record['recomputed']:,} operations of the forward pass are repeated"))
    took = f"in {record['seconds']:.1f} s"
    return [*lines, ("read", took) if record["method"] is None else ("captured", f"{way(record['method'])} {took}")]


_AMOUNTS = (
    ("parameters", "parameters"),
    ("buffers", "buffers"),
    ("optimiser state", "optimizer_state"),
    ("inputs", "inputs"),
)


def _words(amount: dict[str, int | None]) -> str:
    """Say how much a kind of tensor is."""
    elements = "" if amount["elements"] is None else f" of {amount['elements']:,} elements"
    tensors = "1 tensor" if amount["count"] == 1 else f"{amount['count']:,} tensors"
    return f"{tensors}{elements}, {format_bytes(amount['bytes'] or 0)}"


def _count(value: float) -> str:
    """Return a number with a unit prefix: 3.2 T."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.4g} {prefix}"
    return f"{value:.4g}"


def _print_kinds(out: Output, kinds: list[dict[str, Any]]) -> None:
    """Print the commonest kinds, the rest together, and the sum."""
    phases = [phase for phase in _PHASES if any(phase in row for row in kinds)]
    rows = [_row(row["kind"], [row], phases) for row in kinds[:MOST_KINDS]]
    if rest := kinds[MOST_KINDS:]:
        rows.append(_row(f"{len(rest)} other kinds", rest, phases))
    out.table(["kind", ">operations", *(f">{phase}" for phase in phases)], [*rows, _row("all", kinds, phases)])


_PHASES = ("input", "parameter", "forward", "backward", "update", "store")


def _row(name: str, kinds: list[dict[str, Any]], phases: list[str]) -> list[str]:
    """Return one line of the table: some kinds together."""
    sums = [sum(row.get(key, 0) for row in kinds) for key in ("operations", *phases)]
    return [name, *(f"{total:,}" if total else "-" for total in sums)]

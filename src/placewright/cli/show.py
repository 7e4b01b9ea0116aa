"""What a command found, for people: labelled lines, the critical path, and what would make it feasible."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from placewright.checks import format_bytes, format_count, format_seconds
from placewright.cli.answer import PICO, Answer

if TYPE_CHECKING:
    from placewright.machine import Pool
    from placewright.sim.timeline import Link, Timeline

MOST_LINES = 16
"""Devices or pools that are listed one by one."""
MOST_CHANNELS = 4
"""Channels that are listed, the busiest first."""
LARGE_STEP = 20_000_000_000
"""Operations times transfers above which the critical path is only worked out when asked for."""
LITTLE = 0.005
"""A share that would be rounded to nothing is left out."""
MIB = 1 << 20


def facts(answer: Answer, *, searched: bool) -> list[tuple[str, str]]:
    """Return everything about it, as labelled lines."""
    lines = [(answer.problem.objective, _value(answer))]
    if answer.bound_s is not None:
        lines.append(("bound", f"{format_seconds(answer.bound_s)} by {answer.bound_by}"))
    if answer.parallelism is not None:
        little = "; next to none, so one device may be the best there is" if answer.parallelism < 1.2 else ""
        lines.append(("parallelism", f"{answer.parallelism:.2f}{little}"))
    if answer.outcome.value_ps is not None:
        lines += [("" if k else "memory", text) for k, text in enumerate(_memory(answer))]
        lines += _busy(answer)
    if answer.transfers is not None:
        count, size = answer.transfers
        lines.append(("transfers", f"{count}, {format_bytes(size)}"))
    timeline = answer.timeline
    if timeline is not None and len(timeline.moves) * answer.problem.n_ops <= LARGE_STEP:
        lines += [(label, text) for label, text in _bounded_by(timeline) if text]
    lines.append(("measured", f"{answer.measured_share:.0%} of the predicted time rests on measured costs"))
    if searched:
        if answer.unused and answer.evaluations > 1 and answer.outcome.feasible:
            lines.append(("not used", f"{', '.join(answer.unused)}: nothing tried with them was faster"))
        lines.append(
            ("search", f"{format_count(answer.evaluations, 'evaluation')} in {answer.seconds:.1f} s, {answer.ended}")
        )
    return lines


def _value(answer: Answer) -> str:
    """Return value, gap, and whether it can be."""
    if answer.outcome.value_ps is None:
        return f"cannot run: {answer.outcome.detail or answer.outcome.reason}"
    text = format_seconds(answer.outcome.value_s)
    if not answer.outcome.feasible:
        return f"{text}, infeasible: {answer.outcome.reason}"
    return text if answer.gap is None else f"{text}, {gap_words(answer.gap)}"


def gap_words(gap: float) -> str:
    """Say how good a value is proved to be."""
    return "which is optimal" if gap < 1e-9 else f"the optimum is at most {gap:.1%} less"


def _memory(answer: Answer) -> list[str]:
    """Return each pool's peak of its capacity; of many pools, the fullest."""
    rows = list(zip(answer.problem.machine.pools, answer.outcome.peak_bytes, answer.outcome.over_bytes, strict=True))
    left = len(rows) - MOST_LINES
    if left > 0:
        rows = sorted(rows, key=lambda row: -row[1] / max(1, row[0].capacity_bytes))[:MOST_LINES]
    width = max(len(pool.name) for pool, _, _ in rows)
    lines = []
    for pool, peak, over in rows:
        text = f"{pool.name:<{width}}  {format_bytes(peak)} of {capacity(pool)}"
        lines.append(f"{text}, {format_bytes(over)} too much" if over else text)
    return [*lines, f"and {left} emptier pools"] if left > 0 else lines


def capacity(pool: Pool) -> str:
    """Return what can be allocated from a pool; importers give host memory that knows no limit 2**58 bytes."""
    return "unlimited" if pool.capacity_bytes >= 1 << 57 else format_bytes(pool.capacity_bytes)


def _busy(answer: Answer) -> list[tuple[str, str]]:
    """Return the share of the value for which devices, and the busiest channels, are busy."""
    machine, outcome = answer.problem.machine, answer.outcome
    whole = outcome.value_ps or 1
    devices = [(device.name, busy) for device, busy in zip(machine.devices, outcome.device_busy_ps, strict=True)]
    channels = [(channel.name, busy) for channel, busy in zip(machine.channels, outcome.channel_busy_ps, strict=True)]
    if len(devices) > MOST_LINES:
        devices = sorted(devices, key=lambda row: -row[1])[:MOST_LINES]
    channels = [row for row in sorted(channels, key=lambda row: -row[1]) if row[1] / whole >= LITTLE][:MOST_CHANNELS]
    label = "load" if answer.problem.objective == "max_load" else "busy"
    return [
        (label, ", ".join(f"{name} {busy / whole:.0%}" for name, busy in rows))
        for label, rows in ((label, devices), ("channels", channels))
        if rows
    ]


# ---- the critical path ----------------------------------------------------------------------------


def _bounded_by(timeline: Timeline) -> list[tuple[str, str]]:
    """Return what the critical path consists of, and what its parts waited for."""
    total = timeline.end_ps
    if not total:
        return []
    made: dict[str, int] = {}
    waited: dict[str, int] = {}
    before = 0
    for link in timeline.critical_path:
        what = f"operations on {_device(timeline, link)}" if link.kind == "operation" else "transfers"
        lasts = link.end_ps - link.start_ps
        made[what] = made.get(what, 0) + lasts
        if link.wait != "start":
            waited[_WAITS[link.wait]] = waited.get(_WAITS[link.wait], 0) + before
        before = lasts
    rest = total - sum(made.values())
    made |= {"unexplained": rest} if rest > 0 else {}
    return [("bounded by", _shares(made, total)), ("waiting for", _shares(waited, total))]


_WAITS = {
    "input": "an input",
    "order": "an operation that must come first",
    "device": "a busy device",
    "channel": "a busy channel",
    "window": "room in a streaming window",
    "queue": "an earlier transfer in the queue",
}


def _shares(parts: dict[str, int], total: int) -> str:
    """Return parts of a whole, the largest first."""
    rows = sorted(parts.items(), key=lambda row: -row[1])
    return ", ".join(f"{name} {part / total:.0%}" for name, part in rows if part / total >= LITTLE)


def _device(timeline: Timeline, link: Link) -> str:
    """Say where an operation of the path ran."""
    return timeline.problem.machine.devices[int(timeline.devices[link.index])].name


def path_records(timeline: Timeline) -> Iterable[dict[str, Any]]:
    """Yield every link of the critical path that takes time."""
    graph, devices = timeline.problem.graph, timeline.problem.machine.devices
    for link in timeline.critical_path:
        if link.end_ps == link.start_ps:
            continue
        if link.kind == "operation":
            name, where = graph.op_names[link.index], _device(timeline, link)
        else:
            move = timeline.moves[link.index]
            maker = int(graph.tensor_op[move.tensor])
            name = f"{graph.op_names[maker]}:{move.tensor - int(graph.out_start[maker])}"
            where = f"{devices[move.source].name} to {devices[move.target].name}"
        yield {
            "start_s": link.start_ps / PICO,
            "seconds": (link.end_ps - link.start_ps) / PICO,
            "kind": link.kind,
            "name": name,
            "where": where,
            "wait": link.wait,
        }


# ---- what would make it feasible ------------------------------------------------------------------


def remedy(answer: Answer) -> str:
    """Say why a placement is infeasible, and what would make it feasible."""
    problem, outcome = answer.problem, answer.outcome
    text = f"infeasible: {outcome.detail or outcome.reason}."
    if outcome.reason != "memory":
        return text
    pools = problem.machine.pools
    over = [k for k, size in enumerate(outcome.over_bytes) if size]
    if answer.timeline is not None:
        text += " " + " ".join(_largest(answer.timeline, k) for k in over)
    needed = " ".join(f"--memory {pools[k].name}={-(-outcome.peak_bytes[k] // MIB)}MiB" for k in over)
    return (
        f"{text} Move some of it to another device, use a smaller batch or model, or a machine with more memory; "
        f"it would fit with {needed}."
    )


def _largest(timeline: Timeline, pool: int) -> str:
    """Name the largest things in a pool at its peak."""
    graph = timeline.problem.graph
    named = []
    for holding in timeline.largest(pool, 3):
        op = holding.index if holding.kind == "workspace" else int(graph.tensor_op[holding.index])
        what = "the workspace" if holding.kind == "workspace" else "an output" if holding.kind != "copy" else "a copy"
        named.append(f"{what} of {graph.op_names[op]!r} ({format_bytes(holding.bytes)})")
    return f"Largest in {timeline.problem.machine.pools[pool].name} then: {', '.join(named)}."

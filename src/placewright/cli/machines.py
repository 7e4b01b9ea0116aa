"""`machine list`, `machine show` and `machine check`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from placewright.checks import format_bytes, format_seconds
from placewright.cli.options import Style, style_options
from placewright.cli.output import Output

if TYPE_CHECKING:
    from placewright.machine import Machine

MOST_COLUMNS = 16
"""Devices up to which a matrix of all pairs is shown."""


@click.group()
def machine() -> None:
    """List, show and check descriptions of machines."""


@machine.command("list")
@style_options
def list_machines(style: Style) -> None:
    """List the machines that come with placewright."""
    from placewright.machine_files import preset, presets

    out = Output(style)
    machines = [preset(name) for name in presets()]
    if style.json:
        out.json(
            [
                {
                    "name": m.name,
                    "description": m.description,
                    "devices": {d.name: d.model for d in m.devices},
                    "memory_bytes": {p.name: p.capacity_bytes for p in m.pools},
                }
                for m in machines
            ]
        )
        return
    rows = [[m.name, _counted([d.model for d in m.devices]), _memory(m), m.description] for m in machines]
    out.table(["name", "devices", "memory", "description"], rows)


@machine.command("show")
@click.argument("name", metavar="NAME|FILE")
@click.option("--toml", is_flag=True, help="Print it as a machine file, to change and use.")
@style_options
def show_machine(name: str, toml: bool, style: Style) -> None:
    """Show a machine: devices, memory, and how fast they reach each other."""
    from placewright.machine_files import load_machine, machine_toml

    if toml and style.json:
        raise click.UsageError("--toml and --json cannot go together")
    out = Output(style)
    found = load_machine(name)
    if toml:
        out.text(machine_toml(found).rstrip("\n"))
    elif style.json:
        out.json(_record(found))
    else:
        _show(out, found)


@machine.command("check")
@click.argument("file", type=click.Path())
@style_options
def check_machine(file: str, style: Style) -> None:
    """Read a machine file; say that it is fine, or where it is not."""
    from placewright.machine_files import read_machine

    out = Output(style)
    found = read_machine(file)
    apart = _apart(found)
    if apart:
        shown = ", ".join(f"{a} to {b}" for a, b in apart[:8])
        more = f", and {len(apart) - 8} more pairs" if len(apart) > 8 else ""
        out.warn(f"no route leads from {shown}{more}; placements that need one are infeasible")
    if style.json:
        out.json(_record(found))
    else:
        out.text(
            f"{file} is fine: {found.name}, {_count(found.devices, 'device')}, {_count(found.pools, 'pool')}, "
            f"{_count(found.channels, 'channel')}, {_count(found.routes, 'route')}"
        )


def _show(out: Output, found: Machine) -> None:
    """Print a machine for people."""
    out.facts(found.name, [("description", found.description or "none")])
    out.space()
    rows = [
        [d.name, d.model, d.pool, d.host or "-", _teraflops(d.flops_per_s.get("float32", 0.0)),
         f"{d.bytes_per_s / 1e9:.4g}", format_seconds(d.launch_s) + (", asynchronous" if d.asynchronous else "")]
        for d in found.devices
    ]  # fmt: skip
    out.table(["device", "model", "memory", "host", ">float32 Tflop/s", ">GB/s", "launch"], rows)
    out.space()
    rows = [[p.name, format_bytes(p.bytes), format_bytes(p.reserve_bytes), format_bytes(p.granule_bytes)]
            for p in found.pools]  # fmt: skip
    out.table(["memory", ">bytes", ">reserve", ">granule"], rows)
    out.space()
    names = [d.name for d in found.devices]
    if len(names) > MOST_COLUMNS:
        out.text(f"{len(names)} devices are too many for a table of all pairs; --json has it")
        return
    n = range(len(names))
    table = [[names[a], *("-" if a == b else _rate(found, a, b) for b in n)] for a in n]
    out.table(["GB/s from, to", *(f">{name}" for name in names)], table)


def _rate(found: Machine, a: int, b: int) -> str:
    """Return GB/s from one device to another, in words where there is no number."""
    rates = found.rates(a, b)
    if rates is None:
        return "no route"
    return "same memory" if rates[1] == float("inf") else f"{rates[1] / 1e9:.4g}"


def _record(found: Machine) -> dict[str, Any]:
    """Return everything about a machine for JSON."""
    pairs = [(a, b) for a in range(len(found.devices)) for b in range(len(found.devices)) if a != b]
    reach = [(a, b, found.rates(a, b)) for a, b in pairs]
    return {
        "name": found.name,
        "description": found.description,
        "devices": [
            {
                "name": d.name, "model": d.model, "pool": d.pool, "host": d.host, "flops_per_s": dict(d.flops_per_s),
                "bytes_per_s": d.bytes_per_s, "launch_s": d.launch_s, "asynchronous": d.asynchronous,
                "efficiency": dict(d.efficiency),
            }
            for d in found.devices
        ],
        "pools": [
            {"name": p.name, "bytes": p.bytes, "capacity_bytes": p.capacity_bytes,
             "granule_bytes": p.granule_bytes, "reserve_bytes": p.reserve_bytes}
            for p in found.pools
        ],
        "channels": [{"name": c.name, "bytes_per_s": c.bytes_per_s, "latency_s": c.latency_s} for c in found.channels],
        "routes": [
            {"source": found.devices[a].name, "target": found.devices[b].name,
             "channels": [found.channels[c].name for c in found.route(a, b) or ()],
             "latency_s": rates[0], "bytes_per_s": rates[1]}
            for a, b, rates in reach
            if rates is not None and rates[1] != float("inf")
        ],
        "same_memory": [[found.devices[a].name, found.devices[b].name] for a, b, rates in reach
                        if rates is not None and rates[1] == float("inf") and a < b],
        "no_route": [list(pair) for pair in _apart(found)],
    }  # fmt: skip


def _apart(found: Machine) -> list[tuple[str, str]]:
    """Return pairs of devices between which no route leads, in order."""
    devices = found.devices
    pairs = ((a, b) for a in range(len(devices)) for b in range(len(devices)) if a != b)
    return [(devices[a].name, devices[b].name) for a, b in pairs if found.route(a, b) is None]


def _counted(names: list[str]) -> str:
    """Return names with how often each comes: `xeon, 4 x tesla-k40`."""
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in Counter(names).items())


def _memory(found: Machine) -> str:
    """Return what can be allocated, equal pools together."""
    return _counted([format_bytes(pool.capacity_bytes) for pool in found.pools])


def _teraflops(rate: float) -> str:
    """Return Tflop/s of a rate, or that it is not known."""
    return f"{rate / 1e12:.4g}" if rate else "-"


def _count(things: tuple[Any, ...], word: str) -> str:
    """Say how many things there are."""
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"

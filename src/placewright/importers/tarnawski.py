"""Workloads of Tarnawski et al., "Efficient algorithms for device placement of DNN graph operators" (NeurIPS 2020).

One JSON file per workload: nodes with milliseconds on an accelerator ("FPGA") and on a CPU, edges with
milliseconds between accelerator and host memory, and the machine. docs/formats.md has every choice.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewright.checks import MAX_BYTES, Fields
from placewright.errors import FileError
from placewright.graph_format import MAX_OPERATIONS
from placewright.machine import MAX_DEVICES, Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.workload import V100_RATES, Workload, graph_name, made, topological

UNLIMITED_BYTES = 1 << 58
"""Host memory, which the format does not limit."""
LARGEST_BYTES = 1 << 50
"""All sizes together; an accelerator with more than this counts as having this much, which is the same."""
LINK_BYTES_PER_S = 2.0**31
"""The rate behind the files' costs per operator. Every tensor carries its seconds, so nothing depends on it."""

CPU_RATES = {"flops_per_s": {"float32": 1.57e12}, "bytes_per_s": 90e9}
"""A tenth of the accelerator's, as the milliseconds of the files' layers are ten times as many on a CPU."""
_REFERENCES = {"accelerator": V100_RATES, "cpu": CPU_RATES}


@dataclass(frozen=True, slots=True)
class _Node:
    """A node of the file."""

    id: int
    name: str
    measured_s: Mapping[str, float]
    backward: bool
    colour: int | None
    size: int


def workload_of(document: object, path: object) -> Workload:
    """Return the graph and machine in a parsed document."""
    top = Fields(document, path, "")
    machine = made(lambda: _machine(top), path, "")
    entries = top.items("nodes", most=MAX_OPERATIONS // 2)
    nodes = [_node(Fields(entry, path, f"nodes[{i}]")) for i, entry in enumerate(entries)]
    at: dict[int, int] = {}
    for i, node in enumerate(nodes):
        if at.setdefault(node.id, i) != i:
            raise FileError(path, f"nodes[{i}].id", f"nodes[{at[node.id]}] has the id {node.id} too")
    total = sum(node.size for node in nodes)
    if total > LARGEST_BYTES:
        raise FileError(path, "nodes", f"their sizes add up to {total} bytes; at most {LARGEST_BYTES} are allowed")
    before, transfer_s = _edges(top, at)
    order = topological(before, [f"node {node.id}" for node in nodes], path, "edges")
    names, companions = _names(nodes)
    operations = []
    for i in order:
        operations += _operations(nodes[i], names[i], companions.get(i), [names[j] for j in before[i]], transfer_s[i])
    return Workload(
        graph=made(lambda: build_graph(graph_name(path), operations, _REFERENCES), path, "nodes"),
        machine=machine,
        objective="step" if Path(os.path.abspath(str(path))).parent.name == "latency" else "max_load",
        members={
            node.id: (names[i], companions[i]) if i in companions else (names[i],) for i, node in enumerate(nodes)
        },
    )


def _node(table: Fields) -> _Node:
    """Read a node; fields that we do not know are left alone."""
    number = table.integer("id", low=-(1 << 62), high=1 << 62)
    supported = table.flag("supportedOnFpga", True)
    accelerator = table.number("fpgaLatency") if supported or table.has("fpgaLatency") else 0.0
    return _Node(
        id=number,
        name=table.text("name", "", max_length=900) or str(number),
        measured_s={
            "accelerator": accelerator / 1000 if supported else math.inf,
            "cpu": table.number("cpuLatency") / 1000,
        },
        backward=table.flag("isBackwardNode", False),
        colour=None
        if table.take("colorClass", None) is None
        else table.integer("colorClass", low=-(1 << 62), high=1 << 62),
        size=math.ceil(table.number("size", 0.0, high=MAX_BYTES)),
    )


def _edges(top: Fields, at: Mapping[int, int]) -> tuple[list[list[int]], list[float | None]]:
    """Return the sources of every node, and the seconds that the output of every source takes."""
    before: list[dict[int, None]] = [{} for _ in at]
    first: dict[int, tuple[int, float]] = {}
    for e, entry in enumerate(top.items("edges")):
        table = Fields(entry, top.path, f"edges[{e}]")
        ends = []
        for name in ("sourceId", "destId"):
            number = table.integer(name, low=-(1 << 62), high=1 << 62)
            if number not in at:
                raise table.fault(f"no node has the id {number}", name)
            ends.append(at[number])
        source, target = ends
        cost = table.number("cost")
        earlier, other = first.setdefault(source, (e, cost))
        if other != cost:
            raise table.fault(
                f"{cost!r} ms, but edges[{earlier}] out of the same node {table.table['sourceId']} costs {other!r} ms; "
                "a source has one cost, as it is moved once",
                "cost",
            )
        before[target][source] = None
    return [list(row) for row in before], [first[i][1] / 1000 if i in first else None for i in range(len(at))]


def _names(nodes: Sequence[_Node]) -> tuple[list[str], dict[int, str]]:
    """Return names of nodes, made to differ by their ids, and of the companions that hold sizes."""
    counts = Counter(node.name for node in nodes)
    taken = set(counts)

    def fresh(name: str) -> str:
        """Take a name that nothing has."""
        while name in taken:
            name += "'"
        taken.add(name)
        return name

    names = [node.name if counts[node.name] == 1 else fresh(f"{node.name}#{node.id}") for node in nodes]
    return names, {i: fresh(f"{names[i]}.size") for i, node in enumerate(nodes) if node.size}


def _operations(
    node: _Node, name: str, companion: str | None, reads: list[str], transfer_s: float | None
) -> list[Operation]:
    """Return a node as operations: itself, after the companion that holds its bytes for the whole step."""
    together = None if node.colour is None else f"colour {node.colour}"
    if together is None and companion is not None:
        together = f"node {node.id}"
    before = []
    if companion is not None:
        held = (Tensor(node.size),)
        before = [Operation(companion, kind="parameter", phase="parameter", outputs=held, colocation=together)]
        reads = [companion, *reads]
    outputs = () if transfer_s is None else (Tensor(0, transfer_s=transfer_s),)
    phase = "backward" if node.backward else "forward"
    itself = Operation(
        name, _kind(node.name), phase, inputs=reads, outputs=outputs, colocation=together, measured_s=node.measured_s
    )
    return [*before, itself]


def _kind(name: str) -> str:
    """Return the operator in a name such as `MatMul12` or `Add31_Grad/ReduceSum_1`; else `other`."""
    match = re.fullmatch(r"(?:[^/]*/)?([A-Za-z]{2,40})(?:[0-9]+(?:_[0-9]+)?|_[0-9]+)?", name)
    return match[1].lower() if match and match[1] != "node" else "other"


def _machine(top: Fields) -> Machine:
    """Return the machine of a file: accelerators with a link each, and CPUs that share the host's memory."""
    k, cpus = (top.integer(name, high=MAX_DEVICES) for name in ("maxFPGAs", "maxCPUs"))
    memory = min(int(top.number("maxSizePerFPGA")), LARGEST_BYTES)
    if not 1 <= k + cpus <= MAX_DEVICES:
        raise top.fault(f"{k} accelerators and {cpus} CPUs; 1 to {MAX_DEVICES} devices are allowed", "maxFPGAs")
    gpus, hosts = [f"gpu:{i}" for i in range(k)], [f"cpu:{i}" for i in range(cpus)]
    rates: dict[str, Any] = V100_RATES
    slow: dict[str, Any] = CPU_RATES
    devices = [Device(gpu, "accelerator", gpu, hosts[0] if hosts else None, **rates) for gpu in gpus]
    pools = [Pool(gpu, memory, granule_bytes=1) for gpu in gpus]
    if hosts:
        devices += [Device(cpu, "cpu", "host", cpu, **slow) for cpu in hosts]
        pools.append(Pool("host", UNLIMITED_BYTES, granule_bytes=1))
    channels = [Channel(f"{gpu} {way}", LINK_BYTES_PER_S) for gpu in gpus for way in ("up", "down")]
    routes = [Route(gpu, cpu, (f"{gpu} up",)) for gpu in gpus for cpu in hosts]
    routes += [Route(cpu, gpu, (f"{gpu} down",)) for gpu in gpus for cpu in hosts]
    if not hosts:  # without a CPU there is still host memory between accelerators
        routes = [Route(a, b, (f"{a} up", f"{b} down")) for a in gpus for b in gpus if a != b]
    about = "accelerators of Tarnawski et al. 2020; every tensor carries its own transfer seconds"
    return Machine(f"tarnawski-{k}+{cpus}", tuple(devices), tuple(pools), tuple(channels), tuple(routes), about)

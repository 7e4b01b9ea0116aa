"""Graphs and machines to time things on: seeded, of any size, made without a file."""

from __future__ import annotations

import numpy as np

from placewright.costs import Costs
from placewright.graph import FORWARD, OpGraph
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.problem import Problem


def layered(n_ops: int, seed: int) -> OpGraph:
    """A random layered graph: about sqrt(n) / 2 operations a layer, two reads each from the two layers before."""
    rng = np.random.default_rng(seed)
    width = max(2, int(n_ops**0.5) // 2)
    layer = np.arange(n_ops) // width
    low, high = np.maximum(layer - 2, 0) * width, layer * width
    one = (low + rng.random(n_ops) * (high - low)).astype(np.int64)
    two = (low + rng.random(n_ops) * (high - low - 1)).astype(np.int64)
    two += two >= one  # two different tensors, each pair equally likely
    reads = np.sort(np.stack([one, two], 1), axis=1)[width:].ravel()
    start = np.concatenate([np.zeros(width), 2 * np.arange(n_ops - width + 1)])
    nothing = np.zeros(n_ops)
    return OpGraph(
        name=f"layered-{n_ops}",
        op_names=tuple(f"op{i}" for i in range(n_ops)),
        kinds=("other",) * n_ops,
        scopes=("",) * n_ops,
        dtypes=("float32",) * n_ops,
        phase=np.full(n_ops, FORWARD),
        flops=nothing,
        bytes_read=nothing,
        bytes_written=nothing,
        workspace_bytes=rng.integers(0, 1 << 16, n_ops),
        colocation=np.full(n_ops, -1),
        out_start=np.arange(n_ops + 1),
        tensor_bytes=rng.integers(1, 1 << 20, n_ops),
        tensor_storage=np.arange(n_ops),
        tensor_in_place=nothing,
        tensor_output=nothing,
        tensor_transfer_s=np.full(n_ops, np.nan),
        in_start=start,
        in_tensor=reads,
        after_start=np.zeros(n_ops + 1),
        after_op=np.zeros(0),
    )


def switch(n_devices: int) -> Machine:
    """Devices on a switch: each sends one tensor at a time and receives one at a time."""
    names = [f"gpu:{d}" for d in range(n_devices)]
    return Machine(
        name=f"switch-{n_devices}",
        devices=tuple(Device(name, "bench", name) for name in names),
        pools=tuple(Pool(name, 1 << 34) for name in names),
        channels=tuple(Channel(f"{name} {way}", 1e10, 5e-6) for name in names for way in ("out", "in")),
        routes=tuple(Route(a, b, (f"{a} out", f"{b} in")) for a in names for b in names if a != b),
    )


def nodes(count: int, each: int) -> Machine:
    """Nodes of GPUs, each GPU on its node's switch; one network adapter in every node, shared by all its GPUs."""
    names = [f"gpu:{d}" for d in range(count * each)]
    node = {name: d // each for d, name in enumerate(names)}

    def between(a: str, b: str) -> tuple[str, ...]:
        if node[a] == node[b]:
            return f"{a} out", f"{b} in"
        return f"{a} out", f"node {node[a]} out", f"node {node[b]} in", f"{b} in"

    ways = ("out", "in")
    return Machine(
        name=f"nodes-{count}x{each}",
        devices=tuple(Device(name, "bench", name) for name in names),
        pools=tuple(Pool(name, 1 << 34) for name in names),
        channels=(
            *(Channel(f"{name} {way}", 9e10, 5e-6) for name in names for way in ways),
            *(Channel(f"node {k} {way}", 1.2e10, 1e-5) for k in range(count) for way in ways),
        ),
        routes=tuple(Route(a, b, between(a, b)) for a in names for b in names if a != b),
    )


def problem_on(machine: Machine, n_ops: int, seed: int = 0) -> Problem:
    """A layered graph on a machine, operations of 10 us to 1 ms, the same on every device, under `stream`."""
    seconds = np.random.default_rng(seed + 1).uniform(1e-5, 1e-3, (n_ops, 1))
    costs = Costs.given(np.broadcast_to(seconds, (n_ops, len(machine.devices))))
    return Problem(layered(n_ops, seed), machine, costs)


def problem(n_ops: int, n_devices: int, discipline: str, seed: int = 0) -> Problem:
    """A layered graph on a switch, operations of 10 us to 1 ms, the same on every device."""
    graph = layered(n_ops, seed)
    seconds = np.random.default_rng(seed + 1).uniform(1e-5, 1e-3, (n_ops, 1))
    costs = Costs.given(np.broadcast_to(seconds, (n_ops, n_devices)))
    return Problem(graph, switch(n_devices), costs, discipline=discipline)


def placements(n_ops: int, n_devices: int, style: str, count: int, seed: int = 0) -> np.ndarray:
    """Rows of devices: uniformly random, or contiguous parts with random cuts."""
    rng = np.random.default_rng(seed + 2)
    if style == "random":
        return rng.integers(0, n_devices, (count, n_ops)).astype(np.uint16)
    cuts = np.sort(rng.integers(0, n_ops, (count, n_devices - 1)), axis=1)
    return (np.arange(n_ops)[None, :, None] >= cuts[:, None, :]).sum(axis=2).astype(np.uint16)

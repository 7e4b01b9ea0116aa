"""Fingerprints: the same for the same content, whatever the process and the order of keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from placewright.fingerprints import graph_fingerprint, machine_fingerprint, workload_fingerprint
from placewright.formats import dumps_graph, loads_graph
from placewright.graph import OpGraph
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from tests.test_formats import rich_graph

ROOT = Path(__file__).parents[1]


def shuffled(value: object, turn: int) -> object:
    """The same JSON with the keys of every object in another order."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: hash((key, turn)) if turn > 1 else key, reverse=turn == 1)
        return {key: shuffled(value[key], turn) for key in keys}
    return [shuffled(inner, turn) for inner in value] if isinstance(value, list) else value


def test_fingerprints_do_not_depend_on_the_order_of_keys():
    graph = rich_graph()
    for turn in range(4):
        again = loads_graph(json.dumps(shuffled(json.loads(dumps_graph(graph)), turn)))
        assert graph_fingerprint(again) == graph_fingerprint(graph)
        assert workload_fingerprint(again) == workload_fingerprint(graph)


def edited(**changes: object) -> OpGraph:
    """A small graph with some field of an operation or tensor changed."""
    fields = {
        "kind": "linear",
        "flops": 1.0,
        "dtype": "float32",
        "bytes": 4,
        "shape": (1,),
        "after": [],
        "seconds": 1.0,
    }
    f = fields | changes
    return build_graph(
        str(changes),
        [
            Operation("a", str(f["kind"]), flops=float(f["flops"]), dtype=str(f["dtype"]),
                      measured_s={"m": f["seconds"]},
                      outputs=[Tensor(int(f["bytes"]), shape=f["shape"], output=bool(f.get("output")))]),
            Operation("b", inputs=["a"], colocation=f.get("colocation")),
            Operation("c", after=f["after"], colocation=f.get("colocation")),
            Operation("d", phase="backward", recompute=bool(f.get("recompute"))),
        ],
    )  # fmt: skip


def test_fingerprints_tell_structure_from_amounts_from_measurements():
    base = edited()
    for change in ({"kind": "relu"}, {"after": ["a"]}, {"colocation": "k"}, {"recompute": True}):
        assert graph_fingerprint(edited(**change)) != graph_fingerprint(base), change
        assert workload_fingerprint(edited(**change)) != workload_fingerprint(base), change
    for change in ({"flops": 2.0}, {"dtype": "float16"}, {"bytes": 8}, {"shape": (2,)}, {"shape": None}, {"output": 1}):
        assert graph_fingerprint(edited(**change)) == graph_fingerprint(base), change
        assert workload_fingerprint(edited(**change)) != workload_fingerprint(base), change
    assert workload_fingerprint(edited(seconds=2.0)) == workload_fingerprint(base)


def machine(order: int = 1, **changes: float) -> Machine:
    """Two GPUs; `order` -1 gives pools, channels, routes and keys the other way round."""
    rates = dict([("float32", 1e12), ("float16", 2e12)][::order])
    devices = [Device(f"gpu:{i}", "m", f"gpu:{i}", flops_per_s=rates, bytes_per_s=9e11) for i in range(2)]
    pools = [Pool(f"gpu:{i}", 1 << 30) for i in range(2)]
    channels = [Channel("up", changes.get("rate", 1e9)), Channel("down", 1e9)]
    routes = [Route("gpu:0", "gpu:1", ("up",)), Route("gpu:1", "gpu:0", ("down",))]
    return Machine("m", tuple(devices), tuple(pools[::order]), tuple(channels[::order]), tuple(routes[::order]))


def test_a_machine_fingerprint_depends_on_content_and_not_on_order():
    assert machine_fingerprint(machine(-1)) == machine_fingerprint(machine())
    assert machine_fingerprint(machine(rate=2e9)) != machine_fingerprint(machine())
    swapped = machine()
    swapped = Machine("m", swapped.devices[::-1], swapped.pools, swapped.channels, swapped.routes)
    assert machine_fingerprint(swapped) != machine_fingerprint(machine())


def test_fingerprints_are_the_same_in_every_process_and_never_change():
    script = (
        "from tests.test_fingerprints import *\n"
        "print(graph_fingerprint(rich_graph()), workload_fingerprint(rich_graph()), machine_fingerprint(machine()))"
    )
    found = set()
    for seed in range(4):
        env = os.environ | {"PYTHONHASHSEED": str(seed)}
        run = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, check=True
        )
        found.add(run.stdout.strip())
    assert found == {FINGERPRINTS}


FINGERPRINTS = (
    "sha256:076cd5f1a82dc86ea2cb3b55ad22c99c "
    "sha256:26668248f62e456fb389c052ae952b13 "
    "sha256:c0c166c381c54a4cf909c5da1cc03fae"
)

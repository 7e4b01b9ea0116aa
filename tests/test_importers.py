"""Workloads of Tarnawski et al. and of our own: what is made of them, and the figures published with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from placewright.errors import FileError, InputError
from placewright.fingerprints import graph_fingerprint, workload_fingerprint
from placewright.formats import dumps_graph, loads_graph, write_graph
from placewright.graph import BACKWARD, FORWARD, PARAMETER
from placewright.importers import read_workload
from placewright.importers.placements import read_placement, read_split
from placewright.operations import Operation, build_graph
from placewright.placement import Placement
from placewright.problem import Problem
from placewright.workload import Workload

SHARED = Path(__file__).parents[2] / "shared" / "workloads"
THROUGHPUT, LATENCY = (SHARED / "tarnawski2020" / kind for kind in ("throughput", "latency"))
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the profiled workloads are not in ../shared/workloads beside the repository"
)

# ---- Tarnawski et al. ---------------------------------------------------------------------------


def node(number: int, **fields: object) -> dict[str, object]:
    """A node of a Tarnawski file."""
    usual = {"id": number, "supportedOnFpga": 1, "cpuLatency": 10.0, "fpgaLatency": 1.0, "isBackwardNode": False}
    return usual | fields


def edge(source: int, target: int, cost: float = 2.0) -> dict[str, object]:
    """An edge of a Tarnawski file."""
    return {"sourceId": source, "destId": target, "cost": cost, "size": 8}


def tarnawski(nodes: list, edges: list = [], **fields: object) -> dict[str, object]:  # noqa: B006
    """A Tarnawski file."""
    return {"maxSizePerFPGA": 1000.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges} | fields


def load(folder: Path, document: object, name: str = "w.json") -> Workload:
    """The workload in a file with this content."""
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / name).write_text(text)
    return read_workload(folder / name)


def fault(folder: Path, document: object) -> FileError:
    """The error of a file with this content."""
    with pytest.raises(FileError) as caught:
        load(folder, document)
    assert str(folder) in str(caught.value)
    return caught.value


def test_a_node_is_an_operation_with_a_companion_that_holds_its_size(tmp_path):
    nodes = [node(1, name="Conv1", size=100.0, colorClass=7), node(2, name="x", colorClass=7), node(3, size=8)]
    w = load(tmp_path, tarnawski(nodes, [edge(1, 3), edge(2, 3, 0.5)]))
    g = w.graph
    assert g.op_names == ("Conv1.size", "Conv1", "x", "3.size", "3")
    assert g.phase.tolist() == [PARAMETER, FORWARD, FORWARD, PARAMETER, FORWARD]
    assert g.kinds == ("parameter", "conv", "other", "parameter", "other")
    assert g.colocation.tolist() == [0, 0, 0, 1, 1]
    assert g.tensor_bytes.tolist() == [100, 0, 0, 8]
    assert np.nan_to_num(g.tensor_transfer_s, nan=-1).tolist() == [-1, 0.002, 0.0005, -1]
    p = Problem(g, w.machine, objective=w.objective)
    assert p.costs.seconds.tolist() == [
        [0, 0, 0],
        [1e-3, 1e-3, 1e-2],
        [1e-3, 1e-3, 1e-2],
        [0, 0, 0],
        [1e-3, 1e-3, 1e-2],
    ]
    assert w.members == {1: ("Conv1", "Conv1.size"), 2: ("x",), 3: ("3", "3.size")}


def test_a_node_without_class_and_size_is_free(tmp_path):
    g = load(tmp_path, tarnawski([node(1), node(2), node(3, colorClass=None)])).graph
    assert g.colocation.tolist() == [-1, -1, -1]


def test_the_machine_is_that_of_the_file(tmp_path):
    m = load(tmp_path, tarnawski([node(1)], maxCPUs=2)).machine
    assert [(d.name, d.model, d.pool, d.host) for d in m.devices] == [
        ("gpu:0", "accelerator", "gpu:0", "cpu:0"),
        ("gpu:1", "accelerator", "gpu:1", "cpu:0"),
        ("cpu:0", "cpu", "host", "cpu:0"),
        ("cpu:1", "cpu", "host", "cpu:1"),
    ]
    assert [(p.name, p.bytes, p.granule_bytes, p.reserve_bytes) for p in m.pools] == [
        ("gpu:0", 1000, 1, 0), ("gpu:1", 1000, 1, 0), ("host", 1 << 58, 1, 0),
    ]  # fmt: skip
    name = [channel.name for channel in m.channels]
    routes = {(a, b): m.route(a, b) for a in range(4) for b in range(4) if a != b}
    assert [name[c] for c in routes[0, 1]] == ["gpu:0 up", "gpu:1 down"]
    assert [name[c] for c in routes[0, 3]] == ["gpu:0 up"]
    assert [name[c] for c in routes[3, 1]] == ["gpu:1 down"]
    assert routes[2, 3] == ()


def test_accelerators_without_a_cpu_have_routes(tmp_path):
    m = load(tmp_path, tarnawski([node(1)], maxCPUs=0)).machine
    assert m.route(0, 1) is not None
    only = load(tmp_path, tarnawski([node(1)], maxFPGAs=0)).machine
    assert [d.name for d in only.devices] == ["cpu:0"]


def test_a_node_that_no_accelerator_supports_runs_on_the_cpu_only(tmp_path):
    w = load(tmp_path, tarnawski([node(1, supportedOnFpga=False, fpgaLatency=0.0)]))
    assert Problem(w.graph, w.machine).choices.tolist() == [[False, False, True]]


def test_nodes_are_sorted_topologically_and_otherwise_stay_in_file_order(tmp_path):
    nodes = [node(9), node(5), node(7), node(1), node(3)]
    g = load(tmp_path, tarnawski(nodes, [edge(3, 5), edge(1, 3)])).graph
    assert g.op_names == ("9", "7", "1", "3", "5")


def test_edges_given_twice_are_one(tmp_path):
    g = load(tmp_path, tarnawski([node(1), node(2)], [edge(1, 2), edge(1, 2)])).graph
    assert g.in_tensor.tolist() == [0]


def test_a_backward_node_is_of_phase_backward(tmp_path):
    g = load(tmp_path, tarnawski([node(1), node(2, isBackwardNode=1)])).graph
    assert g.phase.tolist() == [FORWARD, BACKWARD]


def test_names_given_twice_are_made_to_differ_by_id(tmp_path):
    nodes = [node(1, name="a"), node(2, name="a", size=1), node(3, name="a#1"), node(4, name="a#2.size"), node(5)]
    w = load(tmp_path, tarnawski(nodes))
    assert w.graph.op_names == ("a#1'", "a#2.size'", "a#2", "a#1", "a#2.size", "5")


def test_fields_that_are_not_ours_are_left_alone(tmp_path):
    nodes = [node(1, layerId=3, colour={"deep": [None]})]
    assert load(tmp_path, tarnawski(nodes, comment="x")).graph.n_ops == 1


def test_the_objective_is_the_maximum_load_unless_the_folder_is_called_latency(tmp_path):
    assert load(tmp_path, tarnawski([node(1)])).objective == "max_load"
    (tmp_path / "latency").mkdir()
    assert load(tmp_path / "latency", tarnawski([node(1)])).objective == "step"


@pytest.mark.parametrize(
    ("document", "place", "message"),
    [
        (tarnawski([node(1), node(2), node(3)], [edge(1, 2), edge(1, 3, 3.0)]), "edges[1].cost", "edges[0]"),
        (tarnawski([node(1)], [edge(1, 1)]), "edges", "cycle: 'node 1' -> 'node 1'"),
        (tarnawski([node(1), node(2)], [edge(1, 2), edge(2, 1)]), "edges", "'node 1' -> 'node 2' -> 'node 1'"),
        (tarnawski([node(1)], [edge(1, 5)]), "edges[0].destId", "no node has the id 5"),
        (tarnawski([node(1), node(1)]), "nodes[1].id", "nodes[0] has the id 1 too"),
        (tarnawski([{"id": 1}]), "nodes[0]", "'fpgaLatency' is missing"),
        (tarnawski([node(1, cpuLatency=-1)]), "nodes[0].cpuLatency", "out of range"),
        (tarnawski([node(1, cpuLatency=float("nan"))]), "nodes[0].cpuLatency", "out of range"),
        (tarnawski([node(1, size=1e20)]), "nodes[0].size", "out of range"),
        (tarnawski([node(1, size=1e15), node(2, size=1e15)]), "nodes", "add up to"),
        (tarnawski([node(1, id="x")]), "nodes[0].id", "expected a number"),
        (tarnawski([node(1)], maxFPGAs=257), "maxFPGAs", "0 to 256"),
        (tarnawski([node(1)], maxFPGAs=200, maxCPUs=100), "maxFPGAs", "1 to 256 devices"),
        (tarnawski([node(1)], maxFPGAs=0, maxCPUs=0), "maxFPGAs", "1 to 256 devices"),
        ({"nodes": []}, "", "'maxFPGAs' is missing"),
        ({"graph": []}, "", "neither the field 'schema' nor 'nodes'"),
        ([], "", "holds a list"),
        ("layers: 3", "", "is of no known format"),
        ('{"nodes": [], "nodes": []}', "", "given twice"),
    ],
)
def test_faults_of_tarnawski_files_are_named_with_their_place(tmp_path, document, place, message):
    error = fault(tmp_path, document)
    assert error.place == place
    assert message in error.problem


def max_load_s(problem: Problem, placement: Placement) -> float:
    """The largest load of a device, as the paper defines it: computation, and each tensor once in and once out."""
    g, devices = problem.graph, placement.devices.tolist()
    load = [0.0] * problem.n_devices
    for op, device in enumerate(devices):
        load[device] += float(problem.costs.seconds[op, device])
    start, readers = (array.tolist() for array in g.consumers)
    for t, seconds in enumerate(g.tensor_transfer_s.tolist()):
        home = devices[int(g.tensor_op[t])]
        away = {devices[op] for op in readers[start[t] : start[t + 1]]} - {home}
        for device in away | ({home} if away else set()):
            if not problem.machine.devices[device].is_host:
                load[device] += seconds
    return max(load)


@needs_shared
@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "expert_ms", "one_ms"),
    [
        ("layer_bert24_inference", 20.084, 92.406),
        ("layer_bert24_training", 49.405, 217.813),
        ("layer_gnmt_inference", 46.208, 182.563),
        ("layer_inceptionv3_inference", 102.482, 310.969),
        ("layer_resnet50_inference", 43.918, 201.450),
        ("op_bert_l-3_inference", None, 49.353),
        ("op_bert_l-3_training", None, 122.987),
        ("op_bert_l-6_inference", None, 77.462),
        ("op_resnet50_inference", None, 325.132),
    ],
)
def test_published_loads_come_out(name, expert_ms, one_ms):
    path = THROUGHPUT / f"{name}.json"
    w = read_workload(path)
    p = Problem(w.graph, w.machine, objective=w.objective)
    assert p.objective == "max_load"
    assert p.costs.measured[~w.graph.off_queue].all()
    one = read_placement("single:gpu:0", p, path)
    assert round(max_load_s(p, one) * 1e3, 3) == one_ms
    if expert_ms is None:
        assert w.expert is None
        with pytest.raises(InputError, match="no expert's placement is known"):
            read_placement("expert", p, path)
    else:
        expert = read_placement("expert", p, path)
        assert round(max_load_s(p, expert) * 1e3, 3) == expert_ms
        assert read_split(w.expert, w) == dict(
            zip(w.graph.op_names, (p.machine.devices[d].name for d in expert.devices), strict=True)
        )


@needs_shared
@pytest.mark.shared
def test_every_tarnawski_workload_keeps_its_nodes_edges_and_bytes():
    paths = sorted(THROUGHPUT.glob("*.json")) + sorted(LATENCY.glob("*.json"))
    assert len(paths) == 13
    for path in paths:
        w, raw = read_workload(path), json.loads(path.read_text())
        g = w.graph
        assert w.objective == ("step" if path.parent == LATENCY else "max_load")
        assert g.persistent_bytes == sum(n["size"] for n in raw["nodes"])
        assert np.count_nonzero(~g.persistent[g.in_tensor]) == len({(e["sourceId"], e["destId"]) for e in raw["edges"]})
        assert len(w.machine.devices) == raw["maxFPGAs"] + raw["maxCPUs"]
        assert sorted(w.members) == sorted(n["id"] for n in raw["nodes"])
        again = loads_graph(dumps_graph(g))
        assert workload_fingerprint(again) == workload_fingerprint(g)


# ---- our own graphs -----------------------------------------------------------------------------


def test_our_own_graphs_are_told_by_their_schema(tmp_path):
    graph = build_graph("g", [Operation("a"), Operation("b", after=["a"])])
    for name in ("g.json", "g.json.gz", "g.txt"):
        write_graph(graph, tmp_path / name)
        w = read_workload(tmp_path / name)
        assert graph_fingerprint(w.graph) == graph_fingerprint(graph)
        assert (w.machine, w.objective, w.discipline, w.expert, dict(w.members)) == (None, None, None, None, {})

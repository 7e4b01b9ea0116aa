"""Placements from outside: an expert's, one device's, a plan's, a split's, a list's."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from placewright.errors import FileError, InputError, PlacementError, UnknownNameError
from placewright.formats import dumps_plan
from placewright.importers import expert_path
from placewright.importers.placements import read_placement, read_split
from placewright.problem import Problem, parse_constraint
from placewright.workload import Workload
from tests.test_importers import edge, load, node, tarnawski
from tests.test_pipedream import CHAIN
from tests.test_plan import plan


def split(*gpus: list[int], cpus: tuple[list[int], ...] = ()) -> dict[str, object]:
    """A split file."""
    return {"fpgas": [{"nodes": n} for n in gpus], "cpus": [{"nodes": n} for n in cpus], "maxLoad": -1}


def small(folder: Path) -> tuple[Path, Workload, Problem]:
    """Three nodes, two with sizes; the third runs on the CPU only."""
    nodes = [node(1, size=4), node(2, size=4, colorClass=3), node(3, supportedOnFpga=0, name="cpu only")]
    w = load(folder, tarnawski(nodes, [edge(1, 2), edge(2, 3)]))
    return folder / "w.json", w, Problem(w.graph, w.machine)


def test_a_split_places_every_node_and_its_companion(tmp_path):
    _, w, _ = small(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps(split([1], [2], cpus=([3],))))
    assert read_split(tmp_path / "s.json", w) == {
        "1": "gpu:0", "1.size": "gpu:0", "2": "gpu:1", "2.size": "gpu:1", "cpu only": "cpu:0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("document", "place", "message"),
    [
        (split([1], [2]), "", "1 nodes are on no device, first node 3"),
        (split([1, 2], [2], cpus=([3],)), "fpgas[1].nodes[0]", "node 2 is already at fpgas[0].nodes[1]"),
        (split([1, 2, 9], cpus=([3],)), "fpgas[0].nodes[2]", "no node has the id 9"),
        (split([1], [], [2], cpus=([3],)), "fpgas[2].nodes[0]", "no device gpu:2; it has gpu:0, gpu:1, cpu:0"),
        (split(["1"]), "fpgas[0].nodes[0]", "expected a number"),
        ({"fpgas": [{}]}, "fpgas[0]", "'nodes' is missing"),
        ({"fpgas": [3]}, "fpgas[0]", "expected a table"),
    ],
)
def test_faults_of_splits_are_named_with_their_place(tmp_path, document, place, message):
    _, w, _ = small(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps(document))
    with pytest.raises(FileError) as caught:
        read_split(tmp_path / "s.json", w)
    assert caught.value.place == place
    assert message in caught.value.problem


def test_an_expert_is_found_beside_the_folder(tmp_path):
    for folder in ("throughput", "experts"):
        (tmp_path / folder).mkdir()
    path, _, p = small(tmp_path / "throughput")
    assert expert_path(path) is None
    (tmp_path / "experts" / "w.json").write_text(json.dumps(split([1], [2], cpus=([3],))))
    assert expert_path(path) == tmp_path / "experts" / "w.json"
    assert expert_path(tmp_path / "experts" / "w.json") is None
    assert read_placement("expert", p, path).devices.tolist() == [0, 0, 1, 1, 2]


def test_an_expert_of_nothing_is_an_error(tmp_path):
    path, _, p = small(tmp_path)
    for where in (path, None):
        with pytest.raises(InputError, match="Name a file instead"):
            read_placement("expert", p, where)


def test_everything_on_one_device(tmp_path):
    _, _, p = small(tmp_path)
    assert read_placement("single:cpu:0", p).devices.tolist() == [2] * 5
    with pytest.raises(UnknownNameError, match="unknown device 'tpu:0'"):
        read_placement("single:tpu:0", p)
    with pytest.raises(PlacementError, match=r"'cpu only' .* its cost there is infinite.* can run on cpu:0"):
        read_placement("single:gpu:0", p)
    pinned = p.replace(constraints=(parse_constraint("pin:2=gpu:1"),))
    with pytest.raises(PlacementError, match=r"'2' .* a constraint forbids it.*1 operations colocated.* on gpu:1"):
        read_placement("single:cpu:0", pinned)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([0, "gpu:0", 1, "gpu:1", "cpu:0"], None),
        ({"1": "gpu:0", "1.size": "gpu:0", "2": "gpu:1", "2.size": "gpu:1", "cpu only": "cpu:0"}, None),
        (split([1], [2], cpus=([3],)), None),
        ([0, 0], "a list of 2 devices for a graph of 5 operations"),
        ([0, 0, 0, 0, 3], r"\[4\]: 3 is out of range"),
        ([0, 0, 0, 0, True], r"\[4\]: expected a number"),
        ([0, 0, 0, 0, None], r"\[4\]: expected a number"),
        ([0, 0, 0, 0, "tpu"], r"\[4\]: no device is called 'tpu'; there are gpu:0, gpu:1, cpu:0"),
        ([0, 1, 1, 1, 2], "must run on one device"),
        ({"1": "gpu:0"}, "names no device for 4 operations"),
        ({"z": "gpu:0"}, "unknown operation 'z'"),
        ({"1": 0}, "expected text"),
        (3, "expected a plan, a split, a list"),
        ({"schema": "placewright.graph/1"}, "a placewright.plan file was expected"),
    ],
)
def test_a_placement_from_a_file(tmp_path, document, message):
    path, _, p = small(tmp_path)
    (tmp_path / "p.json").write_text(json.dumps(document))
    if message is None:
        assert read_placement(str(tmp_path / "p.json"), p, path).devices.tolist() == [0, 0, 1, 1, 2]
        return
    with pytest.raises(FileError, match=message):
        read_placement(tmp_path / "p.json", p, path)


def test_a_placement_from_a_plan(tmp_path):
    _, _, p = small(tmp_path)
    chosen = p.placement([0, 0, 1, 1, 2], None, [-1, 64, 0])
    (tmp_path / "p.json").write_text(dumps_plan(plan(chosen, p)))
    assert read_placement(tmp_path / "p.json", p) == chosen


def test_a_split_needs_the_workload(tmp_path):
    _, w, p = small(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps(split([1], [2], cpus=([3],))))
    with pytest.raises(FileError, match="needs the file of the workload"):
        read_placement(tmp_path / "s.json", p)
    with pytest.raises(FileError, match="node numbers, which graph 'w' does not have"):
        read_split(tmp_path / "s.json", Workload(w.graph))


def test_a_split_goes_by_the_numbers_of_layers_too(tmp_path):
    w = load(tmp_path, CHAIN)
    (tmp_path / "s.json").write_text(json.dumps(split([1, 2], [3])))
    placed = read_split(tmp_path / "s.json", w)
    assert Counter(placed.values()) == {"gpu:0": 6, "gpu:1": 5}

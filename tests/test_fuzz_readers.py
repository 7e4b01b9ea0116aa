"""Every reader against damaged files: it reads them or says what is wrong, and never takes long."""

from __future__ import annotations

import copy
import gzip
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from placewright.errors import PlacewrightError
from placewright.fingerprints import workload_fingerprint
from placewright.formats import (
    dumps_graph,
    dumps_plan,
    dumps_profile,
    loads_graph,
    loads_plan,
    loads_profile,
    read_graph,
    read_plan,
    read_profile,
)
from placewright.importers import read_workload
from placewright.importers.placements import read_placement, read_split
from placewright.problem import Problem
from tests.test_formats import rich_graph
from tests.test_importers import edge, node, tarnawski
from tests.test_pipedream import CHAIN, layer
from tests.test_placements import split
from tests.test_plan import plan
from tests.test_profile import profile

LIMIT_S = 10.0
"""Far above what a small file takes, even on a busy machine; a reader that hangs or explodes is caught."""

JUNK = (
    None, True, False, 0, 1, -1, 2, -0.0, 1.5, -1.5, 1e308, 1e-308, float("nan"), float("inf"), float("-inf"),
    1 << 31, 1 << 53, 1 << 62, 1 << 63, 10**400, "", "a", "x", "1", "\ud800", "\n", "\0", "x" * 2000, "gpu:0", "nan",
    [], {}, [[]], [None], ["a", 0], ["a", -1], ["a", 1 << 40], ["x", 0, 0], {"a": 1}, {"": {}}, [0] * 100,
)  # fmt: skip
TOKENS = (
    "NaN", "Infinity", "-Infinity", "-", "1e999", "1e-999", "9" * 5000, "[" * 3000, '{"a":' * 3000, "]" * 10, '"', "\\",
    "\\ud800", "null", ",", ":", " -- ", "node1", "=", "; ", "\t", "\n", "\ufeff", "\u2028", "[1; 2]", "-1.0", "nan",
)  # fmt: skip


def places(document: object) -> list[tuple[object, object]]:
    """Every (container, key) of a document."""
    found, todo = [], [document]
    while todo:
        value = todo.pop()
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            found.append((value, key))
            todo.append(value[key])
    return found


def damage_document(document: object, rng: random.Random) -> None:
    """Change some places of a JSON document: other values, missing ones, others' names, copies, new fields."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        found = places(document)
        if not found:
            return
        container, key = rng.choice(found)
        kind = rng.randrange(6)
        if kind == 0:
            del container[key]
        elif kind == 1:
            donor, other = rng.choice(found)
            container[key] = copy.deepcopy(donor[other])
        elif kind == 2 and isinstance(container, list):
            container.insert(rng.randrange(len(container) + 1), copy.deepcopy(container[key]))
        elif kind == 3 and isinstance(container, list):
            rng.shuffle(container)
        elif kind == 4 and isinstance(container, dict):
            container[rng.choice(("x", "", "\ud800", "schema", "nodes", "x" * 1200))] = copy.deepcopy(rng.choice(JUNK))
        else:
            container[key] = copy.deepcopy(rng.choice(JUNK))


def damage_text(text: str, rng: random.Random) -> str:
    """Cut, repeat, exchange or insert parts of a text."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        a, b = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        b = min(b, a + rng.choice((1, 3, 30, 300)))
        kind = rng.randrange(6)
        if kind == 0:
            text = text[:a]
        elif kind == 1:
            text = text[:a] + text[b:]
        elif kind == 2:
            text = text[:b] + text[a:b] * rng.choice((1, 2, 40)) + text[b:]
        elif kind == 3:
            text = text[:a] + rng.choice(TOKENS) + text[a:]
        elif kind == 4:
            text = text[:a] + rng.choice(TOKENS) + text[b:]
        else:
            lines = text.split("\n")
            rng.shuffle(lines)
            text = "\n".join(lines)
    return text


def damage_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut or insert bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 10))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(changed):
            changed[at] = rng.randrange(256)
        elif kind == 1:
            changed[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
        elif kind == 2:
            del changed[at : at + rng.choice((1, 2, 8))]
        else:
            del changed[at:]
    return bytes(changed)


def damaged(text: str, rng: random.Random) -> bytes:
    """A damaged version of a file, in one of many ways."""
    kind = rng.randrange(10)
    if kind < 5 and text.startswith(("{", "[")):
        document = json.loads(text)
        damage_document(document, rng)
        return json.dumps(document).encode("utf-8", "surrogatepass")
    if kind < 8:
        return damage_text(text, rng).encode("utf-8", "surrogatepass")
    if kind == 8:
        return damage_bytes(text.encode(), rng)
    return damage_bytes(gzip.compress(text.encode(), mtime=0), rng)


def graph(path: Path) -> None:
    """Read a graph; what is read can be written and read again."""
    found = read_graph(path)
    assert workload_fingerprint(loads_graph(dumps_graph(found))) == workload_fingerprint(found)


def plan_file(path: Path) -> None:
    """Read a plan; what is read can be written and read again."""
    found = read_plan(path)
    assert loads_plan(dumps_plan(found)) == found


def profile_file(path: Path) -> None:
    """Read a profile; what is read can be written and read again."""
    found = read_profile(path)
    assert loads_profile(dumps_profile(found)) == found


def workload(path: Path) -> None:
    """Read a workload of any format; what is read can be written and read again."""
    found = read_workload(path).graph
    assert workload_fingerprint(loads_graph(dumps_graph(found))) == workload_fingerprint(found)


def split_file(path: Path) -> None:
    """Read a split, and the placement that the file gives in whatever form."""
    base = path.parent / "base.json"
    found = read_workload(base)
    assert read_placement(path, Problem(found.graph, found.machine), base).devices.size == found.graph.n_ops
    read_split(path, found)


NODES = [node(1, name="a", size=4.0, colorClass=1), node(3, name="a"), node(2, isBackwardNode=1, colorClass=1)]
TARNAWSKI = json.dumps(tarnawski(NODES, [edge(1, 3), edge(3, 2), edge(1, 2)]), indent=1)
PIPEDREAM = f"""{CHAIN}
{layer(4, "LSTM(4, 4)", out="[64.0; 8.0]", held=4)}
{layer(5, "__getitem__(0)")}
{layer(6, "ReLU(inplace)")}
\tnode3 -- node4
\tnode4 -- node5
\tnode5 -- node6
"""
READERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "graph": (graph, dumps_graph(rich_graph())),
    "plan": (plan_file, dumps_plan(plan())),
    "profile": (profile_file, dumps_profile(profile())),
    "tarnawski": (workload, TARNAWSKI),
    "split": (split_file, json.dumps(split([1, 2], [3], cpus=([],)), indent=1)),
    "pipedream": (workload, PIPEDREAM),
}


def fuzz(name: str, folder: Path, times: int, seed: int) -> None:
    """Read so many damaged files; most must be refused, and the rest must be good."""
    read, text = READERS[name]
    (folder / "base.json").write_text(TARNAWSKI)
    path = folder / "file"
    rng = random.Random(f"{name} {seed}")
    refused = 0
    for n in range(times):
        data = damaged(text, rng)
        path.write_bytes(data)
        start = time.perf_counter()
        message = ""
        try:
            read(path)
        except PlacewrightError as error:
            refused += 1
            message = str(error)
        except BaseException:
            print(f"{name} {seed}: file {n} is {data[:3000]!r}")
            raise
        assert len(message) < 10_000
        assert time.perf_counter() - start < LIMIT_S, f"file {n} took too long"
    assert refused > times // 2


@pytest.mark.parametrize("name", READERS)
def test_what_is_not_damaged_is_read(tmp_path, name):
    read, text = READERS[name]
    (tmp_path / "base.json").write_text(TARNAWSKI)
    (tmp_path / "file").write_text(text)
    read(tmp_path / "file")


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_refused_with_a_reason(tmp_path, name):
    fuzz(name, tmp_path, 1_000, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_damaged_files_are_refused_with_a_reason(tmp_path, name):
    fuzz(name, tmp_path, 10_000, 2)

"""The examples: what they write is what is committed, and shows what it should."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import placewright as pw
from placewright.capture import capture
from placewright.capture.function import from_function
from placewright.fingerprints import workload_fingerprint

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def two_towers():
    spec = importlib.util.spec_from_file_location("two_towers", EXAMPLES / "two_towers.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["two_towers"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module.two_towers()
    del sys.modules["two_towers"]


def test_the_committed_graph_is_what_the_script_builds(two_towers):
    """And it is small."""
    path = EXAMPLES / "two_towers.json.gz"
    assert workload_fingerprint(pw.read_graph(path)) == workload_fingerprint(two_towers)
    assert path.stat().st_size < 200_000


@pytest.mark.parametrize("machine", ["k40x2", "rtx4090x2", "v100x8"])
def test_two_gpus_are_much_faster_than_one(two_towers, machine):
    """A tower on each GPU takes little more than half the time, and fits."""
    problem = pw.Problem(two_towers, pw.machine(machine))
    gpu = problem.machine.device("gpu:0")
    one = problem.placement(np.full(problem.n_ops, gpu))
    text = np.array([scope.startswith("text") for scope in two_towers.scopes])
    two = problem.placement(np.where(text, gpu + 1, gpu))
    alone, together = pw.Simulator(problem).simulate([one, two])
    assert alone.feasible
    assert together.feasible
    assert together.value_s < 0.6 * alone.value_s


def test_every_weight_is_updated_once(two_towers):
    """Each has moments, a backward, an update and a store of its own."""
    weights = [name.removesuffix(".weight") for name in two_towers.op_names if name.endswith(".weight")]
    assert len(weights) > 30
    for name in weights:
        for part in ("state", "backward", "update", "store", "state_store"):
            assert f"{name}.{part}" in two_towers.index


def test_the_language_model_is_captured_whole():
    """Parameters by formula, the tied head once, an update for each; its layers are found to be equal."""
    model, args, kwargs = from_function(EXAMPLES / "language_model.py", "training")
    graph = capture(model, args, kwargs, optimizer="adamw")
    layer = 4 * 1024 * 1024 + 8 * 1024 * 1024 + (4 + 4 + 1 + 4) * 1024
    held = 32_000 * 1024 + 12 * layer + 2 * 1024
    updates = graph.kinds.count("adamw")
    assert graph.persistent_bytes == 12 * held + 4 * updates
    assert updates == len(list(model.parameters())) == 147
    assert not any(name.startswith("gradient.") for name in graph.op_names)
    assert 12 in {len(family.ops) for family in pw.repeated_blocks(graph).families}

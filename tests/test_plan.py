"""Plans: what a search leaves behind, and how it becomes a placement again."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from placewright.errors import FileError, InputError, PlacementError, UnknownNameError
from placewright.fingerprints import graph_fingerprint, machine_fingerprint, workload_fingerprint
from placewright.formats import dumps_plan, loads_plan, read_plan, write_plan
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.placement import Placement
from placewright.plan import Plan, Prediction
from placewright.problem import Problem, parse_constraint
from tests.strategies import random_problem


def problem(**changes: object) -> Problem:
    """Three operations in a chain, on two devices."""
    ops = [
        Operation("a", flops=1e9, outputs=[Tensor(64)]),
        Operation("b", flops=1e9, inputs=["a"], outputs=[Tensor(64)]),
        Operation("c", flops=1e9, inputs=["b"]),
    ]
    devices = tuple(
        Device(f"gpu:{i}", "m", f"gpu:{i}", flops_per_s={"float32": 1e12}, bytes_per_s=1e11) for i in (0, 1)
    )
    pools = tuple(Pool(f"gpu:{i}", 1 << 20) for i in (0, 1))
    routes = (Route("gpu:0", "gpu:1", ("link",)), Route("gpu:1", "gpu:0", ("link",)))
    machine = Machine("two", devices, pools, (Channel("link", 1e9),), routes)
    return Problem(build_graph("chain", ops), machine, **changes)


def prediction(**changes: object) -> Prediction:
    """A prediction with everything in it."""
    fields = {
        "objective": "step", "value_s": 0.25, "feasible": False, "bound_s": 0.2, "gap": 0.25,
        "reason": "64 bytes over in gpu:0", "peak_bytes": {"gpu:0": 1 << 20, "gpu:1": 0}, "over_bytes": {"gpu:0": 64},
        "measured_share": 0.5,
    }  # fmt: skip
    return Prediction(**(fields | changes))


def plan(placement: Placement | None = None, where: Problem | None = None, **changes: object) -> Plan:
    """The plan of a placement on the small problem."""
    p = where or problem(constraints=(parse_constraint("pin:a=gpu:0"),))
    chosen = placement or p.placement([0, 1, 1], [0.5, 2.0, -1.0], [-1, 4096])
    prints = (graph_fingerprint(p.graph), workload_fingerprint(p.graph), machine_fingerprint(p.machine))
    made = Plan.of(p, chosen, prediction(), fingerprints=prints, method="hdp", seed=7, evaluations=100, version="0.1.0")
    return replace(made, **changes)


def test_a_plan_names_everything():
    made = plan()
    assert made.devices == {"a": "gpu:0", "b": "gpu:1", "c": "gpu:1"}
    assert made.priorities == {"a": 0.5, "b": 2.0, "c": -1.0}
    assert made.windows_bytes == {"gpu:0": None, "gpu:1": 4096}
    assert made.constraints == ("pin:a=gpu:0",)
    assert (made.graph, made.machine, made.objective, made.discipline) == ("chain", "two", "step", "stream")


def test_a_plan_gives_its_placement_back():
    p = problem()
    for chosen in (
        p.placement([0, 1, 1], [0.5, 2.0, -1.0], [-1, 4096]),
        p.placement([1, 1, 0]),
        p.placement([0, 0, 0], None, [-1, -1]),
    ):
        made = plan(chosen, p)
        assert made.placement(p) == chosen
        assert loads_plan(dumps_plan(made)).placement(p) == chosen


def test_plans_of_random_problems_give_their_placements_back():
    rng = random.Random(3)
    for n_ops in [*range(1, 11)] * 10:
        p, chosen = random_problem(rng, n_ops)
        made = plan(chosen, p)
        again = loads_plan(dumps_plan(made))
        assert again == made
        assert again.placement(p) == chosen


def test_a_plan_is_read_back_with_the_same_bytes(tmp_path):
    for name in ("p.json", "p.json.gz"):
        write_plan(plan(), tmp_path / name)
        assert read_plan(tmp_path / name) == plan()
    assert dumps_plan(loads_plan(dumps_plan(plan()).encode())) == dumps_plan(plan())


def test_what_is_not_known_is_left_out_and_infinite_values_are_null():
    p = problem()
    never = Prediction("step", math.inf, False)
    made = plan(p.placement([0, 1, 1]), p, prediction=never, seed=None)
    document = json.loads(dumps_plan(made))
    assert document["prediction"] == {"objective": "step", "value_s": None, "feasible": False, "measured_share": 0}
    assert document.keys().isdisjoint({"priorities", "windows_bytes", "constraints"})
    assert loads_plan(dumps_plan(made)) == made


def test_a_reason_of_any_length_can_be_written():
    made = plan(prediction=prediction(reason="line one\nline two " + "x" * 2000))
    reason = loads_plan(dumps_plan(made)).prediction.reason
    assert reason.startswith("line one line two xxx")
    assert len(reason) == 1000


def test_what_a_prediction_may_say_can_be_written_and_read():
    for size in ((1 << 60) + 1, 1 << 62, (1 << 63) - 1):
        made = plan(prediction=prediction(peak_bytes={"gpu:0": size}, over_bytes={"gpu:0": size}))
        assert loads_plan(dumps_plan(made)) == made
    with pytest.raises(InputError, match="peak_bytes holds a size outside 0 to 9223372036854775807"):
        prediction(peak_bytes={"gpu:0": 1 << 63})


def test_what_a_problem_and_a_placement_may_say_can_be_written_and_read():
    long = parse_constraint("pin:a*" + "," + "b" * (1000 - len("pin:a*,=gpu:0")) + "=gpu:0")
    p = problem(constraints=(parse_constraint("pin:a=gpu:0"),))
    chosen = p.placement([0, 1, 1], [1e30, -1e30, 0.1], [1 << 60, -1])
    made = plan(chosen, p, constraints=(str(long),))
    assert len(made.constraints[0]) == 1000
    assert loads_plan(dumps_plan(made)) == made
    assert loads_plan(dumps_plan(made)).placement(p) == chosen
    for wrong in (math.inf, math.nan, -1.01e30):
        with pytest.raises(InputError, match="the priority of operation 'a'"):
            plan(priorities={"a": wrong})


def test_an_operation_without_priority_has_priority_0_and_a_device_without_window_the_default():
    p = problem()
    made = plan(priorities={"b": None, "c": 3.0}, windows_bytes={"gpu:1": 64})
    chosen = made.placement(p)
    np.testing.assert_array_equal(chosen.priorities, [0.0, 0.0, 3.0])
    np.testing.assert_array_equal(chosen.windows_bytes, [-1, 64])


def test_a_plan_of_another_graph_or_machine_is_refused():
    p = problem()
    with pytest.raises(UnknownNameError, match="operation in the plan 'z'"):
        replace(plan(), devices=plan().devices | {"z": "gpu:0"}).placement(p)
    with pytest.raises(UnknownNameError, match="device in the plan 'tpu:0'"):
        replace(plan(), devices=plan().devices | {"a": "tpu:0"}).placement(p)
    with pytest.raises(UnknownNameError, match="device in the plan 'cpu:0'"):
        replace(plan(), windows_bytes={"cpu:0": 1}).placement(p)
    with pytest.raises(PlacementError, match="no device for 1 operations, first 'c'"):
        replace(plan(), devices={"a": "gpu:0", "b": "gpu:0"}, priorities={}).placement(p)


def test_the_constraints_of_the_problem_count():
    with pytest.raises(PlacementError, match="constraint pin:a=gpu:1"):
        plan().placement(problem(constraints=(parse_constraint("pin:a=gpu:1"),)))
    with pytest.raises(PlacementError, match="must run on one device"):
        plan().placement(problem(constraints=(parse_constraint("colocate:a,b"),)))


@pytest.mark.parametrize(
    "change",
    [
        {"objective": "fast"}, {"discipline": "slow"}, {"evaluations": -1}, {"priorities": {"a": math.inf}},
        {"priorities": {"z": 1.0}}, {"windows_bytes": {"gpu:0": -1}},
    ],
)  # fmt: skip
def test_plans_that_say_nonsense_are_refused(change):
    with pytest.raises(InputError):
        replace(plan(), **change)


@pytest.mark.parametrize(
    "change",
    [
        {"objective": "fast"}, {"value_s": -1.0}, {"value_s": math.nan}, {"bound_s": math.inf}, {"gap": -0.1},
        {"measured_share": 1.1}, {"measured_share": math.nan}, {"over_bytes": {"gpu:0": -1}},
    ],
)  # fmt: skip
def test_predictions_that_say_nonsense_are_refused(change):
    with pytest.raises(InputError):
        prediction(**change)


@pytest.mark.parametrize(
    ("path", "value", "place", "message"),
    [
        (["devices", "a"], 3, "devices.a", "expected text"),
        (["devices"], None, "devices", "expected a table"),
        (["priorities", "z"], 1, "", "unknown operation in the plan 'z'"),
        (["priorities", "a"], "high", "priorities.a", "expected a number"),
        (["windows_bytes", "gpu:0"], -1, "windows_bytes.gpu:0", "out of range"),
        (["prediction", "value_s"], -1, "prediction.value_s", "out of range"),
        (["prediction", "value_s"], math.inf, "prediction.value_s", "out of range"),
        (["prediction", "gap"], math.nan, "prediction.gap", "out of range"),
        (["prediction", "peak_bytes"], {"p": 1.5}, "prediction.peak_bytes.p", "whole number"),
        (["prediction", "when"], 1, "prediction", "unknown field 'when'"),
        (["objective"], "fast", "objective", "one of step"),
        (["seed"], -1, "seed", "out of range"),
        (["evaluations"], None, "evaluations", "null"),
        (["constraints"], ["\n"], "constraints[0]", "unprintable"),
        (["date"], "today", "", "unknown field 'date'"),
    ],
)
def test_faults_of_plan_files_are_named_with_their_place(path, value, place, message):
    document = json.loads(dumps_plan(plan()))
    table = document
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    with pytest.raises(FileError) as caught:
        loads_plan(json.dumps(document), "p.json")
    assert caught.value.place == place
    assert message in caught.value.problem


@pytest.mark.parametrize("field", ["graph", "machine_fingerprint", "devices", "prediction", "method"])
def test_a_plan_without_a_field_is_refused(field):
    document = json.loads(dumps_plan(plan()))
    del document[field]
    with pytest.raises(FileError, match=f"'{field}' is missing"):
        loads_plan(json.dumps(document))

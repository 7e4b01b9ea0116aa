"""Profiles: measured seconds, and the graph that gets them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from placewright.errors import FileError, InputError, UnknownNameError
from placewright.formats import dumps_profile, loads_profile, read_profile, write_profile
from placewright.graph import OpGraph
from placewright.operations import Operation, Tensor, build_graph
from placewright.profile import Profile, apply_profile


def two_models() -> OpGraph:
    """A parameter and two operations, with seconds on two models."""
    return build_graph(
        "two models",
        [
            Operation("w", "parameter", "parameter", outputs=[Tensor(4)]),
            Operation("lin", "linear", inputs=["w"], outputs=[Tensor(4)], measured_s={"fast": 1.0, "slow": 2.0}),
            Operation("back", "linear_backward", "backward", inputs=["lin"], measured_s={"fast": 3.0}),
        ],
    )


def profile() -> Profile:
    """A profile of that graph on a model that it has seconds of, and on which one operation cannot run."""
    return Profile("fast", {"lin": 0.5, "back": float("inf")}, {"float32": 1e12}, 9e11, {"torch": "2.11.0"})


def test_a_profile_is_read_back_as_it_was_written(tmp_path):
    for name in ("p.json", "p.json.gz"):
        write_profile(profile(), tmp_path / name)
        assert read_profile(tmp_path / name) == profile()
    assert loads_profile(dumps_profile(profile()).encode()) == profile()


def test_a_profile_replaces_the_seconds_of_its_model_and_no_others():
    graph = apply_profile(two_models(), profile())
    assert [m.model for m in graph.measured] == ["fast", "slow"]
    fast, slow = graph.measured
    assert fast.seconds[graph.op("lin")] == 0.5
    assert fast.seconds[graph.op("back")] == np.inf
    assert np.isnan(fast.seconds[graph.op("w")])
    assert (fast.flops_per_s, fast.bytes_per_s) == ({"float32": 1e12}, 9e11)
    np.testing.assert_array_equal(slow.seconds, two_models().measured[1].seconds)


def test_a_profile_of_another_graph_is_refused():
    with pytest.raises(UnknownNameError, match="another graph"):
        apply_profile(two_models(), Profile("fast", {"other": 1.0}))
    with pytest.raises(InputError, match="takes no time"):
        apply_profile(two_models(), Profile("fast", {"w": 1.0}))


@pytest.mark.parametrize(
    ("fields", "place", "message"),
    [
        ({"model": ""}, "", "must name the device model"),
        ({"seconds": {"a": -1}}, "seconds.a", "out of range"),
        ({"seconds": {"a": float("nan")}}, "seconds.a", "out of range"),
        ({"seconds": [1]}, "seconds", "expected a table"),
        ({"bytes_per_s": None}, "bytes_per_s", "null"),
        ({"software": {"torch": 2}}, "software.torch", "expected text"),
        ({"when": "now"}, "", "unknown field 'when'"),
    ],
)
def test_faults_of_profiles_are_named_with_their_place(fields, place, message):
    document = {"schema": "placewright.profile/1", "model": "m", "seconds": {}} | fields
    with pytest.raises(FileError) as caught:
        loads_profile(json.dumps(document), "p.json")
    assert caught.value.place == place
    assert message in caught.value.problem

"""Costs against seconds worked out by hand: rooflines per kind of device, scaling, free views, what cannot run.

On the machine of conftest.py the host has 1e11 flop/s and 1e10 B/s and takes 2 us to launch, before the work;
a card has 1e12 (float16: 4e12) and 1e11 and takes 8 us, while it works. A product reaches 0.70 of the peak, a
convolution 0.55, attention and recurrence 0.50, and bytes move at 0.75.
"""

from dataclasses import replace

import numpy as np
import pytest

from placewright.costs import Costs
from placewright.costs.roofline import class_of, costs
from placewright.errors import InfeasibleError, ProblemError
from placewright.graph import Measured
from placewright.machine import Device
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import Problem

RATES = {"flops_per_s": {"float32": 4e11}, "bytes_per_s": 5e10}
"""Of the model K: a card is 2.5 times as fast at products and twice at moving bytes; the host a quarter, a fifth."""


def seconds(machine, *operations):
    """Seconds of operations on the devices of a machine."""
    return costs(build_graph("g", operations), machine).seconds


def scaled(machine, kind, measured_s, references=None, **figures):
    """Seconds of one operation of which only a measurement on other models is known."""
    op = Operation("x", kind, measured_s=measured_s, **figures)
    return costs(build_graph("g", [op], {"K": RATES} if references is None else references), machine)


@pytest.mark.parametrize(
    ("kind", "figures", "host_s", "card_s"),
    [
        # 7e6 / (1e11 * 0.7) = 1e-4, after 2 us; 7e6 / (1e12 * 0.7) = 1e-5, above 8 us.
        ("matmul", {"flops": 7e6}, 102e-6, 10e-6),
        # 2.5e-6 of work in float16 hides in the launch; the host has no float16 rate, so its float32 rate.
        ("matmul", {"flops": 7e6, "dtype": "float16"}, 102e-6, 8e-6),
        # No bfloat16 anywhere: float32 on both.
        ("matmul", {"flops": 7e6, "dtype": "bfloat16"}, 102e-6, 10e-6),
        ("conv2d", {"flops": 5.5e7}, 1002e-6, 100e-6),
        ("attention", {"flops": 5e7}, 1002e-6, 100e-6),
        ("lstm", {"flops": 5e7}, 1002e-6, 100e-6),
        # A class of bytes computes at the share of bytes.
        ("softmax", {"flops": 7.5e7}, 1002e-6, 100e-6),
        # 15e6 / (1e10 * 0.75) = 2e-3; 15e6 / (1e11 * 0.75) = 2e-4.
        ("relu", {"bytes_read": 10_000_000, "bytes_written": 5_000_000}, 2002e-6, 200e-6),
        ("relu", {"bytes_written": 750_000}, 102e-6, 10e-6),
        # The larger of compute and memory, not their sum, and memory at its own share: 1e-3 against 2e-3 ...
        ("matmul", {"flops": 7e7, "bytes_read": 15_000_000}, 2002e-6, 200e-6),
        # ... and 1e-2 against 2e-3.
        ("matmul", {"flops": 7e8, "bytes_read": 15_000_000}, 10_002e-6, 1000e-6),
        # No work at all still launches.
        ("other", {}, 2e-6, 8e-6),
    ],
)
def test_roofline(machine, kind, figures, host_s, card_s):
    """The host takes launch + work, a card max(launch, work), and work is the larger of compute and memory."""
    found = seconds(machine, Operation("x", kind, **figures))
    assert found[0].tolist() == pytest.approx([host_s, card_s, card_s], rel=1e-12)


def test_conftest_chain(machine, chain3):
    """A chain of a product, a small ReLU (2 us on the host, 0.2 us on a card) and a product."""
    table = costs(chain3, machine)
    assert table.seconds[:, 0].tolist() == pytest.approx([102e-6, 4e-6, 102e-6])
    assert table.seconds[:, 1].tolist() == pytest.approx([10e-6, 8e-6, 10e-6])
    assert not table.measured.any()


def test_asynchronous_is_what_hides_the_launch(machine):
    """The same figures with and without asynchronous dispatch: 10 us of work, 8 us of launch."""
    card = machine.devices[1]
    assert not Device("d", "m", "p").asynchronous
    pair = replace(
        machine, devices=(machine.devices[0], card, replace(card, name="gpu:1", pool="hbm1", asynchronous=False))
    )
    assert seconds(pair, Operation("x", "matmul", flops=7e6))[0, 1:].tolist() == pytest.approx([10e-6, 18e-6])


def test_a_device_may_have_its_own_efficiency(machine):
    """An efficiency that the device gives replaces the default for its class; that of memory is for all bytes."""
    card = replace(machine.devices[1], efficiency={"matmul": 0.35, "memory": 0.25})
    found = seconds(
        replace(machine, devices=(machine.devices[0], card, machine.devices[2])),
        Operation("mm", "matmul", flops=7e7),
        Operation("conv", "conv2d", flops=5.5e7),
        Operation("relu", "relu", bytes_read=7_500_000),
        Operation("wide", "matmul", flops=7e6, bytes_read=7_500_000),
    )
    assert found[:, 1].tolist() == pytest.approx([200e-6, 100e-6, 300e-6, 300e-6])
    assert found[:, 2].tolist() == pytest.approx([100e-6, 100e-6, 100e-6, 100e-6])


def test_without_float32_the_best_rate_counts(machine):
    """A device that lists no rate for float32 runs other types at the best that it lists."""
    card = replace(machine.devices[1], host=None, flops_per_s={"float16": 4e12, "int8": 1e12})
    found = seconds(replace(machine, devices=(card,), routes=()), Operation("x", "matmul", flops=2.8e8))
    assert found[0, 0] == pytest.approx(100e-6)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("matmul", "matmul"), ("nn.Linear", "matmul"), ("aten.bmm.default", "matmul"), ("aten.addmm", "matmul"),
        ("Dense", "matmul"), ("Conv2d", "convolution"), ("aten.convolution_backward", "convolution"),
        ("conv_transpose2d", "convolution"), ("LSTMCell", "recurrent"), ("gru", "recurrent"),
        ("scaled_dot_product_attention", "attention"), ("linear_attention", "attention"), ("sdpa", "attention"),
        ("aten.view.default", "free"), ("Reshape", "free"), ("unsqueeze", "free"), ("Size(0)", "free"),
        ("relu", "memory"), ("hmm", "memory"), ("comma", "memory"), ("congruent", "memory"), ("", "memory"),
        ("resize", "memory"), ("upsample_bilinear2d", "memory"), ("prims.convert_element_type", "memory"),
    ],
)  # fmt: skip
def test_classes(kind, name):
    """The class of a kind is told by its words, and short ones only as whole words."""
    assert class_of(kind) == name


# What is free -------------------------------------------------------------------------------------------------------


def test_free(machine, train6):
    """Views, inputs, parameters and stores take no time, not even a launch."""
    found = costs(train6, machine).seconds
    names = ["x", "w", "mm", "view", "sgd", "keep"]
    assert {name for name, row in zip(names, found, strict=True) if not row.any()} == {"x", "w", "view", "keep"}
    assert found[4].tolist() == [2e-6, 8e-6, 8e-6]


def test_what_only_makes_views_is_free_whatever_its_kind(machine):
    """What makes views and moves nothing is free; with bytes, an output of its own or a write, it is not."""
    view, write = Tensor(8, ("x", 0)), Tensor(8, ("x", 0), in_place=True)
    found = seconds(
        machine,
        Operation("x", "relu", outputs=[Tensor(8)]),
        Operation("two", "split", inputs=["x"], outputs=[view, view]),
        Operation("copies", "split", bytes_read=75_000, inputs=["x"], outputs=[view]),
        Operation("own", "split", inputs=["x"], outputs=[view, Tensor(8)]),
        Operation("adds", "add_", inputs=["x"], outputs=[write]),
        Operation("none", "split", inputs=["x"]),
        Operation("named", "reshape", bytes_read=75_000, inputs=["x"], outputs=[Tensor(8)]),
        Operation("works", "reshape", flops=1e8, inputs=["x"], outputs=[Tensor(8)]),
    )
    assert found[:, 0].tolist() == pytest.approx([2e-6, 0, 12e-6, 2e-6, 2e-6, 2e-6, 0, 1002e-6])


# What cannot run ----------------------------------------------------------------------------------------------------


def test_work_without_a_rate_cannot_run(machine):
    """A device without the rate that an operation needs takes for ever; what needs none is only launched."""
    bare = Device("npu", "npu", "dram", launch_s=1e-6)
    found = seconds(
        replace(machine, devices=(bare,), routes=()),
        Operation("mm", "matmul", flops=1.0),
        Operation("relu", "relu", bytes_read=1),
        Operation("nop"),
        Operation("x", phase="input", bytes_written=5, outputs=[Tensor(5)]),
    )
    assert found[:, 0].tolist() == [np.inf, np.inf, 1e-6, 0]


def test_a_problem_that_no_device_can_run(machine):
    """A problem of rooflines says which operation no device can run."""
    bare = replace(machine, devices=(Device("npu", "npu", "dram"),), routes=())
    with pytest.raises(InfeasibleError, match=r"operation 'mm' .*can run on no device of machine 'small'"):
        Problem(build_graph("g", [Operation("nop"), Operation("mm", "matmul", flops=1.0)]), bare)


# Measured seconds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "measured_s", "host_s", "card_s"),
    [
        # 1e-3 * 4e11 / 1e11 = 4e-3, after the launch; 1e-3 * 4e11 / 1e12 = 4e-4.
        ("matmul", 1e-3, 4e-3 + 2e-6, 4e-4),
        ("conv2d", 1e-3, 4e-3 + 2e-6, 4e-4),
        # What moves bytes goes by bytes: 1e-3 * 5e10 / 1e10 and 1e-3 * 5e10 / 1e11.
        ("relu", 1e-3, 5e-3 + 2e-6, 5e-4),
        # 1e-6 * 0.4 hides in the launch.
        ("matmul", 1e-6, 6e-6, 8e-6),
        # What took nothing takes nothing.
        ("matmul", 0.0, 0.0, 0.0),
    ],
)
def test_scaling(machine, kind, measured_s, host_s, card_s):
    """Seconds on another model are scaled by the ratio of the rates that bound the class, and count as estimated."""
    table = scaled(machine, kind, {"K": measured_s}, flops=1e15)
    assert table.seconds[0].tolist() == pytest.approx([host_s, card_s, card_s], rel=1e-12)
    assert not table.measured.any()


def test_scaling_by_type_and_efficiency(machine):
    """The rates compared are those of the type, each at its device's own share of the peak."""
    # K has no float16 rate: 4e11 * 0.7 against 4e12 * 0.35 of the card, and 1e11 * 0.7 of the host.
    card = replace(machine.devices[1], efficiency={"matmul": 0.35})
    table = scaled(
        replace(machine, devices=(machine.devices[0], card), routes=()), "matmul", {"K": 1e-3}, dtype="float16"
    )
    assert table.seconds[0].tolist() == pytest.approx([4e-3 + 2e-6, 2e-4])


def test_scaling_to_a_device_without_rates(machine):
    """A measurement cannot be scaled to a device of unknown rates: it takes for ever there, or nothing."""
    bare = replace(machine, devices=(Device("npu", "npu", "dram"),), routes=())
    assert scaled(bare, "matmul", {"K": 1.0}).seconds.tolist() == [[np.inf]]
    assert scaled(bare, "matmul", {"K": 0.0}).seconds.tolist() == [[0.0]]


def test_own_measurements_count_as_they_are(machine):
    """Seconds measured on the device's own model are taken, launch and all; only those are measured."""
    table = scaled(machine, "matmul", {"K": 1e-3, "card": 5e-6}, flops=7e9)
    assert table.seconds[0].tolist() == pytest.approx([4e-3 + 2e-6, 5e-6, 5e-6])
    assert table.measured.tolist() == [[False, True, True]]


def test_what_was_not_measured_falls_back(machine):
    """On a model with some measurements, an operation without one has its roofline."""
    graph = build_graph(
        "g",
        [Operation("x", "matmul", flops=7e6, measured_s={"card": 1.0}), Operation("y", "matmul", flops=7e6)],
        {"card": RATES},
    )
    table = costs(graph, machine)
    assert table.seconds[:, 1].tolist() == pytest.approx([1.0, 10e-6])
    assert table.measured[:, 1].tolist() == [True, False]


def test_a_model_that_cannot_run_it(machine):
    """Infinite seconds measured on the device's own model stand, and are not carried to others."""
    table = scaled(machine, "matmul", {"card": np.inf, "K": 1e-3})
    assert table.seconds[0].tolist() == pytest.approx([4e-3 + 2e-6, np.inf, np.inf])
    table = scaled(machine, "matmul", {"L": np.inf, "K": 1e-3}, {"K": RATES, "L": RATES})
    assert table.seconds[0].tolist() == pytest.approx([4e-3 + 2e-6, 4e-4, 4e-4])


@pytest.mark.parametrize(
    ("measured_s", "host_s", "card_s"),
    [
        # The card's 1e12 flop/s are those of `fast`, so 7e-3 on it; K's 4e11 are 4 times the host's, fast's are 10.
        ({"bare": 9.0, "K": 1e-3, "fast": 7e-3}, 4e-3 + 2e-6, 7e-3),
        # What is not measured on the nearest, or is infinite there, is scaled from the next: 1e-3 * 0.4, 7e-3 * 10.
        ({"bare": 9.0, "K": 1e-3, "fast": np.inf}, 4e-3 + 2e-6, 4e-4),
        ({"bare": 9.0, "fast": 7e-3}, 70e-3 + 2e-6, 7e-3),
        # Zero seconds on the nearest are zero seconds.
        ({"K": 1e-3, "fast": 0.0}, 4e-3 + 2e-6, 0.0),
    ],
)
def test_the_nearest_model_is_scaled_from(machine, measured_s, host_s, card_s):
    """Of several other models with rates, the one whose rate is nearest by ratio counts, in whatever order given."""
    fast = {"flops_per_s": {"float32": 1e12}, "bytes_per_s": 1e11}
    rates = {model: rate for model, rate in {"K": RATES, "fast": fast}.items() if model in measured_s}
    for order in (measured_s, dict(reversed(measured_s.items()))):
        found = scaled(machine, "matmul", order, rates).seconds[0]
        assert found.tolist() == pytest.approx([host_s, card_s, card_s], rel=1e-12)


def test_the_nearest_model_is_that_of_the_operation(machine):
    """What computes and what moves bytes may each have another nearest model."""
    near = {"wide": {"flops_per_s": {"float32": 1e13}, "bytes_per_s": 1e11},
            "quick": {"flops_per_s": {"float32": 1e12}, "bytes_per_s": 1e9}}  # fmt: skip
    seconds_ = {"wide": 1.0, "quick": 2.0}
    ops = [Operation("mm", "matmul", measured_s=seconds_), Operation("relu", "relu", measured_s=seconds_)]
    assert costs(build_graph("g", ops, near), machine).seconds[:, 1].tolist() == [2.0, 1.0]


def test_equally_near_models_go_by_name(machine):
    """Twice as fast and half as fast are equally near, so the name decides, not the order."""
    fast, slow = ({"flops_per_s": {"float32": rate}, "bytes_per_s": 1e11} for rate in (2e12, 5e11))
    for rates, card_s in (({"b": fast, "c": slow}, 2.0), ({"b": slow, "c": fast}, 0.5)):
        for order in ({"b": 1.0, "c": 1.0}, {"c": 1.0, "b": 1.0}):
            assert scaled(machine, "matmul", order, rates).seconds[0, 1] == card_s


def test_a_rate_that_is_not_known_for_a_type_cannot_be_scaled_from(machine):
    """A model that lists a rate of 0 for what bounds the operation is passed over."""
    none = {"flops_per_s": {"float32": 0.0, "int8": 1e12}, "bytes_per_s": 1e11}
    table = scaled(machine, "matmul", {"A": 1.0, "K": 1e-3}, {"A": none, "K": RATES})
    assert table.seconds[0, 1] == pytest.approx(4e-4)


@pytest.mark.parametrize(("model", "seconds_"), [("K", np.inf), ("bare", 1e-3), ("bare", np.inf)])
def test_what_cannot_be_scaled_has_its_roofline(machine, model, seconds_):
    """Seconds that are infinite or of a model without rates are not carried over where a roofline is known."""
    references = {"K": RATES} if model == "K" else {}
    for figures, host_s, card_s in (({"flops": 7e6}, 102e-6, 10e-6), ({"bytes_read": 750_000}, 102e-6, 10e-6)):
        table = scaled(machine, "matmul", {model: seconds_}, references, **figures)
        assert table.seconds[0].tolist() == pytest.approx([host_s, card_s, card_s])
        assert not table.measured.any()
    for figures in ({"phase": "input"}, {"kind": "view"}):
        op = Operation(**{"name": "x", "measured_s": {model: seconds_}, **figures})
        assert costs(build_graph("g", [op], references), machine).seconds.tolist() == [[0, 0, 0]]


def test_what_cannot_be_scaled_and_has_no_roofline_cannot_run(machine):
    """Where nothing but infinite seconds elsewhere is known of an operation, nothing says that it can run."""
    assert scaled(machine, "matmul", {"K": np.inf}).seconds.tolist() == [[np.inf] * 3]
    assert scaled(machine, "matmul", {"K": np.inf, "card": 1.0}).seconds.tolist() == [[np.inf, 1.0, 1.0]]


def test_rates_far_apart_are_no_fault(machine):
    """A ratio beyond what a number can be is infinite."""
    tiny = {"flops_per_s": {"float32": 1e30}, "bytes_per_s": 1e30}
    slow = replace(machine, devices=(Device("npu", "npu", "dram", None, {"float32": 1e-300}, 1e-300),), routes=())
    assert scaled(slow, "matmul", {"K": 1.0}, {"K": tiny}).seconds.tolist() == [[np.inf]]


@pytest.mark.parametrize("rates", [{}, {"flops_per_s": {"float32": 1e12}}, {"bytes_per_s": 1e11}])
def test_rates_that_are_not_known_are_an_error(machine, rates):
    """A measurement on a model of unknown rates cannot be scaled: the message names both models and what to give."""
    with pytest.raises(ProblemError) as caught:
        scaled(machine, "matmul", {"L": 1e-3}, {"L": rates})
    text = str(caught.value)
    assert "measured on 'L', whose rates are not known, so they cannot be scaled to 'host'" in text
    assert "a profile of 'host'" in text


def test_two_measurements_of_one_model_add_up(machine, chain3):
    """Where a graph has two records of one model, what either has is measured, and the later one counts."""
    one = Measured("card", np.array([1.0, 2.0, np.nan]))
    two = Measured("card", np.array([np.nan, 3.0, np.nan]))
    host = Measured("host", np.array([1.0, 1.0, 1.0]))
    table = costs(chain3.with_measured(one, two, host), replace(machine, devices=machine.devices[:2], routes=()))
    assert table.seconds[:2, 1].tolist() == [1.0, 3.0]
    assert table.measured[:, 1].tolist() == [True, True, False]


def test_devices_of_one_model_cost_the_same(machine, fork8):
    """Devices that differ in name, pool and host alone share their column; others do not."""
    found = costs(fork8, machine).seconds
    assert (found[:, 1] == found[:, 2]).all()
    slow = replace(machine.devices[2], launch_s=50e-6)
    found = costs(fork8, replace(machine, devices=(*machine.devices[:2], slow))).seconds
    assert found[0].tolist() == [2e-6, 8e-6, 50e-6]


# The table ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [np.nan, -1e-12, -np.inf])
def test_costs_refuse_what_are_no_seconds(wrong):
    """NaN and negative seconds are refused; infinity means that it cannot run, and zero is allowed."""
    with pytest.raises(ProblemError, match="not negative, not NaN; infinite means that it cannot run"):
        Costs.given([[0.0, wrong]])
    assert Costs.given([[0.0, np.inf]]).seconds.tolist() == [[0.0, np.inf]]


def test_costs_are_tables_of_one_shape():
    """Seconds and what of them was measured are two tables of one shape."""
    for seconds_, measured in (([1.0], [True]), ([[1.0]], [[True, True]]), ([[[1.0]]], [[[True]]])):
        with pytest.raises(ProblemError, match="of one shape"):
            Costs(np.array(seconds_), np.array(measured))


def test_costs_are_frozen_copies():
    """A table is not changed through what it was made of, nor written; given costs count as measured."""
    table = np.ones((2, 3))
    made = Costs.given(table)
    table[:] = 9
    assert made.seconds.tolist() == [[1, 1, 1]] * 2
    assert made.measured.all()
    for array in (made.seconds, made.measured):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 0

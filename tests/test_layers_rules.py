"""Accelerate's device maps and equal layers: examples worked by hand, and what follows what."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.costs import Costs
from placewright.errors import InfeasibleError, InputError, UnknownNameError
from placewright.heuristics.device_map import Module, Room, device_map
from placewright.heuristics.layers import (
    DEVICE_MAPS,
    Accelerate,
    AccelerateParams,
    EqualLayers,
    accelerate,
    equal_layers,
)
from placewright.heuristics.modules import Modules, layers_of
from placewright.heuristics.parts import spread, weight_of
from placewright.heuristics.settling import accelerators
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import Colocate, Forbid, Pin, Problem, Separate
from placewright.testing import PlacerContract
from tests.strategies import random_problem


class TestEqualLayers(PlacerContract):
    def placer(self, problem):
        return EqualLayers()


class TestSequential(PlacerContract):
    def placer(self, problem):
        return Accelerate(AccelerateParams("sequential"))


class TestBalanced(PlacerContract):
    def placer(self, problem):
        return Accelerate(AccelerateParams("balanced"))


class TestAuto(PlacerContract):
    def placer(self, problem):
        return Accelerate(AccelerateParams("auto"))


# ---- Machines and networks ----------------------------------------------------------------------------------


def machine(*card_bytes, host_bytes=1 << 20):
    """A host and cards of so many bytes, joined to it."""
    names = [f"gpu:{k}" for k in range(len(card_bytes))]
    return Machine(
        "cards",
        (Device("cpu:0", "cpu", "dram", "cpu:0"), *(Device(name, "card", name, "cpu:0") for name in names)),
        (Pool("dram", host_bytes, 1), *(Pool(name, size, 1) for name, size in zip(names, card_bytes, strict=True))),
        tuple(Channel(f"{name} {way}", 1e9) for name in names for way in ("in", "out")),
        tuple(
            Route(*ends, (f"{name} {way}",))
            for name in names
            for way, ends in (("in", ("cpu:0", name)), ("out", (name, "cpu:0")))
        ),
    )


def chain(modules, training=False, scoped=True):
    """A network of modules in a row: (scope, bytes of its weight, or 0 for none). Names are scopes and a part."""
    operations = [Operation("words", phase="input", outputs=[Tensor(8)])]
    held = [scope for scope, size in modules if size]
    for scope, size in modules:
        if size:
            own = scope if scoped else ""
            operations.append(Operation(f"{scope}.weight", "parameter", "parameter", own, outputs=[Tensor(size)]))
            if training:
                state = Operation(f"{scope}.state", "state", "parameter", own, outputs=[Tensor(size)])
                operations.append(state)
    before = "words"
    for scope, size in modules:
        own, reads = scope if scoped else "", [before, *([f"{scope}.weight"] if size else [])]
        kind = "linear" if size else "relu"
        operations.append(Operation(f"{scope}.run", kind, scope=own, inputs=reads, outputs=[Tensor(8)]))
        before = f"{scope}.run"
    for scope, size in reversed(modules) if training else ():
        own = scope if scoped else ""
        saved, weight = f"{scope}.run", f"{scope}.weight"
        reads = [before, saved, *([weight] if size else [])]
        outputs = [Tensor(8), *([Tensor(size)] if size else [])]
        operations.append(Operation(f"{scope}.back", "back", "backward", own, inputs=reads, outputs=outputs))
        before = f"{scope}.back"
        if scope in held:
            new = [Tensor(size, (weight, 0), in_place=True), Tensor(size, (f"{scope}.state", 0), in_place=True)]
            reads = [(before, 1), weight, f"{scope}.state"]
            operations.append(Operation(f"{scope}.update", "adam", "update", own, inputs=reads, outputs=new))
            operations.append(Operation(f"{scope}.store", "store", "store", own, inputs=[f"{scope}.update"]))
            stored = Operation(f"{scope}.keep", "store", "store", own, inputs=[(f"{scope}.update", 1)])
            operations.append(stored)
    return build_graph("chain", operations)


LM = [("embedding", 250), *((f"layers.{k}", 100) for k in range(4)), ("head", 250)]
"""A language model: 900 bytes of weights."""


def problem_of(graph, where, **options):
    """A problem in which every operation takes 1 s on a card and 9 s on the host."""
    seconds = np.where(graph.off_queue[:, None], 0.0, 1.0) * np.ones(len(where.devices))
    seconds[:, 0] *= 9
    return Problem(graph, where, Costs.given(seconds), **options)


def placed(problem, groups, part="run"):
    """Modules by device, as text, of one part of each: `gpu:0: embedding layers.0, cpu:0: head`."""
    devices = problem.lift(groups)
    problem.placement(devices)
    found = {}
    for name, d in zip(problem.graph.op_names, devices.tolist(), strict=True):
        if name.endswith(f".{part}"):
            found.setdefault(problem.machine.devices[d].name, []).append(name.removesuffix(f".{part}"))
    return ", ".join(f"{device}: {' '.join(names)}" for device, names in found.items())


def mapped(graph, where, rule, part="weight", **options):
    """Where a rule of accelerate puts one part of every module."""
    problem = problem_of(graph, where, **options)
    return placed(problem, accelerate(problem, AccelerateParams(rule)), part)


# ---- Accelerate by hand -------------------------------------------------------------------------------------


def test_sequential_by_hand():
    """600 bytes a card, and room for the largest module to come (head, 250) is kept on the first.

    embedding 250 + 250; layers.0 350 + 250 just fits; layers.1 would be 450 + 250, so it and all later ones are on
    the second card, where no room is kept: 300 + 250.
    """
    assert (
        mapped(chain(LM), machine(600, 600), "sequential")
        == "gpu:0: embedding layers.0, gpu:1: layers.1 layers.2 layers.3 head"
    )


def test_sequential_keeps_all_on_one_card_if_it_can():
    """layers.3 needs 550 + 100 bytes and the 250 of the head, which is still to come; the head then needs 900 alone."""
    everything = "embedding layers.0 layers.1 layers.2 layers.3 head"
    assert mapped(chain(LM), machine(900, 900), "sequential") == f"gpu:0: {everything}"
    assert mapped(chain(LM), machine(899, 900), "sequential") == (
        "gpu:0: embedding layers.0 layers.1 layers.2, gpu:1: layers.3 head"
    )


def test_the_rest_is_on_the_host_by_hand():
    """400 bytes a card: embedding with room for the head needs 500, so nothing ever is on the first card.

    The second takes embedding and layers.0; layers.1 would make 450, and all later ones are on the host.
    """
    assert (
        mapped(chain(LM), machine(400, 400), "sequential")
        == "gpu:1: embedding layers.0, cpu:0: layers.1 layers.2 layers.3 head"
    )


def test_what_is_on_the_host_is_computed_on_the_first_card():
    """Only the weights, their states and updates are on the host: that is how accelerate streams."""
    graph, where = chain(LM, training=True), machine(10_000, 400)
    rest = "layers.1 layers.2 layers.3 head"
    capped = where.with_memory({"gpu:0": 499})  # embedding needs 500 there
    problem = problem_of(graph, capped)
    groups = accelerate(problem, AccelerateParams("sequential"))
    for part in ("weight", "store"):
        assert placed(problem, groups, part).endswith(f"cpu:0: {rest}" if part == "weight" else "embedding")
    names, devices = graph.op_names, problem.lift(groups)
    of = {name: problem.machine.devices[d].name for name, d in zip(names, devices.tolist(), strict=True)}
    for module in rest.split():
        assert [of[f"{module}.{part}"] for part in ("run", "back")] == ["gpu:0"] * 2
        assert [of[f"{module}.{part}"] for part in ("weight", "state", "update", "store", "keep")] == ["cpu:0"] * 5


def test_balanced_by_hand():
    """Two cards share 900 bytes: 450, and 1.25 times the largest module (250, so 312) of slack, 762.

    embedding 250 + 250 kept; layers.0 and layers.1 450 + 250; layers.2 would be 550 + 250.
    """
    assert (
        mapped(chain(LM), machine(10_000, 10_000), "balanced")
        == "gpu:0: embedding layers.0 layers.1, gpu:1: layers.2 layers.3 head"
    )
    assert mapped(chain(LM), machine(10_000, 10_000), "auto") == mapped(chain(LM), machine(10_000, 10_000), "balanced")


def test_balanced_leaves_the_last_card_open():
    """Its share is no limit to the last card, its memory is: 300 bytes hold layers.2 and layers.3 but not the head."""
    assert (
        mapped(chain(LM), machine(10_000, 300), "balanced")
        == "gpu:0: embedding layers.0 layers.1, gpu:1: layers.2 layers.3, cpu:0: head"
    )


def test_an_only_card_is_filled_to_nine_tenths():
    """Nine tenths of 1,000 bytes are enough, of 999 they are not."""
    everything = "embedding layers.0 layers.1 layers.2 layers.3 head"
    assert mapped(chain(LM), machine(1000), "balanced") == f"gpu:0: {everything}"
    assert mapped(chain(LM), machine(999), "balanced").endswith("cpu:0: layers.3 head")
    assert mapped(chain(LM), machine(999), "sequential") == f"gpu:0: {everything}"


def test_only_weights_count():
    """A training step with states of the same bytes again is mapped like the pass alone."""
    where = machine(10_000, 10_000)
    assert mapped(chain(LM, training=True), where, "balanced") == mapped(chain(LM), where, "balanced")


def test_modules_are_split_but_layers_are_not():
    """encoder is split into its two modules; a numbered layer goes whole to the next card, its part with it."""
    graph = chain([("encoder.a", 100), ("encoder.b", 100), ("layers.0.x", 60), ("layers.0.y", 60), ("layers.1.x", 120)])
    assert (
        mapped(graph, machine(250, 300), "sequential")
        == "gpu:0: encoder.a, gpu:1: encoder.b layers.0.x layers.0.y, cpu:0: layers.1.x"
    )


def test_device_map_on_plain_modules():
    """The last device takes what is left, and devices of one pool share its bytes."""
    modules = [Module("scope", k, 10) for k in range(4)]
    shared = [Room(0, 0, 100), Room(1, 0, 100), Room(2, 1, 5)]
    assert [d for _, d in device_map(modules, shared, [20, 5])] == [0, 0, 2, 2]
    alone = [Room(0, 0, 20), Room(1, 1, 15), Room(2, 2, 5)]
    assert [d for _, d in device_map(modules, alone, [100] * 3)] == [0, 0, 1, 2]


def test_a_buffer_of_a_module_on_the_host_stays_on_the_card():
    """A running mean that the forward pass overwrites is small and written often; accelerate does not offload it."""
    operations = [
        Operation("w", "parameter", "parameter", "norm", outputs=[Tensor(500)]),
        Operation("mean", "parameter", "parameter", "norm", outputs=[Tensor(8)]),
        Operation("run", "norm", scope="norm", inputs=["w", "mean"],
                  outputs=[Tensor(8), Tensor(8, ("mean", 0), in_place=True)]),
        Operation("keep", "store", "store", "norm", inputs=[("run", 1)]),
    ]  # fmt: skip
    problem = problem_of(build_graph("norm", operations), machine(100))
    devices = problem.lift(accelerate(problem, AccelerateParams("sequential")))
    assert devices.tolist() == [0, 1, 1, 1]


def test_without_a_host_the_last_card_takes_the_rest():
    """Cards alone: what would be on the host is on the last one, and there is nowhere else."""
    devices = tuple(Device(name, "card", name) for name in ("gpu:0", "gpu:1"))
    cards = Machine("cards", devices, (Pool("gpu:0", 400, 1), Pool("gpu:1", 900, 1)))
    assert accelerators(problem_of(chain(LM), cards)) == [0, 1]
    assert mapped(chain(LM), cards, "sequential") == "gpu:1: embedding layers.0 layers.1 layers.2 layers.3 head"


def test_a_network_without_scopes_goes_by_its_weights():
    """A module begins where a weight is read first; what reads none is with the one before."""
    graph = chain([("a", 100), ("a2", 0), ("b", 100), ("c", 100)], scoped=False)
    problem = problem_of(graph, machine(200, 300))
    groups = accelerate(problem, AccelerateParams("sequential"))
    assert placed(problem, groups, "run") == "gpu:0: a a2, gpu:1: b c"
    assert placed(problem, groups, "weight") == "gpu:0: a, gpu:1: b c"


# ---- Equal layers -------------------------------------------------------------------------------------------


def stages(problem):
    """The device of every module's operation."""
    return placed(problem, equal_layers(problem))


def test_equal_layers_by_hand():
    """32 layers on 3 cards: 10, 10 and the rest, 12, as in transformers; embedding first, head last."""
    graph = chain([("embedding", 9), *((f"layers.{k}", 9) for k in range(32)), ("norm", 9), ("head", 9)])
    found = stages(problem_of(graph, machine(9999, 9999, 9999))).split(", ")
    counts = [sum(name.startswith("layers") for name in row.split()) for row in found]
    assert counts == [10, 10, 12]
    assert found[0].split()[1] == "embedding"
    assert found[2].split()[-2:] == ["norm", "head"]


def test_fewer_layers_than_cards():
    """Two layers use two cards of three."""
    graph = chain([("layers.0", 9), ("layers.1", 9)])
    assert stages(problem_of(graph, machine(99, 99, 99))) == "gpu:0: layers.0, gpu:1: layers.1"


def test_a_training_step_follows_its_layers():
    """Backward, update, state and stores are where the forward is, scoped or not."""
    modules = [(f"layers.{k}", 9) for k in range(4)]
    for scoped in (True, False):
        graph = chain([*modules[:2], ("glue", 0), *modules[2:]], training=True, scoped=scoped)
        problem = problem_of(graph, machine(9999, 9999))
        groups = equal_layers(problem)
        for part in ("run", "back"):
            found = dict(row.split(": ") for row in placed(problem, groups, part).split(", "))
            assert set(found["gpu:0"].split()) - {"glue"} == {"layers.0", "layers.1"}
            assert set(found["gpu:1"].split()) - {"glue"} == {"layers.2", "layers.3"}
        for part in ("weight", "state", "update", "store", "keep"):
            found = dict(row.split(": ") for row in placed(problem, groups, part).split(", "))
            assert set(found["gpu:0"].split()) == {"layers.0", "layers.1"}


def layer_names(modules):
    """What counts as layers."""
    found = Modules(chain(modules))
    return [found.tree.names[node] for node in found.layers]


def test_what_counts_as_a_layer():
    """The outermost numbered modules; one list of them, if it has more than half; else whatever owns weights."""
    many = [(f"layers.{k}.mlp.0", 1) for k in range(5)]
    assert layer_names(many) == [f"layers.{k}" for k in range(5)]
    assert layer_names([*many, ("pooler.0", 1), ("head.0", 1)]) == [f"layers.{k}" for k in range(5)]
    stem = [("stem.0", 1), ("stem.1", 1), ("mixed.0", 1), ("mixed.1", 1)]
    assert layer_names(stem) == ["stem.0", "stem.1", "mixed.0", "mixed.1"]
    assert layer_names([("node1", 1), ("node2", 0), ("node3", 1)]) == ["node1", "node3"]
    assert layer_names([("only.0", 1)]) == []


def test_layers_are_numbered_as_they_run():
    """The order of the forward pass, not of the parameters."""
    operations = [
        Operation("w1", phase="parameter", scope="b.1", outputs=[Tensor(1)]),
        Operation("w0", phase="parameter", scope="b.0", outputs=[Tensor(1)]),
        Operation("f0", scope="b.0", inputs=["w0"], outputs=[Tensor(1)]),
        Operation("f1", scope="b.1", inputs=["f0", "w1"]),
    ]
    label = layers_of(Modules(build_graph("swapped", operations)))
    assert label.tolist() == [1, 0, 0, 1]


def test_steps_are_layers_where_there_are_no_scopes():
    """Six equal steps without weights or scopes: three to each card."""
    operations, before = [Operation("x", phase="input", outputs=[Tensor(8)])], "x"
    for k in range(6):
        operations.append(Operation(f"mm{k}", "matmul", flops=100.0, inputs=[before], outputs=[Tensor(64)]))
        operations.append(Operation(f"relu{k}", "relu", bytes_read=64, inputs=[f"mm{k}"], outputs=[Tensor(8)]))
        before = f"relu{k}"
    problem = problem_of(build_graph("steps", operations), machine(99, 99))
    devices = problem.lift(equal_layers(problem))[1:].tolist()
    assert devices == [1] * 6 + [2] * 6


# ---- Following ----------------------------------------------------------------------------------------------


def sums(*labels):
    """The label of a sum of two gradients, from those of the gradients, the sum and its reader."""
    operations = [
        Operation("g0", "back", "backward", outputs=[Tensor(8)]),
        Operation("g1", "back", "backward", inputs=["g0"], outputs=[Tensor(8)]),
        Operation("sum", "add", "backward", inputs=["g0", "g1"], outputs=[Tensor(8)]),
        Operation("sink", "back", "backward", inputs=["sum"]),
    ]
    return spread(build_graph("sums", operations), np.array(labels)).tolist()[2]


def test_a_sum_of_gradients_goes_where_most_are():
    """What it adds up and its reader decide by number; of equals the given one is taken, then the last made."""
    assert sums(2, 2, 1, 1) == 2
    assert sums(2, 1, 2, 1) == 1
    assert sums(3, 2, 3, 1) == 3
    assert sums(3, 2, 0, 1) == 2


def test_spread_by_hand():
    """A label on two forward operations reaches everything around them."""
    graph = chain([("a", 8), ("glue", 0), ("b", 8)], training=True, scoped=False)
    given = np.full(graph.n_ops, -1)
    given[graph.op("a.run")], given[graph.op("b.run")] = 5, 7
    label = spread(graph, given)
    found = {name: int(label[graph.op(name)]) for name in graph.op_names}
    assert {name for name, part in found.items() if part == 7} == {
        "b.weight", "b.state", "b.run", "b.back", "b.update", "b.store", "b.keep",
    }  # fmt: skip
    assert all(found[name] == 5 for name in ("words", "glue.run", "glue.back", "a.back", "a.state", "a.keep"))


def test_weight_of_states_and_stores():
    """Everything that keeps a weight up to date names that weight."""
    graph = chain([("a", 8), ("b", 8)], training=True)
    own = weight_of(graph)
    for name in ("a.weight", "a.state", "a.update", "a.store", "a.keep"):
        assert own[graph.op(name)] == graph.op("a.weight")
    assert own[graph.op("a.run")] == -1


# ---- Rules --------------------------------------------------------------------------------------------------


def every_rule():
    """All methods of this page."""
    return [equal_layers, *(lambda p, rule=rule: accelerate(p, AccelerateParams(rule)) for rule in DEVICE_MAPS)]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 24))
def test_random_problems_are_placed_within_their_rules(seed, n_ops):
    """Any graph, machine and set of rules: a valid placement comes out, twice the same."""
    problem, _ = random_problem(random.Random(seed), n_ops)
    for rule in every_rule():
        try:
            groups = rule(problem)
        except InfeasibleError:
            assert problem.separated
            continue
        problem.placement(problem.lift(groups))
        assert groups.tolist() == rule(problem).tolist()


@pytest.mark.parametrize("rule", every_rule())
def test_every_constraint_holds(rule):
    """Pins, forbids, colocations and separations hold together, and all else is where the rule wants it."""
    constraints = (
        Pin(("layers.3",), ("gpu:0",)),
        Forbid(("embedding",), ("gpu:0",)),
        Colocate(("layers.1", "head")),
        Separate(("layers.0", "layers.2")),
    )
    problem = problem_of(chain(LM), machine(10_000, 10_000), constraints=constraints)
    problem.placement(problem.lift(rule(problem)))


def test_full_pools_are_respected():
    """Equal layers would put 400 bytes on either card; the second has 250, so what is too much goes to the first."""
    graph = chain([(f"layers.{k}", 100) for k in range(8)])
    problem = problem_of(graph, machine(1000, 250))
    devices = problem.lift(equal_layers(problem))
    held = [int(graph.tensor_bytes[graph.persistent & (devices[graph.tensor_op] == d)].sum()) for d in range(3)]
    assert held[2] <= 250
    assert held[1] <= 1000
    assert sum(held) == 800


@pytest.mark.parametrize(
    "make",
    [
        lambda: AccelerateParams("auto", slack=-1),
        lambda: AccelerateParams("auto", single_share=0),
        lambda: AccelerateParams("auto", host_share=1.5),
    ],
)
def test_parameters_out_of_range_are_refused(make):
    """Every parameter names itself and its range."""
    with pytest.raises(InputError, match="allowed"):
        make()


def test_unknown_rule_is_refused():
    """A device map that accelerate does not have is refused with those that it has."""
    with pytest.raises(UnknownNameError, match="sequential"):
        AccelerateParams("balanced_low_0")


def test_what_has_no_room_is_with_the_host():
    """The host comes last among the devices here, and a card with room before it: weights go to the host."""
    where = machine(1000, 250)
    turned = Machine("turned", where.devices[::-1], where.pools[::-1], where.channels, where.routes)
    graph = chain([(f"layers.{k}", 100) for k in range(4)])
    seconds = np.where(graph.off_queue[:, None], 0.0, 1.0) * np.ones(3)
    problem = Problem(graph, turned.with_memory({"gpu:1": 100, "gpu:0": 250}), Costs.given(seconds))
    groups = equal_layers(problem)  # gpu:1 comes first, and is to hold layers 0 and 1
    assert placed(problem, groups) == "gpu:1: layers.0 layers.1, gpu:0: layers.2 layers.3"
    assert placed(problem, groups, "weight") == "gpu:1: layers.0, cpu:0: layers.1, gpu:0: layers.2 layers.3"

"""Human experts' rules: where every module of the papers' networks goes, and published splits."""

import inspect
import json

import numpy as np
import pytest
from click.testing import CliRunner

from placewright.cli import cli
from placewright.costs import Costs
from placewright.errors import InputError, PlacementError, UnknownNameError
from placewright.graph import BACKWARD, FORWARD
from placewright.heuristics.expert import RULES, Expert, ExpertParams, Published, expert
from placewright.machine_files import load_machine
from placewright.methods import make_placer, search
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import Forbid, Pin, Problem
from placewright.search import run_search
from placewright.testing import PlacerContract, small_machine, small_problem


def single(paper, network):
    """The contract of a rule that fits any graph: its network is named."""
    return type("Rule", (PlacerContract,), {"placer": lambda self, p: Expert(ExpertParams(paper, network))})


class TestHdp(single("hdp", "resnet-50")):
    pass


class TestColocrl(single("colocrl", "resnet-50")):
    pass


class TestSpotlight(single("spotlight", "spotlight-cifar10")):
    pass


class TestPublished(PlacerContract):
    def placer(self, problem):
        return Published(np.zeros(problem.n_ops, np.int64))


# ---- Networks by hand -----------------------------------------------------------------------------------------


def network(name, rows, kind="linear"):
    """A graph of forward operations (scope, scopes that it reads from); each has a weight, and its scope as name."""
    operations = [Operation("words", phase="input", outputs=[Tensor(8)])]
    for scope, reads in rows:
        operations.append(Operation(f"{scope}:weight", "parameter", "parameter", scope, outputs=[Tensor(64)]))
        inputs = [*(reads or ["words"]), f"{scope}:weight"]
        operations.append(Operation(scope, kind, scope=scope, inputs=inputs, outputs=[Tensor(8)]))
    return build_graph(name, operations)


def nmt(layers):
    """Encoder, decoder, attention and softmax of the zoo's translation networks, one step long."""
    rows, tops = [], {}
    for side in ("encoder", "decoder"):
        rows.append((f"{side}.embedding", []))
        below = f"{side}.embedding"
        for k in range(layers):
            rows.append((f"{side}.layers.{k}.input_gates", [below]))
            below = f"{side}.layers.{k}.input_gates"
        tops[side] = below
    rows += [("attention.keys", [tops["encoder"]]), ("attention.query", [tops["decoder"], "attention.keys"])]
    rows.append(("softmax.projection", ["attention.query"]))
    return network(f"nmt-{layers}", rows)


def problem_of(graph, cards, **options):
    """A problem in which every operation takes 1 s on a card and 9 s on the host."""
    machine = small_machine(cards + 1)
    seconds = np.where(graph.off_queue[:, None], 0.0, 1.0) * np.array([9.0] + [1.0] * cards)
    return Problem(graph, machine, Costs.given(seconds), **options)


def placed(graph, cards, paper, **options):
    """The device of every module, `cpu` or the number of a card; a weight is beside its operation."""
    problem = problem_of(graph, cards, **options)
    devices = problem.lift(expert(problem, ExpertParams(paper)))
    problem.placement(devices)
    found = {name: "cpu" if d == 0 else int(d) - 1 for name, d in zip(graph.op_names, devices.tolist(), strict=True)}
    assert all(found[f"{name}:weight"] == found[name] for name in found if f"{name}:weight" in found)
    return found


def levels(found, side, layers):
    """The cards of a stack's layers, from the bottom up."""
    return [found[f"{side}.layers.{k}.input_gates"] for k in range(layers)]


def test_translation_on_as_many_cards_as_layers():
    """HDP and Spotlight: layer k of both sides on card k, embeddings with the first, all else with the last."""
    for paper in ("hdp", "spotlight"):
        found = placed(nmt(4), 4, paper)
        assert levels(found, "encoder", 4) == levels(found, "decoder", 4) == [0, 1, 2, 3]
        assert found["encoder.embedding"] == found["decoder.embedding"] == found["words"] == 0
        assert found["attention.keys"] == found["attention.query"] == found["softmax.projection"] == 3


def test_every_layer_on_its_own_card_if_there_are_enough():
    """ColocRL: with four cards the four layers of nmt-2 are all apart; attention and softmax are with the top one."""
    found = placed(nmt(2), 4, "colocrl")
    assert levels(found, "encoder", 2) == [0, 1]
    assert levels(found, "decoder", 2) == [2, 3]
    assert (found["encoder.embedding"], found["decoder.embedding"]) == (0, 2)
    assert found["attention.keys"] == found["softmax.projection"] == 3
    assert levels(placed(nmt(2), 2, "colocrl"), "decoder", 2) == [0, 1]
    assert levels(placed(nmt(2), 4, "hdp"), "decoder", 2) == [0, 1]


@pytest.mark.parametrize(
    ("cards", "wanted"), [(1, [0] * 8), (3, [0, 0, 0, 1, 1, 1, 2, 2]), (4, [0, 0, 1, 1, 2, 2, 3, 3])]
)
def test_fewer_cards_than_layers(cards, wanted):
    """Neighbouring layers share a card, evenly."""
    found = placed(nmt(8), cards, "hdp")
    assert levels(found, "encoder", 8) == levels(found, "decoder", 8) == wanted
    assert found["softmax.projection"] == cards - 1


def test_language_model():
    """A layer per card for ColocRL and Spotlight, one card for HDP: its table says so."""
    rows = [("stack.embedding", []), ("stack.layers.0.input_gates", ["stack.embedding"]),
            ("stack.layers.1.input_gates", ["stack.layers.0.input_gates"]),
            ("softmax.projection", ["stack.layers.1.input_gates"])]  # fmt: skip
    graph = network("rnnlm", rows)
    for paper in ("colocrl", "spotlight"):
        found = placed(graph, 4, paper)
        assert [found[name] for name, _ in rows] == [0, 0, 1, 1]
    assert set(placed(graph, 4, "hdp").values()) == {0}


def convolutions(name, modules):
    """A convolutional network: modules of (scope, number of convolutions in a row)."""
    rows, before = [], []
    for scope, count in modules:
        for k in range(count):
            rows.append((f"{scope}.branch{k}.conv", before))
            before = [f"{scope}.branch{k}.conv"]
    return network(name, rows, kind="convolution")


def test_convolutional_network_in_equal_parts():
    """Ten convolutions on two cards: a module is where its middle is.

    stem.0 and stem.1 have 1 each, mixed.0 has 4 (its middle after 4 of 10), mixed.1 3 (7.5), the head 1.
    """
    modules = [("stem.0", 1), ("stem.1", 1), ("mixed.0", 4), ("mixed.1", 3), ("classifier", 1)]
    graph = convolutions("inception-v3", modules)
    found = placed(graph, 2, "colocrl")
    for scope, _ in modules:
        cards = {found[name] for name in graph.op_names if name.startswith(scope)}
        assert cards == {0 if scope in ("stem.0", "stem.1", "mixed.0") else 1}
    assert set(placed(graph, 2, "hdp").values()) == {0}
    middles = placed(graph, 5, "colocrl")  # 0.5, 1.5, 4, 7.5 and 9.5 of 10, in fifths
    assert [middles[f"{scope}.branch0.conv"] for scope, _ in modules] == [0, 0, 2, 3, 4]


def test_inputs_of_the_cifar_network_are_on_the_host():
    """Spotlight: the network on one card, its inputs on the host."""
    graph = convolutions("spotlight-cifar10", [("conv1", 1), ("conv2", 1)])
    found = placed(graph, 4, "spotlight")
    assert found.pop("words") == "cpu"
    assert set(found.values()) == {0}


def test_the_host_keeps_what_can_only_be_there():
    """An operation that no card can run is on the host; all else is where the rule wants it."""
    graph = nmt(2)
    problem = problem_of(graph, 2)
    seconds = problem.costs.seconds.copy()
    seconds[graph.op("attention.query"), 1:] = np.inf
    problem = problem.replace(costs=Costs.given(seconds))
    devices = problem.lift(expert(problem, ExpertParams("hdp")))
    assert [graph.op_names[v] for v in np.flatnonzero(devices == 0)] == ["attention.query"]


def test_constraints_hold():
    """A pin and a forbid move what they are about, and nothing else."""
    rules = (Pin(("softmax",), ("gpu:0",)), Forbid(("encoder.layers.1",), ("gpu:1",)))
    free, ruled = placed(nmt(2), 2, "hdp"), placed(nmt(2), 2, "hdp", constraints=rules)
    moved = {name.removesuffix(":weight") for name in free if free[name] != ruled[name]}
    assert moved == {"softmax.projection", "encoder.layers.1.input_gates"}


def test_full_pools_are_respected():
    """One card for everything holds half of the weights; the others are on the host, and streamed."""
    graph = convolutions("resnet-50", [(f"stage.{k}", 1) for k in range(8)])  # 8 weights of 64 bytes
    problem = problem_of(graph, 2)
    tight = problem.replace(machine=problem.machine.with_memory({"gpu:0": 256, "gpu:1": 256}), costs=problem.costs)
    devices = tight.lift(expert(tight, ExpertParams("hdp")))
    held = np.bincount(devices[graph.tensor_op[graph.persistent]], minlength=3) * 64
    assert held.tolist() == [256, 256, 0]
    assert set(devices[graph.phase == FORWARD].tolist()) == {1}


# ---- What has no rule -------------------------------------------------------------------------------------------


def test_a_network_without_a_rule_is_refused():
    """The error says whose rules there are, for which networks; another name can be given."""
    graph = convolutions("my-net", [("stage.0", 1), ("stage.1", 1)])
    with pytest.raises(InputError, match=r"hdp has no rule of an expert for 'my-net'; it has rules for nmt, rnnlm, "):
        placed(graph, 2, "hdp")
    with pytest.raises(InputError, match="spotlight has no rule of an expert for 'vgg-16'"):
        placed(convolutions("vgg-16", [("stage.0", 1)]), 2, "spotlight")
    problem = problem_of(graph, 2)
    assert set(problem.lift(expert(problem, ExpertParams("hdp", "resnet-50"))).tolist()) == {1}


def test_a_recurrent_network_without_scopes_is_refused():
    """A graph of that name whose layers cannot be told apart."""
    graph = build_graph("nmt-2", [Operation("a", outputs=[Tensor(8)]), Operation("b", inputs=["a"])])
    for paper in ("colocrl", "hdp"):
        with pytest.raises(InputError, match=r"no scopes such as layers\.0"):
            placed(graph, 2, paper)


def test_unknown_papers_are_refused():
    """A paper without rules is refused with those that have some."""
    with pytest.raises(UnknownNameError, match="colocrl"):
        ExpertParams("placeto")
    for paper in RULES:
        assert make_placer(f"expert:{paper}", small_problem()).name == f"expert:{paper}"


@pytest.mark.parametrize(
    ("name", "papers"),
    [
        ("nmt-8", {"colocrl", "hdp", "spotlight"}),
        ("rnnlm-4", {"colocrl", "hdp", "spotlight"}),
        ("inception-v3", {"colocrl", "hdp"}),
        ("inception-v3-b1", {"colocrl", "hdp"}),
        ("resnet-152", {"colocrl", "hdp"}),
        ("vgg-16", {"colocrl"}),
        ("nasnet-a-mobile", {"colocrl"}),
        ("spotlight-cifar10", {"colocrl", "spotlight"}),
        ("squeezenet1_0", {"colocrl"}),
        ("gpt2", set()),
    ],
)
def test_networks_with_rules(name, papers):
    """Which paper has a rule for which network, by the names of the zoo and of the profiles."""
    stack = [("stack.layers.0.gates", []), ("stack.layers.1.gates", ["stack.layers.0.gates"])]
    problem = problem_of(network(name, stack), 2)
    found = set()
    for paper in RULES:
        try:
            expert(problem, ExpertParams(paper))
        except InputError:
            continue
        found.add(paper)
    assert found == papers


# ---- Captured networks ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def captured():
    """A small nmt-4 and its training step, captured as the zoo does."""
    recurrent = pytest.importorskip("placewright.zoo.recurrent")
    from placewright.capture import capture

    model, inputs = recurrent.nmt(2, True, layers=4, hidden=8, steps=3, vocabulary=16)
    return capture(model, inputs, optimizer="adam", name="nmt-4")


def test_a_captured_step_is_placed_by_layer(captured):
    """All of a layer in every phase is on its card; nothing is on the host."""
    problem = Problem(captured, load_machine("k40x4"))
    devices = problem.lift(expert(problem, ExpertParams("hdp"))) - 1
    sums = np.array([kind == "add" for kind in captured.kinds]) & (captured.phase == BACKWARD)
    for scope, d, summed in zip(captured.scopes, devices.tolist(), sums.tolist(), strict=True):
        for k in range(4):
            inside = f".layers.{k}" in f".{scope}"
            assert not inside or d == k or summed  # a sum of gradients may be with what it adds up
        assert d == 3 or summed or not scope.startswith("softmax")
    assert set(devices.tolist()) == {0, 1, 2, 3}
    result = run_search(problem, Expert(ExpertParams("hdp")))
    assert result.feasible


# ---- Published splits -------------------------------------------------------------------------------------------

SPLIT = {"fpgas": [{"nodes": [0]}, {"nodes": [1]}], "cpus": [{"nodes": []}]}


@pytest.fixture
def workload(tmp_path):
    """A workload of two nodes, with an expert's split beside its folder."""
    nodes = [
        {"id": k, "supportedOnFpga": True, "cpuLatency": 100.0, "fpgaLatency": 10.0, "isBackwardNode": False,
         "colorClass": None, "size": 8.0}
        for k in range(2)
    ]  # fmt: skip
    document = {
        "maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes,
        "edges": [{"sourceId": 0, "destId": 1, "cost": 1.0}],
    }  # fmt: skip
    for folder, content in (("throughput", document), ("experts", SPLIT)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "two.json").write_text(json.dumps(content))
    return tmp_path / "throughput" / "two.json"


def place(*args):
    """Run a command in this process."""
    mixed = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    return CliRunner(**mixed).invoke(cli, [str(arg) for arg in args])


def test_a_published_split_is_a_method(workload):
    """`--method expert` and `compare` find the split beside the workload, as `--placement expert` does."""
    found = json.loads(place("plan", workload, "--method", "expert", "--json").stdout)
    assert found["method"] == "expert"
    assert found["value_s"] == pytest.approx(0.011)  # 10 ms, and 1 ms for what is sent or received
    compared = json.loads(place("compare", workload, "--methods", "expert,single:gpu:0", "--json").stdout)
    assert [row["method"] for row in compared] == ["expert", "single:gpu:0"]
    simulated = json.loads(place("simulate", workload, "--placement", "expert", "--json").stdout)
    assert simulated["value_s"] == found["value_s"]


def test_without_a_published_split():
    """The method says that there is none, and what there is for the networks of the papers."""
    with pytest.raises(InputError, match="expert:colocrl, expert:hdp, expert:spotlight"):
        search(small_problem(), "expert")
    with pytest.raises(InputError, match="3 operations for a graph of 14"):
        run_search(small_problem(), Published([0, 0, 0]))


def test_a_published_split_follows_the_rules():
    """What a constraint keeps from its place is elsewhere."""
    problem = small_problem("stream", Pin(("loss",), ("gpu:1",)))
    placement = run_search(problem, Published(np.ones(problem.n_ops, int))).placement
    assert placement.devices[problem.graph.op("loss")] == 2
    assert np.count_nonzero(placement.devices != 1) == 1
    with pytest.raises(PlacementError):
        problem.placement(np.ones(problem.n_ops, int))

"""Families of graphs: the structure that each promises, amounts in range, and the same member in every process."""

import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import placewright as pw
from placewright.costs.roofline import costs
from placewright.errors import InputError, UnknownNameError
from placewright.fingerprints import workload_fingerprint
from placewright.graph import FORWARD, INPUT, PARAMETER, PHASES, UPDATE
from placewright.zoo import families, placeto
from placewright.zoo.cells import ConvCell, LanguageModel, RecurrentCell
from placewright.zoo.draws import between, generator, pick, shuffled, whole
from placewright.zoo.families import Amounts, ForkJoinParams, LayeredParams, SeriesParallelParams

SYNTHETIC = ("layered", "series-parallel", "fork-join")
PLACETO = ("placeto-cifar10", "placeto-ptb", "placeto-nmt")
STAY = {  # fixed for good: a study of one release can be compared with that of the next
    "layered": "sha256:2ca1a62d01828cbf7eb5ee95f3c7404b",
    "series-parallel": "sha256:8a51f27c8a1ce03bb06efb95ee740947",
    "fork-join": "sha256:85a814d36da2475a42e235a1ee8bc288",
}
SMALL = {  # sizes at which a member is captured in seconds; its architecture stays
    "placeto-cifar10": {"per_stage": 1, "channels": 4, "batch": 2},
    "placeto-ptb": {"hidden": 8, "vocabulary": 20, "steps": 2, "batch": 2},
    "placeto-nmt": {"hidden": 8, "vocabulary": 20, "source_steps": 2, "target_steps": 3, "batch": 2},
}


@pytest.fixture(scope="module")
def members():
    """All members of the synthetic families that the splits name."""
    return {family: [families.graph(family, k) for k in range(96)] for family in SYNTHETIC}


@pytest.fixture
def one_thread():
    """Small operations on several threads spend their time waiting where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def links(graph):
    """What each forward operation reads from forward operations, by index, and what reads it."""
    reads = {i: [] for i in np.flatnonzero(graph.phase == FORWARD).tolist()}
    consumers = {i: [] for i in reads}
    for i, t in zip(graph.read_op.tolist(), graph.in_tensor.tolist(), strict=True):
        maker = int(graph.tensor_op[t])
        if maker in reads:
            reads[i].append(maker)
            consumers[maker].append(i)
    return reads, consumers


def is_series_parallel(edges, source, sink):
    """Whether series and parallel reductions leave nothing but one edge from source to sink."""
    into, out = {source: set(), sink: set()}, {source: set(), sink: set()}
    for start, end in edges:
        for ends in (into, out):
            ends.setdefault(start, set())
            ends.setdefault(end, set())
        out[start].add(end)
        into[end].add(start)
    left = [v for v in sorted(into) if v not in (source, sink)]
    while left:
        v = left.pop()
        if v in into and v not in (source, sink) and len(into[v]) == len(out[v]) == 1:
            (start,), (end,) = into.pop(v), out.pop(v)
            out[start] = out[start] - {v} | {end}  # an edge that is there already is the parallel reduction
            into[end] = into[end] - {v} | {start}
            left += [start, end]
    return into == {source: set(), sink: {source}} and out == {source: {sink}, sink: set()}


def stages(graph):
    """Lengths of the branches of every stage, found by walking from fork to join; None where that fails."""
    reads, consumers = links(graph)
    fork, found, seen = min(reads), [], 0
    while True:
        lengths, ends = [], set()
        for v in consumers[fork]:
            length, at = 0, v
            while len(reads[at]) == 1 and len(consumers[at]) == 1:
                length, at = length + 1, consumers[at][0]
            lengths.append(length)
            ends.add(at)
        join = ends.pop() if ends else None
        if ends or len(lengths) < 2 or len(reads[join]) != len(lengths) or 0 in lengths:
            return None
        found.append(lengths)
        seen += sum(lengths) + 2
        if not consumers[join]:
            return found if seen == len(reads) else None
        (fork,) = consumers[join]
        if reads[fork] != [join]:
            return None


def in_another_process(script, seed):
    """The lines that a script prints under that hash seed."""
    imports = (
        "from placewright.zoo import families, placeto\n"
        "from placewright.zoo.draws import generator\n"
        "from placewright.fingerprints import workload_fingerprint\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", imports + script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    return done.stdout.splitlines()


def test_names():
    """The three synthetic families and the three of the paper."""
    assert families.names() == SYNTHETIC + PLACETO


@pytest.mark.parametrize("family", SYNTHETIC + PLACETO)
def test_splits_are_disjoint(family):
    """No member is in both parts, and the sizes are those documented."""
    train, test = families.split(family)
    assert not set(train) & set(test)
    assert (len(train), len(test)) == ((64, 32) if family in SYNTHETIC else (16, 16))
    assert sorted(train + test) == list(range(96 if family in SYNTHETIC else 32))


def test_splits_stay():
    """The splits of the Placeto families are fixed for good."""
    assert [families.split(family)[1] for family in PLACETO] == [
        (1, 2, 5, 6, 7, 8, 9, 10, 12, 13, 16, 18, 19, 26, 27, 30),
        (1, 3, 4, 7, 9, 10, 13, 14, 17, 18, 19, 24, 26, 27, 28, 29),
        (0, 1, 5, 7, 8, 10, 12, 13, 14, 16, 20, 22, 24, 27, 28, 30),
    ]


def test_members_stay():
    """Member 7 of each synthetic family is the one that it was."""
    assert {family: workload_fingerprint(families.graph(family, 7)) for family in SYNTHETIC} == STAY


@pytest.mark.parametrize("seed", ["0", "12345"])
def test_members_are_the_same_in_every_process(seed):
    """Graphs, networks and splits do not depend on the process or its hash seed."""
    said = in_another_process(
        "for f in families.names()[:3]: print(workload_fingerprint(families.graph(f, 7)))\n"
        "for f in families.names()[3:]:\n"
        "    print([placeto.draw(f, generator(f, k)) for k in range(32)], families.split(f))",
        seed,
    )
    here = [*STAY.values()]
    here += [f"{[placeto.draw(f, generator(f, k)) for k in range(32)]} {families.split(f)}" for f in PLACETO]
    assert said == here


def test_members_differ(members):
    """Every member is a graph of its own, named by family and number."""
    for family, graphs in members.items():
        assert [graph.name for graph in graphs] == [f"{family}/{k}" for k in range(96)]
        assert len({workload_fingerprint(graph) for graph in graphs}) == 96


def test_layered(members):
    """Edges go from earlier layers to later ones; each operation reads the layer before, and the next reads it."""
    skips = 0
    for graph in members["layered"]:
        layer = {i: int(graph.scopes[i].removeprefix("layer")) for i in np.flatnonzero(graph.phase == FORWARD).tolist()}
        last = max(layer.values())
        sizes = np.bincount(list(layer.values()))
        assert 8 <= last + 1 <= 24
        assert sizes.min() >= 1
        assert sizes.max() <= 12
        reads, consumers = links(graph)
        for i, depth in layer.items():
            below = [layer[j] for j in reads[i]]
            assert all(d < depth for d in below)
            assert depth == 0 or depth - 1 in below
            assert depth == last or depth + 1 in [layer[j] for j in consumers[i]]
            skips += any(d < depth - 1 for d in below)
    assert skips > 96


def test_series_parallel(members):
    """Every member reduces to one edge, and is no mere chain."""
    chains = 0
    for graph in members["series-parallel"]:
        reads, _ = links(graph)
        assert 40 <= len(reads) <= 240
        edges = [(j, i) for i, row in reads.items() for j in row]
        assert is_series_parallel(edges, min(reads), max(reads))
        chains += len(edges) == len(reads) - 1
    assert chains == 0


def test_the_reductions_can_fail():
    """The bridge of Wheatstone is not series-parallel; a diamond is."""
    diamond = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    assert is_series_parallel(diamond, "a", "d")
    assert not is_series_parallel([*diamond, ("b", "c")], "a", "d")
    assert not is_series_parallel([("a", "b"), ("a", "d")], "a", "d")


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("operations", [2, 3, 4, 60])
def test_series_parallel_of_any_share(operations, share):
    """The number of operations is the one asked for; cutting edges alone makes a chain."""
    params = SeriesParallelParams((operations, operations), share)
    reads, _ = links(families.graph("series-parallel", 5, params))
    edges = [(j, i) for i, row in reads.items() for j in row]
    assert len(reads) == operations
    assert is_series_parallel(edges, min(reads), max(reads))
    assert share != 1 or len(edges) == operations - 1
    assert share != 0 or len(edges) == 2 * operations - 3


def test_fork_join(members):
    """Every member is stages of a fork, two branches or more, and the join of them all."""
    for graph in members["fork-join"]:
        found = stages(graph)
        assert found is not None
        assert 2 <= len(found) <= 8
        assert all(2 <= len(lengths) <= 8 and min(lengths) >= 1 and max(lengths) <= 6 for lengths in found)


def test_the_walk_can_fail(members):
    """A layered graph is no sequence of forks and joins."""
    assert stages(members["layered"][0]) is None


@pytest.mark.parametrize("family", SYNTHETIC)
def test_times_are_plausible(family, members):
    """On a K40 an operation takes 10 us to 10 ms, and a tensor at most 5 ms from one card to another."""
    k40 = pw.machine("k40x2")
    seconds = []
    for graph in members[family]:
        seconds.append(costs(graph, k40).seconds[graph.phase == FORWARD, k40.device("gpu:0")])
        assert graph.tensor_bytes[~graph.persistent].max() <= 32 << 20
        assert graph.persistent_bytes < 4 << 30
    seconds = np.concatenate(seconds)
    assert seconds.min() >= 10e-6
    assert seconds.max() <= 10e-3
    assert (seconds > 1e-3).mean() > 0.1  # not all of them are launches


@pytest.mark.parametrize("family", SYNTHETIC)
def test_amounts_add_up(family, members):
    """What is read and written are the tensors; what nobody reads is an output; parameters have one reader."""
    parameters, workspaces, computing, count = 0, 0, 0, 0
    for graph in members[family]:
        starts = graph.consumers[0]
        unread = np.diff(starts) == 0
        forward = graph.phase == FORWARD
        assert (unread == graph.tensor_output).all()
        assert np.diff(starts)[graph.persistent].tolist() == [1] * int(graph.persistent.sum())
        read = np.bincount(graph.read_op, graph.tensor_bytes[graph.in_tensor], graph.n_ops)
        assert (read == graph.bytes_read).all()
        assert (graph.bytes_written[forward] == graph.tensor_bytes[graph.out_start[:-1][forward]]).all()
        assert graph.tensor_shapes is not None
        assert [4 * math.prod(s) for s in graph.tensor_shapes] == graph.tensor_bytes.tolist()
        assert [PHASES[p] for p in np.unique(graph.phase)] == ["input", "parameter", "forward"]
        assert (graph.phase == INPUT).sum() == 1
        parameters += (graph.phase == PARAMETER).sum()
        workspaces += (graph.workspace_bytes > 0).sum()
        computing += (graph.flops > 0).sum()
        count += forward.sum()
    assert computing / count == pytest.approx(0.6, abs=0.02)
    assert parameters / computing == pytest.approx(0.7, abs=0.02)
    assert workspaces / computing == pytest.approx(0.25, abs=0.02)


def test_sizes_can_be_chosen():
    """Params give other sizes; ranges of one number are that number."""
    grid = families.graph("layered", 0, LayeredParams((3, 3), (2, 2), (1, 1), 0.0))
    assert [grid.scopes.count(f"layer{k}") for k in range(3)] == [
        2 + sum(f"layer{k}." in n and n.endswith("weight") for n in grid.op_names) for k in range(3)
    ]
    assert stages(families.graph("fork-join", 0, ForkJoinParams((1, 1), (3, 3), (2, 2)))) == [[2, 2, 2]]
    small = Amounts((5.0, 5.0), (1024, 1024), (400, 400), (512, 512), 1.0, 1.0, 1.0)
    graph = families.graph("fork-join", 0, ForkJoinParams(amounts=small))
    forward = graph.phase == FORWARD
    assert set(graph.flops[forward]) == {5.0}
    assert set(graph.workspace_bytes[forward]) == {512}
    assert set(graph.tensor_bytes[graph.persistent]) == {400}
    assert set(graph.tensor_bytes[~graph.persistent]) == {1024}
    idle = families.graph("layered", 0, LayeredParams(amounts=replace(small, compute_share=0.0)))
    assert not idle.flops.any()
    assert not idle.persistent_bytes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LayeredParams(layers=(0, 3)), r"layers is \(0, 3\); whole numbers \(least, most\) within 1 to 1000"),
        (lambda: LayeredParams(width=(4, 3)), "width is"),
        (lambda: LayeredParams(reads=(1, 2.5)), "reads is"),
        (lambda: LayeredParams(skip_share=1.5), "skip_share is 1.5; a share from 0 to 1 is allowed"),
        (lambda: LayeredParams(layers=3), "layers is 3"),
        (lambda: SeriesParallelParams(operations=(1, 5)), "operations is .* within 2 to 20000"),
        (lambda: SeriesParallelParams(series_share=math.nan), "series_share is nan"),
        (lambda: ForkJoinParams(branches=(1, 5)), "branches is .* within 2 to 1000"),
        (lambda: ForkJoinParams(length=(1, 2, 3)), "length is"),
        (lambda: ForkJoinParams(stages=("1", "2")), "stages is"),
        (lambda: Amounts(flops=(0, 1)), "flops is"),
        (lambda: Amounts(flops=(1, math.inf)), "flops is"),
        (lambda: Amounts(tensor_bytes=(1, 512)), "tensor_bytes is .* within 256 to"),
        (lambda: Amounts(compute_share="all"), "compute_share is 'all'"),
    ],
)
def test_params_are_checked(make, message):
    """A wrong size names its field and the range."""
    with pytest.raises(InputError, match=message):
        make()


def test_misuse():
    """Unknown families, members out of range and params of another family are refused."""
    with pytest.raises(UnknownNameError, match="layered"):
        families.graph("layerd", 0)
    with pytest.raises(UnknownNameError, match="placeto-nmt"):
        families.split("nmt")
    with pytest.raises(InputError, match="member is -1; 0 to"):
        families.graph("layered", -1)
    with pytest.raises(InputError, match=r"member is 1\.0; a whole number"):
        families.graph("layered", 1.0)
    with pytest.raises(InputError, match="takes LayeredParams, found ForkJoinParams"):
        families.graph("layered", 0, ForkJoinParams())
    with pytest.raises(InputError, match="takes no params"):
        families.graph("placeto-ptb", 0, ForkJoinParams())
    assert workload_fingerprint(families.graph("layered", np.int64(3))) == workload_fingerprint(
        families.graph("layered", 3)
    )


def test_draws():
    """Whole numbers reach both ends, each as often; logarithms are uniform; an order has every number once."""
    rng = generator("draws", 0)
    assert np.bincount([whole(rng, 2, 5) for _ in range(4000)])[2:] == pytest.approx([1000] * 4, abs=120)
    assert {pick(rng, "abc") for _ in range(100)} == set("abc")
    logs = np.log2([between(rng, 1, 1024) for _ in range(4000)])
    assert np.histogram(logs, 4, (0, 10))[0] == pytest.approx([1000] * 4, abs=120)
    assert sorted(shuffled(rng, 50)) == list(range(50))
    assert generator("a", 1).random() != generator("a", 2).random() != generator("b", 2).random()


@pytest.mark.parametrize("family", PLACETO)
def test_architectures_differ(family):
    """The 32 networks of a Placeto family are different ones."""
    assert len({placeto.draw(family, generator(family, k)) for k in range(32)}) == 32


def test_cells_are_drawn_within_reach():
    """A node reads the cell's inputs or earlier nodes only; over the family every operation and input occurs."""
    nets = [placeto.draw("placeto-cifar10", generator("placeto-cifar10", k)) for k in range(32)]
    seen = set()
    for cell in (cell for net in nets for cell in (net.normal, net.reduction)):
        assert len(cell) == 5
        for k, (a, first, b, second) in enumerate(cell):
            assert 0 <= a < k + 2
            assert 0 <= b < k + 2
            seen |= {(k, a), (k, b), first, second}
    assert seen == {(k, a) for k in range(5) for a in range(k + 2)} | set(placeto.CELL_OPERATIONS)
    models = [placeto.draw("placeto-ptb", generator("placeto-ptb", k)) for k in range(32)]
    assert all(len(m.activations) == 12 and len(m.parents) == 11 for m in models)
    assert all(0 <= parent <= k for m in models for k, parent in enumerate(m.parents))
    assert {a for m in models for a in m.activations} == set(placeto.ACTIVATIONS)


def test_architectures_stay():
    """The first network of each family is fixed for good."""
    cifar10, ptb, nmt = (placeto.draw(family, generator(family, 0)) for family in PLACETO)
    assert cifar10.normal == (
        (1, "identity", 0, "average"),
        (0, "separable3", 1, "separable5"),
        (3, "identity", 0, "separable3"),
        (4, "average", 2, "max"),
        (3, "separable3", 0, "identity"),
    )
    assert ptb.parents == (0, 0, 0, 3, 2, 5, 2, 5, 7, 7, 0)
    assert ptb.activations[:6] == ("relu", "identity", "relu", "tanh", "identity", "relu")
    assert (nmt.source_steps, nmt.target_steps, nmt.batch) == (8, 9, 32)


def test_lengths_and_batches():
    """Over the translation models lengths are 4 to 16 and batches 16 to 128 in steps of 8."""
    models = [placeto.draw("placeto-nmt", generator("placeto-nmt", k)) for k in range(32)]
    for sizes in ([m.source_steps for m in models], [m.target_steps for m in models]):
        assert 4 <= min(sizes) < 7
        assert 13 < max(sizes) <= 16
    assert {m.batch for m in models} <= set(range(16, 129, 8))
    assert len({m.batch for m in models}) > 8


def test_conv_cell_by_hand():
    """Sums of inputs and pooled inputs; nodes that are read by others are not in the result."""
    nodes = [(0, "identity", 1, "identity"), (2, "identity", 2, "identity"), (0, "max", 1, "average")]
    a, b = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
    pools = torch.nn.MaxPool2d(3, 1, 1)(a) + torch.nn.AvgPool2d(3, 1, 1, count_include_pad=False)(b)
    assert torch.equal(ConvCell(nodes, 3, False)(a, b), torch.cat([2 * (a + b), pools], 1))


def test_reduction_cell_halves():
    """In a reduction cell what reads the cell's inputs has stride two, and what reads nodes has not."""
    nodes = [(0, "identity", 1, "max"), (2, "separable3", 0, "separable5"), (3, "average", 1, "average")]
    x = torch.randn(2, 4, 8, 8)
    assert ConvCell(nodes, 4, True)(x, x).shape == (2, 4, 4, 4)


def conv_parameters(net):
    """Parameters of a network for CIFAR-10, counted from its description."""
    channels, widths, halvings, total = net.channels, [net.channels] * 2, [0, 0], 0
    total += 27 * channels + 2 * channels
    for k in range(3 * net.per_stage + 2):
        reduces = k in (net.per_stage, 2 * net.per_stage + 1)
        cell = net.reduction if reduces else net.normal
        channels *= 1 + reduces
        total += sum(width * channels + 2 * channels for width in widths[-2:])
        for source, operation in ((s, o) for a, first, b, second in cell for s, o in ((a, first), (b, second))):
            if operation.startswith("separable"):
                total += 2 * (int(operation[-1]) ** 2 * channels + channels**2 + 2 * channels)
            elif operation == "identity" and reduces and source < 2:
                total += channels**2 + 2 * channels
        used = {source for a, _, b, _ in cell for source in (a, b)}
        widths.append(channels * len(set(range(2, 7)) - used))
        halvings.append(halvings[-1] + reduces)
    return total + widths[-1] * 10 + 10


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("member", range(4))
def test_conv_net(member):
    """Parameters are as many as counted by hand, and a small network of the same cells trains on small images."""
    net = placeto.draw("placeto-cifar10", generator("placeto-cifar10", member))
    small = replace(net, per_stage=1, channels=4, batch=2)
    model, (images, labels) = small.build()
    assert images.shape == (2, 3, 32, 32)
    assert sum(p.numel() for p in model.parameters()) == conv_parameters(small)
    loss = model(images[:, :, :8, :8], labels)
    loss.backward()
    assert loss.shape == ()
    assert loss.isfinite()
    assert all(p.grad is not None for p in model.parameters())


def test_cells_read_both_inputs():
    """No cell leaves out an input: parameters of whole cells before it would have no gradient."""
    nets = [placeto.draw("placeto-cifar10", generator("placeto-cifar10", k)) for k in range(32)]
    for cell in (cell for net in nets for cell in (net.normal, net.reduction)):
        assert {0, 1} <= {source for a, _, b, _ in cell for source in (a, b)}


def test_recurrent_cell_by_hand():
    """Node 0 gates the state; its child and its grandchild gate what they read; ends are averaged."""
    torch.manual_seed(0)
    cell = RecurrentCell([0, 0], ["tanh", "identity", "relu"], 3)
    word, state = torch.randn(2, 3), torch.randn(2, 3)

    def gate(product, old, f):
        c = 1 / (1 + np.exp(-product[:, :3]))
        return c * f(product[:, 3:]) + (1 - c) * old

    with torch.no_grad():
        found = cell(word, state).numpy()
        weights = [w.weight.numpy().astype(float) for w in (cell.first, *cell.nodes)]
    x, h = np.concatenate([word.numpy(), state.numpy()], 1).astype(float), state.numpy().astype(float)
    first = gate(x @ weights[0].T, h, np.tanh)
    second = gate(first @ weights[1].T, first, lambda z: z)
    third = gate(first @ weights[2].T, first, lambda z: np.maximum(z, 0))
    assert found == pytest.approx((second + third) / 2, abs=1e-5)


def test_language_model():
    """The softmax shares the embedding's weight, and the loss is that of the steps computed one by one."""
    torch.manual_seed(0)
    model = LanguageModel([0, 1, 0], ["tanh", "relu", "identity", "sigmoid"], 5, 11)
    assert sum(p.numel() for p in model.parameters()) == 11 * 5 + 11 + 4 * 25 + 3 * 2 * 25
    words, targets, state = torch.randint(11, (2, 3)), torch.randint(11, (2, 3)), torch.zeros(2, 5)
    losses = []
    now = state
    for t in range(3):
        now = model.cell(model.embedding(words[:, t]), now)
        scores = torch.log_softmax(now @ model.embedding.weight.T + model.bias, 1)
        losses += [-scores[b, targets[b, t]] for b in range(2)]
    assert model(words, targets, state).item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)


# Captured training steps --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steps():
    """Member 2 of each Placeto family at a small size: the network, and its captured training step."""
    drawn = {f: replace(placeto.draw(f, generator(f, 2)), **SMALL[f]) for f in PLACETO}
    return {family: (network, placeto.step(network, family)) for family, network in drawn.items()}


def kinds(graph):
    """How many forward operations there are of each kind."""
    return Counter(kind for kind, phase in zip(graph.kinds, graph.phase, strict=True) if phase == FORWARD)


@pytest.mark.parametrize("family", PLACETO)
def test_steps_are_whole(family, steps):
    """Every phase is there, and every weight has one update, by plain SGD: no state, one store each."""
    network, graph = steps[family]
    assert graph.name == family
    assert [PHASES[p] for p in np.unique(graph.phase)] == list(PHASES)
    trained = {name for name, _ in network.build()[0].named_parameters()}
    updates = np.flatnonzero(graph.phase == UPDATE)
    roots = [
        {graph.op_names[graph.tensor_op[r]] for t in reads_of(graph, i) if (r := graph.persistent_root[t]) >= 0}
        for i in updates
    ]
    assert sorted(name for row in roots for name in row) == sorted(trained)
    assert set(graph.dtypes) <= {"float32", "int64", "bool"}
    assert graph.flops.sum() > 0


def reads_of(graph, i):
    """The tensors that an operation reads."""
    return graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]].tolist()


def test_captured_conv_net(steps):
    """The parameters counted by hand, and a convolution, a pool and an addition for each that the cells have."""
    network, graph = steps["placeto-cifar10"]
    names = {name for name, _ in network.build()[0].named_parameters()}
    held = [graph.tensor_bytes[graph.out_start[graph.op(name)]] for name in names]
    assert sum(held) == 4 * conv_parameters(network)
    found, cells = kinds(graph), [network.normal, network.reduction] * 2 + [network.normal]
    branches = [operation for cell in cells for _, first, _, second in cell for operation in (first, second)]
    halving = sum(
        operation == "identity" and source < 2
        for a, first, b, second in network.reduction * 2
        for source, operation in ((a, first), (b, second))
    )
    separable = sum(operation.startswith("separable") for operation in branches)
    fits = 2 * len(cells) + 2  # two of them halve, by two convolutions
    assert found["convolution"] == 1 + fits + 2 * halving + 4 * separable
    assert found["max_pool2d_with_indices"] == branches.count("max")
    assert found["avg_pool2d"] == branches.count("average")


def test_captured_language_model(steps):
    """Two steps of a cell of twelve nodes: a product and a gate for each, and its activation."""
    network, graph = steps["placeto-ptb"]
    found, cell = kinds(graph), Counter(network.activations)
    assert found["mm"] + found["addmm"] == 2 * 12 + 1
    assert found["sigmoid"] == 2 * (12 + cell["sigmoid"])
    assert (found["tanh"], found["relu"]) == (2 * cell["tanh"], 2 * cell["relu"])


def test_captured_translation_model(steps):
    """As many recurrent steps as words: a tanh of the new values and one of the state in each layer."""
    network, graph = steps["placeto-nmt"]
    scopes = Counter(
        scope for scope, kind, phase in zip(graph.scopes, graph.kinds, graph.phase, strict=True)
        if kind == "sigmoid" and phase == FORWARD
    )  # fmt: skip
    gates = 3 * network.layers * (network.source_steps + network.target_steps)
    assert sum(scopes.values()) == gates


@pytest.mark.slow
@pytest.mark.parametrize("family", PLACETO)
def test_every_member_can_be_captured(family):
    """At a small size, the 32 networks of a family give 32 training steps that are not alike."""
    drawn = [placeto.draw(family, generator(family, k)) for k in range(32)]
    if family == "placeto-nmt":
        graphs = [placeto.step(replace(n, hidden=8, vocabulary=20), "nmt") for n in drawn]
    else:
        graphs = [placeto.step(replace(n, **SMALL[family]), family) for n in drawn]
    assert len({workload_fingerprint(graph) for graph in graphs}) == 32


@pytest.mark.slow
@pytest.mark.parametrize("family", PLACETO)
def test_full_members_are_the_same_in_every_process(family):
    """A member at its own size: named, of thousands of operations, and the same under another hash seed."""
    graph = families.graph(family, 2)
    assert graph.name == f"{family}/2"
    assert 1000 < graph.n_ops < 20_000
    said = in_another_process(f"print(workload_fingerprint(families.graph({family!r}, 2)))", "4")
    assert said == [workload_fingerprint(graph)]

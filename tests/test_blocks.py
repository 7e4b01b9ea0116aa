"""Repeated blocks: planted ones are found, changed ones are not, and operations that correspond really do."""

import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from placewright import repeats
from placewright.blocks import by_block, repeated_blocks
from placewright.capture import capture
from placewright.errors import InputError
from placewright.graph import BACKWARD, FORWARD, PARAMETER, PHASES, STORE, UPDATE
from placewright.operations import Operation, Tensor, build_graph

# The slow check -----------------------------------------------------------------------------------------------------


def described(graph, row):
    """What each operation of a block is, in plain Python: its own amounts, inner edges, and what comes in."""
    place = {int(i): j for j, i in enumerate(row)}
    shapes = graph.tensor_shapes or [None] * graph.n_tensors
    classes = {}
    result = []
    for j, i in enumerate(int(i) for i in row):
        inner, outer = set(), Counter()
        for t in graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]].tolist():
            maker = int(graph.tensor_op[t])
            if maker in place:
                inner.add((place[maker], t - int(graph.out_start[maker])))
            else:
                outer[int(graph.tensor_bytes[t]), shapes[t], bool(graph.persistent[t])] += 1
        after = {
            place[k] for k in graph.after_op[graph.after_start[i] : graph.after_start[i + 1]].tolist() if k in place
        }
        outputs = []
        for t in range(int(graph.out_start[i]), int(graph.out_start[i + 1])):
            base = int(graph.tensor_storage[t])
            owner = int(graph.tensor_op[base])
            at = (place[owner], base - int(graph.out_start[owner])) if owner in place else bool(graph.persistent[base])
            seconds = str(float(graph.tensor_transfer_s[t]))
            outputs.append(
                (
                    int(graph.tensor_bytes[t]),
                    shapes[t],
                    bool(graph.tensor_in_place[t]),
                    at if base != t else None,
                    seconds,
                )
            )
        colocation = int(graph.colocation[i])
        with_whom = classes.setdefault(colocation, j) if colocation >= 0 else None
        amounts = [float(graph.flops[i]), *(int(a[i]) for a in (graph.bytes_read, graph.bytes_written))]
        own = (graph.kinds[i], graph.dtypes[i], int(graph.phase[i]), bool(graph.recompute[i]), with_whom)
        result.append((own, amounts, int(graph.workspace_bytes[i]), outputs, inner, outer, after))
    return result


def check(graph, blocks):
    """Everything that a family promises, one block at a time."""
    for f, family in enumerate(blocks.families):
        assert family.n_blocks == len(family.scopes) == len(family.parents) > 1
        first = described(graph, family.ops[0])
        for row in family.ops:
            assert described(graph, row) == first
        flat = family.ops.ravel().tolist()
        assert len(set(flat)) == len(flat)
        begins = [min([i for i in row if graph.phase[i] >= FORWARD], default=0) for row in family.ops.tolist()]
        assert begins == sorted(begins)
        for k, (outer, block) in enumerate(family.parents.tolist()):
            if outer >= 0:
                assert outer < f
                assert set(family.ops[k].tolist()) < set(blocks.families[outer].ops[block].tolist())
                assert blocks.depths[f][k] == blocks.depths[outer][block] + 1
                assert f in blocks.children(outer)
            else:
                assert blocks.depths[f][k] == 1
        for k, scope in enumerate(family.scopes):
            for i in family.ops[k].tolist():
                assert graph.scopes[i] == scope or graph.scopes[i].startswith(scope + ".") or not scope
        if family.steps:
            assert len({int(p) for p in graph.phase[family.ops].ravel()}) == 1


def found(blocks, *, steps=None):
    """(blocks, operations of one, scopes) of every family."""
    return [(f.n_blocks, f.size, f.scopes) for f in blocks.families if steps in (None, f.steps)]


# Graphs by hand -----------------------------------------------------------------------------------------------------


def layer(name, source, scope, flops=4.0):
    """A weight, a product with it, an activation, and a sum with the input, in two scopes below the layer's."""
    weight = f"{name}.w"
    return [
        Operation(weight, "parameter", "parameter", f"{scope}.dense", outputs=[Tensor(100, shape=(25,))]),
        Operation(f"{name}.mm", "mm", "forward", f"{scope}.dense", flops, inputs=[source, weight], outputs=[Tensor(8)]),
        Operation(f"{name}.relu", "relu", scope=f"{scope}.act", inputs=[f"{name}.mm"], outputs=[Tensor(8)]),
        Operation(f"{name}.cast", "cast", scope=f"{scope}.act", inputs=[f"{name}.relu"], outputs=[Tensor(8)]),
        Operation(f"{name}.add", "add", scope=scope, inputs=[f"{name}.cast", source], outputs=[Tensor(8)]),
    ]  # fmt: skip


def stack(scopes, change=None):
    """Layers under the given scopes, one after the other; `change` may give operations of layer 1 other fields."""
    ops = [Operation("x", "input", "input", outputs=[Tensor(8)])]
    for k, scope in enumerate(scopes):
        source = "x" if k == 0 else f"l{k - 1}.add"
        ops += layer(f"l{k}", source, scope)
    return build_graph("stack", [change(op) if change else op for op in ops])


@pytest.mark.parametrize("scopes", [["layers.0", "layers.1", "layers.2"], ["block_a", "block_b", "final"]])
def test_layers(scopes):
    """Scopes of equal structure are one family, whatever they are called; their parts add nothing."""
    graph = stack(scopes)
    blocks = repeated_blocks(graph)
    check(graph, blocks)
    assert found(blocks) == [(3, 5, tuple(scopes))]
    assert [[graph.op_names[i] for i in row] for row in blocks.families[0].ops] == [
        [f"l{k}.{part}" for part in ("w", "mm", "relu", "cast", "add")] for k in range(3)
    ]
    assert by_block(graph).group_of.tolist() == [0, *[1] * 5, *[2] * 5, *[3] * 5]


def test_tie():
    """Corresponding operations are joined; others are by themselves."""
    blocks = repeated_blocks(stack(["a", "b"]))
    assert blocks.tie().group_of.tolist() == [0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5]
    with pytest.raises(InputError, match="level is 0; 1 or more is allowed"):
        blocks.tie(0)


CHANGES = {
    "flops": lambda op: replace(op, flops=5.0),
    "kind": lambda op: replace(op, kind="bmm"),
    "dtype": lambda op: replace(op, dtype="float16"),
    "bytes_read": lambda op: replace(op, bytes_read=1),
    "bytes_written": lambda op: replace(op, bytes_written=1),
    "workspace": lambda op: replace(op, workspace_bytes=1),
    "bytes": lambda op: replace(op, outputs=[Tensor(9)]),
    "shape": lambda op: replace(op, outputs=[Tensor(8, shape=(8,))]),
    "transfer": lambda op: replace(op, outputs=[Tensor(8, transfer_s=1.0)]),
    "outputs": lambda op: replace(op, outputs=[Tensor(8), Tensor(8)]),
    "view": lambda op: replace(op, outputs=[Tensor(8, ("l0.add", 0))]),
    "inner read": lambda op: replace(op, inputs=op.inputs[:1]),
    "outer read": lambda op: replace(op, inputs=op.inputs[1:]),
    "more from outside": lambda op: replace(op, inputs=[*op.inputs, "x"]),
    "inner order": lambda op: replace(op, after=["l1.w"]),
    "colocation": lambda op: replace(op, colocation="here"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_one_change_makes_another_block(what):
    """A layer with one operation changed in one thing is not in the family, though its name says so."""
    graph = stack([f"layers.{k}" for k in range(3)], lambda op: CHANGES[what](op) if op.name == "l1.mm" else op)
    blocks = repeated_blocks(graph)
    check(graph, blocks)
    assert found(blocks)[0] == (2, 5, ("layers.0", "layers.2"))
    grouped = by_block(graph, blocks).group_of.tolist()
    assert grouped == [0, *[1] * 5, *[2] * 5, *[3] * 5]  # the odd layer is a group all the same


@pytest.mark.parametrize(
    "change",
    [
        lambda op: replace(op, after=["x"]) if op.name == "l1.mm" else op,
        lambda op: replace(op, outputs=[Tensor(8, output=True)]) if op.name == "l2.add" else op,
        lambda op: replace(op, measured_s={"K40": 1.0}) if op.name == "l1.mm" else op,
        lambda op: replace(op, inputs=["l1.cast", "l0.relu"]) if op.name == "l1.add" else op,
    ],
)
def test_what_lies_outside_does_not_count(change):
    """Order towards the outside, who reads a result, measured seconds, and where a tensor of one size comes from."""
    graph = stack(["a", "b", "c"], change)
    assert found(repeated_blocks(graph)) == [(3, 5, ("a", "b", "c"))]


def test_the_slow_check_can_fail():
    """Layers of which one has another inner edge are told apart by the check that the others rely on."""
    graph = stack(["a", "b"], lambda op: replace(op, inputs=["l1.mm", "x"]) if op.name == "l1.add" else op)
    assert described(graph, range(1, 6)) != described(graph, range(6, 11))
    assert described(graph, range(1, 4)) == described(graph, range(6, 9))


def experts(layers, width):
    """Layers of experts beside each other, with what routes to them and joins them."""
    ops = [Operation("x", "input", "input", outputs=[Tensor(8)])]
    last = "x"
    for k in range(layers):
        ops.append(Operation(f"r{k}", "route", scope=f"layers.{k}", inputs=[last], outputs=[Tensor(8)]))
        for e in range(width):
            ops += layer(f"e{k}.{e}", f"r{k}", f"layers.{k}.experts.{e}")
        ops.append(
            Operation(
                f"j{k}",
                "join",
                scope=f"layers.{k}",
                inputs=[f"e{k}.{e}.add" for e in range(width)],
                outputs=[Tensor(8)],
            )
        )
        last = f"j{k}"
    return build_graph("experts", ops)


def test_nested():
    """Experts within layers are a family within the family of layers, and levels choose between them."""
    graph = experts(3, 4)
    blocks = repeated_blocks(graph)
    check(graph, blocks)
    assert [(f.n_blocks, f.size) for f in blocks.families] == [(3, 22), (12, 5)]
    assert blocks.families[1].parents.tolist() == [[0, k] for k in range(3) for _ in range(4)]
    assert blocks.children(0) == (1,)
    assert blocks.children(1) == ()
    assert by_block(graph).n_groups == 1 + 3
    deep = by_block(graph, blocks, level=2)
    assert deep.n_groups == 1 + 3 + 12
    assert Counter(Counter(deep.group_of.tolist()).values()) == {1: 1, 2: 3, 5: 12}
    assert blocks.tie(1).n_groups == 1 + 22
    assert blocks.tie(2).n_groups == 1 + 2 + 5


def test_structure_decides_the_nesting_too():
    """Of one layer's experts one differs: the layer leaves its family, its equal experts stay in theirs."""
    graph = experts(3, 4)
    flops = graph.flops.copy()
    flops[graph.op("e1.2.mm")] = 9.0
    graph = replace(graph, flops=flops)
    blocks = repeated_blocks(graph)
    check(graph, blocks)
    assert found(blocks)[0] == (2, 22, ("layers.0", "layers.2"))
    assert found(blocks)[1][:2] == (11, 5)
    assert Counter(map(tuple, blocks.families[1].parents.tolist())) == {(0, 0): 4, (0, 1): 4, (-1, -1): 3}


def test_flat_names():
    """Without scopes the layers are found in program order; weights go to who reads them, the input stays alone."""
    graph = build_graph("flat", [])
    ops = [Operation("x", "input", "input", outputs=[Tensor(8)])]
    for k in range(4):
        ops += [replace(op, scope="") for op in layer(f"l{k}", "x" if k == 0 else f"l{k - 1}.add", "")]
    graph = build_graph("flat", ops)
    blocks = repeated_blocks(graph)
    check(graph, blocks)
    assert found(blocks) == [(4, 4, ("",) * 4)]
    assert blocks.families[0].steps
    assert by_block(graph).group_of.tolist() == [0, *[1] * 5, *[2] * 5, *[3] * 5, *[4] * 5]


def test_states_follow_their_weights():
    """Without scopes, an update goes to its weight, and a state and the stores to their update."""
    ops = [Operation("x", "input", "input", outputs=[Tensor(8)])]
    for k in range(3):
        source = "x" if k == 0 else f"relu{k - 1}"
        ops += [
            Operation(f"w{k}", "parameter", "parameter", outputs=[Tensor(8)]),
            Operation(f"m{k}", "state", "parameter", outputs=[Tensor(8)]),
            Operation(f"mm{k}", "mm", inputs=[source, f"w{k}"], outputs=[Tensor(8)]),
            Operation(f"relu{k}", "relu", inputs=[f"mm{k}"], outputs=[Tensor(8)]),
        ]
    for k in range(3):
        new = [Tensor(8, (f"w{k}", 0), True), Tensor(8, (f"m{k}", 0), True)]
        ops += [
            Operation(f"sgd{k}", "sgd", "update", inputs=["relu2", f"w{k}", f"m{k}"], outputs=new),
            Operation(f"keep{k}", "store", "store", inputs=[(f"sgd{k}", 0)]),
            Operation(f"hold{k}", "store", "store", inputs=[(f"sgd{k}", 1)]),
        ]
    graph = build_graph("states", ops)
    assert by_block(graph).group_of.tolist() == [0] + [g for k in (1, 2, 3) for g in [k] * 4] + [
        g for k in (1, 2, 3) for g in [k] * 3
    ]


def recurrent(steps, cells=1, step_flops=None):
    """A cell of two parts, called again and again, each state read by the next call."""
    ops = [Operation("x", "input", "input", outputs=[Tensor(8)])]
    for c in range(cells):
        last = "x"
        for t in range(steps):
            n, scope = f"c{c}.{t}", f"rnn.{c}.cell"
            flops = 4.0 if step_flops is None else step_flops[t]
            ops += [
                Operation(f"{n}.in", "mm", scope=f"{scope}.first", flops=flops, inputs=[last], outputs=[Tensor(8)]),
                Operation(f"{n}.split", "split", scope=scope, inputs=[f"{n}.in"], outputs=[Tensor(4), Tensor(4)]),
                Operation(f"{n}.gate", "sigmoid", scope=scope, inputs=[(f"{n}.split", 0)], outputs=[Tensor(4)]),
                Operation(f"{n}.out", "mul", scope=scope, inputs=[f"{n}.gate", (f"{n}.split", 1)], outputs=[Tensor(8)]),
            ]
            last = f"{n}.out"
    return build_graph("recurrent", ops)


def test_time_steps():
    """The calls of one module are found within its scope, and nested in the cells that are equal."""
    graph = recurrent(5)
    blocks = repeated_blocks(graph)
    check(graph, blocks)
    assert found(blocks) == [(5, 4, ("rnn.0.cell",) * 5)]
    assert blocks.families[0].steps
    assert by_block(graph).n_groups == 1 + 5
    graph = recurrent(5, cells=3)
    blocks = repeated_blocks(graph)
    check(graph, blocks)
    assert [(f.n_blocks, f.size, f.steps) for f in blocks.families] == [(3, 20, False), (15, 4, True)]
    assert by_block(graph).n_groups == 1 + 3
    assert by_block(graph, level=2).n_groups == 1 + 15


def test_a_step_that_differs_parts_the_others():
    """Three equal steps, another one, two equal steps: the five are one family."""
    graph = recurrent(6, step_flops=[4.0, 4.0, 4.0, 7.0, 4.0, 4.0])
    blocks = repeated_blocks(graph)
    check(graph, blocks)
    assert blocks.families[0].n_blocks == 5
    assert blocks.families[0].size == 4


def test_steps_that_cross_modules():
    """Equal gates of a cell that is called again: both are reported, and the modules make the groups."""
    ops = [Operation("x", "input", "input", outputs=[Tensor(8)])]
    last = "x"
    for t in range(4):
        gates = []
        for gate in ("forget", "write"):
            name = f"{t}.{gate}"
            ops.append(Operation(f"{name}.mm", "mm", scope=f"cell.{gate}", inputs=[last], outputs=[Tensor(8)]))
            ops.append(Operation(name, "bias", scope=f"cell.{gate}", inputs=[f"{name}.mm"], outputs=[Tensor(8)]))
            gates.append(name)
        ops.append(Operation(f"{t}.state", "mul", scope="cell", inputs=gates, outputs=[Tensor(8)]))
        last = f"{t}.state"
    graph = build_graph("gates", ops)
    blocks = repeated_blocks(graph)
    check(graph, blocks)
    assert [(f.n_blocks, f.size, f.steps, f.crossing) for f in blocks.families] == [
        (2, 8, False, False),
        (4, 5, True, True),
        (8, 2, True, False),
    ]
    assert by_block(graph).group_of.tolist() == [0] + [1, 1, 2, 2, 3] * 4


def test_nothing_repeats(chain3, diamond4):
    """Graphs without repetition, and without operations, have no families; groups are scopes."""
    for graph in (build_graph("empty", []), chain3):
        assert repeated_blocks(graph).families == ()
        assert by_block(graph).n_groups == graph.n_ops
    assert repeated_blocks(diamond4).families == ()
    assert by_block(diamond4).group_of.tolist() == [0, 0, 0, 1]


def test_least():
    """Blocks of fewer operations than `least` are left out."""
    graph = experts(2, 2)
    assert [f.size for f in repeated_blocks(graph, least=6).families] == [12]
    assert repeated_blocks(graph, least=13).families == ()
    single = build_graph("g", [Operation(n, scope=f"m.{n}", outputs=[Tensor(8)]) for n in "ab"])
    assert repeated_blocks(single).families == ()
    assert found(repeated_blocks(single, least=1)) == [(2, 1, ("m.a", "m.b"))]
    with pytest.raises(InputError, match="least is 0; 1 or more is allowed"):
        repeated_blocks(graph, least=0)


def test_deep_scopes():
    """A scope of thousands of parts is taken as its first ones."""
    deep = ".".join(["a"] * 5000)
    graph = build_graph("deep", [Operation(f"o{k}", scope=f"m{k}.{deep}", outputs=[Tensor(8)]) for k in range(2)])
    assert found(repeated_blocks(graph, least=1)) == [(2, 1, ("m0", "m1"))]


# Generated graphs ---------------------------------------------------------------------------------------------------


@st.composite
def planted(draw, scoped):
    """(graph, planted rows): a random block again and again, among operations that are like nothing else."""
    size, count = draw(st.integers(2, 7)), draw(st.integers(2 if scoped else 3, 5))
    plan = []
    for j in range(size):
        inner = draw(st.lists(st.integers(0, j - 1), max_size=2, unique=True)) if j else []
        outer = draw(st.integers(0, 1)) if j else 1
        plan.append(
            (draw(st.sampled_from("abc")), float(draw(st.integers(0, 1))), inner, outer, draw(st.integers(1, 2)))
        )
    plan[draw(st.integers(0, size - 1))] = ("only", 1.0, [], 1, 1)
    kept = draw(st.integers(0, 2))
    ops = [Operation("x", "input", "input", outputs=[Tensor(8)])]
    noise = 0

    def other():
        nonlocal noise
        noise += 1
        scope = draw(st.sampled_from(["", "head", "tail.end"])) if scoped else ""
        source = draw(st.sampled_from(ops)).name
        ops.append(
            Operation(f"n{noise}", "noise", scope=scope, flops=float(noise), inputs=[source], outputs=[Tensor(8)])
        )

    for _ in range(kept):
        other()
    last, rows = ops[-1].name, []
    for k in range(count):
        rows.append(list(range(len(ops), len(ops) + size)))
        for j, (kind, flops, inner, outer, made) in enumerate(plan):
            reads = [f"b{k}.{i}" for i in inner] + [last] * outer
            scope = f"part{k}" + (".odd" if j % 2 else "") if scoped else ""
            ops.append(Operation(f"b{k}.{j}", kind, scope=scope, flops=flops, inputs=reads, outputs=[Tensor(8)] * made))
        last = f"b{k}.{size - 1}"
        if scoped and draw(st.booleans()):
            other()
    for _ in range(kept):
        other()
    return build_graph("planted", ops), rows


def assert_sound(graph, blocks):
    """The slow check, and that groups hold whole blocks: for every level, at most one group for each."""
    check(graph, blocks)
    for level in (1, 2, 3):
        grouping = by_block(graph, blocks, level)
        assert len(grouping.group_of) == graph.n_ops
        numbers = blocks.blocks_of(level)
        for b in range(int(numbers.max(initial=-1)) + 1):
            assert len(set(grouping.group_of[numbers == b].tolist())) <= 1
        assert len(blocks.tie(level).group_of) == graph.n_ops


@settings(max_examples=150, deadline=None)
@given(planted(scoped=True))
def test_planted_modules_are_found(case):
    """Every planted module is in one family, its operations in order, whatever stands between."""
    graph, rows = case
    blocks = repeated_blocks(graph)
    assert_sound(graph, blocks)
    assert rows in [family.ops.tolist() for family in blocks.families]


@settings(max_examples=150, deadline=None)
@given(planted(scoped=False))
def test_planted_steps_are_found(case):
    """Every planted repetition in a graph without scopes is found, beginning where it was planted."""
    graph, rows = case
    blocks = repeated_blocks(graph)
    assert_sound(graph, blocks)
    assert rows in [family.ops.tolist() for family in blocks.families]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_graph(data):
    """Random operations of few kinds in random scopes: whatever is found passes the slow check."""
    count = data.draw(st.integers(1, 30))
    scopes = st.sampled_from(["", "a", "a.0", "a.1", "a.1.x", "a.0.x", "b", "b.0", "b.1"])
    ops = []
    for i in range(count):
        reads = data.draw(st.lists(st.integers(max(0, i - 4), i - 1), max_size=2)) if i else []
        phase = data.draw(st.sampled_from(["forward", "forward", "backward"]))
        after = [f"o{data.draw(st.integers(0, i - 1))}"] if i and data.draw(st.integers(0, 5)) == 0 else []
        ops.append(
            Operation(
                f"o{i}",
                data.draw(st.sampled_from("ab")),
                phase,
                data.draw(scopes),
                inputs=[f"o{j}" for j in reads],
                after=after,
                outputs=[Tensor(8)],
                colocation=data.draw(st.sampled_from([None, None, "c"])),
            )
        )
    graph = build_graph("any", ops)
    assert_sound(graph, repeated_blocks(graph))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=24))
def test_runs_against_search(tokens):
    """Every run is a maximal repetition of its least period; all of three periods or more are found."""
    n, truth = len(tokens), set()
    for period in range(1, n):
        for start in range(n):
            end = start + period
            while end < n and tokens[end] == tokens[end - period]:
                end += 1
            left = start == 0 or start + period > n - 1 or tokens[start - 1] != tokens[start - 1 + period]
            if end - start >= 2 * period and left:
                truth.add((start, end, period))
    least = {(a, b, p) for a, b, p in truth if not any((a, b, q) in truth for q in range(1, p) if p % q == 0)}
    got = {tuple(run) for run in repeats.runs(np.array(tokens, np.int64))}
    assert got <= least
    assert {run for run in least if run[1] - run[0] >= 3 * run[2]} <= got


# Captured models ----------------------------------------------------------------------------------------------------


class Transformer(nn.Module):
    """An embedding, four equal layers and a head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 50)

    def forward(self, words, targets):
        h = self.embedding(words)
        for one in self.layers:
            h = one(h)
        return functional.cross_entropy(self.head(self.norm(h)).flatten(0, 1), targets.flatten())


class Unrolled(nn.Module):
    """Three recurrent layers, each unrolled by itself."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(nn.LSTMCell(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 50)

    def forward(self, words, targets):
        row = self.embedding(words).unbind(1)
        for cell in self.layers:
            h = c = torch.zeros(2, 16)
            made = []
            for word in row:
                h, c = cell(word, (h, c))
                made.append(h)
            row = made
        return functional.cross_entropy(self.head(torch.stack(row, 1)).flatten(0, 1), targets.flatten())


def captured(model):
    words = torch.randint(50, (2, 6))
    return capture(model, (words, words), optimizer="adamw")


def test_captured_transformer():
    """The four layers are equal in every phase, and each is one group."""
    graph = captured(Transformer())
    blocks = repeated_blocks(graph)
    assert_sound(graph, blocks)
    family = blocks.families[0]
    assert family.scopes == tuple(f"layers.{k}" for k in range(4))
    assert not family.steps
    assert set(graph.phase[family.ops[0]].tolist()) == {PARAMETER, FORWARD, BACKWARD, UPDATE, STORE}
    for k, scope in enumerate(family.scopes):
        inside = [i for i, s in enumerate(graph.scopes) if s == scope or s.startswith(scope + ".")]
        assert sorted(family.ops[k].tolist()) == inside
        suffixes = [
            graph.op_names[i].removeprefix(scope) for i in family.ops[k].tolist() if graph.phase[i] == PARAMETER
        ]
        assert suffixes == [
            graph.op_names[i].removeprefix("layers.0") for i in family.ops[0].tolist() if graph.phase[i] == PARAMETER
        ]
    grouping = by_block(graph, blocks)
    for row in family.ops.tolist():
        (group,) = set(grouping.group_of[row].tolist())
        assert (grouping.group_of == group).sum() == len(row)


def test_captured_recurrence():
    """Six steps in each of three layers: forward all are equal; backward all that have the same neighbours are."""
    graph = captured(Unrolled())
    blocks = repeated_blocks(graph)
    assert_sound(graph, blocks)
    forward = [f for f in blocks.families if f.steps and graph.phase[f.ops[0, 0]] == FORWARD]
    assert [(f.n_blocks, Counter(f.scopes)) for f in forward] == [(18, {f"layers.{k}": 6 for k in range(3)})]
    assert forward[0].ops.size == sum(
        PHASES[p] == "forward" and s.startswith("layers.") for p, s in zip(graph.phase, graph.scopes, strict=True)
    )
    backward = Counter()
    for family in blocks.families:
        if (
            family.steps
            and graph.phase[family.ops[0, 0]] == BACKWARD
            and (family.parents < 0).all()
            and family.size > 20
        ):
            backward.update(family.scopes)
    assert backward == {f"layers.{k}": 4 for k in range(3)}  # the first and the last of six have other neighbours


# The same everywhere, and fast --------------------------------------------------------------------------------------


def test_the_same_under_any_hash_seed():
    """Families, blocks and groups do not depend on the process or its hash seed."""
    script = (
        "from tests.test_blocks import *\n"
        "for g in (experts(3, 4), recurrent(5, 3), stack(['q', 'w', 'e'])):\n"
        "    b = repeated_blocks(g)\n"
        "    print([f.ops.tolist() for f in b.families], [f.parents.tolist() for f in b.families], found(b))\n"
        "    print(by_block(g, b).group_of.tolist(), b.tie(2).group_of.tolist())\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "77")
    }  # fmt: skip
    assert len(said) == 1
    assert said.pop()


@pytest.mark.parametrize("scoped", [True, False])
def test_hundred_thousand_operations(scoped, capsys):
    """2,000 layers of 4 experts in 100,000 operations: every layer and every expert is found."""
    ops = [Operation("x", "input", "input", outputs=[Tensor(8)])]
    last = "x"
    for k in range(2000):
        scope = f"model.layers.{k}"
        ops.append(Operation(f"r{k}", "route", scope=scope, inputs=[last], outputs=[Tensor(8)]))
        ends = []
        for e in range(4):
            read = f"r{k}"
            for j in range(12):
                ops.append(
                    Operation(
                        f"{k}.{e}.{j}", f"op{j}", scope=f"{scope}.experts.{e}", inputs=[read], outputs=[Tensor(8)]
                    )
                )
                read = f"{k}.{e}.{j}"
            ends.append(read)
        ops.append(Operation(f"j{k}", "join", scope=scope, inputs=ends, outputs=[Tensor(8)]))
        last = f"j{k}"
    graph = build_graph("long", ops if scoped else [replace(op, scope="") for op in ops])
    begin = time.perf_counter()
    blocks = repeated_blocks(graph)
    middle = time.perf_counter()
    grouping = by_block(graph, blocks)
    end = time.perf_counter()
    with capsys.disabled():
        print(f"\n{graph.n_ops} operations: blocks {middle - begin:.2f} s, groups {end - middle:.2f} s")
    assert [(f.n_blocks, f.size) for f in blocks.families] == [(2000, 50), (8000, 12)]
    assert blocks.families[1].parents[:, 1].tolist() == [k for k in range(2000) for _ in range(4)]
    assert grouping.n_groups == 1 + 2000

"""Grouping: numbered by first operation, lifted back, joined by co-location, and convex or not."""

import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.errors import InputError
from placewright.grouping import Grouping
from placewright.operations import Operation, Tensor, build_graph


def random_graph(seed, n_ops):
    """Operations of up to two outputs that read up to two tensors; some only wait."""
    rng = random.Random(seed)
    ops, tensors = [], []
    for i in range(n_ops):
        reads = [rng.choice(tensors) for _ in range(rng.randrange(3)) if tensors]
        after = [rng.choice(ops).name] if ops and rng.random() < 0.2 else []
        outputs = [Tensor(8)] * rng.choice((0, 1, 1, 2))
        ops.append(Operation(f"op{i}", inputs=reads, after=after, outputs=outputs))
        tensors += [(f"op{i}", k) for k in range(len(outputs))]
    return build_graph("random", ops)


def reads_of(graph):
    """(maker, reader) of every read."""
    return list(zip(graph.tensor_op[graph.in_tensor].tolist(), graph.read_op.tolist(), strict=True))


def edges_of(graph):
    """(before, after) of every read and every order-only edge."""
    after = [graph.after_op[graph.after_start[i] : graph.after_start[i + 1]].tolist() for i in range(graph.n_ops)]
    return reads_of(graph) + [(j, i) for i, row in enumerate(after) for j in row]


def joined_one_by_one(graph, group):
    """The fixpoint of the heuristic: join the last group that only one other group reads, one at a time."""
    group = list(group)
    while True:
        readers = {}
        for a, b in reads_of(graph):
            if group[a] != group[b]:
                readers.setdefault(group[a], set()).add(group[b])
        alone = [g for g, others in readers.items() if len(others) == 1]
        if not alone:
            return [group.index(g) for g in group]
        old, (new,) = max(alone), readers[max(alone)]
        group = [new if g == old else g for g in group]


graphs = st.builds(random_graph, st.integers(0, 10**9), st.integers(1, 12))
labelled = graphs.flatmap(
    lambda g: st.tuples(st.just(g), st.lists(st.integers(0, 3), min_size=g.n_ops, max_size=g.n_ops))
)


# Numbers and lifting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "numbered"),
    [([7, 7, 2, 7, 0], [0, 0, 1, 0, 2]), ([-5, 3, -5], [0, 1, 0]), ([], []), (np.array([9, 1], np.uint8), [0, 1])],
)
def test_groups_are_numbered_by_first_operation(given, numbered):
    """Whatever numbers are given, the groups are 0, 1, ... in order of their first operation."""
    grouping = Grouping(np.asarray(given))
    assert grouping.group_of.tolist() == numbered
    assert grouping.group_of.dtype == np.int32
    assert grouping.n_groups == max(numbered, default=-1) + 1
    assert not grouping.group_of.flags.writeable


@pytest.mark.parametrize("given", [[[0, 1]], [0.0, 1.0], 3, ["a"], [True]])
def test_groups_are_whole_numbers(given):
    """What is no flat list of whole numbers is refused."""
    with pytest.raises(InputError, match="group_of must be a flat list of whole numbers"):
        Grouping(np.array(given))


def test_singletons(fork8):
    """Every operation by itself."""
    assert Grouping.singletons(fork8).group_of.tolist() == list(range(8))


def test_given_labels():
    """Groups by label, in order of first use."""
    assert Grouping.given(["z", "a", "z", ""]).group_of.tolist() == [0, 1, 0, 2]


def test_by_scope(diamond4, fork8):
    """By the first parts of the scope; an operation without a scope is by itself, even named like a scope."""
    assert Grouping.by_scope(diamond4, 1).group_of.tolist() == [0, 0, 0, 1]
    assert Grouping.by_scope(diamond4, 2).group_of.tolist() == [0, 1, 2, 3]
    assert Grouping.by_scope(diamond4, 9).group_of.tolist() == [0, 1, 2, 3]
    assert Grouping.by_scope(fork8, 1).group_of.tolist() == [0, *[1] * 6, 2]
    graph = build_graph("g", [Operation("net"), Operation("x", scope="net"), Operation("y", scope="network")])
    assert Grouping.by_scope(graph, 1).group_of.tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="depth is 0; 1 or more is allowed"):
        Grouping.by_scope(graph, 0)


def test_lift():
    """Devices of groups become devices of operations; another number of devices than groups is refused."""
    grouping = Grouping(np.array([0, 1, 0, 2]))
    assert grouping.lift([5, 6, 7]).tolist() == [5, 6, 5, 7]
    assert grouping.lift([5, 6, 7]).dtype == np.int16
    for wrong in ([5, 6], [5, 6, 7, 8], [[5, 6, 7]]):
        with pytest.raises(InputError, match="devices for 3 groups"):
            grouping.lift(wrong)


# The co-location heuristic ------------------------------------------------------------------------------------------


def test_colocation_by_hand(chain3, diamond4, fork8):
    """A chain is one group; in a diamond and a fork the arms join the end, and then the start has one reader too."""
    assert Grouping.by_colocation(chain3).n_groups == 1
    assert Grouping.by_colocation(diamond4).n_groups == 1
    assert Grouping.by_colocation(fork8).n_groups == 1


def test_colocation_stops_at_two_readers():
    """Two ends keep apart, and what both read stays by itself; what one of them reads joins that one."""
    made = [Tensor(8)]
    graph = build_graph(
        "g",
        [
            Operation("shared", outputs=made),
            Operation("own", outputs=made),
            Operation("left", inputs=["shared", "own"]),
            Operation("right", inputs=["shared"]),
        ],
    )
    assert Grouping.by_colocation(graph).group_of.tolist() == [0, 1, 1, 2]


def test_colocation_counts_groups_not_operations():
    """A tensor with two readers joins them when they are of one group to begin with."""
    graph = build_graph(
        "g", [Operation("x", outputs=[Tensor(8)]), Operation("y", inputs=["x"]), Operation("z", inputs=["x"])]
    )
    assert Grouping.by_colocation(graph).group_of.tolist() == [0, 1, 2]
    assert Grouping.by_colocation(graph, Grouping.given(["x", "yz", "yz"])).group_of.tolist() == [0, 0, 0]


def test_colocation_counts_every_output():
    """An operation of two outputs with a reader each has two readers."""
    graph = build_graph(
        "g", [Operation("x", outputs=[Tensor(8)] * 2), Operation("y", inputs=["x"]), Operation("z", inputs=[("x", 1)])]
    )
    assert Grouping.by_colocation(graph).n_groups == 3


def test_colocation_ignores_order():
    """What only waits reads nothing."""
    graph = build_graph("g", [Operation("x", outputs=[Tensor(8)]), Operation("y", after=["x"])])
    assert Grouping.by_colocation(graph).n_groups == 2


def test_colocation_of_nothing():
    """A graph without operations has no groups."""
    assert Grouping.by_colocation(build_graph("empty", [])).n_groups == 0


def test_colocation_needs_a_start_of_the_graph(chain3):
    """A grouping of another number of operations is refused."""
    with pytest.raises(InputError, match="a grouping of 4 operations for a graph of 3"):
        Grouping.by_colocation(chain3, Grouping(np.arange(4)))


@settings(max_examples=150, deadline=None)
@given(labelled)
def test_colocation_against_one_by_one(case):
    """Joining all at once gives what joining one by one gives, from singletons and from any start."""
    graph, labels = case
    for start in (Grouping.singletons(graph), Grouping(np.array(labels))):
        found = Grouping.by_colocation(graph, start).group_of.tolist()
        assert [found.index(g) for g in found] == joined_one_by_one(graph, start.group_of.tolist())


# Convexity ----------------------------------------------------------------------------------------------------------


def comes_back(graph, group):
    """Whether some path of groups returns to where it began: each leg an edge between operations of two groups."""
    edges = edges_of(graph)

    def walk(here, path):
        for a, b in edges:
            if group[a] == here != group[b] and (group[b] in path or walk(group[b], (*path, group[b]))):
                return True
        return False

    return any(walk(g, (g,)) for g in set(group))


def leaves_and_returns(graph, group):
    """Whether some path of operations leaves a group and comes back to it."""
    n = graph.n_ops
    reach = np.eye(n, dtype=bool)
    for a, b in edges_of(graph):
        reach[a, b] = True
    for k in range(n):
        reach |= reach[:, [k]] & reach[[k], :]
    return any(
        reach[a, b] and reach[b, c] and group[a] == group[c] != group[b] for a, b, c in product(range(n), repeat=3)
    )


def test_convex_by_hand(chain3, diamond4, fork8):
    """A group around something outside it is not convex; arms, layers and whole graphs are."""
    for graph, labels, convex in (
        (chain3, "aab", True),
        (chain3, "aba", False),
        (diamond4, "abba", False),
        (diamond4, "abbc", True),
        (diamond4, "aabb", True),
        (diamond4, "abaa", False),
        (fork8, "aaaaaaaa", True),
        (fork8, "abcdefgh", True),
        (fork8, "abbbbbba", False),
    ):
        assert Grouping.given(labels).is_convex(graph) == convex, labels


def test_order_only_edges_count():
    """A group around an operation that only waits is not convex either."""
    graph = build_graph("g", [Operation("a"), Operation("b", after=["a"]), Operation("c", after=["b"])])
    assert not Grouping.given("aba").is_convex(graph)
    assert Grouping.given("abb").is_convex(graph)


def test_groups_that_wait_for_each_other_are_not_convex():
    """Two groups with an edge each way cannot be contracted, even where no path of operations goes there and back."""
    made = [Tensor(8)]
    graph = build_graph(
        "g",
        [
            Operation("a", outputs=made),
            Operation("b", inputs=["a"]),
            Operation("c", outputs=made),
            Operation("d", inputs=["c"]),
        ],
    )
    crossed = Grouping.given(["left", "right", "right", "left"])
    assert not leaves_and_returns(graph, crossed.group_of.tolist())
    assert not crossed.is_convex(graph)


@settings(max_examples=150, deadline=None)
@given(labelled)
def test_convex_against_search(case):
    """Groups are convex exactly if no path of groups comes back; then no path of operations does."""
    graph, labels = case
    convex = Grouping(np.array(labels)).is_convex(graph)
    assert convex == (not comes_back(graph, labels))
    if convex:
        assert not leaves_and_returns(graph, labels)

"""OpGraph: frozen, edges both ways, and a refusal, with the operation's name, for every rule that it has."""

from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from placewright.checks import MAX_BYTES
from placewright.errors import GraphError, UnknownNameError
from placewright.graph import PARAMETER, PHASES, STORE, Measured, OpGraph
from placewright.operations import Operation, Tensor, build_graph
from tests.strategies import problems

GRAPHS = problems(14).map(lambda case: case[0].graph)
ARRAYS = [f.name for f in fields(OpGraph) if "NDArray" in str(f.type) or f.type in ("Ints", "Longs", "Floats", "Bools")]


def rows(start, values):
    """CSR as a list of lists."""
    return [values[start[i] : start[i + 1]].tolist() for i in range(len(start) - 1)]


def refused(graph, message, **changes):
    """The graph with some arrays changed is refused with that message."""
    with pytest.raises(GraphError) as caught:
        replace(graph, **changes)
    assert message in str(caught.value)


def put(array, index, value):
    """A copy with one entry changed."""
    copy = np.array(array)
    copy[index] = value
    return copy


# What a graph is ----------------------------------------------------------------------------------------------------


def test_every_array_is_frozen(train6):
    """No array of a graph can be written, given or derived, and no field can be set."""
    derived = [train6.tensor_op, train6.read_op, *train6.consumers, *train6.before, train6.persistent,
               train6.detachable, train6.off_queue, train6.colocated_pairs, train6.persistent_root]  # fmt: skip
    assert len(ARRAYS) == 17
    for array in [*(getattr(train6, name) for name in ARRAYS), *derived]:
        assert not array.flags.writeable
    with pytest.raises(FrozenInstanceError):
        train6.name = "other"
    with pytest.raises(ValueError, match="read-only"):
        train6.flops[0] = 1


def test_a_graph_keeps_its_own_copy(chain3):
    """Changing an array after a graph was made of it changes nothing."""
    flops = np.ones(3)
    graph = replace(chain3, flops=flops)
    flops[:] = 5
    assert graph.flops.tolist() == [1, 1, 1]


def test_chain(chain3):
    """Sizes, indices and edges of a chain."""
    assert (chain3.n_ops, chain3.n_tensors, chain3.op("c")) == (3, 3, 2)
    assert chain3.index == {"a": 0, "b": 1, "c": 2}
    assert rows(chain3.in_start, chain3.in_tensor) == [[], [0], [1]]
    assert rows(*chain3.consumers) == [[1], [2], []]
    assert chain3.persistent_bytes == 0
    assert repr(chain3) == "OpGraph('chain3', 3 operations, 3 tensors)"


def test_fork(fork8):
    """A tensor with many consumers lists them in program order."""
    assert rows(*fork8.consumers) == [[1, 2, 3, 4, 5, 6], *[[7]] * 6, []]
    assert fork8.in_tensor[fork8.in_start[7] :].tolist() == [1, 2, 3, 4, 5, 6]


def test_training_step(train6):
    """What is persistent, overwritten, off the queues, and together in a training step of one parameter."""
    assert train6.persistent.tolist() == [False, True, False, False, False]
    assert train6.detachable.tolist() == [False, False, False, False, True]
    assert train6.off_queue.tolist() == [True, True, False, False, False, True]
    assert train6.persistent_root.tolist() == [-1, 1, -1, -1, 1]
    assert train6.colocated_pairs.tolist() == [[3, 2], [5, 1]]
    assert train6.persistent_bytes == 4000


def test_unknown_operation_lists_the_known(chain3):
    """A name that no operation has is an error that lists those that exist."""
    with pytest.raises(UnknownNameError, match=r"unknown operation 'd'\..* Known: a, b, c"):
        chain3.op("d")


def test_phases_have_their_numbers():
    """The phases are those of the design, and the numbers of the arrays are their places."""
    assert PHASES == ("input", "parameter", "forward", "backward", "update", "store")
    assert (PHASES[PARAMETER], PHASES[STORE]) == ("parameter", "store")


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(GRAPHS)
def test_both_directions_agree(graph):
    """Consumers and waiting operations are what a search through every read finds, in program order."""
    reads, waits = rows(graph.in_start, graph.in_tensor), rows(graph.after_start, graph.after_op)
    ops = range(graph.n_ops)
    assert rows(*graph.consumers) == [[i for i in ops if t in reads[i]] for t in range(graph.n_tensors)]
    assert rows(*graph.before) == [[i for i in ops if j in waits[i]] for j in ops]
    assert graph.read_op.tolist() == [i for i in ops for _ in reads[i]]
    made = [range(graph.out_start[i], graph.out_start[i + 1]) for i in ops]
    assert graph.tensor_op.tolist() == [next(i for i in ops if t in made[i]) for t in range(graph.n_tensors)]


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(GRAPHS)
def test_storage_and_togetherness_by_search(graph):
    """Roots by following storage to its end; pairs by the rule, for views, writes in place and stores."""
    storage, owner = graph.tensor_storage.tolist(), graph.tensor_op.tolist()
    parameter = [graph.phase[i] == PARAMETER for i in range(graph.n_ops)]
    roots, pairs = [], set()
    for t in range(graph.n_tensors):
        root = t
        while storage[root] != root:
            root = storage[root]
        roots.append(root if parameter[owner[root]] else -1)
        new = graph.tensor_in_place[t] and parameter[owner[storage[t]]]
        if storage[t] != t and not new:
            pairs.add((owner[t], owner[storage[t]]))
    for i in range(graph.n_ops):
        if graph.phase[i] == STORE:
            pairs |= {(i, owner[roots[t]]) for t in graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]]}
    assert graph.persistent_root.tolist() == roots
    assert graph.colocated_pairs.tolist() == sorted(map(list, pairs))


# What a graph refuses, array by array -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["kinds", "scopes", "dtypes", "phase", "flops", "bytes_read", "bytes_written", "workspace_bytes", "colocation"],
)
def test_one_entry_per_operation(chain3, name):
    """A list that is one short is refused by name."""
    refused(chain3, f"{name} has 2 entries for 3 operations", **{name: getattr(chain3, name)[:2]})


@pytest.mark.parametrize("name", ["tensor_storage", "tensor_in_place", "tensor_output", "tensor_transfer_s"])
def test_one_entry_per_tensor(chain3, name):
    """An array that is one short is refused by name."""
    refused(chain3, f"{name} has 2 entries for 3 tensors", **{name: getattr(chain3, name)[:2]})


def test_one_shape_per_tensor(chain3):
    """Shapes are given for every tensor or for none."""
    refused(chain3, "tensor_shapes has 1 entries for 3 tensors", tensor_shapes=((1,),))
    assert replace(chain3, tensor_shapes=((1,), None, (2, 3))).tensor_shapes == ((1,), None, (2, 3))


@pytest.mark.parametrize("name", ["out_start", "in_start", "after_start"])
def test_csr_starts(chain3, name):
    """Starts must have a row more than operations, begin at 0, end at the total and never fall."""
    start = getattr(chain3, name)
    for wrong in (start[:-1], put(start, 0, 1), put(start, -1, start[-1] + 1), put(start, 1, start[-1] + 1)):
        refused(chain3, f"{name} is no valid CSR start for 3 rows", **{name: wrong})


def test_names_differ(chain3):
    """Two operations of one name are refused with that name."""
    refused(chain3, "graph 'chain3': two operations are named 'a'; names must differ", op_names=("a", "b", "a"))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("phase", (-1, 6), "phase must be one of input, parameter, forward, backward, update, store"),
        ("flops", (-1, np.nan, np.inf), "flops must be a finite number, not negative"),
        ("bytes_read", (-1, MAX_BYTES + 1), f"bytes_read must be in 0 to {MAX_BYTES}"),
        ("bytes_written", (-1, MAX_BYTES + 1), f"bytes_written must be in 0 to {MAX_BYTES}"),
        ("workspace_bytes", (-1, MAX_BYTES + 1), f"workspace_bytes must be in 0 to {MAX_BYTES}"),
    ],
)
def test_values_of_operations(chain3, name, values, message):
    """A value out of range is refused with the name of its operation."""
    for value in values:
        refused(chain3, f"graph 'chain3': operation 'b': {message}", **{name: put(getattr(chain3, name), 1, value)})


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("tensor_bytes", (-1, MAX_BYTES + 1), f"bytes must be in 0 to {MAX_BYTES}"),
        ("tensor_transfer_s", (-1, np.inf, -np.inf), "transfer_s must be finite, not negative"),
        ("tensor_storage", (-1, 2, 7), "storage must be itself or an earlier tensor"),
    ],
)
def test_values_of_tensors(chain3, name, values, message):
    """A value out of range is refused with the name of the operation and the number of its output."""
    for value in values:
        changes = {name: put(getattr(chain3, name), 1, value)}
        refused(chain3, f"graph 'chain3': operation 'b', output 0: {message}", **changes)


@pytest.mark.parametrize("name", ["bytes_read", "bytes_written", "workspace_bytes", "tensor_bytes"])
def test_the_largest_size(chain3, name):
    """The largest size itself is allowed."""
    assert getattr(replace(chain3, **{name: np.array([0, MAX_BYTES, 0])}), name)[1] == MAX_BYTES


@pytest.mark.parametrize("name", ["tensor_bytes", "workspace_bytes"])
def test_bytes_in_all(chain3, name):
    """Sizes that are fine each but too much together are refused, so that no sum can overflow."""
    refused(chain3, f"bytes in all; at most {MAX_BYTES} are allowed", **{name: np.array([MAX_BYTES // 2] * 3)})
    replace(chain3, **{name: np.array([MAX_BYTES // 4] * 3)})


def test_reads_that_do_not_exist(chain3):
    """A read of a tensor, or a wait for an operation, that there is none of."""
    for value in (-1, 3):
        refused(chain3, "reads a tensor that does not exist", in_tensor=put(chain3.in_tensor, 0, value))
        refused(
            chain3, "waits for an operation that does not exist", after_start=[0, 0, 0, 1], after_op=np.array([value])
        )


def test_measured_seconds(chain3):
    """Measured seconds are one per operation and not negative; NaN and infinity have a meaning."""
    with pytest.raises(GraphError, match="'m' are not one per operation"):
        chain3.with_measured(Measured("m", np.ones(2)))
    with pytest.raises(GraphError, match="on 'm' must not be negative"):
        Measured("m", np.array([1, -1e-9, 1]))
    seconds = chain3.with_measured(Measured("m", np.array([np.nan, np.inf, 0]))).measured[0].seconds
    assert not seconds.flags.writeable
    np.testing.assert_array_equal(seconds, [np.nan, np.inf, 0])


def test_measured_is_compared_by_identity():
    """Two records of arrays can be compared and hashed; only the same one is equal."""
    one, two = Measured("m", np.ones(2)), Measured("m", np.ones(2))
    assert one != two
    assert len({one, two, one}) == 2


# What a graph refuses, as it is built -------------------------------------------------------------------------------

X = Operation("x", outputs=[Tensor(8)])
W = Operation("w", phase="parameter", outputs=[Tensor(8)])
NEW = Operation("new", phase="update", outputs=[Tensor(8, ("w", 0), in_place=True)])
KEEP = Operation("keep", phase="store", inputs=["new"])
REFUSED = {
    "reads what comes later": (
        [Operation("y", inputs=["x"]), X],
        "operation 'y': comes before an operation that it depends on; operations go in topological order",
    ),
    "reads itself": (
        [Operation("y", inputs=["y"], outputs=[Tensor(8)])],
        "operation 'y': comes before an operation that it depends on",
    ),
    "waits for what comes later": ([Operation("y", after=["x"]), X], "operation 'y': comes before an operation"),
    "waits for itself": ([X, Operation("y", after=["y"])], "operation 'y': comes before an operation"),
    "storage that comes later": (
        [Operation("y", outputs=[Tensor(8, ("x", 0))]), X],
        "operation 'y', output 0: storage must be itself or an earlier tensor",
    ),
    "in place on nothing": (
        [Operation("y", outputs=[Tensor(8), Tensor(8, in_place=True)])],
        "operation 'y', output 1: a tensor written in place must name its storage",
    ),
    "storage of the same operation": (
        [Operation("y", outputs=[Tensor(8), Tensor(8, ("y", 0))])],
        "operation 'y', output 1: storage is of the same operation",
    ),
    "a view that does not read its base": (
        [X, Operation("y", outputs=[Tensor(8, ("x", 0))])],
        "operation 'y', output 0: its operation must read the tensor whose storage it shares, or a view of it",
    ),
    "a view that only waits for its base": (
        [X, Operation("y", after=["x"], outputs=[Tensor(8, ("x", 0))])],
        "operation 'y', output 0: its operation must read",
    ),
    "a write in place that does not read its base": (
        [X, Operation("y", outputs=[Tensor(8, ("x", 0), in_place=True)])],
        "operation 'y', output 0: its operation must read",
    ),
    "a parameter that reads": (
        [X, Operation("w", phase="parameter", inputs=["x"], outputs=[Tensor(8)])],
        "operation 'w': a parameter reads nothing",
    ),
    "a parameter without bytes of its own": (
        # It would have to read what it shares, and a parameter reads nothing.
        [W, Operation("v", phase="parameter", outputs=[Tensor(8, ("w", 0), in_place=True)])],
        "operation 'v', output 0: its operation must read",
    ),
    "a store that makes something": (
        [W, NEW, Operation("keep", phase="store", inputs=["new"], outputs=[Tensor(8)])],
        "operation 'keep': a store reads new values and makes nothing",
    ),
    "a store that reads nothing": ([Operation("keep", phase="store")], "operation 'keep': a store reads new values"),
    "a store of a transient": (
        [X, Operation("keep", phase="store", inputs=["x"])],
        "operation 'keep': a store may only read new values, which are written in place on a persistent tensor",
    ),
    "a store of the parameter itself": (
        [W, NEW, Operation("keep", phase="store", inputs=["new", "w"])],
        "operation 'keep': a store may only read new values",
    ),
    "an input that computes": (
        [Operation("x", phase="input", flops=1.0)],
        "operation 'x': inputs, parameters and stores have no flops and no workspace",
    ),
    "a parameter with workspace": (
        [Operation("w", phase="parameter", workspace_bytes=1)],
        "operation 'w': inputs, parameters and stores have no flops and no workspace",
    ),
    "a store that computes": (
        [W, NEW, Operation("keep", phase="store", inputs=["new"], flops=1.0)],
        "operation 'keep': inputs, parameters and stores have no flops",
    ),
    "new values that are not stored": (
        [W, NEW],
        "operation 'new', output 0: it overwrites a persistent tensor that no store operation stores",
    ),
    "new values of another parameter stored": (
        [W, Operation("v", phase="parameter", outputs=[Tensor(8)]),
         Operation("other", phase="update", outputs=[Tensor(8, ("v", 0), in_place=True)]), NEW, KEEP],
        "operation 'other', output 0: it overwrites a persistent tensor that no store",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_rules_name_the_operation(case):
    """A graph that breaks a rule is refused, and the message names graph, operation and rule."""
    operations, message = REFUSED[case]
    with pytest.raises(GraphError) as caught:
        build_graph("g", operations)
    assert str(caught.value).startswith(f"graph 'g': {message}")


def test_what_is_near_the_rules_is_allowed():
    """The same shapes, done right: views read their base or a view of it, new values need not, stores hold them."""
    graph = build_graph(
        "g",
        [
            X,
            W,
            Operation("y", inputs=["x"], outputs=[Tensor(8, ("x", 0))]),
            Operation("z", inputs=["y"], outputs=[Tensor(8, ("x", 0))]),
            Operation("in", inputs=["z"], outputs=[Tensor(8, ("y", 0), in_place=True)]),
            NEW,
            KEEP,
            Operation("late", phase="input", inputs=["x"], outputs=[Tensor(8)]),
        ],
    )
    assert graph.tensor_storage.tolist() == [0, 1, 0, 0, 0, 1, 6]


def test_reads_are_listed_once_in_order(fork8):
    """A read that is repeated, or out of order, is refused with the operation's name, as is a wait."""
    message = "operation 'join': its reads and order-only edges must each be listed once, in increasing order"
    refused(fork8, message, in_tensor=put(fork8.in_tensor, -1, fork8.in_tensor[-2]))
    refused(fork8, message, in_tensor=put(fork8.in_tensor, [-1, -2], fork8.in_tensor[[-2, -1]]))
    refused(fork8, message, after_start=[0] * 8 + [2], after_op=np.array([3, 3]))


def test_storage_must_have_bytes_of_its_own():
    """A view that names another view as its storage is refused; build_graph flattens it instead."""
    graph = build_graph(
        "g",
        [
            X,
            Operation("y", inputs=["x"], outputs=[Tensor(8, ("x", 0))]),
            Operation("z", inputs=["y"], outputs=[Tensor(8, ("y", 0))]),
        ],
    )
    assert graph.tensor_storage.tolist() == [0, 0, 0]
    refused(
        graph,
        "operation 'z', output 0: storage must name a tensor that has bytes of its own, not a view of one",
        tensor_storage=np.array([0, 0, 1]),
    )


def test_recomputation_is_marked():
    """A mark is of the backward phase only, and where none is given there are none."""
    ops = [X, Operation("f", inputs=["x"], outputs=[Tensor(8)])]
    again = Operation("again", phase="backward", inputs=["x"], outputs=[Tensor(8)], recompute=True)
    assert build_graph("g", [*ops, again]).recompute.tolist() == [False, False, True]
    assert replace(build_graph("g", ops), recompute=np.zeros(0, bool)).recompute.tolist() == [False, False]
    with pytest.raises(GraphError, match="operation 'f': only an operation of the backward phase can repeat"):
        build_graph("g", [X, replace(ops[1], recompute=True)])

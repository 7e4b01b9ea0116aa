"""The slow twin itself, by numbers worked by hand. 512 bytes travel in 1 us unless a test says otherwise."""

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from placewright.costs import Costs
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import Problem
from tests.naive import Naive, simulate
from tests.strategies import random_problem

US = 1_000_000


def machine(n: int = 2, size: int = 1 << 30, shared: bool = False, host: str | None = None) -> Machine:
    """Devices d0, d1, ... with a pool each, and a channel per ordered pair or one for all."""
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    name = "bus" if shared else "c{}{}"
    return Machine(
        "small",
        tuple(Device(f"d{i}", "model", f"p{i}", host) for i in range(n)),
        tuple(Pool(f"p{i}", size) for i in range(n)),
        tuple(Channel(c, 512e6) for c in dict.fromkeys(name.format(i, j) for i, j in pairs)),
        tuple(Route(f"d{i}", f"d{j}", (name.format(i, j),)) for i, j in pairs),
    )


def op(name: str, *inputs: str | tuple[str, int], size: int | None = 512, **more: object) -> Operation:
    """An operation of one output of that size, or of none."""
    outputs = [] if size is None else [Tensor(size)]
    return Operation(name, inputs=inputs, outputs=more.pop("outputs", outputs), **more)  # type: ignore[arg-type]


def parameter(name: str, size: int = 512) -> Operation:
    return op(name, size=size, phase="parameter")


def run(
    ops: Sequence[Operation],
    where: Sequence[int],
    on: Machine | None = None,
    us: Sequence[float] | None = None,
    windows: Sequence[int] | None = None,
    priorities: Sequence[float] | None = None,
    **problem: str,
) -> Naive:
    """Simulate; operations take 1 us each on every device unless `us` says otherwise."""
    on = on or machine()
    graph = build_graph("hand", ops)
    each = np.where(graph.off_queue, 0.0, 1.0) if us is None else np.array(us, float)
    costs = Costs.given(np.repeat(each[:, None] * 1e-6, len(on.devices), 1))
    made = Problem(graph, on, costs, **problem)  # type: ignore[arg-type]
    at = np.array(where, np.int64)
    return simulate(
        made,
        made.placement(
            at,
            None if priorities is None else np.array(priorities, float),
            None if windows is None else np.array(windows),
        ),
    )


def test_nothing_takes_no_time() -> None:
    out = run([], [])
    assert (out.value_ps, out.feasible, out.peak_bytes) == (0, True, [0, 0])


def test_a_chain_on_one_device_holds_two_tensors_at_a_time() -> None:
    out = run([op("a"), op("b", "a"), op("c", "b")], [0, 0, 0])
    assert out.value_ps == out.step_end_ps == 3 * US
    assert out.op_start_ps == [0, US, 2 * US]
    assert out.peak_bytes == [1024, 0]
    assert out.device_busy_ps == [3 * US, 0]
    assert out.transfers == []


def test_a_tensor_travels_and_occupies_both_pools() -> None:
    out = run([op("a", size=500), op("b", "a"), op("c", "a")], [0, 1, 1])
    sent = 976562  # 500 bytes / 512e6, in picoseconds, half to even from 976562.5
    assert out.transfers == [(0, 0, 1, 1, False, US, US + sent)]  # once, however many consumers
    assert out.value_ps == 3 * US + sent
    assert out.peak_bytes == [512, 1024]
    assert out.channel_busy_ps == [sent, 0]


def test_transfers_of_a_shared_channel_go_by_first_consumer() -> None:
    ops = [op("a", size=None, outputs=[Tensor(512), Tensor(512)]), op("b", ("a", 1)), op("c", ("a", 0))]
    out = run(ops, [0, 1, 2], machine(3, shared=True))
    assert [row[:2] + row[5:] for row in out.transfers] == [(0, 0, 2 * US, 3 * US), (1, 0, US, 2 * US)]
    assert run(ops, [0, 1, 2], machine(3, shared=True), discipline="ready").transfers[0][5] == US


def test_program_order_waits_where_the_others_go_on() -> None:
    ops = [op("a"), op("x", "a"), op("y")]
    assert run(ops, [0, 1, 1]).op_start_ps == [0, 2 * US, 3 * US]
    assert run(ops, [0, 1, 1], discipline="ready").op_start_ps == [0, 2 * US, 0]
    ops = [op("a"), op("b"), op("c")]
    out = run(ops, [0, 0, 0], discipline="priority", priorities=[0, 1, 1])
    assert out.op_start_ps == [2 * US, 0, US]


def test_ready_goes_by_round_before_index() -> None:
    # b runs first; then c (ready since the first round) goes before a2 (ready when b ended) by round, not index.
    ops = [op("b"), op("a2", "b"), op("c")]
    assert run(ops, [0, 0, 0], discipline="ready").op_start_ps == [0, 2 * US, US]


def test_order_only_edges_wait_and_send_nothing() -> None:
    out = run([op("a"), op("b", after=["a"])], [0, 1])
    assert (out.op_start_ps, out.transfers) == ([0, US], [])


@pytest.mark.parametrize(("window", "end", "raised"), [(512, 6, False), (0, 6, True), (-1, 4, False), (9999, 4, False)])
def test_a_window_bounds_what_streams(window: int, end: int, raised: bool) -> None:
    # With room for one tensor A is fetched twice and nothing overlaps; with room for two, A stays.
    ops = [parameter("A"), parameter("B"), op("x", "A", size=None), op("y", "B", size=None), op("z", "A", size=None)]
    out = run(ops, [0, 0, 1, 1, 1], windows=[-1, window])
    assert out.value_ps == end * US
    assert out.raised == [False, raised]
    assert [row[:4] for row in out.transfers] == (
        [(0, 0, 1, 2), (0, 0, 1, 4), (1, 0, 1, 3)] if end == 6 else [(0, 0, 1, 2), (1, 0, 1, 3)]
    )
    assert out.peak_bytes == [1024, 512 if end == 6 else 1024]


def test_ready_keeps_one_visit() -> None:
    ops = [parameter("A"), parameter("B"), op("x", "A", size=None), op("y", "B", size=None), op("z", "A", size=None)]
    out = run(ops, [0, 0, 1, 1, 1], windows=[0, 0], discipline="ready")
    assert (len(out.transfers), out.value_ps, out.raised) == (2, 4 * US, [False, False])


def updated(where: list[int]) -> Naive:
    new = Tensor(512, storage=("p", 0), in_place=True)
    ops = [parameter("p"), op("u", "p", phase="update", outputs=[new]), op("s", "u", size=None, phase="store")]
    return run(ops, where)


def test_new_values_at_home_take_nothing() -> None:
    out = updated([0, 0, 0])
    assert (out.value_ps, out.peak_bytes, out.op_end_ps) == (US, [512, 0], [0, US, US])


def test_new_values_elsewhere_go_home_to_the_store() -> None:
    out = updated([0, 1, 0])
    assert out.transfers == [(0, 0, 1, 1, True, 0, US), (1, 1, 0, 2, False, 2 * US, 3 * US)]
    assert out.value_ps == 3 * US
    assert out.peak_bytes == [512, 1024]


def test_a_view_keeps_its_storage_and_travels_with_its_own_bytes() -> None:
    view = Tensor(256, storage=("a", 0))
    ops = [op("a", size=2048), op("v", "a", outputs=[view]), op("b", "v", size=None), op("c", size=512)]
    out = run(ops, [0, 0, 1, 0])
    # v ends at 2 us, travels for half of one; c starts at 2 us while the storage waits for that transfer.
    assert out.transfers == [(1, 0, 1, 2, False, 2 * US, 2 * US + US // 2)]
    assert out.peak_bytes == [2048 + 512, 512]
    assert out.value_ps == 3 * US + US // 2


def test_an_output_lives_to_the_end_and_what_nobody_reads_dies() -> None:
    ops = [op("a"), op("b")]
    assert run(ops, [0, 0]).peak_bytes == [512, 0]
    assert run([op("a", outputs=[Tensor(512, output=True)]), op("b")], [0, 0]).peak_bytes == [1024, 0]


def test_workspace_is_held_while_the_operation_runs() -> None:
    assert run([op("a", workspace_bytes=700), op("b", "a")], [0, 0]).peak_bytes == [512 + 1024, 0]


def test_zero_time_operations_run_one_after_another_at_one_instant() -> None:
    out = run([op("a", outputs=[Tensor(512, output=True)]), op("b", "a"), op("c", "b")], [0, 0, 0], us=[0, 0, 0])
    assert (out.value_ps, out.op_end_ps, out.peak_bytes) == (0, [0, 0, 0], [512 * 3, 0])


def test_inputs_are_there_at_once_wherever_they_are() -> None:
    out = run([op("i", phase="input"), op("j", phase="input"), op("a", "i", "j")], [0, 1, 0])
    assert (out.op_end_ps, out.peak_bytes) == ([0, 0, 2 * US], [512 * 3, 512])


def test_too_much_memory_is_said_and_does_not_stop_the_step() -> None:
    out = run([op("a"), op("b", "a")], [0, 0], machine(size=600))
    assert (out.value_ps, out.feasible, out.reason) == (2 * US, False, "memory")
    assert out.over_bytes == [1024 - 600, 0]


def test_cost_is_said_before_route() -> None:
    apart = Machine(
        "apart", (Device("d0", "m", "p0"), Device("d1", "m", "p1")), (Pool("p0", 1 << 20), Pool("p1", 1 << 20))
    )
    graph = build_graph("hand", [op("a"), op("b", "a")])
    for seconds, reason in (([[0, 0], [0, np.inf]], "cost"), ([[0, 0], [0, 0]], "route")):
        problem = Problem(graph, apart, Costs.given(np.array(seconds, float)))
        out = simulate(problem, problem.placement(np.array([0, 1])))
        assert (out.value_ps, out.feasible, out.reason) == (None, False, reason)


def test_a_route_through_the_host_adds_latency_and_halves_a_channel_met_twice() -> None:
    devices = (Device("h", "m", "ph", "h"), Device("d0", "m", "p0", "h"), Device("d1", "m", "p1", "h"))
    through = Machine(
        "switch",
        devices,
        tuple(Pool(name, 1 << 20) for name in ("ph", "p0", "p1")),
        (Channel("switch", 512e6, 1e-6),),
        tuple(Route(a, b, ("switch",)) for a, b in (("h", "d0"), ("d0", "h"), ("h", "d1"), ("d1", "h"))),
    )
    out = run([op("a"), op("b", "a")], [1, 2], through)
    assert out.transfers == [(0, 1, 2, 1, False, US, 5 * US)]  # 2 us of latency, 512 bytes at half the rate
    assert out.channel_busy_ps == [4 * US]


def test_one_pool_sends_nothing_and_frees_after_its_last_reader() -> None:
    laptop = Machine("laptop", (Device("d0", "m", "p"), Device("d1", "m", "p")), (Pool("p", 1 << 20),))
    out = run([op("a"), op("b", "a"), op("c", "a")], [0, 1, 0], laptop)
    assert (out.value_ps, out.transfers, out.peak_bytes) == (2 * US, [], [3 * 512])


def test_loads_by_hand() -> None:
    # d0 makes a (1 us) for both others, over routes of 1 us; the parameter p is at d0 and streams to d1.
    ops = [parameter("p", 1024), op("a"), op("b", "a", "p"), op("c", "a")]
    out = run(ops, [0, 0, 1, 2], machine(3), objective="max_load")
    assert out.value_ps == (1 + 1 + 2) * US  # d0: itself, a once, p; d1: itself, a, p as well
    assert out.peak_bytes == [1024 + 512, 1024 + 1024, 1024]
    assert run(ops, [0, 0, 1, 2], machine(3, host="d0"), objective="max_load").value_ps == 4 * US  # d1
    out = run(ops, [0, 0, 1, 2], machine(3, shared=True), objective="throughput")
    assert (out.value_ps, out.channel_busy_ps) == (4 * US, [4 * US])
    assert out.op_start_ps == []
    assert (1, 0, 2, 3, False, -1, -1) in out.transfers


def test_throughput_counts_every_visit_and_max_load_each_tensor_once() -> None:
    ops = [parameter("A"), parameter("B"), op("x", "A", size=None), op("y", "B", size=None), op("z", "A", size=None)]
    at, windows = [0, 0, 1, 1, 1], [0, 0]
    assert run(ops, at, windows=windows, us=[0] * 5, objective="throughput").value_ps == 3 * US
    out = run(ops, at, windows=windows, us=[0] * 5, objective="max_load")
    assert (out.value_ps, out.peak_bytes) == (2 * US, [1024, 512])


@pytest.mark.parametrize("seed", range(60))
def test_nothing_does_two_things_at_once(seed: int) -> None:
    problem, placement = random_problem(random.Random(seed), 5 + seed % 30)
    problem = problem.replace(objective="step")
    out = simulate(problem, placement)
    if out.value_ps is None:
        return
    graph = problem.graph
    spans: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for i in np.flatnonzero(~graph.off_queue):
        spans.setdefault(("device", int(placement.devices[i])), []).append((out.op_start_ps[i], out.op_end_ps[i]))
    for _, source, destination, _, _, start, end in out.transfers:
        for c in set(problem.machine.route(source, destination) or ()):
            spans.setdefault(("channel", c), []).append((start, end))
    for rows in spans.values():
        rows.sort()
        assert all(one[1] <= two[0] for one, two in pairwise(rows))
    for t, i in zip(graph.in_tensor, graph.read_op, strict=True):
        assert out.op_end_ps[graph.tensor_op[t]] <= out.op_start_ps[i]
    ends = [*out.op_end_ps, *(row[6] for row in out.transfers)]
    assert out.step_end_ps == max(ends, default=0)

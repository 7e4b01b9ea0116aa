"""Timelines worked by hand, one per rule of the model of execution; no figure here comes from a program.

Every channel carries one byte per microsecond without latency, and every granule is one byte, unless a
test says otherwise: then bytes and microseconds can be counted on fingers. The pictures have one column
per microsecond and one lane per device (capitals) or channel (small letters); a lane shows the first
letter of the operation that runs there, or of the operation whose tensor travels. What takes no time is
not in the picture. Each test runs twice: on the kernel and on its slow twin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from placewright.costs import Costs
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.placement import DEFAULT_WINDOW, Placement
from placewright.problem import Problem
from placewright.sim import simulate
from tests import naive

# ---------------------------------------------------------------- building


def machine(
    devices: str,
    routes: Mapping[str, str] | None = None,
    *,
    latency_us: Mapping[str, float] | None = None,
    bytes_per_us: Mapping[str, float] | None = None,
    pools: Mapping[str, str] | None = None,
    hosts: Mapping[str, str] | None = None,
    granule: Mapping[str, int] | None = None,
    size: Mapping[str, int] | None = None,
    reserve: Mapping[str, int] | None = None,
) -> Machine:
    """A machine from `"A B"` and `{"A>B": "up down"}`; a device has the pool of its name unless `pools` says."""
    names, routes = devices.split(), routes or {}
    pool = {name: (pools or {}).get(name, name) for name in names}
    channels = dict.fromkeys(c for way in routes.values() for c in way.split())
    return Machine(
        "small",
        devices=tuple(Device(n, "any", pool[n], host=(hosts or {}).get(n)) for n in names),
        pools=tuple(
            Pool(p, (size or {}).get(p, 10**6), (granule or {}).get(p, 1), (reserve or {}).get(p, 0))
            for p in dict.fromkeys(pool.values())
        ),
        channels=tuple(
            Channel(c, (bytes_per_us or {}).get(c, 1) * 1e6, (latency_us or {}).get(c, 0) / 1e6) for c in channels
        ),
        routes=tuple(Route(*pair.split(">"), tuple(way.split())) for pair, way in routes.items()),
    )


PAIR = machine("A B", {"A>B": "ab", "B>A": "ba"})
LENT = machine("H G", {"H>G": "hg", "G>H": "gh"})

Row = tuple[Operation, str, float | Mapping[str, float]]


def op(
    name: str,
    device: str,
    us: float | Mapping[str, float] = 0,
    reads: str = "",
    makes: int | Tensor | Sequence[int | Tensor] = (),
    *,
    after: str = "",
    phase: str = "forward",
    workspace: int = 0,
) -> Row:
    """An operation, where it is placed, and its microseconds (everywhere, or by device).

    `reads` is `"a b:1"`: output 0 of a, output 1 of b. `makes` is bytes or a Tensor, or several.
    """
    made = makes if isinstance(makes, Sequence) else (makes,)
    operation = Operation(
        name,
        phase=phase,
        workspace_bytes=workspace,
        inputs=tuple((ref.partition(":")[0], int(ref.partition(":")[2] or 0)) for ref in reads.split()),
        after=tuple(after.split()),
        outputs=tuple(t if isinstance(t, Tensor) else Tensor(t) for t in made),
    )
    return operation, device, us


def param(name: str, device: str, size: int) -> Row:
    """A parameter of so many bytes with its home on the device."""
    return op(name, device, makes=size, phase="parameter")


def view(of: str, size: int, *, in_place: bool = False) -> Tensor:
    """A tensor that shares the storage of output 0 of an operation."""
    return Tensor(size, storage=(of, 0), in_place=in_place)


def case(
    where: Machine,
    *rows: Row,
    discipline: str = "stream",
    objective: str = "step",
    windows: Mapping[str, int] | None = None,
    priorities: Sequence[float] | None = None,
) -> tuple[Problem, Placement]:
    """The problem of these operations on this machine, and the placement that the rows state."""
    names = [device.name for device in where.devices]
    graph = build_graph("small", [operation for operation, _, _ in rows])
    costs = [[(us[d] if isinstance(us, Mapping) else us) / 1e6 for d in names] for _, _, us in rows]
    problem = Problem(graph, where, Costs.given(costs), objective=objective, discipline=discipline)
    sizes = None if windows is None else [windows.get(d, DEFAULT_WINDOW) for d in names]
    return problem, problem.placement({o.name: device for o, device, _ in rows}, priorities, sizes)


# ---------------------------------------------------------------- running


@dataclass
class Seen:
    """What a simulator says, by names and in microseconds. Transfers are in order of (start, tensor, target)."""

    end: float | None
    feasible: bool
    reason: str
    peak: dict[str, int]
    over: dict[str, int]
    busy: dict[str, float]
    """Of devices and channels."""
    raised: list[str]
    """Devices whose window was raised."""
    ops: dict[str, tuple[float, float]]
    """Start and end of every operation."""
    transfers: list[tuple[str, str, str, float, float]]
    """Tensor, source, target, start, end."""
    visits: list[tuple[str, str, str]]
    """Tensor, device and first consumer of the transfers that are visits, in the same order."""


Run = Callable[[Problem, Placement], Seen]
Raw = tuple[int, int, int, int, bool, int, int]


def _us(ps: float) -> float:
    return int(ps) / 1e6


def _kernel(problem: Problem, placement: Placement) -> tuple[Any, Any, Any, list[Raw]]:
    outcome = simulate(problem, placement, timeline=True)
    line = outcome.timeline
    if line is None:
        return outcome, (), (), []
    sent = [(t.tensor, t.source, t.target, t.first_consumer, t.visit, t.start_ps, t.end_ps) for t in line.transfers]
    return outcome, line.op_start_ps, line.op_end_ps, sent


def _twin(problem: Problem, placement: Placement) -> tuple[Any, Any, Any, list[Raw]]:
    outcome = naive.simulate(problem, placement)
    return outcome, outcome.op_start_ps, outcome.op_end_ps, list(outcome.transfers or ())


@pytest.fixture(params=[_kernel, _twin], ids=["kernel", "twin"])
def run(request: pytest.FixtureRequest) -> Run:
    """`run(problem, placement)`: the placement simulated, as plain data."""
    simulator = request.param

    def run(problem: Problem, placement: Placement) -> Seen:
        outcome, starts, ends, sent = simulator(problem, placement)
        graph, there = problem.graph, problem.machine
        devices, pools = [d.name for d in there.devices], [p.name for p in there.pools]
        label = {}
        for i, name in enumerate(graph.op_names):
            first = int(graph.out_start[i])
            for t in range(first, int(graph.out_start[i + 1])):
                label[t] = name if t == first else f"{name}:{t - first}"
        simulated = outcome.value_ps is not None
        lanes = (*zip(devices, outcome.device_busy_ps or (), strict=False),) if simulated else ()
        lanes += (
            (*zip((c.name for c in there.channels), outcome.channel_busy_ps or (), strict=False),) if simulated else ()
        )
        ordered = sorted(sent, key=lambda row: (row[5], row[0], row[2]))
        return Seen(
            end=_us(outcome.value_ps) if simulated else None,
            feasible=outcome.feasible,
            reason=outcome.reason,
            peak=dict(zip(pools, map(int, outcome.peak_bytes), strict=True)) if simulated else {},
            over=dict(zip(pools, map(int, outcome.over_bytes), strict=True)) if simulated else {},
            busy={name: _us(ps) for name, ps in lanes},
            raised=[d for d, flag in zip(devices, outcome.raised, strict=True) if flag] if simulated else [],
            ops={n: (_us(s), _us(e)) for n, s, e in zip(graph.op_names, starts, ends, strict=False)},
            transfers=[(label[t], devices[s], devices[d], _us(b), _us(e)) for t, s, d, _, _, b, e in ordered],
            visits=[(label[t], devices[d], graph.op_names[c]) for t, _, d, c, visit, _, _ in ordered if visit],
        )

    return run


# ---------------------------------------------------------------- disciplines and rounds


def test_stream_runs_in_program_order(run: Run) -> None:
    """Under `stream` an operation that is ready waits for those before it in program order."""
    # us  0123456789
    # B   aaa
    # ba  ...aa
    # A   .....bcccc     c is ready at 0 but comes after b
    seen = run(*case(PAIR, op("a", "B", 3, makes=2), op("b", "A", 1, "a"), op("c", "A", 4)))
    assert seen.ops == {"a": (0, 3), "b": (5, 6), "c": (6, 10)}
    assert seen.transfers == [("a", "B", "A", 3, 5)]
    assert (seen.end, seen.feasible, seen.reason) == (10, True, "")
    assert seen.peak == {"A": 2, "B": 2}
    assert seen.busy == {"A": 5, "B": 3, "ab": 0, "ba": 2}


def test_ready_runs_what_became_ready_first(run: Run) -> None:
    """Under `ready` the round in which an operation became ready goes before its index, which breaks ties."""
    # us  01234567
    # B   pp
    # ba  ..p
    # A   ssssyyzx       s, y, z are ready in round 0 and go by index; x, of lower index, is ready at 3 only
    seen = run(
        *case(
            PAIR,
            op("s", "A", 4),
            op("p", "B", 2, makes=1),
            op("x", "A", 1, "p"),
            op("y", "A", 2),
            op("z", "A", 1),
            discipline="ready",
        )
    )
    assert seen.ops == {"s": (0, 4), "p": (0, 2), "x": (7, 8), "y": (4, 6), "z": (6, 7)}
    assert seen.transfers == [("p", "B", "A", 2, 3)]
    assert seen.end == 8
    assert seen.peak == {"A": 1, "B": 1}


def test_priority_runs_the_larger_first(run: Run) -> None:
    """Under `priority` the ready operation of larger priority runs, ties by index; what is not ready cannot."""
    # us  012345
    # A   bcdaef         e has the largest priority but needs a
    seen = run(
        *case(
            PAIR,
            op("a", "A", 1, makes=1),
            op("b", "A", 1),
            op("c", "A", 1),
            op("d", "A", 1),
            op("e", "A", 1, "a"),
            op("f", "A", 1),
            discipline="priority",
            priorities=[0, 5, 5, 1, 9, -1],
        )
    )
    assert seen.ops == {"b": (0, 1), "c": (1, 2), "d": (2, 3), "a": (3, 4), "e": (4, 5), "f": (5, 6)}
    assert seen.transfers == []
    assert seen.end == 6
    assert seen.peak == {"A": 1, "B": 0}


def test_priority_does_not_interrupt(run: Run) -> None:
    """A running operation is finished before one of larger priority, which became ready meanwhile, starts."""
    # us  01234567
    # B   k
    # ba  .k
    # A   llllhm         h is ready at 2, l runs until 4; then h goes before m, which was ready from the start
    seen = run(
        *case(
            PAIR,
            op("k", "B", 1, makes=1),
            op("l", "A", 4),
            op("m", "A", 1),
            op("h", "A", 1, "k"),
            discipline="priority",
            priorities=[0, 2, 1, 7],
        )
    )
    assert seen.ops == {"k": (0, 1), "l": (0, 4), "m": (5, 6), "h": (4, 5)}
    assert seen.transfers == [("k", "B", "A", 1, 2)]
    assert seen.end == 6
    assert seen.peak == {"A": 1, "B": 1}


SHARED = machine("A B", pools={"A": "M", "B": "M"})


def test_zero_length_operation_makes_another_round(run: Run) -> None:
    """What becomes ready in a later round of the same instant goes later, although time and index say otherwise."""
    # us  01234
    # A   ssswl
    # B   kk
    # At 2: round i: k ends, z and w are ready, z starts (0 us). Round ii: z ends, l is ready.
    # At 3, s ends: w, ready in round i, goes before l, ready in round ii, of the lower index.
    # M: k is 1 byte until w ends, z is 1 byte from 2 until l ends.
    seen = run(
        *case(
            SHARED,
            op("s", "A", 3),
            op("k", "B", 2, makes=1),
            op("z", "B", 0, "k", 1),
            op("l", "A", 1, "z"),
            op("w", "A", 1, "k"),
            discipline="ready",
        )
    )
    assert seen.ops == {"s": (0, 3), "k": (0, 2), "z": (2, 2), "l": (4, 5), "w": (3, 4)}
    assert seen.transfers == []
    assert seen.end == 5
    assert seen.peak == {"M": 2}


def test_device_starts_at_most_one_operation_per_round(run: Run) -> None:
    """Two operations of zero length on one device start at the same time but in two rounds."""
    # us  012
    # A   syx
    # Round 0: s and e start. Round 1, at 0: e ends, y is ready; f starts. Round 2, at 0: f ends, x is ready.
    # At 1: y (round 1, index 4) goes before x (round 2, index 3).
    seen = run(
        *case(
            SHARED,
            op("s", "A", 1),
            op("e", "B", 0, makes=1),
            op("f", "B", 0, makes=1),
            op("x", "A", 1, "f"),
            op("y", "A", 1, "e"),
            discipline="ready",
        )
    )
    assert seen.ops == {"s": (0, 1), "e": (0, 0), "f": (0, 0), "x": (2, 3), "y": (1, 2)}
    assert seen.end == 3
    assert seen.peak == {"M": 2}


def test_input_ends_in_the_round_in_which_it_is_ready(run: Run) -> None:
    """An input ends within round 0, so that its consumer is as early as an operation that reads nothing."""
    # us  012
    # A   ccd            both are ready in round 0; had x taken a round of its own, d would go first
    seen = run(
        *case(PAIR, op("x", "A", makes=3, phase="input"), op("c", "A", 2, "x"), op("d", "A", 1), discipline="ready")
    )
    assert seen.ops == {"x": (0, 0), "c": (0, 2), "d": (2, 3)}
    assert seen.end == 3
    assert seen.peak == {"A": 3, "B": 0}


def test_input_is_on_no_queue(run: Run) -> None:
    """An input does not wait for the operations that are before it in program order on its device."""
    # us  01234
    # A   kkkkk
    # ab  xx
    # B   ..b
    seen = run(*case(PAIR, op("k", "A", 5), op("x", "A", makes=2, phase="input"), op("b", "B", 1, "x")))
    assert seen.ops == {"k": (0, 5), "x": (0, 0), "b": (2, 3)}
    assert seen.transfers == [("x", "A", "B", 0, 2)]
    assert seen.visits == []
    assert seen.end == 5
    assert seen.peak == {"A": 2, "B": 2}


def test_costs_are_rounded_once_half_to_even(run: Run) -> None:
    """Each operation and each transfer is rounded to picoseconds once, as a whole, half to even."""
    # a 2.5 ps -> 2; b 3.5 -> 4; c 0.4 -> 0. The transfer: 0.3 + 0.3 + 1 byte at 0.3 ps per byte = 0.9 -> 1;
    # its parts, rounded one by one, would all vanish.
    pair = machine("A B", {"A>B": "x y"}, latency_us={"x": 3e-7, "y": 3e-7}, bytes_per_us={"x": 1e7 / 3, "y": 1e7})
    problem, placement = case(pair, op("a", "A"), op("b", "A", makes=1), op("c", "B", reads="b"))
    seen = run(problem.replace(costs=Costs.given([[2.5e-12] * 2, [3.5e-12] * 2, [0.4e-12] * 2])), placement)
    assert seen.ops == {"a": (0, 2e-6), "b": (2e-6, 6e-6), "c": (7e-6, 7e-6)}
    assert seen.transfers == [("b", "A", "B", 6e-6, 7e-6)]
    assert seen.end == 7e-6


# ---------------------------------------------------------------- tensors


def test_tensor_travels_once_per_destination(run: Run) -> None:
    """Of several outputs each travels once to every device that needs it, however many consumers it has there."""
    # us  0123456
    # A   a
    # ab  .aaaaa         output 0 (2 bytes, first needed by b) 1-3; output 1 (3 bytes, first needed by c) 3-6
    # B   ...b..c
    # ac  .aaa           output 1
    # C   ....d
    three = machine("A B C", {"A>B": "ab", "A>C": "ac"})
    seen = run(
        *case(
            three,
            op("a", "A", 1, makes=(2, 3)),
            op("b", "B", 1, "a"),
            op("c", "B", 1, "a a:1"),
            op("d", "C", 1, "a:1"),
        )
    )
    assert seen.ops == {"a": (0, 1), "b": (3, 4), "c": (6, 7), "d": (4, 5)}
    assert seen.transfers == [("a", "A", "B", 1, 3), ("a:1", "A", "C", 1, 4), ("a:1", "A", "B", 3, 6)]
    assert seen.visits == []
    assert seen.end == 7
    assert seen.peak == {"A": 5, "B": 5, "C": 3}


def test_nothing_is_sent_within_a_pool(run: Run) -> None:
    """Two devices of one pool read each other's tensors and parameters where they are."""
    # us  012
    # A   ac
    # B   .bb
    # M: w 3 for the whole step + a 4 until 3 + b 1, an output: 8.
    seen = run(
        *case(
            SHARED,
            param("w", "A", 3),
            op("a", "A", 1, makes=4),
            op("b", "B", 2, "w a", Tensor(1, output=True)),
            op("c", "A", 1, "a"),
        )
    )
    assert seen.ops == {"w": (0, 0), "a": (0, 1), "b": (1, 3), "c": (1, 2)}
    assert seen.transfers == []
    assert seen.end == 3
    assert seen.peak == {"M": 8}
    assert seen.raised == []


def test_each_device_of_a_pool_receives_its_own_copy(run: Run) -> None:
    """A tensor travels once per destination device, to two devices of one pool twice."""
    # us  01234
    # G   a
    # gc  .aa
    # gd  .aa
    # C   ...b
    # D   ...cc
    # M: two copies of 2 bytes from 1.
    three = machine("G C D", {"G>C": "gc", "G>D": "gd"}, pools={"C": "M", "D": "M"})
    seen = run(*case(three, op("a", "G", 1, makes=2), op("b", "C", 1, "a"), op("c", "D", 2, "a")))
    assert seen.ops == {"a": (0, 1), "b": (3, 4), "c": (3, 5)}
    assert seen.transfers == [("a", "G", "C", 1, 3), ("a", "G", "D", 1, 3)]
    assert seen.end == 5
    assert seen.peak == {"G": 2, "M": 4}


def test_tensor_read_twice_is_consumed_once(run: Run) -> None:
    """An operation that reads a tensor twice gets it by one transfer, and its end frees the copy."""
    # us  012345
    # A   a
    # ab  .aaa
    # B   ....bc         B: the copy is 3 bytes until b ends, then c makes 3 bytes
    seen = run(*case(PAIR, op("a", "A", 1, makes=3), op("b", "B", 1, "a a"), op("c", "B", 1, makes=3)))
    assert seen.ops == {"a": (0, 1), "b": (4, 5), "c": (5, 6)}
    assert seen.transfers == [("a", "A", "B", 1, 4)]
    assert seen.end == 6
    assert seen.peak == {"A": 3, "B": 3}


def test_order_only_edge_waits_and_sends_nothing(run: Run) -> None:
    """An order-only edge makes its consumer wait for the producer's end, and needs no route."""
    # us  0123
    # B   aaa
    # A   ...b
    apart = machine("A B")
    seen = run(*case(apart, op("a", "B", 3, makes=2), op("b", "A", 1, makes=1, after="a")))
    assert seen.ops == {"a": (0, 3), "b": (3, 4)}
    assert seen.transfers == []
    assert (seen.end, seen.feasible) == (4, True)
    assert seen.peak == {"A": 1, "B": 2}


# ---------------------------------------------------------------- channels and routes

NIC = machine("A B C", {"A>B": "nic", "A>C": "nic"})


@pytest.mark.parametrize("discipline", ["stream", "ready"])
def test_shared_channel_carries_one_transfer_at_a_time(run: Run, discipline: str) -> None:
    """Two routes that share a channel take turns while their device computes on."""
    #      stream                     ready
    # us   01234567                   01234567
    # A    akkkkkk                    akkkkkk
    # nic  .aaaa                      .aaaa
    # C    ...c                       .....c
    # B    .....b                     ...b
    # Under stream the tensor goes first where its first consumer comes first (c, on C); under ready both
    # transfers are of one round and one tensor, and the destination of lower index (B) goes first.
    seen = run(
        *case(
            NIC,
            op("a", "A", 1, makes=2),
            op("k", "A", 6),
            op("c", "C", 1, "a"),
            op("b", "B", 1, "a"),
            discipline=discipline,
        )
    )
    first, second = (3, 4), (5, 6)
    if discipline == "stream":
        assert seen.ops == {"a": (0, 1), "k": (1, 7), "c": first, "b": second}
        assert seen.transfers == [("a", "A", "C", 1, 3), ("a", "A", "B", 3, 5)]
    else:
        assert seen.ops == {"a": (0, 1), "k": (1, 7), "c": second, "b": first}
        assert seen.transfers == [("a", "A", "B", 1, 3), ("a", "A", "C", 3, 5)]
    assert seen.end == 7
    assert seen.peak == {"A": 2, "B": 2, "C": 2}
    assert seen.busy == {"A": 7, "B": 1, "C": 1, "nic": 4}


CROSSING = (
    op("a", "A", 1, makes=4),
    op("b", "B", 1, makes=4),
    op("c", "A", 1, "b"),
    op("d", "B", 1, "a"),
)


def test_duplex_link_carries_both_ways_at_once(run: Run) -> None:
    """A full-duplex link is two channels, and transfers in opposite directions do not wait for each other."""
    # us  012345
    # A   a....c
    # B   b....d
    # ab  .aaaa
    # ba  .bbbb
    seen = run(*case(PAIR, *CROSSING))
    assert seen.ops == {"a": (0, 1), "b": (0, 1), "c": (5, 6), "d": (5, 6)}
    assert seen.transfers == [("a", "A", "B", 1, 5), ("b", "B", "A", 1, 5)]
    assert seen.end == 6
    assert seen.peak == {"A": 8, "B": 8}


def test_least_first_consumer_goes_first_among_routes(run: Run) -> None:
    """On a half-duplex link the transfer with the earlier first consumer goes first, whatever its tensor."""
    # us   0123456789
    # A    a....c
    # B    b........d
    # bus  .bbbbaaaa     b is needed by c (index 2), a by d (index 3)
    # A: a 4 until 9, copy of b 4 from 1 to 6: 8. B: b 4 until 5, freed before the copy of a starts: 4.
    bus = machine("A B", {"A>B": "bus", "B>A": "bus"})
    seen = run(*case(bus, *CROSSING))
    assert seen.ops == {"a": (0, 1), "b": (0, 1), "c": (5, 6), "d": (9, 10)}
    assert seen.transfers == [("b", "B", "A", 1, 5), ("a", "A", "B", 5, 9)]
    assert seen.end == 10
    assert seen.peak == {"A": 8, "B": 4}


def test_route_takes_all_its_channels_or_none(run: Run) -> None:
    """A transfer waits until every channel of its route is free and holds none meanwhile."""
    # up: 2 bytes per us, latency 1; down: 1 byte per us, latency 2; A>B is up and down, A>C up, C>B down.
    # us    012345678901234
    # C     c.....z.......w
    # A     aaefffff
    # down  .ccccccaaaaa          c: 2 + 4/1 = 6
    # up    ...eee.aaaaaff        e: 1 + 4/2 = 3; a: (1 + 2) + 2/min(2, 1) = 5; f: 1 + 2/2 = 2
    # B     .......x....y
    # a is ready at 2 and waits for down until 7, leaving up to e; f is ready at 8 and waits for up until 12.
    # A: a 2 (0-12), e 4 (2-6), f 2 (3-14). B: c 4 (1-8), a 2 (7-13). C: c 4 (0-7), e 4 (3-7), f 2 (12-15).
    tree = machine(
        "A B C",
        {"A>B": "up down", "A>C": "up", "C>B": "down"},
        latency_us={"up": 1, "down": 2},
        bytes_per_us={"up": 2},
    )
    seen = run(
        *case(
            tree,
            op("c", "C", 1, makes=4),
            op("a", "A", 2, makes=2),
            op("e", "A", 1, makes=4),
            op("f", "A", 5, makes=2),
            op("x", "B", 1, "c"),
            op("y", "B", 1, "a"),
            op("z", "C", 1, "e"),
            op("w", "C", 1, "f"),
        )
    )
    assert seen.ops == {
        "c": (0, 1), "a": (0, 2), "e": (2, 3), "f": (3, 8), "x": (7, 8), "y": (12, 13), "z": (6, 7), "w": (14, 15)
    }  # fmt: skip
    assert seen.transfers == [
        ("c", "C", "B", 1, 7),
        ("e", "A", "C", 3, 6),
        ("a", "A", "B", 7, 12),
        ("f", "A", "C", 12, 14),
    ]
    assert seen.end == 15
    assert seen.peak == {"A": 8, "B": 6, "C": 8}
    assert seen.busy == {"A": 8, "B": 2, "C": 3, "up": 10, "down": 11}


def test_missing_route_is_staged_through_the_hosts(run: Run) -> None:
    """A route that is not given goes device, its host, the other's host, device, and occupies all the way at once."""
    # ah: latency 1, 4 bytes per us; hk: latency 2, 1 byte per us; kb: latency 1, 2 bytes per us.
    # us  01234567890123
    # A   a
    # ah  .aaaaaaaa             a: (1 + 2 + 1) + 4/1 = 8
    # hk  .aaaaaaaaxxxx         x: 2 + 2/1 = 4
    # kb  .aaaaaaaa
    # B   .........b
    # H   xx
    # K   .............d        the hosts hold nothing of what passes
    staged = machine(
        "A B H K",
        {"A>H": "ah", "H>K": "hk", "K>B": "kb"},
        latency_us={"ah": 1, "hk": 2, "kb": 1},
        bytes_per_us={"ah": 4, "kb": 2},
        hosts={"A": "H", "B": "K", "H": "H", "K": "K"},
    )
    seen = run(
        *case(staged, op("a", "A", 1, makes=4), op("x", "H", 2, makes=2), op("b", "B", 1, "a"), op("d", "K", 1, "x"))
    )
    assert seen.ops == {"a": (0, 1), "x": (0, 2), "b": (9, 10), "d": (13, 14)}
    assert seen.transfers == [("a", "A", "B", 1, 9), ("x", "H", "K", 9, 13)]
    assert seen.end == 14
    assert seen.peak == {"A": 4, "B": 4, "H": 2, "K": 2}
    assert seen.busy == {"A": 1, "B": 1, "H": 2, "K": 1, "ah": 8, "hk": 12, "kb": 8}


def test_channel_met_twice_has_half_its_bandwidth(run: Run) -> None:
    """A staged route that meets a channel twice pays its latency twice and gets half of its bandwidth."""
    # us   01234567890123
    # A    a
    # bus  .aaaaaaaaaaaa        to B: (1 + 1) + 3/0.5 = 8; then to H: 1 + 3/1 = 4
    # B    .........b
    # H    .............c
    half = machine("A B H", {"A>H": "bus", "H>B": "bus"}, latency_us={"bus": 1}, hosts={"A": "H", "B": "H", "H": "H"})
    seen = run(*case(half, op("a", "A", 1, makes=3), op("b", "B", 1, "a"), op("c", "H", 1, "a")))
    assert seen.ops == {"a": (0, 1), "b": (9, 10), "c": (13, 14)}
    assert seen.transfers == [("a", "A", "B", 1, 9), ("a", "A", "H", 9, 13)]
    assert seen.end == 14
    assert seen.peak == {"A": 3, "B": 3, "H": 3}
    assert seen.busy == {"A": 1, "B": 1, "H": 1, "bus": 12}


def test_route_missing_even_so_is_infeasible(run: Run) -> None:
    """A tensor that has no way to its consumer makes the placement infeasible; on one device it is not."""
    one_way = machine("A B", {"B>A": "ba"}, hosts={"A": "A", "B": "A"})
    seen = run(*case(one_way, op("a", "A", 1, makes=1), op("b", "B", 1, "a")))
    assert (seen.end, seen.feasible, seen.reason) == (None, False, "route")
    seen = run(*case(one_way, op("a", "B", 1, makes=1), op("b", "A", 1, "a")))
    assert (seen.end, seen.feasible, seen.reason) == (3, True, "")
    seen = run(*case(one_way, op("a", "A", 1, makes=1), op("b", "A", 1, "a")))
    assert (seen.end, seen.feasible, seen.reason) == (2, True, "")


def test_infinite_cost_is_infeasible(run: Run) -> None:
    """An operation placed where it cannot run makes the placement infeasible."""
    nowhere = {"A": 1, "B": math.inf}
    seen = run(*case(PAIR, op("a", "A", 1, makes=1), op("b", "B", nowhere, "a")))
    assert (seen.end, seen.feasible, seen.reason) == (None, False, "cost")
    seen = run(*case(PAIR, op("a", "A", 1, makes=1), op("b", "A", nowhere, "a")))
    assert (seen.end, seen.feasible, seen.reason) == (2, True, "")


def test_zero_bytes_cost_the_latency(run: Run) -> None:
    """A tensor of no bytes still travels, for the latency; without latency it arrives in the same instant."""
    # us  0123
    # A   a
    # ab  .aa
    # B   ...b
    slow = machine("A B", {"A>B": "ab"}, latency_us={"ab": 2})
    rows = (op("a", "A", 1, makes=0), op("b", "B", 1, "a"))
    seen = run(*case(slow, *rows))
    assert seen.ops == {"a": (0, 1), "b": (3, 4)}
    assert seen.transfers == [("a", "A", "B", 1, 3)]
    assert (seen.end, seen.peak) == (4, {"A": 0, "B": 0})
    seen = run(*case(PAIR, *rows))
    assert seen.ops == {"a": (0, 1), "b": (1, 2)}
    assert seen.transfers == [("a", "A", "B", 1, 1)]
    assert (seen.end, seen.peak) == (2, {"A": 0, "B": 0})


def test_transfer_s_replaces_the_formula(run: Run) -> None:
    """A tensor's own `transfer_s` counts on every route, instead of latency and bandwidth."""
    # us  0123456
    # A   a
    # ab  .aaaaa        output 0: 2 (latency) + 0; output 1: 3, though 2 + 5 by the formula
    # ac  .aaa          output 1: 3, though 9 + 5 by the formula
    # B   ...b..c
    # C   ....d
    three = machine("A B C", {"A>B": "ab", "A>C": "ac"}, latency_us={"ab": 2, "ac": 9})
    seen = run(
        *case(
            three,
            op("a", "A", 1, makes=(0, Tensor(5, transfer_s=3e-6))),
            op("b", "B", 1, "a"),
            op("c", "B", 1, "a:1"),
            op("d", "C", 1, "a:1"),
        )
    )
    assert seen.ops == {"a": (0, 1), "b": (3, 4), "c": (6, 7), "d": (4, 5)}
    assert seen.transfers == [("a", "A", "B", 1, 3), ("a:1", "A", "C", 1, 4), ("a:1", "A", "B", 3, 6)]
    assert seen.end == 7
    assert seen.peak == {"A": 5, "B": 5, "C": 5}


# ---------------------------------------------------------------- queues of transfers

QUEUED = (
    op("p", "A", 1, makes=(2, 1)),
    op("q", "A", 3, makes=2),
    op("x", "B", 1, "q"),
    op("y", "B", 1, "p p:1"),
)


def test_stream_route_sends_in_order_of_first_consumer(run: Run) -> None:
    """Under `stream` a route sends by (first consumer, tensor), and a head that is not made yet blocks it."""
    # us  0123456789
    # A   pqqq
    # ab  ....qqppp      q is for x, so p, made at 1, waits behind it: q 4-6, p:0 6-8, p:1 8-9
    # B   ......x..y
    # A: p 2 + 1 and q 2: 5. B: q 2 until 7, p:0 2 from 6, p:1 1 from 8: 4.
    seen = run(*case(PAIR, *QUEUED))
    assert seen.ops == {"p": (0, 1), "q": (1, 4), "x": (6, 7), "y": (9, 10)}
    assert seen.transfers == [("q", "A", "B", 4, 6), ("p", "A", "B", 6, 8), ("p:1", "A", "B", 8, 9)]
    assert seen.end == 10
    assert seen.peak == {"A": 5, "B": 4}


def test_ready_route_sends_what_is_made(run: Run) -> None:
    """Under `ready` a tensor joins its route's queue when it is made, and those of one round go by index."""
    # us  0123456
    # A   pqqq
    # ab  .pppqq         p:0 1-3, p:1 3-4, q 4-6
    # B   ....y.x
    # B at 4: p:0 2 + p:1 1 until y ends at 5, q 2 from 4: 5.
    seen = run(*case(PAIR, *QUEUED, discipline="ready"))
    assert seen.ops == {"p": (0, 1), "q": (1, 4), "x": (6, 7), "y": (4, 5)}
    assert seen.transfers == [("p", "A", "B", 1, 3), ("p:1", "A", "B", 3, 4), ("q", "A", "B", 4, 6)]
    assert seen.end == 7
    assert seen.peak == {"A": 5, "B": 5}


def test_ready_route_goes_by_round_before_tensor(run: Run) -> None:
    """Under `ready` the tensor that was made in the earlier round is sent first, whatever its index."""
    # us  0123456789
    # A   sgel           l (index 2) needs g and is ready at 2; e (index 3) was ready in round 0
    # ab  .ssssssel
    # B   .......uwv
    # A at 3: s 6, g 1, e 1, l 1. B at 7: s 6 + e 1.
    seen = run(
        *case(
            PAIR,
            op("s", "A", 1, makes=6),
            op("g", "A", 1, makes=1),
            op("l", "A", 1, "g", 1),
            op("e", "A", 1, makes=1),
            op("u", "B", 1, "s"),
            op("v", "B", 1, "l"),
            op("w", "B", 1, "e"),
            discipline="ready",
        )
    )
    assert seen.ops == {
        "s": (0, 1), "g": (1, 2), "e": (2, 3), "l": (3, 4), "u": (7, 8), "v": (9, 10), "w": (8, 9)
    }  # fmt: skip
    assert seen.transfers == [("s", "A", "B", 1, 7), ("e", "A", "B", 7, 8), ("l", "A", "B", 8, 9)]
    assert seen.end == 10
    assert seen.peak == {"A": 9, "B": 7}


MIXED = (
    param("w", "H", 4),
    param("v", "H", 2),
    op("a", "H", 3, makes=1),
    op("b", "G", 1, "a"),
    op("c", "G", 1, "w"),
    op("d", "G", 1, "v"),
)


def test_visits_and_transients_queue_apart(run: Run) -> None:
    """Under `stream` a visit need not wait behind a tensor that is not made yet; the earlier need goes first."""
    # us  01234567
    # H   aaa
    # hg  wwwwavv        w goes at 0 though a is needed before; at 4 a (for b) goes before v (for d)
    # G   .....bcd
    # G at 5: w 4 until 7, a 1 until 6, v 2 from 5.
    seen = run(*case(LENT, *MIXED))
    assert seen.ops == {"w": (0, 0), "v": (0, 0), "a": (0, 3), "b": (5, 6), "c": (6, 7), "d": (7, 8)}
    assert seen.transfers == [("w", "H", "G", 0, 4), ("a", "H", "G", 4, 5), ("v", "H", "G", 5, 7)]
    assert seen.visits == [("w", "G", "c"), ("v", "G", "d")]
    assert seen.end == 8
    assert seen.peak == {"H": 7, "G": 7}


def test_ready_route_has_one_queue(run: Run) -> None:
    """Under `ready` parameters, ready in round 0, are sent before what is made later."""
    # us  01234567
    # H   aaa
    # hg  wwwwvva
    # G   ....c.db
    # G at 4: w 4 until 5, v 2 from 4.
    seen = run(*case(LENT, *MIXED, discipline="ready"))
    assert seen.ops == {"w": (0, 0), "v": (0, 0), "a": (0, 3), "b": (7, 8), "c": (4, 5), "d": (6, 7)}
    assert seen.transfers == [("w", "H", "G", 0, 4), ("v", "H", "G", 4, 6), ("a", "H", "G", 6, 7)]
    assert seen.end == 8
    assert seen.peak == {"H": 7, "G": 6}


def test_transient_passes_a_visit_that_waits_for_room(run: Run) -> None:
    """A visit that does not fit its window yet leaves the route to a tensor that is needed later."""
    # us  0123456789
    # H   aaa
    # hg  wwwa.vvv       window 3: v waits until w's only consumer, c, ends at 5
    # G   ...cc...de
    # G: w 3 until 5, a 1 from 3 to the end, v 3 from 5 until 9.
    seen = run(
        *case(
            LENT,
            param("w", "H", 3),
            param("v", "H", 3),
            op("a", "H", 3, makes=1),
            op("c", "G", 2, "w"),
            op("d", "G", 1, "v"),
            op("e", "G", 1, "a"),
            windows={"G": 3},
        )
    )
    assert seen.ops == {"w": (0, 0), "v": (0, 0), "a": (0, 3), "c": (3, 5), "d": (8, 9), "e": (9, 10)}
    assert seen.transfers == [("w", "H", "G", 0, 3), ("a", "H", "G", 3, 4), ("v", "H", "G", 5, 8)]
    assert seen.end == 10
    assert seen.peak == {"H": 7, "G": 4}
    assert seen.raised == []


# ---------------------------------------------------------------- streaming

THERE_AND_BACK = (  # three layers forward and backward on G, their weights on H
    param("u", "H", 2),
    param("v", "H", 3),
    param("w", "H", 2),
    op("a", "G", 1, "u"),
    op("b", "G", 1, "v"),
    op("c", "G", 1, "w"),
    op("x", "G", 1, "w"),
    op("y", "G", 1, "v"),
    op("z", "G", 1, "u"),
)
AT_ONCE = {"u": (0, 0), "v": (0, 0), "w": (0, 0)}


@pytest.mark.parametrize("window", [3, 1])
def test_smallest_window_sends_every_use(run: Run, window: int) -> None:
    """In the smallest window each use of a weight is a visit; a smaller window is raised to it, and said so."""
    # The smallest window is the largest weight, 3. Walk: a: u. b: u + v > 3, drop u. c: v + w > 3, drop v.
    # x: w is listed, and dropped after its last use. y: v again. z: u again.
    # us  012345678901234567
    # hg  uu.vvv.ww..vvv.uu      each visit waits for the end of the last consumer of the one before
    # G   ..a...b..cx...y..z
    seen = run(*case(LENT, *THERE_AND_BACK, windows={"G": window}))
    assert seen.ops == AT_ONCE | {
        "a": (2, 3), "b": (6, 7), "c": (9, 10), "x": (10, 11), "y": (14, 15), "z": (17, 18)
    }  # fmt: skip
    assert seen.transfers == [
        ("u", "H", "G", 0, 2),
        ("v", "H", "G", 3, 6),
        ("w", "H", "G", 7, 9),
        ("v", "H", "G", 11, 14),
        ("u", "H", "G", 15, 17),
    ]
    assert seen.visits == [("u", "G", "a"), ("v", "G", "b"), ("w", "G", "c"), ("v", "G", "y"), ("u", "G", "z")]
    assert seen.end == 18
    assert seen.peak == {"H": 7, "G": 3}
    assert seen.raised == (["G"] if window < 3 else [])


@pytest.mark.parametrize("windows", [None, {"G": DEFAULT_WINDOW}, {"G": 6}])
def test_default_window_is_the_smallest_plus_the_largest(run: Run, windows: dict[str, int] | None) -> None:
    """By default the window is the smallest that works plus the largest tensor borrowed: 3 + 3."""
    # Walk: a: u. b: u + v = 5. c: u + v + w = 7 > 6, drop u, least recently used. z: u again.
    # us  012345678901
    # hg  uuvvvww..uu            u again at 9: until x ends, v 3 + w 2 + u 2 > 6
    # G   ..a..b.cxy.z
    # G: u 2 + v 3 from 2; v 3 + w 2 from 5 until 9; v 3 + u 2 from 9.
    seen = run(*case(LENT, *THERE_AND_BACK, windows=windows))
    assert seen.ops == AT_ONCE | {
        "a": (2, 3), "b": (5, 6), "c": (7, 8), "x": (8, 9), "y": (9, 10), "z": (11, 12)
    }  # fmt: skip
    assert seen.transfers == [
        ("u", "H", "G", 0, 2),
        ("v", "H", "G", 2, 5),
        ("w", "H", "G", 5, 7),
        ("u", "H", "G", 9, 11),
    ]
    assert seen.visits == [("u", "G", "a"), ("v", "G", "b"), ("w", "G", "c"), ("u", "G", "z")]
    assert seen.end == 12
    assert seen.peak == {"H": 7, "G": 5}
    assert seen.raised == []
    assert seen.busy == {"H": 0, "G": 6, "hg": 9, "gh": 0}


def test_large_window_sends_once(run: Run) -> None:
    """In a window that holds them all each weight is sent once and kept until its last use."""
    # us  01234567890
    # hg  uuvvvww
    # G   ..a..b.cxyz
    seen = run(*case(LENT, *THERE_AND_BACK, windows={"G": 1000}))
    assert seen.ops == AT_ONCE | {
        "a": (2, 3), "b": (5, 6), "c": (7, 8), "x": (8, 9), "y": (9, 10), "z": (10, 11)
    }  # fmt: skip
    assert seen.transfers == [("u", "H", "G", 0, 2), ("v", "H", "G", 2, 5), ("w", "H", "G", 5, 7)]
    assert seen.visits == [("u", "G", "a"), ("v", "G", "b"), ("w", "G", "c")]
    assert seen.end == 11
    assert seen.peak == {"H": 7, "G": 7}
    assert seen.raised == []


def test_ready_has_no_window(run: Run) -> None:
    """Under `ready` a weight visits each device once, whatever the window."""
    # us  012345678
    # hg  uuvvvww
    # G   ..az.bycx          a and z need u only, and so on
    # G: u 2 until 4 + v 3 from 2 until 7; w 2 from 5.
    seen = run(*case(LENT, *THERE_AND_BACK, discipline="ready", windows={"G": 1}))
    assert seen.ops == AT_ONCE | {
        "a": (2, 3), "z": (3, 4), "b": (5, 6), "y": (6, 7), "c": (7, 8), "x": (8, 9)
    }  # fmt: skip
    assert seen.transfers == [("u", "H", "G", 0, 2), ("v", "H", "G", 2, 5), ("w", "H", "G", 5, 7)]
    assert seen.end == 9
    assert seen.peak == {"H": 7, "G": 5}
    assert seen.raised == []


def test_window_drops_the_least_recently_used(run: Run) -> None:
    """A full window drops the weight whose last use is longest ago, not the one that came first."""
    # Window 4. Walk: a: p. b: p, q. c: p. d: p + q + r = 6 > 4, drop q, last used by b. e: p. f: q again.
    # us  01234567890
    # hg  ppqq.rr.qq         r waits for b, q's last consumer (5); q waits for d, r's last (8)
    # G   ..a.bc.de.f
    seen = run(
        *case(
            LENT,
            param("p", "H", 2),
            param("q", "H", 2),
            param("r", "H", 2),
            op("a", "G", 1, "p"),
            op("b", "G", 1, "q"),
            op("c", "G", 1, "p"),
            op("d", "G", 1, "r"),
            op("e", "G", 1, "p"),
            op("f", "G", 1, "q"),
            windows={"G": 4},
        )
    )
    assert seen.ops == {
        "p": (0, 0), "q": (0, 0), "r": (0, 0),
        "a": (2, 3), "b": (4, 5), "c": (5, 6), "d": (7, 8), "e": (8, 9), "f": (10, 11),
    }  # fmt: skip
    assert seen.transfers == [
        ("p", "H", "G", 0, 2),
        ("q", "H", "G", 2, 4),
        ("r", "H", "G", 5, 7),
        ("q", "H", "G", 8, 10),
    ]
    assert seen.visits == [("p", "G", "a"), ("q", "G", "b"), ("r", "G", "d"), ("q", "G", "f")]
    assert seen.end == 11
    assert seen.peak == {"H": 6, "G": 4}


def test_window_drops_the_lower_index_of_equals(run: Run) -> None:
    """Of weights last used by the same operation the one of lower index is dropped."""
    # Window 4, the smallest: a reads p and q. Walk: a: p, q. b: p + q + r = 6 > 4, drop p. c: q. d: p again.
    # us  01234567890
    # hg  ppqq.rr.pp         r waits for a (5); p waits for b, r's last consumer (8)
    # G   ....a..bc.d
    seen = run(
        *case(
            LENT,
            param("p", "H", 2),
            param("q", "H", 2),
            param("r", "H", 2),
            op("a", "G", 1, "p q"),
            op("b", "G", 1, "r"),
            op("c", "G", 1, "q"),
            op("d", "G", 1, "p"),
            windows={"G": 4},
        )
    )
    assert seen.ops == {
        "p": (0, 0), "q": (0, 0), "r": (0, 0), "a": (4, 5), "b": (7, 8), "c": (8, 9), "d": (10, 11)
    }  # fmt: skip
    assert seen.transfers == [
        ("p", "H", "G", 0, 2),
        ("q", "H", "G", 2, 4),
        ("r", "H", "G", 5, 7),
        ("p", "H", "G", 8, 10),
    ]
    assert seen.visits == [("p", "G", "a"), ("q", "G", "a"), ("r", "G", "b"), ("p", "G", "d")]
    assert seen.end == 11
    assert seen.peak == {"H": 6, "G": 4}
    assert seen.raised == []


def test_visits_start_in_strict_order(run: Run) -> None:
    """A visit waits for those before it to start, though it comes by a free route and would fit the window."""
    # Window 4: q (3) waits for a, p's only consumer. r (1) would fit at 0, by a route of its own.
    # us  01234567
    # hg  pp.qqq
    # kg  ...r
    # G   ..a...bc
    three = machine("H K G", {"H>G": "hg", "K>G": "kg"})
    seen = run(
        *case(
            three,
            param("p", "H", 2),
            param("q", "H", 3),
            param("r", "K", 1),
            op("a", "G", 1, "p"),
            op("b", "G", 1, "q"),
            op("c", "G", 1, "r"),
            windows={"G": 4},
        )
    )
    assert seen.ops == {"p": (0, 0), "q": (0, 0), "r": (0, 0), "a": (2, 3), "b": (6, 7), "c": (7, 8)}
    assert seen.transfers == [("p", "H", "G", 0, 2), ("q", "H", "G", 3, 6), ("r", "K", "G", 3, 4)]
    assert seen.end == 8
    assert seen.peak == {"H": 5, "K": 1, "G": 4}


def test_each_device_has_its_own_window(run: Run) -> None:
    """A parameter visits every device that borrows it; one without room leaves the channel to another."""
    # us  012345678
    # up  wwwwuuuu           w to K (for f), then w to G (for g); at 4 u to G (for h) finds no room until g ends
    # K   ..f...i            at 5, so u to K (for i) goes first, though i is after h; u to G at 6
    # G   ....g...h
    tree = machine("H K G", {"H>K": "up", "H>G": "up"})
    seen = run(
        *case(
            tree,
            param("w", "H", 2),
            param("u", "H", 2),
            op("f", "K", 1, "w"),
            op("g", "G", 1, "w"),
            op("h", "G", 1, "u"),
            op("i", "K", 1, "u"),
            windows={"G": 2},
        )
    )
    assert seen.ops == {"w": (0, 0), "u": (0, 0), "f": (2, 3), "g": (4, 5), "h": (8, 9), "i": (6, 7)}
    assert seen.transfers == [
        ("w", "H", "K", 0, 2),
        ("w", "H", "G", 2, 4),
        ("u", "H", "K", 4, 6),
        ("u", "H", "G", 6, 8),
    ]
    assert seen.visits == [("w", "K", "f"), ("w", "G", "g"), ("u", "K", "i"), ("u", "G", "h")]
    assert seen.end == 9
    assert seen.peak == {"H": 4, "K": 2, "G": 2}
    assert seen.raised == []


# ---------------------------------------------------------------- memory


def test_life_of_a_tensor_and_of_its_copy(run: Run) -> None:
    """A tensor lives from its operation's start to its last use at home or sending; a copy from its sending."""
    # us  01234567
    # A   aabddeef       a (4) until its transfer ends at 6: 4 + d 3 = 7, 4 + e 5 = 9; then f 8
    # ab  ..aaaa
    # B   ggg...ch       g (3) until 3, copy of a (4) from 2 until 7: 7; then h 6
    # d, e, f, g and h have no consumers: what they make dies with them.
    seen = run(
        *case(
            PAIR,
            op("a", "A", 2, makes=4),
            op("b", "A", 1, "a"),
            op("g", "B", 3, makes=3),
            op("c", "B", 1, "a"),
            op("d", "A", 2, makes=3),
            op("e", "A", 2, makes=5),
            op("f", "A", 1, makes=8),
            op("h", "B", 1, makes=6),
        )
    )
    assert seen.ops == {
        "a": (0, 2), "b": (2, 3), "g": (0, 3), "c": (6, 7), "d": (3, 5), "e": (5, 7), "f": (7, 8), "h": (7, 8)
    }  # fmt: skip
    assert seen.transfers == [("a", "A", "B", 2, 6)]
    assert seen.end == 8
    assert seen.peak == {"A": 9, "B": 7}


def test_workspace_while_the_operation_runs(run: Run) -> None:
    """Workspace counts while its operation runs, even if that takes no time."""
    # us  0123
    # A   aab            a 2 + 5 = 7; b 2 + 1 + 3 = 6
    # B   ccc            c 1; then z, 0 us: 9
    seen = run(
        *case(
            PAIR,
            op("a", "A", 2, makes=2, workspace=5),
            op("b", "A", 1, "a", 1, workspace=3),
            op("c", "B", 3, makes=1),
            op("z", "B", 0, workspace=9),
        )
    )
    assert seen.ops == {"a": (0, 2), "b": (2, 3), "c": (0, 3), "z": (3, 3)}
    assert seen.end == 3
    assert seen.peak == {"A": 7, "B": 9}


def test_sizes_are_rounded_up_to_the_granule(run: Run) -> None:
    """Each tensor, parameter and workspace takes whole granules of its pool; what travels is the plain bytes."""
    # us  01234567
    # A   a              granule 4: w 6 -> 8, outputs 5 -> 8, 1 -> 4 and 0 -> 0, workspace 3 -> 4: 24
    # ab  .aaaaa         5 us for 5 bytes
    # B   ......b        granule 1: copy 5 + output 2 = 7
    grained = machine("A B", {"A>B": "ab"}, granule={"A": 4})
    seen = run(
        *case(
            grained,
            param("w", "A", 6),
            op("a", "A", 1, "w", (5, 1, 0), workspace=3),
            op("b", "B", 1, "a", 2),
        )
    )
    assert seen.ops == {"w": (0, 0), "a": (0, 1), "b": (6, 7)}
    assert seen.transfers == [("a", "A", "B", 1, 6)]
    assert seen.end == 7
    assert seen.peak == {"A": 24, "B": 7}


def test_parameters_and_outputs_stay(run: Run) -> None:
    """A parameter is there for the whole step and an output to its end; what nobody reads dies with its operation."""
    # us  0123
    # A   abc            w 4 always. a: output 3, nobody's 2: 9. b: 4 + 3 + 4 = 11. c: 4 + 3 + 5 = 12.
    # B   kkk            2: the parameter that nobody reads
    seen = run(
        *case(
            PAIR,
            param("w", "A", 4),
            param("v", "B", 2),
            op("a", "A", 1, "w", (Tensor(3, output=True), 2)),
            op("k", "B", 3),
            op("b", "A", 1, makes=4),
            op("c", "A", 1, "a", 5),
        )
    )
    assert seen.ops == {"w": (0, 0), "v": (0, 0), "a": (0, 1), "k": (0, 3), "b": (1, 2), "c": (2, 3)}
    assert seen.transfers == []
    assert seen.end == 3
    assert seen.peak == {"A": 12, "B": 2}


def test_output_outlives_its_consumers(run: Run) -> None:
    """A tensor marked output is kept to the end of the step even after its consumers."""
    # us  012
    # A   abc            a 3 for good: c finds 3 + 5
    seen = run(
        *case(PAIR, op("a", "A", 1, makes=Tensor(3, output=True)), op("b", "A", 1, "a"), op("c", "A", 1, makes=5))
    )
    assert seen.ops == {"a": (0, 1), "b": (1, 2), "c": (2, 3)}
    assert seen.end == 3
    assert seen.peak == {"A": 8, "B": 0}


def test_view_occupies_nothing_and_keeps_its_storage(run: Run) -> None:
    """A view takes no memory, and its storage lives until the view's last consumer has ended."""
    # us  01234
    # A   akbbc          a 4 until 4, for b reads its view v: k 4 + 2 = 6, b 4 + 1 = 5; then c 5
    seen = run(
        *case(
            PAIR,
            op("a", "A", 1, makes=4),
            op("v", "A", 0, "a", view("a", 4)),
            op("k", "A", 1, makes=2),
            op("b", "A", 2, "v", 1),
            op("c", "A", 1, makes=5),
        )
    )
    assert seen.ops == {"a": (0, 1), "v": (1, 1), "k": (1, 2), "b": (2, 4), "c": (4, 5)}
    assert seen.transfers == []
    assert seen.end == 5
    assert seen.peak == {"A": 6, "B": 0}


def test_view_sent_elsewhere_is_a_tensor_of_its_own(run: Run) -> None:
    """A view travels with its own bytes and keeps its storage at home until it has been sent."""
    # us  01234
    # A   akkce          a 8 until 4: k 8 + 2, c 8 + 5 = 13; then e 9
    # ab  .vvv           3 bytes of the 8
    # B   ....d
    seen = run(
        *case(
            PAIR,
            op("a", "A", 1, makes=8),
            op("v", "A", 0, "a", view("a", 3)),
            op("k", "A", 2, makes=2),
            op("c", "A", 1, makes=5),
            op("e", "A", 1, makes=9),
            op("d", "B", 1, "v"),
        )
    )
    assert seen.ops == {"a": (0, 1), "v": (1, 1), "k": (1, 3), "c": (3, 4), "e": (4, 5), "d": (4, 5)}
    assert seen.transfers == [("v", "A", "B", 1, 4)]
    assert seen.end == 5
    assert seen.peak == {"A": 13, "B": 3}


def test_view_of_a_parameter_is_sent_as_a_transient(run: Run) -> None:
    """A view made of a parameter at its home takes nothing there and travels like any tensor."""
    # us  012
    # hg  vv             2 bytes of the 4
    # G   ..g
    seen = run(*case(LENT, param("w", "H", 4), op("v", "H", 0, "w", view("w", 2)), op("g", "G", 1, "v")))
    assert seen.ops == {"w": (0, 0), "v": (0, 0), "g": (2, 3)}
    assert seen.transfers == [("v", "H", "G", 0, 2)]
    assert seen.visits == []
    assert seen.end == 3
    assert seen.peak == {"H": 4, "G": 2}


def test_write_in_place_occupies_nothing(run: Run) -> None:
    """An output written in place on a transient tensor takes no memory and keeps that storage alive."""
    # us  0123
    # A   arbc           a 4 until b, which reads r, ends at 3: b 4 + 1 = 5; then c 3
    seen = run(
        *case(
            PAIR,
            op("a", "A", 1, makes=4),
            op("r", "A", 1, "a", view("a", 4, in_place=True)),
            op("b", "A", 1, "r", 1),
            op("c", "A", 1, makes=3),
        )
    )
    assert seen.ops == {"a": (0, 1), "r": (1, 2), "b": (2, 3), "c": (3, 4)}
    assert seen.end == 4
    assert seen.peak == {"A": 5, "B": 0}


def test_update_at_home_occupies_nothing(run: Run) -> None:
    """New values of a parameter computed at its home are in place, and its store ends with the update."""
    # us  012
    # A   guk            w 4 always, gradient g 4 until 2: 8; then k 3: 7
    seen = run(
        *case(
            PAIR,
            param("w", "A", 4),
            op("g", "A", 1, "w", 4, phase="backward"),
            op("u", "A", 1, "w g", view("w", 4, in_place=True), phase="update"),
            op("s", "A", 0, "u", phase="store"),
            op("k", "A", 1, makes=3),
        )
    )
    assert seen.ops == {"w": (0, 0), "g": (0, 1), "u": (1, 2), "s": (2, 2), "k": (2, 3)}
    assert seen.transfers == []
    assert seen.end == 3
    assert seen.peak == {"A": 8, "B": 0}


def test_update_elsewhere_goes_home_to_its_store(run: Run) -> None:
    """New values computed on another device are transient there, and take nothing where they are stored."""
    # us  01234567
    # ab  www
    # B   ...gu          copy of w 3 until 5, gradient g 3 until 5, new values u 3 until 8: 9
    # ba  .....uuu       A: w 3, and nothing for what is written over it
    seen = run(
        *case(
            PAIR,
            param("w", "A", 3),
            op("g", "B", 1, "w", 3, phase="backward"),
            op("u", "B", 1, "w g", view("w", 3, in_place=True), phase="update"),
            op("s", "A", 0, "u", phase="store"),
        )
    )
    assert seen.ops == {"w": (0, 0), "g": (3, 4), "u": (4, 5), "s": (8, 8)}
    assert seen.transfers == [("w", "A", "B", 0, 3), ("u", "B", "A", 5, 8)]
    assert seen.visits == [("w", "B", "g")]
    assert seen.end == 8
    assert seen.peak == {"A": 3, "B": 9}


def test_ends_free_memory_before_starts_take_it(run: Run) -> None:
    """At one instant memory is freed first, then operations start, then transfers."""
    # us  01234
    # A   aac            a 2 until it has been sent, at 4; a:1, read by nobody, 4 until 2; then c 1: 6
    # B   bb..d          b 5 until 2, when the copy of a (2) starts: 5
    # ab  ..aa
    seen = run(
        *case(
            PAIR,
            op("a", "A", 2, makes=(2, 4)),
            op("b", "B", 2, makes=5),
            op("c", "A", 1, makes=1),
            op("d", "B", 1, "a"),
        )
    )
    assert seen.ops == {"a": (0, 2), "b": (0, 2), "c": (2, 3), "d": (4, 5)}
    assert seen.transfers == [("a", "A", "B", 2, 4)]
    assert seen.end == 5
    assert seen.peak == {"A": 6, "B": 5}


def test_too_little_memory_does_not_stop_the_step(run: Run) -> None:
    """A peak above what a pool can give leaves the timeline as it is and says how many bytes are too many."""
    # us  0123
    # A   ab             A: 7 bytes, of which 5 - 1 (reserve) = 4 are there: 3 over
    # B   cc             B: 6 of 6
    rows = (op("a", "A", 1, makes=7), op("b", "A", 1, "a"), op("c", "B", 2, makes=6))
    tight = machine("A B", size={"A": 5, "B": 6}, reserve={"A": 1})
    seen = run(*case(tight, *rows))
    assert (seen.end, seen.feasible, seen.reason) == (2, False, "memory")
    assert seen.ops == {"a": (0, 1), "b": (1, 2), "c": (0, 2)}
    assert seen.peak == {"A": 7, "B": 6}
    assert seen.over == {"A": 3, "B": 0}
    fits = machine("A B", size={"A": 8, "B": 6}, reserve={"A": 1})
    seen = run(*case(fits, *rows))
    assert (seen.end, seen.feasible, seen.reason) == (2, True, "")
    assert seen.over == {"A": 0, "B": 0}


# ---------------------------------------------------------------- the other objectives


@pytest.mark.parametrize(("host_us", "value"), [(7, 7), (2, 6)])
def test_max_load_counts_tensors_once(run: Run, host_us: float, value: float) -> None:
    """`max_load` adds to a device's computation what it receives, and once in all what it sends; not for a host."""
    # A: a 3 + a sent to B and C, once 2                 = 5   (7 if counted for each destination)
    # B: b 3 + a received 2 + b sent to C and H, once 1  = 6
    # C: c 1 + d 1 + a received, once, 2 + b received 1  = 5   (7 if a counted for each consumer)
    # H: h, nothing for b received: 7 or 2                     (8 if b counted)
    hosts = dict.fromkeys("ABCH", "H")
    star = machine("A B C H", {"A>B": "ab", "A>C": "ac", "B>C": "bc", "B>H": "bh"}, hosts=hosts)
    seen = run(
        *case(
            star,
            op("a", "A", 3, makes=2),
            op("b", "B", 3, "a", 1),
            op("c", "C", 1, "a"),
            op("d", "C", 1, "a b"),
            op("h", "H", host_us, "b"),
            objective="max_load",
        )
    )
    assert (seen.end, seen.feasible, seen.reason) == (value, True, "")


@pytest.mark.parametrize(("window", "value"), [(3, 12), (6, 9), (1000, 7)])
def test_throughput_counts_every_visit(run: Run, window: int, value: float) -> None:
    """`throughput` is the busiest device or channel, with every visit counted: a larger window is worth its memory."""
    # G computes 6. hg carries u 2, v 3, w 2 and, in a window of 3, v and u again; in one of 6, u again.
    seen = run(*case(LENT, *THERE_AND_BACK, objective="throughput", windows={"G": window}))
    assert (seen.end, seen.feasible, seen.reason) == (value, True, "")


def test_throughput_counts_the_busiest_device(run: Run) -> None:
    """`throughput` is a sum without waiting: a chain over two devices is worth its slower half."""
    # A 3 + 1, B 5, ab 2; a step of the same placement takes 3 + 2 + 5.
    rows = (op("a", "A", 3, makes=2), op("k", "A", 1), op("b", "B", 5, "a"))
    assert run(*case(PAIR, *rows, objective="throughput")).end == 5
    assert run(*case(PAIR, *rows)).end == 10

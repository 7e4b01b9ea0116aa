"""Random problems that reach every rule of the model, for Hypothesis and from a seed.

Equal costs are common on purpose: ties are where two readings of the rules part. The Hypothesis strategy
draws a size and a seed. Drawing every choice was tried: its shrinking took minutes and ended at 10
operations where `smallest`, which tries a few hundred seeds of every size, finds 5 in two seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple, TypeVar

import numpy as np
from hypothesis import strategies as st

from placewright.costs import Costs
from placewright.errors import GraphError
from placewright.graph import PARAMETER, OpGraph
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.placement import Placement
from placewright.problem import DISCIPLINES, OBJECTIVES, Colocate, Constraint, Forbid, Pin, Problem, Separate

T = TypeVar("T")
Ref = tuple[str, int]

BYTES = (512, 256, 1024, 0, 512, 1, 1000, 4096)
OP_US = (1, 0, 1, 2, 1, 3)
BANDWIDTHS = (512e6, 1.024e9, 512e6, 3e8, 1e15)  # 512 bytes in 1 us, 0.5 us, ..., a thirds-of-a-picosecond one, nothing
LATENCIES_S = (0.0, 0.0, 1e-6, 0.0, 0.5e-6)
MIB = 1 << 20
PLENTY = 1 << 40


class Choices:
    """What the generator asks for."""

    def __init__(self, rng: random.Random) -> None:
        self.random = rng.random

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return int(self.random() * n)

    def chance(self, percent: int) -> bool:
        """True so often."""
        return self.below(100) < percent

    def pick(self, items: Sequence[T]) -> T:
        """One of them; what is listed twice comes twice as often."""
        return items[self.below(len(items))]

    def weighted(self, items: Sequence[tuple[T, int]]) -> T:
        """One of them, by weight."""
        at = self.below(sum(weight for _, weight in items))
        for item, weight in items:
            if at < weight:
                return item
            at -= weight
        raise AssertionError

    def recent(self, items: Sequence[T]) -> T:
        """One of them, the last ones more often."""
        return items[max(0, len(items) - 1 - self.below(3))] if self.chance(70) else self.pick(items)


@cache
def views_of_new_values() -> bool:
    """Whether a graph may hold a plain view of the new value of a persistent tensor (it could not at first)."""
    tensor = Tensor(8, storage=("p", 0), in_place=True)
    operations = [
        Operation("p", phase="parameter", outputs=[Tensor(8)]),
        Operation("new", phase="update", inputs=["p"], outputs=[tensor]),
        Operation("view", inputs=["new"], outputs=[Tensor(8, storage=("new", 0))]),
        Operation("store", phase="store", inputs=["new"]),
    ]
    try:
        build_graph("probe", operations)
    except GraphError:
        return False
    return True


# What each operation costs and where it goes ------------------------------------------------------------------------


class _Detail(NamedTuple):
    us: float
    impossible: list[bool]
    device: int
    priority: float


class _Habits:
    """How the details of a problem's operations are drawn."""

    def __init__(self, c: Choices, n: int, streaming: bool) -> None:
        self.c, self.n = c, n
        self.style = "offload" if streaming else c.pick(("any", "offload", "any", "mostly", "any"))
        # With two homes, visits to one device queue on two routes.
        self.homes = (c.below(n), c.below(n))
        self.main = (self.homes[0] + 1 + c.below(n - 1)) % n if n > 1 else 0
        self.somewhere_impossible = c.chance(30)
        self.odd = c.chance(8)
        """Costs that are no whole number of picoseconds."""

    def detail(self, phase: str) -> _Detail:
        c = self.c
        us = 0.0 if phase in ("input", "parameter", "store") else c.pick(OP_US) / (7 if self.odd else 1)
        impossible = [False] * self.n
        if self.somewhere_impossible and c.chance(20):
            impossible = [c.chance(50) for _ in range(self.n)]
        if self.style == "offload" and phase == "parameter" and c.chance(90):
            device = self.homes[c.chance(40)]
        elif self.style != "any" and c.chance(70):
            device = self.main
        else:
            device = c.below(self.n)
        return _Detail(us, impossible, device, c.pick((0.0, 1.0, 2.0, -0.5)))


# Graphs -----------------------------------------------------------------------------------------------------------


class _Graph:
    """A graph under construction, with what may be read, viewed, overwritten and stored so far."""

    def __init__(self, c: Choices, n_ops: int, n_devices: int, streaming: bool) -> None:
        self.c = c
        self.n_ops = n_ops
        self.streaming = streaming
        self.habits = _Habits(c, n_devices, streaming)
        self.details: list[_Detail] = []
        self.forks = c.chance(40)
        """Many operations read one tensor."""
        self.ops: list[Operation] = []
        self.transients: list[Ref] = []
        self.parameters: list[Ref] = []
        self.size: dict[Ref, int] = {}
        self.persistent_root: dict[Ref, Ref] = {}
        """The parameter that a tensor is, views, or is a new value of."""
        self.new_values: dict[Ref, list[Ref]] = {}
        """By parameter."""
        self.unstored: list[Ref] = []
        self.view_of_new: set[Ref] = set()
        self.readers: dict[Ref, list[str]] = {}
        self.labels = 0 if streaming else c.pick((0, 1, 2))

    def build(self) -> OpGraph:
        while len(self.ops) < self.n_ops:
            room = self.n_ops - len(self.ops) - len(self.unstored)
            if not room:
                self._store()
                continue
            kinds = [("forward", 50), ("parameter", 16), ("input", 8)]
            if self.streaming:  # a few parameters first, each read again and again
                kinds[1] = (
                    "parameter",
                    150 if len(self.parameters) < min(3, self.n_ops // 3) + self.n_ops // 10 else 2,
                )
            if self.parameters and room >= 2:
                kinds.append(("update", 6 if self.streaming else 12))
            if self.unstored:
                kinds.append(("store", 8))
            getattr(self, f"_{self.c.weighted(kinds)}")()
        return build_graph("random", self.ops)

    def _add(self, phase: str, inputs: list[Ref], outputs: list[Tensor], workspace: int = 0) -> str:
        c, name = self.c, f"op{len(self.ops)}"
        after = []
        if self.ops and c.chance(3 if phase == "parameter" else 14):
            after = [c.pick(self.ops).name for _ in range(c.pick((1, 2)))]
        if phase in ("update", "forward", "backward"):
            # What overwrites a persistent tensor follows its earlier readers, as a capture has it; not always.
            for t in outputs:
                if t.in_place and t.storage in self.persistent_root and c.chance(60):
                    after += [n for n in self.readers.get(self.persistent_root[t.storage], ()) if n != name]
        self.ops.append(
            Operation(
                name,
                phase=phase,
                scope=c.pick(("", "net.a", "net.b")),
                inputs=inputs,
                after=after,
                outputs=outputs,
                workspace_bytes=workspace,
                colocation=f"c{c.below(self.labels)}" if self.labels and c.chance(12) else None,
            )
        )
        self.details.append(self.habits.detail(phase))
        for t in inputs:
            self.readers.setdefault(t, []).append(name)
        for k, t in enumerate(outputs):
            self.size[name, k] = t.bytes
        return name

    def _tensor(self, size: int | None = None, storage: Ref | None = None, in_place: bool = False) -> Tensor:
        c = self.c
        size = c.pick(BYTES) if size is None else size
        transfer_s = c.pick((1e-6, 0.0, 3e-6)) if c.chance(5) else None
        return Tensor(size, storage, in_place, output=c.chance(8), transfer_s=transfer_s)

    def _reads(self, most: int) -> list[Ref]:
        c = self.c
        reads: dict[Ref, None] = {}
        for _ in range(c.weighted([(1, 36), (2, 34), (0, 8), (3, 22)])):
            if self.parameters and c.chance((20 if reads else 90) if self.streaming else 36):
                reads[c.pick(self.parameters)] = None
            elif self.transients and self.forks and c.chance(60):
                reads[self.transients[len(self.transients) // 3]] = None
            elif self.transients:
                reads[c.recent(self.transients)] = None
        return list(reads)[: min(most, 2) if self.streaming else most]

    def _outputs(self) -> int:
        return self.c.weighted([(1, 60), (2, 22), (0, 8), (3, 10)])

    def _workspace(self) -> int:
        return self.c.pick(BYTES) if self.c.chance(20) else 0

    def _parameter(self) -> None:
        sizes = (512, 1024, 256, 1000) if self.streaming else BYTES
        outputs = [self._tensor(self.c.pick(sizes)) for _ in range(self.c.pick((1, 1, 1, 2)))]
        name = self._add("parameter", [], outputs)
        for k in range(len(outputs)):
            self.parameters.append((name, k))
            self.persistent_root[name, k] = (name, k)

    def _input(self) -> None:
        reads = self._reads(2) if self.c.chance(10) else []
        outputs = [self._tensor() for _ in range(self._outputs())]
        name = self._add("input", reads, outputs)
        self.transients += [(name, k) for k in range(len(outputs))]

    def _forward(self) -> None:
        """Own outputs, views of what is read (of parameters and of views too), writes in place on transients."""
        c = self.c
        reads = self._reads(3)
        outputs: list[Tensor] = []
        roots: list[Ref | None] = []
        views_new: list[bool] = []
        for _ in range(self._outputs()):
            # Views tie operations to their parameters, so that nothing would stream.
            others = (3, 1) if self.streaming else (18, 9)
            base, kind = None, c.weighted([("own", 70), ("view", others[0]), ("in place", others[1])])
            if reads and kind != "own":
                base = c.pick(reads)
            is_new = base is not None and self._is_new(base)
            of_new = base is not None and (is_new or base in self.view_of_new)
            if kind == "in place" and base in self.persistent_root:
                base = None  # that would be a new value: `_update` makes those
            if of_new and (not views_of_new_values() or kind == "in place"):
                base = None
            if base is None:
                outputs.append(self._tensor())
                roots.append(None)
                views_new.append(False)
            else:
                outputs.append(self._tensor(c.pick((self.size[base], 256)), base, kind == "in place"))
                roots.append(self.persistent_root.get(base))
                views_new.append(of_new)
        name = self._add(c.pick(("forward", "backward")), reads, outputs, self._workspace())
        for k, root in enumerate(roots):
            self.transients.append((name, k))
            if root is not None:
                self.persistent_root[name, k] = root
            if views_new[k]:
                self.view_of_new.add((name, k))

    def _is_new(self, t: Ref) -> bool:
        root = self.persistent_root.get(t)
        return root is not None and t in self.new_values.get(root, ())

    def _update(self) -> None:
        """New values of one or two persistent tensors, written on them, on a view of them or on a new value."""
        c = self.c
        room = self.n_ops - len(self.ops) - len(self.unstored) - 1
        reads = dict.fromkeys(self._reads(2))
        targets = dict.fromkeys(c.pick(self.parameters) for _ in range(min(room, c.pick((1, 1, 2)))))
        outputs = []
        for p in targets:
            if c.chance(75):
                reads[p] = None
            base = p
            views = [t for t in self.transients if self.persistent_root.get(t) == p and t not in self.view_of_new]
            if views and c.chance(30):
                base = c.pick(views)
                reads[base] = None
            outputs.append(self._tensor(self.size[p], base, in_place=True))
        if c.chance(15):
            outputs.append(self._tensor())
        phase = c.pick(("update", "update", "forward", "backward"))
        name = self._add(phase, list(reads), outputs, self._workspace())
        for k, p in enumerate(targets):
            self.persistent_root[name, k] = p
            self.new_values.setdefault(p, []).append((name, k))
            if p not in self.unstored:
                self.unstored.append(p)
        self.transients += [(name, k) for k in range(len(outputs))]

    def _store(self) -> None:
        """The last or another new value, or several of them, of one or two parameters."""
        c = self.c
        chosen = dict.fromkeys(c.pick(self.unstored) for _ in range(c.pick((1, 1, 1, 2))))
        reads: dict[Ref, None] = {}
        for p in chosen:
            reads[self.new_values[p][-1] if c.chance(70) else c.pick(self.new_values[p])] = None
            if c.chance(10):
                reads[c.pick(self.new_values[p])] = None
        self._add("store", list(reads), [])
        self.unstored = [p for p in self.unstored if p not in chosen]


# Machines ---------------------------------------------------------------------------------------------------------


def _machine(c: Choices, n_ops: int, streaming: bool) -> Machine:
    n = c.pick((2, 3, 3, 4)) if streaming else c.pick((1, 2, 3, 4, 2, 5, 3, 4))
    pools, pool_of = _pools(c, n, n_ops)
    style = c.pick(("pairs", "hosts", "mixed", "bus", "hosts"))
    names = [f"d{i}" for i in range(n)]
    hosts: list[str | None] = [None] * n
    if style == "hosts":
        k = 2 if n > 2 and c.chance(40) else 1
        hosts = [names[i] if i < k else names[c.below(k)] for i in range(n)]
    elif c.chance(40):
        hosts = [c.pick((None, names[0], names[i])) for i in range(n)]
    devices = [Device(names[i], "model", pool_of[i], hosts[i]) for i in range(n)]
    channels: list[Channel] = []
    routes = _routes(c, names, hosts, channels, style)
    if routes and c.chance(15):
        routes = [route for route in routes if not c.chance(30)]
    return Machine("random", tuple(devices), tuple(pools), tuple(channels), tuple(routes))


def _pools(c: Choices, n: int, n_ops: int) -> tuple[list[Pool], list[str]]:
    pools: list[Pool] = []
    pool_of: list[str] = []
    shared = c.chance(45)
    granules = c.pick(((1,), (512,), (256,), (1, 256, 512)))
    tight = c.chance(30)
    for i in range(n):
        if i and shared and c.chance(60):
            pool_of.append(pools[len(pools) - 1 - c.below(len(pools))].name)
            continue
        size = c.pick((4096, 2048, 16384, 512, 0)) * (1 + n_ops // 12) if tight and c.chance(70) else PLENTY
        pools.append(Pool(f"pool{i}", size, c.pick(granules), size // 4 if c.chance(20) else 0))
        pool_of.append(pools[-1].name)
    if c.chance(5):
        pools.append(Pool("unused", 0))
    return pools, pool_of


def _routes(c: Choices, names: list[str], hosts: list[str | None], channels: list[Channel], style: str) -> list[Route]:
    fixed = (c.pick(BANDWIDTHS), c.pick(LATENCIES_S)) if c.chance(60) else None

    def channel() -> str:
        rate, latency = fixed or (c.pick(BANDWIDTHS), c.pick(LATENCIES_S))
        channels.append(Channel(f"ch{len(channels)}", rate, latency))
        return channels[-1].name

    routes: dict[tuple[str, str], tuple[str, ...]] = {}
    switch: tuple[str, str] | None = None
    for a, b in combinations(names, 2):
        if style == "hosts" and hosts[names.index(b)] not in (a, b):
            continue  # through their hosts
        kinds = {"pairs": ("duplex",), "bus": ("bus",)}.get(style, ("duplex", "simplex", "bus", "switched", "twice"))
        kind = c.pick(kinds)
        if kind == "duplex":
            there, back = (channel(),), (channel(),)
        elif kind == "simplex":  # one channel for both directions
            there = back = (channel(),)
        elif kind == "bus":  # all such pairs share one, perhaps with another pair's way there
            there = back = (channels[0].name if channels else channel(),)
        elif kind == "switched":  # a channel of its own, and one per direction that such pairs share
            switch = switch or (channel(), channel())
            there, back = (channel(), switch[0]), (switch[1], channel())
        else:  # meets its own channel twice
            own = channel()
            there, back = (own, own), (own, channel(), own)
        routes[a, b], routes[b, a] = there, back
    return [Route(a, b, path) for (a, b), path in routes.items()]


# Costs, constraints, placements -----------------------------------------------------------------------------------


def _devices(problem: Problem, details: list[_Detail]) -> list[int]:
    """A device per operation, the same within a group: that of its first parameter, or its first operation."""
    chosen: dict[int, int] = {}
    for parameter in (True, False):
        for i, group in enumerate(problem.groups):
            if (problem.graph.phase[i] == PARAMETER) == parameter:
                chosen.setdefault(int(group), details[i].device)
    return [chosen[int(group)] for group in problem.groups]


def _constraints(c: Choices, graph: OpGraph, machine: Machine, devices: list[int]) -> list[Constraint]:
    """Pins, forbids and separations that the placement keeps."""
    rules: list[Constraint] = []
    names = [device.name for device in machine.devices]
    for _ in range(c.pick((1, 1, 2, 3))):
        i = c.below(graph.n_ops)
        others = [name for d, name in enumerate(names) if d != devices[i]]
        kind = c.pick(("pin", "forbid", "separate"))
        if kind == "pin":
            rules.append(Pin((graph.op_names[i],), tuple({names[devices[i]]: 0, c.pick(names): 0})))
        elif kind == "forbid" and others:
            rules.append(Forbid((graph.op_names[i],), (c.pick(others),)))
        elif kind == "separate":
            j = c.below(graph.n_ops)
            if devices[i] != devices[j]:
                rules.append(Separate((graph.op_names[i], graph.op_names[j])))
    return rules


def _seconds(
    c: Choices, problem: Problem, details: list[_Detail], devices: list[int], impossible: bool
) -> list[list[float]]:
    """Multiples of 1 us; infinite on some devices that are not used, or on one that is."""
    n = problem.n_devices
    factor = [c.pick((1, 1, 2)) for _ in range(n)]
    table = [
        [float("inf") if detail.impossible[d] and d != devices[i] else detail.us * factor[d] * 1e-6 for d in range(n)]
        for i, detail in enumerate(details)
    ]
    if impossible:
        i = c.below(problem.n_ops)
        other = (devices[i] + 1 + c.below(n - 1)) % n
        for j in range(problem.n_ops):  # the group can still run somewhere: no problem is refused
            if problem.groups[j] == problem.groups[i]:
                table[j][other] = 0.0
        table[i][devices[i]] = float("inf")
    return table


def _windows(c: Choices, machine: Machine, n_ops: int, streaming: bool) -> np.ndarray | None:
    if not c.chance(90 if streaming else 70):
        return None
    sizes = (-1, -1, 0, 512, 1024, 1536, 2048, 0, 1, 4096 + 256 * (n_ops // 8), PLENTY)
    sizes = (0, 512, 0, 1024, 1, 1536) if streaming and c.chance(60) else sizes
    return np.array([c.pick(sizes) for _ in machine.devices], np.int64)


def _make(c: Choices, n_ops: int) -> tuple[Problem, Placement]:
    streaming = c.chance(35)
    machine = _machine(c, n_ops, streaming)
    n = len(machine.devices)
    windows = _windows(c, machine, n_ops, streaming)
    objective = c.pick((OBJECTIVES[0], OBJECTIVES[0], OBJECTIVES[0], *OBJECTIVES[1:]))
    discipline = DISCIPLINES[0] if streaming and c.chance(60) else c.pick((DISCIPLINES[0], *DISCIPLINES))
    ranked, tied, ruled = c.chance(60), c.chance(15), c.chance(20)
    impossible = n > 1 and c.chance(5)
    building = _Graph(c, n_ops, n, streaming)
    graph, details = building.build(), building.details
    n_ops = graph.n_ops
    together: list[Constraint] = []
    if tied and n_ops > 1:
        together.append(Colocate((graph.op_names[c.below(n_ops)], graph.op_names[c.below(n_ops)])))
    free = Problem(graph, machine, Costs.given(np.zeros((n_ops, n))), tuple(together))
    devices = _devices(free, details)
    impossible = impossible and n_ops > 0
    rules = _constraints(c, graph, machine, devices) if ruled and n_ops and not impossible else []
    seconds = np.array(_seconds(c, free, details, devices, impossible), np.float64).reshape(n_ops, n)
    problem = Problem(graph, machine, Costs.given(seconds), (*together, *rules), objective, discipline)
    priorities = np.array([detail.priority for detail in details]) if ranked else None
    return problem, problem.placement(np.array(devices, np.int64), priorities, windows)


def random_problem(rng: random.Random, n_ops: int) -> tuple[Problem, Placement]:
    """A problem of so many operations and a valid placement of it; the same for the same state of `rng`."""
    return _make(Choices(rng), n_ops)


def problems(max_ops: int = 12) -> st.SearchStrategy[tuple[Problem, Placement]]:
    """A problem of at most so many operations and a valid placement of it."""
    seeds = st.integers(0, 2**32 - 1)
    return st.builds(lambda n_ops, seed: random_problem(random.Random(seed), n_ops), st.integers(0, max_ops), seeds)


def smallest(
    fails: Callable[[Problem, Placement], bool], max_ops: int = 12, seeds: int = 300
) -> tuple[Problem, Placement] | None:
    """The first problem that fails, by size and seed: for the hunt after a failure, where shrinking is slow."""
    for n_ops in range(max_ops + 1):
        for seed in range(seeds):
            problem, placement = random_problem(random.Random(seed), n_ops)
            if fails(problem, placement):
                return problem, placement
    return None

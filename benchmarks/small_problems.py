"""Generated problems that are small enough for brute force: `problem(k)` is the same in every process.

Each has a shape (chain, fork and join, layers, series and parallel parts, a training step), a machine (two to four
devices: accelerators alone on a switch, or beside a slower host with plenty of memory), a ratio of communication to
computation, an objective, and in half of the numbers memory that is a part of what everything on one device needs.
There are at most `MOST` placements.

    PYTHONPATH=src python benchmarks/small_problems.py [FIRST LAST]   # solves them, and says which need two devices
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import placewright as pw
from placewright.evaluate import SimulatorEvaluator
from placewright.exact.brute_force import BruteForce
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.placement import Placement
from placewright.problem import Pin, Problem

COUNT = 240
MOST = 70_000
"""Placements of a problem at most."""
SHAPES = ("chain", "fork-join", "layered", "series-parallel", "training")
QUESTIONS = (
    ("step", "stream"),
    ("step", "ready"),
    ("step", "stream"),
    ("max_load", "stream"),
    ("throughput", "stream"),
)
MIB = 1 << 20


def problem(number: int) -> Problem:
    """The problem of that number."""
    rng = np.random.default_rng([20, number])
    shape = SHAPES[number % len(SHAPES)]
    tight = number % 2 == 1
    devices = min(int(rng.choice([2, 3, 3, 4])), 3 if shape == "training" else 4)  # whose least is nine groups
    host = tight or rng.random() < 0.3
    operations = _SHAPES[shape](rng, int(math.log(MOST) / math.log(devices)))
    graph = build_graph(f"{shape}-{number}", operations)
    # Communication over computation: the mean tensor on a link, as a multiple of the mean operation.
    ratio = float(rng.choice([0.05, 0.3, 1.0]))
    machine = _machine(rng, devices, host, rate=MIB / (ratio * 100e-6))
    seconds = np.exp(rng.uniform(math.log(20e-6), math.log(300e-6), (graph.n_ops, 1)))
    speed = np.exp(rng.uniform(0, math.log(1.6), devices))
    uneven = np.exp(rng.uniform(-0.25, 0.25, (graph.n_ops, devices))) if rng.random() < 0.5 else 1.0
    if host:
        speed[0] *= 4
    table = np.where(graph.off_queue[:, None], 0.0, seconds * speed * uneven)
    objective, discipline = QUESTIONS[(number // len(SHAPES)) % len(QUESTIONS)]
    pins = (Pin((graph.op_names[-1],), (machine.devices[0].name,)),) if rng.random() < 0.1 else ()
    loose = Problem(graph, machine, pw.Costs.given(table), pins, objective, discipline)
    return _tightened(loose, float(rng.uniform(0.4, 0.8))) if tight else loose


def _tightened(problem: Problem, share: float) -> Problem:
    """The problem with every accelerator's memory a share of what everything on it needs; the host's stays."""
    caps = {}
    for d, device in list(enumerate(problem.machine.devices))[1:]:
        everything = Placement(np.full(problem.n_ops, d))
        alone = problem.replace(constraints=())
        caps[device.pool] = int(share * pw.simulate(alone, everything).peak_bytes[problem.machine.pool_of[d]])
    return problem.replace(machine=problem.machine.with_memory(caps), costs=problem.costs)


# Machines ---------------------------------------------------------------------------------------------------------


def _machine(rng: np.random.Generator, count: int, host: bool, rate: float) -> Machine:
    """A host and accelerators on links of their own, or accelerators on a switch."""
    names = [*(["cpu:0"] if host else []), *(f"gpu:{d}" for d in range(count - host))]
    pools = tuple(Pool(name, 1 << 40, 1) for name in names)
    latency = float(rng.choice([0.0, 2e-6, 10e-6]))
    if host:
        devices = tuple(Device(name, name[:3], name, "cpu:0") for name in names)
        ways = [(name, way) for name in names[1:] for way in ("to", "from")]
        routes = [Route(*(("cpu:0", n) if way == "to" else (n, "cpu:0")), (f"{way} {n}",)) for n, way in ways]
    else:
        devices = tuple(Device(name, "gpu", name) for name in names)
        ways = [(name, way) for name in names for way in ("to", "from")]
        routes = [Route(a, b, (f"from {a}", f"to {b}")) for a in names for b in names if a != b]
    channels = tuple(Channel(f"{way} {name}", rate, latency) for name, way in ways)
    return Machine("small", devices, pools, channels, tuple(routes))


# Shapes: at most `most` groups of operations each -----------------------------------------------------------------


def _tensor(rng: np.random.Generator, *, output: bool = False) -> Tensor:
    """A tensor of 1 MiB on average."""
    return Tensor(int(MIB * math.exp(rng.uniform(-1.2, 0.8))), output=output)


def _network(rng: np.random.Generator, inputs: list[list[int]], most: int) -> list[Operation]:
    """Operations that read each other as given, the last of them the result; those that fit get a parameter."""
    spare = most - len(inputs)
    operations = []
    for i, reads in enumerate(inputs):
        names = [f"op{j}" for j in reads]
        if spare > 0 and rng.random() < 0.35:
            spare -= 1
            operations.append(Operation(f"w{i}", phase="parameter", outputs=[_tensor(rng)]))
            names.append(f"w{i}")
        last = i == len(inputs) - 1
        workspace = int(MIB * rng.uniform(0, 2)) if rng.random() < 0.2 else 0
        tensor = _tensor(rng, output=last)
        operations.append(Operation(f"op{i}", inputs=names, outputs=[tensor], workspace_bytes=workspace))
    return operations


def _chain(rng: np.random.Generator, most: int) -> list[Operation]:
    count = max(3, most - int(rng.integers(0, 4)))
    return _network(rng, [[i - 1] if i else [] for i in range(count)], most)


def _fork_join(rng: np.random.Generator, most: int) -> list[Operation]:
    """A source, branches of one or two operations, a join."""
    inputs: list[list[int]] = [[]]
    ends = []
    while len(inputs) < most - 2:
        length = min(int(rng.integers(1, 3)), most - 1 - len(inputs))
        for k in range(length):
            inputs.append([0] if k == 0 else [len(inputs) - 1])
        ends.append(len(inputs) - 1)
    return _network(rng, [*inputs, ends], most)


def _layered(rng: np.random.Generator, most: int) -> list[Operation]:
    """Layers of one to three operations, each reading one or two of the layer before; what is not read is joined."""
    inputs: list[list[int]] = []
    before: list[int] = []
    while len(inputs) < most - 2:
        width = min(int(rng.integers(1, 4)), most - 2 - len(inputs))
        layer = []
        for _ in range(width):
            reads = rng.permutation(len(before))[: int(rng.integers(1, 3))]
            layer.append(len(inputs))
            inputs.append(sorted(before[j] for j in reads.tolist()))
        before = layer
    unread = sorted(set(range(len(inputs))) - {j for reads in inputs for j in reads})
    return _network(rng, [*inputs, unread], most)


def _series_parallel(rng: np.random.Generator, most: int) -> list[Operation]:
    """Grown from one edge: an edge is cut in two by an operation, or gets an operation beside it."""
    edges = [(0.0, 1.0)]
    while len({end for edge in edges for end in edge}) < most - 1:
        a, b = edges[int(rng.integers(0, len(edges)))]
        middle = a + (b - a) * float(rng.uniform(0.2, 0.8))
        if rng.random() < 0.5:
            edges.remove((a, b))
        edges += [(a, middle), (middle, b)]
    place = {at: k for k, at in enumerate(sorted({end for edge in edges for end in edge}))}
    inputs: list[list[int]] = [[] for _ in place]
    for a, b in sorted(set(edges)):
        inputs[place[b]].append(place[a])
    return _network(rng, inputs, most)


def _training(rng: np.random.Generator, most: int) -> list[Operation]:
    """Layers in two towers: parameter, forward, backward, update and store for each; a loss joins the towers.

    A layer is four groups: its parameter with the store, and the other three.
    """
    layers = max(2, (most - 1) // 4)
    operations: list[Operation] = []
    ends: list[str] = []
    chains: tuple[list[int], list[int]] = ([], [])
    for k in range(layers):
        chains[k % 2 if rng.random() < 0.7 else 0].append(k)
    size = [_tensor(rng).bytes for _ in range(layers)]
    for chain in chains:
        before: str | None = None
        for k in chain:
            operations.append(Operation(f"w{k}", phase="parameter", scope=f"layer{k}", outputs=[Tensor(size[k])]))
            inputs = [f"w{k}", *([before] if before else [])]
            operations.append(Operation(f"forward{k}", scope=f"layer{k}", inputs=inputs, outputs=[_tensor(rng)]))
            before = f"forward{k}"
        ends += [before] if before else []
    operations.append(Operation("loss", inputs=ends, outputs=[Tensor(1024)]))
    for chain in chains:
        grad: str | tuple[str, int] = "loss"
        for k in reversed(chain):
            scope = f"layer{k}"
            made = [Tensor(size[k]), _tensor(rng)]
            reads = [grad, f"w{k}", f"forward{k}"]
            operations.append(Operation(f"backward{k}", phase="backward", scope=scope, inputs=reads, outputs=made))
            new = Tensor(size[k], (f"w{k}", 0), in_place=True)
            reads = [(f"backward{k}", 0), f"w{k}"]
            after = [f"forward{k}", f"backward{k}"]
            update = Operation(f"update{k}", "sgd", "update", scope, inputs=reads, after=after, outputs=[new])
            operations += [update, Operation(f"store{k}", "store", "store", scope, inputs=[f"update{k}"])]
            grad = (f"backward{k}", 1)
    return operations


_SHAPES: dict[str, Callable[[np.random.Generator, int], list[Operation]]] = {
    "chain": _chain,
    "fork-join": _fork_join,
    "layered": _layered,
    "series-parallel": _series_parallel,
    "training": _training,
}


# Solving ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Solved:
    """What brute force says of a problem."""

    optimum_s: float
    single_s: float
    """The best with everything on one device; infinite where none is feasible."""
    loose_s: float
    """The best if memory were unlimited."""
    placements: int

    @property
    def needs_two(self) -> bool:
        """Whether two devices are better than one by 1 % or more."""
        return self.optimum_s < 0.99 * self.single_s

    @property
    def memory_binds(self) -> bool:
        """Whether the best placement without limits of memory does not fit."""
        return self.loose_s < self.optimum_s


class Watched(SimulatorEvaluator):
    """An evaluator that notes the best value whatever memory it needs, and the best of one device."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, threads=1, remember_bytes=1)
        self.loose_s = self.single_s = math.inf
        self.timed = np.flatnonzero(~problem.graph.off_queue)

    def outcomes(self, placements):  # type: ignore[no-untyped-def]
        """The outcomes, noted."""
        found = super().outcomes(placements)
        for placement, outcome in zip(placements, found, strict=True):
            self.loose_s = min(self.loose_s, outcome.value_s)
            if outcome.feasible and outcome.value_s < self.single_s and not np.ptp(placement.devices[self.timed]):
                self.single_s = outcome.value_s
        return found


def solve(problem: Problem) -> Solved:
    """The optimum by brute force, with default windows."""
    evaluator = Watched(problem)
    result = pw.search(problem, BruteForce(), evaluator=evaluator)
    optimum = result.value_s if result.feasible else math.inf
    return Solved(optimum, evaluator.single_s, evaluator.loose_s, result.evaluations)


def main() -> None:
    """Solve a range of problems, and count those that need two devices or bind memory."""
    first, last = (int(text) for text in sys.argv[1:3]) if len(sys.argv) > 2 else (0, COUNT)
    counts = {"two devices": 0, "memory": 0, "either": 0}
    for k in range(first, last):
        made = problem(k)
        solved = solve(made)
        counts["two devices"] += solved.needs_two
        counts["memory"] += solved.memory_binds
        counts["either"] += solved.needs_two or solved.memory_binds
        print(
            f"{k} {made.graph.name} {made.objective} {made.discipline}: {made.n_groups} groups, "
            f"{made.n_devices} devices, {solved.placements} placements, optimum {solved.optimum_s * 1e6:.2f} us, "
            f"one device {solved.single_s * 1e6:.2f}, without limits {solved.loose_s * 1e6:.2f}",
            flush=True,
        )
    print(f"of {last - first}: " + ", ".join(f"{what} {count}" for what, count in counts.items()))


if __name__ == "__main__":
    sys.exit(main())

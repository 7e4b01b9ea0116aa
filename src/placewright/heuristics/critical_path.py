"""Mayer, Mayer and Laich 2017: six ways to partition a graph, and three to order what is ready (`ready_order.py`).

    mayer-hash         in turn
    mayer-cp           critical path on the fastest device, the rest where there is least to do
    mayer-icp          one longest path after another, each on the device with least to do
    mayer-mite         least product of memory, importance, traffic and execution time
    mayer-dfs          depth first from the most important sources, least product of traffic and execution time
    mayer-batchsplit   by falling importance, in ranges of equal numbers of operations

Under the discipline `priority` each also comes with an order: `mayer-cp+fifo`, `mayer-cp+pct`, `mayer-cp+msr`.
docs/algorithms/mayer.md says how their words read in our model, and where this differs from their code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from placewright.errors import UnknownNameError
from placewright.heuristics.bundles import Bundles
from placewright.heuristics.filling import Filling
from placewright.heuristics.longest_paths import cut_longest_paths
from placewright.heuristics.paths import Paths
from placewright.heuristics.ready_order import ORDERS
from placewright.heuristics.traffic import Traffic
from placewright.heuristics.trivial import OneShot
from placewright.problem import Problem

NEARLY_NOTHING = 1e-6
"""Stands for a factor of 0, which would silence the other factors."""


def _hash(bundles: Bundles, paths: Paths, filling: Filling) -> None:
    """Bundles of several operations, then the others, to devices in turn; the next one where one is not open."""
    devices = list(range(bundles.problem.n_devices))
    for turn, b in enumerate(_components_first(bundles)):
        filling.put(b, _next(devices, turn % len(devices), filling.open_to(b)))


def _cp(bundles: Bundles, paths: Paths, filling: Filling) -> None:
    """The critical path by upward rank on the fastest device that is open, all else where there is least to do."""
    rank, following = paths.upward
    v = min(paths.sources, key=lambda v: -rank[v], default=-1)
    of_op = bundles.of_op.tolist()
    while v >= 0:
        b = of_op[v]
        if filling.device[b] < 0:
            filling.put(b, min(filling.open_to(b), key=filling.seconds[b].__getitem__))
        v = following[v]
    for b in range(bundles.count):
        if filling.device[b] < 0:
            filling.put(b, min(filling.open_to(b), key=filling.load.__getitem__))


def _icp(bundles: Bundles, paths: Paths, filling: Filling) -> None:
    """The longest path of what is not placed yet, where there is least to do; halves of it if it fits nowhere."""
    for path in cut_longest_paths(paths, bundles):
        parts = [path]
        while parts:
            part = parts.pop()
            if len(part) == 1:
                devices = filling.open_to(part[0])
            else:
                apart = sum(filling.is_tied(b) for b in part) > 1
                devices = [] if apart else filling.common(part)
            if devices:
                device = min(devices, key=filling.load.__getitem__)
                for b in part:
                    filling.put(b, device)
            else:
                parts += [part[len(part) // 2 :], part[: len(part) // 2]]


def _mite(bundles: Bundles, paths: Paths, filling: Filling) -> None:
    """The least product of memory in use, importance on a slow device, added traffic, and execution time."""
    sums = np.bincount(bundles.of_op, weights=paths.importance, minlength=bundles.count)
    importance: list[float] = (sums / np.maximum(1, bundles.sizes)).tolist()
    totals: list[float] = np.where(bundles.totals > 0, bundles.totals, 1.0).tolist()
    capacity: list[int] = np.maximum(1, bundles.decisions.capacity).tolist()
    traffic = Traffic(bundles, paths)
    for b in _components_first(bundles):
        devices = filling.open_to(b)
        used = [1 - filling.room[p] / capacity[p] for p in (filling.pool_of[d] for d in devices)]
        least = min((share for share in used if share > 0), default=1.0) / 10
        fastest = min(totals[d] for d in devices)
        products = zip(
            [share if share > 0 else least for share in used],
            [_some(1 - importance[b] * fastest / totals[d]) for d in devices],
            _shares(traffic.added(b, devices, filling)),
            _shares([filling.load[d] + filling.seconds[b][d] for d in devices]),
            strict=True,
        )
        traffic.put(b, _least(devices, [math.prod(factors) for factors in products]), filling)


def _dfs(bundles: Bundles, paths: Paths, filling: Filling) -> None:
    """Depth first along the edges, sources by falling importance: the least product of traffic and execution time."""
    traffic = Traffic(bundles, paths)
    of_op = bundles.of_op.tolist()
    stack = sorted(paths.sources, key=paths.importance.__getitem__, reverse=True)[::-1]
    visited = [False] * bundles.problem.n_ops
    while stack:
        v = stack.pop()
        if visited[v]:
            continue
        visited[v] = True
        stack += reversed(paths.after[v])
        b = of_op[v]
        if filling.device[b] < 0:
            devices = filling.open_to(b)
            added = _shares(traffic.added(b, devices, filling))
            busy = _shares([filling.load[d] + filling.seconds[b][d] for d in devices])
            traffic.put(b, _least(devices, [x * y for x, y in zip(added, busy, strict=True)]), filling)


def _batchsplit(bundles: Bundles, paths: Paths, filling: Filling) -> None:
    """Operations by falling importance in as many equal ranges as devices, the first range on the fastest device."""
    n, order = bundles.problem.n_ops, bundles.fast_first.tolist()
    of_op = bundles.of_op.tolist()
    for place, v in enumerate(np.argsort(-paths.importance, kind="stable").tolist()):
        b = of_op[v]
        if filling.device[b] < 0:
            filling.put(b, _next(order, place * len(order) // n, filling.open_to(b)))


def _components_first(bundles: Bundles) -> list[int]:
    """Bundles of several operations, then those of one, each in program order."""
    order: list[int] = np.argsort(bundles.sizes == 1, kind="stable").tolist()
    return order


def _next(order: list[int], turn: int, among: list[int]) -> int:
    """The first device among some, going round an order from a place in it."""
    return next(d for d in (*order[turn:], *order[:turn]) if d in among)


def _least(devices: list[int], values: list[float]) -> int:
    """The device of least value; a tie to the first."""
    return devices[min(range(len(values)), key=values.__getitem__)]


def _shares(values: list[float]) -> list[float]:
    """Values as shares of the largest; all 1 where that is 0."""
    largest = max(values)
    return [_some(value / largest) for value in values] if largest > 0 else [1.0] * len(values)


def _some(factor: float) -> float:
    """A factor that is not 0."""
    return factor if factor > 0 else NEARLY_NOTHING


PARTITIONERS: Mapping[str, Callable[[Bundles, Paths, Filling], None]] = MappingProxyType(
    {"hash": _hash, "cp": _cp, "icp": _icp, "mite": _mite, "dfs": _dfs, "batchsplit": _batchsplit}
)


@dataclass(frozen=True)
class MayerParams:
    """Which of the paper's combinations."""

    partitioner: str = "cp"
    """`hash`, `cp`, `icp`, `mite`, `dfs` or `batchsplit`."""
    scheduler: str = ""
    """`fifo`, `pct` or `msr`; empty for none. It counts under the discipline `priority` alone."""

    def __post_init__(self) -> None:
        if self.partitioner not in PARTITIONERS:
            raise UnknownNameError("partitioner", self.partitioner, PARTITIONERS)
        if self.scheduler and self.scheduler not in ORDERS:
            raise UnknownNameError("scheduler", self.scheduler, ORDERS)

    @property
    def method(self) -> str:
        """Its name among the methods."""
        return f"mayer-{self.partitioner}" + (f"+{self.scheduler}" if self.scheduler else "")


class Mayer(OneShot):
    """One of the paper's partitioners, with one of its schedulers as priorities where the discipline has any."""

    def __init__(self, params: MayerParams | None = None) -> None:
        self.params = params or MayerParams()
        self.name = self.params.method  # type: ignore[misc]  # one name per combination

    def start(self, problem: Problem, rng: np.random.Generator) -> None:
        """Make the one placement, and its priorities."""
        paths = Paths(problem)
        devices = problem.lift(partitions(problem, [self.params.partitioner], paths)[self.params.partitioner])
        ordered = self.params.scheduler and problem.discipline == "priority"
        priorities = ORDERS[self.params.scheduler](paths, devices) if ordered else None
        self._batch = [problem.placement(devices, priorities)]

    def groups(self, problem: Problem) -> NDArray[np.int64]:
        """The device of every group."""
        return partitions(problem, [self.params.partitioner])[self.params.partitioner]


def partitions(
    problem: Problem, names: Iterable[str] = tuple(PARTITIONERS), paths: Paths | None = None
) -> dict[str, NDArray[np.int64]]:
    """The device of every group by each of the partitioners; what they have in common is computed once."""
    bundles, paths = Bundles(problem), paths or Paths(problem)
    made = {}
    for name in names:
        filling = Filling(bundles)
        PARTITIONERS[name](bundles, paths, filling)
        made[name] = filling.groups
    return made


SINGLE_METHODS: Mapping[str, MayerParams] = MappingProxyType({p.method: p for p in map(MayerParams, PARTITIONERS)})
"""The partitioners by method name."""
ORDERED_METHODS: Mapping[str, MayerParams] = MappingProxyType(
    {p.method: p for p in (MayerParams(a, b) for a in PARTITIONERS for b in ORDERS)}
)
"""Partitioners with a scheduler by method name; they mean something under the discipline `priority`."""

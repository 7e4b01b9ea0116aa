"""Partitioners as placers: Scotch and MinCut, METIS, and Mt-KaHyPar (extra `partition`).

They balance work over devices and keep what passes between them small. None knows which operation comes before
which, and one weight per vertex is all they take: work, or memory, never both. docs/algorithms/partition.md has the
sources, and what is different here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from placewright.decisions import Decisions
from placewright.errors import InputError, ProblemError, UnknownNameError
from placewright.evaluate import Evaluation
from placewright.graph import Longs
from placewright.heuristics.partition_calls import require, run
from placewright.heuristics.sketch import Sketch, accelerators, adjacency, sketch, spread, whole
from placewright.placement import Placement
from placewright.problem import Problem
from placewright.search import Placer

MOST_SEED = 1 << 30
LIMIT_S = 300.0
"""Seconds that a library may take, unless told otherwise."""
TOTAL = 1 << 27
"""Sum of weights; the libraries count in 32 bits, or, as Scotch in 64, go wrong with more than some 33."""
COUNTED = 1 << 30
"""What a sum of weights times distances may come to where it is counted in 32 bits."""
MOST_MAPPED = 64
"""Blocks that Mt-KaHyPar maps onto at most; more are only partitioned."""


def _check_range(owner: object, name: str, low: float, high: float) -> None:
    value = getattr(owner, name)
    if not low < value <= high:
        raise InputError(f"{name} is {value}; above {low:g}, at most {high:g}, is allowed")


class Partitioner(Placer):
    """Asks once, for what a library makes of the problem's sketch; rules that it does not know are kept afterwards.

    A group that may be on one device alone is fixed there where the library can. What breaks another rule, or would
    not fit beside larger groups, goes to the fastest allowed device (`Decisions.settle`).
    """

    partitioner: ClassVar[str]
    hosts: ClassVar[bool] = True
    """Whether hosts are among the blocks."""

    def start(self, problem: Problem, rng: np.random.Generator) -> None:
        """Partition, and settle."""
        require(self.name, self.partitioner)
        seed = int(rng.integers(1, MOST_SEED))
        decisions = Decisions(problem)
        seen = sketch(problem, hosts=self.hosts)
        placements = []
        for parts in self._parted(seen, seed):
            wanted = seen.devices(parts, decisions)
            placements.append(problem.placement(problem.lift(decisions.settle(wanted))))
        self._batch = list(dict.fromkeys(placements))

    def ask(self) -> list[Placement]:
        """What was made, once."""
        batch, self._batch = self._batch, []
        return batch

    def tell(self, evaluations: Sequence[Evaluation]) -> None:
        """Nothing to learn."""

    def _parted(self, seen: Sketch, seed: int) -> list[Longs]:
        """Return partitions, each the block of every vertex; no library is asked where there is nothing to decide."""
        if len(seen.blocks) < 2 or not len(seen.vertices):
            return [np.zeros(len(seen.vertices), np.int64)]
        if not len(seen.edges[0]) or (seen.fixed >= 0).all():
            return [spread(seen.work_s, seen.speed, seen.fixed)]
        return self.partitions(seen, seed)

    def limited(self, limit_s: float) -> float:
        """Seconds for one call of a library: its own limit, or what the search has left."""
        return min(limit_s, max(0.1, self.seconds_left))

    @abstractmethod
    def partitions(self, seen: Sketch, seed: int) -> list[Longs]:
        """The block of every vertex, in one way or several."""


@dataclass(frozen=True)
class ScotchParams:
    """How Scotch maps."""

    imbalance: float = 0.01
    """How far the work of a device may be above its share, as a part of it; the default is Scotch's own."""
    limit_s: float = LIMIT_S
    """Seconds that it may take."""

    def __post_init__(self) -> None:
        _check_range(self, "imbalance", 0.0, 1.0)
        _check_range(self, "limit_s", 0.0, 1e6)


class _Mapping(Partitioner):
    """The graph mapped onto devices with their speeds and distances by Scotch's default strategy.

    Groups that may be on one device alone are fixed.
    """

    partitioner = "scotch"

    def __init__(self, params: ScotchParams | None = None) -> None:
        self.params = params or ScotchParams()

    def partitions(self, seen: Sketch, seed: int) -> list[Longs]:
        """The one mapping."""
        n, k = len(seen.vertices), len(seen.blocks)
        start, neighbour, weight = adjacency(n, (*seen.edges[:2], whole(seen.edges[2], TOTAL)))
        one, two = np.triu_indices(k, 1)
        target = adjacency(k, (one, two, seen.distance[one, two]))
        arguments: dict[str, Any] = {
            "start": start,
            "neighbour": neighbour,
            "weight": weight,
            "work": whole(seen.work_s, TOTAL),
            "speed": whole(seen.speed, 1000 * k),
            "target_start": target[0],
            "target_neighbour": target[1],
            "target_weight": target[2],
            "fixed": seen.fixed,
            "imbalance": self.params.imbalance,
            "seed": seed,
        }
        return [run(self.partitioner, arguments, self.limited(self.params.limit_s))]


class Scotch(_Mapping):
    """Scotch: the graph mapped onto the whole machine."""

    name = "scotch"


class MinCut(_Mapping):
    """MinCut of the learned papers: Scotch with the hosts taken out of the machine.

    What can be on a host alone stays there, on the fastest that it may use, and is no vertex.
    """

    name = "mincut"
    hosts = False


@dataclass(frozen=True)
class MetisParams:
    """How METIS partitions."""

    imbalance: float = 0.03
    """How far the work of a part may be above its target, as a part of it; METIS's own for this scheme."""
    targets: Literal["speed", "equal"] = "speed"
    """Work of a part in proportion to its device's speed, or the same for all."""
    limit_s: float = LIMIT_S
    """Seconds that it may take."""

    def __post_init__(self) -> None:
        _check_range(self, "imbalance", 0.0, 1.0)
        _check_range(self, "limit_s", 0.0, 1e6)
        if self.targets not in ("speed", "equal"):
            raise UnknownNameError("targets", self.targets, ("speed", "equal"))


class Metis(Partitioner):
    """METIS, k-way: as many parts as there are devices, hosts too, each part on its device.

    It knows no fixed groups.
    """

    name = "metis"
    partitioner = "metis"

    def __init__(self, params: MetisParams | None = None) -> None:
        self.params = params or MetisParams()

    def partitions(self, seen: Sketch, seed: int) -> list[Longs]:
        """The one partition."""
        n = len(seen.vertices)
        speed = seen.speed if self.params.targets == "speed" else np.ones(len(seen.blocks))
        start, neighbour, weight = adjacency(n, (*seen.edges[:2], whole(seen.edges[2], TOTAL)))
        arguments: dict[str, Any] = {
            "start": start,
            "neighbour": neighbour,
            "weight": weight,
            "work": whole(seen.work_s, TOTAL),
            "targets": speed / speed.sum(),
            "imbalance": self.params.imbalance,
            "seed": seed,
        }
        return [run(self.partitioner, arguments, self.limited(self.params.limit_s))]


Bounded = Literal["work", "memory"]


@dataclass(frozen=True)
class MtKahyparParams:
    """How Mt-KaHyPar maps."""

    imbalance: float = 0.03
    """How far the work of a block may be above its share, as a part of it."""
    bounded: tuple[Bounded, ...] = ("work", "memory")
    """What the blocks are bounded by, each in a mapping of its own: work by speed, or bytes by capacity."""
    preset: Literal["default", "quality", "deterministic", "deterministic_quality"] = "quality"
    """Settings of the library."""
    limit_s: float = LIMIT_S
    """Seconds that each mapping may take."""

    def __post_init__(self) -> None:
        _check_range(self, "imbalance", 0.0, 1.0)
        _check_range(self, "limit_s", 0.0, 1e6)
        if not self.bounded or not set(self.bounded) <= {"work", "memory"}:
            raise InputError(f"bounded is {self.bounded!r}; a tuple of 'work' and 'memory', one or both, is allowed")
        presets = ("default", "quality", "deterministic", "deterministic_quality")
        if self.preset not in presets:
            raise UnknownNameError("preset", self.preset, presets)


class MtKahypar(Partitioner):
    """Mt-KaHyPar: the hypergraph of tensors mapped onto the machine, each tensor paying for a tree to its readers.

    Two mappings, one with blocks bounded by work and one by memory. Groups that may be on one device alone are fixed.
    """

    name = "mt-kahypar"
    partitioner = "mt-kahypar"

    def __init__(self, params: MtKahyparParams | None = None) -> None:
        self.params = params or MtKahyparParams()

    def partitions(self, seen: Sketch, seed: int) -> list[Longs]:
        """One mapping for each bound."""
        return [self._mapped(seen, seed, bounded) for bounded in self.params.bounded]

    def _mapped(self, seen: Sketch, seed: int, bounded: Bounded) -> Longs:
        """Map; where the library fails, try its safest preset, and then partition only, which forgets distances."""
        start, pins, seconds = seen.nets
        work, room = by_work(seen, self.params.imbalance) if bounded == "work" else by_memory(seen)
        used = np.flatnonzero((room > 0) | np.isin(np.arange(len(room)), seen.fixed))
        if len(used) < 2:
            return np.where(seen.fixed >= 0, seen.fixed, used[0] if len(used) else 0)
        arguments: dict[str, Any] = {
            "start": start,
            "pins": pins,
            "weight": whole(seconds, TOTAL),
            "work": work,
            "room": room[used],
            "fixed": np.where(seen.fixed >= 0, np.searchsorted(used, seen.fixed), -1),
            "seed": seed,
        }
        attempts = [arguments]
        if 2 < len(used) <= MOST_MAPPED:  # on two blocks both are the same, and mapping may never end
            distance, total = _within(seen.distance[np.ix_(used, used)], len(seconds))
            attempts.insert(0, arguments | {"distance": distance, "weight": whole(seconds, total)})
        presets = dict.fromkeys([self.params.preset, "deterministic"])
        failures: list[ProblemError] = []
        for attempt in (each | {"preset": preset} for each in attempts for preset in presets):
            try:
                return used[run(self.partitioner, attempt, self.limited(self.params.limit_s))]
            except ProblemError as error:
                failures.append(error)
        raise failures[0]


def _within(distance: Longs, nets: int) -> tuple[Longs, int]:
    """Return distances and a sum of weights of nets with which every tree, for every net, stays within 32 bits."""
    from scipy.sparse.csgraph import minimum_spanning_tree

    longest = int(minimum_spanning_tree(distance).sum())  # no tree between some blocks need be longer
    shrink = -(-4 * nets * longest // COUNTED)
    distance = np.where(distance > 0, np.maximum(1, distance // max(1, shrink)), 0)
    return distance, COUNTED // max(1, int(minimum_spanning_tree(distance).sum()))


def by_work(seen: Sketch, imbalance: float) -> tuple[Longs, Longs]:
    """(vertices,) work and (blocks,) room: shares by speed, and the imbalance."""
    work = whole(seen.work_s, TOTAL // len(seen.blocks))
    room = np.ceil(seen.speed / seen.speed.sum() * (work.sum() * (1 + imbalance)))
    return work, room.astype(np.int64)


def by_memory(seen: Sketch) -> tuple[Longs, Longs]:
    """(vertices,) bytes and (blocks,) capacity, in units that both share; hosts take what accelerators cannot hold.

    Devices of one pool share it alike. Where not all fits, every capacity grows alike until it does.
    """
    machine, size = seen.problem.machine, seen.held_bytes.astype(np.float64)
    pool = np.array(machine.pool_of)[seen.blocks]
    sharing = np.bincount(pool, minlength=len(machine.pools))
    room = np.array([p.capacity_bytes for p in machine.pools], np.float64)[pool] / sharing[pool]
    need = float(size.sum()) * 1.05  # whole groups leave gaps
    away = np.isin(seen.blocks, accelerators(seen.problem.machine))
    held = float(room[away].sum())
    if not away.all() and held > 0:
        left = float(room[~away].sum())
        room[~away] *= min(1.0, max(0.0, need - held) / left) if left > 0 else 0.0
    room *= max(1.0, need / room.sum()) if room.sum() > 0 else 1.0
    room = np.minimum(room, need)
    unit = max(need, 1.0) / (TOTAL // len(seen.blocks))
    weight = np.maximum(1, np.ceil(size / unit)).astype(np.int64)
    return weight, np.where(room > 0, np.ceil(room / unit) + len(weight), 0).astype(np.int64)  # the ones above too

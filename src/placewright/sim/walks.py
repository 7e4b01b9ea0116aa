"""Walks from Python: the arrays they read, and running several side by side without the interpreter's lock."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.problem import OBJECTIVES, Problem
from placewright.sim import walk
from placewright.sim.changes import ALL, MAX_LOAD, MOVE, SHIFT, STEP, SWAP, THROUGHPUT, WINDOW, Terrain, Walker
from placewright.sim.jit import entry
from placewright.sim.lower import Lowered
from placewright.sim.work import make_work

Rows = NDArray[np.int64]
_OBJECTIVE = dict(zip(OBJECTIVES, (STEP, MAX_LOAD, THROUGHPUT), strict=True))


@entry
def _go(p, w, g, s, priorities):  # type: ignore[no-untyped-def]
    """Walk."""
    walk.walk(p, w, g, s, priorities)


@dataclass(frozen=True)
class Kind:
    """A kind of change: `MOVE`, `SWAP`, `STRETCH`, `BALL`, `WINDOW` or `SHIFT`, of what part, over which clusters."""

    kind: int
    part: int = ALL
    level: int = -1


@dataclass(frozen=True, eq=False)
class Ground:
    """What walks of one problem share."""

    lowered: Lowered
    terrain: Terrain
    n_ops: int
    spans: tuple[tuple[int, int], ...]
    """The first and the last but one cluster of every level."""

    def with_kinds(self, kinds: Sequence[Kind]) -> Ground:
        """The same ground for other kinds of change."""
        table = [
            (kind.kind, kind.part, *self.spans[kind.level if kind.kind in (MOVE, SWAP, SHIFT) else 0]) for kind in kinds
        ]
        return replace(self, terrain=self.terrain._replace(kinds=np.array(table, np.int64).reshape(-1, 4)))

    @staticmethod
    def of(
        problem: Problem,
        lowered: Lowered,
        clusters: Sequence[tuple[Rows, Rows]],
        ties: tuple[Rows, Rows],
        apart: tuple[NDArray[Any], NDArray[Any]],
    ) -> Ground:
        """Clusters are (start, group) in CSR form, one pair for every level that kinds will name; ties by group.

        `apart` are the sides of separations by group (`Decisions.apart`).
        """
        graph, pools = problem.graph, problem.machine.pools
        groups, devices = problem.n_groups, problem.n_devices
        kept = np.flatnonzero(graph.persistent)
        owner = problem.groups[graph.tensor_op[kept]]
        held = np.zeros((groups, len(pools)), np.int64)
        for k, pool in enumerate(pools):
            granule = pool.granule_bytes
            np.add.at(held[:, k], owner, -(-graph.tensor_bytes[kept] // granule) * granule)
        keeps = np.zeros(groups, bool)
        keeps[owner] = True
        pool_of = np.array(problem.machine.pool_of, np.int64)
        capacity = np.array([pool.capacity_bytes for pool in pools], np.int64)
        starts, members, firsts = [np.zeros(1, np.int64)], [], []
        for start, group in clusters:
            firsts.append(sum(len(s) for s in starts) - 1)
            starts.append(start[1:] + (starts[-1][-1] if len(starts[-1]) else 0))
            members.append(group)
        lasts = [*firsts[1:], sum(len(s) for s in starts) - 1]
        share = np.array([0.02, 0.05, 0.1, 0.2, 0.4])
        options = (capacity[pool_of][:, None] * share[None, :]).astype(np.int64)
        windows = np.concatenate([np.tile(np.array([-1, 0], np.int64), (devices, 1)), options], axis=1)
        terrain = Terrain(
            group_start=_starts(problem.groups, groups),
            group_ops=np.argsort(problem.groups, kind="stable").astype(np.int64),
            choices=np.ascontiguousarray(problem.choices),
            held=held,
            apart_start=apart[0].astype(np.int64),
            apart_side=apart[1].astype(np.int64),
            keeps=keeps,
            tie_start=ties[0],
            tied=ties[1],
            cluster_start=np.concatenate(starts),
            cluster_groups=np.concatenate(members) if members else np.zeros(0, np.int64),
            kinds=np.zeros((0, 4), np.int64),
            capacity=capacity,
            pool_of=pool_of,
            window_options=windows,
            objective=_OBJECTIVE[problem.objective],
        )
        spans = tuple(zip(firsts, lasts, strict=True))
        return Ground(lowered, terrain, problem.n_ops, spans)


def _starts(owner: NDArray[Any], count: int) -> Rows:
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=count), out=starts[1:])
    return starts


@dataclass(frozen=True)
class Place:
    """Where a walk stands: devices of groups and windows of devices, with bytes over and value in ps."""

    row: Rows
    windows: Rows
    over: int
    value: int

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller is better."""
        return self.over, self.value


class Walk:
    """One walk, with its random numbers and what it has learnt of the kinds of change."""

    def __init__(self, ground: Ground, seed: int, priorities: NDArray[np.float64] | None = None) -> None:
        self.ground = ground
        g = ground.terrain
        groups, devices, pools, kinds = len(g.keeps), len(g.pool_of), len(g.capacity), len(g.kinds)
        self._priorities = np.zeros(ground.n_ops) if priorities is None else priorities
        self._work = make_work(ground.lowered, record=False)
        self._state = Walker(
            row=np.zeros(groups, np.int64),
            place=np.zeros(ground.n_ops, np.uint16),
            windows=np.full(devices, -1, np.int64),
            best_row=np.zeros(groups, np.int64),
            best_windows=np.full(devices, -1, np.int64),
            changed=np.zeros(groups, np.int64),
            was=np.zeros(groups, np.int64),
            mark=np.zeros(groups, np.int64),
            used=np.zeros(pools, np.int64),
            peak=np.zeros(pools, np.int64),
            sides=np.zeros((int(g.apart_side.max(initial=-1) | 1) + 1, devices), np.int64),
            tries=np.zeros(kinds),
            gains=np.zeros(kinds),
            before=np.zeros(pools, np.int64),
            pace=np.zeros(4),
            now=np.zeros(2, np.int64),
            best=np.zeros(2, np.int64),
            random=np.array([seed | 1], np.uint64),
            count=np.zeros(3, np.int64),
        )

    @property
    def simulated(self) -> int:
        """Placements simulated so far."""
        return int(self._state.count[1])

    @property
    def gains(self) -> list[tuple[float, float]]:
        """For every kind of change, how often it was tried and how often it helped."""
        return list(zip(self._state.tries.tolist(), self._state.gains.tolist(), strict=True))

    def set_out(self, row: Rows, windows: Rows | None = None) -> None:
        """Where the walk goes on from."""
        self._state.row[:] = row
        self._state.windows[:] = -1 if windows is None else windows

    def run(self, steps: int, hot: float, cold: float) -> Place:
        """Walk on from where it stands; the best place of this stretch. What helped long ago fades."""
        s = self._state
        s.tries[:] *= 0.9
        s.gains[:] *= 0.9
        s.pace[:] = steps, hot, cold, min(0.3, 600.0 / len(s.row))
        _go(self.ground.lowered, self._work, self.ground.terrain, s, self._priorities)
        return Place(s.best_row.copy(), s.best_windows.copy(), int(s.best[0]), int(s.best[1]))

    @property
    def place(self) -> Place:
        """Where the walk stands now."""
        s = self._state
        return Place(s.row.copy(), s.windows.copy(), int(s.now[0]), int(s.now[1]))


def run_walks(jobs: Sequence[tuple[Walk, int, float, float]]) -> list[Place]:
    """Run (walk, steps, hot, cold) on a thread each; results do not depend on each other."""
    if len(jobs) == 1:
        return [jobs[0][0].run(*jobs[0][1:])]
    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(lambda job: job[0].run(*job[1:]), jobs))


__all__ = ["WINDOW", "Ground", "Kind", "Place", "Walk", "run_walks"]

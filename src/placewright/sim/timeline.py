"""The timeline of one simulated step: who ran when, what moved when, memory over time, and why each waited."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.placement import Placement
from placewright.problem import Problem
from placewright.sim.lower import NONE, Lowered
from placewright.sim.work import (
    FIRST_USE,
    IS_VISIT,
    N_MOVES,
    ROOT,
    ROUTE,
    STATE,
    TARGET,
    TENSOR,
    Work,
)

Longs = NDArray[np.int64]


@dataclass(frozen=True)
class Move:
    """A transfer, or a visit of a borrowed tensor; `source` and `target` are devices."""

    tensor: int
    source: int
    target: int
    first_consumer: int
    visit: bool
    start_ps: int
    end_ps: int
    start_round: int
    end_round: int
    bytes: int
    """Bytes that the received copy occupies."""


@dataclass(frozen=True)
class Link:
    """One piece of the critical path: an operation or a move, and why it did not start earlier."""

    kind: str
    """`operation` or `transfer`."""
    index: int
    start_ps: int
    end_ps: int
    wait: str
    """`start`, `input`, `order`, `device`, `channel`, `window` or `queue`: what ended when this could start."""


@dataclass(frozen=True)
class Holding:
    """Bytes that something occupies in a pool over rounds [first, last); last is None to the end of the step."""

    pool: int
    bytes: int
    first: int
    last: int | None
    kind: str
    """`persistent`, `tensor`, `copy` or `workspace`."""
    index: int
    """The tensor, or the operation of a workspace."""
    device: int


@dataclass(frozen=True, eq=False)
class Timeline:
    """Times are in picoseconds, by operation and by move; a round is one pass of the simulation."""

    problem: Problem
    devices: NDArray[np.int16]
    op_start_ps: Longs
    op_end_ps: Longs
    op_start_round: Longs
    op_end_round: Longs
    moves: tuple[Move, ...]
    read_move: tuple[int, ...]
    """The move, by number, that serves each read of the graph; -1 where it is local."""
    root: tuple[int, ...]
    """The transient tensor whose bytes each tensor occupies; -1 for a persistent one's."""
    round_ps: Longs

    @staticmethod
    def read(problem: Problem, placement: Placement, p: Lowered, w: Work) -> Timeline:
        """The timeline that a recording run of the kernel left in its work arrays."""
        count = int(w.count[N_MOVES])
        rows = w.moves[:count].astype(np.int64)
        reader = p.use[rows[:, FIRST_USE], 0] if count else np.zeros(0, np.int64)
        route = rows[:, ROUTE]
        columns = (
            rows[:, TENSOR], route // problem.n_devices, rows[:, TARGET], reader, rows[:, STATE] & IS_VISIT,
            *w.move_times[:count].T, w.move_bytes[:count],
        )  # fmt: skip
        moves = tuple(
            Move(tensor, source, target, first, bool(visit), start, end, start_round, end_round, size)
            for tensor, source, target, first, visit, start, end, start_round, end_round, size in zip(
                *(column.tolist() for column in columns), strict=True
            )
        )
        start, end = w.op_times[:, 0].copy(), w.op_times[:, 2].copy()
        first, last = w.op_times[:, 1].copy(), w.op_times[:, 3].copy()
        read = np.where(w.read_move == NONE, -1, w.read_move.astype(np.int64))
        root = np.where(w.live[:, ROOT] == NONE, -1, w.live[:, ROOT].astype(np.int64))
        rounds = np.zeros(int(max(last.max(initial=0), max((m.end_round for m in moves), default=0))) + 1, np.int64)
        np.maximum.at(rounds, last, end)
        for move in moves:
            rounds[move.end_round] = max(rounds[move.end_round], move.end_ps)
        np.maximum.accumulate(rounds, out=rounds)
        for array in (start, end, first, last, rounds):
            array.flags.writeable = False
        return Timeline(
            problem, placement.devices, start, end, first, last, moves, tuple(read.tolist()), tuple(root.tolist()),
            rounds,
        )  # fmt: skip

    @cached_property
    def transfers(self) -> tuple[Move, ...]:
        """The moves in order of their start."""
        return tuple(sorted(self.moves, key=lambda m: (m.start_ps, m.start_round, m.tensor, m.target)))

    @property
    def end_ps(self) -> int:
        """The end of the step."""
        return int(self.round_ps[-1])

    # ------------------------------------------------------------------------------ memory

    @cached_property
    def holdings(self) -> tuple[Holding, ...]:
        """Everything that occupies memory, with the rounds of its life."""
        return tuple(self._holdings())

    def _holdings(self) -> Iterator[Holding]:
        graph, machine = self.problem.graph, self.problem.machine
        pool_of, granule = machine.pool_of, [pool.granule_bytes for pool in machine.pools]

        def rounded(size: int, pool: int) -> int:
            return -(-size // granule[pool]) * granule[pool]

        last = np.full(graph.n_tensors, -1, np.int64)  # of the tensors with bytes: round of the last release
        forever = np.zeros(graph.n_tensors, bool)
        copy_last = np.full(len(self.moves), -1, np.int64)
        for t, root in enumerate(self.root):
            if root >= 0:
                last[root] = max(last[root], self.op_end_round[graph.tensor_op[t]])
                forever[root] |= bool(graph.tensor_output[t])
        for read, (t, i) in enumerate(zip(graph.in_tensor.tolist(), graph.read_op.tolist(), strict=True)):
            k = self.read_move[read]
            if k >= 0:
                copy_last[k] = max(copy_last[k], self.op_end_round[i])
            elif self.root[t] >= 0:
                last[self.root[t]] = max(last[self.root[t]], self.op_end_round[i])
        for move in self.moves:
            root = self.root[move.tensor]
            if root >= 0:
                last[root] = max(last[root], move.end_round)
        for t in range(graph.n_tensors):
            maker = int(graph.tensor_op[t])
            device = int(self.devices[maker])
            pool = pool_of[device]
            size = rounded(int(graph.tensor_bytes[t]), pool)
            if graph.persistent[t]:
                yield Holding(pool, size, 0, None, "persistent", t, device)
            elif self.root[t] == t:
                end = None if forever[t] else int(last[t])
                yield Holding(pool, size, int(self.op_start_round[maker]), end, "tensor", t, device)
        for k, move in enumerate(self.moves):
            pool = pool_of[move.target]
            yield Holding(pool, move.bytes, move.start_round, int(copy_last[k]), "copy", move.tensor, move.target)
        for i in np.flatnonzero(graph.workspace_bytes).tolist():
            pool = pool_of[self.devices[i]]
            size = rounded(int(graph.workspace_bytes[i]), pool)
            first, end = int(self.op_start_round[i]), int(self.op_end_round[i])
            yield Holding(pool, size, first, end, "workspace", i, int(self.devices[i]))

    def memory_of(self, pool: int) -> Longs:
        """Bytes in a pool after the starts of each round; `round_ps` has the time of each round."""
        rounds = len(self.round_ps)
        change = np.zeros(rounds + 1, np.int64)
        for h in self.holdings:
            if h.pool == pool:
                change[h.first] += h.bytes
                change[rounds if h.last is None else h.last] -= h.bytes
        return np.cumsum(change[:-1])

    @property
    def memory(self) -> Longs:
        """(pools, rounds): `memory_of` every pool."""
        return np.stack([self.memory_of(pool) for pool in range(len(self.problem.machine.pools))])

    def largest(self, pool: int, count: int = 10) -> list[Holding]:
        """What was largest in the pool in the first round that reached its peak."""
        peak = int(np.argmax(self.memory_of(pool)))
        alive = [h for h in self.holdings if h.pool == pool and h.first <= peak and (h.last is None or peak < h.last)]
        return sorted(alive, key=lambda h: (-h.bytes, h.index))[:count]

    # ------------------------------------------------------------------------------ critical path

    @cached_property
    def critical_path(self) -> tuple[Link, ...]:
        """From the start of the step to its end: what ran, each with the reason why it did not start earlier."""
        path: list[Link] = []
        node = self._last()
        while node is not None:
            kind, index = node
            what: Any = self.moves[index] if kind == "transfer" else None
            start = what.start_ps if what else int(self.op_start_ps[index])
            end = what.end_ps if what else int(self.op_end_ps[index])
            before, wait = self._why(kind, index)
            path.append(Link(kind, index, start, end, wait))
            node = before
        return tuple(reversed(path))

    def _last(self) -> tuple[str, int] | None:
        ends = [(int(r), "operation", i) for i, r in enumerate(self.op_end_round)]
        ends += [(m.end_round, "transfer", k) for k, m in enumerate(self.moves)]
        if not ends:
            return None
        final = max(end for end, _, _ in ends)
        return next((kind, i) for end, kind, i in ends if end == final)

    def _why(self, kind: str, index: int) -> tuple[tuple[str, int] | None, str]:
        """What ended in the round in which this started, and how it held this up."""
        if kind == "transfer":
            return self._why_move(index)
        graph = self.problem.graph
        here = int(self.op_start_round[index])
        for read in range(graph.in_start[index], graph.in_start[index + 1]):
            k = self.read_move[read]
            maker = int(graph.tensor_op[graph.in_tensor[read]])
            if k >= 0 and self.moves[k].end_round == here:
                return ("transfer", k), "input"
            if k < 0 and self.op_end_round[maker] == here and maker != index:
                same = self.devices[maker] == self.devices[index] and not graph.off_queue[maker]
                return ("operation", maker), "device" if same else "input"
        for e in range(graph.after_start[index], graph.after_start[index + 1]):
            if self.op_end_round[graph.after_op[e]] == here:
                return ("operation", int(graph.after_op[e])), "order"
        device = self.devices[index]
        for other in self._ended.get(here, ()):
            if other[0] == "operation" and self.devices[other[1]] == device and not graph.off_queue[other[1]]:
                return other, "device"
        return None, "start"

    def _why_move(self, k: int) -> tuple[tuple[str, int] | None, str]:
        move, graph = self.moves[k], self.problem.graph
        here = move.start_round
        maker = int(graph.tensor_op[move.tensor])
        if self.op_end_round[maker] == here and here > 0:
            return ("operation", maker), "input"
        machine = self.problem.machine
        mine = set(machine.route(move.source, move.target) or ())
        for other in self._ended.get(here, ()):
            if other[0] == "transfer":
                theirs = self.moves[other[1]]
                if mine & set(machine.route(theirs.source, theirs.target) or ()):
                    return other, "channel"
        for other in self._ended.get(here, ()):
            if other[0] == "operation" and self.devices[other[1]] == move.target and move.visit:
                return other, "window"
        for other_k in self._started.get(here, ()):  # behind one that started in this very round
            other_move = self.moves[other_k]
            same = other_k < k and other_move.target == move.target
            if same and (other_move.visit or other_move.source == move.source):
                before, wait = self._why_move(other_k)
                return before, "queue" if before is not None else wait
        return (("operation", maker), "input") if self.op_end_round[maker] == here else (None, "start")

    @cached_property
    def _started(self) -> dict[int, list[int]]:
        """The moves that started in each round."""
        started: dict[int, list[int]] = {}
        for k, move in enumerate(self.moves):
            started.setdefault(move.start_round, []).append(k)
        return started

    @cached_property
    def _ended(self) -> dict[int, list[tuple[str, int]]]:
        """What ended in each round."""
        ended: dict[int, list[tuple[str, int]]] = {}
        for i, r in enumerate(self.op_end_round.tolist()):
            ended.setdefault(r, []).append(("operation", i))
        for k, move in enumerate(self.moves):
            ended.setdefault(move.end_round, []).append(("transfer", k))
        return ended

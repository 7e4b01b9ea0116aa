"""Co-placement as Baechi does it: gradients with their operations, updates with their parameters, chains together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from placewright.decisions import Decisions
from placewright.graph import BACKWARD, FORWARD, INPUT, PARAMETER, UPDATE, Bools, Longs, OpGraph
from placewright.heuristics.list_lowering import Units, group_bytes
from placewright.problem import Problem


class Joining:
    """Groups of a problem, joined two by two while their rules and some memory allow it."""

    def __init__(self, problem: Problem) -> None:
        self.groups = problem.groups
        self._parent = list(range(problem.n_groups))
        decisions = Decisions(problem)
        rows, kind = np.unique(problem.choices, axis=0, return_inverse=True)
        masks = [sum(1 << d for d in np.flatnonzero(row).tolist()) for row in rows]
        self._choices = [masks[k] for k in kind.ravel().tolist()]
        start, side = decisions.apart
        self._sides = [sum(1 << k for k in side[a:b].tolist()) for a, b in pairwise(start)]
        self._even = sum(1 << 2 * k for k in range(len(problem.separated)))
        need = group_bytes(problem, np.arange(problem.n_groups, dtype=np.int64), problem.n_groups)[1]
        self.need = need.max(axis=1, initial=0).tolist()
        room = decisions.capacity[decisions.pool_of].tolist()
        self._room = [(1 << d, size) for d, size in enumerate(room)]

    def root(self, group: int) -> int:
        """The group that stands for all that it was joined with."""
        while self._parent[group] != group:
            self._parent[group] = self._parent[self._parent[group]]
            group = self._parent[group]
        return group

    def join(self, a: int, b: int, most: float = float("inf")) -> None:
        """Join two groups if some device may hold both, nothing keeps them apart, and they need at most so much."""
        a, b = sorted((self.root(a), self.root(b)))
        choices, need = self._choices[a] & self._choices[b], self.need[a] + self.need[b]
        sides = self._sides[a] | self._sides[b]
        fits = any(choices & bit and need <= size for bit, size in self._room)
        if a == b or not fits or need > most or sides & (sides >> 1) & self._even:
            return
        self._parent[b] = a
        self._choices[a], self._sides[a], self.need[a] = choices, sides, need


def co_placed_units(problem: Problem, share: float) -> Units:
    """Units of groups that go together, and where they go first: to devices that are no hosts, if they may."""
    graph, joining = problem.graph, Joining(problem)
    groups = problem.groups.tolist()
    for update, parameter in updates(graph):
        joining.join(groups[update], groups[parameter])
    for gradient, operation in gradients(problem):
        joining.join(groups[gradient], groups[operation])
    capacity = Decisions(problem).capacity[np.unique(np.array(problem.machine.pool_of))]
    most = share * float(capacity.mean())
    kept = (graph.phase == PARAMETER).tolist()
    children = only_children(graph)
    for parameters in (True, False):  # a chain that grew first would leave parameters behind
        for parent, child in children:
            if kept[parent] == parameters:
                joining.join(groups[parent], groups[child], float("inf") if parameters else most)
    of = np.array([joining.root(g) for g in range(problem.n_groups)], np.int64)
    of = np.unique(of, return_inverse=True)[1].astype(np.int64).reshape(-1)
    shut = np.zeros((int(of.max(initial=-1)) + 1, problem.n_devices), np.int64)
    np.add.at(shut, of, ~problem.choices)
    choices: Bools = shut == 0
    cards = choices & ~np.array([device.is_host for device in problem.machine.devices], bool)
    return Units(of, choices, np.where(cards.any(axis=1)[:, None], cards, choices))


def updates(graph: OpGraph) -> list[tuple[int, int]]:
    """(operation, parameter) where an operation makes the new value of a parameter or of optimiser state."""
    new = np.flatnonzero(graph.detachable)
    return list(zip(graph.tensor_op[new].tolist(), graph.tensor_op[graph.persistent_root[new]].tolist(), strict=True))


def gradients(problem: Problem) -> list[tuple[int, int]]:
    """(operation, forward operation): for each group of the backward pass alone, that of its costliest operation."""
    graph = problem.graph
    ahead = np.zeros(problem.n_groups, bool)
    ahead[problem.groups[(graph.phase == FORWARD) | (graph.phase == PARAMETER) | (graph.phase == UPDATE)]] = True
    backward = np.flatnonzero((graph.phase == BACKWARD) & ~ahead[problem.groups])
    finite = np.isfinite(problem.costs.seconds[backward])
    seconds = np.where(finite, problem.costs.seconds[backward], 0.0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
    order = backward[np.lexsort((backward, -seconds))]
    first = order[np.unique(problem.groups[order], return_index=True)[1]]
    partner = _Partners(graph)
    pairs = ((i, partner.of(i)) for i in np.sort(first).tolist())
    return [(i, j) for i, j in pairs if j >= 0]


class _Partners:
    """Which forward operation a backward one is the gradient of, judged by tensors and scopes."""

    def __init__(self, graph: OpGraph) -> None:
        self._scopes = graph.scopes
        self._in_start, self._in_tensor = graph.in_start.tolist(), graph.in_tensor.tolist()
        self._last: dict[tuple[int, str], int] = {}
        """The last forward operation of a scope that makes or reads a tensor."""
        self._any: dict[int, int] = {}
        self._of_scope: dict[str, int] = {}
        made, read = graph.tensor_op.tolist(), graph.read_op.tolist()
        ends = [*zip(made, range(graph.n_tensors), strict=True), *zip(read, self._in_tensor, strict=True)]
        forward = (graph.phase == FORWARD).tolist()
        for i, t in sorted(end for end in ends if forward[end[0]]):
            self._last[t, self._scopes[i]] = self._any[t] = self._of_scope[self._scopes[i]] = i

    def of(self, i: int) -> int:
        """The forward operation of the same scope that shares most tensors; of any scope; the scope's last; or -1."""
        tensors = self._in_tensor[self._in_start[i] : self._in_start[i + 1]]
        scope = self._scopes[i]
        for found in ((self._last.get((t, scope), -1) for t in tensors), (self._any.get(t, -1) for t in tensors)):
            if (best := _most_common(found)) >= 0:
                return best
        return self._of_scope.get(scope, -1) if scope else -1


def _most_common(found: Iterable[int]) -> int:
    """The operation named most often, the last of such; -1 where none is."""
    count = Counter(j for j in found if j >= 0)
    return max(((times, j) for j, times in count.items()), default=(0, -1))[1]


def only_children(graph: OpGraph) -> list[tuple[int, int]]:
    """(operation, its only reader), among the operations of a forward pass, in program order."""
    ahead = np.isin(graph.phase, (INPUT, PARAMETER, FORWARD))
    made: NDArray[np.int64] = graph.tensor_op[graph.in_tensor].astype(np.int64)
    read = graph.read_op.astype(np.int64)
    inside = ahead[made] & ahead[read]
    pairs: Longs = np.unique(np.stack([made[inside], read[inside]], 1), axis=0)
    makers, at, count = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    return [(int(maker), int(pairs[k, 1])) for maker, k in zip(makers[count == 1], at[count == 1], strict=True)]

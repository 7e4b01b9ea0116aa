"""Levels: the groups of a problem in clusters, from single groups to a few large ones.

What moves together is found in several ways: by scope, by repeated block, by stretches of program order, and by heavy
edges, which works where a graph says nothing of itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.blocks import by_block, repeated_blocks
from placewright.graph import Longs
from placewright.problem import Problem

Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Level:
    """One way to cluster: the cluster of every group."""

    name: str
    label: Labels

    @property
    def by_scope(self) -> bool:
        """Whether the clusters are scopes of the graph."""
        return self.name.startswith("scopes/")

    @cached_property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return int(self.label.max(initial=-1)) + 1

    @cached_property
    def members(self) -> tuple[Longs, Longs]:
        """CSR (start, group) by cluster."""
        start = np.zeros(self.n_clusters + 1, np.int64)
        np.cumsum(np.bincount(self.label, minlength=self.n_clusters), out=start[1:])
        return start, np.argsort(self.label, kind="stable").astype(np.int64)

    def of(self, cluster: int) -> Longs:
        """The groups of a cluster."""
        start, group = self.members
        return group[start[cluster] : start[cluster + 1]]


@dataclass(frozen=True, eq=False)
class Ties:
    """What groups share: a pair of groups has the seconds that tensors between them would take if they were apart."""

    one: Longs
    other: Longs
    seconds: NDArray[Any]

    @staticmethod
    def of(problem: Problem) -> Ties:
        """The ties of a problem's groups, each pair once, at the machine's mean rates."""
        graph = problem.graph
        latency, per_byte = mean_rates(problem)
        seconds = np.where(
            np.isnan(graph.tensor_transfer_s), latency + graph.tensor_bytes * per_byte, graph.tensor_transfer_s
        )
        maker = problem.groups[graph.tensor_op[graph.in_tensor]].astype(np.int64)
        reader = problem.groups[graph.read_op].astype(np.int64)
        apart = maker != reader
        n = max(1, problem.n_groups)
        low, high = np.minimum(maker, reader)[apart], np.maximum(maker, reader)[apart]
        key, where = np.unique(low * n + high, return_inverse=True)
        weight = np.bincount(where, seconds[graph.in_tensor][apart], minlength=len(key))
        return Ties(key // n, key % n, weight)

    def joined(self, label: Labels) -> Ties:
        """The ties between clusters."""
        n = int(label.max(initial=0)) + 1
        one, other = label[self.one], label[self.other]
        apart = one != other
        low, high = np.minimum(one, other)[apart], np.maximum(one, other)[apart]
        key, where = np.unique(low * n + high, return_inverse=True)
        return Ties(key // n, key % n, np.bincount(where, self.seconds[apart], minlength=len(key)))


def mean_rates(problem: Problem) -> tuple[float, float]:
    """Mean latency in seconds, and seconds per byte, over the routes between devices of different pools."""
    machine = problem.machine
    pairs = [
        machine.rates(a, b)
        for a in range(problem.n_devices)
        for b in range(problem.n_devices)
        if machine.pool_of[a] != machine.pool_of[b]
    ]
    known = [pair for pair in pairs if pair is not None]
    if not known:
        return 0.0, 0.0
    return float(np.mean([pair[0] for pair in known])), float(np.mean([1 / pair[1] for pair in known]))


def dense(label: NDArray[np.int64]) -> Labels:
    """Labels renumbered by first appearance."""
    first, inverse = np.unique(label, return_index=True, return_inverse=True)[1:]
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    result: Labels = rank[inverse.reshape(-1)]
    return result


def heavy_edges(
    ties: Ties, weight: NDArray[np.float64], most: float, rng: np.random.Generator, within: Labels | None = None
) -> Labels:
    """Clusters of pairs: heavy ties first, by rounds in which each prefers its heaviest neighbour.

    No pair outweighs `most`; with `within`, both are of one part. A little noise on the ties makes repeated calls
    differ.
    """
    n = len(weight)
    mate = np.arange(n)
    one, other = ties.one, ties.other
    fits = weight[one] + weight[other] <= most
    if within is not None:
        fits &= within[one] == within[other]
    one, other, seconds = one[fits], other[fits], ties.seconds[fits]
    # light clusters first: a tie counts relative to the weights that it joins
    score = seconds / (np.sqrt(weight[one] * weight[other]) + 1e-30) * rng.uniform(0.7, 1.3, len(one))
    free = np.ones(n, bool)
    for _ in range(8):
        open_ = free[one] & free[other]
        one, other, score = one[open_], other[open_], score[open_]
        if not len(one):
            break
        best = np.full(n, -1.0)
        np.maximum.at(best, one, score)
        np.maximum.at(best, other, score)
        chosen = (score == best[one]) & (score == best[other])
        a, b = one[chosen], other[chosen]
        keep = np.ones(len(a), bool)  # equal scores could claim a cluster twice
        seen = np.zeros(n, bool)
        for k, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
            keep[k] = not (seen[x] or seen[y])
            seen[x] |= keep[k]
            seen[y] |= keep[k]
        a, b = a[keep], b[keep]
        mate[b] = a
        free[a] = free[b] = False
    return dense(mate)


def coarser(
    problem: Problem, ties: Ties, rng: np.random.Generator, fewest: int, within: Labels | None = None
) -> list[Level]:
    """Levels by heavy edges, each about half of the one before, down to `fewest` clusters or until none can join."""
    groups = problem.n_groups
    weight: NDArray[Any] = group_seconds(problem) + 1e-12
    total = float(weight.sum())
    label = np.arange(groups)
    now, part = weight, within
    levels: list[Level] = []
    while len(now) > fewest:
        pairs = heavy_edges(ties.joined(label) if levels else ties, now, max(total / fewest, 0.0), rng, part)
        count = int(pairs.max(initial=-1)) + 1
        if count > 0.95 * len(now):
            break
        now = np.bincount(pairs, now, minlength=count)
        if part is not None:
            fresh = np.zeros(count, np.int64)
            fresh[pairs] = part
            part = fresh
        label = pairs[label]
        levels.append(Level(f"edges/{count}", label))
    return levels


def group_seconds(problem: Problem) -> NDArray[Any]:
    """Seconds of every group at the mean over the devices where it can be."""
    seconds = problem.costs.seconds
    finite = np.isfinite(seconds)
    mean = np.where(finite, seconds, 0.0).sum(axis=1) / np.maximum(1, finite.sum(axis=1))
    return np.bincount(problem.groups, mean, minlength=problem.n_groups)


def stretches(problem: Problem, counts: tuple[int, ...]) -> list[Level]:
    """Levels of consecutive groups, in order of their first operations, of about equal seconds."""
    share = np.cumsum(group_seconds(problem) + 1e-12)
    levels = []
    for count in counts:
        if 1 < count < problem.n_groups:
            cut = np.minimum((share / share[-1] * count).astype(np.int64), count - 1)
            levels.append(Level(f"stretches/{count}", dense(cut)))
    return levels


def by_structure(problem: Problem) -> list[Level]:
    """Levels by scope, to every depth, by repeated block, and by repeated block and phase; none says the same twice."""
    graph = problem.graph
    leader = problem.leaders
    found: list[Level] = []
    parts = [graph.scopes[i].split(".") if graph.scopes[i] else [] for i in leader.tolist()]
    deepest = max((len(part) for part in parts), default=0)
    for depth in range(1, deepest + 1):
        names = [".".join(part[:depth]) if part else f"\0{g}" for g, part in enumerate(parts)]
        found.append(Level(f"scopes/{depth}", _numbered(names)))
    blocks = repeated_blocks(graph)
    for level in (1, 2, 3):
        label = by_block(graph, blocks, level).group_of.astype(np.int64)[leader]
        found.append(Level(f"blocks/{level}", dense(label)))
        phase = graph.phase[leader].astype(np.int64)
        found.append(Level(f"blocks/{level}/phases", dense(label * 8 + phase)))
    kept: list[Level] = []
    seen: set[bytes] = set()
    for level_ in found:
        key = level_.label.tobytes()
        if 1 < level_.n_clusters < problem.n_groups and key not in seen:
            seen.add(key)
            kept.append(level_)
    return kept


def columns(problem: Problem, most: int = 2) -> list[tuple[Longs, Longs]]:
    """CSR (start, group) of what corresponds in repeated blocks, in program order, for the families that hold most.

    A column has the groups of one operation of every block, in the order in which the blocks run.
    """
    families = sorted(repeated_blocks(problem.graph).families, key=lambda f: -f.ops.size)
    found = []
    for family in families[:most]:
        leads = problem.leaders[problem.groups[family.ops]] == family.ops  # a group counts where its first operation is
        of = problem.groups[family.ops].astype(np.int64)
        rows = [of[leads[:, k], k] for k in range(family.size)]
        rows = [row for row in rows if len(row) > 1]
        if rows and problem.n_devices > 1:
            start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
            found.append((start, np.concatenate(rows)))
    return found


def _numbered(names: list[str]) -> Labels:
    number = {name: k for k, name in enumerate(dict.fromkeys(names))}
    return np.array([number[name] for name in names], np.int64)


def singles(problem: Problem) -> Level:
    """Every group by itself."""
    return Level("groups", np.arange(problem.n_groups))

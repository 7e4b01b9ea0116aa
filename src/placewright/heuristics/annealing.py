"""Simulated annealing: several chains, cooled together, again and again (Kirkpatrick et al. 1983)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from placewright.heuristics.local_search import LocalSearch, best_of
from placewright.heuristics.neighbours import Indices, MoveParams, Rank, Rows, check_ranges
from placewright.sim import Outcome

FEASIBLE, TOO_LARGE = 0, 1
"""The first entry of a rank."""


@dataclass(frozen=True)
class AnnealingParams:
    """How annealing goes."""

    start: str = "best-single"
    """Where the chains begin: the best starts of `best-single` device, or `random`, each drawn by itself."""
    chains: int = 2
    """Walks side by side."""
    tries: int = 16
    """Neighbours drawn for each chain at a time; it goes to one of them, or stays."""
    accept: float = 0.1
    """The odds, against staying, of a step for the worse at the first temperature, at the median of a sample."""
    coldest: float = 1e-3
    """The last temperature of a cycle, as a share of its first."""
    cycle: int = 1000
    """Evaluations of the first cooling; every later one takes twice as many as the one before."""
    reheat: float = 0.3
    """The first temperature of every later cycle, as a share of what is sampled."""
    moves: MoveParams = field(default_factory=MoveParams)

    def __post_init__(self) -> None:
        whole = {"chains": (1, 1e6), "tries": (1, 1e6), "cycle": (1, 1e12)}
        check_ranges(self, {**whole, "accept": (0.01, 0.99), "coldest": (1e-12, 1), "reheat": (1e-6, 1)})


def difference(rank: Rank, other: Rank) -> float:
    """How much worse the other is, in its logarithm; infinite if it is of a worse kind, minus infinite of a better.

    Kinds are feasible (by value), too large (by bytes over) and impossible, where all are alike. With logarithms one
    temperature serves seconds and bytes.
    """
    if rank[0] != other[0]:
        return math.inf if other[0] > rank[0] else -math.inf
    if rank[0] == FEASIBLE:
        return math.log(max(other[2], 1e-12) / max(rank[2], 1e-12))
    return math.log(max(other[1], 1) / max(rank[1], 1)) if rank[0] == TOO_LARGE else 0.0


class Annealing(LocalSearch):
    """Go to one of a few neighbours, or stay, with odds of exp(-difference / temperature) for each of them.

    This is the heat-bath rule over a sample: at a low temperature a chain goes to the best of its batch, where the
    rule of Metropolis would drop all but the first that it accepts. The budget is not known in advance, least of
    all in seconds. So the temperature falls geometrically with every evaluation over a cycle; then the chains are
    heated again, the first of them moved to the best so far, and cooled over a cycle of twice the length. Whenever
    the search ends, a whole cooling of a quarter of it is done, but for a search shorter than the first cycle.
    """

    name = "annealing"

    def __init__(self, params: AnnealingParams | None = None) -> None:
        self.params = params or AnnealingParams()
        self.start_at, self.moves = self.params.start, self.params.moves

    def begin(self, rows: Rows, outcomes: Sequence[Outcome]) -> None:
        """Put the chains at the best starts in turn."""
        order = sorted(range(len(outcomes)), key=lambda k: (outcomes[k].rank, k))
        at = [order[c % len(order)] for c in range(self.params.chains)]
        self._here, self._rank = rows[at], [outcomes[k].rank for k in at]
        self._best, self._best_rank = rows[order[0]], outcomes[order[0]].rank
        self._length, self._cycles, self._done = self.params.cycle, 0, 0
        self._hottest: float | None = None
        self._scatter = self.start_at == "random"
        self._parents: Indices = np.zeros(0, np.int64)

    def propose(self) -> Rows:
        """Some neighbours of every chain; at first, with `random`, a place of its own for every chain."""
        if self._scatter:
            drawn = [self.near.random() for _ in range(self.params.chains)]
            rows = np.array([self._here[c] if row is None else row for c, row in enumerate(drawn)], np.int16)
            self._parents = np.arange(len(rows))
            return rows
        rows, self._parents = self.near.draw(self._here, np.repeat(np.arange(self.params.chains), self.params.tries))
        return rows

    def learn(self, rows: Rows, outcomes: Sequence[Outcome]) -> None:
        """Let every chain take a step, and cool."""
        ranks = [outcome.rank for outcome in outcomes]
        k = best_of(outcomes)
        if ranks[k] < self._best_rank:
            self._best, self._best_rank = rows[k], ranks[k]
        parents = self._parents.tolist()[: len(ranks)]
        if self._scatter:
            self._scatter = False
            for k, chain in enumerate(parents):
                self._here[chain], self._rank[chain] = rows[k], ranks[k]
            return
        worse = [difference(self._rank[chain], rank) for chain, rank in zip(parents, ranks, strict=True)]
        if self._hottest is None:
            self._hottest = self._sampled(worse)
        temperature = self._hottest * self.params.coldest ** (self._done / self._length)
        self._step(rows, ranks, np.array([*worse, *[0.0] * self.params.chains]), temperature)
        self._done += len(ranks)
        if self._done >= self._length:
            self._length, self._cycles, self._done = 2 * self._length, self._cycles + 1, 0
            self._hottest = None
            self._here[0], self._rank[0] = self._best, self._best_rank

    def _step(self, rows: Rows, ranks: Sequence[Rank], worse: NDArray[np.float64], temperature: float) -> None:
        """Let every chain go to one of its neighbours, or stay; `worse` ends with staying, 0, for every chain.

        The largest of -difference / temperature + noise, of Gumbel's distribution, falls on each with just its odds.
        """
        score = worse - temperature * self.rng.gumbel(size=len(worse))
        chains = np.append(self._parents[: len(ranks)], np.arange(self.params.chains))
        order = np.lexsort((score, chains))
        first = order[np.searchsorted(chains[order], np.arange(self.params.chains))]
        for chain, k in enumerate(first.tolist()):
            if k < len(ranks):
                self._here[chain], self._rank[chain] = rows[k], ranks[k]

    def _sampled(self, worse: Sequence[float]) -> float:
        """The temperature at which the median of a sample of steps for the worse has the odds asked for."""
        sample = [difference for difference in worse if 0 < difference < math.inf]
        median = float(np.median(sample)) if sample else 0.01
        return median / -math.log(self.params.accept) * (self.params.reheat if self._cycles else 1.0)

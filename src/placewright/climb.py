"""Climb: several chains of accepted changes over one neighbourhood, with temperatures that fall and rise again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.neighbourhood import Neighbourhood, State
from placewright.sim import Outcome


@dataclass
class Chain:
    """Where one chain stands."""

    state: State
    outcome: Outcome
    better: tuple[State, ...] = ()
    """Changes of the present state that improved it, best first: they may help together."""


@dataclass(frozen=True)
class Pace:
    """How wide and how hot the search is."""

    chains: int
    batch: int
    """Placements in a batch, of all chains together."""
    hot: float = 0.01
    """The first temperature, as a share of the value."""
    cold: float = 1e-5
    first_cycle: int = 40
    """Batches until the temperature has fallen for the first time; each cycle is longer by half."""

    @staticmethod
    def of(n_ops: int) -> Pace:
        """More chains where a simulation is short."""
        if n_ops <= 1500:
            return Pace(4, 48)
        if n_ops <= 6000:
            return Pace(2, 24)
        return Pace(1, 12)


class Climb:
    """Proposes batches of states and learns from their outcomes."""

    def __init__(self, neighbourhood: Neighbourhood, pace: Pace, rng: np.random.Generator) -> None:
        self.neighbourhood, self.pace, self.rng = neighbourhood, pace, rng
        self.chains: list[Chain] = []
        self.best: Chain | None = None
        self._cycle, self._in_cycle = pace.first_cycle, 0
        self._asked: list[tuple[int, State]] = []

    def seed(self, starts: Sequence[tuple[State, Outcome]]) -> None:
        """Begin the chains at the best of the starts, best first."""
        ranked = sorted(starts, key=lambda pair: pair[1].rank)
        for k in range(self.pace.chains):
            state, outcome = ranked[min(k, len(ranked) - 1) if k % 2 else 0]
            self.chains.append(Chain(state, outcome))
        self.best = Chain(*ranked[0])

    def offer(self, state: State, outcome: Outcome) -> None:
        """Take in what was found elsewhere, if it is better than the last chain's."""
        chain = self.chains[-1]
        if outcome.rank < chain.outcome.rank:
            chain.state, chain.outcome, chain.better = state, outcome, ()
        if self.best is None or outcome.rank < self.best.outcome.rank:
            self.best = Chain(state, outcome)

    @property
    def heat(self) -> float:
        """The present temperature, as a share of the value."""
        through = min(1.0, self._in_cycle / self._cycle)
        return float(self.pace.hot * (self.pace.cold / self.pace.hot) ** through)

    def propose(self) -> list[State]:
        """A batch of changed states; empty only where nothing can change."""
        each = max(1, self.pace.batch // len(self.chains))
        self._asked = []
        for c, chain in enumerate(self.chains):
            made = [(c, state) for state in self._together(chain)]
            peak = np.array(chain.outcome.peak_bytes, np.int64)
            for _ in range(8 * each):
                if len(made) >= each:
                    break
                drawn = self.neighbourhood.draw(chain.state, peak, self.rng)
                if drawn is not None:
                    made.append((c, drawn))
            self._asked += made
        return [state for _, state in self._asked]

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Move the chains."""
        by_chain: list[list[tuple[State, Outcome]]] = [[] for _ in self.chains]
        for (c, state), outcome in zip(self._asked, outcomes, strict=False):
            by_chain[c].append((state, outcome))
        for chain, told in zip(self.chains, by_chain, strict=True):
            self._step(chain, told)
        self._in_cycle += 1
        if self._in_cycle > self._cycle:
            self._again()

    def _step(self, chain: Chain, told: list[tuple[State, Outcome]]) -> None:
        now = chain.outcome
        better = sorted((pair for pair in told if pair[1].rank < now.rank), key=lambda pair: pair[1].rank)
        for state, outcome in better:
            self.neighbourhood.reward(state.arm, _gain(now, outcome))
        chain.better = ()
        if better:
            if len(better) > 1:
                chain.better = tuple(_merged(chain.state, [s for s, _ in better[:k]]) for k in _prefixes(len(better)))
            chain.state, chain.outcome = better[0]
        elif told:
            state, outcome = min(told, key=lambda pair: pair[1].rank)
            if self._accepts(now, outcome):
                chain.state, chain.outcome = state, outcome
        if self.best is None or chain.outcome.rank < self.best.outcome.rank:
            self.best = Chain(chain.state, chain.outcome)

    def _accepts(self, now: Outcome, new: Outcome) -> bool:
        if not (now.feasible and new.feasible) or now.value_s <= 0:
            return False
        worse = (new.value_s - now.value_s) / now.value_s
        return bool(self.rng.random() < math.exp(-min(700.0, worse / self.heat)))

    def _together(self, chain: Chain) -> list[State]:
        made, chain.better = list(chain.better), ()
        return made

    def _again(self) -> None:
        """A new cycle: half of the chains go on from the best."""
        self._in_cycle, self._cycle = 0, int(self._cycle * 1.5) + 1
        self.neighbourhood.fade()
        assert_best = self.best
        if assert_best is not None:
            for chain in self.chains[:: 2 if len(self.chains) > 1 else 1]:
                chain.state, chain.outcome = assert_best.state, assert_best.outcome


def _gain(old: Outcome, new: Outcome) -> float:
    """The improvement as a share; 0 where memory alone improved."""
    if old.feasible and new.feasible and old.value_s > 0:
        return (old.value_s - new.value_s) / old.value_s
    return 0.0


def _prefixes(count: int) -> tuple[int, ...]:
    """How many of the improvements to try together."""
    return (2,) if count == 2 else (2, count) if count < 5 else (2, count // 2, count)


def _merged(base: State, changed: Sequence[State]) -> State:
    """All the changes of `changed` to `base` at once; the better one wins where two touch the same group."""
    row: NDArray[np.int64] = base.row.copy()
    windows = list(base.windows) if base.windows else None
    for state in reversed(changed):
        apart = state.row != base.row
        row[apart] = state.row[apart]
        if state.windows != base.windows and state.windows is not None:
            windows = list(state.windows)
    return State(row, tuple(windows) if windows else None, changed[0].priorities, changed[0].arm)

"""`step` on chains: the optimal devices of operations of which each waits for the one before.

Nothing overlaps on a chain, so a step is the sum of the operations and of the transfers between neighbours, and a
dynamic programme over (operation, device) is optimal under every discipline, as long as memory does not bind. Its
value bounds every placement from below even where memory does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewright.errors import InfeasibleError
from placewright.evaluate import Evaluation
from placewright.exact.chain import I64, NEVER, Chain, chain_of
from placewright.placement import Placement
from placewright.problem import Problem
from placewright.search import Placer
from placewright.sim.lower import PICO, Lowered, lower


class ChainStep(Placer):
    """The optimum of a chain, in one placement."""

    name = "chain-step"

    def start(self, problem: Problem, rng: np.random.Generator) -> None:
        """Solve; refuses what is no chain."""
        lowered = lower(problem)
        chain = chain_of(problem, lowered)
        value, device = best_devices(problem, lowered, chain)
        if value >= NEVER:
            raise InfeasibleError(
                "chain-step: wherever the operations run, some tensor must go where no route leads; give the machine "
                "that route, or relax a pin or a forbid"
            )
        first = problem.choices.argmax(axis=1)
        devices = np.where(chain.run_of_group < 0, first, device[chain.run_of_group] if len(device) else first)
        self._batch = [problem.placement(problem.lift(devices))]
        self._bound_s = value / PICO

    def ask(self) -> list[Placement]:
        """The one placement, once."""
        batch, self._batch = self._batch, []
        return batch

    def tell(self, evaluations: Sequence[Evaluation]) -> None:
        """Nothing to learn."""

    def bound_s(self) -> float:
        """The optimum where memory does not bind; no placement is below it in any case."""
        return self._bound_s


def best_devices(problem: Problem, p: Lowered, chain: Chain) -> tuple[int, I64]:
    """The least sum of seconds and transfers, in ps, and the device of every run."""
    devices = problem.n_devices
    value = np.zeros(devices, np.int64)
    back = np.zeros((chain.n_runs, devices), np.int64)
    for r in range(chain.n_runs):
        if r:
            table = np.minimum(value[:, None] + _moves_ps(problem, p, chain.crossing[r]), NEVER)
            back[r] = table.argmin(axis=0)
            value = table[back[r], np.arange(devices)]
        value = np.minimum(value + chain.seconds_ps[r], NEVER)
    device = np.zeros(chain.n_runs, np.int64)
    for r in reversed(range(chain.n_runs)):
        device[r] = back[r + 1, device[r + 1]] if r + 1 < chain.n_runs else value.argmin()
    return int(value.min(initial=NEVER)) if chain.n_runs else 0, device


def _moves_ps(problem: Problem, p: Lowered, tensors: Sequence[int]) -> I64:
    """(D, D) ps to move tensors one after another; 0 within a pool, NEVER without a route."""
    devices = problem.n_devices
    total = np.zeros((devices, devices), np.int64)
    for t in tensors:
        seconds = p.route_latency_s + p.raw_bytes[t] / p.route_bytes_per_s
        ps = np.rint(seconds * PICO).astype(np.int64).reshape(devices, devices)
        total += p.transfer_ps[t] if p.transfer_ps[t] >= 0 else ps
    if len(tensors):
        total[p.route_ok.reshape(devices, devices) == 0] = NEVER
    pool = np.array(problem.machine.pool_of)
    total[pool[:, None] == pool[None, :]] = 0
    return total

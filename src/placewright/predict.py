"""What the simulator says of a placement, in the words that a plan keeps."""

from __future__ import annotations

import numpy as np

from placewright.placement import Placement
from placewright.plan import Prediction
from placewright.problem import Problem
from placewright.sim import Outcome

MAX_REASON = 1000
"""Characters of a reason that a plan keeps."""


def measured_share(problem: Problem, placement: Placement) -> float:
    """Return the share of the operations' seconds, each on its device, that rests on measured costs.

    An operation that cannot run where it is counts for nothing.
    """
    ops = np.arange(problem.n_ops)
    seconds = problem.costs.seconds[ops, placement.devices]
    seconds = np.where(np.isfinite(seconds), seconds, 0.0)
    measured = np.where(problem.costs.measured[ops, placement.devices], seconds, 0.0)
    total = float(seconds.sum())
    return float(measured.sum()) / total if total else 0.0  # zeros stay in the sum, so that a whole is exactly 1


def predict(
    problem: Problem, placement: Placement, outcome: Outcome, bound_s: float | None = None, gap: float | None = None
) -> Prediction:
    """Return the prediction of a placement from its outcome; one from `trace` has the reason in words."""
    pools = [pool.name for pool in problem.machine.pools]
    return Prediction(
        objective=problem.objective,
        value_s=outcome.value_s,
        feasible=outcome.feasible,
        bound_s=bound_s,
        gap=gap,
        reason=(outcome.detail or outcome.reason)[:MAX_REASON] if outcome.reason else "",
        peak_bytes=dict(zip(pools, outcome.peak_bytes, strict=True)),
        over_bytes=dict(zip(pools, outcome.over_bytes, strict=True)),
        measured_share=measured_share(problem, placement),
    )

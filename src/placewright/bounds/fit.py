"""Proofs that no placement fits into memory, with the least that would have to be added."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placewright.bounds.lagrangian import proved
from placewright.bounds.multipliers import solve
from placewright.bounds.relaxed import Relaxed, Row
from placewright.checks import format_bytes
from placewright.errors import InfeasibleError


def check_fit(relaxed: Relaxed, memory: Sequence[Row]) -> None:
    """Raise where the memory rows prove that no placement fits; says how much more would be needed at least."""
    sets = sorted({row.pools for row in memory})
    needed = {s: _missing(relaxed, memory, s) for s in sets}
    enough = [(size, s) for s, size in needed.items() if size is not None]
    if enough and min(enough)[0] > 0:
        ways = [f"{format_bytes(size)} more in {_name(relaxed, s)}" for size, s in sorted(enough)]
        raise InfeasibleError(f"{_PROVED} At least {', or '.join(ways)} {_ADVICE}")
    if not enough:
        dual = solve(relaxed, memory, 1.0)
        if dual is not None and proved(relaxed, memory, dual.multipliers) > 0:
            lacks = {row.pools: 0 for row in memory}
            for row, lack in zip(memory, dual.lacks.tolist(), strict=True):
                lacks[row.pools] = max(lacks[row.pools], round(lack))
            ways = [f"{format_bytes(size)} more in {_name(relaxed, s)}" for s, size in lacks.items() if size]
            raise InfeasibleError(f"{_PROVED} About {' and '.join(ways)} {_ADVICE}")


_PROVED = (
    "no placement fits: parameters, and what operations hold at once, are proved to need more memory than there is."
)
_ADVICE = (
    "would be needed. Use a smaller batch or model, relax the constraints, or allow more memory (--memory POOL=SIZE)."
)


def _missing(relaxed: Relaxed, memory: Sequence[Row], pools: int) -> int | None:
    """The bytes that these pools lack at least, when the others stay as they are; None where that cannot do."""
    capacity = max(1, *(row.limit for row in memory if row.pools == pools))
    rows = [replace(row, limit=-row.limit, pools=-1) if row.pools == pools else row for row in memory]
    dual = solve(relaxed, rows, float(capacity))
    if dual is None or dual.short:
        return None
    return max(0, math.ceil(proved(relaxed, rows, dual.multipliers)))


def _name(relaxed: Relaxed, pools: int) -> str:
    """The pools of a set, by name."""
    machine = relaxed.problem.machine
    devices = np.flatnonzero(relaxed.classes.pools_of[relaxed.classes.of] == pools)
    names = list(dict.fromkeys(machine.devices[d].pool for d in devices.tolist()))
    return names[0] if len(names) == 1 else f"{', '.join(names)} together"

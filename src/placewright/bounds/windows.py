"""The work that must be done between two times, given when operations can start and must end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.bounds.heads import Heads
from placewright.bounds.relaxed import Relaxed, Row
from placewright.graph import Longs
from placewright.sim.bounding import window_table, window_work
from placewright.sim.lower import NEVER

GRID = 12
MOST_STEPS = 60_000_000
"""Operations times classes times windows that are looked at; with more operations there are fewer windows."""


@dataclass(frozen=True)
class Window:
    """From `after` the beginning to `before` the end of a step."""

    after: int
    before: int
    bound_ps: int


def best_window(relaxed: Relaxed, times: Heads, weights: NDArray[np.float64], bound_ps: int) -> Window:
    """The window whose work proves most, given the weight of an hour of one device of each class.

    A step of T leaves each device T - after - before in the window. What must run in it, weighted, is at most what
    devices have there, so T is at least after + before + work / (sum of weights). `bound_ps` must hold already.
    """
    most = float(np.where(times.cost == NEVER, 0, times.cost).max(axis=1, initial=0).astype(np.float64).sum())
    whole = np.floor(weights * 2.0 ** np.clip(61 - np.frexp(max(most, 1.0))[1], 0, 30)).astype(np.int64)
    speed = int((whole * relaxed.classes.size).sum())
    best = Window(0, 0, bound_ps)
    if speed <= 0:
        return best
    known = times.known
    scratch = np.zeros(relaxed.n_classes, np.int64)
    for after, before in _grid(relaxed, *known):
        length = best.bound_ps - after - before
        if length <= 0:
            continue
        work = int(window_work(relaxed.members, known, whole, (after, before, length), scratch))
        proved = after + before - (-work // speed)
        if proved > best.bound_ps:
            best = Window(after, before, proved)
    return best


def _grid(relaxed: Relaxed, head: Longs, rest: Longs) -> list[tuple[int, int]]:
    """Ends of windows: quantiles of heads and rests by work."""
    steps = max(1, relaxed.cost_ps.size)
    size = max(2, min(GRID, int((MOST_STEPS / steps) ** 0.5)))
    least = np.where(relaxed.cost_ps == NEVER, NEVER, relaxed.cost_ps).min(axis=1, initial=NEVER)
    edges = []
    for table in (head, rest):
        value = np.where(relaxed.cost_ps == NEVER, NEVER, table).min(axis=1, initial=NEVER)
        order = np.argsort(value, kind="stable")
        done = np.cumsum(least[order].astype(np.float64))
        at = np.searchsorted(done, done[-1] * np.arange(size) / size) if len(done) else np.zeros(0, np.int64)
        edges.append(sorted({0, *value[order[np.minimum(at, len(order) - 1)]].tolist()}))
    return [(after, before) for after in edges[0] for before in edges[1]]


def window_rows(relaxed: Relaxed, times: Heads, window: Window) -> list[Row]:
    """Loads of devices within a window, each with the time outside of it."""
    table = np.zeros(relaxed.allowed.shape, np.int64)
    length = window.bound_ps - window.after - window.before
    window_table(relaxed.members, times.known, (window.after, window.before, length), table)
    return [
        Row(f"devices {k} between", window.after + window.before, {k: table[:, k] / int(relaxed.classes.size[k])})
        for k in range(relaxed.n_classes)
    ]

"""Beginnings: the placements that a search by refinement starts from, each mended until it fits where it can."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np

from placewright.decisions import Decisions
from placewright.errors import PlacewrightError
from placewright.levels import Level, group_seconds
from placewright.problem import Problem
from placewright.relief import MODES, Attempts, Relief, Roles, Row
from placewright.sim import Outcome

Found = list[tuple[Row, Outcome]]
Rows = Generator[list[Row], Sequence[Outcome], Found]
"""Yields batches of rows, is sent their outcomes, and returns all that was seen."""


class Beginnings:
    """Makes starting placements of one problem from few kinds of them."""

    def __init__(self, decisions: Decisions, roles: Roles, levels: list[Level]) -> None:
        self.decisions, self.roles, self.levels = decisions, roles, levels
        self.problem: Problem = decisions.problem

    # ---- rows ----------------------------------------------------------------------------------------

    def distinct(self) -> list[int]:
        """One device of every kind: alike are those with the same seconds, memory and rates to their hosts."""
        problem, machine = self.problem, self.problem.machine
        kinds: dict[object, int] = {}
        for d, device in enumerate(machine.devices):
            host = machine.device(device.host) if device.host else d
            key = (
                device.model,
                problem.choices[:, d].tobytes(),
                self.decisions.seconds[:, d].tobytes(),
                int(self.decisions.capacity[self.decisions.pool_of[d]]),
                machine.rates(host, d),
                machine.rates(d, host),
            )
            kinds.setdefault(key, d)
        return list(kinds.values())

    def single(self, device: int) -> Row:
        """Everything on one device; what cannot be there where it is fastest."""
        elsewhere = self.decisions.seconds.argmin(axis=1)
        return np.where(self.problem.choices[:, device], device, elsewhere)

    def fill(self, devices: Sequence[int], level: Level) -> Row:
        """Clusters in program order, cut into a part of equal time for each of the devices."""
        seconds = np.bincount(level.label, group_seconds(self.problem), minlength=level.n_clusters) + 1e-15
        first = np.full(level.n_clusters, len(level.label))
        np.minimum.at(first, level.label, np.arange(len(level.label)))
        order = np.argsort(first, kind="stable")
        speed = 1.0 / np.where(np.isfinite(self.decisions.seconds), self.decisions.seconds, 0.0)[:, devices].sum(
            axis=0
        ).clip(1e-12)
        edges = np.cumsum(speed / speed.sum())
        middle = (np.cumsum(seconds[order]) - seconds[order] / 2) / seconds.sum()
        part = np.empty(level.n_clusters, np.int64)
        part[order] = np.minimum(np.searchsorted(edges, middle), len(devices) - 1)
        wanted = np.asarray(devices)[part[level.label]]
        return np.where(self.problem.choices[np.arange(len(wanted)), wanted], wanted, self.single(devices[0]))

    def order_of_use(self) -> list[int]:
        """Devices from the fastest on, alike ones by index."""
        seconds = np.where(np.isfinite(self.decisions.seconds), self.decisions.seconds, 0.0).sum(axis=0)
        barred = (~self.problem.choices).sum(axis=0)
        return [int(d) for d in np.lexsort((np.arange(len(seconds)), seconds, barred))]

    def spread_levels(self, least: int) -> list[Level]:
        """Up to two levels by structure with at least `least` clusters, the coarsest first; else by stretches."""
        fine = [level for level in self.levels if level.n_clusters >= least and not level.name.startswith("groups")]
        fine.sort(key=lambda level: level.n_clusters)
        return fine[:2] or [self.levels[0]]

    # ---- attempts ------------------------------------------------------------------------------------

    def first(self) -> list[Attempts]:
        """The cheapest answers: one device of every kind, as it is."""
        return [once(self.single(d)) for d in self.distinct()]

    def mended(self, row: Row, modes: Sequence[str] = MODES) -> list[Attempts]:
        """A row that does not fit, mended in several ways."""
        made = []
        for level in self.spread_levels(4)[:1] if len(self.levels[0].label) > 20_000 else self.spread_levels(4):
            relief = Relief(self.decisions, self.roles, level)
            made += [relief.attempts(row, mode) for mode in modes]
        return made

    def fills(self) -> Iterator[Attempts]:
        """Contiguous parts for 2, 3, ... of the devices, fastest first, each mended."""
        order = self.order_of_use()
        hosts = [d for d in order if self.problem.machine.devices[d].is_host]
        plain = [d for d in order if d not in hosts] or order
        counts = sorted({2, 3, 4, len(plain) // 2, len(plain) - 1, len(plain)} & set(range(2, len(plain) + 1)))
        for count in counts:
            for level in self.spread_levels(2 * count):
                row = self.fill(plain[:count], level)
                yield Relief(self.decisions, self.roles, level).attempts(row, "stream", most=4)

    def offloads(self, device: int) -> Iterator[Attempts]:
        """Some blocks computed at the host, beside their weights, and the rest on a device, streaming what must be."""
        machine = self.problem.machine
        host = machine.devices[device].host
        if host is None or machine.device(host) == device:
            return
        level = self.spread_levels(6)[0]
        relief = Relief(self.decisions, self.roles, level)
        base = self.single(device)
        sizes = np.bincount(level.label, self.roles.held, minlength=level.n_clusters)
        full = np.flatnonzero(sizes > sizes.max(initial=0) / 4)
        for count in (1, 2, 3, 4, 6, 8):
            if count >= len(full):
                return
            for pick in (full[-count:], full[((np.arange(count) + 0.5) * len(full) / count).astype(np.int64)]):
                row = base.copy()
                moves = np.isin(level.label, pick) & self.problem.choices[:, machine.device(host)]
                row[moves] = machine.device(host)
                yield relief.attempts(row, "stream")

    def of_methods(self, methods: Sequence[Callable[[], Row]]) -> Iterator[Attempts]:
        """What constructive methods give, each mended by streaming where it does not fit."""
        for method in methods:
            try:
                row = method()
            except PlacewrightError:  # not for this problem
                continue
            relief = Relief(self.decisions, self.roles, self.spread_levels(4)[0])
            yield relief.attempts(np.asarray(row, np.int64), "stream", most=3)


def once(row: Row) -> Attempts:
    """An attempt of one row."""
    yield row


def side_by_side(attempts: Sequence[Attempts], legal: Callable[[Row], Row | None]) -> Rows:
    """Run attempts in step, so that each batch has a row, made legal, of every one that is not done.

    An attempt whose row cannot be made legal ends.
    """
    found: Found = []
    waiting = [(attempt, row) for attempt in attempts if (row := legal(next(attempt))) is not None]
    while waiting:
        outcomes = yield [row for _, row in waiting]
        left = []
        for (attempt, row), outcome in zip(waiting, outcomes, strict=False):
            found.append((row, outcome))
            try:
                after = legal(attempt.send(outcome))
            except StopIteration:
                continue
            if after is not None:
                left.append((attempt, after))
        waiting = left
    return found

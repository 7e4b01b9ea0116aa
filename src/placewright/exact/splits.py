"""From a problem to contiguous splits, and from a split to devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.decisions import Decisions
from placewright.exact.condense import Edges, dense, joined_edges, lossless, merged, stretches
from placewright.exact.costing import I64, Costing
from placewright.exact.line import NEVER, Split, best_split, filled, in_order, lines, places, read_split
from placewright.exact.parts import Memory, Parts, parts_of
from placewright.exact.units import ALONE, Units, topological_order

_COARSE = 192
"""Stretches of a line of which splits on every number of devices are wanted."""
_COUNTS = 16
"""Of more numbers of devices than this, so many are tried."""


@dataclass(frozen=True, eq=False)
class Splitter:
    """Units of a problem as far as they can be joined for nothing, and what parts of them cost."""

    costing: Costing
    units: Units
    label: I64
    """The joined unit of every unit."""
    parts: Parts
    edges: Edges

    @staticmethod
    def of(costing: Costing, units: Units, memory: Memory = Memory.LOADS) -> Splitter:
        """Ready to split."""
        whole = parts_of(costing, units, memory)
        label = dense(lossless(whole, units.edges))
        order = topological_order(int(label.max(initial=-1)) + 1, joined_edges(units.edges, label))
        label = places(order)[label]
        return Splitter(costing, units, label, merged(whole, label), joined_edges(units.edges, label))

    def linearised(self, most_units: int) -> Split | None:
        """The best split into intervals of any of a few topological orders; see `line.best_split`."""
        best: Split | None = None
        for order in lines(len(self.parts.time), self.edges):
            found = best_split(in_order(self.parts, order), most=most_units, bound=best.value_ps if best else NEVER)
            best = found.of(places(order)) if found else best
        return best

    def every_count(self) -> list[Split]:
        """For every number of devices that pay for transfers, the best split of the first line, somewhat coarser."""
        if not len(self.parts.time):
            return []
        label = stretches(self.parts, _COARSE)
        states, table = filled(merged(self.parts, label))
        paying = states.digits @ self.parts.pays.astype(np.int64)
        found = []
        for count in _some(int(paying.max())):
            here = np.flatnonzero(paying == count)
            split = read_split(states, table, int(here[table.best[-1, here].argmin()]))
            if split is not None:
                found.append(split.of(label))
        return found

    def devices(self, split: Split) -> NDArray[np.int64]:
        """(groups,) devices: those of a class in order along the split; what is in no unit near its readers."""
        left = [list(devices) for devices in self.costing.classes.devices]
        device = np.array([left[c].pop(0) for c in split.classes], np.int64)
        problem, of_group = self.units.problem, self.units.of_group
        decisions = Decisions(problem)
        made = decisions.assignment()
        for g in np.flatnonzero(of_group != ALONE).tolist():
            made.put(g, int(device[split.part[self.label[of_group[g]]]]))
        readers = _readers(self.units)
        for g in np.flatnonzero(of_group == ALONE).tolist():
            allowed = made.allowed(g)
            if not allowed.any():
                raise made.stuck(g)
            fitting = allowed & made.fits(g)
            near = made.devices[readers[g]] if g in readers else -1
            usable = fitting if fitting.any() else allowed
            made.put(g, int(near) if near >= 0 and usable[near] else int(np.flatnonzero(usable)[0]))
        return made.devices


def _some(most: int) -> list[int]:
    """All numbers from 0 to `most`, or some of them, the small ones closer together."""
    if most < _COUNTS:
        return list(range(most + 1))
    return sorted({0, *np.rint(np.geomspace(1, most, _COUNTS)).astype(int).tolist()})


def _readers(units: Units) -> dict[int, int]:
    """For every group in no unit, the first group in a unit that reads from it."""
    graph, groups = units.problem.graph, units.problem.groups
    made, read = groups[graph.tensor_op[graph.in_tensor]], groups[graph.read_op]
    found: dict[int, int] = {}
    for e in np.flatnonzero((units.of_group[made] == ALONE) & (units.of_group[read] != ALONE)).tolist():
        found.setdefault(int(made[e]), int(read[e]))
    return found

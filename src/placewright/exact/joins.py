"""Groups that become one unit."""

from __future__ import annotations

import numpy as np

from placewright.problem import Problem


class Joins:
    """Groups that become one unit: as far as some device may hold them all and none are to be kept apart."""

    def __init__(self, problem: Problem) -> None:
        self._parent = list(range(problem.n_groups))
        self._choices = problem.choices.copy()
        groups = problem.groups
        self._sides: dict[int, set[int]] = {}
        for k, pair in enumerate(problem.separated):
            for side, ops in enumerate(pair):
                for g in np.unique(groups[ops]).tolist():
                    self._sides.setdefault(g, set()).add(2 * k + side)

    def root(self, g: int) -> int:
        """The group that stands for the unit of g."""
        while self._parent[g] != g:
            self._parent[g] = self._parent[self._parent[g]]
            g = self._parent[g]
        return g

    def join(self, one: int, two: int) -> bool:
        """Put the unit of `two` into that of `one`; returns whether that may be."""
        one, two = self.root(one), self.root(two)
        both = self._choices[one] & self._choices[two]
        here, there = self._sides.get(one, set()), self._sides.get(two, set())
        if one == two or not both.any() or any(side ^ 1 in there for side in here):
            return one == two
        self._parent[two] = one
        self._choices[one] = both
        if there:
            self._sides[one] = here | there
        return True

"""Grouping: operations to groups. It contracts the decision and lifts it back; evaluation stays whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placewright.errors import InputError
from placewright.graph import Ints, OpGraph


@dataclass(frozen=True, eq=False)
class Grouping:
    """`group_of` gives the group of every operation; groups are numbered by their first operation."""

    group_of: Ints

    def __post_init__(self) -> None:
        given = np.asarray(self.group_of)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise InputError("group_of must be a flat list of whole numbers, one per operation")
        first, inverse = np.unique(given, return_index=True, return_inverse=True)[1:]
        rank = np.empty(len(first), np.int32)
        rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
        dense = np.ascontiguousarray(rank[inverse].astype(np.int32))
        dense.flags.writeable = False
        object.__setattr__(self, "group_of", dense)

    @staticmethod
    def singletons(graph: OpGraph) -> Grouping:
        """Every operation by itself."""
        return Grouping(np.arange(graph.n_ops, dtype=np.int32))

    @staticmethod
    def given(labels: Sequence[str]) -> Grouping:
        """By a label per operation."""
        number = {label: k for k, label in enumerate(dict.fromkeys(labels))}
        return Grouping(np.array([number[label] for label in labels], np.int32))

    @staticmethod
    def by_scope(graph: OpGraph, depth: int) -> Grouping:
        """By the first `depth` parts of the scope; an operation without a scope is by itself."""
        if depth < 1:
            raise InputError(f"depth is {depth}; 1 or more is allowed")
        labels = [
            "scope:" + ".".join(scope.split(".")[:depth]) if scope else f"op:{name}"
            for name, scope in zip(graph.op_names, graph.scopes, strict=True)
        ]
        return Grouping.given(labels)

    @staticmethod
    def by_colocation(graph: OpGraph, start: Grouping | None = None) -> Grouping:
        """Join every group whose outputs only one other group reads to that group, until none is left.

        This is the second of the co-location heuristics of Mirhoseini et al. 2017. `start` gives the
        groups to begin with, such as those that a framework colocates.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        group = (start or Grouping.singletons(graph)).group_of.astype(np.int64)
        if len(group) != graph.n_ops:
            raise InputError(f"a grouping of {len(group)} operations for a graph of {graph.n_ops}")
        while True:
            made = group[graph.tensor_op[graph.in_tensor]]
            read = group[graph.read_op]
            pairs = np.unique(np.stack([made[made != read], read[made != read]], 1), axis=0)
            makers, count = np.unique(pairs[:, 0], return_counts=True)
            only = makers[count == 1]
            if not len(only):
                return Grouping(group.astype(np.int32))
            joined = pairs[np.isin(pairs[:, 0], only)]
            count_all = int(group.max()) + 1
            links = coo_array((np.ones(len(joined)), (joined[:, 0], joined[:, 1])), shape=(count_all, count_all))
            group = connected_components(links, directed=False)[1][group]

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return int(self.group_of.max(initial=-1)) + 1

    def lift(self, group_devices: ArrayLike) -> NDArray[np.int16]:
        """Devices of the operations from those of the groups."""
        devices = np.asarray(group_devices, np.int16)
        if devices.shape != (self.n_groups,):
            raise InputError(f"{devices.shape} devices for {self.n_groups} groups")
        return devices[self.group_of]

    def is_convex(self, graph: OpGraph) -> bool:
        """Whether the groups themselves form an acyclic graph; then no path leaves a group and comes back."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        waiting = np.repeat(np.arange(graph.n_ops), np.diff(graph.after_start))
        source = self.group_of[np.concatenate([graph.tensor_op[graph.in_tensor], graph.after_op])]
        target = self.group_of[np.concatenate([graph.read_op, waiting])]
        apart = source != target
        links = coo_array((np.ones(int(apart.sum())), (source[apart], target[apart])), shape=(self.n_groups,) * 2)
        return int(connected_components(links, directed=True, connection="strong")[0]) == self.n_groups

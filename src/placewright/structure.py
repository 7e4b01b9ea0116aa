"""What parts of a graph have in common: the work of operations, hashes of sets of them, and the tree of scopes.

Hashes are 64 bits, made of dense numbers by arithmetic that wraps, so they are the same in every process. Two parts
of different structure have one hash with a probability of 2**-64.

    g groups, m members (operations of groups, group by group), L links (reads, shared storage, order)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placewright.graph import Ints, Longs, OpGraph

Hashes = NDArray[np.uint64]

_DEEPEST = 64
"""Parts of a scope that count; a longer one is taken as its first so many."""


class Structure:
    """Operations by what they do, and the links between them."""

    def __init__(self, graph: OpGraph) -> None:
        self.n_ops = graph.n_ops
        sizes = _sizes(graph)
        self.works = _works(graph, sizes)
        """A number for each operation, equal for operations of equal kind, dtype, phase, amounts and outputs."""
        self._classes = graph.colocation
        slot = np.arange(graph.n_tensors) - graph.out_start[graph.tensor_op]
        shares = np.flatnonzero(graph.tensor_storage != np.arange(graph.n_tensors))
        base = graph.tensor_storage[shares]
        waiting = np.repeat(np.arange(graph.n_ops), np.diff(graph.after_start))
        source = np.concatenate([graph.tensor_op[graph.in_tensor], graph.tensor_op[base], graph.after_op])
        target = np.concatenate([graph.read_op, graph.tensor_op[shares], waiting])
        inner = np.concatenate(
            [
                _mix(slot[graph.in_tensor], 1),
                _mix(_mix(slot[base], 2) + slot[shares].astype(np.uint64), 2),
                _mix(np.zeros(len(waiting)), 3),
            ]
        )
        outer = np.concatenate(
            [
                _mix(2 * sizes[graph.in_tensor] + graph.persistent[graph.in_tensor], 4),
                _mix(2 * slot[shares] + graph.persistent[base], 5),
                np.zeros(len(waiting), np.uint64),
            ]
        )
        order = np.argsort(target, kind="stable")
        self._source, self._inner, self._outer = source[order], inner[order], outer[order]
        self._start = np.concatenate([[0], np.cumsum(np.bincount(target, minlength=graph.n_ops))])
        self._group = np.full(graph.n_ops, -1, np.int64)
        self._place = np.zeros(graph.n_ops, np.int64)

    def hashes(self, members: Ints, starts: Longs) -> Hashes:
        """Return a hash for every group: of its operations in order, and of the links among them by their places.

        `members[starts[k]:starts[k + 1]]` are the operations of group k. Of a link from outside, only what comes
        in counts: the bytes and shape of the tensor, and whether it is persistent. An order-only edge from outside
        counts for nothing, nor does any link to the outside.
        """
        sizes = np.diff(starts)
        group, place = self._group, self._place
        group[members] = np.repeat(np.arange(len(sizes)), sizes)
        place[members] = np.arange(len(members)) - np.repeat(starts[:-1], sizes)
        count = self._start[members + 1] - self._start[members]
        ends = np.cumsum(count)
        link = np.arange(int(count.sum())) + np.repeat(self._start[members] - (ends - count), count)
        source = self._source[link]
        within = group[source] == np.repeat(group[members], count)
        token = np.where(within, _mix(self._inner[link] + place[source].astype(np.uint64), 6), self._outer[link])
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(token)])
        value = _mix(self.works[members], 7) + total[ends] - total[ends - count]
        value += self._colocations(members)
        value = _mix(_mix(value, 8) + place[members].astype(np.uint64), 9)
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(value)])
        result = _mix(total[starts[1:]] - total[starts[:-1]] + sizes.astype(np.uint64), 10)
        group[members] = -1
        return result

    def _colocations(self, members: Ints) -> Hashes:
        """Return for every member the place of the first of its group that is in its colocation class, hashed."""
        result = np.zeros(len(members), np.uint64)
        own = np.flatnonzero(self._classes[members] >= 0)
        if len(own):
            ops = members[own]
            key = self._group[ops] * (int(self._classes.max()) + 1) + self._classes[ops]
            _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
            result[own] = _mix(self._place[ops[first]][inverse], 11)
        return result


def _mix(values: NDArray[Any], salt: int) -> Hashes:
    """Spread whole numbers over 64 bits, in a way of its own for each salt."""
    z = values.astype(np.uint64) + np.uint64((salt * 0x9E3779B97F4A7C15) % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Hashes = z ^ (z >> np.uint64(31))
    return result


def _numbered(keys: Iterable[Any]) -> Longs:
    """Return equal numbers for equal keys, in order of first occurrence."""
    number: dict[Any, int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], np.int64)


def _sizes(graph: OpGraph) -> Longs:
    """Return a number for each tensor by bytes and shape."""
    shapes = graph.tensor_shapes or (None,) * graph.n_tensors
    return _numbered(zip(graph.tensor_bytes.tolist(), shapes, strict=True))


def _works(graph: OpGraph, sizes: Longs) -> Longs:
    """Return a number for each operation by all that it says of itself, but its name, scope and seconds."""
    seconds = np.where(np.isnan(graph.tensor_transfer_s), -1.0, graph.tensor_transfer_s)
    shares = graph.tensor_storage != np.arange(graph.n_tensors)
    tensors = (column.tolist() for column in (sizes, seconds, graph.tensor_in_place, shares))
    kinds = _numbered(zip(*tensors, strict=True)).tolist()
    starts = graph.out_start.tolist()
    outputs = (tuple(kinds[a:b]) for a, b in pairwise(starts))
    amounts = (graph.phase, graph.flops, graph.bytes_read, graph.bytes_written, graph.workspace_bytes, graph.recompute)
    columns = (column.tolist() for column in amounts)
    return _numbered(zip(graph.kinds, graph.dtypes, outputs, *columns, strict=True))


class Level(NamedTuple):
    """The scopes of one depth: `members[starts[k]:starts[k + 1]]` are the operations in or below `scopes[k]`."""

    scopes: Ints
    members: Ints
    starts: Longs


class Tree:
    """The scopes of a graph and all their beginnings. Scope 0 is the empty one; others come after their parents."""

    def __init__(self, graph: OpGraph) -> None:
        self._graph = graph
        parents, depths, self.names = [-1], [0], [""]
        at: dict[tuple[int, str], int] = {}
        last: dict[str, int] = {"": 0}
        for text in dict.fromkeys(graph.scopes):
            node = 0
            for part in text.split(".", _DEEPEST)[:_DEEPEST] if text else ():
                key = (node, part)
                if key not in at:
                    at[key] = len(parents)
                    parents.append(node)
                    depths.append(depths[node] + 1)
                    self.names.append(f"{self.names[node]}.{part}" if node else part)
                node = at[key]
            last[text] = node
        self.parent = np.array(parents, np.int32)
        self.depth = np.array(depths, np.int32)
        self.of_op = np.array([last[text] for text in graph.scopes], np.int32)
        """The scope of every operation itself."""

    def levels(self) -> Iterator[Level]:
        """Return the scopes by depth, deepest first, without the empty one; operations by phase, then in order."""
        now = self.of_op.copy()
        by_phase = np.argsort(self._graph.phase, kind="stable").astype(np.int32)
        for depth in range(int(self.depth.max()), 0, -1):
            deep = self.depth[now] > depth
            now[deep] = self.parent[now[deep]]
            ops = by_phase[self.depth[now[by_phase]] == depth]
            members = ops[np.argsort(now[ops], kind="stable")]
            scopes, first = np.unique(now[members], return_index=True)
            yield Level(scopes.astype(np.int32), members, np.append(first, len(members)).astype(np.int64))

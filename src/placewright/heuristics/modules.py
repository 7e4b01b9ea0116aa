"""Modules and layers of a network, told by the scopes of its graph, or without scopes by its weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placewright.blocks import repeated_blocks
from placewright.graph import FORWARD, Bools, Longs, OpGraph
from placewright.heuristics.parts import UNKNOWN, weights
from placewright.structure import Tree


@dataclass(frozen=True, eq=False)
class Modules:
    """The tree of scopes and the weights in it; node 0 is the whole network."""

    graph: OpGraph

    @cached_property
    def tree(self) -> Tree:
        """Scopes, each after those around it."""
        return Tree(self.graph)

    @cached_property
    def weights(self) -> Bools:
        """Which operations hold parameters and buffers, not the optimiser's states."""
        return weights(self.graph)

    @cached_property
    def op_bytes(self) -> Longs:
        """Bytes of the weights of every operation."""
        held = np.flatnonzero(self.graph.persistent & self.weights[self.graph.tensor_op])
        sizes = np.zeros(self.graph.n_ops, np.int64)
        np.add.at(sizes, self.graph.tensor_op[held], self.graph.tensor_bytes[held])
        return sizes

    @cached_property
    def bytes(self) -> Longs:
        """Bytes of weights in or below every node."""
        return self._summed(self.op_bytes)

    @cached_property
    def holds(self) -> Bools:
        """Whether there are weights in or below a node."""
        held: Bools = self._summed(self.weights.astype(np.int64)) > 0
        return held

    def _summed(self, values: Longs) -> Longs:
        """Sums in or below every node."""
        sums = np.zeros(len(self.tree.names), np.int64)
        np.add.at(sums, self.tree.of_op, values)
        for node in range(len(sums) - 1, 0, -1):  # children come last
            sums[self.tree.parent[node]] += sums[node]
        return sums

    @cached_property
    def children(self) -> list[list[int]]:
        """For every node, the modules with weights directly in it, in program order."""
        found: list[list[int]] = [[] for _ in self.tree.names]
        for node in np.flatnonzero(self.holds[1:]).tolist():
            found[self.tree.parent[node + 1]].append(node + 1)
        return found

    @cached_property
    def own_weights(self) -> list[list[int]]:
        """For every node, the operations that hold its own weights."""
        found: list[list[int]] = [[] for _ in self.tree.names]
        for v in np.flatnonzero(self.weights).tolist():
            found[self.tree.of_op[v]].append(v)
        return found

    def numbered(self) -> list[int]:
        """The outermost modules with weights whose name ends in a number, as `layers.7` does."""
        names, parent = self.tree.names, self.tree.parent
        inside = np.zeros(len(names), bool)
        found = []
        for node in range(1, len(names)):
            inside[node] = inside[parent[node]]
            if not inside[node] and self.holds[node] and names[node].rpartition(".")[2].isdecimal():
                inside[node] = True
                found.append(node)
        return found

    @cached_property
    def layers(self) -> list[int]:
        """Modules that count as layers: the numbered ones; without such, those that own weights.

        A list of numbered modules that has more than half of them all, as the decoder layers of a language model
        do, counts alone. Empty where fewer than two modules have weights.
        """
        found = self.numbered()
        if len(found) < 2:
            found = [node for node in range(1, len(self.tree.names)) if self.own_weights[node]]
        else:
            lists, count = np.unique(self.tree.parent[found], return_counts=True)
            if count.max() * 2 > len(found):
                found = [node for node in found if self.tree.parent[node] == lists[count.argmax()]]
        return found if len(found) >= 2 else []

    def inside(self, nodes: list[int]) -> Longs:
        """For every operation, which of the nodes it is in or below, the innermost; -1: none."""
        label = np.full(len(self.tree.names), UNKNOWN, np.int64)
        label[nodes] = np.arange(len(nodes))
        for node in range(1, len(label)):
            if label[node] == UNKNOWN:
                label[node] = label[self.tree.parent[node]]
        return label[self.tree.of_op]


def layers_of(modules: Modules) -> Longs:
    """For every operation the layer that it is in, numbered in the order in which they run; -1: in none.

    Without scopes, layers are the longest run of equal steps if it covers half of the forward operations; else one
    begins wherever an operation reads a weight that none has read before; else every operation is one.
    """
    graph = modules.graph
    label = modules.inside(modules.layers) if modules.layers else _unscoped(modules)
    first: dict[int, int] = {}
    for v in np.flatnonzero(graph.phase == FORWARD).tolist() or range(graph.n_ops):
        if label[v] != UNKNOWN:
            first.setdefault(int(label[v]), len(first))
    number = np.full(int(label.max(initial=0)) + 2, UNKNOWN, np.int64)
    number[list(first)] = list(first.values())
    return number[label]  # -1 stays: it is the last


def _unscoped(modules: Modules) -> Longs:
    """Layers by structure: labels of forward operations."""
    graph = modules.graph
    forward = np.flatnonzero(graph.phase == FORWARD)
    blocks = repeated_blocks(graph)
    best, label = 0, np.full(graph.n_ops, UNKNOWN, np.int64)
    for family in blocks.families:
        covered = family.ops.size if family.steps and graph.phase[family.ops[0, 0]] == FORWARD else 0
        if covered > best and covered * 2 >= len(forward):
            best = covered
            label[:] = UNKNOWN
            label[family.ops] = np.arange(family.n_blocks)[:, None]
    return label if best else chunks(modules)


def chunks(modules: Modules) -> Longs:
    """Stretches of forward operations, each from the first read of a weight to before that of the next."""
    graph = modules.graph
    label = np.full(graph.n_ops, UNKNOWN, np.int64)
    forward = graph.phase == FORWARD
    root = graph.persistent_root[graph.in_tensor]
    reads = np.flatnonzero((root >= 0) & forward[graph.read_op])
    reads = reads[modules.weights[graph.tensor_op[root[reads]]]]
    starts = np.unique(graph.read_op[reads[np.unique(root[reads], return_index=True)[1]]])
    count = np.zeros(graph.n_ops, np.int64)
    count[starts] = 1
    ops = np.flatnonzero(forward)
    label[ops] = np.maximum(0, np.cumsum(count)[ops] - 1) if len(starts) > 1 else np.arange(len(ops))
    return label

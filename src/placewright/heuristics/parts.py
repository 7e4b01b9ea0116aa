"""Parts of a network: from labels on some operations, a label for every one.

What rules about modules have in common. A rule labels the operations of the modules that it speaks of; the others
follow: a glue operation what it reads, an input what reads it, a backward operation its forward, a parameter its
first reader, updates and optimiser states their weight.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from placewright.graph import BACKWARD, FORWARD, PARAMETER, STORE, UPDATE, Bools, Longs, OpGraph

UNKNOWN = -1


def weights(graph: OpGraph) -> Bools:
    """Which operations hold parameters or buffers: persistent tensors that not only updates read."""
    used = graph.in_tensor[(graph.phase[graph.read_op] == FORWARD) | (graph.phase[graph.read_op] == BACKWARD)]
    found = np.zeros(graph.n_ops, bool)
    found[graph.tensor_op[used]] = True
    read = np.zeros(graph.n_ops, bool)
    read[graph.tensor_op[graph.in_tensor]] = True
    result: Bools = (graph.phase == PARAMETER) & (found | ~read)
    return result


def weight_of(graph: OpGraph) -> Longs:
    """The weight that every update, state and store is for, as an operation; itself for a weight, -1 for others."""
    found = np.full(graph.n_ops, UNKNOWN, np.int64)
    held = np.flatnonzero(weights(graph))
    found[held] = held
    made = np.flatnonzero((graph.phase[graph.tensor_op] == UPDATE) & (graph.persistent_root >= 0))
    home = graph.tensor_op[graph.persistent_root[made]]
    made, home = made[found[home] >= 0], home[found[home] >= 0]
    found[graph.tensor_op[made][::-1]] = home[::-1]  # of several weights, the first
    _first_reader(graph, found, UPDATE)
    reads = np.flatnonzero(graph.phase[graph.read_op] == STORE)
    stored = graph.tensor_op[graph.persistent_root[graph.in_tensor[reads]]]
    found[graph.read_op[reads][::-1]] = found[stored][::-1]
    return found


def _first_reader(graph: OpGraph, label: Longs, phase: int) -> None:
    """Give parameters without a label that of their first reader of a phase that has one."""
    maker = graph.tensor_op[graph.in_tensor]
    chosen = (graph.phase[maker] == PARAMETER) & (graph.phase[graph.read_op] == phase)
    chosen &= (label[maker] == UNKNOWN) & (label[graph.read_op] != UNKNOWN)
    edges = np.flatnonzero(chosen)[::-1]
    label[maker[edges]] = label[graph.read_op[edges]]


def spread(graph: OpGraph, given: Longs) -> Longs:
    """Labels for all operations from those of some (-1: none).

    A sum of gradients goes where most of what it adds up and its first reader are, and only of equals to the given
    one: its scope is that of the first of the gradients, which may be far away.
    """
    label = np.where(_sums_of_gradients(graph), UNKNOWN, given).astype(np.int64)
    for phase in (FORWARD, BACKWARD):
        _first_reader(graph, label, phase)
    flow = _Flow(graph, label, given)
    flow.forward()
    flow.first_readers(FORWARD)
    flow.backward(_gradients(graph, flow.label))
    flow.first_readers(BACKWARD)
    label = np.array(flow.label, np.int64)
    for phase in (FORWARD, BACKWARD):
        _first_reader(graph, label, phase)
    own = weight_of(graph)
    follows = (label == UNKNOWN) & (own >= 0)
    label[follows] = label[own[follows]]
    flow.label = label.tolist()
    flow.after_inputs(np.flatnonzero(label == UNKNOWN).tolist())
    label = np.array(flow.label, np.int64)
    _first_reader(graph, label, UPDATE)
    known = label[label != UNKNOWN]
    label[label == UNKNOWN] = known.min() if len(known) else 0
    return label


def _sums_of_gradients(graph: OpGraph) -> Bools:
    """Which operations add up what backward operations made."""
    other = graph.phase[graph.tensor_op[graph.in_tensor]] != BACKWARD
    others = np.bincount(graph.read_op[other], minlength=graph.n_ops)
    added = np.array([kind == "add" for kind in graph.kinds], bool)
    result: Bools = added & (graph.phase == BACKWARD) & (others == 0) & (np.diff(graph.in_start) > 1)
    return result


def _gradients(graph: OpGraph, label: list[int]) -> dict[int, int]:
    """Labels of the weights whose gradients operations make."""
    own = weight_of(graph)
    found: dict[int, int] = {}
    for edge in np.flatnonzero(graph.phase[graph.read_op] == UPDATE).tolist():
        weight = int(own[graph.read_op[edge]])
        maker = int(graph.tensor_op[graph.in_tensor[edge]])
        if weight >= 0 and graph.phase[maker] == BACKWARD and label[weight] != UNKNOWN:
            found.setdefault(maker, label[weight])
    return found


class _Flow:
    """Labels on their way along the reads; plain lists, whose elements are read much faster."""

    def __init__(self, graph: OpGraph, label: Longs, given: Longs) -> None:
        self.label: list[int] = label.tolist()
        self._given: list[int] = given.tolist()
        self._phase: list[int] = graph.phase.tolist()
        self._scopes = graph.scopes
        self._sums: list[bool] = _sums_of_gradients(graph).tolist()
        self._makers: list[int] = graph.tensor_op[graph.in_tensor].tolist()
        root = graph.persistent_root[graph.in_tensor]
        self._roots: list[int] = np.where(root >= 0, graph.tensor_op[root], UNKNOWN).tolist()
        self._start: list[int] = graph.in_start.tolist()
        starts, readers = graph.consumers
        self._readers: list[int] = readers.tolist()
        first, last = starts[graph.out_start[:-1]], starts[graph.out_start[1:]]
        self._read: list[tuple[int, int]] = list(zip(first.tolist(), last.tolist(), strict=True))

    def _unknown(self, phase: int) -> list[int]:
        return [v for v, p in enumerate(self._phase) if p == phase and self.label[v] == UNKNOWN]

    def _last_made(self, v: int, phase: int | None = None) -> int:
        """The label of the last made input that has one, of a phase or of any; parameters come last of all."""
        best, held = -1, UNKNOWN
        for edge in range(self._start[v], self._start[v + 1]):
            u, root = self._makers[edge], self._roots[edge]
            if root != UNKNOWN and phase is None and held == UNKNOWN:
                held = self.label[root]
            elif root == UNKNOWN and u > best and self.label[u] != UNKNOWN and phase in (None, self._phase[u]):
                best = u
        return self.label[best] if best >= 0 else held

    def _between(self, v: int) -> int:
        """The label that most of the inputs and the first reader have; of equals the given one, else the last made."""
        rows = range(self._start[v], self._start[v + 1])
        read = (self.label[r] for r in self._readers[slice(*self._read[v])])
        votes = Counter([*(self.label[self._makers[e]] for e in rows), next(read, UNKNOWN)])
        del votes[UNKNOWN]
        most = max(votes.values(), default=0)
        best = [label for label in (self._given[v], self._last_made(v), *sorted(votes)) if votes[label] == most]
        return best[0] if votes else UNKNOWN

    def after_inputs(self, ops: list[int]) -> None:
        """Operations follow what they read."""
        for v in ops:
            self.label[v] = self._last_made(v)

    def forward(self) -> None:
        """Forward operations follow what they read."""
        self.after_inputs(self._unknown(FORWARD))

    def first_readers(self, last: int) -> None:
        """Of the phases up to the last, but for parameters, what follows nothing follows its first reader."""
        for v in range(len(self.label) - 1, -1, -1):
            if self.label[v] == UNKNOWN and self._phase[v] <= last and self._phase[v] != PARAMETER:
                readers = self._readers[slice(*self._read[v])]
                known = [r for r in readers if self.label[r] != UNKNOWN and self._phase[r] < UPDATE]
                self.label[v] = self.label[min(known)] if known else UNKNOWN

    def backward(self, gradients: dict[int, int]) -> None:
        """Backward operations follow their forward.

        It is told by their scope, where all of its forward operations agree; else by the weight that they read,
        or whose gradient they make; else by the last made forward tensor that they read; else they follow what
        they read.
        """
        agreed: dict[str, int] = {}
        for v, phase in enumerate(self._phase):
            if phase == FORWARD and self._scopes[v]:
                known = agreed.setdefault(self._scopes[v], self.label[v])
                agreed[self._scopes[v]] = self.label[v] if known == self.label[v] else UNKNOWN
        for v in self._unknown(BACKWARD):
            if self._sums[v]:
                self.label[v] = self._between(v)
                continue
            rows = range(self._start[v], self._start[v + 1])
            read = (self.label[self._roots[e]] for e in rows if self._roots[e] != UNKNOWN)
            choices = (agreed.get(self._scopes[v], UNKNOWN), next(read, UNKNOWN), gradients.get(v, UNKNOWN))
            found = next((label for label in choices if label != UNKNOWN), UNKNOWN)
            found = self._last_made(v, FORWARD) if found == UNKNOWN else found
            self.label[v] = self._last_made(v) if found == UNKNOWN else found

"""What may be a repeated block: scopes of equal structure, and steps, which are stretches of order that repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placewright.graph import BACKWARD, FORWARD, Ints, Longs, OpGraph
from placewright.repeats import Run, runs, stretches
from placewright.structure import Hashes, Level, Structure, Tree

_ROTATIONS = 4
"""Beginnings of a run's first step that are tried, those that cut the fewest tensors first."""


class Candidate(NamedTuple):
    """Equal blocks in the order in which they first run; whether they are worth a family is not known yet."""

    rows: Ints
    """(blocks, operations)"""
    scopes: Ints
    steps: bool


def modules(graph: OpGraph, structure: Structure, tree: Tree, levels: Sequence[Level]) -> list[Candidate]:
    """Return scopes of equal structure. A scope that holds all that its parent holds is left to the parent."""
    size = np.zeros(len(tree.names), np.int64)
    first = np.zeros(len(tree.names), np.int64)
    value = np.zeros(len(tree.names), np.uint64)
    for scopes, members, starts in levels:
        size[scopes] = np.diff(starts)
        value[scopes] = structure.hashes(members, starts)
        runs_at = members + np.where(graph.phase[members] >= FORWARD, 0, graph.n_ops)
        first[scopes] = np.minimum.reduceat(runs_at, starts[:-1])
    own = (size > 0) & ((tree.parent <= 0) | (size != size[tree.parent]))
    order = np.flatnonzero(own)
    order = order[np.argsort(first[order], kind="stable")]
    place = {scope: (k, j) for k, level in enumerate(levels) for j, scope in enumerate(level.scopes.tolist())}
    found = []
    for scopes in _equal(value[order], order):
        slices = []
        for scope in scopes.tolist():
            k, j = place[scope]
            slices.append(levels[k].members[levels[k].starts[j] : levels[k].starts[j + 1]])
        found.append(Candidate(np.stack(slices), scopes, False))
    return found


def _equal(values: Hashes, items: NDArray[np.int64]) -> list[Ints]:
    """Return the items of each value that occurs more than once, in order."""
    order = np.argsort(values, kind="stable")
    start, length, _ = stretches(values[order])
    many = length > 1
    return [
        items[order[a : a + n]].astype(np.int32)
        for a, n in zip(start[many].tolist(), length[many].tolist(), strict=True)
    ]


# Steps --------------------------------------------------------------------------------------------------------------


def steps(graph: OpGraph, structure: Structure, tree: Tree, levels: Sequence[Level]) -> list[Candidate]:
    """Return stretches of program order that are repeated, within every scope that has operations of its own.

    Operations of one step run in the same scopes as those of the next: the same modules, called again.
    """
    n_scopes = len(tree.names)
    bare = np.flatnonzero(tree.of_op == 0).astype(np.int32)
    flat = Level(np.zeros(1, np.int32), bare, np.array([0, len(bare)], np.int64))
    rows: dict[int, list[tuple[Ints, Hashes, int]]] = {}
    known: set[tuple[int, int]] = set()
    for phase in (FORWARD, BACKWARD):
        of_phase = graph.phase == phase
        owns = np.zeros(n_scopes, bool)
        owns[tree.of_op[of_phase]] = True
        token = structure.works * n_scopes + tree.of_op
        _, inverse, count = np.unique(token[of_phase], return_inverse=True, return_counts=True)
        repeats = np.zeros(graph.n_ops, bool)
        repeats[of_phase] = count[inverse] > 1
        for level in (*levels, flat):
            container = np.repeat(level.scopes, np.diff(level.starts))
            chosen = of_phase[level.members] & owns[container]
            row, container = level.members[chosen], container[chosen]
            again = repeats[row]
            kept = again | np.concatenate([[False], again[:-1]])  # of what does not repeat, one parts its neighbours
            row, container = row[kept], container[kept]
            for ops, hashes, scope in _equal_steps(graph, structure, token, row, container):
                new = np.array([(int(r[0]), len(r)) not in known for r in ops], bool)
                known.update((int(r[0]), len(r)) for r in ops)
                if new.any():
                    rows.setdefault(ops.shape[1], []).append((ops[new], hashes[new], scope))
    found = []
    for _, parts in sorted(rows.items()):
        ops = np.concatenate([part for part, _, _ in parts])
        hashes = np.concatenate([part for _, part, _ in parts])
        scopes = np.concatenate([np.full(len(part), scope, np.int32) for part, _, scope in parts])
        order = np.argsort(ops[:, 0], kind="stable")
        found += [Candidate(ops[k], scopes[k], True) for k in _equal(hashes[order], order)]
    return found


def _equal_steps(
    graph: OpGraph, structure: Structure, token: Longs, row: Ints, container: Ints
) -> Iterator[tuple[Ints, Hashes, int]]:
    """Steps of one run each, with their hashes and scope, of a row of operations that is in order within a scope."""
    found = runs(token[row])
    cuts = _cuts(graph, row, container) if found else np.zeros(0, np.int64)
    for run in found:
        if run.period > 1:
            ops, hashes = _best_rotation(structure, row, cuts, run)
            yield ops, hashes, int(container[run.start])


def _best_rotation(structure: Structure, row: Ints, cuts: Longs, run: Run) -> tuple[Ints, Hashes]:
    """Return the steps of a run, begun where most of them are equal; of those, where the fewest tensors are cut."""
    period = run.period
    count, slack = divmod(run.end - run.start, period)
    borders = run.start + np.arange(slack + 1)[:, None] + period * np.arange(count + 1)
    order = np.argsort(cuts[borders].sum(1), kind="stable")[:_ROTATIONS]
    best: tuple[int, Ints, Hashes] | None = None
    for start in borders[order, 0].tolist():
        ops = row[start : start + count * period].reshape(count, period)
        hashes = structure.hashes(ops.ravel(), np.arange(count + 1, dtype=np.int64) * period)
        _, length, _ = stretches(hashes)
        equal = np.repeat(length > 1, length)
        if best is None or equal.sum() > best[0]:
            best = int(equal.sum()), ops[equal], hashes[equal]
        if equal.all():
            break
    assert best is not None  # there is a rotation: a run has two periods or more
    return best[1], best[2]


def _cuts(graph: OpGraph, row: Ints, container: Ints) -> Longs:
    """Return for every border in a row of operations how many tensors are made before it and read after it."""
    place = np.full(graph.n_ops, -1, np.int64)
    place[row] = np.arange(len(row))
    scope = np.full(graph.n_ops, -1, np.int32)
    scope[row] = container
    maker = graph.tensor_op[graph.in_tensor]
    inside = (place[maker] >= 0) & (place[graph.read_op] >= 0) & (scope[maker] == scope[graph.read_op])
    last = np.full(graph.n_tensors, -1, np.int64)
    np.maximum.at(last, graph.in_tensor[inside], place[graph.read_op[inside]])
    tensors = np.flatnonzero(last >= 0)
    change = np.zeros(len(row) + 2, np.int64)
    np.add.at(change, place[graph.tensor_op[tensors]] + 1, 1)
    np.add.at(change, last[tensors] + 1, -1)
    return np.cumsum(change)

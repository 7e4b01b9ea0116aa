"""Repeated blocks of a graph: the equal layers of a transformer, the equal steps of an unrolled recurrence.

Two kinds are found. A *module* is everything under one scope, in every phase. A *step* is a stretch of program order
within one scope and one phase (or among the operations without a scope) that is followed by its like. Blocks are
equal by structure, never by name: operation by operation of equal kind, dtype, phase, amounts and outputs, with
equal edges among themselves. Of an edge that crosses the border of a block only the inner end counts: that a tensor
of that size comes in, not from where. docs/design.md, section 8, has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placewright.block_candidates import Candidate, modules, steps
from placewright.errors import InputError
from placewright.graph import PARAMETER, STORE, UPDATE, Bools, Ints, Longs, OpGraph
from placewright.grouping import Grouping
from placewright.structure import Structure, Tree


@dataclass(frozen=True, eq=False)
class Family:
    """Equal blocks, in the order in which they first run."""

    ops: Ints
    """(blocks, operations): row k is block k; the operations of one column correspond."""
    scopes: tuple[str, ...]
    """The scope of every block; of a step, the one that it was found in."""
    parents: Ints
    """(blocks, 2): family and block of the smallest block around each, or -1, -1."""
    steps: bool = False
    """Whether the blocks are stretches of program order rather than modules."""
    crossing: bool = False
    """Whether steps share operations with repeated modules inside the scope that they were found in."""

    @property
    def n_blocks(self) -> int:
        """Number of equal blocks."""
        return len(self.ops)

    @property
    def size(self) -> int:
        """Number of operations of one block."""
        return int(self.ops.shape[1])


@dataclass(frozen=True, eq=False)
class Blocks:
    """The families of a graph, largest blocks first, so that a family comes after those around its blocks.

    Modules nest in modules, steps in modules and in steps. A family of which every block of another one has
    exactly one adds nothing and is left out.
    """

    n_ops: int
    families: tuple[Family, ...]

    @cached_property
    def depths(self) -> tuple[Ints, ...]:
        """For every family, how deep each of its blocks is nested; 1 is outermost."""
        depths: list[Ints] = []
        for family in self.families:
            around = [0 if f < 0 else int(depths[f][k]) for f, k in family.parents.tolist()]
            depths.append(np.array(around, np.int32) + np.int32(1))
        return tuple(depths)

    def children(self, family: int) -> tuple[int, ...]:
        """Return the families that have a block directly inside one of this family."""
        return tuple(k for k, other in enumerate(self.families) if np.any(other.parents[:, 0] == family))

    def blocks_of(self, level: int = 1) -> Ints:
        """Return a number for the deepest block around every operation that is nested `level` deep or less, or -1.

        Steps that cross modules do not count: the modules do.
        """
        found = np.full(self.n_ops, -1, np.int32)
        base = 0
        for family, chosen in self._chosen(level):
            found[family.ops[chosen]] = base + np.arange(len(chosen))[:, None]
            base += len(chosen)
        return found

    def tie(self, level: int = 1) -> Grouping:
        """Join corresponding operations of equal blocks: what is decided for one block is decided for all.

        Each operation is tied within the family of the block that `blocks_of` has it in.
        """
        label = -1 - np.arange(self.n_ops)
        base = 0
        for family, chosen in self._chosen(level):
            label[family.ops[chosen]] = base + np.arange(family.size)
            base += family.size
        return Grouping(label.astype(np.int32))

    def _chosen(self, level: int) -> Iterator[tuple[Family, Ints]]:
        """Families with those of their blocks that count at a level, outer ones first."""
        if level < 1:
            raise InputError(f"level is {level}; 1 or more is allowed")
        for family, depths in zip(self.families, self.depths, strict=True):
            chosen = np.flatnonzero(depths <= level).astype(np.int32)
            if len(chosen) and not family.crossing:
                yield family, chosen


def repeated_blocks(graph: OpGraph, least: int = 2) -> Blocks:
    """Return the families of equal blocks, of `least` operations or more."""
    if least < 1:
        raise InputError(f"least is {least}; 1 or more is allowed")
    structure, tree = Structure(graph), Tree(graph)
    levels = list(tree.levels())
    candidates = modules(graph, structure, tree, levels) + steps(graph, structure, tree, levels)
    candidates = [c for c in candidates if c.rows.shape[1] >= least]
    candidates.sort(key=lambda c: (-c.rows.shape[1], c.steps, int(c.rows.min())))
    families: list[Family] = []
    around = _Around(graph.n_ops, tree)
    for candidate in candidates:
        family = around.add(candidate, len(families))
        if family is not None:
            families.append(family)
    return Blocks(graph.n_ops, tuple(around.crossed(families)))


class _Around:
    """The blocks found so far, larger ones first, and which of them are around others."""

    def __init__(self, n_ops: int, tree: Tree) -> None:
        self._tree = tree
        self._module = np.full((len(tree.names), 2), -1, np.int32)
        """Family and block that a scope is."""
        self._step = np.full((n_ops, 2), -1, np.int32)
        """Family and block of the smallest step around an operation."""
        self._home = np.full((n_ops, 2), -1, np.int32)
        """Family and block of the smallest module around an operation."""
        self._within: list[Ints] = []
        """For every family, the module around each of its blocks."""

    def add(self, candidate: Candidate, number: int) -> Family | None:
        """Return the candidate as a family of that number, or None where it adds nothing."""
        rows, scopes, steps = candidate
        if steps:
            kept = self._apart(rows)
            rows, scopes = rows[kept], scopes[kept]
        within = np.array([self._module_around(s, steps) for s in scopes.tolist()], np.int32).reshape(-1, 2)
        parents = within
        if steps and len(rows):
            inner = self._step[rows[:, 0]]
            parents = np.where(inner[:, :1] > within[:, :1], inner, within)  # later families are smaller
        if not _adds(parents, steps):
            return None
        block = np.stack([np.full(len(rows), number), np.arange(len(rows))], 1).astype(np.int32)
        (self._step if steps else self._home)[rows] = block[:, None]
        if not steps:
            self._module[scopes] = block
        self._within.append(within)
        return Family(_frozen(rows), tuple(self._tree.names[s] for s in scopes.tolist()), _frozen(parents), steps)

    def _apart(self, rows: Ints) -> Bools:
        """Return which steps neither cross a larger one nor share operations with an earlier one of their own."""
        inner = self._step[rows]
        whole = np.all(inner == inner[:, :1], axis=(1, 2))
        taken = np.zeros(len(self._step), bool)
        for k in np.flatnonzero(whole).tolist():
            whole[k] = not taken[rows[k]].any()
            taken[rows[k]] |= whole[k]
        kept: Bools = whole
        return kept

    def _module_around(self, scope: int, inclusive: bool) -> tuple[int, int]:
        """Return the smallest module around a scope; itself, too, if that counts."""
        node = scope if inclusive else int(self._tree.parent[scope])
        while node > 0 and self._module[node, 0] < 0:
            node = int(self._tree.parent[node])
        family, block = self._module[node].tolist() if node > 0 else (-1, -1)
        return family, block

    def crossed(self, families: Sequence[Family]) -> Iterator[Family]:
        """Return the families, those of steps with the mark whether they cross modules."""
        for family, within in zip(families, self._within, strict=True):
            crossing = family.steps and bool(np.any(self._home[family.ops] != within[:, None]))
            yield Family(family.ops, family.scopes, family.parents, family.steps, crossing)


def _adds(parents: Ints, steps: bool) -> bool:
    """Whether blocks with these parents say more than the parents do.

    Steps must repeat inside one parent. Modules must not be one for each block of one family.
    """
    if len(parents) < 2:
        return False
    _, count = np.unique(parents, axis=0, return_counts=True)
    if steps or parents[:, 0].min() < 0:
        return bool(count.max() > 1) or not steps
    return bool(count.max() > 1) or len(np.unique(parents[:, 0])) > 1


def _frozen(array: Ints) -> Ints:
    array = np.ascontiguousarray(array, np.int32)
    array.flags.writeable = False
    return array


# Groups -------------------------------------------------------------------------------------------------------------


def by_block(graph: OpGraph, blocks: Blocks | None = None, level: int = 1) -> Grouping:
    """Group every block with all of its operations; at a deeper `level`, the blocks within it, and what is left of it.

    What is in no block is grouped by scope: by the largest one without a block in it, or else by its own. A first or
    last layer that differs from its numbered siblings is one group too. Parameters, updates and stores without a
    scope go to who reads or owns them; any other operation without a scope is by itself.
    """
    blocks = repeated_blocks(graph) if blocks is None else blocks
    tree = Tree(graph)
    found = blocks.blocks_of(level)
    label = np.where(found >= 0, found + graph.n_ops + len(tree.names), np.arange(graph.n_ops)).astype(np.int64)
    odd = _odd_siblings(blocks, tree)
    holds = np.zeros(len(tree.names), bool)
    for node in tree.of_op[found >= 0].tolist():
        up = node
        while up > 0 and not holds[up]:
            holds[up] = True
            up = int(tree.parent[up])
    target = np.arange(len(tree.names))
    for node in range(1, len(target)):  # parents come first
        up = int(tree.parent[node])
        if odd[up]:
            odd[node] = True
        if odd[up] or (up > 0 and not holds[up]):
            target[node] = target[up]
    by_scope = (tree.of_op > 0) & ((found < 0) | odd[tree.of_op])
    label[by_scope] = graph.n_ops + target[tree.of_op[by_scope]]
    _adopt(graph, label, (tree.of_op == 0) & (found < 0))
    return Grouping(label.astype(np.int32))


def _odd_siblings(blocks: Blocks, tree: Tree) -> Bools:
    """Which scopes are no block but have numbered siblings that are, all larger than the blocks inside the scope."""
    size = np.zeros(len(tree.names), np.int64)
    number = {name: node for node, name in enumerate(tree.names)}
    for family, depths in zip(blocks.families, blocks.depths, strict=True):
        for k in np.flatnonzero(depths == 1).tolist():
            if not family.steps:
                size[number[family.scopes[k]]] = family.size
    numbered = np.array([name.rpartition(".")[2].isdigit() for name in tree.names])
    sibling, inside = np.zeros_like(size), size.copy()
    np.maximum.at(sibling, tree.parent[1:][numbered[1:]], size[1:][numbered[1:]])
    for node in range(len(size) - 1, 0, -1):  # children come last
        inside[tree.parent[node]] = max(inside[tree.parent[node]], inside[node])
    odd: Bools = numbered & (size == 0) & (inside < sibling[tree.parent])
    odd[0] = False
    return odd


def _adopt(graph: OpGraph, label: Longs, alone: Bools) -> None:
    """Give parameters, updates and stores that are alone the label of who reads or owns them.

    Weights follow who computes with them first, updates their weight, states their update, stores what they store.
    """
    starts, readers = graph.consumers
    phases = graph.phase
    roots = graph.persistent_root[graph.in_tensor]
    parameters = np.flatnonzero(alone & (phases == PARAMETER)).tolist()

    def follow_readers(updates: bool) -> None:
        for i in parameters:
            rows = readers[starts[graph.out_start[i]] : starts[graph.out_start[i + 1]]]
            rows = rows[(phases[rows] >= UPDATE) == updates]
            if len(rows) and label[i] == i:
                label[i] = label[rows[0]]

    def follow_owners(phase: int) -> None:
        for i in np.flatnonzero(alone & (phases == phase)).tolist():
            owned = roots[graph.in_start[i] : graph.in_start[i + 1]]
            owned = owned[owned >= 0]
            if len(owned):
                label[i] = label[graph.tensor_op[owned[0]]]

    follow_readers(updates=False)
    follow_owners(UPDATE)
    follow_readers(updates=True)
    follow_owners(STORE)

"""What memory must hold while one operation runs, beyond what is persistent.

While operation m runs, its pool holds its workspace, its outputs and what it reads, copies of borrowed parameters
included. Under `step`, a tensor whose maker comes before m and one of whose readers comes after m is held somewhere
at that time: where both are, if they are at one place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.bounds.relaxed import Relaxed
from placewright.graph import STORE, Bools, Ints, Longs, OpGraph

MOST = 4
"""Operations that are looked at, for each set of pools."""


@dataclass(frozen=True, eq=False)
class Moment:
    """What memory must hold while an operation runs."""

    op: int
    columns: NDArray[np.float64]
    """By group: bytes that are surely where it is."""
    borrowed: Ints
    """Reads of persistent tensors by the operation from other groups, which it needs beside it."""
    borrowed_bytes: Longs
    spanning: Ints
    """Reads of tensors that were made before and are read after, held where maker and reader are if both are there."""
    spanning_bytes: Longs
    twice: Ints
    """Of borrowed tensors that are read both before and after: another read than the main one, on the other side."""
    twice_bytes: Longs


def moments(relaxed: Relaxed, pools: int) -> list[Moment]:
    """The operations that need most memory, by a run in program order on one device; none where memory is plenty."""
    graph = relaxed.problem.graph
    granule = int(relaxed.classes.granule[pools])
    capacity = int(relaxed.classes.capacity[pools])
    need, size = needs(relaxed, granule)
    roots, reads = _roots(graph)
    step = relaxed.problem.objective == "step"
    alive = _profile(graph, roots, reads, size) if step else np.zeros(graph.n_ops, np.int64)
    lent = np.zeros(graph.n_ops, np.int64)
    kept = graph.persistent[graph.in_tensor] & relaxed.crossing
    np.add.at(lent, graph.read_op[kept], size[graph.in_tensor[kept]])
    here: Bools = relaxed.allowed[:, relaxed.classes.pools_of == pools].max(axis=1)
    runs = ~graph.off_queue & here[relaxed.problem.groups]
    total = np.where(runs, alive + need, 0)
    if int(relaxed.held[:, pools].sum()) + int((total + lent).max(initial=0)) <= capacity:
        return []
    chosen: list[int] = []
    for score in (total, np.where(runs, need + lent, 0)):
        for i in np.argsort(-score, kind="stable")[: 1 << 12].tolist():
            if score[i] <= 0 or len(chosen) >= MOST:
                break
            if all(abs(i - j) > graph.n_ops // 50 for j in chosen):
                chosen.append(i)
                if len(chosen) in (MOST // 2, MOST):
                    break
    return [_moment(relaxed, i, int(need[i]), size, (roots, reads), step) for i in chosen]


def _roots(graph: OpGraph) -> tuple[Ints, Bools]:
    """The transient tensor whose bytes each tensor shares, -1 where that is unsure; and which reads hold one."""
    own = np.arange(graph.n_tensors, dtype=np.int32)
    base = graph.tensor_storage
    sure = (base[base] == base) & ~graph.detachable & ~graph.persistent[base]
    roots = np.where(sure, base, -1).astype(np.int32)
    roots[(base == own) & ~graph.persistent] = own[(base == own) & ~graph.persistent]
    holds = (roots[graph.in_tensor] >= 0) & (graph.phase[graph.read_op] != STORE)
    return roots, holds


def needs(relaxed: Relaxed, granule: int) -> tuple[Longs, Longs]:
    """Bytes of every operation alone (workspace, its outputs, the transient tensors that it reads); and of tensors."""
    graph = relaxed.problem.graph
    size = relaxed.rounded(graph.tensor_bytes, granule)
    roots, _ = _roots(graph)
    need = relaxed.rounded(graph.workspace_bytes, granule)
    made = np.flatnonzero(roots == np.arange(graph.n_tensors))
    np.add.at(need, graph.tensor_op[made], size[made])
    held = np.flatnonzero(roots[graph.in_tensor] >= 0)
    key = graph.read_op[held].astype(np.int64) * max(1, graph.n_tensors) + roots[graph.in_tensor[held]]
    least = np.minimum(size[graph.in_tensor[held]], size[roots[graph.in_tensor[held]]])
    order = np.lexsort((least, key))
    first = np.ones(len(order), bool)
    first[1:] = np.diff(key[order]) > 0
    np.add.at(need, graph.read_op[held[order[first]]], least[order[first]])
    return np.where(graph.off_queue, 0, need), size


def _profile(graph: OpGraph, roots: Ints, reads: Bools, size: Longs) -> Longs:
    """Bytes of the tensors made before and read after each operation, in program order."""
    last = np.zeros(graph.n_tensors, np.int32)
    some = np.flatnonzero(reads)
    np.maximum.at(last, roots[graph.in_tensor[some]], graph.read_op[some])
    kept = np.flatnonzero(last > graph.tensor_op + 1)
    change = np.zeros(graph.n_ops + 1, np.int64)
    np.add.at(change, graph.tensor_op[kept] + 1, size[kept])
    np.add.at(change, last[kept], -size[kept])
    return np.cumsum(change)[:-1]


def _moment(relaxed: Relaxed, m: int, need: int, size: Longs, tensors: tuple[Ints, Bools], step: bool) -> Moment:
    """What must be held while operation m runs."""
    graph, groups = relaxed.problem.graph, relaxed.problem.groups
    columns = np.zeros(relaxed.problem.n_groups)
    columns[groups[m]] += need
    mine = np.arange(graph.in_start[m], graph.in_start[m + 1])
    borrowed = mine[graph.persistent[graph.in_tensor[mine]] & relaxed.crossing[mine]]
    spanning = np.zeros(0, np.int64)
    earlier, later = _before(graph, m), _after(graph, m)
    twice = _twice(relaxed, mine, earlier, later)
    if step:
        roots, reads = tensors
        some = np.flatnonzero(reads)
        root = roots[graph.in_tensor[some]]
        already = np.isin(root, roots[graph.in_tensor[mine]])  # among the needs of m itself
        some = some[earlier[graph.tensor_op[root]] & later[graph.read_op[some]] & ~already]
        root = roots[graph.in_tensor[some]]
        # of several readers the one surest to be where the maker is: of its group, else the first
        order = np.lexsort((some, relaxed.crossing[some], root))
        first = np.ones(len(order), bool)
        first[1:] = np.diff(root[order]) > 0
        spanning = some[order[first]]
    root = tensors[0][graph.in_tensor[spanning]]
    least = np.minimum(size[graph.in_tensor[spanning]], size[root])
    within = ~relaxed.crossing[spanning]
    np.add.at(columns, groups[graph.tensor_op[root[within]]], least[within])
    return Moment(
        op=m,
        columns=columns,
        borrowed=borrowed.astype(np.int32),
        borrowed_bytes=size[graph.in_tensor[borrowed]],
        spanning=spanning[~within].astype(np.int32),
        spanning_bytes=least[~within],
        twice=twice,
        twice_bytes=size[graph.in_tensor[twice]],
    )


def _twice(relaxed: Relaxed, mine: NDArray[np.int64], earlier: Bools, later: Bools) -> Ints:
    """A read of every borrowed tensor on the other side of the operation than its main read, the first there."""
    graph, main = relaxed.problem.graph, relaxed.main
    side = earlier.astype(np.int8) - later.astype(np.int8)
    kept = graph.persistent.copy()
    kept[graph.in_tensor[mine]] = False  # borrowed by the operation itself
    of_main = np.zeros(graph.n_tensors, np.int8)
    of_main[graph.in_tensor[main]] = side[graph.read_op[main]]
    tensor = graph.in_tensor
    other = (of_main[tensor] != 0) & (side[graph.read_op] == -of_main[tensor])
    reads = np.flatnonzero(kept[tensor] & relaxed.crossing & other)
    _, first = np.unique(tensor[reads], return_index=True)
    return reads[first].astype(np.int32)


def _before(graph: OpGraph, m: int) -> Bools:
    """Which operations must end before m starts."""
    found = np.zeros(graph.n_ops, bool)
    makers, in_start = graph.tensor_op[graph.in_tensor].tolist(), graph.in_start.tolist()
    after, after_start = graph.after_op.tolist(), graph.after_start.tolist()
    waiting = [m]
    while waiting:
        i = waiting.pop()
        for j in (*makers[in_start[i] : in_start[i + 1]], *after[after_start[i] : after_start[i + 1]]):
            if not found[j]:
                found[j] = True
                waiting.append(j)
    return found


def _after(graph: OpGraph, m: int) -> Bools:
    """Which operations cannot start before m has ended."""
    found = np.zeros(graph.n_ops, bool)
    use_start, use = graph.consumers
    next_start, following = graph.before
    waiting = [m]
    while waiting:
        i = waiting.pop()
        readers = use[use_start[graph.out_start[i]] : use_start[graph.out_start[i + 1]]]
        for j in (*readers.tolist(), *following[next_start[i] : next_start[i + 1]].tolist()):
            if not found[j]:
                found[j] = True
                waiting.append(j)
    return found

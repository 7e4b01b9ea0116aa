"""Downward-closed sets of units: bits, and tables that grow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placewright.exact.condense import Edges
from placewright.sim.ideals import Family, Order, refill

U64 = NDArray[np.uint64]


def bits_of(rows: list[list[int]], words: int) -> U64:
    table = np.zeros((len(rows), words * 64), np.uint8)
    for k, row in enumerate(rows):
        table[k, row] = 1
    return np.packbits(table, axis=1, bitorder="little").view(np.uint64).reshape(len(rows), words)


def width_of(n: int, edges: Edges) -> int:
    """A number of units none of which comes before another: the most that are equally deep."""
    depth = np.zeros(n, np.int64)
    for u, v in edges.tolist():  # by increasing u, and units are numbered in topological order
        depth[v] = max(depth[v], depth[u] + 1)
    return int(np.bincount(depth, minlength=1).max())


def order_of(n: int, edges: Edges) -> Order:
    words = max(1, -(-n // 64))
    before: list[list[int]] = [[] for _ in range(n)]
    after: list[list[int]] = [[] for _ in range(n)]
    for u, v in edges.tolist():
        before[v].append(u)
        after[u].append(v)
    return Order(
        before=bits_of(before, words),
        after_start=np.cumsum([0, *map(len, after)]).astype(np.int32),
        after=np.array([v for row in after for v in row], np.int32),
    )


def first_family(order: Order) -> Family:
    """The empty set."""
    n, words = order.before.shape
    rows = max(4 * n + 64, 1 << 12)
    family = Family(
        member=np.zeros((rows, words), np.uint64),
        ready=np.zeros((rows, words), np.uint64),
        link_start=np.zeros(rows + 1, np.int32),
        link_unit=np.zeros(4 * rows, np.int32),
        link_to=np.zeros(4 * rows, np.int32),
        table=np.full(_table_size(rows + n), -1, np.int32),
        count=np.array([1, 0, 0], np.int64),
    )
    family.ready[0] = bits_of([np.flatnonzero(~order.before.any(axis=1)).tolist()], words)[0]
    refill(family)
    return family


def grown(family: Family, n: int) -> Family:
    """The same sets with room for more."""
    rows, links = len(family.member), len(family.link_unit)
    if rows - family.count[0] <= 2 * n or 2 * (family.count[0] + n) > len(family.table) // 2:
        rows *= 2
    if links - family.count[1] <= 2 * n:
        links *= 2

    def longer(array: NDArray[np.generic], size: int) -> NDArray[np.generic]:
        return np.concatenate([array, np.zeros((size - len(array), *array.shape[1:]), array.dtype)])

    family = Family(
        member=longer(family.member, rows),
        ready=longer(family.ready, rows),
        link_start=longer(family.link_start, rows + 1),
        link_unit=longer(family.link_unit, links),
        link_to=longer(family.link_to, links),
        table=np.full(_table_size(rows + n), -1, np.int32),
        count=family.count,
    )
    refill(family)
    return family


def _table_size(rows: int) -> int:
    """A power of two, at least twice the sets that it is for."""
    return 1 << (2 * rows - 1).bit_length()

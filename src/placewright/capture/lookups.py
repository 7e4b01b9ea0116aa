"""Operators that look up rows of a table, or write some: how many of its elements they touch, instead of all.

Written in place, only what an index names is written, and it is read only where something is added to it. The forms
that are not in place copy the table first, and so touch all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensors = Sequence[torch.Tensor]


def table_read(kind: str, args: Sequence[Any], outputs: Tensors) -> tuple[torch.Tensor, int] | None:
    """Return the table that a lookup reads and the elements that it finds there; None for other operators."""
    if kind in _LOOKUPS:
        return args[0], int(outputs[0].numel())
    if kind in _BAGS:
        table = args[_BAGS[kind]]
        return table, int(args[_BAGS[kind] + 1].numel()) * int(table.shape[-1])
    return None


_LOOKUPS = frozenset({"embedding", "index", "index_select", "gather", "take"})
"""They return what they find; the table comes first."""
_BAGS = {"embedding_bag": 0, "embedding_bag_per_sample_weights_backward": 1}
"""They sum up what they find: where the table is among the arguments; the rows to find come next."""


def written_elements(kind: str, args: Sequence[Any]) -> int | None:
    """Return the elements of its first argument that an indexed write reaches; None for other operators."""
    return _WRITES[kind](args) if kind in _WRITES else None


def adds(kind: str, args: Sequence[Any]) -> bool:
    """Whether an indexed write reads what was there."""
    return kind in _ADDING or (kind in ("index_put", "put") and len(args) > 3 and bool(args[3]))


def summed_elements(kind: str, args: Sequence[Any]) -> int | None:
    """Return the elements that a lookup, or the backward pass of one, multiplies and adds; None for other operators."""
    return _SUMS[kind](args) if kind in _SUMS else None


def _named(args: Sequence[Any]) -> int:
    """Return the elements that the indices of `table[i, :, j]` name. A mask may name as many as it has."""
    table, indices = args[0], args[1]
    axis, rest, masked = 0, 1, 1
    numbers: list[torch.Size] = []
    for index in indices:
        if index is None:
            rest *= int(table.shape[axis])
            axis += 1
        elif index.dtype in (torch.bool, torch.uint8):
            masked = max(masked, int(index.numel()))
            axis += index.dim()
        else:
            numbers.append(index.shape)
            axis += 1
    together: Sequence[int] = torch.broadcast_shapes(*numbers)  # type: ignore[no-untyped-call]
    named = max(masked, math.prod(together))
    return named * rest * math.prod(int(size) for size in table.shape[axis:])


def _slices(args: Sequence[Any]) -> int:
    """Return the elements of the slices that an index along one axis names."""
    table, axis, index = args[:3]
    return int(table.numel()) // max(1, int(table.shape[axis]) if table.dim() else 1) * int(index.numel())


_WRITES: dict[str, Callable[[Sequence[Any]], int]] = {
    "index_put": _named,
    **dict.fromkeys(("index_copy", "index_add", "index_reduce", "index_fill"), _slices),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), lambda args: int(args[2].numel())),
    "put": lambda args: int(args[1].numel()),
    "embedding_renorm": lambda args: int(args[1].numel()) * int(args[0].shape[-1]),
}
_ADDING = frozenset({"index_add", "index_reduce", "scatter_add", "scatter_reduce", "embedding_renorm"})
_SUMS: dict[str, Callable[[Sequence[Any]], int]] = {
    "embedding_backward": lambda args: int(args[0].numel()),
    "embedding_bag": lambda args: int(args[1].numel()) * int(args[0].shape[-1]),
    "embedding_bag_backward": lambda args: int(args[1].numel()) * int(args[0].shape[-1]),
    "embedding_bag_per_sample_weights_backward": lambda args: 2 * int(args[2].numel()) * int(args[1].shape[-1]),
}

"""Gradients of lookups, which torch sums up in place on zeros.

While it is traced, the backward pass of an index, a gather or a maximum writes into a copy of the zeros instead, since
it takes fake tensors for ones of another kind. Eager execution makes no copy, so here none is made either.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from placewright.capture.recompute import ORIGINAL, is_backward

_ATEN = torch.ops.aten
_IN_PLACE = {
    _ATEN.index_put.default: _ATEN.index_put_.default,
    _ATEN.index_add.default: _ATEN.index_add_.default,
    _ATEN.scatter_add.default: _ATEN.scatter_add_.default,
    _ATEN.scatter.src: _ATEN.scatter_.src,
    _ATEN.put.default: _ATEN.put_.default,
}
_ZEROS = (_ATEN.new_zeros.default, _ATEN.zeros_like.default, _ATEN.zeros.default)


def sum_in_place(graph: Graph) -> int:
    """Let sums of the backward pass be written into their zeros; return how many there were."""
    found = [node for node in graph.nodes if node.target in _IN_PLACE and _is_of_backward(node)]
    count = 0
    for node in found:
        zeros = node.args[0]
        fresh = isinstance(zeros, Node) and zeros.target in _ZEROS and _is_of_backward(zeros)
        if fresh and len(zeros.users) == 1:
            node.target = _IN_PLACE[node.target]
            node.meta = {**node.meta, "val": zeros.meta["val"]}
            count += 1
    return count


def _is_of_backward(node: Node) -> bool:
    """Whether a node is torch's own, of the backward pass, and not the model's, repeated there."""
    return is_backward(node) and ORIGINAL not in node.meta

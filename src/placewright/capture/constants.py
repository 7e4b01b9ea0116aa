"""Tensors that a trace took over as they are: one operation for each, however often it is used."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from placewright.capture import torch_private


def first_uses(module: GraphModule) -> dict[Node, Node]:
    """Return, of every node that reads a constant, the first node that reads the same one.

    A trace gives each of these nodes a fake tensor of its own, and their views share the bytes of yet another; here
    they all get one that has the bytes of its views.
    """
    uses: dict[tuple[Any, ...], list[Node]] = {}
    for node in module.graph.nodes:
        tensor = getattr(module, node.target, None) if node.op == "get_attr" else None
        if isinstance(tensor, torch.Tensor):
            uses.setdefault(torch_private.place_of(tensor), []).append(node)
    for nodes in uses.values():
        value = _with_bytes_of_views(nodes)
        for node in nodes:
            node.meta["val"] = value
    return {node: nodes[0] for nodes in uses.values() for node in nodes}


def _with_bytes_of_views(nodes: list[Node]) -> Any:
    """Return the fake tensor of a constant, in the storage that its views, or what is written into it, are in."""
    value: Any = nodes[0].meta.get("val")
    view = next((user.meta["val"] for node in nodes for user in node.users if _is_view(user, node)), None)
    if view is None or not isinstance(value, torch.Tensor) or not torch_private.is_fake(value):
        return value
    place = (value.storage_offset(), value.shape, value.stride())
    with torch_private.mode_of(view), torch.no_grad():
        return torch.empty(0, dtype=value.dtype, device=value.device).set_(view.untyped_storage(), *place)


def _is_view(user: Node, node: Node) -> bool:
    """Whether a node returns one tensor, which has the bytes of its argument by the operator's schema."""
    schema = getattr(user.target, "_schema", None)
    if schema is None or not torch.is_tensor(user.meta.get("val")) or not torch_private.is_fake(user.meta["val"]):
        return False
    returned = {name for value in schema.returns if value.alias_info for name in value.alias_info.before_set}
    given = zip(schema.arguments, user.args, strict=False)
    return any(a.alias_info and returned & set(a.alias_info.before_set) and v is node for a, v in given)

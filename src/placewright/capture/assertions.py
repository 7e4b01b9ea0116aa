"""Assertions in an exported program: what torch checks while it runs, which a graph of operations has no use for.

A model that checks values (`torch._check(mask.any())`) is exported with an assertion that reads a number from a
tensor. Nothing else depends on it, and no fake tensor has the number, so it goes before the program is traced again.
"""

from __future__ import annotations

from torch.fx import Graph, Node

_ASSERTIONS = frozenset(
    {"_assert", "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_functional_assert_scalar",
     "_functional_assert_async", "sym_constrain_range", "sym_constrain_range_for_size"}
)  # fmt: skip


def drop_assertions(graph: Graph) -> int:
    """Erase assertions and what was computed for them alone; return how many nodes went."""
    doomed = [node for node in graph.nodes if _plain_name(node) in _ASSERTIONS]
    erased: set[Node] = set()
    while doomed:
        node = doomed.pop()
        if node in erased or node.users or node.op != "call_function" or _writes(node):
            continue
        sources = node.all_input_nodes
        graph.erase_node(node)
        erased.add(node)
        doomed += sources
    return len(erased)


def _plain_name(node: Node) -> str:
    """Return the name of what a node calls, without namespace and overload."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        return str(schema.name).rpartition("::")[2]
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def _writes(node: Node) -> bool:
    """Whether a node writes one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)

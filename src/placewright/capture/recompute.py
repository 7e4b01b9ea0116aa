"""Checkpointing: what a checkpointed region computes is computed again before its backward pass.

Capture marks the nodes of every checkpointed call with the number of its region; here the marked forward nodes
are repeated in front of the region's backward, which then reads the repeated values. As in eager execution all of
the region runs again, up to the last value that its backward needs.
"""

from __future__ import annotations

from torch.fx import Graph, Node

ORIGINAL = "recompute_of"
"""In the metadata of a repeated node: the node that it repeats."""


def region_of(node: Node) -> int | None:
    """Return the number of the checkpointed call that a node belongs to."""
    return (node.meta.get("custom") or {}).get("recompute")


def is_backward(node: Node) -> bool:
    """Whether a node belongs to the backward pass."""
    return bool(node.meta.get("partitioner_tag") == "is_backward")


def repeat_checkpointed(graph: Graph) -> int:
    """Repeat the nodes of checkpointed regions in front of their backward; return how many were added."""
    forward: dict[int, list[Node]] = {}
    backward: dict[int, list[Node]] = {}
    for node in graph.nodes:
        region = region_of(node)
        if region is not None and node.op == "call_function":
            (backward if is_backward(node) else forward).setdefault(region, []).append(node)
    added = 0
    for region, readers in backward.items():
        added += _repeat(graph, forward.get(region, []), readers)
    return added


def _repeat(graph: Graph, computed: list[Node], readers: list[Node]) -> int:
    """Repeat one region in front of the first of its readers that needs it."""
    own = set(computed)
    needed = {source for reader in readers for source in reader.all_input_nodes if source in own}
    if not needed:
        return 0
    last = max(k for k, node in enumerate(computed) if node in needed)
    first = next(reader for reader in readers if not needed.isdisjoint(reader.all_input_nodes))
    copies: dict[Node, Node] = {}
    with graph.inserting_before(first):
        for node in computed[: last + 1]:
            copy = graph.node_copy(node, lambda source: copies.get(source, source))
            copy.meta = {**node.meta, "partitioner_tag": "is_backward", ORIGINAL: node}
            copies[node] = copy
    for reader in readers:
        for source in reader.all_input_nodes:
            if source in copies:
                reader.replace_input_with(source, copies[source])
    return len(copies)

"""Biconnected components: the edges of an undirected graph, grouped so that two are together where a cycle has both."""

from __future__ import annotations

from collections.abc import Sequence


def biconnected(n: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The component of every edge, numbered as they are completed (Hopcroft and Tarjan 1973, without recursion)."""
    near: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    for e, (u, v) in enumerate(edges):
        near[u].append((v, e))
        near[v].append((u, e))
    component = [-1] * len(edges)
    entered, low, at = [-1] * n, [0] * n, [0] * n
    clock = found = 0
    for root in range(n):
        if entered[root] >= 0:
            continue
        entered[root] = low[root] = clock
        clock += 1
        path = [(root, -1)]  # vertices, each with the edge by which it was reached
        waiting: list[int] = []  # edges that belong to no component yet
        while path:
            u, came = path[-1]
            if at[u] < len(near[u]):
                v, e = near[u][at[u]]
                at[u] += 1
                if e == came:
                    continue
                if entered[v] < 0:
                    entered[v] = low[v] = clock
                    clock += 1
                    waiting.append(e)
                    path.append((v, e))
                elif entered[v] < entered[u]:
                    waiting.append(e)
                    low[u] = min(low[u], entered[v])
                continue
            path.pop()
            if not path:
                break
            above = path[-1][0]
            low[above] = min(low[above], low[u])
            if low[u] >= entered[above]:  # nothing below u reaches past `above`
                while True:
                    e = waiting.pop()
                    component[e] = found
                    if e == came:
                        break
                found += 1
    return component

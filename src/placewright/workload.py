"""Workload: what a file of any graph format holds, and what the importers share."""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from placewright.errors import FileError, InputError
from placewright.graph import OpGraph
from placewright.graph_format import order_fault
from placewright.machine import Machine

V100_RATES = {"flops_per_s": {"float32": 15.7e12}, "bytes_per_s": 900e9}
"""Peak rates of a Tesla V100 SXM2, on which the layer profiles of both formats were measured."""

_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Workload:
    """What a file holds: a graph, and whatever it says of machine, objective and discipline."""

    graph: OpGraph
    machine: Machine | None = None
    objective: str | None = None
    discipline: str | None = None
    expert: Path | None = None
    """A placement by a human expert, beside the file."""
    members: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The operations that each node of the file became, by the file's number for it."""


def graph_name(path: object) -> str:
    """Return a name for the graph in a file: the file's own, without its ending."""
    name = re.sub(r"\.(json|txt)(\.gz)?$", "", os.path.basename(str(path)))
    return name if name.isprintable() and 0 < len(name) <= 200 else "workload"


def topological(before: Sequence[Sequence[int]], names: Sequence[str], path: object, place: str) -> list[int]:
    """Return an order in which i comes after all of `before[i]`, the least possible index first each time."""
    waiting = [len(row) for row in before]
    after: list[list[int]] = [[] for _ in before]
    for i, row in enumerate(before):
        for other in row:
            after[other].append(i)
    ready = [i for i, count in enumerate(waiting) if not count]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for other in after[i]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, other)
    if len(order) < len(before):
        raise FileError(path, place, order_fault(names, before))
    return order


def made(make: Callable[[], _Made], path: object, place: str) -> _Made:
    """Build something from a file; a rule that it breaks is a fault of the file."""
    try:
        return make()
    except FileError:
        raise
    except InputError as error:
        raise FileError(path, place, str(error)) from None

"""Accelerate's device map: modules in order, each to the first device that still has room for its weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from placewright.graph import Longs
from placewright.heuristics.modules import Modules, chunks
from placewright.heuristics.parts import UNKNOWN


@dataclass(frozen=True)
class Module:
    """What is placed whole, or split into its parts where it does not fit."""

    kind: str
    """`scope`, `weight` (one that a split module holds itself) or `stretch` (of a graph without scopes)."""
    number: int
    """Of the node of the tree, the operation or the stretch."""
    bytes: int
    parts: tuple[Module, ...] = ()

    @property
    def leaves(self) -> tuple[Module, ...]:
        """What it is split into in the end: layers, modules without modules in them, and single weights."""
        return tuple(leaf for part in self.parts for leaf in part.leaves) or (self,)


@dataclass(frozen=True)
class Room:
    """A device to fill, with no more than so many bytes of weights."""

    device: int
    pool: int
    most_bytes: float
    spare: bool = False
    """Whether room is kept for the largest module that comes later."""


def modules_of(modules: Modules) -> tuple[Module, ...]:
    """The modules directly in the network. Layers are not split; without scopes, stretches by weights are layers."""
    if modules.layers:
        return _split(modules, 0, frozenset(modules.layers))
    label = chunks(modules)
    count = int(label.max(initial=UNKNOWN)) + 1
    graph = modules.graph
    root = graph.persistent_root[graph.in_tensor]
    reads = np.flatnonzero((root >= 0) & (label[graph.read_op] != UNKNOWN))
    held, first = np.unique(graph.tensor_op[root[reads]], return_index=True)  # a weight is where it is read first
    sizes = np.zeros(count, np.int64)
    np.add.at(sizes, label[graph.read_op[reads[first]]], modules.op_bytes[held])
    return tuple(Module("stretch", k, size) for k, size in enumerate(sizes.tolist()))


def _split(modules: Modules, node: int, whole: frozenset[int]) -> tuple[Module, ...]:
    """The parts of a module: its own weights, then the modules in it."""
    children = modules.children[node]
    if node in whole or not children:
        return ()
    own = (Module("weight", v, int(modules.op_bytes[v])) for v in modules.own_weights[node])
    return *own, *(Module("scope", c, int(modules.bytes[c]), _split(modules, c, whole)) for c in children)


def device_map(top: Sequence[Module], rooms: Sequence[Room], capacity: Sequence[int]) -> list[tuple[Module, int]]:
    """Modules with their devices; the last device takes whatever is left, whether it fits or not.

    `capacity` is that of the pools, of which several devices may share one.
    """
    leaves = [leaf.bytes for module in top for leaf in module.leaves]
    largest = [*accumulate(reversed([*leaves, 0]), max)][::-1]  # of the leaves from each on
    used = [0] * len(rooms)
    left = list(capacity)
    placed: list[tuple[Module, int]] = []
    todo = deque(top)
    k = passed = 0
    while todo:
        module, room = todo.popleft(), rooms[k]
        count = len(module.leaves)
        need = module.bytes + (largest[passed + count] if room.spare else 0)
        if k == len(rooms) - 1 or (used[k] + need <= room.most_bytes and need <= left[room.pool]):
            placed.append((module, room.device))
            used[k] += module.bytes
            left[room.pool] -= module.bytes
            passed += count
        elif module.parts:
            todo.extendleft(reversed(module.parts))
        else:
            todo.appendleft(module)
            k += 1
    return placed


def homes(modules: Modules, placed: Sequence[tuple[Module, int]]) -> Longs:
    """The device of every operation of a placed module; -1 for the others."""
    label = np.full(modules.graph.n_ops, UNKNOWN, np.int64)
    by_kind = {kind: [(m.number, d) for m, d in placed if m.kind == kind] for kind in ("scope", "stretch", "weight")}
    for kind in ("scope", "stretch"):
        if by_kind[kind]:
            numbers, devices = zip(*by_kind[kind], strict=True)
            own = modules.inside(list(numbers)) if kind == "scope" else chunks(modules)
            label = np.where(own == UNKNOWN, UNKNOWN, np.array(devices)[own])
    for v, device in by_kind["weight"]:
        label[v] = device
    return label

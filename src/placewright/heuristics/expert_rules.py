"""Rules by which people placed the networks of the papers on several devices; `expert.py` says whose is which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from placewright.costs.roofline import class_of
from placewright.errors import InputError
from placewright.graph import FORWARD, INPUT, Longs
from placewright.heuristics.modules import Modules, layers_of
from placewright.heuristics.parts import UNKNOWN
from placewright.heuristics.settling import host_of
from placewright.problem import Problem

Rule = Callable[[Problem, list[int]], Longs]
"""Gives operations their device, -1 for those that follow the others; it is given the accelerators."""


def one_device(problem: Problem, devices: list[int]) -> Longs:
    """Everything on the first accelerator."""
    return np.full(problem.n_ops, devices[0], np.int64)


def one_device_inputs_on_host(problem: Problem, devices: list[int]) -> Longs:
    """Everything on the first accelerator but the inputs, which are on its host."""
    host = host_of(problem, devices[0])
    return np.where(problem.graph.phase == INPUT, devices[0] if host is None else host, devices[0])


def equal_parts(problem: Problem, devices: list[int]) -> Longs:
    """Contiguous parts of about equal numbers of convolutions and linear layers; no module is cut.

    A module is a numbered one, such as a stage's block or a mixed module, or one with weights that is in none. It
    is in the part in which its middle is.
    """
    graph, modules = problem.graph, Modules(problem.graph)
    outer = modules.numbered()
    inside = modules.inside(outer)
    outer += [
        node
        for node in range(1, len(modules.tree.names))
        if modules.own_weights[node] and inside[modules.own_weights[node][0]] == UNKNOWN
    ]
    label = modules.inside(outer) if len(outer) > 1 else layers_of(modules)
    forward = graph.phase == FORWARD
    counted = np.array([class_of(kind) in ("convolution", "matmul") for kind in graph.kinds], bool) & forward
    first: dict[int, int] = {}
    for v in np.flatnonzero(forward & (label != UNKNOWN)).tolist():
        first.setdefault(int(label[v]), len(first))
    order = np.array(list(first), np.int64)
    size = np.bincount(label[counted & (label != UNKNOWN)], minlength=int(label.max(initial=0)) + 1)[order]
    size = size if size.any() else np.ones(len(order), np.int64)
    middle = np.cumsum(size) - size / 2
    part = np.full(int(label.max(initial=0)) + 2, UNKNOWN, np.int64)
    part[order] = np.minimum((middle * len(devices) / max(1, size.sum())).astype(np.int64), len(devices) - 1)
    part = part[label]
    return np.where(part == UNKNOWN, UNKNOWN, np.array(devices)[part])


@dataclass(frozen=True)
class _Stack:
    """LSTM layers on top of each other, as tree nodes from the bottom up, and the embedding beside them."""

    layers: tuple[int, ...]
    embedding: tuple[int, ...]


def _stacks(modules: Modules) -> list[_Stack]:
    """The stacks of a recurrent network in the order in which they run: modules `layers.0`, `layers.1`, ..."""
    names = modules.tree.names
    found: dict[str, dict[int, int]] = {}
    for node in modules.numbered():
        around, number = names[node].rsplit(".", 1) if "." in names[node] else ("", names[node])
        if around.rpartition(".")[2] == "layers":
            found.setdefault(around, {})[int(number)] = node
    order = {name: k for k, name in enumerate(dict.fromkeys(modules.graph.scopes))}
    run = sorted(found, key=lambda around: min(order.get(names[node], len(order)) for node in found[around].values()))
    result = []
    for around in run:
        beside = around.rpartition(".")[0]
        embedding = f"{beside}.embedding" if beside else "embedding"
        nodes = tuple(k for k, name in enumerate(names) if name == embedding)
        result.append(_Stack(tuple(node for _, node in sorted(found[around].items())), nodes))
    return result


def layer_per_device(problem: Problem, devices: list[int]) -> Longs:
    """Every LSTM layer on an accelerator of its own.

    With fewer accelerators than layers, layer k of encoder and of decoder are together, as `level_per_device` has it.
    """
    modules = Modules(problem.graph)
    stacks = _stacks(modules)
    if sum(len(stack.layers) for stack in stacks) > len(devices):
        return level_per_device(problem, devices)
    places = iter(devices)
    return _placed(modules, stacks, [[next(places) for _ in stack.layers] for stack in stacks])


def level_per_device(problem: Problem, devices: list[int]) -> Longs:
    """Layer k of encoder and of decoder on accelerator k; with fewer accelerators, neighbouring layers together."""
    modules = Modules(problem.graph)
    stacks = _stacks(modules)
    levels = max((len(stack.layers) for stack in stacks), default=0)
    used = min(levels, len(devices))
    return _placed(modules, stacks, [[devices[k * used // levels] for k in range(len(s.layers))] for s in stacks])


def _placed(modules: Modules, stacks: list[_Stack], places: list[list[int]]) -> Longs:
    """Layers at their places; embeddings with the first layer, attention and softmax with the last of all."""
    if not stacks:
        raise InputError(
            f"graph {modules.graph.name!r} has no scopes such as layers.0 and encoder.layers.1, by which the rule of "
            "the expert finds LSTM layers; capture the network of the zoo, or use another method"
        )
    nodes, devices = [], []
    for stack, row in zip(stacks, places, strict=True):
        nodes += [*stack.layers, *stack.embedding]
        devices += [*row, *(row[0] for _ in stack.embedding)]
    for node, name in enumerate(modules.tree.names):
        if name in ("attention", "softmax"):
            nodes.append(node)
            devices.append(places[-1][-1])
    inside = modules.inside(nodes)
    return np.where(inside == UNKNOWN, UNKNOWN, np.array(devices)[inside])

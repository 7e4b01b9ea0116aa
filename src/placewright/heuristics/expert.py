"""Human experts' placements: the rules of ColocRL, HDP and Spotlight for their networks, and published splits.

    expert:colocrl     recurrent networks: every LSTM layer on a device of its own; convolutional networks: contiguous
                       parts of equal numbers of layers (Mirhoseini et al. 2017)
    expert:hdp         translation: every LSTM layer on a device of its own; all else on one (Mirhoseini et al. 2018)
    expert:spotlight   recurrent networks: every LSTM layer on a device of its own; the CIFAR-10 network on one, with
                       its inputs on the host (Gao et al. 2018)
    expert             the split that was published beside a workload

The rules know the networks of the papers by the name of the graph, and their layers by scopes.
docs/algorithms/expert.md has the rules in full.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placewright.costs.roofline import class_of
from placewright.errors import InputError, UnknownNameError
from placewright.graph import FORWARD, INPUT, Longs
from placewright.heuristics.modules import Modules, layers_of
from placewright.heuristics.parts import UNKNOWN, accelerators, host_of, settled, spread
from placewright.heuristics.trivial import OneShot
from placewright.problem import Problem

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "nmt": r"nmt[0-9]+",
        "rnnlm": r"rnnlm[0-9]*",
        "inception": r"inceptionv3(b[0-9]+)?",
        "resnet": r"resnet[0-9]+",
        "cifar10": r"spotlightcifar10",
        "convolutional": r"(vgg|alexnet|densenet|nasnet|squeezenet).*",
    }
)
"""Kinds of network, by the graph's name in small letters and figures alone."""
CONVOLUTIONAL = ("inception", "resnet", "cifar10", "convolutional")

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


RULES: Mapping[str, Mapping[str, Rule]] = MappingProxyType(
    {
        "colocrl": {"nmt": layer_per_device, "rnnlm": layer_per_device} | dict.fromkeys(CONVOLUTIONAL, equal_parts),
        "hdp": {"nmt": level_per_device, "rnnlm": one_device, "inception": one_device, "resnet": one_device},
        "spotlight": {"nmt": level_per_device, "rnnlm": level_per_device, "cifar10": one_device_inputs_on_host},
    }
)
"""By paper, the rule for each kind of network."""


@dataclass(frozen=True)
class ExpertParams:
    """Whose rule, and for which network."""

    paper: str = "colocrl"
    """`colocrl`, `hdp` or `spotlight`."""
    network: str = ""
    """The network whose rule to follow, `nmt-4` say; empty for the name of the graph."""

    def __post_init__(self) -> None:
        if self.paper not in RULES:
            raise UnknownNameError("paper with rules of an expert", self.paper, RULES)


class Expert(OneShot):
    """The rule of one paper's human expert."""

    def __init__(self, params: ExpertParams | None = None) -> None:
        self.params = params or ExpertParams()
        self.name = f"expert:{self.params.paper}"  # type: ignore[misc]  # one name per paper

    def groups(self, problem: Problem) -> NDArray[np.int64]:
        """The device of every group."""
        return expert(problem, self.params)


def expert(problem: Problem, params: ExpertParams) -> NDArray[np.int64]:
    """The device of every group by the rule of a paper's expert; raises where no rule is written."""
    network = params.network or problem.graph.name
    rules = RULES[params.paper]
    bare = re.sub(r"[^a-z0-9]", "", network.lower())
    family = next((name for name, pattern in FAMILIES.items() if re.fullmatch(pattern, bare)), "")
    if family not in rules:
        raise InputError(
            f"{params.paper} has no rule of an expert for {network!r}; it has rules for {', '.join(rules)}. "
            "Use another method, or name the network in ExpertParams if the graph only has another name."
        )
    wanted = spread(problem.graph, rules[family](problem, accelerators(problem)))
    return settled(problem, wanted[problem.leaders])


class Published(OneShot):
    """The split by a human expert that was published beside a workload, given as a device per operation."""

    name = "expert"

    def __init__(self, devices: ArrayLike | None = None) -> None:
        self.devices = None if devices is None else np.asarray(devices)

    def groups(self, problem: Problem) -> NDArray[np.int64]:
        """The device of every group."""
        if self.devices is None:
            raise InputError(
                f"no split by an expert was published beside {problem.graph.name!r}. For the networks of the papers "
                f"use {', '.join(f'expert:{paper}' for paper in RULES)}; a split in a file is read by simulate "
                "--placement FILE."
            )
        if self.devices.shape != (problem.n_ops,):
            raise InputError(f"a split of {self.devices.size} operations for a graph of {problem.n_ops}")
        return settled(problem, self.devices[problem.leaders].astype(np.int64))

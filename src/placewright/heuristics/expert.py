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
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placewright.errors import InputError, UnknownNameError
from placewright.heuristics.expert_rules import (
    Rule,
    equal_parts,
    layer_per_device,
    level_per_device,
    one_device,
    one_device_inputs_on_host,
)
from placewright.heuristics.parts import spread
from placewright.heuristics.settling import accelerators, settled
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

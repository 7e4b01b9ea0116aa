"""What people use today: accelerate's device maps, and equal numbers of layers.

    accelerate:sequential   modules in order, each accelerator filled by the bytes of its weights before the next
    accelerate:balanced     the same, with every accelerator but the last held to its share of them
    accelerate:auto         accelerate's default, which is `balanced`
    equal-layers            equal numbers of layers per accelerator in order, what is left over with the last

They look at the bytes of parameters and buffers, or at nothing: not at time, activations or optimiser states.
docs/algorithms/layers.md says what a module is here, and what differs from accelerate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.errors import InputError, UnknownNameError
from placewright.graph import FORWARD
from placewright.heuristics.device_map import Module, Room, device_map, homes, modules_of
from placewright.heuristics.modules import Modules, layers_of
from placewright.heuristics.parts import UNKNOWN, spread, weight_of
from placewright.heuristics.settling import accelerators, host_of, settled
from placewright.heuristics.trivial import OneShot
from placewright.problem import Problem

DEVICE_MAPS = ("sequential", "balanced", "auto")


def equal_layers(problem: Problem) -> NDArray[np.int64]:
    """The device of every group: as many layers on each accelerator, those that are left over on the last."""
    devices = np.array(accelerators(problem), np.int64)
    layer = layers_of(Modules(problem.graph))
    count = int(layer.max(initial=0)) + 1
    used = min(count, len(devices))
    stage = np.where(layer == UNKNOWN, UNKNOWN, np.minimum(layer // (count // used), used - 1))
    return settled(problem, devices[spread(problem.graph, stage)[problem.leaders]])


class EqualLayers(OneShot):
    """Equal numbers of layers on every accelerator."""

    name = "equal-layers"

    def groups(self, problem: Problem) -> NDArray[np.int64]:
        """The device of every group."""
        return equal_layers(problem)


@dataclass(frozen=True)
class AccelerateParams:
    """Which of accelerate's device maps, and its constants."""

    rule: str = "auto"
    """`sequential`, `balanced` or `auto`."""
    slack: float = 1.25
    """Room beside an accelerator's share, as a multiple of the largest layer; not for `sequential`."""
    single_share: float = 0.9
    """Of its memory that an only accelerator may fill; not for `sequential`."""
    host_share: float = 0.9
    """Of its memory that the host may fill."""

    def __post_init__(self) -> None:
        if self.rule not in DEVICE_MAPS:
            raise UnknownNameError("rule of accelerate", self.rule, DEVICE_MAPS)
        if not 0 <= self.slack <= 1e6:
            raise InputError(f"slack is {self.slack}; 0 to 1e6 is allowed")
        for name in ("single_share", "host_share"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}; above 0, at most 1 is allowed")


class Accelerate(OneShot):
    """Modules in order to the first accelerator with room, then to the host, from where their weights are streamed."""

    def __init__(self, params: AccelerateParams | None = None) -> None:
        self.params = params or AccelerateParams()
        self.name = f"accelerate:{self.params.rule}"  # type: ignore[misc]  # one name per rule

    def groups(self, problem: Problem) -> NDArray[np.int64]:
        """The device of every group."""
        return accelerate(problem, self.params)


def accelerate(problem: Problem, params: AccelerateParams | None = None) -> NDArray[np.int64]:
    """The device of every group by one of accelerate's rules.

    A module whose weights are on the host is computed on the first accelerator, as accelerate does: weights, their
    states and their updates are on the host, and all else is on the accelerator, with buffers that are overwritten.
    """
    params = params or AccelerateParams()
    graph, modules = problem.graph, Modules(problem.graph)
    gpus = accelerators(problem)
    host = host_of(problem, gpus[0])
    top = modules_of(modules)
    capacity = [pool.capacity_bytes for pool in problem.machine.pools]
    home = spread(graph, homes(modules, device_map(top, _rooms(problem, top, gpus, params), capacity)))
    if host is None:
        return settled(problem, home[problem.leaders])
    own = weight_of(graph)
    offloaded = (own >= 0) & (home[own] == host) & ~_buffers(problem)[own]
    wanted = np.where(offloaded, host, np.where(home == host, gpus[0], home))
    return settled(problem, wanted[problem.leaders])


def _rooms(problem: Problem, top: tuple[Module, ...], gpus: list[int], params: AccelerateParams) -> list[Room]:
    """The accelerators, and after them the host, with what each may take."""
    pools, pool_of = problem.machine.pools, problem.machine.pool_of
    most: list[float] = [pools[pool_of[d]].capacity_bytes for d in gpus]
    if params.rule != "sequential" and len(gpus) == 1:
        most[0] *= params.single_share
    elif params.rule != "sequential":
        largest = max((leaf.bytes for module in top for leaf in module.leaves), default=0)
        share = sum(module.bytes for module in top) // len(gpus) + int(params.slack * largest)
        most[:-1] = [min(share, room) for room in most[:-1]]  # the last may take what the others had no room for
    rooms = [Room(d, pool_of[d], room, spare=d == gpus[0]) for d, room in zip(gpus, most, strict=True)]
    host = host_of(problem, gpus[0])
    if host is not None:
        room = params.host_share * pools[pool_of[host]].capacity_bytes
        rooms.append(Room(host, pool_of[host], room, spare=True))
    return rooms


def _buffers(problem: Problem) -> NDArray[np.bool_]:
    """Which operations hold a persistent tensor that the forward pass overwrites."""
    graph = problem.graph
    found = np.zeros(graph.n_ops, bool)
    made = (graph.phase[graph.tensor_op] == FORWARD) & graph.detachable
    found[graph.tensor_op[graph.persistent_root[made]]] = True
    return found

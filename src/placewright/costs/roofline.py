"""Costs from an operation's work and a device's rates, or scaled from another device's measurement.

    work = max(flops / (peak * efficiency), bytes / (bandwidth * efficiency))

A device that is dispatched asynchronously (a GPU) takes max(launch, work); another takes
launch + work. Efficiencies are per class of operation; docs/design.md says where they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placewright.costs import Costs
from placewright.errors import ProblemError
from placewright.graph import Measured, OpGraph
from placewright.machine import Device, Machine

Floats = NDArray[np.float64]

CLASSES = ("matmul", "convolution", "attention", "recurrent", "memory", "free")
EFFICIENCY = {"matmul": 0.7, "convolution": 0.55, "attention": 0.5, "recurrent": 0.5, "memory": 0.75, "free": 1.0}
"""The share of its peak that a device reaches, unless its model says otherwise."""

_WORDS = (  # the first class with a word in the kind's name wins
    ("memory", ("resize", "upsample", "interpolate", "convert")),  # not size, bilinear and conv
    ("attention", ("attention", "sdpa")),
    ("recurrent", ("lstm", "gru", "rnn")),
    ("convolution", ("conv",)),
    ("matmul", ("matmul", "linear", "gemm", "bmm", "mm", "addmm", "einsum", "baddbmm", "dense")),
    ("free", ("view", "reshape", "transpose", "permute", "squeeze", "flatten", "expand", "size", "shape", "getitem")),
)


def class_of(kind: str) -> str:
    """The class whose efficiency an operation of this kind has; what moves bytes is `memory`."""
    low = kind.lower()
    words = set(low.replace(".", "_").replace("-", "_").split("_"))
    for name, stems in _WORDS:
        if any(stem in words or (len(stem) > 3 and stem in low) for stem in stems):
            return name
    return "memory"


def costs(graph: OpGraph, machine: Machine) -> Costs:
    """Seconds of every operation on every device, measured where the graph carries a measurement.

    What was measured on another model is scaled by the ratio of the two rooflines for that class of
    operation and counts as estimated, as does what only the roofline gives. Of several models the nearest
    is scaled from: that whose ratio is nearest to 1, and of equally near ones the first by name.
    """
    seconds = np.zeros((graph.n_ops, len(machine.devices)))
    measured = np.zeros(seconds.shape, bool)
    classes = np.array([CLASSES.index(class_of(kind)) for kind in graph.kinds], np.int64)
    classes = np.where(_makes_only_views(graph), CLASSES.index("free"), classes)
    for d, device in enumerate(machine.devices):
        twin = next((k for k in range(d) if _same_figures(machine.devices[k], device)), None)
        if twin is None:
            seconds[:, d], measured[:, d] = _column(graph, classes, device)
        else:
            seconds[:, d], measured[:, d] = seconds[:, twin], measured[:, twin]
    return Costs(seconds, measured)


def _same_figures(one: Device, two: Device) -> bool:
    """Whether two devices take the same time for everything."""
    return replace(one, name="", pool="", host=None) == replace(two, name="", pool="", host=None)


def _column(graph: OpGraph, classes: NDArray[np.int64], device: Device) -> tuple[Floats, NDArray[np.bool_]]:
    """Seconds on one device, and which of them were measured on its model."""
    work = _work(graph, classes, device)
    work = np.maximum(device.launch_s, work) if device.asynchronous else device.launch_s + work
    free = (classes == CLASSES.index("free")) & (graph.flops == 0)
    work[free | graph.off_queue] = 0.0
    own = [reference for reference in graph.measured if reference.model == device.model]
    others = [reference for reference in graph.measured if reference.model != device.model]
    scaled, lost = _scaled(graph, classes, others, device)
    lost &= ~(free | graph.off_queue | _has_work(graph))
    if lost.any() and not own and not any(_has_rates(reference) for reference in others):
        raise ProblemError(
            f"seconds were measured on {', '.join(repr(r.model) for r in others)}, whose rates are not known, so they "
            f"cannot be scaled to {device.model!r}. Give the rates in the graph's references, a profile of "
            f"{device.model!r}, or the machine that the graph was measured on."
        )
    work = np.where(np.isnan(scaled), work, scaled)
    work[lost] = np.inf  # its work is not known, and it ran nowhere that could be scaled to this device
    have = np.zeros(graph.n_ops, bool)
    for reference in own:
        here = ~np.isnan(reference.seconds)
        work[here] = reference.seconds[here]
        have |= here
    return work, have


def _scaled(
    graph: OpGraph, classes: NDArray[np.int64], others: Sequence[Measured], device: Device
) -> tuple[Floats, NDArray[np.bool_]]:
    """Seconds scaled to the device from the nearest of the models (NaN: from none), and what of that was measured.

    Infinite seconds, and those on a model without rates, are never scaled.
    """
    nearest, known, given = np.full(graph.n_ops, np.inf), np.zeros(graph.n_ops, bool), np.zeros(graph.n_ops, bool)
    result = np.full(graph.n_ops, np.nan)
    for reference in others:  # in order of name, so the first of equally near ones stays
        seconds = reference.seconds
        given |= ~np.isnan(seconds)
        if not _has_rates(reference):
            continue
        theirs, ours = _bounds(graph, classes, reference, device)
        low, high = np.minimum(theirs, ours), np.maximum(theirs, ours)
        with np.errstate(over="ignore"):
            distance = np.divide(high, low, out=np.full(graph.n_ops, np.inf), where=low > 0)
            ratio = np.divide(theirs, ours, out=np.full(graph.n_ops, np.inf), where=ours > 0)
            take = np.isfinite(seconds) & (theirs > 0) & (~known | (distance < nearest))
            busy = take & (seconds > 0)
            work = np.multiply(seconds, ratio, out=np.zeros(graph.n_ops), where=busy)
        launch = np.where(busy, device.launch_s, 0.0)
        result = np.where(take, np.maximum(launch, work) if device.asynchronous else launch + work, result)
        nearest, known = np.where(take, distance, nearest), known | take
    return result, given & ~known


def _has_work(graph: OpGraph) -> NDArray[np.bool_]:
    """Operations of which a roofline says more than the launch."""
    result: NDArray[np.bool_] = (graph.flops > 0) | (graph.bytes_read > 0) | (graph.bytes_written > 0)
    return result


def _has_rates(reference: Measured) -> bool:
    """Whether seconds measured on this model can be scaled to another."""
    return reference.bytes_per_s > 0 and any(rate > 0 for rate in reference.flops_per_s.values())


def _rates(graph: OpGraph, classes: NDArray[np.int64], device: Device) -> tuple[Floats, Floats]:
    """Per operation: flop/s and bytes/s that its class reaches on the device (0: not known)."""
    share = np.array([device.efficiency.get(name, EFFICIENCY[name]) for name in CLASSES])
    fallback = device.flops_per_s.get("float32", max(device.flops_per_s.values(), default=0.0))
    peak = np.array([device.flops_per_s.get(dtype, fallback) for dtype in graph.dtypes])
    return peak * share[classes], device.bytes_per_s * share[np.full(len(classes), CLASSES.index("memory"))]


def _work(graph: OpGraph, classes: NDArray[np.int64], device: Device) -> Floats:
    flops, bytes_per_s = _rates(graph, classes, device)
    moved = (graph.bytes_read + graph.bytes_written).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        compute = np.where(graph.flops > 0, graph.flops / flops, 0.0)
        memory = np.where(moved > 0, moved / bytes_per_s, 0.0)
    result: Floats = np.maximum(compute, memory)
    return result


def _bounds(graph: OpGraph, classes: NDArray[np.int64], reference: Measured, device: Device) -> tuple[Floats, Floats]:
    """Per operation: the rates of the reference and of the device that bound its class."""
    base = Device("", reference.model, "", None, reference.flops_per_s, reference.bytes_per_s)
    moved = (classes == CLASSES.index("memory")) | (classes == CLASSES.index("free"))
    one, two = _rates(graph, classes, base), _rates(graph, classes, device)
    return np.where(moved, one[1], one[0]), np.where(moved, two[1], two[0])


def _makes_only_views(graph: OpGraph) -> NDArray[np.bool_]:
    """Operations that make views and do nothing else."""
    made = np.diff(graph.out_start)
    view = (graph.tensor_storage != np.arange(graph.n_tensors)) & ~graph.tensor_in_place
    views = np.bincount(graph.tensor_op[view], minlength=graph.n_ops)
    quiet = (graph.flops == 0) & (graph.bytes_read == 0) & (graph.bytes_written == 0)
    result: NDArray[np.bool_] = (made > 0) & (views == made) & quiet
    return result

"""From a PyTorch module to an operation graph of its inference pass or of its whole training step.

    graph = pw.capture(model, (images, labels), optimizer="adamw")

Nothing is computed and no memory is taken: tensors are fake ones on the CPU. Models too large for this machine
are built under `fake_tensors`, as are their inputs:

    with pw.fake_tensors():
        model, inputs = Llama(layers=80), torch.zeros(1, 2048, dtype=torch.long)
    graph = pw.capture(model, inputs, optimizer="adamw")
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from placewright.capture.arguments import chosen_optimizer, given_inputs
from placewright.capture.attributes import SIZES_WITH_VALUES, Attributes
from placewright.capture.build import Builder
from placewright.capture.fake import fake_tensors
from placewright.capture.faults import is_about_values
from placewright.capture.optimizers import OPTIMIZERS, Optimizer
from placewright.capture.recompute import repeat_checkpointed
from placewright.capture.step import check_model, check_parameters
from placewright.capture.sums import sum_in_place
from placewright.capture.trace import Loss, Traced, trace
from placewright.capture.update import UPDATE_ORDERS, with_updates
from placewright.errors import CaptureError
from placewright.graph import OpGraph
from placewright.operations import build_graph

__all__ = ["OPTIMIZERS", "UPDATE_ORDERS", "CaptureWarning", "Captured", "capture", "capture_step", "fake_tensors"]


class CaptureWarning(UserWarning):
    """The graph was captured, but there is something to know: a fallback and its reason, or a mode that matters."""


@dataclass(frozen=True, eq=False)
class Captured:
    """A graph and how it came about: what running it, or a report on it, needs to know."""

    graph: OpGraph
    traced: Traced
    nodes: Mapping[str, torch.fx.Node]
    """The node of the traced graph that each operation stands for; parameters, updates and stores have none."""
    aliases: Mapping[torch.fx.Node, torch.fx.Node]
    """Nodes that are no operation: each hands on (a view of) what another returns."""
    held: Mapping[str, str]
    """The operation of every parameter and buffer, by all of its names."""
    seconds: float

    @property
    def method(self) -> str:
        """Which way took the model: export, draft-export or make_fx; or `exported program`, of a `.pt2` file."""
        return self.traced.method

    @property
    def trains(self) -> bool:
        """Whether this is a training step."""
        return any(role == "gradient" for _, role, _ in self.traced.outputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the ways before it stumbled over, and what else to know of the graph."""
        return self.traced.notes


def capture(
    model: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    optimizer: str | None = None,
    loss: Loss | None = None,
    update_order: str = "early",
    name: str | None = None,
) -> OpGraph:
    """The graph of one training step of a model with this optimiser, or of one inference pass without.

    `args` and `kwargs` are what the model's forward takes (a single tensor is fine). The optimisers are sgd,
    momentum, adam, adamw and adafactor. `loss` makes a scalar of the model's output; without it the loss is the
    output called `loss`, else the first tensor, where that is a scalar. Where there is no loss, the
    gradients of the outputs are inputs of the step. `update_order="end"` puts updates last, as an eager optimiser does.
    A fallback, and whatever else there is to know of the graph, is told by a CaptureWarning.
    """
    captured = capture_step(model, args, kwargs, optimizer=optimizer, loss=loss, update_order=update_order, name=name)
    way = "" if captured.method == "export" else f"captured by {captured.method}: "
    for note in captured.notes:
        warnings.warn(f"{way}{note}", CaptureWarning, stacklevel=2)
    return captured.graph


def capture_step(
    model: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    optimizer: str | None = None,
    loss: Loss | None = None,
    update_order: str = "early",
    name: str | None = None,
) -> Captured:
    """As `capture`, with everything that is known of how the graph came about."""
    started = time.perf_counter()
    chosen = chosen_optimizer(optimizer, update_order, loss)
    check_model(model)
    check_parameters(model)
    given, named = given_inputs(args, kwargs)
    called = name or type(model).__name__

    def step(values: int) -> Captured:
        traced = trace(model, given, named, training=chosen is not None, loss=loss, values=values)
        return captured_from(traced, called, chosen, update_order, started)

    try:
        return step(values=0)
    except CaptureError as error:
        if not is_about_values(error):
            raise
        refused = error
    for values in SIZES_WITH_VALUES:
        if Attributes(model, "").keep_values(values):
            try:
                return step(values)
            except CaptureError as error:
                if not is_about_values(error):
                    raise
    raise refused


def captured_from(
    traced: Traced, name: str, optimizer: Optimizer | None, update_order: str, started: float
) -> Captured:
    """The graph of a traced step; `started` is when its capture began, by `time.perf_counter`."""
    repeat_checkpointed(traced.module.graph)
    sum_in_place(traced.module.graph)
    builder = Builder(traced)
    builder.add_inputs()
    builder.add_operations()
    drafts = with_updates(builder, optimizer, update_order)
    outputs = {
        builder.values[node][0].now() for node, role, _ in traced.outputs if role == "output" and node in builder.values
    }
    graph = build_graph(name, (draft.operation(outputs) for draft in drafts))
    return Captured(
        graph,
        traced,
        {draft.name: draft.node for draft in drafts if draft.node is not None},
        builder.aliases,
        {every: builder.held[first].storage.root[0] for every, first in builder.first_name.items()},
        time.perf_counter() - started,
    )

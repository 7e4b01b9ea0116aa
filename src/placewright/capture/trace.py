"""From a module to one FX graph of its whole step, by the first way that can take it.

    export         torch.export, then the joint graph of the exported module: scopes, and writes kept in place
    draft-export   the same, where torch's draft export finds operators that do not say what they return (draft.py)
    make_fx        the step written as a function of parameters and inputs, traced as it runs

Every way traces on fake CPU tensors: nothing is computed and no weight is allocated, but for what draft export tries
out on a small model.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from placewright.capture import torch_private
from placewright.capture.assertions import drop_assertions
from placewright.capture.draft import NotTriedError, operators_tried_out
from placewright.capture.fake import lent_shapes
from placewright.capture.faults import (
    data_dependent,
    is_data_dependent,
    lacks_fake_kernel,
    line_at_fault,
    module_at_fault,
    one_line,
)
from placewright.capture.functional import traced_as_it_runs
from placewright.capture.fused import use_fused
from placewright.capture.neighbours import neighbours_of
from placewright.capture.recompute import Marks
from placewright.capture.step import ATTRIBUTES, PREFIX, Step, check_inputs, input_names
from placewright.errors import CaptureError

Loss = Callable[[Any], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Traced:
    """The graph of a step, and what its inputs and outputs are.

    Roles of inputs: parameter, buffer, input, tangent. Of outputs: output, gradient (of the parameter of that
    name), none.
    """

    module: torch.fx.GraphModule
    inputs: tuple[tuple[torch.fx.Node, str, str], ...]
    outputs: tuple[tuple[torch.fx.Node, str, str], ...]
    method: str
    has_loss: bool
    notes: tuple[str, ...] = ()
    stand_ins: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The fake tensor of every parameter, buffer and plain attribute, by all of its names."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Of the names of plain attributes, the module that each belongs to."""
    overlaps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of plain attributes that share bytes with other tensors of the model, the names of these."""
    scopes: Collection[str] = frozenset()
    """The paths of the model's modules."""


def trace(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    training: bool,
    loss: Loss | None,
    values: int = 0,
) -> Traced:
    """Return the joint graph of a training step, or the graph of an inference pass.

    Plain attributes of up to `values` elements are constants that have their values.
    """
    names = input_names(model, args, kwargs)
    check_inputs(names, (args, kwargs))
    step = Step(model, training=training, loss=loss)
    overlaps = step.attributes.overlaps()
    step.attributes.keep_values(values)
    with (
        quiet(),
        neighbours_of(model),
        torch_private.autocast_on_cpu() as other_devices,
        _modes(model, training),
        lent_shapes(step, (args, kwargs)) as (mode, (fake_args, fake_kwargs)),
    ):
        attributes = step.attributes.named(ATTRIBUTES)
        stand_ins = {
            _name_of(name, attributes): tensor
            for held in (step.named_parameters, step.named_buffers)
            for name, tensor in held(remove_duplicate=False)
        }
        if not training:
            _freeze(step)
        with mode, contextlib.nullcontext() if training else torch.no_grad():
            module, method, notes = _first_way(step, fake_args, fake_kwargs, training)
        if training and not model.training:
            notes.append(_EVAL)
        notes += [_AUTOCAST.format(device) for device in dict.fromkeys(other_devices)]
        traced = described(module, method, notes, names, step.seen.loss, stand_ins)
    inputs, outputs = (
        tuple((node, role, attributes[name][0] if name in attributes else name) for node, role, name in rows)
        for rows in (traced.inputs, traced.outputs)
    )
    scopes = frozenset(name for name, _ in model.named_modules(remove_duplicate=False))
    traced = replace(traced, inputs=inputs, outputs=outputs, scopes=scopes)
    return replace(traced, attributes=dict(attributes.values()), overlaps=overlaps)


def _name_of(name: str, attributes: Mapping[str, tuple[str, str]]) -> str:
    """Return the name that the user knows of what a step calls so."""
    return attributes[name][0] if name in attributes else name.removeprefix(PREFIX)


_EVAL = "the model is in eval mode, so dropout is off and batch norms keep their averages; call model.train() to train"
_AUTOCAST = (
    "autocast for {} is captured as autocast on a CPU, which has the same products in lower precision but leaves "
    "softmax and normalisation in it too"
)


def _freeze(model: nn.Module) -> None:
    """Let no stand-in of a parameter ask for a gradient."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)


# ---- the ways ----------------------------------------------------------------------------------


def _first_way(
    step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool
) -> tuple[torch.fx.GraphModule, str, list[str]]:
    """Return the graph by the first way that can take the model, its name, and what the others stumbled over."""
    notes: list[str] = []
    errors: list[Exception] = []
    for method, way in (("export", _exported), ("draft-export", _draft_exported), ("make_fx", traced_as_it_runs)):
        step.seen.loss = False
        try:
            return way(step, args, kwargs, training), method, notes
        except CaptureError:
            raise
        except NotTriedError as error:
            notes.append(f"{method} was not tried: {error}")
        except Exception as error:
            if is_data_dependent(error):
                _check_that_it_runs(step, args, kwargs)  # which knows the line where an exported program does not
                raise data_dependent(error) from error
            errors.append(error)
            notes.append(f"{method} cannot take this model: {one_line(error)}")
            if len(errors) == 1:
                _check_that_it_runs(step, args, kwargs)
    line = line_at_fault(errors[0]) or module_at_fault(errors[0], step.model)
    raise CaptureError(
        f"no way of capture can take this model. {'; '.join(notes)}. Change that place, capture a part of the model, "
        "or describe the graph in JSON (docs/formats.md)",
        line=line,
    ) from errors[0]


def _check_that_it_runs(step: Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what the model itself raises on these inputs: then no way can take it, and none is to blame."""
    try:
        step(*args, **kwargs)
    except CaptureError:
        raise
    except Exception as error:
        if is_data_dependent(error):
            raise data_dependent(error) from error
        if lacks_fake_kernel(error):
            return
        given = [f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in pytree.tree_leaves((args, kwargs))
                 if isinstance(t, torch.Tensor)]  # fmt: skip
        raise CaptureError(
            f"the model raises {one_line(error)}, run on tensors of the sizes given ({', '.join(given[:8]) or 'none'}) "
            "and without values",
            line=line_at_fault(error) or module_at_fault(error, step.model),
        ) from error


def _exported(step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool) -> torch.fx.GraphModule:
    """Return the joint graph by way of torch.export."""
    return _joint(lambda: torch.export.export(step, args, kwargs), args, kwargs)


def _draft_exported(step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool) -> torch.fx.GraphModule:
    """Return the joint graph by way of torch.export, once draft export has found what has to be tried out."""
    with operators_tried_out(step, args, kwargs):
        return _exported(step, args, kwargs, training)


def _joint(
    export: Callable[[], torch.export.ExportedProgram], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.fx.GraphModule:
    """Return the joint graph of what `export` makes, every node with the exported node that it stems from."""
    with torch_private.preserved_metadata(), torch_private.marked_checkpoints(Marks().mark) as notes:
        program = export()
    joint = joint_of(program, args, kwargs)
    joint.meta[_NOTES] = tuple(dict.fromkeys(notes))
    return joint


_NOTES = "notes of capture"
"""In the metadata of a traced graph: what to know of it."""


def joint_of(
    program: torch.export.ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.fx.GraphModule:
    """Return the joint graph of an exported program."""
    return joint_of_module(program.module(), args, kwargs)


def joint_of_module(
    module: torch.fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.fx.GraphModule:
    """Return the joint graph of an exported program that was made a module again."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            if drop_assertions(part.graph) + use_fused(part.graph):
                part.recompile()
            for node in part.graph.nodes:
                if node.op == "call_function":
                    node.meta["custom"] = {**(node.meta.get("custom") or {}), "origin": node.name}
    with contextlib.ExitStack() as stack:
        return torch_private.joint_graph(module, args, kwargs, stack)


def described(
    module: torch.fx.GraphModule,
    method: str,
    notes: Sequence[str],
    names: Sequence[str],
    has_loss: bool,
    stand_ins: Mapping[str, torch.Tensor],
) -> Traced:
    """Return the graph with the roles of its inputs and outputs."""
    inputs = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            kind, name = node.meta["role"] if "role" in node.meta else torch_private.role(node.meta.get("desc"))
            name = names[int(name)] if kind == "input" else name.removeprefix(PREFIX)
            inputs.append((node, kind, name))
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    roles = output.meta.get("roles") or [torch_private.role(entry) for entry in output.meta["desc"]]
    outputs = tuple(
        (node, kind, name.removeprefix(PREFIX))
        for node, (kind, name) in zip(output.args[0], roles, strict=True)
        if isinstance(node, torch.fx.Node)
    )
    return Traced(module, tuple(inputs), outputs, method, has_loss, (*notes, *module.meta.get(_NOTES, ())), stand_ins)


# ---- around a trace ----------------------------------------------------------------------------


@contextlib.contextmanager
def _modes(model: nn.Module, training: bool) -> Iterator[None]:
    """Put the model into eval mode for inference; leave it as it was."""
    kept = [(module, module.training) for module in model.modules()]
    if not training:
        model.eval()
    try:
        yield
    finally:
        for module, mode in kept:
            module.training = mode


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the chatter of torch and transformers off the terminal, and the garbage collector out of the way.

    A graph of 40,000 nodes is 40,000 cycles of references that the collector walks over again and again. MKL-DNN
    is off, so that a recurrent layer becomes operations that any device has.
    """
    names = ("torch.export", "torch._export", "torch.fx", "torch._dynamo", "torch._subclasses", "transformers")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    collecting = gc.isenabled()
    gc.disable()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            torch_private.without_mkldnn(),
            torch_private.without_prints_of_export(),
            contextlib.redirect_stdout(sys.stderr),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if collecting:
            gc.enable()

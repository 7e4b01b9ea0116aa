"""From a module to one FX graph of its whole step, by the first way that can take it.

    export         torch.export, then the joint graph of the exported module: scopes, and writes kept in place
    draft-export   the same with torch's draft export, which invents what custom operators do not say
    make_fx        the step written as a function of parameters and inputs, traced as it runs

Every way runs on fake CPU tensors: nothing is computed, and no weight is ever allocated.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from placewright.capture import torch_private
from placewright.capture.assertions import drop_assertions
from placewright.capture.fake import lent_shapes
from placewright.capture.faults import data_dependent, guessed, is_data_dependent, line_at_fault, one_line
from placewright.capture.fused import use_fused
from placewright.capture.step import PREFIX, Step, input_names
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
    """The fake tensor of every parameter and buffer, by all of its names."""


def trace(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool, loss: Loss | None
) -> Traced:
    """Return the joint graph of a training step, or the graph of an inference pass."""
    names = input_names(model, args, kwargs)
    step = Step(model, training=training, loss=loss)
    with quiet(), _modes(model, training), lent_shapes(model, (args, kwargs)) as (mode, (fake_args, fake_kwargs)):
        stand_ins = {
            name: tensor
            for held in (model.named_parameters, model.named_buffers)
            for name, tensor in held(remove_duplicate=False)
        }
        if not training:
            _freeze(model)
        with mode, contextlib.nullcontext() if training else torch.no_grad():
            module, method, notes = _first_way(step, fake_args, fake_kwargs, training)
        return described(module, method, notes, names, step.seen.loss, stand_ins)


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
    first: Exception | None = None
    for method, way in (("export", _exported), ("draft-export", _draft_exported), ("make_fx", _run_as_function)):
        step.seen.loss = False
        try:
            return way(step, args, kwargs, training), method, notes
        except CaptureError:
            raise
        except Exception as error:
            if is_data_dependent(error):
                raise data_dependent(error) from error
            first = first or error
            notes.append(f"{method} cannot take this model: {one_line(error)}")
    assert first is not None  # three ways were tried, and each raised
    raise CaptureError(
        f"no way of capture can take this model. {'; '.join(notes)}. Change the line, capture a part of the model, or "
        "describe the graph in JSON (docs/formats.md)",
        line=line_at_fault(first),
    ) from first


def _exported(step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool) -> torch.fx.GraphModule:
    """Return the joint graph by way of torch.export."""
    return _joint(lambda: torch.export.export(step, args, kwargs), args, kwargs)


def _draft_exported(step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool) -> torch.fx.GraphModule:
    """Return the joint graph by way of draft export, unless it had to guess what data decide."""
    from torch.export import draft_export

    def export() -> torch.export.ExportedProgram:
        program = draft_export(step, args, kwargs)
        report = getattr(program, "_report", None)
        for failure in getattr(report, "failures", ()):
            if "DATA_DEPENDENT" in str(getattr(failure, "failure_type", "")):
                raise guessed(failure)
        return program

    return _joint(export, args, kwargs)


def _joint(
    export: Callable[[], torch.export.ExportedProgram], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.fx.GraphModule:
    """Return the joint graph of what `export` makes, every node with the exported node that it stems from."""
    regions = itertools.count()
    with (
        torch_private.preserved_metadata(),
        torch_private.marked_checkpoints(lambda: torch_private.annotated({"recompute": next(regions)})),
    ):
        program = export()
    return joint_of(program, args, kwargs)


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


def _run_as_function(step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool) -> torch.fx.GraphModule:
    """Return the graph of the step as a function of parameters, buffers and inputs, traced while it runs."""
    from torch.fx.experimental.proxy_tensor import make_fx

    held = {**dict(step.named_parameters()), **dict(step.named_buffers())}
    flat, spec = pytree.tree_flatten((args, kwargs))
    places = [k for k, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]
    trained = [name for name, tensor in held.items() if training and tensor.requires_grad]

    def run(tensors: list[torch.Tensor], inputs: list[torch.Tensor]) -> tuple[list[Any], list[Any]]:
        leaves = list(flat)
        for place, tensor in zip(places, inputs, strict=True):
            leaves[place] = tensor
        given, named = pytree.tree_unflatten(leaves, spec)
        state = dict(zip(held, tensors, strict=True))
        outputs = torch.func.functional_call(step, state, given, named, tie_weights=True)
        if not trained:
            return list(outputs), []
        tangents = None if step.seen.loss else [torch.ones_like(outputs[0])]
        grads = torch.autograd.grad(outputs[0], [state[n] for n in trained], tangents, allow_unused=True)
        return list(outputs), list(grads)

    with torch_private.preserved_metadata(), _scoped(step):
        traced = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(
            list(held.values()), [flat[place] for place in places]
        )
    roles = [("parameter" if isinstance(t, nn.Parameter) else "buffer", name) for name, t in held.items()]
    roles += [("input", str(place)) for place in places]
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for node, entry in zip(placeholders, roles, strict=True):
        node.meta["role"] = entry
    output = next(node for node in reversed(traced.graph.nodes) if node.op == "output")
    outputs, grads = output.args[0]
    output.args = ([*outputs, *grads],)
    output.meta["roles"] = [("output", str(k)) for k in range(len(outputs))] + [("gradient", n) for n in trained]
    forward = [node for node in outputs if isinstance(node, torch.fx.Node)]
    last = max(list(traced.graph.nodes).index(node) for node in forward)
    for k, node in enumerate(traced.graph.nodes):
        node.meta["partitioner_tag"] = "is_forward" if k <= last else "is_backward"
    return traced


@contextlib.contextmanager
def _scoped(step: Step) -> Iterator[None]:
    """Let every operation that a module runs know the module's path."""
    open_notes: list[Any] = []
    handles = []
    for name, module in step.named_modules():

        def enter(_module: nn.Module, _args: Any, path: str = name) -> None:
            open_notes.append(torch_private.annotated({"scope": path, "origin": path}))
            open_notes[-1].__enter__()

        def leave(*_: Any) -> None:
            open_notes.pop().__exit__(None, None, None)

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


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
    return Traced(module, tuple(inputs), outputs, method, has_loss, tuple(notes), stand_ins)


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
    """Keep torch's own chatter about tracing off the terminal, and the garbage collector out of the way.

    A graph of 40,000 nodes is 40,000 cycles of references that the collector walks over again and again. MKL-DNN
    is off, so that a recurrent layer becomes operations that any device has.
    """
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch._export", "torch.fx", "torch._dynamo")]
    levels = [logger.level for logger in loggers]
    collecting = gc.isenabled()
    gc.disable()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            torch_private.without_mkldnn(),
            contextlib.redirect_stdout(sys.stderr),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if collecting:
            gc.enable()

"""The third way: the step as a function of parameters, buffers and inputs, traced by make_fx while it runs.

It takes models that torch.export does not, such as those that differentiate within their forward pass. Attention and
normalisation stay as the CPU runs them, and what a checkpoint computes again is in the graph without a mark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from placewright.capture import torch_private
from placewright.capture.step import Step

Role = tuple[str, str]


def traced_as_it_runs(
    step: Step, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool
) -> torch.fx.GraphModule:
    """Return the graph of a step, with its gradients in training; inputs and outputs know their roles."""
    from torch.fx.experimental.proxy_tensor import make_fx

    held = {**dict(step.named_parameters()), **dict(step.named_buffers())}
    flat, spec = pytree.tree_flatten((args, kwargs))
    places = [k for k, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]
    trained = [name for name, tensor in held.items() if training and tensor.requires_grad]
    ends = _ends(step, args, kwargs) if trained else {}

    def run(tensors: list[torch.Tensor], inputs: list[torch.Tensor], tangents: list[torch.Tensor]) -> Any:
        leaves = list(flat)
        for place, tensor in zip(places, inputs, strict=True):
            leaves[place] = tensor
        given, named = pytree.tree_unflatten(leaves, spec)
        state = {f"step.{name}": tensor for name, tensor in zip(held, tensors, strict=True)}
        wanted = [state[f"step.{name}"] for name in trained]
        whole = _WithGradients(step, list(ends) or [0])
        return torch.func.functional_call(whole, state, (given, named, wanted, tangents or None), tie_weights=True)

    with torch_private.preserved_metadata(), _scoped(step):
        traced = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(
            list(held.values()), [flat[place] for place in places], list(ends.values())
        )
    roles = [("parameter" if isinstance(t, nn.Parameter) else "buffer", name) for name, t in held.items()]
    roles += [("input", str(place)) for place in places] + [("tangent", str(k)) for k in ends]
    _describe(traced.graph, roles, trained)
    return traced


def _ends(step: Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, torch.Tensor]:
    """Return the outputs that gradients come in by where there is no loss, by their places, as such gradients."""
    outputs = step(*args, **kwargs)
    if step.seen.loss:
        return {}
    return {k: torch.empty_like(output) for k, output in enumerate(outputs) if output.requires_grad}


def _describe(graph: torch.fx.Graph, roles: list[Role], trained: list[str]) -> None:
    """Write the roles of inputs and outputs into a traced graph, and which of its nodes are the backward pass."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, entry in zip(placeholders, roles, strict=True):
        node.meta["role"] = entry
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    made = pytree.tree_leaves(output.args[0])  # nested or flat, by the version of torch
    outputs = made[: len(made) - len(trained)]
    output.args = (made,)
    graph.set_codegen(torch.fx.graph.CodeGen())  # which was to nest inputs and outputs
    output.meta["roles"] = [("output", str(k)) for k in range(len(outputs))] + [("gradient", n) for n in trained]
    forward = {node for node in outputs if isinstance(node, torch.fx.Node)}
    last = max(k for k, node in enumerate(graph.nodes) if node in forward)
    for k, node in enumerate(graph.nodes):
        node.meta["partitioner_tag"] = "is_forward" if k <= last else "is_backward"


class _WithGradients(nn.Module):
    """A step and its gradients at once: a checkpoint runs again in the backward pass, with the same parameters."""

    def __init__(self, step: Step, ends: list[int]) -> None:
        super().__init__()
        self.step, self.ends = step, ends

    def forward(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: list[torch.Tensor], tangents: Any
    ) -> tuple[list[torch.Tensor], list[Any]]:
        """Return the outputs of the step, and the gradients of what is wanted; None where there is none."""
        outputs = self.step(*args, **kwargs)
        if not wanted:
            return list(outputs), []
        ends = [outputs[k] for k in self.ends]
        return list(outputs), list(torch.autograd.grad(ends, wanted, tangents, allow_unused=True))


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

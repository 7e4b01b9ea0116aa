"""The step as a module: the model, then its loss; its outputs as a flat tuple of tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from placewright.capture.attributes import Attributes
from placewright.capture.loss import checked_loss, find_loss
from placewright.capture.outputs import flat_outputs
from placewright.errors import CaptureError

PREFIX = "model."
"""Before the names of the model's parameters, in the step."""
ATTRIBUTES = "attributes."
"""Before the names of the buffers that stand for plain attributes, in the step."""


class Seen:
    """What the last run of a step found. It is no attribute of the step, as export puts attributes back."""

    loss = False
    """Whether there is a scalar loss."""


class Step(nn.Module):
    """A model and its loss. In training the loss comes first, and the other outputs need no gradient."""

    def __init__(self, model: nn.Module, *, training: bool, loss: Callable[[Any], torch.Tensor] | None) -> None:
        super().__init__()
        self.model = model
        self.trained = training
        self.loss = loss
        self.seen = Seen()
        self.attributes = Attributes(self, PREFIX)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Return the loss and the other outputs, or all outputs of an inference pass."""
        with self.attributes.in_place():
            return self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """Return the same, whatever is where the attributes are."""
        found = self.model(*args, **kwargs)
        if not self.trained:
            return flat_outputs(found)
        if self.loss is not None:
            self.seen.loss = True
            return (checked_loss(self.loss(found), self.loss),)
        outputs = flat_outputs(found)
        value = find_loss(found, outputs)
        if value is None:
            return outputs
        self.seen.loss = True
        return (value, *(tensor.detach() for tensor in outputs if tensor is not value))


def input_names(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Return a name for every leaf of the inputs, after the arguments of the model's forward."""
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(
            f"the inputs do not fit {type(model).__name__}.forward{inspect.signature(model.forward)}: {error}"
        ) from None
    kinds = inspect.Parameter
    parameters = inspect.signature(model.forward).parameters.values()
    positional = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is kinds.VAR_POSITIONAL), "")
    names: list[str] = []
    for k, value in enumerate(args):
        names += _leaf_names(positional[k] if k < len(positional) else f"{rest}.{k - len(positional)}", value)
    for name, value in kwargs.items():
        names += _leaf_names(name, value)
    return names


def check_inputs(names: Sequence[str], inputs: Any) -> None:
    """Refuse inputs that are tensors of another kind than dense ones."""
    for name, value in zip(names, pytree.tree_leaves(inputs), strict=True):
        if isinstance(value, torch.Tensor) and (value.layout is not torch.strided or value.is_quantized):
            raise CaptureError(
                f"input {name!r} is not a plain dense tensor ({value.layout}, {value.dtype}); its size depends on "
                "values, which a graph cannot express. Give it dense, or capture the part of the model after it"
            )


def check_model(model: object) -> None:
    """Refuse what is no module of Python, or only wraps one."""
    if not isinstance(model, nn.Module):
        raise CaptureError(f"model is a {type(model).__name__}; a torch.nn.Module is expected")
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError("the model was compiled by TorchScript; capture the module that it was made from")
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise CaptureError(f"the model is wrapped for several devices by {type(model).__name__}; capture model.module")


def check_parameters(model: nn.Module) -> None:
    """Refuse parameters and buffers that are no plain dense tensors."""
    for path, module in model.named_modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                where = f"{path}.{name}" if path else name
                if tensor is None:
                    continue
                if not isinstance(tensor, torch.Tensor):
                    raise CaptureError(
                        f"parameter {where!r} is a {type(tensor).__name__}, not a tensor; register it as a plain "
                        "attribute, or make it an nn.Parameter",
                        parameters=[where],
                    )
                if isinstance(
                    tensor, torch.nn.parameter.UninitializedParameter | torch.nn.parameter.UninitializedBuffer
                ):
                    raise CaptureError(
                        f"parameter {where!r} has no shape yet; run the model once on an input, so that its lazy "
                        "modules learn their sizes",
                        parameters=[where],
                    )
                if tensor.layout is not torch.strided or tensor.is_quantized:
                    raise CaptureError(
                        f"parameter {where!r} is not a plain dense tensor ({tensor.layout}, {tensor.dtype}); capture "
                        "the model before it is quantised or made sparse",
                        parameters=[where],
                    )


def _leaf_names(name: str, value: Any) -> list[str]:
    """Return names of the leaves of one argument."""
    leaves = pytree.tree_flatten_with_path(value)[0]
    return [
        ".".join([name, *(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)])
        for path, _ in leaves
    ]

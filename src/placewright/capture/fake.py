"""Models without memory: modules built on fake tensors, and real ones that lend their shapes for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from placewright.capture import torch_private


@contextlib.contextmanager
def fake_tensors() -> Iterator[Any]:
    """Build modules and inputs here: they get shapes, types and storages, but no memory.

    Within another such context the outer one goes on, so that everything belongs to one mode.
    """
    active = torch_private.active_fake_mode()
    if active is not None:
        yield active
        return
    with torch_private.fake_mode() as mode, torch_private.truncated_without_values():
        yield mode


def built(build: Callable[[], nn.Module]) -> nn.Module:
    """The module that `build` returns, of fake tensors under `fake_tensors`, whatever values its constructor reads.

    Some constructors read values of small tensors that they place on the CPU by name, such as the rates of
    stochastic depth. A fake mode has no values; beside the meta device these tensors are real. So the module is
    made on the meta device, and fake tensors then take the place of its own.
    """
    mode = torch_private.active_fake_mode()
    if mode is None:
        return build()
    with torch_private.without_fake_mode(), torch.device("meta"):
        module = build()
    places = [
        (held, name, tensor)
        for part in module.modules()
        for held in (*_held(part), vars(part))
        for name, tensor in held.items()
        if isinstance(tensor, torch.Tensor)
    ]
    twins: dict[int, torch.Tensor] = {}
    bases: dict[int, torch.Tensor] = {}
    for held, name, tensor in places:  # which also keeps all tensors alive, so that no number is given out twice
        if id(tensor) not in twins:
            twins[id(tensor)] = _fake_twin(tensor, mode, bases)
        held[name] = twins[id(tensor)]
    for part in module.modules():
        _refresh_recurrent(part)
    return module


@contextlib.contextmanager
def lent_shapes(model: nn.Module, inputs: Any) -> Iterator[tuple[Any, Any]]:
    """Put fake CPU tensors in the place of a model's parameters and buffers; (mode, inputs) with fake inputs.

    The model is as it was afterwards. Tied weights stay tied; views of one storage stay views of one storage.
    """
    tensors = [*model.parameters(), *model.buffers(), *_tensors(inputs)]
    mode = (
        next((torch_private.mode_of(t) for t in tensors if torch_private.is_fake(t)), None) or torch_private.fake_mode()
    )
    stand_ins: dict[int, torch.Tensor] = {}
    bases: dict[int, torch.Tensor] = {}

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        if torch_private.is_fake(tensor) and tensor.device.type == "cpu":
            return tensor
        if id(tensor) not in stand_ins:
            stand_ins[id(tensor)] = _fake_twin(tensor, mode, bases)
        return stand_ins[id(tensor)]

    kept: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    try:
        for module in model.modules():
            for held in _held(module):
                for name, tensor in held.items():
                    if tensor is not None:
                        kept.append((held, name, tensor))
                        held[name] = stand_in(tensor)
            _refresh_recurrent(module)
        yield mode, pytree.tree_map_only(torch.Tensor, stand_in, inputs)
    finally:
        for held, name, tensor in kept:
            held[name] = tensor
        for module in model.modules():
            _refresh_recurrent(module)


def _held(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tables of a module's own parameters and buffers."""
    return module._parameters, module._buffers


def _tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in nested inputs."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _fake_twin(tensor: torch.Tensor, mode: Any, bases: dict[int, torch.Tensor]) -> torch.Tensor:
    """Return a fake CPU tensor of the same shape, strides and type, which shares storage as the given one does."""
    key, total = torch_private.storage_id(tensor), tensor.untyped_storage().nbytes()
    with mode, torch.no_grad():
        if key not in bases and tensor.numel() * tensor.element_size() == total and tensor.storage_offset() == 0:
            twin = bases[key] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        else:
            base = bases.setdefault(key, torch.empty(total, dtype=torch.uint8, device="cpu"))
            place = (tensor.storage_offset(), tensor.shape, tensor.stride())
            twin = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(base.untyped_storage(), *place)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(twin, requires_grad=tensor.requires_grad)
    return twin


def _refresh_recurrent(module: nn.Module) -> None:
    """Let recurrent modules of torch see their exchanged weights, of which they keep a list."""
    names = getattr(module, "_flat_weights_names", None)
    if isinstance(module, nn.RNNBase) and names is not None:
        module._flat_weights = [getattr(module, name, None) for name in names]

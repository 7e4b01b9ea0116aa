"""Models without memory: modules built on fake tensors, and real ones that lend their shapes for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from placewright.capture import torch_private
from placewright.capture.tables import saved, tables_of


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
    bases: _Bases = {}
    regions = _regions(tensor for _, _, tensor in places)
    for held, name, tensor in places:  # which also keeps all tensors alive, so that no number is given out twice
        if id(tensor) not in twins:
            twins[id(tensor)] = _fake_twin(tensor, mode, bases, regions[id(tensor)])
        held[name] = twins[id(tensor)]
    for part in module.modules():
        _refresh_recurrent(part)
    return module


@contextlib.contextmanager
def lent_shapes(model: nn.Module, inputs: Any) -> Iterator[tuple[Any, Any]]:
    """Put fake CPU tensors in the place of a model's parameters and buffers; (mode, inputs) with fake inputs.

    All belong to one mode, also where the model and its inputs were made under several.

    The model is as it was afterwards. Tied weights stay tied, and tensors that overlap share a storage; those that
    lie beside each other in one, as the weights of a recurrent layer on a GPU do, get a storage each.
    """
    tensors = [*model.parameters(), *model.buffers(), *_tensors(inputs)]
    mode = (
        next((torch_private.mode_of(t) for t in tensors if torch_private.is_fake(t)), None) or torch_private.fake_mode()
    )
    stand_ins: dict[int, torch.Tensor] = {}
    bases: _Bases = {}
    regions = _regions(tensors)

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in stand_ins:  # a fake tensor has one too, as capture may do something to a stand-in
            stand_ins[id(tensor)] = _fake_twin(tensor, mode, bases, regions[id(tensor)])
        return stand_ins[id(tensor)]

    with _lent(model, stand_in):
        yield mode, pytree.tree_map_only(torch.Tensor, stand_in, inputs)


@contextlib.contextmanager
def lent_zeros(model: nn.Module, inputs: Any) -> Iterator[Any]:
    """Put real zeros on the CPU in the place of a model's parameters and buffers; the inputs as zeros."""
    stand_ins: dict[int, torch.Tensor] = {}

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in stand_ins:
            twin = torch.zeros(tensor.shape, dtype=tensor.dtype)
            is_parameter = isinstance(tensor, nn.Parameter)
            stand_ins[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if is_parameter else twin
        return stand_ins[id(tensor)]

    with _lent(model, stand_in):
        yield pytree.tree_map_only(torch.Tensor, stand_in, inputs)


@contextlib.contextmanager
def _lent(model: nn.Module, stand_in: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Put others in the place of a model's parameters and buffers, and everything back afterwards.

    So is what the model puts into its own attributes meanwhile, and into lists and the like among them.
    """
    before = saved(tables_of(model))
    try:
        for module in model.modules():
            for held in _held(module):
                for name, tensor in held.items():
                    if tensor is not None:
                        held[name] = stand_in(tensor)
            _refresh_recurrent(module)
        yield
    finally:
        for table, items in before:
            table.restore(items)
        for module in model.modules():
            _refresh_recurrent(module)


def _held(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tables of a module's own parameters and buffers."""
    return module._parameters, module._buffers


def _tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in nested inputs."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


_Region = tuple[int, int, int]
"""The number of a storage, and the first byte and the length of the part of it that tensors lie in."""
_Bases = dict[_Region, torch.Tensor]


def _regions(tensors: Iterable[torch.Tensor]) -> dict[int, _Region]:
    """Return the region of every tensor, by its id: one for all those that overlap."""
    spans: dict[int, list[tuple[int, int, torch.Tensor]]] = {}
    for tensor in tensors:
        size = tensor.element_size()
        reach = 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
        begin = size * int(tensor.storage_offset())
        end = begin + size * max(int(reach), 0)
        spans.setdefault(torch_private.storage_id(tensor), []).append((begin, end, tensor))
    regions: dict[int, _Region] = {}
    for key, held in spans.items():
        held.sort(key=lambda span: span[:2])
        groups: list[list[tuple[int, int, torch.Tensor]]] = []
        furthest = -1
        for span in held:
            if span[0] >= furthest:
                groups.append([])
            groups[-1].append(span)
            furthest = max(furthest, span[1])
        if any((span[0] - group[0][0]) % span[2].element_size() for group in groups for span in group):
            groups = [held]  # types of different sizes, laid over each other
        for group in groups:
            begin = group[0][0] if len(groups) > 1 else 0
            length = max(end for _, end, _ in group) - begin
            regions |= {id(tensor): (key, begin, length) for _, _, tensor in group}
    return regions


def _fake_twin(tensor: torch.Tensor, mode: Any, bases: _Bases, region: _Region) -> torch.Tensor:
    """Return a fake CPU tensor of the same shape, strides and type, which shares bytes as the given one does."""
    _, begin, length = region
    offset, size = tensor.storage_offset() - begin // tensor.element_size(), tensor.element_size()
    with mode, torch.no_grad():
        if region not in bases and tensor.numel() * size == length and offset == 0:
            twin = bases[region] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        else:
            base = bases.setdefault(region, torch.empty(length, dtype=torch.uint8, device="cpu"))
            place = (offset, tensor.shape, tensor.stride())
            twin = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(base.untyped_storage(), *place)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(twin, requires_grad=tensor.requires_grad)
    return twin


def _refresh_recurrent(module: nn.Module) -> None:
    """Let recurrent modules of torch see their exchanged weights, of which they keep a list."""
    names = getattr(module, "_flat_weights_names", None)
    if isinstance(module, nn.RNNBase) and names is not None:
        module._flat_weights = [getattr(module, name, None) for name in names]

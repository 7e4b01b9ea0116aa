"""The tensors in what a model returns, however deep they lie: in containers, in dataclasses and in other objects."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from placewright.errors import CaptureError


def flat_outputs(found: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors among a model's outputs, in their order; to have none is an error."""
    tensors = tuple(_tensors(found, {}))
    if not tensors:
        what = "nothing" if found is None else f"a {type(found).__name__} in which there is no tensor"
        raise CaptureError(f"the model returns {what}; its forward must return what it computes")
    return tensors


def _tensors(value: Any, seen: dict[int, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value; an object is looked into once."""
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif id(leaf) not in seen:
            seen[id(leaf)] = leaf  # kept, so that no other object gets its number
            if _hides_tensors(leaf):
                raise CaptureError(
                    f"the model returns a {type(leaf).__name__}, of which capture cannot take the tensors apart; "
                    "return them in a tuple, list, dict or dataclass"
                )
            yield from _tensors(_held(leaf), seen)


def _held(leaf: Any) -> list[Any]:
    """Return what an object holds: its elements, or its attributes."""
    if isinstance(leaf, type | types.ModuleType | types.FunctionType | nn.Module):
        return []
    if isinstance(leaf, Mapping):
        return list(leaf.values())
    if isinstance(leaf, list | tuple):
        return list(leaf)
    slots = [name for kind in type(leaf).__mro__ for name in _names(vars(kind).get("__slots__", ()))]
    return [getattr(leaf, name) for name in slots if hasattr(leaf, name)] + list(getattr(leaf, "__dict__", {}).values())


def _names(slots: Any) -> list[str]:
    """Return the names among the `__slots__` of a class that are attributes of its objects."""
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _hides_tensors(leaf: Any) -> bool:
    """Whether an object holds tensors without an order, or among what is no output; of an iterator nobody knows."""
    if isinstance(leaf, nn.Module):
        return any(True for _ in (*leaf.parameters(), *leaf.buffers()))
    if isinstance(leaf, functools.partial):
        return _has_tensor((leaf.args, leaf.keywords))
    if isinstance(leaf, types.FunctionType):
        full = (cell for cell in leaf.__closure__ or () if cell != types.CellType())
        return _has_tensor([cell.cell_contents for cell in full])
    return isinstance(leaf, Iterator) or (isinstance(leaf, set | frozenset) and _has_tensor(list(leaf)))


def _has_tensor(value: Any) -> bool:
    """Whether there is a tensor among the leaves of a value."""
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))

"""Which output of a model is its loss: one rule, for modules and for saved programs.

The loss is the output called `loss`; where none is, or it is None, it is the first tensor of all. It must be one
floating-point number: of shape (), or (1,) where it is called `loss`. A tensor of shape (1, 1) is none, as the scores
of a batch of one sample have that shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from placewright.errors import CaptureError


def is_loss(tensor: object, *, named: bool) -> bool:
    """Whether a tensor can be a loss; `named` if it is called `loss`, or made by a function for it."""
    shapes: tuple[tuple[int, ...], ...] = ((), (1,)) if named else ((),)
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tuple(tensor.shape) in shapes


def find_loss(found: Any, flat: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """Return the loss in what a model returns; `flat` are the tensors in it, in order."""
    called = found.get("loss") if isinstance(found, Mapping) else getattr(found, "loss", None)
    named = next((leaf for leaf in pytree.tree_leaves(called) if isinstance(leaf, torch.Tensor)), None)
    chosen = named if named is not None else next(iter(flat), None)
    return chosen if is_loss(chosen, named=named is not None) else None


def checked_loss(value: object, loss: Callable[[Any], Any]) -> torch.Tensor:
    """Return what a loss function made, which must be one number."""
    if isinstance(value, torch.Tensor) and is_loss(value, named=True):
        return value
    what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:200]
    if isinstance(value, torch.Tensor) and not value.is_floating_point():
        what += f" and type {str(value.dtype).removeprefix('torch.')}"
    name = getattr(loss, "__name__", type(loss).__name__)
    raise CaptureError(
        f"the loss function {name} returns {what}; it must return one floating-point number, of shape () or (1,), such "
        "as the mean"
    )

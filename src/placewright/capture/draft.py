"""The second way: operators that do not say what they return are tried out.

A custom operator without a fake kernel stops every trace on fake tensors. torch's draft export finds such operators
by running the model on real ones. That is the one place where capture computes, so it is done for small models
alone, with zeros for all weights and inputs, which are indices that exist. Afterwards each operator that was found
answers a trace by a trial of its own: it runs on zeros of the sizes asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from placewright.capture import torch_private
from placewright.capture.fake import lent_zeros
from placewright.capture.step import Step
from placewright.checks import format_bytes

MAX_BYTES = 1 << 30
"""Parameters, buffers and inputs of the largest model that is run; torch copies them once more."""


class NotTriedError(Exception):
    """Says why this way was not taken."""


@contextlib.contextmanager
def operators_tried_out(step: Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Let operators without a fake kernel say sizes here, by trials on zeros; NotTriedError where there are none."""
    size = sum(t.numel() * t.element_size() for t in (*step.parameters(), *step.buffers(), *_tensors((args, kwargs))))
    if size > MAX_BYTES:
        raise NotTriedError(f"it computes, and weights and inputs of {format_bytes(size)} are too large for that")
    with torch_private.without_fake_mode(), lent_zeros(step, (args, kwargs)) as (real_args, real_kwargs):
        names = torch_private.without_fake_kernel(step, real_args, real_kwargs)
    if not names:
        raise NotTriedError("every operator of the model says what it returns, so it would be export again")
    with torch_private.fake_kernels({name: _trial(name) for name in names}):
        yield


def _trial(name: str) -> Callable[..., Any]:
    """Return a fake kernel for an operator, `namespace.name.overload`, that runs it on zeros."""
    namespace, plain, overload = name.split(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), plain), overload)

    def fake(*args: Any, **kwargs: Any) -> Any:
        with torch_private.without_fake_mode(), torch.no_grad():
            real_args, real_kwargs = pytree.tree_map_only(torch.Tensor, _zeros, (args, kwargs))
            made = operator(*real_args, **real_kwargs)
        return pytree.tree_map_only(torch.Tensor, _like, made)

    return fake


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]

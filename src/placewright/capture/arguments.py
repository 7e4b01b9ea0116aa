"""What capture is called with, looked at before anything is traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from placewright.capture.optimizers import OPTIMIZERS, Optimizer, optimizer_named
from placewright.capture.update import UPDATE_ORDERS, check_update_order
from placewright.errors import InputError


def chosen_optimizer(optimizer: object, update_order: object, loss: object = None) -> Optimizer | None:
    """Return the optimiser of that name, or None for an inference pass, which has neither loss nor updates."""
    if optimizer is not None and not isinstance(optimizer, str):
        raise InputError(
            f"optimizer is {_described(optimizer)}; give a name, {', '.join(OPTIMIZERS)}, or None for an inference pass"
        )
    if not isinstance(update_order, str):
        raise InputError(f"update_order is {_described(update_order)}; give a name, {' or '.join(UPDATE_ORDERS)}")
    check_update_order(update_order)
    if loss is not None and not callable(loss):
        raise InputError(
            f"loss is {_described(loss)}; give a function that makes one number of what the model returns, such as "
            "`lambda out: out.sum()`, or None where the model returns its loss"
        )
    if optimizer is None:
        hint = "give an optimizer, such as 'sgd', to capture a training step"
        if loss is not None:
            raise InputError(f"loss is {_described(loss)}, but an inference pass has none; leave it out, or {hint}")
        if update_order == "end":
            raise InputError(f"update_order is 'end', but an inference pass has no updates; leave it out, or {hint}")
        return None
    return optimizer_named(optimizer)


def given_inputs(args: Any, kwargs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named inputs of the model; a single one is fine."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InputError(f"kwargs is {_described(kwargs)}; give a dict of inputs by name, as the model's forward does")
    wrong = next((name for name in kwargs or {} if not isinstance(name, str)), None)
    if wrong is not None:
        raise InputError(f"kwargs has the key {_described(wrong)}; give inputs by the names of the model's forward")
    several = isinstance(args, Sequence) and not isinstance(args, str | bytes | torch.Size)
    return tuple(args) if several else (args,), dict(kwargs or {})


def _described(value: object) -> str:
    """Say what a value is."""
    shown = (getattr(value, "__name__", "") if callable(value) else "") or repr(value)
    kind = type(value).__name__
    return f"{shown[:80]}, {'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"

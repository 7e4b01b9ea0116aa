"""Optimisers: the state that they keep for a parameter, and what one update costs.

Sizes and types follow torch.optim with `fused=True` where that exists: moments have the parameter's type, and the
count of steps is a float32 of its own for each parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from placewright.errors import UnknownNameError

_STEP = ("step", (), torch.float32)
StateTensor = tuple[str, tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class Optimizer:
    """An optimiser, by what it takes for each element of a parameter."""

    name: str
    flops_per_element: float
    moments: int
    """Tensors of the parameter's shape that it keeps."""
    counts_steps: bool = False
    factored: bool = False
    """Whether the second moment of a matrix is kept as a row and a column (Shazeer and Stern 2018)."""

    def state(self, parameter: torch.Tensor) -> tuple[StateTensor, ...]:
        """Return name, shape and type of every tensor that is kept for a parameter."""
        shape, dtype = tuple(parameter.shape), parameter.dtype
        kept: list[StateTensor] = [_STEP] if self.counts_steps else []
        if self.factored:
            if len(shape) > 1:
                kept += [("row_var", (*shape[:-1], 1), dtype), ("col_var", (*shape[:-2], 1, shape[-1]), dtype)]
            else:
                kept.append(("variance", shape, dtype))
        names = ("momentum_buffer",) if self.moments == 1 else ("exp_avg", "exp_avg_sq")
        return (*kept, *((name, shape, dtype) for name in names[: self.moments]))

    def flops(self, parameter: torch.Tensor) -> float:
        """Return the flops of one update."""
        return self.flops_per_element * math.prod(parameter.shape)

    def workspace_bytes(self, parameter: torch.Tensor) -> int:
        """Return what an update takes beside the tensors that it reads and writes."""
        return parameter.numel() * parameter.element_size() if self.factored else 0  # the update itself


OPTIMIZERS: Mapping[str, Optimizer] = {
    optimizer.name: optimizer
    for optimizer in (
        Optimizer("sgd", 2.0, 0),
        Optimizer("momentum", 4.0, 1),
        Optimizer("adam", 12.0, 2, counts_steps=True),
        Optimizer("adamw", 14.0, 2, counts_steps=True),
        Optimizer("adafactor", 16.0, 0, counts_steps=True, factored=True),
    )
}


def optimizer_named(name: str) -> Optimizer:
    """Return the optimiser of that name."""
    if name not in OPTIMIZERS:
        raise UnknownNameError("optimizer", str(name), OPTIMIZERS, "None captures inference.")
    return OPTIMIZERS[name]

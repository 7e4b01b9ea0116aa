"""The compiled entry points of list scheduling."""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs
# Numba types the kernels; their arguments are the tuples of arrays in list_tasks.py.

from __future__ import annotations

from placewright.sim import list_greedy, list_kernel
from placewright.sim.jit import entry


@entry
def prepare(t, timeless):
    """Mark what is passive."""
    list_kernel.find_passive(t, timeless)


@entry
def ranks(t, moves, up, down):
    """Longest paths to the end and from the beginning, with or without transfer times."""
    list_kernel.find_ranks(t, moves, up, down)


@entry
def heft(t, w, order):
    """Each operation where it ends first; returns (stuck group or DONE)."""
    return list_kernel.heft(t, w, order)


@entry
def cpop(t, w, priorities, on_path, device):
    """The critical path on one device; returns (stuck group or DONE)."""
    return list_kernel.cpop(t, w, priorities, on_path, device)


@entry
def greedy(t, w, level, queue):
    """Always the operation that can start first; returns (stuck group or DONE)."""
    return list_greedy.greedy(t, w, level, queue)

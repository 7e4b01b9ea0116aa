"""Running CP-SAT, and how large a model and a value may become."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from placewright.errors import MissingExtraError
from placewright.exact.nodes import Nodes
from placewright.sim.lower import PICO


def solver_module() -> Any:
    """The solver's module."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise MissingExtraError("method 'cpsat'", "solvers") from None
    return cp_model


def run(solver: Any, model: Any) -> Any:
    """The status of a solve; Ctrl-C stops it."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(solver.solve(model)))
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.1)
    except KeyboardInterrupt:
        solver.stop_search()
        thread.join()
        raise
    return found[0]


def terms_of(nodes: Nodes) -> int:
    """About how many clauses the model has."""
    problem = nodes.problem
    devices, reads = problem.n_devices, sum(len(flow.readers) for flow in nodes.flows)
    if problem.objective == "max_load" and nodes.uniform:
        return (nodes.n + 2 * reads) * devices
    terms = nodes.n * devices + reads * devices * (devices - 1)
    if problem.objective == "step":
        tensors = sum(len(flow.tensors) * len(flow.readers) for flow in nodes.flows)
        terms += 2 * problem.n_ops * devices + tensors * devices * devices
        terms *= 4  # starts and intervals weigh more than clauses
    return terms


def ceiling_ps(nodes: Nodes) -> int:
    """A value that no placement exceeds: every operation at its slowest, every tensor to every device."""
    p = nodes.lowered
    rates = np.unique(np.stack([p.route_latency_s, p.route_bytes_per_s], 1)[p.route_ok.astype(bool)], axis=0)
    longest = np.zeros(len(p.raw_bytes))
    for latency_s, bytes_per_s in rates:
        longest = np.maximum(longest, (latency_s + p.raw_bytes / bytes_per_s) * PICO)
    longest = np.where(p.transfer_ps >= 0, p.transfer_ps, longest)
    moved = float(longest.sum()) * (nodes.problem.n_devices + 1)
    return int(nodes.cost_ps.max(axis=1, initial=0).sum()) + int(np.ceil(moved)) + nodes.problem.n_ops + 1

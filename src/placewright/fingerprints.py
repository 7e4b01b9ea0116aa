"""Fingerprints: short names for what a graph, a workload or a machine is, the same in every process.

Two graphs with one graph fingerprint have the same operations, edges and storage, so a placement of
one fits the other. Two with one workload fingerprint also do the same amount of work. Measured seconds
and labels (the names of graph and machine, descriptions) count for neither.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.graph import OpGraph
from placewright.machine import Machine

_HEX = 32


def graph_fingerprint(graph: OpGraph) -> str:
    """Structure: names, kinds, phases, colocation, edges and storage."""
    return _finish(_structure(graph))


def workload_fingerprint(graph: OpGraph) -> str:
    """Structure and amounts: flops, bytes, workspaces, sizes, shapes, dtypes, given transfer seconds."""
    digest = _structure(graph)
    for name in ("flops", "tensor_transfer_s"):
        values = getattr(graph, name)
        _array(digest, name, np.where(np.isnan(values), np.nan, values + 0.0), "<f8")  # one NaN, no -0.0
    for name in ("bytes_read", "bytes_written", "workspace_bytes", "tensor_bytes"):
        _array(digest, name, getattr(graph, name), "<i8")
    _array(digest, "tensor_output", graph.tensor_output, "<u1")
    _texts(digest, "dtypes", graph.dtypes)
    shapes = graph.tensor_shapes or (None,) * graph.n_tensors
    _texts(digest, "shapes", ("?" if s is None else ",".join(str(int(size)) for size in s) for s in shapes))
    return _finish(digest)


def machine_fingerprint(machine: Machine) -> str:
    """Everything but labels. The order of devices counts, as ties are broken by it; no other order does."""
    content = {
        "devices": [
            [d.name, d.model, d.pool, d.host, _rates(d.flops_per_s), _real(d.bytes_per_s), _real(d.launch_s),
             bool(d.asynchronous), _rates(d.efficiency)]
            for d in machine.devices
        ],
        "pools": sorted([p.name, int(p.bytes), int(p.granule_bytes), int(p.reserve_bytes)] for p in machine.pools),
        "channels": sorted([c.name, _real(c.bytes_per_s), _real(c.latency_s)] for c in machine.channels),
        "routes": sorted([r.source, r.target, list(r.channels)] for r in machine.routes),
    }  # fmt: skip
    return _finish(hashlib.sha256(b"machine" + json.dumps(content, sort_keys=True).encode()))


def _structure(graph: OpGraph) -> Any:
    """Return a digest that has taken in the structure of a graph."""
    digest = hashlib.sha256(b"graph")
    _texts(digest, "op_names", graph.op_names)
    _texts(digest, "kinds", graph.kinds)
    _array(digest, "phase", graph.phase, "<i1")
    _array(digest, "colocation", renumber(graph.colocation), "<i4")
    for name in ("out_start", "tensor_storage", "in_start", "in_tensor", "after_start", "after_op"):
        _array(digest, name, getattr(graph, name), "<i4")
    _array(digest, "tensor_in_place", graph.tensor_in_place, "<u1")
    if graph.recompute.any():
        _array(digest, "recompute", graph.recompute, "<u1")
    return digest


def renumber(classes: NDArray[Any]) -> NDArray[np.int64]:
    """Classes numbered by first member; -1 (no class) stays."""
    values, first, inverse = np.unique(classes, return_index=True, return_inverse=True)
    order = np.where(values >= 0, first, -1)
    rank = np.empty(len(values), np.int64)
    rank[np.argsort(order, kind="stable")] = np.arange(len(values)) - np.count_nonzero(values < 0)
    result: NDArray[np.int64] = rank[inverse]
    return result


def _array(digest: Any, name: str, values: NDArray[Any], kind: str) -> None:
    """Take in an array as little-endian bytes."""
    digest.update(f"{name}:{kind}:{len(values)};".encode())
    digest.update(np.ascontiguousarray(values, dtype=kind).tobytes())


def _texts(digest: Any, name: str, texts: Iterable[str]) -> None:
    """Take in texts with their lengths, so that no two lists look alike."""
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    _array(digest, name, np.array([len(part) for part in parts], np.int64), "<i8")
    digest.update(b"".join(parts))


def _rates(rates: Mapping[str, float]) -> list[list[str]]:
    """Rates by name, in the order of names."""
    return [[name, _real(rate)] for name, rate in sorted(rates.items())]


def _real(value: float) -> str:
    """Return a number to the last bit."""
    return (float(value) + 0.0).hex()


def _finish(digest: Any) -> str:
    """Return the short form of a digest."""
    return "sha256:" + str(digest.hexdigest()[:_HEX])

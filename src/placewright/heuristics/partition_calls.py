"""Calls of the partitioning libraries, each in a process of its own.

On some inputs these libraries end the process or never return: of 300 generated hypergraphs Mt-KaHyPar 1.7 was lost
on 33 with limits for single blocks, and mapping onto two blocks never ended on most. Some keep one state of
randomness per process, so that a second call with the same seed gives another answer. A fresh process with a limit
of time bears the first and mends the second; it takes a quarter of a second.

`run` calls one of the functions below, in which `python -m placewright.heuristics.partition_calls NAME` reads arrays
from stdin and writes the parts to stdout.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewright.errors import MissingExtraError, ProblemError
from placewright.graph import Longs

Arrays = Mapping[str, NDArray[Any]]
LIBRARIES = {"scotch": "pyscotch", "metis": "pymetis", "mt-kahypar": "mtkahypar"}
"""The Python package of each partitioner."""


def require(method: str, partitioner: str) -> None:
    """Raise unless the partitioner is installed."""
    if importlib.util.find_spec(LIBRARIES[partitioner]) is None:
        raise MissingExtraError(f"method {method!r} ({LIBRARIES[partitioner]})", "partition")


def run(partitioner: str, arguments: Mapping[str, Any], limit_s: float) -> Longs:
    """The part of every vertex, from a partitioner in a process of its own."""
    given = io.BytesIO()
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in arguments.items()}
    np.savez(given, **arrays)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # whatever is importable here is there too
        "PYSCOTCH_INT_SIZE": "64",
        "PYSCOTCH_PARALLEL": "0",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, partitioner],
            input=given.getvalue(),
            capture_output=True,
            timeout=limit_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ProblemError(
            f"{partitioner} was stopped after {limit_s:g} s; allow it more by `limit_s`, or use another method"
        ) from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        why = f"signal {-done.returncode}" if done.returncode < 0 else (lines or ["no reason given"])[-1][:300]
        raise ProblemError(f"{partitioner} failed on this problem ({why}); use another method")
    parts: Longs = np.load(io.BytesIO(done.stdout)).astype(np.int64)
    return parts


def main(partitioner: str) -> None:
    """Read arrays from stdin, call a partitioner, and write the parts to stdout."""
    answer = os.dup(1)
    os.dup2(2, 1)  # what the libraries print is no part of the answer
    with np.load(io.BytesIO(sys.stdin.buffer.read())) as given:
        parts = _CALLS[partitioner]({name: given[name] for name in given})
    packed = io.BytesIO()  # numpy writes no arrays to a pipe
    np.save(packed, np.asarray(parts, np.int64))
    with os.fdopen(answer, "wb") as out:
        out.write(packed.getvalue())


def _scotch(given: Arrays) -> NDArray[Any]:
    """Map a graph onto a graph of processors with Scotch's default strategy.

    The architecture is decomposed by its nearest processors (SCOTCH_archBuild2): the older way, by cuts
    (SCOTCH_archBuild0), made pairs of far processors and, on two islands of four, cost twice to four times as much.
    """
    from ctypes import POINTER, byref

    import pyscotch
    from pyscotch import libscotch as lib

    target, source = pyscotch.Graph(), pyscotch.Graph()
    target.build(given["target_start"], given["target_neighbour"], given["speed"], given["target_weight"])
    source.build(given["start"], given["neighbour"], given["work"], given["weight"])
    seed = int(given["seed"])
    pyscotch.random_seed(seed)
    pyscotch.random_reset()
    architecture = pyscotch.Architecture()
    if lib.SCOTCH_archBuild2(byref(architecture._arch), byref(target._graph), lib.SCOTCH_Num(0), None):
        raise RuntimeError("Scotch does not take the machine")
    strategy = pyscotch.Strategy()
    strategy.request_mapping(balance=float(given["imbalance"]))
    parts = np.ascontiguousarray(given["fixed"], np.int64)
    with pyscotch.Context() as context, strategy._materialized_mapping(len(given["speed"])) as chosen:
        context.option_set(0, 1)  # SCOTCH_OPTIONNUMDETERMINISTIC: one thread's answer
        context.random_seed(seed)
        context.random_reset()
        bound = context.bind_graph(source)
        if lib.SCOTCH_graphMapFixed(
            byref(bound._graph), byref(architecture._arch), byref(chosen), parts.ctypes.data_as(POINTER(lib.SCOTCH_Num))
        ):
            raise RuntimeError("Scotch found no mapping")
        bound.close()
    return parts


def _metis(given: Arrays) -> NDArray[Any]:
    """Partition a graph into k parts with target weights by METIS's k-way scheme."""
    import pymetis

    options = pymetis.Options(
        seed=int(given["seed"]), ufactor=max(1, round(1000 * float(given["imbalance"]))), contig=0
    )
    found = pymetis.part_graph(
        len(given["targets"]),
        pymetis.CSRAdjacency(given["start"].tolist(), given["neighbour"].tolist()),
        vweights=given["work"].tolist(),
        eweights=given["weight"].tolist(),
        tpwgts=given["targets"].tolist(),
        recursive=False,
        options=options,
    )
    return np.array(found.vertex_part, np.int64)


def _mt_kahypar(given: Arrays) -> NDArray[Any]:
    """Partition a hypergraph into blocks of one size by Mt-KaHyPar, or map it onto a graph where distances are given.

    One thread: with more, only some presets give the same answer again.
    """
    import mtkahypar

    room, work, fixed = given["room"], given["work"], given["fixed"]
    k, largest = len(room), int(room.max())
    # Blocks of unequal size by fixed vertices that fill the smaller ones: the limits of single blocks crash.
    filler = np.flatnonzero(room < largest)
    work = np.concatenate([work, largest - room[filler]])
    fixed = np.concatenate([fixed, filler])
    epsilon = max(0.0, largest * k / float(work.sum()) - 1)
    library = mtkahypar.initialize(1)
    mtkahypar.set_seed(int(given["seed"]))
    context = library.context_from_preset(getattr(mtkahypar.PresetType, str(given["preset"]).upper()))
    context.logging = False
    start, pins = given["start"].tolist(), given["pins"].tolist()
    nets = [pins[a:b] for a, b in itertools.pairwise(start)]
    graph = library.create_hypergraph(context, len(work), len(nets), nets, work.tolist(), given["weight"].tolist())
    if (fixed >= 0).any():
        graph.add_fixed_vertices(fixed.tolist(), k)
    if "distance" in given:
        one, two = np.triu_indices(k, 1)
        context.set_mapping_parameters(k, epsilon)
        ends = list(zip(one.tolist(), two.tolist(), strict=True))
        target = library.create_target_graph(context, k, len(ends), ends, given["distance"][one, two].tolist())
        found = graph.map_onto_graph(target, context)
    else:
        context.set_partitioning_parameters(k, epsilon, mtkahypar.Objective.KM1)
        found = graph.partition(context)
    return np.array(found.get_partition()[: len(given["work"])], np.int64)


_CALLS: dict[str, Callable[[Arrays], NDArray[Any]]] = {"scotch": _scotch, "metis": _metis, "mt-kahypar": _mt_kahypar}

if __name__ == "__main__":
    main(sys.argv[1])

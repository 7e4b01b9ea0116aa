"""Placements from outside: an expert's, one device's, or a file's."""

from __future__ import annotations

import os

import numpy as np

from placewright.checks import Fields, describe
from placewright.errors import FileError, InputError, PlacementError
from placewright.files import parse_json, read_text
from placewright.formats import plan_of
from placewright.importers import expert_path, read_workload
from placewright.placement import Placement
from placewright.problem import Problem
from placewright.workload import Workload, made


def read_placement(
    source: str | os.PathLike[str], problem: Problem, workload_path: str | os.PathLike[str] | None = None
) -> Placement:
    """Return the placement that `source` names: `expert`, `single:DEVICE`, or a file.

    A file is a plan, a split (node ids per accelerator and CPU, for the workload in `workload_path`), a
    list of device names or indices in program order, or an object from operation to device.
    """
    if source == "expert":
        found = None if workload_path is None else expert_path(workload_path)
        if found is None:
            raise InputError(
                f"no expert's placement is known of {workload_path or problem.graph.name}: there is none at "
                "../experts/ beside the folder of the workload. Name a file instead."
            )
        source = found
    elif isinstance(source, str) and source.startswith("single:"):
        return single(problem, source.removeprefix("single:"))
    return _from_file(source, problem, workload_path)


def single(problem: Problem, name: str) -> Placement:
    """Return the placement with every operation on one device; what cannot run there is an error."""
    device = problem.machine.device(name)
    allowed = problem.permitted[:, device]
    runs = np.isfinite(problem.costs.seconds[:, device])
    stuck = np.flatnonzero(~(allowed & runs))
    if len(stuck):
        op = int(stuck[0])
        graph, devices = problem.graph, problem.machine.devices
        reason = "a constraint forbids it" if runs[op] else "its cost there is infinite"
        elsewhere = [d.name for d, ok in zip(devices, problem.choices[problem.groups[op]], strict=True) if ok]
        group = np.flatnonzero(problem.groups == problem.groups[op])
        together = f" together with the {len(group) - 1} operations colocated with it" if len(group) > 1 else ""
        more = f", as are {len(stuck) - 1} others" if len(stuck) > 1 else ""
        raise PlacementError(
            f"not every operation can run on {name!r}: {graph.op_names[op]!r} (kind {graph.kinds[op]!r}) is excluded, "
            f"as {reason}{more}. It can run{together} on {', '.join(elsewhere) or 'no device'}."
        )
    return problem.placement(np.full(problem.n_ops, device))


def _from_file(
    path: str | os.PathLike[str], problem: Problem, workload_path: str | os.PathLike[str] | None
) -> Placement:
    """Return the placement in a file, whatever its form."""
    document = parse_json(read_text(path), path)
    if isinstance(document, list):
        return made(lambda: problem.placement(_listed(document, problem, path)), path, "")
    if not isinstance(document, dict):
        wanted = "a plan, a split, a list of devices, or an object from operation to device"
        raise FileError(path, "", f"expected {wanted}; found {describe(document)}")
    if "schema" in document:
        plan = plan_of(document, path)
        return made(lambda: plan.placement(problem), path, "")
    if isinstance(document.get("fpgas"), list):
        if workload_path is None:
            raise FileError(path, "", "is a split by node ids; it needs the file of the workload beside it")
        split = split_of(document, path, read_workload(workload_path))
        return made(lambda: problem.placement(split), path, "")
    table = Fields(document, path, "")
    devices = {name: table.text(name) for name in document}
    return made(lambda: problem.placement(devices), path, "")


def _listed(values: list[object], problem: Problem, path: object) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return device indices from a list of names or indices, one per operation."""
    if len(values) != problem.n_ops:
        raise FileError(path, "", f"a list of {len(values)} devices for a graph of {problem.n_ops} operations")
    table = Fields({}, path, "")
    index = problem.machine.device_index
    devices = np.zeros(len(values), np.int64)
    for i, value in enumerate(values):
        if isinstance(value, str):
            if value not in index:
                raise FileError(path, f"[{i}]", f"no device is called {value[:80]!r}; there are {', '.join(index)}")
            devices[i] = index[value]
        else:
            devices[i] = table.check_integer(value, f"[{i}]", high=problem.n_devices - 1)
    return devices


def read_split(path: str | os.PathLike[str], workload: Workload) -> dict[str, str]:
    """Return the device of every operation from a split file: lists of node ids per accelerator and CPU."""
    return split_of(parse_json(read_text(path), path), path, workload)


def split_of(document: object, path: object, workload: Workload) -> dict[str, str]:
    """Return the device of every operation from a parsed split. Companions follow their node."""
    top = Fields(document, path, "")
    if not workload.members:
        raise FileError(path, "", f"a split goes by node numbers, which graph {workload.graph.name!r} does not have")
    placed: dict[int, tuple[str, str]] = {}
    for field, prefix in (("fpgas", "gpu"), ("cpus", "cpu")):
        for i, entry in enumerate(top.items(field, ())):
            table = Fields(entry, path, f"{field}[{i}]")
            device = f"{prefix}:{i}"
            for j, value in enumerate(table.items("nodes")):
                place = f"nodes[{j}]"
                number = table.check_integer(value, place, low=-(1 << 62), high=1 << 62)
                if number not in workload.members:
                    raise table.fault(f"no node has the id {number}", place)
                if number in placed:
                    raise table.fault(f"node {number} is already at {placed[number][1]}", place)
                if workload.machine is not None and device not in workload.machine.device_index:
                    known = ", ".join(workload.machine.device_index)
                    raise table.fault(f"the machine has no device {device}; it has {known}", place)
                placed[number] = (device, f"{field}[{i}].{place}")
    missing = [number for number in workload.members if number not in placed]
    if missing:
        raise FileError(path, "", f"{len(missing)} nodes are on no device, first node {missing[0]}")
    return {op: placed[number][0] for number, ops in workload.members.items() for op in ops}

"""A graph as a JSON document, and back. formats.py reads and writes the files.

Reading checks everything; whatever is wrong is a FileError that names the place, such as
`operations[12].inputs[0]`. docs/formats.md describes the fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from placewright.checks import DTYPES, Fields, describe, find_cycle
from placewright.documents import MAX_NUMBER, by_field, checked, document, encode, mapping, number, rates, seconds
from placewright.errors import FileError, InputError, UnknownNameError
from placewright.files import check_schema
from placewright.graph import MAX_MODELS, PHASES, OpGraph
from placewright.operations import Operation, Tensor, build_graph

GRAPH_SCHEMA = "placewright.graph/1"
MAX_OPERATIONS = 2_000_000
MAX_AXES = 64
_TOO_MANY = f"more than {MAX_MODELS} device models in all; that many are allowed"


def graph_of(document: object, path: object) -> OpGraph:
    """Return the graph in a parsed document."""
    check_schema(document, GRAPH_SCHEMA, path)
    top = Fields(document, path, "")
    top.take("schema")
    name = top.text("name", "")
    references = {}
    table = mapping(top, "references")
    if len(table.table) > MAX_MODELS:
        raise FileError(path, "references", _TOO_MANY)
    for model in table.table:
        entry = Fields(table.take(model), path, f"references.{model}")
        references[model] = {
            "flops_per_s": rates(entry, "flops_per_s"),
            "bytes_per_s": entry.number("bytes_per_s", 0.0),
        }
        entry.done()
    entries = top.items("operations", most=MAX_OPERATIONS)
    top.done()
    operations: list[Operation] = []
    models = set(references)
    for i, entry in enumerate(entries):
        operations.append(_operation(entry, path, i))
        models.update(operations[i].measured_s)
        if len(models) > MAX_MODELS:
            raise FileError(path, f"operations[{i}].measured_s", _TOO_MANY)
    _check_references(operations, path)
    try:
        graph = build_graph(name, operations, references)
    except InputError as error:
        raise FileError(path, "operations", str(error)) from None
    measured = {m.model for m in graph.measured}
    idle = next((model for model in references if model not in measured), None)
    if idle is not None:
        raise FileError(path, f"references.{idle}", "no operation has seconds measured on this model")
    return graph


def _reference(table: Fields, value: object, place: str) -> str | tuple[str, int]:
    """Return a tensor: the name of an operation, or its name and which output."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
        which = value[1]
        if isinstance(which, int) and not isinstance(which, bool) and 0 <= which < 1 << 31:
            return (value[0], which)
    raise table.fault(f'expected an operation\'s name, or ["name", output]; found {describe(value)}', place)


def _references(table: Fields, name: str) -> tuple[str | tuple[str, int], ...]:
    """Return a list of tensors."""
    return tuple(_reference(table, value, f"{name}[{j}]") for j, value in enumerate(table.items(name)))


def _measured_s(table: Fields, name: str) -> dict[str, float]:
    """Seconds by device model."""
    models = mapping(table, name)
    return {model: seconds(models, value, model) for model, value in models.table.items()}


def _outputs(table: Fields, name: str) -> tuple[Tensor, ...]:
    """Return the tensors that an operation makes."""
    made = []
    for k, entry in enumerate(table.items(name)):
        tensor = Fields(entry, table.path, f"{table.place}.{name}[{k}]")
        tensor.take("bytes")
        made.append(Tensor(**by_field(tensor, _TENSOR)))
    return tuple(made)


def _shape(table: Fields, name: str) -> tuple[int, ...] | None:
    """Return the axes of a tensor."""
    axes = table.items(name, most=MAX_AXES)
    return tuple(table.check_integer(axis, f"{name}[{j}]") for j, axis in enumerate(axes))


def _name(table: Fields, name: str) -> str:
    """Return a text that is not empty."""
    text = table.text(name)
    if not text:
        raise table.fault("must not be empty", name)
    return text


_TENSOR: dict[str, Callable[[Fields, str], Any]] = {
    "bytes": Fields.integer,
    "storage": lambda table, name: _pair(_reference(table, table.take(name), name)),
    "in_place": lambda table, name: table.flag(name, False),
    "output": lambda table, name: table.flag(name, False),
    "transfer_s": lambda table, name: table.number(name, high=MAX_NUMBER),
    "shape": _shape,
}
_OPERATION: dict[str, Callable[[Fields, str], Any]] = {
    "name": _name,
    "kind": Fields.text,
    "phase": lambda table, name: table.choice(name, PHASES),
    "scope": Fields.text,
    "flops": Fields.number,
    "bytes_read": Fields.integer,
    "bytes_written": Fields.integer,
    "workspace_bytes": Fields.integer,
    "dtype": lambda table, name: table.choice(name, DTYPES),
    "inputs": _references,
    "after": Fields.texts,
    "outputs": _outputs,
    "colocation": Fields.text,
    "measured_s": _measured_s,
    "recompute": lambda table, name: table.flag(name, False),
}


def _pair(reference: str | tuple[str, int]) -> tuple[str, int]:
    """Return a reference with its output spelled out."""
    return (reference, 0) if isinstance(reference, str) else reference


def _operation(entry: object, path: object, i: int) -> Operation:
    """One operation."""
    table = Fields(entry, path, f"operations[{i}]")
    table.take("name")
    return Operation(**by_field(table, _OPERATION))


def _check_references(operations: Sequence[Operation], path: object) -> None:
    """Refuse names given twice, references to what does not exist, and what comes before its inputs."""
    at: dict[str, int] = {}
    for i, op in enumerate(operations):
        if at.setdefault(op.name, i) != i:
            raise FileError(path, f"operations[{i}].name", f"operations[{at[op.name]}] has the name {op.name!r} too")
    late = ""
    for i, op in enumerate(operations):
        references = [(f"inputs[{j}]", _pair(ref)) for j, ref in enumerate(op.inputs)]
        references += [(f"after[{j}]", (other, -1)) for j, other in enumerate(op.after)]
        references += [(f"outputs[{k}].storage", t.storage) for k, t in enumerate(op.outputs) if t.storage]
        for field_, (owner, output) in references:
            place = f"operations[{i}].{field_}"
            if owner not in at:
                raise FileError(path, place, str(UnknownNameError("operation", owner, at)))
            made = len(operations[at[owner]].outputs)
            if output >= made:
                raise FileError(path, place, f"reads output {output} of {owner!r}, which has {made}, counted from 0")
            if at[owner] >= i and not late:
                late = place
    if late:
        before = [[*(at[_pair(ref)[0]] for ref in op.inputs), *(at[other] for other in op.after)] for op in operations]
        raise FileError(path, late, order_fault([op.name for op in operations], before))


def order_fault(names: Sequence[str], before: Sequence[Sequence[int]]) -> str:
    """Return what is wrong with a graph in which something comes before what it needs: a cycle, or only the order."""
    cycle = find_cycle(before)[::-1]
    if not cycle:
        return "names an operation that comes later or is this one; list operations in an order in which they can run"
    first = cycle.index(min(cycle))
    cycle = cycle[first:] + cycle[:first]
    shown = [repr(names[i][:80]) for i in cycle[:12]]
    dots = [f"... ({len(cycle)} operations)"] if len(cycle) > 12 else []
    return f"the operations depend on each other in a cycle: {' -> '.join([*shown, *dots, shown[0]])}"


def dumps_graph(graph: OpGraph) -> str:
    """Return a graph as JSON, one operation per line."""
    references = {}
    for measured in graph.measured:
        if not np.isnan(measured.seconds).all():
            flops = {checked(dtype, "dtype"): number(rate) for dtype, rate in sorted(measured.flops_per_s.items())}
            entry = {"flops_per_s": flops, "bytes_per_s": number(measured.bytes_per_s)}
            references[checked(measured.model, "device model")] = {name: rate for name, rate in entry.items() if rate}
    head: dict[str, Any] = {"schema": GRAPH_SCHEMA, "name": checked(graph.name, "graph name")}
    if references:
        head["references"] = references
    return document(head, "operations", [encode(entry) for entry in _operation_entries(graph)], "[]")


def _operation_entries(graph: OpGraph) -> Iterator[dict[str, Any]]:
    """Every operation as a JSON object without its defaults."""
    tensors = list(_tensor_entries(graph))
    names = graph.op_names
    made, read, after = (x.tolist() for x in (graph.out_start, graph.in_start, graph.after_start))
    waits = [names[o] for o in graph.after_op.tolist()]
    reads = [_tensor_name(graph, t) for t in graph.in_tensor.tolist()]
    columns = {
        "kind": (graph.kinds, "other"),
        "phase": ([PHASES[p] for p in graph.phase.tolist()], "forward"),
        "scope": (graph.scopes, ""),
        "flops": ([number(x) for x in graph.flops.tolist()], 0),
        "bytes_read": (graph.bytes_read.tolist(), 0),
        "bytes_written": (graph.bytes_written.tolist(), 0),
        "workspace_bytes": (graph.workspace_bytes.tolist(), 0),
        "dtype": (graph.dtypes, "float32"),
        "inputs": ([reads[a:b] for a, b in pairwise(read)], []),
        "after": ([waits[a:b] for a, b in pairwise(after)], []),
        "outputs": ([tensors[a:b] for a, b in pairwise(made)], []),
        "colocation": (_class_names(graph), None),
        "measured_s": (_measured_entries(graph), {}),
        "recompute": (graph.recompute.tolist(), False),
    }
    for i, name in enumerate(names):
        entry = {"name": checked(name, "operation name")}
        entry |= {field: column[i] for field, (column, default) in columns.items() if column[i] != default}
        for field in ("kind", "scope", "dtype"):
            checked(entry.get(field, ""), field)
        yield entry


def _tensor_entries(graph: OpGraph) -> Iterator[dict[str, Any]]:
    """Every tensor as a JSON object without its defaults."""
    columns = zip(
        graph.tensor_bytes.tolist(), graph.tensor_storage.tolist(), graph.tensor_in_place.tolist(),
        graph.tensor_output.tolist(), graph.tensor_transfer_s.tolist(),
        graph.tensor_shapes or (None,) * graph.n_tensors, strict=True,
    )  # fmt: skip
    for t, (size, storage, in_place, output, transfer_s, shape) in enumerate(columns):
        entry: dict[str, Any] = {"bytes": size}
        if storage != t:
            entry["storage"] = _tensor_name(graph, storage)
        if in_place:
            entry["in_place"] = True
        if output:
            entry["output"] = True
        if not math.isnan(transfer_s):
            entry["transfer_s"] = number(transfer_s)
        if shape is not None:
            entry["shape"] = [int(axis) for axis in shape]
        yield entry


def _tensor_name(graph: OpGraph, t: int) -> str | list[str | int]:
    """Return a tensor as files name it."""
    owner = int(graph.tensor_op[t])
    which = t - int(graph.out_start[owner])
    return [graph.op_names[owner], which] if which else graph.op_names[owner]


def _measured_entries(graph: OpGraph) -> list[dict[str, float | int | None]]:
    """Measured seconds by model, for every operation."""
    entries: list[dict[str, float | int | None]] = [{} for _ in graph.op_names]
    for measured in graph.measured:
        for entry, value in zip(entries, measured.seconds.tolist(), strict=True):
            if not math.isnan(value):
                entry[measured.model] = number(value)
    return entries


def _class_names(graph: OpGraph) -> list[str | None]:
    """Return the colocation class of every operation, named in order of first member."""
    names: dict[int, str] = {}
    classes = graph.colocation.tolist()
    return [names.setdefault(c, str(len(names))) if c >= 0 else None for c in classes]

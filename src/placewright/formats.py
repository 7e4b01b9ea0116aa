"""The project's own files: graphs, plans and measured profiles, as versioned JSON.

docs/formats.md describes the fields, docs/schemas/ holds a JSON Schema of each. Reading checks
everything and names the place of the first fault; writing leaves defaults out, replaces a file whole
or not at all, and gives the same bytes each time. A name that ends in `.gz` is compressed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from placewright.checks import Fields
from placewright.documents import (
    MAX_CONSTRAINT,
    MAX_NUMBER,
    checked,
    document,
    mapping,
    number,
    pairs,
    printable,
    rates,
    seconds,
)
from placewright.errors import FileError, InputError
from placewright.files import check_marks, check_schema, decode, parse_json, read_text, write_text
from placewright.graph import OpGraph
from placewright.graph_format import GRAPH_SCHEMA, dumps_graph, graph_of
from placewright.plan import MAX_PEAK_BYTES, Plan, Prediction
from placewright.problem import DISCIPLINES, OBJECTIVES
from placewright.profile import Profile, apply_profile

__all__ = [
    "GRAPH_SCHEMA", "PLAN_SCHEMA", "PROFILE_SCHEMA", "Profile", "apply_profile",
    "dumps_graph", "dumps_plan", "dumps_profile", "graph_of", "loads_graph", "loads_plan", "loads_profile",
    "plan_of", "profile_of", "read_graph", "read_plan", "read_profile", "write_graph", "write_plan", "write_profile",
]  # fmt: skip

PLAN_SCHEMA = "placewright.plan/1"
PROFILE_SCHEMA = "placewright.profile/1"

_Record = TypeVar("_Record")

Path = str | os.PathLike[str]


def read_graph(path: Path) -> OpGraph:
    """Return the graph in a file."""
    return loads_graph(read_text(path), path)


def loads_graph(text: str | bytes, path: object = "<text>") -> OpGraph:
    """Return the graph in a text; `path` is what errors call it."""
    return graph_of(_parse(text, path), path)


def write_graph(graph: OpGraph, path: Path) -> None:
    """Write a graph to a file."""
    _write(path, dumps_graph(graph))


def read_plan(path: Path) -> Plan:
    """Return the plan in a file."""
    return loads_plan(read_text(path), path)


def loads_plan(text: str | bytes, path: object = "<text>") -> Plan:
    """Return the plan in a text; `path` is what errors call it."""
    return plan_of(_parse(text, path), path)


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan to a file."""
    _write(path, dumps_plan(plan))


def read_profile(path: Path) -> Profile:
    """Return the profile in a file."""
    return loads_profile(read_text(path), path)


def loads_profile(text: str | bytes, path: object = "<text>") -> Profile:
    """Return the profile in a text; `path` is what errors call it."""
    return profile_of(_parse(text, path), path)


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile to a file."""
    _write(path, dumps_profile(profile))


def _parse(text: str | bytes, path: object) -> Any:
    """Return the JSON document in a text."""
    return parse_json(decode(text, path) if isinstance(text, bytes) else text, path)


def _write(path: Path, text: str) -> None:
    """Write a document that can be read again."""
    check_marks(text, path)
    write_text(path, text)


# ---- plans --------------------------------------------------------------------------------------

_TEXTS = (
    "graph", "machine", "graph_fingerprint", "workload_fingerprint", "machine_fingerprint",
    "objective", "discipline", "method", "version",
)  # fmt: skip


def plan_of(table: object, path: object) -> Plan:
    """Return the plan in a parsed document."""
    check_schema(table, PLAN_SCHEMA, path)
    top = Fields(table, path, "")
    top.take("schema")
    values: dict[str, Any] = {name: top.text(name) for name in _TEXTS}
    top.choice("objective", OBJECTIVES)
    top.choice("discipline", DISCIPLINES)
    values["seed"] = _optional(top, "seed", lambda value, name: top.check_integer(value, name, high=1 << 64))
    values["evaluations"] = top.integer("evaluations")
    values["constraints"] = top.texts("constraints", (), max_length=MAX_CONSTRAINT)
    values["prediction"] = _prediction(Fields(top.take("prediction"), path, "prediction"))
    top.take("devices")
    devices, priorities, windows = (mapping(top, name) for name in ("devices", "priorities", "windows_bytes"))
    values["devices"] = {name: devices.text(name) for name in devices.table}
    values["priorities"] = {
        name: _optional(priorities, name, lambda value, name: priorities.check_number(value, name, low=-MAX_NUMBER))
        for name in priorities.table
    }
    values["windows_bytes"] = {name: _optional(windows, name, windows.check_integer) for name in windows.table}
    top.done()
    return _made(Plan, values, path, "")


def _prediction(table: Fields) -> Prediction:
    """Return the prediction in a plan."""
    values: dict[str, Any] = {
        "objective": table.choice("objective", OBJECTIVES),
        "value_s": seconds(table, table.take("value_s"), "value_s"),
        "feasible": table.flag("feasible", False),
        "bound_s": _optional(table, "bound_s", table.check_number),
        "gap": _optional(table, "gap", table.check_number),
        "reason": table.text("reason", ""),
        "measured_share": table.number("measured_share", 0.0, high=1.0),
    }
    for name in ("peak_bytes", "over_bytes"):
        pools = mapping(table, name)
        values[name] = {pool: pools.integer(pool, high=MAX_PEAK_BYTES) for pool in pools.table}
    table.done()
    return _made(Prediction, values, table.path, "prediction")


def dumps_plan(plan: Plan) -> str:
    """Return a plan as JSON, one operation per line."""
    predicted = plan.prediction
    prediction: dict[str, Any] = {"objective": predicted.objective, "value_s": number(predicted.value_s)}
    prediction |= {"feasible": predicted.feasible, "measured_share": number(predicted.measured_share)}
    for name in ("bound_s", "gap"):
        if getattr(predicted, name) is not None:
            prediction[name] = number(getattr(predicted, name))
    if predicted.reason:
        prediction["reason"] = printable(predicted.reason)
    for name in ("peak_bytes", "over_bytes"):
        if getattr(predicted, name):
            prediction[name] = {checked(pool, "pool name"): size for pool, size in getattr(predicted, name).items()}
    head: dict[str, Any] = {"schema": PLAN_SCHEMA}
    head |= {name: checked(getattr(plan, name), name) for name in _TEXTS}
    head |= {"seed": plan.seed, "evaluations": plan.evaluations}
    if plan.constraints:
        head["constraints"] = [checked(text, "constraint", MAX_CONSTRAINT) for text in plan.constraints]
    head["prediction"] = prediction
    if plan.windows_bytes:
        head["windows_bytes"] = {checked(name, "device name"): size for name, size in plan.windows_bytes.items()}
    if plan.priorities:
        head["priorities"] = {
            checked(name, "operation name"): None if value is None else number(value)
            for name, value in plan.priorities.items()
        }
    for device in dict.fromkeys(plan.devices.values()):
        checked(device, "device name")
    return document(head, "devices", pairs(plan.devices, "operation name"), "{}")


# ---- profiles -----------------------------------------------------------------------------------


def profile_of(table: object, path: object) -> Profile:
    """Return the profile in a parsed document."""
    check_schema(table, PROFILE_SCHEMA, path)
    top = Fields(table, path, "")
    top.take("schema")
    values: dict[str, Any] = {
        "model": top.text("model"),
        "flops_per_s": rates(top, "flops_per_s"),
        "bytes_per_s": top.number("bytes_per_s", 0.0),
    }
    software = mapping(top, "software")
    values["software"] = {name: software.text(name) for name in software.table}
    top.take("seconds")
    measured = mapping(top, "seconds")
    values["seconds"] = {name: seconds(measured, value, name) for name, value in measured.table.items()}
    top.done()
    return _made(Profile, values, path, "")


def dumps_profile(profile: Profile) -> str:
    """Return a profile as JSON, one operation per line."""
    head: dict[str, Any] = {"schema": PROFILE_SCHEMA, "model": checked(profile.model, "device model")}
    if profile.flops_per_s:
        head["flops_per_s"] = {checked(k, "dtype"): number(v) for k, v in sorted(profile.flops_per_s.items())}
    if profile.bytes_per_s:
        head["bytes_per_s"] = number(profile.bytes_per_s)
    if profile.software:
        head["software"] = {checked(k, "software"): checked(v, k) for k, v in sorted(profile.software.items())}
    entries = {name: number(value) for name, value in profile.seconds.items()}
    return document(head, "seconds", pairs(entries, "operation name"), "{}")


def _optional(table: Fields, name: str, read: Callable[[Any, str], Any]) -> Any:
    """Return a field that may be absent or null."""
    value = table.take(name, None)
    return None if value is None else read(value, name)


def _made(kind: type[_Record], values: Mapping[str, Any], path: object, place: str) -> _Record:
    """Return the record of these values; what it refuses is a fault of the file."""
    try:
        return kind(**values)
    except FileError:
        raise
    except InputError as error:
        raise FileError(path, place, str(error)) from None

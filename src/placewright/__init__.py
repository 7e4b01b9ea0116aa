"""placewright decides where every operation and every parameter of a neural network runs.

    import placewright as pw

    graph = pw.capture(model, inputs, optimizer="adamw")  # or pw.zoo.load("nmt-4"), pw.read_workload("gnmt.txt").graph
    problem = pw.Problem(graph, pw.machine("k40x4"))
    result = pw.search(problem, "auto", stop=pw.stop.Seconds(10), seed=0)
    print(result.summary())

Names are resolved when they are first used: importing the package imports no numerical library.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewright import errors, stop, zoo
    from placewright.blocks import Blocks, by_block, repeated_blocks
    from placewright.bounds import Bound, lower_bound
    from placewright.capture import Captured, CaptureWarning, capture, capture_step, fake_tensors
    from placewright.capture.exported import read_exported
    from placewright.capture.folder import from_folder
    from placewright.capture.function import from_function
    from placewright.checks import format_bytes, parse_bytes
    from placewright.costs import Costs
    from placewright.errors import PlacewrightError
    from placewright.evaluate import Evaluation, Evaluator, SimulatorEvaluator
    from placewright.formats import read_graph, read_plan, read_profile, write_graph, write_plan, write_profile
    from placewright.graph import Measured, OpGraph
    from placewright.grouping import Grouping
    from placewright.heuristics.data_parallel import data_parallel
    from placewright.heuristics.tower_graph import replicas, towers
    from placewright.importers import read_workload
    from placewright.machine import Channel, Device, Machine, Pool, Route
    from placewright.machine_files import load_machine as machine
    from placewright.machine_files import machine_toml, presets
    from placewright.methods import method_names, search
    from placewright.operations import Operation, Tensor, build_graph
    from placewright.placement import Placement
    from placewright.plan import Plan, Prediction
    from placewright.problem import Colocate, Constraint, Forbid, Pin, Problem, Separate, parse_constraint
    from placewright.search import Placer, Result
    from placewright.sim import Outcome, Simulator, simulate
    from placewright.workload import Workload

_HOMES = {
    "blocks": ["Blocks", "by_block", "repeated_blocks"],
    "bounds": ["Bound", "lower_bound"],
    "capture": ["CaptureWarning", "Captured", "capture", "capture_step", "fake_tensors"],
    "capture.exported": ["read_exported"],
    "capture.folder": ["from_folder"],
    "capture.function": ["from_function"],
    "checks": ["format_bytes", "parse_bytes"],
    "costs": ["Costs"],
    "errors": ["PlacewrightError"],
    "evaluate": ["Evaluation", "Evaluator", "SimulatorEvaluator"],
    "formats": ["read_graph", "read_plan", "read_profile", "write_graph", "write_plan", "write_profile"],
    "graph": ["Measured", "OpGraph"],
    "grouping": ["Grouping"],
    "heuristics.data_parallel": ["data_parallel"],
    "heuristics.tower_graph": ["replicas", "towers"],
    "importers": ["read_workload"],
    "machine": ["Channel", "Device", "Machine", "Pool", "Route"],
    "machine_files": ["machine_toml", "presets"],
    "methods": ["method_names", "search"],
    "operations": ["Operation", "Tensor", "build_graph"],
    "placement": ["Placement"],
    "plan": ["Plan", "Prediction"],
    "problem": ["Colocate", "Constraint", "Forbid", "Pin", "Problem", "Separate", "parse_constraint"],
    "search": ["Placer", "Result"],
    "sim": ["Outcome", "Simulator", "simulate"],
    "workload": ["Workload"],
}
_WHERE = {name: (f"placewright.{home}", name) for home, names in _HOMES.items() for name in names}
_WHERE["machine"] = ("placewright.machine_files", "load_machine")
_MODULES = ("stop", "errors", "zoo")

__all__ = [
    "Blocks",
    "Bound",
    "CaptureWarning",
    "Captured",
    "Channel",
    "Colocate",
    "Constraint",
    "Costs",
    "Device",
    "Evaluation",
    "Evaluator",
    "Forbid",
    "Grouping",
    "Machine",
    "Measured",
    "OpGraph",
    "Operation",
    "Outcome",
    "Pin",
    "Placement",
    "Placer",
    "PlacewrightError",
    "Plan",
    "Pool",
    "Prediction",
    "Problem",
    "Result",
    "Route",
    "Separate",
    "Simulator",
    "SimulatorEvaluator",
    "Tensor",
    "Workload",
    "build_graph",
    "by_block",
    "capture",
    "capture_step",
    "data_parallel",
    "errors",
    "fake_tensors",
    "format_bytes",
    "from_folder",
    "from_function",
    "lower_bound",
    "machine",
    "machine_toml",
    "method_names",
    "parse_bytes",
    "parse_constraint",
    "presets",
    "read_exported",
    "read_graph",
    "read_plan",
    "read_profile",
    "read_workload",
    "repeated_blocks",
    "replicas",
    "search",
    "simulate",
    "stop",
    "towers",
    "write_graph",
    "write_plan",
    "write_profile",
    "zoo",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        home, attribute = _WHERE[name]
        value = getattr(importlib.import_module(home), attribute)
    elif name in _MODULES:
        value = importlib.import_module(f"placewright.{name}")
    else:
        raise AttributeError(f"module 'placewright' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)


class _Package(types.ModuleType):
    """The package itself.

    Some public functions have the name of a module, such as `search` and `machine`; importing that module
    must not put it in the function's place.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _WHERE and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

"""What went wrong in a trace, in words, with the line of the model that it came through."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Sequence

import torch
from torch import nn

from placewright.errors import CaptureError

_NOT_THE_MODEL = tuple(
    os.path.join(os.path.realpath(folder), "")
    for folder in (
        os.path.dirname(torch.__file__),
        os.path.dirname(os.path.dirname(__file__)),
        sysconfig.get_paths()["stdlib"],
    )
)

_ZOO = os.path.join("placewright", "zoo", "")


def line_at_fault(error: BaseException) -> str:
    """Return the innermost line of the model that an error came through: `file:line, in function: code`."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_the_model(frame.filename):
            return _place(frame.filename, frame.lineno, frame.name, frame.line or "")
    trace = error.__traceback__  # a program that was exported already runs without the model's own frames
    nodes: list[torch.fx.Node] = []
    while trace is not None:
        nodes += [value for value in trace.tb_frame.f_locals.values() if isinstance(value, torch.fx.Node)]
        trace = trace.tb_next
    return next(filter(None, map(_line_of, reversed(nodes))), "")


def _is_the_model(filename: str) -> bool:
    """Whether a file is neither of torch, nor of placewright, nor of Python itself; packages of others count."""
    path = os.path.realpath(filename)
    packages = f"{os.sep}site-packages{os.sep}" in path
    own = path.startswith(_NOT_THE_MODEL[: 1 if _ZOO in path else 2])
    return os.path.isfile(path) and not own and (packages or not path.startswith(_NOT_THE_MODEL))


def is_data_dependent(error: BaseException) -> bool:
    """Whether an error says that the values of tensors decide what is computed."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException"})


def data_dependent(error: BaseException) -> CaptureError:
    """Return the error to raise where values decide what is computed."""
    return CaptureError(_DATA_DECIDE, line=line_at_fault(error))


def is_about_values(error: CaptureError) -> bool:
    """Whether values of tensors decide what is computed, or a tensor that has its values is written."""
    return any(text in str(error) for text in (_DATA_DECIDE, _CONSTANT))


def data_decide(node: torch.fx.Node, what: str) -> CaptureError:
    """Return the error to raise where a traced node shows that values decide: `what` names how."""
    return CaptureError(f"{what}: {_DATA_DECIDE}", line=_line_of(node))


def not_read(node: torch.fx.Node) -> CaptureError:
    """Return the error to raise where a traced node holds operations in a graph of its own, as torch's own loops do."""
    name = str(getattr(node.target, "__name__", node.target))
    if name in ("cond", "while_loop"):
        return data_decide(node, f"the operator {name}")
    return CaptureError(
        f"the operator {name} is not read: it stands for operations that are not in the graph. "
        f"{_INSTEAD.get(name, _ELSE)}, or capture the parts of the model on either side",
        line=_line_of(node),
    )


_LOOP = "Write it as a loop in Python, which is captured step by step"
_ELSE = "Write what it does with torch's plain operators"
_INSTEAD = {
    **dict.fromkeys(("scan", "map", "map_impl", "associative_scan"), _LOOP),
    "flex_attention": "Use torch.nn.functional.scaled_dot_product_attention, with a mask where scores are left out",
}
"""What to do instead of operators that are not read."""


def written_constant(node: torch.fx.Node, name: str, others: Sequence[str]) -> CaptureError:
    """Return the error to raise where a model writes a tensor of which the graph cannot tell who reads it then."""
    if others:
        shared = ", ".join(others)
        what = f"{name} is written here and shares bytes with {shared}, which capture cannot express; clone it"
    else:
        what = _CONSTANT
    return CaptureError(what, line=_line_of(node))


def not_dense(node: torch.fx.Node, tensor: torch.Tensor) -> CaptureError:
    """Return the error to raise where an operator makes a sparse or nested tensor."""
    kind = str(tensor.layout).removeprefix("torch.")
    return CaptureError(
        f"the operator {node.target} makes a tensor of layout {kind}, whose size depends on the values of tensors; "
        "capture takes dense tensors. An nn.Embedding or F.embedding with sparse=False has a dense gradient",
        line=_line_of(node),
    )


def _line_of(node: torch.fx.Node) -> str:
    """Return the line of the model that a traced node stems from."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)', node.meta.get("stack_trace") or "")
    return next((_place(f, k, name, code) for f, k, name, code in reversed(frames) if _is_the_model(f)), "")


def _place(file: str, line: object, function: str, code: str) -> str:
    """Return a line of the model as messages show it."""
    return f"{file}:{line}, in {function}: `{code.strip()}`" if code.strip() else f"{file}:{line}, in {function}"


def module_at_fault(error: BaseException, model: nn.Module) -> str:
    """Return the innermost part of the model that an error came through, where no line of its own did."""
    paths = {id(module): path for path, module in model.named_modules() if path}
    trace, found = error.__traceback__, ""
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if id(owner) in paths:
            found = f"in module {paths[id(owner)]!r} ({type(owner).__name__})"
        trace = trace.tb_next
    return found


def lacks_fake_kernel(error: BaseException) -> bool:
    """Whether an error says that an operator cannot run on tensors without values, which draft export may mend."""
    names = {kind.__name__ for kind in type(error).__mro__}
    words = ("fake impl", "fake kernel", "'Meta'", "meta tensor", "Meta tensor")
    return "UnsupportedOperatorException" in names or any(word in str(error) for word in words)


_CONSTANT = (
    "a tensor that is neither a parameter, nor a buffer, nor a plain attribute of the model is written here, so the "
    "graph could not tell who reads it afterwards; make it a buffer (register_buffer)"
)
_DATA_DECIDE = (
    "what is computed here, or the size of it, depends on the values of tensors, which a graph cannot express. Compute "
    "both branches and choose with torch.where, give sizes as Python numbers, or capture the parts of the model on "
    "either side"
)


def one_line(error: BaseException) -> str:
    """Return the first line of what an error says, with its name."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__

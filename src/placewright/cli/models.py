"""What MODEL names: a network of the zoo, a function, a transformers folder, or a file of some kind."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from placewright.cli.options import Recipe
from placewright.cli.progress import wanted
from placewright.errors import FileError, InputError, UnknownNameError

if TYPE_CHECKING:
    from placewright.capture import Captured
    from placewright.cli.output import Output
    from placewright.workload import Workload

_BY_FORM = (
    (re.compile(r"hf:.*", re.DOTALL), "folder"),
    (re.compile(r".*\.py:[^/\\:]*", re.DOTALL), "function"),
    (re.compile(r".*\.pt2", re.DOTALL | re.IGNORECASE), "program"),
    (re.compile(r".*\.onnx", re.DOTALL | re.IGNORECASE), "onnx"),
)
_WEIGHTS = re.compile(r".*\.(pt|pth|bin|ckpt|pkl|safetensors|h5|keras|pb|tflite|gguf)", re.DOTALL | re.IGNORECASE)
_BARE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_MEMBER = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)/[0-9]+")
_LONGEST_DIM = 18
_STEP = ("optimizer", "update_order")


@dataclass(frozen=True)
class Kind:
    """A kind of MODEL: what it is called, the options that apply to it, and how it is read."""

    what: str
    options: tuple[str, ...]
    read: Callable[[str, Recipe], Workload | Captured]
    captured: bool = True


@dataclass(frozen=True)
class Model:
    """What MODEL gave."""

    workload: Workload
    captured: Captured | None
    """How it came about, where it was captured here."""
    seconds: float


def read_model(model: str, recipe: Recipe, out: Output) -> Model:
    """Read or capture what MODEL names. Progress and notes go to stderr."""
    from placewright.workload import Workload

    kind = _kind(model)
    _check_options(model, kind, recipe)
    began = time.perf_counter()
    if kind.captured and wanted(out):
        out.note(f"capturing {model} ...")
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):  # a model may print; results alone go there
        warnings.simplefilter("ignore")  # of the libraries that a model is built with
        found = kind.read(model, recipe)
    seconds = time.perf_counter() - began
    if isinstance(found, Workload):
        return Model(found, None, seconds)
    if wanted(out):
        out.note(f"captured {found.graph.n_ops:,} operations in {seconds:.1f} s {way(found.method)}")
    for note in found.notes:
        out.note(f"note: {note}")
    if found.trains and not found.traced.has_loss:
        out.note("note: the model returns no loss; the gradients of its outputs are inputs of the step")
    return Model(Workload(found.graph), found, seconds)


def way(method: str) -> str:
    """Say how a model was captured."""
    return "from the exported program" if method == "exported program" else f"by {method}"


def may_bring_machine(model: str) -> bool:
    """Whether MODEL is a file of a format that can describe a machine too."""
    return _kind(model) is _KINDS["file"]


def _kind(model: str) -> Kind:
    """Return what kind of MODEL this is, by its name alone."""
    if model.lower().endswith(".py"):
        raise InputError(f"MODEL {model!r} is a Python file; write {model}:FUNCTION, where FUNCTION returns {_RETURNS}")
    for pattern, kind in _BY_FORM:
        if pattern.fullmatch(model):
            return _KINDS[kind]
    from placewright import zoo
    from placewright.zoo import families

    if model in zoo.names():
        return _KINDS["network"]
    member = _MEMBER.fullmatch(model)
    if member and member[1] in families.names():
        return _KINDS["member"]
    if (_BARE_NAME.fullmatch(model) or member) and not os.path.exists(model):
        known = [*zoo.names(), *(f"{family}/0" for family in families.names())]
        raise UnknownNameError("network", model, known, f"MODEL can also be {_FORMS}.")
    return _KINDS["file"]


def split_batch(model: str, recipe: Recipe, count: int) -> Recipe:
    """Return the recipe for MODEL at a part of its batch; an error says why it has none."""
    kind = _kind(model)
    if "batch" not in kind.options:
        raise InputError(f"MODEL {model!r} is {kind.what}, which cannot be captured anew with a smaller batch")
    whole = recipe.batch if recipe.batch is not None else _own_batch(model, kind)
    if whole is None:
        raise InputError(f"MODEL {model!r} has no parameter `batch` with a whole number as default; it cannot be split")
    if whole % count:
        raise InputError(f"a batch of {whole} cannot be split into {count} equal parts; name another --batch")
    return replace(recipe, batch=whole // count)


def has_batch(model: str) -> bool:
    """Whether MODEL is of a kind that can be captured with any batch."""
    return "batch" in _kind(model).options


def _own_batch(model: str, kind: Kind) -> int | None:
    """Return the batch that MODEL has where none is named; None if it has none that is known."""
    if kind is _KINDS["network"]:
        from placewright import zoo

        return zoo.network(model).batch
    if kind is _KINDS["function"]:
        from placewright.capture.function import batch_of_function

        path, _, name = model.rpartition(":")
        return batch_of_function(path, name)
    return 1


_RETURNS = "a module and its inputs"
_FORMS = (
    "file.py:FUNCTION, hf:FOLDER, or the path of a graph (.json, .json.gz), an ONNX model (.onnx), an exported program "
    "(.pt2), a workload of Tarnawski et al. (.json) or a PipeDream profile (.txt)"
)


def _check_options(model: str, kind: Kind, recipe: Recipe) -> None:
    """Refuse an option that means nothing for this MODEL, rather than ignore it."""
    for option in fields(recipe):
        if getattr(recipe, option.name) in (None, ()) or option.name in kind.options:
            continue
        name = "--dim" if option.name == "dims" else f"--{option.name.replace('_', '-')}"
        allowed = [f"--{each.replace('_', '-')}" if each != "dims" else "--dim" for each in kind.options]
        takes = f"takes {', '.join(allowed)}" if allowed else "takes no option of capture"
        raise InputError(f"{name} does not apply to MODEL {model!r}, {kind.what}, which {takes}; leave it out")
    if recipe.update_order is not None and _optimizer(model, kind, recipe) is None:
        raise InputError("--update-order says where updates go, but an inference pass has none; name an --optimizer")


def _optimizer(model: str, kind: Kind, recipe: Recipe) -> str | None:
    """Return the optimiser to capture a step with: that asked for, else a network's own."""
    if recipe.optimizer is None and kind is _KINDS["network"]:
        from placewright import zoo

        return zoo.network(model).optimizer
    return None if recipe.optimizer == "none" else recipe.optimizer


# ---- one function per kind ---------------------------------------------------------------------


def _network(model: str, recipe: Recipe) -> Captured:
    """Capture a network of the zoo."""
    from placewright import zoo
    from placewright.capture import capture_step, fake_tensors

    optimizer = _optimizer(model, _KINDS["network"], recipe)
    with fake_tensors():
        module, inputs = zoo.build(model, batch=recipe.batch, training=optimizer is not None)
    return capture_step(module, inputs, optimizer=optimizer, update_order=recipe.update_order or "early", name=model)


def _member(model: str, recipe: Recipe) -> Workload:
    """Make a member of a family of graphs."""
    from placewright import zoo
    from placewright.workload import Workload

    del recipe
    return Workload(zoo.load(model))


def _function(model: str, recipe: Recipe) -> Captured:
    """Capture what a function in a Python file returns."""
    from placewright.capture import capture_step
    from placewright.capture.function import from_function

    path, _, name = model.rpartition(":")
    module, args, kwargs = from_function(path, name, batch=recipe.batch)
    optimizer = _optimizer(model, _KINDS["function"], recipe)
    return capture_step(module, args, kwargs, optimizer=optimizer, update_order=recipe.update_order or "early")


def _folder(model: str, recipe: Recipe) -> Captured:
    """Capture the model of a transformers folder."""
    from placewright.capture import capture_step, fake_tensors
    from placewright.capture.folder import from_folder

    optimizer = _optimizer(model, _KINDS["folder"], recipe)
    path = model.removeprefix("hf:")
    if not path:
        raise InputError("MODEL 'hf:' names no folder; write hf:FOLDER, a folder with a config.json of transformers")
    with fake_tensors():
        module, args, kwargs = from_folder(
            path, batch=recipe.batch or 1, length=recipe.length, task=recipe.task, training=optimizer is not None
        )
    return capture_step(module, args, kwargs, optimizer=optimizer, update_order=recipe.update_order or "early")


def _program(model: str, recipe: Recipe) -> Captured:
    """Capture a program that torch.export has saved."""
    from placewright.capture.exported import read_exported

    optimizer = _optimizer(model, _KINDS["program"], recipe)
    return read_exported(model, optimizer=optimizer, update_order=recipe.update_order or "early")


def _onnx(model: str, recipe: Recipe) -> Workload:
    """Read an ONNX model."""
    from placewright.importers import read_workload

    return read_workload(model, _dims(recipe.dims))


def _file(model: str, recipe: Recipe) -> Workload:
    """Read a graph file of any format."""
    from placewright.importers import read_workload

    del recipe
    if os.path.isfile(os.path.join(model, "config.json")):
        raise InputError(
            f"MODEL {model!r} is a folder with a config.json; write hf:{model} for a model of transformers"
        )
    if _WEIGHTS.fullmatch(model):
        save = "save the model with torch.export.save (.pt2) or torch.onnx.export (.onnx)"
        reason = "a file of weights, or a pickled model, which is never read"
        raise InputError(
            f"MODEL {model!r} looks like {reason}. Write FILE.py:FUNCTION, which returns {_RETURNS}; or {save}"
        )
    try:
        return read_workload(model)
    except FileError as error:
        if error.problem == "no such file":
            raise FileError(model, "", f"no such file. MODEL can be a network of the zoo, {_FORMS}") from None
        raise


def _dims(texts: tuple[str, ...]) -> dict[str, int]:
    """Return sizes by axis from texts such as `batch=4`."""
    dims: dict[str, int] = {}
    for text in texts:
        name, _, size = text.rpartition("=")
        if not name or not (size.isascii() and size.isdigit() and 0 < len(size) <= _LONGEST_DIM):
            raise InputError(f"--dim {text!r}: write NAME=N with a whole number, such as batch=4")
        dims[name] = int(size)
    return dims


_KINDS = {
    "network": Kind("a network of the zoo", (*_STEP, "batch"), _network),
    "member": Kind("a member of a family of graphs", (), _member, captured=False),
    "function": Kind("a function in a Python file", (*_STEP, "batch"), _function),
    "folder": Kind("a transformers folder", (*_STEP, "batch", "length", "task"), _folder),
    "program": Kind("an exported program", _STEP, _program),
    "onnx": Kind("an ONNX model", ("dims",), _onnx, captured=False),
    "file": Kind("a graph file", (), _file, captured=False),
}

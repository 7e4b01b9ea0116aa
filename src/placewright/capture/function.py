"""Models that a function in a Python file makes: the function is called, under fake tensors, and nothing else of it."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from placewright.capture.fake import fake_tensors
from placewright.capture.faults import is_data_dependent, line_at_fault, one_line
from placewright.capture.neighbours import importable, remember
from placewright.errors import CaptureError, FileError, UnknownNameError

_FORMS = "(module, inputs), (module, inputs, {name: input}) or (module, {name: input})"
_MODULE = "placewright_model"
"""The name under which the file is imported."""


def from_function(
    path: str | os.PathLike[str], function: str, *, batch: int | None = None
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The module that a function of a Python file returns, and its inputs: (model, args, kwargs).

    The function returns (module, inputs), (module, inputs, {name: input}) or (module, {name: input}); inputs are a
    tensor or a sequence. It is called without arguments, or with `batch` where one is given and it takes that. It
    runs under `fake_tensors`, so a model of any size takes no memory. The file's folder is on sys.path meanwhile, and
    while the model is captured, so the file may import its neighbours.
    """
    file = Path(path)
    with _imported(file) as module:
        given = {} if batch is None else {"batch": batch}
        made = _function(module, function, file, given)
        where = f"{file}:{function}"
        try:
            with fake_tensors():
                returned = made(**given)
        except Exception as error:
            raise _fault(error, f"{where} raises {one_line(error)}") from error
        except SystemExit as error:
            raise _fault(error, f"{where} ends the program (exit {error.code})") from None
    model, args, kwargs = _parts(returned, where)
    remember(model, _folder(file))
    return model, args, kwargs


def batch_of_function(path: str | os.PathLike[str], function: str) -> int | None:
    """The batch that a function of a Python file has by itself, the default of its `batch`; None without one."""
    file = Path(path)
    with _imported(file) as module:
        found = _function(module, function, file, {})
        with contextlib.suppress(ValueError):  # something built in
            parameter = inspect.signature(found).parameters.get("batch")
            if parameter is not None and type(parameter.default) is int:
                return parameter.default
    return None


@contextlib.contextmanager
def _imported(file: Path) -> Iterator[ModuleType]:
    """Give the module of a file; its folder is on sys.path until the end."""
    if not file.exists():
        raise FileError(file, "", "no such file")
    if not file.is_file():
        raise FileError(file, "", "is no regular file; a Python file was expected")
    spec = importlib.util.spec_from_file_location(_MODULE, file) if file.suffix == ".py" else None
    if spec is None or spec.loader is None:
        raise FileError(file, "", "is not known to be Python; the name of a Python file ends in .py, so rename it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module  # classes look their module up, also while their objects are captured
    with importable(_folder(file)):
        _run(spec.loader, module, file)
        yield module


def _folder(file: Path) -> str:
    """Return the folder of a file, as it stands on sys.path."""
    return str(file.resolve().parent)


def _run(loader: Any, module: ModuleType, file: Path) -> None:
    """Run a file."""
    try:
        loader.exec_module(module)
    except (SyntaxError, UnicodeDecodeError) as error:
        place = f"line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise FileError(file, place, f"is not Python: {one_line(error)}") from None
    except Exception as error:
        raise _fault(error, f"{file} raises {one_line(error)} when it is imported") from error
    except SystemExit as error:
        what = f"{file} ends the program (exit {error.code}) when it is imported"
        raise _fault(error, f'{what}; put what it does into `if __name__ == "__main__":`') from None


def _function(module: ModuleType, name: str, file: Path, given: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function of that name, which must take what is given and need nothing else."""
    own = [key for key, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == _MODULE]
    found = getattr(module, name, None) if name else None
    if found is None:
        raise UnknownNameError(f"function of {file}", name, sorted(own), f"Write {file}:NAME.")
    if not callable(found):
        raise CaptureError(f"{file}:{name} is {_described(found)}; a function that returns {_FORMS} was expected")
    try:
        inspect.signature(found).bind(**given)
    except TypeError as error:
        if given and "batch" not in inspect.signature(found).parameters:
            raise CaptureError(
                f"{file}:{name} takes no batch; write a function with a parameter `batch`, or give none"
            ) from None
        what = f"{file}:{name} is called without arguments, but has to be given some ({error})"
        raise CaptureError(f"{what}; write a function that needs none and returns {_FORMS}") from None
    except ValueError:
        pass  # something built in, whose signature is not known
    return found  # type: ignore[no-any-return]


def _parts(returned: Any, where: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return module, positional and named inputs, from what a function returned."""
    if not isinstance(returned, tuple | list) or len(returned) not in (2, 3):
        raise CaptureError(f"{where} returns {_described(returned)}; {_FORMS} was expected")
    model, args = returned[:2]
    if not isinstance(model, torch.nn.Module):
        raise CaptureError(f"{where} returns a {type(model).__name__} first; a torch.nn.Module was expected")
    kwargs: Any = returned[2] if len(returned) == 3 else {}
    if len(returned) == 2 and isinstance(args, Mapping):
        args, kwargs = (), args
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise CaptureError(f"{where} returns {_described(kwargs)} third; a dict of inputs by name was expected")
    positional = tuple(args) if isinstance(args, tuple | list) else (args,)
    if args is None or isinstance(args, str | bytes):
        raise CaptureError(f"{where} returns {_described(args)} second; a tensor or a tuple of inputs was expected")
    return model, positional, dict(kwargs)


def _described(value: Any) -> str:
    """Say what a value is."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    kind = type(value).__name__
    return "nothing" if value is None else f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def _fault(error: BaseException, problem: str) -> CaptureError:
    """Return the error to raise where the user's own code raised one."""
    if is_data_dependent(error):
        problem += "; it runs on tensors without values, so it cannot look at them"
    elif "UninitializedParameter" in str(error):
        problem += ". It runs on tensors without values, which lazy modules cannot be: give their sizes"
    elif any(words in str(error) for words in ("not linked with support for", "Couldn't swap")):
        problem += ". It runs on tensors without values, which are on no device: leave .cuda() and .to(device) out"
    return CaptureError(problem, line=line_at_fault(error))

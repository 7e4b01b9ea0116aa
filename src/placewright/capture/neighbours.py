"""Files beside the one that a model was written in, which it may import when it is built and when it runs."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator

from torch import nn

_FOLDERS: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


def remember(model: nn.Module, folder: str) -> None:
    """Let a model import from a folder whenever it is captured."""
    _FOLDERS[model] = folder


@contextlib.contextmanager
def importable(folder: str) -> Iterator[None]:
    """Put a folder on sys.path."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


@contextlib.contextmanager
def neighbours_of(model: nn.Module) -> Iterator[None]:
    """Put the folder of a model on sys.path, where it came from a function in a file."""
    folder = _FOLDERS.get(model)
    with contextlib.nullcontext() if folder is None else importable(folder):
        yield

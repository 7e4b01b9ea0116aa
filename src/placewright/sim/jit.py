"""How the kernels are compiled.

Without Numba's reference counting (`_nrt`): the work arrays travel between functions in two tuples, and
counting the references of some sixty arrays at every call costs over ten times the simulation itself.
Nothing in a kernel allocates. Helpers are inlined where their arguments are these tuples.

Numba keys its cache by the file of the entry point alone, so an edit in kernel.py or build.py would go unnoticed, and
an index that names a class which has moved cannot even be read. So a stamp, a digest of every source of this folder,
is part of the name of every cache file, and files of other stamps are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import numba

_njit: Any = numba.njit

inline = _njit(inline="always", _nrt=False)
"""A helper that takes the tuples of arrays."""

plain = _njit(_nrt=False)
"""A function that takes few arrays, or is called once per placement."""


@cache
def stamp(folder: Path) -> str:
    """A word that changes with any source file of a folder."""
    digest = hashlib.blake2b(digest_size=7)
    for path in sorted(folder.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def entry(function: Any) -> Any:
    """An entry point: without the interpreter's lock, and from the cache where a folder for one can be written."""
    function.__qualname__ += f"-{stamp(_FOLDER)}"
    try:
        return _njit(cache=True, nogil=True, _nrt=False)(function)
    except RuntimeError:  # Numba found no folder that it may write
        return _njit(nogil=True, _nrt=False)(function)


def _remove_stale(folder: Path, current: str) -> None:
    """Remove what was compiled from other sources, some 4 MB for each stamp."""
    for path in (folder / "__pycache__").glob("*.nb[ci]"):
        if f"-{current}-" not in path.name:
            with contextlib.suppress(OSError):
                path.unlink()


_FOLDER = Path(__file__).parent
_remove_stale(_FOLDER, stamp(_FOLDER))

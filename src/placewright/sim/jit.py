"""How the kernels are compiled.

Without Numba's reference counting (`_nrt`): the work arrays travel between functions in two tuples, and
counting the references of some sixty arrays at every call costs over ten times the simulation itself.
Nothing in a kernel allocates. Helpers are inlined where their arguments are these tuples.
"""

from __future__ import annotations

from typing import Any

import numba

_njit: Any = numba.njit

inline = _njit(inline="always", _nrt=False)
"""A helper that takes the tuples of arrays."""

plain = _njit(_nrt=False)
"""A function that takes few arrays, or is called once per placement."""


def entry(function: Any) -> Any:
    """An entry point: without the interpreter's lock, and from the cache where a folder for one can be written."""
    try:
        return _njit(cache=True, nogil=True, _nrt=False)(function)
    except RuntimeError:  # Numba found no folder that it may write
        return _njit(nogil=True, _nrt=False)(function)

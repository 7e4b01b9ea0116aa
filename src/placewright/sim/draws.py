"""Random numbers of the compiled searches: xorshift on `s.random`, one 64-bit number that must not be 0."""

from __future__ import annotations

import numpy as np

from placewright.sim.jit import inline


@inline
def draw(s):
    """The next 64 random bits (xorshift)."""
    x = s.random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    s.random[0] = x
    return x


@inline
def below(s, n):
    """A random whole number below n."""
    return np.int64((draw(s) >> np.uint64(11)) % np.uint64(n))


@inline
def share(s):
    """A random number in [0, 1)."""
    return (draw(s) >> np.uint64(11)) * (1.0 / 9007199254740992.0)

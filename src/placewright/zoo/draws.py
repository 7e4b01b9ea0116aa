"""Random draws that are the same in every process: a generator by family and member, and numbers from it.

Everything is made of uniform doubles, so that a member depends on the bits of PCG64, which numpy keeps from version
to version, and not on how numpy makes whole numbers or choices of them. Logarithmic draws take a power of a double
as well; its last bit may differ between machines, but is lost where the amount is rounded to a whole number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

_Item = TypeVar("_Item")


def generator(family: str, member: int) -> np.random.Generator:
    """Return the generator of one member of a family."""
    return np.random.Generator(np.random.PCG64([int.from_bytes(family.encode(), "big"), member]))


def whole(rng: np.random.Generator, least: int, most: int) -> int:
    """Return a whole number from `least` to `most`, both included, each as likely."""
    return least + int(rng.random() * (most - least + 1))


def pick(rng: np.random.Generator, items: Sequence[_Item]) -> _Item:
    """Return one of the items, each as likely."""
    return items[whole(rng, 0, len(items) - 1)]


def between(rng: np.random.Generator, least: float, most: float) -> float:
    """Return a number from `least` to `most` whose logarithm is uniform."""
    return float(least * (most / least) ** rng.random())


def shuffled(rng: np.random.Generator, count: int) -> list[int]:
    """Return the numbers below `count` in an order drawn uniformly."""
    return np.argsort(rng.random(count), kind="stable").tolist()  # type: ignore[no-any-return]

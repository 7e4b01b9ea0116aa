"""Placement: one device per operation, and optionally priorities and streaming windows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placewright.checks import MAX_BYTES
from placewright.documents import MAX_NUMBER
from placewright.errors import PlacementError

MAX_PRIORITY = MAX_NUMBER
DEFAULT_WINDOW = -1
"""A window of this value is the smallest that works plus the largest tensor borrowed."""


@dataclass(frozen=True, eq=False)
class Placement:
    """Which device runs each operation. Immutable; `Problem.placement` also checks constraints.

    `priorities` (larger first) count under the discipline `priority`; `windows_bytes`, one per device,
    bound what a device holds of borrowed parameters under `stream`.
    """

    devices: NDArray[np.int16]
    priorities: NDArray[np.float64] | None = None
    windows_bytes: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        self._store("devices", self.devices, np.int16)
        if self.priorities is not None:
            self._store("priorities", self.priorities, np.float64)
            if self.priorities.shape != self.devices.shape or not (np.abs(self.priorities) <= MAX_PRIORITY).all():
                limits = f"from {-MAX_PRIORITY:g} to {MAX_PRIORITY:g}"
                raise PlacementError(f"priorities must be one finite number per operation, {limits}")
        if self.windows_bytes is not None:
            self._store("windows_bytes", self.windows_bytes, np.int64)

    def _store(self, name: str, value: ArrayLike, kind: type) -> None:
        try:
            array = np.array(value)
        except ValueError:  # rows of different lengths
            raise PlacementError(f"{name} must be a flat list of numbers, not lists of different lengths") from None
        if array.ndim != 1 or (array.size and array.dtype.kind not in ("iuf" if kind is np.float64 else "iu")):
            raise PlacementError(f"{name} must be a flat list of numbers, not {array.dtype} of {array.ndim} axes")
        if kind is np.int16 and array.size and not (array.min() >= 0 and array.max() < 1 << 15):
            raise PlacementError("devices must be indices of devices, not negative")
        if kind is np.int64 and array.size and not (array.min() >= DEFAULT_WINDOW and array.max() <= MAX_BYTES):
            limits = f"at most {MAX_BYTES}, or -1 for the default"
            raise PlacementError(f"windows_bytes must be one size per device, {limits}")
        array = np.ascontiguousarray(array.astype(kind))
        array += 0  # minus zero is zero, so that equal placements have equal bytes
        array.flags.writeable = False
        object.__setattr__(self, name, array)

    def __reduce__(self) -> tuple[object, ...]:
        return Placement, (self.devices, self.priorities, self.windows_bytes)  # frozen again when unpickled

    @property
    def key(self) -> bytes:
        """The same for equal placements, in any process."""
        digest = hashlib.blake2b(self.devices.tobytes(), digest_size=16)
        for part, mark in ((self.priorities, b"p"), (self.windows_bytes, b"w")):
            if part is not None:
                digest.update(mark + part.tobytes())
        return digest.digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placement) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

"""Placement: immutable, checked for shape, equal by content, and of one key in every process."""

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from placewright.errors import PlacementError
from placewright.placement import DEFAULT_WINDOW, Placement

KEYS = """
from placewright.placement import Placement
for p in (Placement([0, 1, 2]), Placement([0, 1], [0.5, -1.0]), Placement([1], None, [-1, 4096]), Placement([])):
    print(p.key.hex())
"""


def test_arrays_are_frozen_copies():
    """A placement cannot be written, nor changed through the arrays that it was made of."""
    devices, priorities, windows = np.array([0, 1]), np.array([1.0, 2.0]), np.array([5, 6])
    placement = Placement(devices, priorities, windows)
    devices[0], priorities[0], windows[0] = 9, 9, 9
    assert placement.devices.tolist() == [0, 1]
    assert placement.priorities.tolist() == [1, 2]
    assert placement.windows_bytes.tolist() == [5, 6]
    for array in (placement.devices, placement.priorities, placement.windows_bytes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(FrozenInstanceError):
        placement.devices = devices


def test_types():
    """Whole numbers of any width become the types of the kernel."""
    placement = Placement(np.array([0, 200], np.uint8), [1, 2], np.array([7], np.uint32))
    assert placement.devices.dtype == np.int16
    assert placement.devices.tolist() == [0, 200]
    assert placement.priorities.dtype == np.float64
    assert placement.windows_bytes.dtype == np.int64


def test_a_strided_array_is_made_contiguous():
    """Every other entry of an array is a placement of its own, with the key of that content."""
    assert Placement(np.array([0, 9, 1, 9])[::2]) == Placement([0, 1])


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (3, "devices must be a flat list of numbers, not int64 of 0 axes"),
        ([[0, 1]], "devices must be a flat list of numbers, not int64 of 2 axes"),
        ([0.0, 1.0], "devices must be a flat list of numbers, not float64 of 1 axes"),
        ([True], "devices must be a flat list of numbers, not bool of 1 axes"),
        (["gpu:0"], "devices must be a flat list of numbers"),
        ([None], "devices must be a flat list of numbers, not object of 1 axes"),
        ([[0], [0, 1]], "devices must be a flat list of numbers, not lists of different lengths"),
        ([0, -1], "devices must be indices of devices, not negative"),
        ([1 << 15], "devices must be indices of devices"),
        ([1 << 40], "devices must be indices of devices"),
    ],
)
def test_devices(devices, message):
    """What are no indices of devices is refused, in words; nothing wraps around into another device."""
    with pytest.raises(PlacementError) as caught:
        Placement(devices)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("priorities", [[1.0], [1.0, 2.0, 3.0], [1.0, np.nan], [np.inf, 0.0], [0.0, -1.01e30]])
def test_priorities(priorities):
    """Priorities are one finite number per operation, in the range that a plan can hold."""
    with pytest.raises(
        PlacementError, match=r"priorities must be one finite number per operation, from -1e\+30 to 1e\+30"
    ):
        Placement([0, 1], priorities)
    assert Placement([0, 1], [1e30, -1e30]).priorities.tolist() == [1e30, -1e30]


def test_windows():
    """A window is a size, or -1 for the default, and a whole number."""
    assert DEFAULT_WINDOW == -1
    assert Placement([0], None, [-1, 0, 1 << 60]).windows_bytes.tolist() == [-1, 0, 1 << 60]
    for wrong in ([-2], [(1 << 60) + 1], np.array([2**64 - 1], np.uint64)):
        with pytest.raises(
            PlacementError, match=r"windows_bytes must be one size per device, at most .* or -1 for the"
        ):
            Placement([0], None, wrong)
    with pytest.raises(PlacementError, match="windows_bytes must be a flat list of numbers, not float64"):
        Placement([0], None, [0.5])


def test_equality_is_by_content():
    """Placements of the same content are equal and hash alike; every part counts, and its absence too."""
    kinds = [
        Placement([0, 1]),
        Placement([1, 0]),
        Placement([0, 1, 0]),
        Placement([0, 1], [0.0, 0.0]),
        Placement([0, 1], [0.0, 1.0]),
        Placement([0, 1], None, [0]),
        Placement([0, 1], None, [0, 0]),
        Placement([0, 1], None, [-1]),
        Placement([0, 1], [0.0, 0.0], [0]),
    ]
    assert len(set(kinds)) == len({p.key for p in kinds}) == len(kinds)
    again = Placement(np.array([0, 1], np.int64), (0, 0), [0])
    assert again == kinds[-1]
    assert hash(again) == hash(kinds[-1])
    assert again != kinds[0]
    assert kinds[0] != [0, 1]


def test_priorities_and_windows_are_not_confused():
    """The same bits as a priority and as a window are two placements."""
    assert np.float64(0).tobytes() == np.int64(0).tobytes()
    assert Placement([0], [0.0]) != Placement([0], None, [0])


def test_key_is_the_same_in_another_process():
    """Keys do not depend on the process or on its hash seed."""
    printed = [
        subprocess.run(
            [sys.executable, "-c", KEYS],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for seed in ("0", "4242")
    ]
    here = [Placement([0, 1, 2]), Placement([0, 1], [0.5, -1.0]), Placement([1], None, [-1, 4096]), Placement([])]
    assert printed[0] == printed[1] == [p.key.hex() for p in here]

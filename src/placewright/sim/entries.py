"""The compiled entry points: one placement, or a range of them, on one thread without the interpreter's lock.

Numba keys its cache by the file of the entry point alone, so an edit in kernel.py or build.py would go
unnoticed. The stamp, a digest of every source of this folder, is part of the key because it is a closure
variable of the entry points.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from placewright.sim import kernel, loads
from placewright.sim.jit import entry, plain


def stamp_of_sources() -> int:
    """A number that changes with any source file of this folder."""
    digest = hashlib.blake2b(digest_size=7)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest(), "little")


@plain
def note_use(p, w, use):
    """Busy time of every device, then of every channel, then whether each device's window was raised."""
    devices = len(p.pool_of)
    for d in range(devices):
        use[d] = w.device_busy[d]
        use[devices + p.n_channels + d] = w.raised[d]
    for c in range(p.n_channels):
        use[devices + c] = w.channel_busy[c]


def _entries(stamp):
    def simulate_one(p, w, place, priorities, windows, record):
        """Simulate one placement; returns (status, end of the step in ps, stamp)."""
        status, value = kernel.run(p, w, place, priorities, windows, record)
        return status, value, stamp

    def load_one(p, w, place, windows, max_load):
        """Loads of one placement; returns (status, the largest in ps, stamp)."""
        status, value = loads.run(p, w, place, windows, max_load)
        return status, value, stamp

    def simulate_many(p, w, placements, priorities, windows, first, last, status, value, peak, use):
        """Simulate placements first to last; priorities and windows have one row for each, or one for all."""
        for b in range(first, last):
            prefer = priorities[b if len(priorities) > 1 else 0]
            window = windows[b if len(windows) > 1 else 0]
            status[b], value[b] = kernel.run(p, w, placements[b], prefer, window, False)
            for pool in range(p.n_pools):
                peak[b, pool] = w.peak[pool]
            note_use(p, w, use[b])
        return stamp

    def load_many(p, w, placements, max_load, windows, first, last, status, value, peak, use):
        """Loads of placements first to last; windows have one row for each, or one for all."""
        for b in range(first, last):
            window = windows[b if len(windows) > 1 else 0]
            status[b], value[b] = loads.run(p, w, placements[b], window, max_load)
            for pool in range(p.n_pools):
                peak[b, pool] = w.peak[pool]
            note_use(p, w, use[b])
        return stamp

    return tuple(entry(f) for f in (simulate_one, load_one, simulate_many, load_many))


simulate_one, load_one, simulate_many, load_many = _entries(stamp_of_sources())

"""The compiled entry points: one placement, or a range of them, on one thread without the interpreter's lock."""

from __future__ import annotations

from placewright.sim import kernel, loads
from placewright.sim.jit import entry, plain


@plain
def note_use(p, w, use):
    """Busy time of every device, then of every channel, then whether each device's window was raised."""
    devices = len(p.pool_of)
    for d in range(devices):
        use[d] = w.device_busy[d]
        use[devices + p.n_channels + d] = w.raised[d]
    for c in range(p.n_channels):
        use[devices + c] = w.channel_busy[c]


@entry
def simulate_one(p, w, place, priorities, windows, record):
    """Simulate one placement; returns (status, end of the step in ps)."""
    status, value = kernel.run(p, w, place, priorities, windows, record)
    return status, value


@entry
def load_one(p, w, place, windows, max_load):
    """Loads of one placement; returns (status, the largest in ps)."""
    status, value = loads.run(p, w, place, windows, max_load)
    return status, value


@entry
def simulate_many(p, w, placements, priorities, windows, first, last, status, value, peak, use):
    """Simulate placements first to last; priorities and windows have one row for each, or one for all."""
    for b in range(first, last):
        prefer = priorities[b if len(priorities) > 1 else 0]
        window = windows[b if len(windows) > 1 else 0]
        status[b], value[b] = kernel.run(p, w, placements[b], prefer, window, False)
        for pool in range(p.n_pools):
            peak[b, pool] = w.peak[pool]
        note_use(p, w, use[b])


@entry
def load_many(p, w, placements, max_load, windows, first, last, status, value, peak, use):
    """Loads of placements first to last; windows have one row for each, or one for all."""
    for b in range(first, last):
        window = windows[b if len(windows) > 1 else 0]
        status[b], value[b] = loads.run(p, w, placements[b], window, max_load)
        for pool in range(p.n_pools):
            peak[b, pool] = w.peak[pool]
        note_use(p, w, use[b])

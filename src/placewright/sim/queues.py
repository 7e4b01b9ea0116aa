"""The ready queues of the devices, each a stretch of one array: a heap by priority, and a sort by index."""

from __future__ import annotations

from placewright.sim.jit import plain


@plain
def before(priorities, a, b):
    """Whether operation a goes before b: larger priority, ties by index."""
    return priorities[a] > priorities[b] or (priorities[a] == priorities[b] and a < b)


@plain
def push_heap(queue, base, size, priorities, i):
    """Add operation i to the heap of `size` operations that starts at `base`."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if not before(priorities, i, queue[base + up]):
            break
        queue[base + at] = queue[base + up]
        at = up
    queue[base + at] = i


@plain
def pop_heap(queue, base, size, priorities):
    """Take the first operation from a heap of `size` operations."""
    top, last = queue[base], queue[base + size - 1]
    size -= 1
    at = 0
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        if down + 1 < size and before(priorities, queue[base + down + 1], queue[base + down]):
            down += 1
        if not before(priorities, queue[base + down], last):
            break
        queue[base + at] = queue[base + down]
        at = down
    queue[base + at] = last
    return top


@plain
def sort_stretch(queue, start, stop):
    """Sort a stretch of the ready queues in place, by Shell's method."""
    gap = 1
    while gap * 9 // 4 < stop - start:
        gap = gap * 9 // 4 + 1
    while gap > 0:
        for at in range(start + gap, stop):
            i, hole = queue[at], at
            while hole >= start + gap and queue[hole - gap] > i:
                queue[hole] = queue[hole - gap]
                hole -= gap
            queue[hole] = i
        gap = gap * 4 // 9

"""Lower bounds on the objective that hold for the whole problem, and what limits every placement.

Each kind of bound is a file; `best.py` tries them all. Section 10 of docs/design.md proves them.
"""

from placewright.bounds.best import Bound, lower_bound
from placewright.bounds.parallelism import longest_path, parallelism

__all__ = ["Bound", "longest_path", "lower_bound", "parallelism"]

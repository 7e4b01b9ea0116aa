"""The errors of placewright, each named for its cause.

    PlacewrightError
    ├── InputError               what the caller gave is wrong                    exit code 2
    │   ├── FileError            a file: its path, the place in it, what is allowed
    │   ├── GraphError           an operation graph that breaks a rule
    │   ├── MachineError         a machine that breaks a rule
    │   ├── ProblemError         graph, machine, costs and constraints do not go together
    │   │   └── NotFinishedError an exact method that met its limit; names one that does not
    │   ├── PlacementError       a placement of the wrong shape, or one that breaks a constraint
    │   ├── UnknownNameError     a name that nothing has; lists those that exist
    │   ├── CaptureError         a model that cannot be turned into a graph; names the line at fault
    │   └── MissingExtraError    an optional dependency is absent; says how to install it
    ├── InfeasibleError          well-formed, but no placement can work           exit code 3
    └── SearchError              an algorithm broke its contract                  exit code 1

Misuse raises; the end of a search is a value, never an exception. A message names what is wrong,
what is allowed and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST_COMPARED = 2000
"""Names among which close ones are looked for; comparing takes time."""
_LONGEST_NAME = 100
"""Characters of a name that is compared, or shown in a list of names."""


class PlacewrightError(Exception):
    """Root of every error that placewright raises on purpose."""

    exit_code = 1


class InputError(PlacewrightError):
    """What the caller gave is wrong."""

    exit_code = 2


class FileError(InputError):
    """A file that cannot be read: `path`, the `place` inside it, and the `problem`."""

    def __init__(self, path: object, place: str, problem: str) -> None:
        self.path = str(path)
        self.place = place
        self.problem = problem
        super().__init__(f"{self.path}: {place}: {problem}" if place else f"{self.path}: {problem}")


class GraphError(InputError):
    """An operation graph that breaks a rule."""


class MachineError(InputError):
    """A machine that breaks a rule."""


class ProblemError(InputError):
    """Graph, machine, costs and constraints that do not go together."""


class NotFinishedError(ProblemError):
    """The programme met a limit; says which, and what to do."""

    def __init__(self, limit: str, sets: str) -> None:
        super().__init__(
            f"contiguous is not finished: {limit} is not enough for {sets} downward-closed sets of operations. "
            "Use contiguous-linear, or allow more in ContiguousParams"
        )


class PlacementError(InputError):
    """A placement of the wrong shape, or one that breaks a constraint."""


class UnknownNameError(InputError):
    """A name that nothing has. Close names are looked for only where that is quick; long ones are cut."""

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        names = list(known)
        close: list[str] = []
        if len(names) <= _MOST_COMPARED and len(name) <= _LONGEST_NAME:
            close = difflib.get_close_matches(name, [n for n in names if len(n) <= _LONGEST_NAME], n=3)
        listed = ", ".join(map(_cut, names[:40])) + (f", ... ({len(names)} in all)" if len(names) > 40 else "")
        guess = f" Did you mean {' or '.join(close)}?" if close else ""
        tail = f" {hint}" if hint else ""
        super().__init__(f"unknown {what} {_cut(name)!r}.{guess} Known: {listed or 'none'}.{tail}")


def _cut(name: str) -> str:
    """Return a name as a message shows it."""
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."


class CaptureError(InputError):
    """A model that cannot be turned into a graph.

    `line` is the line of the model at fault, where there is one; `parameters` those that the problem is about.
    """

    def __init__(self, problem: str, *, line: str = "", parameters: Iterable[str] = ()) -> None:
        self.line = line
        self.parameters = tuple(parameters)
        super().__init__(f"{line}: {problem}" if line else problem)


class MissingExtraError(InputError):
    """An optional dependency is absent."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the extra '{extra}': pip install 'placewright[{extra}]'")


class InfeasibleError(PlacewrightError):
    """The problem is well-formed, but no placement of it can work; says what would help."""

    exit_code = 3


class SearchError(PlacewrightError):
    """A placer or an evaluator broke its contract."""

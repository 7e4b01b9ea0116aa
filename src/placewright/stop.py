"""When to stop a search. Criteria are stateless: the same object serves any number of searches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from placewright.errors import InputError


@dataclass(frozen=True)
class Progress:
    """Where a search stands."""

    evaluations: int = 0
    seconds: float = 0.0
    best_s: float = math.inf
    """The best feasible value so far."""
    bound_s: float | None = None
    since_improvement: int = 0
    """Evaluations since the best became better."""

    @property
    def gap(self) -> float | None:
        """How far the optimum may be below the best, as a share of the best; None without a bound."""
        if self.bound_s is None or not math.isfinite(self.best_s):
            return None
        return 0.0 if self.best_s == 0 else max(0.0, 1.0 - self.bound_s / self.best_s)


class Criterion(ABC):
    """Says whether to stop; `|` combines criteria so that any of them stops."""

    @abstractmethod
    def __call__(self, progress: Progress) -> bool:
        """Whether to stop here."""

    def evaluations_left(self, progress: Progress) -> float:
        """How many evaluations may still be asked; infinite unless the criterion counts them."""
        return math.inf

    def seconds_left(self, progress: Progress) -> float:
        """How many seconds the search may still take; infinite unless the criterion counts them."""
        return math.inf

    def __or__(self, other: Criterion) -> AnyOf:
        return AnyOf((self, other))


def _whole(name: str, value: float) -> None:
    if isinstance(value, bool) or not math.isfinite(value) or value != int(value) or value < 1:
        raise InputError(f"{name} is {value}; a whole number of 1 or more is allowed")


def _at_least(name: str, value: float, low: float) -> None:
    if not value >= low:
        raise InputError(f"{name} is {value}; {low:g} or more is allowed")


@dataclass(frozen=True)
class Evaluations(Criterion):
    """After this many evaluations."""

    most: int

    def __post_init__(self) -> None:
        _whole("evaluations", self.most)

    def __call__(self, progress: Progress) -> bool:
        return progress.evaluations >= self.most

    def evaluations_left(self, progress: Progress) -> float:
        """What remains of the budget."""
        return max(0, self.most - progress.evaluations)


@dataclass(frozen=True)
class Seconds(Criterion):
    """After this much wall-clock time."""

    most: float

    def __post_init__(self) -> None:
        _at_least("seconds", self.most, 0)

    def __call__(self, progress: Progress) -> bool:
        return progress.seconds >= self.most

    def seconds_left(self, progress: Progress) -> float:
        """What remains of the time."""
        return max(0.0, self.most - progress.seconds)


@dataclass(frozen=True)
class Gap(Criterion):
    """Once the best is proven to be within this share of the optimum."""

    most: float

    def __post_init__(self) -> None:
        _at_least("gap", self.most, 0)

    def __call__(self, progress: Progress) -> bool:
        return progress.gap is not None and progress.gap <= self.most


@dataclass(frozen=True)
class NoImprovement(Criterion):
    """Once this many evaluations have brought nothing better."""

    most: int

    def __post_init__(self) -> None:
        _whole("no_improvement", self.most)

    def __call__(self, progress: Progress) -> bool:
        return progress.since_improvement >= self.most


@dataclass(frozen=True)
class AnyOf(Criterion):
    """As soon as one of several criteria says so."""

    criteria: tuple[Criterion, ...]

    def __call__(self, progress: Progress) -> bool:
        return any(criterion(progress) for criterion in self.criteria)

    def evaluations_left(self, progress: Progress) -> float:
        """The least that any of them leaves."""
        return min((c.evaluations_left(progress) for c in self.criteria), default=math.inf)

    def seconds_left(self, progress: Progress) -> float:
        """The least that any of them leaves."""
        return min((c.seconds_left(progress) for c in self.criteria), default=math.inf)


@dataclass(frozen=True)
class After(Criterion):
    """A criterion for one of several searches that share its budget, after what those before it took."""

    criterion: Criterion
    evaluations: int
    seconds: float

    def _all(self, progress: Progress) -> Progress:
        """The progress of all searches together."""
        seconds = self.seconds + progress.seconds
        return replace(progress, evaluations=self.evaluations + progress.evaluations, seconds=seconds)

    def __call__(self, progress: Progress) -> bool:
        return self.criterion(self._all(progress))

    def evaluations_left(self, progress: Progress) -> float:
        """What all of them leave."""
        return self.criterion.evaluations_left(self._all(progress))

    def seconds_left(self, progress: Progress) -> float:
        """What all of them leave."""
        return self.criterion.seconds_left(self._all(progress))


class Never(Criterion):
    """Only when the placer has no more to ask."""

    def __call__(self, progress: Progress) -> bool:
        return False

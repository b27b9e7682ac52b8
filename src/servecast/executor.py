"""Who says how long a batch takes: the only thing that differs between a simulation and a real run.

Durations of consecutive iterations come in one of two forms. *Affine*: with the rows of a batch fixed, a modelled
decode step grows by the same amount each time, so that sums and "the first iteration to end at or after t" are closed
forms, n*base + slope*n(n-1)/2 and the root of a quadratic. *Measured*: what a device took, one by one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servecast.batch import Batch, StepShape

#: Instants closer than this [s] are the same instant: sums of step times carry rounding, arrivals do not.
SAME_INSTANT_S = 1e-9

_INFINITE = math.inf


def affine_end(base: float, slope: float, iterations: int) -> float:
    """When the first ``iterations`` have ended [s]."""
    return iterations * base + slope * (iterations * (iterations - 1) // 2)


def first_to_end_at(base: float, slope: float, time: float) -> int:
    """The first iteration (from 1) to end at ``time`` [s] or later, however many there are."""
    time -= SAME_INSTANT_S
    if time <= base:
        return 1
    half = slope / 2
    linear = base - half
    n = math.ceil(2 * time / (linear + math.sqrt(linear * linear + 4 * half * time)))
    # The root is off by rounding at most: settle on the exact boundary.
    while n > 1 and affine_end(base, slope, n - 1) >= time:
        n -= 1
    while affine_end(base, slope, n) < time:
        n += 1
    return n


class Durations(Protocol):
    """Durations of ``count`` consecutive iterations [s]."""

    @property
    def count(self) -> int: ...

    @property
    def total(self) -> float: ...

    @property
    def first(self) -> float:
        """Of the first iteration [s]."""

    @property
    def last(self) -> float:
        """Of the last iteration [s]."""

    def ended_by(self, time: float) -> int:
        """How many iterations end at or before ``time`` [s] from the start."""

    def pieces(self) -> Iterator[Affine]:
        """The same iterations as affine runs, in order."""


class Affine:
    """Iteration i (from 0) takes ``base + slope*i`` seconds."""

    __slots__ = ("base", "count", "slope", "total")

    def __init__(self, base: float, slope: float, count: int) -> None:
        self.base = base
        self.slope = slope
        self.count = count
        self.total = base if count == 1 else count * base + slope * (count * (count - 1) // 2)

    @property
    def first(self) -> float:
        return self.base

    @property
    def last(self) -> float:
        return self.base + self.slope * (self.count - 1)

    def ended_by(self, time: float) -> int:
        if time + SAME_INSTANT_S < self.base:
            return 0
        n = min(first_to_end_at(self.base, self.slope, time), self.count)
        return n if affine_end(self.base, self.slope, n) <= time + SAME_INSTANT_S else n - 1

    def pieces(self) -> Iterator[Affine]:
        yield self


class Measured:
    """Iterations that took ``seconds`` each."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: Sequence[float]) -> None:
        self.seconds = seconds

    @property
    def count(self) -> int:
        return len(self.seconds)

    @property
    def total(self) -> float:
        return sum(self.seconds)

    @property
    def first(self) -> float:
        return self.seconds[0]

    @property
    def last(self) -> float:
        return self.seconds[-1]

    def ended_by(self, time: float) -> int:
        end = 0.0
        for ended, seconds in enumerate(self.seconds):
            end += seconds
            if end > time + SAME_INSTANT_S:
                return ended
        return len(self.seconds)

    def pieces(self) -> Iterator[Affine]:
        for seconds in self.seconds:
            yield Affine(seconds, 0.0, 1)


def cut(durations: Durations, time: float) -> Durations | None:
    """The iterations that end at or before ``time`` [s] from their start; None if none does."""
    count = durations.ended_by(time)
    if not count:
        return None
    if isinstance(durations, Affine):
        return Affine(durations.base, durations.slope, count)
    return Measured([piece.base for piece in durations.pieces()][:count])


class Executor(Protocol):
    """Runs batches, or says how long that would take."""

    def run(self, batch: Batch, until: float = math.inf) -> Durations:
        """How long consecutive iterations of an unchanged batch take: at least one, at most ``batch.iterations``; stops
        after the first iteration that ends ``until`` [s] from now, or later.

        Raises RanOutError where a device has no memory for the first of them; before a later one it stops.
        """


class RanOutError(Exception):
    """A device has no memory for a batch's next step: ``wanted_bytes`` of ``available_bytes``. The engine crashes."""

    def __init__(self, wanted_bytes: float, available_bytes: float) -> None:
        super().__init__(wanted_bytes, available_bytes)
        self.wanted_bytes = wanted_bytes
        self.available_bytes = available_bytes


class PricedSteps(Protocol):
    """What a simulation needs of a cost model."""

    def durations(self, shape: StepShape, iterations: int) -> tuple[float, float, int]:
        """(base [s], slope [s per iteration], count) of iterations that start with ``shape``."""


class ModelExecutor:
    """Asks a cost model. ``step_time_scale`` multiplies every duration: how wrong may the model be?"""

    __slots__ = ("_durations", "_scaled", "step_time_scale")

    def __init__(self, cost: PricedSteps, step_time_scale: float = 1.0) -> None:
        assert step_time_scale > 0, step_time_scale
        self._durations = cost.durations
        self.step_time_scale = step_time_scale
        self._scaled = step_time_scale != 1.0

    def run(self, batch: Batch, until: float = math.inf) -> Affine:
        durations = self._durations
        base, slope, count = durations(batch.shape, batch.iterations)
        if not 0.0 < base < _INFINITE:
            raise InputError("cost model", f"step time must be > 0 and finite, got {base!r} s for {batch.shape}")
        if self._scaled:
            base *= self.step_time_scale
            slope *= self.step_time_scale
        if count > 1 and until < count * (base + slope * count):
            count = min(count, first_to_end_at(base, slope, until))
        return Affine(base, slope, count)

"""Scales and their ticks: values a person would have chosen, 1, 2 or 5 times a power of ten."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from servecast.text import number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from servecast.report.charts.spec import Axis


_LARGEST = 1e100  # of what stands on an axis; the smallest, on one of powers of ten, is its inverse


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places between ``begin`` and ``end`` (which may run downwards)."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False
    whole: bool = False

    def __call__(self, value: float) -> float:
        """Where a value stands; beyond the ends where it is beyond them."""
        if self.log:
            share = math.log(max(value, 1e-300) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """At most so many ticks: value and label."""
        low, high = sorted((self.low, self.high))
        values = _decades(low, high, most) if self.log else _even(low, high, most, least=1.0 if self.whole else 0.0)
        return [(value, tick(value)) for value in values]


def scale(axis: Axis, values: Iterable[float], begin: float, end: float, *, head: float = 0.06) -> Scale:
    """A scale for ``values`` with some room beyond them; those that no axis can show (inf, 1e300) are left out."""
    known = [value for value in values if (1 / _LARGEST < value < _LARGEST if axis.log else abs(value) < _LARGEST)]
    if axis.limits is not None:
        low, high = axis.limits
    elif axis.log:
        low, high = (min(known), max(known)) if known else (1.0, 10.0)
        room = max((high / low) ** head, 1.08)
        low, high = low / room, high * room
        if high < 5 * low:
            middle = math.sqrt(low * high)
            low, high = middle / math.sqrt(5), middle * math.sqrt(5)
    else:
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        if axis.base is not None:
            low = min(axis.base, low)
        span = next((size for size in (high - low, abs(high)) if size > 1 / _LARGEST), 1.0)
        high += span * head
        if axis.base is None:
            low -= span * head
    return Scale(low, high, begin, end, axis.log, axis.whole)


def tick(value: float) -> str:
    """A tick's label: no digits that say nothing, thousands apart."""
    text = f"{float(f'{value:.3g}'):,.10f}".rstrip("0").rstrip(".")
    return number(value, 1) if text in ("0", "-0") and value else text


def _even(low: float, high: float, most: int, least: float = 0.0) -> list[float]:
    rough = max((high - low) / max(most - 1, 1), least)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [step * place for place in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float, most: int) -> list[float]:
    """As many of each decade as there is room for; whole decades left out where even those are too many."""
    begin, end = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for nice in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        found = [of * 10.0**power for power in range(begin, end + 1) for of in nice]
        found = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]

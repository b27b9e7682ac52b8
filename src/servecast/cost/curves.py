"""Times measured on a grid, read off by straight lines: exact at what was measured, linear between.

A `Curve` is a piecewise linear function of one number. A `Surface` is a family of curves along a second one: each
curve has its own knots, and between two curves the value at equal inner positions is taken linearly. Measured times are
nearly linear in what they depend on; against the logarithm of it, linear interpolation is 3 to 5 times worse.

Outside: below its first knot a curve stays there (a kernel takes no less than with the least that was measured), beyond
its last one it goes on at its last slope. Below the first curve of a surface the first one holds; beyond the last, time
grows in proportion to the outer number, as work does.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds at rising knots, at least one."""

    knots: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.knots or len(self.knots) != len(self.seconds):
            raise InputError("curve", f"{len(self.knots)} knots and {len(self.seconds)} values: give as many of both")
        if any(b <= a for a, b in zip(self.knots, self.knots[1:], strict=False)) or self.knots[0] < 0:
            raise InputError("curve", f"knots must rise from 0 or more, got {self.knots[:8]}...")
        if not all(0 <= value < np.inf for value in self.seconds):
            raise InputError("curve", "seconds must be finite and at least 0: fit again")

    def at(self, x: float) -> float:
        """Seconds at ``x``."""
        knots = self.knots
        i = bisect_right(knots, x)
        if i == 0:
            return self.seconds[0]
        if i == len(knots):
            if i == 1:
                return self.seconds[0]
            i -= 1
        low, high = self.seconds[i - 1], self.seconds[i]
        return low + (high - low) * (x - knots[i - 1]) / (knots[i] - knots[i - 1])

    def at_least(self, least: Callable[[float], float]) -> Curve:
        """The same, nowhere below ``least``, of which lines lie above: at no knot, and not by its last slope."""
        seconds = [max(value, least(knot)) for knot, value in zip(self.knots, self.seconds, strict=True)]
        last, beyond = self.knots[-1], 2 * self.knots[-1] + 1
        each = (least(beyond) - least(last)) / (beyond - last)
        slope = (seconds[-1] - seconds[-2]) / (last - self.knots[-2]) if len(seconds) > 1 else 0.0
        if slope >= each:
            return Curve(self.knots, tuple(seconds))
        return Curve((*self.knots, beyond), (*seconds, seconds[-1] + each * (beyond - last)))

    def thinned(self, tolerance: float) -> Curve:
        """Fewer knots: those dropped lie within ``tolerance`` (relative) of the line between those kept."""
        if tolerance <= 0 or len(self.knots) < 3:
            return self
        knots, seconds = np.array(self.knots), np.array(self.seconds)

        def straight(start: int, end: int) -> bool:
            inner = seconds[start + 1 : end]
            line = np.interp(knots[start + 1 : end], knots[[start, end]], seconds[[start, end]])
            return bool((np.abs(line - inner) <= tolerance * inner).all())

        kept = [0]
        while kept[-1] < len(knots) - 1:
            kept.append(max(end for end in range(kept[-1] + 1, len(knots)) if straight(kept[-1], end)))
        return Curve(tuple(knots[kept].tolist()), tuple(seconds[kept].tolist()))


@dataclass(frozen=True, slots=True)
class Surface:
    """Curves at rising positions of an outer number, at least one."""

    outer: tuple[float, ...]
    curves: tuple[Curve, ...]

    def __post_init__(self) -> None:
        if not self.outer or len(self.outer) != len(self.curves):
            raise InputError(
                "surface", f"{len(self.outer)} positions and {len(self.curves)} curves: give as many of both"
            )
        if any(b <= a for a, b in zip(self.outer, self.outer[1:], strict=False)) or self.outer[0] <= 0:
            raise InputError("surface", f"positions of curves must rise from above 0, got {self.outer[:8]}...")

    def at(self, outer: float, inner: float) -> float:
        """Seconds at a position."""
        i = bisect_right(self.outer, outer)
        if i == 0:
            return self.curves[0].at(inner)
        if i == len(self.outer):
            return self.curves[-1].at(inner) * outer / self.outer[-1]
        before = self.outer[i - 1]
        low, high = self.curves[i - 1].at(inner), self.curves[i].at(inner)
        return low + (high - low) * (outer - before) / (self.outer[i] - before)

    def curve(self, outer: float) -> Curve:
        """The curve at ``outer``: its knots are those of the two that it lies between."""
        i = bisect_right(self.outer, outer)
        near = self.curves[max(i - 1, 0) : i + 1]
        if i > 0 and self.outer[i - 1] == outer:
            near = self.curves[i - 1 : i]
        knots = sorted({knot for curve in near for knot in curve.knots})
        return Curve(tuple(knots), tuple(self.at(outer, knot) for knot in knots))


def surface(points: Iterable[tuple[float, float, float]]) -> Surface:
    """The surface through points (outer, inner, seconds), one curve for each outer position."""
    rows: dict[float, dict[float, float]] = {}
    for outer, inner, seconds in points:
        rows.setdefault(float(outer), {})[float(inner)] = float(seconds)
    positions = tuple(sorted(rows))
    return Surface(positions, tuple(curve(rows[position].items()) for position in positions))


def curve(points: Iterable[tuple[float, float]]) -> Curve:
    """The curve through points (knot, seconds)."""
    ordered = sorted(points)
    return Curve(tuple(float(knot) for knot, _ in ordered), tuple(float(value) for _, value in ordered))


def left_out(of: Curve) -> list[float]:
    """Relative error at each inner knot if it had not been measured."""
    return [float(error) for error in errors_between(of.knots, np.array(of.seconds))]


def errors_between(knots: Sequence[float], values: Floats) -> Floats:
    """(line between its neighbours) / measured - 1 at each inner knot, along the first axis of ``values``."""
    at = np.array(knots, dtype=float).reshape(-1, *[1] * (values.ndim - 1))
    share = (at[1:-1] - at[:-2]) / (at[2:] - at[:-2])
    errors: Floats = (values[:-2] * (1 - share) + values[2:] * share) / values[1:-1] - 1
    return errors

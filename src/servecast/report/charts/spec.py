"""What a chart shows, without how it is drawn: panels of points, curves and bars, and the table behind them.

A *look* is a place in the palette (an int: colour and marker of a series) or the name of a style (``ink``, ``idle``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Datum(NamedTuple):
    """One point: where it stands, and all that is known there.

    name : what it is, in a line; numbers : label and value of each number, as they are written
    low, high : ends of an interval in y
    hollow : drawn as an outline: a server that does not keep up, or a step that the fit has not seen
    words : drawn beside it
    """

    x: float
    y: float
    name: str
    numbers: tuple[tuple[str, str], ...]
    low: float | None = None
    high: float | None = None
    hollow: bool = False
    words: str = ""


class Axis(NamedTuple):
    """Label with its unit; ``limits`` None: as the data have it; a linear axis begins at ``base``, if given.

    limits : the larger first: the axis runs downwards
    whole : of what is counted, so that half of one is no tick
    """

    label: str
    log: bool = False
    base: float | None = None
    limits: tuple[float, float] | None = None
    whole: bool = False


class Line(NamedTuple):
    """A reference: at ``y`` or at ``x``, or a polyline, with words at it.

    band : a broad stroke under the points
    right : the words stand at the right end, below the line
    """

    words: str = ""
    y: float | None = None
    x: float | None = None
    through: tuple[tuple[float, float], ...] = ()
    strong: bool = False
    band: bool = False
    right: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one name, in order.

    lines : each joined by a line, if ``joined``; all their points have tooltips
    stepped : the line has the height of a point from the one before up to it
    quiet : points have no marker until they are pointed at: there are too many
    small : points are many, and drawn so that they do not hide each other
    """

    name: str
    look: int | str
    lines: tuple[tuple[Datum, ...], ...]
    joined: bool = True
    stepped: bool = False
    quiet: bool = False
    small: bool = False


def tooltips(name: str, look: int | str, points: Iterable[Datum]) -> tuple[Series, ...]:
    """Points that show their numbers when they are pointed at, over a curve or an area; none without points."""
    points = tuple(points)
    return (Series(name, look, (points,), joined=False, quiet=True),) if points else ()


def evenly(count: int, most: int) -> Any:
    """At most ``most`` places among ``count``, evenly spaced, first and last among them: an index array."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(int))


class Curve(NamedTuple):
    """A line without tooltips.

    style : "", "dashed", "dotted" or "broad"
    stepped : each height holds until the next point
    """

    look: int | str
    x: Sequence[float]
    y: Sequence[float]
    style: str = ""
    stepped: bool = False


class Area(NamedTuple):
    """The room between two heights; each holds until the next of ``x``, unless ``slanted``.

    low : empty: the polygon of ``x`` and ``high`` itself
    """

    look: int | str
    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    pale: bool = False
    slanted: bool = False


class Piece(NamedTuple):
    """A stretch of a span: from x to x, in a look, as opaque as ``weight`` says."""

    begin: float
    end: float
    look: int | str
    weight: float = 1.0


class Span(NamedTuple):
    """A row of pieces between two heights with one tooltip: a request in its slot, a cell of a histogram."""

    name: str
    numbers: tuple[tuple[str, str], ...]
    low: float
    high: float
    pieces: tuple[Piece, ...]
    look: int | str


class Marks(NamedTuple):
    """Moments that matter."""

    look: str  # "oom" or "preempted"
    points: tuple[Datum, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes; ``height`` in the units of the drawing, 520 of which are its width."""

    x: Axis
    y: Axis
    series: tuple[Series, ...] = ()
    title: str = ""
    lines: tuple[Line, ...] = ()
    curves: tuple[Curve, ...] = ()
    areas: tuple[Area, ...] = ()
    spans: tuple[Span, ...] = ()
    marks: tuple[Marks, ...] = ()
    height: int = 330


class Part(NamedTuple):
    """One part of a bar: its length, its look, words inside it."""

    value: float
    look: int | str
    words: str = ""


class Bar(NamedTuple):
    """A horizontal bar of parts, or a dot with an interval where there are none.

    value, low, high : of the dot
    """

    name: str
    numbers: tuple[tuple[str, str], ...]
    parts: tuple[Part, ...] = ()
    value: float | None = None
    low: float | None = None
    high: float | None = None
    look: int = 0
    words: str = ""
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars under each other on one axis."""

    x: Axis
    bars: tuple[Bar, ...]
    title: str = ""
    lines: tuple[Line, ...] = ()


class Key(NamedTuple):
    """An entry of a legend: of series that can be hidden (``look`` a number), or an explanation.

    line : the style of a `Curve` that stands in the entry instead of a marker or a patch
    """

    name: str
    look: int | str
    line: str | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure of a page, and of a file.

    name : of its files and its place in the page; caption : the one line that says what it teaches
    legend : what the looks mean, series first
    stacked : panels stand below each other, as wide as the figure
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel | Bars, ...]
    legend: tuple[Key, ...] = ()
    note: str = ""
    stacked: bool = False

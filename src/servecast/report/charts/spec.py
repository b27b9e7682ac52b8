"""What a chart shows, without how it is drawn: panels of series of points, or of bars, and the table behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Datum(NamedTuple):
    """One point: where it stands, and all that is known there.

    name : what it is, in a line; numbers : label and value of each number, as they are written
    low, high : ends of an interval in y
    hollow : drawn as an outline: a server that does not keep up, or loses requests
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

    look : place in the palette: colour and marker
    lines : each joined by a line, if ``joined``; the points of all of them are told
    stepped : the line has the height of a point from the one before up to it
    quiet : points have no marker until they are pointed at: there are too many
    bare : a line alone, of which nothing is told
    small : points are many, and drawn so that they do not hide each other
    """

    name: str
    look: int
    lines: tuple[tuple[Datum, ...], ...]
    joined: bool = True
    stepped: bool = False
    quiet: bool = False
    bare: bool = False
    small: bool = False


class Area(NamedTuple):
    """The room between two heights over steps of time: ``times`` one longer than a step's heights or as long."""

    look: int
    times: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    idle: bool = False
    pale: bool = False


class Marks(NamedTuple):
    """Moments that matter: out of memory, preemption; drawn at one height."""

    look: str  # "oom" or "preempted"
    y: float
    points: tuple[Datum, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    x: Axis
    y: Axis
    series: tuple[Series, ...] = ()
    title: str = ""
    lines: tuple[Line, ...] = ()
    areas: tuple[Area, ...] = ()
    marks: tuple[Marks, ...] = ()
    height: int = 330


class Part(NamedTuple):
    """One part of a bar: its length, its look (a place in the palette, or the name of a pattern), words inside it."""

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
    dots: bool = False


class Key(NamedTuple):
    """An entry of a legend: of a series that can be put out (``look`` a number), or an explanation."""

    name: str
    look: int | str


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure of the page.

    name : of its files and its place in the page; caption : the one line that says what it teaches
    heads, rows : the same numbers as a table, for eyes that do not read charts
    csv : the table as a file; None where it is that of another chart
    legend : what the looks mean, series first
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel | Bars, ...]
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    legend: tuple[Key, ...] = ()
    csv: bytes | None = None
    note: str = ""

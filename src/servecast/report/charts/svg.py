"""A panel as SVG. Colours come from the classes of ``templates/chart.css``, so that one drawing serves the page
(light, dark, print) and the figure file, which holds its style itself (`servecast.report.charts.files`).

Every point is an element with a marker, a name for screen readers and a ``<title>`` with all its numbers, which
browsers show by themselves; ``charts.js`` turns it into a tooltip, and moves between points with the arrow keys.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from servecast.report.charts.looks import PATHS, marker
from servecast.report.charts.scales import Scale, scale
from servecast.report.charts.spec import Bars, Curve, Panel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from servecast.report.charts.spec import Area, Bar, Datum, Line, Series, Span

WIDTH = 520
_LEFT, _RIGHT, _BOTTOM, _TOP = 58, 506, 50, 36
_LETTER = 8.2  # units that a letter may take on a phone, where text is largest
_MARK = {"oom": PATHS["cross"], "preempted": PATHS["down"]}
_WORDS = 300  # letters of a text in a chart: a name may be as long as somebody likes
_BAR, _ROW, _LABEL = 22, 56, 17  # of horizontal bars: thickness, distance, height of the name above


def draw(panel: Panel | Bars, label: str, frame: str = "") -> str:
    """One ``<svg>``; ``label`` says to a screen reader what it shows, ``frame``: further attributes of the element."""
    parts = _bars(panel) if isinstance(panel, Bars) else _axes(panel)
    box = f"0 0 {WIDTH} {height(panel)}"
    opened = f'<svg class="plot" viewBox="{box}" role="group" aria-label="{escape(label)}"{frame}>'
    return "".join([opened, *parts, "</svg>"])


def height(panel: Panel | Bars) -> int:
    """Units from top to bottom."""
    return _bars_top(panel) + _ROW * len(panel.bars) + _BOTTOM - 2 if isinstance(panel, Bars) else panel.height


def look_class(look: int | str) -> str:
    """The class of a look."""
    return f"l{look}" if isinstance(look, int) else look


def _axes(panel: Panel) -> Iterator[str]:
    top, bottom = _TOP + (20 if panel.title else 0), panel.height - _BOTTOM
    x, y = _scales(panel, top, bottom)
    if panel.title:
        yield _text(0, 15, panel.title, "head")
    yield _text(0, top - 20, panel.y.label, "axis")
    yield from _grid(x, y, bottom)
    yield _text((_LEFT + _RIGHT) / 2, panel.height - 8, panel.x.label, "axis mid")
    yield from (_area(area, x, y) for area in panel.areas)
    yield from (_span(span, x, y) for span in panel.spans)
    yield from (_reference(line, x, y, top, bottom) for line in panel.lines)
    yield from (_curve(curve, x, y) for curve in panel.curves)
    yield from (_series(series, x, y) for series in panel.series)
    for marks in panel.marks:
        if marks.points:
            points = "".join(_point(datum, x, y, _MARK[marks.look]) for datum in marks.points)
            yield f'<g class="{marks.look}">{points}</g>'


def _scales(panel: Panel, top: float, bottom: float) -> tuple[Scale, Scale]:
    """Scales that hold all there is to draw."""
    data = [datum for series in panel.series for line in series.lines for datum in line]
    data += [datum for marks in panel.marks for datum in marks.points]
    wide = [datum.x for datum in data]
    high = [end for datum in data for end in (datum.y, datum.low, datum.high) if end is not None]
    for line in panel.lines:
        wide += [line.x] if line.x is not None else [x for x, _ in line.through]
        high += [line.y] if line.y is not None else [y for _, y in line.through]
    for curve in panel.curves:
        wide += curve.x
        high += curve.y
    for area in panel.areas:
        wide += area.x
        high += [*area.high, *area.low]
    for span in panel.spans:
        wide += [end for piece in span.pieces for end in (piece.begin, piece.end)]
        high += [span.low, span.high]
    exact = 0.0 if panel.areas or panel.spans else 0.06
    above = 0.0 if panel.spans else 0.08
    return scale(panel.x, wide, _LEFT, _RIGHT, head=exact), scale(panel.y, high, bottom, top, head=above)


def _text(x: float, y: float, words: str, classes: str) -> str:
    words = words if len(words) <= _WORDS else f"{words[: _WORDS - 1]}…"
    return f'<text x="{x:.4g}" y="{y:.4g}" class="{classes}">{escape(words)}</text>'


def _grid(x: Scale, y: Scale, bottom: float) -> Iterator[str]:
    ticks = y.ticks(6)
    yield f'<path class="grid" d="{"".join(f"M{_LEFT} {y(value):.1f}H{_RIGHT}" for value, _ in ticks)}"/>'
    yield f'<path class="base" d="M{_LEFT} {bottom}H{_RIGHT}"/>'
    for value, words in ticks:
        yield _text(_LEFT - 8, y(value) + 4, words, "tick end")
    for value, words in x.ticks(6):
        yield f'<path class="base" d="M{x(value):.1f} {bottom}v4"/>'
        yield _text(min(x(value), WIDTH - 4 - _LETTER * len(words) / 2), bottom + 19, words, "tick mid")


def _reference(line: Line, x: Scale, y: Scale, top: float, bottom: float) -> str:
    look = "band" if line.band else "strong" if line.strong else "aim"
    if line.through:
        path, at = _path([(x(a), y(b)) for a, b in line.through]), (x(line.through[0][0]), y(line.through[0][1]))
    elif line.y is not None:
        path, at = f"M{_LEFT} {y(line.y):.1f}H{_RIGHT}", (_LEFT + 4, y(line.y) - 6)
    else:
        assert line.x is not None, "a reference stands somewhere"
        path, at = f"M{x(line.x):.1f} {top}V{bottom}", (x(line.x) + 5, top + 10)
    classes = "note"
    if line.right:
        at, classes = (_RIGHT, at[1] + 20), "note end"
    elif at[0] + _LETTER * len(line.words) > WIDTH:  # to the left of the line where there is no room to its right
        at, classes = (at[0] - 10, at[1]), "note end"
    words = _text(at[0], at[1], line.words, classes) if line.words and not line.through else ""
    return f'<path class="{look}" d="{path}"/>{words}'


def _path(places: Iterable[tuple[float, float]], stepped: bool = False) -> str:
    """A polyline; stepped: each height holds until the next place."""
    step = "H{:.1f}V{:.1f}" if stepped else "L{:.1f} {:.1f}"
    return "".join((step if at else "M{:.1f} {:.1f}").format(a, b) for at, (a, b) in enumerate(places))


def _places(xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale) -> list[tuple[float, float]]:
    return [(x(a), y(b)) for a, b in zip(xs, ys, strict=True)]


def _grouped(look: int | str, inside: str) -> str:
    hides = f' data-s="{look}"' if isinstance(look, int) else ""
    return f'<g class="{look_class(look)}"{hides}>{inside}</g>'


def _curve(curve: Curve, x: Scale, y: Scale) -> str:
    path = _path(_places(curve.x, curve.y, x, y), curve.stepped)
    return _grouped(curve.look, f'<path class="{f"line {curve.style}".strip()}" d="{path}"/>')


def _area(area: Area, x: Scale, y: Scale) -> str:
    """A filled curve; its upper edge is drawn where it is pale."""
    upper = _places(area.x, area.high, x, y)
    lower = _places(area.x, area.low, x, y) if area.low else []
    if area.slanted:
        back = "".join(f"L{a:.1f} {b:.1f}" for a, b in reversed(lower))
    else:
        back = "".join(f"V{b:.1f}H{a:.1f}" for a, b in reversed(lower))
    path = _path(upper, not area.slanted)
    edge = f'<path class="line thin" d="{path}"/>' if area.pale and not area.slanted else ""
    return _grouped(area.look, f'<path class="{"pale" if area.pale else "area"}" d="{path}{back}Z"/>{edge}')


def _span(span: Span, x: Scale, y: Scale) -> str:
    top, bottom = sorted((y(span.low), y(span.high)))
    parts = []
    for piece in span.pieces:
        begin, end = x(piece.begin), x(piece.end)
        shade = "" if piece.weight == 1 else f' fill-opacity="{piece.weight:.2g}"'
        parts.append(_rectangle(begin, top, end - begin, bottom - top, piece.look, shade))
    return f'<g class="pt span {look_class(span.look)}"{_titled(span.name, span.numbers)}{"".join(parts)}</g>'


def _rectangle(x: float, y: float, width: float, tall: float, look: int | str, more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.4):.1f}" height="{tall:.1f}"'
    return f'<rect class="part {look_class(look)}" {place}{more}/>'


def _series(series: Series, x: Scale, y: Scale) -> str:
    parts = []
    for line in series.lines:
        if series.joined and len(line) > 1:
            places = [(x(datum.x), y(datum.y)) for datum in line]
            stairs = f"M{_LEFT} {places[0][1]:.1f}" + "".join(f"V{b:.1f}H{a:.1f}" for a, b in places)
            parts.append(f'<path class="line" d="{stairs if series.stepped else _path(places)}"/>')
    outline, classes = marker(series.look), "quiet" if series.quiet else "small" if series.small else ""
    parts += [_point(datum, x, y, outline, classes) for line in series.lines for datum in line]
    return _grouped(series.look, "".join(parts))


def _point(datum: Datum, x: Scale, y: Scale, outline: str, classes: str = "") -> str:
    a, b = x(datum.x), y(datum.y)
    size = " scale(.68)" if classes == "small" else ""
    classes = " ".join(word for word in ("pt", classes, "hollow" if datum.hollow else "") if word)
    interval = ""
    if datum.low is not None and datum.high is not None and datum.low < datum.high:
        high, low = y(datum.high) - b, y(datum.low) - b
        interval = f'<path class="iv" d="M0 {high:.1f}V{low:.1f}M-4 {high:.1f}h8M-4 {low:.1f}h8"/>'
    words = ""
    if datum.words:
        left = a + 10 + _LETTER * len(datum.words) > WIDTH
        words = _text(-10 if left else 10, 4, datum.words, "note end" if left else "note")
    return (
        f'<g class="{classes}" transform="translate({a:.1f} {b:.1f}){size}"{_titled(datum.name, datum.numbers)}'
        f'{interval}<path class="m" d="{outline}"/>{words}</g>'
    )


def _titled(name: str, numbers: Sequence[tuple[str, str]]) -> str:
    """The end of an opening tag, and a title: what an element is called, and every number of it."""
    every = "\n".join([name, *(f"{label}: {value}" for label, value in numbers)])
    short = "; ".join([name, *(f"{label} {value}" for label, value in numbers[:4])])
    return f' role="img" tabindex="0" aria-label="{escape(short)}"><title>{escape(every)}</title>'


def _bars_top(panel: Bars) -> int:
    return 24 if panel.title else 4


def _bars(panel: Bars) -> Iterator[str]:
    top, tall = _bars_top(panel), height(panel)
    bottom = tall - _BOTTOM + 4
    values = [sum(part.value for part in bar.parts) for bar in panel.bars if bar.parts]
    values += [end for bar in panel.bars for end in (bar.value, bar.low, bar.high) if end is not None]
    values += [line.x for line in panel.lines if line.x is not None]
    room = 0.24 if any(bar.words for bar in panel.bars) else 0.02
    x = scale(panel.x, values, 4, _RIGHT, head=room)
    if panel.title:
        yield _text(0, 14, panel.title, "head")
    ticks = x.ticks(6)
    yield f'<path class="grid" d="{"".join(f"M{x(value):.1f} {top}V{bottom}" for value, _ in ticks)}"/>'
    for value, words in ticks:
        half = _LETTER * len(words) / 2
        yield _text(min(max(x(value), half), WIDTH - 4 - half), bottom + 17, words, "tick mid")
    yield _text((4 + _RIGHT) / 2, tall - 6, panel.x.label, "axis mid")
    yield from (_bar(bar, x, top + _ROW * place) for place, bar in enumerate(panel.bars))
    yield from (_reference(line, x, x, top, bottom) for line in panel.lines)


def _bar(bar: Bar, x: Scale, top: float) -> str:
    """The name above, the bar below it, and words at its end."""
    middle = top + _LABEL + 6 + _BAR / 2
    inside, end = _parts(bar, x, middle) if bar.parts or bar.value is None else _dot(bar, x, middle)
    words = ""
    if bar.words:
        last = end + 8 + _LETTER * len(bar.words) > WIDTH
        x_words, y_words = (WIDTH - 4, top + _LABEL) if last else (end + 8, middle + 4.5)
        words = _text(x_words, y_words, bar.words, "note end" if last else "note")
    name = bar.name if len(bar.name) <= 56 else f"{bar.name[:55]}…"
    return (
        f'<g class="pt bar {look_class(bar.look)}{" hollow" if bar.hollow else ""}" data-s="{bar.look}"'
        f'{_titled(bar.name, bar.numbers)}<rect class="hit" x="0" y="{top}" width="{WIDTH}" height="{_ROW - 4}"/>'
        f"{_text(4, top + _LABEL, name, 'name')}{inside}{words}</g>"
    )


def _parts(bar: Bar, x: Scale, middle: float) -> tuple[str, float]:
    """The parts of a bar one after the other, and where the last one ends."""
    drawn_parts, reached, end = [], x.low, x(x.low)
    for part in bar.parts:
        begin, end = x(reached), x(reached + part.value)
        reached += part.value
        if end - begin < 0.2:
            continue
        drawn_parts.append(_rectangle(begin, middle - _BAR / 2, max(end - begin - 1, 0.6), _BAR, part.look, ' rx="2"'))
        if part.words and end - begin > 4 + _LETTER * len(part.words):
            classes = f"inside {part.look if isinstance(part.look, str) else ''} mid"
            drawn_parts.append(_text((begin + end) / 2, middle + 4.5, part.words, classes))
    return "".join(drawn_parts), end


def _dot(bar: Bar, x: Scale, middle: float) -> tuple[str, float]:
    """A marker with its interval, and where they end."""
    assert bar.value is not None, "a bar without parts is a dot"
    end, interval = x(bar.value), ""
    if bar.low is not None and bar.high is not None:
        low, high = x(bar.low), x(bar.high)
        interval = f'<path class="iv wide" d="M{low:.1f} {middle:.1f}H{high:.1f}"/>'
        end = max(end, high)
    dot = f'<g transform="translate({x(bar.value):.1f} {middle:.1f})"><path class="m" d="{marker(bar.look)}"/></g>'
    return interval + dot, end + 6

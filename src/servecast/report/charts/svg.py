"""A panel as inline SVG: coloured by the page's variables, so that light, dark and print follow.

Every point is an element with a marker, a name for screen readers and a ``<title>`` with all its numbers, which
browsers show by themselves; ``charts.js`` turns it into a tooltip, and moves between points with the arrow keys.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from servecast.report.charts.looks import PATHS, marker
from servecast.report.charts.scales import Scale, scale
from servecast.report.charts.spec import Bars, Panel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from servecast.report.charts.spec import Area, Bar, Datum, Line, Marks, Series

WIDTH = 520
_LEFT, _RIGHT, _BOTTOM = 58, 506, 50
_TOP = 36
_LETTER = 8.2  # units that a letter may take on a phone, where text is largest
_MARK = {"oom": PATHS["cross"], "preempted": PATHS["down"]}
_WORDS = 300  # letters of a text in a chart: a name may be as long as somebody likes


def drawn(panel: Panel | Bars, label: str) -> str:
    """One ``<svg>``; ``label`` says to a screen reader what it shows."""
    if isinstance(panel, Bars):
        return _bars(panel, label)
    return _axes(panel, label)


def _axes(panel: Panel, label: str) -> str:
    top, bottom = _TOP + (20 if panel.title else 0), panel.height - _BOTTOM
    data = [datum for series in panel.series for line in series.lines for datum in line]
    x, y = _scales(panel, data, top, bottom)
    parts = [_open(panel.height, label)]
    if panel.title:
        parts.append(_text(0, 15, panel.title, "head"))
    parts.append(_text(0, top - 20, panel.y.label, "axis"))
    parts += _grid(x, y, top, bottom)
    parts.append(_text((_LEFT + _RIGHT) / 2, panel.height - 8, panel.x.label, "axis mid"))
    parts += [_area(area, x, y) for area in panel.areas]
    parts += [_reference(line, x, y, top, bottom) for line in panel.lines]
    parts += [_series(series, x, y) for series in panel.series]
    parts += [_marks(marks, x, y) for marks in panel.marks if marks.points]
    return "".join([*parts, "</svg>"])


def _scales(panel: Panel, data: Sequence[Datum], top: float, bottom: float) -> tuple[Scale, Scale]:
    marked = [datum.x for marks in panel.marks for datum in marks.points]
    times = [time for area in panel.areas for time in (area.times[0], area.times[-1]) if len(area.times)]
    through = [place for line in panel.lines for place in line.through]
    wide = [*(datum.x for datum in data), *marked, *times, *(place[0] for place in through)]
    wide += [line.x for line in panel.lines if line.x is not None]
    high = [end for datum in data for end in (datum.y, datum.low, datum.high) if end is not None]
    high += [place[1] for place in through] + [line.y for line in panel.lines if line.y is not None]
    high += [value for area in panel.areas for value in area.high]
    exact = 0.0 if panel.areas else 0.06
    return scale(panel.x, wide, _LEFT, _RIGHT, head=exact), scale(panel.y, high, bottom, top, head=0.08)


def _open(height: float, label: str) -> str:
    return f'<svg class="plot" viewBox="0 0 {WIDTH} {height:g}" role="group" aria-label="{escape(label)}">'


def _text(x: float, y: float, words: str, classes: str) -> str:
    words = words if len(words) <= _WORDS else f"{words[: _WORDS - 1]}…"
    return f'<text x="{x:.4g}" y="{y:.4g}" class="{classes}">{escape(words)}</text>'


def _grid(x: Scale, y: Scale, top: float, bottom: float) -> Iterator[str]:
    rules = [f"M{_LEFT} {y(value):.1f}H{_RIGHT}" for value, _ in y.ticks(6)]
    yield f'<path class="grid" d="{"".join(rules)}"/>'
    yield f'<path class="base" d="M{_LEFT} {bottom}H{_RIGHT}"/>'
    for value, words in y.ticks(6):
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
    told: list[str] = []
    for a, b in places:
        if not told:
            told.append(f"M{a:.1f} {b:.1f}")
        else:
            told.append(f"H{a:.1f}V{b:.1f}" if stepped else f"L{a:.1f} {b:.1f}")
    return "".join(told)


def _stairs(places: Sequence[tuple[float, float]]) -> str:
    return f"M{_LEFT} {places[0][1]:.1f}" + "".join(f"V{b:.1f}H{a:.1f}" for a, b in places)


def _series(series: Series, x: Scale, y: Scale) -> str:
    parts = [f'<g class="l{series.look}" data-s="{series.look}">']
    for line in series.lines:
        if series.joined and len(line) > 1:
            places = [(x(datum.x), y(datum.y)) for datum in line]
            path = _stairs(places) if series.stepped else _path(places)
            parts.append(f'<path class="line" d="{path}"/>')
    for line in () if series.bare else series.lines:
        for datum in line:
            parts.append(
                _point(datum, x, y, marker(series.look), "quiet" if series.quiet else "small" if series.small else "")
            )
    return "".join([*parts, "</g>"])


def _point(datum: Datum, x: Scale, y: Scale, outline: str, classes: str = "") -> str:
    a, b = x(datum.x), y(datum.y)
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
        f'<g class="{classes}" transform="translate({a:.1f} {b:.1f})"{told(datum.name, datum.numbers)}'
        f'{interval}<path class="m" d="{outline}"/>{words}</g>'
    )


def told(name: str, numbers: Sequence[tuple[str, str]]) -> str:
    """The end of an opening tag, and a title: what an element is called, and every number of it."""
    every = "\n".join([name, *(f"{label}: {value}" for label, value in numbers)])
    short = "; ".join([name, *(f"{label} {value}" for label, value in numbers[:4])])
    return f' role="img" tabindex="0" aria-label="{escape(short)}"><title>{escape(every)}</title>'


def _area(area: Area, x: Scale, y: Scale) -> str:
    """A filled step curve; its upper edge is drawn where it is pale."""
    upper = [(x(time), y(value)) for time, value in zip(area.times, area.high, strict=True)]
    lower = [(x(time), y(value)) for time, value in zip(area.times, area.low, strict=True)]
    back = "".join(
        f"V{b:.1f}H{a:.1f}" for a, b in reversed(list(zip((p[0] for p in lower), _held(lower), strict=True)))
    )
    classes = "idle" if area.idle else "pale" if area.pale else "area"
    edge = f'<path class="line thin" d="{_path(upper, stepped=True)}"/>' if area.pale else ""
    return (
        f'<g class="l{area.look}" data-s="{area.look}">'
        f'<path class="{classes}" d="{_path(upper, stepped=True)}{back}Z"/>{edge}</g>'
    )


def _held(places: Sequence[tuple[float, float]]) -> list[float]:
    """Heights on the way back: from each time to the next the height of the earlier one."""
    return [b for _, b in places]


def _marks(marks: Marks, x: Scale, y: Scale) -> str:
    points = (_point(datum._replace(y=marks.y), x, y, _MARK[marks.look]) for datum in marks.points)
    return f'<g class="{marks.look}">{"".join(points)}</g>'


_BAR, _ROW, _LABEL = 22, 56, 17


def _bars(panel: Bars, label: str) -> str:
    top = 24 if panel.title else 4
    bottom = top + _ROW * len(panel.bars) + 2
    height = bottom + _BOTTOM - 4
    values = [end for bar in panel.bars for end in _ends(bar)] + [line.x for line in panel.lines if line.x is not None]
    room = 0.24 if any(bar.words for bar in panel.bars) else 0.02
    x = scale(panel.x, values, 4, _RIGHT, head=room)
    parts = [_open(height, label)]
    if panel.title:
        parts.append(_text(0, 14, panel.title, "head"))
    ticks = x.ticks(6)
    rules = "".join(f"M{x(value):.1f} {top}V{bottom}" for value, _ in ticks)
    parts.append(f'<path class="grid" d="{rules}"/>')
    for value, words in ticks:
        half = _LETTER * len(words) / 2
        parts.append(_text(min(max(x(value), half), WIDTH - 4 - half), bottom + 17, words, "tick mid"))
    parts.append(_text((4 + _RIGHT) / 2, height - 6, panel.x.label, "axis mid"))
    for place, bar in enumerate(panel.bars):
        parts.append(_bar(bar, x, top + _ROW * place))
    parts += [_reference(line, x, x, top, bottom) for line in panel.lines]
    return "".join([*parts, "</svg>"])


def _ends(bar: Bar) -> Iterator[float]:
    if bar.parts:
        yield sum(part.value for part in bar.parts)
    yield from (end for end in (bar.value, bar.low, bar.high) if end is not None)


def _bar(bar: Bar, x: Scale, top: float) -> str:
    """The name above, the bar below it, and words at its end."""
    middle = top + _LABEL + 6 + _BAR / 2
    parts = [
        f'<g class="pt bar l{bar.look}{" hollow" if bar.hollow else ""}" data-s="{bar.look}"',
        told(bar.name, bar.numbers),
        f'<rect class="hit" x="0" y="{top}" width="{WIDTH}" height="{_ROW - 4}"/>',
        _text(4, top + _LABEL, _cut(bar.name), "name"),
    ]
    end = x(x.low)
    if bar.parts:
        reached = x.low
        for part in bar.parts:
            begin, end = x(reached), x(reached + part.value)
            reached += part.value
            if end - begin < 0.2:
                continue
            look = f"part l{part.look}" if isinstance(part.look, int) else f"part {part.look}"
            parts.append(
                f'<rect class="{look}" x="{begin:.1f}" y="{middle - _BAR / 2:.1f}" '
                f'width="{max(end - begin - 1, 0.6):.1f}" height="{_BAR}" rx="2"/>'
            )
            if part.words and end - begin > 4 + _LETTER * len(part.words):
                classes = f"inside {part.look if isinstance(part.look, str) else ''} mid"
                parts.append(_text((begin + end) / 2, middle + 4.5, part.words, classes))
    elif bar.value is not None:
        end = x(bar.value)
        if bar.low is not None and bar.high is not None:
            low, high = x(bar.low), x(bar.high)
            parts.append(f'<path class="iv wide" d="M{low:.1f} {middle:.1f}H{high:.1f}"/>')
            end = max(end, high)
        parts.append(
            f'<g transform="translate({x(bar.value):.1f} {middle:.1f})"><path class="m" d="{marker(bar.look)}"/></g>'
        )
        end += 6
    if bar.words:
        last = end + 8 + _LETTER * len(bar.words) > WIDTH
        parts.append(
            _text(
                WIDTH - 4 if last else end + 8,
                top + _LABEL if last else middle + 4.5,
                bar.words,
                "note end" if last else "note",
            )
        )
    return "".join([*parts, "</g>"])


def _cut(name: str, longest: int = 56) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"

"""A chart as a figure of a page: what it teaches, legend, panels, its numbers as a table, and that table as a file."""

from __future__ import annotations

import base64
import csv
import io
from html import escape
from typing import TYPE_CHECKING

from servecast.report.charts.looks import PATHS, marker
from servecast.report.charts.spec import Bars
from servecast.report.charts.svg import draw, look_class
from servecast.text import BLANK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from servecast.report.charts.spec import Bar, Chart, Datum, Key, Panel, Span

MOST_ROWS = 120  # of a table under a chart; the file has all of them


def figure(chart: Chart) -> str:
    """The chart as ``<figure>``."""
    arranged = " stacked" if chart.stacked else {1: " lone", 3: " three"}.get(len(chart.panels), "")
    panels = "".join(
        draw(panel, f"{chart.title}: {panel.title}" if panel.title else chart.title) for panel in chart.panels
    )
    note = f'<p class="quiet">{escape(chart.note)}</p>' if chart.note else ""
    return (
        f'<figure class="chart{arranged}" id="{escape(chart.name)}">'
        f"<figcaption><p>{escape(chart.caption)}</p>{_legend(chart.legend)}{note}</figcaption>"
        f'<div class="panels">{panels}</div>{_numbers(chart)}</figure>'
    )


def _legend(keys: Sequence[Key]) -> str:
    """An entry is a button that hides its series, or an explanation."""
    entries = ""
    for key in keys:
        entry = f'<svg class="swatch" viewBox="-9 -7 18 14" aria-hidden="true">{swatch(key)}</svg>{escape(key.name)}'
        if isinstance(key.look, int):
            entry = f'<button type="button" class="key" data-s="{key.look}" aria-pressed="true">{entry}</button>'
        entries += f"<li>{entry}</li>"
    return f'<ul class="legend">{entries}</ul>' if keys else ""


_SHAPES = {
    "oom": f'<path class="m" d="{PATHS["cross"]}"/>',
    "preempted": f'<path class="m" d="{PATHS["down"]}"/>',
    "hollow": f'<path class="m" d="{PATHS["circle"]}"/>',
    "strong": '<path class="strong" d="M-8 0H8"/>',
    "frontier": '<path class="band" d="M-3 2L3 -2"/>',
    "aim": '<path class="aim" d="M-8 0H8"/>',
    "interval": '<path class="iv" d="M0 -6V6M-3 -6h6M-3 6h6"/>',
}


def swatch(key: Key) -> str:
    """What stands before an entry of a legend, around (0, 0)."""
    if key.line is not None:
        shape = f'<path class="line {key.line}" d="M-8 0H8"/>'
    elif isinstance(key.look, int):
        shape = f'<path class="m" d="{marker(key.look)}"/>'
    else:
        shape = _SHAPES.get(key.look, '<rect class="part" x="-6" y="-5" width="12" height="10" rx="2"/>')
    own = key.look in ("strong", "aim")  # their line has the class itself
    return shape if own else f'<g class="{look_class(key.look)}">{shape}</g>'


def _numbers(chart: Chart) -> str:
    """What the tooltips say, for eyes that do not read charts: a row a point, each once, as a table and as a file."""
    points = [
        (each.name, dict(each.numbers)) for panel in chart.panels for each in _with_tooltips(panel) if each.numbers
    ]
    if not points:
        return ""
    labels = dict.fromkeys(label for _, numbers in points for label in numbers)
    heads = ("name", *labels)
    rows = list(dict.fromkeys((name, *(numbers.get(label, BLANK) for label in labels)) for name, numbers in points))
    more = ""
    if len(rows) > MOST_ROWS:
        more = f'<p class="quiet">The first {MOST_ROWS} of {len(rows):,} rows; the file has all.</p>'
    return (
        '<div class="numbers"><details><summary>The numbers of this chart</summary>'
        f"{table(heads, rows[:MOST_ROWS], chart.title)}{more}</details>"
        f"{download(f'{chart.name}.csv', _csv([heads, *rows]))}</div>"
    )


def _with_tooltips(panel: Panel | Bars) -> Iterator[Datum | Bar | Span]:
    if isinstance(panel, Bars):
        yield from panel.bars
        return
    yield from (datum for series in panel.series for line in series.lines for datum in line)
    yield from panel.spans
    yield from (datum for marks in panel.marks for datum in marks.points)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], label: str, classes: str = "") -> str:
    """A table that scrolls by itself where it is wider than the page; the first cell of a row is its name.

    classes : ``cards``: on a phone a row is a card, with each head before its value
    """
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    names = [f' data-label="{escape(name)}"' if classes == "cards" else "" for name in heads]
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td{name}>{escape(cell)}</td>" for name, cell in zip(names[1:], row[1:], strict=True))
        + "</tr>"
        for row in rows
    )
    classes = f' class="{classes}"' if classes else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(label)}"><table{classes}>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def download(name: str, data: bytes) -> str:
    """A link that saves ``data``, which travels in the page: it needs neither a server nor script."""
    text, count = base64.b64encode(data).decode(), len(data)
    size = f"{count} B" if count < 1000 else f"{count / 1000:.0f} kB" if count < 999_500 else f"{count / 1e6:.1f} MB"
    return (
        f'<a class="csv" download="{escape(name)}" href="data:text/csv;charset=utf-8;base64,{text}">'
        f'{escape(name)}<span class="quiet"> {size}</span></a>'
    )


def _csv(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()

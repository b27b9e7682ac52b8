"""A chart as a file of its own: the drawing of the page with its title, its legend and its style inside.

The SVG is the same bytes each time. A PNG is made of it by resvg, which is an extra (``servecast[figures]``).
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from typing import TYPE_CHECKING

from servecast.errors import InputError
from servecast.report.charts.figure import swatch
from servecast.report.charts.looks import LIGHT, read
from servecast.report.charts.svg import WIDTH, draw, height, look_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from servecast.report.charts.spec import Chart, Key

FORMS = ("svg", "png")
_WIDE, _LONE, _GAP, _EDGE = 1080, 760, 28, 16  # units: of a file, of one with a single panel, between and around panels
_HEAD, _ENTRY = 34, 24  # units of the title, and of each line of the legend
_LETTER = 7.2  # units of a letter of the legend
_ZOOM = 1.5  # dots of a PNG for each unit
_FONT = '"DejaVu Sans", Verdana, "Liberation Sans", Arial, sans-serif'


def write_figures(folder: Path, charts: Sequence[Chart], forms: Sequence[str], mark: str = "") -> list[str]:
    """Write each chart in each of ``forms`` (``svg``, ``png``); the names of the files. ``mark`` ends each title.

    Files of these charts in other forms, of an earlier call, are taken away.

    Raises InputError: no figure can be made of a form here.
    """
    names = []
    for chart in charts:
        for form in FORMS:
            path = folder / f"{chart.name}.{form}"
            if form in forms:
                path.write_bytes(encoded(chart, form, mark))
                names.append(path.name)
            else:
                path.unlink(missing_ok=True)
    return names


def encoded(chart: Chart, form: str, mark: str = "") -> bytes:
    """The bytes of a figure file."""
    svg = _standalone(chart, mark)
    return _png(svg) if form == "png" else svg.encode()


def _standalone(chart: Chart, mark: str = "") -> str:
    """A chart as an SVG document: title, legend, panels in a grid as on the page."""
    columns = 1 if chart.stacked else 3 if len(chart.panels) == 3 else min(len(chart.panels), 2)
    width = _WIDE if columns > 1 else _LONE
    each = (width - 2 * _EDGE - (columns - 1) * _GAP) / columns
    rows = [chart.panels[at : at + columns] for at in range(0, len(chart.panels), columns)]
    legend, top = _legend(chart.legend, width)
    parts = []
    for row in rows:
        for at, panel in enumerate(row):
            x, tall = _EDGE + at * (each + _GAP), each * height(panel) / WIDTH
            label = f"{chart.title}: {panel.title}" if panel.title else chart.title
            parts.append(draw(panel, label, f' x="{x:.1f}" y="{top:.1f}" width="{each:.1f}" height="{tall:.1f}"'))
        top += max(each * height(panel) / WIDTH for panel in row) + _EDGE
    title = f'<text class="title" x="{_EDGE}" y="{_EDGE + 10}">{escape(chart.title + mark)}</text>'
    size = 12 * WIDTH / each
    scaled = f".plot text{{font-size:{size:.4g}px}}.plot .head{{font-size:{1.1 * size:.4g}px}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top:.0f}" width="{width}" height="{top:.0f}">'
        f"<title>{escape(chart.title)}</title><desc>{escape(chart.caption)}</desc><style>{_style()}{scaled}</style>"
        f'<rect width="{width}" height="{top:.0f}" fill="#ffffff"/>{title}{legend}{"".join(parts)}</svg>\n'
    )


def _legend(keys: Sequence[Key], width: float) -> tuple[str, float]:
    """Entries in lines as wide as the figure, and where they end."""
    parts, x, y = [], float(_EDGE), float(_EDGE + _HEAD)
    for key in keys:
        long = 30 + _LETTER * len(key.name)
        if x + long > width and x > _EDGE:
            x, y = float(_EDGE), y + _ENTRY
        parts.append(
            f'<g transform="translate({x + 9:.1f} {y - 4:.1f})">{swatch(key)}</g>'
            f'<text class="entry" x="{x + 24:.1f}" y="{y:.1f}">{escape(key.name)}</text>'
        )
        x += long + 14
    return "".join(parts), y + _ENTRY if keys else y - _ENTRY / 2


@cache
def _style() -> str:
    """The style of the charts with every variable replaced by its value on a light page.

    A rule with ``var(--c)``, the colour of whatever look it is in, becomes one rule a look.
    """
    values = dict(re.findall(r"--([\w-]+): ([^;]+);", read("page.css").split("}", 1)[0]))
    values |= {f"s{place}": colour for place, colour in enumerate(LIGHT)}
    css = re.sub(r"/\*.*?\*/", "", read("chart.css"), flags=re.DOTALL)
    rules = re.findall(r"([^{}]+){([^{}]*)}", css)
    looks = {f".{look_class(place)}": f"var(--s{place})" for place in range(len(LIGHT))}
    for selector, body in rules:
        if found := re.fullmatch(r"\s*--c: ([^;]+);\s*", body):
            looks |= dict.fromkeys((name.strip() for name in selector.split(",")), found[1])
    sheet = [f"text{{font-family:{_FONT};font-size:12px;fill:{values['ink']}}}.title{{font-size:16px;font-weight:600}}"]
    sheet += _rules(rules, looks)
    return re.sub(r"var\(--([\w-]+)\)", lambda name: values[name[1]], "".join(sheet))


def _rules(rules: Sequence[tuple[str, str]], looks: dict[str, str]) -> Iterator[str]:
    for selector, body in rules:
        body = re.sub(r"\s*([:;])\s*", r"\1", body.strip())
        names = [name.strip() for name in selector.split(",")]
        if body.startswith("--c:"):
            continue
        plain = re.sub(r"var\(--c, (var\([^)]*\))\)", r"\1", body)
        if plain != body or "var(--c)" not in body:
            yield f"{','.join(names)}{{{plain}}}"
        if "var(--c" in body:
            for look, colour in looks.items():
                every = ",".join(f"{look} {name},{look}{name}" for name in names)
                yield f"{every}{{{re.sub(r'var[(]--c(, var[(][^)]*[)])?[)]', colour, body)}}}"


def _png(svg: str) -> bytes:
    """The picture of an SVG document."""
    require_png()
    from resvg_py import svg_to_bytes

    return bytes(svg_to_bytes(svg_string=svg, zoom=_ZOOM))


def require_png() -> None:
    """Raises InputError where resvg is not installed, or finds no font: every text would be missing."""
    try:
        import resvg_py  # noqa: F401
    except ImportError:
        raise InputError("png", "needs resvg: pip install 'servecast[figures]'; svg needs nothing") from None
    if not _has_fonts():
        problem = "resvg finds no font on this machine: install one (on Debian: fonts-dejavu-core), or use svg"
        raise InputError("png", problem)


@cache
def _has_fonts() -> bool:
    """Whether a letter leaves a trace."""
    from resvg_py import svg_to_bytes

    opened = f"<svg xmlns='http://www.w3.org/2000/svg' width='20' height='20'><text y='15' style='font-family:{_FONT}'>"
    blank, letter = (bytes(svg_to_bytes(svg_string=f"{opened}{text}</text></svg>")) for text in ("", "M"))
    return blank != letter

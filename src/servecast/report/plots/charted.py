"""The figure file of a chart of the page: the same panels and points, drawn by matplotlib."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D

from servecast.report.charts.spec import Bars, Panel
from servecast.report.plots.style import (
    ALARM,
    COLOURS,
    INK,
    MARKERS,
    MORE_COLOURS,
    MORE_MARKERS,
    QUIET,
    Plot,
    canvas,
    heading,
    legend,
    logarithmic,
    settings,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from servecast.report.charts.spec import Chart, Datum, Key

_HEAD, _LINE = 0.66, 0.22  # inches above the axes, and for another line of the legend
_LETTERS = 100  # that a line of the legend holds, its lines and markers counted
_COLOURS = (*COLOURS.values(), *MORE_COLOURS)
_SHAPES = (*MARKERS.values(), *MORE_MARKERS)


def charted(chart: Chart, title: str) -> Plot:
    """A chart as a `Plot` for files."""
    bars = [panel for panel in chart.panels if isinstance(panel, Bars)]
    height = 0.7 + 0.5 * max(len(panel.bars) for panel in bars) if bars else 3.8
    with settings():
        handles = [_handle(key) for key in chart.legend if key.look != "aim"]
        two_rows = sum(len(str(handle.get_label())) + 6 for handle in handles) > _LETTERS
        figure, [row] = canvas(title, height, 1, len(chart.panels), head=_HEAD + (_LINE if two_rows else 0))
        for axes, panel in zip(row, chart.panels, strict=True):
            if isinstance(panel, Bars):
                _bars(axes, panel)
            else:
                _panel(axes, panel)
        legend(figure, handles, ncols=math.ceil(len(handles) / 2) if two_rows else len(handles))
    return Plot(chart.name, chart.title, chart.caption, figure)


def _panel(axes: Axes, panel: Panel) -> None:
    for series in panel.series:
        colour, shape = _COLOURS[series.look], _SHAPES[series.look]
        for line in series.lines:
            if series.joined:
                axes.plot([d.x for d in line], [d.y for d in line], color=colour, alpha=0.7, zorder=2)
            for hollow in (False, True):
                points = [datum for datum in line if datum.hollow is hollow]
                axes.plot(
                    [d.x for d in points],
                    [d.y for d in points],
                    linestyle="none",
                    marker=shape,
                    markersize=7,
                    color=colour,
                    markerfacecolor="white" if hollow else colour,
                    zorder=3,
                )
            for low, high, datum in _intervals(line):
                axes.plot([datum.x] * 2, [low, high], color=colour, linewidth=1.2, zorder=2)
    for own in panel.lines:
        look: dict[str, Any] = {"color": INK if own.strong else QUIET, "linewidth": 1.3, "zorder": 1}
        if own.through:
            axes.plot([x for x, _ in own.through], [y for _, y in own.through], linestyle="--", **look)
        elif own.y is not None:
            axes.axhline(own.y, linestyle=(0, (4, 3)), **look)
            axes.annotate(
                own.words,
                (0.01, own.y),
                (0, 3),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                color=QUIET,
                fontsize=8,
            )
    axes.set(xlabel=panel.x.label, ylabel=panel.y.label)
    for chosen, axis, name in ((panel.x, axes.xaxis, "x"), (panel.y, axes.yaxis, "y")):
        if chosen.log:
            axes.set(**{f"{name}scale": "log"})
            logarithmic(axis)
        elif chosen.limits is not None:
            axes.set(**{f"{name}lim": chosen.limits})
        elif chosen.base is not None:
            axes.set(**{f"{name}lim": (chosen.base, None)})


def _intervals(line: tuple[Datum, ...]) -> list[tuple[float, float, Datum]]:
    return [(datum.low, datum.high, datum) for datum in line if datum.low is not None and datum.high is not None]


def _bars(axes: Axes, panel: Bars) -> None:
    longest = max(sum(part.value for part in bar.parts) for bar in panel.bars)
    for place, bar in enumerate(panel.bars):
        length = sum(part.value for part in bar.parts)
        axes.barh(place, length, 0.62, color=_COLOURS[bar.look])
        axes.annotate(bar.words, (length, place), (5, 0), textcoords="offset points", va="center")
    for line in panel.lines:
        if line.x is not None:
            axes.axvline(line.x, color=INK, linewidth=1.3)
    axes.set_yticks(range(len(panel.bars)), [heading(bar.name, 28) for bar in panel.bars])
    axes.set(xlim=panel.x.limits or (0, 1.3 * longest), ylim=(len(panel.bars) - 0.5, -0.5), xlabel=panel.x.label)
    axes.grid(visible=False, axis="y")


def _handle(key: Key) -> Line2D:
    if isinstance(key.look, int):
        shape, colour = _SHAPES[key.look], _COLOURS[key.look]
        return Line2D([], [], color=colour, marker=shape, label=heading(key.name, 30))
    if key.look == "frontier":
        return Line2D([], [], color=INK, linestyle="--", label=key.name.split(":")[0])
    if key.look == "interval":
        return Line2D([], [], color=QUIET, linestyle="none", marker="|", label=key.name)
    face = ALARM if key.look == "oom" else "white"
    return Line2D([], [], marker="o", color=QUIET, markerfacecolor=face, linestyle="none", label=key.name)

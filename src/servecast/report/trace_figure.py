"""The figure of a trace: arrivals over time, lengths together, and what a prefix cache could find again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from servecast.report.plots.style import COLOURS, INK, QUIET, Plot, canvas, settings
from servecast.text import number
from servecast.workload.prefixes import PrefixIds, chained, first_places
from servecast.workload.traces.statistics import joint_histogram, reusable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from servecast.workload.clients import RequestColumns

BINS = 240  # of the time axis, at most, whatever the length of the trace
_BLUE = COLOURS["continuous"]


def trace_figure(columns: RequestColumns, name: str) -> Plot:
    """Arrivals over time above; below prompts against outputs and, where the trace has prefix ids, the share of prompt
    tokens that an infinite cache would find again."""
    reuse = reusable(columns)
    with settings():
        figure, [[arrivals, lengths, prefixes]] = canvas(f"Trace {name}", 3.3, 1, 3, head=0.4)
        _arrivals(arrivals, columns)
        _lengths(figure, lengths, columns)
        if reuse is None:
            _say(prefixes, "no prefix ids")
            prefixes.set_axis_off()
        else:
            _reuse(prefixes, columns)
    found = "" if reuse is None else f"; an infinite prefix cache finds {reuse.token_hit_rate:.0%} of prompt tokens"
    rate = "all at once" if columns.offered_rps is None else f"{number(columns.offered_rps, 3)} requests/s on average"
    return Plot("trace", f"Trace {name}", f"{len(columns):,} requests, {rate}{found}.", figure)


def _arrivals(axes: Axes, columns: RequestColumns) -> None:
    axes.set_title("Arrivals")
    axes.set_xlabel("time [s]")
    axes.set_ylabel("requests/s")
    span_s = columns.span_s
    if not span_s:
        _say(axes, "all at once")
        return
    width_s = _round_width(span_s / BINS)
    counts = np.bincount(((columns.arrival_s - columns.arrival_s[0]) / width_s).astype(np.int64))
    edges = columns.arrival_s[0] + np.arange(len(counts) + 1) * width_s
    axes.stairs(counts / width_s, edges, color=_BLUE, linewidth=1.0)
    mean = columns.offered_rps or 0.0
    axes.axhline(mean, color=INK, linestyle="--", linewidth=1.0)
    axes.set_ylim(0, None)
    axes.set_title(f"Arrivals, in {number(width_s, 2)} s")


def _say(axes: Axes, words: str) -> None:
    axes.text(0.5, 0.5, words, ha="center", va="center", color=QUIET, transform=axes.transAxes)


def _round_width(least_s: float) -> float:
    """The first of 1, 2, 5, 10, ... seconds (or a fraction so rounded) that is at least ``least_s``."""
    power = 10.0 ** np.floor(np.log10(least_s))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= least_s * (1 - 1e-9)))


def _lengths(figure: Figure, axes: Axes, columns: RequestColumns) -> None:
    histogram = joint_histogram(columns)
    counts = np.ma.masked_equal(histogram.counts.T, 0)
    top = max(int(histogram.counts.max()), 2)
    mesh = axes.pcolormesh(histogram.prompt_edges, histogram.output_edges, counts, cmap="Blues", norm=LogNorm(1, top))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10))
        axis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 1)))
        axis.set_minor_formatter(NullFormatter())
    axes.set_title("Lengths")
    axes.set_xlabel("prompt [tokens]")
    axes.set_ylabel("output [tokens]")
    axes.grid(visible=False)
    figure.colorbar(mesh, ax=axes, label="requests")


def _reuse(axes: Axes, columns: RequestColumns) -> None:
    """The share of blocks found again, of all prompts up to each moment."""
    given = columns.prefix_ids
    assert given is not None, "there is something to reuse"
    ids = chained(given if isinstance(given, PrefixIds) else PrefixIds.of(given))
    found = first_places(ids.flat) != np.arange(len(ids.flat))
    upto = np.concatenate([[0], np.cumsum(found)])[ids.ends] / np.maximum(ids.ends, 1)
    shown = np.unique(np.linspace(0, len(columns) - 1, min(BINS, len(columns))).astype(int))
    axes.plot(columns.arrival_s[shown], 100 * upto[shown], color=_BLUE)
    axes.set_title("Prefix blocks found again")
    axes.set_xlabel("time [s]")
    axes.set_ylabel("share so far [%]")
    axes.set_ylim(0, 100)

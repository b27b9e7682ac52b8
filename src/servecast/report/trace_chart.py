"""The figure of a trace: arrivals over time, lengths together, and what a prefix cache could find again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from servecast.report.charts.spec import Axis, Chart, Curve, Key, Line, Panel, Piece, Span, evenly
from servecast.text import number, percent
from servecast.workload.prefixes import chained, first_places
from servecast.workload.traces.statistics import in_known_blocks, joint_histogram, reusable

if TYPE_CHECKING:
    from servecast.workload.clients import RequestColumns

BINS = 240  # of the time axis, at most, whatever the length of the trace
_LOOK = 2  # place in the palette


def trace_chart(columns: RequestColumns, name: str) -> Chart:
    """Arrivals over time, prompts against outputs, and the share of prompt tokens that an infinite cache would find
    again, where the trace has prefix ids. What arrives at once has no arrivals over time."""
    reuse = reusable(columns)
    panels = [_arrivals(columns)] if columns.offered_rps else []
    panels.append(_lengths(columns))
    found = "no prefix ids"
    if reuse is not None:
        panels.append(_reuse(columns))
        found = f"an infinite prefix cache finds {percent(reuse.token_hit_rate, 0)} of prompt tokens"
    rate = "all at once" if columns.offered_rps is None else f"{number(columns.offered_rps, 3)} requests/s on average"
    legend = [Key("more requests: darker", "heat"), *([Key("mean rate", "strong")] if columns.offered_rps else [])]
    caption = f"{len(columns):,} requests, {rate}; {found}."
    return Chart("trace", f"Trace {name}", caption, tuple(panels), legend=tuple(legend))


def _arrivals(columns: RequestColumns) -> Panel:
    width_s = _round_width(columns.span_s / BINS)
    counts = np.bincount(((columns.arrival_s - columns.arrival_s[0]) / width_s).astype(np.int64))
    edges = columns.arrival_s[0] + np.arange(len(counts) + 1) * width_s
    rates = counts / width_s
    curve = Curve(_LOOK, edges.tolist(), [*rates.tolist(), float(rates[-1])], stepped=True)
    mean = columns.offered_rps or 0.0
    lines = (Line("", y=mean, strong=True),)
    title = f"Arrivals, in {number(width_s, 2)} s"
    return Panel(Axis("time [s]"), Axis("requests/s", base=0.0), title=title, lines=lines, curves=(curve,))


def _round_width(least_s: float) -> float:
    """The first of 1, 2, 5, 10, ... seconds (or a fraction so rounded) that is at least ``least_s``."""
    power = 10.0 ** math.floor(math.log10(least_s))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least_s * (1 - 1e-9))


def _lengths(columns: RequestColumns) -> Panel:
    """A cell for each pair of lengths that occurs, darker with the logarithm of the requests in it."""
    histogram = joint_histogram(columns)
    prompts, outputs = histogram.prompt_edges.tolist(), histogram.output_edges.tolist()
    top = math.log1p(max(int(histogram.counts.max()), 2))
    spans = []
    for i, j in np.argwhere(histogram.counts > 0).tolist():
        count = int(histogram.counts[i, j])
        piece = Piece(prompts[i], prompts[i + 1], "heat", weight=math.log1p(count) / top)
        numbers = (("requests", f"{count:,}"), ("output tokens", f"{outputs[j]:,.0f} to {outputs[j + 1]:,.0f}"))
        name = f"prompts of {prompts[i]:,.0f} to {prompts[i + 1]:,.0f} tokens"
        spans.append(Span(name, numbers, outputs[j], outputs[j + 1], (piece,), "heat"))
    x, y = Axis("prompt [tokens]", log=True), Axis("output [tokens]", log=True)
    return Panel(x, y, title="Lengths", spans=tuple(spans))


def _reuse(columns: RequestColumns) -> Panel:
    """The share of blocks found again, of all prompts up to each moment."""
    given = in_known_blocks(columns).prefix_ids
    assert given is not None, "there is something to reuse"
    ids = chained(given)
    found = first_places(ids.flat) != np.arange(len(ids.flat))
    upto = np.concatenate([[0], np.cumsum(found)])[ids.ends] / np.maximum(ids.ends, 1)
    shown = evenly(len(columns), BINS)
    curve = Curve(_LOOK, columns.arrival_s[shown].tolist(), (100 * upto[shown]).tolist())
    y = Axis("share so far [%]", limits=(0.0, 100.0))
    return Panel(Axis("time [s]"), y, title="Prefix blocks found again", curves=(curve,))

"""Recorded and simulated over each other: distributions, rows over time, latencies along the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.against.server.observed import LATENCIES
from servecast.metrics import LATENCIES as NAMES
from servecast.report.charts.spec import Area, Axis, Chart, Curve, Datum, Key, Panel, tooltips
from servecast.text import BLANK, number, signed

if TYPE_CHECKING:
    from servecast.against.server.compared import Comparison
    from servecast.against.server.observed import Observed

_SIMULATED = 2  # place in the palette
_LEVELS = np.concatenate([[0.001, 0.005], np.linspace(0.01, 0.99, 99), [0.995, 0.999]])
_RANKS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)  # quantiles that have tooltips
_MOMENTS = 300
_STRETCHES = 60
_KEYS = (Key("recorded", "ink", ""), Key("simulated", _SIMULATED, "dashed"))


def charts(compared: Comparison) -> list[Chart]:
    """Every chart of the page."""
    return [_distributions(compared), _over_time(compared), _along(compared)]


def _distributions(compared: Comparison) -> Chart:
    names = [name for name in LATENCIES if (~np.isnan(getattr(compared.recorded, name)[compared.judged])).any()]
    keys = list(_KEYS)
    if compared.band:
        keys.append(Key(f"simulated, steps {100 * compared.band[0]:g} % shorter to longer", "tail"))
    if compared.twin:
        keys.append(Key("twin of the recording", "faint", "dotted"))
    distances = ", ".join(f"{LATENCIES[name]} {compared.mean(name)['ks_distance']:.3f}" for name in names)
    caption = f"Largest vertical distance between recorded and simulated (Kolmogorov-Smirnov): {distances}."
    title = "Latency distributions, from the send"
    panels = tuple(_quantiles(compared, name) for name in names)
    return Chart("distributions", title, caption, panels, tuple(keys))


def _quantiles(compared: Comparison, name: str) -> Panel:
    """The distributions of one latency."""

    def values(seen: Observed) -> Any:
        every = getattr(seen, name)[compared.judged]
        return every[~np.isnan(every)]

    recorded, simulated = values(compared.recorded), values(compared.simulated)
    height = (100 * _LEVELS).tolist()

    def curve(of: Any, look: int | str, style: str = "") -> Curve:
        return Curve(look, np.quantile(of, _LEVELS).tolist(), height, style)

    areas: tuple[Area, ...] = ()
    if compared.band:
        low, high = (np.quantile(values(seen), _LEVELS).tolist() for seen in compared.band[1:])
        areas = (Area(_SIMULATED, [*low, *reversed(high)], (), [*height, *reversed(height)], pale=True, slanted=True),)
    curves = [curve(values(compared.twin[1]), "faint", "dotted")] if compared.twin else []
    curves += [curve(recorded, "ink"), curve(simulated, _SIMULATED, "dashed")]
    points = []
    for rank, one, other in zip(_RANKS, np.quantile(recorded, _RANKS), np.quantile(simulated, _RANKS), strict=True):
        error = signed(float(other / one - 1), 2) if one else BLANK
        figures = (("recorded [s]", number(float(one), 4)), ("simulated [s]", number(float(other), 4)))
        points.append(
            Datum(float(other), 100 * rank, f"{LATENCIES[name]}, p{100 * rank:g}", (*figures, ("error", error)))
        )
    series = tooltips("simulated", _SIMULATED, points)
    y = Axis("requests answered within [%]", limits=(0.0, 103.0))
    return Panel(Axis(f"{NAMES[name[:-2]].words} [s]", log=True), y, series, curves=tuple(curves), areas=areas)


def _over_time(compared: Comparison) -> Chart:
    runs = ((compared.recorded, "ink", ""), (compared.simulated, _SIMULATED, "dashed"))
    end = max(float(seen.finished_s.max()) for seen, _, _ in runs)
    moments = np.linspace(0.0, end, _MOMENTS)
    panels: list[Panel] = []
    for title in ("in flight: sent, not yet answered", "answers being written"):
        curves = []
        for seen, look, style in runs:
            starts = seen.sent_s if not panels else seen.sent_s + seen.ttft_s
            there = np.searchsorted(np.sort(starts), moments, "right")
            there = there - np.searchsorted(np.sort(seen.finished_s), moments, "right")
            curves.append(Curve(look, moments.tolist(), there.tolist(), style, stepped=True))
        time = Axis("time [s]", limits=(0.0, end))
        panels.append(Panel(time, Axis("requests", base=0.0), title=title, curves=tuple(curves), height=250))
    means = [float(seen.e2e_s.sum()) / seen.makespan_s for seen, _, _ in runs]
    caption = f"In flight on average: {number(means[0])} recorded, {number(means[1])} simulated."
    return Chart("over-time", "Requests over time", caption, tuple(panels), _KEYS, stacked=True)


def _along(compared: Comparison) -> Chart:
    """Means of consecutive requests: a clock that changed halfway, or a queue that was missed, shows here."""
    arrival = compared.recorded.arrival_s
    parts = np.array_split(np.arange(len(arrival)), min(_STRETCHES, len(arrival)))
    at = [float(arrival[part].mean()) for part in parts]
    panels = []
    for name in ("ttft_s", "e2e_s"):
        means = [
            [float(getattr(seen, name)[part].mean()) for part in parts]
            for seen in (compared.recorded, compared.simulated)
        ]
        points = []
        for time, recorded, simulated in zip(at, *means, strict=True):
            numbers = (("arrival [s]", number(time, 4)), ("recorded [s]", number(recorded, 4)),
                       ("simulated [s]", number(simulated, 4)))  # fmt: skip
            points.append(Datum(time, simulated, LATENCIES[name], numbers))
        curves = (Curve("ink", at, means[0]), Curve(_SIMULATED, at, means[1], "dashed"))
        series = tooltips("simulated", _SIMULATED, points)
        title = f"{LATENCIES[name]}, means of {len(parts[0]):,} requests that follow each other"
        panels.append(Panel(Axis("arrival [s]"), Axis("[s]", base=0.0), series, title=title, curves=curves, height=250))
    caption = f"Error of the mean of E2E over the run: {signed(compared.mean('e2e_s')['error'], 2)}."
    return Chart("along", "Latencies along the run", caption, tuple(panels), _KEYS, stacked=True)

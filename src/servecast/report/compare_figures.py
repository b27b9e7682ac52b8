"""Recorded and simulated over each other: distributions, rows over time, latencies along the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from servecast import metrics
from servecast.against.server.observed import LATENCIES
from servecast.report.plots.style import COLOURS, INK, QUIET, Plot, canvas, legend, logarithmic, settings
from servecast.text import number, signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from servecast.against.server.compared import Comparison
    from servecast.against.server.observed import Observed

_SIMULATED = COLOURS["continuous"]
_LEVELS = np.linspace(0.001, 0.999, 500)
_MOMENTS = 600
_STRETCHES = 60


def draw(compared: Comparison) -> list[Plot]:
    """Every figure of the page."""
    return [_distributions(compared), _over_time(compared), _along(compared)]


def _distributions(compared: Comparison) -> Plot:
    names = [name for name in LATENCIES if (~np.isnan(getattr(compared.recorded, name)[compared.judged])).any()]
    with settings():
        figure, [row] = canvas("Latency distributions, from the send", 3.3, 1, len(names), sharey=True)
        for axes, name in zip(row, names, strict=True):
            _curves(axes, compared, name)
            axes.set(xscale="log", xlabel=f"{metrics.LATENCIES[name[:-2]].words} [s]", ylim=(0, 103))
            logarithmic(axes.xaxis)
        row[0].set_ylabel("requests answered within [%]")
        legend(figure, _handles(compared, band=True))
    distances = ", ".join(f"{LATENCIES[name]} {compared.mean(name)['ks_distance']:.3f}" for name in names)
    caption = f"Largest vertical distance between recorded and simulated (Kolmogorov-Smirnov): {distances}."
    return Plot("distributions", "Latency distributions", caption, figure)


def _curves(axes: Axes, compared: Comparison, name: str) -> None:
    def quantiles(seen: Observed) -> NDArray[np.float64]:
        values = getattr(seen, name)[compared.judged]
        found: NDArray[np.float64] = np.quantile(values[~np.isnan(values)], _LEVELS)
        return found

    height = 100 * _LEVELS
    if compared.band:
        low, high = quantiles(compared.band[1]), quantiles(compared.band[2])
        axes.fill_betweenx(height, low, high, color=_SIMULATED, alpha=0.18, linewidth=0)
    if compared.twin:
        axes.plot(quantiles(compared.twin[1]), height, color=QUIET, linestyle=(0, (2, 2)), linewidth=1.3)
    axes.plot(quantiles(compared.recorded), height, color=INK)
    axes.plot(quantiles(compared.simulated), height, color=_SIMULATED, linestyle=(0, (6, 2)))


def _over_time(compared: Comparison) -> Plot:
    panels = ("in flight: sent, not yet answered", "answers being written")
    runs = [(compared.recorded, INK, "-"), (compared.simulated, _SIMULATED, (0, (6, 2)))]
    end = max(float(seen.finished_s.max()) for seen, _, _ in runs)
    moments = np.linspace(0.0, end, _MOMENTS)
    with settings():
        figure, rows = canvas("Requests over time", 4.2, 2, 1, sharex=True)
        for (axes,), title in zip(rows, panels, strict=True):
            for seen, colour, line in runs:
                starts = seen.sent_s if title == panels[0] else seen.sent_s + seen.ttft_s
                height = _present(starts, seen.finished_s, moments)
                axes.step(moments, height, where="post", color=colour, linestyle=line, linewidth=1.1)
            axes.set_title(title)
            axes.set(ylabel="requests", ylim=(0, None), xlim=(0, end))
        rows[-1][0].set_xlabel("time [s]")
        legend(figure, _handles(compared, band=False))
    means = [float(seen.e2e_s.sum()) / seen.makespan_s for seen, _, _ in runs]
    caption = f"In flight on average: {number(means[0])} recorded, {number(means[1])} simulated."
    return Plot("over-time", "Requests over time", caption, figure)


def _present(starts: Any, ends: Any, moments: Any) -> Any:
    return np.searchsorted(np.sort(starts), moments, "right") - np.searchsorted(np.sort(ends), moments, "right")


def _along(compared: Comparison) -> Plot:
    """Means of consecutive requests: a clock that changed halfway, or a queue that was missed, shows here."""
    arrival = compared.recorded.arrival_s
    parts = np.array_split(np.arange(len(arrival)), min(_STRETCHES, len(arrival)))
    at = [float(arrival[part].mean()) for part in parts]
    runs = [(compared.recorded, INK, "-"), (compared.simulated, _SIMULATED, (0, (6, 2)))]
    with settings():
        figure, rows = canvas("Latencies along the run", 4.2, 2, 1, sharex=True)
        for (axes,), name in zip(rows, ("ttft_s", "e2e_s"), strict=True):
            for seen, colour, line in runs:
                means = [float(getattr(seen, name)[part].mean()) for part in parts]
                axes.plot(at, means, color=colour, linestyle=line, linewidth=1.3)
            axes.set_title(f"{LATENCIES[name]}, means of {len(parts[0]):,} requests that follow each other")
            axes.set(ylabel="[s]", ylim=(0, None))
        rows[-1][0].set_xlabel("arrival [s]")
        legend(figure, _handles(compared, band=False))
    error = signed(compared.mean("e2e_s")["error"], 2)
    caption = f"Error of the mean of E2E over the run: {error}."
    return Plot("along", "Latencies along the run", caption, figure)


def _handles(compared: Comparison, band: bool) -> list[Any]:
    handles: list[Any] = [Line2D([], [], color=INK, label="recorded")]
    handles.append(Line2D([], [], color=_SIMULATED, linestyle=(0, (6, 2)), label="simulated"))
    if band and compared.band:
        words = f"simulated, steps {100 * compared.band[0]:g} % shorter to longer"
        handles.append(Patch(color=_SIMULATED, alpha=0.18, label=words))
    if band and compared.twin:
        handles.append(Line2D([], [], color=QUIET, linestyle=(0, (2, 2)), linewidth=1.3, label="twin of the recording"))
    return handles

"""The figures of a report: one function each, drawn from the tables alone, without a display."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.report import sweep_charts
from servecast.report.plots.charted import charted
from servecast.report.plots.curves import latency_cdf, throughput_latency
from servecast.report.plots.roofline import roofline_chart
from servecast.report.plots.shares import cost_bars, token_shares
from servecast.report.plots.slots import slot_chart
from servecast.report.plots.style import Plot, titled
from servecast.report.plots.timeline import timeline_chart
from servecast.report.told import gathered
from servecast.run.shown import view

if TYPE_CHECKING:
    from servecast.run.results import Results

__all__ = ["Plot", "draw"]


def draw(results: Results) -> list[Plot]:
    """Every figure that has something to show, in the order of the report."""
    chosen, told = view(results), gathered(results)
    price = (results.scenario.get("cost") or {}).get("usd_per_gpu_hour")
    charts = (sweep_charts.interactivity(told), sweep_charts.cost_curve(told, price), sweep_charts.memory(told))
    drawn = [
        throughput_latency(results),
        *(charted(chart, titled(chart.title, results.roof)) for chart in charts if chart is not None),
        latency_cdf(chosen),
        timeline_chart(chosen),
        token_shares(chosen),
        slot_chart(chosen),
        roofline_chart(chosen),
        cost_bars(results),
    ]
    return [plot for plot in drawn if plot is not None]

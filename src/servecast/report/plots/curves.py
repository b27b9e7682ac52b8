"""Throughput against latency, and the distribution of latencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.lines import Line2D

from servecast.report.plots.style import (
    FAINT,
    QUIET,
    Plot,
    canvas,
    colours,
    legend,
    logarithmic,
    markers,
    policy_handles,
    settings,
    titled,
)
from servecast.report.told import ordered
from servecast.report.words import targets
from servecast.run.judged import per_policy
from servecast.run.results import swept
from servecast.text import number, seconds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from servecast.run.results import Results
    from servecast.run.shown import View

_POINTS = 600  # of a distribution: a curve of a million requests looks the same


def throughput_latency(results: Results) -> Plot | None:
    """p99 TTFT and p99 ITL over served requests per second: a line over the sweep, a marker for each point."""
    table = per_policy(results.summary)
    table = table[table["completed"] > 0]
    if not len(table):
        return None
    policies = tuple(dict.fromkeys(results.summary["policy"]))
    keys = swept(results.summary)
    colour, marker = colours(policies, results.kinds), markers(policies, results.kinds)
    slo = results.scenario.get("slo") or {}
    with settings():
        figure, [[left, right]] = canvas(titled("Throughput against latency", results.roof), 3.8, 1, 2)
        sides = [(left, "ttft_p99_s", "p99 time to first token [s]", "ttft_s", 1.0)]
        if table["tpot_p99_s"].notna().any():
            sides.append((right, "tpot_p99_s", "p99 time per output token [ms]", "tpot_s", 1e3))
        else:
            sides.append((right, "e2e_p99_s", "p99 time to the last token [s]", "e2e_s", 1.0))
        for axes, column, label, target, unit in sides:
            for policy in policies:
                rows = table[(table["policy"] == policy) & table[column].notna()]
                groups = (
                    [part for _, part in rows.groupby(keys[1:], sort=False, dropna=False)] if len(keys) > 1 else [rows]
                )
                for part in groups:
                    _line(axes, part, unit * part[column], colour[policy], marker[policy], ordered(table, keys))
            axes.set(yscale="log", xlabel="requests served per second", ylabel=label)
            axes.set_xlim(0, 1.08 * table["request_throughput_rps"].max())
            axes.margins(y=0.12)
            if slo.get(target) is not None:
                aim = unit * float(slo[target])
                axes.axhline(aim, color=QUIET, linestyle=(0, (4, 3)), linewidth=1.1)
                words = f"target {targets({target: slo[target]})}"
                axes.annotate(
                    words, (0.01, aim), (0, 3), xycoords=("axes fraction", "data"),
                    textcoords="offset points", color=QUIET, fontsize=8,
                )  # fmt: skip
            logarithmic(axes.yaxis)
        handles = policy_handles(policies, results.kinds)
        if _strained(table).any():
            words = "overloaded, or requests lost"
            handles.append(Line2D([], [], marker="o", color=QUIET, mfc="white", linestyle="none", label=words))
        legend(figure, handles)
    best = table.iloc[int(table["request_throughput_rps"].to_numpy().argmax())]
    strained = " (overloaded)" if best["overloaded"] > 0 else ""
    caption = (
        f"Right is more, down is sooner: {best['policy']} reaches the most, {number(best['request_throughput_rps'])} "
        f"requests per second{strained} with p99 TTFT at {seconds(best['ttft_p99_s'])}"
    )
    caption += "; a line that turns up is a full server." if keys and ordered(table, keys) else "."
    return Plot("throughput-latency", "Throughput against latency", caption, figure)


def _line(axes: Axes, rows: pd.DataFrame, y: pd.Series[float], colour: str, marker: str, joined: bool) -> None:
    x = rows["request_throughput_rps"]
    if joined:
        axes.plot(x, y, color=colour, alpha=0.7, zorder=2)
    strained = _strained(rows)
    for faces, chosen in ((colour, ~strained), ("white", strained)):
        axes.plot(
            x[chosen], y[chosen], linestyle="none", marker=marker, markersize=7, color=colour, markerfacecolor=faces,
            zorder=3,
        )  # fmt: skip


def _strained(rows: pd.DataFrame) -> Any:
    return ((rows["overloaded"] > 0) | (rows["oom_failed"] > 0)).to_numpy(bool)


def latency_cdf(view: View) -> Plot | None:
    """Share of all requests answered within a time: TTFT, TPOT, E2E. Lost requests keep a curve below 100 %."""
    panels = [
        ("ttft_s", "time to first token [s]", 1.0),
        ("tpot_s", "time per output token [ms]", 1e3),
        ("e2e_s", "time to the last token [s]", 1.0),
    ]
    requests = view.requests
    done = requests[requests["status"] == "completed"]
    panels = [panel for panel in panels if done[panel[0]].notna().any()]
    if not panels:
        return None
    colour = colours(view.policies, view.kinds)
    with settings():
        figure, [row] = canvas(titled("Latency distribution", view.roof), 3.3, 1, len(panels), sharey=True)
        for axes, (column, label, unit) in zip(row, panels, strict=True):
            for policy in view.policies:
                own = view.of(requests, policy)
                times = view.of(done, policy)[column].dropna().to_numpy()
                untimed = (own["status"] == "completed").sum() - len(times)  # one-token answers have no TPOT
                _curve(axes, unit * times, len(own) - untimed, colour[policy])
            if view.slo.get(column) is not None:
                aim = unit * float(view.slo[column])
                axes.axvline(aim, color=QUIET, linestyle=(0, (4, 3)), linewidth=1.1)
                axes.annotate(
                    f"target {seconds(float(view.slo[column]))}", (aim, 0.05), (-2, 0),
                    xycoords=("data", "axes fraction"), textcoords="offset points", color=QUIET, fontsize=8,
                    rotation=90, ha="right",
                )  # fmt: skip
            axes.set(xscale="log", xlabel=label, ylim=(0, 103))
            logarithmic(axes.xaxis)
            axes.axhline(100, color=FAINT, linewidth=1)
        row[0].set_ylabel("requests answered within [%]")
        legend(figure, policy_handles(view.policies, view.kinds, marked=False))
    return Plot("latency-cdf", "Latency distribution", _cdf_caption(view, done), figure)


def _curve(axes: Axes, times: Any, arrived: int, colour: str) -> None:
    reached = 100 * np.arange(1, len(times) + 1) / max(arrived, 1)
    times = np.sort(times)
    if len(times) > _POINTS:
        kept = np.linspace(0, len(times) - 1, _POINTS).astype(int)
        times, reached = times[kept], reached[kept]
    times, reached = np.concatenate([times[:1], times]), np.concatenate([np.zeros(min(len(times), 1)), reached])
    axes.step(times, reached, where="post", color=colour)


def _cdf_caption(view: View, done: pd.DataFrame) -> str:
    parts = []
    for policy in view.policies:
        own = view.of(done, policy)
        if len(own):
            parts.append(f"{policy} {seconds(float(own['ttft_s'].median()))}")
    lost = [p for p in view.policies if len(view.of(done, p)) < len(view.of(view.requests, p))]
    tail = f"; {' and '.join(lost)} end below 100 %: requests without an answer" if lost else ""
    return f"Half of the answers begin within: {', '.join(parts)}{tail}."

"""Running rows and KV memory over time, with the capacity line and every out-of-memory or preemption mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from servecast.report.plots.style import ALARM, INK, QUIET, Plot, canvas, colours, heading, legend, settings, titled
from servecast.text import how_often, share

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from servecast.run.shown import View

_BUCKETS = 700  # of time: more than a figure has dots to show
_MEANS = 240  # of time where means are drawn: batches that follow each other faster are a level, not a comb
MARKS = 60
PANELS = 6


def timeline_chart(view: View) -> Plot | None:
    """One row of panels a policy (the first six): rows at work on the left, KV memory on the right."""
    seen = {*view.decisions["policy"], *view.oom["policy"]}
    shown = [policy for policy in view.policies if policy in seen][:PANELS]
    if not shown:
        return None
    colour = colours(view.policies, view.kinds)
    with settings():
        figure, panels = canvas(
            titled("Running rows and KV memory over time", view.roof),
            0.4 + 1.75 * len(shown),
            len(shown),
            2,
            sharex=True,
        )
        for (left, right), policy in zip(panels, shown, strict=True):
            decisions = view.of(view.decisions, policy)
            oom = view.of(view.oom, policy)["time_s"].to_numpy(float)
            if len(decisions):  # else it crashed before its first step
                _rows(left, decisions, colour[policy])
                _memory(right, decisions, float(view.row(policy)["kv_blocks_total"]), colour[policy])
            right.axhline(100, color=INK, linewidth=1.1, linestyle=(0, (5, 2)))
            _marks(right, decisions, oom)
            left.set_title(heading(policy))
            left.set_ylabel("rows")
            right.set_ylabel("KV memory [%]")
            left.set_ylim(0, None)
            right.set_ylim(0, 125)
            right.set_yticks(range(0, 101, 25))
        for axes in panels[-1]:
            axes.set_xlabel("time [s]")
            axes.set_xlim(0, None)
        figure.align_ylabels()
        _legend(
            figure,
            held=any((view.row(policy)["slot_waste"] or 0) > 0 for policy in shown),
            preempted=any(view.row(policy)["preemptions"] for policy in shown),
            crashed=any(view.row(policy)["oom_events"] for policy in shown),
        )
    return Plot("timeline", "Running rows and KV memory over time", _caption(view, shown), figure)


def buckets(decisions: pd.DataFrame, values: Any, how: str, means: int = _MEANS) -> tuple[Any, Any]:
    """A step curve of ``values`` over time, 0 while nothing runs: times and heights, at most two for each bucket.

    how : ``max`` keeps peaks, ``mean`` weighs by time. Short runs are drawn exactly.
    """
    starts = decisions["start_s"].to_numpy(float)
    ends = starts + decisions["seconds"].to_numpy(float)
    values = np.asarray(values, dtype=float)
    if len(starts) <= _BUCKETS and (how != "mean" or means == _MEANS):
        idle = np.append(starts[1:], np.inf) > ends + 1e-9
        times = np.concatenate([starts, ends[idle]])
        heights = np.concatenate([values, np.zeros(int(idle.sum()))])
        order = np.argsort(times, kind="stable")
        return times[order], heights[order]
    count = means if how == "mean" else _BUCKETS
    edges = np.linspace(starts[0], ends[-1], count + 1)
    if how == "mean":
        area = np.concatenate([[0.0], np.cumsum(values * (ends - starts))])
        corners = np.stack([starts, ends], 1).ravel()
        upto = np.interp(edges, corners, np.stack([area[:-1], area[1:]], 1).ravel())
        heights = np.diff(upto) / np.diff(edges)
    else:
        heights = np.zeros(count)
        first = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, count - 1)
        last = np.clip(np.searchsorted(edges, ends, side="left") - 1, first, count - 1)
        np.maximum.at(heights, first, values)
        np.maximum.at(heights, last, values)
        for place in np.flatnonzero(last > first + 1):  # fewer than there are buckets
            np.maximum(heights[first[place] : last[place]], values[place], out=heights[first[place] : last[place]])
    return edges, np.append(heights, 0.0)


def _rows(axes: Axes, decisions: pd.DataFrame, colour: str) -> None:
    live = decisions["useful_decode_rows"] + decisions["prefill_rows"]
    times, slots = buckets(decisions, decisions["slots"], "mean")
    _, working = buckets(decisions, live, "mean")
    axes.fill_between(
        times, working, slots, step="post", facecolor="#e6e9ed", edgecolor=QUIET, hatch="....", linewidth=0
    )
    axes.fill_between(times, 0, working, step="post", color=colour, alpha=0.85, linewidth=0)


def _memory(axes: Axes, decisions: pd.DataFrame, total: float, colour: str) -> None:
    times, held = buckets(decisions, 100 * decisions["kv_blocks"] / total, "max")
    axes.fill_between(times, 0, held, step="post", color=colour, alpha=0.25, linewidth=0)
    axes.step(times, held, where="post", color=colour, linewidth=1.3)


def _marks(axes: Axes, decisions: pd.DataFrame, oom: Any) -> None:
    preempted = decisions.loc[decisions["preempted"] > 0, "start_s"].to_numpy(float)
    for times, marker, colour in ((preempted, "v", "#6b4fa0"), (oom, "X", ALARM)):
        kept = times[np.linspace(0, len(times) - 1, min(len(times), MARKS)).astype(int)] if len(times) else times
        axes.plot(
            kept, np.full(len(kept), 111.0), linestyle="none", marker=marker, color=colour, markeredgewidth=0,
            markersize=7 if marker == "X" else 5,
        )  # fmt: skip


def _legend(figure: Figure, held: bool, preempted: bool, crashed: bool) -> None:
    """What the panels show, and nothing else."""
    entries = [
        (True, Patch(color=QUIET, label="rows at work")),
        (
            held,
            Patch(facecolor="#e6e9ed", edgecolor=QUIET, hatch="....", linewidth=0, label="slots held by finished rows"),
        ),
        (True, Line2D([], [], color=INK, linewidth=1.1, linestyle=(0, (5, 2)), label="KV capacity")),
        (preempted, Line2D([], [], color="#6b4fa0", marker="v", markersize=5, linestyle="none", label="preemption")),
        (crashed, Line2D([], [], color=ALARM, marker="X", markersize=7, linestyle="none", label="out of memory")),
    ]
    legend(figure, [entry for there, entry in entries if there])


def _caption(view: View, shown: list[str]) -> str:
    parts = []
    for policy in shown:
        row = view.row(policy)
        part = f"{policy} fills {share(row['kv_peak_fraction'])} of the KV memory at its peak"
        if row["oom_events"]:
            part += f" and runs out of it {how_often(row['oom_events'])}"
        elif row["preemptions"]:
            part += f" and preempts {how_often(row['preemptions'])} instead of crashing"
        if row["slot_waste"] == row["slot_waste"] and (row["slot_waste"] or 0) > 0.005:
            part += f", {share(row['slot_waste'])} of its slots' time held by finished rows"
        parts.append(part)
    return f"{'; '.join(parts)}."

"""The roofline with each policy's steps on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from servecast.report.plots.style import (
    FAINT,
    INK,
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
from servecast.report.words import UNCALIBRATED
from servecast.run.shown import on_the_roof
from servecast.text import number, share

if TYPE_CHECKING:
    import pandas as pd

    from servecast.run.results import Roof
    from servecast.run.shown import View

_STEPS = 500  # drawn of each policy, evenly spaced in busy time


def roofline_chart(view: View) -> Plot | None:
    """FLOP per byte against FLOP per second, both logarithmic; a dot a decision, more where more time goes."""
    roof = view.roof
    if roof is None or "step_flops" not in view.decisions or not len(view.decisions):
        return None
    colour, marker = colours(view.policies, view.kinds), markers(view.policies, view.kinds)
    with settings():
        figure, [[axes]] = canvas(titled(f"Steps on the roofline of {roof.name}", roof), 4.3)
        lowest, highest = roof.ridge, roof.ridge
        for policy in view.policies:
            steps = sample(view.of(view.decisions, policy), _STEPS)
            if not len(steps):
                continue
            intensity, reached = on_the_roof(steps)
            lowest, highest = min(lowest, *intensity), max(highest, *intensity)
            axes.plot(
                intensity, reached, linestyle="none", marker=marker[policy], color=colour[policy], alpha=0.55,
                markersize=6, markerfacecolor="none", markeredgewidth=1, rasterized=True,
            )  # fmt: skip
        reach = np.geomspace(lowest / 2, highest * 4, 200)
        axes.plot(reach, np.minimum(reach * roof.bandwidth_Bps, roof.flops) / 1e12, color=INK, linewidth=2, zorder=1)
        axes.plot([roof.ridge], [roof.flops / 1e12], marker="o", color=INK, markersize=5)
        peaks = f"{number(roof.flops / 1e12)} TFLOP/s, {number(roof.bandwidth_Bps / 1e12)} TB/s"
        axes.annotate(
            f"{peaks}: ridge at {number(roof.ridge)} FLOP/byte", (roof.ridge, roof.flops / 1e12), (0, 7),
            textcoords="offset points", ha="left" if roof.ridge**2 < reach[0] * reach[-1] else "right", fontsize=9,
        )  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="arithmetic intensity [FLOP per byte of weights and KV cache]")
        axes.set_ylabel("achieved [TFLOP/s per GPU]")
        axes.set_xlim(reach[0], reach[-1])
        low, high = axes.get_ylim()
        axes.set_ylim(low, max(high, 2.2 * roof.flops / 1e12))
        for axis in (axes.xaxis, axes.yaxis):
            logarithmic(axis)
        axes.axvline(roof.ridge, color=FAINT, linewidth=1.4, zorder=0)
        for words, side in (("memory bound", "right"), ("compute bound", "left")):
            axes.annotate(
                words, (roof.ridge, 0.06), (-8 if side == "right" else 8, 0), xycoords=("data", "axes fraction"),
                textcoords="offset points", ha=side, color=QUIET, fontsize=9,
            )  # fmt: skip
        legend(figure, policy_handles(view.policies, view.kinds, line="none"))
    return Plot("roofline", "Steps on the roofline", _caption(view, roof), figure)


def sample(decisions: pd.DataFrame, most: int) -> pd.DataFrame:
    """At most so many decisions, evenly spaced in busy time."""
    if len(decisions) <= most:
        return decisions
    busy = decisions["seconds"].to_numpy(float).cumsum()
    places = np.searchsorted(busy, np.linspace(0, busy[-1], most, endpoint=False), side="right")
    return decisions.iloc[np.unique(np.minimum(places, len(decisions) - 1))]


def _caption(view: View, roof: Roof) -> str:
    parts = []
    for policy in view.policies:
        bound = view.row(policy)["bandwidth_bound_fraction"]
        if bound is not None and bound == bound:
            parts.append(f"{policy} {share(bound)}")
    start = (
        f"Left of the ridge memory bandwidth sets the pace: so it does for {', '.join(parts)} of busy time"
        if parts
        else ""
    )
    tail = "the gap below the roof is what kernels and scheduling cost"
    if not roof.calibrated:
        tail = f"steps are priced by this roof itself ({UNCALIBRATED})"
    return f"{start}; {tail}." if start else f"{tail.capitalize()}."

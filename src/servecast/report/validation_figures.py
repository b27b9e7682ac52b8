"""Figures of calibrations and validations: measured and fitted, the measured roofline, executed and simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.lines import Line2D

from servecast.batch import StepShape
from servecast.cost.model import STEP_KINDS, step_kind
from servecast.metrics import latencies
from servecast.report.plots.style import ALARM, INK, QUIET, Plot, canvas, colours, legend, logarithmic, settings
from servecast.report.plots.timeline import buckets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from servecast.against.device.validate import Case
    from servecast.device.calibrate import Calibration
    from servecast.engine import Run
    from servecast.specs.model import ModelSpec

DASHED = (0, (4, 2))
_KINDS = {"decode": "#1f6fb2", "mixed": "#2a9d78", "prefill": "#d9822b"}


def fitted(calibration: Calibration) -> Plot:
    """Predicted over measured times, and the errors by kind of step; steps the fit has not seen are hollow."""
    import pandas as pd

    steps = calibration.steps
    columns: list[Any] = [steps[name].to_numpy() for name in StepShape._fields]
    shape = StepShape(*columns)
    kinds = pd.Series(np.asarray(step_kind(shape)), index=steps.index)
    error = 100 * (steps["predicted_s"] / steps["seconds"] - 1)
    noise = calibration.facts["noise"]["median"]
    with settings():
        figure, [[left, right]] = canvas("Steps, measured and fitted", 3.8, 1, 2)
        for kind, colour in _KINDS.items():
            for part, face in (("grid", colour), ("held_out", "none")):
                chosen = (kinds == kind) & (steps["part"] == part)
                left.plot(
                    1e3 * steps["seconds"][chosen], 1e3 * steps["predicted_s"][chosen], "o", mfc=face, mec=colour,
                    markersize=4,
                )  # fmt: skip
                right.plot(1e3 * steps["seconds"][chosen], error[chosen], "o", mfc=face, mec=colour, markersize=4)
        ends = 1e3 * np.array([steps["seconds"].min(), steps["seconds"].max()])
        left.plot(ends, ends, color=QUIET, linewidth=1)
        if noise is not None:
            right.axhspan(-100 * noise, 100 * noise, color=QUIET, alpha=0.15, linewidth=0)
        right.axhline(0, color=QUIET, linewidth=1)
        left.set(xscale="log", yscale="log", xlabel="measured [ms]", ylabel="fitted [ms]")
        right.set(xscale="log", xlabel="measured [ms]", ylabel="fitted over measured [%]")
        for axis in (left.xaxis, left.yaxis, right.xaxis):
            logarithmic(axis)
        handles = [Line2D([], [], marker="o", linestyle="none", color=c, label=k) for k, c in _KINDS.items()]
        handles.append(Line2D([], [], marker="o", mfc="none", mec=INK, linestyle="none", label="not seen by the fit"))
        if noise is not None:
            handles.append(
                Line2D([], [], color=QUIET, alpha=0.3, linewidth=8, label=f"noise floor, {noise:.1%} in the median")
            )
        legend(figure, handles)
    caption = "Each point is a step, the median of its rounds; hollow ones were held out of the fit."
    return Plot("steps", "Steps, measured and fitted", caption, figure)


def roofline(calibration: Calibration, model: ModelSpec) -> Plot:
    """FLOP/s reached over FLOPs per byte, under the roofs that were measured."""
    steps = calibration.steps
    columns: list[Any] = [steps[name].to_numpy() for name in StepShape._fields]
    shape = StepShape(*columns)
    flops, moved = np.asarray(model.step_flops(shape)), np.asarray(model.step_bytes(shape))
    kinds = np.asarray(step_kind(shape))
    roofs = calibration.facts["ceilings"]
    with settings():
        figure, [[axes]] = canvas("Steps under the measured roofs", 3.8)
        for kind in STEP_KINDS:
            chosen = kinds == kind
            intensity, reached = (
                flops[chosen] / moved[chosen],
                flops[chosen] / steps["seconds"].to_numpy()[chosen] / 1e9,
            )
            axes.plot(intensity, reached, "o", color=_KINDS[kind], markersize=4)
        x = np.geomspace((flops / moved).min() / 1.5, (flops / moved).max() * 1.5, 100)
        axes.plot(x, np.minimum(x * roofs["copy_Bps"], roofs["matmul_flops"]) / 1e9, color=INK, linewidth=1.2)
        axes.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="GFLOP/s")
        for axis in (axes.xaxis, axes.yaxis):
            logarithmic(axis)
        handles = [Line2D([], [], marker="o", linestyle="none", color=c, label=k) for k, c in _KINDS.items()]
        handles.append(Line2D([], [], color=INK, label="copy bandwidth, matrix product: measured"))
        legend(figure, handles)
    caption = "The distance of a point to the line is what its step leaves of the device."
    return Plot("roofline", "Steps under the measured roofs", caption, figure)


def distributions(cases: Sequence[Case], load: float | str) -> Plot:
    """Distributions of TTFT, TPOT and E2E at one load, executed and simulated, for every policy."""
    shown = [case for case in cases if case.load == load]
    colour = colours([case.policy for case in shown])
    with settings():
        figure, [panels] = canvas(f"Latencies at {_named(load)}, executed and simulated", 3.4, 1, 3)
        for axes, name in zip(panels, ("ttft", "tpot", "e2e"), strict=True):
            for case in shown:
                for each in case.executed:
                    _distribution(axes, each.run, name, color=colour[case.policy], linewidth=3.2, alpha=0.35)
                _distribution(axes, case.simulated, name, color=colour[case.policy], linewidth=1.4, linestyle=DASHED)
            axes.set(xscale="log", xlabel=f"{name.upper()} [s]", ylim=(0, 1))
            logarithmic(axes.xaxis)
        panels[0].set_ylabel("share of requests")
        handles = [
            Line2D([], [], color=c, linewidth=3.2, alpha=0.35, label=f"{p}, executed") for p, c in colour.items()
        ]
        legend(figure, [*handles, Line2D([], [], color=INK, linestyle=DASHED, label="simulated, in the same colour")])
    caption = (
        "Broad lines are the two executions, the dashed line in the same colour is the forecast: it should lie on them."
    )
    return Plot(f"latencies-{_slug(load)}", f"Latencies at {_named(load)}", caption, figure)


def running(cases: Sequence[Case], load: float | str) -> Plot:
    """Rows at work over time at one load, executed and simulated: one panel a policy."""
    import pandas as pd

    shown = [case for case in cases if case.load == load]
    colour = colours([case.policy for case in shown])
    with settings():
        figure, panels = canvas(
            f"Rows at work at {_named(load)}, executed and simulated", 0.4 + 1.5 * len(shown), len(shown)
        )
        for (axes,), case in zip(panels, shown, strict=True):
            looks: tuple[tuple[Run, dict[str, Any]], ...] = (
                (case.executed[0].run, {"color": colour[case.policy], "linewidth": 1.8}),
                (case.simulated, {"color": INK, "linewidth": 0.9, "linestyle": DASHED}),
            )
            for run, look in looks:
                decisions = pd.DataFrame(run.decisions)
                times, rows = buckets(decisions, decisions["useful_decode_rows"] + decisions["prefill_rows"], "mean")
                axes.step(times, rows, where="post", **look)
            axes.set(ylabel="rows", title=case.policy)
            axes.set_ylim(0, None)
            if not case.conclusive:
                axes.annotate(
                    "inconclusive: the device drifted", (0.99, 0.85), xycoords="axes fraction", ha="right", color=ALARM
                )
        panels[-1][0].set_xlabel("time [s]")
        legend(
            figure,
            [
                Line2D([], [], color=QUIET, label="executed"),
                Line2D([], [], color=INK, linestyle=DASHED, label="simulated"),
            ],
        )
    caption = "Where the dashed line leaves the coloured one, the forecast made other batches than the device."
    return Plot(f"running-{_slug(load)}", f"Rows at work at {_named(load)}", caption, figure)


def _distribution(axes: Axes, run: Run, name: str, **look: Any) -> None:
    values = latencies(run.requests, run.respond)[name]
    known = np.sort(values[~np.isnan(values) & (values > 0)])
    if len(known):
        axes.step(known, np.arange(1, len(known) + 1) / len(known), where="post", **look)


def _named(load: float | str) -> str:
    return "a burst" if load == "burst" else f"{load:g} of saturation"


def _slug(load: float | str) -> str:
    return str(load).replace(".", "_")

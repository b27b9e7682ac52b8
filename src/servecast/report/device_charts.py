"""Charts of calibrations and validations: measured and fitted, the measured roofline, executed and simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.batch import StepShape
from servecast.cost.model import STEP_KINDS, step_kind
from servecast.metrics import decisions_frame, latencies
from servecast.report.charts.looks import places
from servecast.report.charts.spec import Area, Axis, Chart, Curve, Datum, Key, Line, Panel, Series, evenly, tooltips
from servecast.report.time_charts import buckets
from servecast.text import number, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from servecast.against.device.validate import Case
    from servecast.device.calibrate import Calibration
    from servecast.engine import Run
    from servecast.specs.model import ModelSpec

_MOST = 300  # steps of a kind with tooltips, and points of a curve
_KIND_KEYS = tuple(Key(kind, look) for look, kind in enumerate(STEP_KINDS))


def fitted(calibration: Calibration) -> Chart:
    """Predicted over measured times, and the errors by kind of step; steps the fit has not seen are hollow."""
    steps = calibration.steps
    measured, predicted = 1e3 * steps["seconds"].to_numpy(float), 1e3 * steps["predicted_s"].to_numpy(float)
    error = 100 * (predicted / measured - 1)
    unseen = (steps["part"] == "held_out").to_numpy(bool)

    def points(height: Any) -> tuple[Series, ...]:
        def point(kind: str, at: int) -> Datum:
            numbers = (("measured [ms]", number(measured[at], 4)), ("fitted [ms]", number(predicted[at], 4)),
                       ("error [%]", f"{error[at]:+.2f}"))  # fmt: skip
            name = f"{kind} step{', not seen by the fit' if unseen[at] else ''}"
            return Datum(float(measured[at]), float(height[at]), name, numbers, hollow=bool(unseen[at]))

        return _by_kind(_shape(steps), point)

    ends = (float(measured.min()), float(measured.max()))
    noise = calibration.facts["noise"]["median"]
    x, keys = Axis("measured [ms]", log=True), _KIND_KEYS
    areas: tuple[Area, ...] = ()
    if noise is not None:
        areas = (Area("faint", ends, [-100 * noise] * 2, [100 * noise] * 2, pale=True, slanted=True),)
        keys = (*keys, Key(f"noise floor, {percent(noise)} in the median", "faint"))
    diagonal, zero = Line("", through=((ends[0], ends[0]), (ends[1], ends[1])), strong=True), Line("", y=0.0)
    panels = (
        Panel(x, Axis("fitted [ms]", log=True), points(predicted), "", (diagonal,)),
        Panel(x, Axis("fitted over measured [%]"), points(error), "", (zero,), areas=areas),
    )
    caption = "Each point is a step, the median of its rounds; hollow ones were held out of the fit."
    return Chart("steps", "Steps, measured and fitted", caption, panels, legend=(*keys, Key("not seen", "hollow")))


def roofline(calibration: Calibration, model: ModelSpec) -> Chart:
    """FLOP/s reached over FLOPs per byte, under the roofs that were measured."""
    steps = calibration.steps
    shape = _shape(steps)
    flops, moved = np.asarray(model.step_flops(shape)), np.asarray(model.step_bytes(shape))
    seconds = steps["seconds"].to_numpy(float)
    intensity, reached = flops / moved, flops / seconds / 1e9

    def point(kind: str, at: int) -> Datum:
        numbers = (("FLOP per byte", number(intensity[at], 4)), ("GFLOP/s", number(reached[at], 4)),
                   ("measured [ms]", number(1e3 * seconds[at], 4)))  # fmt: skip
        return Datum(float(intensity[at]), float(reached[at]), f"{kind} step", numbers)

    roofs = calibration.facts["ceilings"]
    ends = sorted(
        (float(intensity.min()) / 1.5, roofs["matmul_flops"] / roofs["copy_Bps"], 1.5 * float(intensity.max()))
    )
    top = tuple((x, min(x * roofs["copy_Bps"], roofs["matmul_flops"]) / 1e9) for x in ends)
    x, y = Axis("FLOP per byte", log=True), Axis("GFLOP/s", log=True)
    panel = Panel(x, y, _by_kind(shape, point), lines=(Line("", through=top, strong=True),))
    caption = "The distance of a point to the line is what its step leaves of the device."
    legend = (*_KIND_KEYS, Key("copy bandwidth, matrix product: measured", "strong"))
    return Chart("roofline", "Steps under the measured roofs", caption, (panel,), legend=legend)


def _shape(steps: Any) -> StepShape:
    columns: list[Any] = [steps[name].to_numpy() for name in StepShape._fields]
    return StepShape(*columns)


def _by_kind(shape: StepShape, point: Callable[[str, int], Datum]) -> tuple[Series, ...]:
    """Steps as points, a series for each kind: some of them, evenly chosen, where there are many."""
    kinds = np.asarray(step_kind(shape))
    made = []
    for look, kind in enumerate(STEP_KINDS):
        these = np.flatnonzero(kinds == kind)
        chosen = these[evenly(len(these), _MOST)].tolist()
        made.append(Series(kind, look, (tuple(point(kind, at) for at in chosen),), joined=False, small=True))
    return tuple(made)


def validation_charts(cases: Sequence[Case]) -> list[Chart]:
    """Distributions of latencies, and rows at work over time, at every load."""
    loads = dict.fromkeys(case.load for case in cases)
    return [
        make([case for case in cases if case.load == load], load)
        for load in loads
        for make in (_distributions, _running)
    ]


def _distributions(cases: Sequence[Case], load: float | str) -> Chart:
    """TTFT, TPOT and E2E at one load, executed and simulated, for every policy."""
    looks = places([case.policy for case in cases])
    panels = []
    for name in ("ttft", "tpot", "e2e"):
        curves: list[Curve] = []
        series: list[Series] = []
        for case in cases:
            look = looks[case.policy]
            curves += [_distribution(each.run, name, look, "broad") for each in case.executed]
            curves.append(_distribution(case.simulated, name, look, "dashed"))
            series += tooltips(case.policy, look, _percentiles(case, name))
        shown = tuple(curve for curve in curves if len(curve.x))
        y = Axis("share of requests [%]", limits=(0.0, 103.0))
        panels.append(Panel(Axis(f"{name.upper()} [s]", log=True), y, tuple(series), curves=shown))
    keys = [Key(f"{policy}, executed", look, "broad") for policy, look in looks.items()]
    keys.append(Key("simulated, in the same colour", "ink", "dashed"))
    caption = (
        "Broad lines are the two executions, the dashed line in the same colour is the forecast: it should lie on them."
    )
    title = f"Latencies at {_named(load)}, executed and simulated"
    return Chart(f"latencies-{slug(load)}", title, caption, tuple(panels), tuple(keys))


def _known(run: Run, name: str) -> Any:
    values = latencies(run.requests, run.respond)[name]
    return np.sort(values[~np.isnan(values) & (values > 0)])


def _distribution(run: Run, name: str, look: int, style: str) -> Curve:
    known = _known(run, name)
    kept = evenly(len(known), _MOST)
    return Curve(look, known[kept].tolist(), (100 * (kept + 1) / max(len(known), 1)).tolist(), style)


def _percentiles(case: Case, name: str) -> tuple[Datum, ...]:
    """Points with tooltips on the simulated curve."""
    executed, simulated = _known(case.executed[0].run, name), _known(case.simulated, name)
    points = []
    for rank in (50, 90, 99) if len(executed) and len(simulated) else ():
        one, other = float(np.percentile(executed, rank)), float(np.percentile(simulated, rank))
        numbers = (("executed [s]", number(one, 4)), ("simulated [s]", number(other, 4)))
        points.append(Datum(other, float(rank), f"{case.policy}, {name.upper()} p{rank}", numbers))
    return tuple(points)


def _running(cases: Sequence[Case], load: float | str) -> Chart:
    """Rows at work over time at one load, executed and simulated: one panel a policy."""
    looks = places([case.policy for case in cases])
    panels = []
    for case in cases:
        curves = []
        for run, look, style in ((case.executed[0].run, looks[case.policy], ""), (case.simulated, "ink", "dashed")):
            decisions = decisions_frame(run)
            live = decisions["useful_decode_rows"] + decisions["prefill_rows"]
            times, rows = buckets(decisions, live, "mean", _MOST) if len(decisions) else (np.empty(0), np.empty(0))
            curves.append(Curve(look, times.tolist(), rows.tolist(), style, stepped=True))
        title = case.policy if case.conclusive else f"{case.policy}: inconclusive, the device drifted"
        panels.append(Panel(Axis("time [s]"), Axis("rows", base=0.0), title=title, curves=tuple(curves), height=210))
    keys = (Key("executed (the policy's colour)", "work"), Key("simulated", "ink", "dashed"))
    caption = "Where the dashed line leaves the coloured one, the forecast made other batches than the device."
    title = f"Rows at work at {_named(load)}, executed and simulated"
    return Chart(f"running-{slug(load)}", title, caption, tuple(panels), legend=keys, stacked=True)


def _named(load: float | str) -> str:
    return "a burst" if load == "burst" else f"{load:g} of saturation"


def slug(load: float | str) -> str:
    """A load in the name of a file."""
    return str(load).replace(".", "_")

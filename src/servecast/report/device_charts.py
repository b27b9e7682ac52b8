"""Charts of calibrations and validations: measured and fitted, the measured roofline, executed and simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.batch import StepShape
from servecast.cost.model import STEP_KINDS, step_kind
from servecast.metrics import decisions_frame, latencies
from servecast.report.charts.looks import places
from servecast.report.charts.spec import Area, Axis, Chart, Curve, Datum, Key, Line, Panel, Series
from servecast.report.time_charts import buckets
from servecast.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servecast.against.device.validate import Case
    from servecast.device.calibrate import Calibration
    from servecast.engine import Run
    from servecast.specs.model import ModelSpec

_MOST = 300  # steps of a kind with tooltips, and points of a curve


def fitted(calibration: Calibration) -> Chart:
    """Predicted over measured times, and the errors by kind of step; steps the fit has not seen are hollow."""
    steps = calibration.steps
    kinds = np.asarray(step_kind(_shape(steps)))
    measured, predicted = 1e3 * steps["seconds"].to_numpy(float), 1e3 * steps["predicted_s"].to_numpy(float)
    error = 100 * (predicted / measured - 1)
    unseen = (steps["part"] == "held_out").to_numpy(bool)
    points: dict[str, tuple[list[Datum], list[Datum]]] = {}
    for kind in STEP_KINDS:
        points[kind] = ([], [])
        for at in _evenly(np.flatnonzero(kinds == kind)):
            numbers = (("measured [ms]", number(measured[at], 4)), ("fitted [ms]", number(predicted[at], 4)),
                       ("error [%]", f"{error[at]:+.2f}"))  # fmt: skip
            told = (f"{kind} step{', not seen by the fit' if unseen[at] else ''}", numbers)
            for each, height in zip(points[kind], (predicted[at], error[at]), strict=True):
                each.append(Datum(float(measured[at]), float(height), *told, hollow=bool(unseen[at])))
    ends = (float(measured.min()), float(measured.max()))
    noise = calibration.facts["noise"]["median"]
    x, keys = Axis("measured [ms]", log=True), _kind_keys()
    areas: tuple[Area, ...] = ()
    if noise is not None:
        areas = (Area("faint", ends, [-100 * noise] * 2, [100 * noise] * 2, pale=True, slanted=True),)
        keys = (*keys, Key(f"noise floor, {noise:.1%} in the median", "faint"))
    diagonal, zero = Line("", through=((ends[0], ends[0]), (ends[1], ends[1])), strong=True), Line("", y=0.0)
    panels = (
        Panel(x, Axis("fitted [ms]", log=True), _by_kind({k: each[0] for k, each in points.items()}), "", (diagonal,)),
        Panel(x, Axis("fitted over measured [%]"), _by_kind({k: each[1] for k, each in points.items()}), "", (zero,),
              areas=areas),
    )  # fmt: skip
    caption = "Each point is a step, the median of its rounds; hollow ones were held out of the fit."
    return Chart("steps", "Steps, measured and fitted", caption, panels, legend=(*keys, Key("not seen", "hollow")))


def roofline(calibration: Calibration, model: ModelSpec) -> Chart:
    """FLOP/s reached over FLOPs per byte, under the roofs that were measured."""
    steps = calibration.steps
    shape = _shape(steps)
    flops, moved = np.asarray(model.step_flops(shape)), np.asarray(model.step_bytes(shape))
    kinds, seconds = np.asarray(step_kind(shape)), steps["seconds"].to_numpy(float)
    intensity, reached = flops / moved, flops / seconds / 1e9
    points: dict[str, list[Datum]] = {}
    for kind in STEP_KINDS:
        points[kind] = [
            Datum(
                float(intensity[at]), float(reached[at]), f"{kind} step",
                (("FLOP per byte", number(intensity[at], 4)), ("GFLOP/s", number(reached[at], 4)),
                 ("measured [ms]", number(1e3 * seconds[at], 4))),
            )
            for at in _evenly(np.flatnonzero(kinds == kind))
        ]  # fmt: skip
    roofs = calibration.facts["ceilings"]
    ends = sorted(
        (float(intensity.min()) / 1.5, roofs["matmul_flops"] / roofs["copy_Bps"], 1.5 * float(intensity.max()))
    )
    top = tuple((x, min(x * roofs["copy_Bps"], roofs["matmul_flops"]) / 1e9) for x in ends)
    x, y = Axis("FLOP per byte", log=True), Axis("GFLOP/s", log=True)
    panel = Panel(x, y, _by_kind(points), lines=(Line("", through=top, strong=True),))
    caption = "The distance of a point to the line is what its step leaves of the device."
    legend = (*_kind_keys(), Key("copy bandwidth, matrix product: measured", "strong"))
    return Chart("roofline", "Steps under the measured roofs", caption, (panel,), legend=legend)


def _shape(steps: Any) -> StepShape:
    columns: list[Any] = [steps[name].to_numpy() for name in StepShape._fields]
    return StepShape(*columns)


def _evenly(every: Any) -> list[int]:
    kept: list[int] = every[np.unique(np.linspace(0, len(every) - 1, min(_MOST, len(every))).astype(int))].tolist()
    return kept


def _by_kind(points: dict[str, list[Datum]]) -> tuple[Series, ...]:
    return tuple(
        Series(kind, look, (tuple(points[kind]),), joined=False, small=True) for look, kind in enumerate(STEP_KINDS)
    )


def _kind_keys() -> tuple[Key, ...]:
    return tuple(Key(kind, look) for look, kind in enumerate(STEP_KINDS))


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
        curves, series = [], []
        for case in cases:
            look = looks[case.policy]
            curves += [_distribution(each.run, name, look, "broad") for each in case.executed]
            curves.append(_distribution(case.simulated, name, look, "dashed"))
            points = _percentiles(case, name)
            series += [Series(case.policy, look, (points,), joined=False, quiet=True)] if points else []
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
    kept = np.unique(np.linspace(0, len(known) - 1, min(_MOST, len(known))).astype(int))
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

"""Charts of single runs, at the point that the verdict is about: latencies, waste, the roofline, time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.report.charts.looks import places
from servecast.report.charts.spec import Area, Axis, Bar, Bars, Chart, Datum, Key, Line, Marks, Panel, Part, Series
from servecast.report.plots.roofline import sample
from servecast.report.plots.shares import PARTS, parts_of
from servecast.report.plots.timeline import MARKS, PANELS, buckets
from servecast.run.shown import on_the_roof
from servecast.text import number, seconds, share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from servecast.run.shown import View

_TOLD_RANKS = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
_CURVE = 160  # points of a distribution's line
_STEPS = 110  # told of each policy on the roofline, evenly spaced in busy time
_MEANS = 110  # of time where means are drawn
_MOMENTS = 40  # told of a timeline


def latency_cdf(view: View, caption: str) -> Chart | None:
    """Share of all requests answered within a time; lost requests keep a curve below 100 %."""
    done = view.requests[view.requests["status"] == "completed"]
    looks = places(view.policies, view.kinds)
    panels: list[Panel | Bars] = []
    rows: list[tuple[str, ...]] = []
    for column, label, unit in (
        ("ttft_s", "time to first token [s]", 1.0),
        ("tpot_s", "time per output token [ms]", 1e3),
        ("e2e_s", "time to the last token [s]", 1.0),
    ):
        if not done[column].notna().any():
            continue
        series = []
        for policy in view.policies:
            times = np.sort(view.of(done, policy)[column].dropna().to_numpy())
            own = view.of(view.requests, policy)
            counted = len(own) - int((own["status"] == "completed").sum()) + len(times)
            if not len(times):
                continue
            ranks = [rank for rank in _TOLD_RANKS if rank / 100 * len(times) >= 0.5]
            points = [_quantile(policy, times, rank, counted, unit, label) for rank in ranks]
            rows += [
                (policy, label.split(" [")[0], f"p{rank:g}", seconds(float(np.percentile(times, rank))))
                for rank in ranks
            ]
            series.append(Series(policy, looks[policy], (_curve(times, counted, unit),), bare=True))
            series.append(Series(policy, looks[policy], (tuple(points),), joined=False, quiet=True))
        aim = view.slo.get(column)
        lines = () if aim is None else (Line(f"target {seconds(float(aim))}", x=unit * float(aim)),)
        y = Axis("requests answered within [%]", limits=(0.0, 103.0))
        panels.append(Panel(Axis(label, log=True), y, tuple(series), lines=lines))
    if not panels:
        return None
    heads = ("policy", "latency", "percentile of completed requests", "time")
    return Chart(
        "latency-cdf", "Latency distribution", caption, tuple(panels), heads, tuple(rows), _policies(view, looks)
    )


def _curve(times: Any, counted: int, unit: float) -> tuple[Datum, ...]:
    """The line alone: what is told of it are its percentiles."""
    kept = np.unique(np.linspace(0, len(times) - 1, min(_CURVE, len(times))).astype(int))
    return tuple(Datum(unit * float(times[at]), 100 * (at + 1) / counted, "", ()) for at in kept)


def _quantile(policy: str, times: Any, rank: float, counted: int, unit: float, label: str) -> Datum:
    time = float(np.percentile(times, rank))
    reached = 100 * float(np.searchsorted(times, time, side="right")) / counted
    numbers = ((label, number(unit * time, 4)), ("of all requests [%]", number(reached)))
    return Datum(unit * time, reached, f"{policy}, p{rank:g} of {len(times):,} completed", numbers)


def _policies(view: View, looks: Any) -> tuple[Key, ...]:
    return tuple(Key(policy, looks[policy]) for policy in view.policies)


def waste(view: View, caption: str) -> Chart | None:
    """Of all token places computed or held, the share that served somebody."""
    looks = places(view.policies, view.kinds)
    bars, rows, used = [], [], set()
    for policy in view.policies:
        row = view.row(policy)
        counts = parts_of(row)
        total = sum(counts)
        if not total:
            continue
        names = [label for label, _, _ in PARTS]
        numbers = [
            (name, f"{share(count / total)} ({count:,.0f})") for name, count in zip(names, counts, strict=True) if count
        ]
        timed = [
            ("time lost to padding [s]", row["padding_waste_s"]),
            ("time lost to idle slots [s]", row["slot_waste_s"]),
        ]
        numbers += [
            (name, number(float(value), 4)) for name, value in timed if value is not None and value == value and value
        ]
        used |= {place for place, count in enumerate(counts) if count}
        parts = tuple(
            Part(100 * count / total, PATTERNS[place], share(count / total))
            for place, count in enumerate(counts)
            if count
        )
        bars.append(Bar(policy, (*numbers, ("token places in all", f"{total:,.0f}")), parts, look=looks[policy]))
        rows.append((policy, f"{total:,.0f}", *(f"{count:,.0f}" for count in counts), share(counts[0] / total)))
    if not bars:
        return None
    panel = Bars(Axis("token places computed or held [%]", limits=(0.0, 100.5)), tuple(bars))
    heads = ("policy", "in all", *(label for label, _, _ in PARTS), "useful share")
    legend = tuple(Key(PARTS[place][0], PATTERNS[place]) for place in sorted(used))
    note = _EMPTY if len(PARTS) - 1 in used else ""
    return Chart("tokens", "Where the computed tokens went", caption, (panel,), heads, tuple(rows), legend, note=note)


#: How the last part differs from ``slot_waste``, which is of slot time alone.
_EMPTY = (
    "Empty places: one for each step that a slot of a closed batch is held and computes nothing, as a share of all "
    "token places, prompts among them. The table's idle slots are the same as a share of slot time, in which a prompt "
    "of a thousand tokens is one step: a larger share."
)
#: Looks of the parts of a waste bar, in the order of `PARTS`.
PATTERNS = ("useful", "recomputed", "lost", "padding", "idle")


def roofline(view: View, caption: str) -> Chart | None:
    """FLOP per byte against FLOP per second of steps, on the roof of the data sheet."""
    roof = view.roof
    if roof is None or "step_flops" not in view.decisions or not len(view.decisions):
        return None
    looks = places(view.policies, view.kinds)
    series, rows, reach = [], [], [roof.ridge, roof.ridge]
    for policy in view.policies:
        steps = sample(view.of(view.decisions, policy), _STEPS)
        if not len(steps):
            continue
        intensity, reached = on_the_roof(steps)
        reach = [min(reach[0], *intensity), max(reach[1], *intensity)]
        points = tuple(map(partial(_step, policy), intensity, reached, steps.to_dict("records")))
        series.append(Series(policy, looks[policy], (points,), joined=False, small=True))
        bound = view.row(policy)["bandwidth_bound_fraction"]
        rows.append(
            (
                policy,
                number(float(np.median(intensity))),
                number(float(np.median(reached))),
                share(None if bound is None else float(bound)),
            )
        )
    edge = [reach[0] / 2, roof.ridge, reach[1] * 3]
    top = tuple((x, min(x * roof.bandwidth_Bps, roof.flops) / 1e12) for x in edge)
    ridge = Line(f"ridge {number(roof.ridge)} FLOP/byte", x=roof.ridge)
    panel = Panel(
        Axis("arithmetic intensity [FLOP per byte of weights and KV cache]", log=True),
        Axis("achieved [TFLOP/s per GPU]", log=True),
        tuple(series),
        lines=(ridge, Line("", through=top, strong=True)),
        height=360,
    )
    peaks = f"{roof.name}: {number(roof.flops / 1e12)} TFLOP/s, {number(roof.bandwidth_Bps / 1e12)} TB/s"
    heads = ("policy", "median FLOP per byte", "median TFLOP/s", "time bound by bandwidth")
    legend = (*_policies(view, looks), Key(peaks, "strong"))
    note = f"Up to {_STEPS} decisions of each policy, evenly spaced in its busy time."
    return Chart("roofline", "Steps on the roofline", caption, (panel,), heads, tuple(rows), legend, note=note)


def _step(policy: str, intensity: float, reached: float, step: Mapping[Any, Any]) -> Datum:
    numbers = (
        ("FLOP per byte", number(intensity, 4)),
        ("TFLOP/s per GPU", number(reached, 4)),
        ("prompt tokens", f"{step['prefill_tokens']:,}"),
        ("decode rows", f"{step['decode_rows']:,}"),
        ("step time [ms]", number(1e3 * step["step_s"], 4)),
    )
    return Datum(intensity, reached, f"{policy}, step at {seconds(step['start_s'])}", numbers)


def timeline(view: View, caption: str) -> Chart | None:
    """For each policy rows at work and KV memory over time, with every moment that memory was short (up to a limit)."""
    seen = {*view.decisions["policy"], *view.oom["policy"]}
    shown = [policy for policy in view.policies if policy in seen][:PANELS]
    looks = places(view.policies, view.kinds)
    panels: list[Panel | Bars] = []
    keys = {"work": Key("rows at work (the policy's colour)", "work")}
    rows = []
    end = max(
        (
            float((part["start_s"] + part["seconds"]).max())
            for policy in shown
            if len(part := view.of(view.decisions, policy))
        ),
        default=1.0,
    )
    time = Axis("time [s]", limits=(0.0, end))
    for policy in shown:
        decisions = view.of(view.decisions, policy)
        oom = view.of(view.oom, policy)["time_s"].to_numpy(float)
        look, row = looks[policy], view.row(policy)
        areas: tuple[Area, ...] = ()
        held: tuple[Area, ...] = ()
        told: tuple[Series, ...] = ()
        if len(decisions):
            live = decisions["useful_decode_rows"] + decisions["prefill_rows"]
            times, slots = buckets(decisions, decisions["slots"], "mean", _MEANS)
            _, working = buckets(decisions, live, "mean", _MEANS)
            areas = (Area(look, times.tolist(), [0.0] * len(times), working.tolist()),)
            if float((slots - working).max(initial=0.0)) > 1e-9:
                keys["idle"] = Key("slots held by finished rows", "idle")
                areas = (Area(look, times.tolist(), working.tolist(), slots.tolist(), idle=True), *areas)
            at, blocks = buckets(decisions, 100 * decisions["kv_blocks"] / float(row["kv_blocks_total"]), "max")
            held = (Area(look, at.tolist(), [0.0] * len(at), blocks.tolist(), pale=True),)
            told = (_moments(policy, decisions, float(row["kv_blocks_total"]), look),)
            rows += [(policy, *(value for _, value in datum.numbers)) for datum in told[0].lines[0]]
        preempted = decisions.loc[decisions["preempted"] > 0, "start_s"].to_numpy(float)
        marks = (_marked("preempted", preempted, policy), _marked("oom", oom, policy))
        for mark in marks:
            if mark.points:
                keys[mark.look] = Key(mark.name, mark.look)
        lines = (Line("", y=100.0, strong=True),)
        rows_of = tuple(
            Series(
                each.name,
                each.look,
                tuple(tuple(d._replace(y=_value(d, "rows at work")) for d in line) for line in each.lines),
                joined=False,
                quiet=True,
            )
            for each in told
        )
        panels.append(Panel(time, Axis("rows", base=0.0), rows_of, title=policy, areas=areas, height=250))
        panels.append(
            Panel(
                time,
                Axis("KV memory [%]", limits=(0.0, 122.0)),
                told,
                title=policy,
                areas=held,
                lines=lines,
                marks=marks,
                height=250,
            )
        )
    if not panels:
        return None
    legend = (*keys.values(), Key("KV capacity", "strong"))
    heads = ("policy", "time [s]", "rows at work", "slots held", "KV memory [%]", "waiting")
    return Chart("timeline", "Running rows and KV memory over time", caption, tuple(panels), heads, tuple(rows), legend)


def _value(datum: Datum, label: str) -> float:
    return float(dict(datum.numbers)[label].replace(",", ""))


def _moments(policy: str, decisions: pd.DataFrame, total: float, look: int) -> Series:
    """Decisions evenly spaced in time, as points that tell what was running."""
    starts = decisions["start_s"].to_numpy(float)
    wanted = np.linspace(starts[0], starts[-1], _MOMENTS)
    chosen = decisions.iloc[np.unique(np.clip(np.searchsorted(starts, wanted, side="right") - 1, 0, None))]
    points = []
    for step in chosen.to_dict("records"):
        filled = 100 * step["kv_blocks"] / total
        numbers = (
            ("time [s]", number(step["start_s"], 4)),
            ("rows at work", f"{step['useful_decode_rows'] + step['prefill_rows']:,}"),
            ("slots held", f"{step['slots']:,}"),
            ("KV memory [%]", number(filled)),
            ("waiting", f"{step['waiting']:,}"),
        )
        points.append(Datum(step["start_s"], filled, policy, numbers))
    return Series(policy, look, (tuple(points),), joined=False, quiet=True)


def _marked(look: str, times: Any, policy: str) -> Marks:
    kept: Sequence[float] = (
        times[np.unique(np.linspace(0, len(times) - 1, min(len(times), MARKS)).astype(int))] if len(times) else []
    )
    name = {"oom": "out of memory", "preempted": "preemption"}[look]
    points = tuple(
        Datum(float(time), 111.0, f"{policy}: {name}", (("time [s]", number(float(time), 4)),)) for time in kept
    )
    return Marks(look, 111.0, points, name)

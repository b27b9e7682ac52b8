"""Charts of single runs, at the point that the verdict is about: latencies, waste, the roofline."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.report.charts.looks import places
from servecast.report.charts.spec import (
    Axis,
    Bar,
    Bars,
    Chart,
    Curve,
    Datum,
    Key,
    Line,
    Panel,
    Part,
    Series,
    evenly,
    tooltips,
)  # fmt: skip
from servecast.report.tables import UNCALIBRATED
from servecast.run.judged import on_the_roof
from servecast.text import listed, missing, number, seconds, share

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from servecast.run.judged import View
    from servecast.run.results import Roof

_RANKS = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)  # percentiles that have tooltips
_CURVE = 160  # points of a distribution's line
_STEPS = 110  # drawn of each policy on the roofline, evenly spaced in its busy time

#: Parts of a waste bar: label and look.
_PARTS = (
    ("useful", "useful"),
    ("recomputed after preemption", "recomputed"),
    ("lost when memory ran out", "lost"),
    ("padding", "padding"),
    ("empty places of a closed batch", "idle"),
)


def _policy_keys(view: View) -> tuple[Key, ...]:
    """The policies as entries of a legend."""
    looks = places(tuple(view.kinds), view.kinds)
    return tuple(Key(policy, looks[policy]) for policy in view.policies)


def latency_cdf(view: View) -> Chart | None:
    """Share of all requests answered within a time; lost requests keep a curve below 100 %."""
    done = view.requests[view.requests["status"] == "completed"]
    panels: list[Panel | Bars] = []
    for column, label, unit in (
        ("ttft_s", "time to first token [s]", 1.0),
        ("tpot_s", "time per output token [ms]", 1e3),
        ("e2e_s", "time to the last token [s]", 1.0),
    ):
        if done[column].notna().any():
            panels.append(_distributions(view, done, column, label, unit))
    if not panels:
        return None
    return Chart("latency-cdf", "Latency distribution", _cdf_caption(view, done), tuple(panels), _policy_keys(view))


def _distributions(view: View, done: pd.DataFrame, column: str, label: str, unit: float) -> Panel:
    """One latency of every policy."""
    looks = places(tuple(view.kinds), view.kinds)
    series: list[Series] = []
    curves: list[Curve] = []
    for policy in view.policies:
        times = np.sort(view.of(done, policy)[column].dropna().to_numpy())
        if not len(times):
            continue
        own = view.of(view.requests, policy)
        counted = len(own) - int((own["status"] == "completed").sum()) + len(times)  # a one-token answer has no TPOT
        ranks = [rank for rank in _RANKS if rank / 100 * len(times) >= 0.5]
        at = np.percentile(times, ranks).tolist()
        points = []
        for rank, time in zip(ranks, at, strict=True):
            reached = 100 * float(np.searchsorted(times, time, side="right")) / counted
            numbers = ((label, number(unit * time, 4)), ("of all requests [%]", number(reached)))
            name = f"{policy}, p{rank:g} of {len(times):,} completed"
            points.append(Datum(unit * time, reached, name, numbers))
        kept = evenly(len(times), _CURVE)
        curves.append(Curve(looks[policy], (unit * times[kept]).tolist(), (100 * (kept + 1) / counted).tolist()))
        series += tooltips(policy, looks[policy], points)
    aim = view.slo.get(column)
    lines = () if aim is None else (Line(f"target {seconds(float(aim))}", x=unit * float(aim)),)
    y = Axis("requests answered within [%]", limits=(0.0, 103.0))
    return Panel(Axis(label, log=True), y, tuple(series), lines=lines, curves=tuple(curves))


def _cdf_caption(view: View, done: pd.DataFrame) -> str:
    own = {policy: view.of(done, policy) for policy in view.policies}
    parts = [f"{policy} {seconds(float(rows['ttft_s'].median()))}" for policy, rows in own.items() if len(rows)]
    lost = [policy for policy, rows in own.items() if len(rows) < len(view.of(view.requests, policy))]
    tail = f"; {listed(lost)} end below 100 %: requests without an answer" if lost else ""
    return f"Half of the answers begin within: {', '.join(parts)}{tail}."


def waste(view: View) -> Chart | None:
    """Of all token places computed or held, the share that served somebody."""
    looks = places(tuple(view.kinds), view.kinds)
    bars, useful, used = [], {}, set()
    for policy in view.policies:
        row = view.row(policy)
        recomputed = min(float(row["recomputed_tokens"]), float(row["useful_tokens"]))
        lost = min(float(row["lost_tokens"]), float(row["useful_tokens"]) - recomputed)
        served = float(row["useful_tokens"]) - recomputed - lost
        counts = [served, recomputed, lost, float(row["padding_tokens"]), float(row["idle_slot_tokens"])]
        if not (total := sum(counts)):
            continue
        useful[policy] = counts[0] / total
        there = [(label, look, count) for (label, look), count in zip(_PARTS, counts, strict=True) if count]
        numbers = [(label, f"{share(count / total)} ({count:,.0f})") for label, _, count in there]
        for what, value in (("padding", row["padding_waste_s"]), ("idle slots", row["slot_waste_s"])):
            numbers += [] if missing(value) or not value else [(f"time lost to {what} [s]", number(float(value), 4))]
        used |= {look for _, look, _ in there}
        parts = tuple(Part(100 * count / total, look, share(count / total)) for _, look, count in there)
        bars.append(Bar(policy, (*numbers, ("token places in all", f"{total:,.0f}")), parts, look=looks[policy]))
    if not bars:
        return None
    best, worst = max(useful, key=useful.__getitem__), min(useful, key=useful.__getitem__)
    caption = f"{share(useful[best])} of what {best} computes or holds serves somebody"
    if worst != best:
        caption += f", of {worst} {share(useful[worst])}"
    panel = Bars(Axis("token places computed or held [%]", limits=(0.0, 100.5)), tuple(bars))
    legend = tuple(Key(label, look) for label, look in _PARTS if look in used)
    note = _EMPTY if "idle" in used else ""
    return Chart("tokens", "Where the computed tokens went", f"{caption}.", (panel,), legend, note)


#: How the last part differs from ``slot_waste``, which is of slot time alone.
_EMPTY = (
    "Empty places: one for each step that a slot of a closed batch is held and computes nothing, as a share of all "
    "token places, prompts among them. The table's idle slots are the same as a share of slot time, in which a prompt "
    "of a thousand tokens is one step: a larger share."
)


def roofline(view: View) -> Chart | None:
    """FLOP per byte against FLOP per second of steps, on the roof of the data sheet."""
    roof = view.roof
    if roof is None or "step_flops" not in view.decisions or not len(view.decisions):
        return None
    looks = places(tuple(view.kinds), view.kinds)
    series, reach, bounds = [], [roof.ridge, roof.ridge], []
    for policy in view.policies:
        steps = view.of(view.decisions, policy)
        if not len(steps):
            continue
        if len(steps) > _STEPS:
            busy = steps["seconds"].to_numpy(float).cumsum()
            at = np.searchsorted(busy, np.linspace(0, busy[-1], _STEPS, endpoint=False), side="right")
            steps = steps.iloc[np.unique(np.minimum(at, len(steps) - 1))]
        intensity, reached = on_the_roof(steps)
        reach = [min(reach[0], *intensity), max(reach[1], *intensity)]
        points = tuple(map(partial(_step, policy), intensity, reached, steps.to_dict("records")))
        series.append(Series(policy, looks[policy], (points,), joined=False, small=True))
        bound = view.row(policy)["bandwidth_bound_fraction"]
        bounds += [] if missing(bound) else [f"{policy} {share(bound)}"]
    top = tuple((x, min(x * roof.bandwidth_Bps, roof.flops) / 1e12) for x in (reach[0] / 2, roof.ridge, reach[1] * 3))
    ridge = Line(f"ridge {number(roof.ridge)} FLOP/byte", x=roof.ridge)
    x = Axis("arithmetic intensity [FLOP per byte of weights and KV cache]", log=True)
    y, lines = Axis("achieved [TFLOP/s per GPU]", log=True), (ridge, Line("", through=top, strong=True))
    panel = Panel(x, y, tuple(series), lines=lines, height=360)
    peaks = f"{roof.name}: {number(roof.flops / 1e12)} TFLOP/s, {number(roof.bandwidth_Bps / 1e12)} TB/s"
    legend = (*_policy_keys(view), Key(peaks, "strong"))
    note = f"Up to {_STEPS} decisions of each policy, evenly spaced in its busy time."
    return Chart("roofline", "Steps on the roofline", _roof_caption(roof, bounds), (panel,), legend, note)


def _step(policy: str, intensity: float, reached: float, step: Mapping[Any, Any]) -> Datum:
    numbers = (("FLOP per byte", number(intensity, 4)), ("TFLOP/s per GPU", number(reached, 4)),
               ("prompt tokens", f"{step['prefill_tokens']:,}"), ("decode rows", f"{step['decode_rows']:,}"),
               ("step time [ms]", number(1e3 * step["step_s"], 4)))  # fmt: skip
    return Datum(intensity, reached, f"{policy}, step at {seconds(step['start_s'])}", numbers)


def _roof_caption(roof: Roof, bounds: list[str]) -> str:
    tail = "the gap below the roof is what kernels and scheduling cost"
    if not roof.calibrated:
        tail = f"steps are priced by this roof itself ({UNCALIBRATED})"
    if not bounds:
        return f"{tail.capitalize()}."
    return f"Left of the ridge memory bandwidth sets the pace: so it does for {', '.join(bounds)} of busy time; {tail}."

"""The figures of a plan's page: what each configuration serves, how many GPUs a rate takes, and what a token costs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from servecast.report.charts.spec import Axis, Bar, Bars, Chart, Datum, Key, Line, Panel, Series
from servecast.report.plan_words import bounds, interval, standing
from servecast.text import BLANK, number, percent, signed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servecast.plan.answer import Option, Plan

_MOST_OPTIONS = 40  # of a figure; the table has all of them
_LOOKS = 10
_DOLLARS = "US dollars of the whole bill per million output tokens"
_NO_NEWS = 0.01  # a gain that is none
_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # of the highest load
_STEPS = 30  # of whole replicas, up to twice the target


def charts(plan: Plan) -> Iterator[Chart]:
    """Every figure that has something to show."""
    able = [option for option in standing(plan) if option.capacity is not None]
    if not able:
        return
    best = plan.best.label if plan.best is not None else ""
    first = sorted(able, key=lambda option: (option.label != best, -_each(option)))[:_MOST_OPTIONS]
    looks = {option.label: place % _LOOKS for place, option in enumerate(first)}
    yield _loads(plan, first, looks)
    few = first[:_LOOKS]
    yield _gpus(plan, few, looks)
    priced = [option for option in few if "output" in option.usd_per_mtok]
    if priced:
        yield _money(plan, priced, looks)
    if any(change.gain_per_gpu is not None for change in plan.changes):
        yield _changes(plan)


def _each(option: Option) -> float:
    """Highest load of each GPU."""
    return 0.0 if option.capacity is None else option.capacity.value / option.gpus


def _loads(plan: Plan, options: Sequence[Option], looks: dict[str, int]) -> Chart:
    """Of each GPU, so that configurations of different size compare."""
    unit = options[0].unit
    bars = []
    for option in options:
        assert option.capacity is not None, "those without a capacity were left out"
        each = option.capacity.over(option.gpus)
        of_all = f"{number(option.capacity.value, 4)} on {_gpu_count(option.gpus)}"
        needed = BLANK if option.target_gpus is None else str(option.target_gpus)
        numbers = [(f"each GPU [{unit}]", number(each.value, 4)), ("90 % interval", bounds(each, 4)),
                   ("highest load", of_all), ("GPUs for the target", needed)]  # fmt: skip
        if "output" in option.usd_per_mtok:
            numbers.append(("whole bill $/M output tokens there", number(option.usd_per_mtok["output"].value, 4)))
        if option.binds:
            numbers.append(("what binds", option.binds))
        bar = Bar(option.label, tuple(numbers), (), *each, looks[option.label], of_all, hollow=not option.serves)
        bars.append(bar)
    panel = Bars(Axis(f"highest load within the goal, of each GPU [{unit}]", base=0.0), tuple(bars))
    most = max(bars, key=lambda bar: bar.value or 0.0)
    caption = f"{most.name} serves most on each GPU: {number(most.value)} {unit} within the goal."
    legend = [Key("90 % interval", "interval")]
    if any(bar.hollow for bar in bars):
        legend.append(Key("does not serve the target", "hollow"))
    note = "" if len(options) < _MOST_OPTIONS else f"The best {_MOST_OPTIONS}; options.csv has all."
    return Chart("loads", "What each configuration serves", caption, (panel,), tuple(legend), note)


def _gpu_count(count: int) -> str:
    return f"{count} GPU{'s' if count > 1 else ''}"


def _gpus(plan: Plan, options: Sequence[Option], looks: dict[str, int]) -> Chart:
    """Whole replicas for a rate, scaled from the highest load of those simulated."""
    unit, target = options[0].unit, options[0].target
    top = 2 * target
    series = []
    for option in options:
        assert option.capacity is not None, "those without a capacity were left out"
        replica = option.capacity.value / option.replicas
        steps = []
        most = math.ceil(top / replica - 1e-9)
        for count in range(1, most + 1, math.ceil(most / _STEPS)):
            upto, gpus = count * replica, count * option.tensor_parallel
            numbers = (("GPUs", str(gpus)), (f"serve up to [{unit}]", number(upto, 4)), ("by", "scaling"))
            steps.append(Datum(min(upto, top), float(gpus), option.label, numbers))
        series.append(Series(option.label, looks[option.label], (tuple(steps),), quiet=True, stepped=True))
        if option.target_gpus is not None:
            numbers = (("GPUs", str(option.target_gpus)), (f"serve [{unit}]", number(target)), ("by", "simulation"))
            point = Datum(target, float(option.target_gpus), f"{option.label}, the target", numbers)
            series.append(Series(option.label, looks[option.label], ((point,),)))
    x, y = Axis(f"load [{unit}]", base=0.0), Axis("GPUs", base=0.0, whole=True)
    panel = Panel(x, y, tuple(series), lines=(Line(f"target {number(target)}", x=target),))
    caption = f"No configuration serves {number(target)} {unit} within the limits of the search."
    if plan.best is not None and plan.best.target_gpus is not None:
        caption = f"{plan.best.label} takes {_gpu_count(plan.best.target_gpus)} for {number(target)} {unit}."
    note = "Lines scale the highest load that was simulated to whole replicas; marks are simulated at the target."
    return Chart("gpus", "GPUs against load", caption, (panel,), _keys(options, looks), note)


def _keys(options: Sequence[Option], looks: dict[str, int]) -> tuple[Key, ...]:
    return tuple(Key(option.label, looks[option.label]) for option in options)


def _money(plan: Plan, options: Sequence[Option], looks: dict[str, int]) -> Chart:
    series = []
    for option in options:
        points = []
        for share in _SHARES:
            price = option.usd_per_mtok["output"].over(share)
            numbers = (
                ("of the highest load", percent(share, 0)), ("whole bill $/M output tokens", number(price.value, 4)),
                ("90 % interval", bounds(price, 4)),
            )  # fmt: skip
            bounded = share == 1 and price.high is not None and math.isfinite(price.high)
            ends = (price.low, price.high) if bounded else (None, None)
            points.append(Datum(100 * share, price.value, option.label, numbers, *ends))
        series.append(Series(option.label, looks[option.label], (tuple(points),)))
    lines: tuple[Line, ...] = ()
    if plan.break_even is not None and plan.break_even.utilisation <= 1 and plan.best is not None:
        lines = (Line("as dear as the API", x=100 * plan.break_even.utilisation),)
    x, y = Axis("mean load, of the highest [%]", limits=(0.0, 105.0)), Axis(_DOLLARS, log=True)
    panel = Panel(x, y, tuple(series), lines=lines)
    cheap = min(options, key=lambda option: option.usd_per_mtok["output"].value)
    caption = (
        "A GPU is paid for by the hour: at half the load a token costs twice as much. At its highest load "
        f"{cheap.label} makes a million output tokens for a whole bill of ${interval(cheap.usd_per_mtok['output'])}."
    )
    return Chart("cost-curve", "What a million tokens cost", caption, (panel,), _keys(options, looks))


def _changes(plan: Plan) -> Chart:
    bars, gains = [], {}
    for change in plan.changes:
        if (gain := change.gain_per_gpu) is not None:
            gains[change.label] = gain
            numbers = (("each GPU serves", signed(gain, 1)), ("highest load", number(change.capacity, 4)))
            bars.append(Bar(change.label, numbers, value=100 * gain, look=2, words=signed(gain, 1)))
    axis, zero = Axis("change of the load of each GPU [%]", base=0.0), Line("", x=0.0, strong=True)
    panel = Bars(axis, tuple(bars), lines=(zero,))
    most = max(gains, key=gains.__getitem__)
    caption = f"{most} changes what each GPU serves by {signed(gains[most], 1)}."
    if gains[most] < _NO_NEWS:
        caption = f"No single change that was tried lets a GPU serve {100 * _NO_NEWS:.0f} % more."
    return Chart("changes", "One change at a time", caption, (panel,))

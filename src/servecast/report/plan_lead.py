"""A plan in words for whoever pays: how many of which GPU, for which load, at what price; then how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.report.plan_names import gpus, statistic
from servecast.report.plan_words import interval, number
from servecast.scenario.goals import at_least
from servecast.text import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.plan.answer import Option, Plan

_GAIN = 0.01  # of a change: less is none


def lead(plan: Plan) -> str:
    """The first sentence: ``2 H200 for 25 requests/s: $7.00 an hour, $0.21 per million output tokens.``"""
    best = plan.best
    if best is None:
        option = plan.options[0]
        return f"No configuration serves {number(option.target)} {option.unit} within the targets."
    dollars = best.usd_for_target
    prices = [] if dollars is None else [f"${dollars:,.2f} an hour"]
    if (output := best.usd_per_mtok_at_target.get("output")) is not None:
        prices.append(f"${number(output)} per million output tokens")
    return (
        f"{gpus(best, best.replicas)} for {number(best.target)} {best.unit}{': ' if prices else ''}{', '.join(prices)}."
    )


def rest(plan: Plan) -> str:
    """What follows: which configuration, how far it goes, what ends it, and whether the numbers bear it."""
    return " ".join(_sentences(plan) if plan.best is not None else [_nearest(plan)])


def _sentences(plan: Plan) -> Iterator[str]:
    best = plan.best
    assert best is not None and best.capacity is not None and plan.headroom is not None
    others = len(plan.options) - 1
    which = f"the best of {others + 1} configurations" if others else "the one configuration searched"
    ends = f", {best.binds} binds there" if best.binds else ""
    unstable = ", unstable above it" if best.unstable_above is not None else ""
    yield (
        f"{best.label} is {which}. It holds the targets up to {interval(best.capacity)} {best.unit}, "
        f"{spare(plan.headroom.value)}{ends}{unstable}."
    )
    told = [
        f"{statistic(name)} {timed(name, interval(found))}, {'at least' if at_least(name) else 'at most'} "
        f"{timed(name, f'{limit:g}')} wanted"
        for name, limit in plan.goal.items()
        if (found := best.at_target.get(name)) is not None
    ]
    if told:
        yield f"At the target: {'; '.join(told)}."
    if plan.break_even is not None:
        yield _against(plan, best)
    gains = [change for change in plan.changes if change.gain_per_gpu is not None and change.gain_per_gpu > _GAIN]
    if gains:
        yield f"Next best change: {gains[0].label} ({signed(gains[0].gain_per_gpu or 0.0)} of load for each GPU)."
    if plan.supported:
        yield "The 90 % interval supports the plan."
    else:
        yield f"The 90 % interval does not support the plan: {'; '.join(in_words(doubt) for doubt in plan.doubts)}."
    if plan.holds is not None:
        sure, dollars = plan.holds, plan.holds.usd_per_hour
        price = "" if dollars is None else f" at ${dollars:,.2f} an hour"
        yield f"To be sure: {gpus(best, sure.replicas)}{price}, which carry {interval(sure.capacity)} {best.unit}."


def _against(plan: Plan, best: Option) -> str:
    """The load from which on the GPUs cost less than the API; they may be those of a cheaper configuration."""
    assert plan.break_even is not None
    load, share = plan.break_even[:2]
    whose = plan.break_even_of if plan.break_even_of not in ("", best.label) else ""
    if share > 1:
        of = f" of {whose}" if whose else ""
        return (
            f"The API is cheaper at any load: break-even{of} would be at {number(load)} {best.unit}, above the highest."
        )
    who = f"{whose} is cheaper" if whose else "Cheaper"
    return f"{who} than the API from {number(load)} {best.unit} on ({100 * share:.0f} % of the highest load)."


def _nearest(plan: Plan) -> str:
    """What stands in the way of the best of those that serve something, or of all."""
    able = [option for option in plan.options if option.capacity is not None]
    if not able:
        reasons = list(dict.fromkeys(in_words(option.refused) for option in plan.options))
        return f"At no load is the goal met: {listed(reasons[:3])}."
    most = max(able, key=lambda option: 0.0 if option.capacity is None else option.capacity.value / option.gpus)
    return f"The nearest, {most.label}: {in_words(most.refused)}."


def spare(share: float) -> str:
    """Headroom in words, at whole percents; what rounds to nothing is none."""
    percent = round(100 * share)
    if percent == 0:
        return "with no headroom to speak of"
    return f"{percent} % above the target" if percent > 0 else f"{-percent} % below the target"


def signed(share: float, digits: int = 0) -> str:
    """``+12 %``, and ``0 %`` without a sign for what rounds to nothing."""
    percent = round(100 * share, digits)
    return f"{percent:+.{digits}f} %" if percent else "0 %"


def timed(name: str, value: str) -> str:
    """A value of a statistic with its unit behind the number: ``0.37 s (0.24 to 0.51)``."""
    if not name.endswith("_s"):
        return value
    first, space, ends = value.partition(" (")
    return f"{first} s{space}{ends}"


def in_words(text: str) -> str:
    """A reason or a doubt with the names of its statistics as people say them."""
    head, space, tail = text.partition(" ")
    return f"{statistic(head)}{space}{tail}"

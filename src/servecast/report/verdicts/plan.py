"""The verdict on a plan: how many of which GPU for which load, at what price; then how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.plan.uncertainty import Estimate
from servecast.report.plan_words import apart, gpus, interval, shortened, statistic, timed, with_names
from servecast.report.verdicts import Verdict, as_sentence, first_concise
from servecast.scenario.goals import at_least
from servecast.text import listed, number, percent, signed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.plan.answer import Option, Plan

_GAIN = 0.01  # what a change gives: less is none, and so is what lies within the noise
_NEAR = 0.02  # headroom this small has a decimal
_MOST_REASONS = 3


def verdict(plan: Plan) -> Verdict:
    """The GPUs that serve the target and what they cost; else that none do, and what stands in the way."""
    plan, _ = shortened(plan)
    if plan.best is None:
        return _none(plan)
    details = [*_unserved(plan.best), *_details(plan, plan.best)]
    return Verdict(first_concise(_headlines(plan, plan.best), _mark(plan.best)), tuple(map(as_sentence, details)))


def _mark(option: Option) -> str:
    """What a headline begins with where not all that is asked is served: ``34 % of the answers cut short: ``."""
    return "" if option.too_long is None else f"{option.too_long.short}: "


def _unserved(option: Option) -> Iterator[str]:
    """Requests that an option refuses, or whose answers it cuts, and what would take them."""
    over = option.too_long
    if over is not None:
        yield f"at max_model_len {over.max_model_len:,} {over.counts}; {over.remedy}"


def _headlines(plan: Plan, best: Option) -> Iterator[str]:
    """``2 H200 for 25 requests/s: $7.00 an hour, $0.210 of the whole bill per million output tokens``, or less."""
    target, chosen = f"{number(best.target)} {best.unit}", gpus(best, best.replicas)
    prices = [] if best.usd_for_target is None else [f"${best.usd_for_target:,.2f} an hour"]
    if plan.may_not_hold and plan.holds is not None:
        sentence = f"{chosen} may not hold {target}, {plan.holds.replicas} do"
        prices = [] if plan.holds.usd_per_hour is None else [f"${plan.holds.usd_per_hour:,.2f} an hour"]
    elif plan.may_not_hold:
        sentence = f"{chosen} would just do for {target}, and may not hold"
    else:
        sentence = f"{chosen} for {target}"
        if (output := best.usd_at_target.get("output")) is not None:
            prices.append(f"${number(output.value)} of the whole bill per million output tokens")
    for count in range(len(prices), 0, -1):
        yield f"{sentence}: {', '.join(prices[:count])}"
    yield sentence


def _details(plan: Plan, best: Option) -> Iterator[str]:
    assert best.capacity is not None
    assert plan.headroom is not None
    others = len(plan.options) - 1
    which = f"the best of {others + 1} configurations" if others else "the one configuration searched"
    ends = f", {best.binds} binds there" if best.binds else ""
    unstable = ", unstable above that" if best.unstable_above is not None else ""
    yield (
        f"{best.label} is {which}: it holds the targets up to {apart(best.capacity, best.target)} {best.unit}, "
        f"{_headroom(plan.headroom.value)}{ends}{unstable}"
    )
    reached = [
        f"{statistic(name)} {timed(name, interval(found))}, {'at least' if at_least(name) else 'at most'} "
        f"{timed(name, f'{limit:g}')} wanted"
        for name, limit in plan.goal.items()
        if (found := best.at_target.get(name)) is not None
    ]
    if reached:
        yield f"at the target: {'; '.join(reached)}"
    if "total" in best.usd_at_target and "total" in best.usd_per_mtok:
        yield (
            f"a million tokens, in and out, cost ${number(best.usd_at_target['total'].value)} at the target "
            f"({percent(best.target / best.capacity.value, 0)} of the highest load), "
            f"${number(best.usd_per_mtok['total'].value)} at the highest"
        )
    if plan.break_even is not None:
        yield _against_api(plan, best)
    if plan.changes and (gain := plan.changes[0].gain_per_gpu) is not None and gain > max(_GAIN, plan.noise):
        yield f"next best change: {plan.changes[0].label} ({signed(gain)} of load for each GPU)"
    if plan.supported:
        yield "the 90 % interval supports the plan"
    else:
        yield f"the 90 % interval does not support the plan: {'; '.join(map(with_names, plan.doubts))}"
    if plan.holds is not None:
        price = "" if plan.holds.usd_per_hour is None else f" at ${plan.holds.usd_per_hour:,.2f} an hour"
        carried = f"{apart(plan.holds.capacity, best.target)} {best.unit}"
        yield f"to be sure: {gpus(best, plan.holds.replicas)}{price}, which carry {carried}"


def _against_api(plan: Plan, best: Option) -> str:
    """The load from which on the GPUs cost less than the API; they may be those of a cheaper configuration."""
    found = plan.break_even
    assert found is not None
    own = next((option for option in plan.options if option.label == plan.break_even_of), best)
    whose = "these GPUs"
    if own.label != best.label:
        whose = f"the cheapest GPUs for the target ({own.label}, {gpus(own, own.target_replicas or 1)})"
    load = f"{interval(Estimate(found.load, found.load_low, found.load_high))} {best.unit}"
    if found.utilisation > 1:
        return f"the API is cheaper at any load than {whose}: break-even would be at {load}, above the highest"
    ends = ""
    if found.utilisation_low is not None and found.utilisation_high is not None:
        ends = f", {100 * found.utilisation_low:.0f} to {percent(found.utilisation_high, 0)}"
    asked = ""
    if own.usd_for_target is not None and found.api_usd_per_hour is not None:
        asked = f"; for the target they cost ${own.usd_for_target:,.2f} an hour, it ${found.api_usd_per_hour:,.2f}"
    share = f"{percent(found.utilisation, 0)}{ends} of their highest load"
    return f"{whose} are cheaper than the API from {load} on ({share}){asked}"


def _headroom(share: float) -> str:
    """How far the highest load is from the target; what rounds to nothing is none."""
    apart_by = signed(abs(share), 1 if abs(share) < _NEAR else 0).lstrip("+")
    if apart_by == "0 %":
        return "with no headroom to speak of"
    return f"{apart_by} {'above' if share > 0 else 'below'} the target"


def _none(plan: Plan) -> Verdict:
    """No configuration serves the target: what stands in the way of the one that serves most, or of all."""
    able = [option for option in plan.options if option.capacity is not None]
    unfit = [option for option in plan.options if option.too_long is not None]
    if not able and len(unfit) == len(plan.options):
        return _does_not_fit(unfit)
    if not able:
        reasons = list(dict.fromkeys(with_names(option.refused) for option in plan.options))
        sentence = f"What stands in the way: {listed(reasons[:_MOST_REASONS])}."
        return Verdict("No configuration meets the goal at any load.", (sentence,))
    most = max(able, key=lambda option: 0.0 if option.capacity is None else option.capacity.value / option.gpus)
    return Verdict(
        first_concise([f"no configuration serves {number(most.target)} {most.unit} within the goal"], _mark(most)),
        (f"The nearest, {most.label}: {with_names(most.refused)}.", *map(as_sentence, _unserved(most))),
    )


def _does_not_fit(options: list[Option]) -> Verdict:
    """No configuration takes the requests as they are; told of the one that takes most of them."""
    nearest = min(options, key=lambda option: 1.0 if option.too_long is None else option.too_long.share)
    assert nearest.too_long is not None
    details = list(_unserved(nearest))
    if nearest.too_long.share < 1:
        details.append("to plan for those that fit, set goal.allow_rejected: true")
    return Verdict(f"The traffic does not fit: {nearest.too_long.short}.", tuple(map(as_sentence, details)))

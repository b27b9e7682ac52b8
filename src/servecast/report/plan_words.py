"""A plan in words: the table of options, the best one in detail, and the verdict, which begins with the answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from servecast.plan.answer import KINDS, UTILISATIONS
from servecast.scenario.goals import at_least
from servecast.text import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.plan.answer import Option, Plan
    from servecast.plan.uncertainty import Estimate

NONE = "\u2013"
#: So near the target a headroom has a decimal.
_NEAR = 0.02
_MOST_DIGITS = 7


def number(value: float | None, digits: int = 3) -> str:
    """A value with so many digits that mean something."""
    if value is None:
        return NONE
    if math.isinf(value):
        return "no bound"
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text else text


def interval(estimate: Estimate | None, digits: int = 3) -> str:
    """``8.78 (8.51 to 9.05)``: the value and its 90 % interval."""
    if estimate is None:
        return NONE
    value = number(estimate.value, digits)
    if estimate.low is None:
        return value
    return f"{value} ({number(estimate.low, digits)} to {number(estimate.high, digits)})"


def apart(estimate: Estimate | None, target: float, digits: int = 3) -> str:
    """The interval with digits enough that no end which is not the target reads like it."""
    if estimate is None:
        return NONE
    ends = [end for end in estimate if end is not None and end != target and math.isfinite(end)]
    while digits < _MOST_DIGITS and number(target, digits) in [number(end, digits) for end in ends]:
        digits += 1
    return interval(estimate, digits)


def tables(plan: Plan) -> Iterator[Table]:
    """What the terminal and the page show."""
    unit = plan.options[0].unit
    yield Table(
        "",
        (
            "configuration",
            "GPUs each",
            f"highest load of one [{unit}]",
            "GPUs for target",
            "their highest load",
            "$/hour",
            "$/M output at target",
            "why not",
        ),
        tuple(_row(option) for option in plan.options),
    )
    if plan.best is not None:
        yield Table(
            f"{plan.best.label}, {_gpus(plan.best.gpus)}, at {number(plan.best.target)} {unit}",
            ("statistic", "value, 90 % interval", "target"),
            (
                *(_statistic(plan, name, estimate) for name, estimate in plan.best.at_target.items()),
                *(
                    [("saturation [requests/s], at any wait", interval(plan.best.saturation), NONE)]
                    if plan.best.saturation is not None
                    else []
                ),
            ),
        )
        if plan.best.usd_per_mtok:
            yield Table(
                "Dollars per million tokens",
                ("tokens", "at the target", *(f"at {share:.0%} of the highest load" for share in UTILISATIONS)),
                tuple(_money(plan.best, kind) for kind in KINDS if kind in plan.best.usd_per_mtok),
            )
        if plan.changes and plan.baseline is not None:
            yield Table(
                "One change at a time",
                ("change", f"highest load [{unit}]", "each GPU", "why not"),
                tuple(
                    (
                        change.label,
                        number(change.capacity),
                        NONE if change.gain_per_gpu is None else f"{change.gain_per_gpu:+.1%}",
                        change.refused,
                    )
                    for change in (plan.baseline, *plan.changes)
                ),
            )


def _row(option: Option) -> tuple[str, ...]:
    output = option.usd_at_target.get("output")
    dollars = option.usd_for_target
    return (
        option.label,
        str(option.gpus),
        apart(option.capacity, option.target),
        NONE if option.target_gpus is None else str(option.target_gpus),
        apart(option.fleet_capacity, option.target),
        NONE if dollars is None else f"{dollars:,.2f}",
        NONE if output is None else number(output.value),
        option.why_not,
    )


def reasons(plan: Plan) -> Iterator[str]:
    """What stands under the table of options: reasons in full, and what its columns are."""
    for option in plan.options:
        if option.refused != option.why_not:
            yield f"{option.label}: {option.refused}"
    if any(option.fleet_capacity is not None for option in plan.options):
        held = " and ".join(dict.fromkeys(option.interval for option in plan.options if option.interval))
        yield (
            "Highest load: within the goal"
            + (f", with its 90 % interval from {held}" if held else "")
            + ". Several replicas together are simulated, not multiplied: they share bursts, so that their highest "
            "load is more than so many times one."
        )


def _statistic(plan: Plan, name: str, estimate: Estimate) -> tuple[str, ...]:
    target = plan.goal.get(name)
    sign = "at least" if at_least(name) else "at most"
    return name, interval(estimate), NONE if target is None else f"{sign} {target:g}"


def _money(option: Option, kind: str) -> tuple[str, ...]:
    told = option.usd_per_mtok[kind]
    return kind, interval(option.usd_at_target.get(kind)), *(interval(told.over(share)) for share in UTILISATIONS)


def verdict(plan: Plan) -> str:
    """The answer in a sentence or two."""
    best = plan.best
    if best is None:
        able = [option for option in plan.options if option.capacity is not None]
        if not able:
            return f"No configuration meets the goal at any load: {plan.options[0].refused}."
        most = max(able, key=lambda option: option.capacity.value / option.gpus if option.capacity else 0.0)
        return (
            f"No configuration serves {number(most.target)} {most.unit} within the goal; {most.label}: {most.refused}."
        )
    assert best.capacity is not None
    said = [headline(plan)]
    said.append(
        f"The goal is met up to {apart(best.capacity, best.target)}, {_headroom(plan)}, and {best.binds or 'nothing'} "
        "binds" + (", unstable above that" if best.unstable_above is not None else "")
    )
    if "total" in best.usd_at_target and "total" in best.usd_per_mtok:
        busy = best.target / best.capacity.value
        said.append(
            f"${number(best.usd_at_target['total'].value)} a million tokens at the target load ({busy:.0%} of the "
            f"highest), ${number(best.usd_per_mtok['total'].value)} at the highest"
        )
    if plan.break_even is not None:
        said.append(_against(plan))
    if plan.changes and (gain := plan.changes[0].gain_per_gpu) is not None and gain > 0.01:
        said.append(f"next best change: {plan.changes[0].label} ({gain:+.0%} a GPU)")
    sure = "The 90 % interval supports it" if plan.supported else "Not supported: " + "; ".join(plan.doubts)
    rest = [part[0].upper() + part[1:] for part in (*said[1:], sure)]
    return ". ".join([said[0], *rest]) + "."


def headline(plan: Plan) -> str:
    """The answer: how many GPUs for the target, and if the interval does not bear them, which number it bears."""
    best = plan.best
    assert best is not None and best.capacity is not None
    for_target = f"for {number(best.target)} {best.unit}"
    if not plan.may_not_hold:
        return f"{best.label}: {_gpus(best.gpus)} {for_target}"
    would = f"{best.label}: {_gpus(best.gpus)} would just do {for_target}, and may not hold"
    if plan.holds is None:
        return would
    return f"{would}; {_gpus(plan.holds.gpus)} hold (up to {apart(plan.holds.capacity, best.target)})"


def _against(plan: Plan) -> str:
    """The API against the cheapest GPUs that serve the target."""
    told = plan.break_even
    assert told is not None and plan.best is not None
    [option] = [each for each in plan.options if each.label == plan.break_even_of][:1]
    unit, target = option.unit, number(option.target)
    whose = "" if option.label == plan.best.label else f", {option.label}, {_gpus(option.target_gpus or 0)},"
    if told.utilisation > 1:
        return (
            f"the API is cheaper at any load than the cheapest GPUs for the target{whose.rstrip(',')}: break-even "
            f"would be at {number(told.load)} {unit}, above the highest"
        )
    ends = (
        ""
        if told.utilisation_low is None or told.utilisation_high is None
        else f", {told.utilisation_low:.0%} to {told.utilisation_high:.0%}"
    )
    of = f"({told.utilisation:.0%}{ends} of the highest load)"
    usd, api = option.usd_for_target, told.api_usd_per_hour
    at_target = "" if usd is None or api is None else f", ${usd:,.2f} an hour against ${api:,.2f} at {target}"
    side = "cheaper than the API" if told.load <= option.target else "dearer than the API at the target, cheaper"
    return f"the cheapest GPUs for the target{whose} are {side} from {number(told.load)} {unit} on {of}{at_target}"


def _headroom(plan: Plan) -> str:
    assert plan.headroom is not None
    value, low, high = plan.headroom
    near = any(end is not None and abs(end) < _NEAR for end in plan.headroom)
    share = "{:+.1%}".format if near else "{:+.0%}".format
    ends = "" if low is None or high is None else f" ({share(low)} to {share(high)})"
    return f"{share(value)}{ends} of headroom"


def _gpus(count: int) -> str:
    return f"{count} GPU" + ("s" if count > 1 else "")

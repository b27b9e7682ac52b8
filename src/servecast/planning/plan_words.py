"""A plan in words: the table of options, the best one in detail, and the verdict in one sentence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from servecast.planning.answer import KINDS, UTILISATIONS
from servecast.scenario.goals import at_least

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.planning.answer import Option, Plan
    from servecast.planning.uncertainty import Estimate

NONE = "\u2013"


class PlanTable(NamedTuple):
    """A title, heads, and rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


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


def tables(plan: Plan) -> Iterator[PlanTable]:
    """What the terminal and the page show."""
    unit = plan.options[0].unit
    yield PlanTable(
        "",
        (
            "configuration",
            "GPUs",
            f"highest load [{unit}], 90 % interval",
            "each GPU",
            "GPUs for target",
            "$/M output",
            "why not",
        ),
        tuple(_row(option) for option in plan.options),
    )
    if plan.best is not None:
        yield PlanTable(
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
            yield PlanTable(
                "Dollars per million tokens",
                ("tokens", "at the target", *(f"at {share:.0%} of the highest load" for share in UTILISATIONS)),
                tuple(_money(plan.best, kind) for kind in KINDS if kind in plan.best.usd_per_mtok),
            )
        if plan.changes:
            yield PlanTable(
                "One change at a time",
                ("change", f"highest load [{unit}]", "each GPU", "why not"),
                tuple(
                    (
                        change.label,
                        number(change.capacity),
                        NONE if change.gain_per_gpu is None else f"{change.gain_per_gpu:+.1%}",
                        change.refused,
                    )
                    for change in plan.changes
                ),
            )


def _row(option: Option) -> tuple[str, ...]:
    each = None if option.capacity is None else option.capacity.value / option.gpus
    output = option.usd_per_mtok.get("output")
    return (
        option.label,
        str(option.gpus),
        interval(option.capacity),
        number(each),
        NONE if option.target_gpus is None else str(option.target_gpus),
        NONE if output is None else number(output.value),
        option.refused or ("" if option.unstable_above is None else "unstable above its highest load"),
    )


def _statistic(plan: Plan, name: str, estimate: Estimate) -> tuple[str, ...]:
    target = plan.goal.get(name)
    sign = "at least" if at_least(name) else "at most"
    return name, interval(estimate), NONE if target is None else f"{sign} {target:g}"


def _money(option: Option, kind: str) -> tuple[str, ...]:
    estimate = option.usd_per_mtok[kind]
    dear = (number(estimate.value / share) for share in UTILISATIONS[1:])
    return kind, number(option.usd_per_mtok_at_target[kind]), interval(estimate), *dear


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
    said = [
        f"{best.label}: {_gpus(best.gpus)} for {number(best.target)} {best.unit}; the goal is met up to "
        f"{interval(best.capacity)}, {_headroom(plan)}, and {best.binds or 'nothing'} binds"
        + (", unstable above that" if best.unstable_above is not None else "")
    ]
    if "total" in best.usd_per_mtok:
        busy = best.target / best.capacity.value
        total = best.usd_per_mtok["total"]
        said.append(
            f"${number(total.value / busy)} a million tokens at the target load ({busy:.0%} of the highest), "
            f"${number(total.value)} at the highest"
        )
    if plan.break_even is not None:
        said.append(_against(plan, best))
    if plan.changes and (gain := plan.changes[0].gain_per_gpu) is not None and gain > 0.01:
        said.append(f"next best change: {plan.changes[0].label} ({gain:+.0%} a GPU)")
    sure = "The 90 % interval supports it" if plan.supported else "Not supported: " + "; ".join(plan.doubts)
    rest = [part[0].upper() + part[1:] for part in (*said[1:], sure)]
    return ". ".join([said[0], *rest]) + "."


def _against(plan: Plan, best: Option) -> str:
    assert plan.break_even is not None
    load, share = plan.break_even
    if share > 1:
        return f"the API is cheaper at any load: break-even would be at {number(load)} {best.unit}, above the highest"
    return f"cheaper than the API from {number(load)} {best.unit} on ({share:.0%} of the highest load)"


def _headroom(plan: Plan) -> str:
    assert plan.headroom is not None
    value, low, high = plan.headroom
    ends = "" if low is None or high is None else f" ({low:+.0%} to {high:+.0%})"
    return f"{value:+.0%}{ends} of headroom"


def _gpus(count: int) -> str:
    return f"{count} GPU" + ("s" if count > 1 else "")

"""A plan in words, for terminal and page: numbers with their intervals, names as people say them, and its tables.

In the tables the best configuration stands as the system that serves the target: its load and its price are the
fleet's, with the profile's errors in the interval. The others stand as they were searched. Loads and prices are those
of each GPU, so that all compare.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from servecast.metrics import LATENCIES
from servecast.plan.answer import KINDS, UTILISATIONS
from servecast.report.tables import table_of
from servecast.scenario.goals import at_least
from servecast.text import BLANK, Table, number, percent, short_key, signed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servecast.plan.answer import Option, Plan
    from servecast.plan.uncertainty import Estimate

CONFIGURATIONS, BEST, DOLLARS, CHANGES = (
    "Configurations", "The plan at its target", "The whole bill, dollars per million tokens", "One change at a time"
)  # fmt: skip
PRICES = "Price list at the target, which adds up to the bill"
_MOST_DIGITS = 7
#: Keys whose values are names and need no key before them.
_NAMING = ("profile", "device", "model")
_OTHERS = {"slo_attainment": "share of requests within slo", "goodput_rps": "requests/s within slo"}


# --- numbers --------------------------------------------------------------------------------------------------------


def bounds(estimate: Estimate | None, digits: int = 3) -> str:
    """The 90 % interval of a value: ``8.51 to 9.05``; blank where there is none."""
    if estimate is None or estimate.low is None:
        return BLANK
    return " to ".join(
        "no bound" if end is None or math.isinf(end) else number(end, digits) for end in (estimate.low, estimate.high)
    )


def interval(estimate: Estimate | None, digits: int = 3) -> str:
    """``8.78 (8.51 to 9.05)``: the value and its 90 % interval."""
    if estimate is None:
        return BLANK
    value = "no bound" if math.isinf(estimate.value) else number(estimate.value, digits)
    return value if estimate.low is None else f"{value} ({bounds(estimate, digits)})"


def apart(estimate: Estimate, target: float, digits: int = 3) -> str:
    """The interval with digits enough that no end which is not the target reads like it."""
    others = [end for end in estimate if end is not None and end != target and math.isfinite(end)]
    while digits < _MOST_DIGITS and f"{target:.{digits}g}" in [f"{end:.{digits}g}" for end in others]:
        digits += 1
    return interval(estimate, digits)


def timed(name: str, value: str) -> str:
    """A value of a statistic with its unit behind the number: ``0.370 s (0.240 to 0.510)``."""
    if not name.endswith("_s"):
        return value
    first, space, rest = value.partition(" (")
    return f"{first} s{space}{rest}"


# --- names ----------------------------------------------------------------------------------------------------------


def statistic(name: str) -> str:
    """``ttft_p99_s`` as ``p99 time to first token``; another name as it is."""
    found = re.fullmatch(r"(\w+)_(mean|p\d+)_s", name)
    if found is None or found[1] not in LATENCIES:
        return _OTHERS.get(name, name)
    return f"{found[2]} {LATENCIES[found[1]].words}"


def with_names(reason: str) -> str:
    """A reason or a doubt with its statistic as people say it."""
    head, space, tail = reason.partition(" ")
    return f"{statistic(head)}{space}{tail}"


def hardware(device: str) -> str:
    """``h100-sxm`` as ``H100 SXM``."""
    return device.upper().replace("-", " ")


def gpus(option: Option, replicas: int) -> str:
    """``2 H200``; ``2 replicas of 4 H200 each`` where a model is split over several."""
    each, name = option.tensor_parallel, hardware(option.device)
    if each == 1:
        return f"{replicas} {name}"
    return f"{replicas} replica{'s' if replicas > 1 else ''} of {each} {name}{' each' if replicas > 1 else ''}"


def shortened(plan: Plan) -> tuple[Plan, str]:
    """The plan with configurations named by what differs between them, and what all of them have in common."""
    names, common = _short_names(plan.options)
    options = tuple(replace(option, label=names[option.label]) for option in plan.options)
    best = plan.best
    if best is not None:
        best = replace(best, label=names.get(best.label, best.label))
    others = {name: names.get(getattr(plan, name), getattr(plan, name)) for name in ("cheapest", "break_even_of")}
    return replace(plan, options=options, best=best, **others), common


def _short_names(options: Sequence[Option]) -> tuple[dict[str, str], str]:
    """A short name for each label, and what is left out of all of them; the labels themselves where that is unclear."""
    changed = {option.label: {key: str(value) for key, value in option.changed.items()} for option in options}
    policies = list(dict.fromkeys(option.policy for option in options if option.policy))
    keys = list(dict.fromkeys(key for values in changed.values() for key in values))
    varied = [key for key in keys if len({values.get(key) for values in changed.values()}) > 1]
    ends = [short_key(key) for key in varied]
    names = {}
    for option in options:
        parts = [option.policy] if option.policy and len(policies) > 1 else []
        for key, value in changed[option.label].items():
            if key in varied:
                name = short_key(key) if ends.count(short_key(key)) == 1 else key
                parts.append(value if short_key(key) in _NAMING else f"{name}={value}")
        names[option.label] = ", ".join(parts)
    if len(options) < 2 or len(set(names.values())) < len(names) or not all(names.values()):
        return {label: label for label in names}, ""
    first = changed[options[0].label]
    shared = [f"{short_key(key)}={first[key]}" for key in keys if key not in varied]
    return names, ", ".join([*(policies if len(policies) == 1 else ()), *shared])


# --- tables ---------------------------------------------------------------------------------------------------------


def tables(plan: Plan) -> Iterator[Table]:
    """All of them; those that have nothing to say are left out."""
    plan, _ = shortened(plan)
    yield _configurations(plan)
    best = plan.best
    if best is None:
        return
    rows = [_statistic(plan, name, estimate) for name, estimate in best.at_target.items()]
    if best.saturation is not None:
        rows.append(("saturation, at any wait [requests/s]", interval(best.saturation), BLANK))
    if rows:
        yield Table(BEST, ("statistic", "value, 90 % interval", "target"), tuple(rows))
    if best.usd_per_mtok:
        heads = ("tokens", "at the target", *(f"at {percent(share, 0)} of the highest load" for share in UTILISATIONS))
        yield Table(DOLLARS, heads, tuple(_money(best, kind) for kind in KINDS if kind in best.usd_per_mtok))
    if best.prices:
        yield _price_list(best)
    if plan.changes and plan.baseline is not None:
        changed = []
        for each in (plan.baseline, *plan.changes):
            gain = BLANK if each.gain_per_gpu is None else signed(each.gain_per_gpu, 1)
            if each is not plan.baseline and each.gain_per_gpu is not None and abs(each.gain_per_gpu) <= plan.noise:
                gain += ", within noise"
            changed.append((each.label, number(each.capacity), gain, each.refused))
        heads = ("change", f"highest load [{plan.options[0].unit}]", "each GPU", "why not")
        yield Table(CHANGES, heads, tuple(changed))


def _price_list(option: Option) -> Table:
    """Input and output with their parts of the bill, and what they add up to."""
    rows = [
        (kind, number(sold.mtok_per_hour), number(sold.usd_per_mtok), number(sold.usd_per_hour))
        for kind, sold in option.prices.items()
    ]
    paid = [sold.usd_per_hour for sold in option.prices.values() if sold.usd_per_hour is not None]
    rows.append(("the bill", BLANK, BLANK, number(sum(paid)) if paid else BLANK))
    return Table(PRICES, ("tokens", "million an hour", "$/M", "$/hour"), tuple(rows))


def standing(plan: Plan) -> tuple[Option, ...]:
    """The options in their order, the best as the system that serves the target."""
    best = plan.best
    return tuple(best if best is not None and best.label == option.label else option for option in plan.options)


def legend(plan: Plan) -> str:
    """What all configurations have in common, and what the rows are of."""
    plan, common = shortened(plan)
    what = f"All configurations: {common}. " if common else ""
    best = plan.best
    if best is None:
        return f"{what}Intervals are 90 %."
    of = f"as the {best.gpus} GPUs that serve the target" if best.gpus > 1 else "as the GPU that serves the target"
    others = next((option.interval for option in plan.options if option.capacity is not None), "")
    holds = f" ({others})" if others else ""
    whole = f" ({best.interval})" if best.interval else ""
    return (
        f"{what}{best.label} stands {of}, with the interval of a closer look{whole}; the others as they were "
        f"searched{holds}. Several replicas share bursts, so that they serve more than so many times one. Intervals "
        "are 90 %."
    )


def _configurations(plan: Plan) -> Table:
    """Columns that nothing fills are left out."""
    rows = [_cells(plan, option) for option in standing(plan)]
    return table_of(CONFIGURATIONS, rows, rows[0])


def _cells(plan: Plan, option: Option) -> dict[str, str]:
    split = any(each.tensor_parallel > 1 for each in plan.options)
    dollars, at_target, at_most = (
        option.usd_for_target, option.usd_at_target.get("output"), option.usd_per_mtok.get("output"),
    )  # fmt: skip
    load = None if option.capacity is None else option.capacity.over(option.gpus)
    return {
        "configuration": option.label,
        "GPU": hardware(option.device),
        "GPUs of a replica": str(option.tensor_parallel) if split else BLANK,
        "GPUs for the target": BLANK if option.target_gpus is None else str(option.target_gpus),
        "$/hour for the target": BLANK if dollars is None else f"{dollars:,.2f}",
        "whole bill $/M output at the target": BLANK if at_target is None else number(at_target.value),
        f"highest load of each GPU [{plan.options[0].unit}]": interval(load),
        "whole bill $/M output at the highest load": BLANK if at_most is None else number(at_most.value),
        "remark": "; ".join(_remarks(plan, option)),
    }


def _remarks(plan: Plan, option: Option) -> Iterator[str]:
    if plan.best is not None and option is plan.best:
        yield "the plan" if plan.supported else "the plan, not supported by its interval"
    if plan.cheapest == option.label and option is not plan.best:
        yield "cheapest"
    if option.refused:
        yield with_names(option.refused)
    elif option.unstable_above is not None:
        yield "unstable above its highest load"


def _statistic(plan: Plan, name: str, estimate: Estimate) -> tuple[str, ...]:
    target = plan.goal.get(name)
    sign = "at least" if at_least(name) else "at most"
    said = f"{statistic(name)}{' [s]' if name.endswith('_s') else ''}"
    return said, interval(estimate), BLANK if target is None else f"{sign} {target:g}"


def _money(option: Option, kind: str) -> tuple[str, ...]:
    price = option.usd_per_mtok[kind]
    return kind, interval(option.usd_at_target.get(kind)), *(interval(price.over(share)) for share in UTILISATIONS)

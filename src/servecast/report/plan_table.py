"""The table of configurations of a plan's page: for each what it takes for the target, what it costs, how far it goes.

The best one stands as the system that serves the target, wherever the page shows it: its load and its price are the
fleet's, with the profile's errors in the interval. The others stand as they were searched, and their loads and prices
are told of each GPU, so that all compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.plan.uncertainty import Estimate
from servecast.report.plan_lead import in_words
from servecast.report.plan_names import hardware
from servecast.report.plan_words import NONE, interval, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.plan.answer import Option, Plan


def standing(plan: Plan) -> tuple[Option, ...]:
    """The options in their order, the best as the system that serves the target."""
    best = plan.best
    return tuple(best if best is not None and best.label == option.label else option for option in plan.options)


def configurations(plan: Plan) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Heads and rows; columns that nothing fills are left out."""
    unit = plan.options[0].unit
    heads = (
        "configuration",
        "GPU",
        "GPUs of a replica",
        "GPUs for the target",
        "$/hour for the target",
        "$/M output at the target",
        f"highest load of each GPU [{unit}], 90 % interval",
        "$/M output at the highest load",
        "remark",
    )
    rows = [tuple(_cells(plan, option)) for option in standing(plan)]
    several = any(option.tensor_parallel > 1 for option in plan.options)
    kept = [
        place
        for place, head in enumerate(heads)
        if any(row[place] not in (NONE, "") for row in rows) and (several or head != "GPUs of a replica")
    ]
    return tuple(heads[place] for place in kept), tuple(tuple(row[place] for place in kept) for row in rows)


def _cells(plan: Plan, option: Option) -> Iterator[str]:
    dollars, output = option.usd_for_target, option.usd_per_mtok.get("output")
    yield option.label
    yield hardware(option.device)
    yield str(option.tensor_parallel)
    yield NONE if option.target_gpus is None else str(option.target_gpus)
    yield NONE if dollars is None else f"{dollars:,.2f}"
    at_target = option.usd_at_target.get("output")
    yield NONE if at_target is None else number(at_target.value)
    yield interval(of_each(option))
    yield NONE if output is None else number(output.value)
    yield "; ".join(_remarks(plan, option))


def _remarks(plan: Plan, option: Option) -> Iterator[str]:
    if plan.best is not None and option is plan.best:
        yield "the plan" if plan.supported else "the plan, not supported by its interval"
    if plan.cheapest == option.label and option is not plan.best:
        yield "cheapest"
    if option.refused:
        yield in_words(option.refused)
    elif option.unstable_above is not None:
        yield "unstable above its highest load"


def of_each(option: Option) -> Estimate | None:
    """Highest load of each GPU."""
    if option.capacity is None:
        return None
    return Estimate(*(None if end is None else end / option.gpus for end in option.capacity))  # type: ignore[arg-type]


def legend(plan: Plan) -> str:
    """What the rows are of."""
    best = plan.best
    if best is None:
        return "Intervals are 90 %."
    of = f"as the {best.gpus} GPUs that serve the target" if best.gpus > 1 else "as the GPU that serves the target"
    others = next((option.interval for option in plan.options if option.capacity is not None), "")
    holds = f" ({others})" if others else ""
    whole = f" ({best.interval})" if best.interval else ""
    return (
        f"{best.label} stands {of}, with the interval of a closer look{whole}; the others as they were "
        f"searched{holds}. Intervals are 90 %."
    )

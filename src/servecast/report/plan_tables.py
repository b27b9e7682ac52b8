"""The tables of a plan, the same for terminal and page: configurations first, then the best one in detail.

The best one stands as the system that serves the target: its load and its price are the fleet's, with the profile's
errors in the interval. The others stand as they were searched. Loads and prices are told of each GPU, so that all
compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.plan.answer import KINDS, UTILISATIONS
from servecast.report.plan_words import hardware, interval, shortened, statistic, with_names
from servecast.scenario.goals import at_least
from servecast.text import BLANK, Table, number, signed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.plan.answer import Option, Plan
    from servecast.plan.uncertainty import Estimate

CONFIGURATIONS, BEST, DOLLARS, CHANGES = (
    "Configurations", "The plan at its target", "Dollars per million tokens", "One change at a time"
)  # fmt: skip


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
        heads = ("tokens", "at the target", *(f"at {share:.0%} of the highest load" for share in UTILISATIONS))
        yield Table(DOLLARS, heads, tuple(_money(best, kind) for kind in KINDS if kind in best.usd_per_mtok))
    if plan.changes and plan.baseline is not None:
        yield Table(
            CHANGES,
            ("change", f"highest load [{plan.options[0].unit}]", "each GPU", "why not"),
            tuple(
                (
                    each.label,
                    number(each.capacity),
                    BLANK if each.gain_per_gpu is None else signed(each.gain_per_gpu, 1),
                    each.refused,
                )
                for each in (plan.baseline, *plan.changes)
            ),
        )


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
    heads = (
        "configuration",
        "GPU",
        "GPUs of a replica",
        "GPUs for the target",
        "$/hour for the target",
        "$/M output at the target",
        f"highest load of each GPU [{plan.options[0].unit}], 90 % interval",
        "$/M output at the highest load",
        "remark",
    )
    rows = [tuple(_cells(plan, option)) for option in standing(plan)]
    several = any(option.tensor_parallel > 1 for option in plan.options)
    kept = [
        place
        for place, head in enumerate(heads)
        if any(row[place] not in (BLANK, "") for row in rows) and (several or head != "GPUs of a replica")
    ]
    return Table(
        CONFIGURATIONS,
        tuple(heads[place] for place in kept),
        tuple(tuple(row[place] for place in kept) for row in rows),
    )


def _cells(plan: Plan, option: Option) -> Iterator[str]:
    dollars, output = option.usd_for_target, option.usd_per_mtok.get("output")
    yield option.label
    yield hardware(option.device)
    yield str(option.tensor_parallel)
    yield BLANK if option.target_gpus is None else str(option.target_gpus)
    yield BLANK if dollars is None else f"{dollars:,.2f}"
    at_target = option.usd_at_target.get("output")
    yield BLANK if at_target is None else number(at_target.value)
    yield interval(_of_each_gpu(option))
    yield BLANK if output is None else number(output.value)
    yield "; ".join(_remarks(plan, option))


def _remarks(plan: Plan, option: Option) -> Iterator[str]:
    if plan.best is not None and option is plan.best:
        yield "the plan" if plan.supported else "the plan, not supported by its interval"
    if plan.cheapest == option.label and option is not plan.best:
        yield "cheapest"
    if option.refused:
        yield with_names(option.refused)
    elif option.unstable_above is not None:
        yield "unstable above its highest load"


def _of_each_gpu(option: Option) -> Estimate | None:
    return None if option.capacity is None else option.capacity.over(option.gpus)


def _statistic(plan: Plan, name: str, estimate: Estimate) -> tuple[str, ...]:
    target = plan.goal.get(name)
    sign = "at least" if at_least(name) else "at most"
    said = f"{statistic(name)}{' [s]' if name.endswith('_s') else ''}"
    return said, interval(estimate), BLANK if target is None else f"{sign} {target:g}"


def _money(option: Option, kind: str) -> tuple[str, ...]:
    told = option.usd_per_mtok[kind]
    return kind, interval(option.usd_at_target.get(kind)), *(interval(told.over(share)) for share in UTILISATIONS)

"""The tables of a plan, the same for terminal and page: configurations first, then the best one in detail.

The best one stands as the system that serves the target: its load and its price are the fleet's, with the profile's
errors in the interval. The others stand as they were searched. Loads and prices are those of each GPU, so that all
compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.plan.answer import KINDS, UTILISATIONS
from servecast.report.plan_words import hardware, interval, shortened, statistic, with_names
from servecast.report.tables import table_of
from servecast.scenario.goals import at_least
from servecast.text import BLANK, Table, number, percent, signed

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
        heads = ("tokens", "at the target", *(f"at {percent(share, 0)} of the highest load" for share in UTILISATIONS))
        yield Table(DOLLARS, heads, tuple(_money(best, kind) for kind in KINDS if kind in best.usd_per_mtok))
    if plan.changes and plan.baseline is not None:
        changed = []
        for each in (plan.baseline, *plan.changes):
            gain = BLANK if each.gain_per_gpu is None else signed(each.gain_per_gpu, 1)
            changed.append((each.label, number(each.capacity), gain, each.refused))
        heads = ("change", f"highest load [{plan.options[0].unit}]", "each GPU", "why not")
        yield Table(CHANGES, heads, tuple(changed))


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
        "$/M output at the target": BLANK if at_target is None else number(at_target.value),
        f"highest load of each GPU [{plan.options[0].unit}]": interval(load),
        "$/M output at the highest load": BLANK if at_most is None else number(at_most.value),
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

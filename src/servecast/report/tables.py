"""The tables of results as text: policies compared, and tenants.

Headings, order and form of each metric are those of `servecast.metrics.METRICS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servecast.metrics import METRICS, WIDE, Metric, ranked
from servecast.run.results import swept
from servecast.text import BLANK, missing, number, plain_value, seconds, share, short_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

UNCALIBRATED = "uncalibrated"
_NOBODY = "(none)"

_TARGETS = ("ttft_s", "tpot_s", "e2e_s")
_OF_TENANTS = ("completed", "goodput_rps", "slo_attainment", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "e2e_p99_s")


def comparison_rows(summary: pd.DataFrame, most: int = WIDE - 1) -> list[dict[str, str]]:
    """The table that compares policies, as text: a row for each policy and sweep point, means over the seeds.

    most : up to which rank metrics are shown, the most telling first

    Metrics that nothing fills (no price, no targets) are left out. A swept value that a policy does not have is blank,
    and stands after the others.
    """
    from servecast.run.judged import per_policy

    table = per_policy(summary)
    keys = swept(summary)
    shown = [each for each in ranked(most) if each.name in table]
    shown = [each for each in shown if not each.optional or table[each.name].notna().any()]
    ranks = {key: _ranks(table[key].tolist()) for key in keys}
    rows = []
    for record in sorted(table.to_dict("records"), key=lambda record: [ranks[key][str(record[key])] for key in keys]):
        row = {"policy": str(record["policy"])}
        row |= {short_key(name): plain_value(record[name]) for name in keys}
        row |= {each.label: written(each, record) for each in shown}
        rows.append(row)
    return rows


def _ranks(values: list[Any]) -> dict[str, int]:
    """Places of values in the order in which they come, blank ones last."""
    known = [str(value) for value in values if not missing(value)]
    blank = [str(value) for value in values if missing(value)]
    return {value: place for place, value in enumerate(dict.fromkeys([*known, *blank]))}


def written(metric: Metric, record: Any, digits: int = 3) -> str:
    """A metric of a row of the summary in its own form; numbers at so many digits."""
    value = record[metric.name]
    if missing(value):
        return BLANK
    match metric.form:
        case "text":
            return str(value)
        case "share":
            return share(float(value))
        case "count":
            return _count(float(value))
        case "part":
            count, of = float(value), float(record["arrived"])
            return _count(count) if count == of else f"{_count(count)}/{_count(of)}"
        case "milli":
            return number(1e3 * float(value), digits)
        case "number":
            return number(float(value), digits)


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else number(value)


def tenant_rows(tenants: pd.DataFrame) -> list[dict[str, str]]:
    """The table of tenants as text: a row for each policy, sweep point and tenant, means over the seeds."""
    keys = swept(tenants)
    by = ["policy", *keys, "tenant"]
    numeric = [name for name in tenants.columns if name not in (*by, "seed")]
    # Columns that nothing fills hold None, which has no mean.
    table = tenants.astype(dict.fromkeys(numeric, float)).groupby(by, sort=False, dropna=False, observed=True)[numeric]
    rows = []
    for record in table.mean().reset_index().to_dict("records"):
        row = {"policy": str(record["policy"])}
        row |= {short_key(key): plain_value(record[key]) for key in keys}
        slo = {key: record[f"slo_{key}"] for key in _TARGETS if not missing(record[f"slo_{key}"])}
        row |= {"tenant": record["tenant"] or _NOBODY, "targets": targets(slo) or BLANK}
        rows.append(row | {METRICS[name].label: written(METRICS[name], record) for name in _OF_TENANTS})
    return rows


def targets(slo: Mapping[str, Any]) -> str:
    """Latency targets in words; empty without any."""
    known = {key: slo[key] for key in _TARGETS if slo.get(key) is not None}
    return ", ".join(f"{key[:-2].upper()} ≤ {seconds(float(value))}" for key, value in known.items())

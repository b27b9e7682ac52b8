"""The tables of results as text: policies compared, and tenants.

Headings, order and form of each metric are those of `servecast.metrics.METRICS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servecast.metrics import METRICS, WIDE, Metric, ranked
from servecast.run.results import swept
from servecast.text import BLANK, Table, missing, number, plain_value, seconds, share, short_key

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    import pandas as pd

UNCALIBRATED = "uncalibrated"
_OF_TENANTS = ("completed", "goodput_rps", "slo_attainment", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "e2e_p99_s")
_TARGETS = ("ttft_s", "tpot_s", "e2e_s")


def table_of(title: str, rows: Sequence[Mapping[str, str]], optional: Container[str] = ()) -> Table:
    """A table of rows with the same heads; columns of ``optional`` that nothing fills are left out."""
    heads = tuple(head for head in rows[0] if head not in optional or any(row[head] not in (BLANK, "") for row in rows))
    return Table(title, heads, tuple(tuple(row[head] for head in heads) for row in rows))


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
    shown = [each for each in shown if not each.exceptional or table[each.name].any()]
    records = table.to_dict("records")
    values = {key: sorted(table[key].tolist(), key=missing) for key in keys}  # in the order they come, blank ones last
    places = {key: {text: at for at, text in enumerate(dict.fromkeys(map(str, values[key])))} for key in keys}
    rows = []
    for record in sorted(records, key=lambda record: [places[key][str(record[key])] for key in keys]):
        row = {"policy": str(record["policy"])}
        row |= {short_key(name): plain_value(record[name]) for name in keys}
        row |= {each.label: written(each, record) for each in shown}
        rows.append(row)
    return rows


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
        row |= {"tenant": record["tenant"] or "(none)", "targets": targets(slo) or BLANK}
        rows.append(row | {METRICS[name].label: written(METRICS[name], record) for name in _OF_TENANTS})
    return rows


def targets(slo: Mapping[str, Any]) -> str:
    """Latency targets in words; empty without any."""
    known = {key: slo[key] for key in _TARGETS if slo.get(key) is not None}
    return ", ".join(f"{key[:-2].upper()} ≤ {seconds(float(value))}" for key, value in known.items())

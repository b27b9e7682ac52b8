"""Results in words: numbers at three digits, and the table that compares policies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from servecast.run.reportable import swept
from servecast.text import BLANK, missing, number, plain_value, seconds, share, short_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

UNCALIBRATED = "uncalibrated"

#: Heading, column of the summary, and how to write it.
COLUMNS = (
    ("done", "completed", "part"),
    ("req/s", "request_throughput_rps", "number"),
    ("good req/s", "goodput_rps", "number"),
    ("output tok/s", "output_throughput_tps", "number"),
    ("TTFT p50 [s]", "ttft_p50_s", "number"),
    ("TTFT p99 [s]", "ttft_p99_s", "number"),
    ("TPOT p50 [ms]", "tpot_p50_s", "milli"),
    ("ITL p99 [ms]", "itl_p99_s", "milli"),
    ("busy", "busy_fraction", "share"),
    ("padding", "padding_waste", "share"),
    ("idle slots", "slot_waste", "share"),
    ("KV peak", "kv_peak_fraction", "share"),
    ("OOM", "oom_events", "count"),
    ("preempted", "preemptions", "count"),
    ("$/M output", "usd_per_mtok_output", "number"),
    ("queue", "regime", "text"),
)
_OPTIONAL = {"goodput_rps", "usd_per_mtok_output"}


def comparison_rows(summary: pd.DataFrame) -> list[dict[str, str]]:
    """The table that compares policies, as text: a row for each policy and sweep point, means over the seeds.

    Headings that nothing fills (no price, no targets, no sweep) are left out. A swept value that a policy does not have
    is blank, and stands after the others.
    """
    from servecast.run.judged import per_policy

    table = per_policy(summary)
    keys = swept(summary)
    shown = [entry for entry in COLUMNS if entry[1] not in _OPTIONAL or table[entry[1]].notna().any()]
    ranks = {key: _ranks(table[key].tolist()) for key in keys}
    rows = []
    for record in sorted(table.to_dict("records"), key=lambda record: [ranks[key][str(record[key])] for key in keys]):
        row = {"policy": str(record["policy"])}
        row |= {short_key(name): plain_value(record[name]) for name in keys}
        row |= {heading: _written(record, name, form) for heading, name, form in shown}
        rows.append(row)
    return rows


def _ranks(values: list[Any]) -> dict[str, int]:
    """Places of values in the order in which they come, blank ones last."""
    known = [str(value) for value in values if not missing(value)]
    blank = [str(value) for value in values if missing(value)]
    return {value: place for place, value in enumerate(dict.fromkeys([*known, *blank]))}


def _written(record: Mapping[Any, Any], name: str, form: str) -> str:
    value = record[name]
    if form == "text":
        return value if isinstance(value, str) else BLANK
    value = math.nan if value is None else float(value)
    if form == "count":
        return _count(value)
    if form == "part":
        return _count(value) if value == record["arrived"] else f"{_count(value)}/{_count(record['arrived'])}"
    if form == "share":
        return share(value)
    return number(value * 1e3 if form == "milli" else value)


def _count(value: float) -> str:
    return BLANK if math.isnan(value) else f"{value:,.0f}" if value == round(value) else number(value)


def targets(slo: Mapping[str, Any]) -> str:
    """Latency targets in words; empty without any."""
    parts = [
        f"{name.upper()} ≤ {seconds(float(slo[f'{name}_s']))}"
        for name in ("ttft", "tpot", "e2e")
        if slo.get(f"{name}_s") is not None
    ]
    return ", ".join(parts)

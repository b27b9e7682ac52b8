"""Results in words: numbers at three digits, the table that compares policies, and the verdict."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from servecast.report.results import swept

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

BLANK = "\u2013"
UNCALIBRATED = "uncalibrated"
SAME = 0.02  # throughputs this close are called equal

#: Heading, column of the summary, and how to write it.
COLUMNS = (
    ("done", "completed", "count"),
    ("of", "arrived", "count"),
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


def number(value: float | None, digits: int = 3) -> str:
    """``value`` at so many significant digits, never in powers of ten between 1e-4 and 1e6; blank for None and NaN."""
    if value is None or math.isnan(value):
        return BLANK
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    if places > digits + 3:
        return f"{value:.{digits - 1}e}"
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if places and value == round(value) else text


def seconds(value: float | None) -> str:
    """A time at three digits in the unit that suits it: 85.0 ms, 1.25 s, 23 min."""
    if value is None or math.isnan(value):
        return BLANK
    if value < 1:
        return f"{number(value * 1e3)} ms"
    return f"{number(value)} s" if value < 600 else f"{number(value / 60)} min"


def share(value: float | None) -> str:
    """A fraction as a percentage; what is there but small does not become 0."""
    if value is None or math.isnan(value):
        return BLANK
    percent = 100 * value
    if 0 < percent < 0.1:
        return "<0.1 %"
    return f"{percent:.1f} %" if 0 < percent < 10 else f"{percent:.0f} %"


def how_often(count: float) -> str:
    """How often: once, twice, 12 times."""
    return {1.0: "once", 2.0: "twice"}.get(float(count), f"{number(float(count))} times")


def per_policy(summary: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds, a row for each policy and sweep point in the order of the summary."""
    keys = ["policy", *swept(summary)]
    numeric = [name for name in summary.columns if name not in keys and name not in ("seed", "regime")]
    grouping: Any = {"sort": False, "dropna": False, "observed": True}
    grouped = summary.groupby(keys, **grouping)
    means = summary.astype(dict.fromkeys(numeric, float)).groupby(keys, **grouping)[numeric].mean()
    means["regime"] = grouped["regime"].agg(_regimes)
    means["seeds"] = grouped["seed"].nunique()
    return means.reset_index()


def _regimes(column: pd.Series[Any]) -> str | None:
    names = sorted({str(name) for name in column.dropna()})
    return ", ".join(names) or None


def comparison_rows(summary: pd.DataFrame) -> list[dict[str, str]]:
    """The table that compares policies, as text: a row for each policy and sweep point, means over the seeds.

    Headings that nothing fills (no price, no targets, no sweep) are left out.
    """
    table = per_policy(summary)
    shown = [entry for entry in COLUMNS if entry[1] not in _OPTIONAL or table[entry[1]].notna().any()]
    rows = []
    for record in table.to_dict("records"):
        row = {"policy": str(record["policy"])}
        row |= {_short(name): _plain(record[name]) for name in swept(summary)}
        row |= {heading: _written(record[name], form) for heading, name, form in shown}
        rows.append(row)
    return rows


def _plain(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return BLANK
    return number(float(value), 6) if isinstance(value, float) else str(value)


def _written(value: Any, form: str) -> str:
    if form == "text":
        return value if isinstance(value, str) else BLANK
    value = math.nan if value is None else float(value)
    if form == "count":
        return BLANK if math.isnan(value) else f"{value:,.0f}" if value == round(value) else number(value)
    if form == "share":
        return share(value)
    return number(value * 1e3 if form == "milli" else value)


def targets(slo: Mapping[str, Any]) -> str:
    """Latency targets in words; empty without any."""
    parts = [
        f"{name.upper()} ≤ {seconds(float(slo[f'{name}_s']))}"
        for name in ("ttft", "tpot", "e2e")
        if slo.get(f"{name}_s") is not None
    ]
    return ", ".join(parts)


def verdict(summary: pd.DataFrame, slo: Mapping[str, Any] | None = None, *, calibrated: bool = True) -> str:
    """One sentence with numbers: who serves most requests, how many times the others, at which latency and price.

    Compares each policy at its best point, means over the seeds; with targets also how much each serves within them. An
    uncalibrated result says so first.
    """
    mark = "" if calibrated else "Uncalibrated roofline: "
    table = per_policy(summary)
    if not table["completed"].sum():
        return f"{mark}No request completed: {_failures(table)}."
    peaks = _peaks(table, "request_throughput_rps")
    best, others = peaks.iloc[0], peaks.iloc[1:]
    rate = f"{number(best['request_throughput_rps'])} req/s"
    served = list(zip(others["policy"], others["request_throughput_rps"], strict=True))
    if len(others) and all(value > (1 - SAME) * best["request_throughput_rps"] for _, value in served):
        text, best = _equal(peaks, rate)
    else:
        parts = [
            f"{best['policy']} serves {rate}",
            _listed([_times(best["request_throughput_rps"], o) for o in served]),
        ]
        latency = f"with p99 TTFT at {seconds(best['ttft_p99_s'])}{_pace(best)}"
        text = ", ".join(part for part in (*parts, latency) if part)
    clauses = [text, _within(table, slo or {}), _losses(table, swept(summary)), _price(best)]
    return f"{_capital(mark + '; '.join(clause for clause in clauses if clause))}."


def _peaks(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Each policy's row with most of ``metric``, the best policy first."""
    values = table[metric].astype(float)
    places = values.fillna(-1.0).groupby(table["policy"], sort=False, observed=True).idxmax()
    return table.loc[places].sort_values(metric, ascending=False, kind="stable")


def _within(table: pd.DataFrame, slo: Mapping[str, Any]) -> str:
    """How many requests per second each policy serves within the targets, at its best point."""
    good = table["goodput_rps"].astype(float)
    if good.isna().all():
        return ""
    words = f"the targets ({targets(slo)})" if targets(slo) else "the targets"
    if not (good > 0).any():
        return f"no policy meets {words}"
    peaks = _peaks(table, "goodput_rps")
    rates = [f"{policy} {number(value)}" for policy, value in zip(peaks["policy"], peaks["goodput_rps"], strict=True)]
    return f"within {words} {_listed(rates)} req/s"


def _equal(peaks: pd.DataFrame, rate: str) -> tuple[str, Any]:
    """Throughputs alike: latency decides. The clause, and the row of the policy it is about."""
    ranked = peaks.sort_values("ttft_p99_s", kind="stable")
    first, last = ranked.iloc[0], ranked.iloc[-1]
    sooner = last["ttft_p99_s"] / first["ttft_p99_s"]
    text = (
        f"all {len(peaks)} policies serve the same {rate}, {first['policy']} with p99 TTFT at "
        f"{seconds(first['ttft_p99_s'])}{_pace(first)}, {number(sooner)} times sooner than {last['policy']} "
        f"({seconds(last['ttft_p99_s'])})"
    )
    return text, first


def _times(best: float, other: tuple[Any, Any]) -> str:
    policy, value = other
    if not value > 0:
        return f"where {policy} serves none"
    if value > (1 - SAME) * best:
        return f"as many as {policy}"
    return f"{number(best / value, 2)} times {policy} ({number(value)})"


def _pace(row: Any) -> str:
    return "" if math.isnan(row["tpot_p50_s"]) else f" and median TPOT at {seconds(row['tpot_p50_s'])}"


def _losses(table: pd.DataFrame, keys: list[str]) -> str:
    """What each policy loses where it loses most."""
    lost = []
    for policy, rows in table[table["oom_failed"] > 0].groupby("policy", sort=False, observed=True):
        worst = rows.iloc[int(rows["oom_failed"].to_numpy().argmax())]
        where = _listed([f"{_short(key)} {_plain(worst[key])}" for key in keys])
        requests = f"{number(worst['oom_failed'])} of {number(worst['arrived'])} requests"
        lost.append(f"{policy} loses {requests} as memory runs out{f' at {where}' if where else ''}")
    return _listed(lost)


def _short(key: str) -> str:
    """The last part of a key path."""
    return key.rsplit(".", 1)[-1]


def _price(row: Any) -> str:
    price = row["usd_per_mtok_output"]
    return "" if price is None or math.isnan(price) else f"${number(price)} per million output tokens"


def _failures(table: pd.DataFrame) -> str:
    kinds = (("rejected", "rejected"), ("oom_failed", "lost to memory running out"), ("unfinished", "unfinished"))
    counts = [f"{number(float(table[name].sum()))} {words}" for name, words in kinds if table[name].sum()]
    return _listed(counts) or "none arrived"


def _listed(parts: list[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

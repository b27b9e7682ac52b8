"""The tenants of each run in words: what each got, by which targets, and how many of its requests met them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servecast.report.words import targets
from servecast.run.results import swept
from servecast.text import BLANK, missing, number, plain_value, share, short_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

NOBODY = "(none)"


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
        rows.append(row | _told(record))
    return rows


def _told(record: Mapping[Any, Any]) -> dict[str, str]:
    slo = {key: record[f"slo_{key}"] for key in ("ttft_s", "tpot_s", "e2e_s") if not missing(record[f"slo_{key}"])}
    return {
        "tenant": record["tenant"] or NOBODY,
        "targets": targets(slo) or BLANK,
        "done": f"{number(record['completed'])}/{number(record['arrived'])}",
        "good req/s": number(record["goodput_rps"]),
        "attainment": share(record["slo_attainment"]),
        "TTFT p50 [s]": number(record["ttft_p50_s"]),
        "TTFT p99 [s]": number(record["ttft_p99_s"]),
        "TPOT p50 [ms]": number(record["tpot_p50_s"] * 1e3),
        "E2E p99 [s]": number(record["e2e_p99_s"]),
    }

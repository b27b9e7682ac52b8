"""The verdict on a comparison: how far the simulated means are from the recorded ones, and which are equivalent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.against.server.observed import LATENCIES
from servecast.report.verdicts import Verdict
from servecast.text import signed

if TYPE_CHECKING:
    from servecast.against.server.compared import Comparison


def verdict(compared: Comparison) -> Verdict:
    """Errors of the means and of the throughput; then which means are shown to be within the margin."""
    known = [name for name in LATENCIES if any(row["metric"] == name for row in compared.rows)]
    means = {LATENCIES[name]: compared.mean(name) for name in known}
    errors = ", ".join(f"{name} {signed(row['error'], 1)}" for name, row in means.items())
    throughput = compared.row("output_throughput_tps", "total", counted_from=None)["error"]
    margin = f"{100 * compared.margin:g} %"
    within = [name for name, row in means.items() if row.get("equivalent")]
    beyond = [name for name in means if name not in within]
    details = [f"Equivalent within {margin}: {', '.join(within) or 'none'}."]
    if beyond:
        details.append(f"Not shown to be: {', '.join(beyond)}.")
    return Verdict(f"Simulated against recorded means: {errors}; throughput {signed(throughput, 1)}.", tuple(details))

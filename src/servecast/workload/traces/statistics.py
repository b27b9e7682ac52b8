"""What a trace asks of a server: rates, burstiness, lengths.

Mean rate and CV are those of the gaps between arrivals; percentiles are numpy's linear ones, the standard deviation is
the population's. A peak is the largest number of arrivals in any window of that length, wherever it starts, divided by
the length; it is None for a trace shorter than the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from servecast.workload.traces.trace_file import Trace

PEAKS_S = (1, 10, 60)


def trace_statistics(trace: Trace) -> dict[str, float | int | None]:
    """Figures of the requests of ``trace``, by name with the unit in it; None where there is nothing to say."""
    columns, report = trace.columns, trace.report
    arrival_s = columns.arrival_s
    gaps_s = np.diff(arrival_s)
    spread = bool(columns.span_s)
    figures: dict[str, float | int | None] = {
        "rows_read": report.rows_read,
        "rows_rejected": report.rows_rejected,
        "requests": len(columns),
        "span_s": columns.span_s,
        "mean_rate_rps": columns.offered_rps,
        **{f"peak_{window}s_rps": _peak_rps(arrival_s, window) for window in PEAKS_S},
        "gap_cv": float(gaps_s.std() / gaps_s.mean()) if spread else None,
        "gap_max_s": float(gaps_s.max()) if spread else None,
    }
    for name, tokens in (("prompt_tokens", columns.prompt_tokens), ("output_tokens", columns.output_tokens)):
        figures[f"{name}_mean"] = float(tokens.mean())
        for percent in (50, 90, 99):
            figures[f"{name}_p{percent}"] = float(np.percentile(tokens, percent))
        figures[f"{name}_min"] = int(tokens.min())
        figures[f"{name}_max"] = int(tokens.max())
    return figures


def _peak_rps(arrival_s: NDArray[np.float64], window_s: float) -> float | None:
    if arrival_s[-1] - arrival_s[0] < window_s:
        return None
    inside = np.searchsorted(arrival_s, arrival_s + window_s, "left") - np.arange(len(arrival_s))
    return float(inside.max()) / window_s

"""What a trace asks of a server: rates, burstiness, lengths, and what a prefix cache could find again.

Mean rate and CV are those of the gaps between arrivals; percentiles are numpy's linear ones, the standard deviation is
the population's. A peak is the largest number of arrivals in any window of that length, wherever it starts, divided by
the length; it is None for a trace shorter than the window. The index of dispersion is variance over mean of the counts
in whole windows from the first arrival on (Poisson: 1); the rest of the trace is no window, and one window has no
variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from servecast.workload.prefixes import PrefixReuse, prefix_reuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from servecast.workload.clients import RequestColumns
    from servecast.workload.traces.trace_file import Trace

WINDOWS_S = (1, 10, 60)


@dataclass(frozen=True)
class JointHistogram:
    """How many requests have prompts and outputs of which lengths, in classes that double.

    prompt_edges, output_edges : (k + 1,), (m + 1,) [tokens]; class i holds edge i up to edge i + 1, not included
    counts : (k, m)
    """

    prompt_edges: NDArray[np.int64]
    output_edges: NDArray[np.int64]
    counts: NDArray[np.int64]


def trace_statistics(trace: Trace) -> dict[str, float | int | None]:
    """Figures of the requests of ``trace``, by name with the unit in it; None where there is nothing to say."""
    rows = {"rows_read": trace.report.rows_read, "rows_rejected": trace.report.rows_rejected}
    return rows | column_statistics(trace.columns)


def column_statistics(columns: RequestColumns) -> dict[str, float | int | None]:
    """The same of requests alone, wherever they come from."""
    arrival_s = columns.arrival_s
    gaps_s = np.diff(arrival_s)
    spread = columns.offered_rps is not None
    figures: dict[str, float | int | None] = {
        "requests": len(columns),
        "span_s": columns.span_s,
        "mean_rate_rps": columns.offered_rps,
        **{f"peak_{window}s_rps": _peak_rps(arrival_s, window) for window in WINDOWS_S},
        **{f"iod_{window}s": dispersion(arrival_s, window) for window in WINDOWS_S},
        "gap_cv": float(gaps_s.std() / gaps_s.mean()) if spread else None,
        "gap_max_s": float(gaps_s.max()) if spread else None,
    }
    for name, tokens in (("prompt_tokens", columns.prompt_tokens), ("output_tokens", columns.output_tokens)):
        figures[f"{name}_mean"] = float(tokens.mean())
        for percent in (50, 90, 99):
            figures[f"{name}_p{percent}"] = float(np.percentile(tokens, percent))
        figures[f"{name}_min"] = int(tokens.min())
        figures[f"{name}_max"] = int(tokens.max())
    reuse = reusable(columns)
    figures["prefix_block_hit_rate"] = None if reuse is None else reuse.block_hit_rate
    figures["prefix_token_hit_rate"] = None if reuse is None else reuse.token_hit_rate
    return figures


def reusable(columns: RequestColumns) -> PrefixReuse | None:
    """What an infinite prefix cache would find again, in the blocks of the trace; None without ids."""
    columns = in_known_blocks(columns)
    if columns.prefix_ids is None or columns.prefix_block_size is None:
        return None
    return prefix_reuse(columns.prefix_ids, columns.prompt_tokens, columns.prefix_block_size)


def in_known_blocks(columns: RequestColumns) -> RequestColumns:
    """The same requests with ids of blocks: of the trace, or of 16 tokens where each id stands for its own number."""
    sized = columns.prefix_ids is not None and columns.prefix_ids.tokens is not None
    return columns.in_blocks(16) if sized else columns


def dispersion(arrival_s: NDArray[np.float64], window_s: float) -> float | None:
    """Index of dispersion of the counts in whole windows of ``window_s``; None for fewer than two of them."""
    windows = int((arrival_s[-1] - arrival_s[0]) / window_s) if len(arrival_s) else 0
    if windows < 2:
        return None
    at = ((arrival_s - arrival_s[0]) / window_s).astype(np.int64)
    counts = np.unique(at[at < windows], return_counts=True)[1]  # most windows of a long, sparse trace are empty
    total, squares = int(counts.sum()), int((counts**2).sum())
    return (windows * squares - total**2) / (windows * total)


def joint_histogram(columns: RequestColumns) -> JointHistogram:
    """The lengths of the requests together."""
    sides = [np.log2(tokens).astype(int) for tokens in columns.lengths]
    edges = [2 ** np.arange(int(side.min()), int(side.max()) + 2, dtype=np.int64) for side in sides]
    shape = [len(edge) - 1 for edge in edges]
    place = [side - int(side.min()) for side in sides]
    counts = np.bincount(place[0] * shape[1] + place[1], minlength=shape[0] * shape[1]).reshape(shape)
    return JointHistogram(edges[0], edges[1], counts)


def histogram_table(histogram: JointHistogram) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a table to print: a row a class of prompts, a column a class of outputs, both as ranges."""

    def ranges(edges: NDArray[np.int64]) -> list[str]:
        return [str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(edges.tolist())]

    heads = ["prompt \\ output", *ranges(histogram.output_edges)]
    rows = [
        [prompt, *("" if count == 0 else str(count) for count in counts)]
        for prompt, counts in zip(ranges(histogram.prompt_edges), histogram.counts.tolist(), strict=True)
    ]
    return heads, rows


def _peak_rps(arrival_s: NDArray[np.float64], window_s: float) -> float | None:
    if arrival_s[-1] - arrival_s[0] < window_s:
        return None
    inside = np.searchsorted(arrival_s, arrival_s + window_s, "left") - np.arange(len(arrival_s))
    return float(inside.max()) / window_s

"""What was understood of a trace file, what became of each of its rows, and what to say of it in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from servecast.workload.clients import RequestColumns
    from servecast.workload.traces.rows import Block, Found, Reader, Rejected
    from servecast.workload.traces.trace_file import TraceFile

UNLIKELY_RPS = 50_000  # above it a unit is taken for a mistake, and asked about
EPOCH_S = 10**8  # three years: a relative trace is shorter, a clock's reading in seconds since 1970 is later


@dataclass(frozen=True)
class TraceReport:
    """What was understood of a trace file, and what became of each of its rows.

    time_unit : of the times in the file ("ns" for dates, which are kept to the nanosecond); None for lengths alone
    rows_read : rows that are neither blank nor header; rows_used : those among the requests
    rejected : rows turned away, by reason, with their line numbers
    outside_slice, thinned, beyond_requests : rows left out by the slice, by the rate, and by the number of requests
    clipped, over_limit : requests shortened to a limit, and kept beyond it for the engine to reject
    cycles : how often the rows used were gone through, at least in part; 1 unless the trace is repeated
    out_of_order : rows that come before an earlier row in time (the trace was sorted if there are any)
    origin_s : time in the file [s] that is 0 now
    prefix_block_size : tokens a prefix id stands for, None without ids
    notes : what a user should be told, a sentence each
    """

    path: str
    format: str
    time_unit: str | None
    rows_read: int
    rows_used: int
    blank_lines: int
    rejected: tuple[Rejected, ...]
    beyond_requests: int
    cycles: int
    out_of_order: int
    origin_s: float
    prefix_block_size: int | None
    outside_slice: int = 0
    thinned: int = 0
    clipped: int = 0
    over_limit: int = 0
    notes: tuple[str, ...] = ()

    @property
    def rows_rejected(self) -> int:
        """Rows turned away for any reason."""
        return sum(len(rejected.lines) for rejected in self.rejected)

    @property
    def left_out(self) -> str:
        """How many rows were turned away and why, on one line; empty where none was."""
        if not self.rejected:
            return ""
        reasons = "; ".join(map(str, self.rejected))
        return f"left out {self.rows_rejected:,} of {self.rows_read:,} rows: {reasons}"


def notes_on(
    file: TraceFile,
    report: TraceReport,
    reader: Reader,
    found: Found,
    columns: RequestColumns,
    steps_back: NDArray[np.int64],
    rows: Block,
) -> Iterator[str]:
    """What a user should be told of how a file was read, a sentence each."""
    if report.time_unit is None:
        yield (
            f"{reader.name} has lengths and no arrivals: all requests are at 0; "
            "give arrivals of your own, with lengths: {kind: trace, path: ...}"
        )
    elif found.dates or report.origin_s > EPOCH_S:
        yield f"times are absolute: {_date(report.origin_s)} is now 0 s"
    elif report.origin_s:
        yield f"the first arrival, at {report.origin_s:g} s in the file, is now 0 s"
    if report.time_unit is not None and found.unit is not None and report.time_unit != found.unit:
        yield f"times are read as {report.time_unit}, not as {found.unit} as {reader.name} has them"
    if reader.remark is not None:
        yield reader.remark
    if (columns.offered_rps or 0) > UNLIKELY_RPS:
        yield (
            f"{columns.offered_rps:,.0f} requests/s over {columns.span_s:g} s: if that cannot be, times are not in "
            f"{report.time_unit}; say in what with time_unit"
        )
    if len(steps_back):
        times = "time" if len(steps_back) == 1 else "times"
        yield f"time steps back {len(steps_back):,} {times}, first at {reader.counted} {steps_back[0]}: sorted"
    if columns.delay_s is not None:
        yield (
            f"{int((~np.isnan(columns.delay_s)).sum()):,} requests wait for the answer to the turn before: "
            "their arrivals here are the earliest possible"
        )
    elif file.sessions == "chained":
        yield "sessions: chained changes nothing: the trace does not say when its turns were answered"
    if file.prompt_scale != 1 and rows.prefix_ids is None and report.prefix_block_size is None:
        yield f"prompt_scale {file.prompt_scale:g}: prefix ids are left out, they stand for prompts as they were"
    if report.outside_slice:
        yield f"{report.outside_slice:,} of {report.rows_read:,} rows lie outside the slice and are left out"
    if report.beyond_requests:
        yield f"{report.beyond_requests:,} of {report.rows_read:,} rows come after the requests asked for"
    if report.clipped:
        yield f"{report.clipped:,} requests are clipped to the limits"
    if report.over_limit:
        yield f"{report.over_limit:,} requests are over the limits and kept: the engine rejects what it cannot hold"
    if report.cycles > 1:
        yield f"cycled {report.cycles} times: {len(columns):,} requests from {report.rows_used:,} rows"
    if file.rate_rps is not None:
        how = f"{report.thinned:,} requests left out" if report.thinned else "copies laid over each other"
        yield f"rate_rps {file.rate_rps:g}: {how}"
    if file.rate_scale != 1 and columns.offered_rps is not None:
        was_rps = columns.offered_rps / file.rate_scale
        yield f"rate_scale {file.rate_scale:g}: {was_rps:.4g} requests/s become {columns.offered_rps:.4g}"


def _date(epoch_s: float) -> str:
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=epoch_s)).strftime("%Y-%m-%d %H:%M:%S.%f UTC")
    except OverflowError:  # beyond the year 9999: the unit is not what the format says
        return f"{epoch_s:g} s"

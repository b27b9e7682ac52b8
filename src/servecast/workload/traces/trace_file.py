"""A trace file and what to take of it: slice, scale, limits. Reading it gives requests and an account of every row.

Order of work: rows are read and screened, sorted by time if they are not (equal times keep the order of the file), cut
to the slice, freed of requests over the limits, cut or repeated to the number asked for, moved so that the first
arrival is at 0, and scaled. Every row is in exactly one place of the report:
``rows_read = rows used + rejected + outside_slice + beyond_requests``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from math import inf, isfinite
from typing import TYPE_CHECKING, Literal

import numpy as np

from servecast.errors import InputError
from servecast.workload.clients import RequestColumns
from servecast.workload.traces.readers import READERS
from servecast.workload.traces.rows import Rejections, joined, shown
from servecast.workload.traces.source import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from servecast.workload.traces.rows import Block, Reader, Rejected

TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # per second
HEAD = 50  # lines by which a format is recognised
EPOCH_S = 10**8  # three years: a relative trace is shorter, a clock's reading in seconds since 1970 is later


@dataclass(frozen=True)
class TraceReport:
    """What was understood of a trace file, and what became of each of its rows.

    time_unit : of the times in the file ("ns" for dates, which are kept to the nanosecond)
    rows_read : rows that are neither blank nor header; rows_used : those among the requests
    rejected : rows turned away, by reason, with their line numbers
    outside_slice, beyond_requests : rows left out by start_s and duration_s, and by the number of requests
    cycles : how often the rows used were gone through, at least in part; 1 unless the trace is repeated
    out_of_order : rows that come before an earlier row in time (the trace was sorted if there are any)
    origin_s : time in the file [s] that is 0 now
    prefix_block_size : tokens a prefix id stands for, None without ids
    notes : what a user should be told, a sentence each
    """

    path: str
    format: str
    time_unit: str
    rows_read: int
    rows_used: int
    blank_lines: int
    rejected: tuple[Rejected, ...]
    outside_slice: int
    beyond_requests: int
    cycles: int
    out_of_order: int
    origin_s: float
    prefix_block_size: int | None
    notes: tuple[str, ...] = ()

    @property
    def rows_rejected(self) -> int:
        """Rows turned away for any reason."""
        return sum(len(rejected.lines) for rejected in self.rejected)


@dataclass(frozen=True)
class Trace:
    """The requests of a trace file, and the account of how they came to be."""

    columns: RequestColumns
    report: TraceReport


@dataclass(frozen=True)
class TraceFile:
    """A trace on disk and what to take of it. A value that cannot be raises ValueError.

    path : CSV or JSON lines, plain or gzip
    start_s, duration_s : slice in the trace's own time, from its first arrival; start included, end not
    rate_scale : 2 is twice as fast
    max_prompt_tokens, max_output_tokens : longer requests are left out, and counted
    format : name of a reader, instead of recognising the content
    time_unit : s, ms, us or ns, instead of the format's; dates have none
    on_bad_row : "error" stops at the first malformed row, "skip" leaves such rows out and counts them
    cycle : repeat the trace when more requests are asked for than it has, instead of an error
    keep_offset : leave times as they are in the file (before scaling), instead of starting at the first arrival
    """

    path: str
    start_s: float = 0.0
    duration_s: float | None = None
    rate_scale: float = 1.0
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    format: str | None = None
    time_unit: str | None = None
    on_bad_row: Literal["error", "skip"] = "error"
    cycle: bool = False
    keep_offset: bool = False

    def __post_init__(self) -> None:
        if not (self.start_s >= 0 and isfinite(self.start_s)):
            raise ValueError(f"start_s is {self.start_s}; it must be finite and at least 0")
        if self.duration_s is not None and not self.duration_s > 0:
            raise ValueError(f"duration_s is {self.duration_s}; it must be above 0")
        if not (self.rate_scale > 0 and isfinite(self.rate_scale)):
            raise ValueError(f"rate_scale is {self.rate_scale}; it must be finite and above 0 (2 is twice as fast)")
        for name in ("max_prompt_tokens", "max_output_tokens"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ValueError(f"{name} is {limit}; it must be at least 1")
        if self.time_unit not in (None, *TICKS):
            raise ValueError(f"time_unit is {self.time_unit}; it must be one of {', '.join(TICKS)}")
        if self.on_bad_row not in ("error", "skip"):
            raise ValueError(f"on_bad_row is {self.on_bad_row}; it must be error or skip")

    def read(self, requests: int | None = None) -> Trace:
        """The requests of the trace; with ``requests``, exactly so many. What cannot be is an InputError."""
        rejections = Rejections(self.path, strict=self.on_bad_row == "error")
        reader, rows = self._rows(rejections)
        unit = self._unit(reader)
        rows_read = rejections.rows + len(rows.lines)
        rows = _servable(rows, rejections)
        if not len(rows.lines):
            raise InputError(self.path, _nothing(rows_read, rejections))
        steps_back = rows.lines[1:][rows.times[1:] < rows.times[:-1]]
        if len(steps_back):
            rows = rows.take(np.argsort(rows.times, kind="stable"))
        rows, outside_slice = self._slice(rows, unit, rejections)
        available = len(rows.lines)
        wanted = available if requests is None else requests
        self._check_wanted(wanted, available)
        since_s = (rows.times - rows.times[0]) / TICKS[unit]  # whole ticks are subtracted first: dates stay exact
        offset_s = float(rows.times[0] / TICKS[unit])
        arrival_s = self._arrivals(since_s, wanted, offset_s, reader)
        source = RequestColumns(since_s, rows.prompt_tokens, rows.output_tokens, prefix_ids=rows.prefix_ids)
        columns = source.take(np.resize(np.arange(available), wanted), arrival_s)
        report = TraceReport(
            path=self.path,
            format=reader.name,
            time_unit=unit,
            rows_read=rows_read,
            rows_used=min(available, wanted),
            blank_lines=rejections.blank_lines,
            rejected=rejections.all(),
            outside_slice=outside_slice,
            beyond_requests=max(0, available - wanted),
            cycles=-(-wanted // available),
            out_of_order=len(steps_back),
            origin_s=0.0 if self.keep_offset else offset_s,
            prefix_block_size=None if rows.prefix_ids is None else reader.prefix_block_size,
        )
        return Trace(columns, replace(report, notes=tuple(self._notes(report, reader, columns, steps_back))))

    def _rows(self, rejections: Rejections) -> tuple[Reader, Block]:
        with opened(self.path) as text:
            start, head = [], []
            for line in text:
                start.append(line)
                if line.strip():
                    head.append(line)
                if len(head) == HEAD:
                    break
            reader = self._reader(head)
            blocks = []
            for block in reader.blocks(chain(start, text), rejections):
                rejections.settle()
                blocks.append(block)
        return reader, joined(blocks)

    def _reader(self, head: list[str]) -> Reader:
        if not head:
            raise InputError(self.path, "the file is empty; give a trace with at least one request")
        formats = "; ".join(f"{reader.name} ({reader.signature})" for reader in READERS)
        if self.format is not None:
            named = [reader for reader in READERS if reader.name == self.format]
            if not named:
                raise InputError(self.path, f"no trace format is called '{self.format}'; formats: {formats}")
            if not named[0].fits(head):
                raise InputError(self.path, f"is not of the format {self.format}: {named[0].signature}")
            return named[0]
        fitting = [reader for reader in READERS if reader.fits(head)]
        if not fitting:
            raise InputError(
                self.path, f"is of no known trace format: it starts with {shown(head[0].strip())}; formats: {formats}"
            )
        if len(fitting) > 1:
            names = ", ".join(reader.name for reader in fitting)
            raise InputError(self.path, f"fits more than one format; choose with format: one of {names}")
        return fitting[0]

    def _unit(self, reader: Reader) -> str:
        if self.time_unit is None:
            return reader.unit
        if reader.absolute:
            raise InputError(self.path, f"time_unit is {self.time_unit}, but {reader.name} has dates; leave it out")
        return self.time_unit

    def _slice(self, rows: Block, unit: str, rejections: Rejections) -> tuple[Block, int]:
        """The rows in the slice that are within the limits, and how many lay outside the slice."""
        passed_s = (rows.times - rows.times[0]) / TICKS[unit]
        end_s = inf if self.duration_s is None else self.start_s + self.duration_s
        inside = rows.take(np.flatnonzero((passed_s >= self.start_s) & (passed_s < end_s)))
        if not len(inside.lines):
            raise InputError(
                self.path, f"no request lies in the slice from {self.start_s:g} s; the trace spans {passed_s[-1]:g} s"
            )
        kept = inside
        for name, limit in (("prompt_tokens", self.max_prompt_tokens), ("output_tokens", self.max_output_tokens)):
            if limit is not None:
                over = getattr(kept, name) > limit
                rejections.unservable(kept.lines[over], f"{name} above {limit}")
                kept = kept.take(np.flatnonzero(~over))
        if not len(kept.lines):
            raise InputError(
                self.path, f"none of the {len(inside.lines):,} requests in the slice is within the limits; raise them"
            )
        return kept, len(rows.lines) - len(inside.lines)

    def _check_wanted(self, wanted: int, available: int) -> None:
        if wanted < 1:
            raise InputError(self.path, f"{wanted} requests are asked for; ask for at least 1")
        if wanted > available and not self.cycle:
            raise InputError(
                self.path,
                f"{wanted:,} requests are asked for, but there are {available:,} rows to take them from; "
                "ask for fewer, or repeat the trace with cycle: true",
            )

    def _arrivals(
        self, since_s: NDArray[np.float64], wanted: int, offset_s: float, reader: Reader
    ) -> NDArray[np.float64]:
        """Arrivals of ``wanted`` requests [s] from the times since the first of the rows: repeated, moved, scaled."""
        n = len(since_s)
        period_s = since_s[-1] * n / (n - 1) if n > 1 else 0.0  # the span and one mean gap, so that the rate holds
        arrival_s = np.resize(since_s, wanted) + np.arange(wanted) // n * period_s
        if self.keep_offset:
            if reader.absolute or offset_s > EPOCH_S:
                raise InputError(
                    self.path,
                    f"arrivals start at {offset_s:.0f} s, a clock's time; leave keep_offset out to start at 0",
                )
            arrival_s += offset_s
        arrival_s /= self.rate_scale
        return arrival_s

    def _notes(
        self, report: TraceReport, reader: Reader, columns: RequestColumns, steps_back: NDArray[np.int64]
    ) -> Iterator[str]:
        if reader.absolute or report.origin_s > EPOCH_S:
            yield f"times are absolute: {_date(report.origin_s)} is now 0 s"
        elif report.origin_s:
            yield f"the first arrival, at {report.origin_s:g} s in the file, is now 0 s"
        if report.time_unit != reader.unit:
            yield f"times are read as {report.time_unit}, not as {reader.unit} as {reader.name} has them"
        if len(steps_back):
            times = "time" if len(steps_back) == 1 else "times"
            yield f"time steps back {len(steps_back):,} {times}, first at line {steps_back[0]}: sorted"
        if report.cycles > 1:
            yield f"cycled {report.cycles} times: {len(columns):,} requests from {report.rows_used:,} rows"
        if self.rate_scale != 1 and columns.offered_rps is not None:
            was_rps = columns.offered_rps / self.rate_scale
            yield f"rate_scale {self.rate_scale:g}: {was_rps:.4g} requests/s become {columns.offered_rps:.4g}"


def _servable(rows: Block, rejections: Rejections) -> Block:
    """The rows without those that ask for nothing."""
    no_prompt = rows.prompt_tokens == 0
    no_output = (rows.output_tokens == 0) & ~no_prompt
    rejections.unservable(rows.lines[no_prompt], "no prompt tokens")
    rejections.unservable(rows.lines[no_output], "no output tokens")
    return rows.take(np.flatnonzero(~(no_prompt | no_output)))


def _nothing(rows_read: int, rejections: Rejections) -> str:
    if not rows_read:
        return "has no rows below its header; give a trace with at least one request"
    reasons = "; ".join(map(str, rejections.all()))
    return f"none of its {rows_read:,} rows can be served: {reasons}; mend them"


def _date(epoch_s: float) -> str:
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=epoch_s)).strftime("%Y-%m-%d %H:%M:%S.%f UTC")
    except OverflowError:  # beyond the year 9999: the unit is not what the format says
        return f"{epoch_s:g} s"

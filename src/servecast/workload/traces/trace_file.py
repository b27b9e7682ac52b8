"""A trace file and what to take of it: slice, limits, scales. Reading it gives requests and an account of every row.

Order of work: rows are read and screened, sorted by time if they are not (equal times keep the order of the file), cut
to the slice, scaled in length and held to the limits, moved so that the first arrival is at 0, thinned or tiled to the
rate asked for, cut or repeated to the number asked for, and scaled in time. Every row is in exactly one place of the
report: ``rows_read = rows used + rejected + outside_slice + thinned + beyond_requests``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from servecast.errors import InputError
from servecast.workload.checks import ABOVE_0, AT_LEAST_0, AT_LEAST_1, between, check, one_of
from servecast.workload.clients import MOST_REQUESTS, SHORTEST_S, RecordedRequests, RequestColumns
from servecast.workload.prefixes import PrefixIds
from servecast.workload.shaping import Copies, as_it_is, at_rate, sessions_of
from servecast.workload.traces import summaries
from servecast.workload.traces.readers import PLAIN_READERS, READERS
from servecast.workload.traces.rows import Malformed, Rejections, joined, shown
from servecast.workload.traces.source import opened
from servecast.workload.traces.trace_report import EPOCH_S, notes_on
from servecast.workload.traces.trace_report import TraceReport as TraceReport
from servecast.workload.traces.turns import one_size_each, with_history

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from servecast.workload.traces.rows import Block, Found, Reader
    from servecast.workload.traces.source import Content

LATEST_S = 253_402_300_800  # the year 10000: a later time has another unit, or cannot be meant
TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # per second


@dataclass(frozen=True)
class Trace:
    """The requests of a trace file, the account of how they came to be, and what was measured of them, if anything."""

    columns: RequestColumns
    report: TraceReport
    recorded: RecordedRequests | None = None


@dataclass(frozen=True)
class TraceFile:
    """A trace on disk and what to take of it. A value that cannot be raises ValueError.

    path : CSV, JSON or Parquet, plain, gzip or zstandard, in a format of ``readers.READERS``
    start_s, duration_s : slice in the trace's own time, from its first arrival; start included, end not
    skip_requests : leave out the first so many of the slice
    rate_scale : 2 is twice as fast
    rate_rps : requests a second on average, by leaving out requests or by laying copies over each other (seeded)
    prompt_scale, output_scale : factors of the lengths; rounded, at least 1 token
    max_prompt_tokens, max_output_tokens : limits of the lengths, after scaling
    over_max : what becomes of longer requests: drop leaves them out, clip shortens them, reject keeps them for the
        engine to reject; counted in each case
    sessions : "as_recorded" sends turns at their times unless they have a delay; "chained" has each turn wait for the
        answer to the one before, and then as long as it did in the trace, where that is known
    format : name of a reader, instead of recognising the content
    part : which of several runs in a result file, from 1
    time_unit : s, ms, us or ns, instead of the format's; dates have none
    block_size : tokens that a prefix id of the trace stands for, instead of the format's (not the engine's block size)
    turns : "new": the prompt length of a session's turn is what is new in it, and what was said before comes on top;
        "whole": it is the whole prompt; null: as the format has it
    on_bad_row : "error" stops at the first malformed row, "skip" leaves such rows out and counts them
    zero_output_as_one : send requests without output tokens as requests for one, instead of leaving them out
    jitter_s : move each arrival by a random time below this (seeded): for traces that note times in coarse ticks
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
    block_size: int | None = None
    turns: Literal["new", "whole"] | None = None
    on_bad_row: Literal["error", "skip"] = "error"
    cycle: bool = False
    keep_offset: bool = False
    skip_requests: int | None = None
    rate_rps: float | None = None
    prompt_scale: float = 1.0
    output_scale: float = 1.0
    over_max: Literal["drop", "clip", "reject"] = "drop"
    sessions: Literal["as_recorded", "chained"] = "as_recorded"
    part: int | None = None
    zero_output_as_one: bool = False
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        check(self, AT_LEAST_0, "start_s")
        check(self, between(0, 1e8, "0 and 1e8 (three years)"), "jitter_s")
        check(self, ("be above 0", lambda value: value > 0), "duration_s")
        check(self, ("be between 1e-6 and 1e6 (2 is twice as fast)", lambda value: 1e-6 <= value <= 1e6), "rate_scale")
        check(self, ABOVE_0, "prompt_scale", "output_scale", "rate_rps")
        check(self, ("be at most 1e6", lambda value: value <= 1e6), "prompt_scale", "output_scale")
        check(self, AT_LEAST_1, "max_prompt_tokens", "max_output_tokens", "part", "skip_requests")
        check(self, between(1, 2**20, "1 and 2^20"), "block_size")
        check(self, (f"be one of {', '.join(TICKS)}", lambda value: value in TICKS), "time_unit")
        check(self, one_of("error", "skip"), "on_bad_row")
        check(self, one_of("drop", "clip", "reject"), "over_max")
        check(self, one_of("as_recorded", "chained"), "sessions")
        check(self, one_of("new", "whole"), "turns")

    def read(self, requests: int | None = None, seed: int = 0) -> Trace:
        """The requests of the trace; with ``requests``, exactly so many. What cannot be is an InputError.

        ``seed`` decides which requests a lower ``rate_rps`` leaves out, how a higher one moves copies, and the jitter.
        """
        rejections = Rejections(self.path, strict=self.on_bad_row == "error")
        reader, found, unit, rows = self._rows(rejections)
        rows_read = rejections.rows + len(rows.lines)
        timed = rows.times is not None
        rows = self._whole(rows, found, rejections)
        rows, raised = _servable(rows, rejections, self.zero_output_as_one)
        failed = sum(len(one.lines) for one in rejections.all() if one.reason == FAILED)
        rows = _with_delays(rows, unit, rejections)
        if not len(rows.lines):
            raise InputError(self.path, _nothing(rows_read, rejections))
        rows, steps_back = _sorted(rows)
        rows = self._taken(rows, unit, rejections)
        times = _times(rows)
        offset_s = float(times[0] / TICKS[unit])
        # From here on times are seconds since the first; whole ticks are subtracted before, so that dates stay exact.
        rows = rows._replace(times=(times - times[0]) / TICKS[unit])
        copies = self._jittered(self._copies(rows, seed), rows, seed)
        wanted = len(copies.rows) if requests is None else requests
        self._check_wanted(wanted, len(copies.rows))
        left, used = len(np.unique(copies.rows)), len(np.unique(copies.rows[:wanted]))
        arrival_s = self._arrivals(copies.arrival_s, wanted, offset_s, found.dates)
        columns, picked = self._columns(rows, copies, arrival_s, found.prefix_block_size or 1)
        report = TraceReport(
            path=self.path,
            format=reader.name,
            time_unit=unit if timed else None,
            rows_read=rows_read,
            rows_used=used,
            blank_lines=rejections.blank_lines,
            rejected=rejections.all(),
            beyond_requests=left - used,
            cycles=-(-wanted // len(copies.rows)),
            out_of_order=len(steps_back),
            origin_s=0.0 if self.keep_offset else offset_s,
            prefix_block_size=columns.prefix_block_size,
            thinned=len(rows.lines) - left,
            outside_slice=rejections.counts["outside_slice"],
            clipped=rejections.counts["clipped"],
            over_limit=rejections.counts["over_limit"],
        )
        if raised:
            rejections.notes.append(f"{raised:,} requests without output tokens are sent as requests for one")
        notes = (*rejections.notes, *notes_on(self, report, reader, found, columns, steps_back, rows))
        recorded = _recorded(picked, timed, offset_s, failed, reader.name)
        return Trace(columns, replace(report, notes=notes), recorded)

    def _rows(self, rejections: Rejections) -> tuple[Reader, Found, str, Block]:
        """The reader, what it found, the unit of the times, and every row."""
        with opened(self.path, self.part, self.block_size) as content:
            reader, found = self._reader(content)
            unit = self._unit(reader, found)
            if self.block_size not in (None, found.prefix_block_size):
                problem = f"block_size is {self.block_size}, but {reader.name} says itself what an id stands for"
                raise InputError(self.path, f"{problem}; leave it out")
            rejections.counted = reader.counted
            blocks = []
            for block in reader.blocks(content, found, rejections):
                rejections.settle()
                blocks.append(block)
        rows = joined(blocks)
        if unit is None and rows.times is not None:
            units = ", ".join(TICKS)
            raise InputError(self.path, f"nothing says the unit of its times; give time_unit, one of {units}")
        return reader, found, unit or "s", _within_reach(rows, unit or "s", rejections)

    def _whole(self, rows: Block, found: Found, rejections: Rejections) -> Block:
        """The rows with whole prompts, and with ids that stand for one text each."""
        one_size_each(rows, found.prefix_block_size, self.path)
        if self.turns != "new" and not (self.turns is None and found.turns_are_new):
            return rows
        rows, note = with_history(rows, found.prefix_block_size or 1, self.turns, self.path)
        if note is not None:
            rejections.notes.append(note)
        return rows

    def _reader(self, content: Content) -> tuple[Reader, Found]:
        """The reader of the file, by name or by content, and what it found there."""
        if not content.head and content.table is None:
            raise InputError(self.path, "the file is empty; give a trace with at least one request")
        names = ", ".join(reader.name for reader in (*READERS, *PLAIN_READERS))
        if self.format is not None:
            named = next((reader for reader in (*READERS, *PLAIN_READERS) if reader.name == self.format), None)
            if named is None:
                raise InputError(self.path, f"no trace format is called '{self.format}'; formats: {names}")
            found = named.find(content, asked=True)
            if found is None:
                raise InputError(self.path, f"is not of the format {self.format}: {named.signature}")
            return named, found
        fitting: list[tuple[Reader, Found]] = []
        for readers in (READERS, PLAIN_READERS):
            found_by = ((reader, reader.find(content)) for reader in readers)
            fitting = fitting or [(reader, found) for reader, found in found_by if found is not None]
        if not fitting:
            raise self._unknown(content, names)
        if len(fitting) > 1:
            several = ", ".join(reader.name for reader, _ in fitting)
            raise InputError(self.path, f"fits more than one format; choose with format: one of {several}")
        return fitting[0]

    def _unknown(self, content: Content, names: str) -> InputError:
        """Why a file that no reader takes is no trace."""
        kind = summaries.recognised(content)
        if kind is not None:
            return summaries.refuse(content, kind)
        if content.fault is not None:
            problem = f"starts like JSON, which is cut or damaged: {content.fault}; write the file again"
            return InputError(self.path, problem)
        found = f"it starts with {shown(content.head[0].strip())}" if content.head else "a table with other columns"
        return InputError(self.path, f"is of no known trace format: {found}; formats: {names}")

    def _unit(self, reader: Reader, found: Found) -> str | None:
        if self.time_unit is None:
            return found.unit
        if found.dates:
            raise InputError(self.path, f"time_unit is {self.time_unit}, but {reader.name} has dates; leave it out")
        return self.time_unit

    def _taken(self, rows: Block, unit: str, rejections: Rejections) -> Block:
        """The rows in the slice that are within the limits."""
        times = _times(rows)
        passed_s = (times - times[0]) / TICKS[unit]
        end_s = inf if self.duration_s is None else self.start_s + self.duration_s
        inside = rows.take(np.flatnonzero((passed_s >= self.start_s) & (passed_s < end_s))[self.skip_requests or 0 :])
        if not len(inside.lines):
            beyond = f" beyond its first {self.skip_requests:,} requests" if self.skip_requests else ""
            raise InputError(
                self.path,
                f"no request lies in the slice from {self.start_s:g} s{beyond}; the trace spans {passed_s[-1]:g} s",
            )
        rejections.counts["outside_slice"] = len(rows.lines) - len(inside.lines)
        kept = self._scaled(inside)
        clipped = np.zeros(len(kept.lines), bool)
        for name, limit in (("prompt_tokens", self.max_prompt_tokens), ("output_tokens", self.max_output_tokens)):
            if limit is None:
                continue
            over = getattr(kept, name) > limit
            if self.over_max == "clip":
                kept = kept._replace(**{name: np.minimum(getattr(kept, name), limit)})
                clipped |= over
            elif self.over_max == "reject":
                rejections.counts["over_limit"] += int(over.sum())
            else:
                rejections.left_out(kept.lines[over].tolist(), f"{name} above {limit}")
                kept, clipped = kept.take(np.flatnonzero(~over)), clipped[~over]
        if not len(kept.lines):
            raise InputError(
                self.path, f"none of the {len(inside.lines):,} requests in the slice is within the limits; raise them"
            )
        rejections.counts["clipped"] = int(clipped.sum())
        return kept

    def _scaled(self, rows: Block) -> Block:
        if self.prompt_scale == 1 and self.output_scale == 1:
            return rows
        prompt, output = (
            np.maximum(np.rint(tokens * scale), 1).astype(np.int64)
            for tokens, scale in ((rows.prompt_tokens, self.prompt_scale), (rows.output_tokens, self.output_scale))
        )
        ids = rows.prefix_ids if self.prompt_scale == 1 else None  # ids stand for the prompts as they were
        most = None if rows.max_tokens is None else rows.max_tokens * self.output_scale
        return rows._replace(prompt_tokens=prompt, output_tokens=output, prefix_ids=ids, max_tokens=most)

    def _copies(self, rows: Block, seed: int) -> Copies:
        since_s = _times(rows)
        if self.rate_rps is None:
            return as_it_is(since_s)
        if since_s[-1] < SHORTEST_S:
            raise InputError(self.path, "rate_rps needs a trace that takes time, and all requests arrive at once")
        made = self.rate_rps * float(since_s[-1])
        if made > MOST_REQUESTS:
            problem = f"rate_rps {self.rate_rps:g} over {since_s[-1]:g} s makes {made:,.0f} requests"
            raise InputError(self.path, f"{problem}: give a lower rate, or a shorter duration_s")
        return at_rate(since_s, sessions_of(rows.session, len(since_s)), self.rate_rps, np.random.default_rng(seed))

    def _jittered(self, copies: Copies, rows: Block, seed: int) -> Copies:
        """Turns of a session are moved as one, so that their order stays."""
        if not self.jitter_s:
            return copies
        rng = np.random.default_rng([seed, 1])  # a stream of its own, so that the choice of requests stays as it was
        n = len(rows.lines)
        moves_s = rng.uniform(0, self.jitter_s, n * (int(copies.copy.max()) + 1))
        times_s = copies.arrival_s + moves_s[sessions_of(rows.session, n)[copies.rows] + n * copies.copy]
        order = np.argsort(times_s, kind="stable")
        return Copies(copies.rows[order], copies.copy[order], times_s[order])

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
        self, since_s: NDArray[np.float64], wanted: int, offset_s: float, absolute: bool
    ) -> NDArray[np.float64]:
        """Arrivals of ``wanted`` requests [s] from the times since the first of the rows: repeated, moved, scaled."""
        n = len(since_s)
        since_s = since_s - since_s[0]
        period_s = since_s[-1] * n / (n - 1) if n > 1 else 0.0  # the span and one mean gap, so that the rate holds
        arrival_s = np.resize(since_s, wanted) + np.arange(wanted) // n * period_s
        if self.keep_offset:
            if absolute or offset_s > EPOCH_S:
                raise InputError(
                    self.path,
                    f"arrivals start at {offset_s:.0f} s, a clock's time; leave keep_offset out to start at 0",
                )
            arrival_s += offset_s
        arrival_s /= self.rate_scale
        return arrival_s

    def _columns(
        self, rows: Block, copies: Copies, arrival_s: NDArray[np.float64], block_size: int
    ) -> tuple[RequestColumns, Block]:
        """The requests that arrive at these times, and their rows."""
        wanted = len(arrival_s)
        at = np.resize(copies.rows, wanted)
        copy = np.resize(copies.copy, wanted) + np.arange(wanted) // len(copies.rows) * (int(copies.copy.max()) + 1)
        picked = rows.take(at)
        ids = picked.prefix_ids
        if ids is not None:
            if self.over_max == "clip":
                ids = ids.take(np.arange(wanted), _shown(ids, picked.prompt_tokens, block_size))
            ids = _apart(ids, copy)
        sessions = picked.session
        if sessions is not None and copy.any():
            sessions = [
                name if name is None or not number else f"{name}#{number}"
                for name, number in zip(sessions, copy.tolist(), strict=True)
            ]
        columns = RequestColumns(
            arrival_s,
            picked.prompt_tokens,
            picked.output_tokens,
            picked.priority,
            sessions,
            picked.tenant,
            ids,
            block_size if ids is not None else None,
            self._delays(picked, sessions),
            _most_tokens(picked),
        )
        return columns, picked

    def _delays(self, rows: Block, sessions: list[str | None] | None) -> NDArray[np.float64] | None:
        """What `RequestColumns.delay_s` says; None where no turn waits for another."""
        chained = self.sessions == "chained" and sessions is not None
        if sessions is None or (rows.delay is None and not chained):
            return None
        n = len(rows.lines)
        delays = np.full(n, np.nan) if rows.delay is None else rows.delay.copy()
        before = _before(sessions)
        delays[before < 0] = np.nan  # the turn it follows was cut off: it comes at the earliest time it could
        if chained and rows.e2e_s is not None:
            since_s = _times(rows)
            recorded = since_s - since_s[before] - rows.e2e_s[before]
            known = (before >= 0) & np.isnan(delays) & ~np.isnan(recorded)
            delays[known] = np.maximum(recorded[known], 0.0)
        if np.isnan(delays).all():
            return None
        return delays / self.rate_scale


def _shown(ids: PrefixIds, prompt_tokens: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """(n,) how many ids of each prompt still stand in it, where some were clipped."""
    if ids.tokens is None:
        return -(-prompt_tokens // block_size)
    whole = np.concatenate([[0], np.cumsum(ids.tokens)])
    before = whole[ids.ends - ids.counts]
    return np.asarray(np.searchsorted(whole, before + prompt_tokens, "right") - 1 - (ids.ends - ids.counts), np.int64)


FAILED = "failed in the source"


def _recorded(rows: Block, timed: bool, offset_s: float, failed: int, source: str) -> RecordedRequests | None:
    """What was measured of these rows; None if nothing was. Without times, or without a latency, all of it is NaN."""
    if rows.ttft_s is None and rows.e2e_s is None:
        return None
    unknown = np.full(len(rows.lines), np.nan)
    arrival_s = _times(rows) if timed else unknown
    sent_s = arrival_s if rows.sent is None or not timed else rows.sent - offset_s
    ttft_s, e2e_s = (unknown if column is None else column for column in (rows.ttft_s, rows.e2e_s))
    lengths = rows.prompt_tokens, rows.output_tokens
    return RecordedRequests(arrival_s, sent_s, *lengths, ttft_s, e2e_s, rows.itl_s, failed, source)


def _within_reach(rows: Block, unit: str, rejections: Rejections) -> Block:
    """The rows without those whose time is beyond `LATEST_S`."""
    late = np.zeros(len(rows.lines), bool) if rows.times is None else rows.times > LATEST_S * TICKS[unit]
    reason = "time is beyond the year 9999: is its unit another (time_unit)"
    for row in np.flatnonzero(late).tolist():
        rejections.malformed(int(rows.lines[row]), Malformed(reason, f"{_times(rows)[row]:g} {unit}"))
    rejections.settle()
    return rows.take(np.flatnonzero(~late))


def _sorted(rows: Block) -> tuple[Block, NDArray[np.int64]]:
    """Rows in order of time (equal times in the order of the file), and the lines that came before an earlier one."""
    times = _times(rows)
    steps_back = rows.lines[1:][times[1:] < times[:-1]]
    return (rows.take(np.argsort(times, kind="stable")) if len(steps_back) else rows), steps_back


def _times(rows: Block) -> NDArray[Any]:
    assert rows.times is not None, "rows without times were given some"
    return rows.times


def _before(sessions: list[str | None]) -> NDArray[np.intp]:
    """(n,) the row of the turn before in the same session, -1 for a first turn; for indexing only."""
    last: dict[str, int] = {}
    before = np.full(len(sessions), -1)
    for row, name in enumerate(sessions):
        if name is not None:
            before[row] = last.get(name, -1)
            last[name] = row
    return before


def _with_delays(rows: Block, unit: str, rejections: Rejections) -> Block:
    """Gives turns that wait for the one before their earliest time; those without one before are left out."""
    if rows.delay is None or rows.session is None:
        return rows
    times = _times(rows).astype(np.float64)
    before = _before(rows.session)
    kept = np.ones(len(rows.lines), bool)
    for row in np.flatnonzero(~np.isnan(rows.delay)):
        kept[row] = before[row] >= 0 and kept[before[row]]
        times[row] = times[before[row]] + rows.delay[row] * TICKS[unit]
    rejections.left_out(rows.lines[~kept].tolist(), "a delay, and no turn before it")
    return rows._replace(times=times).take(np.flatnonzero(kept))


def _apart(ids: PrefixIds, copy: NDArray[np.int64]) -> PrefixIds:
    """Gives the prompts of each copy of a trace prefixes of their own: other users, not the same ones again."""
    if not copy.any():
        return ids
    distinct, number = np.unique(ids.flat, return_inverse=True)
    return PrefixIds(number + np.repeat(copy, ids.counts) * len(distinct), ids.ends, ids.tokens)


def _servable(rows: Block, rejections: Rejections, zero_as_one: bool) -> tuple[Block, int]:
    """The rows without those that failed, and those that ask for nothing; how many now ask for one token instead.

    Rows without times are all at 0.
    """
    if rows.times is None:
        rows = rows._replace(times=np.zeros(len(rows.lines), np.int64))
    failed = np.zeros(len(rows.lines), bool) if rows.failed is None else rows.failed
    no_prompt = (rows.prompt_tokens == 0) & ~failed
    no_output = (rows.output_tokens == 0) & ~no_prompt & ~failed
    raised = no_output & zero_as_one
    rows = rows._replace(output_tokens=np.where(raised, 1, rows.output_tokens))
    beyond = np.zeros(len(rows.lines), bool)
    if rows.max_tokens is not None:
        beyond = (rows.max_tokens < rows.output_tokens) & ~(failed | no_prompt | no_output)
    dropped = (
        (FAILED, failed), ("no prompt tokens", no_prompt), ("no output tokens", no_output & ~raised),
        ("more output tokens than max_tokens", beyond),
    )  # fmt: skip
    for reason, which in dropped:
        rejections.left_out(rows.lines[which].tolist(), reason)
    return rows.take(np.flatnonzero(~(failed | no_prompt | (no_output & ~raised) | beyond))), int(raised.sum())


def _most_tokens(rows: Block) -> NDArray[np.int64] | None:
    """The longest answer that each request allows; its own length where nothing says it."""
    if rows.max_tokens is None:
        return None
    return np.fmax(np.rint(rows.max_tokens), rows.output_tokens).astype(np.int64)


def _nothing(rows_read: int, rejections: Rejections) -> str:
    if not rows_read:
        return "has no rows below its header; give a trace with at least one request"
    reasons = "; ".join(map(str, rejections.all()))
    return f"none of its {rows_read:,} rows can be served: {reasons}; mend them"

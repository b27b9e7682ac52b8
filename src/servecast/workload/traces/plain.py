"""The plain trace, for files of one's own: CSV, JSON lines or Parquet with the obvious names, in any order.

A time (``arrival_s``, ``timestamp_ms``, ``start_time_ns``, ...: the unit is in the name; without one, as in
``timestamp``, the user gives it, unless the column holds dates), a prompt length (``prompt_tokens``, ``input_tokens``,
``input_length``, ...) and an output length (``output_tokens``, ``output_length``, ``generated_tokens``, ...). No time:
lengths alone. A column that looks like a time under another name (``created_at``) is an error: without it, all requests
would come at once. Also read where they are there: ``session``, ``tenant``, ``priority``, ``delay_s`` (after the answer
to the turn before), ``max_tokens`` (the longest answer that the request allows), ``prefix_ids_512`` (spaces between;
the number is the block size), and what was measured: ``send_s``, ``ttft_s``, ``e2e_s``. Prompts are whole, with what
was said before. Other columns are not read. Two columns that could mean the same are an error.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.errors import InputError
from servecast.workload.traces.azure import DATES, is_date
from servecast.workload.traces.delimited import LINES, Delimited, Layout
from servecast.workload.traces.json_lines import json_blocks
from servecast.workload.traces.rows import Block, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.workload.traces.rows import Rejections
    from servecast.workload.traces.source import Content

UNITS = {"s": "s", "sec": "s", "seconds": "s", "ms": "ms", "us": "us", "ns": "ns"}
_STEMS = "arrival|arrival_time|arrival_timestamp|timestamp|time|start|start_time|start_time_offset|offset"
_TIME = re.compile(rf"(?:{_STEMS})(?:_({'|'.join(UNITS)}))?")
# When something happened, under a name that does not say what or in which unit; durations have other names.
_EVENTS = "ts|date|datetime|timestamp|created|arrived|arrival|received|sent|submitted|started|scheduled|queued"
_MAYBE_TIME = re.compile(
    rf"(?:.*[_ ])?(?:{_EVENTS})(?:[_ ](?:at|on|time|timestamp|ts|s|ms|us|ns|unix|utc|epoch))*"
    "|(?:request|event|log|wall)[_ ]?time|at|when",
    re.IGNORECASE,
)
_ROLES = {
    "prompt": "prompt_tokens prompt_length prompt_len input_tokens input_length input_len context_tokens "
    "num_prompt_tokens num_input_tokens isl",
    "output": "output_tokens output_length output_len generated_tokens completion_tokens response_tokens "
    "num_output_tokens osl",
    "session": "session session_id",
    "tenant": "tenant",
    "delay": "delay_s",
    "sent": "send_s sent_s",
    "ttft_s": "ttft_s",
    "e2e_s": "e2e_s",
    "priority": "priority",
    "max_tokens": "max_tokens",
}
_NAMED = {name: role for role, names in _ROLES.items() for name in names.split()}
_IDS = re.compile(r"prefix_ids_(\d{1,6})")


def _plain_layout(header: list[str], row: list[str]) -> Layout | None:
    """The layout of obvious names; None if a prompt or an output length is missing."""
    only: dict[str, str] = {}
    for name in dict.fromkeys(header):
        role = "time" if _TIME.fullmatch(name) else "prefix" if _IDS.fullmatch(name) else _NAMED.get(name)
        if role is not None:
            only[role] = f"{only[role]} and {name}" if role in only else name
    if not only.keys() >= {"prompt", "output"}:
        return None
    unread = next((name for name in header if name not in _NAMED and _MAYBE_TIME.fullmatch(name)), None)
    if "time" not in only and unread is not None:
        problem = f"{unread} may be when requests arrive; rename it arrival_s, arrival_ms or timestamp, or take it out"
        raise InputError("columns", problem)
    for role, names in only.items():
        if " " in names:
            raise InputError("columns", f"{names} could both be the {role}; rename all but one")
    ids = _IDS.fullmatch(only.get("prefix", ""))
    if ids and not int(ids[1]):
        raise InputError("columns", f"{ids[0]}: a block of no tokens; name the column by how many an id stands for")
    layout = Layout(
        only.get("time"),
        only["prompt"],
        only["output"],
        names={role: only[role] for role in ("session", "tenant") if role in only},
        numbers={role: only[role] for role in ("delay", "sent", "ttft_s", "e2e_s", "max_tokens") if role in only},
        priority=only.get("priority"),
        prefix_ids=only.get("prefix"),
        prefix_block_size=int(ids[1]) if ids else None,
    )
    unit = _TIME.fullmatch(layout.time or "")
    if unit is None:
        return layout
    if unit[1] is not None:
        return replace(layout, unit=UNITS[unit[1]])
    at = header.index(unit[0])
    dated = at < len(row) and is_date(row[at])
    return replace(layout, unit="ns", clock=DATES, dates=True) if dated else replace(layout, unit=None)


class _Plain(Delimited):
    """Plain CSV."""

    def find(self, content: Content, asked: bool = False) -> Layout | None:
        try:
            return self._find(content)
        except InputError as error:
            raise InputError(content.path, error.problem) from None

    def _find(self, content: Content) -> Layout | None:
        return super().find(content)


class _PlainJson(_Plain):
    """Plain JSON lines."""

    def _find(self, content: Content) -> Layout | None:
        first = content.first
        if not isinstance(first, dict) or not content.head or {"chat_id", "hash_ids"} & first.keys():
            return None
        return self.layout(list(first), [str(value) for value in first.values()])

    def blocks(self, content: Content, found: Layout, rejections: Rejections) -> Iterator[Block]:
        return json_blocks(content, found.row, rejections)


class _PlainParquet(_Plain):
    """A plain table."""

    def _find(self, content: Content) -> Layout | None:
        import pyarrow

        if content.table is None:
            return None
        schema = content.table.schema_arrow
        layout = self.layout(schema.names, [])
        if layout is None:
            return None
        twice = next((name for name in layout.columns if len(schema.get_all_field_indices(name)) > 1), None)
        if twice is not None:
            raise InputError("columns", f"{twice} is there twice; keep one")
        if layout.time is None:
            return layout
        kind = schema.field(layout.time).type
        dated = pyarrow.types.is_timestamp(kind) or pyarrow.types.is_date(kind)
        return replace(layout, unit="ns", dates=dated) if dated or pyarrow.types.is_duration(kind) else layout

    def blocks(self, content: Content, found: Layout, rejections: Rejections) -> Iterator[Block]:
        import pyarrow

        before = 0
        try:
            for batch in content.table.iter_batches(LINES, columns=found.columns):
                columns = {name: _untyped(batch.column(name), name == found.time) for name in found.columns}
                batch = pyarrow.table(columns)
                numbers = np.arange(before + 1, before + 1 + len(batch))
                full = not found.names and not any(column.null_count for column in columns.values())
                arrays = {name: np.asarray(column) for name, column in columns.items()} if full else {}
                plain = found.block(numbers, arrays) if full else None
                yield plain or parsed(enumerate(batch.to_pylist(), before + 1), found.row, rejections)
                before += len(batch)
        except (pyarrow.ArrowException, OverflowError, OSError) as error:
            problem = str(error).splitlines()[0]
            raise InputError(
                content.path, f"its Parquet data is damaged or out of range ({problem}); write it again"
            ) from error


def _untyped(column: Any, is_time: bool) -> Any:
    """A column as plain numbers: decimals; durations in seconds; and of the time column, ticks of 1 ns."""
    import pyarrow
    import pyarrow.compute

    kind = column.type
    if pyarrow.types.is_decimal(kind):
        return column.cast(pyarrow.float64())
    if is_time and (pyarrow.types.is_timestamp(kind) or pyarrow.types.is_date(kind)):
        return column.cast(pyarrow.timestamp("ns", getattr(kind, "tz", None))).cast(pyarrow.int64())
    if pyarrow.types.is_duration(kind):
        ticks = column.cast(pyarrow.duration("ns")).cast(pyarrow.int64())
        return ticks if is_time else pyarrow.compute.divide(ticks.cast(pyarrow.float64()), 1e9)
    return column


PLAIN = _Plain("plain", "CSV with the columns arrival_s,prompt_tokens,output_tokens, or as obvious ones", _plain_layout)
PLAIN_JSONL = _PlainJson("plain_jsonl", "JSON lines with the names of the plain CSV", _plain_layout)
PLAIN_PARQUET = _PlainParquet("plain_parquet", "Parquet with the names of the plain CSV", _plain_layout)

"""The plain trace, for files of one's own: CSV, JSON lines or Parquet with the obvious names, in any order.

A time (``arrival_s``, ``timestamp_ms``, ``start_time_ns``, ...: the unit is in the name; without one, as in
``timestamp``, the user gives it, unless the column holds dates), a prompt length (``prompt_tokens``, ``input_tokens``,
``input_length``, ...) and an output length (``output_tokens``, ``output_length``, ``generated_tokens``, ...). No time:
lengths alone. Also read where they are there: ``session``, ``tenant``, ``priority``, ``delay_s`` (after the answer to
the turn before), ``prefix_ids_512`` (spaces between; the number is the block size), and what was measured: ``send_s``,
``ttft_s``, ``e2e_s``. Other columns are not read. Two columns that could mean the same are an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.errors import InputError
from servecast.workload.traces.azure import DATES, is_date
from servecast.workload.traces.delimited import LINES, Delimited, Layout
from servecast.workload.traces.json_lines import JsonLines
from servecast.workload.traces.rows import Block, Found, Malformed, Row, count, field_of, moment, numeric, parsed, span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.workload.traces.rows import Rejections
    from servecast.workload.traces.source import Content

UNITS = {"s": "s", "sec": "s", "seconds": "s", "ms": "ms", "us": "us", "ns": "ns"}
_STEMS = "arrival|arrival_time|arrival_timestamp|timestamp|time|start|start_time|start_time_offset|offset"
_TIME = re.compile(rf"(?:{_STEMS})(?:_({'|'.join(UNITS)}))?")
_PROMPT = {
    "prompt_tokens",
    "prompt_length",
    "prompt_len",
    "input_tokens",
    "input_length",
    "input_len",
    "context_tokens",
}
_PROMPT |= {"num_prompt_tokens", "num_input_tokens", "isl"}
_OUTPUT = {"output_tokens", "output_length", "output_len", "generated_tokens", "completion_tokens", "response_tokens"}
_OUTPUT |= {"num_output_tokens", "osl"}
_NAMES = {"session": {"session", "session_id"}, "tenant": {"tenant"}}
_NUMBERS = {"delay": {"delay_s"}, "sent": {"send_s", "sent_s"}, "ttft_s": {"ttft_s"}, "e2e_s": {"e2e_s"}}
_IDS = re.compile(r"prefix_ids_(\d{1,6})")


def _plain_layout(header: list[str], row: list[str]) -> Layout | None:
    """The layout of obvious names; None if a prompt or an output length is missing, or another tool's name is there."""
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(header):
        for role, known in (("prompt", _PROMPT), ("output", _OUTPUT), *_NAMES.items(), *_NUMBERS.items()):
            if name in known:
                found.setdefault(role, []).append(name)
        if _TIME.fullmatch(name):
            found.setdefault("time", []).append(name)
        if name == "priority" or _IDS.fullmatch(name):
            found.setdefault(name.split("_")[0], []).append(name)
    if not found.keys() >= {"prompt", "output"}:
        return None
    for role, names in found.items():
        if len(names) > 1:
            raise InputError("columns", f"{' and '.join(names)} could both be the {role}; rename all but one")
    only = {role: names[0] for role, names in found.items()}
    layout = Layout(
        only.get("time"),
        only["prompt"],
        only["output"],
        names={role: only[role] for role in _NAMES if role in only},
        numbers={role: only[role] for role in _NUMBERS if role in only},
        priority=only.get("priority"),
        prefix_ids=only.get("prefix"),
        prefix_block_size=int(match[1]) if (match := _IDS.fullmatch(only.get("prefix", ""))) else None,
    )
    if layout.time is None:
        return layout
    unit = _TIME.fullmatch(layout.time)
    assert unit is not None, "found by this pattern"
    if unit[1] is not None:
        return replace(layout, unit=UNITS[unit[1]])
    at = header.index(layout.time)
    dated = at < len(row) and is_date(row[at])
    return replace(layout, unit="ns", clock=DATES, dates=True) if dated else replace(layout, unit=None)


def _named(content: Content, header: list[str], row: list[str]) -> Layout | None:
    try:
        return _plain_layout(header, row)
    except InputError as error:
        raise InputError(content.path, error.problem) from None


class _Plain(Delimited):
    """Plain CSV."""

    def _layout(self, content: Content) -> Layout | None:
        try:
            return super()._layout(content)
        except InputError as error:
            raise InputError(content.path, error.problem) from None


PLAIN = _Plain("plain", "CSV with the columns arrival_s,prompt_tokens,output_tokens, or as obvious ones", _plain_layout)


@dataclass(frozen=True)
class _PlainRows:
    """Plain JSON lines (``name`` plain_jsonl) or Parquet (plain_parquet); ids are lists there."""

    name: str
    signature: str
    parquet: bool

    remark = None
    counted = "line"

    def _layout(self, content: Content) -> Layout | None:
        if not self.parquet:
            first = content.first
            if not isinstance(first, dict) or len(content.head) == 0 or {"chat_id", "hash_ids"} & first.keys():
                return None
            return _named(content, list(first), [str(value) for value in first.values()])
        layout = None if content.table is None else _named(content, content.table.schema_arrow.names, [])
        if layout is not None and layout.time is not None and _dated(content, layout.time):
            return replace(layout, unit="ns", dates=True)
        return layout

    def find(self, content: Content, asked: bool = False) -> Found | None:
        """What the names say, where they are obvious."""
        layout = self._layout(content)
        return None if layout is None else layout.found

    def blocks(self, content: Content, rejections: Rejections) -> Iterator[Block]:
        layout = self._layout(content)
        assert layout is not None, "only what fits is read"
        row = partial(_row, layout)
        if self.parquet:
            return _table_blocks(content, layout, row, rejections)
        return JsonLines(self.name, self.signature, lambda _: True, row, layout.found).blocks(content, rejections)


PLAIN_JSONL = _PlainRows("plain_jsonl", "JSON lines with the names of the plain CSV", parquet=False)
PLAIN_PARQUET = _PlainRows("plain_parquet", "Parquet with the names of the plain CSV", parquet=True)


def _row(layout: Layout, line: int, values: dict[str, Any]) -> Row:
    """A row of JSON or of a table: numbers are numbers there, not text."""
    counts = []
    for name in (layout.prompt_tokens, layout.output_tokens):
        value = field_of(values, name)
        counts.append(count(name, numeric(name, value), value))
    time: float | None = None
    if layout.time is not None:
        value = field_of(values, layout.time)
        if layout.clock is not None:
            time = layout.clock.time_of(str(value))
        else:
            time = moment(layout.time, numeric(layout.time, value), value)
    more: dict[str, Any] = {role: span(name, values.get(name)) for role, name in layout.numbers.items()}
    for role, name in layout.names.items():
        more[role] = None if values.get(name) is None else str(values[name])
    if layout.priority is not None:
        value = values.get(layout.priority) or 0
        if type(value) is not int:
            raise Malformed(f"{layout.priority} is not a whole number", value)
        more["priority"] = value
    if layout.prefix_ids is not None:
        ids = values.get(layout.prefix_ids) or []
        assert layout.prefix_block_size is not None, "ids have a block size"
        if not isinstance(ids, list) or any(type(id_) is not int for id_ in ids):
            raise Malformed(f"{layout.prefix_ids} is not a list of whole numbers", str(ids))
        if len(ids) > -(-counts[0] // layout.prefix_block_size):
            raise Malformed(f"{layout.prefix_ids} are more than the prompt has blocks", len(ids))
        more["prefix_ids"] = ids
    return Row(line, time, counts[0], counts[1], **more)


def _dated(content: Content, name: str) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_timestamp(content.table.schema_arrow.field(name).type))


def _table_blocks(
    content: Content, layout: Layout, row: Callable[[int, dict[str, Any]], Row], rejections: Rejections
) -> Iterator[Block]:
    import pyarrow

    wanted = [layout.time, layout.prompt_tokens, layout.output_tokens, layout.priority, layout.prefix_ids]
    wanted += [*layout.numbers.values(), *layout.names.values()]
    before = 0
    try:
        for batch in content.table.iter_batches(LINES, columns=[name for name in wanted if name is not None]):
            if layout.dates:
                place = batch.schema.get_field_index(layout.time)
                ticks = batch.column(place).cast(pyarrow.timestamp("ns", batch.schema.field(place).type.tz), safe=False)
                batch = batch.set_column(place, layout.time, ticks.cast(pyarrow.int64()))
            yield _quick(batch, layout, before) or parsed(enumerate(batch.to_pylist(), before + 1), row, rejections)
            before += batch.num_rows
    except (pyarrow.ArrowInvalid, OSError) as error:
        problem = str(error).splitlines()[0]
        raise InputError(content.path, f"its Parquet data is damaged ({problem}); fetch the file again") from error


def _quick(batch: Any, layout: Layout, before: int) -> Block | None:
    """A batch of numbers without holes, column by column; None for any other."""
    if layout.names or layout.numbers or layout.priority or layout.prefix_ids or layout.clock:
        return None
    names = [layout.prompt_tokens, layout.output_tokens, *([layout.time] if layout.time else [])]
    columns = [batch.column(batch.schema.get_field_index(name)) for name in names]
    if any(column.null_count for column in columns):
        return None
    prompt, output, *times = (column.to_numpy(zero_copy_only=False) for column in columns)
    whole = all(np.issubdtype(column.dtype, np.integer) and column.min() >= 0 for column in (prompt, output))
    if not whole or max(prompt.max(), output.max()) > 10**9:
        return None
    if times and not (np.issubdtype(times[0].dtype, np.number) and np.all((times[0] >= 0) & (times[0] <= 2**62))):
        return None
    lines = np.arange(before + 1, before + 1 + len(prompt))
    return Block(lines, times[0] if times else None, prompt.astype(np.int64), output.astype(np.int64))

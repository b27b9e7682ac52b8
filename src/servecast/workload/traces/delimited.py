"""Comma-separated traces with a header: what the CSV formats share.

A block of lines is first taken whole, column by column; only if anything in it is unusual is it read again row by row,
which finds the reason. Both ways give the same rows. One line is one row: a quoted field may hold commas, no line
break.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from itertools import islice
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.workload.lengths import LONGEST_TOKENS
from servecast.workload.traces.rows import LATEST, Block, Found, Malformed, Row, moment, number, parsed, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from servecast.workload.traces.rows import Rejections
    from servecast.workload.traces.source import Content


LINES = 16_384  # lines of a block


@dataclass(frozen=True)
class Clock:
    """How the times of a column are written: one by one, and a whole column if all of it is plain (else None)."""

    time_of: Callable[[str], float]
    times_of: Callable[[tuple[str, ...]], NDArray[np.number] | None]


@dataclass(frozen=True)
class Layout:
    """Which columns of one file mean what. ``time`` is None for lengths alone, ``unit`` where the header has none.

    names : columns that may have empty cells: session, tenant
    numbers : ttft_s, e2e_s, sent, delay: may be empty too
    zero_failed : no output tokens means that the request failed
    """

    time: str | None
    prompt_tokens: str
    output_tokens: str
    unit: str | None = "s"
    clock: Clock | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    priority: str | None = None
    prefix_ids: str | None = None
    prefix_block_size: int | None = None
    zero_failed: bool = False
    dates: bool = False

    @property
    def found(self) -> Found:
        """What the columns say of the file."""
        return Found(self.unit, self.dates, self.prefix_block_size)


@dataclass(frozen=True)
class Delimited:
    """A CSV format. ``layout(header, first row)`` says what its columns mean; None for a header of another format."""

    name: str
    signature: str
    layout: Callable[[list[str], list[str]], Layout | None]
    remark: str | None = None

    counted = "line"

    def _layout(self, content: Content) -> Layout | None:
        if not content.head or content.first is not None:
            return None
        return self.layout(_fields(content.head[0]), _fields(content.head[1]) if len(content.head) > 1 else [])

    def find(self, content: Content, asked: bool = False) -> Found | None:
        """What the header says, where it has these columns."""
        layout = self._layout(content)
        return None if layout is None else layout.found

    def blocks(self, content: Content, rejections: Rejections) -> Iterator[Block]:
        """The rows below the header."""
        layout = self._layout(content)
        assert layout is not None, "only what fits is read"
        lines = content.lines()
        before = 1  # lines ahead of the block
        for line in lines:
            if line.strip():
                break
            rejections.blank_lines += 1
            before += 1
        table = _Table(layout, _fields(line))
        while block := list(islice(lines, LINES)):
            yield table.quick(block, before) or table.careful(block, before, rejections)
            before += len(block)


class _Table:
    """The rows of one file."""

    def __init__(self, layout: Layout, header: list[str]) -> None:
        self.layout = layout
        self.clock = layout.clock or seconds(layout.time or "")
        self.width = len(header)
        self.at = {name: place for place, name in reversed(list(enumerate(header)))}

    def quick(self, block: list[str], before: int) -> Block | None:
        """The block column by column; None unless every row is as plain as can be."""
        if self.layout.prefix_ids is not None or self.layout.priority is not None:
            return None
        joined = "".join(block).removesuffix("\n")
        if '"' in joined:
            return None
        rows = [line.split(",") for line in joined.split("\n")]
        if any(len(row) != self.width for row in rows):
            return None
        texts = list(zip(*rows, strict=True))
        del rows
        layout, at = self.layout, self.at
        times = None if layout.time is None else self.clock.times_of(texts[at[layout.time]])
        prompt, output = _counts(texts[at[layout.prompt_tokens]]), _counts(texts[at[layout.output_tokens]])
        if (times is None and layout.time is not None) or prompt is None or output is None:
            return None
        columns: dict[str, Any] = {}
        for role, name in layout.numbers.items():
            columns[role] = _spans(texts[at[name]])
            if columns[role] is None:
                return None
        for role, name in layout.names.items():
            columns[role] = [text.strip() or None for text in texts[at[name]]]
        if layout.zero_failed:
            columns["failed"] = output == 0
        return Block(np.arange(before + 1, before + 1 + len(block)), times, prompt, output, **columns)

    def careful(self, block: list[str], before: int, rejections: Rejections) -> Block:
        """The block row by row; rows that cannot be understood go to ``rejections``."""
        return parsed(rejections.filled(enumerate(block, before + 1)), self._row, rejections)

    def _row(self, line: int, text: str) -> Row:
        fields = _fields(text)
        if len(fields) != self.width:
            raise Malformed(f"row without {self.width} fields", text.rstrip("\n"))
        layout, at = self.layout, self.at
        time = None if layout.time is None else self.clock.time_of(fields[at[layout.time]])
        prompt = whole(layout.prompt_tokens, fields[at[layout.prompt_tokens]])
        output = whole(layout.output_tokens, fields[at[layout.output_tokens]])
        more: dict[str, Any] = {role: _span(name, fields[at[name]]) for role, name in layout.numbers.items()}
        more |= {role: fields[at[name]] or None for role, name in layout.names.items()}
        if layout.priority is not None:
            more["priority"] = _priority(layout.priority, fields[at[layout.priority]])
        if layout.prefix_ids is not None:
            more["prefix_ids"] = _ids(layout, fields[at[layout.prefix_ids]], prompt)
        return Row(line, time, prompt, output, failed=layout.zero_failed and not output, **more)


def seconds(name: str) -> Clock:
    """Times that are plain numbers from a start at 0, in whatever unit."""

    def time_of(text: str) -> float:
        return moment(name, number(name, text), text)

    def times_of(texts: tuple[str, ...]) -> NDArray[np.number] | None:
        joined = "".join(texts)
        if "_" in joined or not joined.isascii():
            return None
        if joined.isdigit() and "" not in texts and max(map(len, texts)) < 19:  # whole ticks stay exact
            ticks = np.array(list(map(int, texts)), np.int64)
            return ticks if ticks.max() <= LATEST else None
        try:
            times = np.array(list(map(float, texts)))
        except ValueError:
            return None
        return times if np.all((times >= 0) & (times <= LATEST)) else None

    return Clock(time_of, times_of)


def fixed(needed: str, only: bool = False, without: str = "", **layout: Any) -> Callable[..., Layout | None]:
    """The layout of a format that always has the same columns: time, prompt and output of ``needed`` (comma-separated).

    A first name left blank: no times. A header with other columns fits too, unless ``only``; one with a column of
    ``without`` does not.
    """
    columns = needed.split(",")
    time, prompt, output = columns[:3]
    wanted = set(filter(None, columns))
    refused = set(filter(None, without.split(",")))

    def of(header: list[str], _: list[str]) -> Layout | None:
        if not wanted <= set(header) or refused & set(header) or (only and sorted(columns) != sorted(header)):
            return None
        return Layout(time or None, prompt, output, **layout)

    return of


def _fields(line: str) -> list[str]:
    if '"' in line:
        try:
            return [text.strip() for text in next(csv.reader([line.strip()], skipinitialspace=True))]
        except csv.Error:  # a field longer than the csv module takes
            return [line]
    return [text.strip() for text in line.split(",")]


def _counts(texts: tuple[str, ...]) -> NDArray[np.int64] | None:
    joined = "".join(texts)
    if not (joined.isascii() and joined.isdigit()) or "" in texts or max(map(len, texts)) > 10:
        return None
    counts = np.array(list(map(int, texts)), np.int64)
    return counts if counts.max() <= LONGEST_TOKENS else None


def _spans(texts: tuple[str, ...]) -> NDArray[np.float64] | None:
    if "" not in texts:
        times = seconds("").times_of(texts)
        return None if times is None else times.astype(np.float64)
    return None


def _span(name: str, text: str) -> float:
    return moment(name, number(name, text), text) if text else nan


def _priority(name: str, text: str) -> int:
    value = number(name, text or "0")
    if value != int(value) or abs(value) > LONGEST_TOKENS:
        raise Malformed(f"{name} is not a whole number", text)
    return int(value)


def _ids(layout: Layout, text: str, prompt: int) -> tuple[int, ...]:
    try:
        ids = tuple(map(int, text.split()))
    except ValueError:
        raise Malformed(f"{layout.prefix_ids} are not whole numbers with spaces between", text) from None
    assert layout.prefix_block_size is not None, "ids have a block size"
    if len(ids) > -(-prompt // layout.prefix_block_size):
        raise Malformed(f"{layout.prefix_ids} are more than the prompt has blocks", f"{len(ids)} for {prompt} tokens")
    return ids

"""Files whose columns say by name what they hold: CSV with a header, and what such CSV shares with tables and JSON.

A block of rows is first taken whole, column by column; only if anything in it is unusual is it read again row by row,
which finds the reason. Both ways give the same rows. One line is one row: a quoted field may hold commas, no line
break.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.workload.lengths import LONGEST_TOKENS
from servecast.workload.traces.rows import (
    LATEST,
    Block,
    Found,
    Malformed,
    Reader,
    Row,
    field_of,
    moment,
    number,
    numeric,
    parsed,
    span,
    tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from servecast.workload.traces.rows import Read, Rejections
    from servecast.workload.traces.source import Content


LINES = 16_384  # lines of a block


@dataclass(frozen=True)
class Clock:
    """How dates are written: one by one, and a whole column if all of it is plain (else None)."""

    time_of: Callable[[str], int]
    times_of: Callable[[tuple[str, ...]], NDArray[np.int64] | None]


@dataclass(frozen=True)
class Layout(Found):
    """Which columns of one file mean what. ``time`` is None for lengths alone, ``unit`` where the header has none.

    clock : how to read times that are dates in text
    names : columns that may have empty cells: session, tenant
    numbers : ttft_s, e2e_s, sent, delay, max_tokens: may be empty too
    zero_failed : no output tokens means that the request failed
    """

    time: str | None
    prompt_tokens: str
    output_tokens: str
    clock: Clock | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    priority: str | None = None
    prefix_ids: str | None = None
    zero_failed: bool = False

    @property
    def counts(self) -> tuple[str, str]:
        """The columns of prompt and output lengths."""
        return self.prompt_tokens, self.output_tokens

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        named = (self.time, *self.counts, self.priority, self.prefix_ids)
        return [*filter(None, named), *self.numbers.values(), *self.names.values()]

    def block(self, lines: NDArray[np.int64], columns: Mapping[str, Any]) -> Block | None:
        """The rows column by column; None unless every value is as plain as can be.

        columns : arrays of numbers, lists of names; None for what is neither
        """
        if self.priority or self.prefix_ids:
            return None
        prompt, output = (_within(columns[name], LONGEST_TOKENS, np.integer) for name in self.counts)
        named = (("time", self.time), *self.numbers.items())
        kinds = {role: np.integer if role == "max_tokens" else np.number for role, _ in named}
        times = [_within(columns[name], LATEST, kinds[role]) for role, name in named if name is not None]
        names = {role: columns[name] for role, name in self.names.items()}
        if any(column is None for column in (prompt, output, *times, *names.values())):
            return None
        time = None if self.time is None else times.pop(0)
        spans: dict[str, Any] = {role: times.pop(0).astype(np.float64) for role in self.numbers}
        failed = output == 0 if self.zero_failed else None
        return Block(lines, time, prompt, output, failed=failed, **spans, **names)

    def row(self, values: dict[str, Any], read: Read = numeric) -> Row:
        """One row by the names of its columns; None for an empty cell."""
        time: float | None = None
        if self.time is not None:
            value = field_of(values, self.time)
            time = self.clock.time_of(str(value)) if self.clock else moment(self.time, value, read)
        prompt, output = (tokens(name, field_of(values, name), read) for name in self.counts)
        more: dict[str, Any] = {role: span(name, values.get(name), read) for role, name in self.numbers.items()}
        most = self.numbers.get("max_tokens")
        if most is not None and values.get(most) is not None:
            more["max_tokens"] = float(tokens(most, values[most], read))
        for role, name in self.names.items():
            more[role] = None if values.get(name) is None else str(values[name])
        if self.priority is not None and values.get(self.priority):
            value = read(self.priority, values[self.priority])
            if value != int(value) or abs(value) > LONGEST_TOKENS:
                raise Malformed(f"{self.priority} is not a whole number", values[self.priority])
            more["priority"] = int(value)
        if self.prefix_ids is not None:
            more["prefix_ids"] = self._ids(values.get(self.prefix_ids) or [], prompt)
        return Row(time, prompt, output, failed=self.zero_failed and not output, **more)

    def _ids(self, ids: Any, prompt: int) -> list[int]:
        if not isinstance(ids, list) or any(type(id_) is not int for id_ in ids):
            raise Malformed(f"{self.prefix_ids} is not a list of whole numbers", str(ids))
        assert self.prefix_block_size is not None, "ids have a block size"
        if len(ids) > -(-prompt // self.prefix_block_size):
            raise Malformed(f"{self.prefix_ids} are more than the prompt has blocks", f"{len(ids)} for {prompt} tokens")
        return ids


def _within(values: NDArray[Any] | None, most: int, kind: type = np.number) -> Any:
    """The column as int64 or float64 if its values are numbers from 0 to ``most``; else None."""
    if values is None or not np.issubdtype(values.dtype, kind):
        return None
    whole = np.issubdtype(values.dtype, np.integer)
    if not whole:
        values = values.astype(np.float64, copy=False)  # half precision cannot hold the limit
    if not np.all((values >= 0) & (values <= most)):
        return None
    return values.astype(np.int64, copy=False) if whole else values


@dataclass(frozen=True)
class Delimited(Reader):
    """A CSV format. ``layout(header, first row)`` says what its columns mean; None for a header of another format."""

    layout: Callable[[list[str], list[str]], Layout | None]

    def find(self, content: Content, asked: bool = False) -> Layout | None:
        if not content.head or content.first is not None:
            return None
        return self.layout(_fields(content.head[0]), _fields(content.head[1]) if len(content.head) > 1 else [])

    def blocks(self, content: Content, found: Layout, rejections: Rejections) -> Iterator[Block]:
        lines = content.lines()
        before = 1  # lines ahead of the block
        for line in lines:
            if line.strip():
                break
            rejections.blank_lines += 1
            before += 1
        header = _fields(line)

        def row(text: str) -> Row:
            fields = _fields(text)
            if len(fields) != len(header):
                raise Malformed(f"row without {len(header)} fields", text.rstrip("\n"))
            # Of two columns with one name the first is read.
            values: dict[str, Any] = {name: text or None for name, text in zip(header[::-1], fields[::-1], strict=True)}
            if found.prefix_ids is not None and values[found.prefix_ids]:
                values[found.prefix_ids] = _ids(found.prefix_ids, values[found.prefix_ids])
            return found.row(values, number)

        while block := list(islice(lines, LINES)):
            numbers = np.arange(before + 1, before + 1 + len(block))
            columns = _columns(found, header, block)
            plain = None if columns is None else found.block(numbers, columns)
            yield plain or parsed(rejections.filled(enumerate(block, before + 1)), row, rejections)
            before += len(block)


def _columns(layout: Layout, header: list[str], block: list[str]) -> dict[str, Any] | None:
    """The columns that are read; None where a line needs a closer look."""
    text = "".join(block).removesuffix("\n")
    rows = [line.split(",") for line in text.split("\n")]
    if '"' in text or any(len(row) != len(header) for row in rows):
        return None
    texts = dict(zip(header[::-1], list(zip(*rows, strict=True))[::-1], strict=True))
    del rows
    names = layout.names.values()
    columns: dict[str, Any] = {name: None if name in names else _numbers(texts[name]) for name in layout.columns}
    if layout.time and layout.clock:
        columns[layout.time] = layout.clock.times_of(texts[layout.time])
    return columns | {name: [cell.strip() or None for cell in texts[name]] for name in names}


def _numbers(texts: tuple[str, ...]) -> NDArray[Any] | None:
    joined = "".join(texts)
    if "_" in joined or not joined.isascii():
        return None
    try:
        if joined.isdigit() and max(map(len, texts)) < 19:  # whole ticks stay exact
            return np.array(list(map(int, texts)), np.int64)
        return np.array(list(map(float, texts)))
    except ValueError:
        return None


def fixed(needed: str, only: bool = False, without: str = "", **layout: Any) -> Callable[..., Layout | None]:
    """The layout of a format that always has the same columns: time, prompt and output of ``needed`` (comma-separated).

    A first name left blank: no times. A header with other columns fits too, unless ``only``; one with a column of
    ``without`` does not.
    """
    columns = needed.split(",")
    wanted, refused = set(filter(None, columns)), set(filter(None, without.split(",")))

    def of(header: list[str], _: list[str]) -> Layout | None:
        if not wanted <= set(header) or refused & set(header) or (only and sorted(columns) != sorted(header)):
            return None
        return Layout(columns[0] or None, columns[1], columns[2], **layout)

    return of


def _fields(line: str) -> list[str]:
    if '"' in line:
        try:
            return [text.strip() for text in next(csv.reader([line.strip()], skipinitialspace=True))]
        except csv.Error:  # a field longer than the csv module takes
            return [line]
    return [text.strip() for text in line.split(",")]


def _ids(name: str, text: str) -> list[int]:
    try:
        return list(map(int, text.split()))
    except ValueError:
        raise Malformed(f"{name} are not whole numbers with spaces between", text) from None

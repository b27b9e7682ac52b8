"""What passes between a reader and `trace_file`: blocks of well-formed rows, and the rows that were turned away.

Two kinds of row are turned away. A *malformed* row says something that cannot be meant (no number where one belongs, a
cut line, a negative count): by default the first one in a file is an error. An *unservable* row is well-formed, but no
server can answer it (no prompt, no answer) or the user left it out (over a limit): it is counted, never an error.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from servecast.errors import InputError
from servecast.workload.lengths import LONGEST_TOKENS
from servecast.workload.prefixes import PrefixIds, taken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from servecast.workload.traces.source import Content

MOST_BLOCK_TOKENS = 2**20  # that a prefix id stands for
_HEXADECIMAL = re.compile(r"(?:0x)?[0-9a-f]{1,128}", re.ASCII | re.IGNORECASE)
LATEST = 2**62  # in any unit: a time beyond it is taken for a mistake
LISTED = 10  # lines named for each reason when it is printed; all are kept


class Block(NamedTuple):
    """Some well-formed rows of a file, in its order. What a format does not have is None.

    lines : (n,) int64, line numbers from 1 (of a document: the numbers of its requests)
    times : (n,) int64 or float64 in the reader's unit; None where the format has lengths only
    prompt_tokens, output_tokens : (n,) int64 [tokens], 0 allowed
    prefix_ids : n tuples of hash ids
    session, tenant : n names or None each
    delay : (n,) float64 [s], NaN but where a turn waits so long after the answer to the one before
    max_tokens : (n,) float64, the longest answer allowed; NaN where nothing says it
    priority : (n,) int64
    failed : (n,) bool, requests that failed where the trace was taken
    sent : (n,) float64 [s] of the clock of times, when the client sent the request; None: at its time
    ttft_s, e2e_s : (n,) float64 [s] from sent, as measured; NaN where unknown
    itl_s : n lists of measured gaps between tokens [s]
    """

    lines: NDArray[np.int64]
    times: NDArray[np.number] | None
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    prefix_ids: PrefixIds | None = None
    session: list[str | None] | None = None
    tenant: list[str | None] | None = None
    delay: NDArray[np.float64] | None = None
    priority: NDArray[np.int64] | None = None
    failed: NDArray[np.bool_] | None = None
    sent: NDArray[np.float64] | None = None
    ttft_s: NDArray[np.float64] | None = None
    e2e_s: NDArray[np.float64] | None = None
    itl_s: list[tuple[float, ...]] | None = None
    max_tokens: NDArray[np.float64] | None = None

    def take(self, rows: NDArray[np.intp]) -> Block:
        """The rows at these positions, in that order; the block itself where these are all its rows."""
        if len(rows) == len(self.lines) and np.array_equal(rows, np.arange(len(rows))):
            return self
        return Block._make(taken(column, rows) for column in self)


def joined(blocks: list[Block]) -> Block:
    """All rows as one block; a column is None where no row has anything in it."""
    blocks = [block for block in blocks if len(block.lines)]
    if not blocks:
        nothing = np.empty(0, np.int64)
        return Block(nothing, nothing, nothing, nothing)
    sizes = [len(block.lines) for block in blocks]
    columns = zip(Block._fields, zip(*blocks, strict=True), strict=True)
    return Block(*(_joined(column, sizes, Row._field_defaults.get(name)) for name, column in columns))


def _joined(parts: tuple[Any, ...], sizes: list[int], blank: object) -> Any:
    some = next((part for part in parts if part is not None), None)
    if some is None:
        return None
    filled: Iterator[Any] = ([blank] * size if part is None else part for part, size in zip(parts, sizes, strict=True))
    if isinstance(some, PrefixIds):
        return PrefixIds.joined(map(PrefixIds.of, filled))
    return list(chain.from_iterable(filled)) if isinstance(some, list) else np.concatenate(list(filled))


class Row(NamedTuple):
    """One well-formed row, for formats that are read row by row; fields as in `Block`, and what stands for nothing."""

    times: float | None
    prompt_tokens: int
    output_tokens: int
    prefix_ids: Sequence[int] = ()
    session: str | None = None
    tenant: str | None = None
    delay: float = nan
    priority: int = 0
    failed: bool = False
    sent: float = nan
    ttft_s: float = nan
    e2e_s: float = nan
    itl_s: tuple[float, ...] = ()
    max_tokens: float = nan


def parsed(numbered: Iterable[tuple[int, Any]], row: Callable[[Any], Row], rejections: Rejections) -> Block:
    """The rows that ``row`` finds in what stands under each number; those it turns away go to ``rejections``."""
    lines, rows = [], []
    for number, given in numbered:
        try:
            rows.append(row(given))
            lines.append(number)
        except Malformed as fault:
            rejections.malformed(number, fault)
        except LeftOut as left:
            rejections.left_out([number], str(left))
    if not rows:
        return joined([])
    columns = zip(Row._fields, zip(*rows, strict=True), strict=True)
    return Block(np.array(lines, np.int64), *(_column(name, values) for name, values in columns))


def _column(name: str, values: tuple[Any, ...]) -> Any:
    """Values of one field as a column; None where all are blank."""
    if name in ("times", "prompt_tokens", "output_tokens"):
        return None if values[0] is None else np.array(values, np.int64 if set(map(type, values)) == {int} else float)
    blank = Row._field_defaults[name]
    if isinstance(blank, float):
        column = np.array(values, np.float64)
        return None if np.isnan(column).all() else column
    if all(value is None if blank is None else not value for value in values):
        return None
    if name == "prefix_ids":
        return PrefixIds.of(values)
    return np.array(values, type(blank)) if isinstance(blank, int) else list(values)


class LeftOut(Exception):  # noqa: N818 (a row is left out; that is no error)
    """Raised by the parser of a row that is well-formed, and no request to send: the reason, which groups rows."""


class Malformed(Exception):  # noqa: N818 (a row is malformed; the error is the InputError that may come of it)
    """Raised by the parser of a row: ``reason`` groups rows, ``value`` is what stood there, quoted."""

    def __init__(self, reason: str, value: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.value = shown(str(value)) if str(value) else ""


@dataclass(frozen=True)
class Rejected:
    """Rows turned away for one reason: their line numbers, and what stood in the first of them."""

    reason: str
    lines: tuple[int, ...]
    example: str = ""
    counted: str = "line"

    def __str__(self) -> str:
        named = ", ".join(map(str, self.lines[:LISTED]))
        more = f" and {len(self.lines) - LISTED:,} more" if len(self.lines) > LISTED else ""
        example = f", for example {self.example}" if self.example else ""
        plural = "s" * (len(self.lines) > 1)
        return f"{len(self.lines):,} row{plural}: {self.reason}{example} ({self.counted}{plural} {named}{more})"


@dataclass
class Rejections:
    """Collects rows turned away; ``strict`` makes the first malformed row of the file at ``path`` an error.

    counted : what the numbers of rows count: lines, or the requests of a document
    notes : what a user should be told of the file, a sentence each
    counts : what became of the other rows, by fields of `TraceReport`
    """

    path: str
    strict: bool
    counted: str = "line"
    blank_lines: int = 0
    notes: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _lines: dict[str, list[int]] = field(default_factory=dict)
    _examples: dict[str, str] = field(default_factory=dict)
    _first: tuple[int, Malformed] | None = None

    @property
    def rows(self) -> int:
        """Rows turned away so far."""
        return sum(map(len, self._lines.values()))

    def malformed(self, line: int, fault: Malformed) -> None:
        """Notes a row that could not be understood."""
        if fault.value:
            self._examples.setdefault(fault.reason, fault.value)
        self._lines.setdefault(fault.reason, []).append(line)
        if self._first is None:
            self._first = line, fault

    def filled(self, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """Numbered lines without the blank ones, which are counted."""
        for number, line in lines:
            if line.strip():
                yield number, line
            else:
                self.blank_lines += 1

    def left_out(self, lines: list[int], reason: str) -> None:
        """Notes well-formed rows that are no requests to send."""
        if lines:
            self._lines.setdefault(reason, []).extend(lines)

    def settle(self) -> None:
        """Raises the first malformed row, where that is an error. Called after each block, before it is used."""
        if self.strict and self._first:
            line, fault = self._first
            value = f" ({fault.value})" if fault.value else ""
            place = f"{self.path}:{line}" if self.counted == "line" else f"{self.path}: {self.counted} {line}"
            remedy = "mend the row, or leave such rows out and count them with on_bad_row: skip"
            raise InputError(place, f"{fault.reason}{value}; {remedy}")

    def all(self) -> tuple[Rejected, ...]:
        """All reasons, in order of their first lines."""
        rejected = (
            Rejected(reason, tuple(sorted(lines)), self._examples.get(reason, ""), self.counted)
            for reason, lines in self._lines.items()
        )
        return tuple(sorted(rejected, key=lambda rejected: rejected.lines))


def shown(text: str) -> str:
    """``text`` in quotes as a message may hold it: printable, on one line, cut to 60 characters."""
    text = "".join(character if character.isprintable() else "?" for character in text[:61])
    return f"'{text[:60]}...'" if len(text) > 60 else f"'{text}'"


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a reader knows of a file before it reads the rows.

    unit : of the times; None where the file does not say, and the user must
    dates : times are a clock's, in a unit that nobody may override
    prefix_block_size : tokens that one prefix id stands for; None without ids
    turns_are_new : the prompt length of a session's turn is what is new in it; what was said before comes on top
    """

    unit: str | None = "s"
    dates: bool = False
    prefix_block_size: int | None = None
    turns_are_new: bool = False


@dataclass(frozen=True)
class Reader(ABC):
    """One format.

    signature : what it is recognised by
    remark : what a user should know of every file of this format
    counted : what its rows are numbered by: ``line``, or ``request`` of a document
    """

    name: str
    signature: str
    remark: str | None = field(default=None, kw_only=True)
    counted: ClassVar[str] = "line"

    @abstractmethod
    def find(self, content: Content, asked: bool = False) -> Found | None:
        """What a file of this format says of itself; None for any other.

        asked : the user named this format; a file that could as well be of another is then one of this
        """

    @abstractmethod
    def blocks(self, content: Content, found: Any, rejections: Rejections) -> Iterator[Block]:
        """The rows of the file, of which `find` said ``found``, block by block."""


def number(name: str, text: str) -> float:
    """The finite number written as ``text`` under ``name``; anything else is Malformed."""
    if not text:
        raise Malformed(f"{name} is missing", "")
    try:
        value = float(text)
    except ValueError:
        raise Malformed(f"{name} is not a number", text) from None
    if "_" in text or not text.isascii():  # float takes both; no trace means them
        raise Malformed(f"{name} is not a number", text)
    if not isfinite(value):
        raise Malformed(f"{name} is not finite", text)
    return int(text) if text.isdigit() and len(text) < 19 else value  # whole ticks stay exact


def numeric(name: str, value: object) -> float:
    """A finite JSON number; anything else is Malformed, text of digits and true as well."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"{name} is not a number", json.dumps(value, default=str))
    if not isfinite(value) if isinstance(value, float) else abs(value) > LATEST:
        raise Malformed(f"{name} is not finite" if isinstance(value, float) else f"{name} is too large", value)
    return value


Read = Callable[[str, Any], float]  # `number` for text, `numeric` for JSON


def tokens(name: str, value: Any, read: Read = numeric) -> int:
    """``value`` as a token count: whole, 0 to 10^9; anything else is Malformed."""
    count = value if type(value) is int else read(name, value)
    if count < 0:
        raise Malformed(f"{name} is negative", value)
    if count > LONGEST_TOKENS:
        raise Malformed(f"{name} is above {LONGEST_TOKENS:,}", value)
    if count != int(count):
        raise Malformed(f"{name} is not a whole number", value)
    return int(count)


def moment(name: str, value: Any, read: Read = numeric) -> float:
    """``value`` as a time from a start at 0; anything else is Malformed."""
    time = read(name, value)
    if time < 0:
        raise Malformed(f"{name} is negative", value)
    if time > LATEST:
        raise Malformed(f"{name} is too large", value)
    return time


def span(name: str, value: Any, read: Read = numeric) -> float:
    """A duration, at least 0; NaN where there is none; anything else is Malformed."""
    return nan if value is None else moment(name, value, read)


def field_of(row: dict[str, Any], name: str) -> Any:
    """``row[name]`` where dots lead into nested objects; what is missing is Malformed."""
    value: Any = row
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if value is None:
        raise Malformed(f"{name} is missing", "")
    return value


def prefix_ids(name: str, ids: Any, prompt: int, block_size: int, partial: bool = True) -> list[int]:
    """Ids of a prompt's blocks: whole numbers or hexadecimal text, one a block; none or null where none are known.

    partial : whether the last block needs an id where it is not full; else it may have one
    """
    if not ids and (ids is None or isinstance(ids, list)):
        return []
    kinds = set(map(type, ids)) if isinstance(ids, list) else set()
    if kinds == {str} and all(map(_HEXADECIMAL.fullmatch, ids)):
        ids = [int(id_, 16) for id_ in ids]
    elif kinds != {int}:
        raise Malformed(f"{name} is not a list of whole numbers", json.dumps(ids, default=str))
    blocks = -(-prompt // block_size)
    if len(ids) != blocks and (partial or len(ids) != prompt // block_size):
        expected = f"{len(ids)} for {prompt} tokens, expected {blocks}"
        raise Malformed(f"{name} are not one for each {block_size} tokens of the prompt", expected)
    # Hashes of 64 bits without a sign fit as well as those with one.
    return [id_ - 2**64 if 2**63 <= id_ < 2**64 else id_ for id_ in ids]


def tokens_in(row: dict[str, Any], name: str) -> int:
    """The token count under ``name``; see `field_of` and `tokens`."""
    return tokens(name, field_of(row, name))


def moment_in(row: dict[str, Any], name: str) -> float:
    """The time under ``name``; see `field_of` and `moment`."""
    return moment(name, field_of(row, name))

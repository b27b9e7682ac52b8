"""What passes between a reader and `trace_file`: blocks of well-formed rows, and the rows that were turned away.

Two kinds of row are turned away. A *malformed* row says something that cannot be meant (no number where one belongs, a
cut line, a negative count): by default the first one in a file is an error. An *unservable* row is well-formed, but no
server can answer it (no prompt, no answer) or the user left it out (over a limit): it is counted, never an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from servecast.errors import InputError
from servecast.workload.lengths import LONGEST_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

LATEST = 2**62  # in any unit: a time beyond it is taken for a mistake
LISTED = 10  # lines named for each reason when it is printed; all are kept


class Block(NamedTuple):
    """Some well-formed rows of a file, in its order.

    lines : (n,) int64, line numbers from 1
    times : (n,) int64 or float64 in the reader's unit
    prompt_tokens, output_tokens : (n,) int64 [tokens], 0 allowed
    prefix_ids : n tuples of hash ids, or None
    """

    lines: NDArray[np.int64]
    times: NDArray[np.number]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    prefix_ids: list[tuple[int, ...]] | None = None

    def take(self, rows: NDArray[np.intp]) -> Block:
        """The rows at these positions, in that order."""
        ids = self.prefix_ids
        return Block(
            self.lines[rows],
            self.times[rows],
            self.prompt_tokens[rows],
            self.output_tokens[rows],
            None if ids is None else [ids[row] for row in rows.tolist()],
        )


def joined(blocks: list[Block]) -> Block:
    """All rows as one block; ids are None where no row has any."""
    if not blocks:
        nothing = np.empty(0, np.int64)
        return Block(nothing, nothing, nothing, nothing)
    lines, times, prompts, outputs, ids = zip(*blocks, strict=True)
    known = any(any(some) for some in ids if some is not None)
    return Block(
        np.concatenate(lines),
        np.concatenate(times),
        np.concatenate(prompts),
        np.concatenate(outputs),
        list(chain.from_iterable(ids)) if known else None,
    )


class Malformed(Exception):  # noqa: N818 (a row is malformed; the error is the InputError that may come of it)
    """Raised by the parser of a row: ``reason`` groups rows, ``value`` is what stood there."""

    def __init__(self, reason: str, value: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.value = value


@dataclass(frozen=True)
class Rejected:
    """Rows turned away for one reason: their line numbers, and what stood in the first of them."""

    reason: str
    lines: tuple[int, ...]
    example: str = ""

    def __str__(self) -> str:
        named = ", ".join(map(str, self.lines[:LISTED]))
        more = f" and {len(self.lines) - LISTED:,} more" if len(self.lines) > LISTED else ""
        example = f", for example {self.example}" if self.example else ""
        plural = len(self.lines) > 1
        return f"{len(self.lines):,} row{'s' * plural}: {self.reason}{example} (line{'s' * plural} {named}{more})"


@dataclass
class Rejections:
    """Collects rows turned away; ``strict`` makes the first malformed row of the file at ``path`` an error."""

    path: str
    strict: bool
    blank_lines: int = 0
    _lines: dict[str, list[int]] = field(default_factory=dict)
    _examples: dict[str, str] = field(default_factory=dict)
    _first: tuple[int, Malformed] | None = None

    @property
    def rows(self) -> int:
        """Rows turned away so far."""
        return sum(map(len, self._lines.values()))

    def malformed(self, line: int, fault: Malformed) -> None:
        """Notes a row that could not be understood."""
        if str(fault.value):
            self._examples.setdefault(fault.reason, shown(str(fault.value)))
        self._lines.setdefault(fault.reason, []).append(line)
        if self._first is None:
            self._first = line, fault

    def unservable(self, lines: NDArray[np.int64], reason: str) -> None:
        """Notes well-formed rows that cannot be sent."""
        if len(lines):
            self._lines.setdefault(reason, []).extend(lines.tolist())

    def settle(self) -> None:
        """Raises the first malformed row, where that is an error. Called after each block, before it is used."""
        if self.strict and self._first:
            line, fault = self._first
            value = f" ({shown(str(fault.value))})" if str(fault.value) else ""
            raise InputError(
                f"{self.path}:{line}",
                f"{fault.reason}{value}; mend the row, or leave such rows out and count them with on_bad_row: skip",
            )

    def all(self) -> tuple[Rejected, ...]:
        """All reasons, in order of their first lines."""
        rejected = (
            Rejected(reason, tuple(sorted(lines)), self._examples.get(reason, ""))
            for reason, lines in self._lines.items()
        )
        return tuple(sorted(rejected, key=lambda rejected: rejected.lines))


def shown(text: str) -> str:
    """``text`` in quotes as a message may hold it: printable, on one line, cut to 60 characters."""
    text = "".join(character if character.isprintable() else "?" for character in text[:61])
    return f"'{text[:60]}...'" if len(text) > 60 else f"'{text}'"


class Reader(Protocol):
    """One format. ``signature`` says what it is recognised by; ``unit`` is that of its times."""

    @property
    def name(self) -> str: ...
    @property
    def signature(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def absolute(self) -> bool:
        """Whether times are dates, whose unit nobody may override."""

    @property
    def prefix_block_size(self) -> int | None:
        """Tokens that one prefix id stands for, or None where the format has none."""

    def fits(self, head: list[str]) -> bool:
        """Whether a file that starts with these lines (blank ones left out) is of this format."""

    def blocks(self, lines: Iterator[str], rejections: Rejections) -> Iterator[Block]:
        """The rows of the file, block by block; ``lines`` are all its lines, blank ones and header included."""


def whole(name: str, text: str) -> int:
    """The token count written as ``text`` under ``name``: 0 to 10^9; anything else is Malformed."""
    return count(name, number(name, text), text)


def count(name: str, value: float, written: object) -> int:
    """``value`` as a token count: whole, 0 to 10^9; anything else is Malformed."""
    if value < 0:
        raise Malformed(f"{name} is negative", written)
    if value > LONGEST_TOKENS:
        raise Malformed(f"{name} is above {LONGEST_TOKENS:,}", written)
    if value != int(value):
        raise Malformed(f"{name} is not a whole number", written)
    return int(value)


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
    if not np.isfinite(value):
        raise Malformed(f"{name} is not finite", text)
    return value


def moment(name: str, value: float, written: object) -> float:
    """``value`` as a time from a start at 0; anything else is Malformed."""
    if value < 0:
        raise Malformed(f"{name} is negative", written)
    if value > LATEST:
        raise Malformed(f"{name} is too large", written)
    return value

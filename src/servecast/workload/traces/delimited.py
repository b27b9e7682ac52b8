"""Comma-separated traces with a header: what the CSV formats share.

A block of lines is first taken whole, column by column; only if anything in it is unusual is it read again row by row,
which finds the reason. Both ways give the same rows. One line is one row: a quoted field holds no line break.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from servecast.workload.lengths import LONGEST_TOKENS
from servecast.workload.traces.rows import Block, Malformed, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from servecast.workload.traces.rows import Rejections


LINES = 16_384  # lines of a block


@dataclass(frozen=True)
class Delimited:
    """A CSV format: the names of its columns, and how its times are written.

    ``time_of(text)`` reads one time or raises Malformed; ``times_of(texts)`` reads a column of plain ones, or returns
    None if any of them needs a closer look. ``only`` refuses a header with further columns: another format has them.
    """

    name: str
    unit: str
    absolute: bool
    time: str
    prompt_tokens: str
    output_tokens: str
    time_of: Callable[[str], float]
    times_of: Callable[[tuple[str, ...]], NDArray[np.number] | None]
    only: bool = False

    prefix_block_size = None

    @property
    def signature(self) -> str:
        """The columns it is recognised by."""
        return f"CSV with the columns {','.join(self._needed)}"

    @property
    def _needed(self) -> tuple[str, str, str]:
        return self.time, self.prompt_tokens, self.output_tokens

    def fits(self, head: list[str]) -> bool:
        """Whether the first line is a header with these columns."""
        header = _fields(head[0])
        return sorted(header) == sorted(self._needed) if self.only else set(self._needed) <= set(header)

    def blocks(self, lines: Iterator[str], rejections: Rejections) -> Iterator[Block]:
        """The rows below the header."""
        before = 1  # lines ahead of the block
        for line in lines:
            if line.strip():
                break
            rejections.blank_lines += 1
            before += 1
        header = _fields(line)
        columns = tuple(map(header.index, self._needed))
        while block := list(islice(lines, LINES)):
            yield self._quick(block, before, len(header), columns) or self._careful(
                block, before, len(header), columns, rejections
            )
            before += len(block)

    def _quick(self, block: list[str], before: int, width: int, columns: tuple[int, ...]) -> Block | None:
        """The block column by column; None unless every row is as plain as can be."""
        rows = [line.split(",") for line in "".join(block).removesuffix("\n").split("\n")]
        if any(len(row) != width for row in rows):
            return None
        texts = list(zip(*rows, strict=True))
        times = self.times_of(texts[columns[0]])
        prompt, output = _counts(texts[columns[1]]), _counts(texts[columns[2]])
        if times is None or prompt is None or output is None:
            return None
        return Block(np.arange(before + 1, before + 1 + len(rows)), times, prompt, output)

    def _careful(
        self, block: list[str], before: int, width: int, columns: tuple[int, ...], rejections: Rejections
    ) -> Block:
        """The block row by row; rows that cannot be understood go to ``rejections``."""
        rows: list[tuple[int, float, int, int]] = []
        for number, line in enumerate(block, before + 1):
            if not line.strip():
                rejections.blank_lines += 1
                continue
            try:
                fields = _fields(line)
                if len(fields) != width:
                    raise Malformed(f"row without {width} fields", line.rstrip("\n"))
                time, prompt, output = (fields[column] for column in columns)
                rows.append(
                    (number, self.time_of(time), whole(self.prompt_tokens, prompt), whole(self.output_tokens, output))
                )
            except Malformed as fault:
                rejections.malformed(number, fault)
        lines, times, prompts, outputs = zip(*rows, strict=True) if rows else ((), (), (), ())
        return Block(
            np.array(lines, np.int64),
            np.array(times, np.int64 if self.absolute else np.float64),
            np.array(prompts, np.int64),
            np.array(outputs, np.int64),
        )


def _fields(line: str) -> list[str]:
    return [text.strip().strip('"').strip() for text in line.split(",")]


def _counts(texts: tuple[str, ...]) -> NDArray[np.int64] | None:
    joined = "".join(texts)
    if not (joined.isascii() and joined.isdigit()) or "" in texts or max(map(len, texts)) > 10:
        return None
    counts = np.array(list(map(int, texts)), np.int64)
    return counts if counts.max() <= LONGEST_TOKENS else None

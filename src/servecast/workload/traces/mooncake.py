"""Mooncake traces: JSON lines with ``timestamp`` [ms], ``input_length``, ``output_length`` and ``hash_ids``.

An id stands for a block of 512 prompt tokens together with all blocks before it; the last one may be partial, so a
prompt has ceil(input_length / 512) of them. Ids are kept as they are. No ids, or an empty list, means that the prefix
is not known. The same keys with ``chat_id`` (Bailian, in seconds) or with sessions and delays are other formats.
Source: github.com/kvcache-ai/Mooncake, FAST '25 release.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from servecast.workload.traces.rows import Block, Malformed, count, moment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.workload.traces.rows import Rejections

LINES = 16_384  # lines of a block
PREFIX_BLOCK_SIZE = 512
_NEEDED = {"timestamp", "input_length", "output_length"}
_OTHER = {"chat_id", "parent_chat_id", "session_id", "delay"}


@dataclass(frozen=True)
class Mooncake:
    """The reader; it has no parameters."""

    name = "mooncake"
    signature = "JSON lines with timestamp, input_length, output_length"
    unit = "ms"
    absolute = False
    prefix_block_size = PREFIX_BLOCK_SIZE

    def fits(self, head: list[str]) -> bool:
        """Whether the first line that is an object has the keys, and none of another format."""
        for line in head:
            try:
                keys = _row(line).keys()
            except Malformed:
                continue
            return keys >= _NEEDED and not keys & _OTHER
        return False

    def blocks(self, lines: Iterator[str], rejections: Rejections) -> Iterator[Block]:
        """The rows of the file."""
        before = 0
        while block := list(islice(lines, LINES)):
            rows = []
            for number, line in enumerate(block, before + 1):
                if not line.strip():
                    rejections.blank_lines += 1
                    continue
                try:
                    rows.append((number, *_request(_row(line))))
                except Malformed as fault:
                    rejections.malformed(number, fault)
            before += len(block)
            numbers, times, prompts, outputs, ids = zip(*rows, strict=True) if rows else ((), (), (), (), ())
            yield Block(
                np.array(numbers, np.int64),
                np.array(times, np.int64 if all(type(time) is int for time in times) else np.float64),
                np.array(prompts, np.int64),
                np.array(outputs, np.int64),
                list(ids),
            )


def _row(line: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise Malformed("row is not JSON", f"{error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, nesting without end
        raise Malformed("row is not JSON", str(error)) from None
    if not isinstance(row, dict):
        raise Malformed("row is not a JSON object", line.strip())
    return row


def _request(row: dict[str, object]) -> tuple[float, int, int, tuple[int, ...]]:
    time = moment("timestamp", _number(row, "timestamp"), row["timestamp"])
    prompt, output = (count(name, _number(row, name), row[name]) for name in ("input_length", "output_length"))
    ids = row.get("hash_ids")
    if not ids and (ids is None or isinstance(ids, list)):
        return time, prompt, output, ()
    if not isinstance(ids, list) or any(type(id_) is not int for id_ in ids):
        raise Malformed("hash_ids is not a list of whole numbers", json.dumps(ids))
    blocks = -(-prompt // PREFIX_BLOCK_SIZE)
    if len(ids) != blocks:
        raise Malformed(
            f"hash_ids are not one for each {PREFIX_BLOCK_SIZE} tokens of the prompt",
            f"{len(ids)} for {prompt} tokens, expected {blocks}",
        )
    return time, prompt, output, tuple(ids)


def _number(row: dict[str, object], name: str) -> float:
    value = row.get(name)
    if value is None:
        raise Malformed(f"{name} is missing", "")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"{name} is not a number", json.dumps(value))
    if isinstance(value, float) and not np.isfinite(value):
        raise Malformed(f"{name} is not finite", str(value))
    return value


MOONCAKE = Mooncake()

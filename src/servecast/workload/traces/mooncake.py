"""Mooncake traces, their session form, and timed traces: JSON lines with the same keys in different units.

Mooncake: ``timestamp`` [ms], ``input_length``, ``output_length`` and ``hash_ids``. An id stands for a block of 512
prompt tokens together with all blocks before it; the last one may be partial, so a prompt has ceil(input_length / 512)
of them. Ids are kept as they are; they may be hexadecimal text. Other block sizes are said by the user, by a
``block_size`` in the rows or in a line before them, or told by the number of ids, where one power of two fits all.
No ids, or an empty list, means that the prefix is not known. Dynamo's rows may say ``created_time`` [ms],
``input_tokens`` and ``output_tokens`` instead.

Session form (AIPerf): rows of one ``session_id`` are turns; a turn has a ``timestamp``, or a ``delay`` [ms] after the
turn before it was answered; with neither, a first turn is at 0 and a later one follows at once. Its ``input_length`` is
what is new: AIPerf sends what was said before along with it. Where the ids of later turns begin like those of the first
(Dynamo), lengths are whole prompts.

Timed traces have the same keys in seconds: vLLM's ``timed_trace`` with blocks of 16 tokens, GuideLLM's
``trace_synthetic`` without ids. So the unit is told by what only one of them has: blocks other than 16, sessions,
``created_time`` (ms); fractions of a second without any of these (s). Rows that have none are asked about.

The same keys with ``chat_id`` (Bailian) are another format. Sources: github.com/kvcache-ai/Mooncake, FAST '25 release;
AIPerf 0.13 dataset/loader/mooncake_trace.py and models.py; Dynamo 1.6 replay (MooncakeRow); GuideLLM 0.8
data/deserializers/trace_common.py; vLLM 0.32 ``vllm bench serve --dataset-name timed_trace``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

from servecast.workload.traces.json_lines import head_rows, json_blocks
from servecast.workload.traces.rows import (
    MOST_BLOCK_TOKENS,
    Found,
    LeftOut,
    Malformed,
    Reader,
    Row,
    moment_in,
    prefix_ids,
    tokens_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.workload.traces.rows import Block, Rejections
    from servecast.workload.traces.source import Content

PREFIX_BLOCK_SIZE, TIMED_TRACE_BLOCK_SIZE = 512, 16
_TIMES = "timestamp", "created_time"
_PROMPTS, _OUTPUTS = ("input_length", "input_tokens"), ("output_length", "output_tokens")
_MARKS = {"session_id", "delay", "created_time"}  # of rows in milliseconds
_OTHERS = {"chat_id", "parent_chat_id", "dependencies", "not_before_ms"}  # Bailian; Dynamo's graphs of agents
_SIZES = (PREFIX_BLOCK_SIZE, TIMED_TRACE_BLOCK_SIZE, *(2**power for power in range(3, 13)))
_EPOCH_S = (1e9, 1e10)  # 2001 to 2286 in seconds since 1970; in ms, weeks after the start of a trace


def _one_of(row: dict[str, Any], names: tuple[str, ...]) -> str:
    """The name by which the row says it."""
    said = [name for name in names if row.get(name) is not None]
    if len(said) > 1:
        raise Malformed(f"{' and '.join(said)} are both there", "")
    return said[0] if said else names[0]


def _row(block_size: int) -> Callable[[dict[str, Any]], Row]:
    begun: set[str] = set()  # sessions

    def row(values: dict[str, Any]) -> Row:
        if _is_header(values):
            raise LeftOut("header")
        if values.get("block_size", block_size) != block_size:
            raise Malformed(f"block_size is not {block_size} as in the rows before", values["block_size"])
        session = values.get("session_id")
        if session is not None and (isinstance(session, bool) or not isinstance(session, str | int)):
            raise Malformed("session_id is not a name", json.dumps(session))
        named = None if session is None else str(session)
        timed = any(values.get(name) is not None for name in _TIMES)
        delay = None
        if values.get("delay") is not None:
            delay = moment_in(values, "delay") / 1000
        elif not timed and named in begun:
            delay = 0.0
        if named is None and delay is not None:
            raise Malformed("delay without a session_id", delay)
        # A turn that waits for the one before has no time of its own: see `trace_file`, which gives it one.
        untimed = not timed and named is not None
        time = 0 if untimed else moment_in(values, _one_of(values, _TIMES))
        prompt, output = (tokens_in(values, _one_of(values, names)) for names in (_PROMPTS, _OUTPUTS))
        ids = prefix_ids("hash_ids", values.get("hash_ids"), prompt, block_size)
        if named is not None:
            begun.add(named)
        return Row(time, prompt, output, ids, named, delay=nan if delay is None else delay)

    return row


def _is_header(row: dict[str, Any]) -> bool:
    return "block_size" in row and not row.keys() & {*_TIMES, *_PROMPTS, *_OUTPUTS, "delay"}


def _fits(row: dict[str, Any]) -> bool:
    sides = all(row.keys() & set(names) for names in (_PROMPTS, _OUTPUTS))
    own = {"input_length", "output_length"} <= row.keys() or row.keys() & {"created_time", "hash_ids"}
    timed = row.keys() & {*_TIMES, "delay", "session_id"}
    return bool(sides and own and timed) and not row.keys() & _OTHERS


def _block_size(rows: list[dict[str, Any]]) -> int | None:
    """Tokens of an id: as a row says, else as the number of ids tells; None where no row has any."""
    for row in rows:
        said = row.get("block_size")
        if isinstance(said, int) and 0 < said <= MOST_BLOCK_TOKENS:
            return said
    pairs = []
    for row in rows:
        ids, prompt = row.get("hash_ids"), next((row[name] for name in _PROMPTS if name in row), None)
        if isinstance(ids, list) and ids and type(prompt) is int:
            pairs.append((prompt, len(ids)))
    fits = {size: sum(count == -(-prompt // size) for prompt, count in pairs) for size in _SIZES}
    if not pairs:
        return None
    usual = max(_SIZES[:2], key=fits.__getitem__)  # of equals the first: Mooncake's
    whole = [size for size in _SIZES if fits[size] == len(pairs)]
    return int(usual if fits[usual] or len(whole) != 1 else whole[0])


@dataclass(frozen=True, kw_only=True)
class _Keys(Found):
    """fractions : only fractions in the times say their unit."""

    fractions: bool = False


@dataclass(frozen=True)
class _Timed(Reader):
    """Mooncake's keys, in milliseconds or in seconds."""

    seconds: bool

    def find(self, content: Content, asked: bool = False) -> _Keys | None:
        rows = head_rows(content)
        first = next((row for row in rows if not _is_header(row)), None)
        if not isinstance(content.first, dict) or first is None or not _fits(first):
            return None
        size = content.block_size or _block_size(rows)
        sessions = any("session_id" in row for row in rows)
        unit = _unit(rows, size)
        if not asked and self.seconds != (unit == "s" or (unit is None and size == TIMED_TRACE_BLOCK_SIZE)):
            return None
        if asked:
            unit = "s" if self.seconds else "ms"
        default = TIMED_TRACE_BLOCK_SIZE if self.seconds else PREFIX_BLOCK_SIZE
        guessed = self.seconds and not asked and size is None
        return _Keys(unit=unit, prefix_block_size=size or default, turns_are_new=sessions, fractions=guessed)

    def blocks(self, content: Content, found: _Keys, rejections: Rejections) -> Iterator[Block]:
        size = found.prefix_block_size
        assert size is not None, "every file has one"
        for block in json_blocks(content, _row(size), rejections):
            if block.prefix_ids is not None and size not in _SIZES[:2] and not rejections.notes:
                rejections.notes.append(f"a hash id stands for {size} tokens")
            yield block
        if found.fractions:
            rejections.notes.append("times have fractions and are read as seconds; time_unit: ms says otherwise")


def _unit(rows: list[dict[str, Any]], size: int | None) -> str | None:
    """ms or s, where the rows have what only one of the two has; else None."""
    times = [row[name] for row in rows for name in _TIMES if isinstance(row.get(name), int | float)]
    marked = any(row.keys() & _MARKS for row in rows)
    if not marked and size in (None, TIMED_TRACE_BLOCK_SIZE):
        return "s" if any(time % 1 > 0 for time in times) else None
    since_1970 = bool(times) and _EPOCH_S[0] <= times[0] < _EPOCH_S[1]
    return None if since_1970 else "ms"


_BOTH = "JSON lines with timestamp, input_length, output_length"
MOONCAKE = _Timed("mooncake", f"{_BOTH}, maybe hash_ids and session_id", False)
TIMED_TRACE = _Timed("timed_trace", f"{_BOTH}, maybe hash_ids, in seconds", True)

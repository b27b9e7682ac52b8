"""Mooncake traces, their session form, and vLLM's timed traces: JSON lines with the same keys in different units.

Mooncake: ``timestamp`` [ms], ``input_length``, ``output_length`` and ``hash_ids``. An id stands for a block of 512
prompt tokens together with all blocks before it; the last one may be partial, so a prompt has ceil(input_length / 512)
of them. Ids are kept as they are. No ids, or an empty list, means that the prefix is not known.

Session form (AIPerf): rows of one ``session_id`` are turns; a turn has a ``timestamp``, or a ``delay`` [ms] after the
turn before it was answered. vLLM's ``timed_trace`` has the same keys in seconds and blocks of 16 tokens: where ids are
there, their number tells the two apart; without ids a file is taken for Mooncake's, and says so.

The same keys with ``chat_id`` (Bailian) are another format. Sources: github.com/kvcache-ai/Mooncake, FAST '25 release;
AIPerf 0.13 mooncake_trace; vLLM 0.32 ``vllm bench serve --dataset-name timed_trace``.
"""

from __future__ import annotations

import json
from math import nan
from typing import TYPE_CHECKING, Any

from servecast.workload.traces.json_lines import JsonLines
from servecast.workload.traces.rows import Found, Malformed, Row, moment_in, tokens_in

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTHS = {"input_length", "output_length"}
PREFIX_BLOCK_SIZE, TIMED_TRACE_BLOCK_SIZE = 512, 16
_OTHER = {"chat_id", "parent_chat_id"}


def hashes(row: dict[str, Any], prompt: int, block_size: int) -> list[int]:
    """The ids of a row, one for each block of the prompt, the last maybe partial; anything else is Malformed."""
    ids = row.get("hash_ids")
    if not ids and (ids is None or isinstance(ids, list)):
        return []
    if not isinstance(ids, list) or any(type(id_) is not int for id_ in ids):
        raise Malformed("hash_ids is not a list of whole numbers", json.dumps(ids))
    blocks = -(-prompt // block_size)
    if len(ids) != blocks:
        raise Malformed(
            f"hash_ids are not one for each {block_size} tokens of the prompt",
            f"{len(ids)} for {prompt} tokens, expected {blocks}",
        )
    return ids


def _row(block_size: int) -> Callable[[dict[str, Any]], Row]:
    def row(values: dict[str, Any]) -> Row:
        delay = moment_in(values, "delay") if values.get("delay") is not None else None
        # A turn that waits for the one before has no time of its own: see `trace_file`, which gives it one.
        time = moment_in(values, "timestamp") if delay is None or values.get("timestamp") is not None else 0
        prompt, output = tokens_in(values, "input_length"), tokens_in(values, "output_length")
        ids = hashes(values, prompt, block_size)
        if delay is None and "session_id" not in values:
            return Row(time, prompt, output, ids)
        session = values.get("session_id")
        if session is None and delay is not None:
            raise Malformed("delay without a session_id", delay)
        if session is not None and (isinstance(session, bool) or not isinstance(session, str | int)):
            raise Malformed("session_id is not a name", json.dumps(session))
        named = None if session is None else str(session)
        return Row(time, prompt, output, ids, named, delay=nan if delay is None else delay / 1000)

    return row


def _keys(row: dict[str, Any]) -> bool:
    return row.keys() >= LENGTHS and bool(row.keys() & {"timestamp", "delay"}) and not row.keys() & _OTHER


def _in_blocks_of_16(rows: list[dict[str, Any]]) -> bool:
    """Whether the ids tell that this is vLLM's timed trace: the first row whose ids fit one size and not the other."""
    for row in rows:
        ids, prompt = row.get("hash_ids"), row.get("input_length")
        if isinstance(ids, list) and ids and type(prompt) is int:
            fits = [len(ids) == -(-prompt // size) for size in (PREFIX_BLOCK_SIZE, TIMED_TRACE_BLOCK_SIZE)]
            if fits[0] != fits[1]:
                return fits[1]
    return False


MOONCAKE = JsonLines(
    "mooncake",
    "JSON lines with timestamp, input_length, output_length",
    _keys,
    _row(PREFIX_BLOCK_SIZE),
    Found(unit="ms", prefix_block_size=PREFIX_BLOCK_SIZE),
    among=lambda rows: not _in_blocks_of_16(rows),
)
TIMED_TRACE = JsonLines(
    "timed_trace",
    "JSON lines with timestamp [s], input_length, output_length and hash_ids for each 16 tokens",
    lambda row: _keys(row) and "timestamp" in row and "session_id" not in row,
    _row(TIMED_TRACE_BLOCK_SIZE),
    Found(prefix_block_size=TIMED_TRACE_BLOCK_SIZE),
    among=_in_blocks_of_16,
)

"""Dynamo request trace, version 1: JSON lines of events, under ``event`` or bare; the ends of requests are read.

``request.request_received_ms`` [Unix ms] is the arrival; without it the end (``event_time_unix_ms``) less
``total_time_ms``. ``request.replay.input_length`` is the whole prompt, ``input_sequence_hashes`` stand for its blocks
of ``trace_block_size`` tokens together with all before them, ``request.output_tokens`` is the answer,
``agent_context.session_id`` the session. Events come in the order of their ends. Source: ai-dynamo 1.6,
dynamo/planner/offline/trace_data.py and the fixtures of dynamo/replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servecast.workload.traces.json_lines import JsonLines, head_rows, json_blocks
from servecast.workload.traces.rows import (
    MOST_BLOCK_TOKENS,
    Found,
    LeftOut,
    Malformed,
    Row,
    moment_in,
    prefix_ids,
    tokens_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.workload.traces.rows import Block, Rejections
    from servecast.workload.traces.source import Content

_SCHEMA = "dynamo.request.trace.v1"
_HASHES = "request.replay.input_sequence_hashes"


def _event(row: dict[str, Any]) -> dict[str, Any]:
    event = row.get("event", row)
    return event if isinstance(event, dict) else {}


def _is_end(row: dict[str, Any]) -> bool:
    event = _event(row)
    return event.get("schema") == _SCHEMA and event.get("event_type") == "request_end"


def _under(event: dict[str, Any], path: str) -> Any:
    value: Any = event
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _row(block_size: int | None, ended: list[int]) -> Callable[[dict[str, Any]], Row]:
    def row(values: dict[str, Any]) -> Row:
        if not _is_end(values):
            raise LeftOut("event of another kind")
        event = _event(values)
        if _under(event, "request.request_received_ms") is not None:
            time = moment_in(event, "request.request_received_ms")
        else:
            time = moment_in(event, "event_time_unix_ms")
            if _under(event, "request.total_time_ms") is None:
                ended.append(1)
            else:
                time = max(time - moment_in(event, "request.total_time_ms"), 0)
        prompt, output = tokens_in(event, "request.replay.input_length"), tokens_in(event, "request.output_tokens")
        hashes, size = _under(event, _HASHES), _under(event, "request.replay.trace_block_size")
        if hashes and block_size is None:
            raise Malformed("request.replay.trace_block_size is missing", "")
        if hashes and size is not None and size != block_size:
            raise Malformed(f"trace_block_size is not {block_size} as in the rows before", size)
        ids = prefix_ids(_HASHES, hashes, prompt, block_size, partial=False) if block_size else []
        session = _under(event, "agent_context.session_id")
        return Row(time, prompt, output, ids, session if isinstance(session, str) else None)

    return row


class _Dynamo(JsonLines):
    """The reader: rows say how many tokens a hash stands for, and some say only when they ended."""

    def find(self, content: Content, asked: bool = False) -> Found | None:
        ends = [row for row in head_rows(content) if _event(row).get("schema") == _SCHEMA]
        sizes = [content.block_size, *(_under(_event(row), "request.replay.trace_block_size") for row in ends)]
        size = next((size for size in sizes if type(size) is int and 0 < size <= MOST_BLOCK_TOKENS), None)
        return Found(unit="ms", dates=True, prefix_block_size=size) if ends else None

    def blocks(self, content: Content, found: Found, rejections: Rejections) -> Iterator[Block]:
        ended: list[int] = []
        yield from json_blocks(content, _row(found.prefix_block_size, ended), rejections)
        if ended:
            rejections.notes.append(f"{len(ended):,} requests have no time of arrival: that of their end is taken")


DYNAMO = _Dynamo(
    "dynamo", f"JSON lines of events with schema {_SCHEMA}", _is_end, _row(None, []), Found(unit="ms", dates=True)
)

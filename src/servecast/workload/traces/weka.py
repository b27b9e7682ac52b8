"""WEKA's traces of coding agents: JSON, a conversation an object with its ``requests``, or a request a line.

A request has ``t`` [s from the start of its conversation], ``in`` (the whole prompt, history included), ``out``,
``hash_ids`` and, where they were measured, ``ttft`` and ``api_time`` [s]. A conversation (``id``) is a session; those
of one file start together. An id stands for a block of ``block_size`` tokens, 64 where nothing says so, together with
all blocks before it; the last, partial one may have none. ``hash_id_scope: local`` keeps ids within a conversation.
The requests of a ``subagent`` are a session of their own; their times count from the conversation's start, or from
their spawn where the first is earlier than that. Sources: github.com/callanjfox/agentic-coding-analysis,
docs/TRACE_FORMAT.md; AIPerf 0.13 dataset/loader/weka_trace_models.py; GuideLLM 0.8 data/deserializers/trace_weka.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.workload.traces.documents import Documents, json_object
from servecast.workload.traces.rows import (
    MOST_BLOCK_TOKENS,
    Found,
    Malformed,
    Row,
    moment,
    moment_in,
    prefix_ids,
    span,
    tokens_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.workload.traces.rows import Block, Rejections
    from servecast.workload.traces.source import Content

_BLOCK_SIZE = 64
_NEEDED = {"t", "in", "out"}


class _Request(NamedTuple):
    """A request, the conversation it belongs to, when its times start [s], and whether ids are the conversation's."""

    values: Any
    session: str
    start_s: float
    local: bool


def _requests(document: dict[str, Any]) -> Iterator[_Request]:
    name = document.get("id")
    name = name if isinstance(name, str | int) and not isinstance(name, bool) else "?"
    if "requests" not in document:
        yield _Request(document, str(name), 0.0, False)
        return
    if not isinstance(document["requests"], list):
        raise Malformed("requests is not a list", "")
    local = document.get("hash_id_scope") == "local"
    for at, one in enumerate(document["requests"]):
        inner = one.get("requests") if isinstance(one, dict) and one.get("type") == "subagent" else None
        if inner is None:
            yield _Request(one, str(name), 0.0, local)
        elif isinstance(inner, list) and inner:
            spawned, first = moment_in(one, "t"), moment_in(json_object(inner[0]), "t")
            start_s = spawned if first < spawned else 0.0
            agent = f"{name}/{one.get('agent_id', at)}"
            yield from (_Request(request, agent, start_s, local) for request in inner)


def _fits(document: Any) -> bool:
    if not isinstance(document, dict):
        return False
    listed = document.get("requests")
    if isinstance(listed, list) and "id" in document:
        # A conversation may begin with a subagent.
        flat = (one for item in listed if isinstance(item, dict) for one in (item, *(item.get("requests") or [])))
        return any(isinstance(one, dict) and one.keys() >= _NEEDED for one in flat)
    return document.keys() >= {*_NEEDED, "hash_ids"}


@dataclass(frozen=True)
class _Weka(Documents):
    """The reader: how many tokens an id stands for is said by the conversations, or by the user."""

    def find(self, content: Content, asked: bool = False) -> Found | None:
        if content.first is None or not _fits(content.first):
            return None
        said = content.first.get("block_size")
        said = said if type(said) is int and 0 < said <= MOST_BLOCK_TOKENS else _BLOCK_SIZE
        return Found(prefix_block_size=content.block_size or said)

    def blocks(self, content: Content, found: Found, rejections: Rejections) -> Iterator[Block]:
        size = found.prefix_block_size
        assert size is not None, "every file has one"
        known: dict[tuple[str, int], int] = {}

        def row(request: _Request) -> Row:
            values = json_object(request.values)
            if values.get("block_size", size) != size:
                raise Malformed(f"block_size is not {size} as in the conversations before", values["block_size"])
            prompt = tokens_in(values, "in")
            ids = prefix_ids("hash_ids", values.get("hash_ids"), prompt, size, partial=False)
            if request.local:
                scope = request.session.split("/")[0]
                ids = [known.setdefault((scope, id_), len(known)) for id_ in ids]
            time = moment("t", request.start_s + moment_in(values, "t"))
            ttft, e2e = (span(name, values.get(name)) for name in ("ttft", "api_time"))
            return Row(time, prompt, tokens_in(values, "out"), ids, request.session, ttft_s=ttft, e2e_s=e2e)

        yield from self._parsed(content, row, rejections)


WEKA = _Weka(
    "weka",
    "JSON of conversations with requests[] of t, in, out and hash_ids, or such requests a line",
    _fits,
    lambda document: [("conversation", list(_requests(document)))],
    lambda request: request,
    merged=True,
)

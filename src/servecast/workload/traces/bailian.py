"""Bailian (Qwen): JSON lines with ``chat_id``, ``parent_chat_id`` (-1 for the first turn), ``timestamp`` [s], lengths.

``timestamp`` is the arrival from the start of the trace; ``input_length`` is the whole prompt, history included, and
``hash_ids`` stand for 16 tokens of it each. A session is the chat that a turn descends from, as far as it is in the
file. Source: github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servecast.workload.traces.json_lines import JsonLines, json_blocks
from servecast.workload.traces.rows import Found, Malformed, Row, field_of, moment_in, prefix_ids, tokens_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.workload.traces.rows import Block, Rejections
    from servecast.workload.traces.source import Content

PREFIX_BLOCK_SIZE = 16


def _rows() -> Callable[[dict[str, Any]], Row]:
    roots: dict[int, str] = {}

    def row(values: dict[str, Any]) -> Row:
        time = moment_in(values, "timestamp")
        prompt, output = tokens_in(values, "input_length"), tokens_in(values, "output_length")
        chat, parent = (field_of(values, name) for name in ("chat_id", "parent_chat_id"))
        if type(chat) is not int or type(parent) is not int:
            raise Malformed("chat_id and parent_chat_id are not whole numbers", f"{chat}, {parent}")
        ids = prefix_ids("hash_ids", values.get("hash_ids"), prompt, PREFIX_BLOCK_SIZE)
        root = roots.setdefault(chat, str(chat) if parent == -1 else roots.get(parent, str(parent)))
        return Row(time, prompt, output, ids, root)

    return row


class _Bailian(JsonLines):
    """The reader: each file has chats of its own."""

    def blocks(self, content: Content, found: Found, rejections: Rejections) -> Iterator[Block]:
        return json_blocks(content, _rows(), rejections)


BAILIAN = _Bailian(
    "bailian",
    "JSON lines with chat_id, parent_chat_id, timestamp, input_length, output_length",
    lambda row: row.keys() >= {"chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"},
    _rows(),
    Found(prefix_block_size=PREFIX_BLOCK_SIZE),
)

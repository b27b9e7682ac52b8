"""Traces with a JSON object a line: what those formats share. Read line by line, so that a large file takes no room."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from servecast.workload.traces.rows import Block, Found, Malformed, Reader, parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.workload.traces.rows import Rejections, Row
    from servecast.workload.traces.source import Content

LINES = 16_384  # lines of a block


@dataclass(frozen=True)
class JsonLines(Reader):
    """A format of JSON lines.

    fitting : whether an object of the file belongs to the format, told by the first one
    row : the row in an object; raises Malformed, or LeftOut for a line that is no request to send
    among : whether the first 50 lines are of this format rather than of another with the same keys
    """

    fitting: Callable[[dict[str, Any]], bool]
    row: Callable[[dict[str, Any]], Row]
    found: Found
    among: Callable[[list[dict[str, Any]]], bool] = lambda rows: True

    def find(self, content: Content, asked: bool = False) -> Found | None:
        first = content.first
        fits = isinstance(first, dict) and self.fitting(first) and (asked or self.among(head_rows(content)))
        return self.found if fits else None

    def blocks(self, content: Content, found: Found, rejections: Rejections) -> Iterator[Block]:
        return json_blocks(content, self.row, rejections)


def json_blocks(content: Content, row: Callable[[dict[str, Any]], Row], rejections: Rejections) -> Iterator[Block]:
    """What ``row`` finds in the objects of the file."""
    lines = rejections.filled(enumerate(content.lines(), 1))
    while block := list(islice(lines, LINES)):
        yield parsed(block, lambda text: row(_object_in(text)), rejections)


def head_rows(content: Content) -> list[dict[str, Any]]:
    """The objects among the first lines."""
    rows = []
    for line in content.head:
        try:
            rows.append(_object_in(line))
        except Malformed:
            continue
    return rows


def _object_in(line: str) -> dict[str, Any]:
    """The JSON object that is the line; anything else is Malformed."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise Malformed("row is not JSON", f"{error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, nesting without end
        raise Malformed("row is not JSON", str(error)) from None
    if not isinstance(row, dict):
        raise Malformed("row is not a JSON object", line.strip())
    return row

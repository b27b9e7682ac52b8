"""Dynamo request trace, version 1: JSON lines of events; the ends of requests are read.

``request.request_received_ms`` (else ``event_time_unix_ms``) [Unix ms], ``request.replay.input_length``,
``request.output_tokens``. Events come in the order of their ends. Source: ai-dynamo/dynamo.
"""

from typing import Any

from servecast.workload.traces.json_lines import JsonLines
from servecast.workload.traces.rows import Found, LeftOut, Row, moment_in, tokens_in

_SCHEMA = "dynamo.request.trace.v1"


def _is_dynamo(row: dict[str, Any]) -> bool:
    event = row.get("event")
    return isinstance(event, dict) and event.get("schema") == _SCHEMA


def _row(row: dict[str, Any]) -> Row:
    if not _is_dynamo(row) or row["event"].get("event_type") != "request_end":
        raise LeftOut("event of another kind")
    event = row["event"]
    request = event.get("request")
    received = isinstance(request, dict) and request.get("request_received_ms") is not None
    time = moment_in(event, "request.request_received_ms" if received else "event_time_unix_ms")
    return Row(time, tokens_in(event, "request.replay.input_length"), tokens_in(event, "request.output_tokens"))


DYNAMO = JsonLines("dynamo", f"JSON lines with event.schema {_SCHEMA}", _is_dynamo, _row, Found(unit="ms", dates=True))

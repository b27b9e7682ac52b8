"""AIPerf's ``profile_export.jsonl``: a line a request, with times in ns since 1970 and metrics that carry their unit.

A request arrives when it was sent (``request_start_ns``). Only the phase ``profiling`` is read; warm-up lines are
counted as left out, cancelled and failed ones as failed. ``input_sequence_length`` is of all that was sent, a turn's
history included; ``output_sequence_length`` is what came. ``inter_chunk_latency`` is the list of gaps. Source: AIPerf
0.13.
"""

from math import nan
from typing import Any

from servecast.workload.traces.json_lines import JsonLines
from servecast.workload.traces.rows import Found, LeftOut, Malformed, Row, field_of, moment_in, span, tokens

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


def _metric(row: dict[str, Any], name: str) -> tuple[Any, float]:
    """The value of a metric, and what turns its unit into seconds (1 for tokens)."""
    metric = row["metrics"].get(name)
    if metric is None:
        return None, nan
    value, unit = field_of(metric if isinstance(metric, dict) else {}, "value"), field_of(metric, "unit")
    if not isinstance(unit, str) or (unit not in _SECONDS and unit != "tokens"):
        raise Malformed(f"{name} has a unit that is not known", unit)
    return value, _SECONDS.get(unit, 1.0)


def _tokens(row: dict[str, Any], name: str) -> int:
    value, _ = _metric(row, name)
    if value is None:
        raise Malformed(f"{name} is missing", "")
    return tokens(name, value)


def _span(row: dict[str, Any], name: str) -> float:
    value, factor = _metric(row, name)
    return span(name, value) * factor


def _row(row: dict[str, Any]) -> Row:
    if not _fits(row):
        raise LeftOut("record of another kind")
    metadata = row["metadata"]
    if metadata.get("benchmark_phase", "profiling") != "profiling":
        raise LeftOut(f"phase {metadata['benchmark_phase']}")
    time = moment_in(metadata, "request_start_ns")
    session = metadata.get("conversation_id")
    session = session if isinstance(session, str) else None
    if row.get("error") is not None or metadata.get("was_cancelled"):
        return Row(time, 0, 0, session=session, failed=True)
    gaps, factor = _metric(row, "inter_chunk_latency")
    if gaps is not None and not isinstance(gaps, list):
        raise Malformed("inter_chunk_latency is not a list", gaps)
    return Row(
        time,
        _tokens(row, "input_sequence_length"),
        _tokens(row, "output_sequence_length"),
        session=session,
        ttft_s=_span(row, "time_to_first_token"),
        e2e_s=_span(row, "request_latency"),
        itl_s=tuple(span("inter_chunk_latency", gap) * factor for gap in gaps or ()),
    )


def _fits(row: dict[str, Any]) -> bool:
    metadata = row.get("metadata")
    return isinstance(metadata, dict) and isinstance(row.get("metrics"), dict) and "request_start_ns" in metadata


AIPERF = JsonLines(
    "aiperf", "JSON lines with metadata and metrics (profile_export.jsonl)", _fits, _row, Found(unit="ns", dates=True)
)

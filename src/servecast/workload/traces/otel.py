"""OpenTelemetry spans ``llm_request`` that vLLM exports: OTLP JSON, one document or one a line, all of one run.

``startTimeUnixNano`` [ns, text] is the arrival; lengths and latencies [s] in attributes ``gen_ai.usage.*`` and
``gen_ai.latency.*``. Spans of other names are left out and counted. Source: vLLM 0.32 vllm/tracing.py.
"""

from typing import Any

from servecast.workload.traces.documents import Documents
from servecast.workload.traces.rows import Found, LeftOut, Malformed, Row, moment, number, span, tokens

_SPAN = "llm_request"
_VALUES = ("intValue", "doubleValue", "stringValue")


def _attributes(span_: dict[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for attribute in span_.get("attributes") or ():
        value = attribute.get("value") if isinstance(attribute, dict) else None
        if isinstance(value, dict):
            named[str(attribute.get("key"))] = next((value[kind] for kind in _VALUES if kind in value), None)
    return named


def _row(span_: Any) -> Row:
    if not isinstance(span_, dict) or span_.get("name") != _SPAN:
        raise LeftOut("span of another kind")
    start = str(span_.get("startTimeUnixNano") or "")
    time = moment("startTimeUnixNano", start, number)
    named = _attributes(span_)

    def text(name: str) -> str:
        value = named.get(name)
        return "" if value is None else str(value)

    prompt, output = (
        tokens(name, text(name), number) for name in ("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens")
    )
    ttft, e2e = (
        span(name, text(name) or None, number) for name in ("gen_ai.latency.time_to_first_token", "gen_ai.latency.e2e")
    )
    return Row(time, prompt, output, ttft_s=ttft, e2e_s=e2e)


def _under(parent: Any, name: str) -> list[Any]:
    children = parent.get(name) if isinstance(parent, dict) else None
    if children is None:
        return []
    if not isinstance(children, list):
        raise Malformed(f"{name} is not a list", "")
    return children


def _runs(document: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    spans = [
        one
        for resource in _under(document, "resourceSpans")
        for scope in _under(resource, "scopeSpans")
        for one in _under(scope, "spans")
    ]
    return [("spans", spans)]


OTEL = Documents(
    "otel",
    "JSON with resourceSpans (OTLP), spans named llm_request",
    lambda document: isinstance(document, dict) and "resourceSpans" in document,
    _runs,
    _row,
    Found(unit="ns", dates=True),
    merged=True,
)

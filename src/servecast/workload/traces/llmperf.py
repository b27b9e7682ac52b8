"""llmperf's ``*_individual_responses.json``: a list of requests with latencies [s] and lengths, and no arrivals.

Its inter-token latency holds the TTFT and is not read. Source: ray-project/llmperf (unmaintained since 2024-12).
"""

from typing import Any

from servecast.workload.traces.documents import Documents, json_object
from servecast.workload.traces.rows import Row, span, tokens_in


def _row(request: Any) -> Row:
    request = json_object(request)
    prompt, output = tokens_in(request, "number_input_tokens"), tokens_in(request, "number_output_tokens")
    if request.get("error_code") is not None:
        return Row(None, prompt, output, failed=True)
    ttft, e2e = (span(name, request.get(name)) for name in ("ttft_s", "end_to_end_latency_s"))
    return Row(None, prompt, output, ttft_s=ttft, e2e_s=e2e)


def _fits(document: Any) -> bool:
    some = isinstance(document, list) and document and isinstance(document[0], dict)
    return bool(some) and document[0].keys() >= {"ttft_s", "end_to_end_latency_s", "number_input_tokens"}


LLMPERF = Documents(
    "llmperf",
    "JSON list of responses with ttft_s and end_to_end_latency_s",
    _fits,
    lambda document: [("responses", document)],
    _row,
)

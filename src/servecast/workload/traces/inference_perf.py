"""inference-perf's ``per_request_lifecycle_metrics.json``: a list of requests with times in seconds of one clock.

``output_token_times`` gives the first token and every gap. Source: kubernetes-sigs/inference-perf 0.7.
"""

from itertools import pairwise
from math import nan
from typing import Any

from servecast.workload.traces.documents import Documents, json_object
from servecast.workload.traces.rows import Malformed, Row, moment, moment_in, tokens_in

_PROMPT = "info.request_metrics.text.input_tokens"
_ANSWER = "info.response_metrics"


def _row(request: Any) -> Row:
    request = json_object(request)
    start = moment_in(request, "start_time")
    prompt = tokens_in(request, _PROMPT)
    if request.get("error") is not None:
        return Row(start, prompt, 0, failed=True)
    end = moment_in(request, "end_time")
    output = tokens_in(request, f"{_ANSWER}.output_tokens")
    times = request["info"]["response_metrics"].get("output_token_times") or []
    if not isinstance(times, list):
        raise Malformed("output_token_times is not a list", str(times))
    moments = [moment("output_token_times", time) for time in times]
    if any(a > b for a, b in pairwise([start, *moments, end])):
        raise Malformed("start_time, output_token_times and end_time decrease", "")
    gaps = tuple(b - a for a, b in pairwise(moments))
    first = moments[0] - start if moments else nan
    return Row(start, prompt, output, ttft_s=first, e2e_s=end - start, itl_s=gaps)


def _fits(document: Any) -> bool:
    if not isinstance(document, list) or not document or not isinstance(document[0], dict):
        return False
    info = document[0].get("info")
    return "start_time" in document[0] and isinstance(info, dict) and "request_metrics" in info


INFERENCE_PERF = Documents(
    "inference_perf",
    "JSON list of requests with start_time and info.request_metrics",
    _fits,
    lambda document: [("requests", document)],
    _row,
)

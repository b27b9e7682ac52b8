"""GuideLLM's ``benchmarks.json``: one run a benchmark, its requests listed as successful, errored and incomplete.

Times are Unix seconds under ``info.timings``. A request arrives when it was sent (``request_start``):
``targeted_start`` means something else for each strategy. Tokens are those of the whole prompt and of what came. TTFT
is to ``first_token_iteration``, E2E to ``request_end``. Source: GuideLLM 0.8.
"""

from typing import Any

from servecast.workload.traces.documents import Documents, json_object, listed
from servecast.workload.traces.rows import Found, Malformed, Row, moment_in, tokens_in

_TIMES = "info.timings"


def _row(ended: tuple[Any, bool]) -> Row:
    request, well = json_object(ended[0]), ended[1]
    if not well:
        return Row(moment_in(request, f"{_TIMES}.request_start"), 0, 0, failed=True)
    start, first, end = (
        moment_in(request, f"{_TIMES}.{name}") for name in ("request_start", "first_token_iteration", "request_end")
    )
    if not start <= first <= end:
        raise Malformed("request_start, first_token_iteration and request_end decrease", f"{start}, {first}, {end}")
    prompt = tokens_in(request, "input_metrics.total_tokens")
    output = tokens_in(request, "output_metrics.total_tokens")
    return Row(start, prompt, output, ttft_s=first - start, e2e_s=end - start)


def _run(benchmark: Any, at: int) -> tuple[str, list[Any]]:
    requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
    if not isinstance(requests, dict):
        raise Malformed(f"benchmarks[{at}].requests is missing: the report was written without its requests", "")
    failed = [one for kind in ("errored", "incomplete") if requests.get(kind) for one in listed(requests, kind)]
    ended = [*((one, True) for one in listed(requests, "successful")), *((one, False) for one in failed)]
    config = benchmark.get("config")
    strategy = config.get("strategy") if isinstance(config, dict) else None
    label = (
        " ".join(str(strategy.get(key, "")) for key in ("type_", "kind", "rate")) if isinstance(strategy, dict) else ""
    )
    return " ".join(label.split()) or "benchmark", ended


def _fits(document: Any) -> bool:
    if not isinstance(document, dict) or not isinstance(document.get("benchmarks"), list):
        return False
    metadata = document.get("metadata")
    named = isinstance(metadata, dict) and "guidellm_version" in metadata
    # Before 0.6 nothing names the tool; its benchmarks have requests by status.
    return named or any(
        isinstance(one, dict) and isinstance(one.get("requests"), dict) and "successful" in one["requests"]
        for one in document["benchmarks"]
    )


GUIDELLM = Documents(
    "guidellm",
    "JSON with benchmarks[].requests (GuideLLM)",
    _fits,
    lambda document: [_run(benchmark, at) for at, benchmark in enumerate(document["benchmarks"])],
    _row,
    Found(dates=True),
)

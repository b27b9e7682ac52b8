"""Detailed results of ``vllm bench serve --save-detailed`` and of SGLang's ``bench_serving --output-details``.

Lists with an entry a request: ``input_lens``, ``output_lens`` [tokens], ``ttfts``, ``itls`` [s], ``errors`` ("" is
well). ``input_lens`` are whole prompts, ``output_lens`` the tokens that came, not those allowed. vLLM adds
``start_times`` [s of a clock with any origin] and ``latencies`` [s] in newer versions; SGLang has no start times, and
neither have older files: they hold lengths and latencies, no arrivals. Where there is no latency it is TTFT + ITLs.
``--append-result`` and SGLang put one document after another; a literal NaN or Infinity is read, where it is not
needed. Source: vLLM 0.32 vllm/benchmarks/serve.py; SGLang bench_serving.py.
"""

from itertools import repeat
from math import fsum, nan
from typing import Any

from servecast.workload.traces.documents import Documents, listed
from servecast.workload.traces.rows import Malformed, Row, moment, span, tokens

LISTS = {"input_lens", "output_lens", "ttfts", "itls"}


def _runs(document: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    n = len(listed(document, "input_lens"))
    needed = [listed(document, name, n) for name in ("input_lens", "output_lens", "ttfts", "itls")]
    others = ("start_times", "latencies", "errors")
    more = [listed(document, name, n) if document.get(name) else [None] * n for name in others]
    label = f"{document.get('date', '')} rate {document.get('request_rate')}".strip()
    timed = repeat(bool(document.get("start_times")), n)
    return [(label, list(zip(timed, *needed, *more, strict=True)))]


def _row(request: tuple[Any, ...]) -> Row:
    timed, prompt, output, ttft, gaps, start, latency, error = request
    prompt, output = tokens("input_lens", prompt), tokens("output_lens", output)
    time = moment("start_times", start) if timed else None
    if error or not output:
        return Row(time, prompt, output, failed=True)
    if not isinstance(gaps, list):
        raise Malformed("itls is not a list of lists", str(gaps))
    gaps = tuple(span("itls", gap) for gap in gaps)
    ttft = span("ttfts", ttft)
    e2e = fsum((ttft, *gaps)) if latency is None else span("latencies", latency)
    return Row(time, prompt, output, ttft_s=ttft, e2e_s=e2e or nan, itl_s=gaps)


def _detailed(document: Any) -> bool:
    return isinstance(document, dict) and document.keys() >= LISTS


def _of_sglang(document: Any) -> bool:
    return "mean_e2e_latency_ms" in document or document.get("backend") == "sglang"


VLLM = Documents(
    "vllm",
    "JSON with input_lens, output_lens, ttfts, itls (vllm bench serve --save-detailed)",
    lambda document: _detailed(document) and not _of_sglang(document),
    _runs,
    _row,
)
SGLANG = Documents(
    "sglang",
    "JSON lines with input_lens, output_lens, ttfts, itls and mean_e2e_latency_ms (bench_serving --output-details)",
    lambda document: _detailed(document) and _of_sglang(document),
    _runs,
    _row,
)

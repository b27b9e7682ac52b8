"""Detailed results of ``vllm bench serve --save-detailed`` and of SGLang's ``bench_serving --output-details``.

Lists with an entry a request: ``input_lens``, ``output_lens`` [tokens], ``ttfts``, ``itls`` [s], ``errors`` ("" is
well). vLLM adds ``start_times`` [s of a clock with any origin] and ``latencies`` [s] in newer versions; SGLang has no
start times, and neither have older files: they hold lengths and latencies, no arrivals. Where there is no latency it
is TTFT + ITLs. ``--append-result`` and SGLang put one document after another; a literal NaN or Infinity is read, where
it is not needed. Source: vLLM 0.32 vllm/benchmarks/serve.py; SGLang bench_serving.py.
"""

from __future__ import annotations

from math import fsum, nan
from typing import Any

from servecast.workload.traces.documents import Documents, RecordedRun, listed
from servecast.workload.traces.rows import Malformed, Row, count, moment, numeric, span

LISTS = {"input_lens", "output_lens", "ttfts", "itls"}


def _runs(document: dict[str, Any]) -> list[RecordedRun]:
    prompts = listed(document, "input_lens")
    n = len(prompts)
    outputs, ttfts, itls = (listed(document, name, n) for name in ("output_lens", "ttfts", "itls"))
    starts, latencies, errors = (
        listed(document, name, n) if document.get(name) else None for name in ("start_times", "latencies", "errors")
    )

    def row(at: int, number: int) -> Row:
        prompt, output = (
            count(name, numeric(name, values[at]), values[at])
            for name, values in (("input_lens", prompts), ("output_lens", outputs))
        )
        time = None if starts is None else moment("start_times", numeric("start_times", starts[at]), starts[at])
        if (errors is not None and errors[at]) or not output:
            return Row(number, time, prompt, output, failed=True)
        if not isinstance(itls[at], list):
            raise Malformed("itls is not a list of lists", str(itls[at]))
        gaps = tuple(span("itls", gap) for gap in itls[at])
        ttft = span("ttfts", ttfts[at])
        e2e = fsum((ttft, *gaps)) if latencies is None else span("latencies", latencies[at])
        return Row(number, time, prompt, output, ttft_s=ttft, e2e_s=e2e if e2e else nan, itl_s=gaps)

    rate = document.get("request_rate")
    label = f"{document.get('date', '')} rate {rate}".strip()
    return [RecordedRun(label, n, row)]


def _detailed(document: Any) -> bool:
    return isinstance(document, dict) and document.keys() >= LISTS


def _of_sglang(document: Any) -> bool:
    return "mean_e2e_latency_ms" in document or document.get("backend") == "sglang"


VLLM = Documents(
    "vllm",
    "JSON with input_lens, output_lens, ttfts, itls (vllm bench serve --save-detailed)",
    lambda document: _detailed(document) and not _of_sglang(document),
    _runs,
)
SGLANG = Documents(
    "sglang",
    "JSON lines with input_lens, output_lens, ttfts, itls and mean_e2e_latency_ms (bench_serving --output-details)",
    lambda document: _detailed(document) and _of_sglang(document),
    _runs,
)

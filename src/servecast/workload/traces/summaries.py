"""Files that sum a benchmark up, or describe a generator: no row a request, so no trace. Each is told what it is.

vLLM's result without ``--save-detailed`` and SGLang's without ``--output-details``, AIPerf's
``profile_export_aiperf.json`` and ``.csv``, GuideLLM's ``benchmarks.csv``, inference-perf's summary and stage files,
the text of vLLM's ``/metrics``, a chunk of ServeGen.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from servecast.workload.traces.source import Content

_WINDOW = re.compile(r"[\d.]+,[\d.eE+-]+,[^,]*,(?:Gamma|Weibull|),")


class _SummaryFormat(NamedTuple):
    """One kind of summary: how it is recognised, where its rows are, and what it is good for."""

    name: str
    remedy: str
    fits: Callable[[Content], bool]
    use: str = "comparing a forecast with its figures"


def recognised(content: Content) -> _SummaryFormat | None:
    """Which kind of summary the file is, if any."""
    return next((kind for kind in SUMMARIES if kind.fits(content)), None)


def refuse(content: Content, kind: _SummaryFormat) -> InputError:
    """Why a summary is no trace, what it is good for, and where the rows are."""
    return InputError(content.path, f"holds no requests, it is for {kind.use} ({kind.name}); {kind.remedy}")


def _object(*names: str, without: str = "") -> Callable[[Content], bool]:
    def fits(content: Content) -> bool:
        first = content.first
        return isinstance(first, dict) and first.keys() >= set(names) and without not in first

    return fits


def _line(start: str) -> Callable[[Content], bool]:
    return lambda content: bool(content.head) and content.head[0].startswith(start)


def _lengths_of_servegen(content: Content) -> bool:
    first: Any = content.first
    some = next(iter(first.values()), None) if isinstance(first, dict) else None
    return isinstance(some, dict) and some.keys() >= {"input_tokens", "output_tokens"}


_AIPERF = "the rows are in profile_export.jsonl beside it"
_SERVEGEN = "read the whole folder of chunks with servegen"
SUMMARIES = (
    _SummaryFormat(
        "SGLang summary",
        "run bench_serving with --output-details for the rows",
        _object("mean_e2e_latency_ms", without="input_lens"),
    ),
    _SummaryFormat(
        "vLLM summary",
        "run vllm bench serve with --save-result --save-detailed for the rows",
        _object("mean_ttft_ms", "duration", without="input_lens"),
    ),
    _SummaryFormat("AIPerf summary (JSON)", _AIPERF, _object("schema_version", "request_latency")),
    _SummaryFormat("AIPerf summary (CSV)", _AIPERF, _line("Metric,avg,")),
    _SummaryFormat(
        "GuideLLM summary (CSV)", "the rows are in benchmarks.json (--output kind=json)", _line("Run Info,")
    ),
    _SummaryFormat(
        "inference-perf summary",
        "the rows are in per_request_lifecycle_metrics.json (report.request_lifecycle.per_request: true)",
        _object("load_summary", "successes"),
    ),
    _SummaryFormat(
        "vLLM /metrics text",
        "it holds histograms only: record requests with vllm bench serve --save-detailed, or spans",
        lambda content: any(line.startswith("vllm:") for line in content.head),
    ),
    _SummaryFormat(
        "ServeGen rates",
        _SERVEGEN,
        lambda content: bool(content.head) and _WINDOW.match(content.head[0]) is not None,
        "generating requests",
    ),
    _SummaryFormat("ServeGen lengths", _SERVEGEN, _lengths_of_servegen, "generating requests"),
)

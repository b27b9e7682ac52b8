"""Files that sum a benchmark up: no row a request, so no trace, but figures to hold a forecast against.

vLLM's result without ``--save-detailed`` and SGLang's without ``--output-details``, AIPerf's
``profile_export_aiperf.json`` and ``.csv`` (several tables with blank lines between), GuideLLM's ``benchmarks.csv``
(three rows of header), inference-perf's summary and stage files, the text of vLLM's ``/metrics``. Figures keep the
tool's own names and units; a NaN is left out.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from servecast.errors import InputError
from servecast.workload.traces.source import opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.workload.traces.source import Content

_WINDOW = re.compile(r"[\d.]+,[\d.eE+-]+,[^,]*,(?:Gamma|Weibull|),")
_SAMPLE = re.compile(r"(vllm:[\w:]+)(?:\{(.*)\})? (\S+)(?: \d+)?")


@dataclass(frozen=True)
class Summary:
    """What such a file says. ``figures``: by name, as the tool names them, with the unit where the file gives one."""

    path: str
    kind: str
    figures: dict[str, float]


@dataclass(frozen=True)
class SummaryFormat:
    """One kind of summary: how it is recognised, what it lacks, and its figures."""

    name: str
    remedy: str
    fits: Callable[[Content], bool]
    figures: Callable[[Content], Iterator[tuple[str, float]]]
    use: str = "comparing a forecast with its figures"


def summary(path: str) -> Summary | None:
    """The figures of a summary; None if the file is none."""
    with opened(path) as content:
        found = recognised(content)
        return None if found is None else Summary(path, found.name, dict(found.figures(content)))


def recognised(content: Content) -> SummaryFormat | None:
    """Which kind of summary the file is, if any."""
    return next((kind for kind in SUMMARIES if kind.fits(content)), None)


def refuse(content: Content, kind: SummaryFormat) -> InputError:
    """Why a summary is no trace, what it is good for, and where the rows are."""
    return InputError(
        content.path,
        f"holds no requests, it is for {kind.use} ({kind.name}); {kind.remedy}",
    )


def _object(content: Content, *names: str) -> bool:
    return isinstance(content.first, dict) and content.first.keys() >= set(names)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return float(value)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in nested objects, by their dotted names."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif (found := _number(value)) is not None:
        yield name, found


def _first(content: Content) -> Iterator[tuple[str, float]]:
    yield from _flat(content.first)


def _aiperf_json(content: Content) -> Iterator[tuple[str, float]]:
    for tag, metric in content.first.items():
        if isinstance(metric, dict) and "unit" in metric:
            for statistic, value in metric.items():
                if (found := _number(value)) is not None:
                    yield f"{tag}.{statistic} [{metric['unit']}]", found


def _aiperf_csv(content: Content) -> Iterator[tuple[str, float]]:
    heads: list[str] = []
    for row in csv.reader(content.lines()):
        if not any(row):
            heads = []
        elif not heads:
            heads = row if row[0] == "Metric" else ["another table"]
        elif heads[0] == "Metric":
            for head, text in zip(heads[1:], row[1:], strict=False):
                if (found := _text(text)) is not None:
                    yield (row[0] if head == "Value" else f"{row[0]}.{head}"), found


def _text(text: str) -> float | None:
    try:
        return _number(float(text))
    except ValueError:
        return None


def _guidellm_csv(content: Content) -> Iterator[tuple[str, float]]:
    rows = list(csv.reader(content.lines()))
    heads = [" ".join(filter(None, parts)) for parts in zip(*rows[:3], strict=False)]
    for at, row in enumerate(rows[3:], 1):
        for head, text in zip(heads, row, strict=False):
            if (found := _text(text)) is not None:
                yield (head if len(rows) == 4 else f"{at}: {head}"), found


def _prometheus(content: Content) -> Iterator[tuple[str, float]]:
    for line in content.lines():
        match = _SAMPLE.fullmatch(line.strip())
        if match and (found := _text(match[3])) is not None:
            label = re.search(r'\ble="([^"]*)"', match[2] or "")
            yield (f"{match[1]}.le.{label[1]}" if label else match[1]), found


SUMMARIES = (
    SummaryFormat(
        "SGLang summary",
        "run bench_serving with --output-details for the rows",
        lambda content: _object(content, "mean_e2e_latency_ms") and "input_lens" not in content.first,
        _first,
    ),
    SummaryFormat(
        "vLLM summary",
        "run vllm bench serve with --save-result --save-detailed for the rows",
        lambda content: _object(content, "mean_ttft_ms", "duration") and "input_lens" not in content.first,
        _first,
    ),
    SummaryFormat(
        "AIPerf summary (JSON)",
        "the rows are in profile_export.jsonl beside it",
        lambda content: _object(content, "schema_version", "request_latency"),
        _aiperf_json,
    ),
    SummaryFormat(
        "AIPerf summary (CSV)",
        "the rows are in profile_export.jsonl beside it",
        lambda content: bool(content.head) and content.head[0].startswith("Metric,avg,"),
        _aiperf_csv,
    ),
    SummaryFormat(
        "GuideLLM summary (CSV)",
        "the rows are in benchmarks.json (--output kind=json)",
        lambda content: bool(content.head) and content.head[0].startswith("Run Info,"),
        _guidellm_csv,
    ),
    SummaryFormat(
        "inference-perf summary",
        "the rows are in per_request_lifecycle_metrics.json (report.request_lifecycle.per_request: true)",
        lambda content: _object(content, "load_summary", "successes"),
        _first,
    ),
    SummaryFormat(
        "vLLM /metrics text",
        "it holds histograms only: record requests with vllm bench serve --save-detailed, or spans",
        lambda content: any(line.startswith("vllm:") for line in content.head),
        _prometheus,
    ),
    SummaryFormat(
        "ServeGen rates",
        "read the whole folder of chunks with servegen",
        lambda content: bool(content.head) and _WINDOW.match(content.head[0]) is not None,
        lambda content: iter(()),
        use="generating requests",
    ),
    SummaryFormat(
        "ServeGen lengths",
        "read the whole folder of chunks with servegen",
        lambda content: _lengths_of_servegen(content.first),
        lambda content: iter(()),
        use="generating requests",
    ),
)


def _lengths_of_servegen(first: Any) -> bool:
    some = next(iter(first.values()), None) if isinstance(first, dict) else None
    return isinstance(some, dict) and some.keys() >= {"input_tokens", "output_tokens"}

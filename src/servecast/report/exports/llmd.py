"""A run as an llm-d benchmark report, version 0.2: the format that the benchmark tools of the field convert to.

``results.request_performance.aggregate`` holds requests, throughput and latency, each a mapping of units and statistics
(``p0p1`` is the 0.1 percentile). Latencies count from sending; time per output token is (E2E - TTFT) / (tokens - 1),
the normalised one E2E / tokens, both once a request; inter-token latency is pooled. Times are those of the
simulation's clock, as if it had started on 1970-01-01. Rates are over the whole run and have a mean alone. Source:
llm-d-benchmark, report 0.2.1.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from servecast.files import dumps, strict, write
from servecast.metrics import latencies, token_gaps
from servecast.requests import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from servecast.engine import Run

_TOOL = {"tool": "servecast", "tool_version": "servecast"}
PERCENTILES = {
    "p0p1": 0.1, "p1": 1, "p5": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99,
    "p99p9": 99.9,
}  # fmt: skip


def _llmd_report(
    run: Run,
    *,
    model: str,
    device: str,
    tensor_parallel: int = 1,
    rate_rps: float | None = None,
    concurrency: int | None = None,
    native: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """The report as a dictionary of plain types; ``native`` is what the engine was given (the scenario)."""
    settings = strict(dict(native or {}))
    rate = {} if rate_rps is None or not isfinite(rate_rps) else {"rate_qps": rate_rps}
    users = {} if concurrency is None else {"concurrency": concurrency}
    body: dict[str, Any] = {
        "scenario": {
            "stack": [_engine(settings, model, device, tensor_parallel)],
            "load": _load(run, settings, rate | users),
        },
        "results": {
            "request_performance": {"aggregate": _performance(run)},
            "observability": {"components": [{"component_label": "servecast-0", "aggregate": _observed(run)}]},
        },
    }
    head = {
        "version": "0.2.1",
        "run": {
            "uid": _digest(body),
            "eid": _digest(settings),
            "time": {"start": _date(0.0), "end": _date(run.end_s), "duration": f"PT{run.end_s:.6f}S"},
            "description": "simulated by servecast: a forecast, not a measurement",
            "keywords": ["simulation"],
        },
    }
    report: dict[str, Any] = strict(head | body)
    return report


def write_llmd(run: Run, path: Path | str, **options: Any) -> None:
    """Writes `_llmd_report` as YAML to ``path``. A place that cannot be written is an InputError."""
    write(path, yaml.safe_dump(_llmd_report(run, **options), sort_keys=False, allow_unicode=True))


def _digest(value: object) -> str:
    return hashlib.md5(dumps(value).encode(), usedforsecurity=False).hexdigest()


def _engine(settings: object, model: str, device: str, tensor_parallel: int) -> dict[str, Any]:
    """The engine that was simulated."""
    parallelism = {"dp": 1, "dp_local": 1, "workers": 1, "ep": 1, "pp": 1, "tp": tensor_parallel}
    return {
        "metadata": _metadata("servecast-0", settings, "simulated engine"),
        "standardized": {
            "kind": "inference_engine",
            **_TOOL,
            "role": "aggregate",
            "replicas": 1,
            "model": {"name": model},
            "accelerator": {"model": device, "count": tensor_parallel, "parallelism": parallelism},
        },
        "native": {"config": settings},
    }


def _load(run: Run, settings: object, rates: dict[str, float]) -> dict[str, Any]:
    """The requests that it was sent."""
    return {
        "metadata": _metadata("load", settings, "simulated client", labelled=False),
        "standardized": {
            **_TOOL,
            "stage": 0,
            "input_seq_len": _distribution(run.requests["prompt_tokens"]),
            "output_seq_len": _distribution(run.requests["output_tokens"]),
            **rates,
            "source": "sampled",
        },
        "native": {"config": settings},
    }


def _performance(run: Run) -> dict[str, Any]:
    """Requests, throughput and latency."""
    done = run.requests["status"] == Status.COMPLETED
    times = latencies(run.requests, run.respond)
    prompts, tokens = (run.requests[name][done] for name in ("prompt_tokens", "generated_tokens"))

    def rate(count: float, units: str) -> dict[str, Any]:
        return {"units": units, "mean": float(count) / run.end_s if run.end_s else None}

    return {
        "requests": {
            "total": len(done),
            "failures": int((~done).sum()),
            "input_length": _statistics(prompts, "count"),
            "output_length": _statistics(tokens, "count"),
        },
        "throughput": {
            "input_token_rate": rate(prompts.sum(), "tokens/s"),
            "output_token_rate": rate(tokens.sum(), "tokens/s"),
            "total_token_rate": rate(prompts.sum() + tokens.sum(), "tokens/s"),
            "request_rate": rate(done.sum(), "queries/s"),
        },
        "latency": {
            "time_to_first_token": _statistics(times["ttft"][done], "s"),
            "inter_token_latency": _gaps(run),
            "time_per_output_token": _statistics(times["tpot"][done], "s/token"),
            "normalized_time_per_output_token": _statistics(times["normalized_latency"][done], "s/token"),
            "request_latency": _statistics(times["e2e"][done], "s"),
        },
    }


def _observed(run: Run) -> dict[str, Any]:
    """What the engine held while it was busy."""
    decisions, seconds = run.decisions, run.decisions["seconds"]
    running = decisions["useful_decode_rows"] + decisions["prefill_rows"]
    return {
        "kv_cache_usage": _weighted(100 * decisions["kv_blocks"] / run.kv_blocks_total, seconds, "percent"),
        "running_requests": _weighted(running, seconds, "count"),
        "waiting_requests": _weighted(decisions["waiting"], seconds, "count"),
    }


def _metadata(label: str, settings: object, description: str, labelled: bool = True) -> dict[str, Any]:
    named = {"label": label} if labelled else {}
    return {"schema_version": "0.0.1", **named, "cfg_id": _digest([label, settings]), "description": description}


def _distribution(tokens: NDArray[Any]) -> dict[str, Any]:
    """How the report describes lengths: one value, or a spread around a mean."""
    if len(tokens) and np.ptp(tokens) == 0:
        return {"distribution": "fixed", "value": int(tokens[0])}
    mean = float(tokens.mean()) if len(tokens) else 0.0
    spread = {"std_dev": float(tokens.std()), "min": int(tokens.min()), "max": int(tokens.max())} if len(tokens) else {}
    return {"distribution": "other", "value": mean, **spread}


def _statistics(values: NDArray[Any], units: str) -> dict[str, Any]:
    values = np.asarray(values, float)
    values = values[~np.isnan(values)]
    if not len(values):
        return {"units": units, "mean": None}
    ranked = np.percentile(values, [0, *PERCENTILES.values(), 100]).tolist()
    return {"units": units, "mean": float(values.mean()), "stddev": float(values.std()), **_ranked(ranked)}


def _ranked(values: Iterable[float | None]) -> dict[str, float | None]:
    """The least, the percentiles and the largest under their names."""
    return dict(zip(("min", *PERCENTILES, "max"), values, strict=True))


def _gaps(run: Run) -> dict[str, Any]:
    """Pooled gaps, from a histogram that is right to 0.1 %: there may be a hundred million."""
    histogram = token_gaps(run)
    mean = histogram.mean()
    if mean is None:
        return {"units": "s/token", "mean": None}
    filled = histogram.counts > 0
    spread = histogram.sums[filled] / histogram.counts[filled] - mean
    stddev = np.sqrt((histogram.counts[filled] * spread**2).sum() / histogram.counts.sum())
    ranked = histogram.percentiles([0, *PERCENTILES.values(), 100])
    return {"units": "s/token", "mean": mean, "stddev": float(stddev), **_ranked(ranked)}


def _weighted(values: NDArray[Any], seconds: NDArray[np.float64], units: str) -> dict[str, Any]:
    """Statistics over the time that the engine was busy."""
    if not len(values) or not seconds.sum():
        return {"units": units, "mean": None}
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(seconds[order]) / seconds.sum()
    at = [0, *np.searchsorted(upto, [share / 100 for share in PERCENTILES.values()]), -1]
    mean = float(np.average(values, weights=seconds))
    return {"units": units, "mean": mean, **_ranked(values[order][at].astype(float).tolist())}


def _date(time_s: float) -> str:
    assert time_s < inf, "a run ends"
    date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=time_s)
    return date.isoformat(timespec="milliseconds").replace("+00:00", "Z")

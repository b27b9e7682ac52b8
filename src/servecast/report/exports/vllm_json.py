"""A run as the result file of ``vllm bench serve --save-detailed``: the keys, the units and the formulas of vLLM.

Latencies count from when the request was sent; a request that failed has zeros and an error, and enters no statistic.
TPOT = (E2E - TTFT) / (tokens - 1), single tokens left out; ITL pooled over all requests; numpy's linear percentiles and
the population's deviation; goodput with vLLM's names and milliseconds, a single token passing a TPOT target. Where
there is nothing to average vLLM writes 0, here it is null. Answers that come at the batch's end have neither TPOT nor
ITL. Source: vLLM 0.32 vllm/benchmarks/serve.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.files import dumps, strict, write
from servecast.metrics import METRICS, REJECTIONS
from servecast.report.exports.tokens import token_gaps_by_request
from servecast.requests import RejectReason, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from servecast.engine import Run

PERCENTILES = (50.0, 90.0, 99.0)
_ERRORS = {
    Status.OOM: "out of memory: the engine crashed",
    Status.UNFINISHED: "unfinished: cut off by the horizon",
}
_REJECTED = {
    reason: f"rejected: {METRICS[name].label}"
    for name, reason in zip(REJECTIONS, (reason for reason in RejectReason if reason), strict=True)
}


@dataclass(frozen=True)
class Answers:
    """What vLLM's client keeps of each request: lengths [tokens], times [s], and an error, empty if all was well."""

    input_lens: Sequence[int]
    output_lens: Sequence[int]
    ttfts: Sequence[float]
    itls: Sequence[Sequence[float]]
    latencies: Sequence[float]
    start_times: Sequence[float]
    errors: Sequence[str]
    streamed: bool = True


def _vllm_metrics(
    answers: Answers,
    duration_s: float,
    *,
    slo_ms: Mapping[str, float] | None = None,
    percentiles: Sequence[float] = PERCENTILES,
) -> dict[str, Any]:
    """vLLM's metrics of ``answers`` over ``duration_s``; ``slo_ms`` maps ttft, tpot and e2el to targets [ms]."""
    good = [at for at, error in enumerate(answers.errors) if not error]

    def rate(count: float) -> float | None:
        return count / duration_s if duration_s > 0 else None

    outputs = np.array([answers.output_lens[at] for at in good], np.int64)
    ttfts = np.array([answers.ttfts[at] for at in good])
    e2els = np.array([answers.latencies[at] for at in good])
    several = outputs > 1
    tpots = np.where(several, (e2els - ttfts) / np.maximum(outputs - 1, 1), 0.0)
    itls = np.concatenate([np.empty(0), *(np.asarray(answers.itls[at], float) for at in good)])
    total_input, total_output = sum(answers.input_lens[at] for at in good), int(outputs.sum())

    goodput = None
    if slo_ms:
        met = np.ones(len(good), bool)
        for name, values in (("ttft", ttfts), ("tpot", tpots), ("e2el", e2els)):
            if name in slo_ms:
                met &= values * 1000 <= slo_ms[name]
        goodput = rate(int(met.sum()))
    figures: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(answers.errors) - len(good),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "request_throughput": rate(len(good)),
        "request_goodput": goodput,
        "output_throughput": rate(total_output),
        "total_token_throughput": rate(total_input + total_output),
        **_peaks(answers, good),
        "rtfx": 0.0,
    }
    measured = {"ttft": ttfts, "tpot": tpots[several], "itl": itls, "e2el": e2els}
    for name, values in measured.items():
        kept = values if answers.streamed or name in ("ttft", "e2el") else values[:0]
        figures |= _statistics(name, kept, percentiles)
    return figures


def _statistics(name: str, seconds: Any, percentiles: Sequence[float]) -> dict[str, float | None]:
    ms = seconds * 1000
    names = [f"{statistic}_{name}_ms" for statistic in ("mean", "median", "std", *(f"p{p:g}" for p in percentiles))]
    if not len(ms):
        return dict.fromkeys(names)
    figures = (ms.mean(), np.median(ms), ms.std(), *np.percentile(ms, percentiles))
    return dict(zip(names, map(float, figures), strict=True))


def _peaks(answers: Answers, good: list[int]) -> dict[str, float | None]:
    """The fullest second from the first start on: tokens that came in it, requests there in any part of it."""
    if not good:
        return {"max_output_tokens_per_s": None, "max_concurrent_requests": None}
    begin = min(answers.start_times[at] for at in good)
    end = max(answers.start_times[at] + answers.latencies[at] for at in good)
    tokens, present = np.zeros(ceil(end - begin) + 1), np.zeros(ceil(end - begin) + 2, np.int64)
    for at in good:
        since = answers.start_times[at] - begin
        times = since + answers.ttfts[at] + np.cumsum([0.0, *answers.itls[at]])
        np.add.at(tokens, np.minimum(times.astype(np.int64), len(tokens) - 1), 1)
        present[int(since)] += 1
        present[int(since + answers.latencies[at]) + 1] -= 1
    most = int(np.cumsum(present).max())
    return {"max_output_tokens_per_s": float(tokens.max()), "max_concurrent_requests": most}


def _answers_of(run: Run) -> Answers:
    """What a client of the simulated server would have kept, with times of the simulation's clock."""
    requests = run.requests
    done = requests["status"] == Status.COMPLETED

    def column(values: Any) -> list[Any]:
        return list(np.where(done, values, 0).tolist())

    return Answers(
        requests["prompt_tokens"].tolist(),
        column(requests["generated_tokens"]),
        column(requests["first_token_s"] - requests["sent_s"]),
        [gaps.tolist() for gaps in token_gaps_by_request(run)],
        column(requests["finish_s"] - requests["sent_s"]),
        requests["sent_s"].tolist(),
        [
            _REJECTED[RejectReason(reason)] if reason else _ERRORS.get(Status(status), "")
            for status, reason in zip(requests["status"].tolist(), requests["reject_reason"].tolist(), strict=True)
        ],
        streamed=run.respond != "batch_end",
    )


def vllm_result(
    run: Run,
    *,
    model_id: str,
    request_rate: float = inf,
    max_concurrency: int | None = None,
    slo_ms: Mapping[str, float] | None = None,
    percentiles: Sequence[float] = PERCENTILES,
    metadata: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """The whole file as a dictionary of plain JSON types; ``metadata`` adds keys, as vLLM's --metadata does.

    The duration is from the first request sent to the last answer, and the same run gives the same bytes: the date says
    that it is a simulation's.
    """
    answers = _answers_of(run)
    requests = run.requests
    done = requests["status"] == Status.COMPLETED
    queued = np.where(done, requests["scheduled_s"] - requests["sent_s"], 0.0)
    ends = requests["finish_s"][done]
    duration_s = float(ends.max() - requests["sent_s"].min()) if len(ends) else run.end_s
    result: dict[str, Any] = strict(
        {
            "date": "19700101-000000",
            "endpoint_type": "simulation",
            "backend": "servecast",
            "label": "servecast",
            "model_id": model_id,
            "tokenizer_id": model_id,
            "num_prompts": len(requests["id"]),
            **(metadata or {}),
            "request_rate": "inf" if request_rate == inf else request_rate,
            "burstiness": 1.0,
            "max_concurrency": max_concurrency,
            **_vllm_metrics(answers, duration_s, slo_ms=slo_ms, percentiles=percentiles),
            "input_lens": answers.input_lens,
            "output_lens": answers.output_lens,
            "ttfts": answers.ttfts,
            "itls": answers.itls,
            "latencies": answers.latencies,
            "start_times": answers.start_times,
            "queue_times": queued,
            "generated_texts": [""] * len(requests["id"]),
            "errors": answers.errors,
        }
    )
    return result


def write_vllm(run: Run, path: Path | str, **options: Any) -> None:
    """Writes `vllm_result` to ``path``. A place that cannot be written is an InputError."""
    write(path, dumps(vllm_result(run, **options)) + "\n")

"""What a run was worth: one summary row from its columns, and its two tables.

Definitions are those of ``vllm bench serve`` 0.32, counted from the moment a request reaches the server (``sent_s``):

    TTFT = first token - sent        E2E = last token - sent        queue = first scheduled - sent
    TPOT = (E2E - TTFT) / (N - 1), per request; an answer of one token has none
    ITL  = every gap between two tokens of an answer, pooled over all requests
    output throughput = output tokens of completed requests / makespan; the makespan starts at the clock's zero

Rejected, crashed and unfinished requests enter no latency and no throughput; the tokens generated for them are in
``generated_tokens`` only. The percentile rule is numpy's linear interpolation (`PERCENTILE_RULE`), for the pooled ITL
to within the width of a 0.1 % bin. What has no value is None, never 0 or NaN.

With a `Window` requests are attributed by arrival and tokens by emission: an iteration belongs to the window in which
it ends. Left out: gaps of resumed requests carry no time, so a window keeps all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from servecast.errors import InputError
from servecast.metrics.gaps import GapHistogram, token_gaps
from servecast.metrics.log import TIME_TOLERANCE_S, clip_decisions
from servecast.metrics.waste import Hardware, judged, ratio, waste
from servecast.requests import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from servecast.metrics.log import Columns, Run
    from servecast.metrics.tenants import Tenants

PERCENTILES = (50, 90, 95, 99)
PERCENTILE_RULE = "numpy linear: rank q/100 x (n - 1), interpolated between the two nearest values"

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency targets [s]; a request is good when it completed and met (<=) all that are set.

    single_token : what an answer without a TPOT does to a TPOT target: ``pass`` (as vLLM counts it), ``fail``, or
        ``exclude`` it from good requests and from the denominator of the attainment. Answers given at the batch's end
        have no TPOT either, and are treated alike.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    single_token: Literal["pass", "fail", "exclude"] = "pass"

    def __bool__(self) -> bool:
        return any(target is not None for target in (self.ttft_s, self.tpot_s, self.e2e_s))


@dataclass(frozen=True, slots=True)
class Window:
    """The steady part of a run: from ``warmup_s`` to the last arrival less ``cooldown_s``; both None: the whole run."""

    warmup_s: float | None = None
    cooldown_s: float | None = None

    def bounds(self, run: Run) -> tuple[float, float] | None:
        """Start and end [s], both inclusive for arrivals; None for the whole run.

        Raises
        ------
        InputError : nothing is left between the two
        """
        if self.warmup_s is None and self.cooldown_s is None:
            return None
        arrivals = run.requests["arrival_s"]
        last = float(arrivals.max()) if len(arrivals) else 0.0
        start, end = self.warmup_s or 0.0, last - (self.cooldown_s or 0.0)
        if not end > start:
            problem = (
                f"{start:g} s of warm-up and {self.cooldown_s or 0.0:g} s of cool-down leave nothing of the {last:g} s "
                "in which requests arrive; shorten them or send more requests"
            )
            raise InputError("scenario.warmup_s", problem)
        return start, end


def summarise(
    run: Run,
    *,
    policy: str,
    seed: int,
    slo: Slo | None = None,
    tenants: Tenants | None = None,
    window: Window | None = None,
    hardware: Hardware | None = None,
    usd_per_hour: float | None = None,
    requested_rps: float | None = None,
) -> dict[str, Value]:
    """The row of ``summary.csv`` for one run; units stand in the names, what has no value is None.

    tenants : each one's requests are judged by its own targets, by ``slo`` where it has none; where neither is given,
        its requests are neither good nor counted in the attainment
    usd_per_hour : of all GPUs of the server; idle hours are paid too
    requested_rps : the rate the scenario asked for; ``offered_rps`` is the rate at which requests did arrive

    Raises
    ------
    InputError : the window leaves nothing of the run
    """
    bounds = (window or Window()).bounds(run)
    start, end = bounds or (0.0, run.end_s)
    length = end - start
    decisions = run.decisions if bounds is None else clip_decisions(run.decisions, start, end)
    every = run.requests
    counted = within(every, bounds)
    completed = {name: column[counted["status"] == Status.COMPLETED] for name, column in counted.items()}
    output_tokens, input_tokens = _tokens(run, completed, decisions, bounds)
    good, of = good_of(counted, slo, run.respond) if tenants is None else _good_by(tenants, counted, slo, run.respond)
    oom = [event.time_s for event in run.oom if start <= event.time_s <= end]

    row: dict[str, Value] = {
        "policy": policy,
        "seed": seed,
        "requested_rps": requested_rps,
        "offered_rps": _offered(counted["arrival_s"]),
        "arrived": len(counted["id"]),
        **counted_by_status(counted),
        "preemptions": int(counted["preemptions"].sum()),
        "makespan_s": float(run.end_s),
        "window_start_s": start,
        "window_end_s": end,
        "arrived_whole_run": len(every["id"]),
        "completed_whole_run": _count(every, Status.COMPLETED),
        "request_throughput_rps": ratio(len(completed["id"]), length),
        "output_throughput_tps": ratio(output_tokens, length),
        "total_throughput_tps": ratio(input_tokens + output_tokens, length),
        "goodput_rps": None if good is None else ratio(good, length),
        "slo_attainment": None if good is None else ratio(good, of),
        "generated_tokens": int(counted["generated_tokens"].sum()),
    }
    row |= latency_statistics(completed, run.respond, token_gaps(run, decisions))
    row |= _machine(run, decisions, start, end)
    row |= {"oom_events": len(oom), "first_oom_s": min(oom, default=None)}
    row |= waste(decisions)
    row |= {"recomputed_tokens": int(counted["recomputed_tokens"].sum()), "lost_tokens": _lost(counted)}
    row |= judged(run, decisions, hardware)
    row |= {"regime": regime(every, run.end_s)}
    usd = None if usd_per_hour is None else usd_per_hour * length / 3600
    tokens = {"output": output_tokens, "input": input_tokens, "total": output_tokens + input_tokens}
    row |= {f"usd_per_mtok_{kind}": ratio(usd, count / 1e6) for kind, count in tokens.items()}
    return row


def latencies(requests: Columns, respond: str) -> dict[str, NDArray[np.float64]]:
    """TTFT, TPOT, E2E, queue and client queue of each request [s], NaN where there is none; (requests,) each.

    A request that did not complete has neither TPOT nor E2E: the end of a failed one is not an answer.
    """
    sent, first = requests["sent_s"], requests["first_token_s"]
    finish = np.where(requests["status"] == Status.COMPLETED, requests["finish_s"], np.nan)
    later = requests["generated_tokens"] - 1
    paced = (later > 0) & (respond != "batch_end")
    return {
        "client_queue": sent - requests["arrival_s"],
        "queue": requests["scheduled_s"] - sent,
        "ttft": first - sent,
        "tpot": np.where(paced, (finish - first) / np.maximum(later, 1), np.nan),
        "e2e": finish - sent,
    }


def regime(requests: Columns, end_s: float) -> str | None:
    """``stable``, ``backlogged`` or ``overloaded``; None when all requests arrive at one moment.

    Stable: the mean number waiting in the last third of the arrival window is at most 1.2 times that of the middle
    third plus 2. Else backlogged if after its peak in the last third the queue was empty once more before the last
    arrival: what built up was worked off; else overloaded. Waiting is from arrival (a client that holds requests back
    only moves the queue to its side) to first scheduled, over the whole run.
    """
    kept = requests["status"] != Status.REJECTED
    arrived, left = requests["arrival_s"][kept], requests["scheduled_s"][kept]
    left = np.where(np.isnan(left), requests["finish_s"][kept], left)
    left = np.where(np.isnan(left), end_s, left)
    if not len(arrived) or arrived.max() == arrived.min():
        return None
    opening, closing = float(arrived.min()), float(arrived.max())
    middle = opening + (closing - opening) / 3
    final = opening + (closing - opening) * 2 / 3

    def mean_waiting(begin: float, end: float) -> float:
        overlap = np.minimum(left, end) - np.maximum(arrived, begin)
        return float(np.maximum(overlap, 0).sum()) / (end - begin)

    if mean_waiting(final, closing) <= 1.2 * mean_waiting(middle, final) + 2:
        return "stable"
    arrivals, departures = np.sort(arrived), np.sort(left)
    late = arrivals[arrivals >= final]
    peak = late[np.argmax(_waiting(arrivals, departures, late))]
    moments = departures[(departures > peak) & (departures < closing)]
    return "backlogged" if bool((_waiting(arrivals, departures, moments) == 0).any()) else "overloaded"


def _waiting(arrivals: NDArray[np.float64], departures: NDArray[np.float64], at: NDArray[np.float64]) -> Any:
    return np.searchsorted(arrivals, at, side="right") - np.searchsorted(departures, at, side="right")


def within(requests: Columns, bounds: tuple[float, float] | None) -> Columns:
    """The requests that arrive inside a window's bounds [s]; all without bounds."""
    if bounds is None:
        return requests
    arrivals = requests["arrival_s"]
    inside = (arrivals >= bounds[0]) & (arrivals <= bounds[1])
    return {name: column[inside] for name, column in requests.items()}


def _tokens(
    run: Run, completed: Columns, decisions: Columns, bounds: tuple[float, float] | None
) -> tuple[float, float]:
    """Output and input tokens that count: of completed requests; in a window, output tokens by emission."""
    input_tokens = float(completed["prompt_tokens"].sum())
    if bounds is None:
        return float(completed["generated_tokens"].sum()), input_tokens
    start, end = bounds
    if run.respond == "batch_end":
        given = (run.requests["finish_s"] > start) & (run.requests["finish_s"] <= end)
        return float(run.requests["generated_tokens"][given].sum()), input_tokens
    first = run.requests["first_token_s"]
    emitted = float((decisions["iterations"] * decisions["useful_decode_rows"]).sum())
    every = float((run.decisions["iterations"] * run.decisions["useful_decode_rows"]).sum())
    resumed = len(run.gaps) * emitted / every if every else 0.0  # their times are not kept: spread like the others
    return emitted + float(((first > start) & (first <= end)).sum()) + resumed, input_tokens


def good_of(requests: Columns, slo: Slo | None, respond: str) -> tuple[int | None, int]:
    """Good requests (None without targets), and the number they are a share of."""
    arrived = len(requests["id"])
    if not slo:
        return None, arrived
    times = latencies(requests, respond)
    met = requests["status"] == Status.COMPLETED
    for name in ("ttft", "e2e", "tpot"):
        target = getattr(slo, f"{name}_s")
        if target is not None:
            unpaced = np.isnan(times["tpot"]) if name == "tpot" and slo.single_token == "pass" else False
            met = met & ((times[name] <= target + TIME_TOLERANCE_S) | unpaced)
    if slo.tpot_s is not None and slo.single_token == "exclude":
        arrived -= int((np.isnan(times["tpot"]) & (requests["status"] == Status.COMPLETED)).sum())
    return int(met.sum()), arrived


def _good_by(tenants: Tenants, requests: Columns, slo: Slo | None, respond: str) -> tuple[int | None, int]:
    """Good requests of all tenants that have targets, and the number they are a share of."""
    found = [good_of(part, targets, respond) for _, part, targets in tenants.parts(requests, slo)]
    judged = [(good, of) for good, of in found if good is not None]
    return (sum(good for good, _ in judged) if judged else None), sum(of for _, of in judged)


def latency_statistics(completed: Columns, respond: str, gaps: GapHistogram | None = None) -> dict[str, Value]:
    """Mean and percentiles [s] of the latencies of completed requests; ITL only where ``gaps`` are given."""
    times = latencies(completed, respond)
    row: dict[str, Value] = {}
    for name in ("ttft", "tpot", "itl", "e2e", "queue", "client_queue"):
        if name == "itl":
            if gaps is None:
                continue
            mean, ranked = gaps.mean(), gaps.percentiles(PERCENTILES)
        else:
            known = times[name][~np.isnan(times[name])]
            mean = float(known.mean()) if len(known) else None
            ranked = np.percentile(known, PERCENTILES).tolist() if len(known) else [None] * len(PERCENTILES)
        row[f"{name}_mean_s"] = mean
        row |= {f"{name}_p{rank}_s": value for rank, value in zip(PERCENTILES, ranked, strict=True)}
    return row


def _machine(run: Run, decisions: Columns, start: float, end: float) -> dict[str, Value]:
    begins = run.decisions["start_s"]
    busy = np.maximum(np.minimum(begins + run.decisions["seconds"], end) - np.maximum(begins, start), 0).sum()
    iterations = decisions["iterations"]
    held = int(decisions["kv_blocks"].max()) if len(iterations) else 0
    return {
        "busy_fraction": ratio(float(busy), end - start),
        "mean_decode_rows": ratio(float((iterations * decisions["decode_rows"]).sum()), float(iterations.sum())),
        "kv_blocks_total": int(run.kv_blocks_total),
        "kv_peak_fraction": ratio(held, run.kv_blocks_total),
    }


def _lost(requests: Columns) -> int:
    """Tokens computed for requests that an out-of-memory crash then lost."""
    begun = (requests["status"] == Status.OOM) & (requests["generated_tokens"] > 0)
    return int((requests["prompt_tokens"][begun] + requests["generated_tokens"][begun] - 1).sum())


def _offered(arrivals: NDArray[np.float64]) -> float | None:
    """Requests per second between the first and the last arrival, or None when that is one moment."""
    span = float(arrivals.max() - arrivals.min()) if len(arrivals) else 0.0
    return ratio(len(arrivals) - 1, span)


def counted_by_status(requests: Columns) -> dict[str, Value]:
    """How many requests ended in each way."""
    return {
        "completed": _count(requests, Status.COMPLETED),
        "rejected": _count(requests, Status.REJECTED),
        "oom_failed": _count(requests, Status.OOM),
        "unfinished": _count(requests, Status.UNFINISHED),
    }


def _count(requests: Columns, status: Status) -> int:
    return int((requests["status"] == status).sum())

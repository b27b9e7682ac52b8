"""The table of metrics: what each is called, how it is written, which way is better, and how it is computed.

`METRICS` has the order of the columns of ``summary.csv``. Whatever shows, compares or documents a metric reads it: a
new metric is one entry here, a new latency one in `servecast.metrics.latencies`. What has no value is None, never 0 or
NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from servecast.metrics.latencies import LATENCIES
from servecast.metrics.measured import PERCENTILES, Measured
from servecast.metrics.waste import ratio
from servecast.requests import RejectReason, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from servecast.metrics.log import Columns

Value = str | int | float | None
#: How a value is written: three digits, thousandths, percent, whole, "12/20" of the arrived, as it is.
Form = Literal["number", "milli", "share", "count", "part", "text"]

WIDE: Final = 100  # the rank of metrics that are shown where there is room for all


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of the summary.

    label : its heading, with the unit in which it is written
    unit : of the value
    text : one sentence that defines it
    of : its value in a run; None: what the run has by that name (`Measured.named`)
    direction : +1 if more is better, -1 if less is, 0 if neither
    rank : place in tables of results, the most telling first: narrow ones leave out the last; `WIDE`: only where all
        are shown; None: in ``summary.csv`` alone
    goal : whether a plan can be asked to reach a target for it
    per_tenant : whether it is told for each tenant too
    optional : whether tables leave it out where no row has a value
    exceptional : whether they leave it out where it is 0 in every row
    """

    name: str
    label: str
    unit: str
    form: Form
    text: str
    of: Callable[[Measured], Any] | None = None
    direction: int = 0
    rank: int | None = None
    goal: bool = False
    per_tenant: bool = False
    optional: bool = False
    exceptional: bool = False

    def value(self, run: Measured) -> Value:
        """Of one run, or of one tenant's part of it."""
        value: Value = run.named(self.name) if self.of is None else self.of(run)
        return value


def ranked(most: int = WIDE) -> list[Metric]:
    """The metrics that tables of results show, the most telling first: those up to a rank."""
    shown = [each for each in METRICS.values() if each.rank is not None and each.rank <= most]
    return sorted(shown, key=lambda each: each.rank or 0)


def _of_latency(name: str) -> Iterator[Metric]:
    """The mean and percentiles of a latency, a column each."""
    latency = LATENCIES[name]
    ranks = {"mean": WIDE, "p50": WIDE, "p99": WIDE, **latency.ranks}
    unit = "ms" if latency.form == "milli" else "s"
    for at, statistic in enumerate(("mean", *(f"p{rank}" for rank in PERCENTILES))):

        def of(run: Measured, at: int = at) -> float | None:
            return run.gaps[at] if latency.of is None else run.latencies[name][at]

        said = "mean" if statistic == "mean" else f"{statistic[1:]}th percentile"
        yield Metric(
            f"{name}_{statistic}_s", f"{latency.label} {statistic} [{unit}]", "s", latency.form,
            f"{said} of the {latency.text}", of, -1, ranks.get(statistic), latency.goal, latency.of is not None,
        )  # fmt: skip


#: Heading and definition of each reason for which a request is refused.
_REFUSED: Final = {
    RejectReason.PROMPT_TOO_LONG: (
        "prompt too long", "requests refused because the prompt alone leaves no room for a token within max_model_len"
    ),
    RejectReason.ANSWER_TOO_LONG: (
        "answer too long", "requests refused because the prompt and the longest answer exceed max_model_len",
    ),
    RejectReason.EXCEEDS_KV_CACHE: (
        "over KV cache", "requests refused because they need more tokens than the whole KV cache holds",
    ),
}  # fmt: skip


def _of_reason(reason: RejectReason) -> Metric:
    """How many requests were refused for it."""
    label, text = _REFUSED[reason]

    def of(run: Measured) -> int:
        return int((run.requests["reject_reason"] == reason).sum())

    return Metric(f"rejected_{reason.name.lower()}", label, "requests", "count", text, of, -1, 1, per_tenant=True,
                  exceptional=True)  # fmt: skip


def _longest(run: Measured) -> int:
    """What max_model_len would have to be."""
    answers = np.maximum(run.requests["output_tokens"], run.requests["output_limit"])
    return int((run.requests["prompt_tokens"] + answers).max(initial=0))


def _offered(run: Measured) -> float | None:
    arrivals = run.requests["arrival_s"]
    return ratio(len(arrivals) - 1, float(np.ptp(arrivals))) if len(arrivals) else None


def _busy(run: Measured) -> float | None:
    begins, start, end = run.run.decisions["start_s"], run.start_s, run.end_s
    busy = np.maximum(np.minimum(begins + run.run.decisions["seconds"], end) - np.maximum(begins, start), 0).sum()
    share = ratio(float(busy), end - start)
    return None if share is None else share / (run.named("replicas") or 1)


def _decode_rows(run: Measured) -> float | None:
    iterations = run.decisions["iterations"]
    return ratio(float((iterations * run.decisions["decode_rows"]).sum()), float(iterations.sum()))


def _kv_peak(run: Measured) -> float | None:
    return ratio(int(run.decisions["kv_blocks"].max(initial=0)), run.run.kv_blocks_total)


def _lost(run: Measured) -> int:
    requests = run.requests
    begun = (requests["status"] == Status.OOM) & (requests["generated_tokens"] > 0)
    return int((requests["prompt_tokens"][begun] + requests["generated_tokens"][begun] - 1).sum())


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


#: The columns that count refused requests, one a reason.
REJECTIONS: Final = tuple(f"rejected_{reason.name.lower()}" for reason in _REFUSED)

#: Every metric by its column, in the order of ``summary.csv``.
METRICS: Final[dict[str, Metric]] = {each.name: each for each in (
    Metric("requested_rps", "asked req/s", "requests/s", "number", "rate of arrivals that the scenario asks for"),
    Metric("offered_rps", "offered req/s", "requests/s", "number",
           "requests a second between the first and the last arrival; none where all arrive at one moment", _offered),
    Metric("arrived", "arrived", "requests", "count", "requests that arrived", lambda run: len(run.requests["id"]),
           per_tenant=True),
    Metric("completed", "done", "requests", "part",
           "requests that were answered, of those that arrived; answers that were cut are among them",
           lambda run: run.count(Status.COMPLETED), 1, 1, per_tenant=True),
    Metric("rejected", "rejected", "requests", "count", "requests refused whole when they reached the server",
           lambda run: run.count(Status.REJECTED), -1, WIDE, per_tenant=True),
    *map(_of_reason, _REFUSED),
    Metric("cut", "cut", "requests", "count",
           "answers that ended at max_model_len and not by themselves (on_too_long: cut; finish_reason length)",
           lambda run: len(run.cut["id"]), -1, 1, per_tenant=True, exceptional=True),
    Metric("cut_tokens", "tokens cut", "tokens", "count", "tokens that those answers lack",
           lambda run: int((run.cut["output_tokens"] - run.cut["generated_tokens"]).sum()), -1, per_tenant=True),
    Metric("longest_request_tokens", "longest request", "tokens", "count",
           "prompt and longest answer of the longest request: the max_model_len that takes all of them", _longest),
    Metric("oom_failed", "lost to memory", "requests", "count", "requests lost because memory ran out",
           lambda run: run.count(Status.OOM), -1, WIDE, per_tenant=True),
    Metric("unfinished", "unfinished", "requests", "count", "requests that the horizon cut off",
           lambda run: run.count(Status.UNFINISHED), -1, WIDE, per_tenant=True),
    Metric("preemptions", "preempted", "preemptions", "count", "how often a running request gave its blocks back",
           lambda run: run.sum("preemptions"), -1, 12),
    Metric("makespan_s", "makespan [s]", "s", "number", "from the clock's zero to the end of the run",
           lambda run: float(run.run.end_s), -1, WIDE),
    Metric("window_start_s", "window start [s]", "s", "number", "where counting begins", lambda run: run.start_s),
    Metric("window_end_s", "window end [s]", "s", "number", "where counting ends", lambda run: run.end_s),
    Metric("arrived_whole_run", "arrived, whole run", "requests", "count",
           "requests that arrived, outside the window too", lambda run: len(run.run.requests["id"])),
    Metric("completed_whole_run", "done, whole run", "requests", "count", "requests that completed, outside it too",
           lambda run: int((run.run.requests["status"] == Status.COMPLETED).sum())),
    Metric("request_throughput_rps", "req/s", "requests/s", "number",
           "completed requests over the time from the clock's zero to the end, or over the window",
           lambda run: run.rate(len(run.completed["id"])), 1, 2, per_tenant=True),
    Metric("output_throughput_tps", "output tok/s", "tokens/s", "number",
           "output tokens of completed requests over that time", lambda run: run.rate(run.output_tokens), 1, 8),
    Metric("total_throughput_tps", "tok/s", "tokens/s", "number",
           "prompt and output tokens of completed requests (prefilled and made in a window) over that time",
           lambda run: run.rate(run.input_tokens + run.output_tokens), 1),
    Metric("goodput_rps", "good req/s", "requests/s", "number",
           "requests that completed within all latency targets, over that time", lambda run: run.rate(run.good[0]), 1,
           3, per_tenant=True, optional=True),
    Metric("slo_attainment", "attainment", "share", "share",
           "share of the arrived requests that completed within all latency targets", lambda run: ratio(*run.good), 1,
           WIDE, goal=True, per_tenant=True, optional=True),
    Metric("generated_tokens", "generated", "tokens", "count",
           "output tokens of all requests, also of those that did not complete",
           lambda run: run.sum("generated_tokens")),
    *(each for name in LATENCIES for each in _of_latency(name)),
    Metric("busy_fraction", "busy", "share", "share", "share of the time in which the engine computed", _busy, 0, 16),
    Metric("mean_decode_rows", "decode rows", "requests", "number", "rows that decode in an iteration, on average",
           _decode_rows),
    Metric("kv_blocks_total", "KV blocks", "blocks", "count", "usable blocks of the KV cache",
           lambda run: int(run.run.kv_blocks_total)),
    Metric("kv_peak_fraction", "KV peak", "share", "share", "largest share of the KV blocks that was held", _kv_peak, 0,
           15),
    Metric("oom_events", "OOM", "events", "count", "how often memory ran out", lambda run: len(run.crashes), -1, 11),
    Metric("first_oom_s", "first OOM [s]", "s", "number", "when memory first ran out",
           lambda run: min(run.crashes, default=None)),
    Metric("computed_tokens", "computed", "tokens", "count", "tokens computed, padding included"),
    Metric("useful_tokens", "useful", "tokens", "count", "computed tokens that some request needed"),
    Metric("padding_tokens", "padding tokens", "tokens", "count", "computed tokens that no request needed"),
    Metric("idle_slot_tokens", "idle slot tokens", "tokens", "count",
           "iterations of batch slots that were held and not computed"),
    Metric("padding_waste", "padding", "share", "share", "share of the computed tokens that nobody asked for", None, -1,
           13),
    Metric("slot_waste", "idle slots", "share", "share",
           "share of slot time (slots times steps) held by rows that have finished", None, -1, 14),
    Metric("slot_waste_s", "idle slots [s]", "s", "number", "seconds of the whole GPU that those slots stand for"),
    Metric("recomputed_tokens", "recomputed", "tokens", "count", "tokens computed again after a preemption",
           lambda run: run.sum("recomputed_tokens")),
    Metric("lost_tokens", "lost tokens", "tokens", "count", "tokens computed for requests that a crash then lost",
           _lost),
    Metric("padding_waste_s", "padding [s]", "s", "number", "busy seconds that padding took"),
    Metric("bandwidth_bound_fraction", "bandwidth-bound", "share", "share",
           "share of the busy seconds in steps below the ridge of the roofline"),
    Metric("extrapolated_fraction", "extrapolated", "share", "share",
           "share of the busy seconds in steps outside the measured ones"),
    Metric("regime", "queue", "", "text",
           "stable, backlogged or overloaded: whether the queue grew as long as requests arrived",
           lambda run: regime(run.run.requests, run.run.end_s), 0, 7),
    Metric("bill_usd", "bill [$]", "USD", "number", "US dollars for all GPUs and the time that counts, idle or not",
           lambda run: run.bill, -1),
    Metric("usd_per_mtok_output", "whole bill $/M output", "USD", "number",
           "the whole bill over output tokens, US dollars per million: beside a price of input it would be paid "
           "twice", lambda run: run.usd_per_million(run.output_tokens), -1, 9, optional=True),
    Metric("usd_per_mtok_input", "whole bill $/M input", "USD", "number",
           "the whole bill over prompt tokens, US dollars per million",
           lambda run: run.usd_per_million(run.input_tokens), -1),
    Metric("usd_per_mtok_total", "whole bill $/M tokens", "USD", "number",
           "the whole bill over tokens of either kind, US dollars per million",
           lambda run: run.usd_per_million(run.input_tokens + run.output_tokens), -1, WIDE, optional=True),
    Metric("price_per_mtok_input", "price $/M input", "USD", "number",
           "input's part of the bill, US dollars per million prompt tokens: by busy time of prefill, idle time shared "
           "out in proportion, or by cost.output_over_input", lambda run: run.prices.input, -1, WIDE, optional=True),
    Metric("price_per_mtok_output", "price $/M output", "USD", "number",
           "output's part of the bill, US dollars per million output tokens: prices times tokens are the bill",
           lambda run: run.prices.output, -1, WIDE, optional=True),
    Metric("prefill_busy_fraction", "prefill", "share", "share",
           "share of the busy seconds that is prefill; a mixed step is divided as its parts would take alone",
           lambda run: run.prefill_share),
    Metric("calibrated", "calibrated", "", "text", "whether step times come from measurements"),
    Metric("replicas", "replicas", "replicas", "count", "engines that served together"),
    Metric("gpus", "GPUs", "GPUs", "count", "GPUs of all of them"),
    Metric("cancelled", "cancelled", "requests", "count", "requests of sessions that ended before their turn"),
)}  # fmt: skip

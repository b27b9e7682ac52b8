"""The latencies of requests, what each is called and how it is computed; targets for them, and how many met theirs.

Definitions are those of ``vllm bench serve`` 0.32, counted from the moment a request reaches the server (``sent_s``).
A request that did not complete has no latency that ends with its last token: the end of a failed one is no answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from servecast.metrics.log import TIME_TOLERANCE_S
from servecast.requests import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from servecast.metrics.log import Columns


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency; its mean and percentiles are columns of the summary: ``ttft_mean_s``, ``ttft_p50_s``, ...

    label, words, text : its heading, its name in a sentence, and its definition
    of : of each request [s], from their columns and whether they were streamed; None for gaps, which are pooled
    ranks : of statistics in tables of results, as in `servecast.metrics.table.Metric`, where they are not `WIDE`
    goal : whether a plan can have a target for it
    client : whether benchmark clients record it for each request, so that a recording can be held against it
    """

    label: str
    words: str
    form: Literal["number", "milli"]
    text: str
    of: Callable[[Columns, bool], Any] | None
    ranks: Mapping[str, int] = field(default_factory=dict)
    goal: bool = True
    client: bool = True


def _finish(requests: Columns) -> NDArray[np.float64]:
    return np.where(requests["status"] == Status.COMPLETED, requests["finish_s"], np.nan)


def _tpot(requests: Columns, streamed: bool) -> NDArray[np.float64]:
    later = requests["generated_tokens"] - 1
    pace = (_finish(requests) - requests["first_token_s"]) / np.maximum(later, 1)
    return np.where((later > 0) & streamed, pace, np.nan)


LATENCIES: Final[dict[str, Latency]] = {
    "ttft": Latency(
        "TTFT", "time to first token", "number", "time from a request reaching the server to its first token",
        lambda requests, streamed: requests["first_token_s"] - requests["sent_s"], {"p50": 4, "p99": 5},
    ),
    "tpot": Latency(
        "TPOT", "time per output token", "milli",
        "time from the first token to the last over the tokens after the first, of each request; an answer of one "
        "token has none, nor has one that comes at its batch's end",
        _tpot, {"p50": 6},
    ),
    "itl": Latency(
        "ITL", "gap between tokens", "milli", "gap between two tokens of an answer, pooled over all requests",
        None, {"p99": 10}, client=False,
    ),
    "e2e": Latency(
        "E2E", "time to the last token", "number", "time from a request reaching the server to its last token",
        lambda requests, streamed: _finish(requests) - requests["sent_s"],
    ),
    "normalized_latency": Latency(
        "E2E/token", "time to the last token per output token", "milli",
        "time from a request reaching the server to its last token over its output tokens",
        lambda requests, streamed: (_finish(requests) - requests["sent_s"])
        / np.maximum(requests["generated_tokens"], 1),
        client=False,
    ),
    "queue": Latency(
        "wait", "time in the queue", "number", "time from a request reaching the server to its first step",
        lambda requests, streamed: requests["scheduled_s"] - requests["sent_s"], client=False,
    ),
    "client_queue": Latency(
        "client wait", "time in the client", "number", "time for which the client held a request back before sending",
        lambda requests, streamed: requests["sent_s"] - requests["arrival_s"], goal=False, client=False,
    ),
}  # fmt: skip
CLIENT_LATENCIES: Final = tuple(name for name, each in LATENCIES.items() if each.client)


def latencies(requests: Columns, respond: str) -> dict[str, NDArray[np.float64]]:
    """The latencies of each request [s] by name, NaN where there is none; (requests,) each."""
    streamed = respond != "batch_end"
    return {name: each.of(requests, streamed) for name, each in LATENCIES.items() if each.of is not None}


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

    def good(self, requests: Columns, respond: str) -> tuple[int, int]:
        """Good requests, and the number they are a share of."""
        times = latencies(requests, respond)
        completed = requests["status"] == Status.COMPLETED
        good, of = completed, len(completed)
        for name in ("ttft", "e2e", "tpot"):
            target = getattr(self, f"{name}_s")
            if target is not None:
                unpaced = np.isnan(times["tpot"]) if name == "tpot" and self.single_token == "pass" else False
                good = good & ((times[name] <= target + TIME_TOLERANCE_S) | unpaced)
        if self.tpot_s is not None and self.single_token == "exclude":
            of -= int((np.isnan(times["tpot"]) & completed).sum())
        return int(good.sum()), of


@dataclass(frozen=True, slots=True, eq=False)
class Tenants:
    """Which tenant each request of a workload belongs to, and the targets of tenants that have their own.

    names : in the order of the table; "" is nobody's
    owner : (requests,) place in ``names`` by the request's id
    slo : targets by name, of tenants that have their own
    """

    names: tuple[str, ...]
    owner: NDArray[np.int64]
    slo: Mapping[str, Slo]

    @classmethod
    def of(cls, column: Sequence[str | None], slo: Mapping[str, Slo], first: Sequence[str] = ()) -> Tenants:
        """The tenants of a workload's column of names; those in ``first`` come first, whether they send or not."""
        names = {name: place for place, name in enumerate(dict.fromkeys((*first, *(name or "" for name in column))))}
        return cls(tuple(names), np.array([names[name or ""] for name in column], np.int64), slo)

    def parts(self, requests: Columns, slo: Slo | None) -> Iterator[tuple[str, Columns, Slo | None]]:
        """Each tenant with its part of ``requests``, and its targets: its own, else ``slo``."""
        owner = self.owner[requests["id"]]
        order = np.argsort(owner, kind="stable")
        ends = np.searchsorted(owner[order], np.arange(len(self.names)), side="right")
        for name, rows in zip(self.names, np.split(order, ends[:-1]), strict=True):
            yield name, {key: column[rows] for key, column in requests.items()}, self.slo.get(name, slo)

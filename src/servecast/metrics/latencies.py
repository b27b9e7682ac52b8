"""The latencies of requests: what each is called, and how it is computed.

Definitions are those of ``vllm bench serve`` 0.32, counted from the moment a request reaches the server (``sent_s``).
A request that did not complete has no latency that ends with its last token: the end of a failed one is no answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from servecast.requests import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
        "TTFT", "time to first token", "number", "time from sending a request to its first token",
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
        "E2E", "time to the last token", "number", "time from sending a request to its last token",
        lambda requests, streamed: _finish(requests) - requests["sent_s"],
    ),
    "normalized_latency": Latency(
        "E2E/token", "time to the last token per output token", "milli",
        "time from sending a request to its last token over its output tokens",
        lambda requests, streamed: (_finish(requests) - requests["sent_s"])
        / np.maximum(requests["generated_tokens"], 1),
        client=False,
    ),
    "queue": Latency(
        "wait", "time in the queue", "number", "time from sending a request to its first step",
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

"""When each token of a run came: rebuilt from its decisions, since a run keeps no times by token.

A request has its first token with its prompt. From then on it has one at the end of every iteration in which rows
decode, up to its last, whoever else stands still or runs in between. One that was preempted or paused has none during
its absence, and one as that ends: the run lists these gaps by request. Answers that come at the batch's end have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.requests import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from servecast.engine import Run

_NEAR_S = 1e-9  # two ends closer than this are one


def _iteration_ends(decisions: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """End of every iteration in which rows decode, in order: (iterations,) [s]."""
    busy = decisions["useful_decode_rows"] > 0
    names = ("iterations", "seconds", "step_s", "start_s")
    counts, seconds, step_s, start_s = (decisions[name][busy] for name in names)
    several = np.maximum(counts - 1, 1)
    slope = np.where(counts > 1, 2 * (seconds / counts - step_s) / several, 0.0)
    done = np.arange(1, int(counts.sum()) + 1) - np.repeat(np.cumsum(counts) - counts, counts)
    start, base, slope = (np.repeat(column, counts) for column in (start_s, step_s, slope))
    return np.asarray(start + done * base + slope * done * (done - 1) / 2)


def token_gaps_by_request(run: Run) -> Iterator[NDArray[np.float64]]:
    """For each request of the run the gaps between its tokens: (generated - 1,) [s]; none unless it completed."""
    requests = run.requests
    nothing = np.empty(0)
    ends = _iteration_ends(run.decisions)
    after = np.searchsorted(ends, requests["first_token_s"] + _NEAR_S)
    upto = np.searchsorted(ends, requests["finish_s"] + _NEAR_S)
    streamed = (requests["status"] == Status.COMPLETED) & (run.respond != "batch_end")
    absences = _absences(run)
    columns = (requests[name].tolist() for name in ("id", "first_token_s", "generated_tokens"))
    rows = zip(*columns, streamed.tolist(), after.tolist(), upto.tolist(), strict=True)
    for request, first, tokens, given, begin, end in rows:
        if not given or tokens == 1:
            yield nothing
            continue
        times = ends[begin:end]
        for since, until in absences.get(request, ()):
            times = times[(times <= since + _NEAR_S) | (times > until + _NEAR_S)]
            times = np.insert(times, np.searchsorted(times, until), until)
        assert len(times) == tokens - 1, f"request {request}: {len(times) + 1} token times of {tokens}"
        yield np.diff(times, prepend=first)


def _absences(run: Run) -> dict[int, list[tuple[float, float]]]:
    """By request, from when to when it had no token [s] because it was preempted or paused."""
    found: dict[int, list[tuple[float, float]]] = {}
    own = ~np.isnan(run.gaps["request"])
    columns = (run.gaps[name][own].tolist() for name in ("request", "end_s", "seconds"))
    for request, end, seconds in zip(*columns, strict=True):
        found.setdefault(int(request), []).append((end - seconds, end))
    return found

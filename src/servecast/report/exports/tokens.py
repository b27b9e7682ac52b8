"""When each token of a run came: rebuilt from its decisions, since a run keeps no times by token.

A request that decodes takes part in every iteration from its first token to its last, so its token times are the ends
of those iterations. A preempted one misses some in a row; where one long gap of the run explains it, that is the gap.
Else (preempted several times, or two gaps alike) the long gap is put before its last token: then the sum of its gaps
is right, and their order is not known. Answers that come at the batch's end have no gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.requests import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from servecast.metrics.log import Run

_NEAR_S = 1e-9  # two ends closer than this are one


def iteration_ends(decisions: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """End of every iteration of the run, in order: (iterations,) [s]."""
    counts = decisions["iterations"].astype(np.int64)
    several = np.maximum(counts - 1, 1)
    slope = 2 * (decisions["seconds"] / np.maximum(counts, 1) - decisions["step_s"]) / several
    slope = np.where(counts > 1, slope, 0.0)
    done = np.arange(1, int(counts.sum()) + 1) - np.repeat(np.cumsum(counts) - counts, counts)
    start, base, slope = (np.repeat(column, counts) for column in (decisions["start_s"], decisions["step_s"], slope))
    return np.asarray(start + done * base + slope * done * (done - 1) / 2)


def token_gaps_by_request(run: Run) -> Iterator[NDArray[np.float64]]:
    """For each request of the run the gaps between its tokens: (generated - 1,) [s]; none unless it completed."""
    requests = run.requests
    nothing = np.empty(0)
    ends = iteration_ends(run.decisions)
    first = np.searchsorted(ends, requests["first_token_s"] - _NEAR_S)
    last = np.searchsorted(ends, requests["finish_s"] - _NEAR_S)
    completed = requests["status"] == Status.COMPLETED
    streamed = run.respond != "batch_end"
    rows = zip(completed.tolist(), first.tolist(), last.tolist(), requests["generated_tokens"].tolist(), strict=True)
    for done, begin, end, tokens in rows:
        if not (done and streamed and tokens > 1):
            yield nothing
            continue
        times = ends[begin : end + 1]
        yield np.diff(times if len(times) == tokens else _without(times, tokens, run.gaps))


def _without(times: NDArray[np.float64], tokens: int, gaps: NDArray[np.float64]) -> NDArray[np.float64]:
    """``tokens`` of the ends ``times``: those that a preempted request had a token at."""
    missed = len(times) - tokens
    assert missed > 0, "a token needs an iteration"
    spans = times[missed + 1 :] - times[: -missed - 1]
    found = np.flatnonzero(np.isclose(spans[:, None], gaps[None, :], rtol=0, atol=1e-7).any(axis=1))
    at = int(found[0]) + 1 if len(found) == 1 else tokens - 1
    return np.concatenate([times[:at], times[at + missed :]])

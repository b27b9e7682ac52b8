"""Requests as their client saw them, recorded or simulated: the same columns for both, so that both are judged alike.

Latencies count from the moment the client sent the request, as benchmark tools measure them; counted from arrival, the
time for which the client held the request back is in them too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from servecast import metrics
from servecast.errors import InputError
from servecast.workload.clients import ClientTimes, RequestColumns
from servecast.workload.traces.trace_file import FAILED, TraceFile

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

CountedFrom = Literal["send", "arrival"]

#: The latencies that are compared, and how they are called in words.
LATENCIES = {f"{name}_s": metrics.LATENCIES[name].label for name in metrics.CLIENT_LATENCIES}


@dataclass(frozen=True, slots=True, eq=False)
class Observed(ClientTimes):
    """Requests of a recording or of a forecast, all of them answered and all their times known.

    trace : of a recording, what its rows say of the requests beside their times: prefixes, priorities, sessions
    """

    trace: RequestColumns | None = None

    @property
    def asked(self) -> RequestColumns:
        """The requests as a workload has them, arriving as they did; no turn waits for the one before it."""
        if self.trace is None:
            return RequestColumns(self.arrival_s, self.prompt_tokens, self.output_tokens)
        return replace(self.trace, delay_s=None)

    @property
    def finished_s(self) -> NDArray[np.float64]:
        """When the client had the last token (n,) [s]."""
        return self.sent_s + self.e2e_s

    @property
    def held_back(self) -> bool:
        """Whether the client held requests back for long enough to tell latencies from send and from arrival apart."""
        return bool((self.sent_s - self.arrival_s).mean() > 0.001 * self.e2e_s.mean())

    def latency(self, name: str, counted_from: CountedFrom) -> NDArray[np.float64]:
        """One of `LATENCIES` of each request (n,) [s]."""
        values: NDArray[np.float64] = getattr(self, name)
        return values + (self.sent_s - self.arrival_s) if counted_from == "arrival" and name != "tpot_s" else values

    @property
    def makespan_s(self) -> float:
        """From the first request sent to the last token heard [s]."""
        return float(self.finished_s.max() - self.sent_s.min())

    def totals(self) -> dict[str, float]:
        """What the whole run came to: makespan, requests and output tokens a second."""
        length = self.makespan_s
        return {
            "makespan_s": length,
            "request_throughput_rps": len(self) / length,
            "output_throughput_tps": float(self.output_tokens.sum()) / length,
        }


def recorded(path: Path | str | TraceFile, place: str = "") -> tuple[Observed, tuple[str, ...]]:
    """The requests of a recording, and notes on how it was read.

    Reads what `TraceFile` reads, if it holds latencies: a table with ``ttft_s`` and ``e2e_s`` (``send_s`` where it
    differs from ``arrival_s``), the detailed results of ``vllm bench serve`` and those of other tools.

    Raises InputError: the file cannot be read, holds no arrivals or no latencies, or latencies that cannot be.
    """
    file = path if isinstance(path, TraceFile) else TraceFile(str(path))
    trace = file.read()
    found = trace.recorded
    place = place or file.path
    if found is None:
        problem = "holds no measured latencies: give a table with the columns ttft_s and e2e_s, or a detailed result"
        raise InputError(place, problem)
    columns = found.columns()
    for name, column in columns.items():
        if name in {"arrival_s", "sent_s"} and len(column) and not np.isfinite(column).any():
            raise InputError(place, "says not when requests arrived: a comparison replays arrivals, record them too")
        _refuse(place, ~np.isfinite(column), f"has no {name}: leave out requests without an answer")
    for name in ("ttft_s", "e2e_s"):
        _refuse(place, columns[name] <= 0, f"has {name} {{:g}}: it must be above 0", columns[name])
    early = "ends before its first token (e2e_s {:g} < ttft_s {:g}): both count from the send, in seconds"
    _refuse(place, found.e2e_s < found.ttft_s, early, found.e2e_s, found.ttft_s)
    notes = [f"left out {rejected}" for rejected in trace.report.rejected if rejected.reason != FAILED]
    notes += trace.report.notes
    if found.failed:
        notes.append(f"{found.failed} failed requests of the recording are neither replayed nor compared")
    return Observed(**columns, trace=trace.columns), tuple(notes)


def _refuse(place: str, wrong: NDArray[np.bool_], problem: str, *columns: NDArray[np.float64]) -> None:
    """Raises InputError with the problem of the first request that is wrong, and what it has in these columns."""
    if wrong.any():
        at = int(wrong.argmax())
        values = (column[at] for column in columns)
        raise InputError(place, f"request {at} (in order of arrival) {problem.format(*values)}")


def same_requests(one: Observed, other: Observed) -> str | None:
    """Why two recordings do not hold the same requests in the same order; None if they do."""
    if len(one) != len(other):
        return f"holds {len(other):,} requests, not {len(one):,}"
    for name in ("prompt_tokens", "output_tokens"):
        differ = getattr(one, name) != getattr(other, name)
        if differ.any():
            at = int(differ.argmax())
            return f"request {at} has {getattr(other, name)[at]} {name}, not {getattr(one, name)[at]}"
    return None

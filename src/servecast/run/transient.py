"""Heads of a run that decide a statistic of the whole: many requests at once, and an idle beginning.

*Start*: a closed loop begins with a request of every user, a client with a cap with as many as it lets through. They
queue behind each other as none does later. The steady part begins when the last of them has been answered. It is told
where a mean or percentile of the whole run is `_TIMES` times that of the steady part, or that part of it.

*Idle head*: the arrivals are best described by two rates, the first at most `_IDLE` of the second (the most likely
change point of a Poisson process), by more than chance explains: the likelihood ratio is judged against the dispersion
of counts in neighbouring windows, which bursts widen and slow changes do not. It is told where what is served a second
after it is `_DILUTED` times that of the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from servecast.metrics import LATENCIES, latencies
from servecast.text import number, percent, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from servecast.engine import Run
    from servecast.metrics import Window
    from servecast.metrics.log import Columns
    from servecast.run.results import Outcome

#: Statistics that are looked at, the first that is off is told.
_LATENCIES, _STATISTICS = ("ttft", "e2e", "tpot"), ("p99", "p95", "p50", "mean")
_TIMES = 1.5
_LEAST = 50  # requests of a steady part
_INSTANT_S = 0.1
_AT_ONCE = 10  # requests of a start, at least, and times those of any later instant:
_CROWD = 3
_IDLE, _DILUTED = 0.25, 1.1
_WINDOWS, _FEW = 200, 20  # windows that arrivals are counted in, at most; requests of one, on average, at least
_CHANCE = 30.0  # log-likelihood ratio over the dispersion


class Transient(NamedTuple):
    """What the head of a run does to a statistic.

    statistic : a column of the summary
    whole, steady : its value over the whole run, and from ``warmup_s`` on; where that is None too few requests follow
        for a steady part, and it is of those that did not come at once
    head, of : requests of a start, of all; an idle head has its own rate and that of the rest [requests/s]
    idle : whether it is an idle head
    warm : whether ``warmup_s`` can leave it out: it counts by arrival, and a client with a cap has all arrive at 0
    """

    statistic: str
    whole: float
    steady: float
    warmup_s: float | None
    head: float
    of: float
    idle: bool
    warm: bool = True

    @property
    def factor(self) -> float:
        """How far the two are apart."""
        return max(self.whole, self.steady) / min(self.whole, self.steady)

    def sentence(self, where: str) -> str:
        """What is told of it; ``where``: which run it is of."""
        remedy, rest = f"warmup_s: {self.warmup_s or 0.0:g} leaves it out", "in the steady part"
        if self.idle:
            return (
                f"Idle head{where}: until {self.warmup_s or 0.0:g} s {number(self.head)} requests/s arrive, then "
                f"{number(self.of)}; over the whole run {number(self.whole)} requests/s are served, and "
                f"{number(self.steady)} after it: {remedy}."
            )
        if not self.warm:
            remedy = "arrivals: {kind: closed} and warmup_s leave it out"
        if self.warmup_s is None:
            remedy, rest = "send more requests, so that some are of a steady part", "of those that follow"
        name, _, rank = self.statistic.removesuffix("_s").rpartition("_")
        return (
            f"Start-up{where}: {number(self.head)} of {number(self.of)} requests ({percent(self.head / self.of)}) come "
            f"at once, and decide the {rank} {LATENCIES[name].label}: {seconds(self.whole)}, and "
            f"{seconds(self.steady)} {rest}: {remedy}."
        )


def transient(run: Run, window: Window, users: int | None = None) -> Transient | None:
    """The head that decides a statistic of the part of a run that counts; None where none does.

    users : of a closed loop, whose first requests are its start
    """
    bounds = window.bounds(run)
    arrival = run.requests["arrival_s"]
    inside = np.ones(len(arrival), bool) if bounds is None else (arrival >= bounds[0]) & (arrival <= bounds[1])
    requests = {name: column[inside] for name, column in run.requests.items()}
    if len(requests["id"]) < 2 * _LEAST:
        return None
    return _start(requests, run.respond, users) or (None if users else _idle(requests))


def _start(requests: Columns, respond: str, users: int | None) -> Transient | None:
    sent = requests["sent_s"]
    head = _at_once(sent) | _at_once((sent - sent.min()) // _INSTANT_S) if users is None else requests["id"] < users
    ends = requests["finish_s"][head & ~np.isnan(requests["finish_s"])]
    if not len(ends):
        return None
    begin: float | None = _rounded_up(float(ends.max()))
    later = sent >= begin
    if later.sum() < _LEAST:
        begin, later = None, ~head
    if later.sum() < _LEAST:
        return None
    times = latencies(requests, respond)
    for name in _LATENCIES:
        whole, steady = times[name], times[name][later]
        for statistic in _STATISTICS:
            pair = _value(whole, statistic), _value(steady, statistic)
            if min(pair) > 0 and max(pair) >= _TIMES * min(pair):
                warm = begin is None or bool((requests["arrival_s"][later] >= begin).all())
                return Transient(f"{name}_{statistic}_s", *pair, begin, int(head.sum()), len(sent), False, warm)
    return None


def _at_once(instants: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which requests (n,) come in the first instant, where that has by far the most."""
    _, place, counts = np.unique(instants, return_inverse=True, return_counts=True)
    crowd: NDArray[np.bool_] = (place == 0) & (counts[0] >= max(_AT_ONCE, _CROWD * int(counts[1:].max(initial=0))))
    return crowd


def _value(times: NDArray[np.float64], statistic: str) -> float:
    known = times[~np.isnan(times)]
    if not len(known):
        return 0.0
    return float(known.mean()) if statistic == "mean" else float(np.percentile(known, int(statistic[1:])))


def _idle(requests: Columns) -> Transient | None:
    arrival = requests["arrival_s"]
    first, last = float(arrival.min()), float(arrival.max())
    windows = min(_WINDOWS, len(arrival) // _FEW)
    if windows < 5 or last <= first:
        return None
    counts, edges = np.histogram(arrival, windows)
    dispersion = max(1.0, float((np.diff(counts) ** 2).mean()) / 2 / float(counts.mean()))
    before = np.cumsum(counts)[:-1].astype(float)
    lasted, total = np.arange(1, windows) / windows, float(len(arrival))
    after, left = total - before, 1 - lasted
    found = after * np.log(after / left / total) + before * np.log(np.maximum(before, 1e-9) / lasted / total)
    at = int(np.argmax(found))
    if found[at] < _CHANCE * dispersion or before[at] / lasted[at] > _IDLE * after[at] / left[at]:
        return None
    begin = _rounded_up(float(edges[at + 1]))
    answered = ~np.isnan(requests["finish_s"])
    spans = ((since, max(last - since, 0.0)) for since in (first, begin))
    whole, steady = (float((answered & (arrival >= since)).sum()) / span if span else 0.0 for since, span in spans)
    if not steady > _DILUTED * whole > 0:
        return None
    idle_rps, rest_rps = before[at] / (edges[at + 1] - first), after[at] / (last - edges[at + 1])
    return Transient("request_throughput_rps", whole, steady, begin, float(idle_rps), float(rest_rps), True)


def _rounded_up(time_s: float) -> float:
    """To two digits, as a person would write it."""
    unit = 10.0 ** (np.floor(np.log10(time_s)) - 1) if time_s > 0 else 1.0
    return float(f"{np.ceil(time_s / unit) * unit:.12g}")


def sentences(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What to tell of a sweep: a sentence for a start and one for an idle head, of the run it changes most."""
    for idle in (False, True):
        found = [(each, head) for each in outcomes if (head := each.made.transient) is not None and head.idle == idle]
        if found:
            worst, head = max(found, key=lambda pair: pair[1].factor)
            where = "" if len(outcomes) == 1 else f" ({worst.which}; {len(found)} of {len(outcomes)} runs have one)"
            yield head.sentence(where)

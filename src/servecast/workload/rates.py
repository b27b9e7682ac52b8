"""Arrivals whose rate changes with time: steps, a daily rhythm, ramps, and rates modulated at random.

With a rate r(t) and R(t) its integral, arrivals are those times at which R reaches the sums of independent gaps of
mean 1 (time rescaling): gaps exponential for a Poisson process, gamma with ``burstiness`` as in `arrivals.Gamma`.
Ramps are vLLM's, where request i of n, not time, sets the rate. A value that cannot be raises ValueError.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, pi
from typing import TYPE_CHECKING, Literal

import numpy as np

from servecast.errors import InputError
from servecast.workload.arrivals import BURSTINESS, RATE, gaps
from servecast.workload.checks import ABOVE_0, between, check, one_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONGEST_S = 3e7  # a year: `Modulated` keeps a rate for each second


@dataclass(frozen=True)
class Piecewise:
    """A schedule: ``rates_rps[i]`` holds for ``durations_s[i]``, then no more arrivals unless it repeats.

    durations_s : how long each piece lasts [s]
    rates_rps : requests a second in each piece, 0 for none
    burstiness : 1 is Poisson, below 1 arrivals clump, .inf is even
    repeat : start again after the last piece
    """

    durations_s: tuple[float, ...]
    rates_rps: tuple[float, ...]
    burstiness: float = 1.0
    repeat: bool = False

    def __post_init__(self) -> None:
        check(self, BURSTINESS, "burstiness")
        if not self.durations_s or len(self.durations_s) != len(self.rates_rps):
            raise ValueError(
                f"durations_s has {len(self.durations_s)} values, rates_rps {len(self.rates_rps)}; give as many"
            )
        for name, least in (("durations_s", "above 0"), ("rates_rps", "at least 0")):
            for value in getattr(self, name):
                if not isfinite(value) or value < 0 or (value == 0 and name == "durations_s"):
                    raise ValueError(f"{name} is {value}; each must be finite and {least}")
        if not any(self.rates_rps):
            raise ValueError("rates_rps is 0 throughout; some must be above 0")

    def times(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """The first n arrivals, or as many as the schedule has: [s]."""
        due = np.cumsum(gaps(n, self.burstiness, rng))
        ends_s = np.cumsum(self.durations_s)
        passed = np.cumsum(np.multiply(self.durations_s, self.rates_rps))
        rounds = np.floor(due / passed[-1])
        if not self.repeat:
            due, rounds = due[due <= passed[-1]], np.zeros(int(np.sum(due <= passed[-1])))
        due = due - rounds * passed[-1]
        piece = np.minimum(np.searchsorted(passed, due, "left"), len(passed) - 1)
        rates = np.asarray(self.rates_rps, float)
        starts_s, before = ends_s - self.durations_s, passed - np.multiply(self.durations_s, self.rates_rps)
        with np.errstate(divide="ignore", invalid="ignore"):
            within_s = np.where(rates[piece] > 0, (due - before[piece]) / rates[piece], 0.0)
        times_s = rounds * ends_s[-1] + starts_s[piece] + within_s
        return np.maximum.accumulate(times_s) if len(times_s) else times_s


@dataclass(frozen=True)
class Diurnal:
    """A daily rhythm: mean_rps * (1 + swing cos(2 pi (t - peak_s) / period_s)).

    mean_rps : requests a second over a whole period
    swing : 0 is flat, 1 falls to nothing at the low
    peak_s : when the rate is highest [s]
    period_s : length of the rhythm [s], a day unless given
    burstiness : 1 is Poisson, below 1 arrivals clump, .inf is even
    """

    mean_rps: float
    swing: float = 0.5
    peak_s: float = 43_200.0
    period_s: float = 86_400.0
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        check(self, BURSTINESS, "burstiness")
        check(self, ABOVE_0, "mean_rps", "period_s")
        check(self, between(0, 1, "0 (flat) and 1"), "swing")
        check(self, ("be finite", isfinite), "peak_s")

    def passed(self, time_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Requests expected until ``time_s``."""
        turn = 2 * pi / self.period_s
        wave = np.sin(turn * (time_s - self.peak_s)) + np.sin(turn * self.peak_s)
        return np.asarray(self.mean_rps * (time_s + self.swing / turn * wave))

    def times(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        due = np.cumsum(gaps(n, self.burstiness, rng))
        margin_s = self.swing * self.period_s / pi
        low, high = np.maximum(due / self.mean_rps - margin_s, 0), due / self.mean_rps + margin_s
        for _ in range(64):  # halving: exact to the last bits of a float, and no derivative that may vanish
            middle = (low + high) / 2
            early = self.passed(middle) < due
            low, high = np.where(early, middle, low), np.where(early, high, middle)
        return np.maximum.accumulate(high) if n else high


@dataclass(frozen=True)
class RampUp:
    """A rate that grows from request to request, as ``vllm bench serve --ramp-up-strategy``.

    start_rps : rate at the first request
    end_rps : rate at the last request
    strategy : linear s + (e - s) p or exponential s (e / s)^p, with p = i / (n - 1) at request i of n
    burstiness : 1 is Poisson, below 1 arrivals clump, .inf is even
    """

    start_rps: float
    end_rps: float
    strategy: Literal["linear", "exponential"] = "linear"
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        check(self, BURSTINESS, "burstiness")
        check(self, ABOVE_0, "start_rps", "end_rps")
        check(self, one_of("linear", "exponential"), "strategy")

    def rates(self, n: int) -> NDArray[np.float64]:
        """(n,) requests/s at each request."""
        progress = np.arange(n) / max(n - 1, 1)
        if self.strategy == "linear":
            return np.asarray(self.start_rps + (self.end_rps - self.start_rps) * progress)
        return np.asarray(self.start_rps * (self.end_rps / self.start_rps) ** progress)

    def times(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return np.cumsum(gaps(n, self.burstiness, rng) / self.rates(n))


_LONGEST_MINUTES = 500_000  # a year; each second has a number in memory


@dataclass(frozen=True)
class Modulated:
    """Poisson arrivals at a rate that is redrawn at random: bursts at three time scales (a doubly stochastic process).

    The rate is ``rate_rps`` times three independent gamma factors of mean 1, one redrawn every second, one every 10 s,
    one every 60 s. With variances a, b, c of the factors, counts in windows of 1, 10, 60 s have the index of
    dispersion 1 + rate w (V_w - 1): V_1 = (1+a)(1+b)(1+c), V_10 = (1+a/10)(1+b)(1+c), V_60 = (1+c)(1 + ((1+b)(1+a/10)
    - 1)/6).

    Seconds are counted from the first arrival, as the index of a trace is.

    rate_rps : requests a second on average; .inf sends all at once
    variance_1s, variance_10s, variance_60s : variance of the factor redrawn so often, 0 for none
    """

    rate_rps: float
    variance_1s: float = 0.0
    variance_10s: float = 0.0
    variance_60s: float = 0.0

    def __post_init__(self) -> None:
        check(self, RATE, "rate_rps")
        check(self, between(0, 1e6, "0 and a million"), "variance_1s", "variance_10s", "variance_60s")

    @classmethod
    def of_dispersion(cls, rate_rps: float, iod_1s: float, iod_10s: float, iod_60s: float) -> Modulated:
        """The process whose counts have these indices of dispersion, as near as it can.

        Below 1 counts as 1. One that falls as the window grows (arrivals noted in ticks of seconds) cannot be had: the
        longer window, by which queues build up, then holds for the shorter too.
        """
        iod_10s = min(iod_10s, iod_60s)
        iod_1s = min(iod_1s, iod_10s)
        v1, v10, v60 = (
            1 + max(iod - 1, 0) / (rate_rps * window) for iod, window in ((iod_1s, 1), (iod_10s, 10), (iod_60s, 60))
        )
        ratio = min(max(v1 / v10, 1.0), 9.99)
        fast = (ratio - 1) / (1 - ratio / 10)
        ratio = min(max(v10 / v60, 1.0), 5.99)
        middle = ratio * (5 / 6) / (1 - ratio / 6)  # (1 + b)(1 + a/10)
        medium = max(middle / (1 + fast / 10) - 1, 0.0)
        slow = max(v10 / ((1 + fast / 10) * (1 + medium)) - 1, 0.0)
        return cls(rate_rps, min(fast, 1e6), min(medium, 1e6), min(slow, 1e6))

    def times(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        due = np.cumsum(rng.standard_exponential(n))
        if not n or self.rate_rps == inf:
            return np.zeros(n)
        if n / self.rate_rps > LONGEST_S:
            long = f"{n:,} requests at {self.rate_rps:g} a second take more than {LONGEST_S:g} s (a year)"
            raise InputError("arrivals", f"{long}; ask for fewer, or a higher rate")
        first_s = due[0] / self.rate_rps
        due -= due[0]
        chunks: list[NDArray[np.float64]] = []
        total = 0.0
        minutes = int(min(max(64.0, n / self.rate_rps / 60 + 1), _LONGEST_MINUTES))
        while total <= due[-1]:
            if len(chunks) * minutes >= _LONGEST_MINUTES:
                remedy = "a higher rate_rps, smaller variances, or fewer requests"
                raise InputError(
                    "arrivals", f"{n:,} requests take more than {_LONGEST_MINUTES:,} minutes; give {remedy}"
                )
            rate = np.full(minutes * 60, self.rate_rps)
            for variance, held_s in ((self.variance_60s, 60), (self.variance_10s, 10), (self.variance_1s, 1)):
                if variance:
                    factors = rng.gamma(1 / variance, variance, minutes * 60 // held_s)
                    rate *= np.repeat(factors, held_s)
            chunks.append(rate)
            total += float(rate.sum())
        passed = np.concatenate([[0.0], np.cumsum(np.concatenate(chunks))])
        second = np.maximum(np.searchsorted(passed, due, "left") - 1, 0)
        rate = passed[second + 1] - passed[second]  # 0 where the factors of the first arrival's second vanish
        return np.asarray(first_s + second + np.divide(due - passed[second], rate, out=np.zeros(n), where=rate > 0))

"""When requests arrive: Poisson, gamma, constant and burst arrivals, and the users of a closed loop.

Arrival number i (from 1) is the sum of the first i gaps, so the clock starts one gap before the first arrival, as in
``vllm bench serve``. Gaps are not rescaled, so the achieved rate of a sample differs from the one asked by about
CV/sqrt(n); ``rescale`` does what vLLM does and stretches the sample until its last arrival is at n/rate. A rate of inf
means that all arrive at 0. Not here: rates that change with time.

A value that cannot be raises ValueError.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Protocol

import numpy as np

from servecast.errors import InputError
from servecast.workload.checks import AT_LEAST_0, AT_LEAST_1, check

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from servecast.workload.checks import Rule


RATE: Rule = ("be above 0 (.inf sends all at once)", lambda value: value > 0)
BURSTINESS: Rule = ("be above 0 (1 is Poisson, below 1 clumps)", lambda value: value > 0)


def gaps(n: int, burstiness: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """(n,) independent gaps of mean 1 with CV 1/sqrt(burstiness)."""
    if burstiness == inf:
        return np.ones(n)
    return rng.standard_gamma(burstiness, n) / burstiness


class Arrivals(Protocol):
    """An open-loop arrival process."""

    def times(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """The first n arrivals: (n,) float64 [s], never decreasing."""


def arrive(arrivals: Arrivals, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """The first n arrivals, or as many as there are: [s]. An InputError where their times are beyond all numbers."""
    with np.errstate(all="ignore"):  # what follows says it better than a warning
        times_s = arrivals.times(n, rng)
    if not np.isfinite(times_s).all():
        raise InputError(
            "arrivals", "rates or times so small or large put arrivals beyond all numbers: give usual ones"
        )
    return times_s


@dataclass(frozen=True)
class Poisson:
    """Poisson arrivals at ``rate_rps`` [requests/s]: exponential gaps, CV 1.

    rate_rps : requests a second on average; .inf sends all at once
    rescale : true stretches the gaps so that n arrivals span n / rate_rps, as ``vllm bench serve`` does
    """

    rate_rps: float
    rescale: bool = False

    def __post_init__(self) -> None:
        check(self, RATE, "rate_rps")

    def times(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return Gamma(self.rate_rps, 1.0, self.rescale).times(n, rng)


@dataclass(frozen=True)
class Gamma:
    """Gamma gaps as ``vllm bench serve --burstiness`` draws them: shape ``burstiness``, mean 1/``rate_rps`` [s].

    rate_rps : requests a second on average; .inf sends all at once
    burstiness : the CV of the gaps is 1/sqrt(burstiness): 1 is Poisson, below 1 arrivals clump, .inf is even
    rescale : true stretches the gaps so that n arrivals span n / rate_rps, as ``vllm bench serve`` does
    """

    rate_rps: float
    burstiness: float = 1.0
    rescale: bool = False

    def __post_init__(self) -> None:
        check(self, RATE, "rate_rps")
        check(self, BURSTINESS, "burstiness")

    def times(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        if self.rate_rps == inf or self.burstiness == inf:
            return Constant(self.rate_rps).times(n, rng)
        return _times(np.cumsum(gaps(n, self.burstiness, rng)), self.rate_rps, self.rescale)


@dataclass(frozen=True)
class Constant:
    """One arrival every 1/``rate_rps`` [s], the first after one gap, the n-th at n/rate without accumulated error.

    rate_rps : requests a second; .inf sends all at once
    """

    rate_rps: float

    def __post_init__(self) -> None:
        check(self, RATE, "rate_rps")

    def times(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return _times(np.arange(1.0, n + 1), self.rate_rps)


@dataclass(frozen=True)
class Burst:
    """All at 0: what the server does with them is its saturation."""

    def times(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """The first n arrivals: (n,) float64 [s], all 0."""
        return np.zeros(n)


@dataclass(frozen=True)
class Closed:
    """No arrival process: users who wait for their answer, think, and send again.

    `clients.ClosedLoop` sends for them.

    users : how many
    think_s : seconds from an answer to the user's next request
    ramp_s : seconds over which the users begin, evenly; 0: all at once, and with equal thinking they stay together
    """

    users: int
    think_s: float = 0.0
    ramp_s: float = 0.0

    def __post_init__(self) -> None:
        check(self, AT_LEAST_1, "users")
        check(self, AT_LEAST_0, "think_s", "ramp_s")


def _times(passed: NDArray[np.float64], rate_rps: float, rescale: bool = False) -> NDArray[np.float64]:
    """Arrivals [s] from times counted in mean gaps."""
    n = len(passed)
    if rescale and n:
        if passed[-1] <= 0:
            raise InputError(
                "arrivals.rescale",
                f"all {n} gaps drawn are 0 and cannot be stretched; use a larger burstiness, or leave rescale out",
            )
        passed = passed * (n / passed[-1])
    with np.errstate(over="ignore"):  # the check below says it better than a warning
        times_s = passed / rate_rps
    if n and not isfinite(times_s[-1]):
        raise InputError("arrivals.rate_rps", f"{rate_rps} puts an arrival beyond the largest number; use a larger one")
    return times_s

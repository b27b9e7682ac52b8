"""How sure a number is: 90 % intervals from seeds and from what a profile says of its own errors.

    seeds     t interval of the mean over seeds. Values above 0 get it from their logarithms: the interval stays above
              0, and its upper side is the longer one, as the tails near saturation are. Shares end at 0 and 1
    profile   draws of the cost model: coefficients from the calibration's covariance, and one step_time_scale for all
              steps, from the quantiles of measured over predicted step times. A draw is simulated with the same random
              numbers as the profile itself, so that the difference is the profile's share alone

The two are independent: their half-widths add in quadrature, on either side. Two more widths are added in the same way:
the bracket in which a search left a highest load, on both sides, and how far that load moved when runs were made twice
as long. All seeds search the same loads, so that brackets hide how seeds differ: the standard deviation over seeds is
never below that of a value anywhere in the bracket (its width / sqrt 12). Where a draw has no bound (its queue grows
for ever) the interval has none.

One scale holds for all steps of a run. Single steps scatter and average out, but no profile says how much of the
scatter is bias, so that the interval is on the wide side. A profile of single operators has no residuals of whole
steps: the left-out error of its worst operator stands for them. No scale is nearer to 1 than what is known of profiles
of its kind (`servecast.cost.known_error`), and a datasheet has that alone. Where nothing but the scale is drawn, its 5
and 95 % quantiles are enough: longer steps serve less. Steps outside what was measured widen no interval;
`servecast.run.extrapolation` says how far outside.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servecast.cost.fitted import COEFFICIENTS
from servecast.cost.known_error import TAIL, known_error
from servecast.cost.profile import PROBABILITIES, Profile, TabulatedProfile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from servecast.cost.model import CostModel
    from servecast.cost.profile import ProfileFile

#: How many times as many coefficients are drawn as are wanted: some of them below 0.
_TRIES = 16


class Estimate(NamedTuple):
    """A value with its 90 % interval; None where nothing tells one."""

    value: float
    low: float | None = None
    high: float | None = None

    def each(self, change: Callable[[float], float]) -> Estimate:
        """The estimate with its value and its ends changed by a function that grows."""
        low, high = (None if end is None else change(end) for end in (self.low, self.high))
        return Estimate(change(self.value), low, high)

    def over(self, share: float) -> Estimate:
        """The estimate divided by a number above 0."""
        return self.each(lambda end: end / share)

    def inverse(self, factor: float) -> Estimate:
        """``factor`` / value: what falls as the value grows, as dollars a token do with the rate."""
        low, high = (None if end is None else (math.inf if end <= 0 else factor / end) for end in (self.high, self.low))
        return Estimate(factor / self.value, low, high)


class Draw(NamedTuple):
    """One cost model that the profile's errors allow, and the factor of all its step times."""

    cost: CostModel
    step_time_scale: float

    @property
    def key(self) -> str:
        """What tells it from other draws of the same profile."""
        drawn = [getattr(self.cost, name, None) for name in COEFFICIENTS]
        return hashlib.sha256(repr((self.step_time_scale, drawn)).encode()).hexdigest()[:16]


def draws(profile: ProfileFile | None, cost: CostModel, count: int, busy: Mapping[str, float]) -> list[Draw]:
    """``count`` cost models that a profile's covariance, its residuals and what is known of its kind allow.

    Where nothing but the scale of step times is drawn, its two ends (none for a count of 0, but for a datasheet).

    profile : None for a datasheet: its known error is all that tells how sure it is
    busy : share of a run's seconds in each kind of step (`Regime`), which weighs their residuals
    """
    rng, known = np.random.default_rng(90), known_error(profile)
    if isinstance(profile, Profile) and profile.covariance:
        # One value from each of ``count`` equal parts of the distribution: few draws then span it evenly.
        ranks = ((rng.permutation(count) + 0.5) / count).tolist()
        costs = _coefficients(profile, cost, count, rng)
    else:
        ranks = [TAIL, 1 - TAIL] if count or profile is None else []
        costs = [cost] * len(ranks)
    if isinstance(profile, Profile):
        own = [_residual(profile, busy, rank) for rank in ranks]
    else:
        own = [1.0 if profile is None else _left_out(profile, rank) for rank in ranks]
    scales = [(min if rank < 0.5 else max)(scale, known.at(rank)) for scale, rank in zip(own, ranks, strict=True)]
    return [Draw(each, scale) for each, scale in zip(costs, scales, strict=True)]


def _coefficients(profile: Profile, cost: CostModel, count: int, rng: np.random.Generator) -> list[CostModel]:
    """Cost models with coefficients drawn around the fitted ones.

    A draw with a coefficient below 0 is drawn again: the others would not make up for what 0 adds to it.
    """
    covariance = np.array(profile.covariance)
    scale = np.sqrt(np.maximum(np.diag(covariance), np.finfo(float).tiny))  # coefficients differ by twelve decades
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    around = rng.standard_normal((count * _TRIES, len(scale))) @ (np.sqrt(np.maximum(values, 0)) * vectors).T * scale
    fitted: Any = cost
    drawn = [getattr(fitted, name) for name in COEFFICIENTS] + around
    drawn = np.maximum(drawn[np.argsort((drawn < 0).any(axis=1), kind="stable")][:count], 0.0)
    return [replace(fitted, **dict(zip(COEFFICIENTS, row.tolist(), strict=True))) for row in drawn]


def _residual(profile: Profile, busy: Mapping[str, float], rank: float) -> float:
    """Measured over predicted step time at this rank, over the kinds of step by the time they take."""
    weights = {kind: share for kind, share in busy.items() if kind in profile.residuals}
    if not weights or not sum(weights.values()):
        weights = {kind: float(residuals.steps) for kind, residuals in profile.residuals.items()}
    if not weights:
        return 1.0
    quantiles = {kind: np.interp(rank, PROBABILITIES, profile.residuals[kind].quantiles) for kind in weights}
    return float(sum(share * quantiles[kind] for kind, share in weights.items()) / sum(weights.values()))


def _left_out(profile: ProfileFile, rank: float) -> float:
    """A factor whose spread is that of the left-out points of whole steps, or else of the worst operator."""
    from statistics import NormalDist

    assert isinstance(profile, TabulatedProfile)
    steps = [error for error in profile.held_out if error.operator == "whole step" and error.along == "all"]
    judged = steps or list(profile.held_out)
    if not judged:
        return 1.0
    worst = max(judged, key=lambda error: error.p95)
    bias = worst.signed_mean if steps else 0.0
    quantile = NormalDist().inv_cdf
    sigma = math.log1p(worst.p95) / quantile(0.975)
    return math.exp(sigma * quantile(rank)) / (1 + bias)


def estimate(
    by_seed: Sequence[float],
    drawn: Sequence[tuple[float, float]] = (),
    *,
    most: float = math.inf,
    slack: float = 0.0,
    drift: float = 0.0,
) -> Estimate:
    """The mean over seeds with its interval, widened by what draws of the profile change.

    drawn : with the profile itself, and with a draw in its place, everything else the same; infinite without a bound
    most : what the value cannot exceed; nothing here is below 0
    slack : share of each value in which it lies: the width of its bracket
    drift : by which share runs half as long gave more (below 0: less): those still longer may give that much less
    """
    values = np.asarray(by_seed, float)
    mean = float(values.mean())
    if len(values) < 2 and not drawn:
        return Estimate(mean)
    here, there = np.array(drawn, float).reshape(-1, 2).T
    if math.isinf(most) and (values > 0).all() and (here > 0).all():
        bracket = math.log1p(slack)
        seeds = _half_width(np.log(values), bracket)
        least, greatest = _tails(there / here, 1.0)
        less, more = math.log1p(max(drift, 0.0)), math.log1p(max(-drift, 0.0))
        below = math.hypot(seeds, math.log(least), bracket, less) if least else math.inf
        above = math.hypot(seeds, math.log(greatest), bracket, more)
        return Estimate(mean, mean * math.exp(-below), mean * math.exp(above))
    seeds = _half_width(values, mean * slack)
    least, greatest = _tails(there - here, 0.0)
    high = mean + math.hypot(seeds, greatest, mean * slack, mean * max(-drift, 0.0))
    low = mean - math.hypot(seeds, least, mean * slack, mean * max(drift, 0.0))
    return Estimate(mean, max(low, 0.0), min(high, most))


def _half_width(values: np.ndarray[Any, Any], bracket: float) -> float:
    """Of the 90 % t interval of a mean of values, each known to within ``bracket``; 0 for a single value."""
    from scipy.special import stdtrit

    count = len(values)
    if count == 1:
        return 0.0
    deviation = max(values.std(ddof=1), bracket / math.sqrt(12))
    return float(stdtrit(count - 1, 1 - TAIL) * deviation) / math.sqrt(count)


def _tails(changes: np.ndarray[Any, Any], none: float) -> tuple[float, float]:
    """The 5 and 95 % quantiles of what draws change, neither on the other side of no change."""
    if not len(changes):
        return none, none
    if len(changes) <= 2:  # they are the quantiles themselves
        return min(*changes.tolist(), none), max(*changes.tolist(), none)
    # Between a finite and an infinite value there is nothing to interpolate.
    below, above = ("linear", "linear") if np.isfinite(changes).all() else ("lower", "higher")
    least = float(np.quantile(changes, TAIL, method=below))  # type: ignore[call-overload]
    greatest = float(np.quantile(changes, 1 - TAIL, method=above))  # type: ignore[call-overload]
    return min(least, none), max(greatest, none)

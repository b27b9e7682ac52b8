"""How alike two runs of the same requests are: equivalence of means, distance of distributions.

*Equivalence* is shown, not assumed: two one-sided t tests (Schuirmann 1987) reject "off by the margin or more" on
either side; this is the same as the 90 % interval of the error lying within the margin. Latencies of requests that were
served together are not independent, so the tests see means of consecutive requests (batch means, Law and Kelton): 30 of
them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BATCHES: Final = 30
_SIGNIFICANCE: Final = 0.05


class _Tost(NamedTuple):
    """Outcome of the two tests: ``low .. high`` is the 90 % interval of the mean, ``p_value`` the larger of the two."""

    mean: float
    low: float
    high: float
    p_value: float

    @property
    def equivalent(self) -> bool:
        """Whether a difference of the margin or more is rejected at the 5 % level."""
        return self.p_value < _SIGNIFICANCE


def tost(differences: NDArray[np.float64], margin: float) -> _Tost | None:
    """Two one-sided t tests of mean ``differences`` (n,) against -margin and +margin; None for fewer than two."""
    from scipy.special import stdtr, stdtrit

    count = len(differences)
    if count < 2:
        return None
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    if error == 0.0:
        return _Tost(mean, mean, mean, 0.0 if abs(mean) < margin else 1.0)
    freedom = count - 1
    above, below = (mean + margin) / error, (mean - margin) / error
    p_value = max(float(stdtr(freedom, -above)), float(stdtr(freedom, below)))
    half = float(stdtrit(freedom, 1 - _SIGNIFICANCE)) * error
    return _Tost(mean, mean - half, mean + half, p_value)


def batch_means(values: NDArray[np.float64], batches: int = _BATCHES) -> NDArray[np.float64]:
    """Means of ``batches`` runs of consecutive values, of as many as there are values if those are fewer."""
    count = min(batches, len(values))
    return np.array([part.mean() for part in np.array_split(values, count)]) if count else np.empty(0)


def ks_distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Kolmogorov-Smirnov: the largest vertical distance of the two distributions, 0 to 1; None if one is empty."""
    from scipy import stats

    if not len(one) or not len(other):
        return None
    with np.errstate(divide="ignore"):  # in its p-value, which nobody reads
        return float(stats.ks_2samp(one, other, method="asymp").statistic)

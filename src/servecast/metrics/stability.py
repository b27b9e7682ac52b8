"""Whether a queue keeps up with what arrives: stable, backlogged or overloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.requests import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from servecast.metrics.log import Columns


def regime(requests: Columns, end_s: float) -> str | None:
    """``stable``, ``backlogged`` or ``overloaded``; None when all requests arrive at one moment.

    Stable: the mean number waiting in the last third of the arrival window is at most 1.2 times that of the middle
    third plus 2. Else backlogged if after its peak in the last third the queue was empty once more before the last
    arrival: what built up was worked off; else overloaded. Waiting is from arrival (a client that holds requests back
    only moves the queue to its side) to first scheduled, over the whole run.
    """
    kept = requests["status"] != Status.REJECTED
    arrived, left = requests["arrival_s"][kept], requests["scheduled_s"][kept]
    left = np.where(np.isnan(left), requests["finish_s"][kept], left)
    left = np.where(np.isnan(left), end_s, left)
    if not len(arrived) or arrived.max() == arrived.min():
        return None
    opening, closing = float(arrived.min()), float(arrived.max())
    middle = opening + (closing - opening) / 3
    final = opening + (closing - opening) * 2 / 3

    def mean_waiting(begin: float, end: float) -> float:
        overlap = np.minimum(left, end) - np.maximum(arrived, begin)
        return float(np.maximum(overlap, 0).sum()) / (end - begin)

    if mean_waiting(final, closing) <= 1.2 * mean_waiting(middle, final) + 2:
        return "stable"
    arrivals, departures = np.sort(arrived), np.sort(left)
    late = arrivals[arrivals >= final]
    peak = late[np.argmax(_waiting(arrivals, departures, late))]
    moments = departures[(departures > peak) & (departures < closing)]
    return "backlogged" if bool((_waiting(arrivals, departures, moments) == 0).any()) else "overloaded"


def _waiting(arrivals: NDArray[np.float64], departures: NDArray[np.float64], at: NDArray[np.float64]) -> Any:
    return np.searchsorted(arrivals, at, side="right") - np.searchsorted(departures, at, side="right")

"""Another rate for the same requests: fewer of them (thinned), or copies of them laid over each other (tiled).

Warping time (``rate_scale``) also warps bursts; thinning and tiling leave the clock alone. Turns of one session stay
together: they are taken or left as one, and moved as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Copies(NamedTuple):
    """Rows of a trace to send, in order of arrival: ``rows`` positions, ``copy`` from 0, ``arrival_s``; (m,) each."""

    rows: NDArray[np.intp]
    copy: NDArray[np.int64]
    arrival_s: NDArray[np.float64]


def sessions_of(sessions: Sequence[str | None] | None, n: int) -> NDArray[np.intp]:
    """(n,) for each row the first row of its session; a row without a session is alone."""
    if sessions is None:
        return np.arange(n)
    first: dict[str, int] = {}
    return np.array([row if name is None else first.setdefault(name, row) for row, name in enumerate(sessions)], int)


def as_it_is(arrival_s: NDArray[np.float64]) -> Copies:
    """Every row once."""
    n = len(arrival_s)
    return Copies(np.arange(n), np.zeros(n, np.int64), arrival_s)


def at_rate(
    arrival_s: NDArray[np.float64], sessions: NDArray[np.intp], rate_rps: float, rng: np.random.Generator
) -> Copies:
    """Rows thinned or tiled to ``rate_rps`` requests/s on average over the trace's own span.

    Below the trace's rate a random part of the rows is left out. Above it, whole copies and a thinned one are added,
    each moved by a random time and wrapped around the end, so that copies do not burst at the same moments; a daily
    rhythm is flattened by that. ``arrival_s`` starts at 0 and spans some time.
    """
    n = len(arrival_s)
    period_s = float(arrival_s[-1]) * n / (n - 1)  # the span and one mean gap, as where a trace is repeated
    wanted = rate_rps * period_s
    parts = []
    for copy in range(max(1, int(np.ceil(wanted / n - 1e-9)))):
        rows = _some(sessions, round(min(wanted - copy * n, n)), rng)
        times_s = arrival_s[rows]
        if copy:
            first_s = arrival_s[sessions[rows]]
            times_s = (first_s + rng.uniform(0, period_s)) % period_s + (times_s - first_s)
        parts.append(Copies(rows, np.full(len(rows), copy), times_s))
    rows, copies, times_s = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(times_s, kind="stable")
    return Copies(rows[order], copies[order], times_s[order])


def _some(sessions: NDArray[np.intp], wanted: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """``wanted`` rows at random (about so many where sessions have several turns), at least one, in order."""
    n = len(sessions)
    if wanted >= n:
        return np.arange(n)
    of, turns = np.unique(sessions, return_counts=True)
    order = rng.permutation(len(of))
    upto = np.searchsorted(np.cumsum(turns[order]), max(wanted, 1), "left") + 1
    chosen = np.zeros(n, bool)
    chosen[of[order[:upto]]] = True
    return np.flatnonzero(chosen[sessions])


def split(total: int, weights: Sequence[float]) -> list[int]:
    """``total`` in whole parts in proportion to ``weights``, by largest remainder: the parts add up exactly."""
    shares = np.asarray(weights, float) / sum(weights) * total
    parts = np.floor(shares).astype(int)
    for at in np.argsort(parts - shares, kind="stable")[: total - int(parts.sum())]:
        parts[at] += 1
    return [int(part) for part in parts]

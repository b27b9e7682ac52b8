"""Pooled inter-token gaps: a histogram that answers as the list of all gaps would, to within 0.1 %."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from servecast.metrics.log import TIME_TOLERANCE_S, chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from servecast.engine import Run
    from servecast.metrics.log import Columns


class GapHistogram:
    """A multiset of positive times [s] in logarithmic bins 0.1 % wide, each of which reports the mean of its members.

    Equal values come back as they were put in, any other quantile to within 0.1 %, and the mean is exact, in the
    memory of 35,000 bins whatever the number of values. What lies outside 1 ns .. 1e6 s shares the outermost bin.
    """

    WIDTH = 1.001
    SMALLEST_S = 1e-9
    BINS = math.ceil(math.log(1e15) / math.log(WIDTH))
    _PAIRS = 1 << 20  # (decision, bin) pairs expanded together

    def __init__(self) -> None:
        self.counts: NDArray[np.float64] = np.zeros(self.BINS)
        self.sums: NDArray[np.float64] = np.zeros(self.BINS)

    def add(self, gaps: NDArray[np.float64], weights: NDArray[np.float64] | None = None) -> None:
        """Put in ``gaps`` : (n,) [s], each ``weights`` : (n,) times (once when None)."""
        weights = np.ones(len(gaps)) if weights is None else weights
        self._count(self._bins(gaps), weights, gaps * weights)

    def add_runs(
        self,
        first: NDArray[np.float64],
        seconds: NDArray[np.float64],
        iterations: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> None:
        """Put in the gaps of coalesced decisions, all (n,): ``iterations`` steps of ``first`` s and then in equal
        increments, ``seconds`` in total, ``rows`` tokens each.

        Costs as many operations as a decision touches bins, not as it has iterations.
        """
        slope = _slopes(first, seconds, iterations)
        low = np.where(slope < 0, first + slope * (iterations - 1), first)  # a falling run is the same multiset upwards
        slope = np.abs(slope)
        first_bin = self._bins(low)
        spans = self._bins(low + slope * (iterations - 1)) - first_bin + 1
        ends = np.cumsum(spans)
        begin = 0
        while begin < len(first):
            done = ends[begin - 1] if begin else 0
            end = max(int(np.searchsorted(ends, done + self._PAIRS, side="right")), begin + 1)
            part = slice(begin, end)
            self._add_spans(low[part], slope[part], iterations[part], rows[part], first_bin[part], spans[part])
            begin = end

    def _add_spans(
        self,
        low: NDArray[np.float64],
        slope: NDArray[np.float64],
        iterations: NDArray[np.int64],
        rows: NDArray[np.int64],
        first_bin: NDArray[np.int64],
        spans: NDArray[np.int64],
    ) -> None:
        last = np.cumsum(spans) - 1
        start = last - spans + 1
        owner = np.repeat(np.arange(len(low)), spans)
        bins = first_bin[owner] + np.arange(len(owner)) - start[owner]
        upto = iterations[owner].astype(np.float64)  # iterations that lie below the upper edge of the pair's bin
        inner = np.ones(len(owner), dtype=bool)
        inner[last] = False
        of = owner[inner]
        edges = self.SMALLEST_S * self.WIDTH ** (bins[inner] + 1.0)
        upto[inner] = np.clip(np.ceil((edges - low[of]) / slope[of]), 0, upto[inner])
        since = np.empty_like(upto)
        since[1:] = upto[:-1]
        since[start] = 0
        count = upto - since
        total = count * (low[owner] + slope[owner] * (since + upto - 1) / 2)
        weight = rows[owner]
        self._count(bins, count * weight, total * weight)

    def _bins(self, gaps: NDArray[np.float64]) -> NDArray[np.int64]:
        place = np.log(np.maximum(gaps, self.SMALLEST_S) / self.SMALLEST_S) / math.log(self.WIDTH)
        return np.minimum(place.astype(np.int64), self.BINS - 1)

    def _count(self, bins: NDArray[np.int64], counts: NDArray[np.float64], sums: NDArray[np.float64]) -> None:
        self.counts += np.bincount(bins, counts, minlength=self.BINS)
        self.sums += np.bincount(bins, sums, minlength=self.BINS)

    def mean(self) -> float | None:
        """The mean [s], or None when empty."""
        count = float(self.counts.sum())
        return float(self.sums.sum()) / count if count else None

    def percentiles(self, ranks: Sequence[float]) -> list[float | None]:
        """The percentiles ``ranks`` (0 to 100) [s] by `PERCENTILE_RULE`, or None each when empty."""
        filled = np.flatnonzero(self.counts)
        if not len(filled):
            return [None] * len(ranks)
        means = self.sums[filled] / self.counts[filled]
        upto = np.cumsum(self.counts[filled])
        place = np.asarray(ranks) / 100 * (upto[-1] - 1)
        below, above = np.floor(place), np.ceil(place)
        low = means[np.searchsorted(upto, below, side="right")]
        high = means[np.searchsorted(upto, above, side="right")]
        return [float(value) for value in low + (high - low) * (place - below)]


def _slopes(
    first: NDArray[np.float64], seconds: NDArray[np.float64], iterations: NDArray[np.int64]
) -> NDArray[np.float64]:
    """By how much each iteration of a coalesced decision is longer than the one before it: (n,) [s]."""
    slope = np.zeros(len(first))
    several = iterations > 1
    slope[several] = 2 * (seconds[several] / iterations[several] - first[several]) / (iterations[several] - 1)
    return slope


def token_gaps(run: Run, decisions: Columns | None = None, bounds: tuple[float, float] | None = None) -> GapHistogram:
    """The pooled gaps of ``run`` (of its ``decisions`` when given); none when answers come in one piece.

    A row that decodes has a gap as long as each iteration, unless it stood still before its first one: that gap is in
    the run's own list, as are those of rows that were preempted. Of that list ``bounds`` [s] takes the tokens in
    (start, end].
    """
    histogram = GapHistogram()
    if run.respond == "batch_end":
        return histogram
    for part in chunks(run.decisions if decisions is None else decisions):
        busy = np.flatnonzero(part["useful_decode_rows"])
        names = ("step_s", "seconds", "iterations", "useful_decode_rows", "resumed_rows")
        first, seconds, iterations, rows, resumed = (part[name][busy] for name in names)
        if resumed.any():  # their first iteration is no gap of rows that stood still before it
            histogram.add(first, np.where(resumed, rows - resumed, 0).astype(np.float64))
            slope = np.where(resumed, _slopes(first, seconds, iterations), 0.0)
            seconds = np.where(resumed, seconds - first, seconds)
            first, iterations = first + slope, iterations - (resumed > 0)
            left = iterations > 0
            first, seconds, iterations, rows = (column[left] for column in (first, seconds, iterations, rows))
        histogram.add_runs(first, seconds, iterations, rows)
    listed = gaps_within(run, bounds)
    histogram.add(listed["seconds"], listed["rows"])
    return histogram


def gaps_within(run: Run, bounds: tuple[float, float] | None) -> dict[str, NDArray[np.float64]]:
    """The listed gaps (`engine.GAP_COLUMNS`) whose token comes in (start, end] [s]; all without bounds."""
    if bounds is None:
        return run.gaps
    end_s = run.gaps["end_s"]
    inside = (end_s > bounds[0] + TIME_TOLERANCE_S) & (end_s <= bounds[1] + TIME_TOLERANCE_S)
    return {name: column[inside] for name, column in run.gaps.items()}

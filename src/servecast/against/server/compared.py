"""The comparison itself: one table of recorded against simulated figures, and verdicts of equivalence.

All errors are signed and relative, (simulated - recorded) / recorded. Percentiles are numpy's linear ones. A row of
``statistic`` mean also says how single requests are met (median and 90th percentile of their unsigned relative errors),
how far the distributions are apart (Kolmogorov-Smirnov), and whether the means are equivalent within the margin.

*Equivalence* is shown, not assumed: two one-sided t tests (Schuirmann 1987) reject "off by the margin or more" on
either side; this is the same as the 90 % interval of the error lying within the margin. Latencies of requests that were
served together are not independent, so the tests see means of consecutive requests (batch means, Law and Kelton): 30 of
them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

import numpy as np

from servecast.against.server.observed import LATENCIES, CountedFrom

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from servecast.against.server.forecast import Forecast, Host
    from servecast.against.server.observed import Observed
    from servecast.scenario import Scenario

PERCENTILES: Final = (50, 90, 99)
_SHORT_TTFT_S: Final = 1.0
WHOLE: Final = "all"
_SHORT: Final = "TTFT under 1 s"
_JUDGED: Final = "judged"
_BATCHES: Final = 30
_SIGNIFICANCE: Final = 0.05

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Comparison:
    """A recording, its forecast, and what else they are held against.

    judged : (n,) which requests count; all but for warm-up, cool-down, or the part that the host was fitted on
    margin : relative error up to which means are called equivalent
    band : (share, forecast with steps so much shorter, with steps so much longer), or None
    twin : another recording of the same requests on a like server: how far two real runs are apart
    """

    scenario: Scenario
    recorded: Observed
    forecast: Forecast
    judged: NDArray[np.bool_]
    margin: float
    band: tuple[float, Observed, Observed] | None = None
    twin: tuple[str, Observed] | None = None
    host: Host | None = None
    notes: tuple[str, ...] = ()

    @property
    def simulated(self) -> Observed:
        """What the forecast's clients saw."""
        return self.forecast.seen

    @property
    def held_back(self) -> bool:
        """Whether the client held requests back for long enough to tell latencies from send and from arrival apart."""
        return self.recorded.held_back

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The table: latencies by where they count from, by group of requests, and the totals of the whole run."""
        return (*self._latency_rows(), *self._total_rows())

    @cached_property
    def table(self) -> pd.DataFrame:
        """`rows` as a data frame."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """A row a request: recorded, simulated and twin side by side."""
        import pandas as pd

        columns = {name: getattr(self.recorded, name) for name in ("arrival_s", "prompt_tokens", "output_tokens")}
        columns |= {_JUDGED: self.judged}
        runs = {"recorded": self.recorded, "simulated": self.simulated}
        runs |= {"twin": self.twin[1]} if self.twin else {}
        for name in ("sent_s", *LATENCIES):
            columns |= {f"{run}_{name}": getattr(seen, name) for run, seen in runs.items()}
        return pd.DataFrame(columns)

    def mean(self, name: str, *, group: str | None = None, counted_from: CountedFrom = "send") -> Row:
        """The row of the mean of a latency."""
        return self.row(name, "mean", group=group, counted_from=counted_from)

    def row(
        self, name: str, statistic: str, *, group: str | None = None, counted_from: CountedFrom | None = "send"
    ) -> Row:
        """One row of the table; of the first group, unless another is named."""
        for row in self.rows:
            if (row["metric"], row["statistic"], row["counted_from"]) == (name, statistic, counted_from) and (
                group is None or row["requests"] == group
            ):
                return row
        raise KeyError((name, statistic, group, counted_from))

    def _groups(self) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        yield WHOLE if self.judged.all() else _JUDGED, self.judged
        short = self.judged & (self.recorded.ttft_s < _SHORT_TTFT_S)
        if short.any() and not short[self.judged].all():
            yield _SHORT, short

    def _latency_rows(self) -> Iterator[Row]:
        for counted_from, (group, some), name in product(get_args(CountedFrom), self._groups(), LATENCIES):
            chosen = some & ~np.isnan(self.recorded.latency(name, counted_from))
            if (name == "tpot_s" and counted_from != "send") or not chosen.any():
                continue
            runs = {run: seen.latency(name, counted_from)[chosen] for run, seen in self._runs().items()}
            values = {run: _statistics(latencies) for run, latencies in runs.items()}
            for statistic in values["recorded"]:
                row: Row = {"counted_from": counted_from, "requests": group, "count": int(chosen.sum())}
                row |= {"metric": name, "statistic": statistic}
                row |= self._side_by_side({run: values[run][statistic] for run in runs})
                yield row | (self._verdict(runs) if statistic == "mean" else {})

    def _runs(self) -> dict[str, Observed]:
        runs = {"recorded": self.recorded, "simulated": self.simulated}
        if self.band is not None:
            runs |= {"shorter": self.band[1], "longer": self.band[2]}
        return runs | ({"twin": self.twin[1]} if self.twin else {})

    def _side_by_side(self, values: dict[str, float]) -> Row:
        recorded = values["recorded"]
        row: Row = {"recorded": recorded, "simulated": values["simulated"]}
        row["error"] = _error(values["simulated"], recorded)
        if "shorter" in values:
            around = (values["simulated"], values["shorter"], values["longer"])
            low, high = min(around), max(around)
            row |= {"band_low": low, "band_high": high, "in_band": low <= recorded <= high}
        if "twin" in values:
            row |= {"twin": values["twin"], "twin_error": _error(values["twin"], recorded)}
        return row

    def _verdict(self, runs: dict[str, NDArray[np.float64]]) -> Row:
        recorded, simulated = runs["recorded"], runs["simulated"]
        each = _errors(simulated, recorded)
        row: Row = {"request_error_p50": float(np.median(each)), "request_error_p90": float(np.percentile(each, 90))}
        row["ks_distance"] = ks_distance(recorded, simulated)
        mean = float(recorded.mean())
        tested = tost(batch_means((simulated - recorded) / mean), self.margin) if mean else None
        if tested is not None:
            row |= {"error_low": tested.low, "error_high": tested.high, "margin": self.margin}
            row |= {"tost_p": tested.p_value, "equivalent": tested.equivalent}
        if "twin" in runs:
            row["twin_request_error_p50"] = float(np.median(_errors(runs["twin"], recorded)))
            row["twin_ks_distance"] = ks_distance(recorded, runs["twin"])
        return row

    def _total_rows(self) -> Iterator[Row]:
        totals = {run: seen.totals() for run, seen in self._runs().items()}
        for name in totals["recorded"]:
            row: Row = {"counted_from": None, "requests": "whole run", "count": len(self.recorded)}
            row |= {"metric": name, "statistic": "total"}
            yield row | self._side_by_side({run: values[name] for run, values in totals.items()})


def _error(value: float, recorded: float) -> float:
    """How far a value is off, as a share of what was recorded; NaN where that is 0."""
    return value / recorded - 1 if recorded else math.nan


def _errors(values: NDArray[np.float64], recorded: NDArray[np.float64]) -> NDArray[np.float64]:
    """Errors without sign, as shares, of those requests (n,) whose latency is not 0; one NaN if there is none."""
    some = recorded != 0
    return np.abs(values[some] / recorded[some] - 1) if some.any() else np.array([math.nan])


def _statistics(values: NDArray[np.float64]) -> dict[str, float]:
    """Mean and percentiles of some requests' latencies."""
    ranked = np.percentile(values, PERCENTILES).tolist()
    return {"mean": float(values.mean())} | {f"p{rank}": value for rank, value in zip(PERCENTILES, ranked, strict=True)}


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

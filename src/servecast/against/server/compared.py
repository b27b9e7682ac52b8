"""The comparison itself: one table of recorded against simulated figures, and verdicts of equivalence.

All errors are signed and relative, (simulated - recorded) / recorded. Percentiles are numpy's linear ones. A row of
``statistic`` mean also says how single requests are met (median and 90th percentile of their unsigned relative errors),
how far the distributions are apart (Kolmogorov-Smirnov), and whether the means are equivalent within the margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from servecast.against.server.observed import LATENCIES, CountedFrom
from servecast.against.server.statistics import batch_means, ks_distance, tost

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from servecast.against.server.forecast import Forecast, Setting
    from servecast.against.server.host import Host
    from servecast.against.server.observed import Observed

PERCENTILES: Final = (50, 90, 99)
_SHORT_TTFT_S: Final = 1.0
WHOLE: Final = "all"
_SHORT: Final = "TTFT under 1 s"
_JUDGED: Final = "judged"

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Comparison:
    """A recording, its forecast, and what else they are held against.

    judged : (n,) which requests count; all but for warm-up, cool-down, or the part that the host was fitted on
    margin : relative error up to which means are called equivalent
    band : (share, forecast with steps so much shorter, with steps so much longer), or None
    twin : another recording of the same requests on a like server: how far two real runs are apart
    """

    setting: Setting
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
        for counted_from in CountedFrom.__args__:  # type: ignore[attr-defined]
            for group, chosen in self._groups():
                for name in LATENCIES:
                    if name != "tpot_s" or counted_from == "send":
                        yield from self._of(name, counted_from, group, chosen)

    def _of(self, name: str, counted_from: CountedFrom, group: str, chosen: NDArray[np.bool_]) -> Iterator[Row]:
        chosen = chosen & ~np.isnan(self.recorded.latency(name, counted_from))
        runs = {run: seen.latency(name, counted_from)[chosen] for run, seen in self._runs().items()}
        values = {run: _statistics(latencies) for run, latencies in runs.items()}
        if not chosen.any():
            return
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
        row["error"] = values["simulated"] / recorded - 1
        if "shorter" in values:
            around = (values["simulated"], values["shorter"], values["longer"])
            low, high = min(around), max(around)
            row |= {"band_low": low, "band_high": high, "in_band": low <= recorded <= high}
        if "twin" in values:
            row |= {"twin": values["twin"], "twin_error": values["twin"] / recorded - 1}
        return row

    def _verdict(self, runs: dict[str, NDArray[np.float64]]) -> Row:
        recorded, simulated = runs["recorded"], runs["simulated"]
        each = np.abs(simulated / recorded - 1)
        row: Row = {"request_error_p50": float(np.median(each)), "request_error_p90": float(np.percentile(each, 90))}
        row["ks_distance"] = ks_distance(recorded, simulated)
        tested = tost(batch_means((simulated - recorded) / recorded.mean()), self.margin)
        if tested is not None:
            row |= {"error_low": tested.low, "error_high": tested.high, "margin": self.margin}
            row |= {"tost_p": tested.p_value, "equivalent": tested.equivalent}
        if "twin" in runs:
            row["twin_request_error_p50"] = float(np.median(np.abs(runs["twin"] / recorded - 1)))
            row["twin_ks_distance"] = ks_distance(recorded, runs["twin"])
        return row

    def _total_rows(self) -> Iterator[Row]:
        totals = {run: seen.totals() for run, seen in self._runs().items()}
        for name in totals["recorded"]:
            row: Row = {"counted_from": None, "requests": "whole run", "count": len(self.recorded)}
            row |= {"metric": name, "statistic": "total"}
            yield row | self._side_by_side({run: values[name] for run, values in totals.items()})


def _statistics(values: NDArray[np.float64]) -> dict[str, float]:
    """Mean and percentiles of some requests' latencies; empty for none."""
    if not len(values):
        return {}
    ranked = np.percentile(values, PERCENTILES)
    return {"mean": float(values.mean())} | {
        f"p{rank}": float(value) for rank, value in zip(PERCENTILES, ranked, strict=True)
    }

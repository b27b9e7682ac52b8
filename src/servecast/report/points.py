"""The points of a sweep as charts show them: means over the seeds with their range, all numbers of each, and a table.

Interactivity is 1 / TPOT in the median (output tokens per second that a user sees), against output tokens per second of
each GPU: the Pareto frontier joins the points that no other beats in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.metrics import METRICS, WIDE, Metric, ranked
from servecast.report.charts.looks import places
from servecast.report.charts.spec import Bar, Datum, Key, Part, Series
from servecast.report.tables import written
from servecast.run.judged import judged, per_policy
from servecast.run.results import stated, swept
from servecast.text import missing, plain_value, short_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd

    from servecast.run.results import Results

_LONGEST = 24  # letters of a swept value in a chart
MOST_POINTS = 600  # of a chart: more are not told apart, and a page travels by mail

USERS, PER_GPU = "interactivity_tps", "output_tps_per_gpu"
#: What a point of a sweep has beside the metrics of its runs; made of those in `_with_rates`.
_RATES = {
    name: Metric(name, label, "tokens/s", "number", text, lambda run: None)
    for name, label, text in (
        (PER_GPU, "output tok/s/GPU", "output tokens a second of each GPU"),
        (USERS, "output tok/s/user", "1 / TPOT in the median"),
    )
}


@dataclass(frozen=True, slots=True)
class Points:
    """The points of a sweep, ready for charts.

    table : a row a policy and point, means over the seeds, with `USERS` and `PER_GPU`
    ranges : low and high over the seeds by column, in the order of ``table``; empty with one seed
    shown : the rows that charts draw; all of them unless there are too many
    ordered : points follow each other as loads do, and not as names: the first swept key has numbers, if any
    """

    table: pd.DataFrame
    keys: list[str]
    policies: tuple[str, ...]
    looks: Mapping[str, int]
    slo: Mapping[str, Any]
    ranges: Mapping[str, tuple[Any, Any]]
    shown: pd.DataFrame
    seeds: int
    ordered: bool

    @property
    def note(self) -> str:
        """What a reader should know of the points."""
        parts = []
        if len(self.shown) < len(self.table):
            parts.append(f"{len(self.shown):,} of {len(self.table):,} points are drawn; summary.csv has all.")
        if self.seeds > 1:
            parts.append(f"Points are means over {self.seeds} seeds, bars their range.")
        return " ".join(parts)

    def datum(self, row: Any, x: float, y: float, column: str, unit: float | None, first: Sequence[str] = ()) -> Datum:
        """One point: ``column`` times ``unit`` in y, without an interval where that is None.

        first : columns whose numbers come first
        """
        low = high = None
        if column in self.ranges and unit is not None:
            low, high = (unit * float(end[row.name]) for end in self.ranges[column])
        words = "" if self.ordered else plain_value(row[self.keys[0]])
        words = words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"
        numbers = self.numbers(row, (*first, column))
        return Datum(x, y, self.name(row), numbers, low, high, bool(row["strained"]), words)

    def name(self, row: Any) -> str:
        """``continuous, rate_rps 8``."""
        at = [f"{short_key(key)} {plain_value(row[key])}" for key in self.keys if not missing(row[key])]
        return ", ".join([str(row["policy"]), *at])

    def numbers(self, row: Any, first: Sequence[str] = ()) -> tuple[tuple[str, str], ...]:
        """All numbers of a point at four digits, those of the chart's axes first; what has no value is left out."""
        columns = dict.fromkeys((*first, *(each.name for each in ranked(WIDE - 1)), *_RATES))
        metrics = METRICS | _RATES
        known = [metrics[name] for name in columns if name in metrics and not missing(row.get(name))]
        return tuple((each.label, written(each, row, 4)) for each in known)

    def legend(self, table: pd.DataFrame) -> tuple[Key, ...]:
        """The policies, and what an outline means where there is one."""
        keys = [Key(policy, self.looks[policy]) for policy in self.policies if (table["policy"] == policy).any()]
        if table["strained"].any():
            keys.append(Key("overloaded, or requests lost", "hollow"))
        if self.seeds > 1:
            keys.append(Key("range over the seeds", "interval"))
        return tuple(keys)

    def series(
        self, table: pd.DataFrame, x: str, y: str, unit: float | None = 1.0, shown: str | None = None
    ) -> tuple[Series, ...]:
        """A series a policy, a line for each value of the further swept keys.

        ``y`` is drawn times ``unit``; None: it is made from the column ``shown``, and has no interval.
        """
        made = []
        for policy in self.policies:
            rows = table[(table["policy"] == policy) & table[x].notna() & table[y].notna()]
            groups = (
                [part for _, part in rows.groupby(self.keys[1:], sort=False, dropna=False)]
                if len(self.keys) > 1
                else [rows]
            )
            lines = tuple(
                tuple(
                    self.datum(row, float(row[x]), (unit or 1.0) * float(row[y]), shown or y, unit, (x,))
                    for _, row in part.iterrows()
                )
                for part in groups
            )
            if len(rows):
                made.append(Series(policy, self.looks[policy], lines, joined=self.ordered))
        return tuple(made)

    def bars(
        self, table: pd.DataFrame, column: str, values: pd.Series[float], words: Callable[[float], str]
    ) -> tuple[Bar, ...]:
        """A bar a point, as long as its value; ``column`` comes first in the tooltip."""
        return tuple(
            Bar(
                self.name(row), self.numbers(row, (column,)), (Part(value, self.looks[row["policy"]]),),
                look=self.looks[row["policy"]], words=words(value), hollow=bool(row["strained"]),
            )
            for value, (_, row) in zip(values.tolist(), table.iterrows(), strict=True)
        )  # fmt: skip


def points_of(results: Results) -> Points:
    """The points of all policies, where some request completed or was lost to memory."""
    summary = results.summary
    table = _with_rates(per_policy(summary))
    keys = swept(summary)
    policies = tuple(dict.fromkeys(summary["policy"].astype(str)))
    table["strained"] = ((table["overloaded"] > 0) | (table["oom_failed"] > 0)).to_numpy(bool)
    seeds = int(summary["seed"].nunique())
    ranges = _ranges(_with_rates(summary.copy()), keys) if seeds > 1 else {}
    looks, slo = places(policies, results.kinds), stated(results.scenario)
    ordered = not keys or all(isinstance(value, (int, float)) for value in table[keys[0]].dropna().tolist())
    return Points(table, keys, policies, looks, slo, ranges, _fewer(table), seeds, ordered)


def _with_rates(table: pd.DataFrame) -> pd.DataFrame:
    pace = table["tpot_p50_s"].astype(float)
    each = table["output_throughput_tps"].astype(float) / table["gpus"].astype(float)
    return table.assign(**{PER_GPU: each, USERS: 1 / pace.where(pace > 0)})


def _ranges(summary: pd.DataFrame, keys: list[str]) -> dict[str, tuple[Any, Any]]:
    shown = (*ranked(), *_RATES.values())
    columns = [each.name for each in shown if each.form != "text" and each.name in summary]
    typed = summary.astype(dict.fromkeys(columns, float))
    grouped = typed.groupby(["policy", *keys], sort=False, dropna=False, observed=True)[columns]
    low, high = grouped.min().reset_index(drop=True), grouped.max().reset_index(drop=True)
    return {column: (low[column], high[column]) for column in columns}


def _fewer(table: pd.DataFrame) -> pd.DataFrame:
    """At most `MOST_POINTS` rows, evenly chosen; points of the frontier and those where policies are judged stay."""
    if len(table) <= MOST_POINTS:
        return table
    kept = {*frontier(table), *judged(table).rows.index}
    kept |= {table.index[place] for place in np.linspace(0, len(table) - 1, MOST_POINTS - len(kept)).astype(int)}
    return table[table.index.isin(kept)]


def frontier(table: pd.DataFrame) -> list[Any]:
    """Labels of the rows that no other beats both in the pace of a user and in tokens of a GPU, the fastest pace last.

    Rows of servers that keep up and lose nothing, where there are any; of the others else.
    """
    known = table[table[USERS].notna() & (table[PER_GPU] > 0)] if USERS in table else table.iloc[:0]
    kept = known[~known["strained"]] if len(known) and (~known["strained"]).any() else known
    best, found = -math.inf, []
    for label, row in kept.sort_values([USERS, PER_GPU], ascending=False, kind="stable").iterrows():
        if row[PER_GPU] > best:
            best = float(row[PER_GPU])
            found.append(label)
    return found[::-1]

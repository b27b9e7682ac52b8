"""The verdict: one sentence that compares each policy at the point where it is judged (`points.judged`).

It leads with what the runs differ in: requests within the targets, else requests served, else, where these are alike,
the time to the first token. Where all points are sent the same load and something else is swept, it says what that does
to the latency (`points.alike`). Every figure carries the point it belongs to, and is marked where the queue is not
stable; *where* is always the point of the headline.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from servecast.report.words import targets
from servecast.run.judged import SAME, SAME_LOAD, judged, most, per_policy, ranked
from servecast.run.reportable import swept
from servecast.text import listed, missing, number, plain_value, seconds, short_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from servecast.run.judged import Judged

ALIKE = 0.15  # rates this close are no news where the times differ
SOONER = 1.1  # times closer than this are called equal
MUCH_SOONER = 1.5
BEYOND_RATIO = 100  # what serves less than a hundredth has its figure told, and no ratio


def verdict(summary: pd.DataFrame, slo: Mapping[str, Any] | None = None, *, calibrated: bool = True) -> str:
    """One sentence with numbers: who serves most, how many times the others, at which load, latency and price.

    Means over the seeds. An uncalibrated result says so first.
    """
    mark = "" if calibrated else "Uncalibrated roofline: "
    table = per_policy(summary)
    if not table["completed"].sum():
        return f"{mark}No request completed: {_failures(table)}."
    told = _Told(table, swept(summary), judged(table), slo or {})
    clauses = [told.headline(), told.late(), told.losses()]
    text = mark + "; ".join(clause for clause in clauses if clause)
    return f"{text[:1].upper()}{text[1:]}."


class _Told:
    """The clauses of one verdict."""

    def __init__(self, table: pd.DataFrame, keys: list[str], chosen: Judged, slo: Mapping[str, Any]) -> None:
        self.table = table
        self.keys = keys
        self.basis = chosen.basis
        self.metric = chosen.metric
        self.rows = chosen.rows
        self.best = chosen.rows.iloc[0]
        words = f"the targets ({targets(slo)})" if targets(slo) else "the targets"
        self.aim = words
        self.within = f" within {words}" if chosen.basis == "targets" else ""
        missed = chosen.metric != "slo_attainment" and chosen.basis != "targets" and table["goodput_rps"].notna().any()
        self.missed = f"no policy meets {words}: " if missed else ""

    def headline(self) -> str:
        if self.basis == "alike":
            return f"{self.missed}{self._sent()}, {'; '.join(self._spans(row) for _, row in self.rows.iterrows())}"
        rates = self.rows[self.metric].astype(float)
        slowest = rates.min()
        if len(self.rows) > 1 and slowest > (1 - ALIKE) * rates.iloc[0]:
            same = slowest > (1 - SAME) * rates.iloc[0]
            led = self._sooner(SOONER if same else MUCH_SOONER, same)
            if led or same:
                return self.missed + (led or self._equal())
        return self.missed + self._most()

    def _most(self) -> str:
        """Requests served decide."""
        best, others = self.best, [row for _, row in self.rows.iloc[1:].iterrows()]
        rate = float(best[self.metric])
        near = [row for row in others if row[self.metric] * BEYOND_RATIO > rate]
        far = [(row, self._at_headline(row)) for row in others if not row[self.metric] * BEYOND_RATIO > rate]
        here = [self._there(row, own, verb=not at) for at, (row, own) in enumerate(e for e in far if e[1] is not None)]
        away = [self._serves(row, self.metric, apart=True, verb=False) for row, own in far if own is None]
        where = f"{self._where(best, ' at ')}{self._least(rate)}"
        parts = [
            f"{best['policy']} serves {number(rate)} req/s{self._marked(best)}{self.within}{where}",
            listed([self._times(rate, row) for row in near]),
            f"where {listed(here)}" if here else "",
            f"against {listed(away)}" if away else "",
            f"with {listed(self._terms(best))}",
        ]
        return ", ".join(part for part in parts if part)

    def _at_headline(self, row: Any) -> Any:
        """What the policy of ``row`` does at the point of the headline; None where it has no such point."""
        for _, other in self.table[self.table["policy"] == row["policy"]].iterrows():
            pairs = [(other[key], self.best[key]) for key in self.keys]
            if all(missing(one) or missing(two) or one == two for one, two in pairs):
                return other
        return None

    def _there(self, row: Any, own: Any, verb: bool) -> str:
        """A policy's figure at the headline's point, and its most if that is at another."""
        if self._where(row, "") == self._where(own, ""):
            return self._serves(row, self.metric, apart=False, verb=verb)
        figure = number(own[self.metric]) if own[self.metric] > 0 else "none"
        about = [self._marked(own, "", ""), f"at most {number(row[self.metric])}{self._where(row, ', at ')}"]
        told = "; ".join(part for part in about if part)
        return f"{row['policy']} {'serves ' if verb else ''}{figure} ({told})"

    def _least(self, rate: float) -> str:
        """Without a load to tell by, the headline's policy serves most at one point; what it serves at the least."""
        rows = self.table[(self.table["policy"] == self.best["policy"]) & (self.table["oom_failed"] == 0)]
        if self.basis != "throughput" or len(rows) < 2:
            return ""
        row = rows.loc[rows["request_throughput_rps"].astype(float).idxmin()]
        value = float(row["request_throughput_rps"])
        return f" ({number(value)}{self._where(row, ' at ')})" if value < (1 - ALIKE) * rate else ""

    def _sent(self) -> str:
        """The load that every point of a sweep over something else is sent."""
        offered = self.table["offered_rps"].astype(float)
        if offered.min() >= (1 - SAME_LOAD) * offered.max():
            return f"at the same {number(offered.mean())} req/s sent"
        return f"at {number(offered.min())} to {number(offered.max())} req/s sent"

    def _spans(self, best: Any) -> str:
        """From where to where a policy's latency goes over points of the same load."""
        own = self.table[self.table["policy"] == best["policy"]]
        worst = own.loc[ranked(own, self.metric)[-1]]
        told = f"{best['policy']} {self._point(best, worst)}"
        if len(own) == 1:
            return told
        less = best["ttft_p99_s"] * SOONER < worst["ttft_p99_s"]
        if self.metric == "slo_attainment":
            less = less or float(best[self.metric]) - float(worst[self.metric]) > SAME
        if not less:
            return f"{told} and much the same at the other points"
        return f"{told} and {self._point(worst, best, verb=False)}"

    def _point(self, row: Any, other: Any, *, verb: bool = True) -> str:
        """What is answered where, and beside which figures."""
        beside = ", ".join(self._beside(row, other))
        return f"{self._answers(row, verb)}{self._where(row, ' at ')}{f' ({beside})' if beside else ''}"

    def _answers(self, row: Any, verb: bool) -> str:
        if not row["completed"]:
            return "answers none"
        if self.metric != "slo_attainment":
            return f"{'has its p99 TTFT ' if verb else ''}at {seconds(row['ttft_p99_s'])}"
        aim = f" within {self.aim}" if row.name == self.best.name else ""
        return f"{'answers ' if verb else ''}{number(100 * row[self.metric])} %{aim}"

    def _beside(self, row: Any, other: Any) -> list[str]:
        """What else a point has, beside what it answers: times, and what sets it apart from another one."""
        if not row["completed"]:
            return []
        terms = [] if self.metric != "slo_attainment" else [f"p99 TTFT {seconds(row['ttft_p99_s'])}"]
        if not missing(row["itl_p99_s"]):
            terms.append(f"p99 ITL {seconds(row['itl_p99_s'])}")
        served, price = "request_throughput_rps", "usd_per_mtok_output"
        if min(row[served], other[served]) < (1 - ALIKE) * max(row[served], other[served]):
            terms.append(f"serving {number(row[served])} req/s")
        if not missing(row[price]) and abs(row[price] - other[price]) > SAME * row[price]:
            terms.append(f"${number(row[price])} per million output tokens")
        return [*terms, *([self._marked(row, "", "")] if self._marked(row) else [])]

    def _sooner(self, least: float, same: bool) -> str:
        """Requests served are alike, and the time to the first token decides; empty where that is alike too."""
        found = ("", "", 0.0)
        for column, words in (("ttft_p50_s", "in the median"), ("ttft_p99_s", "at p99")):
            times = self.rows[column].astype(float)
            ratio = times.max() / times.min()
            if ratio > found[2] * SOONER:  # the median, unless the tail says clearly more
                found = column, words, ratio
        column, words, ratio = found
        if ratio < least:
            return ""
        order = self.rows.sort_values(column, kind="stable")
        first = order.iloc[0]
        when = f"{seconds(first[column])} {words}{self._where(first, ' at ')}"
        parts = [
            f"{first['policy']} gives its first token after {when}",
            listed([self._how_much_sooner(first, row, column) for _, row in order.iloc[1:].iterrows()]),
        ]
        if same:
            parts.append(f"at the same {number(first[self.metric])} req/s{self._marked(first)}{self.within}")
        terms = self._terms(first)[1 if column == "ttft_p99_s" else 0 :]
        if terms:
            parts.append(f"with {listed(terms)}")
        rates = [f"{row['policy']} {number(row[self.metric])}{self._marked(row)}" for _, row in order.iterrows()]
        return ", ".join(parts) + ("" if same else f"; throughputs are alike, {listed(rates)} req/s{self.within}")

    def _how_much_sooner(self, first: Any, row: Any, column: str) -> str:
        ratio = row[column] / first[column]
        where = self._where(row, " at ") if self._apart(self.rows) else ""
        if ratio < SOONER:
            return f"as soon as {row['policy']}{where}"
        return f"{number(ratio, 2)} times sooner than {row['policy']} ({seconds(row[column])}{where})"

    def _equal(self) -> str:
        names = [str(name) for name in self.rows["policy"]]
        served = f"{number(self.best[self.metric])} req/s{self._marked(self.best)}{self.within}"
        where = self._where(self.best, " at ")
        whose = ""
        if self._apart(self.rows):
            places = [f"{row['policy']}{self._where(row, ' at ')}" for _, row in self.rows.iterrows()]
            where = f" ({listed(places)})"
            whose = f"{self.best['policy']} "
        return f"{listed(names)} serve the same {served}{where}, {whose}with {listed(self._terms(self.best))}"

    def _times(self, best: float, row: Any) -> str:
        """How many times another policy's figure."""
        value = float(row[self.metric])
        where = self._where(row, " at ") if self._apart(self.rows) else ""
        if value > (1 - SAME) * best:
            return f"as many as {row['policy']}{where}{self._marked(row)}"
        about = where + self._marked(row, ", ", "")
        return f"{number(best / value, 2)} times {row['policy']} ({number(value)}{about})"

    def _serves(self, row: Any, metric: str, apart: bool, verb: bool) -> str:
        """A policy's figure, with its mark and, where points differ, with its own."""
        about = [self._marked(row, "", ""), self._where(row, "at ") if apart else ""]
        told = f" ({' '.join(part for part in about if part)})" if any(about) else ""
        figure = number(row[metric]) if row[metric] > 0 else "none"
        return f"{row['policy']} {'serves ' if verb else ''}{figure}{told}"

    def _terms(self, row: Any) -> list[str]:
        """Latency and price at one point."""
        terms = [f"p99 TTFT at {seconds(row['ttft_p99_s'])}"]
        if not math.isnan(row["tpot_p50_s"]):
            terms.append(f"median TPOT at {seconds(row['tpot_p50_s'])}")
        price = row["usd_per_mtok_output"]
        if price is not None and not math.isnan(price):
            terms.append(f"${number(price)} per million output tokens")
        return terms

    def _where(self, row: Any, before: str) -> str:
        """The swept values of a point; empty without a sweep, and for a policy without the key."""
        values = [f"{short_key(key)} {plain_value(row[key])}" for key in self.keys if not missing(row[key])]
        return before + ", ".join(values) if values else ""

    def _apart(self, rows: pd.DataFrame) -> bool:
        """Whether some of these rows are of other points than the headline."""
        return any(self._where(row, "") != self._where(self.best, "") for _, row in rows.iterrows())

    @staticmethod
    def _marked(row: Any, before: str = " (", after: str = ")") -> str:
        """A mark where the queue is not stable."""
        regime = row["regime"]
        return f"{before}{regime}{after}" if isinstance(regime, str) and regime != "stable" else ""

    def late(self) -> str:
        """What each policy serves where the targets do not count, if that is more."""
        if not self.within:
            return ""
        peaks = most(self.table).set_index("policy").loc[list(self.rows["policy"])].reset_index()
        served = peaks["request_throughput_rps"].astype(float)
        if (served.to_numpy() <= (1 + SAME) * self.rows[self.metric].astype(float).to_numpy()).all():
            return ""
        apart = self._apart(peaks)
        rates = [
            self._serves(row, "request_throughput_rps", apart, verb=not at)
            for at, (_, row) in enumerate(peaks.iterrows())
        ]
        return f"late answers included, {listed(rates)} req/s"

    def losses(self) -> str:
        """From which swept value on each policy loses requests."""
        lost = []
        for policy, rows in self.table.groupby("policy", sort=False, observed=True):
            losing = rows[rows["oom_failed"] > 0]
            if len(losing):
                first, where = self._first_loss(rows, losing)
                count = f"{number(first['oom_failed'])} of {number(first['arrived'])}"
                lost.append(f"{policy} loses {f'requests {where} ({count} there)' if where else f'{count} requests'}")
        return f"as memory runs out {listed(lost)}" if lost else ""

    def _first_loss(self, rows: pd.DataFrame, losing: pd.DataFrame) -> tuple[Any, str]:
        """The first row of a policy that loses requests, and how it is told."""
        varied = [key for key in self.keys if rows[key].nunique() > 1]
        first = losing.iloc[0]
        if len(varied) != 1 or not _numeric(rows[varied[0]]):
            return first, self._where(first, "at ")
        key = varied[0]
        values, lost = sorted(set(rows[key])), sorted(set(losing[key]))
        name = short_key(key)
        if lost == values[: len(lost)] and lost != values:  # what is swept is room, not load
            edge, ending = lost[-1], "and below"
        else:
            edge, ending = lost[0], "and above" if lost == values[-len(lost) :] else "first"
        return losing[losing[key] == edge].iloc[0], f"at {name} {plain_value(edge)} {ending}"


def _numeric(column: pd.Series[Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in column.tolist())


def _failures(table: pd.DataFrame) -> str:
    kinds = (("rejected", "rejected"), ("oom_failed", "lost to memory running out"), ("unfinished", "unfinished"))
    counts = [f"{number(float(table[name].sum()))} {words}" for name, words in kinds if table[name].sum()]
    return listed(counts) or "none arrived"

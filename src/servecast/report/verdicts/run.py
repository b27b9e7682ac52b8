"""The verdict on a run: who serves most, by how much, and at which point of the sweep.

Each policy speaks for the point at which it is judged (`servecast.run.judged`). The headline tells what the policies
differ in: requests served within the targets, else requests served, else the time to the first token where these are
alike. Where every point is sent the same load and something else is swept, it tells what that does to the latency. A
figure says its point, and its queue where that is not stable. The details have a sentence for each policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servecast.metrics import METRICS, REJECTIONS
from servecast.report.tables import targets
from servecast.report.verdicts import Verdict, as_sentence, first_concise
from servecast.run.judged import SAME, SAME_LOAD, judged, most, per_policy, ranked
from servecast.run.results import swept
from servecast.text import listed, missing, number, plain_value, seconds, share, short_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd

_ALIKE = 0.15  # rates this close are no news where the times differ
_SOONER = 1.1  # times closer than this are called equal
_MUCH_SOONER = 1.5
_ALMOST_NONE = 0.01  # of the best rate: less is called that
_MOST_POLICIES = 5  # that have a sentence in the details
_LOST = {
    **{name: f"rejected ({METRICS[name].label})" for name in REJECTIONS},
    "oom_failed": "lost to memory running out",
    "unfinished": "unfinished",
}
_MANY = 0.01  # of the requests: so many that are too long are told first


def verdict(summary: pd.DataFrame, slo: Mapping[str, Any] | None = None, *, calibrated: bool = True) -> Verdict:
    """Who serves most, how many times the others, at which load, latency and price; means over the seeds.

    summary : a row for each policy, sweep point and seed
    slo : the targets that hold for every request
    calibrated : if not, the headline begins with that
    """
    table = per_policy(summary)
    too_long, lost = _too_long(table)
    marks = ["" if calibrated else "uncalibrated roofline", too_long if lost >= _MANY else ""]
    mark = f"{text[:1].upper()}{text[1:]}: " if (text := ", ".join(filter(None, marks))) else ""
    if not table["completed"].sum():
        mark = "" if calibrated else "Uncalibrated roofline: "
        return Verdict(first_concise([f"no request completed: {_lost(table) or 'none arrived'}"], mark))
    run = _Run(table, swept(summary), slo or {})
    few = [too_long] if 0 < lost < _MANY else []
    return Verdict(first_concise(run.headlines(), mark), tuple(map(as_sentence, [*few, *run.details()])))


def _lost(table: pd.DataFrame) -> str:
    """``200 rejected in each run``: what became of the requests; from the fewest to the most where runs differ."""
    spans = {words: (table[name].min(), table[name].max()) for name, words in _LOST.items()}
    lost = [f"{' to '.join(map(number, dict.fromkeys(ends)))} {words}" for words, ends in spans.items() if ends[1]]
    return listed(lost) + (" in each run" if lost and len(table) > 1 else "")


def _too_long(table: pd.DataFrame) -> tuple[str, float]:
    """``57 % of requests refused as too long``, and that share; the largest where runs differ. Empty without any."""
    counts = {words: table[name].astype(float) for name, words in (("rejected", "refused"), ("cut", "cut"))}
    shares = (sum(counts.values()) / table["arrived"]).fillna(0.0)
    if not shares.max():
        return "", 0.0
    ways = " or ".join(words for words, count in counts.items() if count.any())
    most = "up to " * bool(shares.min() < shares.max())
    return f"{most}{share(float(shares.max()))} of requests {ways} as too long", float(shares.max())


class _Run:
    """Clauses about the points at which the policies are judged, the best first."""

    def __init__(self, table: pd.DataFrame, keys: list[str], slo: Mapping[str, Any]) -> None:
        chosen = judged(table)
        self.table, self.keys, self.targets = table, keys, targets(slo)
        self.basis, self.metric, self.rows = chosen
        self.best, *self.others = [row for _, row in chosen.rows.iterrows()]
        self.within = " within the targets" if chosen.basis == "targets" else ""
        unmet = chosen.metric != "slo_attainment" and not self.within and table["goodput_rps"].notna().any()
        offered = table["offered_rps"].astype(float)
        self.same_load = bool(offered.min() >= (1 - SAME_LOAD) * offered.max())
        ends = (offered.mean(),) if self.same_load else (offered.min(), offered.max())
        self.sent = f"{' to '.join(map(number, ends))} req/s"
        self.unmet = "no policy meets the targets: " if unmet else ""

    # --- the headline, the one that says most first ------------------------------------------------------------------

    def headlines(self) -> Iterator[str]:
        """What may stand as the headline."""
        for sentence in self._alike() if self.basis == "alike" else self._compared():
            yield self.unmet + sentence
        name = self.best["policy"]
        rate = f"serves {number(self.best['request_throughput_rps'])} req/s at its best point"
        yield from (f"{self.unmet}{name} {rate}", f"{self.unmet}the best policy {rate}")

    def _compared(self) -> Iterator[str]:
        rates = self.rows[self.metric].astype(float)
        slowest = rates.min()
        if self.others and slowest > (1 - _ALIKE) * rates.iloc[0]:
            same = slowest > (1 - SAME) * rates.iloc[0]
            sooner = list(self._sooner(_SOONER if same else _MUCH_SOONER, same))
            yield from sooner or (self._equal() if same else ())
        yield from self._serves_most()

    def _serves_most(self) -> Iterator[str]:
        best, rate = self.best, float(self.best[self.metric])
        sentence = f"{best['policy']} serves {number(rate)} req/s{_queue(best)}{self.within}{self._at(best)}"
        near = [self._times(rate, row) for row in self.others if row[self.metric] >= _ALMOST_NONE * rate]
        far = [row for row in self.others if not row[self.metric] >= _ALMOST_NONE * rate]
        none = "none" if far and not any(row[self.metric] > 0 for row in far) else "almost none"
        left = f"while {listed([row['policy'] for row in far])} serve{'s' * (len(far) == 1)} {none}" if far else ""
        for start in (sentence + self._least(rate), sentence):
            for count in range(len(near), -1, -1):
                for end in (left, "") if left else ("",):
                    yield ", ".join(part for part in (start, listed(near[:count]), end) if part)

    def _least(self, rate: float) -> str:
        """Without a load to tell by: the least that the best policy serves, at another point."""
        rows = self.table[(self.table["policy"] == self.best["policy"]) & (self.table["oom_failed"] == 0)]
        if self.basis != "throughput" or len(rows) < 2:
            return ""
        row = rows.loc[rows["request_throughput_rps"].astype(float).idxmin()]
        value = float(row["request_throughput_rps"])
        return f" and {number(value)}{self._at(row)}" if value < (1 - _ALIKE) * rate else ""

    def _times(self, best: float, row: Any) -> str:
        """How many times another policy's figure."""
        where = self._at(row) if self._at(row) != self._at(self.best) else ""
        value = float(row[self.metric])
        ratio = "as many as" if value > (1 - SAME) * best else f"{number(best / value, 2)} times"
        return f"{ratio} {row['policy']}{where}{_queue(row)}"

    def _sooner(self, least: float, same: bool) -> Iterator[str]:
        """Requests served are alike, and the time to the first token decides; nothing where that is alike too."""
        column, words, ratio = "", "", 0.0
        for name, said in (("ttft_p50_s", "in the median"), ("ttft_p99_s", "at p99")):
            times = self.rows[name].astype(float)
            if times.max() / times.min() > ratio * _SOONER:  # the median, unless the tail says clearly more
                column, words, ratio = name, said, times.max() / times.min()
        if ratio < least:
            return
        first, *later = [row for _, row in self.rows.sort_values(column, kind="stable").iterrows()]
        sentence = f"{first['policy']} gives its first token after {seconds(first[column])} {words}{self._at(first)}"
        others = [self._later(first, row, column) for row in later][::-1]
        rate = f", at the same {number(first[self.metric])} req/s{_queue(first)}{self.within}" if same else ""
        for count in range(len(others), 0, -1):
            yield f"{sentence}, {listed(others[:count])}{rate}"
            yield f"{sentence}, {listed(others[:count])}"

    def _later(self, first: Any, row: Any, column: str) -> str:
        ratio = row[column] / first[column]
        where = self._at(row) if self._at(row) != self._at(first) else ""
        if ratio < _SOONER:
            return f"as soon as {row['policy']}{where}"
        return f"{number(ratio, 2)} times sooner than {row['policy']}{where}"

    def _equal(self) -> Iterator[str]:
        served = f"the same {number(self.best[self.metric])} req/s{_queue(self.best)}{self.within}"
        places = {self._at(row) for row in (self.best, *self.others)}
        names = [f"{row['policy']}{self._at(row) if len(places) > 1 else ''}" for row in (self.best, *self.others)]
        yield f"{listed(names)} serve {served}{places.pop() if len(places) == 1 else ''}"
        yield f"all {len(names)} policies serve {served}"

    def _alike(self) -> Iterator[str]:
        load = f"at {'the same' if self.same_load else 'about the same'} load"
        sent = f"at the same {self.sent} sent" if self.same_load else f"at {self.sent} sent"
        spans = [self._span(row, brief=True) for row in (self.best, *self.others)]
        for count in range(len(spans), 0, -1):
            yield f"{sent}, {'; '.join(spans[:count])}"
        yield f"{load}, {spans[0]}"
        yield f"{load}, {self.best['policy']} {self._answers(self.best, verb=True)}{self._at(self.best)}"

    # --- the details ------------------------------------------------------------------------------------------------

    def details(self) -> Iterator[str]:
        """A sentence for each policy, for the targets, and for what memory lost."""
        rows = (self.best, *self.others)
        if self.basis == "alike" and not self.same_load:
            yield f"the points are sent {self.sent}"
        for row in rows[:_MOST_POLICIES]:
            yield self._span(row, brief=False) if self.basis == "alike" else self._figures(row)
        if len(rows) > _MOST_POLICIES:
            yield f"{len(rows) - _MOST_POLICIES} more policies are in the table"
        if self.targets:
            yield f"the targets are {self.targets}"
        yield from self._losses()

    def _figures(self, row: Any) -> str:
        """``static at rate_rps 1 (overloaded): 0.900 req/s, p99 TTFT 60 s, ...``."""
        figures = [f"{number(row[self.metric]) if row[self.metric] > 0 else 'no'} req/s{self.within}{self._late(row)}"]
        times = (("median TTFT", "ttft_p50_s"), ("p99 TTFT", "ttft_p99_s"), ("median TPOT", "tpot_p50_s"))
        figures += [f"{words} {seconds(row[name])}" for words, name in times if not missing(row[name])]
        return f"{row['policy']}{self._at(row)}{_queue(row)}: {', '.join([*figures, *_price(row)])}"

    def _late(self, row: Any) -> str:
        """What a policy serves where the targets do not count, if that is more."""
        if not self.within:
            return ""
        peak = most(self.table[self.table["policy"] == row["policy"]]).iloc[0]
        served = float(peak["request_throughput_rps"])
        if served <= (1 + SAME) * float(row[self.metric]):
            return ""
        where = f"{self._at(peak)}{_queue(peak, ', ', '')}" if self._at(peak) != self._at(row) else ""
        return f" ({number(served)} with late answers{where})"

    def _span(self, best: Any, *, brief: bool) -> str:
        """From where to where a policy's latency goes over points of the same load."""
        own = self.table[self.table["policy"] == best["policy"]]
        compared = ranked(own, self.metric)
        worst = own.loc[compared[-1]]
        sentence = f"{best['policy']} {self._point(best, worst, brief=brief)}"
        if len(own) == 1:
            return sentence
        less = best["ttft_p99_s"] * _SOONER < worst["ttft_p99_s"]
        if self.metric == "slo_attainment":
            less = less or float(best[self.metric]) - float(worst[self.metric]) > SAME
        if not less:
            lost = len(compared) < len(own)
            return f"{sentence} and {'loses more requests' if lost else 'much the same'} at the other points"
        return f"{sentence} and {self._point(worst, best, brief=brief, verb=False)}"

    def _point(self, row: Any, other: Any, *, brief: bool, verb: bool = True) -> str:
        """What is answered where, and beside which figures."""
        beside = "" if brief else ", ".join(self._beside(row, other))
        return f"{self._answers(row, verb=verb)}{self._at(row)}{f' ({beside})' if beside else ''}"

    def _answers(self, row: Any, *, verb: bool) -> str:
        if not row["completed"]:
            return "answers none"
        if self.metric != "slo_attainment":
            return f"{'has its p99 TTFT ' if verb else ''}at {seconds(row['ttft_p99_s'])}"
        aim = " within the targets" if row.name == self.best.name else ""
        return f"{'answers ' if verb else ''}{number(100 * row[self.metric])} %{aim}"

    def _beside(self, row: Any, other: Any) -> Iterator[str]:
        """What else a point has, beside what it answers: times, and what sets it apart from another one."""
        if not row["completed"]:
            return
        if self.metric == "slo_attainment":
            yield f"p99 TTFT {seconds(row['ttft_p99_s'])}"
        if not missing(row["itl_p99_s"]):
            yield f"p99 ITL {seconds(row['itl_p99_s'])}"
        served, price = "request_throughput_rps", "usd_per_mtok_output"
        if min(row[served], other[served]) < (1 - _ALIKE) * max(row[served], other[served]):
            yield f"serving {number(row[served])} req/s"
        if not missing(row[price]) and abs(row[price] - other[price]) > SAME * row[price]:
            yield from _price(row)
        if _queue(row):
            yield _queue(row, "", "")

    def _losses(self) -> Iterator[str]:
        """From which swept value on each policy loses requests."""
        lost = []
        for policy, rows in self.table.groupby("policy", sort=False, observed=True):
            losing = rows[rows["oom_failed"] > 0]
            if len(losing):
                first, where = self._first_loss(rows, losing)
                count = f"{number(first['oom_failed'])} of {number(first['arrived'])}"
                lost.append(f"{policy} loses {f'requests{where} ({count} there)' if where else f'{count} requests'}")
        if lost:
            yield f"as memory runs out {listed(lost)}"

    def _first_loss(self, rows: pd.DataFrame, losing: pd.DataFrame) -> tuple[Any, str]:
        """The first row of a policy that loses requests, and where that is, in words."""
        varied = [key for key in self.keys if rows[key].nunique() > 1]
        first = losing.iloc[0]
        if len(varied) != 1 or any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in rows[varied[0]]):
            return first, self._at(first)
        key = varied[0]
        values, lost = sorted(set(rows[key])), sorted(set(losing[key]))
        if lost == values[: len(lost)] and lost != values:  # what is swept is room, not load
            edge, ending = lost[-1], "and below"
        else:
            edge, ending = lost[0], "and above" if lost == values[-len(lost) :] else "first"
        return losing[losing[key] == edge].iloc[0], f" at {short_key(key)} {plain_value(edge)} {ending}"

    def _at(self, row: Any) -> str:
        """The swept values of a point; empty without a sweep, and for a policy without the key."""
        values = [f"{short_key(key)} {plain_value(row[key])}" for key in self.keys if not missing(row[key])]
        return f" at {', '.join(values)}" if values else ""


def _queue(row: Any, before: str = " (", after: str = ")") -> str:
    """The queue's regime, where it is not stable."""
    regime = row["regime"]
    return f"{before}{regime}{after}" if isinstance(regime, str) and regime != "stable" else ""


def _price(row: Any) -> list[str]:
    price = row["usd_per_mtok_output"]
    return [] if missing(price) else [f"${number(price)} of the whole bill per million output tokens"]

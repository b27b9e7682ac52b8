"""A run as the metrics read it: the requests, decisions and seconds that count, and what several metrics share.

Rejected, crashed and unfinished requests enter no latency and no throughput. Percentiles are numpy's linear
interpolation (`PERCENTILE_RULE`), for the pooled ITL to within the width of a 0.1 % bin.

With a `Window` requests are attributed by arrival and tokens by emission: an iteration belongs to the window in which
it ends, and a gap that is listed by itself to the one in which its token came.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.errors import InputError
from servecast.metrics.gaps import gaps_within, token_gaps
from servecast.metrics.latencies import latencies
from servecast.metrics.log import TIME_TOLERANCE_S, clip_decisions
from servecast.metrics.prices import PriceList, prefill_share, price_list
from servecast.metrics.waste import judged, ratio, waste
from servecast.requests import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servecast.engine import Run
    from servecast.metrics.latencies import Slo, Tenants
    from servecast.metrics.log import Columns
    from servecast.metrics.waste import Hardware

PERCENTILES = (50, 90, 95, 99)
PERCENTILE_RULE = "numpy linear: rank q/100 x (n - 1), interpolated between the two nearest values"


@dataclass(frozen=True, slots=True)
class Window:
    """The steady part of a run: from ``warmup_s`` to the last arrival less ``cooldown_s``; both None: the whole run."""

    warmup_s: float | None = None
    cooldown_s: float | None = None

    def bounds(self, run: Run) -> tuple[float, float] | None:
        """Start and end [s], both inclusive for arrivals; None for the whole run.

        Raises InputError where nothing is left between the two.
        """
        if self.warmup_s is None and self.cooldown_s is None:
            return None
        arrivals = run.requests["arrival_s"]
        last = float(arrivals.max()) if len(arrivals) else 0.0
        start, end = self.warmup_s or 0.0, last - (self.cooldown_s or 0.0)
        if not end > start:
            left_out = f"{start:g} s of warm-up and {self.cooldown_s or 0.0:g} s of cool-down"
            remedy = "shorten them or send more requests"
            problem = f"{left_out} leave nothing of the {last:g} s in which requests arrive; {remedy}"
            raise InputError("scenario.warmup_s", problem)
        return start, end


@dataclass(frozen=True, eq=False)
class Measured:
    """A run, or one tenant's part of it, and what it is measured by.

    requests : those that count: of the window, and of the tenant
    bounds : of the window [s]; None for the whole run
    usd_per_hour : of all GPUs of the system; idle hours are paid too
    output_over_input : an output token costs so many input tokens; None: by busy time
    facts : what the run itself does not know: ``requested_rps``, ``replicas``, ``gpus``, ``calibrated``, ``cancelled``
    """

    run: Run
    requests: Columns
    bounds: tuple[float, float] | None = None
    slo: Slo | None = None
    tenants: Tenants | None = None
    hardware: Hardware | None = None
    usd_per_hour: float | None = None
    output_over_input: float | None = None
    facts: Mapping[str, Any] | None = None

    @property
    def start_s(self) -> float:
        """Where counting begins [s]."""
        return 0.0 if self.bounds is None else self.bounds[0]

    @property
    def end_s(self) -> float:
        """Where counting ends [s]."""
        return float(self.run.end_s) if self.bounds is None else self.bounds[1]

    @cached_property
    def _known(self) -> dict[str, Any]:
        return {**waste(self.decisions), **judged(self.run, self.decisions, self.hardware), **(self.facts or {})}

    def named(self, name: str) -> Any:
        """Where tokens and busy seconds went (`servecast.metrics.waste`), or a fact; None where nobody said it."""
        return self._known.get(name)

    def rate(self, count: float | None) -> float | None:
        """``count`` a second; None for None."""
        return ratio(count, self.end_s - self.start_s)

    def count(self, status: Status) -> int:
        """How many requests ended so."""
        return int((self.requests["status"] == status).sum())

    def sum(self, column: str) -> int:
        """Of a column of the requests."""
        return int(self.requests[column].sum())

    @cached_property
    def decisions(self) -> Columns:
        """The decisions that count."""
        return self.run.decisions if self.bounds is None else clip_decisions(self.run.decisions, *self.bounds)

    @cached_property
    def completed(self) -> Columns:
        """The requests that completed."""
        done = self.requests["status"] == Status.COMPLETED
        return {name: column[done] for name, column in self.requests.items()}

    @cached_property
    def cut(self) -> Columns:
        """The completed requests whose answers are shorter than they would have been."""
        short = self.completed["generated_tokens"] < self.completed["output_tokens"]
        return {name: column[short] for name, column in self.completed.items()}

    @cached_property
    def good(self) -> tuple[int | None, int]:
        """Requests that met their targets (None where nobody has one), and the number they are a share of.

        With ``tenants`` each is judged by its own targets, by ``slo`` where it has none; requests of tenants that have
        neither are neither good nor counted.
        """
        whole, slo = self.requests, self.slo
        parts = [("", whole, slo)] if self.tenants is None else self.tenants.parts(whole, slo)
        found = [targets.good(part, self.run.respond) for _, part, targets in parts if targets]
        return (sum(good for good, _ in found), sum(of for _, of in found)) if found else (None, len(whole["id"]))

    @cached_property
    def latencies(self) -> dict[str, tuple[float | None, ...]]:
        """Mean and `PERCENTILES` [s] of each latency of completed requests."""
        return {name: _statistics(values) for name, values in latencies(self.completed, self.run.respond).items()}

    @cached_property
    def gaps(self) -> tuple[float | None, ...]:
        """Mean and `PERCENTILES` [s] of the gaps between tokens, pooled over all requests."""
        pooled = token_gaps(self.run, self.decisions, self.bounds)
        return (pooled.mean(), *pooled.percentiles(PERCENTILES))

    @cached_property
    def crashes(self) -> list[float]:
        """When memory ran out [s]."""
        return [event.time_s for event in self.run.oom if self.start_s <= event.time_s <= self.end_s]

    @property
    def input_tokens(self) -> float:
        """Prompt tokens of completed requests; in a window, of those whose first token came in it."""
        if self.bounds is None:
            return float(self.completed["prompt_tokens"].sum())
        start, end = (edge + TIME_TOLERANCE_S for edge in self.bounds)
        first = self.run.requests["first_token_s"]
        return float(self.run.requests["prompt_tokens"][(first > start) & (first <= end)].sum())

    @cached_property
    def output_tokens(self) -> float:
        """Output tokens of completed requests; in a window, all that were emitted in it."""
        if self.bounds is None:
            return float(self.completed["generated_tokens"].sum())
        start, end = (edge + TIME_TOLERANCE_S for edge in self.bounds)  # as `clip_decisions` has it
        run, decisions = self.run, self.decisions
        if run.respond == "batch_end":
            given = (run.requests["finish_s"] > start) & (run.requests["finish_s"] <= end)
            return float(run.requests["generated_tokens"][given].sum())
        first = run.requests["first_token_s"]
        emitted = float((decisions["iterations"] * decisions["useful_decode_rows"]).sum())
        # One token comes with the step that computes a preempted request again: no decode row gave it.
        resumed = int((~np.isnan(gaps_within(run, self.bounds)["request"])).sum())
        return emitted + float(((first > start) & (first <= end)).sum()) + resumed

    def usd_per_million(self, tokens: float) -> float | None:
        """US dollars of the whole bill for a million tokens, where so many were served; None without a price."""
        return ratio(self.bill, tokens / 1e6)

    @property
    def bill(self) -> float | None:
        """US dollars for the time that counts; None without a price."""
        return None if self.usd_per_hour is None else self.usd_per_hour * (self.end_s - self.start_s) / 3600

    @cached_property
    def prefill_share(self) -> float | None:
        """Share of the busy seconds that is prefill; None where no cost model divides a mixed step."""
        return None if self.hardware is None else prefill_share(self.decisions, self.hardware.cost)

    @property
    def prices(self) -> PriceList:
        """What a million tokens of either kind cost if their prices are to add up to the bill."""
        if self.bill is None:
            return PriceList()
        return price_list(
            self.bill, self.input_tokens, self.output_tokens,
            prefill_share=self.prefill_share, output_over_input=self.output_over_input,
        )  # fmt: skip


def within(requests: Columns, bounds: tuple[float, float] | None) -> Columns:
    """The requests that arrive inside a window's bounds [s]; all without bounds."""
    if bounds is None:
        return requests
    arrivals = requests["arrival_s"]
    inside = (arrivals >= bounds[0]) & (arrivals <= bounds[1])
    return {name: column[inside] for name, column in requests.items()}


def _statistics(values: Any) -> tuple[float | None, ...]:
    known = values[~np.isnan(values)]
    if not len(known):
        return (None,) * (1 + len(PERCENTILES))
    return (float(known.mean()), *np.percentile(known, PERCENTILES).tolist())

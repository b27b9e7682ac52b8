"""A validation in words: its tables, and how to read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from servecast.against.device import compare
from servecast.requests import Status
from servecast.text import Table, percent, signed

if TYPE_CHECKING:
    from servecast.against.device.validate import Case, Validation
    from servecast.engine import Run

_SHOWN = ("output_throughput_tps", "ttft_mean_s", "tpot_mean_s", "e2e_mean_s", "e2e_p99_s")


def tables(validation: Validation) -> list[Table]:
    """What the command prints and the page shows: errors of steps, of runs, verdicts, and the ranking."""
    return [
        _held_out(validation),
        _same_batches(validation),
        _closed_loop(validation),
        _runs(validation),
        _ranking(validation),
    ]


def _held_out(validation: Validation) -> Table:
    rows = [
        (e["regime"], str(e["count"]), percent(e["median"]), percent(e["p95"]), signed(e["signed_mean"], 1))
        for e in validation.held_out
    ]
    heads = ("steps", "count", "median", "p95", "signed mean")
    return Table("Held-out shapes: single steps, timed anew", heads, tuple(rows))


def _same_batches(validation: Validation) -> Table:
    rows = [
        (
            c.policy,
            _load(c),
            s["regime"],
            str(s["count"]),
            signed(s['total'], 1),
            percent(s['median']),
            percent(s['p95']),
        )
        for c in validation.cases
        for s in c.same_batches
    ]  # fmt: skip
    heads = ("policy", "load", "steps", "count", "total", "median", "p95")
    return Table("Same batches: the cost model along the executed log", heads, tuple(rows))


def _closed_loop(validation: Validation) -> Table:
    rows = [
        (
            case.policy, _load(case), c.metric, f"{c.simulated:.4g}", f"{np.mean(c.executed):.4g}", signed(c.error, 1),
            "-" if c.error_at_speed is None else signed(c.error_at_speed, 1),
            "-" if c.noise is None else percent(c.noise), "-" if c.gate is None else percent(c.gate, 0), c.verdict,
            _banded(case, c.metric),
        )
        for case in validation.cases
        for c in case.comparisons
        if c.metric in _SHOWN or c.metric in compare.WASTE
    ]  # fmt: skip
    heads = (
        "policy",
        "load",
        "metric",
        "simulated",
        "executed",
        "error",
        "at speed",
        "noise",
        "gate",
        "verdict",
        "band",
    )
    return Table("Closed loop: the whole simulation", heads, tuple(rows))


def _runs(validation: Validation) -> Table:
    rows = [
        (
            case.policy, _load(case), "-" if case.rate_rps is None else f"{case.rate_rps:.3g}", signed(case.drift, 1),
            str(case.tries), "yes" if case.conclusive else "no", case.regime[0] or "-", case.regime[1] or "-",
            _lost(case.simulated), ", ".join(dict.fromkeys(_lost(executed.run) for executed in case.executed)),
            *(_request_error(case, name) for name in ("ttft", "tpot", "e2e")),
        )
        for case in validation.cases
    ]  # fmt: skip
    heads = ("policy", "load", "req/s", "drift", "tries", "conclusive", "regime simulated", "executed",
             "lost simulated", "executed", "TTFT", "TPOT", "E2E")  # fmt: skip
    return Table("Runs, and the error of single requests (median, p90)", heads, tuple(rows))


def _ranking(validation: Validation) -> Table:
    rows = [
        (
            policy,
            f"{r['executed_tps']:.0f}",
            f"{r['simulated_tps']:.0f}",
            f"{r['executed']:.2f}",
            f"{r['simulated']:.2f}",
        )
        for policy, r in sorted(validation.ranking.items(), key=lambda item: -item[1]["executed"])
    ]  # fmt: skip
    heads = ("policy", "executed", "simulated", "share executed", "simulated")
    return Table("Ranking in a burst: output tokens/s, and as a share of the best", heads, tuple(rows))


RULES = (
    (
        "Errors are (simulated - executed) / executed, the mean of two executions; noise is how far these "
        "lie apart, all cases having been executed once before any is executed again. At speed is the error "
        "of a simulation that knows how fast the device was during each run (reference steps timed between "
        "its batches), error that of the forecast, which does not; verdicts go by error. Drift is how "
        "far those reference steps were from their calibration."
    ),
    (
        "Verdicts: within noise, the error is at most the noise; within the gate, at most the gate that "
        "was set before the run; within twice the noise, over the gate and at most twice the noise, which "
        "counts as met because the device itself does not agree with itself any better: on a noisier machine "
        "more is met this way; outside, neither; no gate, none was set and the error is over the noise; "
        "inconclusive, the device drifted too far in every try. Band is the range of the simulation at "
        "step times scaled as the file says, and whether the executed mean is in it."
    ),
)
"""How to read the tables."""


def _load(case: Case) -> str:
    return case.load if isinstance(case.load, str) else f"{case.load:g}"


def _banded(case: Case, metric: str) -> str:
    if metric not in case.band:
        return "-"
    low, high, inside = case.band[metric]
    return f"{low:.4g} .. {high:.4g}: {'in' if inside else 'out'}"


def _request_error(case: Case, name: str) -> str:
    error = case.per_request.get(name)
    return "-" if error is None else f"{percent(error['median'])}, {percent(error['p90'])}"


def _lost(run: Run) -> str:
    """Requests that were lost as memory ran out."""
    return str(int((run.requests["status"] == Status.OOM).sum()))

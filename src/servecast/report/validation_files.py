"""Writes a validation into a folder: tables, executed logs, figures, and a page of Markdown that quotes them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.against.device import compare
from servecast.metrics import decisions_frame, requests_frame
from servecast.report import validation_figures as figures
from servecast.report.verdicts.validate import verdict
from servecast.requests import Status
from servecast.text import Table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servecast.against.device.validate import Case, Validation
    from servecast.engine import Run

_SHOWN = ("output_throughput_tps", "ttft_mean_s", "tpot_mean_s", "e2e_mean_s", "e2e_p99_s")


def write(validation: Validation, folder: Path) -> Path:
    """Write everything below ``folder``; the page."""
    import pandas as pd

    (folder / "executed").mkdir(parents=True, exist_ok=True)
    pd.DataFrame(_comparison_rows(validation)).to_csv(folder / "metrics.csv", index=False, lineterminator="\n")
    pd.DataFrame(_part_rows(validation)).to_csv(folder / "parts.csv", index=False, lineterminator="\n")
    pd.DataFrame(_request_rows(validation)).to_csv(folder / "per-request.csv", index=False, lineterminator="\n")
    for case in validation.cases:
        name = f"{case.policy.replace(' ', '-')}-{figures._slug(case.load)}"
        run = case.executed[0].run
        for frame, what in ((decisions_frame(run), "decisions"), (requests_frame(run), "requests")):
            # mtime 0: the same run gives the same bytes.
            frame.to_csv(
                folder / "executed" / f"{name}.{what}.csv.gz", index=False, lineterminator="\n",
                compression={"method": "gzip", "mtime": 0},
            )  # fmt: skip
    loads = list(dict.fromkeys(case.load for case in validation.cases))
    plots = [plot(validation.cases, load) for load in loads for plot in (figures.distributions, figures.running)]
    for plot in plots:
        (folder / f"{plot.name}.png").write_bytes(plot.png())
    facts = {key: validation.facts[key] for key in ("identity", "machine", "noise", "drift", "references_s")}
    facts |= {"date": datetime.now(UTC).date().isoformat(), "device": validation.device, "ranking": validation.ranking}
    facts |= {"plan": validation.plan.model_dump(mode="json"), "interrupted": validation.interrupted}
    (folder / "validation.json").write_text(json.dumps(facts, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    page = folder / "README.md"
    lines = [*_page(validation, facts)]
    lines += [line for plot in plots for line in (f"![{plot.title}]({plot.name}.png)", "", plot.caption, "")][:-1]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return page


def tables(validation: Validation) -> list[Table]:
    """What the command prints: errors of steps, of runs, verdicts, and the ranking."""
    cases = validation.cases
    held_out = [
        (e["regime"], str(e["count"]), f"{e['median']:.1%}", f"{e['p95']:.1%}", f"{e['signed_mean']:+.1%}")
        for e in validation.held_out
    ]
    same = [
        (
            c.policy,
            _load(c),
            s["regime"],
            str(s["count"]),
            f"{s['total']:+.1%}",
            f"{s['median']:.1%}",
            f"{s['p95']:.1%}",
        )
        for c in cases
        for s in c.same_batches
    ]
    closed = [
        (
            case.policy, _load(case), c.metric, f"{c.simulated:.4g}", f"{np.mean(c.executed):.4g}", f"{c.error:+.1%}",
            "-" if c.error_at_speed is None else f"{c.error_at_speed:+.1%}",
            "-" if c.noise is None else f"{c.noise:.1%}", "-" if c.gate is None else f"{c.gate:.0%}", c.verdict,
            _banded(case, c.metric),
        )
        for case in cases
        for c in case.comparisons
        if c.metric in _SHOWN or c.metric in compare.WASTE
    ]  # fmt: skip
    runs = [
        (
            case.policy, _load(case), "-" if case.rate_rps is None else f"{case.rate_rps:.3g}", f"{case.drift:+.1%}",
            str(case.tries), "yes" if case.conclusive else "no", case.regime[0] or "-", case.regime[1] or "-",
            _lost(case.simulated), ", ".join(dict.fromkeys(_lost(executed.run) for executed in case.executed)),
            *(_request_error(case, name) for name in ("ttft", "tpot", "e2e")),
        )
        for case in cases
    ]  # fmt: skip
    ranking = [
        (
            policy,
            f"{r['executed_tps']:.0f}",
            f"{r['simulated_tps']:.0f}",
            f"{r['executed']:.2f}",
            f"{r['simulated']:.2f}",
        )
        for policy, r in sorted(validation.ranking.items(), key=lambda item: -item[1]["executed"])
    ]
    errors = ("count", "median", "p95")
    drifted = ("drift", "tries", "conclusive", "regime simulated", "executed", "lost simulated", "executed")
    return [
        Table("1. held-out shapes: single steps, timed anew", ("steps", *errors, "signed mean"), tuple(held_out)),
        Table(
            "2. same batches: the cost model along the executed log",
            ("policy", "load", "steps", "count", "total", "median", "p95"),
            tuple(same),
        ),
        Table(
            "3. closed loop: the whole simulation",
            ("policy", "load", "metric", "simulated", "executed", "error", "at speed", "noise", "gate", "verdict",
             "band"),
            tuple(closed),
        ),
        Table(
            "runs, and the error of single requests (median, p90)",
            ("policy", "load", "req/s", *drifted, "TTFT", "TPOT", "E2E"),
            tuple(runs),
        ),
        Table(
            "ranking in a burst: output tokens/s, and as a share of the best",
            ("policy", "executed", "simulated", "share executed", "simulated"),
            tuple(ranking),
        ),
    ]  # fmt: skip


RULES = (
    (
        "Errors are (simulated - executed) / executed, the mean of two executions; *noise* is how far these "
        "lie apart, all cases having been executed once before any is executed again. *At speed* is the error "
        "of a simulation that knows how fast the device was during each run (reference steps timed between "
        "its batches), *error* that of the forecast, which does not; verdicts go by *error*. *Drift* is how "
        "far those reference steps were from their calibration."
    ),
    (
        "Verdicts: *within noise*, the error is at most the noise; *within the gate*, at most the gate that "
        "was set before the run; *within twice the noise*, over the gate and at most twice the noise, which "
        "counts as met because the device itself does not agree with itself any better: on a noisier machine "
        "more is met this way; *outside*, neither; *no gate*, none was set and the error is over the noise; "
        "*inconclusive*, the device drifted too far in every try. *Band* is the range of the simulation at "
        "step times scaled as the file says, and whether the executed mean is in it."
    ),
)
"""How to read the tables."""


def _page(validation: Validation, facts: dict[str, Any]) -> Iterator[str]:
    machine = facts["machine"]
    yield f"# {validation.name}: executed on a device, and simulated"
    yield ""
    yield (
        f"Written by `servecast validate` on {facts['date']}: {machine.get('gpu', machine['processor'])}, torch "
        f"{machine['torch']}, {machine['clock']}. {verdict(validation)}"
    )
    yield ""
    for rule in RULES:
        yield rule
        yield ""
    for table in tables(validation):
        yield f"## {table.title}"
        yield ""
        yield "| " + " | ".join(table.columns) + " |"
        yield "|" + "|".join("---" for _ in table.columns) + "|"
        for row in table.rows:
            yield "| " + " | ".join(row) + " |"
        yield ""


def _comparison_rows(validation: Validation) -> Iterator[dict[str, Any]]:
    for case in validation.cases:
        for c in case.comparisons:
            low, high, inside = case.band.get(c.metric, (None, None, None))
            yield {
                "policy": case.policy, "load": case.load, "rate_rps": case.rate_rps, "metric": c.metric,
                "simulated": c.simulated, **{f"executed_{i + 1}": value for i, value in enumerate(c.executed)},
                "error": c.error, "error_at_speed": c.error_at_speed, "noise": c.noise, "gate": c.gate,
                "verdict": c.verdict, "band_low": low, "band_high": high, "in_band": inside, "drift": case.drift,
                "conclusive": case.conclusive, "tries": case.tries,
            }  # fmt: skip


def _part_rows(validation: Validation) -> Iterator[dict[str, Any]]:
    for error in validation.held_out:
        yield {"part": "held-out shapes", "policy": None, "load": None, **error}
    for case in validation.cases:
        for error in case.same_batches:
            yield {"part": "same batches", "policy": case.policy, "load": case.load, **error}


def _request_rows(validation: Validation) -> Iterator[dict[str, Any]]:
    for case in validation.cases:
        for metric, error in case.per_request.items():
            yield {"policy": case.policy, "load": case.load, "metric": metric, **error}


def _load(case: Case) -> str:
    return case.load if isinstance(case.load, str) else f"{case.load:g}"


def _banded(case: Case, metric: str) -> str:
    if metric not in case.band:
        return "-"
    low, high, inside = case.band[metric]
    return f"{low:.4g} .. {high:.4g}: {'in' if inside else 'out'}"


def _request_error(case: Case, name: str) -> str:
    error = case.per_request.get(name)
    return "-" if error is None else f"{error['median']:.1%}, {error['p90']:.1%}"


def _lost(run: Run) -> str:
    """Requests that were lost as memory ran out."""
    return str(int((run.requests["status"] == Status.OOM).sum()))

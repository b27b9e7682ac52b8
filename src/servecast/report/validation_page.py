"""The folder of a validation: tables, executed logs, ``validation.json``, and a self-contained page."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.against.device import compare
from servecast.metrics import decisions_frame, requests_frame
from servecast.report.charts.files import write_figures
from servecast.report.device_charts import slug, validation_charts
from servecast.report.page import Page, Section, again, chart_section, paragraph, table_section
from servecast.report.verdicts.validate import verdict
from servecast.requests import Status
from servecast.text import Table, percent, signed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from servecast.against.device.validate import Case, Validation
    from servecast.engine import Run

_SHOWN = ("output_throughput_tps", "ttft_mean_s", "tpot_mean_s", "e2e_mean_s", "e2e_p99_s", *compare.WASTE)

_SIDES = ("executed", "simulated")


def write(validation: Validation, folder: Path, figures: Sequence[str] = ()) -> Path:
    """Write everything below ``folder``; the page. ``figures``: forms in which each chart is a file too."""
    import pandas as pd

    (folder / "executed").mkdir(parents=True, exist_ok=True)
    for rows, name in ((_comparison_rows, "metrics"), (_part_rows, "parts"), (_request_rows, "per-request")):
        pd.DataFrame(rows(validation)).to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
    for case in validation.cases:
        name = f"{case.policy.replace(' ', '-')}-{slug(case.load)}"
        run = case.executed[0].run
        for frame, what in ((decisions_frame(run), "decisions"), (requests_frame(run), "requests")):
            # mtime 0: the same run gives the same bytes.
            frame.to_csv(
                folder / "executed" / f"{name}.{what}.csv.gz", index=False, lineterminator="\n",
                compression={"method": "gzip", "mtime": 0},
            )  # fmt: skip
    facts = {key: validation.facts[key] for key in ("identity", "machine", "noise", "drift", "references_s")}
    facts |= {"date": datetime.now(UTC).date().isoformat(), "device": validation.device, "ranking": validation.ranking}
    facts |= {"plan": validation.file.model_dump(mode="json"), "interrupted": validation.interrupted}
    (folder / "validation.json").write_text(json.dumps(facts, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    charts, machine = validation_charts(validation.cases), facts["machine"]
    device = machine.get("gpu", machine["processor"])
    write_figures(folder, charts, figures)
    page = Page(
        name=validation.name,
        title=f"{validation.name}: executed on a device, and simulated",
        kicker="Executed on a device, and simulated,",
        about=f"{facts['date']}: {device}, torch {machine['torch']}, {machine['clock']}",
        verdict=verdict(validation),
        sections=[
            *(table_section(at, each, re.split("[:,]", each.title)[0]) for at, each in enumerate(tables(validation))),
            *(chart_section(chart, chart.title.split(",")[0]) for chart in charts),
            Section("rules", "How to read it", "How to read it", "".join(map(paragraph, _RULES))),
            again("", ["metrics.csv", "parts.csv", "per-request.csv", "executed/", "validation.json"]),
        ],
    )
    (folder / "report.html").write_text(page.html(), encoding="utf-8")
    return folder / "report.html"


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


def tables(validation: Validation) -> list[Table]:
    """What the command prints and the page shows: errors of steps, of runs, verdicts, and the ranking."""
    cases = validation.cases
    ranking = sorted(validation.ranking.items(), key=lambda item: -item[1]["executed"])
    return [
        Table(
            "Held-out shapes: single steps, timed anew",
            ("steps", "count", "median", "p95", "signed mean"),
            tuple(
                (e["regime"], str(e["count"]), percent(e["median"]), percent(e["p95"]), signed(e["signed_mean"], 1))
                for e in validation.held_out
            ),
        ),
        Table(
            "Same batches: the cost model along the executed log",
            ("policy", "load", "steps", "count", "total", "median", "p95"),
            tuple(
                (*_case(case), e["regime"], str(e["count"]), signed(e["total"], 1), percent(e["median"]),
                 percent(e["p95"]))
                for case in cases
                for e in case.same_batches
            ),
        ),
        Table(
            "Closed loop: the whole simulation",
            ("policy", "load", "metric", "simulated", "executed", "error", "at speed", "noise", "gate", "verdict",
             "band"),
            tuple(_closed_loop(case, c) for case in cases for c in case.comparisons if c.metric in _SHOWN),
        ),
        Table(
            "Runs, and the error of single requests (median, p90)",
            ("policy", "load", "req/s", "drift", "tries", "conclusive", "regime simulated", "executed",
             "lost simulated", "executed", "TTFT", "TPOT", "E2E"),
            tuple(map(_run, cases)),
        ),
        Table(
            "Ranking in a burst: output tokens/s, and as a share of the best",
            ("policy", "executed", "simulated", "share executed", "simulated"),
            tuple(
                (policy, *(f"{r[f'{side}_tps']:.0f}" for side in _SIDES), *(f"{r[side]:.2f}" for side in _SIDES))
                for policy, r in ranking
            ),
        ),
    ]  # fmt: skip


def _case(case: Case) -> tuple[str, str]:
    return case.policy, case.load if isinstance(case.load, str) else f"{case.load:g}"


def _closed_loop(case: Case, c: compare.Compared) -> tuple[str, ...]:
    band = "-"
    if c.metric in case.band:
        low, high, inside = case.band[c.metric]
        band = f"{low:.4g} .. {high:.4g}: {'in' if inside else 'out'}"
    return (
        *_case(case), c.metric, f"{c.simulated:.4g}", f"{np.mean(c.executed):.4g}", signed(c.error, 1),
        "-" if c.error_at_speed is None else signed(c.error_at_speed, 1),
        "-" if c.noise is None else percent(c.noise), "-" if c.gate is None else percent(c.gate, 0), c.verdict, band,
    )  # fmt: skip


def _run(case: Case) -> tuple[str, ...]:
    errors = [case.per_request.get(name) for name in ("ttft", "tpot", "e2e")]
    return (
        *_case(case), "-" if case.rate_rps is None else f"{case.rate_rps:.3g}", signed(case.drift, 1), str(case.tries),
        "yes" if case.conclusive else "no", case.regime[0] or "-", case.regime[1] or "-", _lost(case.simulated),
        ", ".join(dict.fromkeys(_lost(executed.run) for executed in case.executed)),
        *("-" if error is None else f"{percent(error['median'])}, {percent(error['p90'])}" for error in errors),
    )  # fmt: skip


def _lost(run: Run) -> str:
    """Requests that were lost as memory ran out, and how many were refused."""
    lost, refused = (int((run.requests["status"] == status).sum()) for status in (Status.OOM, Status.REJECTED))
    return f"{lost}{f', {refused} refused' * bool(refused)}"


#: How to read the tables.
_RULES = (
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

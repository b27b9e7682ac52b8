"""The folder of a validation: tables, executed logs, ``validation.json``, and a self-contained page."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from servecast.metrics import decisions_frame, requests_frame
from servecast.report.charts.figure import table
from servecast.report.charts.files import write_figures
from servecast.report.device_charts import slug, validation_charts
from servecast.report.page import Page, Section, again, chart_section, paragraph
from servecast.report.validation_words import RULES, tables
from servecast.report.verdicts.validate import verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from servecast.against.device.validate import Validation
    from servecast.text import Table


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
    write_figures(folder, validation_charts(validation.cases), figures)
    page = folder / "report.html"
    page.write_text(_page(validation, facts), encoding="utf-8")
    return page


def _page(validation: Validation, facts: Mapping[str, Any]) -> str:
    machine = facts["machine"]
    device = machine.get("gpu", machine["processor"])
    return Page(
        name=validation.name,
        title=f"{validation.name}: executed on a device, and simulated",
        kicker="Executed on a device, and simulated,",
        about=f"{facts['date']}: {device}, torch {machine['torch']}, {machine['clock']}",
        verdict=verdict(validation),
        sections=[
            *(
                Section(f"table-{at}", re.split("[:,]", each.title)[0], each.title, _table(each))
                for at, each in enumerate(tables(validation))
            ),
            *(chart_section(chart, chart.title.split(",")[0]) for chart in validation_charts(validation.cases)),
            Section("rules", "How to read it", "How to read it", "".join(map(paragraph, RULES))),
            again("", ["metrics.csv", "parts.csv", "per-request.csv", "executed/", "validation.json"]),
        ],
    ).html()


def _table(each: Table) -> str:
    return table(each.columns, each.rows, each.title) if each.rows else paragraph("None.", "quiet")


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

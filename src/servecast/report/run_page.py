"""A run or a sweep as files: its tables, its page with the charts, and the document of ``--json``."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import servecast
from servecast.files import dumps, frame_csv, plain, replacing, write_tables
from servecast.metrics import WIDE, ranked
from servecast.report import run_charts, sweep_charts, time_charts
from servecast.report.charts.figure import download, figure, table
from servecast.report.charts.files import write_figures
from servecast.report.page import Page, Section, again, paragraph
from servecast.report.points import Points, points_of
from servecast.report.tables import UNCALIBRATED, comparison_rows, targets, tenant_rows
from servecast.report.trust import assumed, step_error, trusted
from servecast.report.verdicts.run import verdict
from servecast.run.judged import judged, per_policy, view
from servecast.run.results import stated, swept
from servecast.text import missing, number, plain_value, seconds, short_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from servecast.report.charts.spec import Chart
    from servecast.run.results import Results

MOST_ROWS = 150  # of the table of policies
#: Of `as_json`. Goes up when a key is taken out, or means something else; new keys may come at any time.
_SCHEMA_VERSION = 1
_LARGEST_FILE = 900_000  # bytes of a table that travels in the page; of a larger one the points of the charts do


def write(results: Results, out: Path, figures: Sequence[str] = (), *, as_csv: bool = False) -> Path:
    """Write ``out/NAME/``, whole or not at all, in place of an earlier one; see `servecast.report.write_run`."""
    target = out / str(results.scenario["name"])
    with replacing(target) as folder:
        tables = {"summary": results.summary, "requests": results.requests, "decisions": results.decisions}
        if len(results.tenants):
            tables["tenants"] = results.tenants
        if len(results.oom):
            tables["oom"] = results.oom
        names = write_tables(folder, results.scenario, tables, as_csv=as_csv)
        points = points_of(results)
        if figures:
            mark = "" if results.roof is None or results.roof.calibrated else f" ({UNCALIBRATED})"
            charts = [chart for each in chart_sections(results, points) for chart in each.charts]
            names += write_figures(folder, charts, figures, mark)
        (folder / "report.html").write_text(run_page(results, names, points), encoding="utf-8")
    return target / "report.html"


class ChartSection(NamedTuple):
    """Charts of one section of the page; ``single``: they show single runs."""

    id: str
    short: str
    title: str
    charts: tuple[Chart, ...]
    single: bool = False


def chart_sections(results: Results, points: Points | None = None) -> list[ChartSection]:
    """Every chart that has something to show, in the order in which people ask: how much, how fast for each, at what
    price, and why."""
    shown, points = view(results), points_of(results) if points is None else points
    price = (results.scenario.get("cost") or {}).get("usd_per_gpu_hour")
    made: list[tuple[str, str, str, tuple[Chart | None, ...], bool]] = [
        ("served", "Throughput", "Throughput against latency", (sweep_charts.throughput_latency(points),), False),
        ("latencies", "Latency", "How long requests wait", (run_charts.latency_cdf(shown),), True),
        ("pace", "Interactivity", "Interactivity against throughput", (sweep_charts.interactivity(points),), False),
        ("price", "Cost", "What a million tokens cost", (sweep_charts.cost_curve(points, price),), False),
        ("room", "Memory", "Memory, and the cliff", (sweep_charts.memory(points),), False),
        ("waste", "Waste", "Where the computed tokens went", (run_charts.waste(shown), time_charts.slots(shown)), True),
        ("roof", "Roofline", "Steps on the roofline", (run_charts.roofline(shown),), True),
        ("time", "Timeline", "Running rows and KV memory over time", (time_charts.timeline(shown),), True),
    ]
    return [
        ChartSection(place, short, title, kept, single)
        for place, short, title, charts, single in made
        if (kept := tuple(chart for chart in charts if chart is not None))
    ]


def run_page(results: Results, files: Sequence[str], points: Points | None = None) -> str:
    """The page as HTML. ``files``: tables written beside it; ``points``: of the sweep, if they were made already."""
    points = points_of(results) if points is None else points
    scenario, name = results.scenario, str(results.scenario["name"])
    roof, varied, aims = results.roof, set(points.keys), targets(stated(scenario))
    calibrated = roof is None or roof.calibrated
    executed = (scenario.get("derived") or {}).get("executed_on")
    model = "several models" if "model" in varied else scenario.get("model")
    hardware = f" on {roof.name}" if roof and varied.isdisjoint(("device", "profile")) else ""
    best, tiles = _tiles(results)
    error = step_error(results.profile, calibrated=calibrated, executed=bool(executed))
    return Page(
        name=name,
        title=f"{name}: batching policies compared",
        kicker=f"Executed on {executed}, not forecast," if executed else "Serving forecast",
        verdict=verdict(results.summary, stated(scenario), calibrated=calibrated),
        about=f"{model}{hardware}{f', targets {aims}' if aims else ''}",
        uncalibrated=not calibrated,
        best=best,
        tiles=tiles,
        notes=[*results.warnings, error, *results.notes],
        sections=[
            _compared(results, points),
            *_tenants(results),
            *_charts(results, points),
            Section("trust", "Errors", "How far to trust it", _trust(results, calibrated, executed)),
            Section("assumed", "Assumptions", "What is assumed", assumed(scenario, "The scenario as it ran")),
            _again(results, files, executed),
        ],
    ).html()


def _compared(results: Results, points: Points) -> Section:
    # The first heads may break where a word could: names of policies with their parameters are long.
    rows = [
        {head.replace("_", "_\u200b"): cell.replace("/", "/\u200b") for head, cell in row.items()}
        for row in comparison_rows(results.summary)
    ]
    summary, note = _summary_file(results, points)
    html = _table(rows[:MOST_ROWS], "The policies compared", "compared")
    if len(rows) > MOST_ROWS:
        html += paragraph(f"The first {MOST_ROWS} of {len(rows):,} rows: summary.csv has all of them.", "quiet")
    means = f"Means over {points.seeds} seeds. " if points.seeds > 1 else ""
    html += f'<div class="numbers">{summary}</div>{paragraph(means + note, "quiet") if means or note else ""}'
    words = "".join(f"<dt>{escape(each.label)}</dt><dd>{escape(each.text)}</dd>" for each in ranked())
    every = _table(comparison_rows(results.summary, WIDE)[:MOST_ROWS], "All metrics")
    every += f'<dl class="words">{words}</dl>'
    html += f'<div class="numbers"><details><summary>All metrics, and what each is</summary>{every}</details></div>'
    return Section("compared", "Policies", "The policies compared", html)


def _tenants(results: Results) -> Iterator[Section]:
    if len(results.tenants):
        words = paragraph("What each tenant got, judged by its own targets.", "quiet")
        rows = _table(tenant_rows(results.tenants)[:MOST_ROWS], "Tenants")
        yield Section("tenants", "Tenants", "Tenants", words + rows)


def _charts(results: Results, points: Points) -> list[Section]:
    shown = view(results)
    where = paragraph(f"Of single runs, at {shown.reason}: {shown.where}.", "quiet") if shown.where else ""
    return [
        Section(each.id, each.short, each.title, (where if each.single else "") + "".join(map(figure, each.charts)))
        for each in chart_sections(results, points)
    ]


def _trust(results: Results, calibrated: bool, executed: str | None) -> str:
    if executed:
        return (
            paragraph(f"Nothing here is forecast: {executed} computed every step, and its times were measured.")
            + "<p><code>servecast validate</code> says how far a forecast of the same scenario is off.</p>"
        )
    return trusted(results.profile, calibrated, results.roof.name if results.roof else None)


def _again(results: Results, files: Sequence[str], executed: str | None) -> Section:
    line = f"servecast run scenario.yaml{f' --execute {executed}' if executed else ''}"
    same = "Steps take what the device then takes." if executed else "The same inputs give the same bytes."
    only = "As vllm bench serve has them. Only completed requests enter latencies and throughput. "
    return again(line, files, paragraph(same), only + _window(results))


def _tiles(results: Results) -> tuple[str, list[tuple[str, str]]]:
    """The policy that the verdict leads with, and its key figures: value and label."""
    summary = results.summary
    best = judged(per_policy(summary)).rows.iloc[0]
    if not best["completed"]:
        return "", []
    at = [f"{short_key(key)} {plain_value(best[key])}" for key in swept(summary) if not missing(best[key])]
    tiles = [(str(best["policy"]), f"judged at {', '.join(at)}" if at else "serves best")]
    good, served = best["goodput_rps"], best["request_throughput_rps"]
    tiles.append(
        (number(served), "requests/s served") if missing(good) else (number(good), "requests/s within the targets")
    )
    times = (("ttft_p99_s", "p99 time to first token"), ("tpot_p50_s", "median time per output token"))
    tiles += [(seconds(float(best[column])), label) for column, label in times if not missing(best[column])]
    if not missing(best["usd_per_mtok_output"]):
        tiles.append((f"${number(float(best['usd_per_mtok_output']))}", "of the whole bill per million output tokens"))
    return ", ".join([str(best["policy"]), *at]), tiles


def _summary_file(results: Results, points: Points) -> tuple[str, str]:
    """``summary.csv`` as a file that travels in the page, and what a reader should know of it."""
    data = frame_csv(results.summary)
    if len(data) <= _LARGEST_FILE:
        return download("summary.csv", data), ""
    columns = [each.name for each in ranked() if each.name in points.shown]
    part = download("summary-points.csv", frame_csv(points.shown[["policy", *points.keys, *columns]]))
    return part, (
        f"summary.csv ({len(data) / 1e6:.1f} MB) is too large to travel in the page: the file here has the points of "
        "the charts, means over the seeds."
    )


def _table(rows: Sequence[Mapping[str, str]], label: str, classes: str = "") -> str:
    return table(tuple(rows[0]), [tuple(row.values()) for row in rows], label, classes)


def _window(results: Results) -> str:
    warmup, cooldown = results.scenario.get("warmup_s"), results.scenario.get("cooldown_s")
    if warmup is None and cooldown is None:
        return "All numbers are of the whole run, from the clock's zero to the last answer, ramp and drain included."
    return (
        f"All numbers are of the steady window from {warmup or 0:g} s to {cooldown or 0:g} s before the last arrival: "
        "requests by their arrival, tokens by their emission."
    )


def as_json(scenarios: Sequence[dict[str, Any]]) -> str:
    """The document of ``run --json`` over all scenarios of a command, on one line.

    Its keys stay as they are within a version. What is not known is null: no NaN and no infinity, which JSON does not
    have. An infinite value of a sweep (a burst's rate) is the text "inf", so that points stay apart.
    """
    return dumps({"schema_version": _SCHEMA_VERSION, "servecast": servecast.__version__, "scenarios": scenarios})


def plain_results(results: Results, folder: Path, exports: Path | None = None) -> dict[str, Any]:
    """The part of one scenario in `as_json`, as plain values; ``missing``: runs not made as the user interrupted."""
    calibrated = bool(results.scenario["derived"]["calibrated"])
    executed = bool(results.scenario["derived"].get("executed_on"))
    return {
        "name": results.scenario["name"],
        "folder": folder,
        "report": folder / "report.html",
        "exports": exports,
        "calibrated": calibrated,
        "verdict": str(verdict(results.summary, stated(results.scenario), calibrated=calibrated)),
        "step_error": step_error(results.profile, calibrated=calibrated, executed=executed),
        "warnings": results.warnings,
        "notes": results.notes,
        "summary": [{**plain(outcome.keys, str), **outcome.row} for outcome in results.outcomes],
        "tenants": [
            {**plain(outcome.keys, str), **row} for outcome in results.outcomes for row in outcome.made.tenants
        ],
        "failures": [failure._asdict() for failure in results.failures],
        "missing": results.missing,
        "resumed": results.resumed,
    }

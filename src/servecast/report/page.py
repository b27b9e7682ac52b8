"""``report.html``: one self-contained page, verdict first, then the evidence, then what it all rests on."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import servecast
from servecast.files import LARGE, frame_csv
from servecast.metrics import PERCENTILE_RULE, WIDE, ranked
from servecast.report import run_charts, sweep_charts
from servecast.report.charts.figure import download, figure, table
from servecast.report.evidence import assumed, trusted
from servecast.report.shell import TIP, read, script, style
from servecast.report.tenants import tenant_rows
from servecast.report.told import gathered
from servecast.report.trust import MEASURED, step_error
from servecast.report.verdicts.run import verdict
from servecast.report.words import comparison_rows, targets
from servecast.run.judged import judged, per_policy
from servecast.run.results import stated, swept
from servecast.run.shown import view
from servecast.text import missing, number, plain_value, seconds, short_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from servecast.report.charts.spec import Chart
    from servecast.report.plots import Plot
    from servecast.report.told import Told
    from servecast.run.results import Results

MOST_ROWS = 150  # of the table of policies
LARGEST_FILE = 900_000  # bytes of a table that travels in the page; of a larger one the points of the charts do


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with its figures; ``single``: they show single runs."""

    id: str
    short: str
    title: str
    figures: tuple[str, ...]
    single: bool = False


def render(results: Results, plots: Sequence[Plot], images: Mapping[str, bytes], files: Sequence[str]) -> str:
    """The page as HTML. ``images``: PNG by name of plot; ``files``: tables written beside it."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    calibrated = results.roof is None or results.roof.calibrated
    slo = stated(results.scenario)
    shown = view(results)
    told = gathered(results)
    varied = set(told.keys)
    rows = [_broken(row) for row in comparison_rows(results.summary)]
    summary, summary_note = _summary_file(results, told)
    best, tiles = _tiles(results)
    executed = (results.scenario.get("derived") or {}).get("executed_on")
    said = verdict(results.summary, slo, calibrated=calibrated)
    page = environment.get_template("report.html.j2").render(
        name=results.scenario["name"],
        version=servecast.__version__,
        style=style(),
        script=script(),
        tip=TIP,
        verdict=said,
        calibrated=calibrated,
        hardware=results.roof.name if results.roof and varied.isdisjoint(("device", "profile")) else None,
        model="several models" if "model" in varied else results.scenario.get("model"),
        targets=targets(slo),
        best=best,
        tiles=tiles,
        compared=_table(rows[:MOST_ROWS], "The policies compared", "compared"),
        every=_table(comparison_rows(results.summary, WIDE)[:MOST_ROWS], "All metrics"),
        metrics=[(each.label, each.text) for each in ranked()],
        left_out=len(rows) > MOST_ROWS,
        shown_rows=MOST_ROWS,
        all_rows=f"{len(rows):,}",
        summary_file=summary,
        summary_note=summary_note,
        tenants=_table(tenant_rows(results.tenants)[:MOST_ROWS], "Tenants") if len(results.tenants) else "",
        seeds=told.seeds,
        executed=executed,
        error=MEASURED if executed else step_error(results.profile, calibrated=calibrated),
        where=shown.where,
        reason=shown.reason,
        sections=_sections(results, told, plots, images),
        notes=list(results.notes),
        trust=trusted(results.profile, calibrated=calibrated, device=results.roof.name if results.roof else None),
        assumed=assumed(results.scenario, "The scenario as it ran"),
        files=[*files, *(f"{plot.name}.png, {plot.name}.svg" for plot in plots)],
        large=f"{LARGE:,}",
        percentile_rule=PERCENTILE_RULE,
        window=_window(results),
    )
    return str(page)


def _sections(results: Results, told: Told, plots: Sequence[Plot], images: Mapping[str, bytes]) -> list[Section]:
    """The figures in the order in which people ask: how much, how fast for each, at what price, and why."""
    captions = {plot.name: plot.caption for plot in plots}

    def said(name: str) -> str:
        return captions.get(name, "")

    shown = view(results)
    price = (results.scenario.get("cost") or {}).get("usd_per_gpu_hour")
    slots = [_picture(plot, images[plot.name]) for plot in plots if plot.name == "slots"]
    made: list[tuple[str, str, str, Chart | None, list[str], bool]] = [
        ("served", "Throughput", "Throughput against latency",
         sweep_charts.throughput_latency(told, said("throughput-latency")), [], False),
        ("latencies", "Latency", "How long requests wait",
         run_charts.latency_cdf(shown, said("latency-cdf")), [], True),
        ("pace", "Interactivity", "Interactivity against throughput", sweep_charts.interactivity(told), [], False),
        ("price", "Cost", "What a million tokens cost", sweep_charts.cost_curve(told, price), [], False),
        ("room", "Memory", "Memory, and the cliff", sweep_charts.memory(told), [], False),
        ("waste", "Waste", "Where the computed tokens went", run_charts.waste(shown, said("tokens")), slots, True),
        ("roof", "Roofline", "Steps on the roofline", run_charts.roofline(shown, said("roofline")), [], True),
        ("time", "Timeline", "Running rows and KV memory over time",
         run_charts.timeline(shown, said("timeline")), [], True),
    ]  # fmt: skip
    sections = []
    for place, short, title, chart, pictures, single in made:
        figures = (*(() if chart is None else (figure(chart),)), *pictures)
        if figures:
            sections.append(Section(place, short, title, figures, single))
    return sections


def _picture(plot: Plot, image: bytes) -> str:
    """A figure that is drawn for the file alone."""
    data = base64.b64encode(image).decode()
    return (
        f'<figure id="{plot.name}"><h3>{escape(plot.title)}</h3><figcaption><p>{escape(plot.caption)}</p></figcaption>'
        f'<div class="wide"><img src="data:image/png;base64,{data}" alt="{escape(plot.title)}: {escape(plot.caption)}">'
        "</div></figure>"
    )


def _tiles(results: Results) -> tuple[str, list[tuple[str, str]]]:
    """The policy that the verdict leads with, and its key figures: value and label."""
    summary = results.summary
    rows = judged(per_policy(summary)).rows
    best = rows.iloc[0]
    if not best["completed"]:
        return "", []
    at = [f"{short_key(key)} {plain_value(best[key])}" for key in swept(summary) if not missing(best[key])]
    name = ", ".join([str(best["policy"]), *at])
    good = best["goodput_rps"]
    rate = (
        (number(best["request_throughput_rps"]), "requests/s served")
        if missing(good)
        else (number(good), "requests/s within the targets")
    )
    tiles = [(str(best["policy"]), f"judged at {', '.join(at)}" if at else "serves best"), (rate[0], rate[1])]
    for value, label in (
        (best["ttft_p99_s"], "p99 time to first token"),
        (best["tpot_p50_s"], "median time per output token"),
    ):
        if not missing(value):
            tiles.append((seconds(float(value)), label))
    if not missing(best["usd_per_mtok_output"]):
        tiles.append((f"${number(float(best['usd_per_mtok_output']))}", "per million output tokens"))
    return name, tiles


def _summary_file(results: Results, told: Told) -> tuple[str, str]:
    """``summary.csv`` as a file that travels in the page, and what a reader should know of it."""
    data = frame_csv(results.summary)
    if len(data) <= LARGEST_FILE:
        return download("summary.csv", data), ""
    columns = [each.name for each in ranked() if each.name in told.shown]
    part = download("summary-points.csv", told.csv(told.shown, columns))
    return part, (
        f"summary.csv ({len(data) / 1e6:.1f} MB) is too large to travel in the page: the file here has the points of "
        "the charts, means over the seeds."
    )


def _table(rows: Sequence[Mapping[str, str]], label: str, classes: str = "") -> str:
    return table(tuple(rows[0]), [tuple(row.values()) for row in rows], label, classes)


def _broken(row: dict[str, str]) -> dict[str, str]:
    """A row whose first heads may break where a word could: names of policies with their parameters are long."""
    return {head.replace("_", "_\u200b"): value.replace("/", "/\u200b") for head, value in row.items()}


def _window(results: Results) -> str:
    warmup, cooldown = results.scenario.get("warmup_s"), results.scenario.get("cooldown_s")
    if warmup is None and cooldown is None:
        return "All numbers are of the whole run, from the clock's zero to the last answer, ramp and drain included."
    return (
        f"All numbers are of the steady window from {warmup or 0:g} s to {cooldown or 0:g} s before the last arrival: "
        "requests by their arrival, tokens by their emission."
    )

"""The folder of a plan: scenario.yaml to make it again, options.csv, plan.json, and a page with figures and tables."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

import servecast
from servecast.errors import InputError
from servecast.files import SCENARIO, dumps, replacing, scenario_text
from servecast.plan.basis import Basis
from servecast.report import plan_words
from servecast.report.charts.figure import download, table
from servecast.report.charts.files import FORMS, write_figures
from servecast.report.page import Page, Section, again, chart_section, paragraph
from servecast.report.plan_charts import charts
from servecast.report.plan_words import gpus, interval, shortened, statistic, timed
from servecast.report.trust import assumed, step_error, trusted
from servecast.report.verdicts.plan import verdict
from servecast.scenario import seen_from
from servecast.text import number, signed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from servecast.plan.answer import Option, Plan
    from servecast.plan.uncertainty import Estimate
    from servecast.text import Table

FILES = ("plan.json", "plan.html", "options.csv", SCENARIO)
#: Goes up when a key is taken out, or means something else; new keys may come at any time.
_SCHEMA_VERSION = 1
#: The table under a figure, by the figure's name.
_DETAIL = {"cost-curve": plan_words.DOLLARS, "changes": plan_words.CHANGES}


def refuse_strangers(folder: Path) -> None:
    """Raises InputError where something else stands, or nothing can be written, where a plan is to be written."""
    if folder.exists() and not folder.is_dir():
        problem = "is a file, where a plan wants a folder: move it away, or choose another folder with --out"
        raise InputError(str(folder), problem)
    for name in FILES:
        if (folder / name).is_dir():
            problem = "is a folder, where the plan wants to write a file: move it away, or choose another with --out"
            raise InputError(str(folder / name), problem)
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        problem = "cannot be written (Permission denied): let it be written, or choose another folder with --out"
        raise InputError(str(folder), problem)


def text(plan: Plan, basis: Basis) -> str:
    """The plan and what it rests on as JSON: ``plan.json``, and what ``--json`` prints."""
    data = {
        "schema_version": _SCHEMA_VERSION,
        "servecast": servecast.__version__,
        "verdict": str(verdict(plan)),
        **plan.data(),
        "step_errors": {name: step_error(profile) for name, profile in basis.rests.items()},
        "scenario": basis.scenario,
    }
    return dumps(data, indent=1)


def write(plan: Plan, folder: Path, basis: Basis | None = None, figures: Sequence[str] = ()) -> Path:
    """Write the plan into ``folder``, whole or not at all; the page. What else stands there stays.

    basis : what the plan rests on
    figures : forms (``svg``, ``png``) in which each chart of the page is a file too
    """
    basis = Basis() if basis is None else basis
    basis = replace(basis, scenario=seen_from(folder.resolve(), basis.scenario))
    options = _csv(plan)
    files = {"plan.json": text(plan, basis) + "\n", "options.csv": options}
    files["plan.html"] = page(plan, options.encode(), basis)
    if basis.scenario:
        files[SCENARIO] = scenario_text(basis.scenario)
    drawn = list(charts(shortened(plan)[0]))
    earlier = tuple(f"/{chart.name}.{form}" for chart in drawn for form in FORMS)
    with replacing(folder, refuse_strangers, earlier) as fresh:
        for name, content in files.items():
            (fresh / name).write_text(content, encoding="utf-8", newline="")
        write_figures(fresh, drawn, figures)
    return folder / "plan.html"


def _csv(plan: Plan) -> str:
    """One row an option, those that cannot be with their reason."""
    rows = [_cells(option) for option in plan.options]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cells(option: Option) -> dict[str, Any]:
    cells: dict[str, Any] = {"configuration": option.label, **option.changed}
    for name in ("device", "calibrated", "replicas", "gpus", "unit", "target"):
        cells[name] = getattr(option, name)
    cells |= _ends("highest_load", option.capacity) | _ends("highest_rps", option.rate)
    cells |= _ends("saturation_rps", option.saturation)
    for name in ("unstable_above", "target_gpus", "usd_per_hour"):
        cells[name] = getattr(option, name)
    for kind, estimate in option.usd_per_mtok.items():
        cells |= _ends(f"usd_per_mtok_{kind}", estimate)
    for name, estimate in option.at_target.items():
        cells |= _ends(f"target_{name}", estimate)
    return {**cells, "too_long": "" if option.too_long is None else option.too_long.counts, "refused": option.refused}


def _ends(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), estimate or (None, None, None), strict=True))


def page(plan: Plan, options_csv: bytes, basis: Basis | None = None) -> str:
    """The page as HTML; ``options_csv`` travels in it."""
    basis = Basis() if basis is None else basis
    said, (first, *others), legend = verdict(plan), plan_words.tables(plan), plan_words.legend(plan)
    plan, _ = shortened(plan)
    configurations = (
        paragraph(legend, "quiet")
        + table(first.columns, first.rows, first.title, "cards")
        + f'<div class="numbers">{download("options.csv", options_csv)}</div>'
    )
    return Page(
        name=plan.name,
        title=f"{plan.name}: plan",
        kicker="Capacity plan",
        verdict=said,
        tiles=list(_tiles(plan)),
        notes=[*(step_error(profile) for profile in list(basis.rests.values())[:1]), *plan.notes],
        sections=[
            Section("options", "Configurations", "Configurations", configurations),
            *_evidence(plan, others),
            *_basis(plan, basis),
            _again(plan, basis),
        ],
    ).html()


def _evidence(plan: Plan, others: Sequence[Table]) -> Iterator[Section]:
    """Charts with the tables that belong to them, then the tables without a chart."""
    tables = {each.title: table(each.columns, each.rows, each.title) for each in others}
    for chart in charts(plan):
        section = chart_section(chart, chart.title)
        yield replace(section, html=section.html + tables.pop(_DETAIL.get(chart.name, ""), ""))
    for place, (title, html) in enumerate(tables.items()):
        yield Section(f"table-{place}", "", title, html)


def _basis(plan: Plan, basis: Basis) -> Iterator[Section]:
    if basis.scenario:
        yield Section("trust", "Errors", "How far to trust it", _trust(plan, basis))
        scenario = assumed(basis.scenario, "The scenario as it was planned")
        yield Section("assumed", "Assumptions", "What is assumed", scenario)


def _trust(plan: Plan, basis: Basis) -> str:
    """What its intervals hold, where it was extrapolated, and the errors of each profile, the best one's in full."""
    parts, best = [], plan.best
    if best is not None and best.capacity is not None:
        said = f"{best.label}: {interval(best.capacity, 4)} {best.unit}, the mean over seeds with its 90 % interval"
        parts.append(paragraph(f"Highest load of {said}, widened by what its profile says of its own errors."))
    beyond = list(dict.fromkeys(option.beyond for option in plan_words.standing(plan) if option.beyond))
    if beyond:
        parts.append("<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in beyond) + "</ul>")
    for place, (name, profile) in enumerate(basis.rests.items()):
        html = paragraph(step_error(profile)) if place else trusted(profile, profile is not None, name)
        parts.append(f"<h3>{escape(name)}</h3>{html}")
    return "".join(parts)


def _tiles(plan: Plan) -> Iterator[tuple[str, str]]:
    """Value and label of the key figures of the best configuration."""
    best = plan.best
    if best is None or best.capacity is None:
        return
    yield gpus(best, best.replicas), f"for {number(best.target)} {best.unit}"
    if best.usd_for_target is not None:
        yield f"${best.usd_for_target:,.2f}", "an hour for the target"
    if (output := best.usd_at_target.get("output")) is not None:
        yield f"${number(output.value)}", "of the whole bill per million output tokens, at the target"
    yield number(best.capacity.value), f"{best.unit} at most, within the targets"
    if plan.headroom is not None:
        yield signed(plan.headroom.value), "headroom over the target"


def _again(plan: Plan, basis: Basis) -> Section:
    goal = ", ".join(f"{statistic(name)} {timed(name, f'{limit:g}')}" for name, limit in plan.goal.items())
    more = (
        f"In the folder of this page, {SCENARIO} holds what --set changed and every default; the same version gives "
        f"the same numbers. The goal: {goal}."
    )
    line, first = (f"servecast plan {SCENARIO}", [SCENARIO]) if basis.scenario else ("", [])
    return again(line, [*first, "options.csv", "plan.json"], paragraph(more))

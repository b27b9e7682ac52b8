"""``plan.html``: the verdict, the figures and tables of a plan, self-contained like the page of a run."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from servecast.files import SCENARIO
from servecast.plan.basis import Basis
from servecast.report import plan_tables
from servecast.report.charts.figure import download, table
from servecast.report.evidence import assumed, trusted
from servecast.report.page import Page, Section, again, chart_section, paragraph
from servecast.report.plan_charts import charts
from servecast.report.plan_words import gpus, interval, shortened, statistic, timed
from servecast.report.trust import step_error
from servecast.report.verdicts.plan import verdict
from servecast.text import number, signed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servecast.plan.answer import Plan
    from servecast.text import Table


#: The table that stands under a figure, by its name: it has also what has no place in one.
_DETAIL = {"cost-curve": plan_tables.DOLLARS, "changes": plan_tables.CHANGES}


def page(plan: Plan, options_csv: bytes, basis: Basis | None = None) -> str:
    """The page as HTML; ``options_csv`` travels in it, as it stands beside it. ``basis``: what the plan rests on."""
    basis = Basis() if basis is None else basis
    said, (first, *others), legend = verdict(plan), plan_tables.tables(plan), plan_tables.legend(plan)
    plan, _ = shortened(plan)
    return Page(
        name=plan.name,
        title=f"{plan.name}: plan",
        kicker="Capacity plan",
        verdict=said,
        tiles=list(_tiles(plan)),
        notes=[*(step_error(profile) for profile in list(basis.rests.values())[:1]), *plan.notes],
        sections=[
            Section("options", "Configurations", "Configurations", _configurations(first, legend, options_csv)),
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
        yield Section(
            "assumed", "Assumptions", "What is assumed", assumed(basis.scenario, "The scenario as it was planned")
        )


def _configurations(first: Table, legend: str, options_csv: bytes) -> str:
    return (
        f'<p class="quiet">{escape(legend)}</p>'
        + table(first.columns, first.rows, first.title, "cards")
        + f'<div class="numbers">{download("options.csv", options_csv)}</div>'
    )


def _trust(plan: Plan, basis: Basis) -> str:
    """What its intervals hold, where it was extrapolated, and the errors of each profile, the best one's in full."""
    parts = []
    if plan.best is not None and plan.best.capacity is not None:
        parts.append(
            f"<p>Highest load of {escape(plan.best.label)}: {escape(interval(plan.best.capacity, 4))} "
            f"{escape(plan.best.unit)}, the mean over seeds with its 90 % interval, widened by what its profile "
            "says of its own errors.</p>"
        )
    beyond = list(dict.fromkeys(option.beyond for option in plan_tables.standing(plan) if option.beyond))
    if beyond:
        parts.append("<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in beyond) + "</ul>")
    for place, (name, profile) in enumerate(basis.rests.items()):
        if place == 0:
            html = trusted(profile, calibrated=profile is not None, device=name)
            parts.append(f"<h3>{escape(name)}</h3>{html}")
        else:
            parts.append(f"<h3>{escape(name)}</h3><p>{escape(step_error(profile))}</p>")
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
        yield f"${number(output.value)}", "per million output tokens, at the target"
    yield number(best.capacity.value), f"{best.unit} at most, within the targets"
    if plan.headroom is not None:
        yield signed(plan.headroom.value), "headroom over the target"


def _again(plan: Plan, basis: Basis) -> Section:
    goal = ", ".join(f"{statistic(name)} {timed(name, f'{limit:g}')}" for name, limit in plan.goal.items())
    line = f"servecast plan {SCENARIO}" if basis.scenario else ""
    more = (
        f"In the folder of this page, {SCENARIO} holds what --set changed and every default; the same version gives "
        f"the same numbers. The goal: {goal}."
    )
    return again(line, [*([SCENARIO] if basis.scenario else []), "options.csv", "plan.json"], paragraph(more))

"""``plan.html``: the verdict, the figures and tables of a plan, self-contained like the page of a run."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import servecast
from servecast.files import SCENARIO
from servecast.plan.basis import Basis
from servecast.report import plan_tables
from servecast.report.charts.figure import download, figure, table
from servecast.report.evidence import assumed, trusted
from servecast.report.plan_charts import charts
from servecast.report.plan_words import gpus, interval, shortened, statistic, timed
from servecast.report.shell import TIP, script, style
from servecast.report.verdicts.plan import verdict
from servecast.text import number, signed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.plan.answer import Plan
    from servecast.text import Table


#: The table that stands under a figure, by its name: it has also what has no place in one.
_DETAIL = {"cost-curve": plan_tables.DOLLARS, "changes": plan_tables.CHANGES}


def page(plan: Plan, options_csv: bytes, basis: Basis | None = None) -> str:
    """The page as HTML; ``options_csv`` travels in it, as it stands beside it. ``basis``: what the plan rests on."""
    basis = Basis() if basis is None else basis
    said = verdict(plan)
    first, *details = plan_tables.tables(plan)
    legend = plan_tables.legend(plan)
    plan, _ = shortened(plan)
    drawn = list(charts(plan))
    told = {each.title: table(each.columns, each.rows, each.title) for each in details}
    notes = [*dict.fromkeys(rest.error for rest in basis.rests[:1]), *plan.notes]
    links = [
        ("options", "Configurations"),
        *((chart.name, chart.title) for chart in drawn),
        *([("trust", "Errors"), ("assumed", "Assumptions")] if basis.scenario else []),
        ("again", "Reproduce"),
    ]
    parts = [
        f'<p class="verdict">{escape(said.headline)} <span>{escape(said.rest)}</span></p>',
        _tiles(plan),
        '<ul class="mind">' + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>" if notes else "",
        '<nav aria-label="Contents"><ul>'
        + "".join(f'<li><a href="#at-{name}">{escape(title)}</a></li>' for name, title in links)
        + "</ul></nav>",
        _section("options", "Configurations", _configurations(first, legend, options_csv)),
        *(
            _section(chart.name, chart.title, figure(chart) + told.pop(_DETAIL.get(chart.name, ""), ""))
            for chart in drawn
        ),
        *(_section(f"table-{place}", title, html) for place, (title, html) in enumerate(told.items())),
        *(
            [
                _section("trust", "How far to trust it", _trust(plan, basis)),
                _section("assumed", "What is assumed", assumed(basis.scenario, "The scenario as it was planned")),
            ]
            if basis.scenario
            else []
        ),
        _section("again", "Do it again", _again(plan, basis)),
    ]
    body = "\n".join(part for part in parts if part)
    name = escape(plan.name)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}: plan</title>\n<style>\n{style()}</style></head>\n<body>"
        '<a class="skip" href="#at-options">Skip to the configurations</a>\n'
        f'<header><p class="kicker">Capacity plan by servecast {servecast.__version__}</p><h1>{name}</h1></header>\n'
        f"<main>\n{body}\n</main>\n<footer>servecast {servecast.__version__}. {name}.</footer>\n{TIP}\n"
        f"<script>\n{script()}</script>\n</body></html>\n"
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
    for place, each in enumerate(basis.rests):
        if place == 0:
            html = trusted(each.profile, calibrated=each.profile is not None, device=each.name)
            parts.append(f"<h3>{escape(each.name)}</h3>{html}")
        else:
            parts.append(f"<h3>{escape(each.name)}</h3><p>{escape(each.error)}</p>")
    return "".join(parts)


def _section(name: str, title: str, html: str) -> str:
    return f'<section id="at-{name}" aria-label="{escape(title)}"><h2>{escape(title)}</h2>{html}</section>'


def _tiles(plan: Plan) -> str:
    tiles = "".join(f"<li><b>{escape(value)}</b><span>{escape(label)}</span></li>" for value, label in _figures(plan))
    return f'<ul class="tiles" aria-label="Key figures">{tiles}</ul>' if tiles else ""


def _figures(plan: Plan) -> Iterator[tuple[str, str]]:
    """Value and label of the key figures of the best configuration."""
    best = plan.best
    if best is None or best.capacity is None:
        return
    yield gpus(best, best.replicas), f"for {number(best.target)} {best.unit}"
    if best.usd_for_target is not None:
        yield f"${best.usd_for_target:,.2f}", "an hour for the target"
    if (output := best.usd_per_mtok_at_target.get("output")) is not None:
        yield f"${number(output)}", "per million output tokens, at the target"
    yield number(best.capacity.value), f"{best.unit} at most, within the targets"
    if plan.headroom is not None:
        yield signed(plan.headroom.value), "headroom over the target"


def _again(plan: Plan, basis: Basis) -> str:
    goal = ", ".join(
        f"{escape(statistic(name))} {escape(timed(name, f'{limit:g}'))}" for name, limit in plan.goal.items()
    )
    command = (
        ""
        if not basis.scenario
        else (f'<pre tabindex="0" role="region" aria-label="Command">servecast plan {SCENARIO}</pre>')
    )
    files = ", ".join([*([SCENARIO] if basis.scenario else []), "options.csv", "plan.json"])
    return (
        f"{command}<p>In the folder of this page: {SCENARIO} holds what --set changed and every default, and the same "
        f"version gives the same numbers. The goal: {goal}. Beside this page: {files}. This page needs nothing but "
        "itself: it can be mailed, and opened without a network.</p>"
    )

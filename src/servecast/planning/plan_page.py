"""``plan.html``: the verdict, the figures and tables of a plan, self-contained like the page of a run."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import servecast
from servecast.planning import plan_words
from servecast.planning.plan_charts import charts
from servecast.planning.plan_words import interval, number
from servecast.report.charts.figure import download, figure, table
from servecast.report.shell import TIP, script, style

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.planning.answer import Plan


#: The table that stands under a figure, by its name: it has also what has no place in one.
_DETAIL = {"cost-curve": "Dollars per million tokens", "changes": "One change at a time"}


def page(plan: Plan, options_csv: bytes) -> str:
    """The page as HTML; ``options_csv`` travels in it, as it stands beside it."""
    drawn = list(charts(plan))
    compared, *details = plan_words.tables(plan)
    told = {each.title: table(each.columns, each.rows, each.title) for each in details if each.rows}
    links = [("options", "Configurations"), *((chart.name, chart.title) for chart in drawn), ("again", "Reproduce")]
    parts = [
        _verdict(plan_words.verdict(plan)),
        _tiles(plan),
        '<ul class="mind">' + "".join(f"<li>{escape(note)}</li>" for note in plan.notes) + "</ul>"
        if plan.notes
        else "",
        '<nav aria-label="Contents"><ul>'
        + "".join(f'<li><a href="#at-{name}">{escape(title)}</a></li>' for name, title in links)
        + "</ul></nav>",
        _section(
            "options",
            "Configurations",
            table(compared.columns, compared.rows, "Configurations")
            + f'<div class="numbers">{download("options.csv", options_csv)}</div>',
        ),
        *(
            _section(chart.name, chart.title, figure(chart) + told.pop(_DETAIL.get(chart.name, ""), ""))
            for chart in drawn
        ),
        *(_section(f"table-{place}", title, html) for place, (title, html) in enumerate(told.items())),
        _section("again", "Do it again", _again(plan)),
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


def _verdict(text: str) -> str:
    """The first sentence, and what follows it."""
    lead, stop, rest = text.partition(". ")
    return f'<p class="verdict">{escape(lead)}{stop.strip()} <span>{escape(rest)}</span></p>'


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
    yield str(best.gpus), f"GPU{'s' if best.gpus > 1 else ''} for {number(best.target)} {best.unit}"
    yield number(best.capacity.value), f"{best.unit} at most, within the goal"
    if plan.headroom is not None:
        yield f"{plan.headroom.value:+.0%}", "headroom over the target"
    if best.usd_for_target is not None:
        yield f"${number(best.usd_for_target)}", "an hour for the target"
    if "output" in best.usd_per_mtok:
        yield f"${number(best.usd_per_mtok['output'].value)}", "per million output tokens, at the highest load"


def _again(plan: Plan) -> str:
    goal = ", ".join(f"{escape(name)} {limit:g}" for name, limit in plan.goal.items())
    parts = [f'<pre tabindex="0" role="region" aria-label="Command">servecast plan {escape(plan.name)}.yaml</pre>']
    if plan.best is not None and plan.best.capacity is not None:
        parts.append(
            f"<p>Highest load {escape(interval(plan.best.capacity, 4))} {escape(plan.best.unit)}: the mean over seeds "
            "with its 90 % interval, widened by what the profile says of its own errors.</p>"
        )
    parts.append(
        f"<p>The goal: {goal}. Beside this page: options.csv, plan.json. This page needs nothing but itself: it can be "
        "mailed, and opened without a network.</p>"
    )
    return "".join(parts)

"""The one page: self-contained HTML with a verdict first, then the evidence, then what it all rests on.

Runs, plans, comparisons and validations fill the same `Page`; ``templates/page.html.j2`` is its only template.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import servecast
from servecast.metrics import PERCENTILE_RULE
from servecast.report.charts.figure import figure, table
from servecast.report.charts.looks import read, style

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from servecast.report.charts.spec import Chart
    from servecast.report.verdicts import Verdict
    from servecast.text import Table


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page, with its name in the list of contents; ``html``: its content."""

    id: str
    short: str
    title: str
    html: str


@dataclass(frozen=True, slots=True)
class Page:
    """What a page shows, in its order.

    title : of the window; kicker : the line above the name; about : the line below it
    tiles : value and label of key figures of ``best``; notes : what to keep in mind, a sentence each
    """

    name: str
    title: str
    kicker: str
    verdict: Verdict
    about: str = ""
    uncalibrated: bool = False
    best: str = ""
    tiles: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    sections: Sequence[Section] = ()

    def html(self) -> str:
        """The page."""
        import jinja2

        environment = jinja2.Environment(
            loader=jinja2.FunctionLoader(read), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        template = environment.get_template("page.html.j2")
        made: str = template.render(page=self, version=servecast.__version__, style=style(), script=read("charts.js"))
        return made


def chart_section(chart: Chart, short: str, title: str = "", before: str = "") -> Section:
    """A section of one chart, called after it; ``before`` stands above the chart."""
    return Section(f"at-{chart.name}", short, title or chart.title, before + figure(chart))


def table_section(at: str | int, shown: Table, short: str = "") -> Section:
    """A section of one table, called after it; ``at``: its place in the page, or its number among the tables."""
    html = table(shown.columns, shown.rows, shown.title) if shown.rows else paragraph("None.", "quiet")
    return Section(at if isinstance(at, str) else f"table-{at}", short or shown.title, shown.title, html)


def paragraph(text: str, classes: str = "") -> str:
    """Text as a paragraph."""
    named = f' class="{classes}"' if classes else ""
    return f"<p{named}>{escape(text)}</p>"


def again(line: str, files: Iterable[str], more: str = "", definitions: str = "") -> Section:
    """How to make a page again: the command, the files beside it, and what its words mean.

    more : HTML after the files; definitions : a sentence before those of the latencies, which stand if it is given
    """
    html = f'<pre tabindex="0" role="region" aria-label="Command">{escape(line)}</pre>' if line else ""
    html += paragraph(
        f"servecast {servecast.__version__}. Beside this page: {', '.join(files)}. This page needs nothing but itself: "
        "it can be mailed, and opened without a network."
    )
    if definitions:
        words = read("definitions.html").replace("PERCENTILE_RULE", PERCENTILE_RULE)
        html += f"{more}<h3>Definitions</h3><p>{escape(definitions)}</p>{words}"
    else:
        html += more
    return Section("again", "Reproduce", "Do it again", html)

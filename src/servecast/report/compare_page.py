"""The folder of a comparison: the table, the requests side by side, and a self-contained page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from servecast.files import replacing, write_tables
from servecast.report import compare_words as words
from servecast.report.charts.figure import table
from servecast.report.charts.files import write_figures
from servecast.report.compare_charts import charts
from servecast.report.evidence import assumed
from servecast.report.page import Page, Section, again, chart_section
from servecast.report.verdicts.compare import verdict
from servecast.scenario import resolved, seen_from

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from servecast.against.server.compared import Comparison
    from servecast.report.charts.spec import Chart

#: Of `document`: goes up when a key is taken out, or means something else.
SCHEMA_VERSION: Final = 1


def write(compared: Comparison, out: Path, figures: Sequence[str] = (), *, as_csv: bool = False) -> Path:
    """Write ``out/<scenario name>-compared/``, whole or not at all, in place of an earlier one; the path of its page.

    figures : forms (``svg``, ``png``) in which each chart of the page is a file too

    Raises InputError: the folder cannot be written, or what is there holds no results.
    """
    target = out / f"{compared.scenario.name}-compared"
    scenario = seen_from(target.resolve(), resolved(compared.scenario))
    with replacing(target) as folder:
        drawn = charts(compared)
        tables = {"summary": compared.table, "requests": compared.requests}
        files = write_tables(folder, scenario, tables, as_csv=as_csv)
        files += write_figures(folder, drawn, figures)
        (folder / "report.html").write_text(_page(compared, scenario, drawn, files), encoding="utf-8")
    return target / "report.html"


def document(compared: Comparison, page: Path) -> dict[str, Any]:
    """What ``--json`` prints; every row has every key, and what is not known is NaN or None."""
    return {
        "schema_version": SCHEMA_VERSION,
        "name": compared.scenario.name,
        "folder": page.parent,
        "report": page,
        "verdict": str(verdict(compared)),
        "notes": words.settings(compared),
        "rows": compared.table.to_dict("records"),
    }


def _page(compared: Comparison, scenario: Mapping[str, Any], drawn: Sequence[Chart], files: Sequence[str]) -> str:
    name = str(scenario["name"])
    first, *others = words.tables(compared)
    return Page(
        name=name,
        title=f"{name}: simulated against recorded",
        kicker="Simulated against recorded",
        verdict=verdict(compared),
        notes=words.settings(compared),
        sections=[
            Section("recorded", first.title, first.title, table(first.columns, first.rows, first.title)),
            *(chart_section(chart, chart.title) for chart in drawn),
            *(
                Section(f"table-{at}", each.title, each.title, table(each.columns, each.rows, each.title))
                for at, each in enumerate(others)
            ),
            Section("assumed", "Assumptions", "What is assumed", assumed(scenario, "The scenario as it ran")),
            again("", files, definitions=_METHOD),
        ],
    ).html()


_METHOD = (
    "The recorded arrivals and lengths were served by the scenario's engine; errors are (simulated - recorded) / "
    "recorded. Latencies are the client's: TTFT from the send to the first token. Makespan: first send to last token. "
    "Means are equivalent when two one-sided t tests of 30 means of consecutive requests reject an error of the margin "
    "or more, at 5 %; not shown is not the same as different."
)

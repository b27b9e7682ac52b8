"""The results folder: tables and a self-contained page; and the same results in words.

Nothing heavy is imported before `write` is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.report.verdicts.run import verdict
from servecast.report.words import comparison_rows
from servecast.run.results import Results, Roof

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Results", "Roof", "comparison_rows", "verdict", "write"]


def write(results: Results, out: Path, figures: Sequence[str] = ()) -> Path:
    """Write ``out/<scenario name>/``, whole or not at all, in place of an earlier one; the path of ``report.html``.

    figures : forms (``svg``, ``png``) in which each chart of the page is a file too

    Raises
    ------
    InputError : the folder cannot be written, the disk is full, or what is there holds no results
    """
    from servecast.files import replacing, write_tables
    from servecast.report.charts.files import write_figures
    from servecast.report.points import points_of
    from servecast.report.run_page import drawn, run_page
    from servecast.report.words import UNCALIBRATED

    target = out / str(results.scenario["name"])
    with replacing(target) as folder:
        tables = {"summary": results.summary, "requests": results.requests, "decisions": results.decisions}
        if len(results.tenants):
            tables["tenants"] = results.tenants
        if len(results.oom):
            tables["oom"] = results.oom
        names = write_tables(folder, results.scenario, tables)
        points = points_of(results)
        if figures:
            mark = "" if results.roof is None or results.roof.calibrated else f" ({UNCALIBRATED})"
            charts = [chart for each in drawn(results, points) for chart in each.charts]
            names += write_figures(folder, charts, figures, mark)
        (folder / "report.html").write_text(run_page(results, names, points), encoding="utf-8")
    return target / "report.html"

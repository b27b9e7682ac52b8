"""The results folder: tables, figures and a self-contained page; and the same results in words.

Nothing heavy is imported before `write` is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.report.verdicts.run import verdict
from servecast.report.words import comparison_rows
from servecast.run.results import Results, Roof

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Results", "Roof", "comparison_rows", "verdict", "write"]


def write(results: Results, out: Path) -> Path:
    """Write ``out/<scenario name>/``, whole or not at all, in place of an earlier one; the path of ``report.html``.

    Raises
    ------
    InputError : the folder cannot be written, the disk is full, or what is there holds no results
    """
    from servecast.files import replacing, write_tables
    from servecast.report.page import render
    from servecast.report.plots import draw

    target = out / str(results.scenario["name"])
    plots = draw(results)
    with replacing(target) as folder:
        tables = {"summary": results.summary, "requests": results.requests, "decisions": results.decisions}
        if len(results.tenants):
            tables["tenants"] = results.tenants
        if len(results.oom):
            tables["oom"] = results.oom
        names = write_tables(folder, results.scenario, tables)
        images = {plot.name: plot.png() for plot in plots}
        for plot in plots:
            (folder / f"{plot.name}.png").write_bytes(images[plot.name])
            (folder / f"{plot.name}.svg").write_bytes(plot.svg())
        (folder / "report.html").write_text(render(results, plots, images, names), encoding="utf-8")
    return target / "report.html"

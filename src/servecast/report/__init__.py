"""Whatever is shown of a result: its files and page, its verdict, its tables.

Each kind of result has a file named ``*_page`` (``differences`` for a difference): its ``write`` makes the page and the
files beside it, and returns the path of the page. This door imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.report.tables import comparison_rows
from servecast.report.verdicts.run import verdict
from servecast.run.results import Results, Roof

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Results", "Roof", "comparison_rows", "verdict", "write_run"]


def write_run(results: Results, out: Path, figures: Sequence[str] = (), *, as_csv: bool = False) -> Path:
    """Write ``out/NAME/``, tables and page, whole or not at all, in place of an earlier one; the path of the page.

    figures : forms (``svg``, ``png``) in which each chart of the page is a file too
    as_csv : requests and decisions are gzipped CSV, not Parquet

    Raises InputError: the folder cannot be written, the disk is full, or what is there holds no results.
    """
    from servecast.report.run_page import write

    return write(results, out, figures, as_csv=as_csv)

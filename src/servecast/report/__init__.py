"""Whatever is shown of a result: its files and page, its verdict, its tables.

The door of the folder: one function writes each kind of result and returns the path of its page. Nothing heavy is
imported before one of them is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.report.tables import comparison_rows
from servecast.report.verdicts.run import verdict
from servecast.run.results import Results, Roof

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from servecast.against.device.validate import Validation
    from servecast.against.result.changes import Difference
    from servecast.against.server.compared import Comparison
    from servecast.plan.answer import Plan
    from servecast.plan.basis import Basis

__all__ = [
    "Results", "Roof", "comparison_rows", "verdict", "write_comparison", "write_difference", "write_plan", "write_run",
    "write_validation",
]  # fmt: skip


def write_run(results: Results, out: Path, figures: Sequence[str] = (), *, as_csv: bool = False) -> Path:
    """Write ``out/NAME/``: tables and the page.

    figures : forms (``svg``, ``png``) in which each chart of the page is a file too
    as_csv : requests and decisions are gzipped CSV, not Parquet

    Raises InputError: the folder cannot be written, the disk is full, or what is there holds no results.
    """
    from servecast.report.run_page import write

    return write(results, out, figures, as_csv=as_csv)


def write_plan(plan: Plan, folder: Path, basis: Basis | None = None, figures: Sequence[str] = ()) -> Path:
    """Write a plan into ``folder``; ``basis``: what it rests on."""
    from servecast.report.plan_files import write

    return write(plan, folder, basis, figures)


def write_comparison(compared: Comparison, out: Path, figures: Sequence[str] = (), *, as_csv: bool = False) -> Path:
    """Write ``out/NAME-compared/``, as `write_run` writes a run."""
    from servecast.report.compare_page import write

    return write(compared, out, figures, as_csv=as_csv)


def write_validation(validation: Validation, folder: Path, figures: Sequence[str] = ()) -> Path:
    """Write a validation into ``folder``, with its executed logs."""
    from servecast.report.validation_page import write

    return write(validation, folder, figures)


def write_difference(found: Difference, page: Path) -> Path:
    """Write a difference as a page of its own."""
    from servecast.report.differences import write

    return write(found, page)

"""The results of ``servecast run --json``: one document for scripts, whose keys stay as they are within a version.

What is not known is null: no NaN and no infinity, which JSON does not have. An infinite value of a sweep (a burst's
rate) is the text "inf", so that points stay apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servecast import __version__
from servecast.files import dumps, plain
from servecast.report import verdict
from servecast.report.trust import step_error
from servecast.run.results import stated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from servecast.run.results import Results

#: Goes up when a key is taken out, or means something else; new keys may come at any time.
SCHEMA_VERSION = 1


def text(scenarios: Sequence[dict[str, Any]]) -> str:
    """The document over all scenarios of a command, on one line."""
    return dumps({"schema_version": SCHEMA_VERSION, "servecast": __version__, "scenarios": scenarios})


def scenario(results: Results, folder: Path, exports: Path | None = None) -> dict[str, Any]:
    """The part of one scenario, as plain values.

    step_error : what is known of the error of the step times, as the terminal and the page say it
    summary, tenants : the rows of ``summary.csv`` and ``tenants.csv``
    failures : runs that could not be; ``missing``: how many were not made because the user interrupted
    """
    calibrated = bool(results.scenario["derived"]["calibrated"])
    executed = bool(results.scenario["derived"].get("executed_on"))
    error = step_error(results.profile, calibrated=calibrated, executed=executed)
    return {
        "name": results.scenario["name"],
        "folder": folder,
        "report": folder / "report.html",
        "exports": exports,
        "calibrated": calibrated,
        "verdict": str(verdict(results.summary, stated(results.scenario), calibrated=calibrated)),
        "step_error": error,
        "notes": results.notes,
        "summary": [{**plain(outcome.keys, str), **outcome.row} for outcome in results.outcomes],
        "tenants": [
            {**plain(outcome.keys, str), **row} for outcome in results.outcomes for row in outcome.made.tenants
        ],
        "failures": [failure._asdict() for failure in results.failures],
        "missing": results.missing,
        "resumed": results.resumed,
    }

"""The files of a plan: scenario.yaml to make it again, options.csv, plan.json, and a page with figures and tables."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import servecast
from servecast.errors import InputError
from servecast.files import SCENARIO, dumps, scenario_text, writing
from servecast.files import write as write_whole
from servecast.plan.basis import Basis
from servecast.report.charts.files import write_figures
from servecast.report.plan_charts import charts
from servecast.report.plan_page import page as plan_page
from servecast.report.plan_words import shortened
from servecast.report.trust import step_error
from servecast.report.verdicts.plan import verdict
from servecast.scenario import seen_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servecast.plan.answer import Option, Plan
    from servecast.plan.uncertainty import Estimate

FILES = ("plan.json", "plan.html", "options.csv", SCENARIO)
#: Goes up when a key is taken out, or means something else; new keys may come at any time.
SCHEMA_VERSION = 1


def refuse_strangers(folder: Path) -> None:
    """Raises InputError where something else stands, or nothing can be written, where a plan is to be written."""
    if folder.exists() and not folder.is_dir():
        problem = "is a file, where a plan wants a folder: move it away, or choose another folder with --out"
        raise InputError(str(folder), problem)
    for name in FILES:
        if (folder / name).is_dir():
            problem = "is a folder, where the plan wants to write a file: move it away, or choose another with --out"
            raise InputError(str(folder / name), problem)
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        problem = "cannot be written (Permission denied): let it be written, or choose another folder with --out"
        raise InputError(str(folder), problem)


def text(plan: Plan, basis: Basis) -> str:
    """The plan and what it rests on as JSON: ``plan.json``, and what ``--json`` prints.

    scenario : what was planned, workload, engine, prices and search among it
    step_errors : profile or device: the error of its step times, in a sentence
    """
    data = {
        "schema_version": SCHEMA_VERSION,
        "servecast": servecast.__version__,
        "verdict": str(verdict(plan)),
        **plan.data(),
        "step_errors": {name: step_error(profile) for name, profile in basis.rests.items()},
        "scenario": basis.scenario,
    }
    return dumps(data, indent=1)


def write(plan: Plan, folder: Path, basis: Basis | None = None, figures: Sequence[str] = ()) -> Path:
    """Write the plan into ``folder``, with ``basis`` as what it rests on; the page.

    figures : forms (``svg``, ``png``) in which each chart of the page is a file too
    """
    with writing(folder):
        Path(os.path.realpath(folder)).mkdir(parents=True, exist_ok=True)  # a link may lead to what is not there yet
    basis = Basis() if basis is None else basis
    basis = replace(basis, scenario=seen_from(folder.resolve(), basis.scenario))
    if basis.scenario:
        write_whole(folder / SCENARIO, scenario_text(basis.scenario))
    write_whole(folder / "plan.json", text(plan, basis) + "\n")
    options = _csv(plan)
    write_whole(folder / "options.csv", options)
    write_figures(folder, list(charts(shortened(plan)[0])), figures)
    page = folder / "plan.html"
    write_whole(page, plan_page(plan, options.encode(), basis))
    return page


def _csv(plan: Plan) -> str:
    """One row an option, those that cannot be with their reason."""
    rows = [_cells(option) for option in plan.options]
    heads = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, heads, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cells(option: Option) -> dict[str, Any]:
    cells: dict[str, Any] = {"configuration": option.label, **option.changed, "device": option.device}
    cells |= {
        "calibrated": option.calibrated,
        "replicas": option.replicas,
        "gpus": option.gpus,
        "unit": option.unit,
        "target": option.target,
        **_ends("highest_load", option.capacity),
        **_ends("highest_rps", option.rate),
        **_ends("saturation_rps", option.saturation),
        "unstable_above": option.unstable_above,
        "target_gpus": option.target_gpus,
        "usd_per_hour": option.usd_per_hour,
    }
    for kind, estimate in option.usd_per_mtok.items():
        cells |= _ends(f"usd_per_mtok_{kind}", estimate)
    for name, estimate in option.at_target.items():
        cells |= _ends(f"target_{name}", estimate)
    return {**cells, "refused": option.refused}


def _ends(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), estimate or (None, None, None), strict=True))

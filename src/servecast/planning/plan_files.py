"""The files of a plan: options.csv, plan.json and a page with figures and the same tables."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from servecast.planning.plan_page import page as plan_page

if TYPE_CHECKING:
    from pathlib import Path

    from servecast.planning.answer import Option, Plan
    from servecast.planning.uncertainty import Estimate


def write(plan: Plan, folder: Path) -> Path:
    """Write the plan into ``folder``; the page."""
    folder.mkdir(parents=True, exist_ok=True)
    _whole(folder / "plan.json", json.dumps(plan.data(), indent=1, allow_nan=False) + "\n")
    options = _csv(plan)
    _whole(folder / "options.csv", options)
    page = folder / "plan.html"
    _whole(page, plan_page(plan, options.encode()))
    return page


def _whole(path: Path, text: str) -> None:
    """Never half a file."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


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
        "unstable_above": _cell(option.unstable_above),
        "target_gpus": _cell(option.target_gpus),
        "usd_per_hour": _cell(option.usd_per_hour),
    }
    for kind, estimate in option.usd_per_mtok.items():
        cells |= _ends(f"usd_per_mtok_{kind}", estimate)
    for name, estimate in option.at_target.items():
        cells |= _ends(f"target_{name}", estimate)
    return {**cells, "refused": option.refused}


def _ends(name: str, estimate: Estimate | None) -> dict[str, Any]:
    value, low, high = (None, None, None) if estimate is None else estimate
    return {name: _cell(value), f"{name}_low": _cell(low), f"{name}_high": _cell(high)}


def _cell(value: float | None) -> float | str:
    return "" if value is None else value

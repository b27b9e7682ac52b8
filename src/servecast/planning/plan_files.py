"""The files of a plan: options.csv, plan.json and a page with the same tables, that works offline and in print."""

from __future__ import annotations

import csv
import html
import io
import json
from typing import TYPE_CHECKING, Any

from servecast.planning import plan_words

if TYPE_CHECKING:
    from pathlib import Path

    from servecast.planning.answer import Option, Plan
    from servecast.planning.plan_words import PlanTable
    from servecast.planning.uncertainty import Estimate

_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
.verdict { font-size: 1.15rem; border-left: .25rem solid; padding-left: 1rem; }
"""


def write(plan: Plan, folder: Path) -> Path:
    """Write the plan into ``folder``; the page."""
    folder.mkdir(parents=True, exist_ok=True)
    _whole(folder / "plan.json", json.dumps(plan.data(), indent=1, allow_nan=False) + "\n")
    _whole(folder / "options.csv", _csv(plan))
    page = folder / "plan.html"
    _whole(page, _page(plan))
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


def _page(plan: Plan) -> str:
    parts = [f"<h1>{html.escape(plan.name)}</h1>", f'<p class="verdict">{html.escape(plan_words.verdict(plan))}</p>']
    parts += [_table(table) for table in plan_words.tables(plan)]
    parts += [f"<p>{html.escape(note)}</p>" for note in plan.notes]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(plan.name)}: plan</title><style>{_STYLE}</style></head><body><main>"
        + "\n".join(parts)
        + "</main></body></html>\n"
    )


def _table(table: PlanTable) -> str:
    title = f"<h2>{html.escape(table.title)}</h2>" if table.title else ""
    heads = "".join(f'<th scope="col">{html.escape(head)}</th>' for head in table.columns)
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return f'{title}<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'

"""``report.html``: one self-contained page, verdict first, then the evidence, then what it all rests on."""

from __future__ import annotations

import base64
from importlib import resources
from typing import TYPE_CHECKING, Any

import servecast
from servecast.metrics import PERCENTILE_RULE
from servecast.report.results import swept
from servecast.report.tables import LARGE, plain, scenario_text
from servecast.report.trust import step_error
from servecast.report.verdict import verdict
from servecast.report.view import view
from servecast.report.words import BLANK, comparison_rows, number, targets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from servecast.report.plots import Plot
    from servecast.report.results import Reportable


def render(results: Reportable, plots: Sequence[Plot], images: Mapping[str, bytes], files: Sequence[str]) -> str:
    """The page as HTML. ``images``: PNG by name of plot; ``files``: tables written beside it."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    calibrated = results.roof is None or results.roof.calibrated
    slo = results.scenario.get("slo") or {}
    shown = view(results)
    page = environment.get_template("report.html.j2").render(
        name=results.scenario["name"],
        version=servecast.__version__,
        verdict=verdict(results.summary, slo, calibrated=calibrated),
        calibrated=calibrated,
        hardware=results.roof.name if results.roof else None,
        model=results.scenario.get("model"),
        targets=targets(slo),
        rows=[_broken(row) for row in comparison_rows(results.summary)],
        seeds=int(results.summary["seed"].nunique()),
        swept=swept(results.summary),
        error=step_error(results.profile, calibrated=calibrated),
        where=shown.where,
        reason=shown.reason,
        figures=[
            {"title": p.title, "caption": p.caption, "name": p.name, "data": base64.b64encode(images[p.name]).decode()}
            for p in plots
        ],
        notes=list(results.notes),
        profile=profile_tables(plain(results.profile)) if results.profile else [],
        scenario=scenario_text(results.scenario),
        files=[*files, *(f"{plot.name}.png, {plot.name}.svg" for plot in plots)],
        large=f"{LARGE:,}",
        percentile_rule=PERCENTILE_RULE,
        window=_window(results),
    )
    return str(page)


def _broken(row: dict[str, str]) -> dict[str, str]:
    """A row whose first heads may break where a word could: names of policies with their parameters are long."""
    return {head.replace("_", "_\u200b"): value.replace("/", "/\u200b") for head, value in row.items()}


def _template(name: str) -> str:
    return resources.files("servecast.report").joinpath("templates", name).read_text(encoding="utf-8")


def profile_tables(profile: Mapping[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """What is known about the cost model as tables of headings and rows: held-out errors first, single facts last.

    Lists of mappings and mappings of like mappings are a table each; matrices stay in the profile's own file.
    """
    tables: list[tuple[list[str], list[list[str]]]] = []
    facts: list[list[str]] = []
    for name in sorted(profile, key=lambda name: name != "held_out"):
        value = profile[name]
        if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            heads = list(value[0])
            tables.append((heads, [[_error(head, entry[head]) for head in heads] for entry in value]))
        elif isinstance(value, dict) and _alike(value):
            heads = list(next(iter(value.values())))
            tables.append(([name, *heads], [[key, *map(_value, entry.values())] for key, entry in value.items()]))
        else:
            facts += [list(fact) for fact in _facts(value, name)]
    return [*tables, ([], facts)] if facts else tables


def _alike(value: dict[str, Any]) -> bool:
    entries = list(value.values())
    return bool(entries) and all(isinstance(entry, dict) and entry.keys() == entries[0].keys() for entry in entries)


def _facts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Nested mappings as rows of a dotted path and a value."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _facts(entry, f"{path}.{key}")
    elif not isinstance(value, list) or (value and not isinstance(value[0], list)):
        yield path, _value(value)


def _error(head: str, value: Any) -> str:
    """Relative errors as percentages, with a sign where they have one."""
    if head in ("median", "p95"):
        return f"{100 * value:.2f} %"
    return f"{100 * value:+.2f} %" if head == "signed_mean" else _value(value)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_value(entry) for entry in value)
    if value is None or isinstance(value, (bool, str)):
        return BLANK if value is None else str(value)
    return number(value, 4) if isinstance(value, float) else f"{value:,}"


def _window(results: Reportable) -> str:
    warmup, cooldown = results.scenario.get("warmup_s"), results.scenario.get("cooldown_s")
    if warmup is None and cooldown is None:
        return "All numbers are of the whole run, from the clock's zero to the last answer, ramp and drain included."
    return (
        f"All numbers are of the steady window from {warmup or 0:g} s to {cooldown or 0:g} s before the last arrival: "
        "requests by their arrival, tokens by their emission."
    )

"""Two sections that every page has: how far to trust its step times, and what is assumed."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from servecast.files import plain, scenario_text
from servecast.report.charts.figure import figure, table
from servecast.report.trust import origin, step_errors
from servecast.text import BLANK, number, percent, signed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def trusted(profile: Mapping[str, Any] | None, *, calibrated: bool, device: str | None) -> str:
    """Where step times come from, and their errors: as a figure, and with all that the profile knows below it.

    profile : as plain values; None without one, and then ``device`` is the data sheet's
    """
    if profile:
        chart = step_errors(profile)
        tables = "".join(
            table(heads or ("fact", "value"), rows, "The profile", "plain")
            for heads, rows in _profile_tables(plain(profile))
        )
        return (
            f"<p>{escape(origin(profile))}</p>{'' if chart is None else figure(chart)}"
            '<details class="profile"><summary>The profile: errors, coefficients, measured domain, provenance</summary>'
            f"{tables}</details>"
        )
    if calibrated:
        return "<p>Step times come from a calibrated cost model that states no errors.</p>"
    return (
        f"<p>Step times come from the roofline of {escape(str(device))}&#39;s data sheet: "
        "<strong>uncalibrated</strong>, so no error is known. Fit a profile to measured steps with "
        "<code>servecast fit</code>.</p>"
    )


def assumed(scenario: Mapping[str, Any], what: str) -> str:
    """The whole scenario, after a word on what it is."""
    return (
        f"<p>{escape(what)}, every default written out (<code>scenario.yaml</code>):</p>"
        '<div class="scenario"><pre tabindex="0" role="region" aria-label="scenario.yaml">'
        f"{escape(scenario_text(scenario))}</pre></div>"
    )


def _profile_tables(profile: Mapping[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
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
        return percent(value, 2)
    return signed(value, 2) if head == "signed_mean" else _value(value)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_value(entry) for entry in value)
    if value is None or isinstance(value, (bool, str)):
        return BLANK if value is None else str(value)
    return number(value, 4) if isinstance(value, float) else f"{value:,}"

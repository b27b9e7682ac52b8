"""How far to trust a forecast: the error of its step times, as a sentence, as a figure and as a section of a page."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from servecast.cost.known_error import KNOWN
from servecast.cost.model import STEP_KINDS
from servecast.files import plain, scenario_text
from servecast.report.charts.figure import figure, table
from servecast.report.charts.spec import Axis, Bar, Bars, Chart, Key, Part
from servecast.text import BLANK, listed, number, percent, signed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Profile = Mapping[str, Any]

_TABULATED = "tabulated"  # the kind of a profile that is put together of tables


def step_error(profile: Profile | None, *, calibrated: bool | None = None, executed: bool = False) -> str:
    """What is known of the error of single step times: on steps held out of the fit, or on operators left out.

    profile : a profile as plain values (`servecast.cost.profile`), None without one
    calibrated : whether measurements stand behind the step times; None: if there is a profile
    executed : whether a device computed the steps
    """
    if executed:
        return "Step times were measured as the device computed them; another run differs by the device's noise."
    if not (profile is not None if calibrated is None else calibrated):
        return f"Step times: a data sheet's roofline, uncalibrated: {KNOWN['datasheet'].words}."
    held_out: Sequence[Profile] = (profile or {}).get("held_out") or ()
    if not held_out:
        return "Step times: calibrated, but no error is stated."
    steps = _whole_steps(held_out)
    if not steps:
        medians = sorted(float(error["median"]) for error in held_out)
        tail = max(float(error["p95"]) for error in held_out)
        spread = " to ".join(dict.fromkeys((_percent(medians[0]), _percent(medians[-1]))))
        return (
            f"Step times: put together of operators measured one by one; left-out points of their tables are met to "
            f"{spread} in the median, {_percent(tail)} at p95; {KNOWN['operators'].words}."
        )
    # A random part of the steps stands before the largest ones.
    all_steps, mixed = (
        next((error for error in steps if kind in (error.get("regime"), error.get("along"))), None)
        for kind in ("all", "mixed")
    )
    every = all_steps or steps[0]
    sums = every.get("rows_each", 1)
    kinds: list[str] = [kind for kind in STEP_KINDS if any(kind in (e.get("regime"), e.get("along")) for e in steps)]
    unseen: list[str] = [kind for kind in STEP_KINDS if kinds and kind not in kinds]
    judged = f"{listed(kinds)} steps" if unseen else "steps"
    what = f"sums of {sums} {judged}" if sums > 1 else judged
    # Who fits requests has no residuals of steps.
    coarse = "" if (profile or {}).get("residuals", True) else f"; {KNOWN['requests'].words}"
    bias = f"mixed steps {signed(mixed['signed_mean'], 2)} in the mean" if mixed else signed(every["signed_mean"], 2)
    return (
        f"Step times: held-out {what} are met to {_percent(every['median'])} in the median, {_percent(every['p95'])} "
        f"at p95; {bias}{'' if mixed else ' in the mean'}{coarse}."
        + (f" No {listed(unseen, 'or')} step was measured." if unseen else "")
    )


def _step_errors(profile: Profile | None) -> Chart | None:
    """Median and p95 of each error that a profile states, signed mean beside them; None where it states none."""
    errors: Sequence[Profile] = (profile or {}).get("held_out") or ()
    if not errors:
        return None
    bars = []
    for error in errors:
        names = [str(error[key]) for key in ("operator", "along", "part", "regime") if error.get(key)]
        if error.get("rows_each", 1) > 1:
            names.append(f"sums of {error['rows_each']} steps")
        count = f"{error['count']:,}" if "count" in error else "not stated"
        middle, tail = float(error["median"]), float(error["p95"])
        numbers = (("median error", _percent(middle)), ("p95", _percent(tail)),
                   ("signed mean", signed(error["signed_mean"], 2)), ("judged on", count))  # fmt: skip
        parts = (Part(100 * middle, 2), Part(100 * max(tail - middle, 0.0), "beyond"))
        words = f"{_percent(middle)}, p95 {_percent(tail)}"
        bars.append(Bar(", ".join(names), numbers, parts, look=2, words=words))
    fitted = (profile or {}).get("kind") != _TABULATED
    panel = Bars(Axis(f"error of what was left out of the {'fit' if fitted else 'tables'} [%]", base=0.0), tuple(bars))
    widest = max(errors, key=lambda error: float(error["p95"]))
    whose = "Steps that the fit had not seen" if fitted else "Points that their own table had not"
    caption = (
        f"{whose}: half of them are met to within the solid bar, 95 of 100 to within its pale end (p95), and the rest "
        f"lie beyond it. The largest p95 is {_percent(float(widest['p95']))}."
    )
    return Chart("step-errors", "Errors of step times", caption, (panel,), (
        Key("median error", "middle"), Key("up to p95", "tail")))  # fmt: skip


def _origin(profile: Profile) -> str:
    """Where the step times of a profile come from, in a sentence that its errors follow."""
    if profile.get("kind") != _TABULATED:
        return (
            "Step times come from a cost model fitted to measured steps. Its errors on steps it had not seen, and what "
            "it was fitted to:"
        )
    if _whole_steps(profile.get("held_out") or ()):
        return (
            "Step times come from tables of whole steps that were measured. The errors on points left out of a table, "
            "and where the tables come from:"
        )
    return (
        "Step times are put together of operators that were measured one by one (matrix products, attention and the "
        "rest of a step); no whole step was measured for it. The errors on points left out of the operators' tables, "
        "and where the tables come from:"
    )


def _whole_steps(errors: Sequence[Profile]) -> list[Mapping[str, Any]]:
    """The errors that are of whole steps and not of one operator."""
    return [error for error in errors if error.get("operator", "whole step") == "whole step"]


def _percent(value: float) -> str:
    return percent(value, 2 if value < 0.1 else 0)


def trusted(profile: Profile | None, calibrated: bool, device: str | None) -> str:
    """Where step times come from, and their errors: as a figure, and with all that the profile knows below it.

    profile : as plain values; None without one, and then ``device`` is the data sheet's
    """
    if profile:
        chart = _step_errors(profile)
        tables = "".join(
            table(heads or ("fact", "value"), rows, "The profile", "plain")
            for heads, rows in _profile_tables(plain(profile))
        )
        return (
            f"<p>{escape(_origin(profile))}</p>{'' if chart is None else figure(chart)}"
            '<details class="profile"><summary>The profile: errors, coefficients, measured domain, provenance</summary>'
            f"{tables}</details>"
        )
    if calibrated:
        return "<p>Step times come from a calibrated cost model that states no errors.</p>"
    return (
        f"<p>Step times come from the roofline of {escape(str(device))}&#39;s data sheet: "
        f"<strong>uncalibrated</strong>. What is known of data sheets: {KNOWN['datasheet'].words}. Fit a profile to "
        "measured steps with <code>servecast fit</code>.</p>"
    )


def assumed(scenario: Mapping[str, Any], what: str) -> str:
    """The whole scenario, after a word on what it is."""
    return (
        f"<p>{escape(what)}, every default written out (<code>scenario.yaml</code>):</p>"
        '<div class="scenario"><pre tabindex="0" role="region" aria-label="scenario.yaml">'
        f"{escape(scenario_text(scenario))}</pre></div>"
    )


def _profile_tables(profile: Profile) -> list[tuple[list[str], list[list[str]]]]:
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

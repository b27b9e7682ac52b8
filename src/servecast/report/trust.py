"""The error of the forecast's step times: in one line that stands beside the forecast, and as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servecast.report.charts.spec import Axis, Bar, Bars, Chart, Key, Part
from servecast.text import percent, signed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TABULATED = "tabulated"  # the kind of a profile that is put together of tables


def step_error(profile: Mapping[str, Any] | None, *, calibrated: bool | None = None, executed: bool = False) -> str:
    """What is known of the error of single step times: on steps held out of the fit, or on operators left out.

    profile : a profile as plain values (`servecast.cost.profile`), None without one
    calibrated : whether measurements stand behind the step times; None: if there is a profile
    executed : whether a device computed the steps
    """
    if executed:
        return "Step times were measured as the device computed them; another run differs by the device's noise."
    if not (profile is not None if calibrated is None else calibrated):
        return "Step times: a data sheet's roofline, uncalibrated, so that no error is known."
    held_out: Sequence[Mapping[str, Any]] = (profile or {}).get("held_out") or ()
    if not held_out:
        return "Step times: calibrated, but no error is stated."
    steps = _whole_steps(held_out)
    if not steps:
        medians = sorted(float(error["median"]) for error in held_out)
        tail = max(float(error["p95"]) for error in held_out)
        spread = " to ".join(dict.fromkeys((_percent(medians[0]), _percent(medians[-1]))))
        return (
            f"Step times: put together of operators measured one by one; left-out points of their tables are met to "
            f"{spread} in the median, {_percent(tail)} at p95."
        )
    every = _of(steps, "all") or steps[0]
    mixed = _of(steps, "mixed")
    sums = every.get("rows_each", 1)
    what = f"sums of {sums} steps" if sums > 1 else "steps"
    bias = f"mixed steps {signed(mixed['signed_mean'], 2)} in the mean" if mixed else signed(every["signed_mean"], 2)
    return (
        f"Step times: held-out {what} are met to {_percent(every['median'])} in the median, {_percent(every['p95'])} "
        f"at p95; {bias}{'' if mixed else ' in the mean'}."
    )


def step_errors(profile: Mapping[str, Any] | None) -> Chart | None:
    """Median and p95 of each error that a profile states, signed mean beside them; None where it states none."""
    errors: Sequence[Mapping[str, Any]] = (profile or {}).get("held_out") or ()
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


def origin(profile: Mapping[str, Any]) -> str:
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


def _whole_steps(errors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The errors that are of whole steps and not of one operator."""
    return [error for error in errors if error.get("operator", "whole step") == "whole step"]


def _of(errors: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any] | None:
    """The first error of a kind of steps; a random part of the steps stands before the largest ones."""
    return next((error for error in errors if kind in (error.get("regime"), error.get("along"))), None)


def _percent(value: float) -> str:
    return percent(value, 2 if value < 0.1 else 0)

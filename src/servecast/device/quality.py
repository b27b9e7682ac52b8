"""How good a calibration is: the device against itself, a fit against steps it has not seen, and its intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.batch import StepShape
from servecast.cost.model import STEP_KINDS, step_kind
from servecast.cost.profile import errors_by_kind, rounded

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd


def by_step(raw: pd.DataFrame) -> pd.DataFrame:
    """One row a step: the median of its rounds."""
    grouped = raw.groupby("rows", sort=False)
    steps = grouped.first()
    steps["seconds"] = grouped["seconds"].median()
    return steps.reset_index()


def noise(raw: pd.DataFrame) -> dict[str, float | None]:
    """The device against itself: each round of a step over the median of its other rounds, less one."""
    rounds = [seconds.to_numpy() for _, seconds in raw.groupby("rows")["seconds"] if len(seconds) > 1]
    deviations = [abs(v[i] / np.median(np.delete(v, i)) - 1) for v in rounds for i in range(len(v))]
    if not deviations:
        return {"median": None, "p95": None}
    return {"median": float(np.median(deviations)), "p95": float(np.quantile(deviations, 0.95))}


def intervals(steps: pd.DataFrame) -> dict[str, list[float]]:
    """For each kind of step the bounds of measured over ``unseen_s``, a 90 % interval of one step.

    ``unseen_s`` is what a fit to the others predicts; a fit's own residuals are too small by what it has bent to them.
    The bounds are the order statistics that hold nine in ten of further steps like these (split conformal prediction,
    arXiv 1604.04173), or the extremes where there are too few steps for that.
    """
    ratio = (steps["seconds"] / steps["unseen_s"]).to_numpy()
    kinds = np.asarray(step_kind(shapes(steps)))
    found: dict[str, list[float]] = {}
    for kind in STEP_KINDS:
        ordered = np.sort(ratio[kinds == kind])
        if count := len(ordered):
            outside = max(1, int(0.05 * (count + 1)))
            found[kind] = [rounded(float(value), 5) for value in (ordered[outside - 1], ordered[-outside])]
    return found


def coverage(intervals: dict[str, list[float]], held_out: pd.DataFrame) -> float | None:
    """Share of held-out steps within the 90 % interval of their kind; None without any."""
    if not len(held_out):
        return None
    ratio = (held_out["seconds"] / held_out["predicted_s"]).to_numpy()
    bounds = np.array([intervals.get(kind, (np.inf, -np.inf)) for kind in step_kind(shapes(held_out))])
    return float(np.mean((bounds[:, 0] <= ratio) & (ratio <= bounds[:, 1])))


def errors(steps: pd.DataFrame, predicted: str) -> Iterator[dict[str, Any]]:
    """Relative errors of the column ``predicted``, over all steps and by kind."""
    error = (steps[predicted] / steps["seconds"] - 1).to_numpy()
    for kind, figures in errors_by_kind(error, np.asarray(step_kind(shapes(steps)))):
        yield {"regime": kind, **figures}


def shapes(steps: pd.DataFrame) -> StepShape:
    """The shapes of a table of steps, as arrays."""
    columns: list[Any] = [steps[name].to_numpy() for name in StepShape._fields]
    return StepShape(*columns)

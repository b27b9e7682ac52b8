"""What an engine adds to its kernels: time of the host per step and per sequence, fitted or given.

Kernels measured one by one leave out scheduling, launches that the GPU waits for, and copies. Recorded engines show 0
to 1.2 ms a step. It is the difference between what steps took and what their kernels take:

    host = step_s + row_s (prefill_rows + decode_rows)

fitted with both at 0 or more, as medians (soft-L1 on the relative error), with 90 % intervals from stretches of 64
steps drawn anew, widened by what the fit leaves of a typical step: the kernels themselves are not better known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from servecast.cost.profile import Coefficient, rounded
from servecast.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from servecast.calibration.steps import Steps
    from servecast.cost.tabulated import TabulatedCost

    Floats = npt.NDArray[np.float64]

LEAST_S: Final = 0.0
MOST_S: Final = 1.2e-3
"""Range of what recorded engines add to a step [s]."""

_STRETCH: Final = 64
_REPLICATES: Final = 60
_PASSES: Final = 10


class Host(NamedTuple):
    """What the host adds: a step and a row [s], each with its interval and how it was come by."""

    step_s: Coefficient
    row_s: Coefficient


def given(step_s: float, row_s: float = 0.0, how: str = "given") -> Host:
    """A stated overhead. Its interval is what recorded engines show, widened to hold it.

    Raises InputError below 0.
    """
    for name, value in (("step_s", step_s), ("row_s", row_s)):
        if not 0 <= value < np.inf:
            raise InputError(f"host.{name}", f"{value} must be a finite number of seconds, at least 0")
    step = Coefficient(
        value=rounded(step_s), unit="s", low=min(LEAST_S, step_s), high=max(MOST_S, step_s), identified=False,
        origin="stated", how=how,
    )  # fmt: skip
    row = Coefficient.of(row_s, 0.0, row_s, "s/row", origin="stated", how=how)
    return Host(step, row)


def unknown() -> Host:
    """No recorded run of the engine: the middle of the range."""
    return given((LEAST_S + MOST_S) / 2, how="stated: the middle of what recorded engines show (0 to 1.2 ms a step)")


def from_steps(kernels: TabulatedCost, steps: Steps, how: str, seed: int = 0) -> Host:
    """Fit the overhead to measured steps, against ``kernels`` (whose own overhead is taken off).

    how : where the steps come from
    """
    rows = np.asarray(steps.shape.prefill_rows, dtype=float) + steps.shape.decode_rows
    predicted = np.asarray(kernels.seconds(steps.shape), dtype=float)
    missing = steps.seconds - predicted + kernels.step_s + kernels.row_s * rows
    target, columns = missing / steps.seconds, np.column_stack([1 / steps.seconds, rows / steps.seconds])
    value = _nonnegative(target, columns)
    random = np.random.default_rng(seed)
    stretch = _STRETCH if len(missing) >= 8 * _STRETCH else 1
    starts = np.arange(0, len(missing) - stretch + 1, stretch)
    drawn = []
    for _ in range(_REPLICATES):
        chosen = (random.choice(starts, len(starts))[:, None] + np.arange(stretch)).ravel()
        drawn.append(_nonnegative(target[chosen], columns[chosen]))
    low, high = np.quantile(drawn, (0.05, 0.95), axis=0)
    # Kernels are off by more than their many steps scatter: what they leave of a typical step is not known either.
    margin = float(np.median(np.abs(missing - value[0] - value[1] * rows))), 0.0
    step, row = (
        Coefficient.of(
            value[i], max(0.0, min(value[i], low[i]) - margin[i]), max(value[i], high[i]) + margin[i], unit,
            origin="fitted", how=how,
        )
        for i, unit in enumerate(("s", "s/row"))
    )  # fmt: skip
    return Host(step, row)


def _nonnegative(target: Floats, columns: Floats) -> tuple[float, float]:
    """Coefficients of columns (n, 2), at least 0, that make the sum of absolute errors small (weights iterated)."""
    from scipy.optimize import nnls

    weights = np.ones(len(target))
    for _ in range(_PASSES):
        value = nnls(columns * weights[:, None], target * weights)[0]
        residual = np.abs(columns @ value - target)
        limit = max(1e-9, 1.5 * float(np.median(residual)))
        weights = np.minimum(1.0, np.sqrt(limit / np.maximum(residual, 1e-12)))
    return float(value[0]), float(value[1])

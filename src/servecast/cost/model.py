"""What every cost model offers: the duration of an engine step from its `StepShape`.

Three kinds stand behind one interface: `servecast.cost.roofline.Roofline` (datasheet, not calibrated),
`servecast.cost.fitted.FittedCost` (fitted to measured steps) and `servecast.cost.tabulated.TabulatedCost` (measured
operators added up, or curves through measured steps). None knows a scheduler: a step costs what its shape costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    from servecast.batch import StepShape

#: A number, or an array of them: a `StepShape` holds either.
Scalars = Any

StepKind = Literal["decode", "mixed", "prefill"]

STEP_KINDS: Final[tuple[StepKind, ...]] = ("decode", "mixed", "prefill")


class CostModel(Protocol):
    """Prices steps. ``calibrated`` says whether measurements stand behind it, ``name`` what to print."""

    @property
    def calibrated(self) -> bool:
        """Whether the numbers come from measured steps."""
        ...

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def seconds(self, shape: StepShape) -> Scalars:
        """Duration of one step [s]; arrays in the shape give an array."""
        ...

    def durations(self, shape: StepShape, iterations: int) -> tuple[float, float, int]:
        """(base, slope, count): iteration i < count of the unchanged batch takes base + slope*i seconds.

        Each iteration adds one cached token per decode row. count is less than ``iterations`` where the affine piece
        ends earlier (a sliding window fills); a shape with prefill rows is asked for one iteration only.
        """
        ...

    def extrapolated(self, shape: StepShape) -> Scalars:
        """Whether the shape lies outside what was measured."""
        ...


def step_kind(shape: StepShape) -> Scalars:
    """Which of `STEP_KINDS` a step is: no prefill rows, both kinds, no decode rows."""
    prefill = np.asarray(shape.prefill_rows) > 0
    names = np.where(prefill, np.where(np.asarray(shape.decode_rows) > 0, "mixed", "prefill"), "decode")
    return names if names.ndim else str(names)

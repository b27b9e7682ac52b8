"""Where a fitted cost model has been measured: a box over `StepShape` for each kind of step.

Outside its box a model still answers, by its physical form; this file says that it does, and by how much. What a box
leaves out: it is filled only along the paths that the measured workload took, so a shape inside it may still be far
from any measured one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from servecast.batch import StepShape
from servecast.cost.model import REGIMES, regime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from servecast.cost.model import Scalars


class Extrapolation(NamedTuple):
    """How far a shape lies outside: the worst field, and its value over the bound it breaks (1 = inside).

    A kind of step that was never measured has the field ``"regime"`` and an infinite factor.
    """

    field: str
    factor: float


@dataclass(frozen=True)
class Domain:
    """``boxes[regime][field] = (least, most)`` measured; a field that was not measured does not bound."""

    boxes: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, shape: StepShape, measured: tuple[str, ...] = StepShape._fields) -> Domain:
        """The smallest boxes around measured shapes (arrays), over the fields that the table really held."""
        kinds = regime(shape)
        boxes: dict[str, dict[str, tuple[float, float]]] = {}
        for kind in REGIMES:
            rows = kinds == kind
            if rows.any():
                columns = {name: np.asarray(getattr(shape, name))[rows] for name in measured}
                boxes[kind] = {name: (float(v.min()), float(v.max())) for name, v in columns.items()}
        return cls(boxes)

    def extrapolated(self, shape: StepShape) -> Scalars:
        """Whether each shape lies outside its box: bool, or an array of them."""
        outside = self._factors(shape)[0] > 1.0
        return outside if outside.ndim else bool(outside)

    def extrapolation(self, shape: StepShape) -> Extrapolation:
        """The worst field of one shape and its factor."""
        factor, worst = self._factors(shape)
        return Extrapolation(("", "regime", *StepShape._fields)[int(worst)], float(factor))

    def factors(self, shape: StepShape) -> Scalars:
        """How far outside each shape lies: the largest value over its bound, 1 inside, inf for an unmeasured kind."""
        factor = self._factors(shape)[0]
        return factor if factor.ndim else float(factor)

    def _factors(self, shape: StepShape) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        columns: Sequence[Scalars] = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in shape))
        kinds = np.asarray(regime(StepShape(*columns)))
        factor, worst = np.ones(kinds.shape), np.zeros(kinds.shape, dtype=np.int64)
        for kind in REGIMES:
            rows = kinds == kind
            if not rows.any():
                continue
            box = self.boxes.get(kind)
            if box is None:
                factor, worst = np.where(rows, math.inf, factor), np.where(rows, 1, worst)
                continue
            for position, (name, column) in enumerate(zip(StepShape._fields, columns, strict=True), start=2):
                if name not in box:
                    continue
                low, high = box[name]
                # One is added on both sides, so that a bound or a value of 0 gives a finite factor.
                ratio = np.maximum((column + 1) / (high + 1), (low + 1) / (column + 1))
                beyond = rows & ((column > high) | (column < low)) & (ratio > factor)
                factor, worst = np.where(beyond, ratio, factor), np.where(beyond, position, worst)
        return factor, worst

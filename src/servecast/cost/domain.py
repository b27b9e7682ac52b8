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
from servecast.cost.model import STEP_KINDS, step_kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from servecast.cost.model import Scalars


class Extrapolation(NamedTuple):
    """How far a shape lies above what was measured: the worst field, and its value over the bound (1 = not above).

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
        kinds = step_kind(shape)
        boxes: dict[str, dict[str, tuple[float, float]]] = {}
        for kind in STEP_KINDS:
            rows = kinds == kind
            if rows.any():
                columns = {name: np.asarray(getattr(shape, name))[rows] for name in measured}
                boxes[kind] = {name: (float(v.min()), float(v.max())) for name, v in columns.items()}
        return cls(boxes)

    def extrapolated(self, shape: StepShape) -> Scalars:
        """Whether each shape lies outside its box, above or below: bool, or an array of them."""
        kinds, columns = _columns(shape)
        outside = np.ones(kinds.shape, dtype=bool)
        for kind, box in self.boxes.items():
            rows = kinds == kind
            outside &= ~rows
            for name, (low, high) in box.items():
                column = columns[name]
                outside |= rows & ((column > high) | (column < low))
        return outside if outside.ndim else bool(outside)

    def extrapolation(self, shape: StepShape) -> Extrapolation:
        """The field of one shape that lies furthest above its box, and by which factor."""
        factor, worst = self._factors(shape)
        return Extrapolation(("", "regime", *StepShape._fields)[int(worst)], float(factor))

    def factors(self, shape: StepShape) -> Scalars:
        """How far above its box each shape lies: the largest value over its bound; inf for an unmeasured kind.

        Below the box a step is short, and so is what its price can be wrong by: that is no factor to warn of.
        """
        factor = self._factors(shape)[0]
        return factor if factor.ndim else float(factor)

    def _factors(self, shape: StepShape) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        kinds, columns = _columns(shape)
        factor, worst = np.ones(kinds.shape), np.zeros(kinds.shape, dtype=np.int64)
        for kind in STEP_KINDS:
            rows = kinds == kind
            box = self.boxes.get(kind)
            if box is None:
                factor, worst = np.where(rows, math.inf, factor), np.where(rows, 1, worst)
                continue
            for position, name in enumerate(StepShape._fields, start=2):
                if name not in box:
                    continue
                # One is added on both sides, so that a bound of 0 gives a finite factor.
                ratio = (columns[name] + 1) / (box[name][1] + 1)
                beyond = rows & (ratio > factor)
                factor, worst = np.where(beyond, ratio, factor), np.where(beyond, position, worst)
        return factor, worst


def _columns(shape: StepShape) -> tuple[npt.NDArray[np.str_], dict[str, npt.NDArray[np.float64]]]:
    """The kind of each step, and its fields as equally long arrays."""
    columns = np.broadcast_arrays(*(np.asarray(value, dtype=float) for value in shape))
    kinds = np.asarray(step_kind(StepShape._make(columns)))
    return kinds, dict(zip(StepShape._fields, columns, strict=True))

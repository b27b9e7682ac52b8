"""What every cost model offers: the duration of an engine step from its `StepShape`, and where it was measured.

Three kinds stand behind one interface: `servecast.cost.roofline.Roofline` (datasheet, not calibrated),
`servecast.cost.fitted.FittedCost` (fitted to measured steps) and `servecast.cost.tabulated.TabulatedCost` (measured
operators added up, or curves through measured steps). None knows a scheduler: a step costs what its shape costs.

The last two hold a `Domain`: a box over `StepShape` for each kind of step. Outside its box a model still answers, by
its physical form. The measured workload fills a box only along the paths that it took, so a shape inside it may still
be far from any measured one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from servecast.batch import StepShape
from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

#: A number, or an array of them: a `StepShape` holds either.
Scalars = Any

#: Terms that a cost model remembers: more than any token budget in use, and it bounds the memory.
_REMEMBERED: Final = 65_536

Key = TypeVar("Key")
Term = TypeVar("Term")

StepKind = Literal["decode", "mixed", "prefill"]

STEP_KINDS: Final[tuple[StepKind, ...]] = ("decode", "mixed", "prefill")


class CostModel(Protocol):
    """Prices steps. ``calibrated`` says whether measurements stand behind it, ``name`` what to print."""

    @property
    def calibrated(self) -> bool: ...

    @property
    def name(self) -> str: ...

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


def keep(terms: dict[Key, Term], key: Key, term: Term) -> Term:
    """Remember a term of a cost model, by tokens or rows."""
    if len(terms) >= _REMEMBERED:
        terms.clear()
    terms[key] = term
    return term


def require_tokens(name: str, tokens: int) -> None:
    """Raises InputError for a step that computes no token."""
    if tokens <= 0:
        raise InputError(name, f"step time must be > 0: a step of {tokens} tokens has no duration")


class Extrapolation(NamedTuple):
    """How far a shape lies above what was measured: the worst field, and its value over the bound (1 = not above).

    A kind of step that was never measured has the field ``"regime"`` and an infinite factor.
    """

    field: str
    factor: float


@dataclass(frozen=True)
class Domain:
    """``boxes[kind][field] = (least, most)`` measured; a field that was not measured does not bound."""

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
                outside |= rows & ((columns[name] > high) | (columns[name] < low))
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
                if name in box:
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


class Measured:
    """What a cost model says that has a ``domain`` in which it was measured."""

    __slots__ = ()

    calibrated = True
    domain: Domain

    def extrapolated(self, shape: StepShape) -> Scalars:
        """Whether the shape lies outside what was measured."""
        return self.domain.extrapolated(shape)

    def extrapolation(self, shape: StepShape) -> Extrapolation:
        """How far it does."""
        return self.domain.extrapolation(shape)

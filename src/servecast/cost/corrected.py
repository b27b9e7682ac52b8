"""A fitted cost model with its token term bent to what was measured: knees at tile sizes and changes of kernel.

    step = f(tokens) (c + (W^p + (m tokens)^p)^(1/p)) + q pairs + k context + r rows + s prefill rows

A prefill row costs s more than a decode row: another kernel, other copies. f is 1 where physics says all, and piecewise linear in log(tokens) between knots: a matrix-vector product at one token, a
kernel that is slower for three tokens than for four, graphs captured for some numbers of rows, waves of thread blocks.
It is a factor near 1, so interpolating it on a logarithmic axis keeps a linear time linear. Outside the knots it stays
what it was at the last one: there physics goes on. The form stays affine, and monotone, in the decode context.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from servecast.batch import StepShape
from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from servecast.cost.domain import Domain, Extrapolation
    from servecast.cost.fitted import FittedCost
    from servecast.cost.model import Scalars

    Floats = npt.NDArray[np.float64]

KNOTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
"""Tokens at which the factor may bend, where steps lie no further than `_NEAR` of it."""

_NEAR: Final = 0.12

_STIFFNESS: Final = 0.05
"""Weight of "the factor is 1" against one step's relative error: five steps outvote it."""


@dataclass(frozen=True, slots=True)
class CorrectedCost:
    """``fitted`` with ``factors``: (tokens, factor) at each knot, tokens rising; ``prefill_row_s`` [s/prefill row]."""

    fitted: FittedCost
    factors: tuple[tuple[int, float], ...]
    prefill_row_s: float = 0.0
    _added: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tokens = [knot for knot, _ in self.factors]
        if not tokens or tokens != sorted(set(tokens)) or tokens[0] < 1:
            raise InputError(f"{self.name}.token_factors", f"tokens must rise from 1 on, got {tokens}: calibrate again")
        if not all(0 < factor < np.inf for _, factor in self.factors):
            raise InputError(f"{self.name}.token_factors", "factors must be finite and > 0: calibrate again")
        if not 0 <= self.prefill_row_s < np.inf:
            raise InputError(f"{self.name}.prefill_row_s", f"{self.prefill_row_s} must be finite and >= 0: calibrate again")

    @property
    def calibrated(self) -> bool:
        """Measured steps stand behind it."""
        return True

    @property
    def name(self) -> str:
        """That of the profile."""
        return self.fitted.name

    @property
    def domain(self) -> Domain:
        """Where it was measured."""
        return self.fitted.domain

    def seconds(self, shape: StepShape) -> Scalars:
        """Duration of one step [s]; arrays in the shape give an array."""
        tokens = np.asarray(shape.prefill_tokens) + np.asarray(shape.decode_rows)
        added = (self._factor(tokens) - 1) * token_term(self.fitted, tokens)
        together = self.fitted.seconds(shape) + added + self.prefill_row_s * np.asarray(shape.prefill_rows)
        return together if np.ndim(together) else float(together)

    def durations(self, shape: StepShape, iterations: int) -> tuple[float, float, int]:
        """(base, slope, count): iteration i < count takes base + slope*i seconds."""
        tokens = shape[1] + shape[4]
        added = self._added.get(tokens)
        if added is None:
            added = float((self._factor(tokens) - 1) * token_term(self.fitted, tokens))
            self._added[tokens] = added
        base, slope, count = self.fitted.durations(shape, iterations)
        return base + added + self.prefill_row_s * shape[0], slope, count

    def extrapolated(self, shape: StepShape) -> Scalars:
        """Whether each shape lies outside the measured domain."""
        return self.fitted.extrapolated(shape)

    def extrapolation(self, shape: StepShape) -> Extrapolation:
        """The field of one shape that lies furthest outside the measured domain, and by which factor."""
        return self.fitted.extrapolation(shape)

    def _factor(self, tokens: Scalars) -> Scalars:
        knots = np.log([knot for knot, _ in self.factors])
        return np.interp(np.log(tokens), knots, [factor for _, factor in self.factors])


def token_term(fitted: FittedCost, tokens: Scalars) -> Scalars:
    """The constant and the matrix multiplications of a step of so many tokens [s]: what the factor multiplies."""
    nothing = np.zeros(np.shape(tokens))
    alone = StepShape(nothing, tokens, nothing, nothing, nothing, nothing, nothing)  # type: ignore[arg-type]  # arrays
    return fitted.seconds(alone)


def correct(fitted: FittedCost, shape: StepShape, seconds: Floats, passes: int = 6) -> CorrectedCost:
    """Fit the factors, and with them the coefficients of pairs, context and rows anew, to measured steps.

    shape : arrays (n,); seconds : (n,) [s]. Relative errors are squared, large ones weighed down (Huber, iterated).
    """
    from scipy.optimize import nnls

    tokens = np.asarray(shape.prefill_tokens, dtype=float) + np.asarray(shape.decode_rows)
    knots = np.array(_knots(tokens), dtype=float)
    term = token_term(fitted, tokens)
    hats = np.column_stack([np.interp(np.log(tokens), np.log(knots), row) for row in np.eye(len(knots))])
    rows = np.asarray(shape.prefill_rows, dtype=float) + np.asarray(shape.decode_rows)
    prefill_rows = np.asarray(shape.prefill_rows, dtype=float)
    linear = np.column_stack([fitted.pairs_computed(shape), fitted.context_read(shape), rows, prefill_rows])
    scale = np.array([fitted.pair_s, fitted.context_s, fitted.row_s, fitted.row_s])
    scale = np.where(scale > 0, scale, 1e-9)
    design = np.column_stack([hats * term[:, None], linear * scale]) / seconds[:, None]
    stiff = _STIFFNESS * np.eye(len(knots), design.shape[1])
    weights = np.ones(len(seconds))
    solved = np.ones(design.shape[1])
    for _ in range(passes):
        left = np.vstack([design * weights[:, None], stiff])
        right = np.concatenate([weights, np.full(len(knots), _STIFFNESS)])
        solved, _ = nnls(left, right)
        residual = np.abs(design @ solved - 1)
        limit = max(1e-6, 2 * float(np.median(residual)))
        weights = np.sqrt(np.minimum(1.0, limit / np.maximum(residual, 1e-12)))
    factors = tuple((int(knot), float(f"{factor:.5g}")) for knot, factor in zip(knots, solved, strict=False))
    pair_s, context_s, row_s, prefill_row_s = (float(f"{value:.7g}") for value in solved[len(knots) :] * scale)
    return CorrectedCost(replace(fitted, pair_s=pair_s, context_s=context_s, row_s=row_s), factors, prefill_row_s)


def _knots(tokens: Floats) -> Sequence[int]:
    """The knots that two steps at least lie near."""
    near = [knot for knot in KNOTS if (np.abs(tokens / knot - 1) <= _NEAR).sum() >= 2]
    return near or [int(tokens.min())]

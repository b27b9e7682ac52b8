"""Fits a tabulated cost model to whole steps, measured on a grid of shapes (`servecast calibrate`).

    step = f(tokens) + g(rows) + k decode_context + q prefill_pairs        tokens, rows as in `servecast.cost.tabulated`

f (the layers' matrix products) and g (the head's, and what each row costs) are piecewise linear between knots, because
they are not straight: one token is a matrix-vector product, a kernel can be slower for three rows than for four, graphs
are captured for some numbers of rows, and thread blocks come in waves. The same tokens in fewer and in more rows tell
one from the other. Attention is straight: k and q are one number each.

Everything enters linearly, so the fit is one non-negative least squares on relative errors, in which steps that lie far
off count less (Huber's weights, iterated). A knot is given by the steps near it, and a little by its neighbours.
What the steps do not hold apart from f and g (no cached token in any step, say, or as many for each row) is pinned to
physics: of k and q, the one that the other terms can take over, that is next to nothing in every step, or whose
interval says little. Neither goes below what the device's peaks allow.
Left out: what a cached prefix costs beyond its query-key pairs, and uneven rows (they are priced by their sums).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from servecast.batch import StepShape

    Floats = npt.NDArray[np.float64]

KNOTS: Final = (
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192,
)  # fmt: skip
"""Where f and g may bend, if two steps at least lie no further than `_NEAR` of it; the largest step measured closes."""

_NEAR: Final = 0.12

_STRAIGHT: Final = 0.05
"""Weight of "a knot lies between its neighbours" against the relative error of one step: a few steps outvote it."""

_APART: Final = 0.02
"""Share of a term of attention that f, g and the other term must leave of it, or the steps do not tell it."""

_LEAST_SHARE: Final = 0.002
"""Share of a step (root mean square) that this rest of a term makes by bytes and FLOPs, or bends of f stand for it."""

_KNOWN: Final = 0.25
"""A coefficient is known if the half of its 90 % interval is at most this share of it."""

_PIN_RANGE: Final = 0.3
"""Half of the interval of what is pinned, as a share of it: efficiencies that kernels reach."""

_PASSES: Final = 8
_REPLICATES: Final = 200


class WholeSteps(NamedTuple):
    """What was fitted: seconds of f and g at their knots, and k and q with the bounds of their 90 % intervals.

    tokens, rows : (knots, seconds)
    context_s, pair_s : (value, low, high) [s/cached token], [s/query-key pair]
    pinned : which of these two no step told
    sure : (k, q) that were taken off the steps before the rest was fitted: what is pinned, or the device's peaks
    """

    tokens: tuple[tuple[float, ...], tuple[float, ...]]
    rows: tuple[tuple[float, ...], tuple[float, ...]]
    context_s: tuple[float, float, float]
    pair_s: tuple[float, float, float]
    pinned: tuple[str, ...] = ()
    sure: tuple[float, float] = (0.0, 0.0)

    def tables(self, rows: int, context: int, tokens: int, pairs: int) -> dict[str, Any]:
        """Its tables for `servecast.cost.profile.Tables`. Attention is bilinear: the corners of its domain say it all.

        rows, context : the most decode rows, and the most cached tokens of one
        tokens, pairs : the most prefill tokens, and the most query-key pairs of one
        """
        return {
            "tokens": self.tokens,
            "sampled_rows": self.rows,
            "decode_attention": _corners(rows, context, self.context_s[0]),
            "prefill_by": "tokens",
            "prefill_attention": _corners(tokens, pairs, self.pair_s[0]),
        }


def fit(
    shape: StepShape,
    seconds: Floats,
    seed: int = 0,
    replicates: int = _REPLICATES,
    physics: tuple[float, float] = (0.0, 0.0),
    peaks: tuple[float, float] = (0.0, 0.0),
) -> WholeSteps:
    """Fit measured steps: ``shape`` of arrays (n,), ``seconds`` (n,) [s]; so many bootstrap replicates.

    physics : k and q by bytes and FLOPs, for what the steps do not tell
    peaks : k and q at the peaks of the device: neither is less
    """
    design, knots = _design(shape, seconds)
    untold = _untold(design, np.array(physics))
    while True:
        sure = np.where(untold, physics, peaks)
        solved, low, high = _bounded(design, knots, sure, untold, seed, replicates)
        vague = ~untold & (high - low > 2 * _KNOWN * solved[-2:])
        if not vague.any():
            break
        untold[1 if vague[1] else 0] = True  # pairs first, as in `_untold`
    f, g = len(knots[0]), len(knots[1])
    # The steps tell only the sum of f and g; what every step takes counts as f's.
    shared = solved[f : f + g].min()
    solved[:f] += shared
    solved[f : f + g] -= shared
    *values, k, q = (_rounded(float(value)) for value in solved)
    context_s, pair_s = (
        (value, min(value, _rounded(float(least))), max(value, _rounded(float(most))))
        for value, least, most in zip((k, q), low, high, strict=True)
    )
    pinned = tuple(name for name, missing in zip(("context_s", "pair_s"), untold, strict=True) if missing)
    curves = (tuple(knots[0]), tuple(values[:f])), (tuple(knots[1]), tuple(values[f:]))
    return WholeSteps(*curves, context_s, pair_s, pinned, (float(sure[0]), float(sure[1])))


def _bounded(
    design: Floats,
    knots: tuple[list[float], list[float]],
    base: Floats,
    pinned: npt.NDArray[np.bool_],
    seed: int,
    replicates: int,
) -> tuple[Floats, Floats, Floats]:
    """Unknowns with k and q at ``base`` (2,) where they are pinned and no less elsewhere; low and high of these two."""
    left, taken = _without(design, base, pinned)
    solved = _solve(left, knots, np.arange(len(design)), target=taken)
    draw = np.random.default_rng(seed)
    several = [
        _solve(left, knots, draw.integers(0, len(design), len(design)), passes=1, target=taken)[-2:]
        for _ in range(replicates)
    ]
    solved[-2:] = np.where(pinned, base, base + solved[-2:])
    low, high = (
        np.where(pinned, base * (1 + sign * _PIN_RANGE), base + end)
        for sign, end in zip((-1, 1), np.quantile(several, (0.05, 0.95), axis=0), strict=True)
    )
    return solved, low, high


def _without(design: Floats, base: Floats, pinned: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """The steps less what is sure of k and q (2,), and what is left of each; of what is pinned its column goes too."""
    left = design.copy()
    left[:, -2:] *= ~pinned
    return left, 1 - design[:, -2:] @ base


def unseen(shape: StepShape, seconds: Floats, found: WholeSteps, folds: int = 10, seed: int = 0) -> Floats:
    """What each step is predicted to take by a fit to the steps of the other folds (n,) [s].

    found : the fit to all of them, whose pins and peaks hold here too
    """
    whole, knots = _design(shape, seconds)
    pinned = np.array([name in found.pinned for name in ("context_s", "pair_s")])
    design, taken = _without(whole, np.array(found.sure), pinned)
    fold = np.random.default_rng(seed).permutation(len(seconds)) % folds
    predicted = np.empty(len(seconds))
    for number in range(min(folds, len(seconds))):
        left_out = fold == number
        solved = _solve(design, knots, np.flatnonzero(~left_out), target=taken)
        predicted[left_out] = design[left_out] @ solved + 1 - taken[left_out]
    return predicted * seconds


def _untold(design: Floats, physics: Floats) -> npt.NDArray[np.bool_]:
    """Whether the steps do not tell k and q (2,): what the other columns leave of each of theirs is next to nothing."""
    untold = np.zeros(2, dtype=bool)
    first = design.shape[1] - 2
    for i in (1, 0):  # pairs first: of two that stand for each other, cached tokens are what decode steps are about
        others = np.delete(design, [first + i, *(first + np.flatnonzero(untold))], axis=1)
        size = np.linalg.norm(others, axis=0)
        term, others = design[:, first + i], others[:, size > 0] / size[size > 0]
        own = np.linalg.norm(term - others @ np.linalg.lstsq(others, term, rcond=1e-9)[0])
        share = physics[i] * own / np.sqrt(len(term))
        untold[i] = own <= _APART * np.linalg.norm(term) or 0 < share < _LEAST_SHARE
    return untold


def _design(shape: StepShape, seconds: Floats) -> tuple[Floats, tuple[list[float], list[float]]]:
    """Seconds of each step per unit of each unknown, relative to what was measured; and the knots of f and g."""
    tokens = np.asarray(shape.prefill_tokens, dtype=float) + np.asarray(shape.decode_rows)
    rows = np.asarray(shape.prefill_rows, dtype=float) + np.asarray(shape.decode_rows)
    knots = _knots(tokens), _knots(rows)
    columns = np.column_stack(
        [
            _hats(knots[0], tokens),
            _hats(knots[1], rows),
            np.asarray(shape.decode_context, dtype=float),
            np.asarray(shape.prefill_pairs, dtype=float),
        ]
    )
    return columns / seconds[:, None], knots


def _solve(
    design: Floats,
    knots: tuple[list[float], list[float]],
    chosen: npt.NDArray[np.int64],
    passes: int = _PASSES,
    target: Floats | float = 1.0,
) -> Floats:
    from scipy.optimize import nnls

    # Columns scaled to their largest entry: context counts by the million, and solvers look at residuals.
    scale = np.abs(design).max(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    stiff = _between_neighbours(knots, design.shape[1], 1 / scale)
    steps = design[chosen] / scale
    wanted = np.broadcast_to(target, len(design))[chosen]
    weights = np.ones(len(chosen))
    solved = np.zeros(design.shape[1])
    for _ in range(passes):
        left = np.vstack([steps * weights[:, None], stiff])
        solved, _ = nnls(left, np.concatenate([weights * wanted, np.zeros(len(stiff))]))
        residual = np.abs(steps @ solved - wanted)
        limit = max(1e-6, 2 * float(np.median(residual)))
        weights = np.sqrt(np.minimum(1.0, limit / np.maximum(residual, 1e-12)))
    return np.asarray(solved / scale)


def _between_neighbours(knots: tuple[list[float], list[float]], width: int, unscaled: Floats) -> Floats:
    """Rows that are 0 where a knot lies on the line between its neighbours."""
    rows = []
    for at, start in zip(knots, (0, len(knots[0])), strict=True):
        for i in range(1, len(at) - 1):
            share = (at[i] - at[i - 1]) / (at[i + 1] - at[i - 1])
            row, near = np.zeros(width), slice(start + i - 1, start + i + 2)
            row[near] = np.array([1 - share, -1.0, share]) * _STRAIGHT * unscaled[near]
            # In units of the step that the knot is about, as the residuals are.
            rows.append(row / unscaled[start + i])
    return np.array(rows).reshape(-1, width)


def _hats(knots: list[float], at: Floats) -> Floats:
    """Weight of each knot's value at each point: (n, knots)."""
    return np.column_stack([np.interp(at, knots, row) for row in np.eye(len(knots))])


def _knots(at: Floats) -> list[float]:
    """The first and the last number measured, and the knots between that two steps at least lie near."""
    low, high = float(at.min()), float(at.max())
    near = [float(knot) for knot in KNOTS if low < knot < high and (np.abs(at / knot - 1) <= _NEAR).sum() >= 2]
    inner = [knot for knot in near if low * (1 + _NEAR) < knot < high * (1 - _NEAR)]
    return [low, *inner, high] if high > low else [low]


def _corners(outer: int, inner: int, each: float) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Curves of ``each * outer * inner`` over their whole ranges."""
    ends = (1, outer) if outer > 1 else (1,)
    return tuple(((float(end),), (0.0, float(inner)), (0.0, _rounded(each * end * inner))) for end in ends)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")

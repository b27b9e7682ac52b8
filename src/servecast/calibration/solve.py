"""Solves for the coefficients of a fitted cost model: what the data tell, fitted; what they do not, pinned.

Residuals are log(predicted / measured), so that a short step counts as much as a long one and too high as much as too
low, under a soft-L1 loss. In a log of consecutive steps (rebuilt from token times at a client, a step that ends late
makes its neighbour short) the sums of 16 rows are fitted beside the single rows, each scale by its own spread.

What the data cannot tell is pinned, one coefficient after another (`_LADDER`), until what is left is known to 25 %:
pairs cost what their FLOPs cost in the matmuls, context what its bytes cost among the weights, and where the constant
of a step cannot be told from the reading of weights, that reading is put at a stated share of the bandwidth. A term
that is absent from the steps, constant, or made up of other terms is pinned before anything is fitted: no noise can
make it look known (`_Sums.apart`). No coefficient goes below its value at the device's peak, so no prediction beats the
roofline, in the data or beyond.

Intervals are 90 %, by a block bootstrap of one Gauss-Newton step a replicate (Efron and Tibshirani 1993, section 8.6
for the blocks): blocks of consecutive rows, because a GPU's clock drifts. Each replicate also draws what is pinned from
the range of what engines reach (`_PIN_SPREAD`), and moves what is fitted as far as the steps then ask: a fitted
coefficient that leans on a pinned one is as wide as that pin makes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from servecast.batch import StepShape
from servecast.cost.fitted import FittedCost, smooth_maximum

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy.typing as npt

    from servecast.calibration.steps import Steps
    from servecast.cost.physics import Physics

    Floats = npt.NDArray[np.float64]
    Bools = npt.NDArray[np.bool_]

#: A coefficient is known if the half of its 90 % interval is at most this share of it ...
_KNOWN: Final = 0.25
#: ... or, for the constant of a step, at most this share of the median step.
_KNOWN_STEP: Final = 0.02
#: A term is there if what the others cannot take over of it makes at least this share of a step (root mean square) ...
_APART: Final = 0.002
#: ... in more rows than these: a coefficient does not rest on one or two steps.
_LONE_ROWS: Final = 2
_REPLICATES: Final = 1000
_BLOCKS: Final = 100
_SHARPEST: Final = 30.0
_AT_BOUND: Final = 1e-4
#: Two passes: the second knows the spread of the residuals from the first.
_FIRST_SPREAD: Final = 0.02

#: Places in every vector of coefficients: weights read, token, pair, context, row, step, sharpness.
W, M, Q, K, R, C, P = range(7)
#: The order in which unknown coefficients are pinned.
_LADDER: Final = (P, Q, K, W, M, R)

_PIN_SPREAD: Final = {P: 0.3, Q: 0.3, K: 0.15, W: 0.14, M: 0.18}
"""Standard deviation of what is pinned, as a share of it: knees of 3 to 8, 0.60 to 0.95 of the bandwidth, 0.5 to 0.9 of
the FLOPs, attention that is up to 1.6 times cheaper or dearer than matmuls. A row may cost as much as a token more, and
a step that is pinned at no constant `_STEP_SPREAD` (recorded engines show 0 to 1.2 ms)."""
_STEP_SPREAD: Final = 1e-3
#: Times as many draws as are wanted: many lie beyond a bound.
_TRIES: Final = 16


@dataclass(frozen=True)
class Setting:
    """What a fit is given beside the steps."""

    physics: Physics
    bounds: Floats  # (7,) least value of each coefficient
    compute_efficiency: float
    bandwidth_efficiency: float
    sharpness: float
    window: int
    seed: int


@dataclass(frozen=True)
class Solution:
    """Fitted coefficients (7,), bootstrap replicates (n, 7), and how each was come by."""

    values: Floats
    replicates: Floats
    half_width: Floats  # (7,) of the 90 % interval, were there no bounds: what the data know
    at_bound: frozenset[int]
    pinned: frozenset[int]
    how: Mapping[int, str]


def solve(steps: Steps, rows: Bools, setting: Setting) -> Solution:
    """Pin what the data cannot tell, one coefficient at a time, and fit the rest."""
    sums = _Sums(steps, rows, setting)
    pinned, result = _absent(sums, setting), None
    while True:
        result = _fit_free(sums, pinned, setting, result)
        following = _next_pin(unknown_coefficients(result, steps, rows), pinned)
        if following is not None:
            pinned |= {following}
        elif (better := _exchanged(result, sums)) is not None:
            pinned = better
        else:
            return _with_pins_drawn(_with_a_knee(result, sums, setting), sums, setting)


def unknown_coefficients(result: Solution, steps: Steps, rows: Bools) -> frozenset[int]:
    """Coefficients that the data do not tell: the interval is too wide, or a term wants to be cheaper than physics."""
    known = result.half_width <= _KNOWN * result.values
    known[C] = result.half_width[C] <= _KNOWN_STEP * np.median(steps.seconds[rows])
    return frozenset(np.flatnonzero(~known).tolist()) | (result.at_bound - {C})


def _next_pin(unknown: Collection[int], pinned: frozenset[int]) -> int | None:
    """Which of the unknown coefficients is pinned next.

    The constant is what the reading of weights leaves over: for it, that reading is pinned.
    """
    candidates = {*unknown, W} if C in unknown and C not in pinned else set(unknown)
    return next((i for i in _LADDER if i in candidates and i not in pinned), None)


def _exchanged(result: Solution, sums: _Sums) -> frozenset[int] | None:
    """Other pins, where what these leave to a fitted coefficient is more than it can be; None where it is not.

    A constant of 0 says that the steps are shorter than the stated reading of weights (or than the stated matmuls, if
    most wait for these), and one above that reading, where most wait for the matmuls, that those are too fast. A row of
    more than two tokens' FLOPs stands for the cached tokens that it reads, or for its tokens.
    """
    values, pinned = result.values, result.pinned
    computes = np.mean(values[M] * sums.tokens > values[W] * sums.read) > 0.5
    if C not in pinned and (C in result.at_bound or (computes and M in pinned and values[C] > values[W])):
        return pinned - {M if computes else W} | {C}
    if R not in pinned and values[R] > 2 * values[M]:
        return pinned - {K if K in pinned else M} | {R}
    return None


def _with_a_knee(result: Solution, sums: _Sums, setting: Setting) -> Solution:
    """The fit with the sharpness free, if the steps tell it once the others are pinned: it is pinned first of all."""
    pinned = result.pinned - {P}
    if P not in result.pinned or P in _indistinct(sums, pinned, setting):
        return result
    freed = _fit_free(sums, pinned, setting, result)
    closer = np.mean(sums.errors(freed.values) ** 0.5) < 0.9 * np.mean(sums.errors(result.values) ** 0.5)
    return freed if closer and freed.half_width[P] <= _KNOWN * freed.values[P] else result


def _indistinct(sums: _Sums, pinned: frozenset[int], setting: Setting) -> frozenset[int]:
    """Coefficients that are free and whose terms the steps do not hold apart from the other ones."""
    tie, offset, _ = _ties(pinned, setting)
    free = [i for i in range(7) if i not in pinned]
    reference = _reference(setting)
    reference[R] *= 3  # what a row takes on recorded engines
    apart = sums.apart(reference[free] @ tie.T + offset, (np.eye(7) * reference)[:, free])
    return frozenset(i for i, share in zip(free, apart, strict=True) if share < _APART)


def _absent(sums: _Sums, setting: Setting) -> frozenset[int]:
    """Coefficients to pin before any fit: the steps do not hold their terms apart from the other terms."""
    pinned = frozenset[int]()
    while True:
        following = _next_pin(_indistinct(sums, pinned, setting), pinned)
        if following is None:
            return pinned
        pinned |= {following}


def _reference(setting: Setting) -> Floats:
    """Coefficients as engines have them, roughly: where fits start, and the units in which they are solved."""
    return np.array([*(peak / 0.75 for peak in setting.physics[:4]), 1e-5, 1e-3, setting.sharpness])


def _with_pins_drawn(result: Solution, sums: _Sums, setting: Setting) -> Solution:
    """The solution with replicates in which the pinned coefficients vary too, and the fitted ones follow them."""
    pins = [i for i in (*_LADDER, C) if i in result.pinned]
    if not pins:
        return result
    tie, *_ = _ties(result.pinned, setting)
    # What a relative change of each pin changes in the coefficients; what is tied to a pin goes with it.
    change = np.zeros((7, len(pins)))
    for column, index in enumerate(pins):
        tied = {W: (K,), M: (Q, R)}.get(index, ())
        for each in (index, *(i for i in tied if i in result.pinned)):
            change[each, column] = result.values[each] * _PIN_SPREAD.get(index, 0.0)
        if index in (R, C):
            change[index, column] = _STEP_SPREAD if index == C else result.values[M]
    spreads = sums.spreads(result.values)
    residuals, jacobian = sums.residuals(result.values, spreads), sums.jacobian(result.values, spreads)
    free = [i for i in range(7) if i not in result.pinned]
    moving = [column for column, i in enumerate(free) if i not in result.at_bound]
    weights = np.sqrt((1 + residuals**2) ** -1.5)[:, None]
    scale = _reference(setting)[free][moving]
    follow = np.linalg.lstsq(jacobian @ tie[:, moving] * scale * weights, -jacobian @ change * weights, rcond=1e-8)[0]
    change = change + tie[:, moving] @ (follow * scale[:, None])
    count = len(result.replicates)
    draws = np.random.default_rng(setting.seed + 1).standard_normal((_TRIES * count, len(pins)))
    drawn = np.tile(result.replicates, (_TRIES, 1)) + draws @ change.T
    low, high = np.quantile(drawn, (0.05, 0.95), axis=0)
    # One beyond its bounds is drawn again: clipped, it would no longer agree with the steps.
    least, most = setting.bounds - 1e-6 * result.values, np.array([*[np.inf] * 6, _SHARPEST])
    beyond = ((drawn < least) | (drawn > most)).any(axis=1)
    return replace(
        result,
        replicates=np.clip(drawn[np.argsort(beyond, kind="stable")][:count], setting.bounds, most),
        half_width=np.maximum(result.half_width, (high - low) / 2),
    )


def _fit_free(sums: _Sums, pinned: frozenset[int], setting: Setting, before: Solution | None) -> Solution:
    """Fit the coefficients that are not pinned, from those of the fit ``before``.

    The first fit is made twice: only the second pass knows the spread of the residuals.
    """
    from scipy.optimize import least_squares

    tie, offset, how = _ties(pinned, setting)
    free = [i for i in range(7) if i not in pinned]
    reference = _reference(setting)[free]
    to_coefficients = (tie * reference).T
    lower = setting.bounds[free] / reference
    upper = np.array([_SHARPEST if i == P else np.inf for i in free]) / reference
    z = np.maximum(1.0, lower * 1.05) if before is None else before.values[free] / reference
    spreads = [_FIRST_SPREAD] * len(sums.starts) if before is None else sums.spreads(before.values)

    def coefficients(z: Floats) -> Floats:
        return np.asarray(z @ to_coefficients + offset)

    def residuals(z: Floats) -> Floats:
        return sums.residuals(coefficients(z), spreads)

    def jacobian(z: Floats) -> Floats:
        return np.asarray(sums.jacobian(coefficients(z), spreads) @ to_coefficients.T)

    for _ in range(2 if before is None else 1):
        if free:
            start = np.clip(z, lower + 1e-9, upper - 1e-9)
            z = least_squares(residuals, start, jacobian, (lower, upper), loss="soft_l1", ftol=1e-6).x
        spreads = sums.spreads(coefficients(z))
    at_bound = z <= lower + _AT_BOUND
    z = np.where(at_bound, lower, z)
    draw = _Bootstrap(residuals(z), jacobian(z), sums.blocks, setting.seed)
    low, high = np.quantile(draw.steps(np.full(len(z), True)) @ to_coefficients, (0.05, 0.95), axis=0)
    # Where two columns are one, no replicate moves along their difference: the curvature says that it is not known.
    half_width = np.maximum((high - low) / 2, 1.645 * draw.standard_errors(to_coefficients))
    replicates = np.clip(z + draw.steps(~at_bound), lower, upper) @ to_coefficients + offset
    for index, bounded in zip(free, at_bound, strict=True):
        how[index] = "fitted: at its bound, the device's peak or 0" if bounded else "fitted"
    if C in pinned:
        how[C] = "pinned at 0: the other terms are all that the steps take"
    elif W in pinned:
        how[C] += ", given the pinned reading of weights"
    bounded_ones = frozenset(np.array(free, dtype=int)[at_bound].tolist())
    return Solution(coefficients(z), replicates, half_width, bounded_ones, pinned, how)


def _ties(pinned: frozenset[int], setting: Setting) -> tuple[Floats, Floats, dict[int, str]]:
    """coefficients = tie @ free + offset, and the words for the pinned ones."""
    peak = setting.physics
    tie, offset = np.eye(7), np.zeros(7)
    how: dict[int, str] = {}
    compute, bandwidth = setting.compute_efficiency, setting.bandwidth_efficiency
    weights = f"pinned: bytes of the weights at the stated {bandwidth:.2f} of the bandwidth"
    if C in pinned:
        tie[C] = 0
    for index, value, words in (
        (P, setting.sharpness, "pinned at the stated sharpness: no steps around the knee"),
        (W, peak.weight_read_s / bandwidth, weights),
        (M, peak.token_s / compute, f"pinned: FLOPs of a token at the stated {compute:.2f} of the peak"),
    ):
        if index in pinned:
            tie[index], offset[index], how[index] = 0, value, words
    matmuls = "at the compute efficiency of the matmuls"
    for index, value, to, words in (
        (Q, peak.pair_s / peak.token_s, M, f"pinned: FLOPs of a pair {matmuls}"),
        (R, peak.row_s / peak.token_s, M, f"pinned: FLOPs of the lm_head {matmuls}"),
        (K, peak.context_s / peak.weight_read_s, W,
         "pinned: bytes of the cache at the bandwidth efficiency of the weights"),
    ):  # fmt: skip
        if index in pinned:
            tie[index], offset[index], how[index] = value * tie[to], value * offset[to], words
    return np.delete(tie, sorted(pinned), axis=1), offset, how


class _Sums:
    """Residuals and derivatives of the rows chosen, at the scales fitted: single rows, and sums of consecutive ones.

    blocks : which block of the bootstrap each residual belongs to
    """

    def __init__(self, steps: Steps, rows: Bools, setting: Setting) -> None:
        window = setting.window
        self.seconds = steps.seconds[rows]
        self.window = window
        shape = StepShape(*(np.asarray(v)[rows] for v in steps.shape))  # type: ignore[arg-type]  # arrays
        form = cost_of(np.array([*setting.physics[:5], 0.0, setting.sharpness]), setting)
        self.tokens = np.asarray(shape.prefill_tokens, dtype=float) + shape.decode_rows
        self.read = np.broadcast_to(form.weights_read(self.tokens), self.tokens.shape)
        # The columns of the coefficients that enter linearly; the three of the smooth maximum come at each point.
        n = len(self.seconds)
        self.columns = np.zeros((n, 7))
        self.columns[:, Q] = form.pairs_computed(shape)
        self.columns[:, K] = form.context_read(shape)
        self.columns[:, R] = np.asarray(shape.prefill_rows) + shape.decode_rows
        self.columns[:, C] = 1.0
        self.starts = [np.arange(n)]
        if window > 1:
            self.starts.append(window_starts(np.flatnonzero(rows), steps.run[rows], window))
        chunk = max(window, -(-n // _BLOCKS)) if window > 1 else 1
        self.blocks = np.concatenate([starts // chunk for starts in self.starts])

    def residuals(self, coefficients: Floats, spreads: Sequence[float]) -> Floats:
        """log(predicted / measured) of every sum, in units of the spread at its scale."""
        return np.concatenate([log / spread for log, spread in zip(self._logs(coefficients), spreads, strict=True)])

    def spreads(self, coefficients: Floats) -> list[float]:
        """Robust standard deviation (1.4826 MAD) of the residuals at each scale."""
        return [max(1e-4, 1.4826 * float(np.median(np.abs(log - np.median(log))))) for log in self._logs(coefficients)]

    def jacobian(self, coefficients: Floats, spreads: Sequence[float]) -> Floats:
        """Derivatives (n, 7) of the residuals by the coefficients."""
        slopes, predicted = self._slopes(coefficients), self._predict(coefficients)
        parts = [
            self._sum(starts, slopes) / self._sum(starts, predicted)[:, None] / spread
            for starts, spread in zip(self.starts, spreads, strict=True)
        ]
        return np.concatenate(parts)

    def apart(self, coefficients: Floats, directions: Floats) -> Floats:
        """What each of the ``directions`` (7, n) adds to a step that the other ones cannot add, as a share of it (n,).

        The root mean square over the steps, without the few in which it is largest.
        """
        terms = self._slopes(coefficients) @ directions / self.seconds[:, None]
        left = np.empty(terms.shape[1])
        for i, term in enumerate(terms.T):
            others = np.delete(terms, i, axis=1)
            size = np.maximum(np.linalg.norm(others, axis=0), 1e-300)
            fitted = np.linalg.lstsq(others / size, term, rcond=1e-8)[0]
            own = np.sort(np.abs(term - others / size @ fitted))[:-_LONE_ROWS]
            left[i] = np.sqrt(np.mean(own**2))
        return left

    def _slopes(self, coefficients: Floats) -> Floats:
        """Seconds (n, 7) by which each step grows with each coefficient."""
        read, matmul = coefficients[W] * self.read, coefficients[M] * self.tokens
        p = coefficients[P]
        maximum = smooth_maximum(read, matmul, p)
        ratio = np.minimum(read, matmul) / np.maximum(read, matmul)
        power = ratio**p
        slopes = self.columns.copy()
        slopes[:, W] = self.read * (read / maximum) ** (p - 1)
        slopes[:, M] = self.tokens * (matmul / maximum) ** (p - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            bend = np.where(power > 0, power * np.log(ratio) / (p * (1 + power)), 0.0)
        slopes[:, P] = maximum * (bend - np.log1p(power) / p**2)
        return slopes

    def errors(self, coefficients: Floats) -> Floats:
        """|log(predicted / measured)| of every single step."""
        return np.abs(self._logs(coefficients)[0])

    def _logs(self, coefficients: Floats) -> list[Floats]:
        predicted = self._predict(coefficients)
        return [np.log(self._sum(starts, predicted) / self._sum(starts, self.seconds)) for starts in self.starts]

    def _predict(self, coefficients: Floats) -> Floats:
        read, matmul = coefficients[W] * self.read, coefficients[M] * self.tokens
        linear = self.columns @ coefficients
        return np.asarray(linear + smooth_maximum(read, matmul, coefficients[P]))

    def _sum(self, starts: npt.NDArray[np.int64], values: Floats) -> Floats:
        return values if starts is self.starts[0] else window_sums(values, starts, self.window)


class _Bootstrap:
    """Blocks of residuals drawn with replacement; a replicate is one Gauss-Newton step away from the solution.

    The gradient of the soft-L1 loss is psi = r / sqrt(1 + r^2), its curvature psi' = (1 + r^2)^(-3/2): with the weights
    of the iteration, psi / r, in place of psi' the intervals would come out a quarter too narrow.
    """

    def __init__(self, residuals: Floats, jacobian: Floats, blocks: npt.NDArray[np.int64], seed: int) -> None:
        slope = residuals / np.sqrt(1 + residuals**2)
        curvature = (1 + residuals**2) ** -1.5
        count, size = int(blocks.max()) + 1, jacobian.shape[1]
        hessian, gradient = np.zeros((count, size, size)), np.zeros((count, size))
        np.add.at(gradient, blocks, jacobian * slope[:, None])
        for i in range(size):
            np.add.at(hessian[:, i, :], blocks, jacobian * (curvature * jacobian[:, i])[:, None])
        # Few blocks scatter less around their own fit than around the truth.
        self.few = np.sqrt(count / max(count - size, 1))
        # A ridge far below any information of interest keeps a direction that the data do not tell finite, and wide.
        total = hessian.sum(axis=0)
        self.ridge = np.eye(size) * max(1e-10 * np.trace(total) / max(size, 1), 1e-300)
        self.total = total + self.ridge
        draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=_REPLICATES)
        self.hessian = np.einsum("rb,bij->rij", draws, hessian) + self.ridge
        self.gradient = draws @ gradient

    def steps(self, moving: Bools) -> Floats:
        """(replicates, free) steps; coefficients that are not ``moving`` stay."""
        steps = np.zeros_like(self.gradient)
        if moving.any():
            hessian = self.hessian[:, moving][:, :, moving]
            steps[:, moving] = -self.few * np.linalg.solve(hessian, self.gradient[:, moving, None])[:, :, 0]
        return steps

    def standard_errors(self, to_coefficients: Floats) -> Floats:
        """(7,) standard errors of the coefficients by the curvature alone."""
        variances = np.einsum("ik,ij,jk->k", to_coefficients, np.linalg.inv(self.total), to_coefficients)
        return np.asarray(self.few * np.sqrt(variances))


def window_starts(positions: npt.NDArray[np.int64], run: npt.NDArray[np.int64], window: int) -> npt.NDArray[np.int64]:
    """Where sums of ``window`` consecutive rows start, none across a gap in the rows or from one run to the next."""
    breaks = np.flatnonzero((np.diff(positions) != 1) | (np.diff(run) != 0)) + 1
    edges = np.concatenate([[0], breaks, [len(positions)]])
    return np.concatenate([np.arange(a, b - window + 1, window, dtype=np.int64) for a, b in pairwise(edges.tolist())])


def window_sums(values: Floats, starts: npt.NDArray[np.int64], window: int) -> Floats:
    """Sums of ``window`` consecutive values from each start on."""
    return np.asarray(values[starts[:, None] + np.arange(window)].sum(axis=1))


def cost_of(values: Floats, setting: Setting) -> FittedCost:
    """The cost model of coefficients (7,), for the shape of the model that is fitted."""
    peak = setting.physics
    form: dict[str, Any] = {
        "expert_share": peak.expert_share, "expert_untouched": peak.expert_untouched, "windows": peak.windows,
    }  # fmt: skip
    return FittedCost(*values.tolist(), **form)

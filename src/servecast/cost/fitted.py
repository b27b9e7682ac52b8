"""A cost model fitted to measured steps: physical terms with non-negative coefficients.

    step = c + (W^p + (m tokens)^p)^(1/p) + q pairs + k context + r rows
    tokens = prefill_tokens + decode_rows      rows = prefill_rows + decode_rows
    pairs = prefill_pairs                      context = decode_context + prefill_context

The second term is a saturating maximum: with few tokens a step waits for the weights (W seconds to read them), with
many it waits for the matrix multiplications (m seconds a token); the larger p, the sharper the knee between the two.
In a mixture of experts the read grows with the tokens, as more experts are touched: W(t) = w (1 - e + e (1 - u^t)),
where e is the share of the weights that lies in experts and u the chance that a token leaves a given expert alone.
In layers with a sliding window a row reads at most the window; a step is made of sums, so its rows are taken to be
equally long there.

The form is affine in the decode context, so many iterations of an unchanged batch have closed sums. It is monotone in
tokens, pairs, context and rows wherever it is asked. Left out: waves of thread blocks, captured graph sizes, and the
clock of a hot GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from servecast.cost.model import Domain, Measured, keep, require_tokens
from servecast.errors import InputError
from servecast.specs.layers.layer import cached_in_window, pairs_in_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.batch import StepShape
    from servecast.cost.model import Scalars

#: Names of the coefficients, in the order of every vector and covariance of them, with their units.
COEFFICIENTS: Final = {
    "weight_read_s": "s",
    "token_s": "s/token",
    "pair_s": "s/query-key pair",
    "context_s": "s/cached token",
    "row_s": "s/row",
    "step_s": "s",
}


class Window(NamedTuple):
    """The share of a model's attention that sees only the last ``tokens`` tokens."""

    share: float
    tokens: int


@dataclass(frozen=True, slots=True)
class FittedCost(Measured):
    """Step times from fitted coefficients (all >= 0; units in `COEFFICIENTS`).

    sharpness : p of the smooth maximum
    expert_share, expert_untouched : e and u above; 0 for a dense model
    windows : sliding-window layers, as shares of all attention
    pinned : coefficients that no measured step told: physics at a stated efficiency
    domain : where it was measured
    """

    weight_read_s: float
    token_s: float
    pair_s: float
    context_s: float
    row_s: float
    step_s: float
    sharpness: float = 5.0
    expert_share: float = 0.0
    expert_untouched: float = 0.0
    windows: tuple[Window, ...] = ()
    pinned: tuple[str, ...] = ()
    domain: Domain = field(default_factory=Domain)
    name: str = "fitted"
    _terms: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in (*COEFFICIENTS, "expert_share", "expert_untouched"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{self.name}.{name}", f"{value} must be a finite number of at least 0: fit again")
        if not (math.isfinite(self.sharpness) and self.sharpness >= 1):
            raise InputError(f"{self.name}.sharpness", f"{self.sharpness} must be a finite number of at least 1")
        if self.expert_share > 1 or self.expert_untouched > 1:
            raise InputError(f"{self.name}.expert_share", "expert_share and expert_untouched must be at most 1")
        if not self.weight_read_s * (1 - self.expert_share) + self.token_s + self.row_s + self.step_s > 0:
            raise InputError(
                self.name, "step time must be > 0: weight_read_s, token_s, row_s and step_s are all 0; fit again"
            )

    def seconds(self, shape: StepShape) -> Scalars:
        if not any(isinstance(v, np.ndarray) for v in shape):
            return self.durations(shape, 1)[0]
        tokens = np.asarray(shape.prefill_tokens, dtype=float) + shape.decode_rows
        return (
            self.step_s
            + smooth_maximum(self.weight_read_s * self.weights_read(tokens), self.token_s * tokens, self.sharpness)
            + self.pair_s * self.pairs_computed(shape)
            + self.context_s * self.context_read(shape)
            + self.row_s * (np.asarray(shape.prefill_rows) + shape.decode_rows)
        )

    def durations(self, shape: StepShape, iterations: int) -> tuple[float, float, int]:
        prefill_rows, prefill_tokens, pairs, prefill_context, decode_rows, decode_context, _ = shape
        tokens = prefill_tokens + decode_rows
        base = self._terms.get(tokens)
        if base is None:
            base = self._remember(tokens)
        if self.windows:
            return self._windowed_durations(shape, base, iterations)
        context_s = self.context_s
        base += context_s * (decode_context + prefill_context) + self.row_s * (prefill_rows + decode_rows)
        if pairs:
            base += self.pair_s * pairs
        return base, context_s * decode_rows, iterations

    def _remember(self, tokens: int) -> float:
        """Constant and matmul term of a step of so many tokens [s]."""
        require_tokens(self.name, tokens)
        read = self.weight_read_s * self.weights_read(tokens)
        term = self.step_s + float(smooth_maximum(read, self.token_s * tokens, self.sharpness))
        return keep(self._terms, tokens, term)

    def weights_read(self, tokens: Scalars) -> Scalars:
        """Share of the weights that so many tokens touch: all of them in a dense model."""
        return 1.0 - self.expert_share * self.expert_untouched**tokens if self.expert_share else 1.0

    def context_read(self, shape: StepShape) -> Scalars:
        """Cached tokens that the rows read, as if every layer read as many (windows cut some)."""
        return sum(share * cached_in_window(shape, tokens) for share, tokens in self._attention())

    def pairs_computed(self, shape: StepShape) -> Scalars:
        """Query-key pairs computed once windows cut them, by the mean row (as `ModelSpec.attention_flops`)."""
        return sum(share * pairs_in_window(shape, tokens)[0] for share, tokens in self._attention())

    def _attention(self) -> Iterator[tuple[float, int | None]]:
        """Shares of the attention with the window of each, None for what attends fully."""
        yield 1.0 - sum(window.share for window in self.windows), None
        yield from self.windows

    def _windowed_durations(self, shape: StepShape, base: float, iterations: int) -> tuple[float, float, int]:
        """The affine piece up to the iteration in which the next window fills."""
        rows, context = shape.decode_rows, shape.decode_context
        growing, count = 1.0, iterations
        for share, limit in self.windows:
            left = rows * (limit - 1) - context  # tokens until the window of the average row is full
            if left > 0:
                # The kink may fall between two whole iterations: only those before it are on this line.
                count = min(count, left // rows + 1)
            else:
                growing -= share
        if shape.prefill_rows:
            base += self.pair_s * float(self.pairs_computed(shape))
        base += self.context_s * float(self.context_read(shape)) + self.row_s * (shape.prefill_rows + rows)
        return base, self.context_s * growing * rows, count


def smooth_maximum(first: Scalars, second: Scalars, sharpness: float) -> Scalars:
    """(a^p + b^p)^(1/p), without overflow: at least the larger of the two, at most 2^(1/p) times it."""
    if isinstance(first, float) and isinstance(second, float):  # one step: a twentieth of what arrays cost
        most = max(first, second)
        return most * float((1.0 + (min(first, second) / most) ** sharpness) ** (1.0 / sharpness)) if most > 0 else 0.0
    larger = np.maximum(first, second)
    smaller = np.minimum(first, second)
    ratio = np.divide(smaller, larger, out=np.zeros(np.shape(larger)), where=np.asarray(larger) > 0)
    return larger * (1.0 + ratio**sharpness) ** (1.0 / sharpness)

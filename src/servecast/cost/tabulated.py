"""A cost model put together of operators measured one by one: curves of what each takes, added up.

    step = step_s + row_s rows + f(tokens) + g(rows) + attention
    tokens = prefill_tokens + decode_rows      rows = prefill_rows + decode_rows

f is everything that each token passes (matrix products, norms, activation, all-reduce), g what each sampled row does
(lm_head, sampler), `step_s` and `row_s` what the host adds. Attention:

    decode only   d(rows, context of a mean row)
    prefill only  p(tokens, pairs of a mean token)
    both          p + m(rows, context of a mean row) + x decode_rows (tokens of a mean prefill row) - launch_s

where m is d, unless both were measured in one launch: decode rows in a launch with a prompt are then slower (kernels
that tile queries give each a whole tile), by m and by x, the empty tiles of the longest query. launch_s is what the two
launches share once they are one. p is no less than reading the cached and the new tokens, at ``cached_s`` each.

Prompts of unlike length are priced as equal ones with as many tokens, pairs and cached tokens; rows of unlike context
as equal ones with as many cached tokens. The model is piecewise linear in the decode context: an affine piece of
`durations` ends where the next knot lies. Left out: captured graph sizes, the clock of a hot GPU.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from servecast.cost.model import Domain, Measured, keep, require_tokens
from servecast.errors import InputError

if TYPE_CHECKING:
    from servecast.batch import StepShape
    from servecast.cost.curves import Curve, Surface
    from servecast.cost.model import Scalars

#: What the outer number of the prefill surface is; the inner one is the other.
PrefillBy = Literal["tokens", "pairs_per_token"]


class _Pieces(NamedTuple):
    """Decode attention of so many rows, by all their context: knots, seconds there, and slopes from there on."""

    knots: tuple[float, ...]
    seconds: tuple[float, ...]
    slopes: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TabulatedCost(Measured):
    """Step times from measured operators (all [s]).

    tokens, sampled : f and g above      decode, mixed : outer rows, inner context of a mean row
    prefill : by ``prefill_by`` and the other of tokens and pairs per token
    mixed_tile_s : x above      launch_s : the launch that mixed attention saves
    cached_s : least time to read a cached token
    """

    tokens: Curve
    sampled: Curve
    decode: Surface
    prefill: Surface
    prefill_by: PrefillBy
    mixed: Surface
    mixed_tile_s: float = 0.0
    launch_s: float = 0.0
    cached_s: float = 0.0
    step_s: float = 0.0
    row_s: float = 0.0
    domain: Domain = field(default_factory=Domain)
    name: str = "tabulated"
    _linear: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _decoding: dict[int, _Pieces] = field(default_factory=dict, init=False, repr=False, compare=False)
    _mixing: dict[int, _Pieces] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("mixed_tile_s", "launch_s", "cached_s", "step_s", "row_s"):
            value = getattr(self, name)
            if not 0 <= value < np.inf:
                raise InputError(f"{self.name}.{name}", f"{value} must be a finite number of at least 0: fit again")
        # A fit of whole steps tells the sum of the two: either may have all of it.
        if not self.tokens.at(1) + self.sampled.at(1) + self.step_s > 0:
            raise InputError(f"{self.name}.tokens", "step time must be > 0: a token takes no time, fit again")

    def seconds(self, shape: StepShape) -> Scalars:
        if not any(isinstance(value, np.ndarray) for value in shape):
            return self.durations(shape, 1)[0]
        columns = np.broadcast_arrays(*shape)
        rows = zip(*(column.ravel().tolist() for column in columns), strict=True)
        found = np.array([self.durations(row, 1)[0] for row in rows])  # type: ignore[arg-type]  # a shape is a tuple
        return found.reshape(columns[0].shape)

    def durations(self, shape: StepShape, iterations: int) -> tuple[float, float, int]:
        prefill_rows, prefill_tokens, pairs, prefill_context, rows, context, _ = shape
        if prefill_rows:
            return self._with_prefill(prefill_rows, prefill_tokens, pairs, prefill_context, rows, context), 0.0, 1
        pieces = self._decoding.get(rows)
        if pieces is None:
            pieces = self._remember(rows, self.decode, self._decoding, self._linear_s(rows, rows))
        knots, seconds, slopes = pieces
        i = bisect_right(knots, context) - 1
        slope = slopes[i]
        if iterations > 1 and i + 1 < len(knots):
            iterations = min(iterations, int((knots[i + 1] - context) // rows) + 1)
        return seconds[i] + slope * (context - knots[i]), slope * rows, iterations

    def _with_prefill(
        self, prefill_rows: int, tokens: int, pairs: int, prefill_context: int, rows: int, context: int
    ) -> float:
        every = tokens + rows
        base = self._linear.get((every, prefill_rows + rows))
        if base is None:
            base = self._linear_s(every, prefill_rows + rows)
        place = (tokens, pairs / tokens) if self.prefill_by == "tokens" else (pairs / tokens, tokens)
        base += max(self.prefill.at(*place), self.cached_s * (prefill_context + tokens))
        if not rows:
            return base
        pieces = self._mixing.get(rows)
        if pieces is None:
            pieces = self._remember(rows, self.mixed, self._mixing, 0.0)
        i = bisect_right(pieces.knots, context) - 1
        base += pieces.seconds[i] + pieces.slopes[i] * (context - pieces.knots[i]) - self.launch_s
        if self.mixed_tile_s:
            # The length of equal prompts that have these tokens, pairs and cached tokens.
            length = (2 * pairs - tokens) / (2 * prefill_context + tokens)
            base += self.mixed_tile_s * rows * length
        return base

    def _linear_s(self, tokens: int, rows: int) -> float:
        """What does not depend on the context [s]."""
        require_tokens(self.name, tokens)
        last = self.tokens.knots[-1]
        # Beyond the last knot matrix products are bound by FLOPs: time grows with the tokens.
        passed = self.tokens.at(tokens) if tokens <= last else self.tokens.seconds[-1] * tokens / last
        return keep(self._linear, (tokens, rows), self.step_s + self.row_s * rows + passed + self.sampled.at(rows))

    def _remember(self, rows: int, measured: Surface, into: dict[int, _Pieces], constant: float) -> _Pieces:
        """The pieces of so many rows by all their context: the knots of a mean row, times the rows."""
        curve = measured.curve(rows)
        knots = [knot * rows for knot in curve.knots]
        seconds = [constant + value for value in curve.seconds]
        slopes = [(b - a) / (y - x) for a, b, x, y in zip(seconds, seconds[1:], knots, knots[1:], strict=False)]
        slopes.append(slopes[-1] if slopes else 0.0)
        if knots[0] > 0:
            knots, seconds, slopes = [0.0, *knots], [seconds[0], *seconds], [0.0, *slopes]
        return keep(into, rows, _Pieces(tuple(knots), tuple(seconds), tuple(slopes)))

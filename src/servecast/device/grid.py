"""Which steps a calibration measures: a grid of shapes within limits, and random ones that no fit sees.

The grid varies one thing at a time: decode rows x context, prefill rows x length, prompts beside decoding rows, chunks
after a cached prefix, and uneven rows whose sums equal those of even ones (they tell a kernel that pays for the longest
row from one that pays for the sum). A grid of round numbers alone is too good: kernels take 3 to 5 % less for multiples
of their tiles than for the lengths that requests have. So random shapes are fitted too, drawn like those held out. The
order is such that a run cut short can be fitted: extremes first, then a shuffle.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, groupby, takewhile
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from servecast.batch import StepShape, causal_pairs
from servecast.cost.model import step_kind

if TYPE_CHECKING:
    from collections.abc import Iterator

Part = Literal["grid", "held_out"]

RANDOM = 60


class Span(NamedTuple):
    """A row of a ragged step: ``new`` tokens after the ``cached`` ones in ``slot``."""

    slot: int
    cached: int
    new: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest step: ``rows`` at once, ``length`` tokens of the longest row, ``tokens`` computed.

    ``stretch``: the memory of so many rows holds one that many times as long, and such rows are measured too.
    """

    rows: int
    length: int
    tokens: int
    stretch: int = 1

    @property
    def longest(self) -> int:
        """Tokens of the longest row of all."""
        return self.length * self.stretch


@dataclass(frozen=True, slots=True)
class Point:
    """One step to measure: (cached, new) of its rows, prefills first; ``part`` says whether a fit may see it."""

    rows: tuple[tuple[int, int], ...]
    part: Part = "grid"

    @property
    def spans(self) -> list[Span]:
        """Its rows, in slots from 0 on."""
        return [Span(slot, cached, new) for slot, (cached, new) in enumerate(self.rows)]

    @property
    def shape(self) -> StepShape:
        """Its sums. A row of one new token decodes."""
        prefill = [row for row in self.rows if row[1] > 1]
        decode = [row for row in self.rows if row[1] == 1]
        return StepShape(
            len(prefill),
            sum(new for _, new in prefill),
            sum(causal_pairs(new, cached) for cached, new in prefill),
            sum(cached for cached, _ in prefill),
            len(decode),
            sum(cached for cached, _ in decode),
            max(cached + new for cached, new in self.rows),
        )

    @property
    def label(self) -> str:
        """Its rows in short, equal neighbours together: ``1x0+64 8x128+1``."""
        return " ".join(f"{len(list(same))}x{row[0]}+{row[1]}" for row, same in groupby(self.rows))


def points(limits: Limits, held_out: int = 40, seed: int = 0) -> list[Point]:
    """Points to measure, in the order to measure them: each shape once."""
    draw = np.random.default_rng(seed)
    every = dict.fromkeys([*_grid(limits), *_long(limits), *_random(limits, RANDOM, draw, "grid")])
    grid = [point for point in every if len(point.rows) <= limits.rows]
    extremes = [point for point in grid if _extreme(point, grid)]
    rest = [point for point in grid if point not in extremes]
    seen = {point.rows for point in grid}
    unseen = dict.fromkeys(_random(limits, held_out, draw, "held_out"))
    following = [*rest, *(point for point in unseen if point.rows not in seen)]
    return [*extremes, *(following[i] for i in draw.permutation(len(following)))]


def references(limits: Limits) -> dict[str, Point]:
    """Steps that are measured again and again to see the device drift: some of everything, and decode alone.

    The first is mostly arithmetic, the second reads weights; a neighbour on the machine slows one and not the other.
    """
    rows, length = max(1, limits.rows // 4), max(2, limits.length // 4)
    decoding = (length, 1)
    return {
        "mixed": Point(((0, min(length, limits.tokens // 2)), *(decoding,) * rows)),
        "decode": Point((decoding,) * max(1, limits.rows // 8)),
    }


def interlude(limits: Limits, slots: int) -> list[Span]:
    """A decode step of few rows, in the last of ``slots``: what runs before each timed step."""
    return [Span(slots - 1 - row, limits.length // 5, 1) for row in range(max(1, limits.rows // 10))]


def _grid(limits: Limits) -> Iterator[Point]:
    contexts = _spaced(min(16, limits.length - 1), limits.length - 1, 3)
    for rows in _rows(limits.rows):
        for context in contexts:
            yield Point(((context, 1),) * rows)
    for rows in _rows(limits.rows):
        if rows > 1:
            middle = limits.length // 3
            yield Point(tuple((middle // 4 if row % 2 else 2 * middle - middle // 4, 1) for row in range(rows)))
    # Powers of two, and three times them: the same tokens in fewer and more rows tell rows from tokens.
    for rows in (1, 2, 3, 4, 8, 16, 32, 64):
        for new in _doubled(8, limits.length):
            most_tokens = limits.tokens if rows <= 2 else limits.tokens // 2
            most_new = limits.length if rows <= 4 else limits.length // 4
            if rows <= limits.rows and 1 < new <= most_new and rows * new <= most_tokens:
                yield Point(((0, new),) * rows)
    for rows in _spaced(1, limits.rows - 1, 4):
        for new in _spaced(8, min(limits.length // 2, limits.tokens - rows), 3):
            yield Point(((0, new), *((limits.length // 3, 1),) * rows))
        yield Point((*((0, limits.length // 16),) * 2, *((limits.length // 6, 1),) * max(1, rows - 1)))
    for cached in _spaced(limits.length // 8, limits.length * 3 // 4, 3):
        for new in _spaced(8, min(limits.length // 4, limits.length - cached, limits.tokens), 3):
            yield Point(((cached, new),))


def _long(limits: Limits) -> Iterator[Point]:
    """Rows longer than most: decoding, and a chunk of a prompt behind what is cached."""
    most = limits.rows // limits.stretch
    if limits.stretch == 1 or not most:
        return
    for rows in _spaced(1, most, 4):
        for context in _spaced(limits.length, limits.longest - 1, 3)[1:]:
            yield Point(((context, 1),) * rows)
    for new in _spaced(64, min(limits.length, limits.tokens), 3):
        yield Point(((limits.longest - new, new),))


def _random(limits: Limits, count: int, draw: np.random.Generator, part: Part) -> Iterator[Point]:
    """Half decode, a quarter prefill, a quarter mixed; rows of lengths of their own."""

    def log_uniform(low: int, high: int) -> int:
        return int(np.exp(draw.uniform(np.log(low), np.log(high + 1)))) if high > low else low

    for number in range(count):
        kind = number % 4
        most_decode = limits.rows if kind < 2 else max(1, limits.rows - 4)
        decode = log_uniform(1, most_decode) if kind < 3 else 0
        prefill = log_uniform(1, min(8, limits.rows - decode)) if kind >= 2 and decode < limits.rows else 0
        around = log_uniform(8, limits.length)
        rows, room = [], limits.tokens - decode
        for _ in range(prefill):
            new = min(max(2, int(around * draw.uniform(0.3, 1.0))), room)
            cached = log_uniform(1, limits.length - new) if number % 8 == 6 and new < limits.length else 0
            if new >= 2:
                rows.append((cached, new))
                room -= new
        lengths = draw.lognormal(np.log(max(1, limits.length // 4)), 0.6, decode)
        rows += [(int(min(max(1, context), limits.length - 1)), 1) for context in lengths]
        if rows:
            yield Point(tuple(rows), part)


def _rows(most: int) -> list[int]:
    """Every number up to 4, where matrix-vector kernels give way to others; then about 1.5 times more each."""
    counts = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
    return sorted({*(rows for rows in counts if rows <= most), most})


def _doubled(low: int, high: int) -> list[int]:
    """``low``, twice it, and so on up to ``high``, which closes the list."""
    doubled = takewhile(lambda number: number < high, (low << times for times in count()))
    return [*doubled, high] if high > 1 else []


def _spaced(low: int, high: int, count: int) -> list[int]:
    """``count`` whole numbers from ``low`` to ``high``, evenly on a logarithmic scale; fewer where they coincide."""
    if high <= low:
        return [max(1, high)]
    return sorted({round(float(value)) for value in np.geomspace(low, high, count)})


def _extreme(point: Point, grid: list[Point]) -> bool:
    """Whether a point is a corner: of its kind, with the fewest or the most rows and the shortest or longest ones."""
    kind, rows, longest = step_kind(point.shape), len(point.rows), point.shape.max_context
    if kind == "mixed":
        return False
    alike = [p for p in grid if step_kind(p.shape) == kind]
    counts = {len(p.rows) for p in alike}
    same = {p.shape.max_context for p in alike if len(p.rows) == rows}
    return rows in (min(counts), max(counts)) and longest in (min(same), max(same))

"""A layer and a group of equal layers, and the words that all their parts share: the split, weights, cached reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from servecast.errors import InputError

if TYPE_CHECKING:
    from servecast.batch import StepShape
    from servecast.specs.layers.feed_forward import Dense, Experts
    from servecast.specs.quantization import Formats

Sum: TypeAlias = Any  # a float, or an array of them where the fields of the shape are arrays


class Split(NamedTuple):
    """How many GPUs share heads and columns, and the model whose they are (errors name it)."""

    gpus: int = 1
    model: str = "this model"

    def share(self, what: str, width: int) -> int:
        """An equal part of ``width``.

        Raises InputError where the GPUs do not divide it.
        """
        if self.gpus < 1 or width % self.gpus:
            columns = f"the {width} {what} of {self.model}"
            raise not_split(f"{columns} are not divisible by {self.gpus}; use a divisor of {width}")
        return width // self.gpus

    def share_or_copy(self, what: str, width: int) -> int:
        """An equal part of ``width`` heads, or one that several GPUs hold alike where they outnumber the heads."""
        if width % self.gpus and self.gpus % width:
            heads = f"the {width} {what} of {self.model}; use a divisor or a multiple of it"
            raise not_split(f"{self.gpus} GPUs can neither share nor replicate {heads}")
        return max(1, width // self.gpus)


def not_split(problem: str) -> InputError:
    """What to raise where a model cannot be split so."""
    return InputError("engine.tensor_parallel_size", problem)


class Weights(NamedTuple):
    """Parameters of one part of a layer on one GPU.

    matrices : what a token is multiplied by, by the names of `servecast.specs.quantization`
    plain : norms, biases, sinks and filters, never quantised
    """

    matrices: tuple[tuple[str, int], ...] = ()
    plain: int = 0

    @property
    def multiplied(self) -> int:
        """Parameters of all matrices."""
        return sum(count for _, count in self.matrices)

    @property
    def total(self) -> int:
        """All parameters."""
        return self.multiplied + self.plain


def named(**matrices: int) -> tuple[tuple[str, int], ...]:
    """Matrices with their parameters."""
    return tuple(matrices.items())


NOTHING: Final = Weights()


class Read(NamedTuple):
    """How the rows of a step meet cached tokens in one layer: FLOPs a query-key pair, bytes a cached token.

    ``window`` is the most tokens that a row meets (None: all of them). What a step writes is read once as well.
    """

    window: int | None
    prefill_pair: float
    decode_pair: float
    token_bytes: float


class Mixer(Protocol):
    """The part of a layer that lets a token see those before it."""

    @property
    def kind(self) -> str:
        """What it is called in tables."""

    @property
    def window(self) -> int | None:
        """The most tokens a sequence keeps in its cache; None for all."""

    def weights(self, hidden: int, split: Split) -> Weights:
        """Parameters on one GPU."""

    def kv_bytes(self, kv_dtype: str, split: Split) -> float:
        """Bytes that one token takes in the cache of one GPU."""

    def state_bytes(self, dtype: str, split: Split) -> float:
        """Bytes of the state of one sequence on one GPU, however long it is."""

    def reads(self, kv_dtype: str, split: Split) -> tuple[Read, ...]:
        """What a step meets in the cache."""

    def state_flops(self, split: Split) -> float:
        """FLOPs that one token takes to update the state and to read from it."""

    def width(self, split: Split) -> int:
        """Values per token alive at one time between its first and its last projection."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. ``norms`` counts vectors of the hidden width (a LayerNorm with a bias has two).

    ``formats`` are those of its quantised matrices; None where all are in the one that the model names.
    """

    mixers: tuple[Mixer, ...]
    feed_forward: Dense | Experts | None
    norms: int = 2
    extra: Weights = NOTHING
    formats: Formats | None = None

    @property
    def kind(self) -> str:
        """What mixes tokens in it, in words."""
        return " and ".join(mixer.kind for mixer in self.mixers) or "feed-forward alone"


class LayerGroup(NamedTuple):
    """Equal layers: how many, and how many sets of weights they have between them (None: each its own)."""

    layers: int
    layer: Layer
    copies: int | None = None

    @property
    def weight_sets(self) -> int:
        """Sets of weights in memory."""
        return self.layers if self.copies is None else self.copies


def smaller(a: Sum, b: Sum) -> Sum:
    """min(a, b) for numbers and, element by element, for arrays: (a + b - |a - b|) / 2."""
    return (a + b - abs(a - b)) / 2


def pairs_in_window(shape: StepShape, window: int | None) -> tuple[Sum, Sum]:
    """Query-key pairs of prefill and decode that a layer with ``window`` computes; a token sees itself.

    A shape knows sums over rows only, so the pairs cut off are those of a mean row. They are a convex function of the
    row's length: rows of unlike length cut off more, and the pairs here are then an upper bound. Equal rows and rows
    within the window are exact.
    """
    decode = shape.decode_context + shape.decode_rows
    if window is None:
        return shape.prefill_pairs, decode
    rows = shape.prefill_rows + (shape.prefill_rows == 0)
    cached = shape.prefill_context / rows
    total = cached + shape.prefill_tokens / rows
    beyond = total - smaller(total, window)
    beyond_before = cached - smaller(cached, window)
    cut = rows * (beyond * (beyond + 1) - beyond_before * (beyond_before + 1)) / 2
    prefill = smaller(shape.prefill_pairs - cut, shape.prefill_tokens * window)
    return prefill, smaller(decode, shape.decode_rows * window)


def cached_in_window(shape: StepShape, window: int | None) -> Sum:
    """Cached tokens that the rows of a step read in a layer with ``window``, by the mean row as above."""
    if window is None:
        return shape.prefill_context + shape.decode_context
    return smaller(shape.prefill_context, shape.prefill_rows * (window - 1)) + smaller(
        shape.decode_context, shape.decode_rows * (window - 1)
    )

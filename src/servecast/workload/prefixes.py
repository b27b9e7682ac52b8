"""Prefixes that prompts share: block ids as flat columns, converted to an engine's blocks, and how often they hit.

A trace gives each prompt a list of ids, one a block of 512 tokens (Mooncake) or 16 (Bailian), the last block maybe
partial. A block is cached only together with all blocks before it, so ids are first *chained*: equal chained ids mean
equal whole prefixes. Mooncake's are chained already. Nothing here evicts: that is the cache's part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


MOST_IDS = 100_000_000  # of all prompts together, 8 bytes each and several times that on the way


def require_few(ids: int, remedy: str) -> None:
    """Raises InputError for more block ids than memory has room for, before they are made."""
    if ids > MOST_IDS:
        problem = (
            f"prompts share {ids:,} blocks in all, more than the {MOST_IDS:,} that are kept in memory: give {remedy}"
        )
        raise InputError("workload", problem)


class PrefixIds(Sequence[tuple[int, ...]]):
    """n tuples of block ids in two arrays: 8 bytes an id, where tuples of Python numbers take 40.

    flat : all ids one after another; int64, or Python's own numbers where an id needs more
    ends : (n,) int64, where each tuple ends in ``flat``
    tokens : how many tokens each id in ``flat`` stands for, and these may go on into the answer; None where all stand
        for one block, the last of a prompt maybe for less
    """

    __slots__ = ("ends", "flat", "tokens")

    def __init__(self, flat: NDArray[Any], ends: NDArray[np.int64], tokens: NDArray[np.int64] | None = None) -> None:
        self.flat = flat
        self.ends = ends
        self.tokens = tokens

    @classmethod
    def of(cls, tuples: Sequence[Sequence[int]]) -> PrefixIds:
        """From n lists of ids; the same where they are `PrefixIds` already."""
        if isinstance(tuples, PrefixIds):
            return tuples
        ids = list(chain.from_iterable(tuples))
        try:
            flat: NDArray[Any] = np.array(ids, np.int64)
        except OverflowError:
            flat = np.array(ids, object)
        return cls(flat, np.cumsum([len(some) for some in tuples], dtype=np.int64))

    @classmethod
    def joined(cls, parts: Iterable[PrefixIds]) -> PrefixIds:
        """The tuples of all parts, in order."""
        parts = list(parts)
        before = np.cumsum([0, *(len(part.flat) for part in parts)])
        assert all(part.tokens is None for part in parts), "a file's ids stand for blocks"
        return cls(
            np.concatenate([part.flat for part in parts]),
            np.concatenate([part.ends + shift for part, shift in zip(parts, before[:-1], strict=True)]),
        )

    @property
    def counts(self) -> NDArray[np.int64]:
        """(n,) ids in each tuple."""
        return np.diff(self.ends, prepend=0)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, at: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, at: slice) -> list[tuple[int, ...]]: ...
    def __getitem__(self, at: int | slice) -> tuple[int, ...] | list[tuple[int, ...]]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            assert step == 1, "rows are read in order"
            ends = self.ends[start:stop].tolist()
            first = int(self.ends[start - 1]) if start and ends else 0
            ids = self.flat[first : ends[-1]].tolist() if ends else []
            begins = [0, *(end - first for end in ends)]
            return [tuple(ids[a:b]) for a, b in pairwise(begins)]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        at %= len(self)
        return tuple(self.flat[int(self.ends[at - 1]) if at else 0 : int(self.ends[at])].tolist())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PrefixIds):
            return NotImplemented
        return np.array_equal(self.ends, other.ends) and np.array_equal(self.flat, other.flat)

    __hash__ = None  # type: ignore[assignment]

    def take(self, rows: NDArray[np.intp], upto: NDArray[np.int64] | None = None) -> PrefixIds:
        """The tuples at these rows (m,), in that order; of each at most the first ``upto`` (m,) ids."""
        counts = self.counts[rows]
        starts = self.ends[rows] - counts
        kept = counts if upto is None else np.minimum(counts, upto)
        at = np.repeat(starts, kept) + ramps(kept)
        return PrefixIds(self.flat[at], np.cumsum(kept), taken(self.tokens, at))

    def spans(self, prompt_tokens: NDArray[np.int64], block_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each id in ``flat``, the tokens of its prompt (n,) that it stands for: from, up to."""
        counts = self.counts
        prompts = np.repeat(prompt_tokens, counts)
        if self.tokens is None:
            starts = self.positions() * block_size
            return np.minimum(starts, prompts), np.minimum(starts + block_size, prompts)
        upto = np.cumsum(self.tokens)
        before = np.concatenate([[0], upto])[self.ends - counts]
        ends = upto - np.repeat(before, counts)
        return np.minimum(ends - self.tokens, prompts), np.minimum(ends, prompts)

    def positions(self) -> NDArray[np.int64]:
        """Of each id in ``flat``, its place in its tuple, from 0."""
        return ramps(self.counts)


def taken(column: Any, rows: NDArray[np.intp]) -> Any:
    """What a column has at these rows (m,), in that order; None of None."""
    if column is None or isinstance(column, np.ndarray):
        return None if column is None else column[rows]
    return column.take(rows) if isinstance(column, PrefixIds) else [column[row] for row in rows.tolist()]


def ramps(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ... up to each of ``counts`` (n,), one after another."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def chained(ids: PrefixIds) -> PrefixIds:
    """The same prefixes with ids that stand for whole prefixes: equal only if all blocks before are equal too.

    Ids that do so already are kept as they are; others are numbered 0, 1, 2, ... by first appearance.
    """
    if not len(ids.flat) or _is_chained(ids):
        return ids
    known: dict[tuple[int, int], int] = {}
    flat = np.empty(len(ids.flat), np.int64)
    at = 0
    for row in range(len(ids)):
        before = -1
        for id_ in ids[row]:
            before = known.setdefault((before, id_), len(known))
            flat[at] = before
            at += 1
    return PrefixIds(flat, ids.ends, ids.tokens)


def _is_chained(ids: PrefixIds) -> bool:
    """Whether each id always stands at the same place, behind the same id."""
    first, place = first_places(ids.flat), ids.positions()
    before = np.empty(len(ids.flat), np.int64)
    before[1:] = first[:-1]
    before[place == 0] = -1
    return bool(np.all(place == place[first]) and np.all(before == before[first]))


def first_places(flat: NDArray[Any]) -> NDArray[np.int64]:
    """For each id (n,) the first place in ``flat`` where the same id stands."""
    n = len(flat)
    if n and flat.dtype != object and flat.min() >= 0 and flat.max() < 8 * n + 1024:
        first = np.empty(int(flat.max()) + 1, np.int64)
        first[flat[::-1]] = np.arange(n - 1, -1, -1)  # of several values for one place numpy keeps the last
        return np.asarray(first[flat], np.int64)
    _, at, same = np.unique(flat, return_index=True, return_inverse=True)
    return np.asarray(at[same], np.int64)


def engine_blocks(
    ids: PrefixIds, prompt_tokens: NDArray[np.int64], trace_block_size: int, engine_block_size: int
) -> PrefixIds:
    """What of each prompt may be found in a prefix cache with blocks of ``engine_block_size`` tokens: its full blocks.

    ids : n tuples, one id a ``trace_block_size`` tokens, the last maybe partial; prompt_tokens : (n,)

    A block is known where an id covers its last token: it then stands for that id's chain and for how much of it. So
    ids of 512 tokens give 32 blocks of 16, a partial last id those in its remainder; blocks of 64 take every fourth id
    of 16; and where neither size divides the other, blocks are found as far as whole ids are equal. Equal results mean
    equal whole prefixes. Source: Mooncake, FAST '25, trace description; vLLM caches full blocks only.
    """
    whole = chained(ids)
    starts, ends = whole.spans(prompt_tokens, trace_block_size)
    blocks = ends // engine_block_size - starts // engine_block_size  # whose last token each id covers
    require_few(int(blocks.sum()), "fewer requests, or take the ids out")
    within = np.repeat(starts, blocks)
    covered = (within // engine_block_size + 1 + ramps(blocks)) * engine_block_size - within
    unit = int(np.gcd.reduce(covered)) if len(covered) else 1
    most = int(covered.max()) // unit if len(covered) else 1
    flat = whole.flat
    if len(flat) and (flat.dtype == object or max(abs(int(flat.min())), abs(int(flat.max()))) >= 2**62 // most):
        flat = np.unique(flat, return_inverse=True)[1]
    row_ends = np.concatenate([[0], np.cumsum(blocks)])[whole.ends]
    return PrefixIds(np.repeat(flat, blocks) * most + covered // unit - 1, row_ends)


@dataclass(frozen=True)
class PrefixReuse:
    """What a cache that never evicts and starts empty would find again of the prompts, in order of arrival.

    blocks, distinct_blocks : ids in all prompts, and how many different ones
    block_hit_rate : share of blocks found; token_hit_rate : share of all prompt tokens in them
    """

    blocks: int
    distinct_blocks: int
    block_hit_rate: float
    token_hit_rate: float


def prefix_reuse(ids: PrefixIds, prompt_tokens: NDArray[np.int64], block_size: int) -> PrefixReuse | None:
    """`PrefixReuse` of n prompts, a partial last block counted like any other; None where there are no ids."""
    if not len(ids.flat):
        return None
    whole = chained(ids)
    found = first_places(whole.flat) != np.arange(len(whole.flat))
    starts, ends = whole.spans(prompt_tokens, block_size)
    tokens = ends - starts
    blocks = int((tokens > 0).sum())  # the rest stand in answers
    hits = int((found & (tokens > 0)).sum())
    return PrefixReuse(
        blocks,
        blocks - hits,
        hits / blocks,
        float(tokens[found].sum() / prompt_tokens.sum()),
    )

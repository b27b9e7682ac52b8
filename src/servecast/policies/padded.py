"""Padded batching: a closed batch in which every row is computed as if it were the longest.

Prompts are padded to the longest prompt; every member decodes over the padded context, and goes on doing so after its
own end until the batch has ended. Its KV is one rectangle, rows x padded length so far, that grows by a column each
step. So a 50-token request costs what its 2,000-token neighbour costs: slots are wasted as in a static batch, and
padding besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from servecast.batch import Row, StepShape, Wait, causal_pairs
from servecast.policies.closed import ClosedBatch, ClosedState, out_of_memory
from servecast.policies.decoding import DecodeRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.batch import Batch, Decision
    from servecast.kvcache import BlockPool

_new = tuple.__new__  # see `policies.state`


class _Rectangle(DecodeRows):
    """Rows that are held and computed as long as the longest: ``rows`` x (``offset + step``) cached tokens."""

    __slots__ = ("offset", "rows")

    offset: int
    rows: int

    def close(self, rows: int, longest: int) -> None:
        """Begin a batch of so many rows, the longest with so many tokens."""
        self.rows, self.offset = rows, longest - self.step

    @property
    def padded(self) -> int:
        """Cached tokens of every row."""
        return self.offset + self.step

    def blocks_needed(self, steps: int) -> int:
        rows, growth = self.rows, self.growth
        return growth.blocks(rows * (self.padded + steps), rows) - growth.blocks(rows * self.padded, rows)


class PaddedState(ClosedState):
    """Members of one batch, as a rectangle."""

    __slots__ = ()

    decoding: _Rectangle

    def __init__(self, pool: BlockPool, activation_blocks: Callable[[int], int], respond: str) -> None:
        super().__init__(pool, activation_blocks, respond)
        self.decoding = _Rectangle(pool.growth)

    def rows(self, batch: Batch) -> Iterator[Row]:
        if batch.prefill:
            for sequence in self.running:
                yield Row(sequence, 0, self.decoding.padded)
        else:
            for sequence in self.running:
                yield Row(sequence, self.decoding.padded, 1)


@dataclass(frozen=True)
class Padded(ClosedBatch):
    """A closed batch that is computed as its longest row.

    batch_size : members of a full batch
    max_wait_s : longest wait [s] of its oldest member before it closes anyway
    respond : ``stream`` sends tokens as they come, ``batch_end`` all at the end of the batch
    """

    kind: ClassVar[str] = "padded"
    rectangle: ClassVar[bool] = True

    def start(self, pool: BlockPool, activation_blocks: Callable[[int], int]) -> PaddedState:
        return PaddedState(pool, activation_blocks, self.respond)

    def schedule(self, now: float, state: PaddedState) -> Decision:
        return self._decode(now, state) if state.running else self._prefill(now, state)

    def _prefill(self, now: float, state: PaddedState) -> Decision:
        members = self.members(now, state)
        if isinstance(members, Wait):
            return members
        pool = state.pool
        rows = len(members)
        lengths = [sequence.tokens for sequence in members]
        padded = max(lengths)
        state.decoding.close(rows, padded)
        blocks = pool.growth.blocks(rows * padded, rows)
        wanted = blocks + state.activation_blocks(rows * padded)
        if wanted > pool.total:
            return out_of_memory(now, state, wanted)
        pool.take(blocks)
        batch = state.step(list(zip(members, lengths, strict=True)))
        batch.shape = _new(StepShape, (rows, rows * padded, rows * causal_pairs(padded), 0, 0, 0, padded))
        return batch

    def _decode(self, now: float, state: PaddedState) -> Decision:
        pool = state.pool
        rows = len(state.running)
        padded = state.decoding.padded
        room = pool.total - state.activation_blocks(rows)
        longest = pool.growth.longest(room, rows) // rows
        if longest <= padded:
            return out_of_memory(now, state, pool.total - room + pool.growth.blocks(rows * (padded + 1), rows))
        steps = min(state.decoding.next_finish - state.decoding.step, longest - padded)
        return state.decode(steps, shape=_new(StepShape, (0, 0, 0, 0, rows, rows * padded, padded + 1)))

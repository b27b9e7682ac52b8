"""Static batching: a closed batch in which each row is computed at its own length.

Prompts and contexts are ragged, so nothing is padded; what is wasted are the slots of members that ended before the
last one. A row's KV blocks are held by its own length, until the batch ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from servecast.batch import Wait
from servecast.policies.closed import ClosedBatch, ClosedState, out_of_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from servecast.batch import Decision
    from servecast.kvcache import BlockPool


@dataclass(frozen=True)
class Static(ClosedBatch):
    """A closed batch that is computed row by row; a member that has ended keeps its KV blocks until the batch ends.

    batch_size : members of a full batch
    max_wait_s : longest wait [s] of its oldest member before it closes anyway
    respond : ``stream`` sends tokens as they come, ``batch_end`` all at the end of the batch
    """

    kind: ClassVar[str] = "static"

    def start(self, pool: BlockPool, activation_blocks: Callable[[int], int]) -> ClosedState:
        return ClosedState(pool, activation_blocks, self.respond)

    def schedule(self, now: float, state: ClosedState) -> Decision:
        return self._decode(now, state) if state.running else self._prefill(now, state)

    def _prefill(self, now: float, state: ClosedState) -> Decision:
        members = self.members(now, state)
        if isinstance(members, Wait):
            return members
        pool = state.pool
        lengths = [sequence.tokens for sequence in members]
        blocks = sum(pool.blocks(length) for length in lengths)
        wanted = blocks + state.activation_blocks(sum(lengths))
        if wanted > pool.total:
            return out_of_memory(now, state, wanted)
        pool.take(blocks)
        return state.step(list(zip(members, lengths, strict=True)))

    def _decode(self, now: float, state: ClosedState) -> Decision:
        pool = state.pool
        free = pool.free - state.activation_blocks(state.decoding.count)
        wanted = state.decoding.blocks_needed(1)
        if wanted > free:
            return out_of_memory(now, state, pool.total - free + wanted)
        return state.decode(state.decoding.steps(free))

"""Closed batches: what static and padded batching share.

A batch closes when it has ``batch_size`` members or its oldest has waited ``max_wait_s``. It prefills in one step,
whatever its size, then decodes; no slot is refilled until its last member has ended, and until then every member keeps
its slot and its memory. A step that does not fit (KV, or its own activations beyond what was set aside) crashes the
engine: there is nobody to preempt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from servecast.batch import Batch, OutOfMemory, StepShape, Wait, tally
from servecast.policies.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from servecast.batch import Decision
    from servecast.kvcache import BlockPool
    from servecast.requests import Sequence


class ClosedState(State):
    """``ended`` are members of the present batch that have all their tokens."""

    __slots__ = ("activation_blocks", "respond")

    def __init__(self, pool: BlockPool, activation_blocks: Callable[[int], int], respond: str) -> None:
        super().__init__(pool)
        self.activation_blocks = activation_blocks
        self.respond = respond

    def commit(self, batch: Batch, iterations: int, now: float) -> list[Sequence]:
        decoding = self.decoding
        if decoding.count:
            self._grow(iterations)
            finished = decoding.advance(iterations)
        else:
            finished = []
        self.blocks_in_use = self.pool.held
        self._prefill(batch, now, finished)
        self.ended += finished
        if decoding.count == 0:
            answered = self.ended if self.respond == "batch_end" else finished
            self._disband()
            if self.respond == "batch_end":
                answered.sort(key=lambda sequence: sequence.request.id)
                for sequence in answered:
                    sequence.first_token_s = now
            return answered
        return [] if self.respond == "batch_end" else finished

    def _grow(self, iterations: int) -> None:
        """Take the KV blocks of ``iterations`` more tokens per row."""
        self.pool.take(self.decoding.blocks_needed(iterations))

    def unanswered(self) -> list[Sequence]:
        """Members that still owe their client an answer."""
        answered = set(self.ended) if self.respond == "stream" else set()
        return [sequence for sequence in self.running if sequence not in answered]

    def crash(self) -> list[Sequence]:
        lost = self.unanswered()
        super().crash()
        self.ended = []
        return sorted(lost, key=lambda sequence: sequence.request.id)

    def settle(self) -> list[Sequence]:
        super().settle()
        return [*self.unanswered(), *self.waiting]

    def _disband(self) -> None:
        self.pool.give(self.pool.held)
        for sequence in self.ended:
            self.dismiss(sequence)
        self.ended = []


@dataclass(frozen=True)
class ClosedBatch:
    """Parameters of a closed batch.

    batch_size : members of a full batch
    max_wait_s : longest wait [s] of its oldest member before it closes anyway
    respond : ``stream`` sends tokens as they come, ``batch_end`` all at the end of the batch
    """

    closed: ClassVar[bool] = True  # no slot is refilled until the batch ends
    batch_size: int = 16
    max_wait_s: float = 0.5
    respond: Literal["stream", "batch_end"] = "stream"

    def __post_init__(self) -> None:
        if not 0 <= self.max_wait_s < math.inf:
            raise ValueError(
                f"max_wait_s is {self.max_wait_s}; it must be finite and at least 0: a last, partial batch waits"
            )

    def members(self, now: float, state: State) -> list[Sequence] | Wait:
        """The next batch, admitted; or until when to wait for one."""
        waiting = state.waiting
        if not waiting:
            return Wait(math.inf)
        if len(waiting) < self.batch_size:
            closes = waiting[0].sent_s + self.max_wait_s
            if now < closes:
                return Wait(closes)
        members = [waiting.popleft() for _ in range(min(self.batch_size, len(waiting)))]
        for sequence in members:
            state.seat(sequence, now)
        return members


def out_of_memory(now: float, state: ClosedState, wanted_blocks: int) -> OutOfMemory:
    """The next step wants ``wanted_blocks`` KV blocks' worth of memory in all, more than there are."""
    pool = state.pool
    block = pool.block_bytes
    return OutOfMemory(now, len(state.unanswered()), wanted_blocks * block, pool.total * block)


def closed_decision(
    state: ClosedState,
    shape: StepShape,
    iterations: int,
    prefill: list[tuple[Sequence, int]],
    useful_prefill_tokens: int,
) -> Decision:
    """A step of a closed batch: no arrival changes it."""
    counts = tally(useful_prefill_tokens, state.decoding.count, len(state.running), len(state.waiting), 0, 0)
    return Batch(shape, iterations, prefill, counts, False, state.rows)

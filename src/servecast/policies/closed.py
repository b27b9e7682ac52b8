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

from servecast.batch import OutOfMemory, Wait
from servecast.policies.policy import Policy
from servecast.policies.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from servecast.kvcache import BlockPool
    from servecast.requests import Sequence


class ClosedState(State):
    """Members of one batch, which keep slot and memory until the last of them has ended."""

    __slots__ = ("activation_blocks", "respond")

    def __init__(self, pool: BlockPool, activation_blocks: Callable[[int], int], respond: str) -> None:
        super().__init__(pool)
        self.activation_blocks = activation_blocks
        self.respond = respond

    def _finish(self, finished: list[Sequence], now: float) -> list[Sequence]:
        at_end = self.respond == "batch_end"
        self.ended += finished
        if self.decoding.count:
            return [] if at_end else finished
        answered = self.ended if at_end else finished
        self._disband()
        if at_end:
            answered.sort(key=lambda sequence: sequence.request.id)
            for sequence in answered:
                sequence.first_token_s = now
        return answered

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
        self.pool.clear()
        for sequence in self.ended:
            self.dismiss(sequence)
        self.ended = []


@dataclass(frozen=True)
class ClosedBatch(Policy):
    """Parameters of a closed batch.

    batch_size : members of a full batch
    max_wait_s : longest wait [s] of its oldest member before it closes anyway
    respond : ``stream`` sends tokens as they come, ``batch_end`` all at the end of the batch
    """

    closed: ClassVar[bool] = True
    limits: ClassVar[tuple[str, ...]] = ("batch_size",)
    batch_size: int = 16
    max_wait_s: float = 0.5
    respond: Literal["stream", "batch_end"] = "stream"

    def __post_init__(self) -> None:
        if not 0 <= self.max_wait_s < math.inf:
            raise ValueError(
                f"max_wait_s is {self.max_wait_s}; it must be finite and at least 0: a last, partial batch waits"
            )

    @property
    def slots(self) -> int:
        return self.batch_size

    @property
    def set_aside(self) -> tuple[int, int]:
        """One token for each row: what prompts need beyond that, they must find beside their KV."""
        return self.batch_size, self.batch_size

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
            state.admit(sequence, now, 0, 0)  # its blocks are taken with the batch's
        return members


def out_of_memory(now: float, state: ClosedState, wanted_blocks: int) -> OutOfMemory:
    """The next step wants ``wanted_blocks`` KV blocks' worth of memory in all, more than there are."""
    pool = state.pool
    block = pool.block_bytes
    return OutOfMemory(now, len(state.unanswered()), wanted_blocks * block, pool.total * block)

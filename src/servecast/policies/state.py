"""What a policy looks at and the engine advances: who waits, who runs, and the books of the KV cache.

The bookkeeping that all policies share stands here once. It knows when a sequence ends, as the engine must; policies
see only for how many iterations the present rows stay the same.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from servecast.batch import Row
from servecast.policies.decoding import DecodeRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.batch import Batch, Decision
    from servecast.kvcache import BlockPool
    from servecast.requests import Sequence


class State:
    """Waiting and running sequences of one replica.

    ``running`` is in order of admission; ``prefilling`` are those of its members whose tokens are not all computed.
    ``blocks_in_use`` are the KV blocks held during the step just committed, before its finished rows gave theirs back.
    """

    __slots__ = ("_slots", "blocks_in_use", "decoding", "gaps", "pool", "prefilling", "running", "waiting")

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, None] = {}
        self.prefilling: list[Sequence] = []
        self.decoding = DecodeRows(pool.block_size)
        self.gaps: list[float] = []
        self.blocks_in_use = 0
        self._slots: list[int] = []

    def admit(self, sequence: Sequence, now: float) -> None:
        slots = self._slots
        sequence.slot = slots.pop() if slots else len(self.running)
        self.running[sequence] = None
        if sequence.scheduled_s is None:
            sequence.scheduled_s = now

    def dismiss(self, sequence: Sequence) -> None:
        """Take a sequence out of the running ones; its slot is free again."""
        del self.running[sequence]
        self._slots.append(sequence.slot)

    def preempt(self, sequence: Sequence, now: float) -> int:
        """Put a running sequence back at the head of the queue, to compute it all again; the blocks that frees."""
        if sequence.finish_step >= 0:
            self.decoding.leave(sequence)
            sequence.last_token_s = now
            blocks = self.pool.blocks(sequence.computed)
        else:
            self.prefilling.remove(sequence)
            blocks = sequence.blocks
        self.dismiss(sequence)
        self.pool.give(blocks)
        sequence.resident = max(sequence.resident, sequence.computed)
        sequence.computed = sequence.blocks = 0
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)
        return blocks

    def commit(self, batch: Batch, iterations: int, now: float) -> list[Sequence]:
        """Book ``iterations`` of ``batch``, the last ending at ``now``; the sequences that ended, in order of arrival."""
        decoding = self.decoding
        pool = self.pool
        held = pool.held
        if decoding.count:
            held += decoding.blocks_needed(iterations)
            finished = decoding.advance(iterations)
        else:
            finished = []
        assert held <= pool.total, f"{held} KV blocks held of {pool.total}"
        self.blocks_in_use = held
        if batch.prefill:
            self._prefill(batch, now, finished)
        if finished:
            slots, running, size = self._slots, self.running, pool.block_size
            for sequence in finished:
                held -= -(-sequence.computed // size)
                del running[sequence]
                slots.append(sequence.slot)
        pool.held = held
        return finished

    def _prefill(self, batch: Batch, now: float, finished: list[Sequence]) -> None:
        """Book the prefilled tokens of a step, and add the rows that end with it to ``finished``."""
        ended = len(finished)
        for sequence, new in batch.prefill:
            if self._compute(sequence, new, now):
                finished.append(sequence)
        if 0 < ended < len(finished):
            finished.sort(key=lambda sequence: sequence.request.id)

    def _compute(self, sequence: Sequence, new: int, now: float) -> bool:
        """Book ``new`` prefilled tokens of a row. Whether it ended: the step that computes all gives a token."""
        computed = sequence.computed
        if sequence.resident > computed:
            sequence.recomputed += min(computed + new, sequence.resident) - computed
        sequence.computed = computed = computed + new
        if computed < sequence.tokens:
            return False
        if self.prefilling and sequence in self.prefilling:
            self.prefilling.remove(sequence)
        sequence.tokens = computed + 1
        sequence.generated = generated = sequence.generated + 1
        if sequence.last_token_s is None:
            sequence.first_token_s = now
        else:
            self.gaps.append(now - sequence.last_token_s)
        if generated == sequence.output_limit:
            return True
        self.decoding.join(sequence)
        return False

    def crash(self) -> list[Sequence]:
        """Out of memory: every running sequence is lost, and with it all of the cache. Those lost, in order of arrival."""
        for sequence in self.running:
            if sequence.finish_step >= 0:
                self.decoding.leave(sequence)
        lost = sorted(self.running, key=lambda sequence: sequence.request.id)
        for sequence in lost:
            self.dismiss(sequence)
        self.prefilling.clear()
        self.pool.held = 0
        return lost

    def settle(self) -> list[Sequence]:
        """Everything still waiting or running when a run is cut off, its own counts up to date."""
        for sequence in self.running:
            if sequence.finish_step >= 0:
                self.decoding.leave(sequence)
        return [*self.running, *self.waiting]

    def rows(self, batch: Batch) -> Iterator[Row]:
        """The rows of the first iteration of ``batch``: those that prefill, then those that decode."""
        for sequence, new in batch.prefill:
            yield Row(sequence, sequence.computed, new)
        step = self.decoding.step
        for sequence in self.running:
            if sequence.finish_step >= 0:
                yield Row(sequence, sequence.offset + step, 1)


class Policy(Protocol):
    """A frozen dataclass of its parameters. It knows neither who runs it nor how long an output will be."""

    @property
    def respond(self) -> str:
        """``stream``: tokens are sent as they come. ``batch_end``: all together when the batch has ended."""

    def start(self, pool: BlockPool, activation_blocks: Callable[[int], int]) -> State:
        """A fresh state. ``activation_blocks(tokens)``: KV blocks' worth of memory that the activations of a step of so
        many tokens need beyond what was set aside for them."""

    def schedule(self, now: float, state: State) -> Decision:
        """What to do at ``now`` [s]."""

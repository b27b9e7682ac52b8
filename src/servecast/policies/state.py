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


class Queue(Protocol):
    """What is used of a deque of waiting sequences."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sequence]: ...
    def __getitem__(self, position: int, /) -> Sequence: ...
    def append(self, sequence: Sequence, /) -> None: ...
    def appendleft(self, sequence: Sequence, /) -> None: ...
    def popleft(self) -> Sequence: ...


class State:
    """Waiting and running sequences of one replica.

    ``running`` is in order of admission; ``prefilling`` are those of its members that do not decode, in that order.
    ``blocks_in_use`` are the KV blocks held during the step just committed, before its finished rows gave theirs back.
    ``ahead``: the next step is decided on while this one runs, so rows that end with it (``ended``) keep seat and
    blocks for one more decision.
    """

    __slots__ = (
        "_slots", "ahead", "blocks_in_use", "decoding", "ended", "gaps", "pool", "prefilling", "running", "waiting",
    )  # fmt: skip

    def __init__(self, pool: BlockPool, waiting: Queue | None = None, ahead: bool = False) -> None:
        self.pool = pool
        self.waiting: Queue = deque() if waiting is None else waiting
        self.ahead = ahead
        self.running: dict[Sequence, None] = {}
        self.prefilling: list[Sequence] = []
        self.decoding = DecodeRows(pool.block_size)
        self.ended: list[Sequence] = []
        self.gaps: list[float] = []
        self.blocks_in_use = 0
        self._slots: list[int] = []

    def seat(self, sequence: Sequence, now: float) -> None:
        """Give a sequence a slot."""
        slots = self._slots
        running = self.running
        sequence.slot = slots.pop() if slots else len(running)
        running[sequence] = None
        if sequence.scheduled_s is None:
            sequence.scheduled_s = now

    def admit(self, sequence: Sequence, now: float, found: int, computed: int) -> int:
        """Give a sequence a slot and the blocks of its first ``computed`` tokens, ``found`` of them from the cache; the
        free blocks that costs."""
        slots = self._slots
        running = self.running
        pool = self.pool
        sequence.slot = slots.pop() if slots else len(running)
        running[sequence] = None
        if sequence.scheduled_s is None:
            sequence.scheduled_s = now
        sequence.blocks = blocks = -(-computed // pool.block_size)
        pool.held += blocks
        return blocks

    def dismiss(self, sequence: Sequence) -> None:
        """Take a sequence out of the running ones; its slot is free again."""
        del self.running[sequence]
        self._slots.append(sequence.slot)

    def find_cached(self, sequence: Sequence) -> tuple[int, int]:
        """(tokens of a waiting sequence that are in the cache already, blocks of them that nobody holds)."""
        return 0, 0

    def take_blocks(self, sequence: Sequence, computed: int) -> int:
        """Take the blocks that a running prompt lacks for its first ``computed`` tokens; how many."""
        blocks = self.pool.blocks(computed)
        taken = blocks - sequence.blocks
        self.take(taken)
        sequence.blocks = blocks
        return taken

    def take(self, blocks: int) -> None:
        """Take any free blocks."""
        self.pool.take(blocks)

    def reserve(self, blocks: int) -> None:
        """Choose the blocks that decode rows will take in this step: they come before whoever is admitted in it."""

    def take_for_decoding(self, blocks: int) -> None:
        """Take the blocks of decode rows."""
        self.pool.held += blocks

    def give_blocks(self, sequence: Sequence) -> None:
        """Give back all that a sequence with ``computed`` tokens up to date holds."""
        pool = self.pool
        pool.held -= -(-sequence.computed // pool.block_size)

    def pause(self, sequence: Sequence, now: float) -> None:
        """Leave a decode row out of a step: it goes on as a prompt with one token left."""
        self.decoding.leave(sequence)
        sequence.last_token_s = now
        sequence.blocks = self.pool.blocks(sequence.computed)
        self.prefilling.append(sequence)
        self.prefilling.sort(key=self.places(self.prefilling).__getitem__)

    def places(self, sequences: list[Sequence]) -> dict[Sequence, int]:
        """Where they stand among the running ones."""
        wanted = set(sequences)
        return {sequence: place for place, sequence in enumerate(self.running) if sequence in wanted}

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Put a running sequence back into the queue, to compute it all again."""
        if sequence.finish_step >= 0:
            self.decoding.leave(sequence)
            sequence.last_token_s = now
        else:
            self.prefilling.remove(sequence)
        self.dismiss(sequence)
        self.give_blocks(sequence)
        sequence.resident = max(sequence.resident, sequence.computed)
        sequence.computed = sequence.blocks = 0
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)

    def commit(self, batch: Batch, iterations: int, now: float) -> list[Sequence]:
        """Book ``iterations`` of ``batch``, the last ending at ``now``; the sequences that ended, as they arrived."""
        decoding = self.decoding
        pool = self.pool
        if decoding.count:
            blocks = decoding.blocks_needed(iterations)
            if blocks:
                self.take_for_decoding(blocks)
            finished = decoding.advance(iterations)
        else:
            finished = []
        self.blocks_in_use = pool.held
        assert pool.held <= pool.total, f"{pool.held} KV blocks held of {pool.total}"
        if batch.prefill:
            self._prefill(batch, now, finished)
        if self.ahead:
            self.release_ended()
            self.ended = finished
        elif finished:
            self.release(finished)
        return finished

    def held_after(self, iterations: int) -> int:
        """KV blocks held when so many more iterations of the decode rows have ended."""
        return self.pool.held + (self.decoding.blocks_needed(iterations) if iterations else 0)

    def release_ended(self) -> bool:
        """Take back seats and blocks of rows that ended a decision ago; whether there were any."""
        ended, self.ended = self.ended, []
        self.release(ended)
        return bool(ended)

    def release(self, ended: list[Sequence]) -> None:
        """Take back seats and blocks of rows that have ended."""
        pool, running, slots = self.pool, self.running, self._slots
        size = pool.block_size
        for sequence in ended:
            pool.held -= -(-sequence.computed // size)
            del running[sequence]
            slots.append(sequence.slot)

    def _prefill(self, batch: Batch, now: float, finished: list[Sequence]) -> None:
        """Book the prefilled tokens of a step, and add the rows that end with it to ``finished``.

        The step that computes all tokens of a row gives it a new one.
        """
        ended = len(finished)
        prefilling = self.prefilling
        join = self.decoding.join
        for sequence, new in batch.prefill:
            computed = sequence.computed
            if sequence.resident > computed:
                sequence.recomputed += min(computed + new, sequence.resident) - computed
            sequence.computed = computed = computed + new
            if computed < sequence.tokens:
                continue
            if prefilling and sequence in prefilling:
                prefilling.remove(sequence)
            sequence.tokens = computed + 1
            sequence.generated = generated = sequence.generated + 1
            if sequence.last_token_s is None:
                sequence.first_token_s = now
            else:
                self.gaps.append(now - sequence.last_token_s)
            if generated == sequence.output_limit:
                finished.append(sequence)
            else:
                join(sequence)
        if 0 < ended < len(finished):
            finished.sort(key=lambda sequence: sequence.request.id)

    def crash(self) -> list[Sequence]:
        """Out of memory: every running sequence is lost, and all of the cache. Those lost, in order of arrival."""
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
        if self.ahead:
            self.release_ended()
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

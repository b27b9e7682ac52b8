"""What a policy looks at and the engine advances: who waits, who runs, and when rows had their tokens.

The bookkeeping that all policies share stands here once. It knows when a sequence ends, as the engine must; policies
see only for how many iterations the present rows stay the same.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Protocol

from servecast.batch import Batch, Row, StepShape, Tally
from servecast.policies.decoding import DecodeRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Sequence as SequenceOf

    from servecast.kvcache import BlockPool
    from servecast.requests import Sequence


_DECODED = Tally._fields.index("useful_decode_rows")
_new = tuple.__new__  # makes a named tuple at a third of the price of calling its class


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

    running : in order of admission, rows that have ended but keep their slot included
    prefilling : those of them that still compute their prompt, in that order
    decoding : those that take a token a step
    ended : those that have all their tokens and keep slot and blocks: members of a closed batch, or with ``ahead``
        those that ended with the step before
    ahead : the next step is decided on while this one runs, so rows that end with it stay for one more decision
    standing : decode rows that stand still, by the time [s] of their last token; ``stood`` in all
    blocks_in_use : KV blocks held during the step just committed, before its finished rows gave theirs back
    preemptions : of all sequences
    gaps : rows of `engine.GAP_COLUMNS`
    """

    __slots__ = (
        "_decoded_s", "_ended_s", "_grow", "_slots", "ahead", "blocks_in_use", "decoding", "ended", "gaps",
        "pool", "preemptions", "prefilling", "running", "standing", "stood", "waiting",
    )  # fmt: skip

    def __init__(self, pool: BlockPool, waiting: Queue | None = None, ahead: bool = False) -> None:
        self.pool = pool
        self.waiting: Queue = deque() if waiting is None else waiting
        self.ahead = ahead
        self.running: dict[Sequence, None] = {}
        self.prefilling: list[Sequence] = []
        self.decoding = DecodeRows(pool.growth)
        self.ended: list[Sequence] = []
        self.standing: dict[float, int] = {}
        self.stood = 0
        self.gaps: list[tuple[float, float, float, int]] = []
        self.blocks_in_use = self.preemptions = 0
        self._grow: Callable[[int], None] = pool.take  # takes the blocks of decode rows
        self._slots: list[int] = []
        self._ended_s = 0.0  # end of the last step
        self._decoded_s = 0.0  # end of the last step in which rows decoded

    # --- what a policy asks for and decides ---

    def find_cached(self, sequence: Sequence) -> tuple[int, int]:
        """(tokens of a waiting sequence that are in the cache already, blocks of them that nobody holds)."""
        return 0, 0

    def admit(self, sequence: Sequence, now: float, found: int, computed: int) -> int:
        """Give a sequence a slot and the blocks of its first ``computed`` tokens, ``found`` of them from the cache; the
        free blocks that costs."""
        slots, running, pool = self._slots, self.running, self.pool
        sequence.slot = slots.pop() if slots else len(running)
        running[sequence] = None
        if sequence.scheduled_s is None:
            sequence.scheduled_s = now
        sequence.blocks = blocks = pool.blocks(computed)
        pool.take(blocks)
        return blocks

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

    def preempt(self, sequence: Sequence) -> None:
        """Put a running sequence back into the queue, to compute it all again."""
        if sequence in self.decoding:
            self._leave(sequence)
        else:
            self.prefilling.remove(sequence)
        self.dismiss(sequence)
        self.give_blocks(sequence)
        sequence.resident = max(sequence.resident, sequence.computed)
        sequence.computed = sequence.blocks = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(sequence)

    def pause(self, sequence: Sequence) -> None:
        """Leave one decode row out of a step: it goes on as a prompt with one token left."""
        self._leave(sequence)
        sequence.blocks = self.pool.blocks(sequence.computed)
        self.prefilling.append(sequence)
        self.prefilling.sort(key=self.places(self.prefilling).__getitem__)

    def places(self, sequences: list[Sequence]) -> dict[Sequence, int]:
        """Where they stand among the running ones."""
        wanted = set(sequences)
        return {sequence: place for place, sequence in enumerate(self.running) if sequence in wanted}

    def step(self, prefill: list[tuple[Sequence, int]], decode: int = 1, preempted: int = 0) -> Batch:
        """One iteration in which each of ``prefill`` computes so many tokens and all decode rows advance, or with
        ``decode`` 0 stand still; each row is computed at its own length."""
        decoding = self.decoding
        rows = context = longest = resumed = 0
        if decode and decoding.count:
            rows, context, longest, resumed = decoding.count, decoding.context, decoding.longest() + 1, self.stood
        tokens = pairs = cached = recomputed = 0
        for sequence, new in prefill:
            computed = sequence.computed
            tokens += new
            pairs += new * computed + new * (new + 1) // 2
            cached += computed
            if computed + new > longest:
                longest = computed + new
            if sequence.resident > computed:
                recomputed += min(computed + new, sequence.resident) - computed
        running, prompts = len(self.running), len(prefill)
        stalled = running - len(self.ended) - prompts - rows
        return Batch(
            _new(StepShape, (prompts, tokens, pairs, cached, rows, context, longest)),
            1,
            prefill,
            decode,
            (tokens, rows, running, len(self.waiting), preempted, recomputed, stalled, resumed),
            False,
            self.rows,
        )

    def decode(
        self, iterations: int, preempted: int = 0, interruptible: bool = False, shape: StepShape | None = None
    ) -> Batch:
        """All decode rows advance, and nobody else; ``shape`` where they are not computed at their own lengths."""
        decoding = self.decoding
        rows, running = decoding.count, len(self.running)
        stalled = running - len(self.ended) - rows
        return Batch(
            shape or _new(StepShape, (0, 0, 0, 0, rows, decoding.context, decoding.longest() + 1)),
            iterations,
            (),
            1,
            (0, rows, running, len(self.waiting), preempted, 0, stalled, self.stood),
            interruptible,
            self.rows,
        )

    def rows(self, batch: Batch) -> Iterator[Row]:
        """The rows of the first iteration of ``batch``: those that prefill, then those that decode."""
        for sequence, new in batch.prefill:
            yield Row(sequence, sequence.computed, new)
        if batch.decode:
            for sequence in self.running:
                if sequence in self.decoding:
                    yield Row(sequence, self.decoding.computed(sequence), batch.decode)

    # --- what the engine tells ---

    def held_after(self, iterations: int) -> int:
        """KV blocks held when so many more iterations of the decode rows have ended."""
        return self.pool.held + (self.decoding.blocks_needed(iterations) if iterations else 0)

    def stand(self) -> None:
        """Decode rows get no token now: in a step without them, or while nothing runs."""
        rows = self.decoding.count
        if rows > self.stood:
            since = self._ended_s
            self.standing[since] = self.standing.get(since, 0) + rows - self.stood
            self.stood = rows

    def resume(self, now: float) -> None:
        """Rows that stood still have a token again, at ``now`` [s]."""
        for since, rows in self.standing.items():
            if rows:
                self.gaps.append((math.nan, now, now - since, rows))
        self.standing.clear()
        self.stood = 0

    def commit(self, batch: Batch, iterations: int, now: float) -> list[Sequence]:
        """Book ``iterations`` of ``batch``, the last ending at ``now``; the sequences that are answered, as they came.

        A row advances by what the batch says, and no other row does.
        """
        decoding = self.decoding
        rows = decoding.count
        if rows and batch.decode:
            assert batch.counts[_DECODED] == rows, "the batch is of another state"
            assert batch.decode == 1, "a decode row takes one token in an iteration"
            assert decoding.step + iterations <= decoding.next_finish, "the batch runs beyond the end of a row"
            blocks = decoding.blocks_needed(iterations)
            if blocks:
                grow = self._grow
                grow(blocks)
            finished = decoding.advance(iterations)
            self._decoded_s = now
        else:
            finished = []
            self.stand()
        self.blocks_in_use = self.pool.held
        if batch.prefill:
            assert iterations == 1, "prompts are computed in one iteration"
            self._prefill(batch.prefill, now, finished)
            at_work = len(self.prefilling) + decoding.count + len(self.ended) + len(finished)
            assert len(self.running) == at_work, (
                f"{len(self.running)} rows run and {at_work} of them are known to decode, to have ended, or to be in "
                "`prefilling`, where a prompt belongs that is admitted and not computed whole"
            )
        self._ended_s = now
        return self._finish(finished, now) if finished or self.ended else finished

    def _prefill(self, prefill: SequenceOf[tuple[Sequence, int]], now: float, finished: list[Sequence]) -> None:
        """Book the prefilled tokens of a step, and add the rows that end with it to ``finished``.

        The step that computes all tokens of a row gives it a new one.
        """
        ended = len(finished)
        prefilling = self.prefilling
        join = self.decoding.join
        for sequence, new in prefill:
            assert sequence not in self.decoding, f"{sequence} decodes, and the batch has it among its prompts"
            computed = sequence.computed
            if sequence.resident > computed:
                sequence.recomputed += min(computed + new, sequence.resident) - computed
            sequence.computed = computed = computed + new
            tokens = sequence.tokens
            if computed < tokens:
                continue
            assert computed == tokens, f"{sequence} computes tokens that it does not have"
            if prefilling and sequence in prefilling:
                prefilling.remove(sequence)
            sequence.tokens = computed + 1
            sequence.generated = generated = sequence.generated + 1
            if sequence.first_token_s is None:
                sequence.first_token_s = now
            else:
                self.gaps.append((sequence.request.id, now, now - sequence.last_token_s, 1))
            sequence.last_token_s = now
            if generated == sequence.output_limit:
                finished.append(sequence)
            else:
                join(sequence)
        if 0 < ended < len(finished):
            finished.sort(key=lambda sequence: sequence.request.id)

    def _leave(self, sequence: Sequence) -> None:
        """Take a row out of those that decode, its own counts up to date."""
        self.decoding.leave(sequence)
        sequence.last_token_s = last = max(sequence.last_token_s, self._decoded_s)
        if last in self.standing:
            self.standing[last] -= 1
            self.stood -= 1

    def _finish(self, finished: list[Sequence], now: float) -> list[Sequence]:
        """Rows have ended; those that are answered now."""
        if self.ahead:
            self.release_ended()
            self.ended = finished
        else:
            self.release(finished)
        return finished

    def release_ended(self) -> bool:
        """Take back slots and blocks of rows that ended a decision ago; whether there were any."""
        ended, self.ended = self.ended, []
        self.release(ended)
        return bool(ended)

    def release(self, ended: list[Sequence]) -> None:
        """Take back slots and blocks of rows that have ended."""
        running, slots, held = self.running, self._slots, self.pool.blocks
        blocks = 0
        for sequence in ended:
            blocks += held(sequence.computed)
            del running[sequence]
            slots.append(sequence.slot)  # type: ignore[arg-type]  # who runs has a slot
        self.pool.give(blocks)

    def dismiss(self, sequence: Sequence) -> None:
        """Take a sequence out of the running ones; its slot is free again."""
        del self.running[sequence]
        self._slots.append(sequence.slot)  # type: ignore[arg-type]  # who runs has a slot

    def give_blocks(self, sequence: Sequence) -> None:
        """Give back all that a sequence with ``computed`` tokens up to date holds."""
        self.pool.give(self.pool.blocks(sequence.computed))

    def crash(self) -> list[Sequence]:
        """Out of memory: every running sequence is lost, and all of the cache. Those lost, in order of arrival."""
        if self.ahead:
            self.release_ended()
        lost = sorted(self.running, key=lambda sequence: sequence.request.id)
        for sequence in lost:
            if sequence in self.decoding:
                self._leave(sequence)
            self.dismiss(sequence)
        self.prefilling.clear()
        self.pool.clear()
        return lost

    def settle(self) -> list[Sequence]:
        """Everything still waiting or running when a run is cut off, its own counts up to date."""
        if self.ahead:
            self.release_ended()
        for sequence in self.running:
            if sequence in self.decoding:
                self._leave(sequence)
        return [*self.running, *self.waiting]

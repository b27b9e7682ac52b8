"""Continuous batching: the batch is made anew at each step (vLLM's V1 scheduler).

Every step has one budget of tokens. Running sequences come first, a token each for those that decode and the rest of
the prompt for one that is not through; then waiting ones are admitted, first come first served, while budget, seats
and KV blocks last (a long prompt is cut into chunks by the budget). Blocks are taken as tokens are computed. When they
run short the sequence admitted last gives all of its own back and goes to the head of the queue, to be computed again;
in such a step nobody is admitted.

Source: vLLM 0.32, v1/core/sched/scheduler.py. Left out here: prefix caching, priorities, asynchronous scheduling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from servecast.batch import Batch, Wait, causal_pairs, step_shape
from servecast.policies.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from servecast.batch import Decision
    from servecast.kvcache import BlockPool
    from servecast.requests import Sequence

_NOTHING = Wait(math.inf)


@dataclass(frozen=True)
class Continuous:
    """vLLM's arguments of the same names.

    max_num_seqs : sequences running at once, at most
    max_num_batched_tokens : tokens computed in one step, at most; at least max_num_seqs
    enable_chunked_prefill : cut a prompt that exceeds what is left of the budget; otherwise it waits, and all behind it
    """

    kind: ClassVar[str] = "continuous"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    enable_chunked_prefill: bool = True

    @property
    def respond(self) -> Literal["stream"]:
        return "stream"

    def start(self, pool: BlockPool, activation_blocks: Callable[[int], int]) -> State:
        # The budget bounds the activations, and the memory plan has set them aside.
        return State(pool)

    def schedule(self, now: float, state: State) -> Decision:
        decoding = state.decoding
        pool = state.pool
        free = pool.total - pool.held
        prefill: list[tuple[Sequence, int]] = []
        preempted = 0
        if state.waiting or state.prefilling or free < decoding.count:
            wanted = decoding.blocks_needed(1)
            budget = self.max_num_batched_tokens - decoding.count
            if state.prefilling:
                budget, wanted = _continue_prefills(state, prefill, budget, wanted)
            if wanted > free:
                preempted, wanted = _preempt_last(now, state, prefill, wanted)
                free = pool.total - pool.held
            for sequence, new in prefill:
                blocks = pool.blocks(sequence.computed + new)
                pool.take(blocks - sequence.blocks)
                sequence.blocks = blocks
            if state.waiting and not preempted:
                self._admit(now, state, prefill, budget, free - wanted)
        if prefill:
            return self._mixed(state, prefill, preempted)
        if decoding.count:
            return self._decode(state, free, preempted)
        assert not state.waiting, "the head of an idle queue must fit: longer requests are rejected on arrival"
        return _NOTHING

    def _admit(self, now: float, state: State, prefill: list[tuple[Sequence, int]], budget: int, free: int) -> None:
        """Admit from the head of the queue; nobody overtakes it. All of its tokens must find blocks, not just a chunk's."""
        waiting = state.waiting
        pool = state.pool
        seats = self.max_num_seqs - len(state.running)
        while waiting and budget > 0 and seats > 0:
            sequence = waiting[0]
            new = sequence.tokens
            blocks = pool.blocks(new)
            if blocks > free:
                break
            if new > budget:
                if not self.enable_chunked_prefill:
                    break
                new = budget
                blocks = pool.blocks(new)
                state.prefilling.append(sequence)
            waiting.popleft()
            state.admit(sequence, now)
            pool.take(blocks)
            sequence.blocks = blocks
            prefill.append((sequence, new))
            budget -= new
            free -= blocks
            seats -= 1

    def _mixed(self, state: State, prefill: list[tuple[Sequence, int]], preempted: int) -> Batch:
        """One iteration: when it has ended, the prompts it computed decode, and the batch is another."""
        tokens = pairs = context = longest = recomputed = 0
        for sequence, new in prefill:
            cached = sequence.computed
            tokens += new
            pairs += causal_pairs(new, cached)
            context += cached
            if cached + new > longest:
                longest = cached + new
            if sequence.resident > cached:
                recomputed += min(cached + new, sequence.resident) - cached
        decoding = state.decoding
        count = decoding.count
        if decoding.longest() >= longest:
            longest = decoding.longest() + 1
        shape = step_shape(len(prefill), tokens, pairs, context, count, decoding.context, longest)
        return Batch(
            shape, 1, prefill, tokens, count, len(state.running), len(state.waiting), False, preempted, recomputed,
            state.rows,
        )  # fmt: skip

    def _decode(self, state: State, free: int, preempted: int) -> Batch:
        """Decode until a row ends or the blocks do. What waits now cannot be admitted before that: it would have been."""
        decoding = state.decoding
        count = decoding.count
        if preempted:
            steps = 1  # the next step may admit again
        else:
            steps = decoding.steps_to_finish()
            if count * (steps // decoding.block_size + 1) > free:
                steps = min(steps, decoding.steps_within(free))
        running = len(state.running)
        waiting = len(state.waiting)
        shape = step_shape(0, 0, 0, 0, count, decoding.context, decoding.longest() + 1)
        return Batch(
            shape, steps, [], 0, count, running, waiting, not waiting and running < self.max_num_seqs, preempted, 0,
            state.rows,
        )  # fmt: skip


def _continue_prefills(
    state: State, prefill: list[tuple[Sequence, int]], budget: int, wanted: int
) -> tuple[int, int]:
    """Give running prompts their next chunk; the budget left, and the blocks wanted by all running rows."""
    for sequence in state.prefilling:
        new = min(sequence.tokens - sequence.computed, budget)
        if new > 0:
            prefill.append((sequence, new))
            budget -= new
            wanted += state.pool.blocks(sequence.computed + new) - sequence.blocks
    return budget, wanted


def _preempt_last(
    now: float, state: State, prefill: list[tuple[Sequence, int]], wanted: int
) -> tuple[int, int]:
    """Preempt from the end of the running ones until the rest fit; how many, and the blocks the rest want.

    vLLM walks the rows in order and preempts the last whenever one finds no block. Since a victim stands behind every
    row served so far, that ends with the longest prefix of rows whose needs fit, which is what this computes.
    """
    pool = state.pool
    preempted = 0
    while wanted > pool.total - pool.held:
        victim = next(reversed(state.running))
        if victim.finish_step >= 0:
            wanted -= state.decoding.needs_block(victim)
        elif prefill and prefill[-1][0] is victim:
            _, new = prefill.pop()
            wanted -= pool.blocks(victim.computed + new) - victim.blocks
        state.preempt(victim, now)
        preempted += 1
    return preempted, wanted

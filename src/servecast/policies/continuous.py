"""Continuous batching: the batch is made anew at each step (vLLM's V1 scheduler).

Every step has one budget of tokens. Running sequences come first, a token each for those that decode and the rest of
the prompt for one that is not through; then waiting ones are admitted, first come first served, while budget, slots
and KV blocks last (a long prompt is cut into chunks by the budget). Blocks are taken as tokens are computed. When they
run short the sequence admitted last gives all of its own back and goes to the head of the queue, to be computed again;
in such a step nobody is admitted.

With prefix caching a sequence starts behind the longest chain of full blocks that are still in the cache, its own from
before a preemption among them. With priorities the queue is ordered by them, and so is preemption. With asynchronous
scheduling a step is decided on while the one before it runs.

Source: vLLM 0.32, v1/core/sched/scheduler.py. Left out: speculative decoding, encoder inputs, KV connectors.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from servecast.batch import Batch, Wait
from servecast.errors import InputError
from servecast.policies.policy import Policy
from servecast.policies.prefix import PrefixState
from servecast.policies.queue import PriorityQueue
from servecast.policies.shortage import preempt_last, walk
from servecast.policies.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from servecast.batch import Decision
    from servecast.kvcache import BlockPool
    from servecast.policies.state import Queue
    from servecast.requests import Sequence

_NOTHING = Wait(math.inf)
_UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Continuous(Policy):
    """vLLM's arguments of the same names.

    max_num_seqs : sequences running at once, at most
    max_num_batched_tokens : tokens computed in one step, at most; at least max_num_seqs
    enable_chunked_prefill : cut a prompt that exceeds what is left of the budget; otherwise it waits, and all behind it
    long_prefill_token_threshold : tokens of one prompt in one step, at most, while others are there; 0: no limit
    enable_prefix_caching : keep full blocks of ended and preempted sequences until their room is needed
    scheduling_policy : ``fcfs``, or ``priority`` (lower value first, then arrival)
    scheduler_reserve_full_isl : admit only when all tokens of a sequence find blocks, not just those of its first chunk
    watermark : share of the blocks to keep free when admitting while others run
    async_scheduling : decide on a step while the one before it runs: what is admitted is what had arrived when that
        one started, and blocks come free a step later
    """

    kind: ClassVar[str] = "continuous"
    limits: ClassVar[tuple[str, ...]] = ("max_num_seqs", "max_num_batched_tokens")
    like_engine: ClassVar[bool] = True
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    enable_prefix_caching: bool = False
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    async_scheduling: bool = False

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; it must be at least max_num_seqs "
                f"{self.max_num_seqs}, since every running sequence takes a token of the budget"
            )
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark is {self.watermark}; it must be at least 0 and less than 1")

    @property
    def slots(self) -> int:
        return self.max_num_seqs

    @property
    def set_aside(self) -> tuple[int, int]:
        return self.max_num_batched_tokens, self.max_num_seqs  # a full step's, as vLLM does

    @property
    def longest_prompt(self) -> float:
        return math.inf if self.enable_chunked_prefill else self.max_num_batched_tokens

    @property
    def simulated_only(self) -> tuple[str, ...]:
        return tuple(name for name in ("enable_prefix_caching", "async_scheduling") if getattr(self, name))

    @property
    def preempts_for_ever(self) -> tuple[str, str]:
        """vLLM may too: prompts let in for their first chunk alone take turns in preempting each other."""
        if self.scheduler_reserve_full_isl:
            return super().preempts_for_ever
        remedy = "give true (or long_prefill_token_threshold: 0), so that a prompt waits until all of it finds blocks"
        return "scheduler_reserve_full_isl", remedy

    def start(self, pool: BlockPool, activation_blocks: Callable[[int], int]) -> State:
        # The budget bounds the activations, and the memory plan has set them aside.
        waiting: Queue = PriorityQueue() if self.scheduling_policy == "priority" else deque()
        kind = PrefixState if self.enable_prefix_caching else State
        return kind(pool, waiting, self.async_scheduling)

    def schedule(self, now: float, state: State) -> Decision:
        decoding = state.decoding
        pool = state.pool
        free = pool.total - pool.held
        prefill: list[tuple[Sequence, int]] = []
        preempted = 0
        if state.waiting or state.prefilling or free < decoding.count:
            limit = _UNLIMITED
            if self.long_prefill_token_threshold:
                limit = self._chunk_limit(state)
            wanted = decoding.blocks_needed(1)
            budget = self.max_num_batched_tokens - decoding.count
            if state.prefilling:
                budget, wanted = _continue_prefills(state, prefill, budget, wanted, limit)
            if wanted > free and state.release_ended():
                free = pool.total - pool.held  # rather wait for the step that runs than preempt
            if budget < 0 or (wanted > free and self.scheduling_policy == "priority"):
                prefill, budget, preempted = walk(
                    state, self.max_num_batched_tokens, limit, self.scheduling_policy == "priority"
                )
                wanted = decoding.blocks_needed(1) + _blocks_of(state, prefill)
                free = pool.total - pool.held
            elif wanted > free:
                preempted, wanted = preempt_last(state, prefill, wanted)
                free = pool.total - pool.held
            for sequence, new in prefill:
                state.take_blocks(sequence, sequence.computed + new)
            if state.waiting and not preempted:
                if self.enable_prefix_caching:
                    state.reserve(decoding.blocks_needed(1))
                self._admit(now, state, prefill, budget, free - wanted, limit)
        if prefill:
            return state.step(prefill, 1, preempted)
        if decoding.count:
            steps = 1 if preempted or state.ended else decoding.steps(free)
            # Whoever waits now is blocked until rows end. One of higher priority could still come and fit.
            open_to_all = not state.waiting or self.scheduling_policy == "priority"
            return state.decode(steps, preempted, open_to_all and len(state.running) < self.max_num_seqs)
        if state.release_ended():
            return self.schedule(now, state)
        if preempted:
            return self._after_preempting(now, state, preempted)
        if state.waiting:
            raise InputError(
                "max_num_batched_tokens",
                f"{self.max_num_batched_tokens} is less than a prompt of {state.waiting[0].tokens} tokens, which waits "
                "for ever without chunked prefill: give at least max_model_len, or enable_chunked_prefill",
            )
        return _NOTHING

    def _after_preempting(self, now: float, state: State, preempted: int) -> Decision:
        """The only row that was looked at gave way itself, and nothing was scheduled: what it freed is there now."""
        decision = self.schedule(now, state)
        assert isinstance(decision, Batch)
        counts = decision.tally
        decision.counts = counts._replace(preempted=counts.preempted + preempted)
        return decision

    def _chunk_limit(self, state: State) -> int:
        """Tokens that one prompt may have in this step."""
        threshold = self.long_prefill_token_threshold
        alone = len(state.running) + len(state.waiting) <= 1
        return _UNLIMITED if alone else threshold

    def _admit(
        self, now: float, state: State, prefill: list[tuple[Sequence, int]], budget: int, free: int, limit: int
    ) -> None:
        """Admit from the head of the queue; nobody overtakes it."""
        waiting = state.waiting
        held, size, full = state.pool.blocks, state.pool.block_size, state.pool.growth.full
        caching, reserve_all = self.enable_prefix_caching, self.scheduler_reserve_full_isl
        slots = self.max_num_seqs - len(state.running)
        found = idle = 0
        while waiting and budget > 0 and slots > 0:
            sequence = waiting[0]
            if caching:
                found, idle = state.find_cached(sequence)
            tokens = sequence.tokens
            new = tokens - found
            if new > limit:
                new = limit
            if new > budget:
                if not self.enable_chunked_prefill:
                    break
                new = budget
            computed = found + new
            wanted = held(tokens if reserve_all else computed) - found // size * full + idle
            if wanted > free or (self.watermark and wanted > free - self._kept(state)):
                break
            waiting.popleft()
            if computed < tokens:
                state.prefilling.append(sequence)
            free -= state.admit(sequence, now, found, computed)
            prefill.append((sequence, new))
            budget -= new
            slots -= 1

    def _kept(self, state: State) -> int:
        """Blocks that admission leaves free."""
        return math.ceil(self.watermark * state.pool.total) if state.running else 0


def _continue_prefills(
    state: State, prefill: list[tuple[Sequence, int]], budget: int, wanted: int, limit: int
) -> tuple[int, int]:
    """Give running prompts their next chunk; the budget left, and the blocks wanted by all running rows.

    A budget below 0 means that rows behind a prompt would go short: then only walking the rows tells which.
    """
    pool = state.pool
    last = next(reversed(state.running))
    for sequence in state.prefilling:
        new = min(sequence.tokens - sequence.computed, limit)
        if sequence is last and new > budget >= 0:
            new = budget
        budget -= new
        if new > 0:
            prefill.append((sequence, new))
            wanted += pool.blocks(sequence.computed + new) - sequence.blocks
    return budget, wanted


def _blocks_of(state: State, prefill: list[tuple[Sequence, int]]) -> int:
    """Blocks that these rows want beyond those they hold."""
    return sum(state.pool.blocks(sequence.computed + new) - sequence.blocks for sequence, new in prefill)

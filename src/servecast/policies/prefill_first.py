"""Prefill first: while anybody waits, prompts run alone and rows that decode stand still.

A step computes either prompts or next tokens. As long as waiting requests find a slot and KV blocks, prompts are
computed, up to a budget of tokens a step; a prompt longer than what is left of it is cut, and goes on in the next step.
Else all rows decode. So a new request has its first token soon, and the others wait for theirs: TTFT is bought with
gaps between tokens. A request is admitted when all its prompt, and the next token of every row, find blocks. When rows
that decode run out of blocks the one admitted last gives all of its own back and is computed again.

Source: the default of vLLM's V0 engine (vllm 0.6, core/scheduler.py, `_schedule_default`), of TGI and of SGLang. Left
out: how these engines foresee or bound the length of answers when they admit, and swapping.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from servecast.batch import Wait
from servecast.policies.policy import Policy
from servecast.policies.shortage import preempt_last
from servecast.policies.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from servecast.batch import Decision
    from servecast.kvcache import BlockPool
    from servecast.requests import Sequence


@dataclass(frozen=True)
class PrefillFirst(Policy):
    """Prompts run alone while any waits or is in prefill; then all rows decode (vLLM V0, TGI, SGLang).

    max_num_seqs : sequences running at once, at most
    max_num_batched_tokens : tokens of prompts computed in one step, at most
    """

    kind: ClassVar[str] = "prefill_first"
    limits: ClassVar[tuple[str, ...]] = ("max_num_seqs", "max_num_batched_tokens")
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192

    @property
    def slots(self) -> int:
        return self.max_num_seqs

    @property
    def set_aside(self) -> tuple[int, int]:
        return max(self.max_num_batched_tokens, self.max_num_seqs), self.max_num_seqs

    def start(self, pool: BlockPool, activation_blocks: Callable[[int], int]) -> State:
        return State(pool)  # a step's tokens are bounded, and the memory plan has set their activations aside

    def schedule(self, now: float, state: State) -> Decision:
        prompts = self._prompts(now, state)
        if prompts:
            return state.step(prompts, decode=0)
        if not state.decoding.count:
            return Wait(math.inf)
        preempted, _ = preempt_last(state, [], state.decoding.blocks_needed(1))
        # After a preemption the next step may admit who could not be admitted in this one.
        steps = 1 if preempted else state.decoding.steps(state.pool.free)
        return state.decode(steps, preempted, not state.waiting and len(state.running) < self.max_num_seqs)

    def _prompts(self, now: float, state: State) -> list[tuple[Sequence, int]]:
        """Prompts to compute: the one that was cut, then whoever can be admitted; nobody overtakes the head."""
        prompts = []
        budget = self.max_num_batched_tokens
        for sequence in state.prefilling:
            new = min(sequence.tokens - sequence.computed, budget)
            prompts.append((sequence, new))
            budget -= new
        waiting, pool = state.waiting, state.pool
        kept = state.decoding.blocks_needed(1)
        while waiting and budget and len(state.running) < self.max_num_seqs:
            sequence = waiting[0]
            if pool.blocks(sequence.tokens) > pool.free - kept:
                break
            waiting.popleft()
            state.admit(sequence, now, 0, sequence.tokens)
            new = min(sequence.tokens, budget)
            if new < sequence.tokens:
                state.prefilling.append(sequence)
            prompts.append((sequence, new))
            budget -= new
        return prompts

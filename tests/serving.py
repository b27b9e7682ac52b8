"""What the engine's tests share: step times to serve with, and an engine that keeps an eye on its own books."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from servecast.batch import Batch, StepShape
from servecast.engine import Run, Server, replay
from servecast.executor import Affine, ModelExecutor
from servecast.kvcache import BlockPool, Growth
from servecast.policies import POLICIES
from servecast.workload.clients import OpenLoop, RequestColumns

if TYPE_CHECKING:
    from servecast.policies import Policy, State

SHARED = Path(os.environ.get("SERVECAST_SHARED", "../shared"))


@dataclass(frozen=True)
class StepTime:
    """fixed + per_token * tokens + per_context * cached tokens read [s]: convention C0 with the defaults."""

    fixed: float = 0.010
    per_token: float = 0.0
    per_context: float = 0.0

    def durations(self, shape: StepShape, iterations: int) -> tuple[float, float, int]:
        tokens = shape.prefill_tokens + shape.decode_rows
        base = self.fixed + self.per_token * tokens + self.per_context * (shape.decode_context + shape.prefill_context)
        return base, self.per_context * shape.decode_rows, iterations


class Stepping:
    """Any executor, one iteration at a time: what coalescing must agree with."""

    def __init__(self, executor):
        self.executor = executor

    def run(self, batch, until=math.inf):
        batch.iterations = 1
        return self.executor.run(batch, until)


def columns(requests) -> RequestColumns:
    """Requests given as (arrival_s, prompt_tokens, output_tokens)."""
    table = np.array(list(requests), dtype=float).reshape(-1, 3)
    return RequestColumns(table[:, 0].copy(), table[:, 1].astype(np.int64), table[:, 2].astype(np.int64))


def replayed(
    client,
    policy,
    executor,
    pool,
    *,
    max_model_len,
    activation_blocks=lambda tokens: 0,
    restart_s=0.0,
    on_too_long="reject",
    **options,
) -> Run:
    """The run of one replica."""
    server = Server(policy, executor, pool, max_model_len, activation_blocks, restart_s, on_too_long)
    return replay(client, [server], **options).run


def serve(
    requests, policy, cap=1000, bs=16, cost=None, stepped=False, max_model_len=None, client=None, growth=(), **options
) -> Run:
    """Serve requests (or a client's) under convention C0: ``cap`` KV blocks of ``bs`` tokens."""
    executor = ModelExecutor(cost or StepTime())
    held = Growth(bs, *growth)
    return replayed(
        client or OpenLoop(columns(requests)),
        policy,
        Stepping(executor) if stepped else executor,
        BlockPool(cap, bs, growth=held),
        max_model_len=max_model_len or held.longest(cap),
        **options,
    )


def of_size(kind, slots, wait_s=0.0, budget=8192, **more):
    """A policy of the registry that runs ``slots`` sequences at once; what it does not have is left out."""
    policy = POLICIES[kind]
    own = {field.name for field in fields(policy)}
    values = {policy.limits[0]: slots, "max_wait_s": wait_s, "max_num_batched_tokens": budget} | more
    return policy(**{name: value for name, value in values.items() if name in own})


def latencies(run: Run) -> dict[str, np.ndarray]:
    """queue, TTFT and E2E [s] of every request, NaN where there is none."""
    sent = run.requests["sent_s"]
    return {
        "queue": run.requests["scheduled_s"] - sent,
        "ttft": run.requests["first_token_s"] - sent,
        "e2e": run.requests["finish_s"] - sent,
    }


def rows_held(state: State) -> list[int]:
    """KV blocks held by each running sequence, counted row by row."""
    step = state.decoding.step
    blocks = state.pool.blocks
    return [
        blocks(sequence.offset + step)
        if sequence in state.decoding
        else blocks(sequence.computed)
        if sequence in state.ended
        else sequence.blocks
        for sequence in state.running
    ]


@dataclass
class Watched:
    """A policy with a witness: ``check(state, decision)`` is called after each of its decisions; ``free`` are the KV
    blocks that were free before it."""

    policy: Policy
    check: object
    free: list = field(default_factory=list)

    def __getattr__(self, name):
        return getattr(self.policy, name)

    def start(self, pool, activation_blocks):
        return self.policy.start(pool, activation_blocks)

    def schedule(self, now, state):
        self.free.append(state.pool.free)
        decision = self.policy.schedule(now, state)
        self.check(state, decision)
        return decision


def shape_of_rows(batch: Batch) -> StepShape:
    """The shape of a batch, added up row by row."""
    rows = list(batch.rows(batch))
    prefilling = {sequence for sequence, _ in batch.prefill}
    prefill = [row for row in rows if row.sequence in prefilling]
    decode = [row for row in rows if row.sequence not in prefilling]
    return StepShape(
        len(prefill),
        sum(row.new for row in prefill),
        sum(row.cached + position + 1 for row in prefill for position in range(row.new)),
        sum(row.cached for row in prefill),
        len(decode),
        sum(row.cached for row in decode),
        max(row.cached + row.new for row in rows),
    )


__all__ = [
    "SHARED", "Affine", "StepTime", "Stepping", "Watched", "columns", "latencies", "math", "of_size", "replayed", "rows_held", "serve", "shape_of_rows",
]  # fmt: skip

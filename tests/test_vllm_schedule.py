"""Continuous batching against the decisions of the real vLLM scheduler, step by step.

The recordings (vLLM 0.32, V1, synchronous, virtual clock) lie in the shared data.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from serving import SHARED, Stepping, StepTime, Watched, columns, replayed

from servecast.batch import Batch
from servecast.executor import ModelExecutor
from servecast.kvcache import BlockPool
from servecast.policies import Continuous
from servecast.workload.clients import OpenLoop

RECORDINGS = sorted((SHARED / "vllm_schedules").glob("*.json.gz"))


def recorded(requests, block_size):
    """The recorded requests; those of one group share the full blocks of their first ``prefix_tokens`` tokens."""
    plain = columns((r["arrival_s"], r["prompt_tokens"], r["output_tokens"]) for r in requests)
    return replace(
        plain,
        priority=np.array([r["priority"] for r in requests]),
        prefix_ids=[
            tuple(1_000 * r["prefix_group"] + place for place in range(r["prefix_tokens"] // block_size))
            if r["prefix_tokens"]
            else ()
            for r in requests
        ],
    )


@pytest.mark.skipif(not RECORDINGS, reason="no shared data: set SERVECAST_SHARED")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".json.gz"))
@pytest.mark.parametrize("stepped", [True, False], ids=["stepped", "coalesced"])
def test_every_step_is_the_recorded_one(path, stepped):
    recording = json.loads(gzip.decompress(path.read_bytes()))
    arguments, requests = recording["engine_args"], recording["requests"]
    seen = []

    def witness(state, decision):
        if seen and seen[-1][2] is None:
            seen[-1][2] = policy.free[-1]
        if isinstance(decision, Batch):
            rows = [[row.sequence.request.id, row.new, row.cached] for row in decision.rows(decision)]
            seen.append([sorted(rows), decision.tally.preempted, None])

    policy = Watched(
        Continuous(
            max_num_seqs=arguments["max_num_seqs"],
            max_num_batched_tokens=arguments["max_num_batched_tokens"],
            enable_chunked_prefill=arguments["chunked_prefill"],
            long_prefill_token_threshold=arguments.get("long_prefill_token_threshold", 0),
            enable_prefix_caching=arguments["enable_prefix_caching"],
            scheduling_policy=arguments.get("scheduling_policy", "fcfs"),
        ),
        witness,
    )
    pool = BlockPool(arguments["num_gpu_blocks"] - 1, arguments["block_size"])
    executor = ModelExecutor(StepTime(0.010, per_token=0.0001))
    run = replayed(
        OpenLoop(recorded(requests, arguments["block_size"])),
        policy,
        Stepping(executor) if stepped else executor,
        pool,
        max_model_len=arguments["max_model_len"],
    )

    assert np.abs(run.requests["first_token_s"] - [r["first_token_s"] for r in requests]).max() < 1e-9
    assert np.abs(run.requests["finish_s"] - [r["last_token_s"] for r in requests]).max() < 1e-9
    assert run.requests["preemptions"].sum() == sum(len(step["preempted"]) for step in recording["steps"])
    if stepped:
        assert len(seen) == len(recording["steps"])
        for (rows, preempted, free), step in zip(seen, recording["steps"], strict=True):
            assert rows == sorted(step["rows"])
            assert preempted == len(step["preempted"])
            assert free == step["free_blocks"]
        assert np.abs(run.decisions["start_s"] - [step["start_s"] for step in recording["steps"]]).max() < 1e-9

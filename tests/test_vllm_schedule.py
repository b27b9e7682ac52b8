"""Continuous batching against the decisions of the real vLLM scheduler, step by step.

The recordings (vLLM 0.32, V1, synchronous, virtual clock) lie in the shared data. Those that use features servecast
does not have yet are skipped by name.
"""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from serving import SHARED, StepTime, Watched, columns

from servecast.batch import Batch
from servecast.engine import replay
from servecast.executor import ModelExecutor, Stepping
from servecast.kvcache import BlockPool
from servecast.policies import Continuous
from servecast.workload.clients import OpenLoop

RECORDINGS = sorted((SHARED / "vllm_schedules").glob("*.json.gz"))


def missing_feature(recording) -> str | None:
    arguments = recording["engine_args"]
    if arguments["enable_prefix_caching"]:
        return "prefix caching"
    if arguments.get("scheduling_policy", "fcfs") != "fcfs":
        return "priorities"
    if arguments.get("long_prefill_token_threshold"):
        return "long_prefill_token_threshold"
    return None


@pytest.mark.skipif(not RECORDINGS, reason="no shared data: set SERVECAST_SHARED")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".json.gz"))
@pytest.mark.parametrize("stepped", [True, False], ids=["stepped", "coalesced"])
def test_every_step_is_the_recorded_one(path, stepped):
    recording = json.loads(gzip.decompress(path.read_bytes()))
    if feature := missing_feature(recording):
        pytest.skip(f"{feature} is not built yet")
    arguments, requests = recording["engine_args"], recording["requests"]
    seen = []

    def witness(state, decision):
        if seen and seen[-1][2] is None:
            seen[-1][2] = policy.free[-1]
        if isinstance(decision, Batch):
            rows = [[row.sequence.request.id, row.new, row.cached] for row in decision.rows(decision)]
            seen.append([sorted(rows), decision.preempted, None])

    policy = Watched(
        Continuous(arguments["max_num_seqs"], arguments["max_num_batched_tokens"], arguments["chunked_prefill"]),
        witness,
    )
    pool = BlockPool(arguments["num_gpu_blocks"] - 1, arguments["block_size"])
    executor = ModelExecutor(StepTime(0.010, per_token=0.0001))
    run = replay(
        OpenLoop(columns((r["arrival_s"], r["prompt_tokens"], r["output_tokens"]) for r in requests)),
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

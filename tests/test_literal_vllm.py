"""Continuous batching against a literal reading of vLLM's rules, over random loads and every scheduler option."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_vllm import Request, schedule
from serving import Stepping, StepTime, Watched, columns, replayed

from servecast.batch import Batch
from servecast.executor import ModelExecutor
from servecast.kvcache import BlockPool
from servecast.policies import Continuous
from servecast.workload.clients import OpenLoop

loads = st.lists(
    st.tuples(
        st.integers(0, 60).map(lambda tick: tick * 0.0101),
        st.integers(1, 70),
        st.integers(1, 40),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=24,
).map(sorted)
options = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 8),
        "extra": st.sampled_from([0, 2, 9, 64, 4096]),
        "threshold": st.sampled_from([0, 0, 1, 5, 30]),
        "remember": st.booleans(),
        "by_priority": st.booleans(),
        "reserve": st.booleans(),
        "watermark": st.sampled_from([0.0, 0.0, 0.1]),
        "chunked": st.sampled_from([True, True, False]),
    }
)


@settings(max_examples=400)
@given(loads, options, st.integers(28, 60), st.sampled_from([4, 16]), st.booleans())
def test_every_step_is_the_literal_one(load, options, blocks, size, stepped):
    options = dict(options)
    budget = options["max_num_seqs"] + options.pop("extra")
    if not options["chunked"]:
        budget = max(budget, 120)
    shared = 2  # full blocks that the prompts of a group share
    prefixes = [
        tuple(shared * group + place for place in range(min(shared, prompt // size))) if group else ()
        for _, prompt, _, _, group in load
    ]
    literal = [
        Request(at, arrival, prompt, output, priority, prefix)
        for at, ((arrival, prompt, output, priority, _), prefix) in enumerate(zip(load, prefixes, strict=True))
    ]
    if max(request.prompt + request.output for request in literal) > blocks * size:
        return
    expected = schedule(literal, blocks=blocks, size=size, max_num_batched_tokens=budget, **options)

    seen = []

    def witness(state, decision):
        if isinstance(decision, Batch):
            seen.append((sorted([r.sequence.request.id, r.new, r.cached] for r in decision.rows(decision)), decision))

    policy = Watched(
        Continuous(
            max_num_seqs=options["max_num_seqs"],
            max_num_batched_tokens=budget,
            enable_chunked_prefill=options["chunked"],
            long_prefill_token_threshold=options["threshold"],
            enable_prefix_caching=options["remember"],
            scheduling_policy="priority" if options["by_priority"] else "fcfs",
            scheduler_reserve_full_isl=options["reserve"],
            watermark=options["watermark"],
        ),
        witness,
    )
    executor = ModelExecutor(StepTime(0.010, per_token=0.0001))
    requests = replace(
        columns(row[:3] for row in load),
        priority=np.array([row[3] for row in load]),
        prefix_ids=prefixes,
    )
    run = replayed(
        OpenLoop(requests),
        policy,
        Stepping(executor) if stepped else executor,
        BlockPool(blocks, size),
        max_model_len=blocks * size,
    )
    np.testing.assert_allclose(run.requests["first_token_s"], [r.first for r in literal], rtol=0, atol=1e-9)
    np.testing.assert_allclose(run.requests["finish_s"], [r.last for r in literal], rtol=0, atol=1e-9)
    assert run.requests["preemptions"].sum() == sum(len(preempted) for _, _, preempted, _ in expected)
    if stepped:
        assert [rows for rows, _ in seen] == [rows for _, rows, _, _ in expected if rows]


def test_the_literal_reading_preempts_and_remembers():
    """Else the comparison above would prove little."""
    requests = [Request(at, 0.0, 30, 40, 0, (("shared", 0),)) for at in range(6)]
    steps = schedule(requests, blocks=24, size=16, max_num_seqs=6, max_num_batched_tokens=64, remember=True)
    assert sum(len(preempted) for _, _, preempted, _ in steps) > 0
    assert any(cached and new > 1 for _, rows, _, _ in steps for _, new, cached in rows)
    assert steps[-1][3] == 24
    assert pytest.approx(steps[0][0]) == 0.0

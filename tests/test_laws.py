"""Laws that hold for every policy and every trace: nothing is lost, nothing comes before its cause, nobody idles while
there is work, and covering many iterations with one decision changes nothing."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import StepTime, Watched, latencies, of_size, rows_held, serve, shape_of_rows

from servecast.batch import Batch, OutOfMemory
from servecast.policies import POLICIES, Padded, Static
from servecast.requests import Status
from servecast.workload.clients import ClosedLoop, HeldBack, LengthColumns, OpenLoop

from serving import columns  # isort: skip

COST = StepTime(fixed=0.01, per_token=1e-4, per_context=1e-6)
TIED = StepTime(fixed=0.01)  # arrivals on a grid of 5 ms often come as a step ends

requests = st.lists(
    st.tuples(st.integers(0, 60).map(lambda tick: tick * 0.005), st.integers(1, 60), st.integers(1, 40)),
    min_size=1,
    max_size=25,
).map(sorted)
#: What is drawn of a policy's parameters; one that is not here keeps its default. A token budget is so much above slots.
DRAWN = {
    "batch_size": st.integers(1, 6),
    "max_wait_s": st.sampled_from([0.0, 0.02, 0.5]),
    "respond": st.sampled_from(["stream", "batch_end"]),
    "max_num_seqs": st.integers(1, 8),
    "max_num_batched_tokens": st.sampled_from([0, 3, 40, 8192]),
    "long_prefill_token_threshold": st.sampled_from([0, 1, 7, 30]),
    "enable_prefix_caching": st.booleans(),
    "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
    "async_scheduling": st.booleans(),
}


@st.composite
def drawn(draw, kind, plain=False):
    """A policy of the registry; ``plain``: of its limits alone."""
    policy = POLICIES[kind]
    names = policy.limits if plain else [field.name for field in fields(policy) if field.name in DRAWN]
    values = {name: draw(DRAWN[name]) for name in names}
    if "max_num_batched_tokens" in values:
        values["max_num_batched_tokens"] += values["max_num_seqs"]
    return policy(**values)


policies = st.sampled_from(sorted(POLICIES)).flatmap(drawn)
closed = st.sampled_from([kind for kind, policy in POLICIES.items() if policy.closed]).flatmap(drawn)
plain = drawn("continuous", plain=True)
at_once = st.one_of(plain, drawn("prefill_first"))
#: Groups of layers that keep every token, that slide, their window in blocks, and blocks of a state.
growths = st.sampled_from([(), (), (1, 2, 2), (2, 1, 3, 1), (1, 0, 0, 2)])
pools = st.tuples(st.integers(7, 40), st.sampled_from([4, 16]), growths).map(
    lambda pool: {"cap": pool[0] * sum(pool[2][:2] or [1]), "bs": pool[1], "growth": pool[2]}
)
costs = st.sampled_from([COST, TIED])


def check_books(state, decision):
    """At every decision: each block is held by somebody, and the shape is the sum of the rows."""
    assert 0 <= state.pool.held <= state.pool.total
    if isinstance(decision, Batch):
        assert decision.shape == shape_of_rows(decision)
        assert decision.iterations >= 1
        assert decision.tally.slots == len(state.running)
        ids = [sequence.request.id for sequence in (*state.running, *state.waiting)]
        assert len(ids) == len(set(ids))


@given(requests, policies, pools, costs)
def test_requests_tokens_and_blocks_are_conserved(requests, policy, pool, cost):
    pools_seen = []

    def witness(state, decision):
        check_books(state, decision)
        pools_seen.append(state.pool)
        if not policy.closed:
            assert sum(rows_held(state)) == state.pool.held

    run = serve(requests, Watched(policy, witness), cost=cost, **pool)
    table, log = run.requests, run.decisions
    assert table["id"].tolist() == list(range(len(requests)))
    assert not np.isin(table["status"], Status.UNFINISHED).any()
    completed = table["status"] == Status.COMPLETED
    assert (table["generated_tokens"] == table["output_limit"])[completed].all()
    assert pools_seen == [] or pools_seen[-1].held == 0
    assert log["finished"].sum() == completed.sum()
    if not len(run.oom):
        served = completed.sum()
        computed = (log["useful_prefill_tokens"] + log["iterations"] * log["useful_decode_rows"]).sum()
        once = (table["prompt_tokens"] + table["generated_tokens"])[completed].sum() - served
        assert computed == once + table["recomputed_tokens"].sum()
        assert log["recomputed_tokens"].sum() == table["recomputed_tokens"].sum()
    assert sum(event.requests for event in run.oom) == (table["status"] == Status.OOM).sum()
    assert log["preempted"].sum() == table["preemptions"].sum()


@given(requests, policies, pools, costs)
def test_nothing_comes_before_its_cause(requests, policy, pool, cost):
    run = serve(requests, policy, cost=cost, **pool)
    done = run.requests["status"] == Status.COMPLETED
    queue, ttft, e2e = (latencies(run)[name][done] for name in ("queue", "ttft", "e2e"))
    assert (queue >= 0).all() and (queue <= ttft).all() and (ttft <= e2e).all()
    assert (e2e <= run.end_s + 1e-9).all()
    ends = run.decisions["start_s"] + run.decisions["seconds"]
    assert (run.decisions["start_s"][1:] >= ends[:-1] - 1e-9).all()
    assert (run.gaps["seconds"] > 0).all()


def assert_same_run(one, other):
    for name, column in one.requests.items():
        if column.dtype.kind == "f":
            np.testing.assert_allclose(column, other.requests[name], rtol=0, atol=1e-9)
        elif name != "slot":
            np.testing.assert_array_equal(column, other.requests[name])
    for name, column in one.gaps.items():
        np.testing.assert_allclose(column, other.gaps[name], rtol=0, atol=1e-9, err_msg=name)
    assert one.end_s == pytest.approx(other.end_s, abs=1e-9)
    assert one.oom == [OutOfMemory(pytest.approx(event.time_s, abs=1e-9), *event[1:]) for event in other.oom]
    for name in ("preempted", "recomputed_tokens", "finished", "prefill_tokens", "prefill_pairs"):
        assert one.decisions[name].sum() == other.decisions[name].sum(), name
    iterations = one.decisions["iterations"]
    for name in ("useful_decode_rows", "decode_rows", "slots"):
        assert (one.decisions[name] * iterations).sum() == other.decisions[name].sum(), name
    context = one.decisions["decode_context"] * iterations + one.decisions["decode_rows"] * (
        iterations * (iterations - 1) // 2
    )
    assert context.sum() == other.decisions["decode_context"].sum()


@settings(max_examples=300)
@given(requests, policies, pools, costs, st.sampled_from([math.inf, 0.2]))
def test_a_coalesced_run_is_the_stepped_run(requests, policy, pool, cost, horizon_s):
    coalesced, stepped = (
        serve(requests, policy, cost=cost, stepped=stepped, horizon_s=horizon_s, restart_s=0.03, **pool)
        for stepped in (False, True)
    )
    assert_same_run(coalesced, stepped)
    assert (stepped.decisions["iterations"] == 1).all()


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=30),
    policies,
    pools,
    costs,
    st.integers(1, 6),
    st.sampled_from([0.0, 0.005, 0.1]),
)
def test_a_closed_loop_is_coalesced_exactly(lengths, policy, pool, cost, users, think_s):
    table = LengthColumns(*np.array(lengths).T)
    coalesced, stepped = (
        serve([], policy, cost=cost, stepped=stepped, client=ClosedLoop(users, think_s, table), **pool)
        for stepped in (False, True)
    )
    assert_same_run(coalesced, stepped)
    assert len(coalesced.requests["id"]) == len(lengths)


@given(requests, policies, pools, costs, st.integers(1, 5), st.sampled_from([None, 28]))
def test_a_capped_client_is_coalesced_exactly(requests, policy, pool, cost, cap, limit):
    """Also where requests are refused, which makes room at once and not with the step's end."""
    pool = pool | {"max_model_len": limit}
    coalesced, stepped = (
        serve([], policy, cost=cost, stepped=stepped, client=HeldBack(OpenLoop(columns(requests)), cap), **pool)
        for stepped in (False, True)
    )
    assert_same_run(coalesced, stepped)
    held = coalesced.requests["sent_s"] - coalesced.requests["arrival_s"]
    assert (held >= 0).all()
    order = np.argsort(coalesced.requests["sent_s"], kind="stable")
    ended = np.where(
        coalesced.requests["status"] == Status.REJECTED, coalesced.requests["sent_s"], coalesced.requests["finish_s"]
    )
    if not np.isnan(ended).any():  # a crash answers too, at a time the table does not hold
        requested = coalesced.requests["arrival_s"][order]
        for position, row in enumerate(order[cap:]):
            answered = np.sort(ended[order[: position + cap]])[position]
            earliest = max(requested[position + cap], answered)
            assert coalesced.requests["sent_s"][row] == pytest.approx(earliest, abs=1e-9)


@given(requests, plain, pools)
def test_nobody_waits_without_a_reason(requests, policy, pool):
    def witness(state, decision):
        if not isinstance(decision, Batch) or not state.waiting or decision.tally.preempted:
            return
        head = state.waiting[0]
        tokens = decision.shape.prefill_tokens + decision.shape.decode_rows
        needed = state.decoding.blocks_needed(1)
        assert (
            len(state.running) == policy.max_num_seqs
            or tokens == policy.max_num_batched_tokens
            or state.pool.blocks(head.tokens) > state.pool.free - needed
        )

    serve(requests, Watched(policy, witness), cost=COST, **pool)


@given(requests, at_once, pools)
def test_first_come_first_served(requests, policy, pool):
    run = serve(requests, policy, cost=COST, **pool)
    scheduled = run.requests["scheduled_s"][run.requests["status"] == Status.COMPLETED]
    assert (np.diff(scheduled) >= 0).all()


@given(requests, costs)
def test_one_at_a_time_is_the_same_whoever_batches(requests, cost):
    """Every policy with one slot does the same."""
    runs = [serve(requests, of_size(kind, 1), cost=cost) for kind in POLICIES]
    for other in runs[1:]:
        for name in ("scheduled_s", "first_token_s", "finish_s"):
            np.testing.assert_allclose(runs[0].requests[name], other.requests[name], rtol=0, atol=1e-9)


@given(requests, st.integers(1, 6))
def test_padding_never_pays(requests, size):
    """A padded batch computes at least what a static one does, and exactly as much when all prompts and outputs agree."""
    burst = [(0.0, prompt, output) for _, prompt, output in requests]
    static, padded = (serve(burst, kind(size, 0.0), cost=COST) for kind in (Static, Padded))
    assert padded.end_s >= static.end_s - 1e-9
    equal = [(0.0, 20, 7) for _ in requests]
    static, padded = (serve(equal, kind(size, 0.0), cost=COST) for kind in (Static, Padded))
    assert padded.end_s == pytest.approx(static.end_s, abs=1e-9)


@given(requests, closed)
def test_responding_at_the_batch_end_only_delays(requests, policy):
    stream, at_end = (serve(requests, replace(policy, respond=to), cost=COST) for to in ("stream", "batch_end"))
    np.testing.assert_allclose(at_end.requests["first_token_s"], at_end.requests["finish_s"])
    assert (at_end.requests["finish_s"] >= stream.requests["finish_s"] - 1e-9).all()
    assert at_end.end_s == pytest.approx(stream.end_s, abs=1e-9)

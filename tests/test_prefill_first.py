"""Prefill-first against a simulation that knows nothing of totals: every token of every row is an event of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import StepTime, serve

from servecast import metrics
from servecast.metrics.latencies import latencies
from servecast.metrics.log import clip_decisions
from servecast.metrics.waste import waste
from servecast.policies import PrefillFirst
from servecast.report.exports.tokens import token_gaps_by_request
from servecast.requests import Status

COST = StepTime(fixed=0.01, per_token=1e-4, per_context=1e-6)


@dataclass
class Row:
    arrival: float
    prompt: int
    output: int
    computed: int = 0
    held: int = 0  # KV blocks
    decodes: bool = False
    times: list[float] = field(default_factory=list)  # of its tokens

    @property
    def tokens(self):
        return self.prompt + len(self.times)


@dataclass
class Naive:
    """Steps, one at a time; ``computed``: tokens computed in all, ``again``: of those that had been computed before."""

    rows: list[Row]
    computed: int = 0
    preemptions: int = 0


def naive(requests, seqs, budget, blocks, size):
    limit = blocks * size
    rows = [Row(at, prompt, min(output, limit - prompt)) for at, prompt, output in requests]
    coming, waiting, running = [row for row in rows if row.output > 0], [], []
    made = Naive(rows)
    now = 0.0

    def pay(new, context):
        nonlocal now
        now += COST.fixed + COST.per_token * new + COST.per_context * context
        made.computed += new

    def give_token(row):
        row.times.append(now)
        row.decodes = True
        if len(row.times) == row.output:
            running.remove(row)
            row.held = 0

    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0].arrival)
        while coming and coming[0].arrival <= now + 1e-9:
            waiting.append(coming.pop(0))
        deciding = [row for row in running if row.decodes]
        needed = sum(row.computed % size == 0 for row in deciding)
        left = budget
        chunks = []
        for row in running:
            if not row.decodes:
                chunks.append((row, min(row.tokens - row.computed, left)))
                left -= chunks[-1][1]
        while waiting and left and len(running) < seqs:
            row = waiting[0]
            wanted = math.ceil(row.tokens / size)
            if wanted > blocks - sum(other.held for other in running) - needed:
                break
            running.append(waiting.pop(0))
            row.held = wanted
            chunks.append((row, min(row.tokens, left)))
            left -= chunks[-1][1]
        if chunks:
            pay(sum(new for _, new in chunks), sum(row.computed for row, _ in chunks))
            for row, new in chunks:
                row.computed += new
                if row.computed == row.tokens:
                    give_token(row)
            continue
        if not running:
            continue
        while sum(row.computed % size == 0 for row in running) > blocks - sum(row.held for row in running):
            victim = running.pop()
            victim.computed = victim.held = 0
            victim.decodes = False
            waiting.insert(0, victim)
            made.preemptions += 1
        pay(len(running), sum(row.computed for row in running))
        for row in list(running):
            row.held += row.computed % size == 0
            row.computed += 1
            give_token(row)
    return made


requests = st.lists(
    st.tuples(st.integers(0, 80).map(lambda tick: tick * 0.007), st.integers(1, 60), st.integers(1, 40)),
    min_size=1,
    max_size=25,
).map(sorted)


@settings(max_examples=300)
@given(requests, st.integers(1, 8), st.sampled_from([5, 30, 8192]), st.integers(7, 40), st.sampled_from([4, 16]))
def test_every_metric_is_that_of_the_naive_simulation(requests, seqs, budget, blocks, size):
    expected = naive(requests, seqs, budget, blocks, size)
    run = serve(requests, PrefillFirst(seqs, budget), cap=blocks, bs=size, cost=COST, on_too_long="cut")
    served = [row for row in expected.rows if row.output > 0]
    done = run.requests["status"] == Status.COMPLETED
    assert done.sum() == len(served) and (run.requests["status"][~done] == Status.REJECTED).all()
    assert run.requests["preemptions"].sum() == expected.preemptions

    times = [np.array(row.times) for row in expected.rows]
    for name, at in (("first_token_s", 0), ("finish_s", -1)):
        np.testing.assert_allclose(run.requests[name][done], [row.times[at] for row in served], rtol=0, atol=1e-9)
    for one, gaps in zip(times, token_gaps_by_request(run), strict=True):
        np.testing.assert_allclose(gaps, np.diff(one) if len(one) else [], rtol=0, atol=1e-8)
    pace = [np.diff(row.times).mean() if len(row.times) > 1 else np.nan for row in served]
    np.testing.assert_allclose(latencies(run.requests, run.respond)["tpot"][done], pace, rtol=0, atol=1e-8)

    every = np.concatenate([np.diff(one) for one in times] + [[]])
    pooled = metrics.token_gaps(run)
    assert pooled.counts.sum() == len(every)
    if len(every):
        ranks = [0, 50, 90, 99, 100]
        assert pooled.mean() == pytest.approx(every.mean(), rel=1e-9)
        assert pooled.percentiles(ranks) == pytest.approx(np.percentile(every, ranks).tolist(), rel=1.1e-3)

    wasted = waste(run.decisions)
    assert wasted["computed_tokens"] == wasted["useful_tokens"] == expected.computed
    assert (wasted["slot_waste"] or 0) == wasted["idle_slot_tokens"] == wasted["slot_waste_s"] == 0
    once = sum(row.prompt + len(row.times) - 1 for row in served)
    assert run.requests["recomputed_tokens"].sum() == expected.computed - once


@settings(max_examples=100)
@given(requests, st.integers(1, 6), st.integers(8, 20), st.floats(0.013, 0.6))
def test_a_window_has_the_gaps_of_its_tokens(requests, seqs, blocks, edge):
    expected = naive(requests, seqs, 30, blocks, 16)
    run = serve(requests, PrefillFirst(seqs, 30), cap=blocks, cost=COST, on_too_long="cut")
    later = np.concatenate([row.times[1:] for row in expected.rows] + [[]])
    if np.abs(later - edge).min(initial=1.0) < 1e-6:
        return
    for bounds in ((0.0, edge), (edge, run.end_s)):
        within = clip_decisions(run.decisions, *bounds)
        inside = (later > bounds[0] + 1e-9) & (later <= bounds[1] + 1e-9)
        assert metrics.token_gaps(run, within, bounds).counts.sum() == inside.sum()


def test_rows_that_decode_stand_still_while_prompts_run():
    """Ten decode steps of the first, then 40 tokens of prompts in chunks of 16: three steps in which it has no token."""
    run = serve([(0, 10, 30), (0.105, 40, 2)], PrefillFirst(4, 16))
    assert run.decisions["stalled_rows"].tolist() == [0, 0, 1, 1, 1, 0, 0]
    assert run.decisions["resumed_rows"].tolist() == [0, 0, 0, 0, 0, 1, 0]
    assert run.decisions["decode_rows"].tolist() == [0, 1, 0, 0, 0, 2, 1]
    first, second = token_gaps_by_request(run)
    np.testing.assert_allclose(np.sort(first), [0.01] * 28 + [0.04], rtol=0, atol=1e-9)
    np.testing.assert_allclose(second, [0.01], rtol=0, atol=1e-9)
    np.testing.assert_allclose(run.gaps["seconds"], [0.04], rtol=0, atol=1e-9)
    assert run.gaps["rows"].tolist() == [1]

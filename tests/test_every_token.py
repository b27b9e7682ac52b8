"""Every token of every row, seen as it is made: what the tables and the metrics say must be what was seen.

The witness walks the rows of each step, which no total does. It rests while rows decode, as a policy of a stranger may,
so that rows stand still, take up again, are preempted or lost while they stand.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import StepTime, columns, replayed
from test_laws import policies, requests

from servecast import metrics
from servecast.batch import Batch, OutOfMemory, Wait
from servecast.executor import Measured, ModelExecutor
from servecast.kvcache import BlockPool
from servecast.policies import Continuous, PrefillFirst, Static
from servecast.requests import Status
from servecast.workload.clients import OpenLoop

COST = ModelExecutor(StepTime(fixed=0.01, per_token=1e-4, per_context=1e-6))
NAN = math.nan


class AsMeasured:
    """Iterations as a device reports them: one by one."""

    def run(self, batch, until=math.inf):
        durations = COST.run(batch, until)
        return Measured([durations.base + durations.slope * at for at in range(durations.count)])


@dataclass
class Witness:
    """Policy and executor in one: rests at every so many decisions, crashes at another, and writes down each token."""

    policy: object
    rest: int
    crash: int = 0
    executor: object = COST
    times: dict = field(default_factory=lambda: defaultdict(list))  # of the tokens of each request [s]
    lost: list = field(default_factory=list)
    calls: int = 0
    now: float = 0.0

    def __getattr__(self, name):
        return getattr(self.policy, name)

    def start(self, pool, activation_blocks):
        self.state = self.policy.start(pool, activation_blocks)
        return self.state

    def schedule(self, now, state):
        self.now = now
        self.calls += 1
        if self.rest and self.calls % self.rest == 0:
            return Wait(now + 0.0137)
        if self.crash and self.calls % self.crash == 0 and state.running:
            unanswered = [row for row in state.running if row not in state.ended]
            self.lost.append((now, len(unanswered)))
            return OutOfMemory(now, len(unanswered), 2.0, 1.0)
        decision = self.policy.schedule(now, state)
        if isinstance(decision, Batch):
            served = {row.sequence for row in decision.rows(decision)}
            unfinished = [row for row in state.running if row.generated < row.output_limit and row not in state.ended]
            assert decision.tally.stalled_rows == sum(row not in served for row in unfinished)
        return decision

    def run(self, batch, until=math.inf):
        durations = self.executor.run(batch, until)
        ends, end = [], self.now
        for piece in durations.pieces():
            for at in range(piece.count):
                end += piece.base + piece.slope * at
                ends.append(end)
        for sequence, new in batch.prefill:
            assert len(ends) == 1
            if sequence.computed + new == sequence.tokens:
                self.times[sequence.request.id].append(ends[0])
        if batch.decode:
            for sequence in self.state.running:
                if sequence in self.state.decoding:
                    self.times[sequence.request.id] += ends
        return durations


def witnessed(load, policy, blocks, rest, crash=0, executor=COST):
    witness = Witness(policy, rest, crash, executor)
    client = OpenLoop(columns(load))
    run = replayed(client, witness, witness, BlockPool(blocks, 16), max_model_len=16 * blocks, restart_s=0.05)
    return witness, run, [np.array(witness.times[at]) for at in range(len(load))]


@settings(max_examples=200)
@given(
    requests, policies, st.integers(7, 14), st.sampled_from([0, 2, 3, 5]), st.sampled_from([0, 0, 7, 11]),
    st.sampled_from([COST, AsMeasured()]),
)  # fmt: skip
def test_tables_and_gaps_are_those_of_every_token(load, policy, blocks, rest, crash, executor):
    witness, run, times = witnessed(load, policy, blocks, rest, crash, executor)
    table = run.requests
    log = run.decisions
    assert (log["start_s"][1:] >= (log["start_s"] + log["seconds"])[:-1] - 1e-9).all()
    done = table["status"] == Status.COMPLETED
    assert (table["generated_tokens"] == [len(each) for each in times]).all()
    assert [(event.time_s, event.requests) for event in run.oom if event.wanted_bytes == 2.0] == witness.lost
    assert (np.isnan(table["finish_s"]) == ~done).all()
    close = {"rtol": 0, "atol": 1e-9}
    pooled = metrics.token_gaps(run)
    if policy.respond == "batch_end":
        assert pooled.counts.sum() == 0
        return
    np.testing.assert_allclose(table["finish_s"][done], [times[at][-1] for at in np.flatnonzero(done)], **close)
    np.testing.assert_allclose(table["first_token_s"], [each[0] if len(each) else NAN for each in times], **close)
    gaps = np.concatenate([np.diff(each) for each in times])
    assert pooled.counts.sum() == len(gaps)
    if len(gaps):
        ranks = [0, 50, 90, 100]
        assert pooled.mean() == pytest.approx(gaps.mean(), rel=1e-9)
        assert pooled.percentiles(ranks) == pytest.approx(np.percentile(gaps, ranks).tolist(), rel=1.1e-3)


@settings(max_examples=150)
@given(requests, st.data(), st.sampled_from([Continuous(8, 60), PrefillFirst(6, 60), Static(3, 0.02)]), st.booleans())
def test_a_window_counts_its_own_requests_tokens_and_seconds(load, data, policy, crashes):
    """By hand, with edges on the moments at which tokens come."""
    _, run, times = witnessed(load, policy, 8, 3, 5 if crashes else 0)
    moments = sorted({at for each in times for at in each})
    last = load[-1][0]
    inside = [at for at in moments if at < last]
    start = data.draw(st.sampled_from([0.0, *inside]))
    end = data.draw(st.sampled_from([last, *[at for at in inside if at > start]]))
    if not end > start:
        return
    slo = metrics.Slo(ttft_s=0.06, tpot_s=0.02, single_token=data.draw(st.sampled_from(["pass", "fail", "exclude"])))
    window = metrics.Window(start, last - end)
    row = metrics.summarise(run, policy="p", seed=1, slo=slo, window=window, usd_per_hour=3.6)
    assert window.bounds(run) == pytest.approx((start, end), abs=1e-12)
    start, end = window.bounds(run)

    table = run.requests
    counted = [at for at, (arrival, *_) in enumerate(load) if start <= arrival <= end]
    done = [at for at in counted if table["status"][at] == Status.COMPLETED]
    ttft = {at: times[at][0] - load[at][0] for at in done}
    tpot = {at: np.diff(times[at]).mean() if len(times[at]) > 1 else NAN for at in done}
    single = [at for at in done if len(times[at]) == 1]
    paced = [at for at in done if tpot[at] <= 0.02 + 1e-9 or (slo.single_token == "pass" and at in single)]
    good = sum(ttft[at] <= 0.06 + 1e-9 for at in paced)
    of = len(counted) - (len(single) if slo.single_token == "exclude" else 0)
    seconds = end - start
    given_tokens = sum(start + 1e-9 < at <= end + 1e-9 for each in times for at in each)
    gaps = [
        gap
        for each in times
        for gap, at in zip(np.diff(each), each[1:], strict=True)
        if start + 1e-9 < at <= end + 1e-9
    ]
    prompts = sum(load[at][1] for at, each in enumerate(times) if len(each) and start + 1e-9 < each[0] <= end + 1e-9)
    lost = [at for at in counted if table["status"][at] == Status.OOM and len(times[at])]
    ran_out = [event.time_s for event in run.oom if start <= event.time_s <= end]
    expected = {
        "arrived": len(counted), "completed": len(done), "arrived_whole_run": len(load),
        "request_throughput_rps": len(done) / seconds, "goodput_rps": good / seconds,
        "slo_attainment": good / of if of else None, "output_throughput_tps": given_tokens / seconds,
        "total_throughput_tps": (given_tokens + prompts) / seconds,
        "ttft_mean_s": np.mean(list(ttft.values())) if done else None,
        "ttft_p90_s": np.percentile(list(ttft.values()), 90) if done else None,
        "tpot_mean_s": np.nanmean(list(tpot.values())) if len(done) > len(single) else None,
        "itl_mean_s": np.mean(gaps) if gaps else None,
        "usd_per_mtok_output": seconds * 1e3 / given_tokens if given_tokens else None,
        "usd_per_mtok_input": seconds * 1e3 / prompts if prompts else None,
        "oom_events": len(ran_out), "first_oom_s": min(ran_out, default=None),
        "lost_tokens": sum(load[at][1] + len(times[at]) - 1 for at in lost),
    }  # fmt: skip
    assert {name: row[name] for name in expected} == {
        name: value if value is None else pytest.approx(value, rel=1e-9, abs=1e-9) for name, value in expected.items()
    }


@settings(max_examples=60)
@given(requests, st.integers(1, 8), st.integers(1, 40))
def test_no_step_is_larger_than_what_memory_is_set_aside_for(load, seqs, budget):
    """A row that decodes is a token of the step too, also where prompts alone have a budget."""
    for policy in (Continuous(seqs, seqs + budget), PrefillFirst(seqs, budget)):
        tokens, sampled = policy.set_aside
        log = witnessed(load, policy, 20, 0)[1].decisions
        assert (log["prefill_tokens"] + log["decode_rows"] <= tokens).all()
        assert (log["prefill_rows"] + log["decode_rows"] <= sampled).all()

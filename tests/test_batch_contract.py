"""What a batch says is what happens, whoever made it: a policy that says what cannot be is stopped, by name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import StepTime, columns, replayed, serve

from servecast import metrics
from servecast.batch import Batch, Wait
from servecast.executor import Affine
from servecast.kvcache import BlockPool
from servecast.policies import PrefillFirst
from servecast.report.exports.tokens import token_gaps_by_request
from servecast.workload.clients import OpenLoop

COST = StepTime(fixed=0.01, per_token=1e-4)
LOAD = [(0.0, 20, 12), (0.05, 40, 5), (0.07, 10, 30), (0.4, 60, 3), (0.41, 5, 9)]


@dataclass(frozen=True)
class Pausing(PrefillFirst):
    """Lets the engine rest at every so many decisions, also while rows decode."""

    every: int = 3
    calls: list[int] = field(default_factory=list)

    def schedule(self, now, state):
        self.calls.append(1)
        if len(self.calls) % self.every == 0:
            return Wait(now + 0.03)
        decision = super().schedule(now, state)
        if isinstance(decision, Batch):
            decision.iterations = min(decision.iterations, 4)
        return decision


@settings(max_examples=60)
@given(st.integers(2, 6), st.integers(1, 4), st.sampled_from([8, 100]))
def test_rows_that_decode_stand_still_while_nothing_runs(every, seqs, blocks):
    """The pause is a gap of theirs: the pooled gaps are those of each request's tokens, and span its answer."""
    run = serve(LOAD, Pausing(seqs, 30, every), cap=blocks, cost=COST)
    gaps = [np.sort(each) for each in token_gaps_by_request(run)]
    spans = run.requests["finish_s"] - run.requests["first_token_s"]
    np.testing.assert_allclose([each.sum() for each in gaps], spans, rtol=0, atol=1e-8)
    pooled = metrics.token_gaps(run)
    every_gap = np.concatenate(gaps)
    assert pooled.counts.sum() == len(every_gap)
    assert pooled.mean() == pytest.approx(every_gap.mean(), rel=1e-9)
    assert pooled.percentiles([99])[0] == pytest.approx(np.percentile(every_gap, 99), rel=1.1e-3)


@dataclass(frozen=True)
class Spoilt(PrefillFirst):
    """Says something that cannot be of the first batch that it can say it of."""

    what: str = ""

    def schedule(self, now, state):
        decision = super().schedule(now, state)
        if not isinstance(decision, Batch):
            return decision
        if self.what == "two tokens" and decision.decode and not decision.prefill:
            decision.decode = 2
        elif self.what == "a token back" and decision.decode and not decision.prefill:
            decision.decode = -1
        elif self.what == "beyond the end" and not decision.prefill:
            decision.iterations += 1
        elif self.what == "prompts twice" and decision.prefill:
            decision.iterations = 3
        elif self.what == "a decode row as a prompt" and not decision.prefill:
            return state.step([(next(iter(state.running)), 1)], decode=0)
        elif self.what == "a decode row as a prompt too" and not decision.prefill:
            return state.step([(next(iter(state.running)), 1)])
        elif self.what == "a cut prompt forgotten":
            state.prefilling.clear()
        elif self.what == "nobody admitted" and decision.prefill:
            state.running.clear()
        return decision


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("two tokens", "one token in an iteration"),
        ("a token back", "one token in an iteration"),
        ("beyond the end", "beyond the end of a row"),
        ("prompts twice", "computed in one iteration"),
        ("a decode row as a prompt", r"Sequence\(0, .* decodes, and the batch has it among its prompts"),
        ("a decode row as a prompt too", r"Sequence\(0, .* decodes, and the batch has it among its prompts"),
        ("a cut prompt forgotten", "1 rows run and 0 of them .*`prefilling`"),
        ("nobody admitted", "0 rows run and 1 of them"),
    ],
)
def test_a_batch_that_cannot_be_is_named(what, said):
    with pytest.raises(AssertionError, match=said):
        serve([(0.0, 40, 12)], Spoilt(4, 30, what), cost=COST)


class FreePrompts:
    """Prompts take no time, as may happen where steps are played back: rows join and stand still in one instant."""

    def run(self, batch, until=math.inf):
        return Affine(0.0, 0.0, 1) if batch.prefill else Affine(0.01, 0.0, 1)


def test_rows_that_join_and_stand_still_in_one_instant_all_have_their_gap():
    """Three prompts of 40 tokens, 30 a step: their first tokens come at 0 s, and the next ones together at 0.01 s."""
    client = OpenLoop(columns([(0.0, 40, 3)] * 3))
    run = replayed(client, PrefillFirst(4, 30), FreePrompts(), BlockPool(100, 16), max_model_len=1600)
    assert run.requests["finish_s"].tolist() == [0.02] * 3
    pooled = metrics.token_gaps(run)
    assert pooled.counts.sum() == 6
    assert pooled.mean() == pytest.approx(0.01)

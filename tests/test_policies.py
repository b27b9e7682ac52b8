"""Small exact cases of each policy's own rules (convention C0: 10 ms a step, blocks of 16 tokens)."""

from __future__ import annotations

import numpy as np
import pytest
from serving import StepTime, Watched, columns, latencies, serve, shape_of_rows

from servecast.batch import Batch, OutOfMemory
from servecast.errors import InputError
from servecast.kvcache import Growth
from servecast.policies import POLICIES, Continuous, Padded, Static
from servecast.policies.decoding import DecodeRows
from servecast.requests import Request, Sequence, Status
from servecast.workload.clients import HeldBack, OpenLoop


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9)


def decisions(run, *names):
    return list(zip(*(run.decisions[name].tolist() for name in names), strict=True))


@pytest.mark.parametrize("kind", [Static, Padded])
class TestClosedBatches:
    def test_a_full_batch_closes_at_once(self, kind):
        close(serve([(0, 10, 1), (0.002, 10, 1)], kind(2, 1.0)).requests["scheduled_s"], 0.002)

    def test_a_partial_batch_closes_when_its_oldest_has_waited(self, kind):
        run = serve([(0, 10, 1), (0.002, 10, 1)], kind(3, 0.25))
        close(run.requests["scheduled_s"], 0.25)

    def test_an_arrival_as_it_closes_still_joins(self, kind):
        run = serve([(0, 10, 1), (0.25, 10, 1)], kind(3, 0.25))
        close(run.requests["scheduled_s"], 0.25)

    def test_no_slot_is_refilled_before_the_last_member_ends(self, kind):
        run = serve([(0, 10, 2), (0, 10, 50), (0.001, 10, 1)], kind(2, 0.0))
        close(run.requests["finish_s"], [0.02, 0.5, 0.51])
        held = run.decisions["slots"] * run.decisions["iterations"]
        live = (run.decisions["useful_decode_rows"] + run.decisions["prefill_rows"]) * run.decisions["iterations"]
        assert (held.sum(), live.sum()) == (101, 53)

    def test_answers_of_a_batch_end_come_together(self, kind):
        run = serve([(0, 10, 2), (0, 10, 50)], kind(2, 0.0, "batch_end"))
        close(run.requests["finish_s"], 0.5)
        close(run.requests["first_token_s"], 0.5)

    def test_memory_that_runs_out_fails_the_members_and_restarts(self, kind):
        run = serve([(0, 10, 5), (0, 10, 200), (0.3, 10, 1)], kind(2, 0.0), cap=5, restart_s=2.0, on_too_long="cut")
        [event] = run.oom
        assert run.requests["status"].tolist() == [Status.COMPLETED, Status.OOM, Status.COMPLETED]
        assert (event.requests, event.available_bytes) == (1, 5.0)
        assert event.wanted_bytes == 6.0
        close(run.requests["scheduled_s"][2], event.time_s + 2.0)
        assert np.isnan(run.requests["finish_s"][1])

    def test_at_a_batch_end_all_members_are_lost(self, kind):
        run = serve([(0, 10, 5), (0, 10, 200)], kind(2, 0.0, "batch_end"), cap=5, on_too_long="cut")
        assert run.requests["status"].tolist() == [Status.OOM, Status.OOM]
        assert run.oom[0].requests == 2

    def test_activations_beyond_what_was_set_aside_count(self, kind):
        """A step of more than 40 tokens borrows a block for every 10 more: two prompts of 40 borrow 4."""
        blocks = {Static: 2 * 3, Padded: 5}[kind]  # row by row, or one rectangle of 80 tokens

        def run(cap):
            requests = [(0, 40, 2), (0, 40, 2)]
            return serve(requests, kind(2, 0.0), cap=cap, activation_blocks=lambda tokens: max(0, tokens - 40) // 10)

        [event] = run(blocks + 3).oom
        assert (event.wanted_bytes, event.available_bytes, event.time_s) == (blocks + 4, blocks + 3, 0.0)
        assert run(blocks + 4).oom == []

    def test_the_log_holds_the_whole_rectangle_or_the_rows(self, kind):
        run = serve([(0, 30, 1), (0, 10, 3)], kind(2, 0.0))
        log = decisions(run, "prefill_tokens", "prefill_pairs", "decode_rows", "decode_context", "kv_blocks")
        static = [(40, 465 + 55, 0, 0, 3), (0, 0, 1, 10, 3)]
        padded = [(60, 2 * 465, 0, 0, 4), (0, 0, 2, 60, 4)]
        assert log == {Static: static, Padded: padded}[kind]


def test_padded_memory_is_one_rectangle():
    run = serve([(0, 30, 1), (0, 10, 5)], Padded(2, 0.0))
    assert run.decisions["kv_blocks"].tolist() == [4, 5]  # 2 x 30 = 60 tokens, then 2 x 34 = 68


def test_static_rows_keep_their_memory_until_the_batch_ends():
    run = serve([(0, 100, 1), (0, 10, 30)], Static(2, 0.0))
    assert run.decisions["kv_blocks"].tolist() == [8, 7 + 3]


def test_memory_of_static_rows_that_have_ended_can_be_missing_for_the_others():
    """The first member has its one token at once; its 7 blocks would let the second grow to 3, and are not given."""
    requests = [(0, 100, 1), (0, 10, 30)]
    assert not serve(requests, Static(2, 0.0), cap=10, max_model_len=160).oom
    run = serve(requests, Static(2, 0.0), cap=9, max_model_len=140)
    assert run.requests["status"].tolist() == [Status.COMPLETED, Status.OOM]
    [event] = run.oom
    assert (event.requests, event.wanted_bytes, event.available_bytes) == (1, 10, 9)
    assert run.requests["generated_tokens"][1] == 23  # 32 tokens in two blocks, and one more that is not yet read


def test_continuous_chunks_a_long_prompt():
    run = serve([(0, 20, 2)], Continuous(4, 8))
    assert decisions(run, "prefill_tokens", "prefill_context", "prefill_pairs") == [
        (8, 0, 36), (8, 8, 8 * 8 + 36), (4, 16, 4 * 16 + 10), (0, 0, 0),
    ]  # fmt: skip
    close(run.requests["first_token_s"], 0.03)


def test_without_chunking_a_prompt_waits_for_budget_and_blocks_the_queue():
    requests = [(0, 30, 3), (0, 30, 1), (0, 2, 1)]
    run = serve(requests, Continuous(4, 40, enable_chunked_prefill=False))
    close(run.requests["scheduled_s"], [0, 0.01, 0.01])
    chunked = serve(requests, Continuous(4, 40))
    close(chunked.requests["scheduled_s"], [0, 0, 0.01])


def test_all_blocks_of_a_prompt_must_be_there_before_its_first_chunk():
    run = serve([(0, 16, 20), (0, 60, 1)], Continuous(4, 8), cap=5, max_model_len=64)
    ends = run.requests["finish_s"][0]
    close(run.requests["scheduled_s"][1], ends)


def test_nobody_is_admitted_in_a_step_that_preempts():
    seen = []

    def witness(state, decision):
        if isinstance(decision, Batch) and decision.tally.preempted:
            seen.append(decision.shape.prefill_rows)

    serve([(0, 16, 40)] * 3 + [(0.2, 4, 1)], Watched(Continuous(), witness), cap=4)
    assert seen and not any(seen)


def test_a_crash_in_the_first_step_loses_every_member():
    run = serve([(0, 60, 1)] * 3, Static(3, 0.0), cap=11, max_model_len=100)
    assert [event.requests for event in run.oom] == [3]
    assert isinstance(run.oom[0], OutOfMemory)


def test_a_preempted_sequence_is_recomputed_with_what_it_generated():
    run = serve([(0, 16, 33), (0, 32, 17)], Continuous(), cap=4, cost=StepTime(0.01, 1e-4))
    again = run.decisions["prefill_tokens"] * (run.decisions["recomputed_tokens"] > 0)
    assert again.sum() == 33 and run.requests["recomputed_tokens"].tolist() == [0, 32]


def test_every_policy_walks_its_rows():
    for kind in POLICIES.values():
        policy = kind()

        def witness(state, decision):
            if isinstance(decision, Batch):
                assert decision.shape == shape_of_rows(decision)

        serve([(0, 5, 3), (0, 9, 2)], Watched(policy, witness))


def test_queueing_is_part_of_ttft():
    run = serve([(0, 10, 1)] * 3, Continuous(max_num_seqs=1))
    close(latencies(run)["queue"], [0, 0.01, 0.02])
    close(latencies(run)["ttft"], [0.01, 0.02, 0.03])


@pytest.mark.parametrize("kind", [Static, Padded])
class TestClosedBatchesAtTheEdge:
    def test_a_horizon_keeps_members_whose_answer_was_held_back(self, kind):
        requests = [(0, 30, 23), (0, 2, 1), (0, 37, 1)]
        run = serve(requests, kind(2, 0.0, "batch_end"), cap=30, horizon_s=0.01)
        assert run.requests["id"].tolist() == [0, 1, 2]
        assert run.requests["status"].tolist() == [Status.UNFINISHED] * 3
        assert run.requests["generated_tokens"].tolist() == [1, 1, 0]
        streamed = serve(requests, kind(2, 0.0), cap=30, horizon_s=0.01)
        assert streamed.requests["status"].tolist() == [Status.UNFINISHED, Status.COMPLETED, Status.UNFINISHED]

    def test_decode_steps_borrow_memory_for_their_activations_too(self, kind):
        """Two rows of 20 tokens hold 4 blocks (padded: 3); their decode steps borrow 3 more."""
        held = {Static: 4, Padded: 3}[kind]

        def run(cap):
            requests = [(0, 20, 5), (0, 20, 5)]
            borrowed = {40: 0, 2: 3}
            return serve(requests, kind(2, 0.0), cap=cap, activation_blocks=borrowed.__getitem__, max_model_len=48)

        assert run(held + 3).oom == []
        [event] = run(held + 2).oom
        assert (event.wanted_bytes, event.available_bytes) == (held + 3, held + 2)
        close(event.time_s, 0.01)

    def test_its_oldest_waits_since_it_reached_the_server(self, kind):
        client = HeldBack(OpenLoop(columns([(0, 10, 1), (0, 10, 1)])), 1)
        run = serve([], kind(2, 0.25), client=client)
        close(run.requests["scheduled_s"], [0.25, 0.25 + 0.01 + 0.25])


def test_more_rows_than_a_million_slots():
    rows = DecodeRows(Growth(16))
    for slot in (0, 1 << 20, (1 << 20) + 1):
        sequence = Sequence(Request(slot, 0.0, 10, 3), 0.0, 3)
        sequence.computed, sequence.generated, sequence.slot = 10, 1, slot
        rows.join(sequence)
    assert rows.steps(1 << 20) == 2
    assert [sequence.slot for sequence in rows.advance(2)] == [0, 1 << 20, (1 << 20) + 1]


def test_without_chunking_a_prompt_over_the_budget_is_an_error_and_no_livelock():
    with pytest.raises(InputError, match="8 is less than a prompt of 40 tokens"):
        serve([(0, 40, 2)], Continuous(4, 8, enable_chunked_prefill=False))


@pytest.mark.parametrize("policy", [kind() for kind in POLICIES.values()], ids=list(POLICIES))
def test_times_that_the_clock_cannot_tell_apart_are_refused(policy):
    with pytest.raises(InputError, match="no longer"):
        serve([(1e17, 10, 3)], policy)


def test_what_arrives_at_the_horizon_has_arrived():
    run = serve([(0, 10, 20), (0.1 + 2e-17, 10, 5), (0.1 + 1e-6, 10, 5)], Continuous(), horizon_s=0.1)
    assert run.requests["id"].tolist() == [0, 1]

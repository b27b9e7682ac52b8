"""Faults of this field's simulators and engines, each as its tiny trigger and the exact right outcome.

Convention C0: every step takes 10 ms, blocks of 16 tokens, no token budget unless given, first come first served.
Identifiers are those of the list of faults the project keeps.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from serving import StepTime, Watched, columns, latencies, rows_held, serve

from servecast.batch import Batch
from servecast.errors import InputError
from servecast.kvcache import BlockPool, Growth
from servecast.policies import POLICIES, Continuous, Static
from servecast.policies.decoding import DecodeRows
from servecast.requests import Request, Sequence, Status
from servecast.workload.clients import ClosedLoop, LengthColumns, OpenLoop


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9)


def test_LIV_01_a_request_larger_than_the_cache_is_rejected_and_the_next_one_served():
    run = serve([(0, 40, 1), (0, 10, 1)], Continuous(), cap=2)
    assert run.requests["status"].tolist() == [Status.REJECTED, Status.COMPLETED]
    close(run.requests["finish_s"][1], 0.010)
    assert len(run.requests["id"]) == 2


def test_LIV_04_a_preempted_sequence_is_never_scheduled_again_in_the_same_step():
    pool_free = []

    def witness(state, decision):
        pool_free.append(state.pool.free)
        if isinstance(decision, Batch):
            ids = [row.sequence.request.id for row in decision.rows(decision)]
            assert len(ids) == len(set(ids))

    run = serve([(0, 16, 40)] * 3, Watched(Continuous(), witness), cap=4)
    close(run.end_s, 1.020)
    assert run.requests["preemptions"].tolist() == [0, 1, 1]
    assert run.requests["generated_tokens"].sum() == 120
    assert pool_free[-1] == 4


@pytest.mark.parametrize("policy", [kind() for kind in POLICIES.values()], ids=list(POLICIES))
def test_LIV_05_a_step_that_takes_no_time_is_an_error(policy):
    with pytest.raises(InputError, match="step time must be > 0"):
        serve([(0, 10, 5)], policy, cost=StepTime(fixed=0.0))


def test_LIV_08_an_emptied_server_takes_the_next_request_at_once():
    run = serve([(0, 10, 1), (0.001, 10, 1)], Continuous(max_num_seqs=1))
    close(run.requests["finish_s"], [0.010, 0.020])
    close(latencies(run)["ttft"][1], 0.019)


def test_LIV_10_running_requests_get_their_token_before_any_new_prompt():
    prompts = [(0, 4, 20)] * 4 + [(0.010 * i, 32, 1) for i in range(7)]
    run = serve(prompts, Continuous(max_num_seqs=32, max_num_batched_tokens=32))
    close(latencies(run)["e2e"][:4], 0.200)
    tokens = run.decisions["prefill_tokens"] + run.decisions["decode_rows"]
    assert tokens.max() <= 32
    mixed = (run.decisions["prefill_tokens"] > 0) & (run.decisions["decode_rows"] > 0)
    assert run.decisions["prefill_tokens"][mixed].max() == 28


def test_LIV_16_a_head_that_can_never_fit_does_not_block_the_queue():
    run = serve([(0, 33, 1), (0, 10, 1)], Continuous(), cap=2)
    assert run.requests["status"].tolist() == [Status.REJECTED, Status.COMPLETED]


def test_sequences_that_preempt_each_other_for_ever_end_in_an_error():
    """Prompts admitted chunk by chunk, by priority, without the blocks for the rest: by vLLM's rules nobody gets through."""
    rng = random.Random(0)
    n = rng.randint(4, 23)
    load = columns((0.0, rng.randint(60, 180), rng.randint(1, 20)) for _ in range(n))
    load = replace(load, priority=np.array([rng.randint(0, 2) for _ in range(n)]))
    policy = Continuous(
        8, 64, long_prefill_token_threshold=10, scheduling_policy="priority", scheduler_reserve_full_isl=False
    )
    with pytest.raises(InputError, match="take each other's KV blocks for ever"):
        serve([], policy, cap=12, client=OpenLoop(load), max_model_len=192, on_too_long="cut")
    kept = replace(policy, scheduler_reserve_full_isl=True)
    served = serve([], kept, cap=12, client=OpenLoop(load), on_too_long="cut")
    assert (served.requests["status"] == Status.COMPLETED).all()


def test_MET_01_one_output_token():
    run = serve([(0, 10, 1)], Continuous())
    close([latencies(run)["ttft"][0], latencies(run)["e2e"][0]], 0.010)


def test_MET_03_all_rejected_is_a_run_like_any_other():
    run = serve([(0, 4000, 1)], Continuous(), cap=2)
    assert run.requests["status"].tolist() == [Status.REJECTED]
    assert run.end_s == 0.0 and len(run.decisions["start_s"]) == 0


def test_MET_05_a_request_cut_off_before_its_first_token_has_none():
    run = serve([(0, 10, 5), (0.049, 10, 5)], Continuous(max_num_seqs=1), horizon_s=0.045)
    assert len(run.requests["id"]) == 1  # the other had not arrived
    run = serve([(0, 10, 50), (0.001, 10, 5)], Continuous(max_num_seqs=1), horizon_s=0.045)
    assert run.requests["status"].tolist() == [Status.UNFINISHED] * 2
    assert math.isnan(run.requests["first_token_s"][1]) and math.isnan(run.requests["scheduled_s"][1])


def test_MET_07_a_horizon_separates_finished_from_generated_tokens():
    run = serve([(0, 10, 5), (0, 10, 1000)], Continuous(), horizon_s=0.050)
    assert run.requests["generated_tokens"].tolist() == [5, 5]
    assert run.requests["status"].tolist() == [Status.COMPLETED, Status.UNFINISHED]
    close(run.end_s, 0.050)


def test_MET_09_one_step_at_a_time():
    run = serve([(0.025, 10, 100)] * 3, Continuous(max_num_seqs=1))
    starts, seconds = run.decisions["start_s"], run.decisions["seconds"]
    assert (starts[1:] >= (starts + seconds)[:-1] - 1e-9).all()
    close(run.end_s - 0.025, run.decisions["iterations"].sum() * 0.010)
    assert run.decisions["iterations"].sum() == 300


def test_MET_11_the_first_interval_is_not_an_inter_token_gap():
    run = serve([(0, 10, 100), (0.5, 10, 5)], Continuous(max_num_seqs=1))
    close(latencies(run)["ttft"][1], 0.51)
    close(latencies(run)["e2e"][1] - latencies(run)["ttft"][1], 4 * 0.010)


def test_MET_15_a_closed_loop_does_not_wait_for_the_whole_wave():
    lengths = LengthColumns(np.array([10, 10, 10]), np.array([1, 10, 1]))
    run = serve([], Continuous(), client=ClosedLoop(2, 0.0, lengths))
    close(run.requests["sent_s"], [0.0, 0.0, 0.010])


def test_MET_17_tokens_of_a_batch_are_counted_once():
    run = serve([(0, 10, 5)] * 4, Static(batch_size=4))
    close(run.end_s, 0.050)
    assert run.requests["generated_tokens"].sum() == 20


def test_MET_21_a_step_is_priced_for_what_it_computes_only():
    requests = [(0, 4, 20), (0.005, 40, 1), (0.005, 40, 1)]
    run = serve(requests, Continuous(max_num_seqs=8, max_num_batched_tokens=8))
    tokens = run.decisions["prefill_tokens"] + run.decisions["decode_rows"]
    assert tokens.max() == 8
    assert run.decisions["prefill_rows"][:3].tolist() == [1, 1, 1]  # those that wait for budget are no part of it
    assert run.decisions["waiting"][1] == 1


def test_PRE_01_tokens_are_counted_once_across_a_preemption():
    run = serve([(0, 16, 33), (0, 32, 17)], Continuous(), cap=4)
    assert run.requests["generated_tokens"].sum() == 50
    assert run.requests["preemptions"].tolist() == [0, 1]
    close(run.end_s, 0.490)


def test_PRE_02_the_first_token_stays_where_it_was_sent():
    run = serve([(0, 16, 33), (0, 32, 17)], Continuous(), cap=4)
    times = latencies(run)
    close(times["ttft"][1], 0.010)
    close(times["e2e"][1], 0.490)
    close(run.gaps["seconds"], [0.330])
    close((times["e2e"][1] - times["ttft"][1]) / 16, 0.030)


def test_PRE_07_preemptions_rise_as_the_cache_shrinks():
    requests = [(0.002 * i, 64, 32) for i in range(100)]
    preemptions = [serve(requests, Continuous(), cap=cap).requests["preemptions"].sum() for cap in (700, 300, 150, 60)]
    assert preemptions[0] == 0
    assert preemptions == sorted(preemptions) and preemptions[-1] > 25


def test_PRE_08_busy_time_is_the_number_of_steps():
    run = serve([(0, 16, 33), (0, 32, 17)], Continuous(), cap=4)
    close(run.decisions["seconds"].sum(), run.decisions["iterations"].sum() * 0.010)
    assert run.decisions["iterations"].sum() == 49


def test_PRE_09_ties_are_served_in_the_order_of_the_trace():
    run = serve([(0, 16, 4)] * 10, Continuous(), cap=6)
    assert (np.diff(run.requests["finish_s"]) >= 0).all()


def test_BLK_01_free_slots_of_the_last_block_are_used():
    pool = BlockPool(2, 16)
    assert pool.blocks(10 + 7) - pool.blocks(10) == 1
    assert pool.blocks(10 + 4) - pool.blocks(10) == 0


def test_the_pool_hands_out_what_it_has_and_not_a_block_more():
    pool = BlockPool(3, 16)
    pool.take(3)
    for beyond in (lambda: pool.take(1), lambda: BlockPool(3, 16).give(1), lambda: BlockPool(0, 16)):
        with pytest.raises(AssertionError):
            beyond()
    BlockPool(1, 1).take(1)


def test_a_watermark_keeps_blocks_free_only_while_somebody_runs():
    """Two of four blocks: the second waits until the first has ended, and then may have all of them."""
    run = serve([(0, 16, 20), (0, 60, 4)], Continuous(watermark=0.5), cap=4)
    close(run.requests["scheduled_s"], [0.0, 0.2])
    close(run.requests["finish_s"], [0.2, 0.24])
    beside = serve([(0, 16, 20), (0, 16, 4)], Continuous(watermark=0.5), cap=4)
    close(beside.requests["scheduled_s"], [0.0, 0.0])


@pytest.mark.parametrize(("before", "after", "held"), [(10, 14, (1, 1)), (100, 200, (7, 13))], ids=["BLK_03", "BLK_05"])
def test_growth_takes_only_the_missing_blocks(before, after, held):
    rows = DecodeRows(Growth(16))
    sequence = Sequence(Request(0, 0.0, before, 1000), 0.0, 1000)
    sequence.computed, sequence.generated, sequence.slot = before, 1, 0
    rows.join(sequence)
    assert (-(-before // 16), -(-before // 16) + rows.blocks_needed(after - before)) == held


def test_BLK_09_outputs_are_clamped_to_max_model_len():
    run = serve([(0, 15, 5)], Continuous(), max_model_len=16, on_too_long="cut")
    assert run.requests["generated_tokens"].tolist() == [1]
    assert run.requests["output_limit"].tolist() == [1]


def test_BLK_11_chunks_never_overcommit_the_cache():
    def witness(state, decision):
        assert state.pool.held <= state.pool.total

    run = serve([(0, 40, 1), (0, 16, 1)], Watched(Continuous(8, 8), witness), cap=2, max_model_len=32)
    assert run.requests["status"].tolist() == [Status.REJECTED, Status.COMPLETED]
    run = serve([(0, 40, 1), (0, 16, 1)], Watched(Continuous(8, 8), witness), cap=3)
    assert run.requests["status"].tolist() == [Status.COMPLETED, Status.COMPLETED]
    close(run.requests["finish_s"], [0.050, 0.070])


def test_BLK_13_no_request_is_lost_under_pressure():
    seen = set()

    def witness(state, decision):
        alive = [s.request.id for s in state.running] + [s.request.id for s in state.waiting]
        assert len(alive) == len(set(alive))
        seen.update(alive)
        assert sum(rows_held(state)) == state.pool.held

    run = serve([(0.001 * i, 20 + i % 50, 5 + i % 40) for i in range(500)], Watched(Continuous(), witness), cap=12)
    assert sorted(run.requests["id"].tolist()) == list(range(500))
    assert (run.requests["status"] == Status.COMPLETED).all()
    assert seen == set(range(500))


def test_WRK_16_no_more_in_flight_than_users():
    most = []

    def witness(state, decision):
        most.append(len(state.running) + len(state.waiting))

    lengths = LengthColumns(np.full(200, 10), np.full(200, 7))
    serve([], Watched(Continuous(), witness), client=ClosedLoop(32, 0.0, lengths))
    assert max(most) == 32


def test_WRK_17_idle_time_costs_nothing():
    near = serve([(0, 10, 5), (3, 10, 5)], Continuous())
    far = serve([(0, 10, 5), (1e6, 10, 5)], Continuous())
    close(latencies(far)["ttft"], latencies(near)["ttft"])
    assert len(far.decisions["start_s"]) == len(near.decisions["start_s"]) == 4


def test_CFG_07_twice_the_same_run_is_the_same_to_the_bit():
    requests = [(0.003 * i, 10 + 7 * i % 90, 1 + 13 * i % 70) for i in range(200)]
    first, second = (serve(requests, Continuous(), cap=40, cost=StepTime(0.01, 1e-4, 1e-7)) for _ in range(2))
    for name in first.requests:
        assert first.requests[name].tobytes() == second.requests[name].tobytes()
    for name in first.decisions:
        assert first.decisions[name].tobytes() == second.decisions[name].tobytes()


def test_columns_are_what_they_say():
    assert columns([(0, 1, 2)]).prompt_tokens.tolist() == [1]

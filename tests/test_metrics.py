"""Metrics against numbers worked by hand, and the pooled gaps against numpy on the whole list."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import toy_runs as toy
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import serve

from servecast import metrics, report
from servecast.against.result import difference
from servecast.batch import OutOfMemory
from servecast.errors import InputError
from servecast.metrics.log import clip_decisions
from servecast.plan.sample import refusal
from servecast.policies import Continuous, Padded, Static
from servecast.scenario.goals import Goal

if TYPE_CHECKING:
    from pathlib import Path

STEP = 0.010  # every step of faults.md's convention C0


def row_of(run: toy.ToyRun, **options: object) -> dict[str, object]:
    return metrics.summarise(run, policy="continuous", seed=1, **options)  # type: ignore[arg-type]


def alone(output: int, generated: int | None = None, arrival_s: float = 0.0, start_s: float = 0.0) -> toy.ToyRun:
    """One request of 10 prompt tokens under C0, served from ``start_s``; unfinished when it generated fewer."""
    generated = output if generated is None else generated
    request = {
        "arrival_s": arrival_s,
        "output_tokens": output,
        "generated_tokens": generated,
        "scheduled_s": start_s,
        "first_token_s": start_s + STEP,
        "finish_s": start_s + STEP * output if generated == output else math.nan,
        "status": toy.COMPLETED if generated == output else toy.UNFINISHED,
    }
    decisions = [{"start_s": start_s, "seconds": STEP, "prefill_rows": 1, "prefill_tokens": 10, "prefill_pairs": 55}]
    if generated > 1:
        steps = {"iterations": generated - 1, "seconds": STEP * (generated - 1), "step_s": STEP}
        decisions.append({"start_s": start_s + STEP, "decode_rows": 1, "decode_context": 10, "kv_blocks": 1} | steps)
    end = start_s + STEP * generated
    return toy.ToyRun(toy.request_columns([request]), toy.decision_columns(decisions), end_s=end)


def joined(*runs: toy.ToyRun, end_s: float) -> toy.ToyRun:
    """Independent runs as one: their requests and decisions one after the other."""
    requests, decisions = (
        {name: np.concatenate([getattr(run, table)[name] for run in runs]) for name in getattr(runs[0], table)}
        for table in ("requests", "decisions")
    )
    requests["id"] = np.arange(len(requests["id"]))
    return toy.ToyRun(
        requests,
        decisions,
        {name: np.concatenate([run.gaps[name] for run in runs]) for name in runs[0].gaps},
        end_s=end_s,
    )


def test_met_01_an_answer_of_one_token_has_no_tpot() -> None:
    row = row_of(alone(1))
    assert row["ttft_mean_s"] == row["e2e_mean_s"] == row["ttft_p99_s"] == 0.010
    assert row["tpot_mean_s"] is None
    assert row["tpot_p50_s"] is None
    assert row["itl_mean_s"] is None
    assert row["makespan_s"] == 0.010


@pytest.mark.parametrize("statuses", [[], [toy.REJECTED] * 3])
def test_met_03_nothing_completed_is_blank_not_zero(statuses: list[int]) -> None:
    requests = toy.request_columns([{"status": status, "arrival_s": 1.0 * i} for i, status in enumerate(statuses)])
    if not statuses:
        requests = {name: column[:0] for name, column in toy.request_columns([{}]).items()}
    run = toy.ToyRun(requests, toy.decision_columns([]), end_s=2.0 if statuses else 0.0)
    row = row_of(run, slo=metrics.Slo(ttft_s=1.0), usd_per_hour=2.5, hardware=HARDWARE)
    blank = [name for name in row if name.startswith((*metrics.LATENCIES, "usd", "padding_waste"))]
    assert {f"{name}_p99_s" for name in metrics.LATENCIES} < set(blank)
    assert [
        name for name in blank if row[name] not in (None, 0.0) or (row[name] == 0 and name != "padding_waste_s")
    ] == []
    assert row["completed"] == 0
    assert row["rejected"] == len(statuses)
    assert row["slo_attainment"] == (0.0 if statuses else None)
    assert not any(isinstance(value, float) and math.isnan(value) for value in row.values())


def test_met_05_a_request_cut_off_before_its_first_token_has_no_ttft() -> None:
    cut = {"arrival_s": 1.7e9, "status": toy.UNFINISHED, "output_tokens": 5}
    run = toy.ToyRun(toy.request_columns([cut]), toy.decision_columns([]), end_s=1.7e9 + 1)
    assert row_of(run)["ttft_mean_s"] is None
    frame = metrics.requests_frame(run)
    assert frame[["queue_s", "ttft_s", "tpot_s", "e2e_s"]].isna().all(axis=None)
    assert frame["status"].tolist() == ["unfinished"]


def test_met_07_only_completed_requests_make_throughput() -> None:
    run = joined(alone(5), alone(1000, generated=5), end_s=0.050)
    row = row_of(run)
    assert row["output_throughput_tps"] == pytest.approx(100)
    assert row["total_throughput_tps"] == pytest.approx(300)
    assert row["request_throughput_rps"] == pytest.approx(20)
    assert row["generated_tokens"] == 10
    assert (row["completed"], row["unfinished"]) == (1, 1)


def test_met_11_the_first_interval_is_no_gap() -> None:
    run = alone(5, arrival_s=0.0, start_s=1.0)
    row = row_of(run)
    assert metrics.token_gaps(run).counts.sum() == 4
    assert row["itl_mean_s"] == pytest.approx(STEP, rel=1e-12)
    assert row["itl_p99_s"] == pytest.approx(STEP, rel=1e-12)
    assert row["tpot_p50_s"] == pytest.approx(STEP)
    assert row["ttft_p50_s"] == pytest.approx(1.010)
    assert row["queue_p50_s"] == 1.0


def test_met_17_a_static_batch_counts_each_of_its_tokens_once() -> None:
    requests = [
        {"output_tokens": 5, "generated_tokens": 5, "scheduled_s": 0, "first_token_s": 0.01, "finish_s": 0.05}
    ] * 4
    decisions = [
        {"start_s": 0, "seconds": 0.01, "prefill_rows": 4, "prefill_tokens": 40},
        {"start_s": 0.01, "iterations": 4, "seconds": 0.04, "decode_rows": 4, "decode_context": 40},
    ]
    run = toy.ToyRun(toy.request_columns(requests), toy.decision_columns(decisions), end_s=0.05)
    row = row_of(run)
    assert row["output_throughput_tps"] == pytest.approx(400)
    assert row["itl_mean_s"] == pytest.approx(STEP)
    assert row["mean_decode_rows"] == pytest.approx(16 / 5)


def test_met_18_a_rejected_request_enters_no_latency() -> None:
    run = joined(alone(5), end_s=0.05)
    rejected = toy.request_columns([{"status": toy.REJECTED, "finish_s": 0.0}])
    run.requests = {name: np.concatenate([column, rejected[name]]) for name, column in run.requests.items()}
    row = row_of(run, slo=metrics.Slo(ttft_s=1.0))
    assert (row["arrived"], row["completed"], row["rejected"]) == (2, 1, 1)
    assert row["ttft_p50_s"] == pytest.approx(0.010)
    assert row["slo_attainment"] == 0.5
    assert row["goodput_rps"] == pytest.approx(20)


def waiting_run(rate_served: float, requests: int = 1000) -> toy.ToyRun:
    """Ten arrivals a second, scheduled at ``rate_served``."""
    rows = [
        {"arrival_s": i / 10, "scheduled_s": max(i / 10, i / rate_served), "finish_s": max(i / 10, i / rate_served) + 1}
        for i in range(requests)
    ]
    return toy.ToyRun(toy.request_columns(rows), toy.decision_columns([]), end_s=requests / rate_served + 1)


def test_met_19_overload_is_called_overload() -> None:
    assert row_of(waiting_run(5))["regime"] == "overloaded"
    assert row_of(waiting_run(20))["regime"] == "stable"
    short, long = row_of(waiting_run(5, 500)), row_of(waiting_run(5, 1000))
    assert long["queue_p99_s"] > 1.9 * short["queue_p99_s"]  # type: ignore[operator]


def test_a_queue_that_built_up_and_was_worked_off_is_a_backlog() -> None:
    arrivals = [*np.linspace(0, 60, 61), *np.linspace(61, 70, 100), 89, 90]
    rows = [{"arrival_s": a, "scheduled_s": a if a <= 60 or a > 70 else 85} for a in arrivals]
    assert metrics.regime(toy.request_columns(rows), 100) == "backlogged"
    rows = [{"arrival_s": a, "scheduled_s": a if a <= 60 else 95} for a in arrivals]
    assert metrics.regime(toy.request_columns(rows), 100) == "overloaded"


def test_a_burst_has_no_regime_and_no_offered_rate() -> None:
    requests = toy.request_columns([{"scheduled_s": 0.0}] * 5)
    assert metrics.regime(requests, 1.0) is None
    row = row_of(toy.ToyRun(requests, toy.decision_columns([]), end_s=1.0))
    assert row["offered_rps"] is None
    assert row["regime"] is None


def test_requests_never_scheduled_wait_to_the_end_and_rejected_ones_not_at_all() -> None:
    late = [{"arrival_s": 60 + i, "status": toy.UNFINISHED} for i in range(30)]
    early = [{"arrival_s": 1.0 * i, "scheduled_s": 1.0 * i} for i in range(60)]
    assert metrics.regime(toy.request_columns(early + late), 100) == "overloaded"
    few = [{"arrival_s": 89.0, "status": toy.UNFINISHED}, {"arrival_s": 90.0, "scheduled_s": 90.0}]
    assert metrics.regime(toy.request_columns(early + few), 100) == "stable"
    rejected = [{"arrival_s": 60 + i, "status": toy.REJECTED} for i in range(30)]
    assert metrics.regime(toy.request_columns(early + rejected), 100) == "stable"


def test_met_22_warm_up_excludes_what_arrived_before_its_end() -> None:
    run = joined(*(alone(1, arrival_s=i / 100, start_s=i / 100) for i in range(5)), end_s=0.05)
    row = row_of(run, window=metrics.Window(warmup_s=0.010))
    assert (row["arrived"], row["arrived_whole_run"]) == (4, 5)
    assert (row["completed"], row["completed_whole_run"]) == (4, 5)
    assert (row["window_start_s"], row["window_end_s"]) == (0.010, 0.04)
    assert row["request_throughput_rps"] == pytest.approx(4 / 0.03)
    assert row["makespan_s"] == 0.05


def test_window_counts_tokens_by_emission() -> None:
    # Tokens at 10, 20, ... 100 ms; requests arrive at 0 and at 60 ms. The window is (25, 60] ms: four tokens.
    run = joined(alone(10), alone(1, arrival_s=0.06, start_s=0.10), end_s=0.11)
    row = row_of(run, window=metrics.Window(warmup_s=0.025))
    assert row["output_throughput_tps"] == pytest.approx(4 / 0.035)
    assert row["busy_fraction"] == pytest.approx(1.0)
    assert row["itl_mean_s"] == pytest.approx(STEP)
    assert row["generated_tokens"] == 1
    run.respond = "batch_end"
    row = row_of(run, window=metrics.Window(warmup_s=0.025))
    assert row["output_throughput_tps"] == 0
    assert row["itl_mean_s"] is None


def test_out_07_a_window_pays_for_its_own_time_and_its_own_tokens() -> None:
    """A dollar a second: 55 ms for the tokens at 10, 20 ... 60 ms and the prompt of 10 tokens whose first one is there."""
    run = joined(alone(10), alone(1, arrival_s=0.06, start_s=0.10), end_s=0.11)
    row = row_of(run, window=metrics.Window(warmup_s=0.005), usd_per_hour=3600.0)
    assert row["usd_per_mtok_output"] == pytest.approx(0.055 / 6 * 1e6)
    assert row["usd_per_mtok_input"] == pytest.approx(0.055 / 10 * 1e6)
    assert row["usd_per_mtok_total"] == pytest.approx(0.055 / 16 * 1e6)
    # (25, 60] ms: the second prompt arrives there, and is computed later.
    row = row_of(run, window=metrics.Window(warmup_s=0.025), usd_per_hour=3600.0)
    assert row["usd_per_mtok_output"] == pytest.approx(0.035 / 4 * 1e6)
    assert row["usd_per_mtok_input"] is None
    whole = row_of(run, usd_per_hour=3600.0)
    assert whole["usd_per_mtok_output"] == pytest.approx(0.11 / 11 * 1e6)


@pytest.mark.parametrize("edge_s", [0.015, 0.105, 0.255, 0.345, 0.405, 0.475])
def test_a_preempted_requests_tokens_are_in_one_window_each(edge_s: float) -> None:
    """PRE-01 with a last arrival at 1 s: 50 tokens, one of them by the step that recomputes, and all within (0, 1]."""
    run = toy.continuous([0.0, 0.0, 1.0], [16, 32, 10], [33, 17, 1], capacity=4, seconds=lambda shape: STEP)
    assert len(run.gaps["seconds"]) == 1 and run.requests["generated_tokens"].tolist() == [33, 17, 1]

    def tokens(start_s: float, end_s: float) -> float:
        row = row_of(run, window=metrics.Window(warmup_s=start_s, cooldown_s=1.0 - end_s))
        return row["output_throughput_tps"] * (end_s - start_s)  # type: ignore[operator, return-value]

    assert tokens(0.0, 1.0) == pytest.approx(50)
    assert tokens(0.0, edge_s) + tokens(edge_s, 1.0) == pytest.approx(50)
    # The token of the step that recomputes counts where it came.
    decoded = sum(
        int(rows) * sum(start + STEP * (at + 1) <= edge_s for at in range(int(count)))
        for start, count, rows in zip(
            *(run.decisions[name] for name in ("start_s", "iterations", "useful_decode_rows")), strict=True
        )
    )
    first = int((run.requests["first_token_s"] <= edge_s).sum())
    resumed = int((run.gaps["end_s"] <= edge_s).sum())
    assert tokens(0.0, edge_s) == pytest.approx(decoded + first + resumed)


def test_an_empty_window_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"^scenario.warmup_s: 1 s of warm-up and 0 s .* shorten them"):
        row_of(alone(3), window=metrics.Window(warmup_s=1.0))


@pytest.mark.parametrize("slope", [0.0, 1e-3, -5e-4])
@pytest.mark.parametrize("bounds", [(0.0, 9.0), (0.015, 0.047), (0.033, 0.0331), (0.02, 0.03)])
def test_clipping_keeps_the_iterations_that_end_inside(slope: float, bounds: tuple[float, float]) -> None:
    steps = 0.010 + slope * np.arange(6)
    first = {"start_s": 0.005, "iterations": 6, "seconds": steps.sum(), "step_s": 0.010}
    whole = toy.decision_columns([first | {"decode_rows": 3, "decode_context": 30, "max_context": 10}])
    clipped = clip_decisions(whole, *bounds)
    ends = 0.005 + np.cumsum(steps)
    inside = (ends > bounds[0] + 1e-9) & (ends <= bounds[1] + 1e-9)
    assert clipped["iterations"].sum() == inside.sum()
    assert clipped["seconds"].sum() == pytest.approx(steps[inside].sum())
    if inside.any():
        skipped = int(np.argmax(inside))
        assert clipped["step_s"][0] == pytest.approx(steps[skipped])
        assert clipped["start_s"][0] == pytest.approx(ends[skipped] - steps[skipped])
        assert clipped["decode_context"][0] == 30 + 3 * skipped
        assert clipped["max_context"][0] == 10 + skipped


def test_targets_are_met_at_equality_and_single_tokens_by_choice() -> None:
    run = joined(alone(5), alone(1), end_s=0.05)
    slo = metrics.Slo(ttft_s=0.010, tpot_s=0.010, e2e_s=0.050)
    assert row_of(run, slo=slo)["slo_attainment"] == 1.0
    tight = metrics.Slo(tpot_s=0.009)
    assert row_of(run, slo=tight)["slo_attainment"] == 0.5
    assert row_of(run, slo=metrics.Slo(tpot_s=0.010, single_token="fail"))["slo_attainment"] == 0.5
    excluded = row_of(run, slo=metrics.Slo(tpot_s=0.010, single_token="exclude"))
    assert excluded["slo_attainment"] == 1.0
    assert excluded["goodput_rps"] == pytest.approx(20)
    assert row_of(run)["slo_attainment"] is None
    assert row_of(run, slo=metrics.Slo())["goodput_rps"] is None


def test_answers_at_the_batch_end_have_no_pace() -> None:
    run = alone(5)
    run.respond = "batch_end"
    run.requests["first_token_s"] = run.requests["finish_s"].copy()
    row = row_of(run, slo=metrics.Slo(tpot_s=0.001))
    assert row["ttft_p50_s"] == row["e2e_p50_s"] == pytest.approx(0.05)
    assert row["tpot_mean_s"] is None
    assert row["itl_p50_s"] is None
    assert row["slo_attainment"] == 1.0


@pytest.mark.parametrize(("seconds", "price"), [(1000.0, 0.992), (10000.0, 9.92)])
def test_out_07_idle_hours_are_paid(seconds: float, price: float) -> None:
    run = alone(5)
    run.requests["generated_tokens"][:] = 700_000
    run.requests["prompt_tokens"][:] = 2_100_000
    run.end_s = seconds
    row = row_of(run, usd_per_hour=2.5)
    assert row["usd_per_mtok_output"] == pytest.approx(price, abs=price / 1000)
    assert row["usd_per_mtok_input"] == pytest.approx(price / 3, rel=1e-3)
    assert row["usd_per_mtok_total"] == pytest.approx(price / 4, rel=1e-3)
    assert row["busy_fraction"] == pytest.approx(0.05 / seconds)


def test_out_05_memory_in_use_shows() -> None:
    run = alone(5)
    run.kv_blocks_total = 4
    assert row_of(run)["kv_peak_fraction"] == 0.25


def test_client_queue_is_apart_and_latency_counts_from_sent() -> None:
    run = alone(5, arrival_s=0.0, start_s=2.0)
    run.requests["sent_s"] = np.array([1.5])
    row = row_of(run)
    assert (row["client_queue_mean_s"], row["queue_mean_s"]) == (1.5, 0.5)
    assert row["ttft_mean_s"] == pytest.approx(0.510)


def test_percentiles_are_numpy_linear() -> None:
    run = joined(*(alone(1, start_s=float(i)) for i in range(4)), end_s=4)
    row = row_of(run)
    assert [row[f"queue_p{q}_s"] for q in (50, 90, 95, 99)] == pytest.approx([1.5, 2.7, 2.85, 2.97])
    assert row["queue_mean_s"] == 1.5


def padded_pair() -> toy.ToyRun:
    """Prompts of 10 and 20, outputs of 2 and 4, padded together."""
    return toy.batched("padded", [0.0, 0.0], [10, 20], [2, 4], batch_size=2, seconds=lambda shape: 0.01)


def test_padding_and_idle_slots_by_hand() -> None:
    row = row_of(padded_pair())
    # Computed: 2 x 20 prompt tokens, 1 decode of 2 rows, then 2 more of 2 rows of which one is finished.
    assert row["computed_tokens"] == 40 + 2 + 4
    assert row["useful_tokens"] == 30 + 2 + 2
    assert row["padding_waste"] == pytest.approx(12 / 46)
    assert row["slot_waste"] == pytest.approx(2 / 8)
    assert row["slot_waste_s"] == pytest.approx(0.01)  # two steps of 10 ms, half of the slots
    assert row["idle_slot_tokens"] == 0  # a padded batch computes its finished rows
    static = row_of(toy.batched("static", [0.0, 0.0], [10, 20], [2, 4], batch_size=2))
    assert static["padding_waste"] == 0
    assert static["slot_waste"] == pytest.approx(2 / 8)
    assert static["idle_slot_tokens"] == 2


class Fake:
    """A model and a cost model of one line each."""

    def step_flops(self, shape: object, *, tensor_parallel: int = 1) -> object:
        return 100.0 * (shape.prefill_tokens + shape.decode_rows) / tensor_parallel  # type: ignore[attr-defined]

    def step_bytes(self, shape: object, *, kv_dtype: str | None = None, tensor_parallel: int = 1) -> object:
        return (100.0 + 0 * shape.decode_rows) / tensor_parallel  # type: ignore[attr-defined]

    def seconds(self, shape: object) -> object:
        return 0.001 * (shape.prefill_tokens + shape.decode_rows)  # type: ignore[attr-defined]

    def extrapolated(self, shape: object) -> object:
        return shape.max_context > 21  # type: ignore[attr-defined]


HARDWARE = metrics.Hardware(Fake(), ridge=5.0, cost=Fake())


def test_padding_in_seconds_is_what_the_useful_part_alone_would_save() -> None:
    row = row_of(padded_pair(), hardware=HARDWARE)
    # Prefill: 10 of 40 tokens are padding; the last two steps: 1 of 2 rows. Each step took 10 ms.
    assert row["padding_waste_s"] == pytest.approx(0.01 * 10 / 40 + 2 * 0.01 / 2)


def test_useful_pairs_and_contexts_add_up_to_those_of_the_requests() -> None:
    class Pairs(Fake):
        def seconds(self, shape: object) -> object:
            return 1e-3 * (shape.prefill_pairs + shape.decode_context)  # type: ignore[attr-defined]

    def seconds(shape: object) -> float:
        return 1e-3 * (shape.prefill_pairs + shape.decode_context)  # type: ignore[attr-defined]

    run = toy.batched("padded", [0.0, 0.0], [10, 20], [2, 4], batch_size=2, seconds=seconds)
    row = row_of(run, hardware=metrics.Hardware(Fake(), 5.0, Pairs()))
    pairs, context = 55 + 210, 10 + 20 + 21 + 22
    logged = 2 * 210 + 2 * (20 + 21 + 22)
    # Both of the decode's decisions are scaled by one factor, so the total of what is useful is exact up to their mix.
    useful = (run.decisions["seconds"].sum() - row["padding_waste_s"]) / 1e-3
    assert run.decisions["seconds"].sum() == pytest.approx(logged * 1e-3 + 2e-3 * 3, abs=6.1e-3)
    assert useful == pytest.approx(pairs + context, rel=0.03)


def test_shares_of_busy_time_under_the_ridge_and_outside_the_domain() -> None:
    decisions = [
        {"start_s": 0, "seconds": 3.0, "prefill_rows": 1, "prefill_tokens": 6, "max_context": 6},
        {"start_s": 3, "seconds": 1.0, "iterations": 5, "decode_rows": 2, "decode_context": 40, "max_context": 20},
    ]
    run = toy.ToyRun(toy.request_columns([{}]), toy.decision_columns(decisions), end_s=8.0)
    row = row_of(run, hardware=HARDWARE)
    assert row["bandwidth_bound_fraction"] == 0.25
    assert row["extrapolated_fraction"] == 0.25  # the mean iteration of the second reaches 22 keys
    assert row["busy_fraction"] == 0.5
    shape = metrics.mean_shapes(run.decisions)
    assert shape.decode_context.tolist() == [0, 44]  # type: ignore[attr-defined]
    assert shape.max_context.tolist() == [6, 22]  # type: ignore[attr-defined]
    assert row_of(run)["bandwidth_bound_fraction"] is None


def test_out_of_memory_events() -> None:
    run = toy.batched("padded", [0.0] * 8, [100] * 8, [400] * 8, batch_size=8, capacity=120)
    row = row_of(run)
    assert row["oom_failed"] == 8
    assert row["oom_events"] == 1
    assert row["first_oom_s"] == run.oom[0].time_s
    assert row["ttft_p50_s"] is None
    assert len(metrics.oom_frame(run)) == 1
    assert row_of(alone(2))["first_oom_s"] is None


def test_tokens_lost_to_a_crash_are_those_computed_for_what_then_failed() -> None:
    """The last token that was generated is never computed on: prompt + generated - 1, of requests with any token."""
    rows = [
        {"status": toy.OOM, "prompt_tokens": 10, "generated_tokens": 5},
        {"status": toy.OOM, "prompt_tokens": 100, "generated_tokens": 1},
        {"status": toy.OOM, "prompt_tokens": 7000, "generated_tokens": 0},  # crashed before its prompt was computed
        {"status": toy.COMPLETED, "prompt_tokens": 3000, "generated_tokens": 9},
        {"status": toy.UNFINISHED, "prompt_tokens": 900, "generated_tokens": 9},
    ]
    run = toy.ToyRun(toy.request_columns(rows), toy.decision_columns([]), end_s=1.0)
    assert row_of(run)["lost_tokens"] == 14 + 100
    assert row_of(alone(3))["lost_tokens"] == 0
    for number, row in enumerate(rows):
        row["arrival_s"] = float(number)
    run = toy.ToyRun(toy.request_columns(rows), toy.decision_columns([]), end_s=9.0)
    assert row_of(run, window=metrics.Window(warmup_s=0.5))["lost_tokens"] == 100


@pytest.mark.parametrize("policy", [Static(4, 0.0), Padded(4, 0.0)])
def test_computed_tokens_were_of_use_or_lost_or_padding(policy: Static | Padded) -> None:
    run = serve([(0, 40, 3), (0, 20, 60), (0, 10, 90), (0, 5, 2)], policy, cap=13)
    row = row_of(run)
    assert run.oom and 0 < row["lost_tokens"] < row["useful_tokens"]  # type: ignore[operator]
    answered = run.requests["status"] == toy.COMPLETED
    kept = (run.requests["prompt_tokens"] + run.requests["generated_tokens"] - 1)[answered].sum()
    assert row["useful_tokens"] == kept + row["lost_tokens"]


def test_preempted_requests_keep_their_resume_gap() -> None:
    run = toy.continuous([0.0, 0.0], [16, 32], [33, 17], capacity=4, seconds=lambda shape: STEP)
    row = row_of(run)
    assert row["preemptions"] == 1
    assert row["makespan_s"] == pytest.approx(0.49)  # PRE-01
    assert run.gaps["seconds"].tolist() == pytest.approx([0.33])  # PRE-02
    assert metrics.token_gaps(run).percentiles([100]) == pytest.approx([0.33])
    assert metrics.token_gaps(run).counts.sum() == 48
    assert row["recomputed_tokens"] == run.decisions["recomputed_tokens"].sum() > 0


def test_a_run_gives_the_same_row_twice() -> None:
    run = toy.continuous(*toy.chat(60, 8))
    assert repr(row_of(run, hardware=HARDWARE)) == repr(row_of(run, hardware=HARDWARE))


def test_frames_have_stable_columns() -> None:
    run = toy.continuous(*toy.chat(20, 8))
    frame = metrics.requests_frame(run)
    assert list(frame) == [
        "id", "arrival_s", "sent_s", "client_queue_s", "prompt_tokens", "output_tokens", "generated_tokens", "status",
        "finish_reason", "reject_reason", "scheduled_s", "first_token_s", "finish_s", "queue_s", "ttft_s", "tpot_s", "e2e_s", "normalized_latency_s",
        "preemptions", "recomputed_tokens", "slot",
    ]  # fmt: skip
    known = frame[["queue_s", "ttft_s", "e2e_s"]]
    assert (known["queue_s"] >= 0).all()
    assert (known["ttft_s"] >= known["queue_s"]).all()
    assert (known["e2e_s"] >= known["ttft_s"]).all()
    assert list(metrics.decisions_frame(run)) == list(run.decisions)


def test_counts_of_out_of_memory_events_are_whole_numbers_even_where_there_are_none() -> None:
    run = toy.continuous(*toy.chat(20, 8))
    assert not len(metrics.oom_frame(run))
    types = {"time_s": "float64", "requests": "int64", "wanted_bytes": "int64", "available_bytes": "int64"}
    assert metrics.oom_frame(run).dtypes.astype(str).to_dict() == types
    run.oom.append(OutOfMemory(1.5, 3, 2e9, 1e9))
    assert metrics.oom_frame(run).to_dict("records") == [
        {"time_s": 1.5, "requests": 3, "wanted_bytes": 2_000_000_000, "available_bytes": 1_000_000_000}
    ]
    assert metrics.oom_frame(run).dtypes.astype(str).to_dict() == types


@given(
    st.lists(
        st.tuples(st.integers(0, 60).map(lambda tick: tick * 0.005), st.integers(1, 60), st.integers(1, 40)),
        min_size=1,
        max_size=25,
    ).map(sorted),
    st.builds(
        lambda seqs, extra, **options: Continuous(seqs, seqs + extra, **options),
        st.integers(1, 8),
        st.sampled_from([0, 3, 40]),
        long_prefill_token_threshold=st.sampled_from([0, 1, 7, 30]),
        enable_prefix_caching=st.booleans(),
        scheduling_policy=st.sampled_from(["fcfs", "priority"]),
        scheduler_reserve_full_isl=st.booleans(),
        watermark=st.sampled_from([0.0, 0.1]),
        async_scheduling=st.booleans(),
    ),
    st.sampled_from([7, 10, 20, 40, 400]),
)
def test_continuous_batching_wastes_no_slot(
    requests: list[tuple[float, int, int]], policy: Continuous, cap: int
) -> None:
    """Every row that holds a seat computes something, with two exceptions, both vLLM's.

    With async scheduling a row's end is seen one decision later, so rows that ended with one decision may hold their
    seats during the next. With priorities, where blocks are short, a row may go without a token in a step.
    """
    run = serve(requests, policy, cap=cap, horizon_s=20.0)
    decisions = run.decisions
    held = decisions["slots"] - decisions["useful_decode_rows"] - decisions["prefill_rows"]
    ended = np.concatenate([[0], decisions["finished"][:-1]]) if policy.async_scheduling else 0
    assert (held >= 0).all()
    if policy.scheduling_policy == "fcfs" or cap > 40:
        assert (held <= ended).all()
    if not held.any():
        assert row_of(run)["slot_waste"] in (0.0, None)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(1e-4, 10), st.floats(-0.5, 3), st.integers(1, 40), st.integers(0, 5)),
        min_size=1,
        max_size=30,
    ),
    st.lists(st.floats(1e-3, 100), max_size=5),
)
def test_pooled_gaps_are_numpys_to_within_a_bin(
    decisions: list[tuple[float, float, int, int]], resumed: list[float]
) -> None:
    rows, every = [], list(resumed)
    for first, rise, count, tokens in decisions:
        steps = first * (1 + rise * np.arange(count) / max(count - 1, 1) * (count > 1))
        every += np.repeat(steps, tokens).tolist()
        shape = {"iterations": count, "step_s": first, "seconds": steps.sum(), "decode_rows": tokens}
        rows.append({"start_s": 0.0} | shape)
    run = toy.ToyRun(
        toy.request_columns([{}]), toy.decision_columns(rows), toy.gap_columns([(0, 1.0, gap, 1) for gap in resumed])
    )
    histogram = metrics.token_gaps(run)
    assert histogram.counts.sum() == len(every)
    if every:
        ranks = [0, 1, 25, 50, 90, 95, 99, 100]
        assert histogram.percentiles(ranks) == pytest.approx(np.percentile(every, ranks).tolist(), rel=1.001e-3)
        assert histogram.mean() == pytest.approx(np.mean(every), rel=1e-9)
    else:
        assert histogram.percentiles([50]) == [None]
        assert histogram.mean() is None


def test_gaps_in_portions_are_the_gaps_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    run = toy.continuous(*toy.chat(60, 8))
    whole = metrics.token_gaps(run)
    monkeypatch.setattr(metrics.GapHistogram, "_PAIRS", 3)
    parts = metrics.token_gaps(run)
    np.testing.assert_allclose(parts.counts, whole.counts)
    np.testing.assert_allclose(parts.sums, whole.sums)


def test_gaps_beyond_the_bins_share_the_outermost() -> None:
    histogram = metrics.GapHistogram()
    histogram.add(np.array([1e-12, 1.0, 1e9]))
    assert histogram.percentiles([0, 50, 100]) == pytest.approx([1e-12, 1.0, 1e9])


@pytest.mark.parametrize(("third_leaves_s", "expected"), [(20.0, "stable"), (25.0, "overloaded")])
def test_regime_allows_two_more_waiting_and_not_half_a_request_beyond(third_leaves_s, expected):
    """Arrivals from 0 to 30 s: nobody waits in the middle third, two (and a half) in the last."""
    requests = {
        "status": np.zeros(5, dtype=int),
        "arrival_s": np.array([0.0, 20.0, 20.0, 20.0, 30.0]),
        "scheduled_s": np.array([0.0, 30.0, 30.0, third_leaves_s, 30.0]),
        "finish_s": np.full(5, 31.0),
    }
    assert metrics.regime(requests, 31.0) == expected


def test_normalized_latency_is_e2e_over_output_tokens() -> None:
    row = row_of(joined(alone(1), alone(4, arrival_s=0.0, start_s=1.0), end_s=1.04))
    assert row["normalized_latency_mean_s"] == pytest.approx((0.010 + 1.04 / 4) / 2)
    assert row["normalized_latency_p50_s"] == pytest.approx((0.010 + 1.04 / 4) / 2)
    crashed = toy.request_columns([{"status": toy.OOM, "generated_tokens": 3, "finish_s": 9.0}])
    assert math.isnan(metrics.latencies(crashed, "stream")["normalized_latency"][0])


def test_a_new_metric_is_one_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the table alone, it is in every file, comparison and definition, and may be a goal."""
    text = "requests for each decision of the scheduler"
    new = metrics.Metric("requests_per_decision", "req/decision", "", "number", text,
                         lambda run: len(run.requests["id"]) / len(run.decisions["start_s"]),
                         -1, metrics.WIDE, goal=True, per_tenant=True)  # fmt: skip
    monkeypatch.setitem(metrics.METRICS, new.name, new)
    run = alone(5)
    assert row_of(run)[new.name] == 0.5
    tenants = metrics.Tenants.of(["a"], {})
    assert [row[new.name] for row in metrics.by_tenant(run, tenants)] == [0.5]
    results = toy.chat_results(rates=(3,), requests=20)
    assert new.label in report.comparison_rows(results.summary, metrics.WIDE)[0]
    page = report.write_run(results, tmp_path)
    assert f"<dt>{new.label}</dt><dd>{text}</dd>" in page.read_text(encoding="utf-8")
    found = difference(page.parent, page.parent)
    assert new.name in {change.metric for change in found.changes}
    goal = Goal(slo={new.name: 2.0, "normalized_latency_p99_s": 0.1})
    assert refusal({**row_of(run), new.name: 3.0, "oom_failed": 0, "rejected": 0}, goal).statistic == new.name

"""Each question that people ask has a scenario whose comment answers it, and the answer is what a run gives.

Intervals hold what a better cost model may change; what the sentences say (who is first, what stands still, where it
breaks) holds exactly.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from servecast import load, simulate
from servecast.plan.planner import make_plan
from servecast.report import comparison_rows, verdict
from servecast.report.tables import targets
from servecast.scenario import find, names
from servecast.specs import catalogue

QUESTIONS = [name for name in names() if name.startswith("questions/")]


@cache
def results(question: str):
    return simulate(load(f"questions/{question}"))


def table(question: str, *keys: str):
    return results(question).summary.set_index(list(keys) or ["policy"])


def near(value: float, share: float = 0.1):
    return pytest.approx(value, rel=share)


def kv_tokens(question: str) -> dict[str, int]:
    return {outcome.point: outcome.memory.kv_tokens for outcome in results(question).outcomes}


@pytest.mark.parametrize("name", QUESTIONS)
def test_each_asks_and_answers_in_two_lines_or_three(name):
    head, answer = find(name).read_text().split("name: ")[0].split("#\n")
    assert "?" in head
    assert answer.startswith("# Answer: ")
    assert len(answer.splitlines()) in (2, 3)
    assert len(re.findall(r"\d", answer)) > 5


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_has_its_test(name):
    assert f"test_{name.removeprefix('questions/').replace('-', '_')}" in globals()


def test_largest_concurrency():
    sizes = table("largest-concurrency", "policy", "policies[*].batch_size")
    for policy in ("static", "padded"):
        rows = sizes.loc[policy]
        assert rows.index[rows["oom_failed"] == 0].tolist() == [64, 128, 176, 192]
        assert rows.loc[208, "oom_failed"] > 0
    continuous = sizes.loc["continuous"].iloc[0]
    assert continuous["oom_failed"] == 0
    assert continuous["preemptions"] > 0
    plan = next(o.memory for o in results("largest-concurrency").outcomes if o.policy == "continuous")
    assert plan.max_concurrency(4096) == near(69, 0.02)


def test_batch_limits():
    rows = table("batch-limits", "policies[0].max_num_seqs", "policies[0].max_num_batched_tokens")
    good, ttft, itl = rows["goodput_rps"], rows["ttft_p99_s"], rows["itl_p99_s"]
    assert good[64].max() == near(7.9)
    assert good[128].max() == near(8.8, 0.05)
    assert good[256].tolist() == pytest.approx(good[128].tolist(), rel=0.01)
    assert [ttft[128][budget] for budget in (512, 2048)] == [near(1.1), near(0.53)]
    assert [itl[128][budget] for budget in (2048, 8192)] == [near(0.095), near(0.237)]
    assert ttft[128][8192] > ttft[128][2048]


def test_throughput_ceiling():
    rows = table("throughput-ceiling", "workload.arrivals.users")
    tokens, bound = rows["output_throughput_tps"], rows["bandwidth_bound_fraction"]
    assert [tokens[1], tokens[128]] == [near(90), near(3071)]
    assert tokens[[256, 512]].max() < 1.05 * tokens[128]
    assert [bound[1], bound[128]] == [near(0.99, 0.02), near(0.48)]
    assert rows["kv_peak_fraction"][256] > 0.99
    assert rows["preemptions"][[64, 128, 256]].gt(0).tolist() == [False, False, True]


def test_ttft_under_load():
    rows = table("ttft-under-load", "workload.arrivals.rate_rps")
    tail, median = rows["ttft_p99_s"], rows["ttft_p50_s"]
    mean = tail.groupby(level=0).mean()
    assert [mean[2], mean[8], mean[11]] == [near(0.23), near(0.41), near(0.65)]
    assert (tail[12].min(), tail[12].max()) == (near(1.0), near(1.4))
    assert "overloaded" in set(rows["regime"][12])
    assert (rows["kv_peak_fraction"][12] > 0.99).all()
    assert [median[2].mean(), median[11].mean()] == [near(0.053), near(0.123)]


def test_preemption():
    rows = table("preemption", "policies[0].max_num_seqs")
    preempted, tokens, gap = rows["preemptions"], rows["output_throughput_tps"], rows["itl_p99_s"]
    assert preempted[preempted == 0].index.tolist() == [64, 96, 112]
    assert tokens[192] / tokens[128] == pytest.approx(1.04, abs=0.01)
    assert preempted[256] == near(684)
    assert rows["recomputed_tokens"][256] == near(637_000)
    assert [tokens[256], tokens[192]] == [near(4911, 0.05), near(4957, 0.05)]
    assert tokens[256] < tokens[192]
    assert [gap[256], gap[128]] == [near(0.146), near(0.029)]


def test_kv_per_token():
    per_token = [catalogue.model(name).kv_bytes_per_token() / 1024 for name in ("llama-2-7b", "llama-3.1-8b")]
    assert per_token == [512, 128]
    tokens = list(kv_tokens("kv-per-token").values())
    assert tokens[::2] == [near(121_000, 0.02), near(454_000, 0.02)]
    assert [tokens[1] / tokens[0], tokens[3] / tokens[2]] == [near(2, 0.01), near(2, 0.01)]
    assert results("kv-per-token").summary["makespan_s"].tolist() == [near(270), near(180), near(136), near(100)]


def test_context_length():
    rows = table("context-length", "workload.prompt_tokens.tokens")
    plan = results("context-length").outcomes[0].memory
    assert plan.kv_tokens == near(458_560, 0.02)
    assert int(plan.max_concurrency(1_100)) == near(415, 0.02)
    assert int(plan.max_concurrency(32_100)) == 14
    served = rows["request_throughput_rps"]
    assert [served[1000], served[8000], served[32000]] == [near(32), near(4.0), near(0.78)]
    assert (rows["kv_peak_fraction"] > 0.97).all()


def test_static_padded_continuous():
    rows = table("static-padded-continuous")
    served = rows["request_throughput_rps"]
    assert served.tolist() == [near(2.4), near(1.6), near(4.7), near(10.9)]
    assert rows["slot_waste"]["static"] == near(0.59, 0.02)
    assert rows["padding_waste"]["padded"] == near(0.68, 0.02)


def test_which_gpu():
    """Rates within the targets, on measured ground; the price is that of the column ``whole bill $/M output`` of the terminal."""
    rows = results("which-gpu").summary
    assert targets(results("which-gpu").scenario["slo"]) == "TTFT ≤ 1 s, TPOT ≤ 50 ms"
    kept = rows[rows["slo_attainment"] >= 0.95]
    best = kept.sort_values("workload.arrivals.rate_rps").groupby("profile").last()
    order = [f"{name}-qwen3-14b-ops" for name in ("h200", "h100", "rtx-pro-6000", "a100")]
    assert set(best.index) == set(order)
    rates, price = best["workload.arrivals.rate_rps"][order], best["usd_per_mtok_output"][order]
    assert rates.tolist() == [12, 10, 3, 2]
    assert price.tolist() == [near(0.122), near(0.147), near(0.468), near(0.693)]
    assert 4 < price.iloc[3] / price.iloc[1] < 5
    assert (kept["extrapolated_fraction"] == 0).all()
    assert (kept["ttft_p99_s"] <= 1).all()
    assert rows["extrapolated_fraction"].max() == near(0.88)
    shown = [row for row in comparison_rows(rows) if row["profile"] == order[3] and row["rate_rps"] == "2"]
    assert [float(row["whole bill $/M output"]) for row in shown] == [near(0.693)]


def test_chunk_size():
    rows = table("chunk-size", "policies[0].max_num_batched_tokens")
    gap, first = rows["itl_p99_s"], rows["ttft_p99_s"]
    assert [gap[256], gap[2048], gap[8192]] == [near(0.021), near(0.098), near(0.275)]
    assert gap.is_monotonic_increasing
    assert [first[256], first[512], first[2048]] == [near(3.2), near(1.7), near(1.0)]
    assert first[[1024, 2048, 4096, 8192]].between(1.0, 1.15).all()


def test_burstiness():
    """The same rate at every point, so that the answer and the verdict are about bursts alone."""
    rows = table("burstiness", "workload.arrivals.burstiness")
    assert rows["offered_rps"].tolist() == pytest.approx([6] * len(rows), rel=0.005)
    assert rows["request_throughput_rps"].tolist() == pytest.approx([5.85] * len(rows), rel=0.02)
    tail, attained = rows["ttft_p99_s"], rows["slo_attainment"]
    assert [tail[float("inf")].mean(), tail[1].mean()] == [near(0.19), near(0.34)]
    assert (tail[0.1].min(), tail[0.1].max()) == (near(1.0), near(1.5))
    assert (1 - attained[0.1].max(), 1 - attained[0.1].min()) == (
        pytest.approx(0.03, abs=0.02),
        pytest.approx(0.11, abs=0.02),
    )
    told = str(verdict(results("burstiness").summary, results("burstiness").scenario["slo"]))
    assert told.startswith("At the same 6.00 req/s sent, continuous answers 100 % within the targets at burstiness inf")
    assert " at burstiness inf (p99 TTFT 19" in told
    assert " % at burstiness 0.1 (p99 TTFT 1.3" in told
    assert "serves" not in told
    assert 1 - attained[1].min() == pytest.approx(0.001, abs=0.001)


def test_batch_job():
    row = results("batch-job").summary.iloc[0]
    assert row["makespan_s"] / 60 == near(6.3)
    assert [row["request_throughput_rps"], row["total_throughput_tps"]] == [near(26), near(30_000)]
    assert row["makespan_s"] / 3600 * 2.5 == near(0.26)
    assert row["ttft_p50_s"] / 60 == near(3)
    requests = results("batch-job").requests
    assert [requests["prompt_tokens"].mean(), requests["output_tokens"].mean()] == [near(950, 0.02), near(180, 0.02)]


def test_self_host_or_api():
    rows = table("self-host-or-api", "workload.arrivals.rate_rps")
    shown = {row["rate_rps"]: row for row in comparison_rows(results("self-host-or-api").summary)}
    assert [shown[rate]["whole bill $/M output"] for rate in ("0.5", "2", "8")] == ["6.64", "1.67", "0.427"]
    assert rows["ttft_p99_s"][8] == near(0.41)
    assert (rows["slo_attainment"] > 0.99).all()
    assert (rows["extrapolated_fraction"] == 0).all()
    price = rows["usd_per_mtok_total"]
    assert [price[0.5], price[2], price[8]] == [near(0.99, 0.02), near(0.25, 0.02), near(0.064, 0.02)]
    assert (price * price.index).tolist() == pytest.approx([0.5] * 5, rel=0.05)


def test_users_to_gpus():
    """Each figure is what the command prints that is named beside it."""
    rows = table("users-to-gpus", "replicas", "workload.arrivals.users")
    tail, sent = rows["ttft_p99_s"], rows["request_throughput_rps"]
    assert [tail[2, 500], tail[1, 500]] == [near(0.411), near(6.07)]
    assert sent[2, 500] == near(14.4, 0.02)
    assert rows["e2e_mean_s"][2, 500] == near(4.6, 0.03)
    assert near(sent[2, 500], 0.02) == 500 / 34.6
    assert tail[1].gt(1.0).tolist() == [False, True, True, True]
    # The plan of the same file, its seeds and all, without what the profile adds to the intervals.
    best = make_plan(load("questions/users-to-gpus", {"search.draws": 0, "search.try_changes": False}))
    assert best.best.target_gpus == 2
    assert best.options[0].capacity.value == near(282)
    assert best.best.capacity.value == near(621)
    assert best.best.at_target["ttft_p99_s"].value == near(0.489)
    assert best.best.usd_at_target["output"].value == near(0.456, 0.05)


def test_tp_or_replicas():
    rows = table("tp-or-replicas", "engine.tensor_parallel_size", "replicas", "workload.arrivals.rate_rps")
    eight = [(2, 4), (4, 2), (8, 1)]
    pace = [rows["tpot_p50_s"][*split, 8.0] for split in eight]
    served = [rows["request_throughput_rps"][*split, float("inf")] for split in eight]
    assert pace == [near(0.034), near(0.019), near(0.011)]
    assert served == [near(9.7), near(19.3), near(17.5)]
    assert served[1] > served[2] > served[0]
    assert rows["kv_peak_fraction"][2, 4, float("inf")] > 0.99
    measured = load(
        "questions/tp-or-replicas",
        {"device": None, "profile": "h100-llama-3.1-70b-tp4-ops", "replicas": 2, "engine.tensor_parallel_size": 4},
    )
    profile = simulate(measured).summary.set_index("workload.arrivals.rate_rps")
    assert profile["tpot_p50_s"][8.0] == near(0.022)
    assert profile["request_throughput_rps"][float("inf")] == near(16.1)

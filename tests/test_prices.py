"""A price list is one: times the tokens that were sold it is the bill, whatever ran, idled or was wasted."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import servecast
from servecast.metrics.prices import price_list
from servecast.plan.answer import Tokens
from servecast.plan.planner import make_plan

POLICIES = [
    {"kind": "continuous", "max_num_seqs": 16, "max_num_batched_tokens": 512},
    {"kind": "static", "batch_size": 4, "max_wait_s": 0.2},
    {"kind": "padded", "batch_size": 4, "max_wait_s": 0.2},
]


@given(
    st.floats(0.5, 20), st.integers(1, 3), st.sampled_from([None, 0.5]), st.sampled_from([None, 4.0]),
    st.sampled_from([1, 30]), st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_prices_times_tokens_are_the_bill(rate, replicas, warmup_s, ratio, output_tokens, seed):
    changes = {
        "policies": POLICIES, "sweep": {}, "seeds": 1, "replicas": replicas, "warmup_s": warmup_s,
        "cost": {"usd_per_gpu_hour": 2.5, "output_over_input": ratio},
        "workload": {
            "arrivals": {"kind": "poisson", "rate_rps": rate}, "requests": 24, "seed": seed,
            "prompt_tokens": {"kind": "uniform", "min_tokens": 10, "max_tokens": 900},
            "output_tokens": {"kind": "fixed", "tokens": output_tokens},
        },
    }  # fmt: skip
    for row in servecast.simulate(servecast.load("quickstart", changes)).summary.to_dict("records"):
        seconds = row["window_end_s"] - row["window_start_s"]
        bill = 2.5 * replicas * seconds / 3600
        output = row["output_throughput_tps"] * seconds
        prompt = row["total_throughput_tps"] * seconds - output
        paid = row["price_per_mtok_input"] * prompt + row["price_per_mtok_output"] * output
        assert paid / 1e6 == pytest.approx(bill, rel=1e-9) == row["bill_usd"]
        if ratio is not None:
            assert row["price_per_mtok_output"] == pytest.approx(4 * row["price_per_mtok_input"])
        assert 0 < row["prefill_busy_fraction"] <= 1
        assert (row["prefill_busy_fraction"] == 1) == (output_tokens == 1)


def test_a_window_of_a_full_queue_sells_no_prompts_that_it_did_not_compute():
    """All arrive within 4 s and take far longer: what a window of that time computes has the whole run's prices."""

    def rows(**window):
        changes = {
            "policies": POLICIES[1:], "sweep": {}, "seeds": 1, "cost": {"usd_per_gpu_hour": 2.5}, **window,
            "workload": {
                "arrivals": {"kind": "poisson", "rate_rps": 40.0}, "requests": 160,
                "prompt_tokens": {"kind": "fixed", "tokens": 900}, "output_tokens": {"kind": "fixed", "tokens": 20},
            },
        }  # fmt: skip
        return servecast.simulate(servecast.load("quickstart", changes)).summary.to_dict("records")

    for part, whole in zip(rows(warmup_s=1, cooldown_s=0.2), rows(), strict=True):
        assert part["price_per_mtok_input"] == pytest.approx(whole["price_per_mtok_input"], rel=0.25)
        assert part["price_per_mtok_output"] == pytest.approx(whole["price_per_mtok_output"], rel=0.25)


def test_one_kind_of_token_pays_for_all_and_nothing_is_made_up():
    assert price_list(3.0, 1e6, 0.0, prefill_share=0.2) == (3.0, None)
    assert price_list(3.0, 0.0, 1e6, output_over_input=4.0) == (None, 3.0)
    assert price_list(3.0, 1e6, 1e6) == (None, None)
    assert price_list(3.0, 1e6, 1e6, prefill_share=0.25) == (0.75, 2.25)
    assert price_list(10.0, 1e6, 1e6, output_over_input=4.0) == (2.0, 8.0)
    assert price_list(0.0, 0.0, 0.0) == (None, None)


def test_a_plan_sells_at_prices_that_add_up_and_breaks_even_with_the_tokens_of_the_target():
    scenario = servecast.load(
        "quickstart",
        {
            "policies": [POLICIES[0]], "sweep": {}, "seeds": 1, "workload.requests": 200,
            "workload.arrivals": {"kind": "poisson", "rate_rps": 2},
            "goal": {
                "slo": {"ttft_p99_s": 5.0}, "api": {"usd_per_mtok_input": 0.2, "usd_per_mtok_output": 0.6},
            },
            "search": {"seeds": 2, "most_seeds": 2, "draws": 0, "try_changes": False, "most_requests": 1},
        },
    )  # fmt: skip
    plan = make_plan(scenario)
    best, found = plan.best, plan.break_even
    assert sum(sold.usd_per_hour for sold in best.prices.values()) == pytest.approx(best.usd_for_target)
    for sold in best.prices.values():
        assert sold.mtok_per_hour * sold.usd_per_mtok == pytest.approx(sold.usd_per_hour)
    loads = [
        best.usd_for_target / 3600 / ((tokens.input * 0.2 + tokens.output * 0.6) / 1e6) for _, tokens in best.offered
    ]
    assert found.load == pytest.approx(sum(loads) / len(loads))
    assert isinstance(best.offered[0].tokens, Tokens)
    assert found.load_low < found.load < found.load_high
    an_hour = sum(sold.mtok_per_hour * price for sold, price in zip(best.prices.values(), (0.2, 0.6), strict=True))
    assert found.api_usd_per_hour == pytest.approx(an_hour, rel=0.01)

"""A plan: capacities against closed forms, a search that always ends, intervals, money, and what cannot be."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import re
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import servecast
from servecast.cli import plan as commands_plan
from servecast.cost import profile as profiles
from servecast.cost.fitted import COEFFICIENTS
from servecast.cost.known_error import known_error
from servecast.errors import InputError
from servecast.plan.answer import Tokens, break_even, dollars
from servecast.plan.capacity import MOST, fewest, highest_load
from servecast.plan.configuration import Configuration
from servecast.plan.load import load_of
from servecast.plan.planner import make_plan
from servecast.plan.sample import Binding, Refusal, Sample, Share, Why, binding, throughput
from servecast.plan.uncertainty import Estimate, draws, estimate
from servecast.report import plan_words
from servecast.report.plan_page import write
from servecast.report.verdicts.plan import verdict
from servecast.run.store import opened
from servecast.run.sweep import Progress
from servecast.scenario import check
from servecast.scenario.serving import serving
from servecast.scenario.traffic import traffic
from servecast.workload.clients import ClosedLoop

D = 0.1  # seconds of every step

# --- the search itself ----------------------------------------------------------------------------------------------


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(0.005, 0.3), st.floats(1.05, 3.0))
def test_the_bracket_holds_the_limit_and_is_as_tight_as_asked(limit, start, tolerance, step):
    found = highest_load(lambda load: load <= limit, start, tolerance=tolerance, step=step)
    assert found.low <= limit < found.high <= found.low * (1 + tolerance)
    assert not found.capped
    assert found.tests <= MOST


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 400))
def test_whole_loads_close_at_neighbours(limit, start, most):
    found = highest_load(lambda load: load <= limit, start, ceiling=most, whole=True, tolerance=1e-9)
    assert found.low == min(limit, most)
    assert found.capped == (limit >= most)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_more_is_never_less(one, other, start):
    """Monotone: a limit that is higher is not found lower, to within the tolerance."""
    low, high = (highest_load(lambda load, at=at: load <= at, start).low for at in sorted((one, other)))
    assert high >= low / 1.02


@pytest.mark.parametrize("answer", [lambda load: True, lambda load: False, lambda load: hash(load) % 3 == 0])
def test_a_search_that_never_ends_by_itself_ends(answer):
    tests = []

    def meets(load):
        tests.append(load)
        return answer(load)

    found = highest_load(meets, 1.0, tolerance=1e-15)
    assert found.tests == len(tests) <= MOST
    assert all(load > 0 for load in tests)


def test_nothing_is_tested_above_the_ceiling_nor_far_below_the_floor():
    tests = []
    capped = highest_load(lambda load: tests.append(load) is None, 8.0, ceiling=5.0)
    assert (capped.low, capped.high, capped.capped, tests) == (5.0, None, True, [5.0])
    none = highest_load(lambda load: False, 8.0, floor=1.0)
    assert none.low is None
    assert none.tests < 6
    assert highest_load(lambda load: False, 3, whole=True).low is None


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_fewest(needed, guess, most):
    assert fewest(lambda count: count >= needed, guess, most) == (needed if needed <= most else None)


# --- closed forms ---------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path):
    """A scenario of one server that takes D seconds a request, whatever it holds; more keys replace its own."""

    def make(residuals=None, covariance=None, domain=None, **keys):
        name = tmp_path / "flat.yaml"
        units = {
            key: {"value": D if key == "step_s" else 0.0, "unit": unit, "low": 0.0, "high": 1.0, "identified": True,
                  "how": "said"}
            for key, unit in COEFFICIENTS.items()
        }  # fmt: skip
        profile = {
            "schema_version": 1, "name": "flat", "model": "qwen3-14b", "device": "h100-sxm", "coefficients": units,
            "sharpness": {**units["step_s"], "value": 5.0, "high": 9.0},
            "residuals": residuals or {}, "covariance": covariance or [], "domain": domain or MEASURED,
            "provenance": {
                "source": "made", "engine": "none", "date": "2026-01-01", "files": [], "sha256": "0", "rows": 1,
                "seed": 0, "rows_each": 1,
            },
        }  # fmt: skip
        name.write_text(yaml.safe_dump(profile))
        data = {
            "name": "flat", "model": "qwen3-14b", "profile": str(name),
            "workload": {
                "arrivals": {"kind": "poisson", "rate_rps": 5.0}, "prompt_tokens": {"kind": "fixed", "tokens": 10},
                "output_tokens": {"kind": "fixed", "tokens": 1}, "requests": 300,
            },
            "policies": [{"kind": "continuous", "max_num_seqs": 1, "max_num_batched_tokens": 64}],
            "goal": {"slo": {"queue_mean_s": 0.1}},
            "search": {"draws": 0, "try_changes": False, "seeds": 2, "most_requests": 1},
        }  # fmt: skip
        for key, value in keys.items():
            at = data
            *above, last = key.split("__")
            for part in above:
                at = at.setdefault(part, {})
            at[last] = value
        return check(data, tmp_path)

    return make


#: Every step was measured.
MEASURED = {kind: {"decode_rows": [0, 1e9]} for kind in ("decode", "mixed", "prefill")}
EVEN = {"kind": "constant", "rate_rps": 5.0}
#: A goal that nothing misses but by its queue.
ROOM = {"goal__slo": {"queue_mean_s": 1e7}}


def ended(finish_s):
    """A run of requests, sent at 0, that ended so."""
    columns = {"finish_s": finish_s, "sent_s": np.zeros(len(finish_s)), "status": np.zeros(len(finish_s), int)}
    return SimpleNamespace(requests=columns)


def test_capacity_is_that_of_m_d_1(made):
    """Mean wait of M/D/1: rho D / 2(1 - rho) = w, so that the highest rate is 2w / (D + 2w) / D."""
    scenario = made(workload__requests=8000, search__seeds=4, search__tolerance=0.01)
    plan = make_plan(scenario)
    exact = 2 * 0.1 / (D + 2 * 0.1) / D
    assert plan.best.capacity.value == pytest.approx(exact, rel=0.03)
    assert plan.best.capacity.low < exact * 1.01
    assert plan.best.capacity.high > exact * 0.99
    assert plan.best.unstable_above is None
    assert plan.headroom.value == pytest.approx(plan.best.capacity.value / 5 - 1)
    rho = 0.5
    assert plan.best.at_target["queue_mean_s"].value == pytest.approx(rho * D / 2 / (1 - rho), rel=0.1)
    assert plan.supported


@pytest.mark.parametrize("requests", [40, 300])
def test_saturation_is_that_of_the_full_server_however_few_requests_are_sent(made, requests):
    """Every step takes D: with 8 seats and answers of L tokens (a mean of 50) 8 requests leave every 50 D."""
    keys = {"policies": [{"kind": "continuous", "max_num_seqs": 8, "max_num_batched_tokens": 256}]}
    even = make_plan(
        made(**keys, workload__output_tokens={"kind": "fixed", "tokens": 50}, workload__requests=requests, **ROOM)
    )
    exact = 8 / (50 * D)
    assert even.options[0].saturation.value == pytest.approx(exact, rel=0.01)
    mixed = {"kind": "uniform", "min_tokens": 1, "max_tokens": 99}
    drawn = make_plan(made(**keys, workload__output_tokens=mixed, workload__requests=requests, search__seeds=6, **ROOM))
    told = drawn.options[0].saturation
    assert told.low < exact < told.high
    assert told.high - told.low < 0.1 * exact


def test_saturation_of_closed_batches_and_of_replicas(made):
    """A batch of 4 takes as many steps as its answers have tokens; two replicas do twice as much."""
    closed = {
        "policies": [{"kind": "static", "batch_size": 4, "max_wait_s": 0.0}], "workload__requests": 30,
        "workload__output_tokens": {"kind": "fixed", "tokens": 5}, "search__over": {"replicas": [1, 2]}, **ROOM,
    }  # fmt: skip
    one, two = make_plan(made(**closed)).options
    assert one.saturation.value == pytest.approx(4 / (5 * D), rel=0.01)
    assert two.saturation.value == pytest.approx(2 * one.saturation.value)


def test_a_cap_of_the_client_saturates_replicas_together(made):
    """Two in flight, steps of D whatever they hold: 2 / D, on one engine or on two."""
    capped = made(
        policies=[{"kind": "continuous", "max_num_seqs": 8, "max_num_batched_tokens": 256}],
        workload__max_in_flight=2, search__over={"replicas": [1, 2]}, goal__slo={"queue_mean_s": 1e7},
    )  # fmt: skip
    assert [option.saturation.value for option in make_plan(capped).options] == pytest.approx([2 / D, 2 / D], rel=0.01)


def test_throughput_counts_batches_that_end_together_whole():
    finish = np.repeat(np.arange(1, 11) * 4.0, 8)
    assert throughput(ended(finish)) == (pytest.approx(2.0), pytest.approx(2.0))
    # 12 requests on 8 seats: the second batch is not full, and the whole says so.
    steady, whole = throughput(ended(np.repeat([4.0, 8.0, 12.0, 16.0, 20.0], [8, 8, 8, 8, 4])))
    assert (steady, whole) == (pytest.approx(2.0), pytest.approx(36 / 20))
    assert throughput(ended(np.full(5, 10.0))) == (0.5, 0.5)
    assert throughput(ended(np.array([]))) == (None, None)


def test_beyond_saturation_it_says_unstable_and_no_number(made):
    """A target on the wait that is never missed: what ends it is 1/D requests a second, and not one more."""
    plan = make_plan(made(goal__slo={"queue_mean_s": 1e7}, workload__requests=3000))
    assert plan.best.unstable_above == pytest.approx(plan.best.capacity.value)
    assert plan.best.capacity.value <= 1 / D * (1 + 1e-9)
    assert plan.best.capacity.value > 0.85 / D
    assert "unstable above that" in verdict(plan).rest


def test_even_arrivals_never_wait_until_they_come_faster_than_they_leave(made):
    """D/D/1: no wait up to 1/D; with replicas in turn, up to n/D. So 25 a second want three."""
    scenario = made(
        workload__arrivals=EVEN, goal__slo={"queue_p99_s": 1e-6}, goal__rate_rps=25.0, router="round_robin",
        cost={"usd_per_gpu_hour": 3.6},
    )  # fmt: skip
    plan = make_plan(scenario)
    assert plan.best.target_gpus == 3
    assert plan.best.gpus == 3
    assert plan.best.capacity.value == pytest.approx(3 / D, rel=0.03)
    # 3 x $3.6 an hour is $0.003 a second for 30 requests of 10 tokens in and one out.
    assert plan.best.usd_per_mtok["output"].value == pytest.approx(0.003 / plan.best.capacity.value * 1e6)
    assert plan.best.usd_per_mtok["input"].value == pytest.approx(plan.best.usd_per_mtok["output"].value / 10)
    # At the target the same GPUs cost as much and serve 25.
    told = plan.data()["best"]
    assert told["usd_at_target"]["output"]["value"] == told["usd_per_mtok_at_target"]["output"]
    assert told["usd_at_utilisation"]["0.5"]["output"] == {
        end: value if value is None else pytest.approx(value * 2)
        for end, value in told["usd_per_mtok"]["output"].items()
    }
    assert told["usd_per_mtok_at_target"]["output"] == pytest.approx(0.003 / 25 * 1e6)
    for share in ("0.3", "0.5", "0.7"):
        assert told["usd_per_mtok_at_utilisation"][share]["total"] == pytest.approx(
            told["usd_per_mtok"]["total"]["value"] / float(share)
        )
    fixed = make_plan(made(workload__arrivals=EVEN, goal__slo={"queue_p99_s": 1e-6}, goal__rate_rps=25.0, replicas=2))
    assert fixed.best is None
    assert "target 25" in fixed.options[0].refused


def test_a_target_is_met_at_equality(made):
    exactly = made(workload__arrivals=EVEN, goal__slo={"ttft_p99_s": D})
    assert make_plan(exactly).best is not None
    below = make_plan(made(workload__arrivals=EVEN, goal__slo={"ttft_p99_s": D * (1 - 1e-6)}))
    assert below.best is None
    assert below.options[0].capacity is None
    assert below.options[0].refused == "ttft_p99_s 0.1, target 0.0999999"
    assert str(verdict(below)).startswith(
        "No configuration meets the goal at any load. What stands in the way: p99 time to first token 0.1"
    )


def test_an_attainment_is_at_least(made):
    slo = {"slo_attainment": 0.9}
    plan = make_plan(made(goal__slo=slo, slo={"ttft_s": 0.3}, workload__requests=3000))
    assert 5 < plan.best.capacity.value < 1 / D
    assert plan.best.at_target["slo_attainment"].value >= 0.9
    attained = plan.best.at_target["slo_attainment"].value
    assert plan.best.at_target["goodput_rps"].value == pytest.approx(5 * attained)  # not over the makespan
    with pytest.raises(InputError, match="counts requests that meet slo"):
        make_plan(made(goal__slo=slo))


def test_a_slower_server_and_a_stricter_goal_carry_less(made):
    loads = [
        make_plan(made(goal__slo={"queue_mean_s": wait}, workload__requests=2000)).options[0].capacity.value
        for wait in (0.05, 0.1, 0.2)
    ]
    assert loads == sorted(loads)
    assert loads[0] < loads[2]


def test_more_seeds_make_the_interval_narrower_and_the_same_seeds_the_same_plan(made):
    few, many, again = (make_plan(made(search__seeds=seeds, search__half_width=1.0)).best for seeds in (2, 8, 8))
    assert many == again
    assert many.capacity.high - many.capacity.low < few.capacity.high - few.capacity.low
    one = make_plan(made(search__seeds=1))
    assert one.best.capacity.low is None
    assert not one.supported
    assert "one seed" in verdict(one).rest


# --- how sure -------------------------------------------------------------------------------------------------------

SPREAD = {"prefill": {"steps": 100, "quantiles": [0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3]}}


def test_the_residuals_of_the_profile_widen_the_interval(made):
    """Even arrivals have no noise of their own: the highest rate is 1/(D scale), 90 % of it in 1/1.2D .. 1/0.8D."""
    keys = {"workload__arrivals": EVEN, "goal__slo": {"queue_p99_s": 1e-6}, "search__tolerance": 0.002}
    sure = make_plan(made(**keys)).best.capacity
    assert sure.high - sure.low < 0.1
    wide = make_plan(made(residuals=SPREAD, **keys, search__draws=40)).best.capacity
    assert wide.value == pytest.approx(sure.value)
    assert wide.low == pytest.approx(1 / 1.2 / D, rel=0.03)
    assert wide.high == pytest.approx(1 / 0.8 / D, rel=0.04)


def test_a_plan_that_its_interval_does_not_support_says_so(made):
    keys = {"workload__arrivals": EVEN, "goal__slo": {"queue_p99_s": 1e-6}, "search__draws": 12}
    plan = make_plan(made(residuals=SPREAD, goal__rate_rps=9.5, **keys))
    assert plan.best.target_gpus == 1
    assert not plan.supported
    assert any("as low as 8" in doubt for doubt in plan.doubts)
    assert any("queue_p99_s may have no bound" in doubt for doubt in plan.doubts)
    assert "interval does not support the plan" in verdict(plan).rest
    assert make_plan(made(residuals=SPREAD, goal__rate_rps=7.0, **keys)).supported


def test_coefficients_are_drawn_with_the_covariance_of_the_calibration(made):
    covariance = np.zeros((6, 6))
    covariance[5, 5], covariance[4, 4], covariance[4, 5], covariance[5, 4] = 1e-4, 1e-6, -9e-6, -9e-6
    made(covariance=covariance.tolist())
    profile = profiles.load(made(covariance=covariance.tolist()).profile)
    drawn = draws(profile, profile.cost(), 4000, {})
    step, row = (np.array([getattr(draw.cost, name) for draw in drawn]) for name in ("step_s", "row_s"))
    # What would be negative is drawn again, so that what the steps told together (here a step of 9 rows) stays.
    assert (row > 0).all() and row.mean() == pytest.approx(1e-3 * np.sqrt(2 / np.pi), rel=0.05)
    assert (step + 9 * row).mean() == pytest.approx(D, rel=0.01)
    assert (step + 9 * row).std() == pytest.approx(np.sqrt(1e-4 - 81e-6), rel=0.05)
    assert np.corrcoef(step, row)[0, 1] < -0.7
    # It states no residuals: what is known of its kind stands for them.
    known = known_error(profile)
    scales = [draw.step_time_scale for draw in drawn]
    assert np.quantile(scales, [0.05, 0.95]) == pytest.approx([known.low, known.high], abs=1e-4)
    assert draws(profile, profile.cost(), 0, {}) == []


def test_a_datasheet_is_drawn_from_what_is_known_of_datasheets(made):
    cost, known = profiles.load(made().profile).cost(), known_error(None)
    bare = make_plan(made(profile=None, device="h100-sxm")).best.saturation  # bound by steps alone: a burst is served
    assert bare.low == pytest.approx(bare.value / known.high, rel=0.15)
    assert bare.high == pytest.approx(bare.value / known.low, rel=0.15)
    for count in (12, 0):  # whatever count is asked for: no interval of a datasheet leaves its known error out
        assert [draw.step_time_scale for draw in draws(None, cost, count, {})] == pytest.approx([known.low, known.high])


def test_residuals_are_weighed_by_the_time_each_kind_of_step_takes(made):
    residuals = {
        kind: {"steps": 10, "quantiles": [factor] * 7} for kind, factor in (("decode", 1.0), ("mixed", 2.0))
    }  # fmt: skip
    profile = profiles.load(made(residuals=residuals).profile)
    low, high = draws(profile, profile.cost(), 3, {"decode": 0.75, "mixed": 0.25})
    assert (low.step_time_scale, high.step_time_scale) == (pytest.approx(0.98), 1.25)  # no nearer to 1 than its kind
    assert draws(profile, profile.cost(), 2, {"prefill": 1.0})[1].step_time_scale == 1.5  # by their steps


def test_operators_stand_in_for_steps_where_none_was_measured():
    profile = profiles.load("h100-qwen3-14b-ops")
    low, high = (draw.step_time_scale for draw in draws(profile, profile.cost(), 400, {}))
    worst = max(error.p95 for error in profile.held_out)
    sigma = math.log1p(worst) / 1.959964  # 95 % of the errors, of either sign, are within the worst operator's
    assert (low, high) == pytest.approx((math.exp(-1.644854 * sigma), math.exp(1.644854 * sigma)), rel=1e-4)
    bare = profile.model_copy(update={"held_out": ()})
    known = known_error(bare)
    assert [draw.step_time_scale for draw in draws(bare, bare.cost(), 2, {})] == pytest.approx([known.low, known.high])


def test_intervals_of_seeds_are_students_of_logarithms():
    told = estimate([1.0, 2.0, 3.0, 4.0])
    factor = math.exp(2.353363434801823 * np.std(np.log([1, 2, 3, 4]), ddof=1) / 2)
    assert told == (2.5, pytest.approx(2.5 / factor), pytest.approx(2.5 * factor))
    assert estimate([2.0]) == (2.0, None, None)
    many = estimate(list(range(100, 140)))
    half = 1.6849 * np.std(range(40), ddof=1) / math.sqrt(40)
    assert many.high - many.value == pytest.approx(half, rel=0.02)
    assert estimate([2.0], [(2.0, 2.0), (4.0, 8.0)]) == (2.0, 2.0, pytest.approx(2 * 2))
    assert estimate([2.0], [(2.0, 2.0)] * 10 + [(4.0, 8.0)]) == (2.0, 2.0, pytest.approx(2 * 1.5))
    bracket = math.log(1.1)
    below = math.exp(-math.hypot(math.log(2), bracket))
    assert estimate([2.0], [(2.0, 1.0)] * 2, slack=0.1) == (2.0, pytest.approx(2 * below), pytest.approx(2.2))
    assert Estimate(2.0, 1.0, 4.0).inverse(8.0) == (4.0, 2.0, 8.0)
    assert Estimate(2.0, 0.0, None).inverse(8.0) == (4.0, None, math.inf)


def test_seeds_that_end_on_the_same_bisection_point_still_have_a_width_below():
    """632 users twice, to within 2 %: fresh plans have a mean of 623."""
    told = estimate([632.0, 632.0], slack=0.02)
    of_seeds = 6.313752 * math.log(1.02) / math.sqrt(12) / math.sqrt(2)
    factor = math.exp(math.hypot(of_seeds, math.log(1.02)))
    assert told == (632.0, pytest.approx(632 / factor), pytest.approx(632 * factor))
    assert told.low < 623


KNOWN = st.just(0.0) | st.floats(1e-6, 1.0)


@given(st.lists(KNOWN, min_size=1, max_size=6), st.lists(st.tuples(KNOWN, st.just(math.inf) | KNOWN), max_size=5))
def test_an_interval_holds_its_value_and_nothing_that_cannot_be(by_seed, drawn):
    for most in (1.0, math.inf):
        value, low, high = estimate(by_seed, drawn, most=most)
        assert (low is None) == (high is None) == (len(by_seed) == 1 and not drawn)
        if low is not None:
            assert 0 <= low <= value * (1 + 1e-12)
            assert value <= high * (1 + 1e-12)
            assert high <= most


def test_an_attainment_ends_at_one_and_a_time_at_nothing():
    assert estimate([0.9, 1.0, 1.0], most=1.0).high == 1.0
    assert estimate([0.001, 3.0]).low > 0
    assert estimate([0.0, 3.0]).low == 0.0


def test_where_a_draw_is_unstable_a_time_has_no_bound(made, tmp_path):
    """Even arrivals, 9.5 a second: with steps that take 1.1 D more come than leave, and the wait grows for ever."""
    keys = {"workload__arrivals": EVEN, "goal__slo": {"queue_p99_s": 1e-6}, "search__draws": 12}
    plan = make_plan(made(residuals=SPREAD, goal__rate_rps=9.5, **keys))
    assert plan.best.at_target["queue_p99_s"].high == math.inf
    assert "no bound" in str(list(plan_words.tables(plan)))
    page = write(plan, tmp_path / "out").read_text()
    assert not re.search(r"=\"[^\"]*\b(inf|nan)\b", page)  # no figure with a coordinate that is none
    assert json.loads(json.dumps(plan.data(), allow_nan=False))["best"]["at_target"]["queue_p99_s"]["high"] is None


def test_seeds_are_added_until_the_interval_is_as_narrow_as_asked(made, simulated):
    keys = {"workload__requests": 400, "search__seeds": 3, "search__tolerance": 0.01}
    seeds, widths = [], []
    for half_width, most in ((1.0, 9), (0.1, 9), (0.001, 9), (0.001, 3)):
        simulated.made.clear()
        capacity = make_plan(made(**keys, search__half_width=half_width, search__most_seeds=most)).best.capacity
        seeds.append(len({seed for _, seed, _ in simulated.made}))
        widths.append((capacity.high - capacity.low) / capacity.value)
    assert [seeds[0], *seeds[2:]] == [3, 9, 3]
    assert 3 <= seeds[1] <= 9
    assert seeds[1] == 9 or widths[1] <= 0.21


# --- money ----------------------------------------------------------------------------------------------------------


def test_dollars_a_million_tokens():
    cost = dollars(3.6, Estimate(10.0, 8.0, 12.5), Tokens(900.0, 100.0))
    assert cost["output"] == (pytest.approx(1.0), pytest.approx(0.8), pytest.approx(1.25))
    assert cost["total"].value == pytest.approx(0.1)
    assert set(dollars(1.0, Estimate(1.0), Tokens(10.0, 0.0))) == {"input", "total"}


def test_break_even_is_where_both_cost_the_same():
    tokens = Tokens(1000.0, 500.0)
    found = break_even(9.0, 10.0, tokens, 0.5, 2.0)
    assert found.load * 3600 * (1000 * 0.5 + 500 * 2.0) / 1e6 == pytest.approx(9.0)
    assert found.utilisation == pytest.approx(found.load / 10)
    assert break_even(9.0, 10.0, tokens, 0.0, 0.0) is None


# --- what binds -----------------------------------------------------------------------------------------------------


def tokens(prompt, output):
    return {
        "workload__prompt_tokens": {"kind": "fixed", "tokens": prompt},
        "workload__output_tokens": {"kind": "fixed", "tokens": output},
    }


def continuous(**parameters):
    return {"policies": [{"kind": "continuous", "max_num_seqs": 256, "max_num_batched_tokens": 2048, **parameters}]}


BURSTS = {"kind": "gamma", "rate_rps": 1.0, "burstiness": 0.05}
BINDING = {
    "bandwidth": {"goal__slo": {"tpot_p95_s": 0.01}, **tokens(100, 200), **continuous()},
    "bandwidth by the pace of itl": {"goal__slo": {"itl_p95_s": 0.012}, **tokens(100, 200), **continuous()},
    "compute": {"goal__slo": {"ttft_p99_s": 1.0}, **tokens(2000, 2), **continuous()},
    "KV memory": {
        "goal__slo": {"ttft_p99_s": 1.0}, **tokens(500, 500), **continuous(),
        "engine": {"kv_blocks": 300, "max_model_len": 1024},
    },
    "queueing": {
        "goal__slo": {"ttft_p99_s": 0.5}, **tokens(1000, 2), **continuous(), "workload__arrivals": BURSTS,
    },
    "batch limit": {"goal__slo": {"ttft_p99_s": 1.0}, **tokens(100, 200), **continuous(max_num_seqs=4)},
    "token budget": {
        "goal__slo": {"ttft_p99_s": 1.0}, **tokens(500, 2), **continuous(max_num_seqs=64, max_num_batched_tokens=64),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", BINDING)
def test_what_binds(made, name):
    """Each made so that one thing alone can bind; the best change is to that thing, if a change can be."""
    data = made(**BINDING[name]).model_dump(mode="json", exclude_unset=True)
    del data["profile"]
    data |= {
        "device": "h100-sxm",
        "model": "llama-3.1-8b",
        "search": {"seeds": 1, "draws": 0, "try_changes": False, "most_requests": 1},
    }
    data["workload"]["requests"] = 400
    best = make_plan(check(data, Path())).best
    assert best.binds == name.split(" by ")[0]
    assert 0.2 < best.binds_share <= 1


def sampled(kept_out=None, queued=0.9, **row):
    row = {"bandwidth_bound_fraction": 0.9, "busy_fraction": 0.95, **row}
    return Sample(row, None, None, None, 0, {}, kept_out or {}, {"ttft": queued, "e2e": 0.1})


def missed(statistic):
    return Refusal(Why.MISSED, "in any words", statistic)


def test_what_binds_by_what_was_waited_for():
    full, fast = {"batch limit": Share(0.6, 0.1)}, {"batch limit": Share(0.6, 0.9), "KV memory": Share(0.4, 0.0)}
    assert binding(sampled(full), missed("ttft_p99_s")) == Binding("batch limit", 0.6)
    # Steps above the ridge take longer with more rows: more seats would win nothing.
    assert binding(sampled(fast), missed("ttft_p99_s")) == Binding("compute", pytest.approx(0.54))
    assert binding(sampled(full), missed("tpot_p95_s")) == Binding("bandwidth", 0.9)
    assert binding(sampled(full, bandwidth_bound_fraction=0.2), missed("itl_p99_s")) == Binding("compute", 0.8)
    # A first token that takes long without waiting waits for its own prompt's steps; an answer, for its own tokens'.
    assert binding(sampled(full, queued=0.1), missed("ttft_p99_s")) == Binding("bandwidth", 0.9)
    assert binding(sampled(full), missed("e2e_mean_s")) == Binding("bandwidth", 0.9)
    assert binding(sampled(full), missed("queue_p99_s")) == Binding("batch limit", 0.6)
    assert binding(sampled(), Refusal(Why.OUT_OF_MEMORY, "whatever")) == Binding("KV memory", 1.0)
    budget = {"token budget": Share(0.5, 0.0)}
    assert binding(sampled(budget, busy_fraction=0.4), missed("queue_p99_s")) == Binding("queueing", 0.6)
    assert binding(sampled(budget), Refusal(Why.UNSTABLE, "")) == Binding("token budget", 0.5)
    assert binding(sampled(), None) == Binding("bandwidth", 0.9)


# --- configurations -------------------------------------------------------------------------------------------------


def test_what_cannot_be_stays_in_the_table_with_its_reason(made, tmp_path):
    scenario = made(
        search__over={"engine.gpu_memory_utilization": [0.1, 0.9], "policies[0].max_num_seqs": [1, 2]},
        goal__usd_per_gpu_hour={"h100-sxm": 2.0}, goal__api={"usd_per_mtok_input": 9.0, "usd_per_mtok_output": 1.0},
        search__try_changes=True,
    )  # fmt: skip
    plan = make_plan(scenario)
    assert len(plan.options) == 4
    assert [option.serves for option in plan.options] == [False, False, True, True]
    assert "No available memory" in plan.options[0].refused
    assert plan.best.changed["policies[0].max_num_seqs"] == 2  # two share one step: as fast, and double
    assert plan.best.capacity.value > 1.5 * plan.options[2].capacity.value
    # Twice as many in a step of the same length: nearly twice the load.
    assert plan.changes[0].label in {"max_num_seqs=4", "max_num_seqs=1"}
    assert plan.changes[0].gain_per_gpu > 0.5
    assert [change.label for change in plan.changes if "batched" in change.label]
    assert plan.baseline.gain_per_gpu == 0.0
    first = plan.changes[0]
    assert first.gain_per_gpu == pytest.approx(first.capacity / plan.baseline.capacity - 1)
    assert [row[0] for row in list(plan_words.tables(plan))[-1].rows][:2] == ["as it is", first.label]
    assert "Next best change: max_num_seqs=4" in verdict(plan).rest
    assert plan.best.binds == "batch limit"
    assert plan.break_even.utilisation == pytest.approx(plan.break_even.load / plan.best.capacity.value)
    assert plan.break_even.utilisation_low < plan.break_even.utilisation < plan.break_even.utilisation_high
    json.dumps(plan.data(), allow_nan=False)
    same = make_plan(scenario, jobs=2)
    assert same == plan


def test_a_point_that_is_no_scenario_stays_in_the_table_too(made):
    """A budget below the number of sequences is refused by the schema itself, and the other points are planned."""
    scenario = made(search__over={"policies[0].max_num_batched_tokens": [4, 64], "policies[0].max_num_seqs": [1, 8]})
    plan = make_plan(scenario)
    assert [option.serves for option in plan.options].count(True) == 3
    [bad] = [option for option in plan.options if not option.serves]
    assert "max_num_batched_tokens" in bad.refused
    assert bad.changed == {"policies[0].max_num_batched_tokens": 4, "policies[0].max_num_seqs": 8}
    assert (bad.unit, bad.target, bad.capacity) == ("requests/s", 5.0, None)
    assert any("max_num_batched_tokens" in row[-1] for row in next(plan_words.tables(plan)).rows)


@pytest.mark.parametrize(
    ("over", "problem"),
    [
        ({"policies[0].max_num_seqs": [2, 2]}, r"scenario.search.over.policies\[0\].max_num_seqs: 2 stands twice"),
        ({"policies[0].max_num_seq": [1, 2]}, r"scenario.search.over.*max_num_seq"),
        ({"engine.block_size": [0, -1]}, r"scenario.search.over"),
        ({"seeds": [1, 2]}, r"scenario.search.over.seeds: seeds cannot be swept"),
    ],
)
def test_a_search_without_a_scenario_in_it_is_refused(made, over, problem):
    with pytest.raises(InputError, match=problem):
        make_plan(made(search__over=over))


def test_no_feasible_point_is_a_plan_that_says_why(made):
    plan = make_plan(made(search__over={"engine.gpu_memory_utilization": [0.05, 0.1]}))
    assert plan.best is None
    assert all("No available memory" in option.refused for option in plan.options)
    assert verdict(plan).headline == "No configuration meets the goal at any load."


def test_a_search_over_what_the_issue_names(made):
    """Devices, split, dtype of weights, replicas, a policy's parameter, and a profile that is of another model."""
    data = made(workload__requests=60, search__seeds=1).model_dump(mode="json", exclude_unset=True)
    profile = data.pop("profile")
    data |= {"device": "h100-sxm", "model": "llama-3.1-8b", "goal": {"slo": {"tpot_p95_s": 1.0}, "rate_rps": 2.0}}
    data["policies"][0] |= {"max_num_seqs": 8, "max_num_batched_tokens": 512}
    data["search"]["over"] = {
        "device": ["h100-sxm", "a100-80gb"], "engine.tensor_parallel_size": [1, 3],
        "engine.quantization": [None, "fp8"], "replicas": [1, 2],
    }  # fmt: skip
    plan = make_plan(check(data, Path()))
    assert len(plan.options) == 16
    assert {option.device for option in plan.options} == {"h100-sxm", "a100-80gb"}
    split = [option for option in plan.options if option.changed["engine.tensor_parallel_size"] == 3]
    assert all(not option.serves for option in split)
    rest = [option for option in plan.options if option not in split]
    assert {option.gpus for option in rest if option.serves} == {1, 2}
    data |= {"device": None, "profile": profile, "model": "qwen3-14b"}
    data["search"]["over"] = {"profile": [profile, "h100-llama-3.1-8b-ops"], "engine.quantization": [None, "fp8"]}
    told = [option.refused for option in make_plan(check(data, Path())).options]
    assert told[0] == ""
    assert "was measured with the model's own weights" in told[1]
    assert "was measured with llama-3.1-8b" in told[2]


def test_the_weights_of_fp8_take_half_the_memory_and_carry_more(made):
    data = made(**BINDING["bandwidth"]).model_dump(mode="json", exclude_unset=True)
    del data["profile"]
    data |= {
        "device": "h100-sxm",
        "model": "llama-3.1-8b",
        "search": {"seeds": 1, "draws": 0, "try_changes": True, "most_requests": 1},
    }
    data["workload"]["requests"] = 200
    change = next(c for c in make_plan(check(data, Path())).changes if c.label == "quantization=fp8")
    assert change.gain_per_gpu > 0.2
    twice = check({**data, "model": "gpt-oss-20b", "engine": {"quantization": "fp8"}}, Path())
    with pytest.raises(InputError, match="are mxfp4 already"):
        serving(twice)


def test_a_goal_on_a_trace(made, tmp_path):
    """20 arrivals, one in two seconds, each takes D: twenty times as fast they come as fast as they leave."""
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{2 * at},10,1\n" for at in range(200)))
    goal = {"goal__slo": {"queue_p99_s": 1e-6}, "workload": {"trace": {"path": str(trace)}}}
    plan = make_plan(made(**goal, goal__rate_rps=8.0, search__seeds=3))
    assert plan.best.capacity.value == pytest.approx(1 / D, rel=0.03)
    assert plan.best.saturation.value == pytest.approx(1 / D, rel=0.01)
    assert plan.best.capacity.low is None  # as recorded, each seed would be the same
    # Arrivals moved at random are drawn anew by each seed.
    jittered = {"trace": {"path": str(trace), "jitter_s": 1.0}}
    moved = make_plan(made(goal__slo={"queue_mean_s": 0.05}, workload=jittered, goal__rate_rps=2.0, search__seeds=3))
    assert moved.best.capacity.low is not None


def test_a_warm_up_leaves_as_much_at_every_load(made, tmp_path):
    """80 of the 100 s at 2 requests a second; at the highest load the 200 requests alone would last 20 s."""
    slo = {"goal__slo": {"queue_mean_s": 0.3}, "warmup_s": 80.0}
    own = {"workload__arrivals": {"kind": "poisson", "rate_rps": 2.0}, "workload__requests": 200}
    assert make_plan(made(**slo, **own)).best.capacity.value > 5
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{at / 2},10,1\n" for at in range(200)))
    assert make_plan(made(**slo, workload={"trace": {"path": str(trace)}})).best.capacity.value > 5


def test_runs_that_are_hardly_longer_than_their_beginning_say_so(made):
    keys = {"policies": [{"kind": "continuous", "max_num_seqs": 64, "max_num_batched_tokens": 640}]}
    long = {"kind": "fixed", "tokens": 200}
    short = make_plan(made(**keys, workload__output_tokens=long, workload__requests=80, goal__slo={"e2e_p99_s": 60.0}))
    assert any(note.startswith("Short runs: up to") for note in short.notes)
    [length] = make_plan(made()).notes
    assert length == (
        "Length of runs: 300 requests at the highest load; workload.requests is 300, and search.most_requests lets no "
        "run be longer."
    )


def test_a_fleet_whose_own_highest_load_is_below_the_target_is_not_chosen(made):
    """Each replica saturates at 1 / D: two serve 19.98 a second or less, so that 19.99 want three."""
    near = {"workload__arrivals": {"kind": "poisson", "rate_rps": 5.0}, "goal__slo": {"queue_mean_s": 1e7}}
    for target in (19.5, 19.99, 20.0):
        plan = make_plan(made(**near, goal__rate_rps=target, workload__requests=600))
        assert plan.best.capacity.value >= target
        assert plan.headroom.value >= 0
        assert plan.options[0].fleet_capacity == plan.best.capacity
        assert plan.options[0].target_gpus == plan.best.gpus


def test_a_size_that_may_not_hold_is_said_first_with_the_next_that_does(made):
    keys = {"workload__arrivals": EVEN, "goal__slo": {"queue_p99_s": 1e-6}, "search__draws": 12}
    plan = make_plan(made(residuals=SPREAD, goal__rate_rps=9.5, router="round_robin", **keys))
    assert (plan.best.gpus, plan.holds.gpus, plan.may_not_hold) == (1, 2, True)
    assert plan.holds.capacity.low >= 9.5
    assert verdict(plan).headline.startswith("1 H100 SXM may not hold 9.50 requests/s, 2 do")
    assert plan.data()["holds"]["gpus"] == 2
    sure = make_plan(made(residuals=SPREAD, goal__rate_rps=7.0, **keys))
    assert (sure.holds, sure.may_not_hold) == (None, False)
    assert verdict(sure).headline == "1 H100 SXM for 7 requests/s."
    given = make_plan(made(residuals=SPREAD, goal__rate_rps=9.5, replicas=1, **keys))
    assert (given.holds, given.may_not_hold) == (None, True)  # a number that is given has no next


def test_no_rounding_hides_what_is_below_the_target():
    assert plan_words.apart(Estimate(24.98), 25.0) == "24.98"
    assert plan_words.apart(Estimate(24.9998, 20.0, 30.0), 25.0) == "24.9998 (20 to 30)"
    assert plan_words.apart(Estimate(25.0, 20.0, 30.0), 25.0) == "25 (20 to 30)"


def test_runs_are_lengthened_until_the_answer_is_that_of_long_ones(made, simulated):
    """However few requests the scenario has: near saturation a short run ends before its queue has grown."""
    exact = 2 * 0.3 / (D + 2 * 0.3) / D
    keys = {"goal__slo": {"queue_mean_s": 0.3}, "search__most_requests": 16_000, "search__seeds": 3}
    for requests in (40, 400):
        plan = make_plan(made(**keys, workload__requests=requests))
        option = plan.options[0]
        assert option.requests >= 2000
        assert abs(option.drift) <= 0.05
        assert option.capacity.value == pytest.approx(exact, rel=0.05)
        assert option.capacity.low < exact < option.capacity.high
        [length] = plan.notes
        assert f"(workload.requests: {requests})" in length
        assert "in runs half as long" in length
    short = make_plan(made(**{**keys, "search__most_requests": 1}, workload__requests=40)).options[0]
    assert short.capacity.value > 1.05 * exact
    # The bound is kept, and a search that ends there is doubted.
    capped = make_plan(made(**{**keys, "search__most_requests": 90, "search__half_width": 1e-4}, workload__requests=40))
    assert capped.options[0].requests == 90
    assert any("raise search.most_requests" in doubt for doubt in capped.doubts)


def test_what_lengthening_moved_widens_the_interval():
    plain, moved = estimate([9.0, 10.0, 11.0]), estimate([9.0, 10.0, 11.0], drift=0.2)
    assert moved.low < plain.low
    assert moved.high == plain.high
    assert estimate([9.0, 10.0, 11.0], drift=-0.2).high > plain.high


def test_a_recording_keeps_its_length_and_says_so(made, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{2 * at},10,1\n" for at in range(200)))
    goal = {"goal__slo": {"queue_p99_s": 1e-6}, "workload": {"trace": {"path": str(trace)}}}
    plan = make_plan(made(**goal, search__most_requests=50_000))
    assert plan.options[0].requests is None
    assert "200 requests at the highest load, as many as are recorded" in plan.notes[0]


def test_what_is_extrapolated_is_said_and_more_than_a_tenth_is_a_doubt(made, tmp_path):
    """Prompts of 10 tokens where 4 were measured: every step of prompts lies outside."""
    beyond = {**MEASURED, "prefill": {"prefill_tokens": [1, 4]}}
    plan = make_plan(made(domain=beyond))
    assert plan.best.extrapolated == pytest.approx(1.0)
    assert not plan.supported
    assert any("100 % of the busy time is priced beyond" in doubt for doubt in plan.doubts)
    [said] = [note for note in plan.notes if note.startswith("Extrapolated: continuous, up to 100 % of its busy time")]
    assert "more prompts in a step (2.2 times)" in said
    assert said in plan.data()["notes"]
    assert said.split(":")[1].strip()[:20] in write(plan, tmp_path / "out").read_text()
    assert make_plan(made()).best.extrapolated == 0.0
    assert make_plan(made()).supported


def test_the_api_is_compared_with_the_cheapest_gpus_not_the_fewest(made, tmp_path):
    """At 15 a second a cheap device takes more GPUs than a dear one; the note, the break-even and the words agree."""
    scenario = made(cost={"usd_per_gpu_hour": 1.0}, goal__api={"usd_per_mtok_input": 1.0, "usd_per_mtok_output": 1.0})
    plan = make_plan(scenario)
    dear = plan.options[0]
    cheap = replace(dear, label="cheap", target_gpus=2, target_replicas=2, usd_per_hour=0.1, usd_at_target={})
    assert plan.break_even_of == plan.cheapest == dear.label
    from servecast.plan import planner

    options = [dear, cheap]
    assert planner._cheapest(options) == 1
    [note] = planner._notes(options)
    assert note.startswith("Cheaper with more GPUs: cheap, 2 GPUs, $0.20")
    found = planner._against_api(cheap, scenario.goal)
    assert found.load == pytest.approx(0.2 / (11 / 1e6) / 3600)
    told = replace(plan, options=(dear, cheap), break_even=found, break_even_of="cheap", cheapest="cheap")
    assert "cheapest GPUs for the target (cheap, 2 H100 SXM) are" in verdict(told).rest


def test_every_option_has_intervals_of_the_same_parts(made):
    plan = make_plan(made(residuals=SPREAD, search__over={"policies[0].max_num_seqs": [1, 2]}, search__draws=6))
    assert {option.interval for option in plan.options} == {"seeds and profile"}
    bare = make_plan(made(residuals=SPREAD, search__over={"policies[0].max_num_seqs": [1, 2]}))
    assert {option.interval for option in bare.options} == {"seeds"}
    for wide, narrow in zip(plan.options, bare.options, strict=True):
        assert wide.capacity.high - wide.capacity.low > 1.5 * (narrow.capacity.high - narrow.capacity.low)


def test_the_table_names_one_replica_and_the_fleet_apart(made):
    scenario = made(goal__rate_rps=12.0, cost={"usd_per_gpu_hour": 2.0}, goal__slo={"queue_mean_s": 0.1})
    plan = make_plan(scenario)
    option = plan.options[0]
    assert (option.tensor_parallel, option.target_gpus) == (1, 2)
    # Two that share what arrives serve more than twice one.
    assert option.fleet_capacity.value > 2 * option.capacity.value
    assert option.usd_at_target["output"].value == pytest.approx(4.0 / 3600 / 12 * 1e6)
    table = next(plan_words.tables(plan))
    assert dict(zip(table.columns, table.rows[0], strict=True))["$/hour for the target"] == "4.00"
    told = plan.data()["options"][0]
    assert (told["replica_gpus"], told["usd_for_target"]) == (1, 4.0)
    assert "drawn" not in told


def test_a_long_reason_stands_whole_in_the_table(made):
    plan = make_plan(made(search__over={"engine.gpu_memory_utilization": [0.1, 0.9]}))
    assert len(plan.options[0].refused) > 48
    assert plan.options[0].refused in next(plan_words.tables(plan)).rows[0][-1]


@pytest.mark.parametrize(
    ("over", "problem"),
    [
        ({"profile": ["PROFILE", "h1000-qwen3"]}, r"scenario.search.over.profile: 'h1000-qwen3' is not shipped"),
        ({"model": ["qwen3-14b", "qwen3-15b"]}, r"scenario.search.over.model: 'qwen3-15b' is no model"),
        (
            {"policies[0].kind": ["continuous", "contnuous"]},
            r"scenario.search.over.*is unknown: did you mean continuous",
        ),
        ({"engine.block_size": [16, "x"]}, r"scenario.search.over.*'x' is text"),
        ({"engine.nonsense": [1, 2], "engine.block_size": [16, -1]}, r"scenario.search.over.*unknown key"),
    ],
)
def test_a_name_that_is_misspelt_is_a_slip_and_no_option(made, over, problem):
    over = {key: [made().profile if value == "PROFILE" else value for value in values] for key, values in over.items()}
    with pytest.raises(InputError) as told:
        make_plan(made(search__over=over))
    assert re.search(problem, str(told.value))


def test_more_gpus_may_be_cheaper(made):
    scenario = made(
        search__over={"replicas": [1, 2]}, goal__rate_rps=3.0, cost={"usd_per_gpu_hour": 1.0}, search__most_gpus=1
    )
    plan = make_plan(scenario)
    assert plan.best.replicas == 1
    assert plan.options[1].target_gpus is None
    assert plan.options[1].capacity.value > 1.8 * plan.options[0].capacity.value


def test_no_plan_without_goal_or_rate(made, tmp_path):
    with pytest.raises(InputError, match="is missing: say what to reach"):
        make_plan(made(goal=None))
    with pytest.raises(InputError, match="has no rate"):
        make_plan(made(workload__arrivals={"kind": "burst"}))
    with pytest.raises(InputError, match=r"goal.usd_per_gpu_hour.h200-sxm: .*h200"):
        make_plan(made(goal__usd_per_gpu_hour={"h100-sxm": 2.0, "h200-sxm": 3.0}))
    with pytest.raises(InputError, match="counts in users"):
        make_plan(made(workload__arrivals={"kind": "closed", "users": 2, "think_s": 1.0}, goal__rate_rps=1.0))


@pytest.mark.parametrize(
    ("slo", "problem"),
    [
        ({}, "no target is given"),
        ({"ttft_p42_s": 1.0}, "is no statistic"),
        ({"slo_attainment": 1.5}, "is a share"),
        ({"ttft_p99_s": 0}, "can never be met"),
    ],
)
def test_a_goal_that_cannot_be_is_refused(made, slo, problem):
    with pytest.raises(InputError, match=problem):
        made(goal__slo=slo)


def test_requests_that_are_rejected_or_lost_are_no_service(made):
    short = make_plan(made(engine={"max_model_len": 10}))
    assert short.options[0].refused == "300 of 300 requests do not fit max_model_len"
    crash = {
        "policies": [{"kind": "static", "batch_size": 8, "max_wait_s": 0.0}],
        "engine": {"kv_blocks": 2, "max_model_len": 32, "restart_s": 1.0},
        "workload__prompt_tokens": {"kind": "fixed", "tokens": 20},
    }
    lost = make_plan(
        made(
            **crash,
            workload__arrivals={"kind": "poisson", "rate_rps": 40.0},
            goal__slo={"e2e_mean_s": 9},
            search__most_gpus=2,
        )
    )
    assert lost.options[0].capacity is None or lost.options[0].capacity.value < 10
    wide = make_plan(made(**crash, goal__allow_out_of_memory=True, goal__slo={"e2e_mean_s": 9}, search__most_gpus=1))
    assert wide.options[0].capacity is not None


def test_how_many_users(made):
    """Closed loop of one server: with think time Z the response is D up to (Z + D) / D users in turn at least."""
    scenario = made(
        workload__arrivals={"kind": "closed", "users": 4, "think_s": 1.0}, workload__requests=400,
        goal__slo={"e2e_p50_s": 0.3}, cost={"usd_per_gpu_hour": 1.0},
    )  # fmt: skip
    plan = make_plan(scenario)
    # N users, response N D - Z beyond N* = 11: at 13 users it is 0.3 s.
    assert plan.best.unit == "users"
    assert plan.best.capacity.value == 13
    assert plan.best.tokens == Tokens(10.0, 1.0)
    # Whoever they are, the server gives 1/D requests a second: a dollar an hour is so much for each token.
    assert plan.best.rate.value == pytest.approx(1 / D, rel=0.01)
    assert plan.best.usd_per_mtok["output"].value == pytest.approx(1 / 3600 * D * 1e6, rel=0.01)


def test_loads_of_every_kind_of_workload(made, tmp_path):
    trace = tmp_path / "t.csv"
    rows = "".join(f"2024-01-01 00:00:{at:02d}.0,10,1\n" for at in range(0, 40, 2))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    fixed = {"kind": "fixed", "tokens": 5}
    lengths = {"prompt_tokens": fixed, "output_tokens": fixed}
    poisson = {"kind": "poisson", "rate_rps": 4.0}
    kinds = {
        "trace": ({"trace": {"path": str(trace)}}, 0.5),
        "tenants": (
            {"tenants": [{"name": name, "arrivals": poisson, **lengths} for name in "ab"], "requests": 4000}, 8.0
        ),
        "piecewise": (
            {"arrivals": {"kind": "piecewise", "durations_s": [10.0, 10.0], "rates_rps": [2.0, 6.0], "repeat": True},
             **lengths, "requests": 4000}, 4.0,
        ),
        "diurnal": (
            {"arrivals": {"kind": "diurnal", "mean_rps": 3.0, "period_s": 50.0}, **lengths, "requests": 3000}, 3.0
        ),
    }  # fmt: skip
    for name, (workload, own) in kinds.items():
        section = made(workload=workload).workload
        load = load_of(section, 16)
        assert load.own == pytest.approx(own, rel=0.06), name
        faster = load_of(load.at(2 * load.own, 0), 16)
        assert faster.own == pytest.approx(2 * load.own, rel=1e-6), name
        burst = load_of(load.at(math.inf, 0), 16)
        assert burst is None or burst.own > 1e4 * own
    talks = {
        "conversations": {"arrivals": poisson, "turns": fixed, "new_tokens": fixed, "output_tokens": fixed},
        "requests": 9,
    }
    talk = load_of(made(workload=talks).workload, 16)
    assert (talk.unit, talk.own) == ("conversations/s", 4.0)
    assert talk.at(8.0, 0).conversations.arrivals.rate_rps == 8.0
    users = load_of(made(workload__arrivals={"kind": "closed", "users": 3, "think_s": 0.0}).workload, 16)
    client = traffic(users.at(7, 1), 16).client
    assert isinstance(client, ClosedLoop)
    assert users.at(7, 1, times=2).requests == 600
    sent = made(workload=kinds["trace"][0])
    assert make_plan(sent).best.target == pytest.approx(0.5)


# --- going on -------------------------------------------------------------------------------------------------------


@pytest.fixture
def simulated(monkeypatch):
    """The loads that were simulated, and not found; raises KeyboardInterrupt once ``stop_at`` of them were."""
    made, simulate = [], Configuration._simulated

    def each(self, *load):
        if len(made) == each.stop_at:
            raise KeyboardInterrupt
        made.append(load)
        return simulate(self, *load)

    each.stop_at = math.inf
    monkeypatch.setattr(Configuration, "_simulated", each)
    return SimpleNamespace(made=made, stop=lambda at: setattr(each, "stop_at", at))


SEARCH = {"search__over": {"policies[0].max_num_seqs": [1, 2, 4]}, "search__try_changes": True, "search__draws": 3}


def test_two_sittings_give_the_plan_of_one_and_simulate_nothing_twice(made, simulated, tmp_path):
    scenario = made(residuals=SPREAD, **SEARCH)
    whole = make_plan(scenario)
    needed = len(simulated.made)
    for stop in (5, 40):
        simulated.made.clear()
        simulated.stop(stop)
        with pytest.raises(KeyboardInterrupt), opened(tmp_path / "p") as store:
            make_plan(scenario, store=store)
        simulated.stop(math.inf)
    simulated.made.clear()
    with opened(tmp_path / "p") as store:
        found = make_plan(scenario, store=store)
    assert found == whole
    assert found.resumed == 45
    assert len(simulated.made) <= needed - 45  # a change that is an option too is simulated once
    simulated.made.clear()
    with opened(tmp_path / "p") as store:
        assert make_plan(scenario, jobs=2, store=store) == whole
    assert simulated.made == []
    with opened(tmp_path / "p", fresh=True) as store:
        assert make_plan(scenario, store=store).resumed == 0


def test_a_goal_a_price_or_a_longer_search_finds_what_was_simulated_and_a_changed_scenario_does_not(
    made, simulated, tmp_path
):
    def plan(**keys):
        simulated.made.clear()
        with opened(tmp_path / "p") as store:
            return make_plan(made(search__over={"policies[0].max_num_seqs": [1, 2]}, **keys), store=store)

    plan()
    first = len(simulated.made)
    assert 0 < plan(cost={"usd_per_gpu_hour": 9.0}).resumed <= first
    assert simulated.made == []
    assert plan(goal__slo={"queue_mean_s": 0.15}).resumed > 0
    assert 0 < len(simulated.made) < first
    for change in (
        {"slo": {"ttft_s": 1.0}}, {"workload__requests": 301},
        {"residuals": SPREAD},  # another profile
    ):  # fmt: skip
        assert plan(**change).resumed == 0, change
        assert len(digests_in(tmp_path / ".p.sqlite")) == 2  # of what came before nothing is left when a plan is done
    plan()
    assert len(simulated.made) == first


def test_two_plans_into_one_folder_are_refused(tmp_path):
    inside = pytest.raises(InputError, match="is writing these results")
    with opened(tmp_path / "p"), inside, opened(tmp_path / "p"):
        pytest.fail("both are in")
    assert list(tmp_path.iterdir()) == []  # without a load nothing is left


PLAN = """
import resource, signal, sys
sys.path[:0] = {paths!r}
if {limit}:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
from servecast.cli.app import main
main(["plan", {file!r}, "--out", {out!r}, "--jobs", "{jobs}"])
"""


def planning(file, out, jobs=1, limit=0) -> subprocess.Popen:
    code = PLAN.format(paths=[p for p in sys.path if p], file=str(file), out=str(out), jobs=jobs, limit=limit)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=out
    )


@pytest.fixture
def long(made, tmp_path):
    """A plan that takes a while, and its file."""
    scenario = made(search__over={"policies[0].max_num_seqs": [1, 2, 3, 4]}, workload__requests=1000)
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(scenario.model_dump(mode="json", exclude_unset=True)))
    return scenario, file


def rows_in(file, columns="digest") -> list:
    """What stands in a store, also while it is written; nothing where it is not made yet."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            return connection.execute(f"SELECT {columns} FROM runs").fetchall()
    except sqlite3.OperationalError:
        return []


def digests_in(file) -> set:
    return set(rows_in(file))


@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_it_loses_nothing_that_was_simulated(long, simulated, tmp_path, jobs):
    scenario, file = long
    file_of_store = tmp_path / ".flat-plan.sqlite"
    with planning(file, tmp_path, jobs) as process:
        until = time.monotonic() + 120
        while len(rows_in(file_of_store)) < 6:
            assert time.monotonic() < until
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    with opened(tmp_path / "flat-plan") as store:
        found = make_plan(scenario, store=store)
    assert found.resumed >= 6
    made_here = len(simulated.made)
    simulated.made.clear()
    assert make_plan(scenario) == found
    assert made_here <= len(simulated.made) - 6


@pytest.mark.parametrize("jobs", [1, 2])
def test_interrupted_it_says_so_in_a_line(long, tmp_path, jobs):
    _, file = long
    file_of_store = tmp_path / ".flat-plan.sqlite"
    with planning(file, tmp_path, jobs) as process:
        until = time.monotonic() + 120
        while len(rows_in(file_of_store)) < 3:
            assert time.monotonic() < until
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode == 130
    assert said.split("\n") == ["", "flat: interrupted; the same command goes on from what was simulated", ""]


def test_a_full_disk_is_one_line_and_keeps_what_was_simulated(long, tmp_path):
    scenario, file = long
    with planning(file, tmp_path, limit=60_000) as process:
        _, said = process.communicate()
    assert process.returncode == 2
    assert said.startswith(f"{(tmp_path / '.flat-plan.sqlite').resolve()}: cannot be written (")
    assert len(said.splitlines()) == 1
    with opened(tmp_path / "flat-plan") as store:
        kept = len(store)
        assert kept > 3
        assert make_plan(scenario, store=store).resumed == kept


def test_progress_counts_every_configuration_and_the_closer_look(made):
    told = []
    make_plan(made(**SEARCH), progress=told.append)
    assert [each.made for each in told] == [0, 1, 2, 3, 4]
    assert {each.total for each in told} == {4}
    assert all(isinstance(each, Progress) for each in told)


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def command(made, tmp_path):
    app = typer.Typer()
    app.command()(commands_plan.plan)
    app.command()(lambda: None)

    def call(*options, **keys):
        scenario = made(**keys)
        file = tmp_path / "s.yaml"
        file.write_text(yaml.safe_dump(scenario.model_dump(mode="json", exclude_unset=True)))
        return CliRunner().invoke(app, ["plan", str(file), "--out", str(tmp_path / "out"), *options])

    return call


def test_the_command_writes_and_prints(command, tmp_path):
    prices = {"cost": {"usd_per_gpu_hour": 2.0}, "goal__api": {"usd_per_mtok_input": 0.001, "usd_per_mtok_output": 0}}
    done = command(search__over={"engine.gpu_memory_utilization": [0.1, 0.9]}, search__try_changes=True, **prices)
    assert done.exit_code == 0, done.output
    assert "No available memory" in done.output
    assert "The API is cheaper at any load" in done.output
    folder = tmp_path / "out" / "flat-plan"
    rows = list(csv.DictReader((folder / "options.csv").read_text().splitlines()))
    assert len(rows) == 2
    assert float(rows[1]["highest_load"]) > 5
    assert rows[0]["refused"]
    page = (folder / "plan.html").read_text()
    assert "No available memory" in page
    assert "http" not in page
    assert json.loads((folder / "plan.json").read_text())["best"]["target_gpus"] == 1
    before = (folder / "plan.json").read_bytes()
    assert "resumed:" not in done.output
    again = command(search__over={"engine.gpu_memory_utilization": [0.1, 0.9]}, search__try_changes=True, **prices)
    assert "simulated loads were made before" in again.output
    assert (folder / "plan.json").read_bytes() == before
    fresh = command(
        "--fresh", search__over={"engine.gpu_memory_utilization": [0.1, 0.9]}, search__try_changes=True, **prices
    )
    assert "resumed:" not in fresh.output


def test_the_command_in_json_and_without_an_answer(command):
    told = command("--json", "--set", "goal.rate_rps=4")
    assert json.loads(told.stdout)["best"]["target"] == 4
    none = command("--set", "goal.slo={ttft_p99_s: 0.01}")
    assert none.exit_code == 1
    assert "No configuration meets the goal" in none.output
    seeded = command("--json", "--seed", "7", "--set", "goal.rate_rps=4")
    assert json.loads(seeded.stdout)["best"]["capacity"] != json.loads(told.stdout)["best"]["capacity"]
    assert seeded.stdout == command("--json", "--set", "workload.seed=7", "--set", "goal.rate_rps=4").stdout
    wrong = command("--set", "goal.rate_rps")
    assert isinstance(wrong.exception, InputError)
    full = command("--set", "goal.rate_rps=900")
    assert full.exit_code == 1
    assert "more than 64 GPUs" in full.output


def test_a_datasheet_supports_nothing(made):
    scenario = made()
    data = {**scenario.model_dump(mode="json", exclude_unset=True), "profile": None, "device": "h100-sxm"}
    data["search"] = {"seeds": 2, "draws": 5, "try_changes": True, "most_requests": 1}
    data["goal"] = {"slo": {"tpot_p95_s": 0.05, "ttft_p99_s": 1.0}}
    data["workload"] = {**data["workload"], "output_tokens": {"kind": "fixed", "tokens": 20}, "requests": 60}
    plan = make_plan(check(data, Path()))
    assert not plan.supported
    assert "datasheet" in plan.doubts[0]
    # What is known of datasheets stands in every interval: steps may take 1.43 times as long.
    assert plan.best is not None
    for capacity in (plan.best.capacity, plan.options[0].capacity):
        assert capacity.low < capacity.value / 1.25
    assert any("tensor_parallel_size=2" in change.label for change in plan.changes)
    assert any("fp8" in change.label for change in plan.changes)


def test_a_shipped_profile_end_to_end():
    scenario = servecast.load(
        "quickstart",
        {
            "workload.requests": 120, "policies": [{"kind": "continuous", "max_num_seqs": 128}], "sweep": {},
            "goal": {"slo": {"ttft_p99_s": 1.0, "tpot_p95_s": 0.05}, "rate_rps": 12.0},
            "search": {"seeds": 2, "draws": 4, "most_requests": 500},
        },
    )  # fmt: skip
    plan = make_plan(scenario)
    assert plan.best.target_gpus == 2
    assert plan.best.capacity.low < plan.best.capacity.value < plan.best.capacity.high
    assert plan.best.at_target["ttft_p99_s"].high > plan.best.at_target["ttft_p99_s"].value


def test_a_target_far_beyond_one_gpu_is_answered(made):
    """600 requests a second where one GPU serves some 6: the search begins within what one can serve."""
    scenario = made(
        goal__rate_rps=600.0, goal__slo={"queue_mean_s": 0.01}, search__most_gpus=1, search__seeds=1,
        workload__requests=50,
    )  # fmt: skip
    [option] = make_plan(scenario).options
    assert option.capacity is not None
    assert 0 < option.capacity.value < 10


def test_gpus_that_share_a_router_need_fewer_than_each_for_itself(made):
    """One GPU carries 6.67 requests a second within the wait, so six would be needed of those that do not share."""
    plan = make_plan(
        made(
            goal__rate_rps=40.0, workload__requests=600, search__seeds=1, search__most_gpus=5, search__try_changes=False
        )
    )
    [alone] = plan.options
    assert alone.capacity.value * 5 < 40
    assert plan.best is not None
    assert plan.best.target_gpus == 5


def test_a_horizon_is_refused_because_it_hides_late_answers(made):
    with pytest.raises(InputError, match=r"scenario.horizon_s: 5 cuts off the answers that are late"):
        make_plan(made(horizon_s=5.0))


def test_users_of_a_full_server_cost_what_they_send(made):
    """One server of D seconds a request sends 1 / D whether 60 users wait or 255: the price at the target is of that."""
    from servecast.plan import planner

    arrivals = {"kind": "closed", "users": 60, "think_s": 1.0}
    scenario = made(
        goal__slo={"ttft_p99_s": 12.0}, cost={"usd_per_gpu_hour": 2.5},
        goal__api={"usd_per_mtok_input": 10.0, "usd_per_mtok_output": 10.0}, workload__arrivals=arrivals,
        workload__requests=3000, search__seeds=1, replicas=1,
    )  # fmt: skip
    plan = make_plan(scenario)
    option = plan.best
    per_request = 11 / 1e6  # ten tokens in, one out
    assert option.usd_at_target["total"].value == pytest.approx(2.5 / 3600 * D / per_request, rel=0.02)
    found = planner._against_api(option, scenario.goal)
    at_the_api = 10.0 * per_request / D * 3600  # dollars an hour for what is really sent
    assert found.api_usd_per_hour == pytest.approx(at_the_api, rel=0.02)
    assert found.load / option.target == pytest.approx(2.5 / at_the_api, rel=0.02)


def test_rows_that_a_trace_leaves_out_are_told(made, tmp_path):
    lines = "".join(f"{at / 5},10,1\n" for at in range(300))
    (tmp_path / "x.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n0.0,oops,1\n{lines}")
    workload = {"trace": {"path": str(tmp_path / "x.csv"), "on_bad_row": "skip"}}
    for slo in ({"ttft_mean_s": 1.0}, {"ttft_mean_s": 1e-9}):
        plan = make_plan(made(workload=workload, search__seeds=1, goal__slo=slo))
        assert (plan.best is None) == (slo["ttft_mean_s"] < D)
        assert any("left out 1 of" in note or "left out 1 row" in note for note in plan.notes), plan.notes

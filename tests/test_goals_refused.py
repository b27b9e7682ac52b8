"""Goals and searches that cannot be meant are refused in one line that says why; a target is what the workload says."""

from __future__ import annotations

import math

import pytest
import yaml

from servecast.errors import InputError
from servecast.plan.answer import Option
from servecast.plan.load import load_of
from servecast.plan.planner import _unused_prices, make_plan
from servecast.scenario import check

FIXED = {"kind": "fixed", "tokens": 5}
LENGTHS = {"prompt_tokens": FIXED, "output_tokens": FIXED}


def scenario(**keys):
    """A scenario with a goal; ``a__b`` replaces a key of a section."""
    data = {
        "name": "x",
        "model": "llama-3.1-8b",
        "device": "a100-80gb",
        "workload": {"arrivals": {"kind": "poisson", "rate_rps": 4.0}, **LENGTHS, "requests": 12},
        "policies": [{"kind": "continuous"}],
        "goal": {"slo": {"ttft_p99_s": 1.0}},
        "search": {"draws": 0, "try_changes": False, "seeds": 1, "tolerance": 0.5, "most_requests": 1},
    }
    for key, value in keys.items():
        at = data
        *above, last = key.split("__")
        for part in above:
            at = at.setdefault(part, {})
        at[last] = value
    return check(data, ".")


# --- what a search may change ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "goal.rate_rps",
        "goal.slo.ttft_p99_s",
        "goal",
        "search.seeds",
        "search.over",
        "slo.ttft_s",
        "cost.usd_per_gpu_hour",
        "warmup_s",
        "horizon_s",
        "workload",
        "workload.arrivals",
        "workload.arrivals.rate_rps",
        "workload.arrivals.users",
        "workload.requests",
        "workload.seed",
        "workload.prompt_tokens",
        "workload.lengths.name",
        "workload.trace.rate_scale",
        "workload.tenants",
        "workload.tenants[0].arrivals.rate_rps",
        "workload.tenants.0.slo",
        "workload.conversations.think_s",
        "workload.servegen.scale",
    ],
)
def test_a_search_does_not_change_what_is_asked(key):
    with pytest.raises(InputError) as refused:
        scenario(search__over={key: [1, 2]})
    told = str(refused.value)
    assert told.startswith(f"scenario.search.over.{key}: is part of what is asked")
    assert f"--set {key}=..." in told
    assert "\n" not in told


def test_a_search_changes_how_it_is_served():
    tenants = [{"name": name, "arrivals": {"kind": "poisson", "rate_rps": 2.0}, **LENGTHS} for name in "ab"]
    over = {
        "replicas": [1, 2],
        "router": ["round_robin"],
        "model": ["qwen3-14b"],
        "device": ["h100-sxm"],
        "engine.block_size": [16, 32],
        "policies[*].max_num_seqs": [1, 2],
        "workload.max_in_flight": [4, 8],
        "workload.network.uplink_s": [0.0],
        "workload.tenants[0].priority": [0, 1],
    }
    assert scenario(workload={"tenants": tenants, "requests": 10}, search__over=over).search.over.keys() == over.keys()
    for key in ("", "a b", "policies[x]"):
        with pytest.raises(InputError, match="is no key path"):
            scenario(search__over={key: [1]})


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"goal__slo": {"slo_attainment": 0}}, "slo_attainment: 0.0: is always met: give a share above 0, at most 1"),
        ({"goal__slo": {"slo_attainment": -1}}, "is always met"),
        ({"goal__slo": {"ttft_p99_s": 0}}, "can never be met: give a number above 0"),
        ({"goal__usd_per_gpu_hour": {"h200": -3}}, r"usd_per_gpu_hour.h200: -3 is out of range: give a number in \[0, 1e6\]"),
        ({"goal__usd_per_gpu_hour": {"h200": 2e6}}, r"give a number in \[0, 1e6\]"),
        ({"goal__usd_per_gpu_hour": {"h200": math.inf}}, r"inf is not finite: give a number in \[0, 1e6\]"),
        ({"goal__usd_per_gpu_hour": {"h200": None}}, r"h200: nothing is given \(null\): give a number"),
        ({"cost": {"usd_per_gpu_hour": -3}}, r"give a number in \[0, 1e6\]"),
        ({"goal__api": {"usd_per_mtok_input": -1, "usd_per_mtok_output": 1}}, r"give a number in \[0, 1e6\]"),
        ({"policies": [{"kind": "continuous", "name": "x" * 101}]}, "has 101 characters: give at most 100"),
        ({"name": "x" * 300}, "has 300 characters: give at most 100"),
        ({"search__over": {"replicas": 3}}, "3 is a number: give a list"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_would_do(keys, problem):
    with pytest.raises(InputError, match=problem) as refused:
        scenario(**keys)
    assert "String should" not in str(refused.value)


def test_a_share_of_all_may_be_asked():
    assert scenario(goal__slo={"slo_attainment": 1}, slo={"ttft_s": 1.0}).goal.slo == {"slo_attainment": 1.0}


# --- prices ----------------------------------------------------------------------------------------------------------


def test_a_price_that_no_option_has_use_for_is_told():
    own = {"a100-80gb": 1.0}
    told = "No option is on h200: its price is not used. The options are on a100-80gb."
    assert told not in make_plan(scenario(goal__usd_per_gpu_hour=own)).notes
    assert told in make_plan(scenario(goal__usd_per_gpu_hour={"h200": 3.0, **own})).notes
    none = make_plan(scenario(goal__usd_per_gpu_hour={"h200": 3.0}, goal__slo={"ttft_p99_s": 1e-6}))
    assert none.best is None
    assert told in none.notes


def test_several_prices_and_devices_are_told_together():
    options = [Option(name, {}, name, True, 1, "requests/s", 1.0) for name in ("h100-sxm", "a100-80gb", "h100-sxm")]
    goal = scenario(goal__usd_per_gpu_hour={"b200": 1.0, "h100-sxm": 1.0, "l4": 1.0}).goal
    assert _unused_prices(goal, options) == (
        "No option is on b200 and l4: their prices are not used. The options are on h100-sxm and a100-80gb.",
    )


# --- what a workload says --------------------------------------------------------------------------------------------


def tenant(name, share=None, **arrivals):
    return {"name": name, "arrivals": arrivals, **LENGTHS, "share": share}


def own(seed=0, requests=300, **workload):
    load = load_of(scenario(workload={"requests": requests, "seed": seed, **workload}).workload, 16)
    return None if load is None else load.own


POISSON3, POISSON2 = ({"kind": "poisson", "rate_rps": rate} for rate in (3.0, 2.0))
GAMMA = {"kind": "gamma", "rate_rps": 2.0, "burstiness": 0.2}
DAY = {"kind": "diurnal", "mean_rps": 2.0, "period_s": 10.0}
STEPS = {"kind": "piecewise", "durations_s": [1.0, 1.0], "rates_rps": [1.0, 3.0], "repeat": True}
RAMP = {"kind": "ramp_up", "start_rps": 1.0, "end_rps": 3.0}


@pytest.mark.parametrize(
    ("mixed", "rate", "within"),
    [
        ([tenant("a", **POISSON3), tenant("b", **POISSON2)], 5.0, 0),
        ([tenant("a", **POISSON3), tenant("b", **GAMMA)], 5.0, 0),
        ([tenant("a", 1.0, **POISSON3), tenant("b", 9.0, **POISSON2)], 5.0, 0),
        ([tenant("a", **POISSON3), tenant("b", **DAY)], 5.0, 0.05),
        ([tenant("a", 3.0, **POISSON3), tenant("b", 2.0, **STEPS)], 5.0, 0.05),
        ([tenant("a", 3.0, **POISSON3), tenant("b", 2.0, **RAMP)], 3.0 + 2 / math.log(3), 0.05),
    ],
)
def test_the_load_of_tenants_is_the_sum_of_their_rates_for_every_seed(mixed, rate, within):
    each = {own(seed, tenants=mixed) for seed in range(4)}
    assert len(each) == 1
    assert each.pop() == pytest.approx(rate, rel=within)


@pytest.mark.parametrize(
    ("arrivals", "rate"), [(POISSON3, 3.0), (GAMMA, 2.0), (DAY, 2.0), (STEPS, 2.0), (RAMP, 2 / math.log(3))]
)
def test_the_load_of_arrivals_is_their_rate_for_every_seed(arrivals, rate):
    each = {own(seed, requests=2000, arrivals=arrivals, **LENGTHS) for seed in range(4)}
    assert len(each) == 1
    assert each.pop() == pytest.approx(rate, rel=0.01)


def test_a_rhythm_counts_as_far_as_the_requests_come():
    """A day that begins at night: 60 requests at half the mean take two minutes, and their rate is that of the night."""
    assert own(requests=60, arrivals={"kind": "diurnal", "mean_rps": 1.0, "swing": 0.5}, **LENGTHS) == pytest.approx(
        0.5, rel=0.01
    )


def test_tenants_that_come_all_at_once_have_the_rate_of_their_requests_or_none():
    assert own(tenants=[tenant("a", 1.0, kind="burst")]) is None
    both = own(tenants=[tenant("a", 1.0, kind="burst"), tenant("b", 1.0, **POISSON2)])
    assert both == pytest.approx(4.0, rel=0.3)  # twice as many in the time of b's
    with pytest.raises(InputError, match="share is missing for tenant b"):
        own(tenants=[tenant("a", 1.0, **POISSON3), tenant("b", **POISSON2)])
    with pytest.raises(InputError, match="share is missing"):
        own(tenants=[tenant("a", **POISSON3), tenant("b", **STEPS)])


def test_a_trace_has_the_rate_that_it_has(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{at / 2},5,5\n" for at in range(21)))
    assert own(requests=None, trace={"path": str(file)}) == 2.0


def test_the_target_of_tenants_is_what_they_say():
    mixed = [tenant("a", **POISSON3), tenant("b", **POISSON2)]
    made = make_plan(scenario(workload={"tenants": mixed, "requests": 60}))
    assert made.best is not None
    assert made.best.target == 5.0


def test_no_refusal_needs_a_plan(tmp_path):
    """A search that cannot be is said when the file is read."""
    from servecast.scenario import load

    data = scenario().model_dump(mode="json", exclude_unset=True)
    data["search"]["over"] = {"goal.rate_rps": [1.0, 2.0]}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(InputError, match=r"scenario.search.over.goal.rate_rps: is part .*\(.*x.yaml:\d+\)"):
        load(tmp_path / "x.yaml")

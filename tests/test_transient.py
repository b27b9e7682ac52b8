"""A head that decides a statistic of the whole run is told with what leaves it out; steady traffic raises no alarm."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from serving import columns, serve

from servecast import simulate
from servecast.metrics import Window
from servecast.plan.planner import make_plan
from servecast.policies import Continuous
from servecast.run.transient import transient
from servecast.scenario import check, load
from servecast.workload.clients import ClosedLoop, HeldBack, LengthColumns, OpenLoop

SHARED = Path(os.environ.get("SERVECAST_SHARED", "../shared")) / "tried/scenarios"
WHOLE = Window()


def answered(arrival_s):
    """Requests at these times, all answered alike."""
    arrival_s = np.sort(arrival_s)
    count = len(arrival_s)
    first_s = arrival_s + np.random.default_rng(1).lognormal(-2, 0.5, count)
    requests = {
        "id": np.arange(count), "arrival_s": arrival_s, "sent_s": arrival_s, "scheduled_s": arrival_s,
        "first_token_s": first_s, "finish_s": first_s + 1.0, "status": np.zeros(count, int),
        "generated_tokens": np.full(count, 10),
    }  # fmt: skip
    return SimpleNamespace(requests=requests, respond="stream")


# --- many requests at once ----------------------------------------------------------------------------------------------


def test_the_start_of_a_closed_loop_decides_its_p99():
    """128 users at once: p99 TTFT 2.33 s, of which 0.098 s is the steady state."""
    if not (SHARED / "closed.yaml").is_file():
        pytest.skip(f"no {SHARED / 'closed.yaml'}: set SERVECAST_SHARED")
    results = simulate(load(SHARED / "closed.yaml"))
    [warning] = results.warnings
    assert warning.startswith("Start-up: 128 of 3,000 requests (4.3 %) come at once, and decide the p99 TTFT: 2.33 s")
    head = results.outcomes[0].made.transient
    assert (head.statistic, head.whole) == ("ttft_p99_s", results.summary["ttft_p99_s"][0])
    assert head.steady == pytest.approx(0.098, rel=0.01)
    steady = simulate(load(SHARED / "closed.yaml", {"warmup_s": head.warmup_s}))
    assert steady.warnings == ()
    assert steady.summary["ttft_p99_s"][0] == pytest.approx(head.steady, rel=1e-9)


def test_a_client_with_a_cap_starts_alike_and_a_burst_has_no_steady_part():
    burst = columns([(0.0, 200, 40)] * 600)
    run = serve(None, Continuous(64, 512), client=HeldBack(OpenLoop(burst), 60))
    head = transient(run, WHOLE)
    assert (head.head, head.of, head.warm) == (60, 600, False)
    assert "arrivals: {kind: closed}" in head.sentence("")
    assert transient(serve(None, Continuous(64, 512), client=OpenLoop(burst)), WHOLE) is None


def test_so_does_a_recording_of_users_who_began_within_milliseconds():
    rng = np.random.default_rng(5)
    arrival_s = np.concatenate([rng.uniform(0, 0.03, 60), rng.uniform(5, 120, 600)])
    run = serve([(at, 200, 40) for at in np.sort(arrival_s)], Continuous(16, 256))
    head = transient(run, WHOLE)
    assert (head.head, head.of, head.statistic) == (60, 660, "ttft_p99_s")


def test_where_no_steady_part_follows_more_requests_are_asked_for():
    lengths = LengthColumns(np.full(200, 200), np.random.default_rng(3).integers(20, 200, 200))
    head = transient(serve(None, Continuous(128, 2048), client=ClosedLoop(100, 0.0, lengths, 0.0)), WHOLE, users=100)
    assert head.warmup_s is None
    assert "100 of 200 requests (50.0 %) come at once" in head.sentence("")
    assert "of those that follow: send more requests" in head.sentence("")


@pytest.mark.parametrize("ramp_s", [0.0, 40.0])
def test_users_who_begin_one_after_the_other_raise_no_alarm(ramp_s):
    lengths = LengthColumns(np.full(1500, 200), np.random.default_rng(3).integers(20, 200, 1500))
    run = serve(None, Continuous(64, 512), client=ClosedLoop(50, 5.0, lengths, ramp_s))
    assert (transient(run, WHOLE, users=50) is None) == (ramp_s > 0)
    assert transient(run, Window(warmup_s=10.0), users=50) is None


# --- an idle head -------------------------------------------------------------------------------------------------------


def idle_head(seed, share, factor, count=2000):
    """A head of this share of 7,200 s at so small a part of the rate that follows."""
    rng = np.random.default_rng(seed)
    few = max(1, round(count * share * factor / (share * factor + 1 - share)))
    head_s = 7200 * share
    return np.concatenate([[0.0], rng.uniform(0, head_s, few - 1), rng.uniform(head_s, 7200, count - few)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("share", "factor"), [(0.5, 1 / 90), (0.5, 0.2), (0.25, 1 / 20), (0.15, 0.0)])
def test_an_idle_head_is_told_with_the_rate_after_it(seed, share, factor):
    head = transient(answered(idle_head(seed, share, factor)), WHOLE)
    assert head.idle
    assert head.warmup_s == pytest.approx(7200 * share, rel=0.06)
    assert head.head == pytest.approx(factor * head.of, rel=0.25, abs=0.01 * head.of)
    assert head.steady == pytest.approx(head.of, rel=0.05)
    assert f"warmup_s: {head.warmup_s:g} leaves it out" in head.sentence("")
    assert transient(answered(idle_head(seed, share, factor)), Window(warmup_s=head.warmup_s)) is None


STEADY = {
    "poisson": lambda rng, n: rng.exponential(1, n),
    "gamma, cv 2": lambda rng, n: rng.gamma(0.25, 4, n),
    "gamma, cv 4.5": lambda rng, n: rng.gamma(0.05, 20, n),
    "ticks of ten": lambda rng, n: np.where(np.arange(n) % 10, 0, rng.exponential(10, n)),
}


@pytest.mark.parametrize("name", STEADY)
def test_steady_arrivals_raise_no_alarm(name):
    for seed in range(60):
        for count in (100, 300, 2000):
            gaps = STEADY[name](np.random.default_rng([seed, count]), count)
            assert transient(answered(np.cumsum(gaps)), WHOLE) is None, (seed, count)


@pytest.mark.parametrize("rate_rps", [1.0, 6.0])
def test_poisson_traffic_that_is_simulated_raises_no_alarm(rate_rps):
    results = simulate(
        check(
            {
                "name": "steady", "model": "llama-3.1-8b", "device": "h100-sxm", "seeds": 6,
                "workload": {
                    "arrivals": {"kind": "poisson", "rate_rps": rate_rps},
                    "lengths": {"kind": "empirical", "name": "azure-conv-2023"},
                    "requests": 300,
                },
                "policies": [{"kind": "continuous"}, {"kind": "static"}],
            },
            Path(),
        )
    )  # fmt: skip
    assert results.warnings == ()


def test_a_plan_says_it_of_its_target_load():
    """A tenth of the requests are the first ones of 40 users."""
    scenario = {
        "name": "users", "model": "llama-3.1-8b", "device": "h100-sxm",
        "workload": {
            "arrivals": {"kind": "closed", "users": 40},
            "prompt_tokens": {"kind": "fixed", "tokens": 1000},
            "output_tokens": {"kind": "uniform", "min_tokens": 20, "max_tokens": 200},
            "requests": 400,
        },
        "policies": [{"kind": "continuous"}],
        "goal": {"slo": {"ttft_p99_s": 30.0}},
        "search": {"seeds": 1, "draws": 0, "try_changes": False, "most_requests": 400, "most_gpus": 1},
    }  # fmt: skip
    plan = make_plan(check(scenario, Path()))
    [note] = [note for note in plan.notes if note.startswith("Start-up at the target: 40 of 400 requests (10.0 %)")]
    assert "decide the p99 TTFT" in note

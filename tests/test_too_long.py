"""Requests beyond max_model_len: refused whole or cut, counted by reason, and told in every output.

vLLM refuses a request whose prompt and max_tokens exceed the context (status 400); nothing of it is served.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import columns, serve

from servecast import metrics, report, simulate
from servecast.cli import app as cli
from servecast.plan.planner import make_plan
from servecast.policies import POLICIES, Continuous, Static
from servecast.report.verdicts.plan import verdict as plan_verdict
from servecast.requests import RejectReason, Status
from servecast.run.judged import judged, per_policy
from servecast.run.system import System
from servecast.run.too_long import TooLong
from servecast.scenario import check, load
from servecast.scenario.serving import serving
from servecast.workload.clients import ClosedLoop, LengthColumns, OpenLoop
from servecast.workload.sessions import Sessions
from servecast.workload.traces.convert import write_trace
from servecast.workload.traces.trace_file import TraceFile

SHARED = Path(os.environ.get("SERVECAST_SHARED", "../shared")) / "tried/scenarios"
NONE, PROMPT, ANSWER, CACHE = RejectReason
CUT = {"on_too_long": "cut"}
BATCHES = [pytest.param(kind, id=name) for name, kind in POLICIES.items()]


def reasons(run):
    return [RejectReason(reason) for reason in run.requests["reject_reason"]]


# --- the engine ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BATCHES)
def test_prompt_and_answer_within_max_model_len_are_served_and_one_more_token_is_refused_whole(kind):
    requests = [(0, 10, 6), (0, 10, 7), (0, 15, 1), (0, 16, 1), (0, 40, 1)]
    run = serve(requests, kind(), max_model_len=16)
    assert reasons(run) == [NONE, ANSWER, NONE, PROMPT, PROMPT]
    assert run.requests["generated_tokens"].tolist() == [6, 0, 1, 0, 0]
    assert run.decisions["useful_prefill_tokens"].sum() == 25  # nothing of the others is computed
    cut = serve(requests, kind(), max_model_len=16, **CUT)
    assert reasons(cut) == [NONE, NONE, NONE, PROMPT, PROMPT]
    assert cut.requests["generated_tokens"].tolist() == [6, 6, 1, 0, 0]


def test_a_request_beyond_the_whole_cache_is_refused_for_that():
    """LIV-01: 40 tokens need 3 blocks of 16, the cache has 2. A longer max_model_len would not help."""
    run = serve([(0, 40, 1), (0, 10, 1), (0, 20, 13)], Continuous(), cap=2)
    assert reasons(run) == [CACHE, NONE, CACHE]


@given(
    st.lists(
        st.tuples(st.integers(0, 50).map(lambda at: at / 100), st.integers(1, 90), st.integers(1, 60)), min_size=1
    ),
    st.sampled_from(["reject", "cut"]),
    st.sampled_from([Continuous(4, 64), Static(3, 0.01)]),
)
def test_every_request_is_served_in_full_or_counted_once(requests, on_too_long, policy):
    run = serve(sorted(requests), policy, max_model_len=64, on_too_long=on_too_long)
    table = run.requests
    needs = table["prompt_tokens"] + table["output_tokens"]
    refused, done = table["status"] == Status.REJECTED, table["status"] == Status.COMPLETED
    assert (refused | done).all()
    assert ((table["reject_reason"] > 0) == refused).all()
    assert (refused == (needs > 64 if on_too_long == "reject" else table["prompt_tokens"] >= 64)).all()
    row = metrics.summarise(run, policy="", seed=0)
    assert row["rejected"] == sum(row[name] for name in metrics.REJECTIONS) == refused.sum()
    assert row["cut"] == (done & (needs > 64)).sum()
    assert row["cut_tokens"] == (needs - 64)[done & (needs > 64)].sum()
    assert row["longest_request_tokens"] == needs.max()
    frame = metrics.requests_frame(run)
    assert (frame["finish_reason"].isna() == refused).all()
    assert ((frame["finish_reason"] == "length") == (done & (needs > 64))).all()
    assert (frame["reject_reason"].isna() == ~refused).all()


def test_a_longer_max_model_len_takes_what_was_refused():
    requests = [(0.1 * at, 20 + 7 * at, 5 * at + 1) for at in range(12)]
    row = metrics.summarise(serve(requests, Continuous(), max_model_len=64), policy="", seed=0)
    assert row["rejected"] > 0
    enough = serve(requests, Continuous(), max_model_len=row["longest_request_tokens"])
    assert (enough.requests["status"] == Status.COMPLETED).all()
    short = serve(requests, Continuous(), max_model_len=row["longest_request_tokens"] - 1)
    assert (short.requests["status"] == Status.REJECTED).sum() == 1


def test_a_user_whose_request_is_refused_goes_on_and_a_session_ends_with_its_refused_turn():
    users = ClosedLoop(2, 1.0, LengthColumns(np.array([10, 60, 10, 10]), np.array([3, 9, 3, 3])), 0.0)
    run = serve(None, Continuous(), client=users, max_model_len=64)
    assert reasons(run) == [NONE, ANSWER, NONE, NONE]
    assert run.requests["sent_s"][2] == 1.0  # told at once, the user thinks for a second
    turns = replace(
        columns([(0, 10, 3), (1, 60, 9), (2, 10, 3)]),
        session=["a", "a", "a"],
        delay_s=np.array([math.nan, 1.0, 1.0]),
    )
    client = Sessions(turns)
    run = serve(None, Continuous(), client=client, max_model_len=64)
    assert reasons(run) == [NONE, ANSWER]
    assert client.cancelled == 1


MOST = """arrival_s,prompt_tokens,output_tokens,max_tokens
0,10,5,100
1,10,5,54
2,10,5,
3,10,60,60
4,10,9,8
"""


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_what_counts_is_the_longest_answer_that_a_request_allows(tmp_path, form):
    """vLLM refuses prompt + max_tokens beyond the context, however short the answer would have been."""
    import pandas as pd

    path = tmp_path / f"most.{form}"
    path.write_text(MOST)
    table = pd.read_csv(path)
    if form == "jsonl":
        table.to_json(path, orient="records", lines=True)
    elif form == "parquet":
        table.to_parquet(path)
    read = TraceFile(str(path), on_bad_row="skip").read()
    assert read.columns.max_tokens.tolist() == [100, 54, 5, 60]
    assert read.report.left_out.startswith("left out 1 of 5 rows: 1 row: more output tokens than max_tokens")
    run = serve(None, Continuous(), client=OpenLoop(read.columns), max_model_len=64)
    assert reasons(run) == [ANSWER, NONE, NONE, ANSWER]
    assert metrics.summarise(run, policy="", seed=0)["longest_request_tokens"] == 110
    cut = serve(None, Continuous(), client=OpenLoop(read.columns), max_model_len=64, **CUT)
    assert cut.requests["generated_tokens"].tolist() == [5, 5, 5, 54]
    assert metrics.summarise(cut, policy="", seed=0)["cut"] == 1
    write_trace(read.columns, str(tmp_path / "again.csv"), "plain")
    again = TraceFile(str(tmp_path / "again.csv")).read().columns
    assert again.max_tokens.tolist() == [100, 54, 5, 60]


# --- what is told -------------------------------------------------------------------------------------------------------


def tried(name, **keys):
    if not (SHARED / name).is_file():
        pytest.skip(f"no {SHARED / name}: set SERVECAST_SHARED")
    return load(SHARED / name, keys)


def test_answers_that_are_cut_are_counted():
    """real4k: 355 of 785 answers are cut, 988,547 of the 1,615,282 tokens are made, 215 prompts are too long."""
    results = simulate(tried("real4k.yaml", **{"engine.on_too_long": "cut"}))
    for row in results.summary.to_dict("records"):
        assert (row["arrived"], row["completed"], row["cut"]) == (1000, 785, 355)
        assert row["rejected_prompt_too_long"] == row["rejected"] == 215
        assert (row["generated_tokens"], row["cut_tokens"]) == (988_547, 1_615_282 - 988_547)
        assert row["longest_request_tokens"] == 16_000
    ends = results.requests["finish_reason"].value_counts()
    assert (ends["length"], ends["stop"]) == (2 * 355, 2 * 430)


def test_requests_that_are_refused_are_counted_and_told(tmp_path, monkeypatch, capsys):
    tried("real4k.yaml")
    scenario = (SHARED / "real4k.yaml").resolve()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(scenario), "--csv"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    told = "570 of 1,000 requests are refused (215 prompt too long and 355 answer too long)"
    assert told in shown
    assert "llama-2-7b has 4,096 positions: take a model with more" in shown
    assert "57 % of requests refused as too long: continuous serves" in shown
    html = Path("results/real4k/report.html").read_text(encoding="utf-8")
    assert told in html and "57 % of requests refused as too long" in html
    with gzip.open("results/real4k/requests.csv.gz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(row["reject_reason"] == "prompt_too_long" for row in rows) == 2 * 215
    assert sum(row["reject_reason"] == "answer_too_long" for row in rows) == 2 * 355
    assert sum(row["finish_reason"] == "stop" for row in rows) == 2 * 430


SMALL = {
    "name": "small",
    "model": "llama-2-7b",
    "device": "a100-80gb",
    "workload": {
        "arrivals": {"kind": "poisson", "rate_rps": 2.0},
        "prompt_tokens": {"kind": "fixed", "tokens": 300},
        "output_tokens": {"kind": "uniform", "min_tokens": 10, "max_tokens": 60},
        "requests": 60,
    },
    "policies": [{"kind": "continuous"}],
}


def small(**keys):
    return check({**SMALL, **keys}, Path())


def too_long(scenario, **row):
    counts = dict.fromkeys(metrics.REJECTIONS, 0) | {"arrived": 10, "completed": 9, "cut": 0, "cut_tokens": 0}
    memory = System.of(scenario, 0, serving(scenario)).memory
    return TooLong.of({**counts, "longest_request_tokens": 10_000, **row}, memory)


def test_the_remedy_is_one_that_helps():
    refused = {"rejected_answer_too_long": 1}
    assert too_long(small()) is None
    short = too_long(small(engine={"max_model_len": 100}), longest_request_tokens=360, **refused)
    assert short.remedy == "the longest needs 360 tokens: set engine.max_model_len to 360"
    assert short.counts == "1 of 10 requests is refused (1 answer too long)"
    assert "llama-2-7b has 4,096 positions: take a model with more" in too_long(small(), **refused).remedy
    cache = too_long(small(engine={"kv_blocks": 10}), longest_request_tokens=360, rejected_exceeds_kv_cache=1)
    assert "the KV cache holds 160 tokens: give it more memory" in cache.remedy
    assert "positions" not in cache.remedy


@pytest.mark.parametrize("policies", [["continuous"], ["continuous", "static", "padded"]])
def test_several_policies_points_and_seeds_are_one_warning(policies):
    results = simulate(
        small(
            policies=[{"kind": kind} for kind in policies],
            sweep={"engine.max_model_len": [330, 1000]},
            seeds=2,
        )
    )
    [warning] = results.warnings
    assert warning.startswith("Too long for max_model_len 330: ")
    assert f"{2 * len(policies)} of {4 * len(policies)} runs have some" in warning
    assert "max_model_len=330" in warning and "set engine.max_model_len to 3" in warning


def test_a_point_that_refuses_the_long_requests_is_not_the_best_one():
    """At 330 tokens most requests are refused, and the few others are served soonest."""
    keys = {"slo": {"ttft_s": 9.0}, "sweep": {"engine.max_model_len": [330, 1000]}}
    busy = {**SMALL["workload"], "arrivals": {"kind": "poisson", "rate_rps": 400.0}}
    results = simulate(small(workload=busy, **keys))
    assert results.summary["ttft_p99_s"].is_monotonic_increasing
    best = judged(per_policy(results.summary)).rows.iloc[0]
    assert best["engine.max_model_len"] == 1000
    told = str(report.verdict(results.summary, results.scenario["slo"]))
    assert "at max_model_len 1000" in told and "loses more requests at the other points" in told


def test_a_run_in_which_all_fit_says_nothing_of_it():
    results = simulate(small())
    assert results.warnings == ()
    assert all(results.summary[name].tolist() == [0] for name in (*metrics.REJECTIONS, "cut", "cut_tokens"))


def test_tenants_are_told_apart():
    one = {"arrivals": {"kind": "constant", "rate_rps": 1.0}, "prompt_tokens": {"kind": "fixed", "tokens": 100}}
    tenants = [
        {"name": name, **one, "output_tokens": {"kind": "fixed", "tokens": tokens}}
        for name, tokens in (("long", 500), ("short", 50))
    ]
    scenario = small(workload={"tenants": tenants, "requests": 20}, engine={"max_model_len": 200}, replicas=2)
    rows = {row["tenant"]: row for row in simulate(scenario).tenants.to_dict("records")}
    assert (rows["long"]["rejected_answer_too_long"], rows["long"]["completed"]) == (10, 0)
    assert (rows["short"]["rejected"], rows["short"]["completed"]) == (0, 10)


# --- plans --------------------------------------------------------------------------------------------------------------


def planned(**keys):
    goal = {"slo": {"ttft_p99_s": 5.0}, **keys.pop("goal", {})}
    search = {"seeds": 1, "draws": 0, "try_changes": False, "most_requests": 120, "most_gpus": 2}
    return make_plan(small(goal=goal, search=search, **keys))


def test_a_plan_whose_traffic_does_not_fit_says_so_first_and_quotes_no_load():
    plan = make_plan(tried("plan4k.yaml"))
    [option] = plan.options
    assert plan.best is None and option.capacity is None
    told = plan_verdict(plan)
    assert told.headline == "The traffic does not fit: 100 % of the requests refused as too long."
    assert "the longest needs 5,000 tokens, and llama-2-7b has 4,096 positions" in told.rest
    assert json.loads(json.dumps(plan.data()))["options"][0]["too_long"]["rejected"] == {
        "rejected_answer_too_long": option.too_long.arrived
    }


def test_a_plan_of_what_fits_is_asked_for_and_says_what_it_leaves_out():
    tight = {"engine": {"max_model_len": 340}}
    refused = planned(**tight)
    assert refused.best is None
    assert "goal.allow_rejected: true" in plan_verdict(refused).rest
    rest = planned(**tight, goal={"allow_rejected": True})
    assert rest.best is not None and rest.best.capacity is not None
    assert "refused as too long: " in plan_verdict(rest).headline
    priced = planned(**tight, cost={"usd_per_gpu_hour": 2.0}, goal={"allow_rejected": True}).best
    answered = 1 - sum(priced.too_long.rejected.values()) / priced.too_long.arrived
    assert 0 < answered < 1
    assert priced.offered[0].rate == pytest.approx(priced.target * answered, rel=0.05)  # what is refused is not billed
    assert priced.rate.value == pytest.approx(priced.capacity.value * answered, rel=0.05)
    cut = planned(engine={"max_model_len": 340, "on_too_long": "cut"})
    assert "of the answers cut short: " in plan_verdict(cut).headline
    assert planned().best.too_long is None

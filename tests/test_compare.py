"""`servecast compare`: statistics against scipy, recordings whose truth is known, a client that is far away, bad input."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from serving import columns, latencies, serve

from servecast.against.server import Comparison, command, forecast, load
from servecast.against.server.compared import batch_means, ks_distance, tost
from servecast.against.server.forecast import with_network
from servecast.against.server.observed import Observed, recorded, same_requests
from servecast.cli import app as cli
from servecast.errors import InputError
from servecast.policies import Continuous, Static
from servecast.report import compare_page as words
from servecast.report.compare_page import write
from servecast.report.verdicts.compare import verdict
from servecast.workload.clients import (
    ClientTimes,
    ClosedLoop,
    HeldBack,
    LengthColumns,
    OpenLoop,
    RecordedRequests,
    Remote,
)

HEAD = "arrival_s,send_s,prompt_tokens,output_tokens,ttft_s,e2e_s\n"
SCENARIO = """
name: toy
model: qwen3-14b
profile: h100-qwen3-14b
workload:
  arrivals: {kind: burst}
  lengths: {kind: empirical, name: azure-conv-2023}
  requests: 1
  CAP
  NETWORK
policies: [{kind: continuous, async_scheduling: true}]
"""


# --- statistics -----------------------------------------------------------------------------------------------------

samples = st.lists(st.floats(-50, 50, allow_subnormal=False), min_size=2, max_size=40).map(np.array)


@given(samples, st.floats(0.01, 10))
def test_tost_is_two_one_sided_t_tests(values, margin):
    found = tost(values, margin)
    if values.std(ddof=1) < 1e-9:
        return
    above = stats.ttest_1samp(values, -margin, alternative="greater")
    below = stats.ttest_1samp(values, margin, alternative="less")
    assert found.p_value == pytest.approx(max(above.pvalue, below.pvalue), abs=1e-9)
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.90)
    assert (found.low, found.high) == pytest.approx(tuple(interval), abs=1e-9)
    if abs(found.p_value - 0.05) > 1e-6:
        assert found.equivalent == (-margin < interval.low and interval.high < margin)


def test_tost_of_no_spread_and_of_too_few():
    assert tost(np.full(5, 0.01), 0.05) == (0.01, 0.01, 0.01, 0.0)
    assert not tost(np.full(5, 0.06), 0.05).equivalent
    assert tost(np.array([0.1]), 0.05) is None


@given(samples, samples)
def test_ks_distance_is_the_largest_between_the_shares_below(one, other):
    apart = max(abs((one <= at).mean() - (other <= at).mean()) for at in (*one, *other))
    assert ks_distance(one, other) == pytest.approx(apart, abs=1e-12)


def test_ks_distance_of_nothing_is_none():
    assert ks_distance(np.array([]), np.array([1.0])) is None


def test_batch_means_are_of_consecutive_values():
    assert batch_means(np.arange(6.0), 3).tolist() == [0.5, 2.5, 4.5]
    assert batch_means(np.arange(2.0), 30).tolist() == [0.0, 1.0]
    assert len(batch_means(np.empty(0))) == 0


# --- the client far away --------------------------------------------------------------------------------------------

ARRIVALS = [(0.0, 100, 5), (0.0, 40, 3), (0.013, 30, 8), (0.05, 64, 2), (0.31, 10, 4)]
UP, DOWN = 0.004, 0.003


def clients():
    lengths = LengthColumns(np.array([100, 40, 30, 64, 10, 77]), np.array([5, 3, 8, 2, 4, 6]))
    return {
        "open": lambda: OpenLoop(columns(ARRIVALS)),
        "capped": lambda: HeldBack(OpenLoop(columns(ARRIVALS)), 2),
        "closed": lambda: ClosedLoop(2, 0.01, lengths),
        "no thinking": lambda: ClosedLoop(2, 0.0, lengths),
    }


policies = pytest.mark.parametrize(
    "policy",
    [Continuous(), Continuous(async_scheduling=True), Static(batch_size=2, max_wait_s=0.02)],
    ids=["sync", "async", "static"],
)


@policies
@pytest.mark.parametrize("kind", clients())
def test_a_remote_client_sees_coalesced_and_stepped_runs_alike(kind, policy):
    runs = [serve([], policy, client=Remote(clients()[kind](), UP, DOWN), stepped=stepped) for stepped in (False, True)]
    for name in ("sent_s", "first_token_s", "finish_s"):
        assert runs[0].requests[name] == pytest.approx(runs[1].requests[name], abs=1e-9)


@policies
@pytest.mark.parametrize("kind", clients())
def test_no_way_to_go_changes_nothing(kind, policy):
    near, remote = (
        serve([], policy, client=client) for client in (clients()[kind](), Remote(clients()[kind](), 0.0, 0.0))
    )
    for name, column in near.requests.items():
        np.testing.assert_array_equal(column, remote.requests[name])


def test_an_open_loop_is_served_as_before_only_later():
    policy = Continuous()
    near, remote = serve(ARRIVALS, policy), serve([], policy, client=Remote(OpenLoop(columns(ARRIVALS)), UP, DOWN))
    assert remote.requests["sent_s"] == pytest.approx(near.requests["sent_s"] + UP, abs=1e-12)
    assert remote.requests["arrival_s"].tolist() == near.requests["arrival_s"].tolist()
    assert remote.requests["finish_s"] == pytest.approx(near.requests["finish_s"] + UP, abs=1e-9)
    assert latencies(remote)["ttft"] == pytest.approx(latencies(near)["ttft"], abs=1e-9)


@pytest.mark.parametrize("think_s", [0.0, 0.02])
def test_a_user_sends_after_hearing_never_before(think_s):
    """Causality, exactly: one user's next request reaches the server a way down, the thinking and a way up after the answer."""
    lengths = LengthColumns(np.full(5, 20), np.full(5, 4))
    run = serve([], Continuous(), client=Remote(ClosedLoop(1, think_s, lengths), UP, DOWN))
    reached, finish = run.requests["sent_s"], run.requests["finish_s"]
    assert reached[0] == UP
    assert reached[1:] == pytest.approx(finish[:-1] + DOWN + think_s + UP, abs=1e-12)


def test_a_cap_holds_at_the_client():
    """Never more than the cap between sending and hearing, and nothing held back that need not be."""
    cap = 3
    requests = [(0.002 * i, 20 + i, 3 + i % 5) for i in range(40)]
    run = serve([], Continuous(), client=Remote(HeldBack(OpenLoop(columns(requests)), cap), UP, DOWN))
    sent, heard = run.requests["sent_s"] - UP, run.requests["finish_s"] + DOWN
    arrival = run.requests["arrival_s"]
    for i, at in enumerate(sent):
        in_flight = int(((sent[:i] <= at) & (heard[:i] > at + 1e-9)).sum())
        assert in_flight < cap
        assert at == pytest.approx(max(arrival[i], np.sort(heard)[i - cap] if i >= cap else 0.0), abs=1e-9)


def test_only_the_sum_of_both_ways_is_seen():
    requests = [(0.002 * i, 20 + i, 3 + i % 5) for i in range(40)]
    seen = []
    for up, down in ((0.007, 0.0), (0.0, 0.007), (0.002, 0.005)):
        run = serve(
            [], Continuous(async_scheduling=True), client=Remote(HeldBack(OpenLoop(columns(requests)), 3), up, down)
        )
        seen.append(run.requests["finish_s"] + down)
    assert seen[0] == pytest.approx(seen[1], abs=1e-9) and seen[0] == pytest.approx(seen[2], abs=1e-9)


def test_rejected_requests_are_heard_of_too():
    run = serve(
        [],
        Continuous(),
        client=Remote(ClosedLoop(1, 0.0, LengthColumns(np.array([500, 20]), np.array([4, 4]))), UP, DOWN),
        max_model_len=100,
    )
    assert run.requests["status"].tolist() == [1, 0]
    assert run.requests["sent_s"][1] == pytest.approx(UP + DOWN + UP)


@pytest.mark.parametrize("times", [(-1.0, 0.0), (0.0, float("nan")), (float("inf"), 0.0)])
def test_a_way_that_cannot_be_is_refused(times):
    with pytest.raises(InputError, match=r"^network\.(up|down)link_s: .*finite"):
        Remote(OpenLoop(columns(ARRIVALS)), *times)
    assert len(Remote(OpenLoop(columns(ARRIVALS)), 0.0, 0.0)) == 5


# --- recordings whose truth is known --------------------------------------------------------------------------------


def traffic(count=240, rate=6.0, seed=1):
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / rate, count))
    arrival -= arrival[0]
    return Observed(
        arrival, arrival, rng.integers(200, 2000, count), rng.integers(1, 200, count), np.ones(count), np.ones(count)
    )


def scenario(tmp_path, cap=None, network=None, text=SCENARIO):
    path = tmp_path / "toy.yaml"
    text = text.replace("CAP", "" if cap is None else f"max_in_flight: {cap}")
    path.write_text(text.replace("NETWORK", "" if network is None else f"network: {network}"))
    return path


def record(path, setting, scale=1.0, host_s=0.0, requests=None):
    """What the clients of a simulated server saw, as a file."""
    seen = forecast.forecast(setting, requests or traffic(), step_time_scale=scale, host_step_s=host_s).seen
    rows = zip(
        seen.arrival_s, seen.sent_s, seen.prompt_tokens, seen.output_tokens, seen.ttft_s, seen.e2e_s, strict=True
    )
    path.write_text(HEAD + "".join(",".join(repr(value.item()) for value in row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("cap", [None, 4])
def test_a_run_of_the_simulator_itself_is_reproduced(tmp_path, cap):
    network = "{uplink_s: 0.003, downlink_s: 0.002}"
    toy = scenario(tmp_path, cap, network)
    run = record(tmp_path / "run.csv", load(toy))
    found = command.compared(toy, run)
    for row in found.rows:
        assert row["error"] == pytest.approx(0.0, abs=1e-6)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        mean = found.mean(name)
        assert mean["equivalent"] and mean["ks_distance"] < 0.01 and mean["request_error_p90"] < 1e-6
    assert found.held_back == (cap is not None)
    if cap:
        held = found.row("e2e_s", "mean", counted_from="arrival")
        assert held["recorded"] > 1.2 * found.mean("e2e_s")["recorded"]


def test_host_times_are_found_again_and_the_rest_is_judged(tmp_path):
    toy = scenario(tmp_path)
    far = with_network(load(toy), 0.004, 0.002)
    run = record(tmp_path / "run.csv", far, host_s=0.0012, requests=traffic(count=400, rate=3.0))
    plain = command.compared(toy, run)
    assert plain.mean("ttft_s")["error"] < -0.05 and plain.mean("tpot_s")["error"] < -0.05
    found = command.compared(toy, run, host_from=run, host_steps=True)
    assert found.host.network_s == pytest.approx(0.006, abs=1e-3)  # a step is 20 ms: phases are luck
    assert found.host.step_s == pytest.approx(0.0012, abs=5e-5)
    assert found.host.part == "first third" and not found.judged.all()
    assert abs(found.mean("e2e_s")["error"]) < 1e-3
    assert found.mean("e2e_s")["requests"] == "judged"


def test_host_times_from_another_run(tmp_path):
    toy = scenario(tmp_path)
    far = with_network(load(toy), 0.004, 0.002)
    run, other = record(tmp_path / "run.csv", far), record(tmp_path / "other.csv", far, requests=traffic(seed=2))
    found = command.compared(toy, run, host_from=other)
    assert found.host.part == "whole" and found.judged.all()
    assert found.host.network_s == pytest.approx(0.006, abs=2e-6)
    assert abs(found.mean("ttft_s")["error"]) < 1e-4


def test_host_times_are_not_fitted_where_the_client_held_back(tmp_path):
    toy = scenario(tmp_path, cap=3)
    run = record(tmp_path / "run.csv", load(toy))
    with pytest.raises(InputError, match=r"^--host-from: .*below saturation"):
        command.compared(toy, run, host_from=run)


def test_a_profile_that_is_too_slow_gets_no_time_back(tmp_path):
    toy = scenario(tmp_path)
    requests, _ = recorded(record(tmp_path / "run.csv", load(toy), scale=0.9))
    assert forecast.fit(load(toy), requests, steps=True)[:2] == (0.0, 0.0)


def test_steps_that_are_five_percent_off_are_told_so(tmp_path):
    toy = scenario(tmp_path)
    run = record(tmp_path / "run.csv", load(toy), scale=1 / 1.05, requests=traffic(count=600, rate=1.0))
    found = command.compared(toy, run, margin=0.03)
    tpot = found.mean("tpot_s")
    assert tpot["error"] == pytest.approx(0.05, abs=0.006)
    assert not tpot["equivalent"] and tpot["tost_p"] > 0.95
    assert tpot["error_low"] < tpot["error"] < tpot["error_high"]
    assert tpot["request_error_p50"] == pytest.approx(0.05, abs=0.01)
    assert tpot["in_band"] and tpot["ks_distance"] > 0.1
    assert command.compared(toy, run, margin=0.08).mean("tpot_s")["equivalent"]


def test_slow_first_tokens_are_told_apart(tmp_path):
    toy = scenario(tmp_path)
    run = record(tmp_path / "run.csv", load(toy), requests=traffic(rate=30.0, count=300))
    found = command.compared(toy, run)
    groups = {row["requests"] for row in found.rows}
    assert groups == {"all", "TTFT under 1 s", "whole run"}
    apart = found.mean("ttft_s", group="TTFT under 1 s")
    assert apart["recorded"] < 1.0 < found.mean("ttft_s")["recorded"] and apart["count"] < 300
    with pytest.raises(KeyError):
        found.mean("itl_s")


def test_a_twin_shows_how_far_two_real_runs_are_apart(tmp_path):
    toy = scenario(tmp_path)
    run = record(tmp_path / "run-vanilla.csv", load(toy))
    record(tmp_path / "run-patched.csv", load(toy), scale=1.01)
    found = command.compared(toy, run)
    assert found.twin[0] == "run-patched.csv"
    assert found.mean("tpot_s")["twin_error"] == pytest.approx(0.015, abs=0.006)
    assert found.mean("tpot_s")["twin_ks_distance"] > 0
    named = command.compared(toy, run, twin=tmp_path / "run-patched.csv")
    assert named.mean("e2e_s")["twin"] == found.mean("e2e_s")["twin"]


def test_a_twin_of_other_requests_is_none(tmp_path):
    toy = scenario(tmp_path)
    run = record(tmp_path / "run-vanilla.csv", load(toy))
    other = record(tmp_path / "run-patched.csv", load(toy), requests=traffic(count=100))
    assert "100 requests, not 240" in " ".join(command.compared(toy, run).notes)
    with pytest.raises(InputError, match="is no twin: holds 100 requests"):
        command.compared(toy, run, twin=other)
    again = record(tmp_path / "b.csv", load(toy), requests=traffic(seed=3))
    assert "prompt_tokens" in same_requests(recorded(run)[0], recorded(again)[0])


def test_warm_up_and_cool_down_are_left_out(tmp_path):
    toy = scenario(tmp_path)
    run = record(tmp_path / "run.csv", load(toy))
    found = command.compared(toy, run, overrides={"warmup_s": 10, "cooldown_s": 5})
    arrival = found.recorded.arrival_s
    assert found.judged.sum() == ((arrival >= 10) & (arrival <= arrival[-1] - 5)).sum() < len(arrival)
    with pytest.raises(InputError, match="no request of the recording arrives"):
        command.compared(toy, run, overrides={"warmup_s": 1000})


def test_answers_of_one_token_have_no_tpot(tmp_path):
    toy = scenario(tmp_path)
    requests = traffic(count=20)
    requests = Observed(
        requests.arrival_s, requests.sent_s, requests.prompt_tokens, np.ones(20, int), requests.ttft_s, requests.e2e_s
    )
    run = record(tmp_path / "run.csv", load(toy), requests=requests)
    found = command.compared(toy, run)
    assert "TPOT" not in str(verdict(found)) and write(found, tmp_path).is_file()
    with pytest.raises(InputError, match="--host-steps"):
        command.compared(toy, run, host_from=run, host_steps=True)


def test_answers_at_the_end_of_a_batch_have_their_first_token_there(tmp_path):
    text = SCENARIO.replace(
        "continuous, async_scheduling: true", "static, batch_size: 4, max_wait_s: 1.0, respond: batch_end"
    )
    made = forecast.forecast(load(scenario(tmp_path, text=text)), traffic(count=12))
    np.testing.assert_array_equal(made.seen.ttft_s, made.seen.e2e_s)


def test_vllm_results_are_read_and_requests_go_when_they_were_sent(tmp_path):
    toy = scenario(tmp_path)
    seen = forecast.forecast(load(toy), traffic(count=30)).seen
    gaps = [[float(gap)] * int(n - 1) for gap, n in zip(seen.tpot_s, seen.output_tokens, strict=True)]
    result = {
        "input_lens": seen.prompt_tokens.tolist(), "output_lens": seen.output_tokens.tolist(), "ttfts": seen.ttft_s.tolist(),
        "itls": gaps, "errors": [""] * 30, "start_times": (seen.sent_s + 5000).tolist(),
    }  # fmt: skip
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    assert command.compared(toy, path).mean("e2e_s")["error"] == pytest.approx(0.0, abs=1e-6)


# --- the folder -----------------------------------------------------------------------------------------------------


def test_the_folder_holds_tables_figures_and_a_page(tmp_path):
    toy = scenario(tmp_path, cap=3, network="{uplink_s: 0.003, downlink_s: 0.002}")
    run = record(tmp_path / "run-vanilla.csv", load(toy))
    record(tmp_path / "run-patched.csv", load(toy), scale=1.01)
    found = command.compared(toy, run)
    page = write(found, tmp_path / "results", ("svg", "png"))
    folder = page.parent
    assert {file.name for file in folder.iterdir()} >= {
        "summary.csv",
        "requests.parquet",
        "report.html",
        "scenario.yaml",
        "distributions.png",
        "over-time.svg",
        "along.png",
    }
    said = verdict(found)
    html = page.read_text(encoding="utf-8")
    assert f'<p class="verdict">{said.headline} <span>{said.rest}</span></p>' in html and "http" not in html
    assert all('<figure class="chart' in html and f'id="{name}"' in html for name in ("distributions", "over-time"))
    import pandas as pd

    table = pd.read_csv(folder / "summary.csv")
    assert {"send", "arrival"} <= set(table["counted_from"]) and {
        "recorded",
        "simulated",
        "error",
        "band_low",
        "twin_error",
        "tost_p",
    } <= set(table)
    each = pd.read_parquet(folder / "requests.parquet")
    assert len(each) == 240 and each["recorded_e2e_s"].notna().all() and "twin_ttft_s" in each
    assert "uplink_s: 0.003" in (folder / "scenario.yaml").read_text()
    first = {file.name: file.read_bytes() for file in folder.iterdir()}
    again = write(command.compared(toy, run), tmp_path / "results", ("svg", "png")).parent
    assert {file.name: file.read_bytes() for file in again.iterdir()} == first


def test_it_is_said_what_the_host_was_fitted_on(tmp_path):
    toy = scenario(tmp_path)
    far = with_network(load(toy), 0.004, 0.002)
    run, other = (
        record(tmp_path / "run.csv", far, host_s=0.001),
        record(tmp_path / "other.csv", far, host_s=0.001, requests=traffic(seed=2)),
    )
    found = command.compared(toy, run, host_from=other, host_steps=True)
    assert re.search(
        r"Fitted on the whole of other\.csv \(240 requests\): [56]\.\d\d ms .*, \d\.\d{3} ms of host time a step",
        " ".join(words.settings(found)),
    )
    assert "judged" in " ".join(words.settings(command.compared(toy, run, host_from=run)))


def test_what_is_shown_without_band_twin_or_network(tmp_path):
    toy = scenario(tmp_path)
    run = record(tmp_path / "run.csv", load(toy))
    found = command.compared(toy, run, band=0)
    assert isinstance(found, Comparison)
    assert words.tables(found)[0].columns == ("", "recorded", "simulated", "error")
    assert "open loop" in words.settings(found)[0]
    assert write(found, tmp_path).is_file()


def test_the_scenarios_own_trace_is_the_recording(tmp_path):
    toy = scenario(tmp_path)
    record(tmp_path / "run.csv", load(toy))
    toy.write_text(re.sub(r"  arrivals.*requests: 1", "  trace: {path: run.csv}", toy.read_text(), flags=re.DOTALL))
    assert command.compared(toy).mean("e2e_s")["error"] == pytest.approx(0.0, abs=1e-9)


def test_a_named_recording_takes_the_place_of_the_traces_file_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("SERVECAST_SHARED", raising=False)
    toy = scenario(tmp_path, cap=7)
    run = record(tmp_path / "run.csv", load(toy))
    toy.write_text(
        re.sub(
            r"  arrivals.*requests: 1",
            "  trace: {path: $SERVECAST_SHARED/x.csv, start_s: 3.0, time_unit: s}",
            toy.read_text(),
            flags=re.DOTALL,
        )
    )
    settled = load(toy, recording=run)
    recording = settled.workload.trace.build()
    assert recording.path == str(run.resolve()) and recording.start_s == 0.0 and recording.time_unit == "s"
    assert settled.workload.max_in_flight == 7
    with pytest.raises(InputError, match=r"scenario\.workload\.trace\.path: .*SERVECAST_SHARED is not set"):
        load(toy)


def test_a_single_request_has_no_equivalence(tmp_path):
    toy = scenario(tmp_path)
    run = record(tmp_path / "run.csv", load(toy), requests=traffic(count=1))
    found = command.compared(toy, run)
    assert "Not shown to be: TTFT, TPOT, E2E." in verdict(found).details and write(found, tmp_path).is_file()
    with pytest.raises(InputError, match="nothing after its first third"):
        command.compared(toy, run, host_from=run)


# --- bad input ------------------------------------------------------------------------------------------------------

GOOD = "0.0,0.0,100,10,0.1,0.5\n0.5,0.5,100,10,0.1,0.5\n"
HOSTILE = {
    "empty": ("", "empty"),
    "header only": (HEAD, ""),
    "no latencies": ("arrival_s,prompt_tokens,output_tokens\n0,10,10\n", "no measured latencies"),
    "no e2e": ("arrival_s,prompt_tokens,output_tokens,ttft_s\n0,10,10,0.1\n", "e2e_s"),
    "no arrivals": ("prompt_tokens,output_tokens,ttft_s,e2e_s\n10,10,0.1,0.2\n", "replays arrivals"),
    "no lengths": ("arrival_s,ttft_s,e2e_s\n0,0.1,0.2\n", ""),
    "NaN": (HEAD + GOOD + "1.0,1.0,100,10,nan,0.5\n", ""),
    "missing value": (HEAD + GOOD + "1.0,1.0,100,10,,0.5\n", "ttft_s"),
    "negative TTFT": (HEAD + GOOD + "1.0,1.0,100,10,-0.1,0.5\n", ""),
    "TTFT of 0": (HEAD + GOOD + "1.0,1.0,100,10,0.0,0.5\n", "above 0"),
    "ends before it begins": (HEAD + GOOD + "1.0,1.0,100,10,0.6,0.5\n", "before its first token"),
    "negative arrival": (HEAD + GOOD + "-1.0,1.0,100,10,0.1,nope\n", ""),
    "text": (HEAD + GOOD + "x,1.0,100,10,0.1,0.5\n", ""),
}


@pytest.mark.parametrize(("content", "said"), HOSTILE.values(), ids=HOSTILE)
def test_a_recording_that_cannot_be_is_one_line(tmp_path, content, said):
    run = tmp_path / "run.csv"
    run.write_text(content)
    with pytest.raises(InputError) as error:
        command.compared(scenario(tmp_path), run)
    assert said in str(error.value) and "\n" not in str(error.value) and "run.csv" in str(error.value)


def test_a_recording_that_is_not_there(tmp_path):
    with pytest.raises(InputError):
        command.compared(scenario(tmp_path), tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"^RECORDED: no recording is named"):
        command.compared(scenario(tmp_path))


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ("3", "give a mapping"),
        ("{up_s: 1}", "the keys here are uplink_s, downlink_s"),
        ("{uplink_s: -1}", "at least 0"),
        ("{uplink_s: x}", "is text"),
        ("{downlink_s: true}", "is a truth value"),
        ("{downlink_s: .inf}", "is not finite"),
    ],
)
def test_a_network_that_cannot_be(tmp_path, network, said):
    with pytest.raises(InputError, match=rf"^scenario\.workload\.network.*{said}"):
        load(scenario(tmp_path, network=network))


@pytest.mark.parametrize(
    ("overrides", "place"),
    [
        ({"seeds": 2}, "scenario.seeds"),
        ({"horizon_s": 5}, "scenario.horizon_s"),
        ({"sweep": {"engine.block_size": [16, 32]}}, "scenario.sweep"),
        ({"workload": {"trace": {"path": "run.csv"}, "requests": 5}}, "scenario.workload.requests"),
        ({"workload": {"trace": {"path": "run.csv", "start_s": 5.0}}}, "scenario.workload.trace.start_s"),
        (
            {"policies": [{"kind": "continuous"}, {"kind": "static", "batch_size": 2, "max_wait_s": 1.0}]},
            "scenario.policies",
        ),
    ],
)
def test_a_scenario_of_several_runs_is_refused(tmp_path, overrides, place):
    (tmp_path / "run.csv").write_text(HEAD + GOOD)
    with pytest.raises(InputError) as error:
        load(scenario(tmp_path), overrides)
    assert error.value.place == place


def test_a_server_that_cannot_answer_what_was_answered(tmp_path):
    toy = scenario(tmp_path)
    run = record(tmp_path / "run.csv", load(toy))
    with pytest.raises(InputError, match=r"prompt too long .*all of which .* set engine.max_model_len to 2"):
        command.compared(toy, run, overrides={"engine.max_model_len": 1000})
    with pytest.raises(InputError, match=r"refused .*answer too long"):
        command.compared(toy, run, overrides={"engine.max_model_len": 2100})
    with pytest.raises(InputError, match="answers is cut and lacks 37 tokens"):
        command.compared(toy, run, overrides={"engine.max_model_len": 2100, "engine.on_too_long": "cut"})


def test_failed_requests_of_a_recording_are_told(tmp_path):
    result = {
        "input_lens": [10, 10],
        "output_lens": [2, 0],
        "ttfts": [0.1, 0.0],
        "itls": [[0.1], []],
        "errors": ["", "x"],
        "start_times": [0.0, 1.0],
    }
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    requests, notes = recorded(path)
    assert len(requests) == 1 and "1 failed" in " ".join(notes)


def test_rows_that_a_recording_has_and_nobody_can_serve_are_told(tmp_path):
    toy = scenario(tmp_path)
    run = record(tmp_path / "run.csv", load(toy))
    with run.open("a") as file:
        file.write("500,500,0,3,0.1,0.2\n501,501,9,0,0.1,0.2\n")
    count = len(run.read_text().splitlines())
    said = [
        f"left out 1 row: no prompt tokens (line {count - 1})",
        f"left out 1 row: no output tokens (line {count})",
    ]
    requests, notes = recorded(run)
    assert len(requests) == 240 and [note for note in notes if "left out" in note] == said
    lines = words.settings(command.compared(toy, run, band=0.0))
    assert [line for line in lines if "left out" in line] == [f"Recording: {each}." for each in said]
    other = record(tmp_path / "other.csv", load(toy), requests=traffic(seed=2))
    beside = words.settings(command.compared(toy, other, band=0.0, host_from=run))
    assert [line for line in beside if "left out" in line] == [f"run.csv: {each}." for each in said]


def test_the_columns_of_requests_are_said_once():
    names = [field.name for field in fields(ClientTimes)]
    assert names == ["arrival_s", "sent_s", "prompt_tokens", "output_tokens", "ttft_s", "e2e_s"]
    assert [field.name for field in fields(Observed)] == [*names, "trace"]
    assert [field.name for field in fields(RecordedRequests)] == [*names, "itl_s", "failed", "source"]
    requests = traffic(3)
    assert list(requests.columns()) == names
    recording = RecordedRequests(**requests.columns(), itl_s=None, failed=0, source="toy")
    np.testing.assert_array_equal(recording.tpot_s, requests.tpot_s)


def test_the_command_gives_scripts_one_document(tmp_path, monkeypatch, capsys):
    toy = scenario(tmp_path)
    run = record(tmp_path / "run.csv", load(toy))
    with pytest.raises(SystemExit) as end:
        cli.main(["compare", str(toy), str(run), "--out", str(tmp_path), "--json"])
    assert not end.value.code
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert set(told) == {"schema_version", "name", "folder", "report", "verdict", "notes", "rows"}
    assert told["schema_version"] == 1 and Path(told["report"]).parent == Path(told["folder"])
    assert len({tuple(row) for row in told["rows"]}) == 1  # every row has every key
    mean = next(row for row in told["rows"] if (row["metric"], row["statistic"]) == ("ttft_s", "mean"))
    assert mean["equivalent"] is True and abs(mean["error"]) < 1e-6
    assert any(row["equivalent"] is None for row in told["rows"])


@pytest.mark.parametrize(
    "options", [{"margin": 0}, {"margin": 1.5}, {"band": -0.1}, {"band": float("nan")}, {"host_steps": True}]
)
def test_options_that_cannot_be(tmp_path, options):
    with pytest.raises(InputError, match=r"^--"):
        command.compared(scenario(tmp_path), tmp_path / "run.csv", **options)


def test_a_workload_that_is_none_is_left_to_the_schema(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text("name: x\nmodel: qwen3-14b\nprofile: h100-qwen3-14b\npolicies: [{kind: continuous}]\nworkload: 3\n")
    with pytest.raises(InputError, match="workload"):
        load(path)

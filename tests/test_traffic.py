"""From the workload of a scenario to requests: tenants, conversations, ServeGen folders, the network, and sources to fit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from servecast import load, simulate
from servecast.errors import InputError
from servecast.scenario import check
from servecast.scenario.traffic import traffic
from servecast.workload.sessions import Sessions

FIXED = {"prompt_tokens": {"kind": "fixed", "tokens": 20}, "output_tokens": {"kind": "fixed", "tokens": 3}}


def scenario(tmp_path, workload, **keys):
    data = {
        "name": "t",
        "model": "llama-3.1-8b",
        "device": "h100-sxm",
        "workload": workload,
        "policies": [{"kind": "continuous"}],
    }
    return check({**data, **keys}, tmp_path)


def sent(workload, count):
    client = traffic(workload, 16).client
    requests = []
    while len(requests) < count and client.next_send() < float("inf"):
        request, at = client.send()
        requests.append((request, at))
        client.answered(request, at + 0.5)
    return requests


def test_tenants_keep_their_own_arrivals_lengths_and_priorities(tmp_path):
    tenants = [
        {"name": "chat", "arrivals": {"kind": "constant", "rate_rps": 3.0}, **FIXED},
        {
            "name": "batch",
            "arrivals": {"kind": "constant", "rate_rps": 1.0},
            "lengths": {"kind": "random", "input_tokens": 50, "output_tokens": 7},
            "priority": 5,
        },
    ]
    made = sent(scenario(tmp_path, {"tenants": tenants, "requests": 40}).workload, 40)
    chat = [request for request, _ in made if request.tenant == "chat"]
    batch = [request for request, _ in made if request.tenant == "batch"]
    assert (len(chat), len(batch)) == (30, 10)  # by their rates
    assert {request.priority for request in chat} == {0} and {request.priority for request in batch} == {5}
    assert {request.prompt_tokens for request in chat} == {20} and {request.output_tokens for request in batch} == {7}


def test_the_next_turn_waits_for_the_answer_and_its_prompt_holds_what_was_said(tmp_path):
    talk = {
        "arrivals": {"kind": "burst"},
        "turns": {"kind": "fixed", "tokens": 3},
        "new_tokens": {"kind": "fixed", "tokens": 10},
        "output_tokens": {"kind": "fixed", "tokens": 5},
        "think_s": 2.0,
    }
    workload = scenario(tmp_path, {"conversations": talk, "requests": 1}).workload
    assert isinstance(traffic(workload, 16).client, Sessions)
    made = sent(workload, 3)
    assert [request.prompt_tokens for request, _ in made] == [10, 25, 40]
    assert [at for _, at in made] == [0.0, 2.5, 5.0]


def test_turns_after_a_failed_one_are_cancelled_and_counted(tmp_path):
    trace = tmp_path / "talk.jsonl"
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 5000, "output_length": 3},
        {"session_id": "a", "delay": 1000, "input_length": 20, "output_length": 3},
        {"session_id": "b", "timestamp": 0, "input_length": 20, "output_length": 3},
        {"session_id": "b", "delay": 1000, "input_length": 20, "output_length": 3},
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = simulate(scenario(tmp_path, {"trace": {"path": str(trace)}}, engine={"max_model_len": 4096}))
    [row] = run.summary.to_dict("records")
    assert (row["arrived"], row["completed"], row["rejected"], row["cancelled"]) == (3, 2, 1, 1)


def test_a_servegen_folder_is_drawn_from(tmp_path):
    (tmp_path / "chunk-0-trace.csv").write_text("0,2.0,1.0,Gamma,1.0,0.5\n600,2.0,1.0,Gamma,1.0,0.5\n")
    lengths = {"0": {"input_tokens": "{30: 1.0}", "output_tokens": "{4: 1.0}"}}
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps(lengths))
    workload = {"servegen": {"folder": str(tmp_path), "duration_s": 300.0}}
    made = sent(scenario(tmp_path, workload).workload, 10_000)
    assert 450 < len(made) < 750
    assert {(request.prompt_tokens, request.output_tokens) for request, _ in made} == {(30, 4)}


def test_lengths_of_a_trace_and_of_quantiles(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,1\n1,20,2\n")
    burst = {"arrivals": {"kind": "burst"}, "requests": 50}
    pairs = sent(scenario(tmp_path, {**burst, "lengths": {"kind": "trace", "path": str(trace)}}).workload, 50)
    assert {(request.prompt_tokens, request.output_tokens) for request, _ in pairs} == {(10, 1), (20, 2)}
    sides = {"prompt_tokens": {"kind": "empirical", "name": "azure-code-2023"}, "output_tokens": FIXED["output_tokens"]}
    long = sent(scenario(tmp_path, {**burst, **sides}).workload, 50)
    assert max(request.prompt_tokens for request, _ in long) > 1000


def test_the_network_delays_what_the_server_sees(tmp_path):
    workload = {"arrivals": {"kind": "burst"}, **FIXED, "requests": 3, "max_in_flight": 1}
    near = simulate(scenario(tmp_path, workload)).requests
    far = simulate(scenario(tmp_path, {**workload, "network": {"uplink_s": 0.1, "downlink_s": 0.2}})).requests
    np.testing.assert_allclose(np.diff(far["sent_s"]) - np.diff(near["sent_s"]), 0.3, atol=1e-9)
    np.testing.assert_allclose(far["ttft_s"], near["ttft_s"], atol=1e-9)


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        ({"tenants": [{"name": "a", "arrivals": {"kind": "burst"}, **FIXED}]}, "requests is missing"),
        ({"tenants": [{"name": "a", "arrivals": {"kind": "burst"}}], "requests": 3}, "give lengths, or both"),
        ({"trace": {"path": "t.csv"}, "servegen": {"folder": "."}}, "keep one"),
        ({"servegen": {"folder": "."}, "arrivals": {"kind": "burst"}}, "has its own arrivals"),
        ({"tenants": [{"name": "a", "arrivals": {"kind": "burst"}, **FIXED}] * 2, "requests": 3}, "name of its own"),
    ],
)
def test_workloads_that_cannot_be(tmp_path, workload, says):
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,1\n")
    with pytest.raises(InputError, match=says):
        traffic(scenario(tmp_path, workload).workload, 16)


def test_priorities_reach_the_scheduler(tmp_path):
    tenants = [
        {"name": "slow", "arrivals": {"kind": "burst"}, **FIXED, "share": 1.0, "priority": 1},
        {"name": "fast", "arrivals": {"kind": "burst"}, **FIXED, "share": 1.0},
    ]
    policy = {"kind": "continuous", "max_num_seqs": 1, "scheduling_policy": "priority"}
    run = simulate(scenario(tmp_path, {"tenants": tenants, "requests": 10}, policies=[policy]))
    scheduled = run.requests["scheduled_s"].to_numpy()
    assert scheduled[:5].min() > scheduled[5:].max()


def test_replicas_behind_a_router_are_one_system(tmp_path):
    workload = {"arrivals": {"kind": "burst"}, **FIXED, "requests": 64}
    policy = {"kind": "continuous", "max_num_seqs": 8}
    one, four = (
        simulate(scenario(tmp_path, workload, policies=[policy], cost={"usd_per_gpu_hour": 2.0}, replicas=replicas))
        for replicas in (1, 4)
    )
    [single], [together] = (results.summary.to_dict("records") for results in (one, four))
    assert together["replicas"] == 4
    assert single["makespan_s"] == pytest.approx(4 * together["makespan_s"], rel=1e-9)  # 16 requests each, all alike
    assert together["usd_per_mtok_output"] == pytest.approx(single["usd_per_mtok_output"], rel=1e-9)
    assert together["busy_fraction"] == pytest.approx(1.0)


def test_a_shipped_scenario_loads_from_python():
    assert load("quickstart").workload.requests == 2000

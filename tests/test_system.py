"""One way from a scenario to a run: each command serves the same requests with the same engine."""

from __future__ import annotations

import numpy as np
import pytest

import servecast
from servecast.against.server import command
from servecast.cli import app as cli
from servecast.errors import InputError
from servecast.requests import Status
from servecast.run.system import System
from servecast.scenario import check

BLOCK = 24
SCENARIO = f"""
name: shared-prefixes
model: qwen3-14b
device: h100-sxm
engine: {{block_size: {BLOCK}, kv_blocks: 6000, max_model_len: 4096}}
workload:
  trace: {{path: trace.csv}}
policies:
  - {{kind: continuous, enable_prefix_caching: true, scheduling_policy: priority, max_num_seqs: 8}}
goal: {{slo: {{ttft_p99_s: 10.0}}}}
search: {{seeds: 1, try_changes: false, most_requests: 1, most_gpus: 2}}
"""


@pytest.fixture
def toy(tmp_path):
    """A scenario whose trace has prefixes, priorities and sessions: 80 long prompts, of which eight begin alike."""
    rng = np.random.default_rng(5)
    rows = ["arrival_s,prompt_tokens,output_tokens,priority,session,prefix_ids_24"]
    for number, arrival in enumerate(np.cumsum(rng.exponential(0.05, 80))):
        family = number % 10
        ids = " ".join(str(1000 * family + block) for block in range(100))
        rows.append(f"{arrival:.4f},{100 * BLOCK},{20 + number % 7},{number % 3},s{family},{ids}")
    (tmp_path / "trace.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "toy.yaml").write_text(SCENARIO)
    return tmp_path / "toy.yaml"


def recording(scenario, path, overrides=None):
    """What the clients of the scenario's own run saw, with all that its trace says of each request."""
    results = servecast.simulate(servecast.load(scenario, overrides))
    seen = results.requests.set_index("id")
    lines = (scenario.parent / "trace.csv").read_text().splitlines()
    rows = [lines[0] + ",ttft_s,e2e_s"]
    for number, line in enumerate(lines[1:]):
        sent, first, finish = (float(seen.loc[number, name]) for name in ("sent_s", "first_token_s", "finish_s"))
        rows.append(f"{line},{first - sent!r},{finish - sent!r}")
    path.write_text("\n".join(rows) + "\n")
    return results


@pytest.mark.parametrize(
    "overrides",
    [{}, {"replicas": 2, "router": "prefix_affinity"}, {"replicas": 3, "router": "round_robin"}],
    ids=["one engine", "prefix affinity", "round robin"],
)
def test_compare_serves_what_run_serves(toy, tmp_path, overrides):
    """Prefixes, priorities, sessions, replicas and the router: a run is its own forecast."""
    results = recording(toy, tmp_path / "run.csv", overrides)
    found = command.compared(toy, tmp_path / "run.csv", overrides=overrides, band=0.0)
    np.testing.assert_allclose(found.forecast.seen.ttft_s.mean(), results.summary["ttft_mean_s"][0], rtol=1e-9)
    assert {row["metric"]: row["error"] for row in found.rows} == pytest.approx(
        {row["metric"]: 0.0 for row in found.rows}, abs=1e-6
    )


def test_what_the_trace_says_decides_what_compare_forecasts(toy, tmp_path):
    """The same recording without its prefixes takes far longer: they were served, not dropped."""
    recording(toy, tmp_path / "run.csv")
    lines = [line.split(",") for line in (tmp_path / "run.csv").read_text().splitlines()]
    (tmp_path / "bare.csv").write_text("".join(",".join(cells[:5] + cells[6:]) + "\n" for cells in lines))
    with_prefixes, without = (
        command.compared(toy, tmp_path / name, band=0.0).forecast.seen.ttft_s.mean() for name in ("run.csv", "bare.csv")
    )
    assert without > 2 * with_prefixes


def test_a_plan_takes_the_block_size_that_the_scenario_says(toy, tmp_path, capsys):
    for command_line in (["run", str(toy), "--out", str(tmp_path)], ["plan", str(toy), "--out", str(tmp_path)]):
        with pytest.raises(SystemExit) as end:
            cli.main(command_line)
        assert not end.value.code, capsys.readouterr().err


def test_every_command_refuses_prompts_that_would_wait_for_ever(toy, tmp_path):
    """Without chunked prefill a prompt must fit one step; compare and validate used to serve it all the same."""
    never = {"policies[0].enable_chunked_prefill": False, "policies[0].max_num_batched_tokens": 1000}
    with pytest.raises(InputError, match="must fit one step"):
        System.of(servecast.load(toy, never))
    recording(toy, tmp_path / "run.csv")
    with pytest.raises(InputError, match="must fit one step"):
        command.compared(toy, tmp_path / "run.csv", overrides=never)


def test_the_price_of_an_hour_is_of_all_gpus_of_all_replicas():
    changes = {"sweep": {}, "replicas": 3, "engine.tensor_parallel_size": 2, "device": "h100-sxm", "profile": None}
    system = System.of(servecast.load("quickstart", changes))
    assert system.usd_per_hour == 3 * 2 * system.scenario.cost.usd_per_gpu_hour


def test_preempting_for_ever_names_the_option_that_ends_it(tmp_path):
    """vLLM's own rules: prompts let in for a first chunk take each other's blocks; with all of it reserved it ends."""
    rows = "0,34,4,2\n0,40,54,1\n0,55,49,3\n0,115,43,1\n0,136,6,1\n0.063,78,10,0\n"
    (tmp_path / "t.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,priority\n{rows}")
    policy = {
        "kind": "continuous", "scheduling_policy": "priority", "long_prefill_token_threshold": 40,
        "max_num_batched_tokens": 64, "max_num_seqs": 8, "scheduler_reserve_full_isl": False,
    }  # fmt: skip
    scenario = {
        "name": "t", "model": "llama-3.1-8b", "device": "h100-sxm", "engine": {"kv_blocks": 11},
        "workload": {"trace": {"path": "t.csv"}}, "policies": [{"kind": "static"}, policy],
    }  # fmt: skip

    def served(**changes):
        system = System.of(check({**scenario, "policies": [{"kind": "static"}, policy | changes]}, tmp_path), 1)
        return (system.serve(system.traffic().client).requests["status"] == Status.COMPLETED).sum()

    with pytest.raises(InputError, match=r"without a token.*for ever: give true") as refused:
        served()
    assert refused.value.place == "scenario.policies[1].scheduler_reserve_full_isl"
    assert served(scheduler_reserve_full_isl=True) == served(long_prefill_token_threshold=0) == 6


def test_the_rate_that_was_asked_for_stands_beside_the_one_that_came():
    changes = {"sweep": {}, "workload.requests": 400, "workload.arrivals.rate_rps": 3.0}
    row = servecast.simulate(servecast.load("quickstart", changes)).summary.iloc[0]
    assert row["requested_rps"] == 3.0
    assert row["offered_rps"] == pytest.approx(3.0, rel=0.2)

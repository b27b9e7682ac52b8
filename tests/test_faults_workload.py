"""Faults of this field that concern workloads, configuration and output, through the scenario: each by its tiny trigger."""

import json

import numpy as np
import pytest
from serving import serve

from servecast import load
from servecast.errors import InputError
from servecast.policies import POLICIES
from servecast.scenario import points
from servecast.scenario.traffic import traffic

SCENARIO = """\
name: faults
model: qwen3-14b
device: h100-sxm
workload:
  arrivals: {kind: poisson, rate_rps: 2}
  prompt_tokens: {kind: fixed, tokens: 100}
  output_tokens: {kind: fixed, tokens: 10}
  requests: 50
  seed: 1
policies:
  - {kind: continuous}
"""


@pytest.fixture
def scenario(tmp_path):
    """Loads the scenario with some text replaced, and options as --set gives them."""

    def loaded(*replacements, **overrides):
        text = SCENARIO
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "s.yaml"
        path.write_text(text, encoding="utf-8")
        return load(path, {key.replace("__", "."): value for key, value in overrides.items()})

    return loaded


def arrivals(loaded):
    client = traffic(loaded.workload, 16).client
    return [client.send()[1] for _ in range(len(client))]


def test_cfg_01_the_command_line_beats_the_file(scenario):
    plain, other = scenario(), scenario(workload__seed=2)
    assert (plain.workload.seed, other.workload.seed) == (1, 2)
    assert arrivals(plain) != arrivals(other)
    assert arrivals(other) == arrivals(scenario(("seed: 1", "seed: 2")))


@pytest.mark.parametrize("value", [90, 0, 1.2, -0.1])
def test_cfg_03_utilization_is_a_fraction(scenario, value):
    with pytest.raises(InputError, match=r"engine\.gpu_memory_utilization"):
        scenario(engine__gpu_memory_utilization=value)


@pytest.mark.parametrize("text", [".nan", ".inf"])
def test_cfg_05_a_price_is_finite(scenario, text):
    with pytest.raises(InputError, match=r"cost\.usd_per_gpu_hour"):
        scenario(("policies:", f"cost: {{usd_per_gpu_hour: {text}}}\npolicies:"))


@pytest.mark.parametrize("text", ["100ms", "0.1s", "'0.1'"])
def test_cfg_09_a_duration_is_a_bare_number_in_the_unit_of_its_key(scenario, text):
    with pytest.raises(InputError, match=r"slo\.ttft_s"):
        scenario(("policies:", f"slo: {{ttft_s: {text}}}\npolicies:"))
    assert scenario(("policies:", "slo: {ttft_s: 0.1}\npolicies:")).slo.ttft_s == 0.1


def test_wrk_15_swept_rates_stay_as_they_were_given(scenario):
    rates = [0.5, 1.0, 1.5, 2.0, 2.5]
    swept = scenario(("policies:", f"sweep: {{workload.arrivals.rate_rps: {rates}}}\npolicies:"))
    made = [point.scenario.workload.arrivals.rate_rps for point in points(swept)]
    assert made == rates


def test_wrk_20_a_fixed_length_is_fixed(scenario):
    client = traffic(scenario().workload, 16).client
    prompts = {client.send()[0].prompt_tokens for _ in range(len(client))}
    assert prompts == {100}


def test_wrk_17_a_long_gap_costs_nothing_and_changes_nothing():
    decisions, latencies = [], []
    for gap_s in (3.0, 1e6):
        run = serve([(0.0, 100, 5), (gap_s, 100, 5)], POLICIES["continuous"]())
        decisions.append(len(run.decisions["start_s"]))
        latencies.append(run.requests["first_token_s"] - run.requests["sent_s"])
    np.testing.assert_allclose(latencies[0], latencies[1], atol=1e-9)
    assert latencies[1][1] == pytest.approx(latencies[1][0])
    assert decisions[1] == decisions[0]


def test_out_01_a_schema_is_strict_json():
    from servecast.scenario import Scenario

    def refuse(name):
        raise AssertionError(name)

    json.loads(json.dumps(Scenario.model_json_schema(), allow_nan=False), parse_constant=refuse)

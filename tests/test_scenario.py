"""The scenario file: what it may say, what it refuses and how, and the points it makes."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import re

import pytest
import yaml

from servecast import load
from servecast.errors import InputError, PointError, SlipError
from servecast.policies import POLICIES, Continuous, Padded, Static
from servecast.run.sweep import tasks_of
from servecast.run.system import System
from servecast.scenario import Scenario, document, find, loading, names, points, resolved, seen_from, serving
from servecast.scenario.keypath import assign, parse, written
from servecast.scenario.serving import activation_blocks, memory_budget
from servecast.scenario.traffic import traffic

WHOLE = """\
name: chat
model: qwen3-14b
device: h100-sxm
engine: {gpu_memory_utilization: 0.92, block_size: 16}
workload:
  arrivals: {kind: poisson, rate_rps: 8}
  lengths: {kind: empirical, name: azure-conv-2023}
  requests: 2000
  seed: 1
  max_in_flight: null
policies:
  - {kind: static, batch_size: 16, max_wait_s: 0.5}
  - {kind: padded, batch_size: 16, max_wait_s: 0.5}
  - {kind: continuous, max_num_seqs: 256, max_num_batched_tokens: 8192}
slo: {ttft_s: 1.0, tpot_s: 0.05}
cost: {usd_per_gpu_hour: 2.5}
sweep: {workload.arrivals.rate_rps: [2, 4, 8, 12]}
seeds: 3
"""

SMALL = """\
name: small
model: llama-3.1-8b
device: a100-80gb
workload:
  arrivals: {kind: burst}
  prompt_tokens: {kind: fixed, tokens: 10}
  output_tokens: {kind: fixed, tokens: 5}
  requests: 3
policies: [{kind: continuous}]
"""


@pytest.fixture
def whole(tmp_path):
    """Loads the whole example with some key paths set to values written as YAML."""

    def make(text=WHOLE, **changes):
        file = tmp_path / "chat.yaml"
        file.write_text(text)
        return load(file, {key: document.value(value, key) for key, value in changes.items()})

    return make


def refused(make, *arguments, **changes) -> str:
    with pytest.raises(InputError) as caught:
        make(*arguments, **changes)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- what it says ----------------------------------------------------------------------------------------------------


def test_the_shape_of_the_issue_is_read_as_it_stands(whole):
    scenario = whole()
    assert scenario.workload.arrivals.rate_rps == 8
    assert [entry.build() for entry in scenario.policies] == [
        Static(16, 0.5),
        Padded(16, 0.5),
        Continuous(256, 8192),
    ]
    assert scenario.slo.ttft_s == 1.0
    assert scenario.slo.single_token == "pass"
    assert scenario.cost.usd_per_gpu_hour == 2.5
    assert scenario.engine.restart_s == 30
    assert (scenario.horizon_s, scenario.warmup_s, scenario.cooldown_s) == (None, None, None)


def test_a_scenario_is_frozen(whole):
    with pytest.raises(ValueError, match="frozen"):
        whole().name = "other"


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_is_its_own_schema(kind):
    """Every field of the dataclass is a key, with its default, and nothing else but kind, name and like."""
    section = next(entry for entry in _policy_sections() if entry.described_by is POLICIES[kind])
    fields = {field.name: field.default for field in dataclasses.fields(POLICIES[kind])}
    assert set(section.model_fields) == {"kind", "name", "like", *fields}
    assert section(kind=kind).build() == POLICIES[kind]()


def _policy_sections():
    from servecast.scenario import schema

    return schema._POLICY_SECTIONS


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9),
        ("1E-3", 1e-3),
        ("2.5e+3", 2500.0),
        (".5", 0.5),
        ("1_000", 1000),
        ("010", 10),
        ("-3", -3),
        ("inf", math.inf),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("on", "on"),
        ("no", "no"),
        ("1:30", "1:30"),
        ("2024-05-12", "2024-05-12"),
        ("0.5", 0.5),
        ("0,5", "0,5"),
        ("~", None),
        ("", None),
        ("true", True),
        ("e5", "e5"),
        ("'1e9'", "1e9"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    read = document.value(text, "--set x")
    assert read == value
    assert type(read) is type(value)


def test_nan_is_read_as_nan_and_then_refused(whole):
    assert math.isnan(document.value(".nan", "x"))
    assert "rate_rps" in refused(whole, **{"workload.arrivals.rate_rps": ".nan"})


@pytest.mark.parametrize("rate", ["inf", "1e3", "0.5"])
def test_rates_may_be_infinite_for_open_arrivals(whole, rate):
    arrivals = f"{{kind: gamma, rate_rps: {rate}, burstiness: 0.5}}"
    assert whole(sweep="{}", **{"workload.arrivals": arrivals}).workload.arrivals.rate_rps == float(rate)


def test_merge_keys_and_anchors_work(whole):
    text = SMALL.replace("[{kind: continuous}]", "\n  - &a {kind: static, batch_size: 4}\n  - {<<: *a, batch_size: 8}")
    assert [entry.batch_size for entry in whole(text).policies] == [4, 8]


# --- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "place", "says"),
    [
        # unknown keys
        ({"engine.gpu_memory_utilisation": "0.9"}, "scenario.engine.gpu_memory_utilisation", "did you mean gpu_memory_uti"),
        ({"policies[1].batchsize": "4"}, "scenario.policies[1].batchsize", "did you mean batch_size?"),
        ({"slo.ttft": "1"}, "scenario.slo.ttft", "did you mean ttft_s?"),
        ({"rate_rps": "3"}, "scenario.rate_rps", "it stands under workload.arrivals"),
        ({"zzz": "3"}, "scenario.zzz", "the keys here are name, model"),
        ({"workload.arrivals.kind": "burst"}, "scenario.workload.arrivals.rate_rps", "kind burst has no such key"),
        # kinds and choices
        ({"policies[1].kind": "statc"}, "scenario.policies[1].kind", "'statc' is unknown: did you mean static?"),
        ({"workload.arrivals": "{rate_rps: 1}"}, "scenario.workload.arrivals.kind", "missing: add kind: poisson, gamma"),
        ({"engine.kv_cache_dtype": "fp7"}, "scenario.engine.kv_cache_dtype", "did you mean fp8?"),
        ({"policies[0].respond": "streem"}, "scenario.policies[0].respond", "did you mean stream?"),
        ({"slo.single_token": "maybe"}, "scenario.slo.single_token", "give pass, fail or exclude"),
        ({"engine.like": "vllm"}, "scenario.engine.like", "as in vllm-0.23"),
        # ranges
        ({"engine.gpu_memory_utilization": "90"}, "scenario.engine.gpu_memory_utilization", "90 is out of range: give a number in (0, 1]"),
        ({"engine.gpu_memory_utilization": "0"}, "scenario.engine.gpu_memory_utilization", "0 is out of range: give a number in (0, 1]"),
        ({"engine.gpu_memory_utilization": "1.2"}, "scenario.engine.gpu_memory_utilization", "in (0, 1]"),
        ({"engine.gpu_memory_utilization": "-0.1"}, "scenario.engine.gpu_memory_utilization", "in (0, 1]"),
        ({"engine.block_size": "0"}, "scenario.engine.block_size", "of at least 1"),
        ({"engine.kv_blocks": "0"}, "scenario.engine.kv_blocks", "of at least 1"),
        ({"engine.max_model_len": "1"}, "scenario.engine.max_model_len", "of at least 2"),
        ({"engine.restart_s": "-1"}, "scenario.engine.restart_s", "of at least 0"),
        ({"engine.tensor_parallel_size": "0"}, "scenario.engine.tensor_parallel_size", "of at least 1"),
        ({"workload.arrivals.rate_rps": "0"}, "scenario.workload.arrivals.rate_rps", "above 0"),
        ({"workload.arrivals.rate_rps": "-1"}, "scenario.workload.arrivals.rate_rps", "above 0"),
        ({"workload.arrivals": "{kind: gamma, rate_rps: 1, burstiness: 0}"}, "scenario.workload.arrivals.burstiness", "above 0"),
        ({"workload.arrivals": "{kind: closed, users: 0}"}, "scenario.workload.arrivals.users", "of at least 1"),
        ({"workload.arrivals": "{kind: closed, users: 1, think_s: -1}"}, "scenario.workload.arrivals.think_s", "of at least 0"),
        ({"workload.requests": "0"}, "scenario.workload.requests", "out of range"),
        ({"workload.seed": "-1"}, "scenario.workload.seed", "of at least 0"),
        ({"workload.max_in_flight": "0"}, "scenario.workload.max_in_flight", "of at least 1"),
        ({"policies[0].batch_size": "0"}, "scenario.policies[0].batch_size", "of at least 1"),
        ({"policies[1].max_wait_s": "-1"}, "scenario.policies[1].max_wait_s", "of at least 0"),
        ({"policies[2].max_num_seqs": "0"}, "scenario.policies[2].max_num_seqs", "of at least 1"),
        ({"slo.tpot_s": "0"}, "scenario.slo.tpot_s", "above 0"),
        ({"cost.usd_per_gpu_hour": "-1"}, "scenario.cost.usd_per_gpu_hour", "out of range"),
        ({"seeds": "0"}, "scenario.seeds", "of at least 1"),
        ({"horizon_s": "0"}, "scenario.horizon_s", "above 0"),
        ({"warmup_s": "-1"}, "scenario.warmup_s", "of at least 0"),
        ({"cooldown_s": "-1"}, "scenario.cooldown_s", "of at least 0"),
        # NaN and infinity (CFG-05)
        ({"cost.usd_per_gpu_hour": ".inf"}, "scenario.cost.usd_per_gpu_hour", "inf is not finite"),
        ({"slo.ttft_s": ".nan"}, "scenario.slo.ttft_s", "nan is not finite"),
        ({"horizon_s": "inf"}, "scenario.horizon_s", "inf is not finite"),
        ({"policies[0].max_wait_s": ".nan"}, "scenario.policies[0].max_wait_s", "nan is not finite"),
        # wrong types
        ({"policies[0].batch_size": "true"}, "scenario.policies[0].batch_size", "true is a truth value: give a whole number"),
        ({"policies[0].batch_size": "16.0"}, "scenario.policies[0].batch_size", "write 16"),
        ({"policies[0].batch_size": "16.5"}, "scenario.policies[0].batch_size", "16.5 is a number: give a whole number"),
        ({"policies[0].batch_size": "'16'"}, "scenario.policies[0].batch_size", "take the quotes off"),
        ({"policies[2].enable_chunked_prefill": "yes"}, "scenario.policies[2].enable_chunked_prefill", "give true or false"),
        ({"policies": "static"}, "scenario.policies", "'static' is text: give a list"),
        ({"policies": "[]"}, "scenario.policies", "[] is empty: give at least one"),
        ({"policies": "{kind: static}"}, "scenario.policies", "give a list"),
        ({"policies[0]": "static"}, "scenario.policies[0]", "give a mapping"),
        ({"workload": "null"}, "scenario.workload", "nothing is given (null): give a mapping"),
        ({"model": "null"}, "scenario.model", "nothing is given (null): give text"),
        ({"model": "7"}, "scenario.model", "7 is a number: give text"),
        ({"model": "''"}, "scenario.model", "is empty"),
        ({"name": "a b"}, "scenario.name", "letters, digits"),
        ({"name": "../up"}, "scenario.name", "letters, digits"),
        ({"engine.block_size": "[16]"}, "scenario.engine.block_size", "[16] is a list: give a whole number"),
        ({"sweep": "[1]"}, "scenario.sweep", "give a mapping"),
        ({"sweep": "{1: [2]}"}, "scenario.sweep", "the key 1 is no text"),
        # units (CFG-09)
        ({"slo.ttft_s": "100ms"}, "scenario.slo.ttft_s", "'100ms' has a unit: the unit stands in the key, give a bare number in seconds, 0.1"),
        ({"slo.ttft_s": "0.1s"}, "scenario.slo.ttft_s", "a bare number in seconds, 0.1"),
        ({"policies[1].max_wait_s": "500 ms"}, "scenario.policies[1].max_wait_s", "in seconds, 0.5"),
        ({"workload.requests": "2k"}, "scenario.workload.requests", "give a whole number"),
        ({"cost.usd_per_gpu_hour": "$2.5"}, "scenario.cost.usd_per_gpu_hour", "give a bare number"),
        ({"workload.arrivals.rate_rps": "8/s"}, "scenario.workload.arrivals.rate_rps", "in requests per second"),
        # what does not go together
        ({"device": "null"}, "scenario", "neither profile nor device is given"),
        ({"profile": "h100-qwen3-14b"}, "scenario", "profile and device are both given"),
        ({"slo": "{}"}, "scenario.slo", "no target is given"),
        ({"workload.lengths": "null"}, "scenario.workload", "lengths are missing"),
        ({"workload.prompt_tokens": "{kind: fixed, tokens: 3}"}, "scenario.workload", "lengths are given twice"),
        ({"workload.requests": "null"}, "scenario.workload", "requests is missing"),
        ({"workload": "{}"}, "scenario.workload", "nothing arrives"),
        ({"workload.prompt_tokens": "{kind: uniform, min_tokens: 9, max_tokens: 3}"}, "scenario.workload.prompt_tokens.min_tokens", "9, above max_tokens 3: swap them"),
        ({"workload.prompt_tokens": "{kind: uniform}"}, "scenario.workload.prompt_tokens.min_tokens", "missing: add min_tokens"),
        ({"workload.prompt_tokens": "{kind: empirical}"}, "scenario.workload.prompt_tokens", "one table is wanted"),
        ({"workload.prompt_tokens": "{kind: empirical, name: x, tokens: [1]}"}, "scenario.workload.prompt_tokens", "one table is wanted"),
        ({"workload.prompt_tokens": "{kind: empirical, percentiles: [0, 50], tokens: [1, 2]}"}, "scenario.workload.prompt_tokens", "100"),
        ({"policies[2].max_num_batched_tokens": "255"}, "scenario.policies[2].max_num_batched_tokens", "255: it must be at least max_num_seqs 256"),
        ({"policies[1]": "{kind: static, name: continuous}"}, "scenario.policies[2].name", "policies[1] is called that too"),
        ({"policies[1]": "{kind: static, batch_size: 16}"}, "scenario.policies[1].name", "policies[0] is called that too"),
        # files
        ({"model": "./nix/config.json"}, "scenario.model", "no such file"),
        ({"model": "$NIX_DIR/config.json"}, "scenario.model", "NIX_DIR is not set"),
        ({"device": "own.yaml"}, "scenario.device", "no such file"),
    ],
)  # fmt: skip
def test_refused_with_place_value_and_remedy(whole, monkeypatch, change, place, says):
    monkeypatch.delenv("NIX_DIR", raising=False)
    message = refused(whole, **change)
    assert message.startswith(f"{place}: "), message
    assert says in message, message


def test_a_trace_excludes_arrivals_and_must_be_there(whole, tmp_path):
    trace = "{path: t.csv}"
    assert "scenario.workload.trace.path: 't.csv': no such file" in refused(whole, **{"workload.trace": trace})
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,3,2\n")
    message = refused(whole, **{"workload.trace": trace})
    assert message.startswith(
        "scenario.workload: a trace has its own arrivals and lengths: take out arrivals and lengths"
    )
    for key, text in {"duration_s": "0", "rate_scale": ".inf", "start_s": "-1"}.items():
        assert f"scenario.workload.trace.{key}: {text.lstrip('.')}" in refused(
            whole, **{"workload.trace": f"{{path: t.csv, {key}: {text}}}"}
        )


def test_errors_name_the_line_of_the_file_or_the_option(whole, tmp_path):
    text = WHOLE.replace("batch_size: 16", "batch_size: none", 1)
    assert refused(whole, text).endswith(f"({tmp_path / 'chat.yaml'}:12)")
    assert refused(whole, **{"engine.block_size": "0"}).endswith("(from an option)")
    assert refused(whole, WHOLE.replace("model: qwen3-14b\n", "")).endswith(f"({tmp_path / 'chat.yaml'})")


def test_a_misspelt_key_comes_before_the_missing_one_it_caused(whole):
    message = refused(whole, WHOLE.replace("model:", "modell:", 1))
    assert message.startswith("scenario.modell: unknown key: did you mean model?")
    assert "and 1 more" in message


def test_long_values_are_cut_short(whole):
    assert len(refused(whole, **{"policies[0].batch_size": "x" * 500})) < 250


# --- files that are no scenarios -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "the file is empty"),
        ("# only a comment\n", 1, "the file is empty"),
        ("- a\n- b\n", 1, "a list is no mapping"),
        ("just words\n", 1, "'just words' is no mapping"),
        ("name: x\nname: y\n", 2, "key 'name' stands twice"),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", 4, "key 'b' stands twice"),
        ("name: x\nengine:\n\tblock_size: 16\n", 3, "a tab stands where YAML wants spaces"),
        ("name: [x\n", 2, "not YAML"),
        ("name: 'x\n", 2, "not YAML"),
        ("a: b: c\n", 1, "not YAML"),
        ("name: x\n---\nname: y\n", 2, "one file holds one scenario"),
        ("name: !!python/object:os.system x\n", 1, "take the '!' tag out"),
        ("name: *nowhere\n", 1, "not YAML"),
    ],
)
def test_bad_yaml_is_one_line_with_file_and_line(whole, tmp_path, text, line, says):
    message = refused(whole, text)
    assert message.startswith(f"{tmp_path / 'chat.yaml'}:{line}: "), message
    assert says in message, message


def test_bytes_that_are_no_text(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_bytes(b"name: \xff\xfe")
    assert "not text in UTF-8" in refused(load, file)
    file.write_bytes(b"name: a\x00b")
    assert str(file) in refused(load, file)


def test_unreadable_places(tmp_path):
    assert "is a folder" in refused(load, tmp_path)
    assert "no such file, and no shipped scenario" in refused(load, tmp_path / "nix.yaml")
    assert "did you mean quickstart?" in refused(load, "quikstart")
    with pytest.raises(InputError, match="cannot be read"):
        document.read(tmp_path / "nix.yaml")


def test_a_document_knows_its_lines(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(WHOLE)
    read = document.read(file)
    assert read.line(("policies", 2, "max_num_seqs")) == 14
    assert read.line(("engine", "kv_blocks")) == 4  # the nearest key above
    assert read.line(("nothing",)) is None
    assert read.line(("policies", 9)) == 11


# --- key paths and precedence (CFG-01) -------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["policies[0].batch_size", "policies.0.batch_size"])
def test_two_ways_to_write_a_list_position(whole, key):
    assert whole(**{key: "5"}).policies[0].batch_size == 5


def test_the_option_wins_over_the_file_and_the_file_over_the_default(whole):
    assert whole(SMALL).workload.seed == 0
    assert whole().workload.seed == 1
    assert whole(**{"workload.seed": "2"}).workload.seed == 2


def test_a_missing_or_null_section_is_made(whole):
    assert whole(SMALL, **{"slo.ttft_s": "2"}).slo.ttft_s == 2
    assert whole(SMALL, slo="null").slo is None


def test_null_is_the_default(whole):
    scenario = whole(engine="null", sweep="null")
    assert (scenario.engine.block_size, scenario.sweep) == (16, {})


def test_a_star_sets_every_policy_that_has_the_key(whole):
    scenario = whole(**{"policies[*].batch_size": "4"})
    assert [getattr(entry, "batch_size", None) for entry in scenario.policies] == [4, 4, None]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("policies[9].batch_size", "the items of policies are 0 to 2"),
        ("policies.first.batch_size", "the items of policies are 0 to 2"),
        ("policies[*].batchsize", "did you mean 'batch_size'?"),
        ("policies[*].zzz", "their keys are"),
        ("policies[*]", "'*' stands for the items of a list"),
        ("engine[*].block_size", "'*' stands for the items of a list"),
        ("engine.block_size.x", "engine.block_size is 16 and has no keys"),
        ("x..y", "is no key path"),
        ("a[x]", "is no key path"),
        ("", "is no key path"),
    ],
)
def test_key_paths_that_lead_nowhere(whole, key, says):
    message = refused(whole, **{key: "1"})
    assert message.startswith(f"--set {key}: ")
    assert says in message


def test_key_paths_are_written_as_they_are_read():
    for text in ("a.b.c", "policies[0].batch_size", "policies[*].batch_size", "sweep.a.b"):
        assert written(parse(text, "x")) == text


def test_assigning_to_an_empty_list():
    with pytest.raises(InputError, match="none, it is empty"):
        assign({"a": []}, parse("a[0]", "x"), 1, "x")


def test_an_option_value_must_be_yaml():
    with pytest.raises(InputError, match="is not a YAML value: quote it"):
        document.value("[1", "--set a")


# --- sweeps and seeds ------------------------------------------------------------------------------------------------


def test_a_grid_runs_the_last_key_fastest_and_each_point_with_every_seed(whole):
    sweep = "{workload.arrivals.rate_rps: [2, 4], 'policies[*].batch_size': [8, 16]}"
    found = points(whole(sweep=sweep, seeds="2"))
    assert [(p.label, p.seed) for p in found] == [
        (f"rate_rps={rate}, batch_size={size}", seed) for rate in (2, 4) for size in (8, 16) for seed in (1, 2)
    ]
    assert found[2].swept == {"workload.arrivals.rate_rps": 2, "policies[*].batch_size": 16}
    assert [entry.batch_size for entry in found[2].scenario.policies[:2]] == [16, 16]
    assert all(not p.scenario.sweep and p.scenario.seeds == 1 for p in found)
    assert found[1].scenario.workload.seed == 2


def test_points_are_made_once_for_a_scenario_and_anew_for_a_changed_one(whole, monkeypatch):
    checked = []
    check = loading.check
    monkeypatch.setattr(loading, "check", lambda *data: checked.append(data) or check(*data))
    scenario = whole()
    assert len(checked) == 1 + 4  # the scenario itself, and each value of the sweep
    assert points(scenario) is points(scenario)
    assert len(tasks_of(scenario)) == 4 * 3 * 3
    assert len(checked) == 5
    assert len(points(scenario.model_copy(update={"sweep": {}, "seeds": 1}))) == 1
    again = pickle.loads(pickle.dumps(scenario))
    assert again == scenario
    assert [point.label for point in points(again)] == [point.label for point in points(scenario)]


def test_an_error_comes_back_from_a_worker_as_it_was():
    for error in (SlipError("a", "b"), PointError("scenario.sweep", "rate=2", SlipError("c", "d"))):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
    assert type(again.cause) is SlipError


def test_without_a_sweep_there_is_one_point(whole):
    (point,) = points(whole(SMALL))
    assert (point.label, point.swept, point.seed) == ("", {}, 0)


def test_key_paths_that_end_alike_keep_their_whole_name(whole):
    sweep = "{'policies[0].batch_size': [8], 'policies[1].batch_size': [9]}"
    assert points(whole(sweep=sweep))[0].label == "policies[0].batch_size=8, policies[1].batch_size=9"


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        ("{workload.arrivals.rate_rps: [1, -1]}", "at rate_rps=-1: scenario.workload.arrivals.rate_rps: -1 is out of range"),
        ("{workload.arrivals.rate_rsp: [1]}", "unknown key: did you mean rate_rps?"),
        ("{workload.arrivals.rate_rps: 3}", "give a list"),
        ("{workload.arrivals.rate_rps: []}", "is empty"),
        ("{seeds: [1, 2]}", "seeds cannot be swept"),
        ("{name: [a, b]}", "name cannot be swept"),
        ("{'policies[7].batch_size': [1]}", "the items of policies are 0 to 2"),
        ("{'a b': [1]}", "is no key path"),
    ],
)  # fmt: skip
def test_every_point_is_checked_before_anything_runs(whole, sweep, says):
    message = refused(whole, sweep=sweep)
    assert message.startswith("scenario.sweep")
    assert says in message, message


def test_a_sweep_can_be_set_by_an_option(whole):
    scenario = whole(SMALL, **{"sweep.workload.requests": "[1, 2]"})
    assert [p.scenario.workload.requests for p in points(scenario)] == [1, 2]


# --- labels ----------------------------------------------------------------------------------------------------------


def test_labels_tell_policies_of_one_kind_apart(whole):
    policies = "[{kind: static, batch_size: 8}, {kind: static}, {kind: continuous}, {kind: continuous, name: wide}]"
    assert whole(policies=policies).labels() == ["static batch_size=8", "static batch_size=16", "continuous", "wide"]


# --- paths -----------------------------------------------------------------------------------------------------------


def test_paths_are_relative_to_the_file_and_expand_variables(whole, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    trace = tmp_path / "data" / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,3,2\n")
    text = re.sub(r"  arrivals.*?requests: 3\n", "  trace: {path: 'PATH'}\n", SMALL, flags=re.DOTALL)
    monkeypatch.setenv("TRACES", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("data/t.csv", "$TRACES/t.csv", "${TRACES}/t.csv", "~/data/t.csv", str(trace)):
        assert whole(text.replace("PATH", path)).workload.trace.path == str(trace)


def test_a_slash_alone_makes_no_path(whole):
    assert serving(whole(model="Qwen/Qwen3-14B")).model.name == "qwen3-14b"


def test_shipped_scenarios_are_found_by_name_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find("quickstart") == find("quickstart.yaml") == find("scenarios/quickstart.yaml")
    (tmp_path / "quickstart").mkdir()
    assert load("quickstart").name == "quickstart"


@pytest.mark.parametrize("name", names())
def test_every_shipped_scenario_loads_and_opens_with_its_lesson(name):
    assert load(name).name == name.rpartition("/")[2]
    assert find(name).read_text().startswith("# ")


# --- what stands behind the names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "place", "says"),
    [
        ({"model": "qwen3-14c"}, "scenario.model", "qwen3-14b"),
        ({"device": "h100"}, "scenario.device", "h100-sxm"),
        ({"device": "null", "profile": "nix"}, "scenario.profile", "nix"),
        ({"model": "llama-2-70b"}, "scenario.engine.gpu_memory_utilization", "No available memory for the cache blocks"),
        ({"engine.max_model_len": "40000", "engine.kv_blocks": "100"}, "scenario.engine.max_model_len", "To serve at least one request"),
        ({"engine.tensor_parallel_size": "3"}, "scenario", "3"),
    ],
)  # fmt: skip
def test_unknown_names_and_start_up_errors_are_placed_in_the_scenario(whole, change, place, says):
    scenario = whole(**change)
    with pytest.raises(InputError) as caught:
        memory_budget(scenario, serving(scenario), scenario.policies[2].build().set_aside)
    assert caught.value.place.startswith(place)
    assert says in caught.value.problem


def test_memory_share_follows_the_version_unless_given(whole):
    """MEM-13: 0.90 up to vLLM 0.21, 0.92 since."""
    assert serving(whole(SMALL)).memory_share == 0.92
    assert serving(whole(SMALL, **{"engine.like": "vllm-0.19"})).memory_share == 0.90
    assert (
        serving(whole(SMALL, **{"engine.like": "vllm-0.19", "engine.gpu_memory_utilization": "0.5"})).memory_share
        == 0.5
    )


def test_a_closed_batch_finds_its_prompts_activations_beside_its_kv(whole):
    scenario = whole()
    served = serving(scenario)
    static = memory_budget(scenario, served, Static(16).set_aside)
    extra = activation_blocks(scenario, served, static)
    assert extra(16) == 0
    assert extra(8192) == math.ceil((static.activation_bytes_of(8192) - static.activation_bytes) / static.block_bytes)
    continuous = memory_budget(scenario, served, Continuous(256, 8192).set_aside)
    assert continuous.kv_blocks < static.kv_blocks


def test_memory_that_fewer_kv_blocks_leave_unused_is_there_for_activations(whole):
    scenario = whole(**{"engine.kv_blocks": "3000"})
    served = serving(scenario)
    assert activation_blocks(scenario, served, memory_budget(scenario, served, (16, 16)))(8192) == 0


def test_the_resolved_scenario_has_every_default_and_can_be_read_again(whole, tmp_path):
    scenario = whole()
    data = resolved(scenario)
    assert data["engine"] == {
        "like": "vllm-0.23",
        "gpu_memory_utilization": 0.92,
        "block_size": 16,
        "kv_blocks": None,
        "max_model_len": None,
        "on_too_long": "reject",
        "kv_cache_dtype": "auto",
        "quantization": None,
        "tensor_parallel_size": 1,
        "restart_s": 30.0,
        "enforce_eager": False,
    }
    assert data["derived"]["memory"]["continuous"]["kv_blocks"] > 0
    assert data["derived"]["memory"]["continuous"]["max_model_len"] == 40960
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(data, sort_keys=False))
    assert resolved(load(again)) == data


def test_paths_of_a_resolved_scenario_are_seen_from_its_folder(whole, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,3,2\n")
    text = re.sub(r"  arrivals.*?requests: 3\n", "  trace: {path: t.csv}\n", SMALL, flags=re.DOTALL)
    scenario = whole(text)
    assert resolved(scenario)["workload"]["trace"]["path"] == str(trace)
    assert seen_from(tmp_path / "results" / "x", resolved(scenario))["workload"]["trace"]["path"] == "../../t.csv"
    assert seen_from(tmp_path, resolved(scenario))["workload"]["trace"]["path"] == "./t.csv"


def test_infinite_rates_survive_writing_and_reading(whole, tmp_path):
    scenario = whole(sweep="{}", **{"workload.arrivals.rate_rps": "inf"})
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(resolved(scenario)))
    assert load(again).workload.arrivals.rate_rps == math.inf


def test_the_json_schema_describes_every_key():
    schema = Scenario.model_json_schema()
    assert set(schema["required"]) == {"name", "model", "workload", "policies"}
    assert {"Static", "Padded", "Continuous", "Poisson", "Lognormal"} <= set(schema["$defs"])
    assert schema["$defs"]["Static"]["additionalProperties"] is False
    assert "batch_size" in schema["$defs"]["Static"]["properties"]


# --- traffic ---------------------------------------------------------------------------------------------------------


def sent(scenario: Scenario) -> list[tuple[float, int, int]]:
    client = traffic(scenario.workload, 16).client
    found = []
    while client.next_send() < math.inf:
        request, _ = client.send()
        found.append((request.arrival_s, request.prompt_tokens, request.output_tokens))
        client.answered(request, request.arrival_s + 1.0)
    return found


def test_traffic_of_each_kind(whole, tmp_path):
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n5,30,3\n6,40,4\n8,50,5\n")
    assert sent(whole(SMALL)) == [(0.0, 10, 5)] * 3
    constant = {"workload.arrivals": "{kind: constant, rate_rps: 2}"}
    assert sent(whole(SMALL, **constant)) == [(0.5, 10, 5), (1.0, 10, 5), (1.5, 10, 5)]
    closed = {"workload.arrivals": "{kind: closed, users: 2, think_s: 1}"}
    assert [time for time, *_ in sent(whole(SMALL, **closed))] == [0.0, 0.0, 2.0]
    capped = whole(SMALL, **{"workload.max_in_flight": "1"})
    assert [time for time, *_ in sent(capped)] == [0.0, 0.0, 0.0]
    trace = re.sub(r"  arrivals.*?requests: 3\n", "  trace: {path: t.csv, rate_scale: 2}\n", SMALL, flags=re.DOTALL)
    assert sent(whole(trace)) == [(0.0, 30, 3), (0.5, 40, 4), (1.5, 50, 5)]
    pairs = "{kind: trace, path: t.csv, max_prompt_tokens: 45}"
    joint = SMALL.replace("  prompt_tokens: {kind: fixed, tokens: 10}\n", "  lengths: " + pairs + "\n")
    joint = joint.replace("  output_tokens: {kind: fixed, tokens: 5}\n", "")
    assert {(prompt, output) for _, prompt, output in sent(whole(joint))} <= {(30, 3), (40, 4)}


def test_lengths_of_each_kind(whole):
    quantiles = {"workload.prompt_tokens": "{kind: empirical, percentiles: [0, 100], tokens: [7, 7]}"}
    assert {prompt for _, prompt, _ in sent(whole(SMALL, **quantiles))} == {7}
    named = {"workload.output_tokens": "{kind: empirical, name: azure-code-2023}"}
    assert all(output >= 1 for *_, output in sent(whole(SMALL, **named)))
    for key in ("lengths", "prompt_tokens"):
        text = WHOLE if key == "lengths" else SMALL
        scenario = whole(text, **{f"workload.{key}": "{kind: empirical, name: azure-chat}"})
        with pytest.raises(InputError) as caught:
            traffic(scenario.workload, 16)
        assert caught.value.place == f"scenario.workload.{key}.name"
        assert "azure-conv-2023" in caught.value.problem


def test_requested_rate_is_told_where_there_is_one(whole):
    assert traffic(whole().workload, 16).requested_rps == 8
    assert traffic(whole(SMALL).workload, 16).requested_rps is None
    assert traffic(whole(sweep="{}", **{"workload.arrivals.rate_rps": "inf"}).workload, 16).requested_rps is None


def test_more_requests_than_rows_is_an_error_unless_the_trace_is_repeated(whole, tmp_path):
    """LIV-13: never a hang, never silently three."""
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,3,2\n1,3,2\n2,3,2\n")
    text = re.sub(r"  arrivals.*?requests: 3\n", "  trace: {path: t.csv}\n  requests: 10\n", SMALL, flags=re.DOTALL)
    with pytest.raises(InputError, match="10 requests are asked for, but there are 3 rows"):
        traffic(whole(text).workload, 16)
    repeated = traffic(whole(text, **{"workload.trace.cycle": "true"}).workload, 16)
    assert len(repeated.client) == 10
    assert any("cycled 4 times" in note for note in repeated.trace.notes)


def test_the_same_seed_sends_the_same_requests(whole):
    scenario = whole()
    assert sent(scenario) == sent(copy.deepcopy(scenario))
    assert sent(scenario) != sent(whole(**{"workload.seed": "2"}))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"seeds": 10**12}, "scenario.seeds"),
        ({"sweep": {"workload.seed": list(range(101)), "engine.block_size": list(range(1, 1001))}}, "scenario.sweep"),
    ],
)
def test_more_points_than_anybody_means_are_refused_before_they_fill_the_memory(changes, place):
    with pytest.raises(InputError) as refused:
        load("quickstart", changes)
    assert refused.value.place == place and "of at most 100,000" in refused.value.problem


def test_like_an_engine_takes_its_defaults_for_what_is_not_given():
    changes = {"policies": [{"kind": "continuous", "like": "vllm-0.19", "max_num_seqs": 32}], "profile": None}
    [h100] = points(load("quickstart", {**changes, "device": "h100-sxm", "sweep": {}}))
    [small] = points(load("quickstart", {**changes, "device": "rtx4090", "model": "llama-3.1-8b", "sweep": {}}))
    policies = [point.scenario.policies[0].build() for point in (h100, small)]
    assert [policy.max_num_batched_tokens for policy in policies] == [8192, 2048]
    assert all(policy.async_scheduling and policy.enable_prefix_caching for policy in policies)
    assert [policy.max_num_seqs for policy in policies] == [32, 32]
    old = {"kind": "continuous", "like": "vllm-0.9", "max_num_batched_tokens": 100}
    [point] = points(load("quickstart", {"policies": [old], "sweep": {}}))
    policy = point.scenario.policies[0].build()
    assert (policy.async_scheduling, policy.max_num_seqs, policy.max_num_batched_tokens) == (False, 100, 100)


def test_only_an_engine_is_like_one():
    with pytest.raises(InputError, match="only continuous batching is like an engine"):
        load("quickstart", {"policies": [{"kind": "static", "like": "vllm-0.19"}]})


def test_an_override_wins_over_the_sweep_of_its_key():
    at_12 = load("quickstart", {"workload.arrivals.rate_rps": 12})
    assert [point.swept for point in points(at_12)] == [{}]
    assert at_12.workload.arrivals.rate_rps == 12
    cliff = load("memory-cliff", {"policies.*.batch_size": 8})
    assert cliff.sweep == {} and {entry.batch_size for entry in cliff.policies[:2]} == {8}
    assert load("memory-cliff", {"policies[0].batch_size": 8}).sweep  # not the key that is swept


def test_a_star_without_quotes_is_told_to_be_quoted(tmp_path):
    file = tmp_path / "star.yaml"
    file.write_text("name: x\nsweep: {policies[*].batch_size: [8, 16]}\n")
    with pytest.raises(InputError, match=r"quote the key path"):
        load(file)


def test_a_bare_number_of_tokens_is_told_how_to_be_fixed():
    with pytest.raises(InputError, match=r"\{kind: fixed, tokens: 300\}"):
        load("memory-cliff", {"workload.output_tokens": 300})


@pytest.mark.parametrize(
    ("changes", "place", "says"),
    [
        (
            {"sweep": {"policies": [[{"kind": "static"}]]}},
            "scenario.sweep.policies",
            "list of policies cannot be swept",
        ),
        ({"sweep": {"policies[0].name": ["a", "b"]}}, "scenario.sweep.policies[0].name", "name cannot be swept"),
        ({"sweep": {"derived.x": [1, 2]}}, "scenario.sweep.derived.x", "cannot be swept"),
        ({"sweep": {"workload.seed": [1, 1]}}, "scenario.sweep.workload.seed", "1 stands twice"),
        ({"cost.usd_per_gpu_hour": 1e308}, "scenario.cost.usd_per_gpu_hour", "out of range"),
        ({"workload.requests": 10**11}, "scenario.workload.requests", "out of range"),
        ({"policies[0].name": "a\nb"}, "scenario.policies[0].name", "cannot be printed"),
        ({"policies[0].name": "x" * 101}, "scenario.policies[0].name", "100"),
    ],
)
def test_what_would_fail_later_is_refused_at_once(changes, place, says):
    with pytest.raises(InputError) as refused:
        load("quickstart", changes)
    assert refused.value.place == place
    assert says in refused.value.problem


def test_a_swept_mapping_is_shown_as_text():
    swept = load("quickstart", {"sweep": {"slo": [None, {"ttft_s": 1.0}], "workload.arrivals": [{"kind": "burst"}]}})
    assert [point.swept["slo"] for point in points(swept)] == ["null", '{"ttft_s": 1.0}']
    assert [point.scenario.slo is None for point in points(swept)] == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 5000,
        "horizon_s: " + "9" * 5000,
        "name: !!int abc",
        "seed: !!timestamp 2020",
        "x: " + "1" * (1 << 20),
    ],
    ids=["brackets", "digits", "int", "timestamp", "large"],
)
def test_hostile_yaml_is_one_line(tmp_path, text):
    file = tmp_path / "hostile.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        load(file)
    assert len(str(refused.value)) < 400


def test_a_step_that_is_too_large_is_blamed_on_its_own_limit():
    """Not on the memory share: with one row fewer than what is said it fits, with that many and one more it does not."""
    refusals = []
    for batch_size in (100_000, 10**6):
        scenario = load("quickstart", {"policies[0].batch_size": batch_size})
        with pytest.raises(InputError) as refused:
            System.of(points(scenario)[0].scenario, 0)
        assert refused.value.place == "scenario.policies[0].batch_size"
        refusals.append(int(re.search(r"give at most (\d+);", refused.value.problem)[1]))
    [most] = set(refusals)
    at = {size: points(load("quickstart", {"policies[0].batch_size": size}))[0].scenario for size in (most, most + 1)}
    assert System.of(at[most], 0).memory.kv_blocks >= 1
    with pytest.raises(InputError, match=f"give at most {most};"):
        System.of(at[most + 1], 0)

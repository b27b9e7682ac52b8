"""Whatever a scenario, a file or an option holds: exit 0, 1 or 2, one line, and an end (see `hostile`)."""

from __future__ import annotations

import json

import pytest
import yaml
from hostile import ends_well, placed, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servecast.errors import InputError
from servecast.scenario import Scenario, check, points
from servecast.scenario.remedies import _kinds, _sections_in

FIXED = {"kind": "fixed", "tokens": 20}
POISSON = {"kind": "poisson", "rate_rps": 5.0}
ARRIVALS = [
    POISSON,
    {"kind": "gamma", "rate_rps": 5.0, "burstiness": 0.5, "rescale": True},
    {"kind": "constant", "rate_rps": 5.0},
    {"kind": "burst"},
    {"kind": "closed", "users": 2, "think_s": 0.1, "ramp_s": 1.0},
    {"kind": "piecewise", "durations_s": [1.0, 2.0], "rates_rps": [5.0, 1.0], "repeat": True},
    {"kind": "diurnal", "mean_rps": 3.0},
    {"kind": "ramp_up", "start_rps": 1.0, "end_rps": 5.0},
    {"kind": "modulated", "rate_rps": 5.0, "variance_1s": 0.5},
]
LENGTH = [
    FIXED,
    {"kind": "uniform", "min_tokens": 1, "max_tokens": 5},
    {"kind": "lognormal", "median_tokens": 10.0, "sigma": 1.0},
    {"kind": "empirical", "percentiles": [0.0, 100.0], "tokens": [1.0, 9.0]},
    {"kind": "empirical", "name": "azure-conv-2023"},
]
LENGTHS = [
    {"kind": "empirical", "name": "azure-conv-2023"},
    {"kind": "trace", "path": "trace.csv"},
    {"kind": "random", "input_tokens": 20, "output_tokens": 3, "prefix_tokens": 32},
    {
        "kind": "joint_quantiles", "percentiles": [0.0, 100.0], "prompt_tokens": [1.0, 9.0],
        "output_tokens": [[1.0, 2.0], [2.0, 3.0]],
    },
]  # fmt: skip
WORKLOADS = [
    *({"arrivals": each, "prompt_tokens": FIXED, "output_tokens": FIXED, "requests": 4} for each in ARRIVALS),
    *({"arrivals": POISSON, "prompt_tokens": each, "output_tokens": FIXED, "requests": 4} for each in LENGTH),
    *({"arrivals": POISSON, "lengths": each, "requests": 4} for each in LENGTHS),
    {"trace": {"path": "trace.csv", "cycle": True}, "requests": 4},
    {
        "tenants": [
            {"name": "a", "arrivals": POISSON, "prompt_tokens": FIXED, "output_tokens": FIXED, "slo": {"ttft_s": 1.0}},
            {"name": "b", "arrivals": POISSON, "lengths": LENGTHS[2]},
        ],
        "requests": 4,
    },
    {
        "conversations": {
            "arrivals": POISSON, "turns": {"kind": "fixed", "tokens": 2}, "new_tokens": FIXED, "output_tokens": FIXED,
            "system_tokens": 20,
        },
        "requests": 4,
    },
    {"servegen": {"folder": "clients"}},
]  # fmt: skip
WHOLE = {
    "name": "fuzz", "model": "llama-3.1-8b", "device": "h100-sxm", "engine": {"block_size": 16},
    "workload": {**WORKLOADS[0], "network": {"uplink_s": 0.0}},
    "policies": [
        {"kind": "static", "batch_size": 2}, {"kind": "padded"}, {"kind": "prefill_first"},
        {"kind": "continuous", "scheduling_policy": "priority", "like": "vllm-0.19", "name": "c"},
    ],
    "slo": {"ttft_s": 1.0}, "cost": {"usd_per_gpu_hour": 1.0}, "sweep": {"engine.block_size": [16, 32]},
    "goal": {
        "slo": {"ttft_p99_s": 1.0}, "rate_rps": 2.0, "usd_per_gpu_hour": {"h100-sxm": 2.0},
        "api": {"usd_per_mtok_input": 1.0, "usd_per_mtok_output": 2.0},
    },
    "search": {"over": {"replicas": [1, 2]}, "seeds": 1, "draws": 0, "most_requests": 50},
    "replicas": 1, "router": "round_robin",
}  # fmt: skip
ONE = {"kind": "continuous", "enable_prefix_caching": True}
BASES = [WHOLE, *({**WHOLE, "workload": each, "policies": [ONE], "sweep": {}} for each in WORKLOADS)]


def keys(section, node, path=()):
    """Every key that the schema knows below a section, as this document has it: key path, and the field."""
    for name, field in section.model_fields.items():
        yield (*path, name), field
        child = node.get(name)
        below = list(_sections_in(field.annotation))
        items = enumerate(child) if isinstance(child, list) else [((), child)] if isinstance(child, dict) else []
        for at, item in items:
            inner = (*path, name) if at == () else (*path, name, at)
            if isinstance(item, dict):
                one = next((each for each in below if len(below) == 1 or item.get("kind") in _kinds(each)), None)
                yield from keys(one, item, inner) if one else (((*inner, key), field) for key in item)
            else:
                yield inner, field


PLACES = [(base, path, field) for base in BASES for path, field in keys(Scenario, base)]


def sections(section, seen):
    if section not in seen:
        seen.add(section)
        for field in section.model_fields.values():
            for each in _sections_in(field.annotation):
                sections(each, seen)
    return seen


def test_every_key_of_the_schema_is_tried():
    tried = {id(field) for _, _, field in PLACES}
    untried = [
        f"{section.__name__}.{name}"
        for section in sections(Scenario, set())
        for name, field in section.model_fields.items()
        if id(field) not in tried
    ]
    assert not untried


def limits(field):
    """The bounds of a field, and what lies just outside."""
    pending, found = [*field.metadata, field.annotation], []
    while pending:
        item = pending.pop()
        for name in ("gt", "ge", "lt", "le"):
            if (bound := getattr(item, name, None)) is not None:
                found += [bound, bound - 1, bound + 1]
        pending += getattr(item, "__metadata__", None) or getattr(item, "metadata", None) or ()
        pending += [part for part in getattr(item, "__args__", ()) if not isinstance(part, str)]
    return found


@st.composite
def scenarios(draw):
    """A scenario with one or two values that the schema's own types and bounds make hostile."""
    base, path, field = draw(st.sampled_from(PLACES))
    near = limits(field)
    made = placed(base, path, draw(st.sampled_from(near) | values if near else values))
    if draw(st.booleans()):
        others = [place for of, place, _ in PLACES if of is base and place[: len(path)] != path[: len(place)]]
        made = placed(made, draw(st.sampled_from(others)), draw(values))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with what the scenarios name."""
    there = tmp_path_factory.mktemp("hostile")
    (there / "trace.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens,session\n0,30,4,a\n0.1,20,3,b\n0.2,50,2,a\n"
    )
    (there / "clients").mkdir()
    (there / "clients/chunk-0-trace.csv").write_text("0,0.02,1,Gamma,1,1\n600,0.02,1,Gamma,1,1\n")
    lengths = {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{3: 1.0}"}
    (there / "clients/chunk-0-dataset.json").write_text(json.dumps({"0": lengths}))
    return there


def written(file, data):
    """A file with the data as YAML (JSON has no infinity, and YAML takes all of it)."""
    try:
        file.write_text(yaml.safe_dump(data, allow_unicode=True, sort_keys=False), encoding="utf-8")
    except (ValueError, UnicodeEncodeError):  # a lone surrogate, a number of 5,000 digits
        file.write_text(json.dumps(str(data)), encoding="utf-8")
    return file


def small(data, folder):
    """Whether the runs of a scenario are few and short: what is only large is not what is looked for here."""
    try:
        made = points(check(data, folder))
    except InputError:
        return True  # one that is refused is soon done
    requests = max(point.scenario.workload.requests or 4 for point in made)
    return len(made) <= 8 and requests * max(point.scenario.replicas or 1 for point in made) <= 20_000


MANY = settings.default.max_examples  # 100, and 2,000 in the thorough profile
EXAMPLES = {"suppress_health_check": list(HealthCheck)}


@settings(max_examples=3 * MANY, **EXAMPLES)
@given(data=scenarios())
def test_a_scenario_is_checked(folder, data):
    try:
        check(data, folder)
    except InputError as error:
        said = str(error)
        assert said.startswith("scenario") and len(said) < 2000


@settings(max_examples=MANY, **EXAMPLES)
@given(data=scenarios(), command=st.sampled_from(["run", "run", "plan", "explain"]))
def test_a_scenario_of_any_values(folder, data, command):
    if small(data, folder):
        out = () if command == "explain" else ("--out", folder / "out", "--fresh")
        ends_well(command, written(folder / "fuzz.yaml", data), *out)

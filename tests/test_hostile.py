"""Whatever a scenario, a file or an option holds: exit 0, 1 or 2, one line, and an end (see `hostile`)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import typer
import yaml
from hostile import ends_well, mutated, placed, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servecast import resources, specs
from servecast.cli import app as cli
from servecast.cli.options import overrides
from servecast.errors import InputError
from servecast.scenario import Scenario, check, document, load, points
from servecast.scenario.keypath import written as path_of
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
    searches = [point.scenario.search for point in made if point.scenario.search is not None]
    if any(each.most_requests > 100 or each.draws > 2 or each.seeds > 2 or each.most_seeds > 12 for each in searches):
        return False
    requests = max(point.scenario.workload.requests or 4 for point in made)
    return len(made) <= 8 and requests * max(point.scenario.replicas or 1 for point in made) <= 20_000


def with_one_line(call):
    """What a call says that refuses its input; nothing but an InputError comes out of it."""
    try:
        call()
    except InputError as error:
        said = str(error)
    else:
        said = "scenario: taken"
    assert len(said) < 2000
    return said


MANY = settings.default.max_examples  # 100, and 2,000 in the thorough profile
EXAMPLES = {"suppress_health_check": list(HealthCheck)}


@settings(max_examples=3 * MANY, **EXAMPLES)
@given(data=scenarios())
def test_a_scenario_is_checked(folder, data):
    assert with_one_line(lambda: check(data, folder)).startswith("scenario")


@settings(max_examples=MANY // 2, **EXAMPLES)
@given(data=scenarios(), command=st.sampled_from(["run", "run", "plan", "explain"]))
def test_a_scenario_of_any_values(folder, data, command):
    if small(data, folder):
        out = () if command == "explain" else ("--out", folder / "out", "--fresh")
        ends_well(command, written(folder / "fuzz.yaml", data), *out)


# --- other files ------------------------------------------------------------------------------------------------------


def entry(catalogue, name):
    """An entry of a shipped catalogue, as plain data."""
    return yaml.safe_load((Path(specs.__path__[0]) / f"{catalogue}.yaml").read_text())[name]


def shipped(name):
    return yaml.safe_load((resources.directory("calibration") / f"{name}.yaml").read_text())


DEVICE = entry("devices", "h100-sxm")
PROFILES = {name: shipped(name) for name in ("h100-qwen3-14b", "rtx4090-llama-3.1-8b-layers")}


@settings(max_examples=MANY // 2, **EXAMPLES)
@given(data=mutated(DEVICE))
def test_a_device_of_any_values(folder, data):
    ends_well("explain", "--model", "llama-3.1-8b", "--device", written(folder / "device.yaml", data), "--length", 500)


@settings(max_examples=MANY // 4, **EXAMPLES)
@given(made=st.sampled_from(sorted(PROFILES)).flatmap(lambda name: mutated(PROFILES[name])))
def test_a_profile_of_any_values(folder, made):
    place, changed = written(folder / "profile.yaml", made), {"workload": WORKLOADS[0], "policies": [ONE]}
    model = made.get("model") if made.get("model") == "qwen3-14b" else "llama-3.1-8b"
    scenario = {"name": "fuzz", "model": model, "profile": str(place), **changed}
    ends_well("run", written(folder / "of-profile.yaml", scenario), "--out", folder / "out", "--fresh")


@settings(max_examples=MANY // 2, **EXAMPLES)
@given(data=mutated(entry("models", "llama-3-8b")["config"]))
def test_a_model_of_any_values(folder, data):
    (folder / "config.json").write_text(json.dumps(data))
    ends_well("explain", "--model", folder / "config.json", "--device", "h100-sxm")


RECORDED = {
    "backend": "vllm", "model_id": "qwen3-14b", "num_prompts": 4, "request_rate": 4.0, "burstiness": 1.0,
    "max_concurrency": None, "duration": 1.5, "completed": 4, "total_input_tokens": 100, "total_output_tokens": 12,
    "input_lens": [10, 20, 30, 40], "output_lens": [3, 3, 3, 3], "ttfts": [0.1, 0.1, 0.2, 0.1],
    "itls": [[0.01, 0.02]] * 4, "start_times": [10.0, 10.2, 10.3, 10.9], "generated_texts": [""] * 4, "errors": [""] * 4,
    "median_ttft_ms": 100.0, "mean_itl_ms": 15.0,
}  # fmt: skip


@settings(max_examples=MANY // 4, **EXAMPLES)
@given(data=mutated(RECORDED))
def test_a_recorded_result_of_any_values(folder, data):
    (folder / "result.json").write_text(json.dumps(data))
    workload = {"trace": {"path": str(folder / "result.json")}}
    scenario = {"name": "fuzz", "model": "llama-3.1-8b", "device": "h100-sxm", "workload": workload, "policies": [ONE]}
    ends_well("compare", written(folder / "compare.yaml", scenario), "--out", folder / "compared", "--band", 0)


STEPS = [
    "seconds",
    "iterations",
    "prefill_rows",
    "prefill_tokens",
    "prefill_pairs",
    "prefill_context",
    "decode_rows",
    "decode_context",
]


@st.composite
def step_tables(draw):
    """A table of steps with a column that is missing or holds something else, here and there or throughout."""
    rows = [
        [0.01 + 1e-5 * tokens + 1e-4 * n, 1, 1, tokens, tokens * tokens // 2, 0, n, 100 * n]
        for tokens in (16, 99, 500)
        for n in range(10)
    ]
    heads = list(STEPS)
    for _ in range(draw(st.integers(1, 2))):
        at, value = draw(st.integers(0, len(heads) - 1)), draw(values)
        for row in draw(st.sampled_from([rows, rows[:1], rows[::7]])):
            row[at] = value
    if draw(st.booleans()):
        heads[draw(st.integers(0, len(heads) - 1))] = draw(st.sampled_from(["", "seconds", "x", "decode_rows"]))
    return "\n".join(",".join(str(cell).replace("\n", " ") for cell in row) for row in [heads, *rows]) + "\n"


@settings(max_examples=MANY // 8, **EXAMPLES)
@given(text=step_tables())
def test_a_table_of_steps_of_any_values(folder, text):
    (folder / "steps.csv").write_text(text, encoding="utf-8", errors="replace")
    ends_well(
        "fit", folder / "steps.csv", "--model", "llama-3.1-8b", "--device", "h100-sxm", "-o", folder / "fitted.yaml"
    )


# --- text and options -------------------------------------------------------------------------------------------------

LINES = yaml.safe_dump(WHOLE, sort_keys=False).splitlines()
ODD = [
    "a: &a [*a]", "b: *nothing", "<<: *a", "<<: [1]", "? [1, 2]\n: x", "x: !!python/object:os.system ls", "---", "...",
    "%YAML 1.3", "\ttab: 1", "k: |\n  text", "seeds: 0o17", "seeds: 1:30", "seeds: 1_0", "seeds: 2020-01-01", "seeds: ~",
    "\ufeff", "name: \"\\ud800\"", "{", "]", "'", "name: a\u2028b", "policies: {<<: {kind: static}}", "\x85", "\x07",
    "seeds: " + "9" * 5000, "name: " + "n" * 5000, "a: " + "{b: " * 300,
]  # fmt: skip


@settings(max_examples=3 * MANY, **EXAMPLES)
@given(at=st.integers(0, len(LINES)), cut=st.integers(0, 3), text=st.sampled_from(ODD) | st.text() | st.binary())
def test_a_scenario_of_any_text(folder, at, cut, text):
    parts = ["\n".join(LINES[:at]), text, "\n".join(LINES[at + cut :])]
    file = folder / "text.yaml"
    file.write_bytes(
        b"\n".join(part if isinstance(part, bytes) else part.encode(errors="surrogatepass") for part in parts)
    )
    with_one_line(lambda: check(document.read(file).data, folder))


@settings(max_examples=2 * MANY, **EXAMPLES)
@given(
    key=st.sampled_from([path_of(path) for _, path, _ in PLACES[:80]]) | st.text(max_size=12),
    value=st.sampled_from(ODD) | st.text(max_size=12) | values.map(str),
)
def test_an_override_of_any_text(folder, key, value):
    file = written(folder / "whole.yaml", WHOLE)
    with_one_line(lambda: load(file, overrides([f"{key}={value}"])))


def _options():
    """Each option of each command that takes a number or text, with the command."""
    command = typer.main.get_command(cli.app)
    for name, each in command.commands.items():
        for parameter in each.params:
            if parameter.opts[0].startswith("-") and not getattr(parameter, "is_flag", False):
                yield name, parameter.opts[0]


GIVEN = {
    "run": ["whole.yaml", "--out", "o"], "plan": ["whole.yaml", "--out", "o"], "explain": ["whole.yaml"],
    "compare": ["compare.yaml", "--out", "o"], "trace": ["trace.csv"], "diff": ["o", "o"], "list": ["models"],
    "fit": ["steps.csv", "--model", "llama-3.1-8b", "--device", "h100-sxm", "-o", "f.yaml"],
}  # fmt: skip
TEXTS = [
    "",
    "-1",
    "0",
    "1e400",
    "nan",
    "inf",
    "5e-324",
    str(2**70),
    "9" * 5000,
    "x",
    "tcp://127.0.0.1:-1",
    "é\u202e",
    "a=b",
]


OPTIONS = [each for each in _options() if each[0] in GIVEN]  # a device's commands compute, and are left out


@settings(max_examples=MANY // 3, **EXAMPLES)
@given(option=st.sampled_from(OPTIONS), text=st.sampled_from(TEXTS))
def test_an_option_of_any_value(folder, option, text):
    command, name = option
    if name not in ("--execute", "--scheduler", "--jobs") or text in ("", "x", "-1"):
        written(folder / "whole.yaml", {**WHOLE, "sweep": {}, "policies": [ONE]})
        with contextlib.chdir(folder):
            ends_well(command, *GIVEN[command], name, text)


@pytest.mark.parametrize("columns", ["0", "-1", "9" * 30, "x", "٣", "1e9"])
def test_a_width_of_any_value(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert ends_well("list", "models") == (0, "")

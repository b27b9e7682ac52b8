"""The commands that need a device, from the command line, with a two-layer model on the CPU."""

import json

import pytest
import yaml

from servecast.cli.app import main

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}  # fmt: skip
LIMITS = ("--max-rows", "2", "--max-length", "32", "--max-tokens", "32")


def command(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("commands")
    (place / "small.json").write_text(json.dumps(CONFIG))
    model = str(place / "small.json")
    profile = str(place / "mine.yaml")
    assert command("calibrate", "--model", model, "--device", "cpu", "--budget-s", "60", *LIMITS, "-o", profile) == 0
    return place


def test_calibrate_writes_profile_steps_facts_and_figures(folder):
    names = {p.name for p in folder.iterdir()}
    assert names >= {"mine.yaml", "mine.json", "mine.steps.csv", "mine.steps.svg", "mine.roofline.svg"}


def validation(folder, gate):
    scenario = {
        "name": "small",
        "model": "./small.json",
        "profile": "./mine.yaml",
        "engine": {"max_model_len": 32, "kv_blocks": 64},
        "workload": {
            "arrivals": {"kind": "burst"},
            "prompt_tokens": {"kind": "fixed", "tokens": 8},
            "output_tokens": {"kind": "fixed", "tokens": 4},
            "requests": 6,
            "seed": 3,
        },
        "policies": [{"kind": "static", "batch_size": 2, "max_wait_s": 0.02}],
    }
    gates = [{"loads": ["burst"], "metrics": ["makespan_s"], "relative": gate}]
    file = folder / "plan.yaml"
    file.write_text(yaml.safe_dump({"scenario": scenario, "loads": [], "drift": 10.0, "gates": gates}))
    return str(file)


def test_validate_says_whether_the_gates_were_met(folder, capsys):
    assert command("validate", validation(folder, 0.99), "--device", "cpu", "--out", str(folder / "out")) == 0
    told = capsys.readouterr().out
    assert "1 of 1 gates met" in told
    assert "report: " in told
    assert (folder / "out" / "small" / "report.html").is_file()


@pytest.mark.parametrize("policy", ["static", "padded"])
def test_cliff_prints_forecast_and_found(folder, capsys, policy):
    load = (
        "--model",
        str(folder / "small.json"),
        "--prompt",
        "200",
        "--output",
        "56",
        "--memory-gb",
        "0.01",
        "--dtype",
        "fp32",
    )
    assert command("cliff", *load, "--device", "cpu", "--policy", policy) == 0
    told = capsys.readouterr().out
    assert f"{policy}, 200 + 56 tokens in 0.01 GB on cpu" in told
    assert "found by running" in told


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("cliff", "--policy", "continuous"), "--policy: 'continuous' has no cliff"),
        (("cliff", "--memory-gb", "0"), "--memory-gb: 0 must be > 0"),
        (("calibrate", "--max-rows", "4"), "--max-rows: --max-rows, --max-length and --max-tokens go together"),
        (("calibrate", "--budget-s", "0"), "--budget-s: 0 must be > 0"),
        (("validate", "none.yaml"), "none.yaml: cannot be read"),
    ],
)
def test_a_wrong_option_is_one_line(tmp_path, capsys, arguments, problem):
    name, *rest = arguments
    known = {
        "cliff": {"--model": "tiny", "--prompt": "8", "--output": "8", "--memory-gb": "0.01"},
        "calibrate": {"--model": "tiny", "--dtype": "fp32", "-o": str(tmp_path / "x.yaml")},
        "validate": {},
    }[name]
    options = [text for pair in known.items() if pair[0] not in rest for text in pair]
    assert command(name, *rest, *options, "--device", "cpu") == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(problem)

"""The command line: what it prints, where it puts things, and how it ends."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from servecast.cli import app as cli
from servecast.cli import terminal
from servecast.run.sweep import Progress

HEAVY = ("torch", "pandas", "resvg_py", "scipy", "numpy", "yaml", "simpy", "joblib", "jinja2", "pyarrow")

SPLIT = "engine.tensor_parallel_size=3"
TINY = """\
name: tiny
model: llama-3.1-8b
device: a100-80gb
workload:
  arrivals: {kind: poisson, rate_rps: 4}
  prompt_tokens: {kind: fixed, tokens: 100}
  output_tokens: {kind: fixed, tokens: 10}
  requests: 12
  seed: 1
policies:
  - {kind: static, batch_size: 4}
  - {kind: continuous}
slo: {ttft_s: 1.0}
cost: {usd_per_gpu_hour: 2}
"""


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """As wide as lines are long, whatever terminal the tests are run in."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY)
    return file


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


def process(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    code = [sys.executable, "-m", "servecast", *map(str, arguments)]
    return subprocess.run(code, capture_output=True, text=True, check=False, timeout=120, **options)


def rows_of(path) -> list[list[str]]:
    opened = gzip.open if str(path).endswith(".gz") else open
    with opened(path, "rt", newline="") as file:
        return list(csv.reader(file))


# --- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["explain", "-h"]])
def test_help_shows_examples_and_imports_nothing_heavy(arguments):
    """Speed by what is loaded, never by a clock."""
    code = f"""
import sys
from servecast.cli.app import main
try:
    main({arguments!r})
except SystemExit as end:
    assert not end.code, end.code
print(sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "servecast " in done.stdout
    assert "Examples" in done.stdout
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_importing_the_package_is_as_light():
    code = f"import sys, servecast, servecast.report; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert set(json.loads(done.stdout.replace("'", '"'))) <= {"numpy"}


@pytest.mark.parametrize("name", ["run", "explain", "fit", "trace", "list", "schema"])
def test_every_command_has_an_example(name, capsys):
    assert command(name, "--help") == 0
    assert f"servecast {name}" in capsys.readouterr().out


# --- run -------------------------------------------------------------------------------------------------------------


def test_run_writes_results_and_compares(tiny, capsys):
    assert command("run", tiny) == 0
    shown = capsys.readouterr().out
    for said in ("uncalibrated", "gpu_memory_utilization 0.92", "max_num_batched_tokens 8,192", "seed 1", "KV blocks"):
        assert said in shown
    assert ", chunked_prefill; " in shown  # BLK-15
    assert shown.rstrip().endswith("report: results/tiny/report.html")
    folder = Path("results/tiny")
    assert {"scenario.yaml", "summary.csv", "requests.parquet", "decisions.parquet", "report.html"} <= {
        file.name for file in folder.iterdir()
    }
    header, *rows = rows_of(folder / "summary.csv")
    assert header[:2] == ["policy", "seed"]
    assert [row[:2] for row in rows] == [["static", "1"], ["continuous", "1"]]


def test_the_written_scenario_gives_the_same_summary(tiny):
    assert command("run", tiny, "--out", "first") == 0
    assert command("run", "first/tiny/scenario.yaml", "--out", "second") == 0
    for name in ("scenario.yaml", "summary.csv"):
        assert Path(f"first/tiny/{name}").read_bytes() == Path(f"second/tiny/{name}").read_bytes()


def test_the_option_seed_wins_and_is_echoed(tiny, capsys):
    """CFG-01."""
    assert command("run", tiny, "--seed", 2, "--set", "workload.seed=3") == 0
    assert "seed 2" in capsys.readouterr().out
    assert yaml.safe_load(Path("results/tiny/scenario.yaml").read_text())["workload"]["seed"] == 2


def test_swept_keys_and_seeds_are_columns_in_order(tiny, capsys):
    sweep = "sweep={workload.arrivals.rate_rps: [2, 4], 'policies[*].batch_size': [2, 4]}"
    assert command("run", tiny, "--set", sweep, "--set", "seeds=2", "--csv") == 0
    header, *rows = rows_of("results/tiny/summary.csv")
    keys = ["policy", "workload.arrivals.rate_rps", "policies[*].batch_size", "seed"]
    assert header[:4] == keys
    # Continuous batching has no batch size: it runs once at each rate, and its cell is blank.
    assert [tuple(row[:4]) for row in rows] == [
        (policy, rate, "" if policy == "continuous" else size, seed)
        for rate in ("2", "4")
        for size in ("2", "4")
        for seed in ("1", "2")
        for policy in ("static", "continuous")
        if policy == "static" or size == "2"
    ]
    requests = rows_of("results/tiny/requests.csv.gz")
    assert requests[0][:5] == [*keys, "id"]
    assert len(requests) == 1 + 12 * 12
    shown = capsys.readouterr().out
    assert "static: batch_size 2 or 4 (swept)" in shown
    assert shown.count("  continuous ") == 2


def test_jobs_change_nothing(tiny):
    for jobs, out in ((1, "one"), (2, "two")):
        assert command("run", tiny, "--set", "sweep={workload.requests: [5, 7]}", "--jobs", jobs, "--out", out) == 0
    for name in ("summary.csv", "requests.parquet", "decisions.parquet", "scenario.yaml"):
        assert Path(f"one/tiny/{name}").read_bytes() == Path(f"two/tiny/{name}").read_bytes()


def test_hash_seed_and_locale_change_nothing(tiny, tmp_path):
    """CFG-07, CFG-12."""
    made = []
    for at, (seed, locale) in enumerate((("0", "C"), ("1", "de_DE.UTF-8"))):
        env = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale}
        done = process("run", tiny, "--out", tmp_path / str(at), env=env)
        assert done.returncode == 0, done.stderr
        made.append({f.name: f.read_bytes() for f in (tmp_path / str(at) / "tiny").iterdir()})
    assert made[0].keys() == made[1].keys()
    for name in ("summary.csv", "requests.parquet", "decisions.parquet", "scenario.yaml", "report.html"):
        assert made[0][name] == made[1][name], name


def test_a_point_that_cannot_be_is_told_and_the_others_are_kept(tiny, capsys):
    assert command("run", tiny, "--set", "sweep={engine.gpu_memory_utilization: [0.1, 0.9]}") == 2
    caught = capsys.readouterr()
    assert caught.err.count("No available memory for the cache blocks") == 2
    assert "gpu_memory_utilization=0.1" in caught.err
    assert len(Path("results/tiny/summary.csv").read_text().splitlines()) == 1 + 2
    assert "Not run (static, gpu_memory_utilization=0.1, seed 1)" in caught.out


def test_bad_input_is_one_line_and_two(tiny, capsys):
    for arguments in (
        ["run", tiny, "--set", "policies[0].batch_size=0"],
        ["run", tiny, "--set", "engine.gpu_memory_utilization=0.1"],
        ["run", tiny, "--set", "nothing"],
        ["run", tiny, "--set", "a=[1"],
        ["run", "nowhere.yaml"],
        ["run", tiny, tiny],
        ["explain", "--device", "a100-80gb"],
        ["explain", tiny, "--model", "llama-2-7b"],
        ["explain", "--model", "llama-2-7b"],
        ["explain", "--model", "llama-2-8b", "--device", "a100-80gb"],
        ["trace", "nowhere.csv"],
        ["trace", tiny, "--rate-scale", "0"],
        ["fit", "nowhere.csv", "--model", "qwen3-14b", "--device", "h100-sxm", "-o", "x.json"],
        ["fit", "nowhere.csv", "--model", "qwen3-14b", "--device", "h100-sxm", "-o", "no/x.yaml"],
        ["fit", "nowhere.csv", "--model", "qwen3-14b", "--device", "h100-sxm", "-o", "x.yaml"],
    ):
        assert command(*arguments) == 2, arguments
        caught = capsys.readouterr()
        assert caught.out == ""
        assert len(caught.err.splitlines()) == 1, caught.err
        assert ": " in caught.err
    assert not Path("results").exists()


def test_wrong_options_are_usage_errors(tiny, capsys):
    assert command("run") == 2
    assert command("run", tiny, "--jobs", 0) == 2
    assert command("list", "everything") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_tables_and_page_cost_little_beside_the_simulation(tiny):
    """CPU of the whole command after its imports, for 2,000 requests: `benchmarks/command.py` has the numbers."""
    assert command("run", tiny) == 0
    policies = ("--set", "policies=[{kind: continuous}]", "--set", "workload.requests=2000")
    start = time.process_time()
    assert command("run", tiny, *policies) == 0
    assert time.process_time() - start < 1.5


def test_figures_are_made_where_they_are_asked_for(tiny, monkeypatch, capsys):
    assert command("run", tiny) == 0
    folder = Path("results/tiny")
    assert not [*folder.glob("*.svg"), *folder.glob("*.png")]
    assert command("run", tiny, "--figures", "svg") == 0
    assert {"throughput-latency.svg", "timeline.svg", "roofline.svg"} <= {path.name for path in folder.glob("*.svg")}
    assert command("run", tiny, "--figures", "svg,pdf") == 2
    assert "--figures: 'pdf' is no form of a figure: use svg, png, or svg,png" in capsys.readouterr().err
    assert command("run", tiny, "--figures", ",") == 2
    assert capsys.readouterr().err == "--figures: ',' names no form of a figure: use svg, png, or svg,png\n"
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    assert command("run", tiny, "--figures", "png") == 2
    assert "png: needs resvg: pip install 'servecast[figures]'; svg needs nothing" in capsys.readouterr().err


def test_interrupted_with_nothing_made(tiny, capsys, monkeypatch):
    from servecast.run import sweep

    monkeypatch.setattr(sweep, "run", lambda point, at, *rest: _interrupt())
    assert command("run", tiny) == 130
    assert capsys.readouterr().err.split("\n") == ["", "tiny: interrupted; no finished run is kept", ""]
    assert not Path("results").exists()


def test_interrupted_keeps_what_was_made(tiny, capsys, monkeypatch):
    from servecast.run import sweep

    made = sweep.run
    monkeypatch.setattr(sweep, "run", lambda task, *rest: made(task, *rest) if task.at == 0 else _interrupt())
    assert command("run", tiny) == 130
    caught = capsys.readouterr()
    assert "interrupted, 1 runs were not made" in caught.err
    assert "Interrupted: 1 of 2 runs were not made." in caught.out
    assert len(Path("results/tiny/summary.csv").read_text().splitlines()) == 2


def test_interrupted_within_a_point_it_shows_the_policies_that_ran(tiny, capsys, monkeypatch):
    from servecast.run import sweep

    made, ended = sweep.run, []

    def three(task, *rest):
        ended.append(task)
        return made(task, *rest) if len(ended) <= 3 else _interrupt()

    monkeypatch.setattr(sweep, "run", three)
    assert (
        command(
            "run",
            tiny,
            "--set",
            "sweep={workload.arrivals.rate_rps: [1, 40]}",
            "--set",
            "policies[0].batch_size=12",
            "--json",
        )
        == 130
    )
    [document] = json.loads(capsys.readouterr().out)["scenarios"]
    assert (len(document["summary"]), document["missing"]) == (3, 1)
    assert "static" in Path(document["report"]).read_text()


#: Points at which one policy cannot be: alone, at the first one, at the last one, and at the one that is judged.
IMPOSSIBLE = (
    ({"engine": "{gpu_memory_utilization: 0.25, max_model_len: 1000}"}, 1),
    ({"sweep": "{engine.gpu_memory_utilization: [0.25, 0.9]}", "engine": "{max_model_len: 1000}"}, 3),
    ({"sweep": "{engine.gpu_memory_utilization: [0.9, 0.25]}", "engine": "{max_model_len: 1000}"}, 3),
    ({"sweep": "{engine.max_model_len: [1000, 120000]}", "workload.prompt_tokens.tokens": "1500"}, 3),
)


@pytest.mark.parametrize(("changes", "runs"), IMPOSSIBLE)
def test_a_policy_that_cannot_be_at_a_point_takes_no_other_run_with_it(changes, runs, tiny, capsys):
    whole = "{kind: continuous, name: whole, max_num_batched_tokens: 100000, enable_chunked_prefill: false}"
    changes = {"policies": f"[{{kind: continuous, max_num_batched_tokens: 2048}}, {whole}]", **changes}
    options = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    assert command("run", tiny, *options) == 2
    shown = capsys.readouterr()
    [failed] = shown.err.splitlines()
    assert failed.startswith("tiny (whole, "), failed
    assert len(rows_of("results/tiny/summary.csv")) == 1 + runs
    assert "report: results/tiny/report.html" in shown.out
    memory = yaml.safe_load(Path("results/tiny/scenario.yaml").read_text())["derived"]["memory"]
    assert memory["continuous"]["kv_blocks"] > 0


def test_interrupted_before_its_page_it_says_how_many_runs_are_kept(tiny, capsys, monkeypatch):
    from servecast.run import sweep

    assert command("run", tiny) == 0
    monkeypatch.setattr(sweep, "resolved", lambda *given: _interrupt())
    capsys.readouterr()
    assert command("run", tiny) == 130
    kept = "the 2 finished runs in results/.tiny.sqlite are kept"
    assert capsys.readouterr().err.endswith(kept.replace("results", str(Path("results").resolve())) + "\n")


@pytest.mark.parametrize("module", ["servecast.cli.app", "servecast.cli.plan", "servecast.run.cluster"])
def test_interrupted_while_it_loads_is_one_line(module, tiny):
    code = f"""
import sys
class Stop:
    def find_spec(self, name, *rest):
        if name == {module!r}: raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
sys.argv = ["servecast", "run", "tiny.yaml"]
import servecast.__main__
servecast.__main__.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted\n")


def test_interrupted_outside_of_a_command_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(cli, "app", lambda *given, **named: _interrupt())
    assert command("run", "quickstart") == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


def _interrupt():
    raise KeyboardInterrupt


def test_a_closed_pipe_is_no_traceback():
    code = f"{sys.executable} -m servecast list models | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.startswith("models")
    assert done.stderr == ""


# --- the other commands ----------------------------------------------------------------------------------------------


def test_explain_without_arguments_gives_the_worked_numbers(capsys):
    assert command("explain") == 0
    shown = capsys.readouterr().out
    for figure in ("1.0 ", "64.0 ", "62.06", "a ridge of 140", "295.2", "llama-2-7b", "85.3 %", "87.4 %", "16,008,000"):
        assert figure in shown, figure
    for line in ("140.0, the example", "153.0, its own", "200.6, its own"):
        assert shown.count(line) == (4 if "example" in line else 2), line


def test_explain_a_scenario_line_by_line(tiny, capsys):
    assert command("explain", tiny, "--length", 4096, "--length", 2_000_000) == 0
    shown = capsys.readouterr().out
    for line in ("device memory", "usable", "- weights", "- activation peak", "- runtime overhead", "= KV cache"):
        assert shown.count(f"\n  {line}  ") == 2, line  # static and continuous set different steps aside
    assert "8,030,261,248 parameters" in shown
    assert "131,072 bytes per token in bf16" in shown
    assert "2,000,000" in shown
    assert "153.0 FLOP/byte" in shown


def test_explain_shows_layers_by_kind_and_what_a_token_and_a_sequence_take(capsys):
    hybrid = ("--model", "qwen3-next-80b-a3b", "--device", "h200", "--set", "engine.tensor_parallel_size=2")
    assert command("explain", *hybrid) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "36 linear attention" in shown
    assert "12 full attention" in shown
    assert "48 10 of 512 experts of 512 and a shared one of 512" in shown
    assert "3,874,929,408 for one token" in shown
    assert "KV bytes a token 12,288 in bf16, on each GPU" in shown
    assert "state bytes a sequence 19,759,104 on each GPU" in shown


def test_explain_says_what_vllm_says(capsys):
    assert command("explain", "--model", "llama-3.1-8b", "--device", "a10g", "--length", 100_000) == 0
    assert "To serve at least one request" in capsys.readouterr().out
    assert command("explain", "--model", "llama-2-70b", "--device", "a100-40gb") == 2
    caught = capsys.readouterr()
    for line in ("- weights            128.48 GiB", "= left for KV        -93.26 GiB"):
        assert line in caught.out
    assert "No available memory for the cache blocks" in caught.err
    assert "take a larger GPU, a larger tensor_parallel_size, or a model with quantised weights" in caught.err
    assert command("explain", "--model", "llama-3.1-8b", "--device", "a100-80gb", "--set", SPLIT) == 2
    assert capsys.readouterr().out == ""  # that is no matter of memory


def test_explain_accounts_for_sliding_windows(capsys):
    """Every GiB of the cache is in a block, and what a sequence holds of them is said, as the version counts it."""
    for model, like, how in (
        ("gpt-oss-20b", "vllm-0.23", "2 groups of layers, of which 1 slide and keep at most 9 blocks each"),
        ("gemma-3-27b", "vllm-0.23", "7 groups of layers, of which 6 slide and keep at most 65 blocks each"),
        ("gemma-3-27b", "vllm-0.19", "every layer counts in full, sliding or not (vllm-0.19)"),
    ):
        assert command("explain", "--model", model, "--device", "h100-sxm", "--set", f"engine.like={like}") == 0
        shown = capsys.readouterr().out
        assert how in shown
        cache, blocks = (
            next(line for line in shown.splitlines() if line.startswith(f"  {name}"))
            for name in ("= KV cache", "KV blocks")
        )
        count, kib = (
            int(re.search(at, blocks)[1].replace(",", "")) for at in (r"blocks +([\d,]+)", r"tokens, ([\d,]+) KiB")
        )
        assert float(re.search(r"([\d.]+) GiB", cache)[1]) == pytest.approx((count + 1) * kib / 2**20, abs=0.02)
    assert command("explain", "--model", "llama-3.1-8b", "--device", "h100-sxm") == 0
    assert "sliding" not in capsys.readouterr().out


def test_an_unknown_name_gets_close_ones_or_the_way_to_all_of_them(capsys):
    for name, said in (
        ("llama-2-8b", "closest are llama-3-8b, llama-2-7b"),
        ("zzz", "`servecast list models` names them"),
    ):
        assert command("explain", "--model", name, "--device", "a100-80gb") == 2
        assert said in capsys.readouterr().err


def test_explain_takes_settings(capsys):
    base = ["explain", "--model", "llama-2-7b", "--device", "a100-40gb"]
    assert command(*base, "--set", "engine.kv_blocks=1000", "--set", "engine.enforce_eager=true") == 0
    shown = capsys.readouterr().out
    assert "16,000" in shown
    assert "kv_blocks was given" in shown
    assert "CUDA graphs" not in shown


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("models", "llama-3.1-8b"),
        ("devices", "h100-sxm"),
        ("profiles", "profiles"),
        ("policies", "max_num_batched_tokens"),
        ("scenarios", "quickstart"),
    ],
)
def test_list(what, says, capsys):
    assert command("list", what) == 0
    assert says in capsys.readouterr().out


def test_version(capsys):
    from servecast import __version__

    assert command("--version") == 0
    assert capsys.readouterr().out == f"servecast {__version__}\n"


def test_schema_is_strict_json(capsys):
    assert command("schema") == 0
    schema = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert "workload" in schema["properties"]


def test_trace_describes_a_file(tmp_path, capsys):
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,1\n10,20,2\nx,1,1\n20,30,3\n")
    assert command("trace", file, "--strict") == 2
    assert f"{file}:4" in capsys.readouterr().err
    assert command("trace", file, "--rate-scale", 2) == 0
    shown = capsys.readouterr().out
    assert "plain" in shown
    assert "span_s" in shown
    assert "rejected 1 row" in shown
    assert "0.1 requests/s become 0.2" in shown


def test_fit_writes_a_profile_that_a_scenario_can_name(tiny, capsys):
    import numpy as np
    import pandas as pd

    from servecast.batch import StepShape
    from servecast.cost.roofline import Roofline
    from servecast.specs import catalogue

    rng = np.random.default_rng(0)
    n = 400
    rows = rng.integers(1, 64, n)
    prompts = np.where(rng.random(n) < 0.2, rng.integers(64, 2048, n), 0)
    shape = StepShape(
        (prompts > 0) * 1, prompts, prompts * (prompts + 1) // 2, 0 * rows, rows, rows * 500, 0 * rows + 501
    )
    cost = Roofline(catalogue.model("llama-3.1-8b"), catalogue.device("a100-80gb"))
    table = pd.DataFrame({**shape._asdict(), "seconds": cost.seconds(shape)})
    table.to_csv("steps.csv", index=False)
    options = ["--model", "llama-3.1-8b", "--device", "a100-80gb"]
    assert command("fit", "steps.csv", *options, "-o", "own.yaml", "--engine", "made up", "--source", "a test") == 0
    shown = capsys.readouterr().out
    assert "held-out error" in shown
    assert shown.rstrip().endswith("profile: own.yaml")
    assert command("run", tiny, "--set", "device=null", "--set", "profile=own.yaml") == 0
    assert "(calibrated)" in capsys.readouterr().out
    assert command("run", tiny, "--set", "device=null", "--set", "profile=own.yaml", "--set", "model=llama-2-7b") == 2
    assert "scenario.model: llama-2-7b" in capsys.readouterr().err


# --- the terminal ----------------------------------------------------------------------------------------------------


def test_a_progress_bar_stands_on_a_terminal_only(capsys, monkeypatch):
    with terminal.progress("tiny") as made:
        made(Progress(1, 2, "static"))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with terminal.progress("tiny") as made:
        made(Progress(1, 2, "static rate_rps=2"))
    assert "static rate_rps=2" in capsys.readouterr().err


def test_columns_give_way_on_a_narrow_terminal(tiny, capsys, monkeypatch):
    from rich.console import Console

    monkeypatch.setattr(terminal, "console", lambda: Console(width=80, highlight=False, markup=False))
    assert command("run", tiny) == 0
    shown = capsys.readouterr().out
    assert "more columns: --wide, and summary.csv" in shown
    table = [line for line in shown.splitlines() if line.startswith("  continuous ")]
    assert len(table) == 1
    assert len(table[0]) <= 80


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (8192, "8,192"), (0.5, "0.5"), (2000.0, "2,000"), (0.123456, "0.1235"), ("stream", "stream")],
)
def test_values_as_people_read_them(value, text):
    assert terminal.plain(value) == text


def test_a_pipe_is_as_wide_as_columns_say(tiny, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert command("run", tiny, "--set", "sweep={workload.arrivals.rate_rps: [2, 4]}") == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert "\x1b" not in shown
    table = [line.split() for line in lines if line.startswith("  continuous  ")]
    assert [row[:2] for row in table] == [["continuous", "2"], ["continuous", "4"]]
    assert "at rate_rps 4" in " ".join(shown.split())


SWEEP = "sweep={workload.arrivals.rate_rps: [2, 4, 8], 'policies[*].batch_size': [2, 4]}"
POLICIES = (
    "policies=[{kind: static, batch_size: 4}, {kind: padded, batch_size: 4}, {kind: continuous},"
    "{kind: continuous, name: continuous with few slots, max_num_seqs: 8}]"
)
GOLDEN = """\
tiny: llama-3.1-8b on a100-80gb (datasheet, uncalibrated), seed 1 and 1 more, gpu_memory_utilization
  0.92
  static: batch_size 2 or 4 (swept), max_wait_s 0.5; 29,316 or 29,314 KV blocks
  padded: batch_size 2 or 4 (swept), max_wait_s 0.5; 29,316 or 29,314 KV blocks
  continuous: max_num_seqs 256, max_num_batched_tokens 8,192, chunked_prefill; 28,886 KV blocks
  continuous with few slots: max_num_seqs 8, max_num_batched_tokens 8,192, … --notes
  Step times: a data sheet's roofline, uncalibrated: measured ones are 0.92 to 1.43 times as long.
"""


def test_several_policies_sweeps_and_seeds_fit_100_columns(tiny, capsys):
    """Settings in a line each, the most telling columns, and the others with --wide."""
    asked = ["run", tiny, "--set", POLICIES, "--set", SWEEP, "--set", "seeds=2"]
    assert command(*asked) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(GOLDEN)
    table = shown[len(GOLDEN) : shown.index(" more columns: --wide")].splitlines()
    assert max(map(len, table)) <= terminal.WIDTH
    heads = [line.split() for line in table[1:4]]
    assert heads[-1][:4] == ["policy", "rate_rps", "batch_size", "done"]
    assert sum(line.startswith("  continuous with few slots ") for line in table) == 3
    assert command(*asked, "--wide", "--notes") == 0
    shown = capsys.readouterr().out
    assert "E2E/token" in shown and "more columns" not in shown
    assert "enable_prefix_caching" not in shown and "no prefix_caching" in shown


def test_wide_tables_go_on_below_each_other_on_a_terminal(tiny, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert command("run", tiny, "--wide") == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    assert shown.count("\n  continuous ") > 2


def test_notes_are_three_lines_unless_all_are_wanted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = ["run", "quickstart", "--set", "sweep={}", "--set", "workload.requests=50"]
    assert command(*asked) == 0
    shown = capsys.readouterr().out.splitlines()
    notes = shown[4 : shown.index(next(line for line in shown if not line.strip()))]
    assert 0 < len(notes) <= 3
    assert max(map(len, notes)) <= terminal.WIDTH
    assert notes[1].startswith("  Extrapolated (3 notes): padded")
    assert command(*asked, "--notes") == 0
    assert capsys.readouterr().out.count("Extrapolated: ") == 3


def test_the_header_does_not_take_the_first_point_for_all(tiny, capsys):
    sweep = "sweep={'policies[0].batch_size': [2, 4, 8, 16], engine.gpu_memory_utilization: [0.5, 0.9]}"
    assert command("run", tiny, "--set", sweep, "--notes") == 0
    shown = capsys.readouterr().out
    assert "gpu_memory_utilization 0.5 or 0.9 (swept)" in " ".join(shown.split())
    assert "static: batch_size 2 to 16 (swept)" in shown
    assert re.search(r"continuous: .*; [\d,]+ or [\d,]+ KV blocks", shown)


def test_steps_beyond_the_measured_ones_are_told_once_for_each_policy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    changes = ["sweep={}", "workload.requests=50", "workload.arrivals={kind: burst}"]
    assert command("run", "quickstart", *(part for change in changes for part in ("--set", change)), "--notes") == 0
    lines = capsys.readouterr().out.splitlines()
    told = [line for line in lines if "Extrapolated: " in line]
    of = {line.split()[1].rstrip(","): line for line in told}
    assert sorted(of) == ["continuous", "padded", "static"]
    shares = [float(line.split("up to ")[1].split(" %")[0]) for line in told]
    assert len(told) == 3
    assert shares == sorted(shares, reverse=True)
    assert all(
        "of its busy time" in line
        and ": priced by the fitted formula, in which weight_read_s, pair_s and context_s are pinned to physics."
        in line
        for line in told
    )
    assert all("larger batches (" in line and "than were measured" in line for line in told)
    assert "steps of prompts alone, which were not measured at all" in of["continuous"]
    assert lines[lines.index(told[0]) - 1] == (
        "  Step times: held-out sums of 16 decode and mixed steps are met to 0.80 % in the median, 1.61 % at p95; mixed "
        "steps -0.36 % in the mean. No prefill step was measured."
    )
    page = Path("results/quickstart/report.html").read_text(encoding="utf-8")
    assert (
        page.index("held-out sums of 16 decode and mixed steps")
        < page.index("Extrapolated: static")
        < page.index("<h2>")
    )


def test_memory_running_out_is_a_table_and_explained(tiny, capsys):
    """The step that computes 100 prompts of 8,000 tokens does not fit: nothing was ever held."""
    changes = ["workload.prompt_tokens.tokens=8000", "workload.arrivals={kind: burst}", "workload.requests=100"]
    changes += ["policies[0].batch_size=100", "engine.restart_s=1"]
    assert command("run", tiny, *(part for change in changes for part in ("--set", change))) == 0
    header, row = rows_of("results/tiny/oom.csv")
    assert header == ["policy", "seed", "time_s", "requests", "wanted_bytes", "available_bytes"]
    assert row[:4] == ["static", "1", "0", "100"]
    assert int(row[4]) > int(row[5])
    said = "Out of memory in the step that computes a batch's prompts: static."
    assert said in capsys.readouterr().out
    assert said in Path("results/tiny/report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    assert command("run", tiny) == 0
    assert not Path("results/tiny/oom.csv").exists()


def test_rows_left_out_of_a_trace_are_told_in_the_run_too(tiny, capsys):
    Path("t.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens\n0,10,1\n1,20,2\nx,1,1\n2,0,3\n3,30,3\ny,1,1\n4,20,0\n", encoding="utf-8"
    )
    trace = "workload={trace: {path: t.csv, on_bad_row: skip}}"
    assert command("run", tiny, "--set", trace, "--notes") == 0
    shown = capsys.readouterr().out
    page = Path("results/tiny/report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    for said in (
        "Trace: left out 2 rows: arrival_s is not a number, for example 'x' (lines 4, 7).",
        "Trace: left out 1 row: no prompt tokens (line 5).",
        "Trace: left out 1 row: no output tokens (line 8).",
    ):
        assert said in shown
        assert said in page


def test_a_horizon_cuts_off_and_counts(tiny):
    burst = "workload.arrivals={kind: burst}"
    assert command("run", tiny, "--set", burst, "--set", "horizon_s=0.05") == 0
    header, *rows = rows_of("results/tiny/summary.csv")
    unfinished = header.index("unfinished")
    assert all(int(row[unfinished]) > 0 for row in rows)


def test_progress_is_told_within_a_long_run(tiny):
    from servecast import load, simulate
    from servecast.run import sweep

    told = []
    scenario = load(tiny, {"workload.requests": 20_000, "workload.output_tokens.tokens": 2})
    sweep.simulate(scenario, progress=told.append)
    assert [progress.made for progress in told] == sorted(progress.made for progress in told)
    assert any(0 < progress.made < 1 and progress.at_work == "static" for progress in told)
    assert told[-1].made == told[-1].total == 2
    assert simulate(scenario).summary["completed"].tolist() == [20_000, 20_000]


@pytest.mark.parametrize(
    "arguments", [("run", "a" * 300), ("explain", "--model", "./" + "a" * 300 + ".json", "--device", "h100-sxm")]
)
def test_names_too_long_for_the_file_system_are_one_line(arguments, capsys):
    assert command(*arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("redirect", "status"), [("> /dev/full", 2), (">&-", 0), ("| true", 1)])
def test_standard_output_that_takes_nothing(redirect, status):
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m servecast list models {redirect}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status
    assert "Traceback" not in done.stderr and done.stderr.count("\n") <= 1


def test_a_dollar_in_a_name_is_a_dollar(tmp_path, capsys):
    assert command("run", "padding-waste", "--set", "policies[0].name='$\\frac{$'", "--out", tmp_path) == 0

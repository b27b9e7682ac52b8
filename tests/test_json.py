"""What commands print for scripts: one strict JSON document on standard output, with stable keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import TINY, command

from servecast.cli import app as cli
from servecast.report.run_page import as_json
from servecast.run import sweep


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY)
    return file


def strict(text: str):
    """A parser that takes no NaN."""

    def refuse(constant):
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


KEYS = {
    "name", "folder", "report", "exports", "calibrated", "verdict", "warnings", "notes", "summary", "tenants", "failures",
    "missing", "resumed", "step_error",
}  # fmt: skip


def test_run_prints_one_document_and_nothing_else(tiny, capsys):
    assert command("run", tiny, "--json") == 0
    shown = capsys.readouterr()
    assert shown.out.count("\n") == 1 and not shown.err
    told = strict(shown.out)
    assert (told["schema_version"], set(told)) == (1, {"schema_version", "servecast", "scenarios"})
    [one] = told["scenarios"]
    assert set(one) == KEYS
    assert (one["name"], one["folder"], one["calibrated"]) == ("tiny", "results/tiny", False)
    assert Path(one["report"]).is_file()
    assert one["step_error"].startswith("Step times: a data sheet's roofline, uncalibrated: measured ones are 0.92")
    assert one["verdict"].startswith("Uncalibrated roofline: ")
    assert [row["policy"] for row in one["summary"]] == ["static", "continuous"]
    head = Path("results/tiny/summary.csv").read_text(encoding="utf-8").splitlines()[0]
    assert all(",".join(row) == head for row in one["summary"])
    assert (one["tenants"], one["failures"], one["missing"], one["exports"]) == ([], [], 0, None)


def test_what_is_not_known_is_null_and_a_burst_is_told_apart(tiny, capsys):
    rates = "sweep={workload.arrivals.rate_rps: [4, .inf]}"
    one_token = "workload.output_tokens.tokens=1"
    assert command("run", tiny, "--json", "--set", rates, "--set", one_token) == 0
    [one] = strict(capsys.readouterr().out)["scenarios"]
    assert [row["workload.arrivals.rate_rps"] for row in one["summary"]] == [4, 4, "inf", "inf"]
    assert {row["tpot_p50_s"] for row in one["summary"]} == {None}
    assert one["summary"][2]["requested_rps"] is None and isinstance(one["summary"][0]["requested_rps"], float)


def test_numbers_that_json_does_not_have_become_null():
    assert strict(as_json([{"a": float("nan"), "b": [float("-inf"), 1.5], "c": Path("x")}]))["scenarios"] == [
        {"a": None, "b": [None, 1.5], "c": "x"}
    ]


def test_several_scenarios_are_in_one_document_and_failures_on_standard_error(tiny, capsys):
    other = tiny.with_name("other.yaml")
    other.write_text(TINY.replace("name: tiny", "name: other"))
    fitting = "sweep={engine.gpu_memory_utilization: [0.9, 0.1]}"
    assert command("run", tiny, other, "--json", "--set", fitting, "--export", "vllm") == 2
    shown = capsys.readouterr()
    made = strict(shown.out)["scenarios"]
    assert [one["name"] for one in made] == ["tiny", "other"]
    assert all(len(one["failures"]) == 2 and one["failures"][0]["place"] for one in made)
    assert made[0]["exports"] == "results/tiny/exports"
    assert "No available memory" in shown.err


def test_an_export_says_what_each_run_was_asked(tiny):
    swept = "sweep={workload.arrivals.rate_rps: [4, 8], engine.tensor_parallel_size: [1, 2]}"
    options = ("--set", swept, "--set", "workload.max_in_flight=6", "--export", "vllm")
    assert command("run", tiny, *options) == 0
    written = [json.loads(path.read_text()) for path in Path("results/tiny/exports").glob("*.vllm.json")]
    asked = sorted((one["request_rate"], one["tensor_parallel_size"]) for one in written)
    assert asked == [(rate, split) for rate in (4.0, 8.0) for split in (1, 1, 2, 2)]
    assert {one["max_concurrency"] for one in written} == {6}
    assert all(0 < one["request_goodput"] <= one["request_throughput"] for one in written)


def test_exports_are_of_one_engine(tiny, capsys):
    """Steps of replicas run side by side: token times read off them together would be wrong."""
    assert command("run", tiny, "--set", "sweep={replicas: [1, 2]}", "--export", "vllm") == 2
    assert capsys.readouterr().err.startswith("--export: 2 replicas, but exports are of one engine")
    assert not Path("results").exists()


def test_resuming_is_told_on_standard_error(tiny, capsys):
    assert command("run", tiny, "--json") == 0
    capsys.readouterr()
    assert command("run", tiny, "--json") == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("resumed: 2 of 2 runs")
    assert strict(shown.out)["scenarios"][0]["resumed"] == 2


def test_interrupted_the_document_has_what_was_made(tiny, capsys, monkeypatch):
    made = sweep.run

    def second_interrupted(task, *rest):
        if task.at == 1:
            raise KeyboardInterrupt
        return made(task, *rest)

    monkeypatch.setattr(sweep, "run", second_interrupted)
    assert command("run", tiny, "--json") == cli.EXIT_INTERRUPTED
    shown = capsys.readouterr()
    [one] = strict(shown.out)["scenarios"]
    assert (len(one["summary"]), one["missing"]) == (1, 1)
    assert "interrupted" in shown.err


def test_where_nothing_could_be_made_there_is_no_document(tiny, capsys):
    assert command("run", tiny, "--json", "--set", "model=nothing") == 2
    shown = capsys.readouterr()
    assert shown.out == "" and len(shown.err.splitlines()) == 1


def test_rows_by_tenant_are_in_it(tiny, capsys):
    each = "arrivals: {kind: burst}, share: 1, prompt_tokens: {kind: fixed, tokens: 9}, output_tokens: {kind: fixed, tokens: 2}"
    tenants = f"workload={{tenants: [{{name: a, {each}, slo: {{ttft_s: 9}}}}, {{name: b, {each}}}], requests: 4}}"
    assert command("run", tiny, "--json", "--set", tenants, "--set", "slo=null") == 0
    [one] = strict(capsys.readouterr().out)["scenarios"]
    assert [(row["policy"], row["tenant"], row["slo_attainment"]) for row in one["tenants"][:2]] == [
        ("static", "a", 1.0), ("static", "b", None)
    ]  # fmt: skip


@pytest.mark.parametrize("what", ["models", "devices", "profiles", "policies", "scenarios"])
def test_lists_are_rows(what, capsys):
    assert command("list", what, "--json") == 0
    told = strict(capsys.readouterr().out)
    assert (told["schema_version"], told["list"]) == (1, what)
    assert told["rows"] and len({tuple(row) for row in told["rows"]}) == 1
    for row in told["rows"]:  # what is counted or measured is a number
        assert all(
            isinstance(row[key], int | float | None)
            for key in row
            if "[" in key or key in ("GPUs", "KV bytes per token")
        )


def test_help_shows_how_to_pick_from_it(capsys):
    assert command("run", "--help") == 0
    assert "| jq '.scenarios[].summary[] | {policy, goodput_rps}'" in " ".join(capsys.readouterr().out.split())

"""Tenants with targets of their own: judged apart, in numbers worked by hand, in the files and on the terminal."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import toy_runs as toy
import yaml

from servecast import metrics, simulate
from servecast.cli import app as cli
from servecast.cli import results
from servecast.errors import InputError
from servecast.run.results import stated
from servecast.run.store import opened
from servecast.run.sweep import simulate as sweep
from servecast.scenario import check

FIXED = {"prompt_tokens": {"kind": "fixed", "tokens": 100}, "output_tokens": {"kind": "fixed", "tokens": 10}}
#: Nobody misses a minute, and nobody makes a microsecond.
EASY, IMPOSSIBLE = {"ttft_s": 60.0}, {"ttft_s": 1e-6}


def scenario(tmp_path, chat=None, batch=None, **keys):
    tenants = [
        {"name": name, "arrivals": {"kind": "constant", "rate_rps": rate}, **FIXED, "slo": slo}
        for name, rate, slo in (("chat", 3.0, chat), ("batch", 1.0, batch))
    ]
    data = {
        "name": "shared",
        "model": "llama-3.1-8b",
        "device": "h100-sxm",
        "workload": {"tenants": tenants, "requests": 40},
        "policies": [{"kind": "continuous"}],
    }
    return check({**data, **keys}, tmp_path)


def judged(results):
    return {row["tenant"]: (row["slo_attainment"], row["goodput_rps"]) for row in results.tenants.to_dict("records")}


# --- by hand ----------------------------------------------------------------------------------------------------------


def run_of(ttfts, statuses=None):
    """Requests sent at 0, 1, 2, ... with these times to the first of one token."""
    rows = [
        {"arrival_s": float(at), "first_token_s": at + ttft, "finish_s": at + ttft, "generated_tokens": 1}
        for at, ttft in enumerate(ttfts)
    ]
    for row, status in zip(rows, statuses or [], strict=False):
        row["status"] = status
    return toy.ToyRun(toy.request_columns(rows), toy.decision_columns([]), end_s=10.0)


def test_each_request_is_judged_by_its_owners_targets():
    run = run_of([0.1, 0.1, 0.5, 0.5, 2.0], [0, 0, 0, 0, toy.REJECTED])
    own = {"fast": metrics.Slo(ttft_s=0.2)}
    tenants = metrics.Tenants.of(["fast", "slow", "fast", "slow", "slow"], own, ["slow", "idle"])
    slow, idle, fast = metrics.by_tenant(run, tenants, slo=metrics.Slo(ttft_s=1.0))
    assert [row["tenant"] for row in (slow, idle, fast)] == ["slow", "idle", "fast"]
    assert (slow["arrived"], slow["completed"], slow["rejected"]) == (3, 2, 1)
    assert (slow["slo_attainment"], slow["goodput_rps"]) == (pytest.approx(2 / 3), pytest.approx(0.2))
    assert (fast["slo_attainment"], fast["goodput_rps"]) == (0.5, pytest.approx(0.1))
    assert (slow["slo_ttft_s"], fast["slo_ttft_s"], fast["slo_e2e_s"]) == (1.0, 0.2, None)
    assert (idle["arrived"], idle["slo_attainment"], idle["ttft_p99_s"]) == (0, None, None)
    assert fast["ttft_p50_s"] == pytest.approx(0.3)
    assert "itl_p50_s" not in fast
    whole = metrics.summarise(run, policy="p", seed=1, slo=metrics.Slo(ttft_s=1.0), tenants=tenants)
    assert (whole["slo_attainment"], whole["goodput_rps"]) == (pytest.approx(3 / 5), pytest.approx(0.3))


def test_who_has_no_targets_at_all_is_not_judged():
    run = run_of([0.1, 0.5, 0.5])
    tenants = metrics.Tenants.of(["fast", None, "fast"], {"fast": metrics.Slo(ttft_s=0.2)})
    fast, nobody = metrics.by_tenant(run, tenants)
    assert (fast["slo_attainment"], nobody["tenant"], nobody["slo_attainment"]) == (0.5, "", None)
    whole = metrics.summarise(run, policy="p", seed=1, tenants=tenants)
    assert (whole["slo_attainment"], whole["goodput_rps"]) == (0.5, pytest.approx(0.1))
    untold = metrics.Tenants.of(["a", "b", "a"], {})
    assert metrics.summarise(run, policy="p", seed=1, tenants=untold)["slo_attainment"] is None


def test_a_horizon_that_leaves_requests_out_shifts_nobodys_owner():
    run = run_of([0.1, 0.5, 0.1])
    run.requests = {name: column[1:] for name, column in run.requests.items()}  # request 0 never came
    tenants = metrics.Tenants.of(["a", "b", "c"], {})
    assert [row["arrived"] for row in metrics.by_tenant(run, tenants)] == [0, 1, 1]


def test_a_window_is_the_same_for_every_tenant():
    run = run_of([0.1, 0.1, 0.1, 0.1])
    tenants = metrics.Tenants.of(["a", "b", "a", "b"], {"a": metrics.Slo(ttft_s=0.2)})
    a, b = metrics.by_tenant(run, tenants, window=metrics.Window(warmup_s=0.5, cooldown_s=0.5))
    assert (a["arrived"], b["arrived"]) == (1, 1)
    assert a["goodput_rps"] == a["request_throughput_rps"] == pytest.approx(1 / 2)


# --- in a scenario ----------------------------------------------------------------------------------------------------


def test_tenants_with_other_targets_come_out_otherwise(tmp_path):
    results = simulate(scenario(tmp_path, chat=EASY, batch=IMPOSSIBLE))
    found = judged(results)
    assert found["chat"][0] == 1.0 and found["batch"] == (0.0, 0.0)
    assert results.summary["slo_attainment"].tolist() == [0.75]
    assert found["chat"][1] == pytest.approx(results.summary["goodput_rps"][0])


def test_a_tenant_without_targets_has_the_scenarios_and_its_own_replace_all_of_them(tmp_path):
    found = judged(simulate(scenario(tmp_path, batch={"e2e_s": 60.0}, slo=IMPOSSIBLE)))
    assert (found["chat"][0], found["batch"][0]) == (0.0, 1.0)
    assert judged(simulate(scenario(tmp_path))) == {"chat": (None, None), "batch": (None, None)}


def test_targets_of_a_tenant_can_be_swept(tmp_path):
    sweep_ = {"workload.tenants[0].slo.ttft_s": [1e-6, 60.0]}
    results = simulate(scenario(tmp_path, chat=EASY, sweep=sweep_))
    chat = results.tenants[results.tenants["tenant"] == "chat"]
    assert chat["slo_attainment"].tolist() == [0.0, 1.0]
    assert list(results.tenants.columns[:4]) == ["policy", "workload.tenants[0].slo.ttft_s", "seed", "tenant"]


def test_targets_that_cannot_be_are_refused_in_their_place(tmp_path):
    with pytest.raises(InputError, match=r"scenario.workload.tenants\[0\].slo: .*no target is given"):
        scenario(tmp_path, chat={})
    with pytest.raises(InputError, match=r"scenario.workload.tenants\[1\].slo.ttft"):
        scenario(tmp_path, batch={"ttft": 1.0})


def test_tenants_of_a_trace_are_told_apart_and_judged_by_the_scenarios_targets(tmp_path):
    rows = "".join(f"{at},100,5,{'a' if at % 3 else ''}\n" for at in range(9))
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens,tenant\n" + rows)
    results = simulate(scenario(tmp_path, workload={"trace": {"path": "t.csv"}}, slo=EASY))
    assert results.tenants[["tenant", "arrived"]].to_numpy().tolist() == [["", 3], ["a", 6]]
    assert results.tenants["slo_attainment"].tolist() == [1.0, 1.0]


def test_a_workload_without_tenants_has_no_such_table(tmp_path):
    burst = {"arrivals": {"kind": "burst"}, **FIXED, "requests": 3}
    assert not len(simulate(scenario(tmp_path, workload=burst)).tenants)


def test_several_engines_and_processes_change_no_owner(tmp_path):
    made = scenario(tmp_path, chat=EASY, batch=IMPOSSIBLE, replicas=2, seeds=2)
    one = simulate(made)
    assert one.tenants["arrived"].tolist() == [30, 10] * 2
    assert one.tenants["slo_attainment"].tolist() == [1.0, 0.0] * 2
    assert simulate(made, jobs=2).tenants.equals(one.tenants)


def test_a_sweep_taken_up_again_has_its_tenants(tmp_path):
    made = scenario(tmp_path, chat=EASY, batch=IMPOSSIBLE)
    with opened(tmp_path / "r") as store:
        first = sweep(made, store=store)
    with opened(tmp_path / "r") as store:
        again = sweep(made, store=store)
    assert again.resumed == 1
    assert again.tenants.equals(first.tenants)


# --- what is shown ----------------------------------------------------------------------------------------------------


def written(tmp_path, monkeypatch, **keys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    data = scenario(tmp_path, **keys).model_dump(mode="json", exclude_none=True)
    Path("shared.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        cli.main(["run", "shared.yaml"])
    assert not end.value.code


def test_the_command_shows_tenants_and_writes_their_table(tmp_path, monkeypatch, capsys):
    written(tmp_path, monkeypatch, chat=EASY, batch=IMPOSSIBLE, slo={"tpot_s": 1.0})
    shown = capsys.readouterr().out
    [chat] = [line for line in shown.splitlines() if "chat" in line and "TTFT" in line and "30" in line]
    [batch] = [line for line in shown.splitlines() if "batch" in line and "TTFT" in line and "10" in line]
    assert "TTFT ≤ 60 s" in chat and "100 %" in chat
    assert "0 %" in batch
    assert "within the targets" in shown and "The targets are" not in shown  # no one target is everybody's
    assert stated(yaml.safe_load(Path("results/shared/scenario.yaml").read_text())) == {}
    with Path("results/shared/tenants.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["tenant"], row["slo_attainment"]) for row in rows] == [("chat", "1"), ("batch", "0")]
    assert list(rows[0])[:17] == [
        "policy", "seed", "tenant", "arrived", "completed", "rejected", *metrics.REJECTIONS, "cut", "cut_tokens",
        "oom_failed", "unfinished",
        "request_throughput_rps", "goodput_rps", "slo_attainment", "slo_ttft_s",
    ]  # fmt: skip


def test_many_tenants_are_cut_short_on_the_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, "_MOST_TENANTS", 1)
    written(tmp_path, monkeypatch, chat=EASY, batch=IMPOSSIBLE)
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines() if " chat " in line or " batch " in line]
    assert [row[1] for row in rows] == ["chat"]
    assert "(1 more rows in tenants.csv)" in shown


# --- lengths that are drawn from a trace ------------------------------------------------------------------------------

ROWS = "arrival_s,prompt_tokens,output_tokens\n0,10,1\n1,2000,2\n2,0,3\n3,30,0\n4,40,4\n"
LEFT_OUT = (
    "Lengths of t.csv: left out 3 of 5 rows: 1 row: prompt_tokens above 100 (line 3); 1 row: no prompt tokens (line 4); "
    "1 row: no output tokens (line 5)."
)


@pytest.mark.parametrize("arrivals", [{"kind": "burst"}, {"kind": "closed", "users": 2}, None])
def test_rows_that_no_length_is_drawn_from_are_told_on_one_line(tmp_path, monkeypatch, capsys, arrivals):
    (tmp_path / "t.csv").write_text(ROWS, encoding="utf-8")
    lengths = {"kind": "trace", "path": str(tmp_path / "t.csv"), "max_prompt_tokens": 100}
    if arrivals is None:  # two tenants draw from one file: that is told once
        each = {"arrivals": {"kind": "burst"}, "lengths": lengths, "share": 1}
        workload = {"tenants": [{"name": "a", **each}, {"name": "b", **each}], "requests": 4}
    else:
        workload = {"arrivals": arrivals, "lengths": lengths, "requests": 4}
    written(tmp_path, monkeypatch, workload=workload)
    shown = capsys.readouterr().out
    assert " ".join(shown.split()).count(LEFT_OUT) == 1
    assert LEFT_OUT in Path("results/shared/report.html").read_text(encoding="utf-8")


def test_a_file_whose_rows_all_serve_is_not_mentioned(tmp_path):
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,1\n", encoding="utf-8")
    lengths = {"kind": "trace", "path": "t.csv"}
    workload = {"arrivals": {"kind": "burst"}, "lengths": lengths, "requests": 4}
    assert not [note for note in simulate(scenario(tmp_path, workload=workload)).notes if "left out" in note]

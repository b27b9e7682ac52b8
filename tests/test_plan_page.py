"""The page and the files of a plan: what was planned, what it rests on, how to make it again, in words for a boss."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pages
import pytest
import yaml
from test_cli import command

from servecast.plan.answer import BreakEven, Change, Fleet
from servecast.plan.basis import Basis, basis_of
from servecast.plan.planner import make_plan
from servecast.plan.uncertainty import Estimate
from servecast.report import plan_words
from servecast.report.plan_page import page
from servecast.report.verdicts.plan import verdict
from servecast.scenario import load
from servecast.text import short_key, signed

if TYPE_CHECKING:
    from pathlib import Path

SCENARIO = """
name: small
model: qwen3-14b
profile: h100-qwen3-14b-ops
workload:
  arrivals: {kind: poisson, rate_rps: 8}
  prompt_tokens: {kind: fixed, tokens: 200}
  output_tokens: {kind: fixed, tokens: 20}
  requests: 60
policies: [{kind: continuous, like: vllm-0.19}]
goal:
  slo: {ttft_p99_s: 1.0, tpot_p95_s: 0.04}
  rate_rps: 8
  usd_per_gpu_hour: {h100-sxm: 2.0, h200: 3.0}
search:
  over: {profile: [h100-qwen3-14b-ops, h200-qwen3-14b-ops]}
  seeds: 1
  tolerance: 0.2
  draws: 0
  most_requests: 200
  try_changes: false
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a plan whose goal was changed on the command line."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "small.yaml").write_text(SCENARIO)
    changed = ("--set", "goal.rate_rps=12", "--set", "policies[0].max_num_seqs=64")
    assert command("plan", folder / "small.yaml", *changed, "--out", folder / "results") == 0
    return folder / "results/small-plan"


# ---- again ---------------------------------------------------------------------------------------------------------


def test_the_command_of_the_page_gives_the_same_plan(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    html = (made / "plan.html").read_text(encoding="utf-8")
    [shown] = re.findall(r'aria-label="Command">servecast (.*?)</pre>', html)
    monkeypatch.chdir(made)
    assert command(*shown.split(), "--out", tmp_path) == 0
    for name in ("plan.json", "options.csv", "scenario.yaml"):
        assert (tmp_path / "small-plan" / name).read_bytes() == (made / name).read_bytes(), name


def test_the_scenario_beside_it_has_every_default_and_what_was_set(made: Path) -> None:
    data = yaml.safe_load((made / "scenario.yaml").read_text(encoding="utf-8"))
    assert data["goal"]["rate_rps"] == 12
    assert data["engine"]["block_size"] == 16
    assert data["search"]["half_width"] == 0.05
    # A search over devices settles nothing that follows from one of them.
    assert data["engine"]["gpu_memory_utilization"] is None
    assert data["policies"] == [{"kind": "continuous", "like": "vllm-0.19", "max_num_seqs": 64}]
    assert data["derived"]["device"] == "h100-sxm"
    assert load(made / "scenario.yaml").policies[0].max_num_seqs == 64


def test_a_search_on_one_device_settles_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    scenario = load(tmp_path / "small.yaml", {"search.over": {"replicas": [1]}})
    basis = basis_of(scenario, make_plan(scenario))
    assert basis.scenario["engine"]["gpu_memory_utilization"] == 0.92
    assert basis.scenario["policies"][0]["max_num_seqs"] == 1024
    assert list(basis.rests) == ["h100-qwen3-14b-ops"]


# ---- what it rests on ----------------------------------------------------------------------------------------------


def test_the_page_says_what_was_planned_and_how_far_to_trust_it(made: Path) -> None:
    html = (made / "plan.html").read_text(encoding="utf-8")
    for title in ("How far to trust it", "What is assumed"):
        assert f"<h2>{title}</h2>" in html
    assert (made / "scenario.yaml").read_text(encoding="utf-8") in html.replace("&#x27;", "'")
    assert "put together of operators that were measured one by one" in html
    assert "fitted to measured steps" not in html
    assert 'id="step-errors"' in html
    assert "<h3>h200-qwen3-14b-ops</h3><p>Step times: put together of operators" in html
    known = json.loads((made / "plan.json").read_text(encoding="utf-8"))
    for option in known["options"]:
        assert not option["beyond"] or option["beyond"].split(":")[0] in html


def test_the_json_echoes_workload_prices_and_search(made: Path) -> None:
    told = json.loads((made / "plan.json").read_text(encoding="utf-8"))
    assert told["schema_version"] == 1
    assert told["scenario"]["workload"]["prompt_tokens"] == {"kind": "fixed", "tokens": 200}
    assert told["scenario"]["goal"]["usd_per_gpu_hour"] == {"h100-sxm": 2.0, "h200": 3.0}
    assert told["scenario"]["search"]["over"] == {"profile": ["h100-qwen3-14b-ops", "h200-qwen3-14b-ops"]}
    assert set(told["step_errors"]) == {"h100-qwen3-14b-ops", "h200-qwen3-14b-ops"}
    assert all(text.startswith("Step times: put together") for text in told["step_errors"].values())


def test_what_is_printed_for_scripts_is_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    assert command("plan", "small.yaml", "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "results/small-plan/plan.json").read_text())


def test_figures_are_files_only_where_they_are_asked_for(made: Path, tmp_path: Path) -> None:
    assert not list(made.glob("*.svg"))
    for form, there in (("svg,png", {"svg", "png"}), ("svg", {"svg"})):
        assert command("plan", made / "scenario.yaml", "--out", tmp_path, "--figures", form) == 0
        files = [path for path in (tmp_path / "small-plan").iterdir() if path.suffix in (".svg", ".png")]
        assert {path.suffix[1:] for path in files} == there
        assert {path.stem for path in files} >= {"loads", "gpus", "cost-curve"}


def test_a_data_sheet_is_called_uncalibrated() -> None:
    html = page(pages.made_plan(), b"", Basis({"name": "x"}, {"h100-sxm": None}))
    assert "roofline of h100-sxm&#39;s data sheet: <strong>uncalibrated</strong>" in html


# ---- one price, one name -------------------------------------------------------------------------------------------


def test_the_best_has_one_price_at_its_highest_load_wherever_it_stands() -> None:
    """The survey's price of one GPU is another than that of the GPUs that serve the target."""
    plan = pages.made_plan()
    best = replace(plan.best, usd_per_mtok={"output": Estimate(0.123, 0.1, 0.15)})
    html = page(replace(plan, best=best), b"")
    _, heads, rows = next(plan_words.tables(replace(plan, best=best)))
    at = heads.index("whole bill $/M output at the highest load")
    assert [row[at] for row in rows] == ["0.123", "0.400", "\u2013"]
    points = re.findall(
        r'aria-label="continuous; of the highest load 100 %; whole bill \$/M output tokens ([\d.]+)', html
    )
    assert points == ["0.1230"]
    assert "makes a million output tokens for a whole bill of $0.123" in html


def test_a_table_says_what_people_ask_first() -> None:
    _, heads, rows = next(plan_words.tables(pages.made_plan()))
    assert heads == (
        "configuration", "GPU", "GPUs of a replica", "GPUs for the target", "$/hour for the target",
        "whole bill $/M output at the target", "highest load of each GPU [requests/s]",
        "whole bill $/M output at the highest load", "remark",
    )  # fmt: skip
    assert rows[0][:6] == ("continuous", "TOY GPU", "1", "3", "7.50", "0.480")
    assert rows[1][2:4] == ("2", "4")
    assert [row[-1] for row in rows] == ["the plan", "", "out of memory"]


def option(policy: str, **changed: Any) -> Any:
    label = ", ".join([*filter(None, [policy]), *(f"{short_key(key)}={value}" for key, value in changed.items())])
    return pages.option(label, 8.0, changed=changed, policy=policy)


@pytest.mark.parametrize(
    ("options", "names", "common"),
    [
        ((option("continuous", profile="a"), option("continuous", profile="b")), ["a", "b"], "continuous"),
        ((option("continuous", **{"policies[0].max_num_seqs": 1}), option("continuous", **{"policies[0].max_num_seqs": 2})),
         ["max_num_seqs=1", "max_num_seqs=2"], "continuous"),
        ((option("p", profile="a", max=1), option("q", profile="b", max=1)), ["p, a", "q, b"], "max=1"),
        # One that is no scenario has no policy.
        ((option("continuous", profile="a"), option("", profile="b")), ["a", "b"], "continuous"),
        ((option("static"), option("continuous")), ["static", "continuous"], ""),
        ((option("alone", profile="a"),), ["alone, profile=a"], ""),
        # What differs is in neither name nor keys: the labels stay.
        ((option("static", profile="a"), replace(option("static", profile="a"), label="again")), ["static, profile=a", "again"], ""),
    ],
)  # fmt: skip
def test_configurations_are_named_by_what_differs(options: Any, names: list[str], common: str) -> None:
    plan = replace(pages.made_plan(), options=options, best=options[0], cheapest=options[-1].label)
    short, shared = plan_words.shortened(plan)
    assert [each.label for each in short.options] == names
    assert (short.best.label, short.cheapest, shared) == (names[0], names[-1], common)


# ---- in words ------------------------------------------------------------------------------------------------------


def test_the_first_sentence_is_for_whoever_pays() -> None:
    plan = pages.made_plan()
    assert (
        verdict(plan).headline
        == "3 TOY GPU for 20 requests/s: $7.50 an hour, $0.480 of the whole bill per million output tokens."
    )
    split = replace(
        plan.best, device="h100-sxm", tensor_parallel=4, replicas=2, target_gpus=8, usd_per_hour=None, usd_at_target={}
    )
    assert verdict(replace(plan, best=split)).headline == "2 replicas of 4 H100 SXM each for 20 requests/s."
    one = replace(split, replicas=1)
    assert verdict(replace(plan, best=one)).headline.startswith("1 replica of 4 H100 SXM for")


def test_the_rest_has_no_names_of_columns_and_no_minus_nothing() -> None:
    plan = replace(pages.made_plan(), headroom=Estimate(-0.0001, -0.1, 0.1), supported=False,
                   doubts=("ttft_p99_s may be 1.2 at the target load, 1 is wanted",))  # fmt: skip
    told = verdict(plan).rest
    assert "p99 time to first token 0.400 s (0.380 to 0.440), at most 1 s wanted" in told
    assert "p99 time to first token may be 1.2" in told
    assert "no headroom to speak of" in told
    assert "does not support" in told
    assert "_s " not in told
    assert "-0" not in page(plan, b"").split("<svg", maxsplit=1)[0]
    sure = replace(
        plan,
        holds=Fleet(4, 4, Estimate(30.0, 21.0, 35.0), 10.0),
        break_even=BreakEven(6.0, 0.25),
        break_even_of="two GPUs",
    )
    assert "To be sure: 4 TOY GPU at $10.00 an hour, which carry 30 (21 to 35) requests/s." in verdict(sure).details
    assert (
        "The cheapest GPUs for the target (two GPUs, 2 replicas of 2 TOY GPU each) are cheaper than the API from 6 "
        "requests/s on (25 % of their highest load)." in verdict(sure).details
    )


def test_where_nothing_serves_it_says_what_stands_in_the_way() -> None:
    plan = pages.made_plan()
    refused = replace(plan.options[0], refused="tpot_p95_s 0.06, target 0.04 above 8 requests/s", target_gpus=None)
    none = replace(plan, best=None, options=(refused, plan.options[2]), headroom=None)
    assert verdict(none) == (
        "No configuration serves 20 requests/s within the goal.",
        ("The nearest, continuous: p95 time per output token 0.06, target 0.04 above 8 requests/s.",),
    )
    nothing = replace(none, options=(plan.options[2],))
    assert str(verdict(nothing)) == (
        "No configuration meets the goal at any load. What stands in the way: out of memory."
    )


@pytest.mark.parametrize(
    ("share", "told", "words"),
    [
        (0.0, "0 %", "no headroom"),
        (-0.0004, "0 %", "no headroom"),
        (-0.004, "0 %", "0.4 % below"),
        (0.2, "+20 %", "20 % above"),
        (-0.1, "-10 %", "10 % below"),
    ],
)
def test_shares_round_to_nothing_without_a_sign(share: float, told: str, words: str) -> None:
    assert signed(share) == told
    assert words in verdict(replace(pages.made_plan(), headroom=Estimate(share))).details[0]


@pytest.mark.parametrize(
    ("name", "told"),
    [("ttft_p99_s", "p99 time to first token"), ("tpot_p95_s", "p95 time per output token"), ("e2e_mean_s", "mean time to the last token"),
     ("slo_attainment", "share of requests within slo"), ("saturation, at any wait", "saturation, at any wait"), ("x_p99_s", "x_p99_s")],
)  # fmt: skip
def test_statistics_as_people_say_them(name: str, told: str) -> None:
    assert plan_words.statistic(name) == told


def test_a_change_that_gains_less_than_the_noise_is_not_advised() -> None:
    plan = replace(pages.made_plan(), baseline=Change("as it is", 8.0, 0.0))
    assert "next best change: max_num_seqs=256 (+12 %" in verdict(plan).rest.lower()
    within = replace(plan, noise=0.15)
    assert "next best change" not in verdict(within).rest.lower()
    [table] = [each for each in plan_words.tables(within) if each.title == plan_words.CHANGES]
    assert [row[2] for row in table.rows] == ["0 %", "+12.5 %, within noise", "-5.0 %, within noise"]

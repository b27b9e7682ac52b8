"""A verdict's headline is short, has few numbers, and is the same on the terminal, on the page and in JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from html import escape
from itertools import product

import numpy as np
import pages
import pandas as pd
import pytest
from folders import folder, seeds
from test_cli import TINY, command
from test_report import summary_of

from servecast import load, report, simulate
from servecast.cli import plan as plan_command
from servecast.plan.answer import Fleet
from servecast.plan.uncertainty import Estimate
from servecast.report.verdicts import MOST_NUMBERS, MOST_WORDS, Verdict, _concise, first_concise
from servecast.report.verdicts.plan import verdict as verdict_on_plan


def check(verdict: Verdict) -> None:
    """What every verdict keeps."""
    assert _concise(verdict.headline), verdict.headline
    for sentence in (verdict.headline, *verdict.details):
        assert sentence.endswith(".")
        assert sentence[0] == sentence[0].upper() or not sentence.split()[0].rstrip(",:").isalpha()
        assert "nan" not in sentence.lower().split()
    assert str(verdict).startswith(verdict.headline)


def test_what_counts_as_a_number():
    assert _concise("1 2.5 $3,000 4 %, p99 of 80GB on H200 and x_2 of tp8")
    assert not _concise("1 2 3 4 5")
    assert not _concise("a=1, b=2, c=3, (4) -5")
    assert not _concise("word " * (MOST_WORDS + 1))
    assert _concise("word " * MOST_WORDS)
    assert first_concise(["1 2 3 4 5", "1 2", "1"]) == "1 2."
    assert first_concise(["1 2 3 4 5"]) == "1 2 3 4 5."
    assert MOST_NUMBERS == 4


@pytest.mark.parametrize("name", ["quickstart", "straggler", "padding-waste", "memory-cliff", "ridge"])
def test_shipped_scenarios(name):
    results = simulate(load(name))
    check(report.verdict(results.summary, results.scenario["slo"], calibrated=False))


NAMES = (
    ["static", "padded", "continuous"],
    [f"continuous max_num_seqs={n} max_num_batched_tokens={8 * n}" for n in (1, 2, 3, 4, 5, 6)],
    ["a policy with a name of many words and 1 2 3 4 5 numbers in it that goes on and on and on and on"],
)
KEYS = ([], ["workload.arrivals.rate_rps"], ["engine.block_size"], ["a.x_rps", "b.y", "c.z", "d.w", "e.v"])


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("targets", [False, True])
def test_random_results(seed, targets):
    rng = np.random.default_rng(seed)
    names, keys = NAMES[seed % len(NAMES)], KEYS[seed % len(KEYS)]
    points = list(product(names, range(4 if keys else 1)))
    count = len(points)
    served = rng.lognormal(0, rng.choice([0.001, 0.1, 3.0]), count)
    offered = rng.choice([np.full(count, 8.0), served * 2][seed % 2 :])
    summary = summary_of(
        policy=[name for name, _ in points],
        **{key: [(at + 1) * 1.5 for _, at in points] for key in keys},
        request_throughput_rps=served.tolist(),
        goodput_rps=(served * rng.choice([0.0, 1e-4, 0.9], count)).tolist() if targets else [None] * count,
        slo_attainment=rng.random(count).tolist() if targets else [None] * count,
        offered_rps=offered.tolist(),
        ttft_p99_s=rng.lognormal(0, 2, count).tolist(),
        regime=rng.choice(["stable", "backlogged", "overloaded"], count).tolist(),
        oom_failed=rng.choice([0, 0, 3], count).tolist(),
        usd_per_mtok_output=rng.lognormal(0, 1, count).tolist(),
        **{name: rng.choice([0, 0, 40, 1], count).tolist() for name in ("rejected", "cut") if seed % 3 == 0},
    )
    if seed % 5 == 0:
        summary = pd.concat([summary, summary.assign(seed=2, regime="stable")], ignore_index=True)
    told = report.verdict(summary, {"ttft_s": 1.0, "tpot_s": 0.05} if targets else None, calibrated=bool(seed % 3))
    check(told)
    assert any(name in str(told) or name.capitalize() in str(told) for name in names)


@pytest.mark.parametrize("split", [1, 8])
@pytest.mark.parametrize("holds", [None, Fleet(4, 4, Estimate(30.0, 21.0, 35.0), 10.0)])
@pytest.mark.parametrize("low", [15.0, 21.0])
def test_plans(split, holds, low):
    plan = pages.made_plan()
    best = pages.option(
        "continuous",
        24.0,
        split,
        replicas=3,
        device="a100-80gb-sxm",
        usd_per_hour=7.5,
        capacity=Estimate(24.0, low, 30),
    )
    check(verdict_on_plan(replace(plan, best=best, holds=holds)))
    check(verdict_on_plan(replace(plan, best=None)))


def test_requests_that_nobody_completes_are_counted_by_run():
    none = {"completed": 0, "oom_failed": 0, "unfinished": 0, "arrived": 200}
    three = summary_of(policy=["a", "b", "c"], rejected_answer_too_long=[200, 200, 200], **none)
    assert report.verdict(three).headline == "No request completed: 200 rejected (answer too long) in each run."
    assert report.verdict(three[:1]).headline == "No request completed: 200 rejected (answer too long)."
    mixed = three.assign(rejected_answer_too_long=[200, 150, 0], oom_failed=[0, 50, 200])
    told = report.verdict(mixed, calibrated=True)
    assert "0 to 200 rejected (answer too long) and 0 to 200 lost to memory running out in each run" in told.headline
    check(told)


def test_run_says_the_same_on_the_terminal_on_the_page_and_in_json(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    assert command("run", "tiny.yaml") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert command("run", "tiny.yaml", "--json") == 0
    [told] = json.loads(capsys.readouterr().out)["scenarios"]
    assert told["verdict"] in shown
    headline, _, rest = told["verdict"].partition(". ")
    html = (tmp_path / "results/tiny/report.html").read_text()
    assert f'<p class="verdict">{escape(headline)}. <span>{escape(rest)}</span></p>' in html


def test_so_does_diff(tmp_path, capsys):
    a, b = (folder(tmp_path / name, seeds([value, value + 1.0])) for name, value in (("a", 1.0), ("b", 2.0)))
    assert command("diff", a, b, "--page", tmp_path / "diff.html") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert command("diff", a, b, "--json") == 0
    told = json.loads(capsys.readouterr().out)["verdict"]
    assert told in shown
    headline, _, rest = told.partition(". ")
    html = (tmp_path / "diff.html").read_text()
    assert f'<p class="verdict">{escape(headline)}. <span>{escape(rest)}</span></p>' in html
    assert "ttft_p99_s" in html


def test_so_does_plan(tmp_path, capsys):
    plan = pages.made_plan()
    told = verdict_on_plan(plan)
    html = pages.plan(tmp_path).read_text()
    assert f'<p class="verdict">{escape(told.headline)} <span>{escape(told.rest)}</span></p>' in html
    assert json.loads((tmp_path / "toy-plan/plan.json").read_text())["verdict"] == str(told)
    plan_command._print(plan)
    assert str(told) in " ".join(capsys.readouterr().out.split())

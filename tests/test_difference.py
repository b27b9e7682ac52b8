"""What diff says changed has changed, and what it calls unclear is no more than chance."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import typer
from folders import folder, seeds
from typer.testing import CliRunner

from servecast import report
from servecast.against.result import difference
from servecast.against.result.runs import interval
from servecast.cli import diff as commands_diff
from servecast.errors import InputError
from servecast.metrics import ranked
from servecast.report import differences
from servecast.report.verdicts.diff import verdict as verdict_on
from servecast.run.sweep import simulate
from servecast.scenario import check
from servecast.text import BLANK

METRIC = "ttft_p99_s"


def only(a, b, metric=METRIC):
    [change] = [change for change in difference(a, b).changes if change.metric == metric]
    return change


# --- intervals and verdicts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], "same"),
        ([1.0, 2.0, 3.0], [1.1, 2.1, 3.1], "worse"),  # paired: the spread between seeds is no noise
        ([1.0, 2.0, 3.0], [0.9, 1.9, 2.9], "better"),
        ([1.0, 2.0, 3.0], [1.2, 1.9, 3.1], "unclear"),
        ([1.0], [1.1], "worse"),
        ([1.0], [1.0], "same"),
        ([1.0], [1.0009], "same"),  # under 0.1 %
        ([1.0], [0.9991], "same"),
        ([1.0], [1.0011], "worse"),
        ([1.0, 2.0, 3.0], [1.0000049, 2.0000098, 3.0000148], "same"),  # beyond chance, and of no use to anybody
        ([1.0, 2.0, 3.0], [1.0004, 1.9996, 3.0004], "same"),  # the whole interval is within it
        ([1.0, 2.0, 3.0], [1.2, 1.8, 3.001], "unclear"),  # the mean has hardly moved, and who knows
        ([0.0], [0.001], "worse"),
        ([math.nan], [1.0], "only one has it"),
        ([math.nan], [math.nan], "same"),
    ],
)
def test_the_verdict_on_a_latency(tmp_path, before, after, verdict):
    change = only(folder(tmp_path / "a", seeds(before)), folder(tmp_path / "b", seeds(after)))
    assert change.verdict == verdict
    assert (change.low is None) == (len(before) < 2)


@pytest.mark.parametrize(("metric", "verdict"), [("request_throughput_rps", "better"), ("busy_fraction", "more")])
def test_more_is_better_of_a_throughput_and_neither_of_others(tmp_path, metric, verdict):
    a, b = (folder(tmp_path / str(value), seeds([value, value + 1], metric=metric)) for value in (1, 2))
    assert only(a, b, metric).verdict == verdict
    assert only(b, a, metric).verdict == {"better": "worse", "more": "less"}[verdict]


def test_the_paired_interval_is_the_textbook_one():
    """n = 5, differences 1..5: mean 3, sd 1.5811, t(0.95, 4) = 2.1318."""
    a = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    low, high = interval(a, a + np.arange(1, 6), paired=True)
    assert (low, high) == (pytest.approx(3 - 2.1318 * 0.70711, rel=1e-4), pytest.approx(3 + 2.1318 * 0.70711, rel=1e-4))


def test_without_a_common_seed_it_is_welchs(tmp_path):
    from scipy import stats

    before, after = [1.0, 1.2, 1.1, 0.9], [1.5, 1.3, 1.9]
    a, b = folder(tmp_path / "a", seeds(before)), folder(tmp_path / "b", seeds(after, first=50))
    expected = stats.ttest_ind(after, before, equal_var=False).confidence_interval(0.9)
    change = only(a, b)
    assert (change.low, change.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert change.seeds == 3
    assert interval(np.ones(2), np.ones(2), paired=False) == (0, 0)


def test_intervals_cover_as_often_as_they_say():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(1000):
        noise = rng.normal(0, 1, 5)
        low, high = interval(noise, noise + rng.normal(0.3, 0.5, 5), paired=True)
        hits += low <= 0.3 <= high
    assert hits / 1000 == pytest.approx(0.9, abs=0.03)


def test_only_common_seeds_count(tmp_path):
    a, b = folder(tmp_path / "a", seeds([1, 2, 3], first=1)), folder(tmp_path / "b", seeds([2, 3, 9, 9], first=2))
    change = only(a, b)
    assert (change.before.value, change.after.value, change.seeds) == (2.5, 2.5, 2)


# --- which belong together -------------------------------------------------------------------------------------------


def test_points_are_paired_by_policy_and_swept_values_in_any_order(tmp_path):
    rows = [
        {"policy": p, "x.rate_rps": r, "seed": 1, METRIC: v}
        for p, r, v in (("s", 1, 1.0), ("s", 2, 2.0), ("c", None, 3.0))
    ]
    more = [{**row, METRIC: row[METRIC] * 2} for row in reversed(rows)] + [{**rows[0], "x.rate_rps": 4}]
    found = difference(folder(tmp_path / "a", rows), folder(tmp_path / "b", more))
    assert [(c.subject, c.point, c.after.value / c.before.value) for c in found.changes] == [
        ("s", "rate_rps=1", 2),
        ("s", "rate_rps=2", 2),
        ("c", "", 2),
    ]
    assert any("1 of 4 policies and points are in" in note for note in found.notes)
    assert differences._by_metric(found)[METRIC].startswith("worse at 3 of 3; most +100 %")


def test_a_policy_with_another_label_is_held_against_the_one_that_is_left(tmp_path):
    a = folder(tmp_path / "a", seeds([1.0]) + seeds([1.0], "static batch_size=4"))
    b = folder(tmp_path / "b", seeds([1.0]) + seeds([3.0], "static batch_size=8"))
    found = difference(a, b)
    assert [change.after.value for change in found.changes] == [1, 3]
    assert "static batch_size=8 is held against static batch_size=4." in found.notes


def test_what_cannot_be_compared_is_one_line(tmp_path):
    a = folder(tmp_path / "a", seeds([1.0]))
    others = {
        "swept": (seeds([1.0], **{"x.y": 1}), "sweeps x.y, the other does not"),
        "policies": (seeds([1.0], "p") + seeds([1.0], "q"), "no policy and point in common"),
    }
    for name, (rows, said) in others.items():
        b = folder(tmp_path / name, rows)
        for pair in ((a, b), (b, a)):
            with pytest.raises(InputError, match=said):
                difference(*pair)
    broken = {"summary.csv": ["", "policy\nx\n", "policy,seed\nx,one\n"], "scenario.yaml": ["- 1\n", "{", "\t"]}
    for file, texts in broken.items():
        for at, text in enumerate(texts):
            b = folder(tmp_path / f"{file}{at}", seeds([1.0]))
            (b / file).write_text(text)
            with pytest.raises(InputError, match="servecast run"):
                difference(a, b)
    with pytest.raises(InputError, match="name a results folder"):
        difference(a, tmp_path / "nowhere")


# --- keys ------------------------------------------------------------------------------------------------------------


def test_keys_that_differ_are_told_and_where_a_file_stands_does_not_count(tmp_path):
    (tmp_path / "t.csv").write_text("")
    common = {"seeds": 1, "policies": [{"kind": "static", "batch_size": 4}]}
    a = folder(tmp_path / "a", seeds([1.0]), workload={"path": "../t.csv"}, derived={"kv": 1}, **common)
    common = {"seeds": 2, "policies": [{"kind": "static", "batch_size": 8, "max_wait_s": 0.5}]}
    b = folder(
        tmp_path / "deep/b",
        seeds([1.0]),
        workload={"path": "../../t.csv"},
        derived={"kv": 2},
        slo={"ttft_s": 1},
        **common,
    )
    assert difference(a, b).keys == (
        ("policies[0].batch_size", 4, 8),
        ("policies[0].max_wait_s", None, 0.5),
        ("slo.ttft_s", None, 1),
        ("derived.kv", 1, 2),
        ("seeds", 1, 2),
    )


# --- in words --------------------------------------------------------------------------------------------------------


def test_a_single_point_is_a_table_of_metrics(tmp_path):
    a = folder(tmp_path / "a", [{"policy": "c", "seed": s, METRIC: 1.0, "preemptions": 0} for s in (1, 2)])
    b = folder(tmp_path / "b", [{"policy": "c", "seed": s, METRIC: 1.5, "preemptions": 2 * s} for s in (1, 2)])
    [table] = differences.tables(difference(a, b))
    assert table.rows == (
        (METRIC, "c", "1", "1.50", "+50 %", "+50 % to +50 %", "worse"),
        ("preemptions", "c", "0", "3", "+3", "-3.31 to +9.31", "unclear"),
    )


def test_many_points_are_a_verdict_a_metric(tmp_path):
    before, after = (
        [r for x, v in zip((1, 2, 3), values, strict=True) for r in seeds([v], x=x)]
        for values in ((1, 1, 1), (1, 0.5, 3))
    )
    found = difference(folder(tmp_path / "a", before), folder(tmp_path / "b", after, note="y" * 99))
    keys, verdicts = differences.tables(found)
    assert keys.rows == (("note", BLANK, "y" * 57 + "..."),)
    assert verdicts.rows == ((METRIC, "worse at 1, better at 1, same at 1 of 3; most +200 % (continuous, x=3)"),)
    assert [table.title for table in differences.tables(found, points=True)] == [
        "scenario keys that differ",
        "what changed from A to B",
        "each change",
    ]
    assert "One seed" in found.notes[-1]
    same = difference(tmp_path / "a", tmp_path / "a")
    assert differences._by_metric(same) == {METRIC: "same"}
    assert str(verdict_on(same)) == "From A to B none of 1 metrics changed beyond chance."
    assert str(verdict_on(found)).startswith("From A to B 1 worse and 1 better of 1 metrics. ")
    assert same.keys == ()


def test_neither_better_nor_worse_has_no_most(tmp_path):
    rows = [seeds([1, 2], x=1) + seeds([1, 2], x=2), seeds([1, 2], x=1) + seeds([0, 3], x=2)]
    a, b = (folder(tmp_path / str(at), row) for at, row in enumerate(rows))
    assert differences._by_metric(difference(a, b)) == {METRIC: "unclear at 1, same at 1 of 2"}


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def app():
    app = typer.Typer()
    app.command()(commands_diff.diff)
    app.command()(lambda: None)  # so that diff keeps its name
    return app


def test_notes_stand_below_the_tables(tmp_path, app):
    a = folder(tmp_path / "a", seeds([1.0]))
    assert "One seed: differences without intervals." in CliRunner().invoke(app, ["diff", str(a), str(a)]).stdout


def test_real_results_before_and_after_a_change(tmp_path, app):
    data = {
        "name": "tiny",
        "model": "llama-3.1-8b",
        "device": "a100-80gb",
        "workload": {
            "arrivals": {"kind": "poisson", "rate_rps": 20},
            "prompt_tokens": {"kind": "fixed", "tokens": 500},
            "output_tokens": {"kind": "lognormal", "median_tokens": 50, "sigma": 0.5},
            "requests": 100,
        },
        "policies": [{"kind": "continuous", "max_num_seqs": 64}],
        "seeds": 4,
    }
    for name, most in (("a", 64), ("b", 4)):
        data["policies"][0]["max_num_seqs"] = most
        report.write_run(simulate(check(data, tmp_path)), tmp_path / name)
    a, b = tmp_path / "a/tiny", tmp_path / "b/tiny/summary.csv"
    found = difference(a, b)
    assert ("policies[0].max_num_seqs", 64, 4) in found.keys
    assert {"request_throughput_rps": "worse", METRIC: "worse", "tpot_p50_s": "better"}.items() <= {
        change.metric: change.verdict for change in found.changes
    }.items()
    assert {change.metric for change in found.changes} == {each.name for each in ranked() if each.form != "text"}
    shown = CliRunner().invoke(app, ["diff", str(a), str(b)]).stdout
    for said in ("policies[0].max_num_seqs", "90 % interval", "ttft_p99_s", "worse"):
        assert said in shown
    told = json.loads(CliRunner().invoke(app, ["diff", str(a), str(b), "--json"]).stdout)
    assert told["verdicts"] == differences._by_metric(found)
    assert told["verdict"] == str(verdict_on(found))
    assert str(verdict_on(found)) in " ".join(shown.split())
    assert {"key": "policies[0].max_num_seqs", "a": 64, "b": 4} in told["keys"]
    again = CliRunner().invoke(app, ["diff", str(a), str(a)]).stdout
    assert "better" not in again
    assert "worse" not in again

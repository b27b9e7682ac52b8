"""diff where the two results do not quite fit each other: other seeds, other names, rows twice, values that are none."""

from __future__ import annotations

import json
import math

import pytest
import typer
from folders import folder, seeds
from scipy import stats
from typer.testing import CliRunner

from servecast.against.result import difference
from servecast.cli import diff as commands_diff
from servecast.errors import InputError
from servecast.report.differences import _by_metric

METRIC = "ttft_p99_s"


def two(tmp_path, before, after, **scenarios):
    a, b = (scenarios.get(side, {}) for side in "ab")
    return folder(tmp_path / "a", before, **a), folder(tmp_path / "b", after, **b)


# --- seeds -----------------------------------------------------------------------------------------------------------


def test_one_common_seed_of_several_is_no_comparison(tmp_path):
    before, after = [1.0, 1.1, 1.2], [1.6, 1.8, 2.0]
    a, b = two(tmp_path, seeds(before), seeds(after, first=2))
    found = difference(a, b)
    [change] = found.changes
    expected = stats.ttest_ind(after, before, equal_var=False).confidence_interval(0.9)
    assert (change.low, change.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert (change.before.value, change.after.value, change.seeds) == (pytest.approx(1.1), pytest.approx(1.8), 3)
    assert change.verdict == "worse"
    [note] = found.notes
    assert note.startswith(
        f"Seeds differ at 1 of 1 policies and points (like 0 to 2 in {a} and 2 to 4 in {b}): fewer than two in common"
    )


def test_seeds_that_only_one_has_are_told(tmp_path):
    a, b = two(tmp_path, seeds([1.0, 2.0, 3.0]), seeds([2.1, 3.1, 9.0, 9.0], first=1))
    found = difference(a, b)
    assert found.changes[0].seeds == 2
    like = f"(like 0 to 2 in {a} and 1 to 4 in {b})"
    assert found.notes == (f"Seeds differ at 1 of 1 policies and points {like}: compared by the common seeds alone.",)
    backwards = difference(b, a)
    assert f"1 to 4 in {b} and 0 to 2 in {a}" in backwards.notes[0]


def test_a_single_seed_is_held_against_the_same_seed(tmp_path):
    a, b = two(tmp_path, seeds([1.0]), seeds([1.0, 5.0, 5.0]))
    found = difference(a, b)
    [change] = found.changes
    assert (change.verdict, change.low, change.seeds) == ("same", None, 1)
    assert found.notes[0].endswith(f"(like 0 in {a} and 0 to 2 in {b}): compared by the common seeds alone.")


def test_where_only_some_points_lack_seeds_it_is_said_of_how_many(tmp_path):
    rows = seeds([1.0, 2.0], x=1) + seeds([1.0, 2.0], x=2)
    a, b = two(tmp_path, rows, rows + seeds([3.0], first=2, x=2))
    [note] = difference(a, b).notes
    assert note.startswith(f"Seeds differ at 1 of 2 policies and points (like 0 and 1 in {a} and 0 to 2 in {b}): ")
    assert not difference(a, a).notes


def test_a_seed_without_a_value_on_one_side_is_told(tmp_path):
    a, b = two(tmp_path, seeds([1.0, 2.0, 3.0, 4.0]), seeds([1.0, math.nan, 3.0, math.inf]))
    found = difference(a, b)
    assert found.changes[0].seeds == 2
    assert found.notes == (f"Left out, because one side alone has a value: {METRIC} of continuous, seed 1; 2 in all.",)
    many = folder(tmp_path / "c", [row for at in range(5) for row in seeds([1.0, 1.0, math.nan], x=at)])
    whole = folder(tmp_path / "d", [row for at in range(5) for row in seeds([1.0, 1.0, 1.0], x=at)])
    [note] = difference(many, whole).notes
    assert note.endswith("continuous, x=0, seed 2; 5 in all.")


# --- rows and values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swept", [{}, {"x.rate_rps": 4}, {"x.rate_rps": None}])
def test_a_run_that_stands_twice_is_one_line(tmp_path, swept):
    rows = seeds([1.0, 2.0], **swept)
    a, b = two(tmp_path, rows, [*rows, rows[1]])
    for pair in ((a, b), (b, a)):
        with pytest.raises(InputError, match=r"b/summary.csv: has two rows of one run \(continuous.*, seed 1\)"):
            difference(*pair)


@pytest.mark.parametrize("seed", ["1.5", "one", "", "inf"])
def test_a_seed_that_is_none_is_one_line(tmp_path, seed):
    a, b = two(tmp_path, seeds([1.0]), seeds([1.0]))
    (b / "summary.csv").write_text(f"policy,seed,{METRIC}\ncontinuous,0,1\ncontinuous,{seed},1\n")
    with pytest.raises(InputError, match="cannot be read"):
        difference(a, b)


def plain(a, b) -> dict:
    app = typer.Typer()
    app.command()(commands_diff.diff)
    app.command()(lambda: None)  # so that diff keeps its name
    done = CliRunner().invoke(app, ["diff", str(a), str(b), "--json"])
    assert done.exit_code == 0, done.exception
    return json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))


def test_what_is_not_finite_is_null_in_json(tmp_path):
    rate = {"workload": {"arrivals": {"rate_rps": math.inf}}, "sweep": {"workload.arrivals.rate_rps": [math.inf, 1.0]}}
    a, b = two(tmp_path, seeds([math.inf, 1.0]), seeds([1.0, -math.inf]), a=rate)
    told = plain(a, b)
    assert [told["changes"][0][key] for key in ("before", "after", "low", "high")] == [1.0, 1.0, None, None]
    assert {"key": "workload.arrivals.rate_rps", "a": "inf", "b": None} in told["keys"]
    assert {"key": "sweep", "a": {"workload.arrivals.rate_rps": ["inf", 1.0]}, "b": None} in told["keys"]
    none = folder(tmp_path / "none", seeds([math.inf, math.inf]))
    [change] = plain(none, none)["changes"]
    assert (change["before"], change["after"], change["verdict"]) == (None, None, "same")
    [change] = plain(none, b)["changes"]
    assert change["verdict"] == "only one has it"


def test_a_date_in_a_scenario_is_text_in_json(tmp_path):
    a, b = two(tmp_path, seeds([1.0]), seeds([1.0]))
    (a / "scenario.yaml").write_text("name: a\nday: 2026-01-02\n")
    assert plain(a, b)["keys"] == [{"key": "day", "a": "2026-01-02", "b": None}]


# --- names -----------------------------------------------------------------------------------------------------------

SMALL, LARGE = ({"kind": "static", "batch_size": size, "name": None} for size in (4, 8))


def after(found) -> list[tuple[str, float]]:
    return [(change.subject, change.after.value) for change in found.changes]


def test_renamed_policies_belong_together_by_their_parameters(tmp_path):
    """In the other order, and called otherwise: by place each would be held against the other."""
    a, b = two(
        tmp_path,
        seeds([1.0], "static batch_size=4") + seeds([2.0], "static batch_size=8"),
        seeds([2.0], "big") + seeds([1.0], "small one"),
        a={"policies": [SMALL, LARGE]},
        b={"policies": [{**LARGE, "name": "big"}, {**SMALL, "name": "small one"}]},
    )
    found = difference(a, b)
    assert after(found) == [("static batch_size=4", 1.0), ("static batch_size=8", 2.0)]
    assert set(_by_metric(found).values()) == {"same"}
    assert found.notes[:2] == (
        "big is held against static batch_size=8, which has the same parameters.",
        "small one is held against static batch_size=4, which has the same parameters.",
    )


def test_what_no_parameters_pair_is_paired_by_its_place(tmp_path):
    a, b = two(
        tmp_path,
        seeds([1.0], "x") + seeds([2.0], "y") + seeds([3.0], "z"),
        seeds([3.0], "p") + seeds([9.0], "q") + seeds([8.0], "r"),
        a={"policies": [{**SMALL, "name": "x"}, {**LARGE, "name": "y"}, {"kind": "continuous", "name": "z"}]},
        b={
            "policies": [
                {"kind": "continuous", "name": "p"},
                {**SMALL, "batch_size": 5, "name": "q"},
                {**LARGE, "batch_size": 9, "name": "r"},
            ]
        },
    )
    found = difference(a, b)
    assert after(found) == [("x", 9.0), ("y", 8.0), ("z", 3.0)]
    assert {"q is held against x.", "r is held against y."} < set(found.notes)


@pytest.mark.parametrize("policies", [None, [SMALL], ["static", "static"], [{"kind": "other"}, SMALL]])
def test_a_scenario_that_does_not_say_which_is_which_pairs_by_place(tmp_path, policies):
    rows = [
        seeds([1.0], f"static batch_size={one}") + seeds([2.0], f"static batch_size={two}")
        for one, two in ((4, 8), (5, 9))
    ]
    a, b = two(tmp_path, *rows, a={"policies": policies}, b={"policies": [SMALL, LARGE]})
    assert "static batch_size=5 is held against static batch_size=4." in difference(a, b).notes


def test_policies_that_are_not_as_many_are_paired_by_parameters_or_not_at_all(tmp_path):
    a, b = two(
        tmp_path,
        seeds([1.0], "x") + seeds([2.0], "y"),
        seeds([2.0], "renamed"),
        a={"policies": [{**SMALL, "name": "x"}, {**LARGE, "name": "y"}]},
        b={"policies": [{**LARGE, "name": "renamed"}]},
    )
    found = difference(a, b)
    assert after(found) == [("y", 2.0)]
    assert f"1 of 2 policies and points are in {a} alone." in found.notes

"""What diff says of two plans: the choice, GPUs, loads with their intervals, prices, and what was asked differently."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pages
import pytest
from test_cli import command

from servecast.against.result.plans import CHOSEN, _change, difference
from servecast.errors import InputError
from servecast.plan.answer import BreakEven
from servecast.plan.basis import Basis
from servecast.plan.uncertainty import Estimate
from servecast.report import differences, plan_page
from servecast.report.verdicts.diff import verdict as verdict_on

if TYPE_CHECKING:
    from pathlib import Path

    from servecast.plan.answer import Plan


def folder(path: Path, plan: Plan, **scenario: Any) -> Path:
    plan_page.write(plan, path, Basis({"name": "toy", **scenario} if scenario else {}))
    return path


def better(plan: Plan, **best: Any) -> Plan:
    return replace(plan, best=replace(plan.best, **best))


@pytest.mark.parametrize(
    ("before", "after", "way", "verdict"),
    [
        (Estimate(10, 9, 11), Estimate(12, 11.5, 13), 1, "better"),
        (Estimate(10, 9, 11), Estimate(12, 11.5, 13), -1, "worse"),
        (Estimate(10, 9, 11), Estimate(12, 11.5, 13), 0, "more"),
        (Estimate(12, 11.5, 13), Estimate(10, 9, 11), 0, "less"),
        (Estimate(10, 9, 11), Estimate(12, 10.5, 13), 1, "unclear"),
        (Estimate(10, 9, 11), Estimate(10.005, 9, 11), 1, "same"),
        (Estimate(3), Estimate(2), -1, "better"),
        (Estimate(3), Estimate(3), -1, "same"),
        (None, Estimate(3), -1, "only one has it"),
        (None, None, -1, "same"),
    ],
)
def test_two_values_are_told_apart_where_their_intervals_are(
    before: Estimate | None, after: Estimate | None, way: int, verdict: str
) -> None:
    assert _change("x", "y", before, after, way).verdict == verdict


def test_a_plan_with_fewer_gpus_is_told_as_that(tmp_path: Path) -> None:
    plan = pages.made_plan()
    a = folder(tmp_path / "a", plan, goal={"usd_per_gpu_hour": {"toy-gpu": 2.5}})
    other = better(
        plan, replicas=2, target_gpus=2, target_replicas=2, usd_per_hour=4.0, capacity=Estimate(30.0, 28.0, 33.0),
        usd_at_target={"output": Estimate(0.3, 0.28, 0.32)},
    )  # fmt: skip
    b = folder(tmp_path / "b", other, goal={"usd_per_gpu_hour": {"toy-gpu": 2.0}})
    found = difference(a, b / "plan.json")
    assert found.keys == (("goal.usd_per_gpu_hour.toy-gpu", 2.5, 2.0),)
    told = {change.metric: change.verdict for change in found.changes if change.subject == CHOSEN}
    assert (
        told["GPUs for the target"]
        == told["$/hour for the target"]
        == told["whole bill $/M output at the target"]
        == "better"
    )
    # Of other GPUs a load is neither better nor worse.
    assert told["highest load [requests/s]"] == "more"
    assert told["ttft_p99_s at the target"] == "same"
    assert verdict_on(found).headline == "A takes 3 TOY GPU, B 2 TOY GPU, for $7.50 and $4.00 an hour."
    assert verdict_on(found).details == (
        "A chooses continuous, B the same.",
        "The highest load of B is 30 against 24: more.",
        "Better: GPUs for the target, $/hour for the target, whole bill $/M output at the target.",
    )
    keys, plans = differences.tables(found)
    assert keys.rows == (("goal.usd_per_gpu_hour.toy-gpu", "2.5", "2"),)
    assert ("GPUs for the target", CHOSEN, "3", "2", "-33 %", "", "better") in plans.rows
    name = "p99 time to first token [s] at the target"
    first = "0.400 (0.380 to 0.440)"
    assert (name, CHOSEN, first, first, "0 %", "", "same") in plans.rows
    each = differences.tables(found, points=True)[1]
    load = "13 (12.3 to 13.5)"
    assert ("highest load of one replica", "two GPUs", load, load, "0 %", "", "same") in each.rows


def test_at_another_target_nothing_is_better(tmp_path: Path) -> None:
    plan = pages.made_plan()
    more = replace(
        better(plan, target=10.0, target_gpus=1, target_replicas=1),
        options=tuple(replace(option, target=10.0) for option in plan.options),
    )
    found = difference(folder(tmp_path / "a", plan, x=1), folder(tmp_path / "b", more, x=1))
    chosen = [change for change in found.changes if change.subject == CHOSEN]
    assert {change.verdict for change in chosen} <= {"less", "more", "same", "unclear"}
    assert "The targets differ, 20 and 10 requests/s" in found.notes[0]
    assert "Better" not in str(verdict_on(found))


def test_where_one_of_them_serves_nothing(tmp_path: Path) -> None:
    plan = pages.made_plan()
    none = replace(plan, best=None, supported=False, headroom=None, break_even=None)
    a, b = folder(tmp_path / "a", plan, x=1), folder(tmp_path / "b", none, x=1)
    found = difference(a, b)
    assert str(verdict_on(found)) == "Only A serves its target."
    assert {change.verdict for change in found.changes if change.subject == CHOSEN} == {"only one has it"}
    assert str(verdict_on(difference(b, b))) == "Neither plan serves its target."


def test_support_and_break_even_are_told(tmp_path: Path) -> None:
    plan = pages.made_plan()
    a = folder(tmp_path / "a", plan, x=1)
    b = folder(tmp_path / "b", replace(plan, supported=False, break_even=BreakEven(9.0, 0.4)), x=1)
    found = difference(a, b)
    assert verdict_on(found).details[-1] == "The interval supports A alone."
    assert "Worse: cheaper than the API from [requests/s]." in verdict_on(found).details


def test_a_plan_against_itself_has_nothing_to_tell(tmp_path: Path) -> None:
    a = folder(tmp_path / "a", pages.made_plan(), x=1)
    found = difference(a, a)
    assert {change.verdict for change in found.changes} == {"same"}
    assert found.keys == ()
    assert "Better" not in str(verdict_on(found))
    assert "Worse" not in str(verdict_on(found))


def test_a_plan_without_its_scenario_is_compared_but_for_that(tmp_path: Path) -> None:
    a, b = folder(tmp_path / "a", pages.made_plan()), folder(tmp_path / "b", pages.made_plan(), x=1)
    assert "has no scenario.yaml" in difference(a, b).notes[0]


def test_what_cannot_be_compared_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = folder(tmp_path / "a", pages.made_plan(), x=1)
    users = replace(pages.made_plan(), options=tuple(replace(o, unit="users") for o in pages.made_plan().options))
    with pytest.raises(InputError, match="plans for users, the other for requests/s"):
        difference(a, folder(tmp_path / "b", users, x=1))
    for at, text in enumerate(("", "[]", "{}", '{"best": null, "options": []}')):
        broken = tmp_path / f"broken{at}"
        broken.mkdir()
        (broken / "plan.json").write_text(text)
        with pytest.raises(InputError, match="servecast plan"):
            difference(a, broken)
    (tmp_path / "run").mkdir()
    assert command("diff", a, tmp_path / "run") == 2
    assert "holds a plan, and the other does not" in capsys.readouterr().err


def test_the_command_prints_a_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = folder(tmp_path / "a", pages.made_plan(), x=1)
    b = folder(tmp_path / "b", better(pages.made_plan(), target_gpus=2, replicas=2, target_replicas=2), x=2)
    assert command("diff", a, b) == 0
    shown = capsys.readouterr().out
    assert "GPUs for the target" in shown
    assert "A takes 3 TOY GPU, B 2 TOY GPU" in " ".join(shown.split())
    assert command("diff", a, b, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["keys"] == [{"key": "x", "a": 1, "b": 2}]
    assert told["changes"][0] == {
        "metric": "GPUs for the target", "configuration": CHOSEN, "point": "", "before": 3.0, "before_low": None,
        "before_high": None, "after": 2.0, "after_low": None, "after_high": None, "low": None, "high": None,
        "seeds": None, "verdict": "better",
    }  # fmt: skip
    assert len({tuple(change) for change in told["changes"]}) == 1  # every row has every key

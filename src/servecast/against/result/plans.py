"""What changed from one plan to another: GPUs, dollars and loads of the chosen configuration, then each configuration.

Each plan brings its own 90 % intervals. The interval of a difference is as wide as these allow, so that two values
differ where their intervals do not overlap. That is stricter than an interval from the runs of both would be: *unclear*
is said too often and not too seldom. GPUs and dollars an hour have no interval, and are what they are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast import plain_yaml
from servecast.against.result.changes import SAME, Change, Difference, keys_between, reading
from servecast.errors import InputError
from servecast.files import SCENARIO
from servecast.metrics import METRICS
from servecast.plan.uncertainty import Estimate
from servecast.text import number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PLAN = "plan.json"
CHOSEN = "the plan"  # the subject of what is said of the chosen configurations
#: Figures of the chosen configuration: name, where it stands, and whether more is better.
_FIGURES = (
    ("GPUs for the target", ("target_gpus",), -1),
    ("$/hour for the target", ("usd_for_target",), -1),
    ("whole bill $/M output at the target", ("usd_at_target", "output"), -1),
    ("$/M tokens, in and out, at the target", ("usd_at_target", "total"), -1),
    ("whole bill $/M output at the highest load", ("usd_per_mtok", "output"), -1),
)


class _Side(NamedTuple):
    folder: Path
    plan: Mapping[str, Any]
    scenario: dict[str, Any] | None


def holds_plan(path: Path) -> bool:
    """Whether a folder (or file) is what ``servecast plan`` writes."""
    return (path if path.name == PLAN else path / PLAN).is_file()


def difference(first: Path, second: Path) -> Difference:
    """Hold the plan in ``second`` (after) against that in ``first`` (before).

    Raises InputError: a folder holds no plan, or they plan for another kind of load.
    """
    a, b = _read(first), _read(second)
    notes = []
    without = [side.folder for side in (a, b) if side.scenario is None]
    if without:
        notes.append(f"{without[0]} has no {SCENARIO}, so that the scenarios are not compared: plan it again.")
    (target, unit), (other, its_unit) = (
        (side.plan["options"][0]["target"], side.plan["options"][0]["unit"]) for side in (a, b)
    )
    if unit != its_unit:
        problem = f"plans for {its_unit}, the other for {unit}: compare plans of the same kind of load"
        raise InputError(str(second), problem)
    if target != other:
        both = f"{number(target)} and {number(other)} {unit}"
        notes.append(f"The targets differ, {both}: GPUs, dollars and latencies are each of its own.")
    keys = () if without else keys_between(a.scenario or {}, a.folder, b.scenario or {}, b.folder)
    changes = (*_of_the_chosen(a.plan, b.plan, same_target=target == other), *_of_each(a.plan, b.plan))
    return Difference("configuration", (first, second), tuple(keys), changes, tuple(notes), (a.plan, b.plan))


def _read(path: Path) -> _Side:
    folder = path.parent if path.name == PLAN else path
    with reading(folder, "servecast plan"):
        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        scenario = folder / SCENARIO
        known = plain_yaml.read(scenario) if scenario.is_file() else None
        _ = plan["best"], plan["options"][0]["target"], plan["options"][0]["unit"]
    return _Side(folder, plan, known if isinstance(known, dict) else None)


def _of_the_chosen(a: Mapping[str, Any], b: Mapping[str, Any], *, same_target: bool) -> Iterator[Change]:
    """Figures that at least one of the chosen configurations has.

    At another target nothing is better or worse, only more or less; with other GPUs neither is their load.
    """
    sides = a["best"] or {}, b["best"] or {}
    unit = a["options"][0]["unit"]
    loads = int(same_target and sides[0].get("target_gpus") == sides[1].get("target_gpus"))
    goals = dict.fromkeys(name for side in sides for name in side.get("at_target", ()))
    figures = [
        *((name, _both(sides, *path), way) for name, path, way in _FIGURES[:2]),
        (f"highest load [{unit}]", _both(sides, "capacity"), loads),
        ("saturation [requests/s]", _both(sides, "saturation"), loads),
        *((name, _both(sides, *path), way) for name, path, way in _FIGURES[2:]),
        *((f"{name} at the target", _both(sides, "at_target", name), METRICS[name].direction) for name in goals),
        (f"cheaper than the API from [{unit}]", _both((a, b), "break_even", "load"), -1),
    ]  # fmt: skip
    for name, (before, after), way in figures:
        if before is not None or after is not None:
            yield _change(name, CHOSEN, before, after, way if same_target else 0)


def _of_each(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Change]:
    """GPUs for the target, and the highest load of one replica."""
    before, after = ({option["label"]: option for option in side["options"]} for side in (a, b))
    for label in dict.fromkeys([*before, *after]):
        sides = before.get(label, {}), after.get(label, {})
        yield _change("GPUs for the target", label, *_both(sides, "target_gpus"), -1)
        first, second = (
            None if load is None else load.over(side.get("replicas") or 1)
            for load, side in zip(_both(sides, "capacity"), sides, strict=True)
        )
        yield _change("highest load of one replica", label, first, second, 1)


def _both(sides: tuple[Mapping[str, Any], Mapping[str, Any]], *path: str) -> tuple[Estimate | None, Estimate | None]:
    """A figure of both: a number, or a value with its interval."""

    def figure(side: Any) -> Estimate | None:
        for key in path:
            side = (side or {}).get(key)
        if isinstance(side, dict):
            return None if side.get("value") is None else Estimate(side["value"], side.get("low"), side.get("high"))
        return None if side is None else Estimate(float(side))

    return figure(sides[0]), figure(sides[1])


def _change(metric: str, subject: str, before: Estimate | None, after: Estimate | None, way: int) -> Change:
    change = Change(metric, subject, "", before, after, way)
    if before is None or after is None or abs(change.difference) <= SAME * abs(before.value):
        return change
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return change
    return change._replace(low=after.low - before.high, high=after.high - before.low)

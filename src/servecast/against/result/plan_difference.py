"""What changed from one plan to another: the choice, its GPUs and dollars, its load, and what was asked differently.

Each plan brings its own 90 % intervals. Two values are told apart where these do not overlap: that is stricter than an
interval of the difference, which would need the runs of both, so that *unclear* is said too often and not too seldom.
Values without an interval (GPUs, dollars an hour) are what they are.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from servecast.against.result.difference import SAME, keys_between, told_keys
from servecast.errors import InputError
from servecast.files import SCENARIO
from servecast.plan.uncertainty import Estimate
from servecast.report.plan_words import hardware, interval, statistic
from servecast.scenario.goals import at_least
from servecast.text import BLANK, Table, number, signed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PLAN = "plan.json"


class Changed(NamedTuple):
    """One figure of both plans; ``way``: more is better (+1), worse (-1), neither (0)."""

    what: str
    before: Estimate | None
    after: Estimate | None
    way: int

    @property
    def verdict(self) -> str:
        """``same``, ``better``, ``worse``, ``more``, ``less``; ``unclear`` where the intervals overlap."""
        a, b = self.before, self.after
        if a is None or b is None:
            return "same" if a is b else "only one has it"
        if abs(b.value - a.value) <= SAME * abs(a.value):
            return "same"
        if None not in (*a, *b) and _low(a) <= _high(b) and _low(b) <= _high(a):
            return "unclear"
        more = b.value > a.value
        if self.way == 0:
            return "more" if more else "less"
        return "better" if more == (self.way > 0) else "worse"


class Both(NamedTuple):
    """A configuration that is in both plans, or in one: GPUs for the target and highest load of one replica."""

    label: str
    gpus: tuple[int | None, int | None]
    load: Changed


@dataclass(frozen=True)
class PlanDifference:
    """Two plans held against each other.

    keys : key path of the scenarios, and its value in each, where they differ; None where one lacks it
    chosen : the configuration of each; None where none serves the target
    changes : figures of the chosen ones
    options : each configuration
    verdict : what it comes to, in a sentence or two
    """

    keys: tuple[tuple[str, Any, Any], ...]
    chosen: tuple[str | None, str | None]
    changes: tuple[Changed, ...]
    options: tuple[Both, ...]
    verdict: str
    notes: tuple[str, ...]

    def tables(self, points: bool = False) -> list[Table]:
        """What differs in the scenarios, the plans beside each other, and (``points``) each configuration."""
        rows = [
            (change.what, interval(change.before), interval(change.after), _share(change), change.verdict)
            for change in self.changes
        ]
        choice = ("configuration", *(BLANK if label is None else label for label in self.chosen), "")
        chosen = (*choice, "same" if self.chosen[0] == self.chosen[1] else "another")
        found = [
            Table("scenario keys that differ", ("key", "A", "B"), told_keys(self.keys)),
            Table("the plan", ("", "A", "B", "change", "verdict"), (chosen, *rows)),
        ]
        if points:
            heads = ("configuration", "GPUs A", "GPUs B", "highest load of one A", "highest load of one B", "verdict")
            each = tuple(
                (
                    both.label,
                    *(BLANK if count is None else str(count) for count in both.gpus),
                    interval(both.load.before),
                    interval(both.load.after),
                    both.load.verdict,
                )
                for both in self.options
            )
            found.append(Table("each configuration", heads, each))
        return [table for table in found if table.rows]

    def plain(self) -> dict[str, Any]:
        """The same as plain values, for scripts; what is not known is None."""
        return {
            "kind": "plan",
            "keys": [{"key": key, "a": a, "b": b} for key, a, b in self.keys],
            "chosen": {"a": self.chosen[0], "b": self.chosen[1]},
            "changes": [{"what": change.what, **_sides(change)} for change in self.changes],
            "options": [
                {"label": both.label, "gpus": {"a": both.gpus[0], "b": both.gpus[1]}, **_sides(both.load)}
                for both in self.options
            ],
            "verdict": self.verdict,
            "notes": list(self.notes),
        }


class _Side(NamedTuple):
    folder: Path
    plan: Mapping[str, Any]
    scenario: dict[str, Any] | None


def holds_plan(path: Path) -> bool:
    """Whether a folder (or file) is what ``servecast plan`` writes."""
    return (path if path.name == PLAN else path / PLAN).is_file()


def plan_difference(first: Path, second: Path) -> PlanDifference:
    """Hold the plan in ``second`` (after) against that in ``first`` (before).

    Raises InputError for a folder that holds no plan.
    """
    a, b = _read(first), _read(second)
    notes = []
    keys: tuple[tuple[str, Any, Any], ...] = ()
    if a.scenario is not None and b.scenario is not None:
        keys = tuple(keys_between(a.scenario, a.folder, b.scenario, b.folder))
    else:
        without = a if a.scenario is None else b
        notes.append(f"{without.folder} has no {SCENARIO}, so that the scenarios are not compared: plan it again.")
    targets = [(side.plan["options"][0]["target"], side.plan["options"][0]["unit"]) for side in (a, b)]
    if targets[0][1] != targets[1][1]:
        problem = f"plans for {targets[1][1]}, the other for {targets[0][1]}: compare plans of the same kind of load"
        raise InputError(str(second), problem)
    if targets[0] != targets[1]:
        notes.append(
            f"The targets differ, {number(targets[0][0])} and {number(targets[1][0])} {targets[0][1]}: GPUs, dollars "
            "and latencies are each of its own."
        )
    changes = tuple(_changes(a.plan, b.plan, same_target=targets[0] == targets[1]))
    return PlanDifference(
        keys,
        (_choice(a.plan), _choice(b.plan)),
        changes,
        tuple(_options(a.plan, b.plan)),
        _verdict(a.plan, b.plan, changes),
        tuple(notes),
    )


def _read(path: Path) -> _Side:
    folder = path.parent if path.name == PLAN else path
    try:
        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        scenario = folder / SCENARIO
        known = yaml.safe_load(scenario.read_text(encoding="utf-8")) if scenario.is_file() else None
        assert isinstance(plan, dict)
        _ = plan["best"], plan["options"][0]["target"], plan["options"][0]["unit"]
    except OSError as error:
        problem = f"{error.strerror}: name a folder that servecast plan wrote"
        raise InputError(str(error.filename or folder), problem) from None
    except (ValueError, KeyError, IndexError, TypeError, AssertionError, yaml.YAMLError) as error:
        problem = f"cannot be read ({' '.join(repr(error).split())[:120]}): name a folder that servecast plan wrote"
        raise InputError(str(folder), problem) from None
    return _Side(folder, plan, known if isinstance(known, dict) else None)


# --- the figures ----------------------------------------------------------------------------------------------------


def _changes(a: Mapping[str, Any], b: Mapping[str, Any], *, same_target: bool) -> Iterator[Changed]:
    """Of the chosen configurations, those figures that at least one of the plans has.

    At another target nothing is better or worse, only more or less; with other GPUs their load is not either.
    """
    before, after = a["best"] or {}, b["best"] or {}
    unit = a["options"][0]["unit"]
    alike = same_target and before.get("target_gpus") == after.get("target_gpus")

    def made(what: str, first: Any, second: Any, way: int) -> Changed:
        return Changed(what, _estimate(first), _estimate(second), way if same_target else 0)

    def inner(what: str, group: str, key: str, way: int) -> Changed:
        first, second = ((side.get(group) or {}).get(key) for side in (before, after))
        return made(what, first, second, way)

    loads = 1 if alike else 0
    changes = [
        made("GPUs for the target", before.get("target_gpus"), after.get("target_gpus"), -1),
        made("$/hour for the target", before.get("usd_for_target"), after.get("usd_for_target"), -1),
        made(f"highest load [{unit}]", before.get("capacity"), after.get("capacity"), loads),
        made("saturation [requests/s]", before.get("saturation"), after.get("saturation"), loads),
        Changed("headroom [%]", _percents(a.get("headroom")), _percents(b.get("headroom")), loads),
        inner("$/M output at the target", "usd_at_target", "output", -1),
        inner("$/M tokens, in and out, at the target", "usd_at_target", "total", -1),
        inner("$/M output at the highest load", "usd_per_mtok", "output", -1),
    ]
    for name in dict.fromkeys([*before.get("at_target", ()), *after.get("at_target", ())]):
        what = f"{statistic(name)}{' [s]' if name.endswith('_s') else ''} at the target"
        changes.append(inner(what, "at_target", name, 1 if at_least(name) or name == "goodput_rps" else -1))
    first, second = ((side.get("break_even") or {}).get("load") for side in (a, b))
    changes.append(made(f"cheaper than the API from [{unit}]", first, second, -1))
    yield from (each for each in changes if each.before is not None or each.after is not None)


def _options(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Both]:
    before, after = ({option["label"]: option for option in side["options"]} for side in (a, b))
    for label in dict.fromkeys([*before, *after]):
        first, second = before.get(label, {}), after.get(label, {})
        load = Changed("highest load", _each(first), _each(second), 1)
        yield Both(label, (first.get("target_gpus"), second.get("target_gpus")), load)


def _choice(plan: Mapping[str, Any]) -> str | None:
    return None if plan["best"] is None else plan["best"]["label"]


def _each(option: Mapping[str, Any]) -> Estimate | None:
    """Highest load of one replica."""
    told = _estimate(option.get("capacity"))
    count = option.get("replicas") or 1
    return None if told is None else Estimate(*(None if end is None else end / count for end in told))  # type: ignore[arg-type]


def _estimate(told: Any) -> Estimate | None:
    """A number, or a value with its interval; an end that has no bound is none."""
    if told is None:
        return None
    if isinstance(told, dict):
        return None if told.get("value") is None else Estimate(told["value"], told.get("low"), told.get("high"))
    return Estimate(float(told))


def _percents(told: Any) -> Estimate | None:
    share = _estimate(told)
    return None if share is None else Estimate(*(None if end is None else 100 * end for end in share))  # type: ignore[arg-type]


def _low(told: Estimate) -> float:
    return -math.inf if told.low is None else told.low


def _high(told: Estimate) -> float:
    return math.inf if told.high is None else told.high


# --- in words -------------------------------------------------------------------------------------------------------


def _share(change: Changed) -> str:
    a, b = change.before, change.after
    if a is None or b is None or change.verdict == "same":
        return ""
    return f"{b.value - a.value:+.3g}" if not a.value or "%" in change.what else signed(b.value / a.value - 1, 1)


def _sides(change: Changed) -> dict[str, Any]:
    a, b = (None if side is None else side._asdict() for side in (change.before, change.after))
    return {"a": a, "b": b, "verdict": change.verdict}


def _verdict(a: Mapping[str, Any], b: Mapping[str, Any], changes: tuple[Changed, ...]) -> str:
    best = a["best"], b["best"]
    if best[0] is None or best[1] is None:
        served = [name for name, side in (("A", best[0]), ("B", best[1])) if side is not None]
        return f"Only {served[0]} serves its target." if served else "Neither plan serves its target."
    said = [f"A takes {_fleet(best[0])}, B {_fleet(best[1])}" + _dollars(best)]
    by = {change.what: change for change in changes}
    load = next(change for change in changes if change.what.startswith("highest load"))
    assert load.before is not None and load.after is not None
    words = {"unclear": "no clear difference, the intervals overlap", "same": "the same"}
    said.append(
        f"The highest load of B is {number(load.after.value)} against {number(load.before.value)}: "
        f"{words.get(load.verdict, load.verdict)}"
    )
    clear = [name for name, change in by.items() if change is not load and change.verdict in ("better", "worse")]
    for way in ("better", "worse"):
        names = [name for name in clear if by[name].verdict == way]
        if names:
            said.append(f"{way.capitalize()}: {', '.join(names)}")
    sure = [bool(side["supported"]) for side in (a, b)]
    if sure[0] != sure[1]:
        said.append(f"The interval supports {'A' if sure[0] else 'B'} alone")
    return ". ".join(said) + "."


def _fleet(option: Mapping[str, Any]) -> str:
    return f"{option['target_gpus']} {hardware(option['device'])}"


def _dollars(best: tuple[Mapping[str, Any], Mapping[str, Any]]) -> str:
    prices = [option.get("usd_for_target") for option in best]
    if prices[0] is None or prices[1] is None:
        return ""
    return f" (${prices[0]:,.2f} and ${prices[1]:,.2f} an hour)"

"""A difference of two results in words: tables for terminal and page, and plain values for scripts."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from servecast.against.result.plans import CHOSEN
from servecast.files import plain
from servecast.files import write as write_whole
from servecast.report.page import Page, table_section
from servecast.report.plan_words import interval, statistic
from servecast.report.tables import table_of
from servecast.report.verdicts.diff import CLEAR, verdict
from servecast.text import BLANK, Table, number, plain_value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from servecast.against.result.changes import Change, Difference

_LONGEST = 60  # letters of a value of a scenario


def write(found: Difference, page: Path) -> Path:
    """The page of a difference, at ``page``."""
    a, b = found.folders
    made = Page(
        name=f"A: {a}, B: {b}",
        title=f"{b.name}: what changed",
        kicker="What changed from A to B,",
        verdict=verdict(found),
        notes=found.notes,
        sections=[table_section(at, each) for at, each in enumerate(tables(found, points=True))],
    )
    write_whole(page, made.html())
    return page


def tables(found: Difference, points: bool = False) -> list[Table]:
    """What differs in the scenarios; the verdict on each metric, or each change (always, where there is one point)."""
    keys = tuple((path, _short(before), _short(after)) for path, before, after in found.keys)
    made = [Table("scenario keys that differ", ("key", "A", "B"), keys)]
    shown = [change for change in found.changes if change.before is not None or change.after is not None]
    if found.plans is not None:
        shown = [change for change in shown if points or change.subject == CHOSEN]
    elif len({(change.subject, change.point) for change in found.changes}) > 1:
        made.append(Table("what changed from A to B", ("metric", "verdict"), tuple(_by_metric(found).items())))
        shown = shown if points else []
    if shown:
        made.append(table_of("each change", [_row(change, found.subject) for change in shown], ("at",)))
    return [table for table in made if table.rows]


def data(found: Difference) -> dict[str, Any]:
    """Everything as plain values; what is not known is None."""
    return {
        "verdict": str(verdict(found)),
        "keys": [plain({"key": key, "a": a, "b": b}, str) for key, a, b in found.keys],
        "verdicts": _by_metric(found),
        "changes": [_change(change, found.subject) for change in found.changes],
        "notes": list(found.notes),
    }


def _by_metric(found: Difference) -> dict[str, str]:
    """One line for each metric that is there on either side, over all subjects and points."""
    groups: dict[str, list[Change]] = {}
    for change in found.changes:
        groups.setdefault(change.metric, []).append(change)
    return {
        metric: _over_all(changes)
        for metric, changes in groups.items()
        if any(change.before is not None or change.after is not None for change in changes)
    }


def _over_all(changes: Sequence[Change]) -> str:
    """``worse at 3 of 8; most +12 % [+10 % to +14 %] (continuous, rate_rps=8)``."""
    counts = Counter(change.verdict for change in changes)
    if len(counts) == 1 and next(iter(counts)) in ("same", "unclear"):
        return next(iter(counts))
    said = ", ".join(
        f"{name} at {counts[name]}" for name in (*CLEAR, "unclear", "same", "only one has it") if counts[name]
    )
    clear = [change for change in changes if change.verdict in CLEAR]
    if not clear:
        return f"{said} of {len(changes)}"

    def size(change: Change) -> float:
        return abs(change.difference / change.before.value) if change.before and change.before.value else math.inf

    most = max(clear, key=size)
    where = ", ".join(part for part in (most.subject, most.point) if part)
    within = f" [{_range(most)}]" if most.low is not None else ""
    return f"{said} of {len(changes)}; most {_percent(most, most.difference)}{within} ({where})"


def _row(change: Change, subject: str) -> dict[str, str]:
    name = change.metric.removesuffix(" at the target")
    metric = change.metric.replace(name, f"{statistic(name)}{' [s]' if name.endswith('_s') else ''}", 1)
    moved = "" if math.isnan(change.difference) else _percent(change, change.difference)
    return {
        "metric": metric if change.subject == CHOSEN else change.metric, subject: change.subject, "at": change.point,
        "A": interval(change.before), "B": interval(change.after), "change": moved, "90 % interval": _range(change),
        "verdict": change.verdict,
    }  # fmt: skip


def _percent(change: Change, value: float) -> str:
    """A difference as a share of what was before; as it is where that was nothing."""
    before = 0.0 if change.before is None else change.before.value
    share = 100 * value / abs(before) if before else value
    return f"{'+' if share > 0 else ''}{number(share, 2 if before else 3)}{' %' if before else ''}"


def _range(change: Change) -> str:
    if change.low is None or change.high is None:
        return ""
    return f"{_percent(change, change.low)} to {_percent(change, change.high)}"


def _change(change: Change, subject: str) -> dict[str, Any]:
    """A row for scripts; every row has every key."""
    row: dict[str, Any] = {"metric": change.metric, subject: change.subject, "point": change.point}
    for name, side in (("before", change.before), ("after", change.after)):
        value, low, high = (None, None, None) if side is None else side
        row |= {name: value, f"{name}_low": low, f"{name}_high": high}
    row |= {"low": change.low, "high": change.high, "seeds": change.seeds, "verdict": change.verdict}
    values: dict[str, Any] = plain(row)
    return values


def _short(value: Any) -> str:
    if isinstance(value, float):
        return plain_value(value)
    text = BLANK if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."

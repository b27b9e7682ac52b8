"""What changed between two results of one question: per policy and metric, with an interval and a verdict.

Runs are paired by policy, swept values and seed. The same seed draws the same requests, so that the interval is that of
the mean of paired differences d over n seeds,

    mean(d) +- t(0.95, n - 1) x sd(d) / sqrt(n)          (90 %; Welch's of all where they share fewer than two seeds)

and needs two seeds; without them a difference is told as what it is, of one draw of requests. Percentages are of the
first result's mean. A verdict says better or worse where the metric has a direction and the interval leaves out zero;
a change of less than 0.1 % is ``same``: nobody would act on it.

Left out: the noise of the profile, which is the same on both sides where the profile is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.against.result import pairing
from servecast.errors import InputError
from servecast.files import plain, strict
from servecast.metrics import METRICS, ranked
from servecast.run.results import swept
from servecast.text import BLANK, Table, missing, number, plain_value, short_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pandas as pd

COVERAGE = 0.9
SAME = 0.001  # changes of a smaller share count as none

#: Keys of a scenario that say where and what for, not what was run.
_SAID = ("name", "sweep", "seeds")


class Change(NamedTuple):
    """One metric of one policy at one point: means before and after, and the difference with its interval (or None)."""

    metric: str
    policy: str
    point: str
    before: float
    after: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def difference(self) -> float:
        """After less before."""
        return self.after - self.before

    @property
    def verdict(self) -> str:
        """``same``, ``better``, ``worse``, ``more``, ``less``; ``unclear`` where the interval holds zero.

        Changes of less than 0.1 % are ``same``."""
        if math.isnan(self.before) or math.isnan(self.after):
            return "same" if math.isnan(self.before) and math.isnan(self.after) else "only one has it"
        if self.low is not None and self.high is not None:
            if max(-self.low, self.high) <= SAME * abs(self.before):
                return "same"
            if self.low <= 0 <= self.high:
                return "unclear"
        if abs(self.difference) <= SAME * abs(self.before):
            return "same"
        way = METRICS[self.metric].direction
        if way == 0:
            return "more" if self.difference > 0 else "less"
        return "better" if way * self.difference > 0 else "worse"


@dataclass(frozen=True)
class Difference:
    """Two results held against each other.

    keys : key path of the scenarios, and its value in each, where they differ; None where one lacks it
    changes : by metric, policy and point
    notes : what could not be compared
    """

    keys: tuple[tuple[str, Any, Any], ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    verdict: str = ""  # of the whole: there is one for each metric

    @property
    def verdicts(self) -> dict[str, str]:
        """One line a metric that is there on either side, over all policies and points."""
        found = {}
        for metric in dict.fromkeys(change.metric for change in self.changes):
            of = [change for change in self.changes if change.metric == metric]
            if any(change.verdict != "same" or not math.isnan(change.before) for change in of):
                found[metric] = _over_all(of)
        return found

    def tables(self, points: bool = False) -> list[Table]:
        """What differs in the scenarios, the verdict on each metric, and (``points``) each point."""
        found = [Table("scenario keys that differ", ("key", "A", "B"), tuple(_told(key) for key in self.keys))]
        single = len({(change.policy, change.point) for change in self.changes}) == 1
        if not single:
            lines = tuple(self.verdicts.items())
            found.append(Table("what changed from A to B", ("metric", "verdict"), lines))
        if points or single:
            rows = tuple(_row(change) for change in self.changes if not math.isnan(change.before + change.after))
            heads = ("metric", "policy", "at", "A", "B", "change", "90 % interval", "verdict")
            found.append(Table("each point", heads, rows))
        return [table for table in found if table.rows]

    def plain(self) -> dict[str, Any]:
        """The same as plain values, for scripts; what is not known is None."""
        changes = [{**change._asdict(), "verdict": change.verdict} for change in self.changes]
        finite = [strict(change) for change in changes]
        keys = [{"key": key, "a": plain(a, str), "b": plain(b, str)} for key, a, b in self.keys]
        return {"keys": keys, "verdicts": self.verdicts, "changes": finite, "notes": list(self.notes)}


class _Side(NamedTuple):
    folder: Path
    scenario: dict[str, Any]
    summary: pd.DataFrame


def difference(first: Path, second: Path) -> Difference:
    """Hold the results folder ``second`` (after) against ``first`` (before).

    Raises
    ------
    InputError : a folder holds no results or a run twice, they sweep different keys, or no point is in both
    """
    a, b = _read(first), _read(second)
    keys = swept(a.summary)
    if keys != swept(b.summary):
        only = sorted(set(keys) ^ set(swept(b.summary)))
        problem = f"sweeps {', '.join(only) or 'its keys in another order'}, the other does not: sweep the same keys"
        raise InputError(str(second if set(swept(b.summary)) - set(keys) else first), problem)
    before, later = (list(dict.fromkeys(side.summary["policy"])) for side in (a, b))
    renamed, notes = pairing.renamed(before, later, (a.scenario, b.scenario))
    after = b.summary.assign(policy=b.summary["policy"].replace(renamed))
    groups = {side: _groups(frame, keys, of.folder) for side, frame, of in (("a", a.summary, a), ("b", after, b))}
    both = [which for which in groups["a"] if which in groups["b"]]
    if not both:
        raise InputError(str(second), f"has no policy and point in common with {first}: run both with the same sweep")
    for side, others, name in (("a", "b", first), ("b", "a", second)):
        lonely = sum(which not in groups[others] for which in groups[side])
        if lonely:
            notes.append(f"{lonely} of {len(groups[side])} policies and points are in {name} alone.")
    compared = [each.name for each in ranked() if each.form != "text"]
    compared = [name for name in compared if name in a.summary and name in after]
    changes = [
        _change(metric, which, keys, groups["a"][which], groups["b"][which]) for metric in compared for which in both
    ]
    seeds = [(frozenset(groups["a"][which].index), frozenset(groups["b"][which].index)) for which in both]
    notes += pairing.seeds_told(seeds, (first, second))
    notes += pairing.missing_told(
        [
            (change.metric, ", ".join(filter(None, (change.policy, change.point))), seed)
            for change, which in zip(changes, both * len(compared), strict=False)
            for seed in _gone(change, groups["a"][which], groups["b"][which])
        ]
    )
    if all(change.low is None for change in changes):
        notes.append("One seed: differences without intervals. Run both with --set seeds=5 to know which are chance.")
    return Difference(tuple(_keys(a, b)), tuple(changes), tuple(notes))


def _read(folder: Path) -> _Side:
    import pandas as pd
    import yaml

    folder = folder.parent if folder.name == "summary.csv" else folder
    try:
        scenario = yaml.safe_load((folder / "scenario.yaml").read_text(encoding="utf-8"))
        summary = pd.read_csv(folder / "summary.csv")
        if (summary["seed"] % 1 != 0).any():
            raise ValueError("a seed is no whole number")
        summary = summary.assign(policy=summary["policy"].astype(str), seed=summary["seed"].astype(int))
    except OSError as error:
        problem = f"{error.strerror}: name a results folder, as servecast run writes them"
        raise InputError(str(error.filename or folder), problem) from None
    except (ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        problem = f"cannot be read ({' '.join(str(error).split())[:120]}): name a results folder of servecast run"
        raise InputError(str(folder), problem) from None
    if not isinstance(scenario, dict):
        raise InputError(str(folder / "scenario.yaml"), "is no scenario: name a results folder of servecast run")
    return _Side(folder, scenario, summary)


# --- which runs belong together -------------------------------------------------------------------------------------


def _groups(summary: pd.DataFrame, keys: list[str], folder: Path) -> dict[tuple[Any, ...], pd.DataFrame]:
    """Rows by policy and swept values (missing ones as None), one a seed.

    Raises InputError where a run stands twice.
    """
    found: dict[tuple[Any, ...], list[int]] = {}
    for place, record in enumerate(summary[["policy", *keys]].to_dict("records")):
        which = tuple(None if missing(value) else value for value in record.values())
        found.setdefault(which, []).append(place)
    groups = {which: summary.iloc[places].set_index("seed") for which, places in found.items()}
    for which, frame in groups.items():
        if frame.index.has_duplicates:
            seed = frame.index[frame.index.duplicated()][0]
            told = f"{', '.join(str(part) for part in which if part is not None)}, seed {seed}"
            problem = f"has two rows of one run ({told}): keep one, or run the scenario again"
            raise InputError(str(folder / "summary.csv"), problem)
    return groups


def _change(
    metric: str, which: tuple[Any, ...], keys: Sequence[str], before: pd.DataFrame, after: pd.DataFrame
) -> Change:
    a, b = (_values(frame, metric) for frame in (before, after))
    shared = a.index.intersection(b.index)
    paired = pairing.paired(len(a), len(b), len(shared))
    if paired:
        a, b = a[shared], b[shared]
    point = ", ".join(
        f"{short_key(key)}={plain_value(value)}"
        for key, value in zip(keys, which[1:], strict=True)
        if value is not None
    )
    low, high = _interval(a.to_numpy(), b.to_numpy(), paired=paired)
    means = [float(side.mean()) if len(side) else math.nan for side in (a, b)]
    seeds = len(shared) if paired else min(len(a), len(b))
    return Change(metric, str(which[0]), point, means[0], means[1], low, high, seeds)


def _values(frame: pd.DataFrame, metric: str) -> pd.Series[float]:
    """A metric by seed, where it has a value: what is not finite is none."""
    import pandas as pd

    values = pd.to_numeric(frame[metric], errors="coerce").astype(float)
    return values[values.abs() < math.inf]


def _gone(change: Change, before: pd.DataFrame, after: pd.DataFrame) -> list[int]:
    """Seeds of which both have the run and one alone the metric, where it is compared all the same."""
    a, b = (set(_values(frame, change.metric).index) for frame in (before, after))
    return sorted((a ^ b) & set(before.index) & set(after.index)) if a and b else []


def _interval(a: Any, b: Any, *, paired: bool) -> tuple[float | None, float | None]:
    """Of the difference of the means; None from fewer than two seeds on either side."""
    if min(len(a), len(b)) < 2:
        return None, None
    from scipy import stats

    if paired:
        centre, spread, freedom = float((b - a).mean()), float((b - a).var(ddof=1)) / len(a), float(len(a) - 1)
    else:
        centre = float(b.mean() - a.mean())
        parts = [float(side.var(ddof=1)) / len(side) for side in (a, b)]
        spread = sum(parts)
        squares = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (a, b), strict=True))
        freedom = spread**2 / squares if squares else 1.0
    half = float(stats.t.ppf((1 + COVERAGE) / 2, freedom)) * math.sqrt(spread)
    return centre - half, centre + half


# --- which keys differ ----------------------------------------------------------------------------------------------


def _keys(a: _Side, b: _Side) -> Iterator[tuple[str, Any, Any]]:
    return keys_between(a.scenario, a.folder, b.scenario, b.folder)


def keys_between(
    first: dict[str, Any], folder: Path, second: dict[str, Any], other: Path
) -> Iterator[tuple[str, Any, Any]]:
    """Key paths whose values differ between scenarios of two folders; what follows from them (``derived``) last."""
    before, after = dict(_flat(first, folder)), dict(_flat(second, other))
    paths = [path for path in dict.fromkeys([*before, *after]) if path.split(".")[0].split("[")[0] not in _SAID]
    for path in sorted(paths, key=lambda path: path.startswith("derived.")):
        if before.get(path) != after.get(path):
            yield path, before.get(path), after.get(path)
    for key in _SAID[1:]:
        if first.get(key) != second.get(key):
            yield key, first.get(key), second.get(key)


def _flat(value: Any, folder: Path, path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by key path; a path of a file counts from its results folder."""
    if isinstance(value, dict) and value:
        for key, entry in value.items():
            yield from _flat(entry, folder, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for at, entry in enumerate(value):
            yield from _flat(entry, folder, f"{path}[{at}]")
    elif isinstance(value, str) and value.startswith(("./", "../")):
        yield path, str((folder / value).resolve())
    else:
        yield path, value


# --- in words -------------------------------------------------------------------------------------------------------


def _over_all(changes: Sequence[Change]) -> str:
    """``worse at 3 of 8, most at continuous, rate_rps=8: +12 % (+10 to +14)``."""
    counts: dict[str, int] = {}
    for change in changes:
        counts[change.verdict] = counts.get(change.verdict, 0) + 1
    if len(counts) == 1 and next(iter(counts)) in ("same", "unclear"):
        return next(iter(counts))
    order = ("worse", "better", "more", "less", "unclear", "same", "only one has it")
    said = ", ".join(f"{name} at {counts[name]}" for name in order if name in counts)
    clear = [change for change in changes if change.verdict in ("worse", "better", "more", "less")]
    if not clear:
        return f"{said} of {len(changes)}"
    most = max(clear, key=_size)
    where = ", ".join(part for part in (most.policy, most.point) if part)
    return f"{said} of {len(changes)}; most {_percent(most, most.difference)}{_within(most)} ({where})"


def _size(change: Change) -> float:
    return abs(change.difference / change.before) if change.before else math.inf


def _percent(change: Change, value: float) -> str:
    """A difference as a share of what was before; as it is where that was nothing."""
    if not change.before:
        return f"{'+' if value > 0 else ''}{number(value)}"
    share = 100 * value / abs(change.before)
    return f"{'+' if share > 0 else ''}{number(share, 2)} %"


def _within(change: Change) -> str:
    return f" [{_range(change)}]" if change.low is not None else ""


def _range(change: Change) -> str:
    if change.low is None or change.high is None:
        return ""
    return f"{_percent(change, change.low)} to {_percent(change, change.high)}"


def _row(change: Change) -> tuple[str, ...]:
    return (
        change.metric, change.policy, change.point, number(change.before), number(change.after),
        _percent(change, change.difference), _range(change), change.verdict,
    )  # fmt: skip


def told_keys(keys: Sequence[tuple[str, Any, Any]]) -> tuple[tuple[str, str, str], ...]:
    """Rows of a table of them."""
    return tuple(map(_told, keys))


def _told(key: tuple[str, Any, Any]) -> tuple[str, str, str]:
    path, before, after = key
    return path, _short(before), _short(after)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return plain_value(value)
    text = BLANK if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

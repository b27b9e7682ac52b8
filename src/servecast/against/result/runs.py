"""What changed between two results of one question: by metric, policy and point, with an interval.

Runs are paired by policy, swept values and seed. The same seed draws the same requests, so that the interval is that of
the mean of paired differences d over n seeds,

    mean(d) +- t(0.95, n - 1) x sd(d) / sqrt(n)          (90 %; Welch's of all where they share fewer than two seeds)

and needs two seeds; without them a difference is of one draw of requests, and may be chance.

Policies belong together by name, then by parameters, then by place. Left out: the noise of the profile, which is the
same on both sides where the profile is.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.against.result.changes import Change, Difference, keys_between, reading
from servecast.errors import InputError
from servecast.files import SCENARIO
from servecast.metrics import METRICS, ranked
from servecast.plan.uncertainty import Estimate
from servecast.run.results import swept
from servecast.text import listed, missing, plain_value, short_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pandas as pd

    Groups = dict[tuple[Any, ...], pd.DataFrame]

_COVERAGE = 0.9


class _Side(NamedTuple):
    folder: Path
    scenario: dict[str, Any]
    summary: pd.DataFrame


def difference(first: Path, second: Path) -> Difference:
    """Hold the results folder ``second`` (after) against ``first`` (before).

    Raises InputError: a folder holds no results or a run twice, they sweep different keys, or no point is in both.
    """
    a, b = _read(first), _read(second)
    keys = swept(a.summary)
    if keys != swept(b.summary):
        only = sorted(set(keys) ^ set(swept(b.summary)))
        problem = f"sweeps {', '.join(only) or 'its keys in another order'}, the other does not: sweep the same keys"
        raise InputError(str(second if set(swept(b.summary)) - set(keys) else first), problem)
    renamed, notes = _renamed(a, b)
    before = _groups(a, keys)
    after = _groups(b._replace(summary=b.summary.assign(policy=b.summary["policy"].replace(renamed))), keys)
    both = [which for which in before if which in after]
    if not both:
        raise InputError(str(second), f"has no policy and point in common with {first}: run both with the same sweep")
    for own, others, name in ((before, after, first), (after, before, second)):
        if lonely := sum(which not in others for which in own):
            notes.append(f"{lonely} of {len(own)} policies and points are in {name} alone.")
    metrics = [each.name for each in ranked() if each.form != "text"]
    metrics = [name for name in metrics if name in a.summary and name in b.summary]
    pairs = [(metric, which) for metric in metrics for which in both]
    changes = tuple(_change(metric, it, _point(it, keys), before[it], after[it]) for metric, it in pairs)
    notes += [*_seeds_left_out(before, after, (first, second)), *_values_left_out(metrics, keys, before, after)]
    if all(change.low is None for change in changes):
        notes.append("One seed: differences without intervals. Run both with --set seeds=5 to know which are chance.")
    keys_told = tuple(keys_between(a.scenario, a.folder, b.scenario, b.folder))
    return Difference("policy", (first, second), keys_told, changes, tuple(notes))


def _read(folder: Path) -> _Side:
    import pandas as pd

    from servecast import plain_yaml

    folder = folder.parent if folder.name == "summary.csv" else folder
    with reading(folder, "servecast run"):
        scenario = plain_yaml.read(folder / SCENARIO)
        summary = pd.read_csv(folder / "summary.csv")
        if not isinstance(scenario, dict) or (summary["seed"] % 1 != 0).any():
            raise ValueError("a scenario is a mapping, and a seed a whole number")
        summary = summary.assign(policy=summary["policy"].astype(str), seed=summary["seed"].astype(int))
    return _Side(folder, scenario, summary)


# --- which runs belong together -------------------------------------------------------------------------------------


def _renamed(a: _Side, b: _Side) -> tuple[dict[str, str], list[str]]:
    """What A calls those policies of B that it does not know, and what to tell of them.

    Those with equal parameters belong together; what is left is taken in order, if it is as many.
    """
    before, after = (list(dict.fromkeys(side.summary["policy"])) for side in (a, b))
    old, new = ([name for name in own if name not in others] for own, others in ((before, after), (after, before)))
    known, parameters = _parameters(before, a.scenario), _parameters(after, b.scenario)
    found, notes = {}, []
    for name in list(new):
        same = next((other for other in old if name in parameters and known.get(other) == parameters[name]), None)
        if same is not None:
            found[name] = same
            old.remove(same)
            new.remove(name)
            notes.append(f"{name} is held against {same}, which has the same parameters.")
    if len(old) == len(new):
        found |= dict(zip(new, old, strict=True))
        notes += [f"{name} is held against {other}." for name, other in zip(new, old, strict=True)]
    return found, notes


def _parameters(names: Sequence[str], scenario: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The parameters of each policy by its name; empty where the scenario does not say which is which."""
    entries = scenario.get("policies")
    if not isinstance(entries, list) or len(entries) != len(names):
        return {}
    found = {}
    for name, entry in zip(names, entries, strict=True):
        own = entry.get("name") if isinstance(entry, dict) else None
        # A policy without a name is called by its kind, with what tells it from others of that kind.
        if not isinstance(entry, dict) or (name != own if own else name.split(" ")[0] != entry.get("kind")):
            return {}
        found[name] = {**entry, "name": None}
    return found


def _groups(side: _Side, keys: list[str]) -> Groups:
    """Rows by policy and swept values (missing ones as None), one a seed.

    Raises InputError where a run stands twice.
    """
    by = ["policy", *keys]
    twice = side.summary[side.summary.duplicated([*by, "seed"])]
    if len(twice):
        *which, seed = twice.iloc[0][[*by, "seed"]]
        run = f"{', '.join(str(value) for value in which if not missing(value))}, seed {seed}"
        problem = f"has two rows of one run ({run}): keep one, or run the scenario again"
        raise InputError(str(side.folder / "summary.csv"), problem)
    return {
        tuple(None if missing(value) else value for value in which): rows.set_index("seed")
        for which, rows in side.summary.groupby(by, sort=False, dropna=False)
    }


def _change(metric: str, which: tuple[Any, ...], point: str, before: pd.DataFrame, after: pd.DataFrame) -> Change:
    """Of the means over the common seeds, or over all of them where those are too few."""
    a, b = _values(before, metric), _values(after, metric)
    shared = a.index.intersection(b.index)
    paired = _paired(len(a), len(b), len(shared))
    if paired:
        a, b = a[shared], b[shared]
    first, second = (Estimate(float(side.mean())) if len(side) else None for side in (a, b))
    low, high = interval(a.to_numpy(), b.to_numpy(), paired=paired)
    way, seeds = METRICS[metric].direction, min(len(a), len(b))
    return Change(metric, str(which[0]), point, first, second, way, low, high, seeds)


def _point(which: tuple[Any, ...], keys: Sequence[str]) -> str:
    values = zip(keys, which[1:], strict=True)
    return ", ".join(f"{short_key(key)}={plain_value(value)}" for key, value in values if value is not None)


def _values(frame: pd.DataFrame, metric: str) -> pd.Series[float]:
    """A metric by seed, where it has a value: what is not finite is none."""
    import pandas as pd

    values = pd.to_numeric(frame[metric], errors="coerce").astype(float)
    return values[values.abs() < math.inf]


def _paired(before: int, after: int, shared: int) -> bool:
    """Whether runs are compared by their common seeds alone; else all of them are, as separate draws.

    One common seed has no interval, and says little where both have more; where one side has a single seed there is
    none in any case, and the same requests are the better comparison.
    """
    return shared >= 2 or (shared == 1 and min(before, after) < 2)


def interval(a: Any, b: Any, *, paired: bool) -> tuple[float | None, float | None]:
    """The 90 % interval of mean(b) - mean(a); None from fewer than two values on either side."""
    if min(len(a), len(b)) < 2:
        return None, None
    from scipy.special import stdtrit

    if paired:
        centre, spread, freedom = float((b - a).mean()), float((b - a).var(ddof=1)) / len(a), float(len(a) - 1)
    else:
        centre = float(b.mean() - a.mean())
        parts = [float(side.var(ddof=1)) / len(side) for side in (a, b)]
        spread = sum(parts)
        squares = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (a, b), strict=True))
        freedom = spread**2 / squares if squares else 1.0  # Welch and Satterthwaite
    half = float(stdtrit(freedom, (1 + _COVERAGE) / 2)) * math.sqrt(spread)
    return centre - half, centre + half


# --- what is left out -----------------------------------------------------------------------------------------------


def _seeds_left_out(before: Groups, after: Groups, names: tuple[Path, Path]) -> Iterator[str]:
    """What to tell of policies and points at which one side alone has a seed."""
    seeds = [(set(rows.index), set(after[which].index)) for which, rows in before.items() if which in after]
    how = {
        True: "compared by the common seeds alone",
        False: "fewer than two in common, so that all are compared as separate draws (Welch's interval is wider)",
    }
    for paired, text in how.items():
        at = [(a, b) for a, b in seeds if a != b and _paired(len(a), len(b), len(a & b)) == paired]
        if at:
            sides = " and ".join(f"{_numbers(side)} in {name}" for side, name in zip(at[0], names, strict=True))
            yield f"Seeds differ at {len(at)} of {len(seeds)} policies and points (like {sides}): {text}."


def _values_left_out(metrics: Sequence[str], keys: Sequence[str], before: Groups, after: Groups) -> Iterator[str]:
    """What to tell of runs that both have, and of which one side alone has the metric."""
    gone = []
    for metric, (which, rows) in product(metrics, before.items()):
        others = after.get(which, rows)
        a, b = (set(_values(each, metric).index) for each in (rows, others))
        both = set(rows.index) & set(others.index)
        where = ", ".join(filter(None, (str(which[0]), _point(which, keys))))
        gone += [f"{metric} of {where}, seed {seed}" for seed in sorted((a ^ b) & both if a and b else ())]
    if gone:
        yield f"Left out, because one side alone has a value: {gone[0]}; {len(gone)} in all."


def _numbers(seeds: set[int]) -> str:
    """``0 to 3``, or ``1, 5 and 7``."""
    each = sorted(seeds)
    if len(each) > 2 and each[-1] - each[0] == len(each) - 1:
        return f"{each[0]} to {each[-1]}"
    return listed([str(seed) for seed in each])

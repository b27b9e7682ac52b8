"""The verdict on a difference: what got better and worse from A to B; of plans, first which GPUs each takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servecast.against.result.plans import CHOSEN
from servecast.report.plan_words import hardware, statistic
from servecast.report.verdicts import Verdict, first_concise
from servecast.text import listed, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from servecast.against.result.changes import Difference

CLEAR = ("worse", "better", "more", "less")
_MOST_METRICS = 6  # that the details name for each verdict


def verdict(found: Difference) -> Verdict:
    """Of runs, how many metrics got better and worse; of plans, GPUs and dollars of both."""
    if found.plans is None:
        return _of_runs(found)
    best = [plan["best"] for plan in found.plans]
    if best[0] is None or best[1] is None:
        served = [name for name, side in zip("AB", best, strict=True) if side is not None]
        return Verdict(f"Only {served[0]} serves its target." if served else "Neither plan serves its target.")
    return Verdict(first_concise(_fleets(best)), tuple(_of_plans(found)))


def _of_runs(found: Difference) -> Verdict:
    metrics = list(dict.fromkeys(change.metric for change in found.changes if change.before or change.after))
    ways = {way: _metrics(found, way) for way in CLEAR}
    mixed = [metric for metric in ways["better"] if metric in ways["worse"]]
    counts = [f"{len(names)} {way}" for way, names in ways.items() if names]
    if not counts:
        return Verdict(f"From A to B none of {len(metrics)} metrics changed beyond chance.")
    headline = f"From A to B {listed(counts)} of {len(metrics)} metrics"
    details = [f"{way.capitalize()}: {_few(names)}." for way, names in ways.items() if names]
    if mixed:
        details.append(f"Better at some points and worse at others: {_few(mixed)}.")
    return Verdict(first_concise([headline]), tuple(details))


def _fleets(best: list[Mapping[str, Any]]) -> Iterator[str]:
    took = [f"{option['target_gpus']} {hardware(option['device'])}" for option in best]
    prices = [option.get("usd_for_target") for option in best]
    if None not in prices:
        yield f"A takes {took[0]}, B {took[1]}, for ${prices[0]:,.2f} and ${prices[1]:,.2f} an hour"
    yield f"A takes {took[0]}, B {took[1]}"


def _of_plans(found: Difference) -> Iterator[str]:
    assert found.plans is not None
    labels = [plan["best"]["label"] for plan in found.plans]
    yield f"A chooses {labels[0]}, B {labels[1] if labels[0] != labels[1] else 'the same'}."
    load = next(change for change in found.changes if change.metric.startswith("highest load"))
    words = {"unclear": "no clear difference, the intervals overlap", "same": "the same"}
    if load.before is not None and load.after is not None:
        said = words.get(load.verdict, load.verdict)
        yield f"The highest load of B is {number(load.after.value)} against {number(load.before.value)}: {said}."
    for way in ("better", "worse"):
        if names := [name for name in _metrics(found, way, CHOSEN) if name != load.metric]:
            yield f"{way.capitalize()}: {_few(names)}."
    sure = [bool(plan["supported"]) for plan in found.plans]
    if sure[0] != sure[1]:
        yield f"The interval supports {'A' if sure[0] else 'B'} alone."


def _metrics(found: Difference, way: str, subject: str | None = None) -> list[str]:
    """Metrics with this verdict on some change; of one subject, where it is named."""
    named = [change for change in found.changes if subject in (None, change.subject) and change.verdict == way]
    return list(dict.fromkeys(change.metric for change in named))


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_METRICS} more" if len(names) > _MOST_METRICS else ""
    return f"{', '.join(map(_said, names[:_MOST_METRICS]))}{more}"


def _said(metric: str) -> str:
    name = metric.removesuffix(" at the target")
    return metric.replace(name, statistic(name), 1) if name != metric else metric

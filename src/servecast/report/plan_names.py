"""Names for a plan's page: configurations by what differs between them, statistics and GPUs as people say them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from servecast.text import short_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from servecast.plan.answer import Option, Plan

#: Keys whose values are names and need no key before them.
_NAMING = ("profile", "device", "model")
_TIMES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "gap between tokens",
    "e2e": "time to the last token",
    "queue": "time in the queue",
}
_OTHERS = {"slo_attainment": "share of requests within slo", "goodput_rps": "requests/s within slo"}


def statistic(name: str) -> str:
    """``ttft_p99_s`` as ``p99 time to first token``; another name as it is."""
    found = re.fullmatch(r"([a-z0-9]+)_(mean|p\d+)_s", name)
    if found is None or found[1] not in _TIMES:
        return _OTHERS.get(name, name)
    return f"{found[2]} {_TIMES[found[1]]}"


def hardware(device: str) -> str:
    """``h100-sxm`` as ``H100 SXM``."""
    return device.upper().replace("-", " ")


def gpus(option: Option, replicas: int) -> str:
    """``2 H200``; ``2 replicas of 4 H200 each`` where a model is split over several."""
    each, name = option.tensor_parallel, hardware(option.device)
    if each == 1:
        return f"{replicas} {name}"
    return f"{replicas} replica{'s' if replicas > 1 else ''} of {each} {name}{' each' if replicas > 1 else ''}"


def shortened(plan: Plan) -> tuple[Plan, str]:
    """The plan with configurations named by what differs between them, and what all of them have in common."""
    names, common = _short(plan.options)
    options = tuple(replace(option, label=names[option.label]) for option in plan.options)
    best = plan.best
    if best is not None:
        best = replace(best, label=names.get(best.label, best.label))
    others = {name: names.get(getattr(plan, name), getattr(plan, name)) for name in ("cheapest", "break_even_of")}
    return replace(plan, options=options, best=best, **others), common


def _short(options: Sequence[Option]) -> tuple[dict[str, str], str]:
    whole = {option.label: option.label for option in options}
    parts = {option.label: _parted(option) for option in options}
    if len(options) < 2 or any(each is None for each in parts.values()):
        return whole, ""
    known = {label: each for label, each in parts.items() if each is not None}
    policies = {policy for policy, _ in known.values() if policy}
    keys = list(dict.fromkeys(key for _, changed in known.values() for key in changed))
    varied = [key for key in keys if len({changed.get(key) for _, changed in known.values()}) > 1]
    last = [short_key(key) for key in varied]
    names = {}
    for label, (policy, changed) in known.items():
        told = [
            value
            if short_key(key) in _NAMING
            else f"{short_key(key) if last.count(short_key(key)) == 1 else key}={value}"
            for key, value in changed.items()
            if key in varied
        ]
        names[label] = ", ".join([*([policy] if policy and len(policies) > 1 else []), *told])
    if len(set(names.values())) < len(names) or not all(names.values()):
        return whole, ""
    first = next(iter(known.values()))[1]
    shared = [f"{short_key(key)}={first[key]}" for key in keys if key not in varied]
    if len(policies) == 1:
        shared = [*policies, *shared]
    return names, ", ".join(shared)


def _parted(option: Option) -> tuple[str, dict[str, str]] | None:
    """Policy, and the changed keys' values as text; None where the label was not made of these."""
    changed = {key: str(value) for key, value in option.changed.items()}
    for told in _told(changed):
        if option.label == told:
            return ("", changed) if told and changed else (told, changed)
        if told and option.label.endswith(f", {told}"):
            return option.label.removesuffix(f", {told}"), changed
    return None if changed else (option.label, changed)


def _told(changed: Mapping[str, Any]) -> tuple[str, str]:
    """The changes as a label has them: with short keys, or with whole ones where two end alike."""
    last = [short_key(key) for key in changed]
    mixed = (short if last.count(short) == 1 else key for key, short in zip(changed, last, strict=True))
    return (
        ", ".join(f"{key}={value}" for key, value in zip(mixed, changed.values(), strict=True)),
        ", ".join(f"{short_key(key)}={value}" for key, value in changed.items()),
    )

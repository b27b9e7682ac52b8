"""Words for a plan: numbers with their intervals; GPUs, statistics and configurations as people say them."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from servecast.metrics import LATENCIES
from servecast.text import BLANK, number, short_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servecast.plan.answer import Option, Plan
    from servecast.plan.uncertainty import Estimate

_MOST_DIGITS = 7
#: Keys whose values are names and need no key before them.
_NAMING = ("profile", "device", "model")
_OTHERS = {"slo_attainment": "share of requests within slo", "goodput_rps": "requests/s within slo"}


# --- numbers --------------------------------------------------------------------------------------------------------


def bounds(estimate: Estimate | None, digits: int = 3) -> str:
    """The 90 % interval of a value: ``8.51 to 9.05``; blank where there is none."""
    if estimate is None or estimate.low is None:
        return BLANK
    return " to ".join(
        "no bound" if end is None or math.isinf(end) else number(end, digits) for end in (estimate.low, estimate.high)
    )


def interval(estimate: Estimate | None, digits: int = 3) -> str:
    """``8.78 (8.51 to 9.05)``: the value and its 90 % interval."""
    if estimate is None:
        return BLANK
    value = "no bound" if math.isinf(estimate.value) else number(estimate.value, digits)
    return value if estimate.low is None else f"{value} ({bounds(estimate, digits)})"


def apart(estimate: Estimate, target: float, digits: int = 3) -> str:
    """The interval with digits enough that no end which is not the target reads like it."""
    others = [end for end in estimate if end is not None and end != target and math.isfinite(end)]
    while digits < _MOST_DIGITS and f"{target:.{digits}g}" in [f"{end:.{digits}g}" for end in others]:
        digits += 1
    return interval(estimate, digits)


def timed(name: str, value: str) -> str:
    """A value of a statistic with its unit behind the number: ``0.370 s (0.240 to 0.510)``."""
    if not name.endswith("_s"):
        return value
    first, space, rest = value.partition(" (")
    return f"{first} s{space}{rest}"


# --- names ----------------------------------------------------------------------------------------------------------


def statistic(name: str) -> str:
    """``ttft_p99_s`` as ``p99 time to first token``; another name as it is."""
    found = re.fullmatch(r"(\w+)_(mean|p\d+)_s", name)
    if found is None or found[1] not in LATENCIES:
        return _OTHERS.get(name, name)
    return f"{found[2]} {LATENCIES[found[1]].words}"


def with_names(reason: str) -> str:
    """A reason or a doubt with its statistic as people say it."""
    head, space, tail = reason.partition(" ")
    return f"{statistic(head)}{space}{tail}"


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
    names, common = _short_names(plan.options)
    options = tuple(replace(option, label=names[option.label]) for option in plan.options)
    best = plan.best
    if best is not None:
        best = replace(best, label=names.get(best.label, best.label))
    others = {name: names.get(getattr(plan, name), getattr(plan, name)) for name in ("cheapest", "break_even_of")}
    return replace(plan, options=options, best=best, **others), common


def _short_names(options: Sequence[Option]) -> tuple[dict[str, str], str]:
    """A short name for each label, and what is left out of all of them; the labels themselves where that is unclear."""
    changed = {option.label: {key: str(value) for key, value in option.changed.items()} for option in options}
    policies = list(dict.fromkeys(option.policy for option in options if option.policy))
    keys = list(dict.fromkeys(key for values in changed.values() for key in values))
    varied = [key for key in keys if len({values.get(key) for values in changed.values()}) > 1]
    ends = [short_key(key) for key in varied]
    names = {}
    for option in options:
        parts = [option.policy] if option.policy and len(policies) > 1 else []
        for key, value in changed[option.label].items():
            if key in varied:
                name = short_key(key) if ends.count(short_key(key)) == 1 else key
                parts.append(value if short_key(key) in _NAMING else f"{name}={value}")
        names[option.label] = ", ".join(parts)
    if len(options) < 2 or len(set(names.values())) < len(names) or not all(names.values()):
        return {label: label for label in names}, ""
    first = changed[options[0].label]
    shared = [f"{short_key(key)}={first[key]}" for key in keys if key not in varied]
    return names, ", ".join([*(policies if len(policies) == 1 else ()), *shared])

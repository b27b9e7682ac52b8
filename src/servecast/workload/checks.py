"""What values of a dataclass may be: anything else is a ValueError that names the value and says what it must be."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Rule = tuple[str, Callable[[Any], bool]]

AT_LEAST_0: Rule = ("be finite and at least 0", lambda value: 0 <= value < inf)
ABOVE_0: Rule = ("be finite and above 0", lambda value: 0 < value < inf)
AT_LEAST_1: Rule = ("be at least 1", lambda value: value >= 1)


def between(low: float, high: float, said: str) -> Rule:
    """From ``low`` to ``high``, both included."""
    return f"lie between {said}", lambda value: low <= value <= high


def one_of(*known: str) -> Rule:
    """One of these words."""
    return f"be {' or '.join(known)}", lambda value: value in known


def check(source: object, rule: Rule, *names: str) -> None:
    """Raises unless each of these fields of ``source`` that is not None follows the rule."""
    for name in names:
        value = getattr(source, name)
        if value is not None and not rule[1](value):
            raise ValueError(f"{name} is {value}; it must {rule[0]}")

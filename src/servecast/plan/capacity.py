"""The highest load that still meets a goal, for any test of a load: a monotone bracket, closed by bisection.

Let f be the load, and let the goal be met up to some load and not beyond. From a first guess the load grows (or
shrinks) by factors until one that is met and one that is not are known; then the geometric mean halves the bracket
until its ends are within ``tolerance``. Every load is tested with the same random numbers, so that what is met at one
load is met at less. The search ends after ``most`` tests whatever the test says: a test that never fails, one that
never passes, and one that is not monotone at all end it too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

#: Tests of one search, at most: 40 halvings are a factor of 1e12.
MOST = 60


class _Bracket(NamedTuple):
    """What a search found.

    low : highest load that met the goal; None if none did
    high : lowest load above it that did not; None if none failed
    tests : loads tested
    capped : ``ceiling`` itself met the goal, so the goal is not what ends it
    """

    low: float | None
    high: float | None
    tests: int
    capped: bool = False


def highest_load(
    meets: Callable[[float], bool],
    start: float,
    *,
    ceiling: float = math.inf,
    tolerance: float = 0.02,
    floor: float = 0.0,
    step: float = 2.0,
    whole: bool = False,
    most: int = MOST,
) -> _Bracket:
    """The highest load up to ``ceiling`` that ``meets`` the goal, to within ``tolerance`` of itself.

    start : the first load that is tested, or ``ceiling`` if that is less
    floor : no load at or below it is tested but the first; nothing is met then
    step : first factor by which it grows or shrinks; it is squared each time
    whole : loads are whole numbers (users); the bracket then closes at neighbours
    """
    assert start > 0 and ceiling > 0 and step > 1 and tolerance > 0, (start, ceiling, step, tolerance)
    least = max(1.0, floor) if whole else floor
    low: float | None = None
    high: float | None = None
    tests = 0
    load = _rounded(min(start, ceiling), whole)
    while tests < most:
        tests += 1
        if meets(load):
            low = load
            if low >= ceiling:
                return _Bracket(low, None, tests, capped=True)
        else:
            high = load
            if high <= least:
                break
        if low is None or high is None:
            load = _rounded(min(load * step, ceiling) if high is None else max(load / step, least), whole)
            step *= step if step < 16 else 1
            if load == 0 or not math.isfinite(load):
                break
        else:
            if high <= low * (1 + tolerance) if not whole else high - low <= max(1, int(low * tolerance)):
                break
            load = math.floor((low + high) / 2) if whole else math.sqrt(low * high)
    return _Bracket(low, high, tests)


def _rounded(load: float, whole: bool) -> float:
    return float(max(math.floor(load), 1)) if whole and math.isfinite(load) else load


def fewest(meets: Callable[[int], bool], guess: int, most: int) -> int | None:
    """The fewest of something (replicas) that meet the goal, looked for around ``guess``; None if ``most`` do not."""
    count = min(max(guess, 1), most)
    short, enough, step = 0, most, 1
    if meets(count):
        enough = count
        while enough > 1 and not short:
            count = max(enough - step, 1)
            if meets(count):
                enough, step = count, step * 2
            else:
                short = count
    elif count == most or not meets(most):
        return None
    else:
        short = count
    while short and enough - short > 1:
        count = (short + enough) // 2
        if meets(count):
            enough = count
        else:
            short = count
    return enough

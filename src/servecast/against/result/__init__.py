"""What changed between two results of `run`, or between two of `plan`: `servecast diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from servecast.against.result.changes import Difference


def difference(before: Path, after: Path) -> Difference:
    """Hold the folder ``after`` against ``before``.

    Raises InputError: a folder holds no results, one holds a plan and the other does not, or they have nothing in
    common.
    """
    from servecast.against.result import plans, runs

    kinds = [plans.holds_plan(path) for path in (before, after)]
    if kinds[0] != kinds[1]:
        place = before if kinds[0] else after
        raise InputError(str(place), "holds a plan, and the other does not: name two plans, or two results of run")
    return plans.difference(before, after) if kinds[0] else runs.difference(before, after)

"""What changed between two results of `run`, or between two of `plan`: `servecast diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from servecast.against.result.changes import Difference


def difference(before: Path, after: Path) -> Difference:
    """Hold the folder ``after`` against ``before``.

    Raises InputError: no results, a plan beside what is none, or nothing in common.
    """
    from servecast.against.result import plans, runs

    plan = [path for path in (before, after) if plans.holds_plan(path)]
    if len(plan) == 1:
        raise InputError(str(plan[0]), "holds a plan, and the other does not: name two plans, or two results of run")
    return plans.difference(before, after) if plan else runs.difference(before, after)

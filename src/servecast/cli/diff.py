"""The command that holds two results, or two plans, against each other: diff."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated

import typer

from servecast.errors import InputError

if TYPE_CHECKING:
    from servecast.against.result.difference import Difference
    from servecast.against.result.plan_difference import PlanDifference


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(diff)


def diff(
    before: Annotated[Path, typer.Argument(metavar="RESULTS_A", help="Results folder, as run or plan writes it.")],
    after: Annotated[Path, typer.Argument(metavar="RESULTS_B", help="The one to hold against it.")],
    points: Annotated[
        bool, typer.Option("--points", help="Also each policy and sweep point, or each configuration.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON instead.")] = False,
) -> None:
    """Say what changed from one result to another: which keys, which metrics, and whether it is more than chance.

    Changes of less than 0.1 % are told as the same.

    Examples:

        servecast diff results/quickstart other/quickstart

        servecast diff before/mine after/mine --points

        servecast diff results/mine-plan cheaper/mine-plan
    """
    found = _difference(before, after)
    if as_json:
        import json

        print(json.dumps(found.plain(), indent=2, allow_nan=False))
        return
    from servecast.cli import terminal

    terminal.print_tables(found.tables(points))
    for note in found.notes:
        terminal.say(note)
    if found.verdict:
        terminal.say(found.verdict)


def _difference(before: Path, after: Path) -> Difference | PlanDifference:
    """Of two plans, or of two results."""
    from servecast.against.result.difference import difference
    from servecast.against.result.plan_difference import holds_plan, plan_difference

    plans = [holds_plan(path) for path in (before, after)]
    if plans[0] != plans[1]:
        place = before if plans[0] else after
        raise InputError(str(place), "holds a plan, and the other does not: name two plans, or two results of run")
    return plan_difference(before, after) if plans[0] else difference(before, after)

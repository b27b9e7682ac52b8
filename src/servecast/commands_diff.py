"""The command that holds two results against each other: diff."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(diff)


def diff(
    before: Annotated[Path, typer.Argument(metavar="RESULTS_A", help="Results folder, as run writes it.")],
    after: Annotated[Path, typer.Argument(metavar="RESULTS_B", help="The one to hold against it.")],
    points: Annotated[bool, typer.Option("--points", help="Also each policy and sweep point.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON instead.")] = False,
) -> None:
    """Say what changed from one result to another: which keys, which metrics, and whether it is more than chance.

    Examples:

        servecast diff results/quickstart other/quickstart

        servecast diff before/mine after/mine --points
    """
    from servecast.planning.difference import difference

    found = difference(before, after)
    if as_json:
        import json

        print(json.dumps(found.plain(), indent=2, allow_nan=False))
        return
    from servecast import terminal

    terminal.print_tables(found.tables(points))
    for note in found.notes:
        terminal.say(note)

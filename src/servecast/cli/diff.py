"""``servecast diff``: two results, or two plans, held against each other."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated

import typer

from servecast.cli.options import AsJson  # noqa: TC001


def diff(
    before: Annotated[Path, typer.Argument(metavar="RESULTS_A", help="Results folder, as run or plan writes it.")],
    after: Annotated[Path, typer.Argument(metavar="RESULTS_B", help="The one to hold against it.")],
    points: Annotated[
        bool, typer.Option("--points", help="Also each policy and sweep point, or each configuration.")
    ] = False,
    as_json: AsJson = False,
    page: Annotated[Path | None, typer.Option("--page", help="Write everything as a page too: an HTML file.")] = None,
) -> None:
    """Say what changed from one result to another: which keys, which metrics, and whether it is more than chance.

    Changes of less than 0.1 % count as the same.

    Examples:

        servecast diff results/quickstart other/quickstart

        servecast diff before/mine after/mine --points

        servecast diff results/mine-plan cheaper/mine-plan
    """
    from servecast.against.result import difference
    from servecast.cli import terminal
    from servecast.report import differences
    from servecast.report.verdicts.diff import verdict

    found = difference(before, after)
    if page is not None:
        differences.write(found, page)
    if as_json:
        from servecast.files import dumps

        print(dumps(differences.data(found), indent=2))
        return
    terminal.print_tables(differences.tables(found, points))
    for note in found.notes:
        terminal.say(note)
    terminal.say_verdict(verdict(found))
    if page is not None:
        print(f"report: {page}")

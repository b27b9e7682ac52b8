"""``servecast list`` and ``servecast schema``: what is shipped, and what a scenario file may hold."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from servecast.cli.options import AsJson  # noqa: TC001 (typer reads the annotations)


class _Shipped(StrEnum):
    """What can be listed."""

    models = "models"
    devices = "devices"
    profiles = "profiles"
    policies = "policies"
    scenarios = "scenarios"


def list_(what: Annotated[_Shipped, typer.Argument(help="What to list.")], as_json: AsJson = False) -> None:
    """List what is shipped.

    Examples:

        servecast list models

        servecast list scenarios

        servecast list models --json | jq -r '.rows[].name'
    """
    from servecast.cli import terminal
    from servecast.report import listing

    if as_json:
        from servecast.files import dumps

        print(dumps({"schema_version": 1, "list": what.value, "rows": listing.rows(what.value)}))
        return
    terminal.print_tables([listing.listing(what.value)])


def schema() -> None:
    """Print the JSON Schema of a scenario, for editors.

    Examples:

        servecast schema > scenario.schema.json
    """
    from servecast.files import dumps
    from servecast.scenario import Scenario

    print(dumps(Scenario.model_json_schema(), indent=2))

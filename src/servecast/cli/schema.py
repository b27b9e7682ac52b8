"""``servecast schema``: what a scenario file may hold."""

from __future__ import annotations


def schema() -> None:
    """Print the JSON Schema of a scenario, for editors.

    Examples:

        servecast schema > scenario.schema.json
    """
    from servecast.files import dumps
    from servecast.scenario import Scenario

    print(dumps(Scenario.model_json_schema(), indent=2))

"""``servecast explain``: where the memory goes, and how many sequences fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servecast.cli.options import Changes, overrides
from servecast.errors import InputError

if TYPE_CHECKING:
    from servecast.scenario import Scenario


def explain(
    scenario: Annotated[str | None, typer.Argument(help="File, or name of a shipped scenario.")] = None,
    model: Annotated[str | None, typer.Option(help="Model instead of a scenario: a name, or a config.json.")] = None,
    device: Annotated[str | None, typer.Option(help="Device for --model, from its datasheet.")] = None,
    profile: Annotated[str | None, typer.Option(help="Calibrated device for --model.")] = None,
    length: Annotated[list[int], typer.Option(min=1, help="Tokens of a sequence; how many fit?")] = [],  # noqa: B006
    changes: Changes = [],  # noqa: B006 (typer copies it)
) -> None:
    """Show the memory budget line by line, how many sequences fit, the ridge, and what each part of a step's price is.

    Without a scenario or a model: the worked numbers (intensity, ridges, memory walls, padding).

    Examples:

        servecast explain

        servecast explain quickstart --length 4096

        servecast explain --model llama-2-7b --device a100-40gb --set engine.gpu_memory_utilization=0.9
    """
    from servecast.cli import terminal
    from servecast.report import explain as explaining

    if scenario is None and model is None:
        if device or profile or length or changes:
            raise InputError("explain", "a scenario or --model is missing: say what to explain")
        terminal.print_tables(explaining.worked_numbers())
        return
    explained = _scenario(scenario, model, device, profile, overrides(changes))
    terminal.print_tables(explaining.explain(explained, length))


def _scenario(
    name: str | None, model: str | None, device: str | None, profile: str | None, changed: dict[str, object]
) -> Scenario:
    """The scenario of that name, or a bare one of a model and a device."""
    from servecast import scenario
    from servecast.report.explain import bare_scenario

    if name is not None:
        if model or device or profile:
            raise InputError("explain", f"both a scenario ({name}) and a model or device are given: keep one")
        return scenario.load(name, changed)
    assert model is not None
    data = bare_scenario(model, device, profile, Path.cwd())
    return scenario.check(scenario.changed(data, changed), Path.cwd())

"""``servecast validate``: how wrong a simulation is, against the same run executed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from servecast.cli import terminal
from servecast.cli.options import EXIT_INTERRUPTED, EXIT_MISSED, Device, Figures, device_module, forms


def validate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Scenario, loads and gates: scenarios/validation/*.yaml.")
    ],
    device: Device,
    out: Annotated[Path, typer.Option("--out", help="Folder for tables, figures and executed logs.")] = Path("results"),
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the workload instead of the file's.")] = None,
    figures: Figures = "",
) -> None:
    """Execute each policy on the device, simulate it, and say how wrong the simulation was.

    Every policy and load is executed twice; a gate is met by an error within the gate or, where that is larger, twice
    the difference of the two. Exits with 1 where a gate was missed. The file's keys are explained in cpu.yaml.

    Examples:

        servecast validate scenarios/validation/cpu.yaml --device cpu
    """
    drawn = forms(figures)
    device_module("executor")
    from servecast.against.device.validate import validate as run
    from servecast.report import validation_page
    from servecast.report.verdicts.validate import verdict

    try:
        found = run(file, device, lambda made: terminal.aside(f"{made.made} of {made.total}: {made.at_work}"), seed)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted before the first run had ended: there is nothing to tell yet") from None
    page = validation_page.write(found, out / found.name, drawn)
    terminal.print_tables(validation_page.tables(found))
    terminal.say_verdict(verdict(found))
    print(f"report: {page}")
    if found.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if found.outside():
        raise typer.Exit(EXIT_MISSED)

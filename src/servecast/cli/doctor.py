"""``servecast doctor``: whether a machine can calibrate and execute."""

from __future__ import annotations

from typing import Annotated

import typer

from servecast.cli import terminal
from servecast.cli.options import Device, device_module


def doctor(
    device: Device = "cuda",
    as_: Annotated[str | None, typer.Option("--as", help="Device of the catalogue, if not found by its name.")] = None,
) -> None:
    """Check a device in half a minute: software, kernels against a reference, graphs, memory, roofs.

    Exit code 1 where something is off, with what would mend it.

    Examples:

        servecast doctor --device cpu

        servecast doctor --device cuda:0
    """
    wrong = 0
    for check in device_module("doctor").examine(device, as_):
        print(f"{'ok   ' if check.passed else 'WRONG'} {check.name}: {check.found}", flush=True)
        if check.remedy:
            print(f"      {check.remedy}", flush=True)
        wrong += not check.passed
    if wrong:
        terminal.aside(f"{wrong} of the checks failed: what would mend each stands below it")
        raise typer.Exit(1)

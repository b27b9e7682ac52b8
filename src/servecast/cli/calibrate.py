"""``servecast calibrate``: the profile of a device, measured."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servecast.cli import terminal
from servecast.cli.options import Device, Model, device_module
from servecast.errors import InputError

if TYPE_CHECKING:
    from servecast.device.calibrate import Calibration, Progress, Request
    from servecast.device.grid import Limits
    from servecast.specs.model import ModelSpec


def calibrate(
    model: Model,
    device: Device,
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write, calibration/NAME.yaml.")],
    budget_s: Annotated[float, typer.Option(help="Wall seconds for all of it.")] = 300.0,
    dtype: Annotated[str | None, typer.Option(help="bf16, fp16 (CUDA) or fp32 (CPU), if not the model's.")] = None,
    as_: Annotated[str | None, typer.Option("--as", help="Device of the catalogue, if not found by its name.")] = None,
    max_rows: Annotated[int | None, typer.Option(min=2, help="Most rows of a step.")] = None,
    max_length: Annotated[int | None, typer.Option(min=16, help="Longest row, in tokens.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=16, help="Most tokens computed in a step.")] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Compute so many layers and scale the rest.")] = None,
    eager: Annotated[bool, typer.Option("--eager", help="No CUDA graphs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, of the random steps and of their order.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew what stands at --output already.")] = False,
) -> None:
    """Time the real kernels of a model on a device, and fit a profile.

    The weights are random, nothing is downloaded. Stopped before its end (Ctrl-C, or the budget), the next call goes
    on: a budget that ends early gives fewer rounds over the steps, and a profile all the same.

    Examples:

        servecast calibrate --model cpu-small --device cpu --budget-s 60 -o calibration/mine.yaml

        servecast calibrate --model llama-3.1-8b --device cuda:0 -o calibration/my-gpu.yaml
    """
    calibrating = device_module("calibrate")
    from servecast.specs import catalogue

    request: Request = calibrating.Request(
        catalogue.model(model), device, output, budget_s=budget_s, dtype=dtype, entry=as_,
        limits=_limits(max_rows, max_length, max_tokens), layers=layers, graphs=not eager, seed=seed, fresh=fresh,
    )  # fmt: skip
    try:
        found: Calibration = calibrating.calibrate(request, _progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "interrupted: the steps measured so far are kept, the same command goes on with them"
        ) from None
    _print(found, calibrating.report(found), request.model, output)


def _print(found: Calibration, report: Any, spec: ModelSpec, output: Path) -> None:
    """The tables and notes, and the figures beside the profile."""
    from servecast.report import device_charts
    from servecast.report.charts.files import encoded

    terminal.print_tables(report.tables, report.notes)
    for chart in (device_charts.fitted(found), device_charts.roofline(found, spec)):
        path = output.with_suffix(f".{chart.name}.svg")
        try:
            path.write_bytes(encoded(chart, "svg"))
        except OSError as error:
            raise InputError(str(path), f"cannot be written ({error.strerror}), but {output} is") from None
    print(f"profile: {output}; in a scenario: 'profile: ./{output.name}', from the scenario's own folder")


def _limits(rows: int | None, length: int | None, tokens: int | None) -> Limits | None:
    if rows is None and length is None and tokens is None:
        return None
    if rows is None or length is None or tokens is None:
        raise InputError("--max-rows", "--max-rows, --max-length and --max-tokens go together: give all three, or none")
    from servecast.device.grid import Limits

    return Limits(rows, length, tokens)


def _progress(progress: Progress) -> None:
    made, total, left_s, last = progress
    if sys.stderr.isatty():
        print(f"\r{made} of {total}, {left_s:.0f} s left, {last[:60]:60}", end="", file=sys.stderr, flush=True)
    elif made % 100 == 0 or made == total:
        terminal.aside(f"{made} of {total}, {left_s:.0f} s left")

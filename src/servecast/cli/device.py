"""The commands that need a device: calibrate, validate, cliff. torch is loaded when one of them runs."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servecast.cli.figures import Figures, forms
from servecast.errors import InputError

if TYPE_CHECKING:
    from servecast.against.device.execute import OnDevice
    from servecast.device.calibrate import Calibration, Progress
    from servecast.device.grid import Limits

EXIT_MISSED = 1

Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Model = Annotated[str, typer.Option(help="A name, or the path of a config.json.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (calibrate, validate, cliff):
        app.command()(command)


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
    calibrating = _device_module("calibrate")
    from servecast.cli import terminal
    from servecast.report import device_charts
    from servecast.report.charts.files import encoded
    from servecast.specs import catalogue

    spec = catalogue.model(model)
    request = calibrating.Request(
        spec,
        device,
        output,
        budget_s=budget_s,
        dtype=dtype,
        entry=as_,
        limits=_limits(device, max_rows, max_length, max_tokens),
        layers=layers,
        graphs=not eager,
        seed=seed,
        fresh=fresh,
    )
    try:
        found: Calibration = calibrating.calibrate(request, _measured)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "interrupted: the steps measured so far are kept, the same command goes on with them"
        ) from None
    told = calibrating.report(found)
    terminal.print_tables(told.tables)
    for note in told.notes:
        print(note)
    for chart in (device_charts.fitted(found), device_charts.roofline(found, spec)):
        path = output.with_suffix(f".{chart.name}.svg")
        try:
            path.write_bytes(encoded(chart, "svg"))
        except OSError as error:
            raise InputError(str(path), f"cannot be written ({error.strerror}), but {output} is") from None
    print(f"profile: {output}; in a scenario: 'profile: ./{output.name}', from the scenario's own folder")


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
    wanted = forms(figures)
    _device_module("executor")
    from servecast.against.device.validate import validate as run
    from servecast.cli import terminal
    from servecast.report import write_validation
    from servecast.report.validation_words import tables
    from servecast.report.verdicts.validate import verdict

    try:
        found = run(file, device, lambda made: _say(f"{made.made} of {made.total}: {made.at_work}"), seed)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted before the first run had ended: there is nothing to tell yet") from None
    page = write_validation(found, out / found.name, wanted)
    terminal.print_tables(tables(found))
    terminal.say_verdict(verdict(found))
    print(f"report: {page}")
    if found.interrupted:
        raise typer.Exit(130)
    if found.outside():
        raise typer.Exit(EXIT_MISSED)


def cliff(
    model: Model,
    device: Device,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of every prompt.")],
    output: Annotated[int, typer.Option(min=1, help="Tokens of every answer.")],
    memory_gb: Annotated[
        float | None,
        typer.Option(
            help="Memory limit [GB], beside the process itself; 0.9 of a GPU, or 0.5 GB on a CPU, if not given."
        ),
    ] = None,
    policy: Annotated[str, typer.Option(help="static or padded.")] = "padded",
    dtype: Annotated[str | None, typer.Option(help="bf16, fp16 or fp32, if not the model's.")] = None,
) -> None:
    """Forecast the largest batch that fits into memory, then find it by running out.

    Examples:

        servecast cliff --model cpu-small --device cpu --prompt 128 --output 64 --memory-gb 0.2
    """
    from servecast.policies import POLICIES

    closed = [kind for kind, each in POLICIES.items() if each.closed]
    if policy not in closed:
        remedy = " or ".join(closed)
        raise InputError("--policy", f"{policy!r} has no cliff, it preempts or is unknown: use {remedy}")
    if memory_gb is not None and not 0 < memory_gb < math.inf:
        raise InputError("--memory-gb", f"{memory_gb:g} must be > 0 and finite")
    module = _device_module("cliff")
    limit_bytes = module.usual_limit_bytes(device) if memory_gb is None else round(memory_gb * 1e9)
    from servecast.cli import terminal
    from servecast.specs import catalogue

    spec = catalogue.model(model)
    case = module.CliffCase(spec, device, dtype or spec.dtype, prompt, output, limit_bytes, policy=policy)
    found = module.cliff(case, lambda made: _say(f"{made.rows} rows: {'fits' if made.fitted else 'out of memory'}"))
    heads = ("", "rows", "forecast [MB]", "measured [MB]", "error")
    measured = "-" if found.measured_bytes is None else f"{found.measured_bytes / 1e6:.1f}"
    error = "-" if found.bytes_error is None else f"{found.bytes_error:+.2%}"
    rows = [
        ("forecast", str(found.predicted_rows), f"{found.predicted_bytes / 1e6:.1f}", "", ""),
        ("found by running", str(found.found_rows), f"{found.bytes_at_found / 1e6:.1f}", measured, error),
    ]
    room = f"{limit_bytes / 1e9:.3g} GB"
    terminal.print_table(f"{model}, {policy}, {prompt} + {output} tokens in {room} on {device}", heads, rows)


def executing(device: str, jobs: int) -> OnDevice:
    """The device that `servecast run --execute` names.

    Raises InputError where it, or torch, is not there, and for several jobs, which would disturb each other's times.
    """
    if jobs != 1:
        raise InputError("--jobs", f"{jobs} runs at a time on one device would disturb each other's times: use 1")
    _device_module("executor")
    from servecast.against.device.execute import OnDevice

    return OnDevice(device)


def _device_module(name: str) -> Any:
    """A module that computes; one line where torch is missing."""
    import importlib

    try:
        return importlib.import_module(f"servecast.device.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError("torch", "is not installed: pip install 'servecast[device]'") from None


def _limits(device: str, rows: int | None, length: int | None, tokens: int | None) -> Limits | None:
    if rows is None and length is None and tokens is None:
        return None
    if rows is None or length is None or tokens is None:
        raise InputError("--max-rows", "--max-rows, --max-length and --max-tokens go together: give all three, or none")
    from servecast.device.grid import Limits

    return Limits(rows, length, tokens)


def _measured(progress: Progress) -> None:
    made, total, left_s, last = progress
    if sys.stderr.isatty():
        print(f"\r{made} of {total}, {left_s:.0f} s left, {last[:60]:60}", end="", file=sys.stderr, flush=True)
    elif made % 100 == 0 or made == total:
        _say(f"{made} of {total}, {left_s:.0f} s left")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

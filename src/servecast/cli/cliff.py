"""``servecast cliff``: the largest batch that fits into memory, forecast and found."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from servecast.cli import terminal
from servecast.cli.options import Device, Model, device_module
from servecast.errors import InputError


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
    module = device_module("cliff")
    limit_bytes = module.usual_limit_bytes(device) if memory_gb is None else round(memory_gb * 1e9)
    from servecast.specs import catalogue

    spec = catalogue.model(model)
    case = module.CliffCase(spec, device, dtype or spec.dtype, prompt, output, limit_bytes, policy=policy)
    found = module.cliff(
        case, lambda made: terminal.aside(f"{made.rows} rows: {'fits' if made.fitted else 'out of memory'}")
    )
    heads = ("", "rows", "forecast [MB]", "measured [MB]", "error", "reserved [MB]")
    measured, reserved = (
        "-" if size is None else f"{size / 1e6:.1f}" for size in (found.found.peak_bytes, found.found.reserved_bytes)
    )
    error = "-" if found.bytes_error is None else f"{found.bytes_error:+.2%}"
    rows = [
        ("forecast", str(found.predicted_rows), f"{found.predicted_bytes / 1e6:.1f}", "", "", ""),
        ("found by running", str(found.found_rows), f"{found.bytes_at_found / 1e6:.1f}", measured, error, reserved),
    ]
    room = f"{limit_bytes / 1e9:.3g} GB"
    terminal.print_table(f"{model}, {policy}, {prompt} + {output} tokens in {room} on {device}", heads, rows)

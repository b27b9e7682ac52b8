"""``servecast fit``: a profile from what somebody measured."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated

import typer

from servecast.cli.options import Model  # noqa: TC001
from servecast.errors import InputError


def fit(
    measured: Annotated[
        list[Path],
        typer.Argument(
            metavar="MEASURED",
            help="Tables of steps (.csv, .csv.gz, .parquet), one of requests, or a folder of operators.",
        ),
    ],
    model: Model,
    device: Annotated[str, typer.Option(help="Device it ran on.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write, calibration/NAME.yaml.")],
    tensor_parallel: Annotated[int, typer.Option(min=1, help="GPUs the model was split over.")] = 1,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="dtype of the KV cache, if not the model's.")] = None,
    engine: Annotated[str, typer.Option(help="Engine and version, for the provenance.")] = "",
    source: Annotated[str, typer.Option(help="Where the measurements come from, for the provenance.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the held-out part and the bootstrap.")] = 0,
    host_overhead_s: Annotated[
        float | None, typer.Option(min=0, help="Of operators: what the host adds to a step.")
    ] = None,
    host_steps: Annotated[
        Path | None, typer.Option(help="Of operators: measured steps of that engine, to fit the host to.")
    ] = None,
    all_reduce: Annotated[Path | None, typer.Option(help="Of operators: folder with another all-reduce table.")] = None,
) -> None:
    """Fit a cost model to what was measured and write a profile: steps, requests alone, or single operators.

    Examples:

        servecast fit steps.csv --model qwen3-14b --device h100-sxm -o calibration/mine.yaml

        servecast fit requests.csv --model qwen3-14b --device h100-sxm -o calibration/coarse.yaml

        servecast fit h100_sxm-vllm0.24.0/ --model llama-3.1-8b --device h100-sxm -o calibration/ops.yaml
    """
    from servecast.calibration import sources
    from servecast.cli import terminal
    from servecast.cost import profile as profiles

    if output.suffix not in {".yaml", ".yml"}:
        raise InputError("--output", f"{str(output)!r} is no YAML file: name it like calibration/mine.yaml")
    if not output.parent.is_dir():
        raise InputError("--output", f"there is no folder {output.parent}: make it first")
    with terminal.busy("fitting, then again on each resample for the intervals"):
        profile, report = sources.fit(
            measured, model=model, device=device, name=output.stem, engine=engine, source=source,
            tensor_parallel=tensor_parallel, kv_dtype=kv_cache_dtype, seed=seed, host_s=host_overhead_s,
            host_steps=host_steps, all_reduce=all_reduce,
        )  # fmt: skip
    profiles.save(profile, output)
    terminal.print_tables(report.tables, report.notes)
    print(f"profile: {output}")

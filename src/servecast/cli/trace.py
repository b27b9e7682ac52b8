"""``servecast trace``: what a trace holds, a generator fitted to it, and the same trace in another format."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servecast.errors import InputError

if TYPE_CHECKING:
    from servecast.workload.clients import RequestColumns
    from servecast.workload.traces.trace_file import Trace, TraceFile


class _Over(StrEnum):
    """What happens to a request over a limit."""

    drop = "drop"
    clip = "clip"
    reject = "reject"


def trace(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Traces or benchmark results; the format is told by the content."),
    ],
    start_s: Annotated[float, typer.Option(help="Where to begin, in the trace's own seconds.")] = 0.0,
    duration_s: Annotated[float | None, typer.Option(help="How much to take, in the trace's own seconds.")] = None,
    skip_requests: Annotated[int | None, typer.Option(min=1, help="Leave out the first so many.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="The first so many.")] = None,
    rate_scale: Annotated[float, typer.Option(help="2 is twice as fast.")] = 1.0,
    rate_rps: Annotated[float | None, typer.Option(help="Requests a second, by thinning or tiling.")] = None,
    prompt_scale: Annotated[float, typer.Option(help="Factor of the prompts.")] = 1.0,
    output_scale: Annotated[float, typer.Option(help="Factor of the answers.")] = 1.0,
    max_prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Limit of the prompts.")] = None,
    max_output_tokens: Annotated[int | None, typer.Option(min=1, help="Limit of the answers.")] = None,
    over_max: Annotated[_Over, typer.Option(help="What happens to longer ones.")] = _Over.drop,
    jitter_s: Annotated[float, typer.Option(help="Spread arrivals noted in coarse ticks.")] = 0.0,
    format_: Annotated[str | None, typer.Option("--format", help="Format, if its content does not tell.")] = None,
    time_unit: Annotated[str | None, typer.Option(help="s, ms, us or ns, instead of the format's.")] = None,
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens that a prefix id stands for.")] = None,
    turns: Annotated[str | None, typer.Option(help="new or whole: what a turn's prompt length is.")] = None,
    part: Annotated[int | None, typer.Option(min=1, help="Which of several runs in a result file.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad row, as a run does.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of thinning, tiling, jitter and the fit's check.")] = 0,
    fit: Annotated[bool, typer.Option("--fit", help="Fit a generator, and print it as a workload.")] = False,
    to: Annotated[str | None, typer.Option(help="Convert to plain, azure, mooncake or timed_trace.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File for --to.")] = None,
    figure: Annotated[Path | None, typer.Option(help="PNG or SVG of arrivals, lengths and prefix reuse.")] = None,
) -> None:
    """Describe traces: rows, span, rates, lengths, prefix reuse, and what was rejected.

    Examples:

        servecast trace azure.csv --start-s 600 --duration-s 600 --rate-scale 2

        servecast trace azure.csv --fit --figure azure.png

        servecast trace result.json --to mooncake -o trace.jsonl
    """
    shape = {
        "start_s": start_s, "duration_s": duration_s, "skip_requests": skip_requests, "rate_scale": rate_scale,
        "rate_rps": rate_rps, "prompt_scale": prompt_scale, "output_scale": output_scale,
        "max_prompt_tokens": max_prompt_tokens, "max_output_tokens": max_output_tokens, "over_max": over_max.value,
        "jitter_s": jitter_s, "format": format_, "time_unit": time_unit, "part": part, "turns": turns,
        "block_size": block_size, "on_bad_row": "error" if strict else "skip",
    }  # fmt: skip
    if (to is None) != (output is None):
        raise InputError("--to", "goes together with --output: name both the format and the file")
    if len(files) > 1 and (output or figure):
        raise InputError("--output" if output else "--figure", f"is one file, {len(files)} traces are given: give one")
    for file in files:
        source = _source(file, shape)
        read = source.read(requests, seed)
        _describe(read, source.path)
        if fit:
            _fit(read.columns, source.path, seed)
        if to is not None:
            _convert(read.columns, str(output), to)
        if figure is not None:
            _draw(read.columns, Path(source.path).name, figure)


def _source(file: Path, shape: dict[str, Any]) -> TraceFile:
    from servecast.workload.traces.trace_file import TraceFile

    try:
        return TraceFile(str(file), **shape)
    except ValueError as error:
        raise InputError(f"--{str(error).split(maxsplit=1)[0].replace('_', '-')}", str(error)) from None


def _describe(read: Trace, path: str) -> None:
    from servecast.cli import terminal
    from servecast.workload.traces.statistics import histogram_table, joint_histogram, trace_statistics

    unit = f"times in {read.report.time_unit}" if read.report.time_unit else "no times"
    rows = [[key, terminal.plain(value)] for key, value in trace_statistics(read).items() if value is not None]
    terminal.print_table(f"{path}: {read.report.format}, {unit}", ["", ""], rows)
    terminal.print_table("requests by prompt and output tokens", *histogram_table(joint_histogram(read.columns)))
    for note in (*read.report.notes, *(f"rejected {rejected}" for rejected in read.report.rejected)):
        print(note)


def _convert(columns: RequestColumns, output: str, to: str) -> None:
    from servecast.workload.traces.convert import write_trace

    for lost in write_trace(columns, output, to):
        print(lost)
    print(f"written: {output}")


def _draw(columns: RequestColumns, name: str, figure: Path) -> None:
    from servecast.files import write
    from servecast.report.charts.files import encoded
    from servecast.report.trace_chart import trace_chart

    write(figure, encoded(trace_chart(columns, name), "svg" if figure.suffix == ".svg" else "png"))
    print(f"figure: {figure}")


def _fit(columns: RequestColumns, path: str, seed: int) -> None:
    """A generator fitted to the trace, how close it comes, and the workload that it is."""
    import yaml

    from servecast.cli import terminal
    from servecast.workload import fitting

    model = fitting.fit(columns, path)
    close = [
        [name, *("" if value is None else terminal.plain(value) for value in values)]
        for name, *values in model.closeness(columns, seed)
    ]
    terminal.print_table("a generator fitted to it", ["", "trace", "regenerated"], close)
    workload = {"workload": model.workload()}
    print(yaml.safe_dump(workload, sort_keys=False, default_flow_style=None, width=120), end="")

"""The command line. Commands import what they need when they run, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import typer

from servecast.cli import device as commands_device
from servecast.cli import diff as commands_diff
from servecast.cli import plan as commands_plan
from servecast.cli.figures import Figures, forms
from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from servecast.against.device.execute import OnDevice
    from servecast.run.cluster import Cluster
    from servecast.run.results import Results
    from servecast.run.store import Store
    from servecast.scenario import Scenario
    from servecast.workload.traces.trace_file import TraceFile

EXIT_INPUT = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="servecast",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Forecasts of LLM serving: static, padded and continuous batching compared on measured GPU step times.

Examples:

    servecast run quickstart

    servecast run my.yaml --set workload.arrivals.rate_rps=12 --out results

    servecast explain --model llama-3.1-8b --device a100-80gb --length 8192
""",
)


def _version(asked: bool) -> None:
    if asked:
        from servecast import __version__

        print(f"servecast {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What every command takes."""


class Shipped(StrEnum):
    """What ``list`` can list."""

    models = "models"
    devices = "devices"
    profiles = "profiles"
    policies = "policies"
    scenarios = "scenarios"


class Over(StrEnum):
    """What happens to a request over a limit."""

    drop = "drop"
    clip = "clip"
    reject = "reject"


class Backend(StrEnum):
    """Where the runs of a sweep are made."""

    local = "local"
    dask = "dask"


class Export(StrEnum):
    """Files of other tools that a run can be written as."""

    vllm = "vllm"
    llmd = "llmd"
    perfetto = "perfetto"


Changes = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY.PATH=VALUE", help="Set one value of the scenario; wins over the file and over its sweep."
    ),
]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    0: done. 2: something must be mended, said in one line on standard error. 130: interrupted, what was made is kept.
    1: nobody reads standard output any more.
    """
    if sys.stdout is None:  # closed by whoever started this
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    status: int | str | None = 0
    try:
        app(None if arguments is None else list(arguments))
    except InputError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        status = EXIT_INPUT
    except KeyboardInterrupt as stopped:
        told = stopped.args[0] if stopped.args else "interrupted before the first run had ended: nothing was kept"
        print(f"\n{told}", file=sys.stderr)
        status = EXIT_INTERRUPTED
    except BrokenPipeError:
        status = 1
    except OSError as error:
        print(f"{error.filename or 'standard output'}: {error.strerror}", file=sys.stderr)
        status = EXIT_INPUT
    except MemoryError:
        print("memory: not enough for this; ask for fewer requests, or a shorter horizon_s", file=sys.stderr)
        status = EXIT_INPUT
    except SystemExit as end:
        status = end.code
    try:
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered must not raise again when Python shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            status = 1  # nobody reads any more
        elif status != EXIT_INPUT:
            print(f"standard output: {error.strerror}", file=sys.stderr)
            status = EXIT_INPUT
    sys.exit(status)


@app.command()
def run(
    scenarios: Annotated[list[str], typer.Argument(metavar="SCENARIO", help="Files, or names of shipped scenarios.")],
    changes: Changes = [],  # noqa: B006 (typer copies it)
    out: Annotated[Path, typer.Option(help="Folder in which each scenario gets its own.")] = Path("results"),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Same as --set workload.seed=N.")] = None,
    export: Annotated[
        list[Export],
        typer.Option(help="Also write each run as vLLM's result JSON, an llm-d report, or a Perfetto trace."),
    ] = [],  # noqa: B006
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Make every run anew; else what an earlier, stopped sweep made is taken.")
    ] = False,
    backend: Annotated[Backend, typer.Option(help="local: processes here; dask: a cluster's workers.")] = Backend.local,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="The cluster's scheduler, like tcp://host:8786."),
    ] = None,
    execute: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="Compute the steps on cpu, cuda or cuda:N instead, into OUT/executed."),
    ] = None,
    figures: Figures = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables, and nothing else.")
    ] = False,
) -> None:
    """Simulate scenarios: tables and a page for each.

    With --json standard output is one document: schema_version, and for each scenario that was made its name, folder,
    report, verdict, notes, failures, and the rows of summary.csv and tenants.csv; what is not known is null.

    Examples:

        servecast run quickstart

        servecast run a.yaml b.yaml --jobs 2 --seed 7

        servecast run quickstart --set 'policies[2].max_num_seqs=64' --set seeds=3

        servecast run mine.yaml --execute cuda:0

        servecast run quickstart --json | jq '.scenarios[].summary[] | {policy, goodput_rps}'
    """
    from servecast import scenario
    from servecast.run import cluster

    overrides = _overrides(changes)
    if seed is not None:
        overrides["workload.seed"] = seed
    loaded = [scenario.load(name, overrides) for name in scenarios]
    names = [each.name for each in loaded]
    for name in names:
        if names.count(name) > 1:
            raise InputError("scenario.name", f"{name!r} is the name of two scenarios: they would share one folder")
    kinds, wanted = tuple(kind.value for kind in export), forms(figures)
    device = None if execute is None else commands_device.executing(execute, jobs)
    if device is not None and scheduler is not None:
        raise InputError("--execute", "a device computes here, not on a cluster: take out --backend and --scheduler")
    documents: list[dict[str, Any]] | None = [] if as_json else None
    try:
        with cluster.chosen(backend.value, scheduler) as there:
            # Beside the forecast of the same name, so that the two can be compared.
            place = out if device is None else out / "executed"
            how = Sitting(place, jobs, fresh, there, device, documents, wanted)
            incomplete = [each.name for each in loaded if not _run_one(each, how, kinds)]
    finally:  # stopped on the way, what was made is told
        if documents:
            from servecast.report import as_json as document

            print(document.text(documents))
    if incomplete:
        raise typer.Exit(EXIT_INPUT)


class Sitting(NamedTuple):
    """How and where the runs of a scenario are made.

    documents : takes what is told of each scenario for --json; None where it is printed for people
    figures : forms in which each chart is a file too
    """

    out: Path
    jobs: int
    fresh: bool
    cluster: Cluster | None
    device: OnDevice | None
    documents: list[dict[str, Any]] | None = None
    figures: tuple[str, ...] = ()


def _run_one(scenario: Scenario, how: Sitting, exports: tuple[str, ...]) -> bool:
    """Simulate or execute, write, print; whether every run could be made."""
    from servecast.run.store import opened

    with opened(how.out / scenario.name, fresh=how.fresh) as store:  # for this process alone, to its end
        return _run_into(scenario, how, exports, store)


def _run_into(scenario: Scenario, how: Sitting, exports: tuple[str, ...], store: Store) -> bool:
    import dataclasses

    from servecast import report
    from servecast.cli import terminal
    from servecast.run.sweep import simulate
    from servecast.scenario import seen_from

    out, device = how.out, how.device
    with terminal.progress(scenario.name) as progress:
        results = simulate(
            scenario,
            jobs=how.jobs,
            progress=progress,
            store=store if device is None else None,
            cluster=how.cluster,
            machines=device,
        )
    if device is not None:
        measured = {"cost_model": "none: steps were executed", "calibrated": True, "executed_on": device.name}
        derived = {**results.scenario["derived"], **measured}
        results = dataclasses.replace(
            results,
            roof=results.roof and dataclasses.replace(results.roof, calibrated=True),
            scenario={**results.scenario, "derived": derived},
            notes=(device.described(), *results.notes),
        )
    if results.resumed:
        made = len(results.outcomes) + len(results.failures) + results.missing
        told = f"resumed: {results.resumed} of {made} runs were made before (--fresh makes all anew)"
        print(told, file=sys.stdout if how.documents is None else sys.stderr)
    placed = dataclasses.replace(results, scenario=seen_from((out / scenario.name).resolve(), results.scenario))
    page = report.write_run(placed, out, how.figures)
    if how.documents is None:
        terminal.print_results(scenario, results)
        print(f"report: {page}")
        if exports:
            print(f"exports: {_export(scenario, results, out, exports)}")
    else:
        from servecast.report import as_json as document

        exported = _export(scenario, results, out, exports) if exports else None
        how.documents.append(document.scenario(results, page.parent, exported))
    for failure in results.failures:
        print(f"{scenario.name} ({failure.which}): {failure.place}: {failure.problem}", file=sys.stderr)
    if results.missing:
        print(f"{scenario.name}: interrupted, {results.missing} runs were not made", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED)
    return not results.failures


def _export(scenario: Scenario, results: Results, out: Path, kinds: tuple[str, ...]) -> Path:
    """Write every run as other tools' files; the folder."""
    from servecast.report.exports import write_exports

    folder = out / scenario.name / "exports"
    runs = [
        ("-".join(filter(None, (outcome.policy, outcome.point, f"seed{outcome.seed}"))), outcome.run)
        for outcome in results.outcomes
        if outcome.run is not None
    ]
    write_exports(
        folder,
        kinds,
        runs,
        model=scenario.model,
        device=scenario.profile or scenario.device or "",
        native=scenario.model_dump(mode="json"),
    )
    return folder


@app.command()
def explain(
    scenario: Annotated[str | None, typer.Argument(help="File, or name of a shipped scenario.")] = None,
    model: Annotated[str | None, typer.Option(help="Model instead of a scenario: a name, or a config.json.")] = None,
    device: Annotated[str | None, typer.Option(help="Device for --model, from its datasheet.")] = None,
    profile: Annotated[str | None, typer.Option(help="Calibrated device for --model.")] = None,
    length: Annotated[list[int], typer.Option(min=1, help="Tokens of a sequence; how many fit?")] = [],  # noqa: B006
    changes: Changes = [],  # noqa: B006
) -> None:
    """Show the memory budget line by line, how many sequences fit, and the ridge.

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
    terminal.print_tables(explaining.explain(_explained(scenario, model, device, profile, _overrides(changes)), length))


def _explained(
    name: str | None, model: str | None, device: str | None, profile: str | None, overrides: dict[str, object]
) -> Scenario:
    from servecast import scenario
    from servecast.report.explain import bare_scenario

    if name is not None:
        if model or device or profile:
            raise InputError("explain", f"both a scenario ({name}) and a model or device are given: keep one")
        return scenario.load(name, overrides)
    assert model is not None
    data = bare_scenario(model, device, profile, Path.cwd())
    return scenario.check(scenario.changed(data, overrides), Path.cwd())


@app.command()
def fit(
    measured: Annotated[
        list[Path],
        typer.Argument(
            metavar="MEASURED",
            help="Tables of steps (.csv, .csv.gz, .parquet), one of requests, or a folder of operators.",
        ),
    ],
    model: Annotated[str, typer.Option(help="Model that ran: a name, or a config.json.")],
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
        fitted, told = sources.fit(
            measured,
            model=model,
            device=device,
            name=output.stem,
            engine=engine,
            source=source,
            tensor_parallel=tensor_parallel,
            kv_dtype=kv_cache_dtype,
            seed=seed,
            host_s=host_overhead_s,
            host_steps=host_steps,
            all_reduce=all_reduce,
        )
    profiles.save(fitted, output)
    terminal.print_tables(told.tables)
    for note in told.notes:
        print(note)
    print(f"profile: {output}")


@app.command()
def compare(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="File, or name of a shipped scenario of a recorded run.")
    ],
    recorded: Annotated[
        Path | None, typer.Argument(metavar="RECORDED", help="Recorded requests; without it the scenario's own trace.")
    ] = None,
    changes: Changes = [],  # noqa: B006
    out: Annotated[Path, typer.Option(help="Folder in which the comparison gets its own.")] = Path("results"),
    margin: Annotated[float, typer.Option(help="Error of a mean that still counts as equivalent: 0.05 is 5 %.")] = 0.05,
    band: Annotated[float, typer.Option(help="Also simulate with steps so much shorter and longer; 0: do not.")] = 0.05,
    twin: Annotated[Path | None, typer.Option(help="Another recording of the same requests: the noise floor.")] = None,
    host_from: Annotated[
        Path | None,
        typer.Option(help="Recording to fit the client's way on; of RECORDED itself the first third, not judged."),
    ] = None,
    host_steps: Annotated[
        bool, typer.Option("--host-steps", help="Fit host time on top of each step there too.")
    ] = False,
    figures: Figures = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Simulate a recorded run and say how far off that is.

    Examples:

        servecast compare h100-qwen3-14b-18rps

        servecast compare my.yaml result.json --host-from other.json

        servecast compare my.yaml result.json --json | jq '.rows[] | {metric, statistic, error}'
    """
    from servecast.against import server as comparison
    from servecast.cli import terminal
    from servecast.report import compare_words as words
    from servecast.report import write_comparison
    from servecast.report.compare_page import document
    from servecast.report.verdicts.compare import verdict

    wanted = forms(figures)
    found = comparison.compared(
        scenario,
        recorded,
        overrides=_overrides(changes),
        margin=margin,
        band=band,
        twin=twin,
        host_from=host_from,
        host_steps=host_steps,
    )
    page = write_comparison(found, out, wanted)
    if as_json:
        from servecast.files import dumps

        print(dumps(document(found, page)))
        return
    for line in words.settings(found):
        print(line)
    terminal.print_tables(words.tables(found))
    terminal.say_verdict(verdict(found))
    print(f"report: {page}")


@app.command()
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
    over_max: Annotated[Over, typer.Option(help="What happens to longer ones.")] = Over.drop,
    jitter_s: Annotated[float, typer.Option(help="Spread arrivals noted in coarse ticks.")] = 0.0,
    format_: Annotated[str | None, typer.Option("--format", help="Format, if its content does not tell.")] = None,
    time_unit: Annotated[str | None, typer.Option(help="s, ms, us or ns, instead of the format's.")] = None,
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

        servecast trace azure.csv

        servecast trace azure.csv --start-s 600 --duration-s 600 --rate-scale 2

        servecast trace azure.csv --fit --figure azure.png

        servecast trace result.json --to mooncake -o trace.jsonl
    """
    from servecast.workload.traces.trace_file import TraceFile

    if (to is None) != (output is None):
        raise InputError("--to", "goes together with --output: name both the format and the file")
    if len(files) > 1 and (output or figure):
        option = "--output" if output else "--figure"
        raise InputError(option, f"is one file, and {len(files)} traces are given: give one")
    for file in files:
        try:
            source = TraceFile(
                str(file),
                start_s=start_s,
                duration_s=duration_s,
                skip_requests=skip_requests,
                rate_scale=rate_scale,
                rate_rps=rate_rps,
                prompt_scale=prompt_scale,
                output_scale=output_scale,
                max_prompt_tokens=max_prompt_tokens,
                max_output_tokens=max_output_tokens,
                over_max=over_max.value,
                jitter_s=jitter_s,
                format=format_,
                time_unit=time_unit,
                part=part,
                on_bad_row="error" if strict else "skip",
            )
        except ValueError as error:
            raise InputError(f"--{str(error).split(maxsplit=1)[0].replace('_', '-')}", str(error)) from None
        _describe(source, requests, seed, fit=fit, to=to, output=output, figure=figure)


def _describe(
    source: TraceFile,
    requests: int | None,
    seed: int,
    *,
    fit: bool,
    to: str | None,
    output: Path | None,
    figure: Path | None,
) -> None:
    """One trace: what it holds, and what else was asked for."""
    from servecast.cli import terminal
    from servecast.workload.traces.statistics import histogram_table, joint_histogram, trace_statistics

    read = source.read(requests, seed)
    unit = f"times in {read.report.time_unit}" if read.report.time_unit else "no times"
    rows = [[key, terminal.plain(value)] for key, value in trace_statistics(read).items() if value is not None]
    terminal.print_table(f"{source.path}: {read.report.format}, {unit}", ["", ""], rows)
    terminal.print_table("requests by prompt and output tokens", *histogram_table(joint_histogram(read.columns)))
    for note in (*read.report.notes, *(f"rejected {rejected}" for rejected in read.report.rejected)):
        print(note)
    if fit:
        import yaml

        from servecast.workload import fitting

        model = fitting.fit(read.columns, source.path)
        close = [
            [name, *("" if value is None else terminal.plain(value) for value in values)]
            for name, *values in model.closeness(read.columns, seed)
        ]
        terminal.print_table("a generator fitted to it", ["", "trace", "regenerated"], close)
        workload = {"workload": model.workload()}
        print(yaml.safe_dump(workload, sort_keys=False, default_flow_style=None, width=120), end="")
    if to is not None:
        from servecast.workload.traces.convert import write_trace

        for lost in write_trace(read.columns, str(output), to):
            print(lost)
        print(f"written: {output}")
    if figure is not None:
        from servecast.files import write
        from servecast.report.charts.files import encoded
        from servecast.report.trace_chart import trace_chart

        chart = trace_chart(read.columns, Path(source.path).name)
        write(figure, encoded(chart, "svg" if figure.suffix == ".svg" else "png"))
        print(f"figure: {figure}")


@app.command("list")
def list_(
    what: Annotated[Shipped, typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="The same rows as one JSON document.")] = False,
) -> None:
    """List what is shipped.

    Examples:

        servecast list models

        servecast list scenarios

        servecast list models --json | jq -r '.rows[].name'
    """
    from servecast.cli import terminal
    from servecast.report.listing import listing

    listed = listing(what.value)
    if as_json:
        from servecast.files import dumps

        rows = [dict(zip(listed.columns, row, strict=True)) for row in listed.rows]
        print(dumps({"schema_version": 1, "list": what.value, "rows": rows}))
        return
    terminal.print_tables([listed])


@app.command()
def schema() -> None:
    """Print the JSON Schema of a scenario, for editors.

    Examples:

        servecast schema > scenario.schema.json
    """
    from servecast.files import dumps
    from servecast.scenario import Scenario

    print(dumps(Scenario.model_json_schema(), indent=2))


commands_device.register(app)
commands_diff.register(app)
commands_plan.register(app)


def _overrides(changes: Iterable[str]) -> dict[str, object]:
    """``key.path=value`` options, each value read as YAML."""
    from servecast.scenario.document import value

    overrides: dict[str, object] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key.strip():
            raise InputError("--set", f"{change!r} has no key and value: write it like engine.block_size=32")
        overrides[key.strip()] = value(text, f"--set {key.strip()}")
    return overrides

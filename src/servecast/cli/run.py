"""``servecast run``: simulate scenarios, write their results, and compare the policies."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servecast.cli import options
from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.against.device.execute import OnDevice
    from servecast.engine import Run
    from servecast.run.cluster import Cluster
    from servecast.run.results import Results
    from servecast.run.store import Store
    from servecast.scenario import Scenario


class _Backend(StrEnum):
    """Where the runs of a sweep are made."""

    local = "local"
    dask = "dask"


class _Export(StrEnum):
    """Files of other tools that a run can be written as."""

    vllm = "vllm"
    llmd = "llmd"
    perfetto = "perfetto"


@dataclass(frozen=True, slots=True)
class _Command:
    """What was asked for, beside the scenarios.

    documents : takes the results of each scenario for --json; None where they are printed for people
    """

    out: Path
    jobs: int
    fresh: bool
    exports: tuple[str, ...]
    figures: tuple[str, ...]
    as_csv: bool
    wide: bool
    all_notes: bool
    cluster: Cluster | None
    device: OnDevice | None
    documents: list[dict[str, Any]] | None


def run(
    scenarios: Annotated[list[str], typer.Argument(metavar="SCENARIO", help="Files, or names of shipped scenarios.")],
    changes: options.Changes = [],  # noqa: B006 (typer copies it)
    out: options.Out = Path("results"),
    jobs: options.Jobs = 1,
    seed: options.WorkloadSeed = None,
    export: Annotated[
        list[_Export],
        typer.Option(help="Also write each run as vLLM's result JSON, an llm-d report, or a Perfetto trace."),
    ] = [],  # noqa: B006
    fresh: options.Fresh = False,
    backend: Annotated[_Backend, typer.Option(help="local: here; dask: a cluster's workers.")] = _Backend.local,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="The cluster's scheduler, like tcp://host:8786.")
    ] = None,
    execute: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="Compute the steps on cpu, cuda or cuda:N instead, into OUT/executed."),
    ] = None,
    figures: options.Figures = "",
    as_csv: options.AsCsv = False,
    wide: Annotated[bool, typer.Option("--wide", help="Print more metrics; all stand in summary.csv.")] = False,
    notes: options.AllNotes = False,
    as_json: options.AsJson = False,
) -> None:
    """Simulate scenarios: tables and a page for each.

    With --json standard output is one document: schema_version, and for each scenario that was made its name, folder,
    report, verdict, notes, failures, and the rows of summary.csv and tenants.csv; what is not known is null.

    Examples:

        servecast run quickstart

        servecast run a.yaml b.yaml --jobs 2 --seed 7

        servecast run quickstart --set 'policies[2].max_num_seqs=64' --set seeds=3 --wide

        servecast run mine.yaml --execute cuda:0

        servecast run quickstart --json | jq '.scenarios[].summary[] | {policy, goodput_rps}'
    """
    from servecast.run import cluster

    loaded = _loaded(scenarios, options.overrides(changes, seed))
    device = None if execute is None else _executing(execute, jobs, scheduler)
    # Beside the forecast of the same name, so that the two can be compared.
    place = out if device is None else out / "executed"
    kinds, drawn = tuple(kind.value for kind in export), options.forms(figures)
    documents: list[dict[str, Any]] | None = [] if as_json else None
    if kinds:
        _refuse_replicas(loaded)
    with cluster.chosen(backend.value, scheduler) as there:
        asked = _Command(place, jobs, fresh, kinds, drawn, as_csv, wide, notes, there, device, documents)
        _run_all(loaded, asked)


def _loaded(names: list[str], changed: dict[str, object]) -> list[Scenario]:
    """The scenarios; no two of one name, since they would share a folder."""
    from servecast.scenario import load

    loaded = {}
    for scenario in (load(name, changed) for name in names):
        if scenario.name in loaded:
            problem = f"{scenario.name!r} is the name of two scenarios: they would share one folder"
            raise InputError("scenario.name", problem)
        loaded[scenario.name] = scenario
    return list(loaded.values())


def _refuse_replicas(scenarios: list[Scenario]) -> None:
    """Token times of an export are read off the steps of one engine; those of several run side by side."""
    from servecast.scenario import points

    most = max(point.scenario.replicas or 1 for scenario in scenarios for point in points(scenario))
    if most > 1:
        raise InputError("--export", f"{most} replicas, but exports are of one engine: set replicas=1, or take it out")


def _executing(device: str, jobs: int, scheduler: str | None) -> OnDevice:
    """The device that ``--execute`` names.

    Raises InputError where it, or torch, is not there, and for several jobs, which would disturb each other's times.
    """
    if jobs != 1:
        raise InputError("--jobs", f"{jobs} runs at a time on one device would disturb each other's times: use 1")
    options.device_module("executor")
    from servecast.against.device.execute import OnDevice

    if scheduler is not None:
        raise InputError("--execute", "a device computes here, not on a cluster: take out --backend and --scheduler")
    return OnDevice(device)


def _run_all(scenarios: list[Scenario], command: _Command) -> None:
    """Run each scenario; exits with `EXIT_INPUT` where some run could not be made."""
    try:
        incomplete = [each for each in scenarios if not _run_one(each, command)]
    finally:  # stopped on the way, what was made is printed
        if command.documents:
            from servecast.report.run_page import as_json

            print(as_json(command.documents))
    if incomplete:
        raise typer.Exit(options.EXIT_INPUT)


def _run_one(scenario: Scenario, command: _Command) -> bool:
    """Simulate or execute, write, print; whether every run could be made."""
    from servecast.report import run_page
    from servecast.run.results import reasons
    from servecast.run.store import opened
    from servecast.scenario import seen_from

    folder, exports = command.out / scenario.name, None
    with opened(folder, fresh=command.fresh) as store, _telling_what_is_kept(scenario.name, store):
        results = _simulated(scenario, command, store)
        if results.resumed:
            made = len(results.outcomes) + len(results.failures) + results.missing
            resumed = f"resumed: {results.resumed} of {made} runs were made before (--fresh makes all anew)"
            print(resumed, file=sys.stdout if command.documents is None else sys.stderr)
        placed = replace(results, scenario=seen_from(folder.resolve(), results.scenario))
        page = run_page.write(placed, command.out, command.figures, as_csv=command.as_csv)
        if command.exports:
            exports = folder / "exports"
            _export(scenario, results, exports, command.exports)
        if command.documents is None:
            _print(scenario, results, command, page, exports)
        else:
            command.documents.append(run_page.plain_results(results, page.parent, exports))
    for said in reasons(results.failures):
        print(f"{scenario.name} {said}", file=sys.stderr)
    if results.missing:
        print(f"{scenario.name}: interrupted, {results.missing} runs were not made", file=sys.stderr)
        raise typer.Exit(options.EXIT_INTERRUPTED)
    return not results.failures


@contextmanager
def _telling_what_is_kept(name: str, store: Store) -> Iterator[None]:
    """Stopped before its results are written, a command says how many runs it can go on from."""
    try:
        yield
    except KeyboardInterrupt:
        kept = len(store)
        said = f"the {kept} finished runs in {store.path} are kept" if kept else "no finished run is kept"
        raise KeyboardInterrupt(f"{name}: interrupted; {said}") from None


def _simulated(scenario: Scenario, command: _Command, store: Store) -> Results:
    """The results; of a device, marked as executed."""
    from servecast.cli import terminal
    from servecast.run.sweep import simulate

    device = command.device
    with terminal.progress(scenario.name) as progress:
        results = simulate(
            scenario, jobs=command.jobs, progress=progress, store=store if device is None else None,
            cluster=command.cluster, machines=device,
        )  # fmt: skip
    if device is None:
        return results
    measured = {"cost_model": "none: steps were executed", "calibrated": True, "executed_on": device.name}
    written = {**results.scenario, "derived": {**results.scenario["derived"], **measured}}
    roof, notes = results.roof and replace(results.roof, calibrated=True), (device.described(), *results.notes)
    return replace(results, roof=roof, scenario=written, notes=notes)


def _print(scenario: Scenario, results: Results, command: _Command, page: Path, exports: Path | None) -> None:
    from servecast.cli.results import print_results

    print_results(scenario, results, wide=command.wide, all_notes=command.all_notes)
    print(f"report: {page}")
    if exports:
        print(f"exports: {exports}")


def _export(scenario: Scenario, results: Results, folder: Path, kinds: tuple[str, ...]) -> None:
    """Write every run as other tools' files, those that were asked the same at a time."""
    from servecast.metrics import Slo
    from servecast.report.exports import write_exports
    from servecast.scenario import points

    at = {(point.label, point.seed): point.scenario for point in points(scenario)}
    alike: dict[tuple[Any, ...], list[tuple[str, Run]]] = {}
    for outcome in results.outcomes:
        if outcome.run is not None:
            here = at[outcome.point, outcome.seed]
            split, most = outcome.hardware.tensor_parallel, here.workload.max_in_flight
            asked = (split, here.slo, outcome.row["requested_rps"], most)
            name = "-".join(filter(None, (outcome.policy, outcome.point, f"seed{outcome.seed}")))
            alike.setdefault(asked, []).append((name, outcome.run))
    for (split, slo, rate_rps, most), runs in alike.items():
        write_exports(
            folder, kinds, runs, model=scenario.model, device=scenario.profile or scenario.device or "",
            tensor_parallel=split, slo=slo and Slo(**dict(slo)), rate_rps=rate_rps, max_in_flight=most,
            native=scenario.model_dump(mode="json"),
        )  # fmt: skip

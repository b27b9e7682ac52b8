"""Options that several commands share, how commands end, and how they reach what computes on a device."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

_FORMS = ("svg", "png")

EXIT_MISSED = 1  # a goal or a gate was not met
EXIT_INPUT = 2
EXIT_INTERRUPTED = 130

Scenario = Annotated[str, typer.Argument(metavar="SCENARIO", help="File, or name of a shipped scenario.")]
Changes = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY.PATH=VALUE", help="Set one value of the scenario; wins over the file and over its sweep."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder in which the results get a folder of their own.")]
Jobs = Annotated[int, typer.Option(min=1, help="Simulations at a time.")]
WorkloadSeed = Annotated[int | None, typer.Option(min=0, help="Same as --set workload.seed=N.")]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Simulate all anew; else what an earlier, stopped run made is taken.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables, and nothing else.")]
Figures = Annotated[
    str, typer.Option(metavar="FORMS", help="Write the figures of the page as files too: svg, png, or svg,png.")
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Write requests and decisions as gzipped CSV, not as Parquet.")]
AllNotes = Annotated[bool, typer.Option("--notes", help="Print every note and every setting in full.")]

Model = Annotated[str, typer.Option(help="A name, or the path of a config.json.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]


def overrides(changes: Iterable[str], seed: int | None = None) -> dict[str, object]:
    """The values of ``key.path=value`` options by key path, each read as YAML; ``seed`` as the workload's.

    Raises InputError where an option has no key or no value.
    """
    from servecast.scenario import document

    values: dict[str, object] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key.strip():
            raise InputError("--set", f"{change!r} has no key and value: write it like engine.block_size=32")
        values[key.strip()] = document.value(text, f"--set {key.strip()}")
    return values if seed is None else {**values, "workload.seed": seed}


def forms(figures: str) -> tuple[str, ...]:
    """The forms that ``--figures`` names, each once.

    Raises InputError where one is unknown, or png is asked for and cannot be made here: before anything runs.
    """
    named = tuple(dict.fromkeys(form.strip() for form in figures.split(",") if form.strip()))
    for form in named:
        if form not in _FORMS:
            raise InputError("--figures", f"{form!r} is no form of a figure: use svg, png, or svg,png")
    if figures and not named:
        raise InputError("--figures", f"{figures!r} names no form of a figure: use svg, png, or svg,png")
    if "png" in named:
        from servecast.report.charts.files import require_png

        require_png()
    return named


def device_module(name: str) -> Any:
    """A module that computes on a device, and loads torch.

    Raises InputError where torch is missing.
    """
    try:
        return importlib.import_module(f"servecast.device.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError("torch", "is not installed: pip install 'servecast[device]'") from None

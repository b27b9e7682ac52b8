"""``servecast plan``: how many GPUs, at what price, and how sure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servecast.cli.figures import Figures, forms
from servecast.errors import InputError

if TYPE_CHECKING:
    from servecast.plan.answer import Plan

EXIT_NONE = 1
EXIT_INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(plan)


def plan(
    scenario: Annotated[str, typer.Argument(help="File, or name of a shipped scenario, with a goal.")],
    changes: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY.PATH=VALUE", help="Set one value of the scenario; wins over the file."),
    ] = [],  # noqa: B006 (typer copies it)
    out: Annotated[Path, typer.Option(help="Folder in which NAME-plan is written.")] = Path("results"),
    jobs: Annotated[int, typer.Option(min=1, help="Configurations at a time.")] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Same as --set workload.seed=N.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Simulate all anew; else what an earlier, stopped plan made is taken.")
    ] = False,
    figures: Figures = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")] = False,
) -> None:
    """Find the fewest GPUs that meet a goal, the highest load, the price of a million tokens, and how sure that is.

    Exits with 1 where nothing meets the goal. Stopped, by whatever means, the same command goes on where it was: each
    simulated load is kept beside the results.

    Examples:

        servecast plan my.yaml

        servecast plan my.yaml --set goal.rate_rps=40 --set goal.slo.ttft_p99_s=0.5 --json
    """
    from servecast.cli import terminal
    from servecast.plan.basis import basis_of
    from servecast.plan.planner import make_plan
    from servecast.report import write_plan
    from servecast.report.plan_files import refuse_strangers, text
    from servecast.run.store import opened
    from servecast.scenario import load

    wanted = forms(figures)
    overrides = _overrides(changes)
    if seed is not None:
        overrides["workload.seed"] = seed
    loaded = load(scenario, overrides)
    results = out / f"{loaded.name}-plan"
    with opened(results, fresh=fresh, refuse=refuse_strangers) as store:
        try:
            with terminal.progress(loaded.name) as progress:
                made = make_plan(loaded, jobs, progress, store)
        except KeyboardInterrupt:
            # Said here: typer ends the command at a KeyboardInterrupt without a word.
            told = f"\n{loaded.name}: interrupted; the same command goes on from what was simulated"
            print(told, file=sys.stderr)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        basis = basis_of(loaded, made)
        page = write_plan(made, results, basis, wanted)
    if made.resumed:
        told = f"resumed: {made.resumed} simulated loads were made before (--fresh makes all anew)"
        print(told, file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(text(made, basis))
    else:
        _print(made)
        terminal.say(f"plan: {page}")
    if made.best is None:
        raise typer.Exit(EXIT_NONE)


def _print(made: Plan) -> None:
    from servecast.cli import terminal
    from servecast.report import plan_tables
    from servecast.report.verdicts.plan import verdict

    first, *others = plan_tables.tables(made)
    terminal.print_tables([first])
    terminal.say(plan_tables.legend(made), 2)
    terminal.print_tables(others)
    for note in made.notes:
        terminal.say(note)
    terminal.say_verdict(verdict(made))


def _overrides(changes: list[str]) -> dict[str, object]:
    from servecast.scenario import document

    overrides: dict[str, object] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key.strip():
            raise InputError("--set", f"{change!r} has no value: write it like --set goal.rate_rps=40")
        overrides[key.strip()] = document.value(text, f"--set {key.strip()}")
    return overrides

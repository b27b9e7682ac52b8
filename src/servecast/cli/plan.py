"""``servecast plan``: how many GPUs, at what price, and how sure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from servecast.cli import options

if TYPE_CHECKING:
    from servecast.plan.answer import Plan


def plan(
    scenario: options.Scenario,
    changes: options.Changes = [],  # noqa: B006 (typer copies it)
    out: options.Out = Path("results"),
    jobs: options.Jobs = 1,
    seed: options.WorkloadSeed = None,
    fresh: options.Fresh = False,
    figures: options.Figures = "",
    as_json: options.AsJson = False,
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
    from servecast.report.plan_page import refuse_strangers, text, write
    from servecast.run.store import opened
    from servecast.scenario import load

    drawn = options.forms(figures)
    loaded = load(scenario, options.overrides(changes, seed))
    results = out / f"{loaded.name}-plan"
    with opened(results, fresh=fresh, refuse=refuse_strangers) as store:
        try:
            with terminal.progress(loaded.name) as progress:
                made = make_plan(loaded, jobs, progress, store)
        except KeyboardInterrupt:
            said = f"{loaded.name}: interrupted; the same command goes on from what was simulated"
            raise KeyboardInterrupt(said) from None
        basis = basis_of(loaded, made)
        page = write(made, results, basis, drawn)
    if made.resumed:
        resumed = f"resumed: {made.resumed} simulated loads were made before (--fresh makes all anew)"
        print(resumed, file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(text(made, basis))
    else:
        _print(made)
        terminal.say(f"plan: {page}")
    if made.best is None:
        raise typer.Exit(options.EXIT_MISSED)


def _print(made: Plan) -> None:
    from servecast.cli import terminal
    from servecast.report import plan_words
    from servecast.report.verdicts.plan import verdict

    first, *others = plan_words.tables(made)
    terminal.print_tables([first])
    terminal.say(plan_words.legend(made), 2)
    terminal.print_tables(others)
    for note in made.notes:
        terminal.say(note)
    terminal.say_verdict(verdict(made))

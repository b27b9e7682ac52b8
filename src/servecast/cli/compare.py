"""``servecast compare``: a recorded run against its forecast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from servecast.cli.options import AsCsv, AsJson, Changes, Figures, Out, forms, overrides


def compare(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="File, or name of a shipped scenario of a recorded run.")
    ],
    recorded: Annotated[
        Path | None, typer.Argument(metavar="RECORDED", help="Recorded requests; without it the scenario's own trace.")
    ] = None,
    changes: Changes = [],  # noqa: B006 (typer copies it)
    out: Out = Path("results"),
    margin: Annotated[float, typer.Option(help="Error of a mean that still counts as equivalent: 0.05 is 5 %.")] = 0.05,
    band: Annotated[
        float | None,
        typer.Option(
            help="Also simulate with steps so much shorter and longer; 0: do not. 0.05 by default, and of a datasheet "
            "what is known of its error."
        ),
    ] = None,
    twin: Annotated[Path | None, typer.Option(help="Another recording of the same requests: the noise floor.")] = None,
    host_from: Annotated[
        Path | None,
        typer.Option(help="Recording to fit the client's way on; of RECORDED itself the first third, not judged."),
    ] = None,
    host_steps: Annotated[
        bool, typer.Option("--host-steps", help="Fit host time on top of each step there too.")
    ] = False,
    figures: Figures = "",
    as_csv: AsCsv = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a recorded run and say how far off that is.

    Examples:

        servecast compare h100-qwen3-14b-18rps

        servecast compare my.yaml result.json --host-from other.json

        servecast compare my.yaml result.json --json | jq '.rows[] | {metric, statistic, error}'
    """
    from servecast.against import server
    from servecast.cli import terminal
    from servecast.report import compare_page
    from servecast.report.verdicts.compare import verdict

    drawn = forms(figures)
    found = server.compared(
        scenario, recorded, overrides=overrides(changes), margin=margin, band=band, twin=twin, host_from=host_from,
        host_steps=host_steps,
    )  # fmt: skip
    page = compare_page.write(found, out, drawn, as_csv=as_csv)
    if as_json:
        from servecast.files import dumps

        print(dumps(compare_page.document(found, page)))
        return
    for line in compare_page.settings(found):
        print(line)
    terminal.print_tables(compare_page.tables(found))
    terminal.say_verdict(verdict(found))
    print(f"report: {page}")

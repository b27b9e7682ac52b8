"""The option ``--figures``, the same for every command that writes a page."""

from __future__ import annotations

from typing import Annotated

import typer

from servecast.errors import InputError

_FORMS = ("svg", "png")
Figures = Annotated[
    str, typer.Option(metavar="FORMS", help="Write the figures of the page as files too: svg, png, or svg,png.")
]


def forms(figures: str) -> tuple[str, ...]:
    """The forms that ``--figures`` names, each once.

    Raises InputError where one is unknown, or png is asked for and cannot be made here: before anything runs.
    """
    named = tuple(dict.fromkeys(form.strip() for form in figures.split(",") if form.strip()))
    for form in named:
        if form not in _FORMS:
            raise InputError("--figures", f"{form!r} is no form of a figure: use svg, png, or svg,png")
    if "png" in named:
        from servecast.report.charts.files import require_png

        require_png()
    return named

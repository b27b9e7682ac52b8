"""The option ``--figures``, the same for every command that writes a page."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from servecast.errors import InputError

FORMS = ("svg", "png")

Figures = Annotated[
    str, typer.Option(metavar="FORMS", help="Write the figures of the page as files too: svg, png, or svg,png.")
]


def forms(figures: str) -> tuple[str, ...]:
    """The forms that ``--figures`` names, each once.

    Raises InputError where one is unknown, or png is asked for and cannot be made here: before anything runs.
    """
    named = tuple(dict.fromkeys(form.strip() for form in figures.split(",") if form.strip()))
    for form in named:
        if form not in FORMS:
            raise InputError("--figures", f"{form!r} is no form of a figure: use svg, png, or svg,png")
    if "png" in named and find_spec("resvg_py") is None:
        raise InputError("--figures png", "needs resvg: pip install 'servecast[figures]'; svg needs nothing")
    return named

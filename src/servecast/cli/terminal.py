"""How the command line prints: sentences and tables that fit the terminal, a progress bar on long runs."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console

    from servecast.report.verdicts import Verdict
    from servecast.run.sweep import Progress
    from servecast.text import Table

WIDTH = 100  # of tables and settings, where the terminal is not narrower
_PIPE_WIDTH = 400  # of sentences, where neither a terminal nor COLUMNS limits the width
_NARROWEST = 40


def console() -> Console:
    """Standard output: text as it is, without colour by guess or markup."""
    from rich.console import Console

    return Console(width=_columns() or _PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def _columns() -> int | None:
    """How wide the output may be: what COLUMNS says, else the terminal; None where neither limits it."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return max(int(said), _NARROWEST)
    return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None


def width() -> int:
    """Of tables and of lines that are cut."""
    return min(console().width, WIDTH)


def say(text: str, indent: int = 0) -> None:
    """Print a sentence, wrapped where the width is limited; what follows its first line is set in further."""
    width, first = console().width, " " * indent
    rest = first + "  " if indent else ""
    if width < _PIPE_WIDTH:
        text = textwrap.fill(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    print(text if width < _PIPE_WIDTH else first + text)


def aside(text: str) -> None:
    """Print how far a measurement is, on standard error."""
    print(text, file=sys.stderr, flush=True)


def say_verdict(verdict: Verdict) -> None:
    """Print a verdict: the headline on its own, the details set in below it."""
    say(verdict.headline)
    for sentence in verdict.details:
        say(sentence, 2)


def print_tables(tables: Iterable[Table], notes: Iterable[str] = ()) -> None:
    """Print tables under each other, and notes below them."""
    for table in tables:
        print_table(table.title, table.columns, table.rows)
    for note in notes:
        print(note)


def print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table; columns of numbers stand to the right."""
    from rich import box
    from rich.table import Table as Grid

    out = console()
    if title:
        out.print(title, soft_wrap=True, style="bold")
    table = Grid(box=box.SIMPLE_HEAD, show_header=any(heads))
    for at, head in enumerate(heads):
        numbers = at > 0 and all(row[at][:1].isdigit() or row[at][:1] in "-+<$\u2013" for row in rows)
        table.add_column(head, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)


@contextmanager
def progress(name: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[Progress], None]]:
    """A bar on standard error, where that is a terminal; yields the way to tell it of each run made."""
    if not sys.stderr.isatty():
        yield lambda made: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bar

    # Not the bar's own time left: it takes what an earlier sitting made for work of the first moment.
    left = TextColumn("{task.fields[left]}")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), left)
    began_s: float | None = None
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None, left="")

        def made(progress: Progress) -> None:
            nonlocal began_s
            now_s = clock()
            began_s = now_s if began_s is None else began_s  # what was there has been read by then
            left = _time_left(progress.seconds_left(now_s - began_s))
            description = f"{name}: {progress.at_work}"
            bar.update(task, completed=progress.made, total=progress.total, description=description, left=left)

        yield made


def _time_left(seconds: float | None) -> str:
    """``1:02:03 left``; nothing where nobody knows."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} left"


@contextmanager
def busy(doing: str) -> Iterator[None]:
    """A spinner on standard error while something takes its time, where that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(doing):
        yield


def plain(value: object) -> str:
    """A value as people read it: no digits that mean nothing, true and false as in the file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)

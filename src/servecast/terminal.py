"""What the command line shows: tables that fit the terminal, a progress bar on long runs, results with settings."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console

    from servecast.planning.results import Results
    from servecast.planning.sweep import Progress
    from servecast.scenario import Scenario

PIPE_WIDTH = 400  # where no terminal limits the width
GAP = 3  # what a column of a table takes beside its text

#: Columns of the comparison that give way on a narrow terminal, the first one first.
EXPENDABLE = (
    "of", "busy", "ITL p99 [ms]", "KV peak", "TTFT p50 [s]", "done", "queue", "output tok/s", "preempted", "OOM",
    "padding", "idle slots", "TPOT p50 [ms]",
)  # fmt: skip


class Tabular(Protocol):
    """A title, heads, and rows of text."""

    @property
    def title(self) -> str: ...

    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def rows(self) -> Sequence[Sequence[str]]: ...


def console() -> Console:
    """Standard output: text as it is, without colour by guess or markup."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def print_tables(tables: Iterable[Tabular]) -> None:
    """Print tables under each other."""
    for table in tables:
        print_table(table.title, table.columns, table.rows)


def print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table; columns of numbers stand to the right."""
    from rich import box
    from rich.table import Table

    out = console()
    if title:
        out.print(title, soft_wrap=True, style="bold")
    table = Table(box=box.SIMPLE_HEAD, show_header=any(heads))
    for at, head in enumerate(heads):
        numbers = at > 0 and all(row[at][:1].isdigit() or row[at][:1] in "-+<$\u2013" for row in rows)
        table.add_column(head, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def print_results(scenario: Scenario, results: Results) -> None:
    """What was simulated with which settings, the table that compares the policies, and the verdict."""
    from servecast.report import words

    calibrated = bool(results.scenario["derived"]["calibrated"])
    for line in _settings(scenario, results, calibrated):
        print(line)
    rows = words.comparison_rows(results.summary)
    heads = list(dict.fromkeys(head for row in rows for head in row))
    shown, left_out = _fitting(heads, rows, console().width)
    cells = [[row.get(head, "") for head in shown] for row in rows]
    print_table("", ["\n".join(head.split()) for head in shown], cells)
    if left_out:
        print(f"({left_out} more columns on a wider terminal; all are in summary.csv)")
    print(words.verdict(results.summary, results.scenario.get("slo"), calibrated=calibrated))


def _settings(scenario: Scenario, results: Results, calibrated: bool) -> Iterator[str]:
    derived, engine = results.scenario["derived"], results.scenario["engine"]
    mark = "calibrated" if calibrated else "datasheet, uncalibrated"
    seeds = f"seed {scenario.workload.seed}" + (f" and {scenario.seeds - 1} more" if scenario.seeds > 1 else "")
    yield (
        f"{scenario.name}: {scenario.model} on {scenario.profile or scenario.device} ({mark}), "
        f"gpu_memory_utilization {engine['gpu_memory_utilization']:g}, restart_s {engine['restart_s']:g}, {seeds}"
    )
    for label, entry in zip(scenario.labels(), scenario.policies, strict=True):
        memory = derived["memory"][label]
        # What is off is left out: 0 and false, but for chunked prefill, which users look for.
        settings = ", ".join(
            f"{key} {plain(value)}"
            for key, value in entry.parameters().items()
            if value or key == "enable_chunked_prefill"
        )
        yield (
            f"  {label}: {settings}; {memory['kv_blocks']:,} KV blocks = {memory['kv_tokens']:,} tokens, "
            f"max_model_len {memory['max_model_len']:,}"
        )
    for note in results.notes:
        yield f"  {note}"


def _fitting(heads: list[str], rows: list[dict[str, str]], width: int) -> tuple[list[str], int]:
    """The columns that fit into ``width``, and how many had to give way."""
    widths = {head: max([*map(len, head.split()), *(len(row.get(head, "")) for row in rows)]) + GAP for head in heads}
    shown = list(heads)
    for head in EXPENDABLE:
        if sum(widths[name] for name in shown) < width:
            break
        if head in shown:
            shown.remove(head)
    return shown, len(heads) - len(shown)


@contextmanager
def progress(name: str) -> Iterator[Callable[[Progress], None]]:
    """A bar on standard error, where that is a terminal; yields the way to tell it of each run made."""
    if not sys.stderr.isatty():
        yield lambda made: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def made(progress: Progress) -> None:
            bar.update(task, completed=progress.made, total=progress.total, description=f"{name}: {progress.at_work}")

        yield made


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

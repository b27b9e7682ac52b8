"""What the command line shows: tables that fit the terminal, a progress bar on long runs, results with settings."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console

    from servecast.report.verdicts import Verdict
    from servecast.run.results import Results
    from servecast.run.sweep import Progress
    from servecast.scenario import Scenario
    from servecast.text import Table

MOST_TENANTS = 60  # rows of the table of tenants that are shown
PIPE_WIDTH = 400  # where neither a terminal nor COLUMNS limits the width
NARROWEST = 40
GAP = 3  # what a column of a table takes beside its text

#: Columns of the comparison that give way on a narrow terminal, the first one first; before all, those with nothing.
EXPENDABLE = (
    "busy", "ITL p99 [ms]", "KV peak", "output tok/s", "done", "TTFT p50 [s]", "idle slots", "padding", "preempted",
    "OOM", "$/M output", "TPOT p50 [ms]", "queue",
)  # fmt: skip
NOTHING = ("0", "0 %", "\u2013")


def console() -> Console:
    """Standard output: text as it is, without colour by guess or markup."""
    from rich.console import Console

    return Console(width=_columns() or PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def _columns() -> int | None:
    """How wide the output may be: what COLUMNS says, else the terminal; None where neither limits it."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return max(int(said), NARROWEST)
    return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None


def say(text: str, indent: int = 0) -> None:
    """Print a sentence, wrapped where the width is limited; what follows its first line is set in further."""
    width = console().width
    first = " " * indent
    if width >= PIPE_WIDTH:
        print(first + text)
        return
    rest = first + "  " if indent else ""
    print(textwrap.fill(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False))


def say_verdict(verdict: Verdict) -> None:
    """Print a verdict: the headline on its own, the details set in below it."""
    say(verdict.headline)
    for sentence in verdict.details:
        say(sentence, 2)


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables under each other."""
    for table in tables:
        print_table(table.title, table.columns, table.rows)


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


def print_results(scenario: Scenario, results: Results) -> None:
    """What was simulated with which settings, the table that compares the policies, and the verdict."""
    from servecast.report import verdict, words
    from servecast.run.results import stated

    calibrated = bool(results.scenario["derived"]["calibrated"])
    for indent, line in _settings(scenario, results, calibrated):
        say(line, indent)
    rows = words.comparison_rows(results.summary)
    heads = list(dict.fromkeys(head for row in rows for head in row))
    shown, left_out = _fitting(heads, rows, console().width)
    cells = [[row.get(head, "") for head in shown] for row in rows]
    print_table("", ["\n".join(head.split()) for head in shown], cells)
    if left_out:
        say(f"({left_out} more columns on a wider terminal; all are in summary.csv)")
    if len(results.tenants):
        _print_tenants(results)
    say_verdict(verdict(results.summary, stated(results.scenario), calibrated=calibrated))


def _print_tenants(results: Results) -> None:
    from servecast.report.words import tenant_rows

    rows = tenant_rows(results.tenants)
    heads, _ = _fitting(list(rows[0]), rows[:MOST_TENANTS], console().width)
    shown = [[row[head] for head in heads] for row in rows[:MOST_TENANTS]]
    print_table("tenants", ["\n".join(head.split()) for head in heads], shown)
    if len(rows) > MOST_TENANTS:
        say(f"({len(rows) - MOST_TENANTS:,} more rows in tenants.csv)")


def _settings(scenario: Scenario, results: Results, calibrated: bool) -> Iterator[tuple[int, str]]:
    """Lines with their indents: what ran, what each policy was, how far the numbers can be trusted."""
    from servecast.report.trust import step_error

    data = results.scenario
    mark = "calibrated" if calibrated else "datasheet, uncalibrated"
    seeds = f"seed {scenario.workload.seed}" + (f" and {scenario.seeds - 1} more" if scenario.seeds > 1 else "")
    model, device, utilization, restart_s = (
        _swept(scenario, key, value)
        for key, value in (
            ("model", data["model"]),
            ("profile" if scenario.profile else "device", scenario.profile or scenario.device),
            ("engine.gpu_memory_utilization", data["engine"]["gpu_memory_utilization"]),
            ("engine.restart_s", data["engine"]["restart_s"]),
        )
    )
    what = f"{scenario.name}: {model} on {device} ({mark})"
    yield 0, f"{what}, gpu_memory_utilization {utilization}, restart_s {restart_s}, {seeds}"
    for at, label in enumerate(scenario.labels()):
        yield 2, f"{label}: {_policy(scenario, results, at, label)}"
    yield 2, step_error(results.profile, calibrated=calibrated, executed=bool(data["derived"].get("executed_on")))
    for note in results.notes:
        yield 2, note


def _policy(scenario: Scenario, results: Results, at: int, label: str) -> str:
    """The parameters of one policy and the memory it had."""
    entry = scenario.policies[at]
    settled = results.scenario["policies"][at]
    # What is off is left out: 0 and false, but for chunked prefill, which users look for.
    settings = [
        f"{key} {_swept(scenario, f'policies[{at}].{key}', settled[key])}"
        for key in entry.parameters()
        if settled[key] or key == "enable_chunked_prefill" or _sweeps(scenario, f"policies[{at}].{key}")
    ]
    plans = [outcome.memory for outcome in results.outcomes if outcome.policy == label]
    if not plans:  # not one of its runs could be made
        return ", ".join(settings)
    blocks, tokens, longest = (
        _spread([getattr(plan, name) for plan in plans]) for name in ("kv_blocks", "kv_tokens", "max_model_len")
    )
    return f"{', '.join(settings)}; {blocks} KV blocks = {tokens} tokens, max_model_len {longest}"


def _swept(scenario: Scenario, key: str, value: object) -> str:
    """A setting as one run has it, or all the values that the sweep gives it."""
    values = _sweeps(scenario, key)
    return plain(value) if not values else f"{_spread(values)} by sweep" if len(values) > 1 else plain(values[0])


def _sweeps(scenario: Scenario, key: str) -> Sequence[object]:
    """The values a sweep gives to one setting; none where it leaves it alone."""
    for path, values in scenario.sweep.items():
        if key in (path, re.sub(r"\.(\d+)\b", r"[\1]", path)):
            return values
        every = re.fullmatch(r"policies(?:\[\*\]|\.\*)\.(.+)", path)
        if every and re.fullmatch(rf"policies\[\d+\]\.{re.escape(every[1])}", key):
            return values
    return ()


def _spread(values: Sequence[Any]) -> str:
    """Several values in a few words: all of them, or the ends where they are more than two numbers."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) > 2 and all(isinstance(value, (int, float)) for value in distinct):
        return f"{plain(min(distinct))} to {plain(max(distinct))}"
    return " or ".join(plain(value) for value in distinct)


def _fitting(heads: list[str], rows: list[dict[str, str]], width: int) -> tuple[list[str], int]:
    """The columns that fit into ``width``, and how many had to give way."""
    widths = {head: max([*map(len, head.split()), *(len(row.get(head, "")) for row in rows)]) + GAP for head in heads}
    shown = list(heads)
    for head in sorted(EXPENDABLE, key=lambda head: any(row.get(head) not in NOTHING for row in rows)):
        if sum(widths[name] for name in shown) < width:
            break
        if head in shown:
            shown.remove(head)
    return shown, len(heads) - len(shown)


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
            left = time_left(progress.seconds_left(now_s - began_s))
            description = f"{name}: {progress.at_work}"
            bar.update(task, completed=progress.made, total=progress.total, description=description, left=left)

        yield made


def time_left(seconds: float | None) -> str:
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

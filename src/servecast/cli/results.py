"""The results of ``servecast run`` on the terminal: settings, notes, the table that compares policies, the verdict.

Nothing is wider than `terminal.WIDTH` columns: the table leaves out its less telling columns, and settings and notes
are cut. ``--wide`` shows more columns, ``--notes`` all notes; summary.csv has all metrics.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any

from servecast.cli import terminal
from servecast.cli.terminal import plain
from servecast.metrics import WIDE
from servecast.report import tables, trust, verdict
from servecast.run.results import stated, swept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servecast.run.results import Results
    from servecast.scenario import Scenario

_MOST_TENANTS = 60  # rows of the table of tenants that are shown
_MOST_NOTES = 3  # lines
_GAP = 3  # what a column of a table takes beside its text
_NOTHING = ("0", "0 %", "\u2013")
#: Settings of a policy that are shown though they have their defaults.
_TELLING = ("batch_size", "max_wait_s", "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill")


def print_results(scenario: Scenario, results: Results, *, wide: bool = False, all_notes: bool = False) -> None:
    """What was simulated with which settings, how far to trust it, the policies compared, and the verdict."""
    calibrated = bool(results.scenario["derived"]["calibrated"])
    headline = _headline(scenario, results, calibrated)
    print(textwrap.fill(headline, terminal.width(), subsequent_indent="  ", break_on_hyphens=False))
    for at, label in enumerate(scenario.labels()):
        _say(f"{label}: {_policy(scenario, results, at, label, all_notes)}", all_notes)
    for warning in results.warnings:
        _say(warning, True)
    executed = bool(results.scenario["derived"].get("executed_on"))
    notes = [trust.step_error(results.profile, calibrated=calibrated, executed=executed), *results.notes]
    few = sum(len(textwrap.wrap(note, terminal.width() - 4)) for note in notes) <= _MOST_NOTES
    for note in notes if all_notes or few else _grouped(notes):
        _say(note, all_notes or few)
    rows = tables.comparison_rows(results.summary, WIDE if wide else WIDE - 1)
    _print_rows("", rows, 1 + len(swept(results.summary)), wide)
    if len(results.tenants):
        rows = tables.tenant_rows(results.tenants)
        _print_rows("tenants", rows[:_MOST_TENANTS], 2 + len(swept(results.tenants)), wide)
        if len(rows) > _MOST_TENANTS:
            terminal.say(f"({len(rows) - _MOST_TENANTS:,} more rows in tenants.csv)")
    terminal.say_verdict(verdict(results.summary, stated(results.scenario), calibrated=calibrated))


def _say(line: str, whole: bool) -> None:
    """A line, wrapped where it is wanted ``whole``; else cut where it is too long for one."""
    if not whole:
        line = textwrap.shorten(line, terminal.width() - 2, placeholder=" … --notes")
    terminal.say(line, 2)


def _grouped(notes: Sequence[str]) -> list[str]:
    """At most `_MOST_NOTES` lines: notes that begin alike (``Trace: ...``) are one, with their number."""
    groups: dict[str, list[str]] = {}
    for note in notes:
        groups.setdefault(note.partition(":")[0], []).append(note)
    lines = [
        same[0] if len(same) == 1 else f"{head} ({len(same)} notes):{same[0].removeprefix(head)[1:]}"
        for head, same in groups.items()
    ]
    if len(lines) <= _MOST_NOTES:
        return lines
    return [*lines[: _MOST_NOTES - 1], f"{len(lines) - _MOST_NOTES + 1} more: --notes, or the page"]


def _print_rows(title: str, rows: Sequence[dict[str, str]], keys: int, wide: bool) -> None:
    """A table whose first ``keys`` columns tell the rows apart.

    Others that do not fit are left out, the last first, but before them those that say nothing; of a ``wide`` one they
    follow as further tables.
    """
    heads = list(dict.fromkeys(head for row in rows for head in row))
    width = terminal.console().width if wide else terminal.width()
    first, rest = heads[:keys], heads[keys:]
    while rest:
        shown = _fitting(first, rest, rows, width)
        cells = [[row.get(head, "") for head in (*first, *shown)] for row in rows]
        terminal.print_table(title, ["\n".join(head.split()) for head in (*first, *shown)], cells)
        rest = [head for head in rest if head not in shown]
        if not wide:
            break
    if rest:
        terminal.say(f"({len(rest)} more columns: --wide, and summary.csv)")


def _fitting(first: list[str], rest: list[str], rows: Sequence[dict[str, str]], width: int) -> list[str]:
    """Those of the columns ``rest`` that fit beside the first ones: at least one."""

    def needs(head: str) -> int:
        return max([*map(len, head.split()), *(len(row.get(head, "")) for row in rows)]) + _GAP

    room = width - 1 - sum(needs(head) for head in first)
    shown = list(rest)
    says = {head: any(row.get(head) not in _NOTHING for row in rows) for head in rest}
    for head in sorted(rest, key=lambda head: (says[head], -rest.index(head))):
        if sum(map(needs, shown)) > room and len(shown) > 1:
            shown.remove(head)
    return shown


def _headline(scenario: Scenario, results: Results, calibrated: bool) -> str:
    """What ran where."""
    data = results.scenario
    mark = "calibrated" if calibrated else "datasheet, uncalibrated"
    seeds = f"seed {scenario.workload.seed}" + (f" and {scenario.seeds - 1} more" if scenario.seeds > 1 else "")
    key, used = ("profile", scenario.profile) if scenario.profile else ("device", scenario.device)
    model, device = _swept(scenario, "model", data["model"]), _swept(scenario, key, used)
    utilization = _swept(scenario, "engine.gpu_memory_utilization", data["engine"]["gpu_memory_utilization"])
    return f"{scenario.name}: {model} on {device} ({mark}), {seeds}, gpu_memory_utilization {utilization}"


def _policy(scenario: Scenario, results: Results, at: int, label: str, whole: bool) -> str:
    """The settings of one policy and the memory it had; in short, only telling ones, changed ones and swept ones."""
    entry = scenario.policies[at]
    settled = results.scenario["policies"][at]
    settings = []
    for key in entry.parameters():
        path = f"policies[{at}].{key}"
        if whole or _sweeps(scenario, path) or key in entry.model_fields_set or key in _TELLING:
            value, name = _swept(scenario, path, settled[key]), key.removeprefix("enable_")
            settings.append({"true": name, "false": f"no {name}"}.get(value, f"{key} {value}"))
    plans = [outcome.memory for outcome in results.outcomes if outcome.policy == label]
    if not plans:  # not one of its runs could be made
        return ", ".join(settings)
    memory = f"{_spread([plan.kv_blocks for plan in plans])} KV blocks"
    if whole:
        memory += f" = {_spread([plan.kv_tokens for plan in plans])} tokens"
        memory += f", max_model_len {_spread([plan.max_model_len for plan in plans])}"
    return f"{', '.join(settings)}; {memory}"


def _swept(scenario: Scenario, key: str, value: object) -> str:
    """A setting as one run has it, or all the values that the sweep gives it."""
    values = _sweeps(scenario, key)
    return plain(value) if not values else f"{_spread(values)} (swept)" if len(values) > 1 else plain(values[0])


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

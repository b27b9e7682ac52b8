"""Writes requests as another tool's trace: plain CSV, Azure CSV, Mooncake's or vLLM's timed JSON lines.

A file that is read back holds the same requests: lengths, prefix ids and times exactly (Azure's to
its tick of 100 ns). What a format has no place for (sessions in Azure, priorities in all but the plain one) is named
before anything is written. Azure's dates start at 2000-01-01 00:00:00. Mooncake's turns hold what is new in them, and
no ids; its other prompts have an id for every block, of its own where no prefix is known. A timed trace without prefix
ids may have to be read back with ``format: timed_trace``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf, isnan, nextafter
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.errors import InputError
from servecast.files import write
from servecast.workload.prefixes import PrefixIds, engine_blocks
from servecast.workload.traces.mooncake import PREFIX_BLOCK_SIZE, TIMED_TRACE_BLOCK_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.requests import Request
    from servecast.workload.clients import RequestColumns

_BLOCKS = {"mooncake": PREFIX_BLOCK_SIZE, "timed_trace": TIMED_TRACE_BLOCK_SIZE}
_START = datetime(2000, 1, 1, tzinfo=UTC)


def write_trace(columns: RequestColumns, path: str, form: str) -> list[str]:
    """Writes ``columns`` to ``path`` as ``form``; what could not be kept, a sentence each.

    An unknown form, a file that cannot be written, or ids that do not fit the form's blocks are an InputError.
    """
    if form not in FORMS:
        raise InputError("--to", f"'{form}' is no format that is written; choose one of {', '.join(FORMS)}")
    columns, lost = _fitting(columns, form)
    write(path, (f"{line}\n" for line in FORMS[form](columns)))
    return lost


def _fitting(columns: RequestColumns, form: str) -> tuple[RequestColumns, list[str]]:
    """What the form can hold, and what it cannot."""
    lost: list[str] = []
    dropped: dict[str, Any] = {}
    turns = "delays are not kept: {form} has no place for them, turns are at their earliest times"
    for name, said, forms in (
        ("priority", "priority is not kept: {form} has no place for it", ("plain",)),
        ("tenant", "tenant is not kept: {form} has no place for it", ("plain",)),
        ("max_tokens", "max_tokens is not kept: {form} has no place for it", ("plain",)),
        ("session", "session is not kept: {form} has no place for it", ("plain", "mooncake")),
        ("delay_s", turns, ("plain", "mooncake")),
        ("prefix_ids", "prefix ids are not kept: {form} has no place for them", ("plain", "mooncake", "timed_trace")),
    ):
        if getattr(columns, name) is not None and form not in forms:
            lost.append(said.format(form=form))
            dropped[name] = None
    columns = replace(columns, **dropped)
    if form == "mooncake" and columns.session is not None:
        return _only_new(columns, lost), lost
    if columns.prefix_ids is not None and columns.prefix_ids.tokens is not None:
        ids = engine_blocks(columns.prefix_ids, columns.prompt_tokens, 1, TIMED_TRACE_BLOCK_SIZE)
        columns = replace(columns, prefix_ids=ids, prefix_block_size=TIMED_TRACE_BLOCK_SIZE)
    size, block = columns.prefix_block_size, _BLOCKS.get(form)
    if columns.prefix_ids is not None and block not in (None, size):
        if form == "mooncake":
            lost.append(f"prefix ids are not kept: they stand for {size} tokens, and Mooncake's for 512")
            columns = replace(columns, prefix_ids=None)
        else:
            lost.append(f"prefix ids are split into blocks of {block} tokens")
    if block is not None and (columns.prefix_ids is not None or form == "mooncake"):
        ids = _complete(columns, block, every=form == "mooncake")
        columns = replace(columns, prefix_ids=ids, prefix_block_size=block)
    return columns, lost


def _only_new(columns: RequestColumns, lost: list[str]) -> RequestColumns:
    """The requests with what is new in each turn as its prompt: they hold their history, or were no turns."""
    if columns.prefix_ids is not None:
        lost.append("prefix ids are not kept: mooncake's turns hold only what is new in them")
        columns = replace(columns, prefix_ids=None, prefix_block_size=None)
    new = columns.prompt_tokens.copy()
    said: dict[str, int] = {}
    for row, name in enumerate(columns.session or ()):
        if name is not None:
            new[row] -= said.get(name, 0)
            said[name] = int(columns.prompt_tokens[row] + columns.output_tokens[row])
    if (new >= 1).all():
        return replace(columns, prompt_tokens=new)
    lost.append("session is not kept: some turns are shorter than what was said before them; delays are lost with it")
    columns = replace(columns, session=None, delay_s=None)
    return replace(columns, prefix_ids=_complete(columns, PREFIX_BLOCK_SIZE, True), prefix_block_size=PREFIX_BLOCK_SIZE)


def _complete(columns: RequestColumns, block_size: int, every: bool = False) -> PrefixIds:
    """Ids of ``block_size`` tokens for every block of the prompts that have some (or of all), new ones where none are
    known."""
    ids = columns.prefix_ids or PrefixIds.of([()] * len(columns))
    some = every | (ids.counts > 0)
    wanted = np.where(some, -(-columns.prompt_tokens // block_size), 0)
    if columns.prefix_ids is not None and columns.prefix_block_size != block_size:
        assert columns.prefix_block_size is not None, "ids have one"
        ids = engine_blocks(ids, columns.prompt_tokens, columns.prefix_block_size, block_size)
    if np.array_equal(ids.counts, wanted):
        return ids
    fresh = int(ids.flat.max()) + 1 if len(ids.flat) else 0
    rows = []
    for row, missing in zip(ids, (wanted - ids.counts).tolist(), strict=True):
        rows.append([*row, *range(fresh, fresh + missing)])
        fresh += missing
    return PrefixIds.of(rows)


def _plain(columns: RequestColumns) -> Iterator[str]:
    delays = [] if columns.delay_s is None else columns.delay_s.tolist()
    cells: dict[str, Callable[[Request], str]] = {
        "priority": lambda request: str(request.priority),
        "max_tokens": lambda request: str(request.max_tokens),
        "session": lambda request: _cell(request.session),
        "tenant": lambda request: _cell(request.tenant),
        "delay_s": lambda request: "" if isnan(delays[request.id]) else repr(delays[request.id]),
        "prefix_ids": lambda request: " ".join(map(str, request.prefix_ids)),
    }
    more = [name for name in cells if getattr(columns, name) is not None]
    names = (f"{name}_{columns.prefix_block_size}" if name == "prefix_ids" else name for name in more)
    yield ",".join(["arrival_s", "prompt_tokens", "output_tokens", *names])
    for request in columns:
        start = f"{request.arrival_s!r},{request.prompt_tokens},{request.output_tokens}"
        yield ",".join([start, *(cells[name](request) for name in more)])


def _cell(name: str | None) -> str:
    text = name or ""
    if any(mark in text for mark in ',"') or text != text.strip():
        return '"' + text.replace('"', '""') + '"'
    return text


def _azure(columns: RequestColumns) -> Iterator[str]:
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    ticks = np.rint(columns.arrival_s * 1e7).astype(np.int64).tolist()
    for request, tick in zip(columns, ticks, strict=True):
        date = _START + timedelta(seconds=tick // 10**7)
        yield f"{date:%Y-%m-%d %H:%M:%S}.{tick % 10**7:07d},{request.prompt_tokens},{request.output_tokens}"


def _mooncake(columns: RequestColumns) -> Iterator[str]:
    delays = None if columns.delay_s is None else columns.delay_s.tolist()
    for request in columns:
        row: dict[str, object] = {}
        if request.session is not None:
            row["session_id"] = request.session
        if delays is not None and not isnan(delays[request.id]):
            row["delay"] = _tick(delays[request.id])
        else:
            row["timestamp"] = _tick(request.arrival_s)
        yield json.dumps(row | _lengths(request))


def _tick(time_s: float) -> float:
    """Milliseconds that give the same seconds when divided by 1000, a whole number where it can be one."""
    ms = time_s * 1000
    for near in (round(ms), ms, nextafter(ms, inf), nextafter(ms, -inf)):
        if near / 1000 == time_s:
            return near
    return ms


def _lengths(request: Request) -> dict[str, object]:
    row: dict[str, object] = {"input_length": request.prompt_tokens, "output_length": request.output_tokens}
    return row | ({"hash_ids": list(request.prefix_ids)} if request.prefix_ids else {})


def _timed_trace(columns: RequestColumns) -> Iterator[str]:
    for request in columns:
        yield json.dumps({"timestamp": request.arrival_s} | _lengths(request))


FORMS: dict[str, Callable[[RequestColumns], Iterator[str]]] = {
    "plain": _plain,
    "azure": _azure,
    "mooncake": _mooncake,
    "timed_trace": _timed_trace,
}

"""Writes requests as another tool's trace: plain CSV, Azure CSV, Mooncake's or vLLM's timed JSON lines.

A file that is read back holds the same requests: lengths, prefix ids and times exactly (Azure's to
its tick of 100 ns). What a format has no place for (sessions in Azure, priorities in all but the plain one) is named
before anything is written. Azure's dates start at 2000-01-01 00:00:00. A timed trace without prefix ids looks like
Mooncake's, and is read back with ``format: timed_trace``.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from math import inf, isnan, nextafter
from typing import TYPE_CHECKING

import numpy as np

from servecast.errors import InputError
from servecast.files import write
from servecast.workload.prefixes import PrefixIds, engine_blocks
from servecast.workload.traces.mooncake import PREFIX_BLOCK_SIZE, TIMED_TRACE_BLOCK_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.requests import Request
    from servecast.workload.clients import RequestColumns

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
    lost = []
    kept = {name: getattr(columns, name) for name in ("priority", "session", "tenant", "delay_s")}
    for name, of in (("priority", ("plain",)), ("tenant", ("plain",)), ("session", ("plain", "mooncake"))):
        if kept[name] is not None and form not in of:
            lost.append(f"{name} is not kept: {form} has no place for it")
            kept[name] = None
    if kept["delay_s"] is not None and form not in ("plain", "mooncake"):
        lost.append(f"delays are not kept: {form} has no place for them, turns are at their earliest times")
        kept["delay_s"] = None
    ids, size = columns.prefix_ids, columns.prefix_block_size
    if ids is not None and size is not None:
        if form == "azure":
            lost.append("prefix ids are not kept: azure has no place for them")
            ids, size = None, None
        elif form == "timed_trace":
            if size != TIMED_TRACE_BLOCK_SIZE:
                lost.append("prefix ids are split into blocks of 16 tokens")
            ids, size = _complete(columns, TIMED_TRACE_BLOCK_SIZE), TIMED_TRACE_BLOCK_SIZE
        elif form == "mooncake" and size == PREFIX_BLOCK_SIZE:
            ids = _complete(columns, PREFIX_BLOCK_SIZE)
        elif form == "mooncake":
            lost.append(f"prefix ids are not kept: they stand for {size} tokens, and Mooncake's for 512")
            ids, size = None, None
    changed = type(columns)(
        columns.arrival_s,
        columns.prompt_tokens,
        columns.output_tokens,
        kept["priority"],
        kept["session"],
        kept["tenant"],
        ids,
        size,
        kept["delay_s"],
    )
    return changed, lost


def _complete(columns: RequestColumns, block_size: int) -> PrefixIds:
    """Ids of ``block_size`` tokens for every block of the prompts that have some, new ones where none are known."""
    assert columns.prefix_ids is not None and columns.prefix_block_size is not None, "there are ids"
    ids = columns.prefix_ids
    some = ids.counts > 0
    wanted = np.where(some, -(-columns.prompt_tokens // block_size), 0)
    if columns.prefix_block_size != block_size:
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
    more: list[tuple[str, Callable[[Request], str]]] = []
    if columns.priority is not None:
        more.append(("priority", lambda request: str(request.priority)))
    if columns.session is not None:
        more.append(("session", lambda request: _cell(request.session)))
    if columns.tenant is not None:
        more.append(("tenant", lambda request: _cell(request.tenant)))
    if columns.delay_s is not None:
        delays = columns.delay_s.tolist()
        more.append(("delay_s", lambda request: "" if isnan(delays[request.id]) else repr(delays[request.id])))
    if columns.prefix_ids is not None:
        name = f"prefix_ids_{columns.prefix_block_size}"
        more.append((name, lambda request: " ".join(map(str, request.prefix_ids))))
    yield ",".join(["arrival_s", "prompt_tokens", "output_tokens", *(name for name, _ in more)])
    for request in columns:
        cells = [repr(request.arrival_s), str(request.prompt_tokens), str(request.output_tokens)]
        yield ",".join([*cells, *(cell(request) for _, cell in more)])


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

"""A run as a Chrome trace (JSON), which Perfetto and chrome://tracing open: who ran when, and what the engine did.

Three processes: *requests* has a lane a slot, a request as its prefill and its decode; *engine* has a lane of decisions
with their shape, marks where memory ran out, and counters of running and waiting requests and KV blocks; *queue* shows
each request's wait as an async slice. Times are microseconds of the simulation's clock. Events come as they are made,
so that a long run needs no memory; a window in time keeps the file small. Source: Chrome's Trace Event Format.
"""

from __future__ import annotations

from itertools import chain
from math import inf, isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.batch import StepShape
from servecast.files import dumps, write
from servecast.requests import RejectReason, Status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servecast.engine import Run

REQUESTS, ENGINE, QUEUE = 1, 2, 3
_CHUNK = 1 << 14
_SHOWN = ("iterations", *StepShape._fields, "preempted", "recomputed_tokens", "finished")


def write_perfetto(run: Run, path: Path | str, *, start_s: float = 0.0, end_s: float = inf) -> None:
    """Writes what touches ``start_s`` to ``end_s`` of the run. A place that cannot be written is an InputError."""
    events = chain(_names(run), _requests(run, start_s, end_s), _decisions(run, start_s, end_s), _crashes(run))
    write(path, _lines(events))


def _lines(events: Iterator[dict[str, Any]]) -> Iterator[str]:
    yield '{"displayTimeUnit": "ms", "traceEvents": [\n'
    for at, event in enumerate(events):
        yield (",\n" if at else "") + dumps(event)
    yield "\n]}\n"


def _names(run: Run) -> Iterator[dict[str, Any]]:
    for process, name in ((REQUESTS, "requests"), (ENGINE, "engine"), (QUEUE, "queue")):
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
    yield {"ph": "M", "name": "thread_name", "pid": ENGINE, "tid": 0, "args": {"name": "decisions"}}
    slots = run.requests["slot"]
    for slot in np.unique(slots[~np.isnan(slots)]).astype(int).tolist():
        yield {"ph": "M", "name": "thread_name", "pid": REQUESTS, "tid": slot, "args": {"name": f"slot {slot}"}}


def _us(time_s: float) -> float:
    return round(time_s * 1e6, 3)


def _slice(name: str, process: int, lane: int, start_s: float, end_s: float, **args: Any) -> dict[str, Any]:
    times = {"ts": _us(start_s), "dur": max(0.0, round(_us(end_s) - _us(start_s), 3))}
    return {"ph": "X", "name": name, "pid": process, "tid": lane, **times, "args": args}


def _requests(run: Run, start_s: float, end_s: float) -> Iterator[dict[str, Any]]:
    crashes = np.array([event.time_s for event in run.oom])
    columns = {name: column.tolist() for name, column in run.requests.items()}
    names = ("id", "sent_s", "scheduled_s", "first_token_s", "finish_s", "status", "slot")
    for row, values in enumerate(zip(*(columns[name] for name in names), strict=True)):
        id_, sent_s, scheduled_s, first_s, finish_s, status, slot = values
        ended_s = finish_s
        if isnan(ended_s):  # lost in a crash, cut off by the horizon, or never begun
            after = crashes[crashes >= sent_s]
            lost = status == Status.OOM and len(after)
            ended_s = float(after[0]) if lost else sent_s if status == Status.REJECTED else run.end_s
        if ended_s < start_s or sent_s > end_s:
            continue
        lengths = {name: columns[name][row] for name in ("prompt_tokens", "output_tokens", "generated_tokens")}
        reason = RejectReason(columns["reject_reason"][row])
        about = {"status": Status(status).name.lower(), **lengths, "preemptions": columns["preemptions"][row]}
        about |= {"reject_reason": reason.name.lower()} if reason else {}
        queue = {"cat": "queue", "name": f"request {id_}", "id": id_, "pid": QUEUE, "tid": 0}
        yield {"ph": "b", "ts": _us(sent_s), **queue, "args": about}
        yield {"ph": "e", "ts": _us(ended_s if isnan(scheduled_s) else scheduled_s), **queue}
        if isnan(scheduled_s):
            continue
        decode_s = ended_s if isnan(first_s) else first_s
        yield _slice(f"request {id_} prefill", REQUESTS, int(slot), scheduled_s, decode_s, **about)
        if decode_s < ended_s:
            yield _slice(f"request {id_} decode", REQUESTS, int(slot), decode_s, ended_s, **about)


def _decisions(run: Run, start_s: float, end_s: float) -> Iterator[dict[str, Any]]:
    decisions = run.decisions
    ends = decisions["start_s"] + decisions["seconds"]
    for begin in range(0, len(ends), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        columns = {name: column[part].tolist() for name, column in decisions.items()}
        for row, end in enumerate(ends[part].tolist()):
            start = columns["start_s"][row]
            if end < start_s or start > end_s:
                continue
            shape = {name: columns[name][row] for name in _SHOWN}
            yield _slice(_kind(shape), ENGINE, 0, start, end, **shape)
            running = sum(columns[name][row] for name in ("prefill_rows", "useful_decode_rows", "stalled_rows"))
            counters = {"running": running, "waiting": columns["waiting"][row], "kv_blocks": columns["kv_blocks"][row]}
            for name, value in counters.items():
                yield {"ph": "C", "name": name, "pid": ENGINE, "ts": _us(start), "args": {name: value}}
    if len(ends) and ends[-1] <= end_s:
        for name in ("running", "waiting", "kv_blocks"):
            yield {"ph": "C", "name": name, "pid": ENGINE, "ts": _us(float(ends[-1])), "args": {name: 0}}


def _kind(shape: dict[str, Any]) -> str:
    if not shape["prefill_rows"]:
        return "decode"
    return "mixed" if shape["decode_rows"] else "prefill"


def _crashes(run: Run) -> Iterator[dict[str, Any]]:
    for event in run.oom:
        about = {"ts": _us(event.time_s), "args": event._asdict()}
        yield {"ph": "i", "s": "g", "name": "out of memory", "pid": ENGINE, "tid": 0, **about}

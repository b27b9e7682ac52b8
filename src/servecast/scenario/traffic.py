"""From the workload section of a scenario to the client that sends its requests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, cast

from servecast.errors import InputError
from servecast.scenario.schema import Empirical, EmpiricalLength
from servecast.workload import lengths as length_laws
from servecast.workload.arrivals import Closed
from servecast.workload.clients import ClosedLoop, HeldBack, LengthColumns, OpenLoop
from servecast.workload.synthetic import generate, generate_lengths
from servecast.workload.traces.trace_file import TraceFile

if TYPE_CHECKING:
    from servecast.scenario.schema import Length, Workload
    from servecast.workload.arrivals import Arrivals
    from servecast.workload.clients import Client
    from servecast.workload.traces.trace_file import TraceReport


class Traffic(NamedTuple):
    """A client, ready to send. ``requested_rps`` is the rate that was asked for, None where none was (or inf)."""

    client: Client
    requested_rps: float | None
    trace: TraceReport | None = None


def traffic(workload: Workload) -> Traffic:
    """The client of a workload. The same workload and seed send the same requests.

    Raises InputError for lengths of an unknown name, and for a trace that cannot be read or has too few rows.
    """
    if workload.trace is not None:
        trace = cast("TraceFile", workload.trace.build()).read(workload.requests)
        return Traffic(_held_back(OpenLoop(trace.columns), workload), None, trace.report)
    assert workload.arrivals is not None and workload.requests is not None, "the schema wants both without a trace"
    arrivals = workload.arrivals.build()
    lengths = _lengths(workload)
    if isinstance(arrivals, Closed):
        drawn = generate_lengths(lengths, workload.requests, workload.seed)
        return Traffic(_held_back(ClosedLoop(arrivals.users, arrivals.think_s, drawn), workload), None)
    columns = generate(cast("Arrivals", arrivals), lengths, workload.requests, workload.seed)
    rate = getattr(arrivals, "rate_rps", math.inf)
    return Traffic(_held_back(OpenLoop(columns), workload), rate if math.isfinite(rate) else None)


def _held_back(client: Client, workload: Workload) -> Client:
    return client if workload.max_in_flight is None else HeldBack(client, workload.max_in_flight)


def _lengths(workload: Workload) -> length_laws.Lengths:
    chosen = workload.lengths
    if chosen is None:
        assert workload.prompt_tokens is not None and workload.output_tokens is not None, "the schema wants both"
        prompt = _law(workload.prompt_tokens, "prompt_tokens")
        return length_laws.Independent(prompt, _law(workload.output_tokens, "output_tokens"))
    if isinstance(chosen, Empirical):
        return _dataset(chosen.name, "lengths")
    file = TraceFile(
        chosen.path, max_prompt_tokens=chosen.max_prompt_tokens, max_output_tokens=chosen.max_output_tokens
    )
    columns = file.read().columns
    return length_laws.Pairs(LengthColumns(columns.prompt_tokens, columns.output_tokens))


def _law(section: Length, side: str) -> length_laws.Law:
    if not isinstance(section, EmpiricalLength):
        return cast("length_laws.Law", section.build())
    if section.name is None:
        return length_laws.Empirical(section.percentiles or (), section.tokens or ())
    law: length_laws.Law = getattr(_dataset(section.name, side), side)
    return law


def _dataset(name: str, key: str) -> length_laws.Independent:
    try:
        return length_laws.dataset(name)
    except InputError as error:
        raise InputError(f"scenario.workload.{key}.name", error.problem) from None

"""From the workload section of a scenario to the client that sends its requests."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from servecast.errors import InputError
from servecast.scenario.schema import Empirical, EmpiricalLength, Pairs
from servecast.workload import lengths as length_laws
from servecast.workload.arrivals import Closed
from servecast.workload.clients import ClosedLoop, HeldBack, Remote
from servecast.workload.servegen import read_servegen
from servecast.workload.sessions import Conversations, Sessions, client_of
from servecast.workload.synthetic import generate, generate_lengths
from servecast.workload.tenants import Tenant, mixture
from servecast.workload.traces.trace_file import TraceFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servecast.scenario import schema
    from servecast.scenario.schema import Length, Workload
    from servecast.workload.arrivals import Arrivals
    from servecast.workload.clients import Client, RequestColumns
    from servecast.workload.traces.trace_file import TraceReport


class Traffic(NamedTuple):
    """A client, ready to send. ``requested_rps`` is the rate that was asked for, None where none was (or inf).

    sessions : the client behind the caps, if later turns wait for answers; it counts those that were cancelled
    tenants : whose each request is, by id; None where nobody is named
    notes : what a user should be told of the files that lengths are drawn from
    """

    client: Client
    requested_rps: float | None
    trace: TraceReport | None = None
    sessions: Sessions | None = None
    tenants: Sequence[str | None] | None = None
    notes: tuple[str, ...] = ()


def traffic(workload: Workload, block_size: int) -> Traffic:
    """The client of a workload, prefixes in blocks of ``block_size`` tokens. The same seed sends the same requests.

    Raises InputError for lengths of an unknown name, and for a trace that cannot be read or has too few rows.
    """
    if workload.trace is not None:
        trace = cast("TraceFile", workload.trace.build()).read(workload.requests, workload.seed)
        return sending(trace.columns, workload, block_size)._replace(trace=trace.report)
    if workload.tenants is not None:
        columns, notes = _mixed(workload, workload.tenants)
        return sending(columns, workload, block_size)._replace(notes=notes)
    if workload.conversations is not None or workload.servegen is not None:
        return sending(_generated(workload, block_size), workload, block_size)
    assert workload.arrivals is not None and workload.requests is not None, "the schema wants both without a trace"
    arrivals = workload.arrivals.build()
    lengths, notes = _lengths(workload)
    if isinstance(arrivals, Closed):
        drawn = generate_lengths(lengths, workload.requests, workload.seed)
        users = ClosedLoop(arrivals.users, arrivals.think_s, drawn, arrivals.ramp_s)
        return Traffic(_behind(users, workload), None, notes=notes)
    columns = generate(cast("Arrivals", arrivals), lengths, workload.requests, workload.seed)
    rate = getattr(arrivals, "rate_rps", math.inf)
    sent = sending(columns, workload, block_size)
    return sent._replace(requested_rps=rate if math.isfinite(rate) else None, notes=notes)


def sending(columns: RequestColumns, workload: Workload, block_size: int) -> Traffic:
    """The client that sends these requests as far away as the workload says, and behind its cap."""
    client = client_of(columns.in_blocks(block_size))
    sessions = client if isinstance(client, Sessions) else None
    return Traffic(_behind(client, workload), None, sessions=sessions, tenants=columns.tenant)


def _behind(client: Client, workload: Workload) -> Client:
    """The client behind its own cap, and behind the network."""
    if workload.max_in_flight is not None:
        client = HeldBack(client, workload.max_in_flight)
    if workload.network is not None:
        client = Remote(client, workload.network.uplink_s, workload.network.downlink_s)
    return client


def _generated(workload: Workload, block_size: int) -> RequestColumns:
    """The requests of conversations, or of ServeGen's clients."""
    if (day := workload.servegen) is not None:
        return read_servegen(day.folder).generate(workload.seed, day.start_s, day.duration_s, day.scale)
    talk = workload.conversations
    assert talk is not None and workload.requests is not None, "the schema wants both"
    conversations = Conversations(
        cast("Arrivals", talk.arrivals.build()),
        _law(talk.turns, "conversations.turns"),
        _law(talk.new_tokens, "conversations.new_tokens"),
        _law(talk.output_tokens, "conversations.output_tokens"),
        talk.think_s,
        talk.system_tokens,
        block_size,
    )
    return conversations.generate(workload.requests, workload.seed)


def _mixed(workload: Workload, sections: Sequence[schema.Tenant]) -> tuple[RequestColumns, tuple[str, ...]]:
    """The requests of several tenants, and what to tell of the files that their lengths are drawn from."""
    assert workload.requests is not None, "the schema wants it"
    tenants: list[Tenant] = []
    every: dict[str, None] = {}  # once where two draw from the same file
    for at, section in enumerate(sections):
        lengths, notes = _lengths(section, f"tenants[{at}].")
        arrivals = cast("Arrivals", section.arrivals.build())
        tenants.append(Tenant(section.name, arrivals, lengths, section.share, section.priority))
        every |= dict.fromkeys(notes)
    try:
        return mixture(tenants, workload.requests, workload.seed), tuple(every)
    except ValueError as error:
        raise InputError("scenario.workload.tenants", str(error)) from None


def _lengths(section: Workload | schema.Tenant, above: str = "") -> tuple[length_laws.Lengths, tuple[str, ...]]:
    """The lengths of a section, and what to tell of the file that they are drawn from."""
    chosen = section.lengths
    if isinstance(chosen, Pairs):
        longest = chosen.max_prompt_tokens, chosen.max_output_tokens
        read = TraceFile(chosen.path, max_prompt_tokens=longest[0], max_output_tokens=longest[1]).read()
        left_out = read.report.left_out
        notes = (f"Lengths of {Path(chosen.path).name}: {left_out}.",) if left_out else ()
        return length_laws.Pairs(read.columns.lengths), notes
    if isinstance(chosen, Empirical):
        return _dataset(chosen.name, f"{above}lengths"), ()
    if chosen is not None:
        return cast("length_laws.Lengths", chosen.build()), ()
    assert section.prompt_tokens is not None and section.output_tokens is not None, "the schema wants both"
    prompt = _law(section.prompt_tokens, f"{above}prompt_tokens")
    return length_laws.Independent(prompt, _law(section.output_tokens, f"{above}output_tokens")), ()


def _law(section: Length, key: str) -> length_laws.Law:
    if not isinstance(section, EmpiricalLength):
        return cast("length_laws.Law", section.build())
    if section.name is None:
        return length_laws.Empirical(section.percentiles or (), section.tokens or ())
    table = _dataset(section.name, key)
    return table.output_tokens if key.endswith("output_tokens") else table.prompt_tokens


def _dataset(name: str, key: str) -> length_laws.Independent:
    try:
        return length_laws.dataset(name)
    except InputError as error:
        place = error.place if ":" in error.place else f"scenario.workload.{key}.name"
        raise InputError(place, error.problem) from None

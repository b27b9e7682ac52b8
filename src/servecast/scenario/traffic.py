"""From the workload section of a scenario to the client that sends its requests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, cast

from servecast.errors import InputError
from servecast.scenario.schema import Empirical, EmpiricalLength, Pairs
from servecast.workload import lengths as length_laws
from servecast.workload.arrivals import Closed
from servecast.workload.clients import ClosedLoop, HeldBack
from servecast.workload.network import Remote
from servecast.workload.servegen import read_servegen
from servecast.workload.sessions import Conversations, Sessions, client_of
from servecast.workload.synthetic import generate, generate_lengths
from servecast.workload.tenants import Tenant, mixture
from servecast.workload.traces.trace_file import TraceFile

if TYPE_CHECKING:
    from servecast.scenario import schema
    from servecast.scenario.schema import Length, Workload
    from servecast.workload.arrivals import Arrivals
    from servecast.workload.clients import Client, RequestColumns
    from servecast.workload.traces.trace_file import TraceReport


class Traffic(NamedTuple):
    """A client, ready to send. ``requested_rps`` is the rate that was asked for, None where none was (or inf).

    sessions : the client behind the caps, if later turns wait for answers; it counts those that were cancelled
    """

    client: Client
    requested_rps: float | None
    trace: TraceReport | None = None
    sessions: Sessions | None = None


def traffic(workload: Workload, block_size: int = 16) -> Traffic:
    """The client of a workload, prefixes in blocks of ``block_size`` tokens. The same seed sends the same requests.

    Raises InputError for lengths of an unknown name, and for a trace that cannot be read or has too few rows.
    """
    if workload.trace is not None:
        trace = cast("TraceFile", workload.trace.build()).read(workload.requests, workload.seed)
        return _sent(trace.columns, workload, block_size, trace.report)
    if workload.tenants is not None or workload.conversations is not None or workload.servegen is not None:
        return _sent(_generated(workload), workload, block_size)
    assert workload.arrivals is not None and workload.requests is not None, "the schema wants both without a trace"
    arrivals = workload.arrivals.build()
    lengths = _lengths(workload)
    if isinstance(arrivals, Closed):
        drawn = generate_lengths(lengths, workload.requests, workload.seed)
        return Traffic(_behind(ClosedLoop(arrivals.users, arrivals.think_s, drawn), workload), None)
    columns = generate(cast("Arrivals", arrivals), lengths, workload.requests, workload.seed)
    rate = getattr(arrivals, "rate_rps", math.inf)
    return _sent(columns, workload, block_size)._replace(requested_rps=rate if math.isfinite(rate) else None)


def _sent(columns: RequestColumns, workload: Workload, block_size: int, report: TraceReport | None = None) -> Traffic:
    client = client_of(columns.in_blocks(block_size))
    sessions = client if isinstance(client, Sessions) else None
    return Traffic(_behind(client, workload), None, report, sessions)


def _behind(client: Client, workload: Workload) -> Client:
    """The client behind its own cap, and behind the network."""
    if workload.max_in_flight is not None:
        client = HeldBack(client, workload.max_in_flight)
    if workload.network is not None:
        client = Remote(client, workload.network.uplink_s, workload.network.downlink_s)
    return client


def _generated(workload: Workload) -> RequestColumns:
    """The requests of tenants, conversations, or ServeGen's clients."""
    if workload.servegen is not None:
        section = workload.servegen
        day = read_servegen(section.folder)
        return day.generate(workload.seed, section.start_s, section.duration_s, section.scale)
    assert workload.requests is not None, "the schema wants it"
    if workload.conversations is not None:
        talk = workload.conversations
        conversations = Conversations(
            cast("Arrivals", talk.arrivals.build()),
            _law(talk.turns, "conversations.turns", "prompt_tokens"),
            _law(talk.new_tokens, "conversations.new_tokens", "prompt_tokens"),
            _law(talk.output_tokens, "conversations.output_tokens", "output_tokens"),
            talk.think_s,
            talk.system_tokens,
        )
        return conversations.generate(workload.requests, workload.seed)
    assert workload.tenants is not None
    tenants = [_tenant(section, f"tenants[{at}]") for at, section in enumerate(workload.tenants)]
    try:
        return mixture(tenants, workload.requests, workload.seed)
    except ValueError as error:
        raise InputError("scenario.workload.tenants", str(error)) from None


def _tenant(section: schema.Tenant, key: str) -> Tenant:
    return Tenant(
        section.name,
        cast("Arrivals", section.arrivals.build()),
        _lengths(section, f"{key}."),
        section.share,
        section.priority,
    )


def _lengths(section: Workload | schema.Tenant, above: str = "") -> length_laws.Lengths:
    chosen = section.lengths
    if chosen is None:
        assert section.prompt_tokens is not None and section.output_tokens is not None, "the schema wants both"
        prompt = _law(section.prompt_tokens, f"{above}prompt_tokens", "prompt_tokens")
        return length_laws.Independent(prompt, _law(section.output_tokens, f"{above}output_tokens", "output_tokens"))
    if isinstance(chosen, Empirical):
        return _dataset(chosen.name, f"{above}lengths")
    if isinstance(chosen, Pairs):
        file = TraceFile(
            chosen.path, max_prompt_tokens=chosen.max_prompt_tokens, max_output_tokens=chosen.max_output_tokens
        )
        return length_laws.Pairs(file.read().columns.lengths)
    return cast("length_laws.Lengths", chosen.build())


def _law(section: Length, key: str, side: str) -> length_laws.Law:
    if not isinstance(section, EmpiricalLength):
        return cast("length_laws.Law", section.build())
    if section.name is None:
        return length_laws.Empirical(section.percentiles or (), section.tokens or ())
    table = _dataset(section.name, key)
    return table.output_tokens if side == "output_tokens" else table.prompt_tokens


def _dataset(name: str, key: str) -> length_laws.Independent:
    try:
        return length_laws.dataset(name)
    except InputError as error:
        place = error.place if ":" in error.place else f"scenario.workload.{key}.name"
        raise InputError(place, error.problem) from None

"""Who sends the requests, and when: an open loop, a client with a cap on requests in flight, a closed loop of users,
and any of them behind a network; the requests as columns, and what clients recorded of them.

A client knows nothing of batches. The engine asks when the next request known now is due, takes it, and tells of each
answer; only a closed loop and a capped client react to answers. Not modelled: retries, time-outs.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, fields, replace
from itertools import chain, repeat
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from servecast.errors import InputError
from servecast.requests import Request
from servecast.workload.prefixes import PrefixIds, engine_blocks, taken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

MOST_REQUESTS = 20_000_000  # their tables would not fit the memory above
SHORTEST_S = 1e-12  # a span below it is none: no clock is as fine
CHUNK = 16_384  # rows turned into Python numbers at a time: array scalars are slow one by one, whole lists are large


class LengthColumns(NamedTuple):
    """Prompt and output lengths of n requests in order: two arrays (n,) int64 [tokens], all at least 1."""

    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RequestColumns:
    """The requests of a workload as columns, in order of arrival; one set of columns feeds any number of runs.

    arrival_s : (n,) float64 [s], finite, never decreasing
    prompt_tokens, output_tokens : (n,) int64 [tokens], at least 1
    priority : (n,) int64, or None for all 0
    session, tenant : n names, or None for none
    prefix_ids : the hash ids of the prompts' blocks, or None for none; given as n sequences of numbers, or `PrefixIds`
    prefix_block_size : tokens that one of them stands for; None without ids
    max_tokens : (n,) int64, the longest answer that each request allows, at least its output_tokens; None: those are it
    delay_s : (n,) float64 [s], or None: where it is a number, the request comes so long after the one before it in its
        session has been answered, and ``arrival_s`` is only the earliest possible; NaN where it comes at ``arrival_s``
    """

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    priority: NDArray[np.int64] | None = None
    session: Sequence[str | None] | None = None
    tenant: Sequence[str | None] | None = None
    prefix_ids: PrefixIds | None = None
    prefix_block_size: int | None = None
    delay_s: NDArray[np.float64] | None = None
    max_tokens: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.prefix_ids is not None:
            object.__setattr__(self, "prefix_ids", PrefixIds.of(self.prefix_ids))
        columns = (getattr(self, name) for name in _COLUMNS)
        assert all(column is None or len(column) == len(self) for column in columns), "columns differ in length"
        if len(self):
            assert np.isfinite(self.arrival_s).all(), "an arrival is not finite"
            assert (np.diff(self.arrival_s) >= 0).all(), "arrivals decrease"
            assert min(self.prompt_tokens.min(), self.output_tokens.min()) >= 1, "a request without tokens"

    @classmethod
    def in_order(cls, arrival_s: NDArray[np.float64], *columns: Any, **more: Any) -> RequestColumns:
        """Requests in any order of time; equal times stay in theirs."""
        order = np.argsort(arrival_s, kind="stable")
        named = dict(zip(_COLUMNS, columns, strict=False)) | more
        return cls(arrival_s[order], **{name: taken(column, order) for name, column in named.items()})

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __iter__(self) -> Iterator[Request]:
        """The requests one by one; ``id`` is the position. Memory is that of one chunk of rows."""
        return chain.from_iterable(map(self._chunk, range(0, len(self), CHUNK)))

    def _chunk(self, start: int) -> Iterator[Request]:
        rows = slice(start, min(start + CHUNK, len(self)))
        columns: list[Iterable[object]] = [range(rows.start, rows.stop), self.arrival_s[rows].tolist()]
        for name in Request._fields[2:]:
            column = getattr(self, name)
            if column is None:
                columns.append(repeat(Request._field_defaults[name]))
            else:
                columns.append(column[rows].tolist() if isinstance(column, np.ndarray) else column[rows])
        # What calling Request does, at half the price.
        return map(tuple.__new__, repeat(Request), zip(*columns, strict=False))

    @property
    def lengths(self) -> LengthColumns:
        """The lengths alone: for a closed loop, or as the pairs that `lengths.Pairs` draws from."""
        return LengthColumns(self.prompt_tokens, self.output_tokens)

    def take(self, rows: NDArray[np.intp], arrival_s: NDArray[np.float64]) -> RequestColumns:
        """The requests at ``rows`` (m,), in that order, with new arrivals (m,) [s]."""

        return replace(self, arrival_s=arrival_s, **{name: taken(getattr(self, name), rows) for name in _COLUMNS})

    def in_blocks(self, block_size: int) -> RequestColumns:
        """The same requests with prefix ids of an engine's blocks; see `prefixes.engine_blocks`, errors too."""
        if self.prefix_ids is None or self.prefix_block_size is None:
            return self
        known = self.prompt_tokens + (0 if self.prefix_ids.tokens is None else self.output_tokens)
        blocks = engine_blocks(self.prefix_ids, known, self.prefix_block_size, block_size)
        return replace(self, prefix_ids=blocks, prefix_block_size=block_size)

    @property
    def span_s(self) -> float:
        """Time from the first to the last arrival [s]; 0 for fewer than two requests."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    @property
    def offered_rps(self) -> float | None:
        """Achieved arrival rate [requests/s]: gaps divided by the span; None where there is no span (a burst)."""
        return (len(self) - 1) / self.span_s if self.span_s >= SHORTEST_S else None


#: What there is of each request besides its arrival.
_COLUMNS = ("prompt_tokens", "output_tokens", "priority", "session", "tenant", "prefix_ids", "delay_s", "max_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class ClientTimes:
    """n answered requests in order of arrival; latencies count from the send, as the tools measure them.

    arrival_s, sent_s : (n,) float64 [s] from the first arrival; sent later than arrival where the client held it back
    prompt_tokens, output_tokens : (n,) int64 [tokens]
    ttft_s, e2e_s : (n,) float64 [s] from sent_s
    """

    arrival_s: NDArray[np.float64]
    sent_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    ttft_s: NDArray[np.float64]
    e2e_s: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ttft_s)

    @property
    def tpot_s(self) -> NDArray[np.float64]:
        """Time per output token after the first, (E2E - TTFT) / (tokens - 1): (n,) [s]; NaN for a single token."""
        after_first = self.output_tokens - 1
        return np.where(after_first > 0, (self.e2e_s - self.ttft_s) / np.maximum(after_first, 1), np.nan)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Arrival, lengths and times by name, without what follows from them."""
        return {field.name: getattr(self, field.name) for field in fields(ClientTimes)}


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRequests(ClientTimes):
    """Measured requests, row by row the requests of the trace they come with.

    A tool without a clock (llmperf, SGLang) leaves NaN for the times of arrival and sending; a latency that the file
    does not have is NaN too.

    itl_s : n tuples of gaps between tokens (chunks) [s], empty where unknown; None where the file has none
    failed : requests of the file that failed, and are not among the rows
    source : format of the file
    """

    itl_s: Sequence[tuple[float, ...]] | None
    failed: int
    source: str


class Client(Protocol):
    """What the engine asks of a workload. ``len(client)`` is how many requests it sends at most, over the run."""

    def __len__(self) -> int: ...

    def next_send(self) -> float:
        """When the next request known now reaches the server [s]; inf when none is known."""

    def send(self) -> tuple[Request, float]:
        """Takes that request, with the time it reaches the server [s]: its arrival, or later if it was held back."""

    def answered(self, request: Request, now: float) -> None:
        """Told of each request's end at ``now`` [s], in order of time: completed, rejected or out of memory alike."""

    def failed(self, request: Request, now: float) -> None:
        """Told instead of `answered` where the engine says that the request ended without an answer."""


class OpenLoop:
    """Sends each request at its arrival, whatever the server does; equal times go in the order of the columns."""

    __slots__ = ("_following", "_next", "_next_s", "_total")

    def __init__(self, columns: RequestColumns) -> None:
        self._total = len(columns)
        self._following = iter(columns)
        self._next = next(self._following, None)
        self._next_s = self._next.arrival_s if self._next else inf

    def __len__(self) -> int:
        return self._total

    def next_send(self) -> float:
        return self._next_s

    def send(self) -> tuple[Request, float]:
        request = self._next
        assert request is not None, "nothing left to send"
        sent_s = self._next_s
        self._next = following = next(self._following, None)
        self._next_s = inf if following is None else following.arrival_s
        return request, sent_s

    def answered(self, request: Request, now: float) -> None:
        """An open loop does not react."""

    def failed(self, request: Request, now: float) -> None:
        """Nor to a failure."""


class HeldBack:
    """Another client behind a cap: sends in order, holds back while ``max_in_flight`` requests are unanswered.

    The k-th send (from 0) needs k - max_in_flight + 1 answers, so it takes place at the later of its due time and that
    answer's time. Said this way, it does not matter whether the engine reports an answer before or after it takes a
    request that was due earlier. Same rule as ``vllm bench serve --max-concurrency``.
    """

    __slots__ = ("_answers_s", "_client", "_unused")

    def __init__(self, client: Client, max_in_flight: int) -> None:
        assert max_in_flight >= 1, "a client that may send nothing never ends"
        self._client = client
        self._unused = max_in_flight  # slots no request has used yet
        self._answers_s: deque[float] = deque()  # when the slots that are free again became so, oldest first

    def __len__(self) -> int:
        return len(self._client)

    def next_send(self) -> float:
        due_s = self._client.next_send()
        if self._unused:
            return due_s
        if not self._answers_s:
            return inf
        free_s = self._answers_s[0]
        return due_s if due_s > free_s else free_s

    def send(self) -> tuple[Request, float]:
        request, due_s = self._client.send()
        if self._unused:
            self._unused -= 1
            return request, due_s
        free_s = self._answers_s.popleft()
        return request, due_s if due_s > free_s else free_s

    def answered(self, request: Request, now: float) -> None:
        self._free(now)
        self._client.answered(request, now)

    def failed(self, request: Request, now: float) -> None:
        self._free(now)
        self._client.failed(request, now)

    def _free(self, now: float) -> None:
        assert not self._answers_s or now >= self._answers_s[-1], "answers out of order"
        self._answers_s.append(now)


class ClosedLoop:
    """``users`` who each send, and again ``think_s`` [s] after each answer, until all of ``lengths`` are sent.

    They begin evenly over ``ramp_s`` [s], or all at 0.

    No user waits for another (no waves), and a rejected request is answered too: its user thinks and goes on. Requests
    are numbered, and take their lengths, in the order in which they are sent. Users beyond the number of requests stay
    silent. Latencies measured so hide waiting that an open loop would show (coordinated omission).
    """

    __slots__ = ("_due_s", "_planned", "_ramp_s", "_requests", "_think_s", "_total")

    def __init__(self, users: int, think_s: float, lengths: LengthColumns, ramp_s: float = 0.0) -> None:
        assert users >= 1, "a closed loop without users never ends"
        assert 0 <= think_s < inf, "thinking takes a finite time"
        assert 0 <= ramp_s < inf, "users begin within a finite time"
        self._total = len(lengths.prompt_tokens)
        self._planned = min(users, self._total)  # requests whose due time is known, sent ones included
        self._think_s = float(think_s)
        self._ramp_s = ramp_s
        # Sorted: answers come in order of time and thinking is constant, once all users have begun.
        self._due_s = deque(ramp_s * user / users for user in range(self._planned))
        self._requests = iter(RequestColumns(np.zeros(self._total), *lengths))

    def __len__(self) -> int:
        return self._total

    def next_send(self) -> float:
        return self._due_s[0] if self._due_s else inf

    def send(self) -> tuple[Request, float]:
        due_s = self._due_s.popleft()
        request = next(self._requests)
        return Request(request.id, due_s, request.prompt_tokens, request.output_tokens), due_s

    def answered(self, request: Request, now: float) -> None:
        if self._planned < self._total:
            due_s = now + self._think_s
            self._planned += 1
            if self._due_s and due_s < self._due_s[-1]:
                assert self._due_s[-1] < self._ramp_s, "answers out of order"
                insort(self._due_s, due_s)  # some users are still to begin
            else:
                self._due_s.append(due_s)

    def failed(self, request: Request, now: float) -> None:
        """A user whose request failed thinks and goes on."""
        self.answered(request, now)


class Remote:
    """Any client, ``uplink_s`` before the scheduler and ``downlink_s`` [s] behind it: a constant way there and back.

    The client inside lives in its own time and never learns of the difference; the engine sees only what reaches it.
    Left out: bandwidth, jitter, and a way that gets longer under load.

    A cap on requests in flight belongs inside: it is the client who counts them. `send` gives the time at which the
    request reaches the server; the client sent it ``uplink_s`` earlier. Raises InputError for a time that cannot be.
    """

    __slots__ = ("_client", "_downlink_s", "_uplink_s")

    def __init__(self, client: Client, uplink_s: float, downlink_s: float) -> None:
        for name, value in (("uplink_s", uplink_s), ("downlink_s", downlink_s)):
            if not 0.0 <= value < float("inf"):
                raise InputError(f"network.{name}", f"{value} is no way to go; give seconds, at least 0 and finite")
        self._client = client
        self._uplink_s = uplink_s
        self._downlink_s = downlink_s

    def __len__(self) -> int:
        return len(self._client)

    def next_send(self) -> float:
        return self._client.next_send() + self._uplink_s

    def send(self) -> tuple[Request, float]:
        request, sent_s = self._client.send()
        return request, sent_s + self._uplink_s

    def answered(self, request: Request, now: float) -> None:
        self._client.answered(request, now + self._downlink_s)

    def failed(self, request: Request, now: float) -> None:
        self._client.failed(request, now + self._downlink_s)

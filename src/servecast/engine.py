"""The simulator: one SimPy process per replica that schedules, waits as long as the step takes, and commits.

The loop asks the policy for a decision and the executor for its duration; nothing else advances the clock. One
decision may cover many iterations (see `policies.decoding`), so a run costs events per decision, not per token. Every
arrival that matters is known when a decision is made, since clients react only to answers and an answer ends a
decision; a run that an arrival could change ends at the first iteration boundary at or after it.

A policy that schedules ahead decides on a step while the one before it runs: it sees what had arrived when that one
started. An arrival so takes one decision to be seen and the next to be admitted.

Times within `SAME_INSTANT_S` are one instant, and what arrives as an iteration ends is seen by the next decision.
"""

from __future__ import annotations

import gc
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import simpy

from servecast.batch import DECISION_COLUMNS, Batch, OutOfMemory, Tally, Wait
from servecast.errors import InputError
from servecast.executor import SAME_INSTANT_S, Affine, Measured, RanOutError
from servecast.log import Log
from servecast.requests import Request, Sequence, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from numpy.typing import NDArray

    from servecast.executor import Durations, Executor
    from servecast.kvcache import BlockPool
    from servecast.policies.state import Policy, Queue

#: Columns of a run's requests. Unknown times are NaN.
REQUEST_COLUMNS = (
    "id",
    "arrival_s",
    "sent_s",
    "prompt_tokens",
    "output_tokens",
    "output_limit",
    "generated_tokens",
    "scheduled_s",
    "first_token_s",
    "finish_s",
    "status",
    "preemptions",
    "recomputed_tokens",
    "slot",
)
#: Up to here a clock in double precision tells milliseconds apart to 1e-5 of themselves.
LATEST_S = 1e8
#: Preemptions without a token in between after which there will never be one.
_MOST_FRUITLESS = 10_000
_FLUSH_EVERY = 512
_nan = math.nan
_PREEMPTED = Tally._fields.index("preempted")
_COMPLETED = int(Status.COMPLETED)  # converts faster than the enumeration


class Client(Protocol):
    """Where requests come from."""

    def next_send(self) -> float:
        """When the next request known by now reaches the server [s]; infinite if none is."""

    def send(self) -> tuple[Request, float]:
        """That request, and the time it reaches the server [s]: later than its arrival if the client held it back."""

    def answered(self, request: Request, now: float) -> None:
        """Its request has been served."""

    def failed(self, request: Request, now: float) -> None:
        """Its request was rejected, or lost as the engine crashed."""


@dataclass(frozen=True)
class Run:
    """What a replay returns: flat tables, from which every metric follows.

    requests : REQUEST_COLUMNS, a row a request, in order of id
    decisions : DECISION_COLUMNS, a row a scheduling decision
    gaps : inter-token gaps [s] that are not one iteration long (a preempted sequence's)
    oom : crashes
    end_s : when the last thing happened, or the horizon
    """

    requests: dict[str, NDArray[Any]]
    decisions: dict[str, NDArray[Any]]
    gaps: NDArray[np.float64]
    oom: list[OutOfMemory]
    end_s: float
    kv_blocks_total: int
    respond: str


def replay(
    client: Client,
    policy: Policy,
    executor: Executor,
    pool: BlockPool,
    *,
    max_model_len: int,
    activation_blocks: Callable[[int], int] = lambda tokens: 0,
    restart_s: float = 0.0,
    horizon_s: float = math.inf,
    progress: Callable[[int], None] | None = None,
) -> Run:
    """Serve a client's requests with one replica until all have ended, or until ``horizon_s``.

    A prompt of ``max_model_len`` tokens or more is rejected; outputs are clamped to it. ``max_model_len`` must fit the
    pool. ``activation_blocks``: see `Policy.start`. ``restart_s`` [s] passes after running out of memory. ``progress``
    is called now and then with the number of requests that have ended.
    """
    assert max_model_len <= pool.total * pool.block_size, (max_model_len, pool.total)
    environment = simpy.Environment()
    replica = Replica(client, policy, executor, pool, max_model_len, activation_blocks)
    replica.restart_s = restart_s
    replica.horizon_s = horizon_s
    replica.progress = progress
    environment.process(replica.serve(environment))
    collecting = gc.isenabled()
    gc.disable()  # nothing made in a run is cyclic, and looking for cycles among a million rows takes 5 % of the time
    try:
        environment.run()
    finally:
        if collecting:
            gc.enable()
    return replica.result()


class Replica:
    """One engine: its state, its clock, and the tables it writes."""

    def __init__(
        self,
        client: Client,
        policy: Policy,
        executor: Executor,
        pool: BlockPool,
        max_model_len: int,
        activation_blocks: Callable[[int], int],
    ) -> None:
        self.client = client
        self.policy = policy
        self.executor = executor
        self.max_model_len = max_model_len
        self.state = policy.start(pool, activation_blocks)
        #: Where arrivals go: the queue, or what a scheduler that decides a step ahead has not seen yet.
        self.inbox: Queue = deque() if self.state.ahead else self.state.waiting
        self.now = 0.0
        self.restart_s = 0.0
        self.horizon_s = math.inf
        self.progress: Callable[[int], None] | None = None
        self.requests = Log(REQUEST_COLUMNS)
        self.decisions = Log(DECISION_COLUMNS)
        self.oom: list[OutOfMemory] = []
        self.ended = 0
        self._progress = (0, 0)
        self._fruitless = 0

    def serve(self, environment: simpy.Environment) -> Generator[simpy.Event, None, None]:
        """The loop. What it touches at each decision is kept at hand: this is where a run spends its time."""
        state, horizon = self.state, self.horizon_s
        timeout, next_send, schedule = environment.timeout, self.client.next_send, self.policy.schedule
        run, commit, log = self.executor.run, state.commit, self.decisions.rows
        ahead, inbox = state.ahead, self.inbox
        now = seen = 0.0
        instant = SAME_INSTANT_S
        until_flush = _FLUSH_EVERY
        while now < horizon:
            sends = next_send()
            while sends <= now + instant:
                if sends > now:
                    now = sends
                sends = self._receive(now)
            if ahead:
                self._show(seen)
                decision = schedule(now, state)
                if isinstance(decision, Wait) and inbox:
                    self._show(now)  # nothing was decided on ahead
                    decision = schedule(now, state)
                if inbox:
                    sends = inbox[0].sent_s  # it must not wait for longer than the step that is decided on now
            else:
                decision = schedule(now, state)
            if type(decision) is Batch:
                try:
                    durations = run(decision, sends - now) if decision.interruptible else run(decision)
                except RanOutError as ran_out:
                    seen = min(self._crash(ran_out, now), horizon)
                    yield timeout(seen - now)
                    now = seen
                    continue
                end = now + durations.total
                if end > horizon:
                    whole = cut(durations, horizon - now)
                    if whole is None:
                        now = horizon
                        break
                    durations = whole
                    end = now + durations.total
                yield timeout(end - now)
                if sends < end and next_send() < end:
                    self._receive(end)  # a client may react to a rejection before the step ends
                finished = commit(decision, durations.count, end)
                if type(durations) is Affine:
                    log += (
                        (now, durations.count, end - now, durations.base),
                        decision.shape,
                        decision.tally,
                        (state.blocks_in_use, len(finished)),
                    )
                else:
                    self._log_pieces(decision, durations, now, len(finished))
                now = end
                if ahead:
                    seen = end - durations.last
                if finished:
                    self._answer(finished, end)
            elif isinstance(decision, OutOfMemory):
                seen = min(self._crash(decision, now), horizon)
                yield timeout(seen - now)
                now = seen
            else:
                assert isinstance(decision, Wait)
                end = min(decision.until, sends)
                if end == math.inf:
                    break
                seen = min(end, horizon)
                yield timeout(seen - now)
                now = seen
            until_flush -= 1
            if not until_flush:
                until_flush = _FLUSH_EVERY
                self._flush()
        self._settle(now)

    def _receive(self, until: float) -> float:
        """Queue what arrives by ``until`` [s], rejecting what can never be served; when the next request will."""
        client, limit = self.client, self.max_model_len
        enqueue = self.inbox.append
        while (sends := client.next_send()) <= until:
            request, sent_s = client.send()
            if sent_s > LATEST_S:
                raise InputError(
                    "workload",
                    f"a request arrives after {sent_s:g} s: beyond {LATEST_S:g} s (three years) the clock no longer "
                    "tells steps apart; shift the times to their start, or think and wait for less",
                )
            room = limit - request.prompt_tokens
            if room > 0:
                output = request.output_tokens
                enqueue(Sequence(request, sent_s, output if output < room else room))
            else:
                self._record(Sequence(request, sent_s, 0), Status.REJECTED, _nan)
                client.failed(request, sent_s)
        return sends

    def _show(self, until: float) -> None:
        """Let the scheduler see what had arrived by ``until`` [s], when it decided on the next step."""
        inbox, enqueue = self.inbox, self.state.waiting.append
        while inbox and inbox[0].sent_s <= until + SAME_INSTANT_S:
            enqueue(inbox.popleft())

    def _answer(self, finished: list[Sequence], now: float) -> None:
        """Send the last token of these sequences to their clients."""
        answered, log = self.client.answered, self.requests.rows.append
        for sequence in finished:
            request = sequence.request
            log(
                (
                    request.id, request.arrival_s, sequence.sent_s, request.prompt_tokens, request.output_tokens,
                    sequence.output_limit, sequence.generated, sequence.scheduled_s, sequence.first_token_s, now,
                    _COMPLETED, sequence.preemptions, sequence.recomputed, sequence.slot,
                )
            )  # fmt: skip
            answered(request, now)
        self.ended += len(finished)

    def _log_pieces(self, batch: Batch, durations: Durations, start: float, finished: int) -> None:
        """Log a run of measured iterations as affine pieces, each with the shape it started with."""
        shape = batch.shape
        pieces = list(durations.pieces())
        for last, piece in zip((*[False] * (len(pieces) - 1), True), pieces, strict=True):
            self.decisions.rows += (
                (start, piece.count, piece.total, piece.base),
                shape,
                batch.tally,
                (self.state.blocks_in_use, finished if last else 0),
            )
            start += piece.total
            shape = shape._replace(
                decode_context=shape.decode_context + piece.count * shape.decode_rows,
                max_context=shape.max_context + piece.count,
            )

    def _flush(self) -> None:
        self._watch()
        self.requests.flush()
        self.decisions.flush()
        if self.progress is not None:
            self.progress(self.ended)

    def _watch(self) -> None:
        """Sequences may preempt each other for ever, as they may in vLLM; a simulation must end."""
        progress = (self.ended, self.state.decoding.step)
        if progress != self._progress:
            self._progress, self._fruitless = progress, 0
            return
        self._fruitless += sum(counts[_PREEMPTED] for counts in self.decisions.rows[2::4])
        if self._fruitless > _MOST_FRUITLESS:
            raise InputError(
                "scheduler",
                f"{self._fruitless} preemptions without a token: sequences take each other's KV blocks for ever; "
                "give more blocks, fewer sequences, or scheduler_reserve_full_isl: true",
            )

    def _crash(self, event: OutOfMemory | RanOutError, now: float) -> float:
        """Lose what runs, as the policy foresaw or a device found out; when the engine is up again [s]."""
        lost = self.state.crash()
        for sequence in lost:
            self._record(sequence, Status.OOM, _nan)
            self.client.failed(sequence.request, now)
        if isinstance(event, RanOutError):
            event = OutOfMemory(now, len(lost), event.wanted_bytes, event.available_bytes)
        self.oom.append(event)
        return now + self.restart_s

    def _settle(self, now: float) -> None:
        """Record what a horizon cut off: all that had arrived by then and has not ended."""
        self.now = now
        if self.horizon_s < math.inf:
            self._receive(now + SAME_INSTANT_S)
            if self.state.ahead:
                self._show(now)
        for sequence in self.state.settle():
            self._record(sequence, Status.UNFINISHED, _nan)

    def _record(self, sequence: Sequence, status: Status, finish_s: float) -> None:
        self.ended += 1
        request = sequence.request
        scheduled = sequence.scheduled_s
        first = sequence.first_token_s
        self.requests.rows.append(
            (
                request.id, request.arrival_s, sequence.sent_s, request.prompt_tokens, request.output_tokens,
                sequence.output_limit, sequence.generated, _nan if scheduled is None else scheduled,
                _nan if first is None else first, finish_s, status, sequence.preemptions, sequence.recomputed,
                sequence.slot,
            )
        )  # fmt: skip

    def result(self) -> Run:
        requests = self.requests.columns()
        order = np.argsort(requests["id"], kind="stable")
        for name in requests:
            requests[name] = requests[name][order]
        return Run(
            requests=requests,
            decisions=self.decisions.columns(),
            gaps=np.array(self.state.gaps, dtype=np.float64),
            oom=self.oom,
            end_s=self.now,
            kv_blocks_total=self.state.pool.total,
            respond=self.policy.respond,
        )


def cut(durations: Durations, time: float) -> Durations | None:
    """The iterations that end at or before ``time`` [s] from their start; None if none does."""
    count = durations.ended_by(time)
    if not count:
        return None
    if isinstance(durations, Affine):
        return Affine(durations.base, durations.slope, count)
    return Measured([piece.base for piece in durations.pieces()][:count])

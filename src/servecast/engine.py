"""The simulator: one replica, or several behind a router, simulated as one system in one SimPy process.

A replica asks its policy for a decision and its executor for how long that takes; nothing else advances the clock. One
decision may cover many iterations (see `policies.decoding`), so a run costs events per decision, not per token. An
arrival that could change a decision ends its run at the first iteration boundary at or after it. With one replica the
next arrival is known when a decision is made, since clients react only to answers and an answer ends a decision. With
several replicas nobody knows which of them the next request will go to: each runs as far as its policy allows, and an
arrival cuts short the run of the replica that gets it, and of no other.

Times within `SAME_INSTANT_S` are one instant. In an instant come first all iterations that end, replica by replica,
with their answers; then all arrivals, those set off by these answers included; then the decisions. So a router sees
every answer of the instant, and what arrives as an iteration ends is seen by the next decision. The process steps from
instant to instant, because SimPy orders equal times by when they were scheduled, which a coalesced run does earlier
than a stepped one.

A policy that schedules ahead decides on a step while the one before it runs: it sees what had arrived when that one
started. So an arrival is seen one decision late.

Left out: replicas that start or stop.
"""

from __future__ import annotations

import gc
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from servecast.batch import DECISION_COLUMNS, Batch, OutOfMemory, Wait
from servecast.errors import InputError
from servecast.executor import SAME_INSTANT_S, Affine, RanOutError, cut, first_to_end_at
from servecast.log import Log
from servecast.requests import OnTooLong, RejectReason, Request, Sequence, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from collections.abc import Sequence as SequenceOf

    from numpy.typing import NDArray

    from servecast.executor import Durations, Executor
    from servecast.kvcache import BlockPool
    from servecast.policies.policy import Policy
    from servecast.policies.state import Queue
    from servecast.routers import Router
    from servecast.workload.clients import Client

#: Columns of a run's requests. What is not known (a time, the slot of one never admitted) is NaN.
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
    "reject_reason",
    "preemptions",
    "recomputed_tokens",
    "slot",
)
#: Columns of the gaps between tokens that are not one iteration long: when the token came, after how long, and to how
#: many rows. ``request`` is the one that was preempted or paused; NaN where decode rows stood still together.
GAP_COLUMNS = ("request", "end_s", "seconds", "rows")
#: Up to here a clock in double precision tells milliseconds apart to 1e-5 of themselves.
LATEST_S = 1e8
#: Preemptions without a token in between after which there will never be one.
_MOST_FRUITLESS = 10_000
_FLUSH_EVERY = 512
_inf, _nan = math.inf, math.nan
_COMPLETED = int(Status.COMPLETED)  # converts faster than the enumeration


@dataclass(frozen=True)
class Server:
    """What one replica is made of. The pool is its own.

    max_model_len : the most tokens of a prompt and its answer; it must fit the pool
    on_too_long : a request whose prompt and answer exceed it is rejected whole, or its answer is cut there. A prompt
        that leaves no room for a token is rejected in any case
    activation_blocks : see `Policy.start`
    restart_s : time [s] that passes after running out of memory
    """

    policy: Policy
    executor: Executor
    pool: BlockPool
    max_model_len: int
    activation_blocks: Callable[[int], int] = lambda tokens: 0
    restart_s: float = 0.0
    on_too_long: OnTooLong = "reject"


@dataclass(frozen=True)
class Run:
    """What a replica did, or all of them as one: flat tables, from which every metric follows.

    requests : REQUEST_COLUMNS, a row a request, in order of id
    decisions : DECISION_COLUMNS, a row a scheduling decision, in order of start
    gaps : GAP_COLUMNS, in order of time
    oom : crashes
    end_s : when the last thing happened, or the horizon
    kv_blocks_total : usable blocks of one replica
    """

    requests: dict[str, NDArray[Any]]
    decisions: dict[str, NDArray[Any]]
    gaps: dict[str, NDArray[np.float64]]
    oom: list[OutOfMemory]
    end_s: float
    kv_blocks_total: int
    respond: str


@dataclass(frozen=True)
class Replayed:
    """What a replay returns.

    runs : of each replica, its requests with their ids of the whole workload; all end when the last one does
    run : all of them as one
    replica : (requests,) which replica each request of ``run`` was sent to
    """

    runs: tuple[Run, ...]
    run: Run
    replica: NDArray[np.int64]


def replay(
    client: Client,
    servers: SequenceOf[Server],
    router: Router | None = None,
    *,
    horizon_s: float = _inf,
    progress: Callable[[int], None] | None = None,
) -> Replayed:
    """Serve a client's requests until all have ended, or until ``horizon_s``.

    ``router`` chooses among several replicas. ``progress`` is called now and then with the number of requests that have
    ended. Of several replicas no executor may return several measured iterations at once: they could not be undone
    when a request arrives.
    """
    system = _System(client, servers, router, horizon_s)
    environment = simpy.Environment()
    environment.process(system.serve(environment, progress))
    collecting = gc.isenabled()
    gc.disable()  # nothing made in a run is cyclic, and looking for cycles among a million rows takes 5 % of the time
    try:
        environment.run()
    finally:
        if collecting:
            gc.enable()
    return _joined([replica.result() for replica in system.replicas])


class _System:
    """Replicas with one client and one clock."""

    def __init__(self, client: Client, servers: SequenceOf[Server], router: Router | None, horizon_s: float) -> None:
        assert servers, "no replica"
        assert len(servers) == 1 or router is not None, "several replicas need a router"
        self.client = client
        self.router = router if len(servers) > 1 else None
        self.horizon_s = horizon_s
        told = client if len(servers) == 1 else _InOrder(client)
        self.replicas = [_Replica(server, told, horizon_s, len(servers) == 1) for server in servers]

    def serve(
        self, environment: simpy.Environment, progress: Callable[[int], None] | None
    ) -> Generator[simpy.Event, None, None]:
        """The one loop: from instant to instant. What it touches each time is kept at hand."""
        timeout, next_send, receive = environment.timeout, self.client.next_send, self._receive
        replicas, horizon, instant = self.replicas, self.horizon_s, SAME_INSTANT_S
        first = replicas[0]
        end, decide = (first.end, first.decide) if self.router is None else (self._end, self._decide)
        now = clock = sends = 0.0
        until_flush = _FLUSH_EVERY
        while now < _inf:
            if now > horizon:
                now = horizon
            yield timeout(now - clock)
            clock = now
            if sends < now and next_send() < now:
                receive(now)  # a client may react to a rejection before the step ends
            soon = now + instant
            while True:
                end(soon)
                sends = next_send()
                if sends > soon:
                    break
                while sends <= soon:
                    if sends > now:
                        now = sends
                        soon = now + instant
                    sends = receive(now)
            if now >= horizon:
                break
            # One replica sleeps through arrivals: what they change is known as it decides.
            now = decide(now, sends)
            until_flush -= 1
            if not until_flush:
                until_flush = _FLUSH_EVERY
                for replica in replicas:
                    replica.flush()
                if progress is not None:
                    progress(sum(replica.ended for replica in replicas))
        last = max(replica.now for replica in replicas)
        for replica in replicas:
            replica.settle(last if now == _inf else max(horizon, last))

    def _end(self, soon: float) -> None:
        """End what ends by ``soon`` [s], replica by replica."""
        for replica in self.replicas:
            if replica.wake <= soon:
                replica.end(soon)

    def _decide(self, now: float, sends: float) -> float:
        """Let the replicas decide that are free; when something happens next [s]. Nobody knows who gets what is sent
        next."""
        for replica in self.replicas:
            if replica.free:
                replica.free = False
                replica.decide(replica.now, _inf)
        return min([self.client.next_send(), *[replica.wake for replica in self.replicas]])

    def _receive(self, now: float) -> float:
        """Hand out what has arrived by ``now`` [s], one request at least; when the next one will."""
        client, router, take = self.client, self.router, self.replicas[0].take
        while True:
            request, sent_s = client.send()
            if sent_s > LATEST_S:
                raise InputError(
                    "workload",
                    f"a request arrives after {sent_s:g} s: beyond {LATEST_S:g} s (three years) the clock no longer "
                    "tells steps apart; shift the times to their start, or think and wait for less",
                )
            if router is None:
                take(request, sent_s)
            else:
                replicas = self.replicas
                up = [at for at, replica in enumerate(replicas) if not replica.down] or range(len(replicas))
                chosen = replicas[router.choose(request, now, replicas, up)]
                chosen.routed += 1
                chosen.take(request, sent_s)
                chosen.disturb(sent_s)
            sends = client.next_send()
            if sends > now:
                return sends


class _InOrder:
    """The way back to the client. Answers of one instant come replica by replica; a client is told in order of time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._told_s = 0.0

    def answered(self, request: Request, now: float) -> None:
        self._told_s = now = max(now, self._told_s)
        self._client.answered(request, now)

    def failed(self, request: Request, now: float) -> None:
        self._told_s = now = max(now, self._told_s)
        self._client.failed(request, now)


class _Replica:
    """One engine: its state, its clock, and the tables it writes.

    now : up to when it has been simulated [s]; while a batch runs, when that started
    wake : when what it does now (run, wait, restart) ends [s]
    free : it may decide in this instant
    down : it restarts after a crash
    """

    def __init__(self, server: Server, client: Client | _InOrder, horizon_s: float, alone: bool) -> None:
        pool = server.pool
        longest = pool.growth.longest(pool.total)
        assert server.max_model_len <= longest, (server.max_model_len, longest)
        self.client = client
        self._alone = alone
        self.policy = server.policy
        self.schedule = server.policy.schedule
        self.execute = server.executor.run
        self.max_model_len = server.max_model_len
        self._cuts = server.on_too_long == "cut"
        self._cache_limits = server.max_model_len == longest
        self.restart_s = server.restart_s
        self.horizon_s = horizon_s
        self.state = self.policy.start(pool, server.activation_blocks)
        #: Where arrivals go: the queue, or what a scheduler that decides a step ahead has not seen yet.
        self.inbox: Queue = deque() if self.state.ahead else self.state.waiting
        self.now = self.wake = 0.0
        self.free = self.down = False
        self.routed = self.ended = 0
        self.requests = Log(REQUEST_COLUMNS)
        self.decisions = Log(DECISION_COLUMNS)
        self._log = self.decisions.rows.append
        self.oom: list[OutOfMemory] = []
        self._seen = 0.0  # what had arrived by then is seen by a scheduler that decides a step ahead
        self._resting = False  # nothing to do: an arrival changes that
        self._batch: Batch | None = None
        self._durations: Durations = Affine(0.0, 0.0, 1)  # of the batch that runs
        self._progress = (0, 0)
        self._preemptions = 0

    @property
    def outstanding(self) -> int:
        return self.routed - self.ended

    def kv_blocks(self, now: float) -> int:
        """KV blocks its running sequences hold at ``now`` [s], those of the iterations that have ended included."""
        ended = 0
        if self._batch is not None and self._durations.count > 1:
            ended = self._durations.ended_by(now - self.now)
        return self.state.held_after(ended)

    def take(self, request: Request, sent_s: float) -> None:
        """Queue a request that reaches the server at ``sent_s``; one that can never be served is rejected."""
        room, output = self.max_model_len - request.prompt_tokens, request.output_tokens
        asked = request.max_tokens or output
        if asked <= room:
            self.inbox.append(Sequence(request, sent_s, output))
        elif self._cuts and room > 0:
            self.inbox.append(Sequence(request, sent_s, min(output, room)))
        else:
            reason = RejectReason.ANSWER_TOO_LONG if room > 0 else RejectReason.PROMPT_TOO_LONG
            if self._cache_limits:
                reason = RejectReason.EXCEEDS_KV_CACHE
            self._record([Sequence(request, sent_s, asked)], Status.REJECTED, _nan, reason)
            self.client.failed(request, sent_s)

    def disturb(self, now: float) -> None:
        """What was taken at ``now`` [s] was not foreseen: end a run that it could change, and a wait at once."""
        batch, durations = self._batch, self._durations
        if self.free:
            self.now = max(self.now, now)
        elif batch is not None:
            if batch.interruptible and durations.count > 1:
                assert isinstance(durations, Affine), "several measured iterations cannot be undone"
                count = first_to_end_at(durations.base, durations.slope, now - self.now)
                if count < durations.count:
                    self._durations = Affine(durations.base, durations.slope, count)
                    self.wake = self.now + self._durations.total
        elif self._resting:
            self.wake = max(self.now, now)
            self.end(self.wake)

    def decide(self, now: float, sends: float) -> float:
        """What is next, at ``now`` [s]; when it ends. The next request that is known of comes at ``sends`` [s]."""
        self.now = now
        state = self.state
        if state.ahead:
            decision, sends = self._decide_ahead(now, sends)
        else:
            schedule = self.schedule
            decision = schedule(now, state)
        if type(decision) is Batch:
            execute = self.execute
            try:
                durations = execute(decision, sends - now) if decision.interruptible else execute(decision)
            except RanOutError as ran_out:
                self._crash(ran_out, now)
                return self.wake
            end = now + durations.total
            if end > self.horizon_s:
                whole = cut(durations, self.horizon_s - now)
                if whole is None:
                    self.wake = self.horizon_s
                    return self.wake
                durations = whole
                end = now + durations.total
            self._batch = decision
            self._durations = durations
            self.wake = end
        elif isinstance(decision, OutOfMemory):
            self._crash(decision, now)
        else:
            assert isinstance(decision, Wait)
            self._resting = True
            state.stand()
            until = min(decision.until, sends)
            self.wake = until if until == _inf else min(until, self.horizon_s)
        return self.wake

    def _decide_ahead(self, now: float, sends: float) -> tuple[Any, float]:
        """A decision that knows what had arrived when the step before it started, and until when it may run [s]."""
        self._show(self._seen)
        decision = self.schedule(now, self.state)
        if isinstance(decision, Wait) and self.inbox:
            self._show(now)  # nothing was decided on ahead
            decision = self.schedule(now, self.state)
        # Who is in the inbox must not wait for longer than the step that is decided on now.
        return decision, self.inbox[0].sent_s if self.inbox else sends

    def _show(self, until: float) -> None:
        """Let the scheduler see what had arrived by ``until`` [s]."""
        inbox, enqueue = self.inbox, self.state.waiting.append
        while inbox and inbox[0].sent_s <= until + SAME_INSTANT_S:
            enqueue(inbox.popleft())

    def end(self, soon: float) -> None:
        """What ran, waited or was down until ``wake`` has ended, if that is by ``soon`` [s]."""
        end = self.wake
        if end > soon:
            return
        batch = self._batch
        start = self.now
        self.now = end
        self.wake = _inf
        self.free = True
        if batch is None:
            self.down = self._resting = False
            self._seen = end
            return
        self._batch = None
        durations, state = self._durations, self.state
        if state.stood and batch.decode:
            state.resume(start + durations.first)
        count = durations.count
        finished = state.commit(batch, count, end)
        if type(durations) is Affine:
            # Several replicas log exact seconds, not a difference of times.
            seconds = end - start if self._alone else durations.total
            log, told = self._log, (state.blocks_in_use, len(finished))
            # Added up, because unpacking named tuples takes twice as long.
            log((start, count, seconds, durations.base) + batch.shape + batch.counts + told)  # noqa: RUF005
        else:
            self._log_pieces(batch, durations, start, len(finished))
        if state.ahead:
            self._seen = end - durations.last
        if finished:
            self._record(finished, _COMPLETED, end)
            answered = self.client.answered
            for sequence in finished:
                answered(sequence.request, end)

    def _log_pieces(self, batch: Batch, durations: Durations, start: float, finished: int) -> None:
        """Log a run of measured iterations as affine pieces, each with the shape it started with."""
        shape, counts = batch.shape, batch.tally
        pieces = list(durations.pieces())
        for last, piece in zip((*[False] * (len(pieces) - 1), True), pieces, strict=True):
            held = self.state.blocks_in_use, finished if last else 0
            self.decisions.rows.append((start, piece.count, piece.total, piece.base, *shape, *counts, *held))
            counts = counts._replace(resumed_rows=0)
            start += piece.total
            shape = shape._replace(
                decode_context=shape.decode_context + piece.count * shape.decode_rows,
                max_context=shape.max_context + piece.count,
            )

    def flush(self) -> None:
        """Turn what was logged into columns."""
        self._watch()
        self.requests.flush()
        self.decisions.flush()

    def _watch(self) -> None:
        """Sequences may preempt each other for ever, as they may in vLLM; a simulation must end."""
        progress, preemptions = (self.ended, self.state.decoding.step), self.state.preemptions
        if progress != self._progress:
            self._progress, self._preemptions = progress, preemptions
        fruitless = preemptions - self._preemptions
        if fruitless > _MOST_FRUITLESS:
            place, remedy = self.policy.preempts_for_ever
            happened = f"{fruitless:,} preemptions without a token: sequences take each other's KV blocks for ever"
            raise InputError(place, f"{happened}: {remedy}")

    def _crash(self, event: OutOfMemory | RanOutError, now: float) -> None:
        """Lose what runs, as the policy foresaw or a device found out, and restart."""
        lost = self.state.crash()
        self._record(lost, Status.OOM, _nan)
        for sequence in lost:
            self.client.failed(sequence.request, now)
        if isinstance(event, RanOutError):
            event = OutOfMemory(now, len(lost), event.wanted_bytes, event.available_bytes)
        self.oom.append(event)
        self.down = True
        self.wake = min(now + self.restart_s, self.horizon_s)

    def settle(self, now: float) -> None:
        """Record what has not ended by ``now`` [s]."""
        self.now = now
        if self.state.ahead:
            self._show(now)
        self._record(self.state.settle(), Status.UNFINISHED, _nan)

    def _record(self, ended: list[Sequence], status: int, finish_s: float, reason: int = 0) -> None:
        """Log requests that have ended, at ``finish_s`` [s] if they were served."""
        self.ended += len(ended)
        log = self.requests.rows.append
        for sequence in ended:
            request = sequence.request
            scheduled, first, slot = sequence.scheduled_s, sequence.first_token_s, sequence.slot
            log(
                (
                    request.id, request.arrival_s, sequence.sent_s, request.prompt_tokens, request.output_tokens,
                    sequence.output_limit, sequence.generated, _nan if scheduled is None else scheduled,
                    _nan if first is None else first, finish_s, status, reason, sequence.preemptions,
                    sequence.recomputed, _nan if slot is None else slot,
                )
            )  # fmt: skip

    def result(self) -> Run:
        requests = self.requests.columns()
        return Run(
            requests=_ordered(requests, np.argsort(requests["id"], kind="stable")),
            decisions=self.decisions.columns(),
            gaps=dict(zip(GAP_COLUMNS, np.array(self.state.gaps, np.float64).reshape(-1, 4).T, strict=True)),
            oom=self.oom,
            end_s=self.now,
            kv_blocks_total=self.state.pool.total,
            respond=self.policy.respond,
        )


def _joined(runs: list[Run]) -> Replayed:
    """The runs of all replicas, and all of them as one."""
    first = runs[0]
    if len(runs) == 1:
        return Replayed((first,), first, np.zeros(len(first.requests["id"]), np.int64))
    requests = {name: np.concatenate([run.requests[name] for run in runs]) for name in first.requests}
    decisions = {name: np.concatenate([run.decisions[name] for run in runs]) for name in first.decisions}
    gaps = {name: np.concatenate([run.gaps[name] for run in runs]) for name in first.gaps}
    order = np.argsort(requests["id"], kind="stable")
    whole = Run(
        requests=_ordered(requests, order),
        decisions=_ordered(decisions, np.argsort(decisions["start_s"], kind="stable")),
        gaps=_ordered(gaps, np.argsort(gaps["end_s"], kind="stable")),
        oom=sorted((event for run in runs for event in run.oom), key=lambda event: event.time_s),
        end_s=max(run.end_s for run in runs),
        kv_blocks_total=first.kv_blocks_total,
        respond=first.respond,
    )
    return Replayed(
        tuple(runs), whole, np.repeat(np.arange(len(runs)), [len(run.requests["id"]) for run in runs])[order]
    )


def _ordered(columns: dict[str, NDArray[Any]], order: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
    return {name: column[order] for name, column in columns.items()}

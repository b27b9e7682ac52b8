"""Several replicas behind a router, simulated as one system.

Each replica is the engine of `servecast.engine` with a state, a clock and a log of its own; all share one client. A
request is routed at the instant it reaches the server, when the router knows what every replica holds then. Nobody can
tell in advance which replica gets the next request, so a replica covers as many iterations with one decision as its
policy allows, and an arrival that could change the decision ends that run at the first iteration boundary at or after
it. Replicas to which nothing is routed are not disturbed.

Times within `SAME_INSTANT_S` are one instant, and in an instant the order is: all iterations that end, replica by
replica, with their answers; then all arrivals, those set off by these answers included; then the decisions. A router
so sees every answer of the instant, and which of two simultaneous ends was computed first changes nothing. That is
why the loop below is no SimPy process: SimPy orders equal times by when they were scheduled, which a coalesced run does
earlier than a stepped one. One replica alone gives the run of `engine.replay`.

Left out: the time that routing takes, retries, moving requests that wait, and replicas that start or stop.
"""

from __future__ import annotations

import gc
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from servecast.batch import Batch, OutOfMemory, Wait
from servecast.engine import Client, Replica, Run, cut
from servecast.executor import SAME_INSTANT_S, Affine, first_to_end_at
from servecast.policies.padded import PaddedState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from servecast.executor import Durations, Executor
    from servecast.kvcache import BlockPool
    from servecast.policies.state import Policy
    from servecast.requests import Request

_FLUSH_EVERY = 512


@dataclass(frozen=True)
class Server:
    """What one replica is made of; see `engine.replay`. The pool is its own."""

    policy: Policy
    executor: Executor
    pool: BlockPool
    max_model_len: int
    activation_blocks: Callable[[int], int] = lambda tokens: 0
    restart_s: float = 0.0


class Load(Protocol):
    """What a router can see of a replica."""

    @property
    def outstanding(self) -> int:
        """Requests sent to it that have not ended."""

    def kv_blocks(self, now: float) -> int:
        """KV blocks its running sequences hold at ``now`` [s]."""


class Router(Protocol):
    """Chooses the replica of each request, in the order of their arrival."""

    def choose(self, request: Request, now: float, loads: Sequence[Load], up: Sequence[int]) -> int:
        """The place in ``loads`` of the replica that gets the request; one of ``up``, those that are not restarting."""


class RoundRobin:
    """Each in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: Request, now: float, loads: Sequence[Load], up: Sequence[int]) -> int:
        chosen = min(up, key=lambda at: (at - self._next) % len(loads))
        self._next = chosen + 1
        return chosen


class LeastOutstanding:
    """The one with the fewest requests that have not ended; of several, the first."""

    def choose(self, request: Request, now: float, loads: Sequence[Load], up: Sequence[int]) -> int:
        return min(up, key=lambda at: loads[at].outstanding)


class LeastKv:
    """The one whose running sequences hold the fewest KV blocks; of several, that with the fewest outstanding."""

    def choose(self, request: Request, now: float, loads: Sequence[Load], up: Sequence[int]) -> int:
        return min(up, key=lambda at: (loads[at].kv_blocks(now), loads[at].outstanding))


class PrefixAffinity:
    """The one that was last sent the longest known prefix of the prompt (a request without prefix ids: its session).

    The router remembers what it sent where; it does not look into the caches. Without a known prefix, and where that
    replica has more than ``most_ahead`` requests outstanding above the least, the one with the fewest outstanding.
    Manner: SGLang's cache-aware router (sglang 0.4, sgl-router: longest match, unless the load is out of balance by
    ``balance_abs_threshold`` = 32 requests).
    """

    def __init__(self, most_ahead: int = 32) -> None:
        self.most_ahead = most_ahead
        self._sent_to: dict[int | str, int] = {}

    def choose(self, request: Request, now: float, loads: Sequence[Load], up: Sequence[int]) -> int:
        known = self._sent_to
        keys: Sequence[int | str] = request.prefix_ids or (() if request.session is None else (request.session,))
        chosen = least = min(up, key=lambda at: loads[at].outstanding)
        for key in reversed(keys):
            if key in known:
                owner = known[key]
                if owner in up and loads[owner].outstanding <= loads[least].outstanding + self.most_ahead:
                    chosen = owner
                break
        known.update(dict.fromkeys(keys, chosen))
        return chosen


#: Routers by their names in a scenario.
ROUTERS: dict[str, Callable[[], Router]] = {
    "round_robin": RoundRobin,
    "least_outstanding": LeastOutstanding,
    "least_kv": LeastKv,
    "prefix_affinity": PrefixAffinity,
}


@dataclass(frozen=True)
class System:
    """What several replicas did.

    runs : the run of each, its requests with their ids of the whole workload; all end when the last one does
    run : all of them as one. ``kv_blocks_total`` is one replica's, as is every row of its decisions, in order of start
    replica : (requests,) which replica each request of ``run`` was sent to
    """

    runs: tuple[Run, ...]
    run: Run
    replica: NDArray[np.int64]


def replay_together(
    client: Client,
    servers: Sequence[Server],
    router: Router,
    *,
    horizon_s: float = math.inf,
    progress: Callable[[int], None] | None = None,
) -> System:
    """Serve a client's requests with several replicas until all have ended, or until ``horizon_s``.

    ``progress`` is called now and then with the number of requests that have ended. An executor may not return several
    measured iterations at once: they could not be undone when a request arrives.
    """
    assert servers, "no replica"
    answers = _Answers(client)
    members = [_Member(server, answers, horizon_s) for server in servers]
    collecting = gc.isenabled()
    gc.disable()  # as in engine.replay
    try:
        _serve(client, members, router, horizon_s, progress)
    finally:
        if collecting:
            gc.enable()
    return _together([member.result() for member in members])


def _serve(
    client: Client,
    members: list[_Member],
    router: Router,
    horizon: float,
    progress: Callable[[int], None] | None,
) -> None:
    """Instant by instant: ends, arrivals, decisions."""
    next_send = client.next_send
    until_flush = _FLUSH_EVERY
    while True:
        now = min([next_send(), *[member.wake for member in members]])
        if now >= horizon or now == math.inf:
            break
        _instant(now, client, members, router)
        for member in members:
            if member.free:
                member.decide()
        until_flush -= 1
        if not until_flush:
            until_flush = _FLUSH_EVERY
            for member in members:
                member.flush()
            if progress is not None:
                progress(sum(member.ended for member in members))
    if now < math.inf:
        _instant(horizon, client, members, router)
    end = max(member.now for member in members)
    for member in members:
        member.settle(end if now == math.inf else max(horizon, end))


def _instant(now: float, client: Client, members: list[_Member], router: Router) -> None:
    """End what ends now, then let in what arrives; what is a breath later belongs to the instant too."""
    moved = True
    while moved:
        moved = False
        for member in members:
            if member.wake <= now + SAME_INSTANT_S:
                member.end()
                moved = True
        while client.next_send() <= now + SAME_INSTANT_S:
            request, sent_s = client.send()
            now = max(now, sent_s)
            up = [at for at, member in enumerate(members) if not member.down] or range(len(members))
            members[router.choose(request, now, members, up)].arrive(request, sent_s)
            moved = True


class _Answers:
    """The way back to the client. Answers of one instant come replica by replica; a client is told in order of time."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.told_s = 0.0

    def at(self, now: float) -> float:
        self.told_s = now = max(now, self.told_s)
        return now


class _Share:
    """The client as one replica knows it: what the router sends."""

    def __init__(self, answers: _Answers) -> None:
        self._answers = answers
        self._sent: deque[tuple[Request, float]] = deque()
        self.outstanding = 0

    def put(self, request: Request, sent_s: float) -> None:
        self._sent.append((request, sent_s))
        self.outstanding += 1

    def next_send(self) -> float:
        return self._sent[0][1] if self._sent else math.inf

    def send(self) -> tuple[Request, float]:
        return self._sent.popleft()

    def answered(self, request: Request, now: float) -> None:
        self.outstanding -= 1
        self._answers.client.answered(request, self._answers.at(now))

    def failed(self, request: Request, now: float) -> None:
        self.outstanding -= 1
        self._answers.client.failed(request, self._answers.at(now))


class _Member(Replica):
    """One of several replicas: the engine's own steps, taken when the system's clock comes to them.

    ``wake`` [s]: when its present run, wait or restart ends. ``free``: it may decide in this instant.
    """

    def __init__(self, server: Server, answers: _Answers, horizon_s: float) -> None:
        assert server.max_model_len <= server.pool.total * server.pool.block_size, server
        self.share = _Share(answers)
        super().__init__(
            self.share, server.policy, server.executor, server.pool, server.max_model_len, server.activation_blocks
        )
        self.restart_s = server.restart_s
        self.horizon_s = horizon_s
        self.wake = math.inf
        self.free = False
        self.down = False
        self._running: tuple[Batch, Durations, float] | None = None
        self._resting = True
        self._seen = 0.0

    @property
    def outstanding(self) -> int:
        return self.share.outstanding

    def kv_blocks(self, now: float) -> int:
        state, held = self.state, self.state.pool.held
        if self._running is None:
            return held
        _, durations, start = self._running
        ended = durations.ended_by(now - start)
        if not ended or durations.count == 1:
            return held
        if isinstance(state, PaddedState):
            return state.pool.blocks(len(state.running) * (state.padded + ended))
        return held + state.decoding.blocks_needed(ended)

    def arrive(self, request: Request, sent_s: float) -> None:
        """Take a request that was routed here."""
        self.share.put(request, sent_s)
        self._receive(sent_s)
        if self._running is not None:
            batch, durations, start = self._running
            if batch.interruptible and durations.count > 1:
                assert isinstance(durations, Affine), "several measured iterations cannot be undone"
                count = first_to_end_at(durations.base, durations.slope, sent_s - start)
                if count < durations.count:
                    self._run(batch, Affine(durations.base, durations.slope, count), start)
        elif self.free:
            self.now = max(self.now, sent_s)
        elif self._resting:
            self._resting = False
            self.wake = math.inf
            self.now = self._seen = max(self.now, sent_s)
            self.free = True

    def decide(self) -> None:
        """What is next, at ``now``."""
        self.free = False
        state, now, horizon, schedule = self.state, self.now, self.horizon_s, self.policy.schedule
        if now >= horizon:
            return
        sends = math.inf
        if state.ahead:
            self._show(self._seen)
            decision = schedule(now, state)
            if isinstance(decision, Wait) and self.inbox:
                self._show(now)
                decision = schedule(now, state)
            if self.inbox:
                sends = self.inbox[0].sent_s
        else:
            decision = schedule(now, state)
        if isinstance(decision, Batch):
            durations = self.executor.run(decision, sends - now if decision.interruptible else math.inf)
            if now + durations.total > horizon:
                whole = cut(durations, horizon - now)
                if whole is None:
                    self.now = horizon
                    return
                durations = whole
            self._run(decision, durations, now)
        elif isinstance(decision, OutOfMemory):
            self.down = True
            self.wake = min(self._crash(decision, now), horizon)
        else:
            self._resting = True
            self.wake = math.inf if decision.until == math.inf else min(decision.until, horizon)

    def _run(self, batch: Batch, durations: Durations, start: float) -> None:
        self._running = batch, durations, start
        self.wake = start + durations.total

    def end(self) -> None:
        """What ran, waited or was down until ``wake`` has ended."""
        end = self.now = self.wake
        self.wake = math.inf
        self.free = True
        self.down = self._resting = False
        if self._running is None:
            self._seen = end
            return
        batch, durations, start = self._running
        self._running = None
        finished = self.state.commit(batch, durations.count, end)
        self._log_pieces(batch, durations, start, len(finished))
        self._seen = end - durations.last
        if finished:
            self._answer(finished, end)

    def flush(self) -> None:
        """Turn what was logged into columns."""
        self._flush()

    def settle(self, now: float) -> None:
        """Record what a horizon cut off."""
        self._settle(now)


def _together(runs: list[Run]) -> System:
    """Several runs as one."""
    requests = {name: np.concatenate([run.requests[name] for run in runs]) for name in runs[0].requests}
    replica = np.repeat(np.arange(len(runs)), [len(run.requests["id"]) for run in runs])
    order = np.argsort(requests["id"], kind="stable")
    decisions = {name: np.concatenate([run.decisions[name] for run in runs]) for name in runs[0].decisions}
    starts = np.argsort(decisions["start_s"], kind="stable")
    oom = sorted((event for run in runs for event in run.oom), key=lambda event: event.time_s)
    whole = Run(
        requests=_ordered(requests, order),
        decisions=_ordered(decisions, starts),
        gaps=np.concatenate([run.gaps for run in runs]),
        oom=oom,
        end_s=max(run.end_s for run in runs),
        kv_blocks_total=runs[0].kv_blocks_total,
        respond=runs[0].respond,
    )
    return System(tuple(runs), whole, replica[order])


def _ordered(columns: dict[str, NDArray[Any]], order: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
    return {name: column[order] for name, column in columns.items()}

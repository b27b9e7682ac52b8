"""Sessions of several turns: the next turn is sent its delay after the answer to the turn before.

A turn whose predecessor failed is not sent, nor is any after it: they are cancelled and counted. In a conversation each
prompt holds what was said before, then the user's new text: prompt i = prompt i-1 + output i-1 + new text i.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import TYPE_CHECKING

import numpy as np

from servecast.errors import InputError
from servecast.workload.arrivals import arrive
from servecast.workload.checks import AT_LEAST_0, AT_LEAST_1, check
from servecast.workload.clients import MOST_REQUESTS, OpenLoop, RequestColumns
from servecast.workload.prefixes import PrefixIds, ramps, require_few
from servecast.workload.synthetic import streams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from servecast.requests import Request
    from servecast.workload.arrivals import Arrivals
    from servecast.workload.lengths import Law


class Sessions:
    """Sends requests at their arrivals, but turns with a ``delay_s`` so long after the answer to the turn before.

    Equal times go in the order of the columns. ``cancelled`` counts the turns that were not sent because one before
    them failed. A request answered at the instant it arrived was turned away, which is a failure too.
    """

    __slots__ = ("_delays_s", "_due", "_following", "_requests", "cancelled")

    def __init__(self, columns: RequestColumns) -> None:
        self._requests = list(columns)
        n = len(self._requests)
        self._delays_s = [float("nan")] * n if columns.delay_s is None else columns.delay_s.tolist()
        self._following: dict[int, int] = {}
        self.cancelled = 0
        last: dict[str, int] = {}
        due = []
        for request, delay_s in zip(self._requests, self._delays_s, strict=True):
            before = None if request.session is None else last.get(request.session)
            if isnan(delay_s):
                due.append((request.arrival_s, request.id))
            else:
                assert before is not None, "a delay without a turn before it"
                self._following[before] = request.id
            if request.session is not None:
                last[request.session] = request.id
        self._due = due  # sorted by time and id, so a heap already

    def __len__(self) -> int:
        return len(self._requests)

    def next_send(self) -> float:
        return self._due[0][0] if self._due else inf

    def send(self) -> tuple[Request, float]:
        due_s, id_ = heapq.heappop(self._due)
        request = self._requests[id_]
        return (request if request.arrival_s == due_s else request._replace(arrival_s=due_s)), due_s

    def answered(self, request: Request, now: float) -> None:
        if now <= request.arrival_s:
            self.failed(request, now)
            return
        following = self._following.get(request.id)
        if following is not None:
            heapq.heappush(self._due, (now + self._delays_s[following], following))

    def failed(self, request: Request, now: float) -> None:
        following = self._following.get(request.id)
        while following is not None:
            self.cancelled += 1
            following = self._following.get(following)


def client_of(columns: RequestColumns) -> OpenLoop | Sessions:
    """Who sends these requests: an open loop, unless some wait for the turn before."""
    return OpenLoop(columns) if columns.delay_s is None else Sessions(columns)


def conversation_prompts(new_tokens: NDArray[np.int64], output_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Prompts of one conversation's turns, (turns,) [tokens] each: what was said before, and the new text."""
    said = np.cumsum(new_tokens + output_tokens)
    return np.asarray(said - output_tokens, np.int64)


@dataclass(frozen=True)
class Conversations:
    """Synthetic conversations; a value that cannot be raises ValueError.

    arrivals : when conversations start
    turns : turns of each
    new_tokens : the user's text of a turn
    output_tokens : the answer to it
    think_s : from an answer to the next turn [s]
    system_tokens : what every prompt starts with, the same for all
    block_size : tokens of a prefix id; the history is what a turn can find in a prefix cache
    """

    arrivals: Arrivals
    turns: Law
    new_tokens: Law
    output_tokens: Law
    think_s: float = 0.0
    system_tokens: int = 0
    block_size: int = 16

    def __post_init__(self) -> None:
        check(self, AT_LEAST_0, "think_s")
        check(self, ("be at least 0", lambda value: value >= 0), "system_tokens")
        check(self, AT_LEAST_1, "block_size")

    def generate(self, conversations: int, seed: int) -> RequestColumns:
        """The turns of ``conversations``, in order of the earliest times they can be sent."""
        arrivals_rng, prompt_rng, output_rng, turns_rng = streams(seed, 4)
        starts_s = arrive(self.arrivals, conversations, arrivals_rng)
        turns = self.turns.draw(len(starts_s), turns_rng)
        if (requests := int(turns.sum())) > MOST_REQUESTS:
            problem = (
                f"{requests:,} turns in all, more than {MOST_REQUESTS:,}: give fewer conversations, or fewer turns"
            )
            raise InputError("workload.conversations", problem)
        new = self.new_tokens.draw(int(turns.sum()), prompt_rng)
        outputs = self.output_tokens.draw(int(turns.sum()), output_rng)
        ends = np.cumsum(turns)
        prompts = np.concatenate(
            [conversation_prompts(new[a:b], outputs[a:b]) for a, b in zip(ends - turns, ends, strict=True)] or [new]
        )
        turn = ramps(turns)
        arrival_s = np.repeat(starts_s, turns) + turn * self.think_s
        of = np.repeat(np.arange(len(turns)), turns)
        columns = RequestColumns.in_order(
            arrival_s,
            prompts + self.system_tokens,
            outputs,
            session=[f"c{number}" for number in of.tolist()],
            prefix_ids=self._prefixes(prompts + outputs, of),
            delay_s=np.where(turn == 0, np.nan, self.think_s),
        )
        return replace(columns, prefix_block_size=self.block_size)

    def _prefixes(self, said: NDArray[np.int64], of: NDArray[np.int64]) -> PrefixIds:
        """Ids of the full blocks of prompt and answer, which the next turn says again: those of the system prompt are
        shared by all, others by one conversation's turns."""
        shared = self.system_tokens // self.block_size
        counts = (said + self.system_tokens) // self.block_size
        require_few(int(counts.sum()), "fewer conversations or turns, or shorter texts")
        place = ramps(counts)
        longest = int(counts.max()) if len(counts) else 0
        own = shared + np.repeat(of, counts) * longest + place
        sizes = np.full(len(place), self.block_size)
        return PrefixIds(np.where(place < shared, place, own), np.cumsum(counts), sizes)

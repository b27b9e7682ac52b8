"""Routers: which of several replicas gets a request, decided at the instant it reaches the server.

Left out: the time that routing takes, retries, and moving requests that wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from servecast.requests import Request


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

"""The way between a client and the server: a request reaches the scheduler some time after it was sent, and the client
hears of an answer some time after it was given.

    reaches the server = sent + uplink_s        heard by the client = given + downlink_s

The client inside lives in its own time and never learns of the difference; the engine sees only what reaches it. Both
times are constant, so order is kept, ties included, and what an answer sets off is known as soon as it is given.
Left out: bandwidth, jitter, and a way that gets longer under load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.errors import InputError

if TYPE_CHECKING:
    from servecast.requests import Request
    from servecast.workload.clients import Client


class Remote:
    """Any client, ``uplink_s`` before the scheduler and ``downlink_s`` [s] behind it.

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
        """When the next request known now reaches the scheduler [s]; inf when none is known."""
        return self._client.next_send() + self._uplink_s

    def send(self) -> tuple[Request, float]:
        """That request, and when it reaches the scheduler [s]."""
        request, sent_s = self._client.send()
        return request, sent_s + self._uplink_s

    def answered(self, request: Request, now: float) -> None:
        """The client hears of the answer ``downlink_s`` after ``now`` [s]."""
        self._client.answered(request, now + self._downlink_s)

    def failed(self, request: Request, now: float) -> None:
        """The client hears of the failure as late as of an answer."""
        self._client.failed(request, now + self._downlink_s)

"""The waiting queue by priority: lower value first, then arrival, then place in the trace.

It answers to the part of a deque's interface that policies and the engine use, so that who asks need not know which
of the two it has. A preempted sequence goes back to its place, not to the head.

Source: vLLM 0.32, v1/core/sched/request_queue.py.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.requests import Sequence


def urgency(sequence: Sequence) -> tuple[int, float, int]:
    """Sorts the most urgent first."""
    request = sequence.request
    return request.priority, sequence.sent_s, request.id


class PriorityQueue:
    """Waiting sequences, the most urgent first."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Sequence] = []  # the most urgent last: that end of a list is the cheap one

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return reversed(self._waiting)

    def __getitem__(self, position: int) -> Sequence:
        return self._waiting[-1 - position]

    def append(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=_reversed_urgency)

    appendleft = append

    def popleft(self) -> Sequence:
        return self._waiting.pop()


def _reversed_urgency(sequence: Sequence) -> tuple[float, float, float]:
    priority, sent_s, place = urgency(sequence)
    return -priority, -sent_s, -place

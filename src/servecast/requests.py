"""What arrives (`Request`) and what is being served (`Sequence`).

A request is frozen, so one trace feeds any number of runs. A sequence has no phase: prefill is simply "more than one
token pending". Tokens a sequence has *computed* have their keys and values in the cache; the last token it generated
is not among them until the next step reads it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Request(NamedTuple):
    """One request as it arrives: times in seconds, lengths in tokens. ``id`` is its position in the workload."""

    id: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    session: str | None = None
    tenant: str | None = None
    prefix_ids: tuple[int, ...] = ()


class Status(IntEnum):
    """How a request ended."""

    COMPLETED = 0
    REJECTED = 1
    OOM = 2
    UNFINISHED = 3


class Sequence:
    """A request being served.

    ``tokens`` is the prompt plus what was generated, ``computed`` how many of them are in the KV cache, ``blocks``
    how many KV blocks it holds. These stand still while the sequence decodes: then only the totals of
    `policies.decoding` advance (``finish_step`` is not negative, ``offset`` ties it to them), and they are brought up
    to date when it leaves. ``resident`` is the most it ever had computed: computing below it is computing again.
    """

    __slots__ = (
        "blocks", "computed", "finish_step", "first_token_s", "generated", "last_token_s", "offset", "output_limit",
        "preemptions", "recomputed", "request", "resident", "scheduled_s", "sent_s", "slot", "tokens",
    )  # fmt: skip

    def __init__(self, request: Request, sent_s: float, output_limit: int) -> None:
        self.request = request
        self.sent_s = sent_s
        self.output_limit = output_limit
        self.tokens = request.prompt_tokens
        self.computed = 0
        self.generated = 0
        self.blocks = 0
        self.slot = -1
        self.offset = 0
        self.finish_step = -1
        self.preemptions = 0
        self.recomputed = 0
        self.resident = 0
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None

    def __repr__(self) -> str:
        return f"Sequence({self.request.id}, computed {self.computed} of {self.tokens}, generated {self.generated})"

"""What arrives (`Request`) and what is being served (`Sequence`).

A request is frozen, so one trace feeds any number of runs. A sequence has no phase: prefill is simply "more than one
token pending". Tokens a sequence has *computed* have their keys and values in the cache; the last token it generated
is not among them until the next step reads it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple

#: What becomes of a request whose prompt and longest answer exceed max_model_len: vLLM refuses it whole (status 400).
OnTooLong = Literal["reject", "cut"]


class Request(NamedTuple):
    """One request as it arrives: times in seconds, lengths in tokens. ``id`` is its position in the workload.

    ``max_tokens`` is the longest answer that it allows, at least ``output_tokens``; None: those are it.
    """

    id: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    session: str | None = None
    tenant: str | None = None
    prefix_ids: tuple[int, ...] = ()
    max_tokens: int | None = None


class Status(IntEnum):
    """How a request ended."""

    COMPLETED = 0
    REJECTED = 1
    OOM = 2
    UNFINISHED = 3


class RejectReason(IntEnum):
    """Why a request was refused, whole, when it reached the server.

    PROMPT_TOO_LONG : the prompt alone leaves no room for a token within max_model_len
    ANSWER_TOO_LONG : the prompt leaves room, but not for the longest answer that was asked for
    EXCEEDS_KV_CACHE : either of them, where max_model_len is all that the KV cache holds: raising it would not help
    """

    NONE = 0
    PROMPT_TOO_LONG = 1
    ANSWER_TOO_LONG = 2
    EXCEEDS_KV_CACHE = 3


class Sequence:
    """A request being served.

    tokens : the prompt plus what was generated
    computed : how many of them are in the KV cache
    blocks : KV blocks it holds
    resident : the most it ever had computed; computing below it is computing again
    slot : where it runs, or ran last; None before it was first admitted
    offset, finish_step : while it decodes, how it stands to the totals of `policies.decoding`. Only those advance then;
        its own counts are brought up to date when it leaves them
    last_token_s : when it had its last token [s], but for those it had while it decoded
    """

    __slots__ = (
        "blocks", "computed", "finish_step", "first_token_s", "generated", "last_token_s", "offset", "output_limit",
        "preemptions", "recomputed", "request", "resident", "scheduled_s", "sent_s", "slot", "tokens",
    )  # fmt: skip

    offset: int
    finish_step: int

    def __init__(self, request: Request, sent_s: float, output_limit: int) -> None:
        self.request = request
        self.sent_s = sent_s
        self.output_limit = output_limit
        self.tokens = request.prompt_tokens
        self.computed = 0
        self.generated = 0
        self.blocks = 0
        self.slot: int | None = None
        self.preemptions = 0
        self.recomputed = 0
        self.resident = 0
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s = 0.0

    def __repr__(self) -> str:
        return f"Sequence({self.request.id}, computed {self.computed} of {self.tokens}, generated {self.generated})"

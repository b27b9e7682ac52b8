"""How large a value of a scenario may be, and why: what lies above would fill the memory, never end, or mean nothing.

A bound belongs to a quantity, which a key's unit tells (``_s``, ``_tokens``), so every key of that unit has it, those
of a new policy or arrival process too. Bounds are generous: what comes near one is a slip of the hand. What only grows
too large together (requests of all conversations, ids of all prefixes, requests times replicas) is counted where it is
made, before it takes memory.
"""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args

from pydantic import Field

from servecast.engine import LATEST_S
from servecast.workload.clients import MOST_REQUESTS
from servecast.workload.lengths import LONGEST_TOKENS


class Most(NamedTuple):
    """The largest value of a quantity, and why there is none above."""

    value: float
    why: str


REQUESTS = Most(MOST_REQUESTS, "their tables would not fit the memory")
TOKENS = Most(LONGEST_TOKENS, "no sequence, batch or cache line of text is longer")
SEQUENCES = Most(1_000_000, "no engine holds more sequences at a time")
BLOCK_SIZE = Most(1 << 16, "a block is a small part of a sequence")
BLOCKS = Most(10**9, "no machine has memory for more")
GPUS = Most(1024, "no model is split over more")
REPLICAS = Most(4096, "each is simulated by itself")
SECONDS = Most(LATEST_S, "three years, beyond which the clock no longer tells steps apart")
RATE = Most(1e9, "write .inf where all is to come at once")
SEED = Most(1 << 53, "every tool that reads the tables holds such a number exactly")
PRIORITY = Most(1 << 53, SEED.why)
FACTOR = Most(1e6, "a larger factor is a slip of the hand")
POINTS = Most(100_000, "each is checked before the first is run")
NUMBER = Most(10**9, "a larger number is a slip of the hand")

#: Quantities by how a key ends, the first that fits.
_QUANTITIES = {
    "tokens": TOKENS, "tokens_threshold": TOKENS, "token_threshold": TOKENS, "_seqs": SEQUENCES,
    "batch_size": SEQUENCES, "users": SEQUENCES, "block_size": BLOCK_SIZE, "_s": SECONDS, "_rps": RATE,
    "scale": FACTOR,
}  # fmt: skip

Requests: TypeAlias = Annotated[int, Field(ge=1, le=int(REQUESTS.value)), REQUESTS]
Count: TypeAlias = Annotated[int, Field(ge=1, le=int(NUMBER.value)), NUMBER]
Tokens: TypeAlias = Annotated[int, Field(ge=1, le=int(TOKENS.value)), TOKENS]
#: Tokens of something that need not be there.
MaybeTokens: TypeAlias = Annotated[int, Field(ge=0, le=int(TOKENS.value)), TOKENS]
Sequences: TypeAlias = Annotated[int, Field(ge=1, le=int(SEQUENCES.value)), SEQUENCES]
BlockSize: TypeAlias = Annotated[int, Field(ge=1, le=int(BLOCK_SIZE.value)), BLOCK_SIZE]
Blocks: TypeAlias = Annotated[int, Field(ge=1, le=int(BLOCKS.value)), BLOCKS]
Gpus: TypeAlias = Annotated[int, Field(ge=1, le=int(GPUS.value)), GPUS]
Replicas: TypeAlias = Annotated[int, Field(ge=1, le=int(REPLICAS.value)), REPLICAS]
Points: TypeAlias = Annotated[int, Field(ge=1, le=int(POINTS.value)), POINTS]
Seed: TypeAlias = Annotated[int, Field(ge=0, le=int(SEED.value)), SEED]
Priority: TypeAlias = Annotated[int, Field(ge=-int(PRIORITY.value), le=int(PRIORITY.value)), PRIORITY]
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=SECONDS.value), SECONDS]
#: A time that is not 0.
SomeSeconds: TypeAlias = Annotated[float, Field(gt=0, le=SECONDS.value), SECONDS]
Factor: TypeAlias = Annotated[float, Field(ge=1e-6, le=FACTOR.value), FACTOR]


def bounded(name: str, hint: Any, default: Any) -> Any:
    """The type of a dataclass's field within the bound of its quantity; other types as they are.

    Whole numbers start at 1 (at 0 where that is the default), others at 0.
    """
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    if kinds not in ([int], [float]):
        return hint
    kind: Any = kinds[0]
    most = next((most for ending, most in _QUANTITIES.items() if name.endswith(ending)), NUMBER)
    least = 1 if kind is int and default != 0 else 0
    within = Annotated[kind, Field(ge=least, le=kind(most.value)), most]
    return within if get_args(hint) == () else within | None

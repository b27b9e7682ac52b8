"""What every policy says of itself, and what it decides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from servecast.batch import Decision
    from servecast.kvcache import BlockPool
    from servecast.policies.state import State


class Policy:
    """A batching policy: a frozen dataclass of its parameters, which are its keys in a scenario.

    It knows neither who runs it nor how long an output will be. What others need to know of it is declared here.

    kind : its name in a scenario
    closed : no slot is refilled until all members of a batch have ended, nobody is preempted, and a batch that outgrows
        the memory crashes the engine
    rectangle : every row is computed, and held in memory, as long as the longest
    limits : its parameters that bound a batch: where a plan looks for something better
    like_engine : ``like:`` gives it the defaults of an engine's version
    respond : ``stream`` sends tokens as they come, ``batch_end`` all together when the batch has ended
    """

    kind: ClassVar[str]
    closed: ClassVar[bool] = False
    rectangle: ClassVar[bool] = False
    like_engine: ClassVar[bool] = False
    limits: ClassVar[tuple[str, ...]] = ()
    respond: str = "stream"

    @property
    def slots(self) -> int:
        """Sequences that run at once, at most."""
        raise NotImplementedError

    @property
    def set_aside(self) -> tuple[int, int]:
        """Tokens and sampled rows of the step whose activations memory is set aside for."""
        raise NotImplementedError

    @property
    def longest_prompt(self) -> float:
        """Tokens of a prompt beyond which it would wait for ever; infinite where prompts are cut or never too long."""
        return math.inf

    @property
    def simulated_only(self) -> tuple[str, ...]:
        """Parameters that are set and that a device does not execute."""
        return ()

    @property
    def preempts_for_ever(self) -> tuple[str, str]:
        """Where sequences may take each other's KV blocks for ever: the parameter that ends it, and how."""
        return "scheduler", "give more blocks, or fewer sequences"

    def start(self, pool: BlockPool, activation_blocks: Callable[[int], int]) -> State:
        """A fresh state. ``activation_blocks(tokens)``: KV blocks' worth of memory that the activations of a step of so
        many tokens need beyond what was set aside for them."""
        raise NotImplementedError

    def schedule(self, now: float, state: Any) -> Decision:
        """What to do at ``now`` [s]; ``state`` is what `start` gave."""
        raise NotImplementedError

"""How fast a device was while it executed a run, against its calibration: the same reference steps, timed again.

A shared machine changes its speed by a tenth and more within a minute, in jumps. Reference steps before and after a run
miss a jump in the middle. An executed run has a virtual clock, the sum of its steps: so reference steps can be timed
inside it, between two batches, and the run does not notice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from servecast.batch import StepShape
from servecast.cost.model import step_kind
from servecast.metrics import mean_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from servecast.batch import Batch
    from servecast.engine import Run
    from servecast.executor import Durations, Executor

    Seconds = Mapping[str, float]

EVERY_S = 0.25
"""Device time between two looks at the speed [s]."""


class Watched:
    """An executor that looks at the device's speed now and then, between batches."""

    def __init__(self, executor: Executor, glance: Callable[[], Seconds]) -> None:
        self.seen: list[Seconds] = []
        self._executor = executor
        self._glance = glance
        self._since = math.inf

    def run(self, batch: Batch, until: float = math.inf) -> Durations:
        if self._since >= EVERY_S:
            self.seen.append(self._glance())
            self._since = 0.0
        taken = self._executor.run(batch, until)
        self._since += taken.total
        return taken


def drifts(seen: Sequence[Seconds], calibrated: Seconds) -> dict[str, float]:
    """Mean time of each reference step over that of its calibration, less 1."""
    return {name: float(np.mean([each[name] for each in seen])) / seconds - 1 for name, seconds in calibrated.items()}


def worst(drifts: Seconds) -> float:
    """The drift furthest from 0, with its sign."""
    return max(drifts.values(), key=abs)


def scale(run: Run, drifts: Seconds) -> float:
    """Step times of the run over those of a device as fast as when it was calibrated.

    Steps that only decode go by the decoding reference, the others by the mixed one, each by its share of the time.
    """
    decisions = run.decisions
    kinds = np.asarray(step_kind(StepShape(*(np.asarray(field) for field in mean_shapes(decisions)))))  # type: ignore[arg-type]  # arrays
    seconds = decisions["seconds"]
    decoding = float(seconds[kinds == "decode"].sum() / seconds.sum()) if len(seconds) else 0.0
    return 1 + decoding * drifts["decode"] + (1 - decoding) * drifts["mixed"]

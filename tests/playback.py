"""Plays a device run back from its log: the same durations, in the order they were measured.

A log of measured iterations has one row an iteration, so playing it back through the same policy and requests gives
every token at the very same time. A batch that is not the logged one is refused: the log is then of another run.
"""

from __future__ import annotations

import math

from servecast.batch import StepShape
from servecast.device.executor import stepped
from servecast.errors import InputError
from servecast.executor import RanOutError


class RecordedExecutor:
    """Durations of the rows of ``decisions``, the log of an executed run (``seconds`` and the fields of its shapes);
    ``oom`` are its crashes."""

    def __init__(self, decisions, oom=()):
        self._seconds = decisions["seconds"].tolist()
        self._shapes = list(zip(*(decisions[name].tolist() for name in StepShape._fields), strict=True))
        iterations = decisions["iterations"]
        if (iterations != 1).any():
            raise InputError("recorded run", "has rows of several iterations: it is a simulation's log, not a device's")
        self._at = 0
        #: Each crash with the number of steps before it, the next one last.
        self._crashes = [(int((decisions["start_s"] < event.time_s).sum()), event) for event in reversed(oom)]

    def run(self, batch, until=math.inf):
        shape = batch.shape

        def step():
            nonlocal shape
            at = self._at
            if self._crashes and self._crashes[-1][0] == at:
                _, event = self._crashes[-1]
                raise RanOutError(event.wanted_bytes, event.available_bytes)
            if at == len(self._seconds) or self._shapes[at] != tuple(shape):
                logged = "its end" if at == len(self._seconds) else StepShape(*self._shapes[at])
                raise InputError(
                    "recorded run", f"step {at} of the log is {logged}, asked was {shape}: it is of another run"
                )
            self._at += 1
            shape = shape._replace(
                decode_context=shape.decode_context + shape.decode_rows, max_context=shape.max_context + 1
            )
            return self._seconds[at]

        try:
            return stepped(step, batch.iterations, until)
        except RanOutError:
            self._crashes.pop()
            raise

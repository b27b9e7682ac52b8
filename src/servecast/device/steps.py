"""The steps of a calibration on a device, each timed after another one, as a server's steps come.

Back to back a step finds its own keys, its weights and the branches it took in the caches. Among others it does not: on
a CPU the decode steps of executed runs took 4 to 8 % longer than the same shapes repeated back to back. So before each
timed repeat a small step on other rows runs, untimed. A GPU whose cache holds a small part of the weights needs none:
a step has overwritten what it found by its own end.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from servecast.device import grid
from servecast.device.executor import allocated
from servecast.device.ragged import Ragged
from servecast.device.timing import clock, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd

    from servecast.device.grid import Limits, Point
    from servecast.device.model import Transformer
    from servecast.device.timing import Timing


class Steps:
    """The steps of points within ``limits`` on a model, and their times.

    layers : of the whole model, where ``model`` has fewer and times are to be scaled up
    slots, length : of the cache, where no point has as many rows, or as long ones, as the limits allow
    Raises InputError where memory does not hold the cache.
    """

    def __init__(
        self,
        model: Transformer,
        limits: Limits,
        *,
        layers: int | None = None,
        slots: int | None = None,
        length: int | None = None,
        graphs: bool = True,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.cache = allocated(model, slots or limits.rows, length or limits.length)
        self.ragged = Ragged(model, self.cache, graphs=graphs)
        self._length = self.cache.max_length
        # Eager: a graph of longer rows would be another one for each size, and long steps hide their launches.
        self._long = Ragged(model, self.cache.stretched(limits.stretch), graphs=False)
        # Without layers nothing attends: what is left is the embedding, the head and sampling.
        self.headless = Ragged(replace(model, layers=()), self.cache, graphs=False)
        self.scale = (layers or len(model.layers)) / len(model.layers)
        self.now = clock(model.device)
        self.warm_up = 1 if model.dtype == torch.float32 else 2
        self._draw = torch.Generator(device="cpu").manual_seed(seed)
        self.between: Callable[[], object] = lambda: None
        if not _leaves_the_caches(model):
            before = grid.interlude(limits, self.cache.slots)
            tokens = self._tokens(len(before))
            self.between = lambda: self.ragged.step(before, tokens)

    def step(self, ragged: Ragged, point: Point) -> Callable[[], object]:
        """The step of a point, ready to run."""
        spans = point.spans
        tokens = self._tokens(sum(span.new for span in spans))
        return lambda: ragged.step(spans, tokens)

    def time(self, point: Point, deadline: float = math.inf, **precision: Any) -> Timing:
        """How long a step takes, layers that were cut off included. ``precision``: as `measure` takes it."""
        ragged = self.ragged if point.shape.max_context <= self._length else self._long
        taken = self.timed(self.step(ragged, point), deadline, **precision)
        if self.scale == 1:
            return taken
        fixed = self.timed(self.step(self.headless, point), deadline, **precision).seconds

        def scaled(seconds: float) -> float:
            return fixed + max(0.0, seconds - fixed) * self.scale

        return taken._replace(seconds=scaled(taken.seconds), least_s=scaled(taken.least_s), most_s=scaled(taken.most_s))

    def timed(self, step: Callable[[], object], deadline: float = math.inf, **precision: Any) -> Timing:
        """How long any step on this cache takes, between others."""
        precision = {"warm_up": self.warm_up} | precision
        return measure(step, self.now, deadline=deadline, between=self.between, **precision)

    def _tokens(self, count: int) -> torch.Tensor:
        return torch.randint(self.model.spec.vocab, (count,), generator=self._draw).to(self.model.device)


def _leaves_the_caches(model: Transformer) -> bool:
    """Whether a step reads so many weights that nothing of the last one is left in the device's caches."""
    if model.device.type == "cpu":
        return False
    return bool(model.weight_bytes() > 4 * torch.cuda.get_device_properties(model.device).L2_cache_size)


class References:
    """The reference steps of a calibration on a model, to be timed again."""

    def __init__(self, model: Transformer, identity: Mapping[str, Any]) -> None:
        limits = grid.Limits(**identity["limits"])
        self._points = grid.references(limits)
        before = grid.interlude(limits, limits.rows)
        slots = max(len(point.rows) for point in self._points.values()) + len(before)
        rows = [*before, *(span for point in self._points.values() for span in point.spans)]
        length = max(span.cached + span.new for span in rows)
        with torch.inference_mode():
            self._steps = Steps(model, limits, slots=min(slots, limits.rows), length=length, graphs=identity["graphs"])

    def seconds(self) -> dict[str, float]:
        """What each takes now [s], to 1 %."""
        return self._timed(warm_up=3, least=9, most=25, precision=0.01)

    def glance(self) -> dict[str, float]:
        """What each takes now [s], once."""
        return self._timed(warm_up=0, least=1, most=1)

    def _timed(self, **precision: Any) -> dict[str, float]:
        with torch.inference_mode():
            return {name: self._steps.time(point, **precision).seconds for name, point in self._points.items()}


def held_out_times(model: Transformer, identity: Mapping[str, Any]) -> pd.DataFrame:
    """The held-out steps of a calibration, timed anew on a model."""
    import pandas as pd

    limits = grid.Limits(**identity["limits"])
    points = [point for point in grid.points(limits, seed=identity["seed"]) if point.part == "held_out"]
    with torch.inference_mode():
        steps = Steps(model, limits, graphs=identity["graphs"])
        rows = [{"seconds": steps.time(point, warm_up=2).seconds, **point.shape._asdict()} for point in points]
    return pd.DataFrame(rows)

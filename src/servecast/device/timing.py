"""The clock of a device, and how often to look at it.

On CUDA a moment is read after the device has caught up, so that a step costs what its caller waits for: kernels, and
the launching of them where that is slower. On a CPU it is the CPU time of the one thread that computes: with neighbours
on the machine, wall time says more of them than of the step.

A measurement is a median of repeats after discarded ones, repeated until the median is known to a stated precision: its
standard error is 1.2533 sigma / sqrt(n), sigma taken from the quartiles (their distance / 1.349, as for a normal). Of
two alternating values the median absolute deviation is 0, and a median looks known that is not.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

import torch

from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    #: The present moment of a device's own clock [s].
    Clock = Callable[[], float]


LOWEST_TORCH = (2, 11)  # run on: its CUDA build on stub libraries; 2.13 beside it. pyproject.toml says the same


class Timing(NamedTuple):
    """A measured duration [s]: ``seconds`` is the median of ``repeats``; ``dropped`` came before and do not count."""

    seconds: float
    repeats: int
    dropped: int
    least_s: float
    most_s: float
    spread: float

    @property
    def error(self) -> float:
        """Standard error of the median, as a share of it."""
        return 1.2533 * self.spread / math.sqrt(self.repeats)


def open_device(name: str) -> torch.device:
    """The torch device of a name: ``cpu``, ``cuda`` or ``cuda:N``. A CPU then computes in one thread.

    Raises InputError where there is no such device.
    """
    _refuse_old_torch()
    kind, colon, number = name.partition(":")
    if kind not in {"cpu", "cuda"} or (colon and not number.isdecimal()):
        raise InputError("--device", f"{name!r} is no device: use cpu, cuda or cuda:N")
    if kind == "cpu":
        if number:
            raise InputError("--device", f"{name!r} is no device: there is one cpu; use cpu")
        torch.set_num_threads(1)  # barriers between threads wait for neighbours: two were up to 65 times slower
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        raise InputError("--device", f"{name!r} is not there: {why}; use cpu, or run on a machine with a GPU")
    index = int(number) if number else torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        there = f"this machine has cuda:0 to {torch.cuda.device_count() - 1}"
        raise InputError("--device", f"{name!r} is not there: {there}")
    return torch.device("cuda", index)


def _refuse_old_torch() -> None:
    release = [int(part) for part in re.findall(r"\d+", torch.__version__)[:2]]
    if release < list(LOWEST_TORCH):
        lowest = ".".join(map(str, LOWEST_TORCH))
        problem = f"{torch.__version__} is older than {lowest}, from which its attention is what is called here"
        raise InputError("torch", f"{problem}: pip install 'torch>={lowest}'")


def clock(device: torch.device) -> Clock:
    """The clock that durations on ``device`` are differences of."""
    if device.type == "cpu":
        return time.thread_time

    def synchronised() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronised


def measure(
    step: Callable[[], object],
    now: Clock,
    *,
    precision: float = 0.02,
    warm_up: int = 1,
    least: int = 3,
    most: int = 5,
    deadline: float = math.inf,
    between: Callable[[], object] = lambda: None,
) -> Timing:
    """Time a step until its median is known to ``precision``, or ``most`` repeats, or wall ``deadline`` [s] has passed.

    ``warm_up`` first ones are dropped: a cold step pays for choosing kernels and for memory it will find warm later.
    ``between`` runs before each repeat, untimed.
    """
    for _ in range(warm_up):
        step()
    taken: list[float] = []
    while len(taken) < most:
        between()
        start = now()
        step()
        taken.append(now() - start)
        if len(taken) >= least and (timing(taken, 0).error <= precision or time.monotonic() > deadline):
            break
    return timing(taken, warm_up)


def timing(taken: Sequence[float], dropped: int) -> Timing:
    """What repeats tell."""
    median = statistics.median(taken)
    return Timing(median, len(taken), dropped, min(taken), max(taken), _spread(taken))


def _spread(taken: Sequence[float]) -> float:
    """Standard deviation of single repeats as a share of their median, from their quartiles; 0 for a single one."""
    if len(taken) < 2:
        return 0.0
    lower, median, upper = statistics.quantiles(taken, n=4, method="inclusive")
    return (upper - lower) / 1.349 / median

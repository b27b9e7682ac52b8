"""ServeGen's clients as a generator: a folder of ``chunk-I-trace.csv`` and ``chunk-I-dataset.json``, one pair a client.

A trace file has no header: start of a window of 600 s [s of the day], rate [requests/s], CV, ``Gamma``, ``Weibull`` or
nothing, shape, scale. Gaps have the fitted family and shape, and the mean 1/rate: the fitted scale alone misses the
rate by up to seven times. A data set file holds, for each window of 6 h, the probabilities of prompt and output
lengths, which are drawn apart; they are written as Python dictionaries. A window without lengths takes those of the
window before it, or else the first there are. Not here: correlation of a client's lengths, sessions. Source: ServeGen
(Alibaba), 2025.
"""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from math import gamma, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servecast.errors import InputError
from servecast.workload.clients import LengthColumns, RequestColumns
from servecast.workload.lengths import LONGEST_TOKENS

if TYPE_CHECKING:
    from numpy.typing import NDArray

WINDOW_S = 600.0
_TRACE = re.compile(r"chunk-(\d+)-trace\.csv")


class _Window(NamedTuple):
    """When a client's window starts [s], its rate [requests/s], and the family and shape of its gaps."""

    start_s: float
    rate_rps: float
    family: str
    shape: float


class _LengthTable(NamedTuple):
    """Lengths (k,) [tokens] and how likely each is (k,), adding up to 1."""

    tokens: NDArray[np.int64]
    shares: NDArray[np.float64]


@dataclass(frozen=True)
class _ServeGenClient:
    """One client: its windows in order, and from when on which lengths hold."""

    name: str
    windows: tuple[_Window, ...]
    starts_s: tuple[float, ...]
    lengths: tuple[tuple[_LengthTable, _LengthTable], ...]

    def draw(
        self, start_s: float, end_s: float, scale: float, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], LengthColumns]:
        """Its requests from ``start_s`` to ``end_s`` [s of the day] with all rates times ``scale``."""
        times, prompts, outputs = [np.empty(0)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for window in self.windows:
            if not window.rate_rps or window.start_s >= end_s or window.start_s + WINDOW_S <= start_s:
                continue
            arrivals = window.start_s + _arrivals(window, window.rate_rps * scale, rng)
            arrivals = arrivals[(arrivals >= start_s) & (arrivals < end_s)]
            times.append(arrivals)
            tables = self.lengths[max(0, bisect_right(self.starts_s, window.start_s) - 1)]
            for drawn, table in zip((prompts, outputs), tables, strict=True):
                drawn.append(rng.choice(table.tokens, len(arrivals), p=table.shares))
        return np.concatenate(times), LengthColumns(np.concatenate(prompts), np.concatenate(outputs))


def _arrivals(window: _Window, rate_rps: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Arrivals from the start of a window, all within it [s]."""
    passed, chunks = 0.0, []
    n = int(rate_rps * WINDOW_S * 1.2) + 16
    while passed < WINDOW_S:
        if window.family == "Gamma":
            gaps = rng.standard_gamma(window.shape, n) / window.shape
        elif window.family == "Weibull":
            gaps = rng.weibull(window.shape, n) / gamma(1 + 1 / window.shape)
        else:
            gaps = rng.standard_exponential(n)
        times = passed + np.cumsum(gaps) / rate_rps
        chunks.append(times)
        passed = float(times[-1])
    times = np.concatenate(chunks)
    return times[times < WINDOW_S]


@dataclass(frozen=True)
class ServeGen:
    """All clients of a folder."""

    folder: str
    clients: tuple[_ServeGenClient, ...]

    @property
    def mean_rps(self) -> float:
        """Requests a second of all clients, over the windows that the files have."""
        starts = {window.start_s for client in self.clients for window in client.windows}
        return sum(window.rate_rps for client in self.clients for window in client.windows) / len(starts)

    def generate(
        self, seed: int, start_s: float = 0.0, duration_s: float = 86_400.0, scale: float = 1.0
    ) -> RequestColumns:
        """Requests of a part of the day, arrivals from 0, the client's name as tenant; ``scale`` multiplies all rates.

        A part of the day without a request is an InputError.
        """
        if not (duration_s > 0 and scale > 0 and isfinite(duration_s) and isfinite(scale)):
            raise ValueError(f"duration_s is {duration_s} and scale {scale}; both must be finite and above 0")
        streams = np.random.SeedSequence(seed).spawn(len(self.clients))
        parts = [
            client.draw(start_s, start_s + duration_s, scale, np.random.default_rng(stream))
            for client, stream in zip(self.clients, streams, strict=True)
        ]
        times = np.concatenate([times for times, _ in parts])
        if not len(times):
            raise InputError(self.folder, f"no client sends anything from {start_s:g} s for {duration_s:g} s")
        owner = np.repeat(np.arange(len(parts)), [len(times) for times, _ in parts])
        return RequestColumns.in_order(
            times - times.min(),
            np.concatenate([lengths.prompt_tokens for _, lengths in parts]),
            np.concatenate([lengths.output_tokens for _, lengths in parts]),
            tenant=[self.clients[at].name for at in owner.tolist()],
        )


def read_servegen(folder: str) -> ServeGen:
    """The clients of a folder. A file that is missing or cannot be understood is an InputError with its line."""
    path = Path(folder)
    if not path.is_dir():
        raise InputError(folder, "no such folder; name the one with chunk-0-trace.csv and chunk-0-dataset.json in it")
    found = sorted((int(match[1]), one) for one in path.iterdir() if (match := _TRACE.search(one.name)))
    if not found:
        raise InputError(
            folder, "holds no ServeGen chunks; they are called chunk-0-trace.csv, chunk-0-dataset.json, ..."
        )
    return ServeGen(folder, tuple(_client(number, trace) for number, trace in found))


def _client(number: int, trace: Path) -> _ServeGenClient:
    lines = enumerate(_text(trace).splitlines(), 1)
    windows = tuple(sorted(_window(trace, line, text) for line, text in lines if text.strip()))
    data = trace.with_name(trace.name.replace("-trace.csv", "-dataset.json"))
    tables = sorted(_tables(data).items())
    if not tables and any(window.rate_rps for window in windows):
        raise InputError(str(data), "has no lengths, and its client sends requests; fetch the file again")
    starts, lengths = zip(*tables, strict=True) if tables else ((), ())
    return _ServeGenClient(f"chunk-{number}", windows, starts, lengths)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"cannot be read as text ({error}); fetch the file again") from error


def _window(path: Path, line: int, text: str) -> _Window:
    fields = [field.strip() for field in text.split(",")]
    try:
        start_s, rate_rps = float(fields[0]), float(fields[1])
        fitted = rate_rps > 0 and len(fields) > 3 and fields[3] != ""  # an idle window has no family, or zeros
        family, shape = (fields[3], float(fields[4] or 0)) if fitted else ("", 1.0)
    except (ValueError, IndexError):
        raise InputError(
            f"{path}:{line}", f"'{text[:80]}' is no window: start, rate, cv, family, shape, scale"
        ) from None
    if not (start_s >= 0 and rate_rps >= 0 and isfinite(start_s + rate_rps)) or family not in ("", "Gamma", "Weibull"):
        raise InputError(f"{path}:{line}", f"'{text[:80]}' has a start, a rate or a family that cannot be")
    if rate_rps and not (shape > 0 and isfinite(shape)):
        raise InputError(f"{path}:{line}", f"'{text[:80]}' has a shape that is not above 0")
    return _Window(start_s, rate_rps, family, shape)


def _tables(path: Path) -> dict[float, tuple[_LengthTable, _LengthTable]]:
    try:
        windows = json.loads(_text(path))
        items = [(float(start), value) for start, value in windows.items()]
    except (ValueError, AttributeError, RecursionError) as error:
        raise InputError(str(path), f"is not a JSON object of windows ({error}); fetch the file again") from None
    sides = ("input_tokens", "output_tokens")
    read = ((start, [_table(path, start, value, name) for name in sides]) for start, value in items)
    return {start: (prompts, outputs) for start, (prompts, outputs) in read if prompts and outputs}


def _table(path: Path, start: float, window: Any, name: str) -> _LengthTable | None:
    """The probabilities of one side; None where there are none."""
    try:
        shares = ast.literal_eval(window[name])
        tokens = np.array([int(key) for key in shares], np.int64)
        weights = np.array([float(share) for share in shares.values()])
    except (ValueError, TypeError, KeyError, AttributeError, SyntaxError, RecursionError, OverflowError, MemoryError):
        raise InputError(f"{path}: {start:g}.{name}", "is not a dictionary of lengths and probabilities") from None
    if not len(tokens):
        return None
    if tokens.min() < 0 or tokens.max() > LONGEST_TOKENS or not (np.all(weights >= 0) and 0 < weights.sum() < np.inf):
        raise InputError(f"{path}: {start:g}.{name}", "has a length or a probability that cannot be")
    weights = weights[tokens > 0]  # a request for nothing is none
    if not weights.sum():
        return None
    return _LengthTable(tokens[tokens > 0], weights / weights.sum())

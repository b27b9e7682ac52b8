"""The largest static or padded batch that fits into a memory limit: forecast, and found by running out.

All rows are of one length, so that both policies hold and compute the same; only the kernels differ.

Forecast: weights + rows x (prompt + output) x KV bytes a token + peak activations of the prefill of all of them, the
activations extrapolated from small steps (`footprint`). Found: bisection over the rows. A try makes a cache, prefills,
and decodes once at the full context: the most that the batch will ever hold.

On a CPU the limit is one on writable memory beyond what the process has when it begins (`RLIMIT_DATA`; within
`RLIMIT_AS` glibc still finds room in the arenas of other threads), and the allocation really fails; memory that is
given back is really gone (`limit`), and a child ended by a signal counts as out of memory: each try has a process of
its own, so that a failure cannot poison the next. On CUDA the limit is a share of the device
(`torch.cuda.set_per_process_memory_fraction`), and the error that of its allocator, which recovers from it: one process
builds the weights once and makes all tries. What the allocator *reserves* is more than what is allocated in it, and is
what the limit holds for.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import resource
import signal
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from servecast.device import footprint, grid, machine
from servecast.device.cache import KVCache
from servecast.device.calibrate import activations
from servecast.device.limit import data_bytes, give_back_freed_memory, out_of_memory, status_bytes
from servecast.device.model import DTYPES, require_dense, transformer
from servecast.device.padded import Padded
from servecast.device.ragged import Ragged
from servecast.device.timing import open_device
from servecast.errors import InputError
from servecast.policies import POLICIES
from servecast.specs import catalogue

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from servecast.device.model import Transformer
    from servecast.specs.model import ModelSpec


@dataclass(frozen=True)
class CliffCase:
    """What each row of the batch is, and the memory it may take beside the process itself.

    policy : ``static`` or ``padded``
    """

    model: ModelSpec
    device: str
    dtype: str
    prompt: int
    output: int
    limit_bytes: int
    most_rows: int = 4096
    policy: str = "padded"


def usual_limit_bytes(device: str) -> int:
    """The memory that a batch may take where nothing is said: nine tenths of a GPU; on a CPU half a gigabyte, which a
    small model reaches in seconds."""
    opened = open_device(device)
    if opened.type == "cpu":
        return 500_000_000
    return int(0.9 * torch.cuda.get_device_properties(opened).total_memory)


class Try(NamedTuple):
    """One batch that was tried: whether it fitted, and the peak bytes it took (None where it did not fit).

    reserved_bytes : what the allocator of a GPU held for it, unused parts of its pieces included; None on a CPU
    """

    rows: int
    fitted: bool
    peak_bytes: int | None
    reserved_bytes: int | None = None


class Cliff(NamedTuple):
    """Forecast and found: the most rows that fit, and the bytes at those. ``tries`` in the order they were made."""

    predicted_rows: int
    predicted_bytes: float
    found_rows: int
    bytes_at_found: float
    tries: tuple[Try, ...]

    @property
    def found(self) -> Try:
        """The try of the most rows that fit."""
        return next(each for each in self.tries if each.rows == self.found_rows and each.fitted)

    @property
    def bytes_error(self) -> float | None:
        """Forecast over measured peak at the rows found, less one."""
        measured = self.found.peak_bytes
        return None if measured is None else self.bytes_at_found / measured - 1


class Forecast(NamedTuple):
    """Bytes of a padded batch, by its rows."""

    weights: float
    kv_per_row: float
    activations: footprint.Activations
    prompt: int

    def bytes(self, rows: int) -> float:
        """Peak bytes of so many rows."""
        return self.weights + rows * self.kv_per_row + self.activations.peak(rows * self.prompt, rows)

    def most(self, limit: float, most: int) -> int:
        """The most rows whose peak is within ``limit``; 0 if one is too many."""
        return bisect_right(range(1, most + 1), limit, key=self.bytes)


def cliff(case: CliffCase, progress: Callable[[Try], None] = lambda made: None) -> Cliff:
    """Forecast, then find by running. Raises InputError for a limit that no batch meets, or every one."""
    require_dense(case.model)
    if case.prompt < 1 or case.output < 1:
        raise InputError("--prompt", f"prompt {case.prompt} and output {case.output} must be at least 1 token each")
    there = machine.memory_bytes(open_device(case.device), catalogue.device("cpu"))
    if case.limit_bytes > there:
        raise InputError(
            "--memory-gb",
            f"{case.limit_bytes / 1e9:.3g} GB are more than the {there / 1e9:.3g} GB that {case.device} has free: give "
            "less, this limit would never be met",
        )
    forecast = forecast_of(case)
    predicted = forecast.most(case.limit_bytes, case.most_rows)
    tries: list[Try] = []

    with _Child(case) as child:

        def fits(rows: int) -> bool:
            tries.append(child.tried(rows))
            progress(tries[-1])
            return tries[-1].fitted

        found = _bisected(max(1, predicted), case.most_rows, fits)
    if found == 0:
        raise InputError(
            "--memory-gb",
            f"{case.limit_bytes / 1e9:.3g} GB hold not one row of {case.prompt} + {case.output} tokens "
            f"({forecast.bytes(1) / 1e9:.3g} GB are forecast): give more memory or shorter rows",
        )
    if found == case.most_rows:
        problem = f"{case.limit_bytes / 1e9:.3g} GB hold {found} rows, the most that is tried: give less memory"
        raise InputError("--memory-gb", problem)
    return Cliff(predicted, forecast.bytes(predicted), found, forecast.bytes(found), tuple(tries))


def forecast_of(case: CliffCase) -> Forecast:
    """The forecast, its activations measured on small steps of one layer's model (a layer's die before the next's)."""
    device = open_device(case.device)
    small = grid.Limits(32, 256, 2048)
    with torch.inference_mode():
        model = transformer(case.model, device, case.dtype, max_positions=small.length, layers=1)
        ragged = Ragged(model, KVCache(model, small.rows, small.length), graphs=False)
        found = activations(ragged, small)
        head_dim = model.attention.head_dim
        del model, ragged
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the tries are made beside this process
    computed, length = replace(case.model, dtype=case.dtype), case.prompt + case.output
    rotary = 2 * length * head_dim * DTYPES[case.dtype].itemsize
    return Forecast(computed.weight_bytes() + rotary, computed.kv_bytes_per_token() * length, found, case.prompt)


def _bisected(guess: int, most: int, fits: Callable[[int], bool]) -> int:
    """The most rows that fit, from a guess: steps that double until both sides are known, then halves."""
    low, high = 0, most + 1
    rows, step = min(guess, most), 1
    while high - low > 1:
        low, high = (rows, high) if fits(rows) else (low, rows)
        if low and high <= most:
            rows = (low + high) // 2
        elif low:
            rows, step = min(low + step, most), 2 * step
        else:
            rows, step = max(high - step, 1), 2 * step
        if high == 1:
            return 0
        if low == most:
            return most
    return low


class _Child:
    """A process that tries batches: a new one for each on a CPU, one for all on CUDA."""

    def __init__(self, case: CliffCase) -> None:
        self.case = case
        self.on_cpu = case.device.partition(":")[0] == "cpu"
        self._running: tuple[Any, Connection] | None = None

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None and self._running is not None:
            self._running[0].kill()  # nobody waits for what it is trying
        self._end()

    def tried(self, rows: int) -> Try:
        """Run a batch of so many rows. Raises InputError where it fails for another reason than memory."""
        process, pipe = self._running or self._begun()
        answer: tuple[bool, int | None, int | None] | str
        try:
            pipe.send(rows)
            answer = pipe.recv()
        except (EOFError, BrokenPipeError):
            process.join()
            # A signal's code is negative: that is memory.
            answer = "its process ended with the error above" if process.exitcode > 0 else (False, None, None)
            self._running = None
        if self.on_cpu:
            self._end()
        if isinstance(answer, str):
            raise InputError("cliff", f"a batch of {rows} rows failed for another reason than memory: {answer}")
        return Try(rows, *answer)

    def _begun(self) -> tuple[Any, Connection]:
        # A fork needs no second import of torch; CUDA does not survive one.
        context: Any = multiprocessing.get_context("fork" if self.on_cpu else "spawn")
        if self.on_cpu:
            give_back_freed_memory()  # here, since the child's peak begins with what it is born with
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(self.case, theirs), daemon=True)
        process.start()
        theirs.close()
        self._running = (process, ours)
        return self._running

    def _end(self) -> None:
        if self._running is not None:
            process, pipe = self._running
            self._running = None
            with contextlib.suppress(BrokenPipeError):
                pipe.send(None)
            process.join()


def _serve(case: CliffCase, pipe: Connection) -> None:
    """What a child does: tries batches of the rows it is told, until nobody tells."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to answer
    device = open_device(case.device)
    before = _limited(case, device)
    model: Transformer | None = None
    while True:
        rows = pipe.recv()
        if rows is None:
            return
        try:
            with torch.inference_mode():
                if model is None:
                    model = transformer(case.model, device, case.dtype, max_positions=case.prompt + case.output)
                answer: Any = (True, *_run(case, model, rows, before))
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            answer = (False, None, None) if out_of_memory(error) else " ".join(str(error).split())[:300]
        except MemoryError:
            answer = (False, None, None)
        if device.type == "cuda":
            gc.collect()  # the error's frames have held the batch
            torch.cuda.empty_cache()
        pipe.send(answer)


def _run(case: CliffCase, model: Transformer, rows: int, before: int) -> tuple[int, int | None]:
    """The whole of a batch within the limit; its peak bytes, and those that the allocator of a GPU reserved."""
    device, length = model.device, case.prompt + case.output
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    cache = KVCache(model, rows, length)
    tokens = torch.zeros((rows, case.prompt), dtype=torch.int64, device=device)
    if POLICIES[case.policy].rectangle:
        padded = Padded(model, cache)
        padded.begin([case.prompt] * rows)
        following = padded.prefill(tokens).argmax(-1)
        del tokens
        padded.padded = length - 1
        padded.decode(following).argmax(-1)
    else:
        ragged = Ragged(model, cache, graphs=False)
        following = ragged.step([grid.Span(row, 0, case.prompt) for row in range(rows)], tokens.flatten())
        del tokens
        ragged.step([grid.Span(row, length - 1, 1) for row in range(rows)], following)
    if device.type == "cpu":
        return status_bytes("VmPeak") - before, None
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device)), int(torch.cuda.max_memory_reserved(device))


def _limited(case: CliffCase, device: torch.device) -> int:
    """Set the limit of this process; the address space it has now [B], 0 on CUDA."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, case.limit_bytes / total), device)
        return 0
    before, data = status_bytes("VmSize"), data_bytes()
    # The kernel rounds each mapping up to pages and torch aligns: what is beside the tensors stays under a per cent.
    resource.setrlimit(resource.RLIMIT_DATA, (data + case.limit_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    return before

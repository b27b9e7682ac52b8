"""The executor that really computes: it walks the rows of a batch, runs their step, and says how long that took.

Prompts are random tokens drawn by request, next tokens are the greedy ones and are fed back, and a preempted request is
computed again from the tokens it had. Ragged policies keep a request in the slot the engine gave it; a padded batch is
one rectangle. What is timed is the step: indices, kernels and sampling. Tokens are read back after the clock.
"""

from __future__ import annotations

import contextlib
import gc
import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from servecast.device.cache import KVCache
from servecast.device.grid import Span
from servecast.device.limit import out_of_memory
from servecast.device.padded import Padded
from servecast.device.ragged import Ragged
from servecast.device.timing import clock
from servecast.errors import InputError
from servecast.executor import SAME_INSTANT_S, Measured, RanOutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from servecast.batch import Batch
    from servecast.device.ballast import DeviceLimit
    from servecast.device.limit import Limit
    from servecast.device.model import Transformer
    from servecast.requests import Sequence as Served


class DeviceExecutor:
    """Runs batches of one policy: ``slots`` rows at once, at most, of up to ``max_length`` tokens.

    ``padded``: every row is computed as long as the longest.

    ``limit``, for closed batches: the cache grows with the batch, and a step may run out of memory.
    ``tokens`` has those of each request so far, prompt included, by its id.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        slots: int,
        max_length: int,
        padded: bool,
        seed: int = 0,
        limit: Limit | DeviceLimit | None = None,
    ) -> None:
        gc.collect()  # an executor before this one holds its cache and its graphs in cycles
        if model.device.type == "cuda":
            torch.cuda.empty_cache()
        self.model = model
        self.limit = limit
        self.longest = max_length
        held = max_length if limit is None else limit.whole_blocks(max_length)
        self.cache = allocated(model, slots, held, growing=limit is not None)
        self.padded = Padded(model, self.cache) if padded else None
        self.ragged = Ragged(model, self.cache)
        self.tokens: dict[int, list[int]] = {}
        self._now = clock(model.device)
        self._seed = seed

    def run(self, batch: Batch, until: float = math.inf) -> Measured:
        if self.cache.reserved is not None and batch.prefill:
            self.cache.reserved.release()  # a closed batch prefills once: it is another one
        with torch.inference_mode():
            return self._run_padded(batch, until) if self.padded else self._run_ragged(batch, until)

    @contextlib.contextmanager
    def _room(self, lengths: Sequence[tuple[int, int]]) -> Iterator[None]:
        """Memory of one step, whose rows (slot, tokens) end with so many. Raises RanOutError where they do not fit."""
        limit, reserved = self.limit, self.cache.reserved
        if limit is None or reserved is None:
            yield
            return
        with limit.room(limit.cache_bytes - reserved.held, reserved.held):
            reserved.grow([(slot, limit.whole_blocks(tokens)) for slot, tokens in lengths])
        with limit.room(limit.budget - reserved.held, reserved.held):
            yield

    def warm_up(self) -> None:
        """Run a decode step of every number of rows, and prompts of doubling lengths: a first time costs more."""
        with torch.inference_mode():
            if self.cache.reserved is not None:
                self.cache.reserved.ready(self.longest)
            self.ragged.capture_all(self.cache.slots)
            lengths = [8 << times for times in range((self.longest // 8).bit_length())]
            for _ in range(2):
                decodes = [[Span(slot, 1, 1) for slot in range(rows)] for rows in range(1, self.cache.slots + 1)]
                for spans in (*decodes, *([Span(0, 0, length)] for length in lengths)):
                    tokens = torch.zeros(sum(s.new for s in spans), dtype=torch.int64, device=self.model.device)
                    self.ragged.step(spans, tokens)
                if self.padded is not None and self.model.device.type == "cuda":
                    self._warm_rectangles(self.padded, [length for length in lengths if length < self.longest])
            if self.cache.reserved is not None:
                self.cache.reserved.release()

    def _warm_rectangles(self, padded: Padded, lengths: Sequence[int]) -> None:
        """A masked decode step is another kernel on CUDA, with other shapes at each context."""
        for length in lengths:
            for rows in {1, self.cache.slots}:
                padded.begin([length] * rows, length)
                padded.decode(torch.zeros(rows, dtype=torch.int64, device=self.model.device)).argmax(-1)

    def _run_ragged(self, batch: Batch, until: float) -> Measured:
        rows = list(batch.rows(batch))
        owed = len(batch.prefill)  # the first rows prefill; only they can be of several tokens
        spans = [Span(row.sequence.slot, row.cached, row.new) for row in rows if row.sequence.slot is not None]
        assert len(spans) == len(rows), "a row of the batch has no slot"
        histories = [self._history(row.sequence) for row in rows]
        samples = [at >= owed or row.cached + row.new == row.sequence.tokens for at, row in enumerate(rows)]
        inputs = [t for h, span in zip(histories, spans, strict=True) for t in h[span.cached : span.cached + span.new]]

        def step() -> float:
            nonlocal spans, inputs
            tokens = torch.tensor(inputs, device=self.model.device)
            with self._room([(slot, cached + new) for slot, cached, new in spans]):
                start = self._now()
                following = self.ragged.step(spans, tokens)
                seconds = self._now() - start
            inputs = following.tolist()
            for history, sampled, token in zip(histories, samples, inputs, strict=True):
                if sampled:
                    history.append(token)
            spans = [Span(slot, cached + new, 1) for slot, cached, new in spans]
            return seconds

        return stepped(step, batch.iterations, until)

    def _run_padded(self, batch: Batch, until: float) -> Measured:
        padded = self.padded
        assert padded is not None
        rows = list(batch.rows(batch))
        histories = [self._history(row.sequence) for row in rows]
        if batch.prefill:
            longest = rows[0].new
            padded.begin([len(history) for history in histories])
            prompts = np.zeros((len(rows), longest), np.int64)
            for prompt, history in zip(prompts, histories, strict=True):
                prompt[: len(history)] = history
            inputs = torch.from_numpy(prompts).to(self.model.device)
        else:
            assert padded.padded == rows[0].cached, (padded.padded, rows[0])
            inputs = torch.tensor([history[-1] for history in histories], device=self.model.device)

        def step() -> float:
            nonlocal inputs
            upto = inputs.shape[1] if inputs.ndim == 2 else padded.padded + 1
            with self._room([(row, upto) for row in range(len(rows))]):
                start = self._now()
                inputs = (padded.prefill(inputs) if inputs.ndim == 2 else padded.decode(inputs)).argmax(-1)
                seconds = self._now() - start
            for history, token in zip(histories, inputs.tolist(), strict=True):
                history.append(token)  # a finished row goes on: that is what padding wastes
            return seconds

        return stepped(step, batch.iterations, until)

    def _history(self, sequence: Served) -> list[int]:
        """Prompt and generated tokens of a request; its prompt is drawn when it is first seen."""
        request = sequence.request
        history = self.tokens.get(request.id)
        if history is None:
            draw = np.random.default_rng((self._seed, request.id))
            history = self.tokens[request.id] = draw.integers(0, self.model.spec.vocab, request.prompt_tokens).tolist()
        return history


def allocated(model: Transformer, slots: int, max_length: int, growing: bool = False) -> KVCache:
    """A KV cache, or one line on why it cannot be had."""
    try:
        return KVCache(model, slots, max_length, growing)
    except (RuntimeError, OSError) as error:
        if not isinstance(error, OSError) and not out_of_memory(error):
            raise
        size = (
            f"{slots} rows of {max_length} tokens ({slots * max_length * model.spec.kv_bytes_per_token() / 1e9:.1f} GB)"
        )
        raise InputError("device", f"no memory for a KV cache of {size}: use fewer or shorter rows") from None


def stepped(step: Callable[[], float], iterations: int, until: float) -> Measured:
    """Iterations one by one: all ``iterations``, or up to the first that ends ``until`` [s] from their start, or up to
    one that the device has no memory for. Raises RanOutError if that is the first."""
    taken: list[float] = []
    elapsed = 0.0
    while len(taken) < iterations and (not taken or elapsed < until - SAME_INSTANT_S):
        try:
            taken.append(step())
        except RanOutError:
            if not taken:
                raise
            break
        elapsed += taken[-1]
    return Measured(taken)

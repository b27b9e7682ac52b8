"""Ragged steps: rows compute ``new`` tokens after ``cached`` ones, each at its own length, prefill and decode in one.

A step is one call of `attention` a layer for the rows that prefill, and one for those that decode. On CUDA steps of up
to `GRAPH_TOKENS` tokens are replayed from CUDA graphs, captured for a few sizes: launching some ten kernels a layer
from Python takes longer than a small step computes. What is short of a size is filled with rows of the spare slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from servecast.device.attention import Rows, attention_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from servecast.device.cache import KVCache
    from servecast.device.grid import Span
    from servecast.device.model import Transformer

    #: Makes a step that reads the same tensors each time into one that is replayed.
    Capture = Callable[[Callable[[], torch.Tensor]], Callable[[], torch.Tensor]]

GRAPH_ROWS = (1, 2, 4, *range(8, 257, 8))
"""Numbers of rows that decode graphs are captured for, vLLM's defaults (CompilationConfig.cudagraph_capture_sizes)."""

GRAPH_TOKENS = 512
"""Tokens up to which a step with prompts is replayed too, as vLLM's largest capture size."""

_PROMPT_TOKENS = (32, 64, 128, 256, 512)
_PROMPT_ROWS = (1, 4, 16)
_BESIDE_ROWS = (0, 8, 32, 64, 128, 256)  # decode rows beside prompts: coarser, there are two more sizes


_ALIGNED = 4  # int32 of 16 bytes


class Layout(NamedTuple):
    """The sizes of a step: tokens and rows that prefill, then rows that decode one token each."""

    prompt_tokens: int
    prompts: int
    decodes: int

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return self.prompt_tokens + self.decodes

    @property
    def parts(self) -> tuple[int, ...]:
        """Lengths of what `_Inputs` holds, in its order."""
        tokens, rows = self.tokens, self.prompts + self.decodes
        of_rows = [(n + 1, n + 1, n) for n in (self.prompts, self.decodes)]
        return (tokens, tokens, rows, *of_rows[0], *of_rows[1])

    @property
    def places(self) -> tuple[slice, ...]:
        """Where each of them lies in the buffer: on 16 bytes, since Triton compiles a kernel anew for pointers that do
        not, and would do so in the midst of a run."""
        starts = list(accumulate((-(-length // _ALIGNED) * _ALIGNED for length in self.parts), initial=0))
        return tuple(slice(at, at + length) for at, length in zip(starts, self.parts, strict=False))

    def captured(self) -> Layout | None:
        """The smallest size that graphs are captured for and that holds this one; None beyond the largest."""
        if self.prompts and self.tokens > GRAPH_TOKENS:
            return None
        sizes = zip(self, _sizes(self.prompts > 0), strict=True)
        found = [next((n for n in known if n >= here), None) for here, known in sizes]
        return None if None in found else Layout(*found)  # type: ignore[arg-type]


class _Inputs(NamedTuple):
    """What a step reads beside its tokens, int32 views of one buffer (`Layout.parts`)."""

    positions: torch.Tensor
    where: torch.Tensor
    sampled: torch.Tensor
    prompts: Rows | None
    decodes: Rows | None


@dataclass
class Ragged:
    """Ragged steps of a model on a cache. ``graphs``: replay small ones, on CUDA; ``capture`` makes them so."""

    model: Transformer
    cache: KVCache
    graphs: bool = True
    capture: Capture | None = None
    _captured: dict[Layout, _Captured] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.capture is None and self.model.device.type == "cuda":
            self.capture = _CudaGraphs(self.model.device)

    def step(self, spans: Sequence[Span], tokens: torch.Tensor) -> torch.Tensor:
        """Next tokens (rows,) int64 of ``spans`` that compute ``tokens`` (T,), row after row, prefills first."""
        if self.graphs and self.capture is not None and (size := _layout(spans).captured()) is not None:
            return self._replayed(spans, tokens, size)
        return self.logits(spans, tokens).argmax(-1)

    def logits(self, spans: Sequence[Span], tokens: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) of the last token of each row."""
        layout = _layout(spans)
        inputs = _inputs(layout, self._sent(_filled(spans, layout, self.cache)), spans)
        return self._logits(inputs, tokens)

    def capture_all(self, rows: int) -> None:
        """Capture the steps of up to so many rows, the largest first: the others then live in its memory."""
        if self.capture is None or not self.graphs:
            return
        sizes = [Layout(*size) for prefills in (False, True) for size in product(*_sizes(prefills))]
        for size in sorted(sizes, key=lambda size: -size.tokens):
            least = _least(size)
            if least.tokens <= GRAPH_TOKENS and least.prompts + least.decodes <= rows:
                self._captured_for(size)

    def _logits(self, inputs: _Inputs, tokens: torch.Tensor) -> torch.Tensor:
        attention = attention_for(self.model.device)
        prompt_tokens = len(tokens) - (0 if inputs.decodes is None else len(inputs.decodes.used))

        def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            calls = ((q[:prompt_tokens], inputs.prompts), (q[prompt_tokens:], inputs.decodes))
            parts = [attention(part, keys, values, rows) for part, rows in calls if rows is not None]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        return self.model.logits(tokens, inputs.positions, inputs.where, inputs.sampled, self.cache, attend)

    def _sent(self, filled: npt.NDArray[np.int32]) -> torch.Tensor:
        if self.model.device.type != "cuda":
            return torch.from_numpy(filled)
        # Pinned memory lets the copy overlap; nothing waits for it but the kernels that read it.
        return torch.from_numpy(filled).pin_memory().to(self.model.device, non_blocking=True)

    def _replayed(self, spans: Sequence[Span], tokens: torch.Tensor, size: Layout) -> torch.Tensor:
        graph = self._captured_for(size)
        graph.buffer.copy_(self._sent(_filled(spans, size, self.cache)))
        layout = _layout(spans)
        graph.tokens[: layout.prompt_tokens] = tokens[: layout.prompt_tokens]
        graph.tokens[size.prompt_tokens : size.prompt_tokens + layout.decodes] = tokens[layout.prompt_tokens :]
        return graph.replay()[: len(spans)]

    def _captured_for(self, size: Layout) -> _Captured:
        if size not in self._captured:
            assert self.capture is not None
            buffer = self._sent(_filled([], size, self.cache))
            tokens = torch.zeros(size.tokens, dtype=torch.int64, device=self.model.device)
            inputs = _inputs(size, buffer, None, self.cache.max_length)
            replay = self.capture(lambda: self._logits(inputs, tokens).argmax(-1))
            self._captured[size] = _Captured(buffer, tokens, replay)
        return self._captured[size]


class _Captured(NamedTuple):
    buffer: torch.Tensor
    tokens: torch.Tensor
    replay: Callable[[], torch.Tensor]


class _CudaGraphs:
    """Captures steps as CUDA graphs that share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool: tuple[int, int] | None = None

    def __call__(self, step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            step()  # eager first: kernels are chosen and workspaces made outside the graph
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            out = step()
        self.pool = graph.pool()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay


def _layout(spans: Sequence[Span]) -> Layout:
    """Exact sizes. Rows up to the last of several tokens prefill, those after it decode."""
    prompts = max((row + 1 for row, span in enumerate(spans) if span.new > 1), default=0)
    return Layout(sum(span.new for span in spans[:prompts]), prompts, len(spans) - prompts)


def _sizes(prefills: bool) -> tuple[tuple[int, ...], ...]:
    """The sizes that graphs are captured for, of each field of a layout."""
    return (_PROMPT_TOKENS, _PROMPT_ROWS, _BESIDE_ROWS) if prefills else ((0,), (0,), GRAPH_ROWS)


def _least(size: Layout) -> Layout:
    """The smallest step that is replayed at this size."""
    smaller = [[n for n in known if n < here] for here, known in zip(size, _sizes(size.prompts > 0), strict=True)]
    return Layout(*(max(below) + 1 if below else min(here, 1) for here, below in zip(size, smaller, strict=True)))


def _filled(spans: Sequence[Span], size: Layout, cache: KVCache) -> npt.NDArray[np.int32]:
    """The buffer of a step of ``size``, of which ``spans`` take the first places of each part and padding the rest.

    Padding tokens are the first of the spare slot. Padding rows that prefill have no token, those that decode have one.
    """
    layout = _layout(spans)
    table = np.array(spans, np.int64).reshape(-1, 3)
    slot, cached, new = table.T
    spare = cache.slots * cache.max_length
    # Places of the tokens in the step: prompts from 0 on, decodes behind all prompt places.
    ends = np.cumsum(new) + np.where(
        np.arange(len(spans)) < layout.prompts, 0, size.prompt_tokens - layout.prompt_tokens
    )
    first = ends - new
    place = np.repeat(first, new) + _within(new)
    position = np.repeat(cached, new) + _within(new)
    positions, where = np.zeros(size.tokens, np.int64), np.full(size.tokens, spare)
    positions[place] = position
    where[place] = position + np.repeat(slot * cache.max_length, new)
    sampled = np.zeros(size.prompts + size.decodes, np.int64)
    sampled[: len(spans)] = ends - 1
    parts = [positions, where, sampled]
    for rows, count, padded in (
        (slice(0, layout.prompts), size.prompts, 0),
        (slice(layout.prompts, None), size.decodes, 1),
    ):
        lengths = np.full(count, padded)
        slots, used = np.full(count + 1, spare), np.ones(count, np.int64)
        here = len(new[rows])
        lengths[:here], slots[:here], used[:here] = new[rows], slot[rows] * cache.max_length, (cached + new)[rows]
        parts += [np.concatenate(([0], np.cumsum(lengths))), slots, used]
    buffer = np.zeros(size.places[-1].stop, np.int32)
    for where_to, part in zip(size.places, parts, strict=True):
        buffer[where_to] = part
    return buffer


def _within(new: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, ... within each row."""
    return np.arange(new.sum()) - np.repeat(np.cumsum(new) - new, new)


def _inputs(size: Layout, buffer: torch.Tensor, spans: Sequence[Span] | None, longest: int = 0) -> _Inputs:
    """The views of a buffer. Bounds are those of ``spans``; without them they hold for whatever a replay reads."""
    positions, where, sampled, *rows = (buffer[place] for place in size.places)

    def bounded(count: int, views: Sequence[torch.Tensor], part: slice, most_new: int) -> Rows | None:
        if not count:
            return None
        starts, slots, used = views
        if spans is None:
            return Rows(starts, slots, used, most_new, longest)
        here = spans[part]
        return Rows(starts, slots, used, max(s.new for s in here), max(s.cached + s.new for s in here))

    prompts = bounded(size.prompts, rows[:3], slice(0, size.prompts), size.prompt_tokens)
    decodes = bounded(size.decodes, rows[3:], slice(size.prompts, None), 1)
    return _Inputs(positions, where, sampled, prompts, decodes)

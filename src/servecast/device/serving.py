"""One step of a batch on its KV cache: ragged rows, or a padded rectangle; then the next token of each row.

The cache is preallocated: `slots` rows of `max_length` tokens for each layer, keys and values token by token, as fused
kernels want them; on CUDA one more slot takes what the padding of a captured graph writes.

*Ragged* rows compute ``new`` tokens after ``cached`` ones, each at its own length, prefill and decode in one step.
On CUDA that is one call a layer of `torch.nn.attention.varlen` over the pages of the slots; decode-only steps are
replayed from CUDA graphs captured for a few numbers of rows. On a CPU it is one fused attention call for each row.

*Padded* rows are computed as if each were the longest: prompts are padded on the right (causal attention keeps what a
prompt computes independent of the padding behind it), generated tokens follow the padded prompt, and a mask hides the
gap between the two.

A row on CPU costs the same whether it is one of a ragged step or of a rectangle of that length; on CUDA the masked
rectangle is another kernel than the ragged one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from servecast.device.grid import Span
from servecast.device.limit import Reserved

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from servecast.device.model import Transformer

TILE = 128
"""Tokens of a chunk that attend in one call on a CPU. Behind a cached prefix the fused kernel takes a mask and computes
what it hides too: small tiles leave little to hide."""

PAGE = 256  # tokens; flash attention 2 wants pages of a multiple of 256

GRAPH_ROWS = (1, 2, 4, *range(8, 257, 8))
"""Numbers of rows that decode graphs are captured for, vLLM's defaults (CompilationConfig.cudagraph_capture_sizes)."""


class KVCache:
    """Keys and values of ``slots`` rows of up to ``max_length`` tokens, in ``layers`` layers.

    ``growing``, on a CPU: rows take memory only for the tokens that `Reserved.grow` has made room for.
    """

    def __init__(self, model: Transformer, slots: int, max_length: int, growing: bool = False) -> None:
        self.slots = slots
        self.reserved: Reserved | None = None
        if growing:
            heads, width = model.attention.kv_heads, model.attention.head_dim
            self.reserved = Reserved(2 * len(model.layers), slots, max_length, heads * width * model.dtype.itemsize)
            tensors = self.reserved.tensors(model.dtype, heads, width)
            self.keys, self.values = tensors[::2], tensors[1::2]
            self.max_length = tensors[0].shape[1]
            return
        self.max_length = -(-max_length // PAGE) * PAGE if model.device.type == "cuda" else max_length
        spare = 1 if model.device.type == "cuda" else 0
        shape = (slots + spare, self.max_length, model.attention.kv_heads, model.attention.head_dim)
        generator = torch.Generator(device=model.device).manual_seed(1)

        def random() -> torch.Tensor:
            # Random, not zeros: a calibration reads contexts that no prefill has written.
            return torch.empty(shape, dtype=model.dtype, device=model.device).normal_(generator=generator)

        self.keys = [random() for _ in model.layers]
        self.values = [random() for _ in model.layers]

    def bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


@dataclass
class Ragged:
    """Ragged steps of a model on a cache. ``graphs``: replay decode-only steps from CUDA graphs."""

    model: Transformer
    cache: KVCache
    graphs: bool = True
    _captured: dict[int, _Graph] = field(default_factory=dict)

    def step(self, spans: Sequence[Span], tokens: torch.Tensor) -> torch.Tensor:
        """Next tokens (rows,) int64 of ``spans`` that compute ``tokens`` (T,), row after row."""
        if self.model.device.type == "cuda":
            if self.graphs and len(tokens) == len(spans) <= GRAPH_ROWS[-1]:
                return self._replay(spans, tokens)
            return self._varlen_step(_varlen_inputs(spans, self.cache, self.model.device), tokens)
        return self.logits(spans, tokens).argmax(-1)

    def logits(self, spans: Sequence[Span], tokens: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) of the last token of each row, one attention call a row: the way of the CPU."""
        model, cache = self.model, self.cache
        positions, flat, ends = _indices(spans, cache.max_length)
        where = torch.from_numpy(flat).to(model.device)
        starts = ends - np.fromiter((span.new for span in spans), np.int64, len(spans))
        rows = [(span, int(start)) for span, start in zip(spans, starts, strict=True)]
        masks = {
            (upto, new): torch.ones(new, upto, dtype=torch.bool, device=model.device).tril(upto - new)
            for span in spans
            if span.cached and span.new > 1
            for _, new, upto in _tiles(span)
        }

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            keys, values = cache.keys[layer], cache.values[layer]
            keys.flatten(0, 1).index_copy_(0, where, k)
            values.flatten(0, 1).index_copy_(0, where, v)
            out = torch.empty_like(q)
            for span, start in rows:
                for done, new, upto in _tiles(span):
                    part = slice(start + done, start + done + new)
                    mask = masks.get((upto, new))
                    _row_attention(q[part], keys[span.slot, :upto], values[span.slot, :upto], out[part], mask)
            return out.flatten(-2)

        at, sampled = (torch.from_numpy(array).to(model.device) for array in (positions, ends - 1))
        return model.logits(tokens, at, sampled, attend)

    def _varlen_step(self, inputs: _Varlen, tokens: torch.Tensor) -> torch.Tensor:
        from torch.nn.attention.varlen import varlen_attn

        model, cache = self.model, self.cache
        pages = (-1, PAGE, model.attention.kv_heads, model.attention.head_dim)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            keys, values = cache.keys[layer], cache.values[layer]
            keys.flatten(0, 1).index_copy_(0, inputs.where, k)
            values.flatten(0, 1).index_copy_(0, inputs.where, v)
            out = varlen_attn(
                q, keys.view(pages), values.view(pages), inputs.starts, None, inputs.longest_new, inputs.longest,
                window_size=(-1, 0), enable_gqa=True, seqused_k=inputs.lengths, block_table=inputs.pages,
            )  # fmt: skip
            assert isinstance(out, torch.Tensor)
            return out.flatten(-2)

        return model.logits(tokens, inputs.positions, inputs.sampled, attend).argmax(-1)

    def _replay(self, spans: Sequence[Span], tokens: torch.Tensor) -> torch.Tensor:
        rows = next(size for size in GRAPH_ROWS if size >= len(spans))
        graph = self._captured.get(rows)
        if graph is None:
            graph = self._captured[rows] = self._capture(rows)
        spare = Span(self.cache.slots, 0, 1)
        inputs = _varlen_inputs([*spans, *[spare] * (rows - len(spans))], self.cache, self.model.device)
        graph.tokens[: len(spans)] = tokens
        for name in ("positions", "where", "lengths", "pages"):
            getattr(graph.inputs, name).copy_(getattr(inputs, name))
        graph.graph.replay()
        return graph.next_tokens[: len(spans)]

    def _capture(self, rows: int) -> _Graph:
        """Capture a decode step of so many rows, after three eager ones on a side stream as torch asks for."""
        device = self.model.device
        spare = Span(self.cache.slots, 0, 1)
        # The longest context is baked into the graph: what a replay may read, whatever it then reads.
        inputs = _varlen_inputs([spare] * rows, self.cache, device)._replace(longest=self.cache.max_length)
        tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(3):
                self._varlen_step(inputs, tokens)
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            next_tokens = self._varlen_step(inputs, tokens)
        return _Graph(graph, inputs, tokens, next_tokens)


@dataclass
class Padded:
    """Padded steps of a model on a cache: one rectangle of rows, prefilled together. ``prompts`` are their lengths."""

    model: Transformer
    cache: KVCache
    prompts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    padded_prompt: int = 0
    padded: int = 0

    def begin(self, prompts: Sequence[int], context: int = 0) -> None:
        """A new batch. ``context`` > 0: as if its rows had been computed up to so many tokens already."""
        self.prompts = np.asarray(prompts, np.int64)
        self.padded_prompt = int(self.prompts.max())
        self.padded = context
        assert len(prompts) <= self.cache.slots, (len(prompts), self.cache.slots)

    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) after prompts ``tokens`` (rows, longest), padded on the right with whatever."""
        rows, longest = tokens.shape
        assert (rows, longest) == (len(self.prompts), self.padded_prompt), (tokens.shape, self.prompts)
        positions = torch.arange(longest, device=tokens.device).repeat(rows)
        sampled = torch.from_numpy(np.arange(rows) * longest + self.prompts - 1).to(tokens.device)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            shape = (rows, longest)
            keys, values = k.unflatten(0, shape), v.unflatten(0, shape)
            self.cache.keys[layer][:rows, :longest] = keys
            self.cache.values[layer][:rows, :longest] = values
            q = q.unflatten(0, shape)
            if q.is_cuda:
                fused = scaled_dot_product_attention(
                    q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True, enable_gqa=True
                )
                return fused.transpose(1, 2).flatten(0, 1).flatten(-2)
            out = torch.empty_like(q)
            for row in range(rows):
                _row_attention(q[row], keys[row], values[row], out[row], None)
            return out.flatten(0, 1).flatten(-2)

        logits = self.model.logits(tokens.flatten(), positions, sampled, attend)
        self.padded = longest
        return logits

    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) after one more token a row (rows,), attending over the padded context."""
        rows, at = len(tokens), self.padded
        upto = at + 1
        device = tokens.device
        prompts = torch.from_numpy(self.prompts).to(device)
        positions = prompts + (at - self.padded_prompt)
        columns = torch.arange(upto, device=device)
        seen = (columns < prompts[:, None]) | (columns >= self.padded_prompt)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            keys, values = self.cache.keys[layer], self.cache.values[layer]
            keys[:rows, at] = k
            values[:rows, at] = v
            if q.is_cuda:
                fused = scaled_dot_product_attention(
                    q[:, :, None], keys[:rows, :upto].transpose(1, 2), values[:rows, :upto].transpose(1, 2),
                    attn_mask=seen[:, None, None], enable_gqa=True,
                )  # fmt: skip
                return fused.flatten(1)
            out = torch.empty_like(q)
            for row in range(rows):
                _row_attention(
                    q[row : row + 1], keys[row, :upto], values[row, :upto], out[row : row + 1], seen[row, None]
                )
            return out.flatten(-2)

        sampled = torch.arange(rows, device=device)
        logits = self.model.logits(tokens, positions, sampled, attend)
        self.padded = upto
        return logits


def _row_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, mask: torch.Tensor | None
) -> None:
    """Fused attention of one row into ``out``: q (new, heads, head_dim) over k, v (keys, kv_heads, head_dim).

    Without a mask one token sees every key, several see causally. One token's query heads of a group share its keys, so
    they go in as if they were its length; more are spread over an expanded view. Neither copies the cache.
    """
    new, heads, width = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    if new == 1:
        fused = scaled_dot_product_attention(
            q.view(1, kv_heads, group, width), k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask
        )
        out.view(1, kv_heads, group, width).copy_(fused)
        return
    grouped = q.view(new, kv_heads, group, width).permute(1, 2, 0, 3)
    keys, values = (t.transpose(0, 1)[:, None].expand(kv_heads, group, -1, width) for t in (k, v))
    fused = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, is_causal=mask is None)
    out.view(new, kv_heads, group, width).copy_(fused.permute(2, 0, 1, 3))


class _Varlen(NamedTuple):
    """The inputs of a step of variable lengths, on the device. ``longest`` bounds every row's keys."""

    positions: torch.Tensor
    where: torch.Tensor
    sampled: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    pages: torch.Tensor
    longest_new: int
    longest: int


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: _Varlen
    tokens: torch.Tensor
    next_tokens: torch.Tensor


def _indices(
    spans: Sequence[Span], max_length: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Position and place in the flattened cache of every token, and where each row's tokens end."""
    table = np.array(spans, dtype=np.int64).reshape(-1, 3)
    slot, cached, new = table.T
    ends = np.cumsum(new)
    positions = np.arange(ends[-1]) + np.repeat(cached - ends + new, new)
    return positions, positions + np.repeat(slot * max_length, new), ends


def _varlen_inputs(spans: Sequence[Span], cache: KVCache, device: torch.device) -> _Varlen:
    positions, flat, ends = _indices(spans, cache.max_length)
    table = np.array(spans, dtype=np.int64).reshape(-1, 3)
    per_slot = cache.max_length // PAGE
    lengths = table[:, 1] + table[:, 2]

    def sent(array: npt.NDArray[np.int64], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        # Pinned memory lets the copy overlap; nothing waits for it but the kernels that read it.
        return torch.from_numpy(array).to(dtype).pin_memory().to(device, non_blocking=True)

    return _Varlen(
        sent(positions),
        sent(flat),
        sent(ends - 1),
        sent(np.concatenate(([0], ends)), torch.int32),
        sent(lengths, torch.int32),
        sent(table[:, :1] * per_slot + np.arange(per_slot), torch.int32),
        int(table[:, 2].max()),
        int(lengths.max()),
    )


def _tiles(span: Span) -> Iterator[tuple[int, int, int]]:
    """What attends in one call on a CPU: tokens done before, tokens, and keys up to the last of them."""
    tile = TILE if span.cached else span.new
    for done in range(0, span.new, tile):
        new = min(tile, span.new - done)
        yield done, new, span.cached + done + new
